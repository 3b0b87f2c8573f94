"""Check that a checkpoint fits a model, and name the flag that would make it fit.

Everywhere `state` is the checkpoint's state dict, and `own` the one of the model that is to load it; `stack` is
"encoder" or "decoder". A constant of a
method is a number that the forward pass computes with and that is neither parameter nor buffer, as DeepNorm's alpha, or
a list with one for each branch (constants.py); state dicts hold constants too.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from torch import Tensor, nn

from ..errors import UserError
from ..wording import counted

StateDict = dict[str, Tensor]
# relative differences between a constant (constants.py) of a checkpoint and of a model that count as none:
ROUNDING = 0.01  # if it may have been saved in half precision
EXACT = 1e-5  # if it was saved in float32
DEPTHS = "give those of its run, or take over parts of it as docs/checkpoints.md says"  # end of a message on depths

# entries of fairseq's `transformer` that no model here reads: `version` marks its format, release 0.12.2 has a second
# set of encoder weights, all zero, and sinusoidal positions are computed
FOREIGN_KEY = re.compile(
    r"(encoder|decoder)\.version$|encoder\.layers\.\d+\.(in_proj|out_proj|fc1|fc2)_(weight|bias)$"
    r"|(encoder|decoder)\.embed_positions\.(_float_tensor|weights)$"
)
OLD_PROJECTIONS = re.compile(r"(.*_attn\.)in_proj_(weight|bias)$")  # queries, keys and values in one, until 2019
POSITION_OFFSET = 2  # rows of a table of learned positions before the first position's: up to the padding symbol's
# parameters that a model has with a flag and lacks without it -> the flag
FLAGS = {
    r"(encoder|decoder)\.embed_positions\.weight$": r"--\1-learned-pos",
    r"(encoder|decoder)\.layernorm_embedding\.": "--layernorm-embedding",
}
TIES = {  # second name of a matrix that two modules share -> how to get a model with two matrices
    "lm_head.weight": "give --untie-weights-roberta",
    "decoder.output_projection.weight": "drop --share-decoder-input-output-embed and --share-all-embeddings",
    "decoder.embed_tokens.weight": "drop --share-all-embeddings",
}


def with_split_projections(state: Mapping[str, Tensor]) -> StateDict:
    """Return a state dict in which each entry for queries, keys and values together is split into three.

    fairseq's checkpoints had such entries until 2019 (OLD_PROJECTIONS).
    """
    split: StateDict = {}
    for key, value in state.items():
        match = OLD_PROJECTIONS.fullmatch(key)
        if not match:
            split[key] = value
            continue
        attention, kind = match.groups()  # kind: "weight" or "bias"
        for role, part in zip("qkv", value.chunk(3), strict=True):
            split[f"{attention}{role}_proj.{kind}"] = part
    return split


def without_foreign_keys(state: StateDict, own: StateDict) -> StateDict:
    """Return a state dict without the entries of fairseq's `transformer` that nothing reads (FOREIGN_KEY).

    An entry of such a name stays if `own` has it.
    """
    return {key: value for key, value in state.items() if key in own or not FOREIGN_KEY.fullmatch(key)}


def check_fit(
    state: StateDict, own: StateDict, constants: Collection[str] = (), missing_constants: Collection[str] = ()
) -> None:
    """Raise a UserError for the first of depth, method and shapes in which a checkpoint and a model differ.

    constants: names of the entries of `own` that are constants of the method; here they are not compared, because
    Stack.check_constants does that. missing_constants: those of them that the checkpoint should have and has not. The
    message names the flag that would help where that is known; the caller puts the file in front.
    """
    # depths
    for stack in ("encoder", "decoder"):
        saved = depth(state, stack)
        built = depth(own, stack)
        if bool(saved) != bool(built):  # one of them has no such stack
            raise UserError(
                f"holds {counted(saved, f'{stack} layer')}, this model {built}",
                "another kind of model; give its --arch",
            )
        if saved != built:
            way = f"give --{stack}-layers {saved}, or for a new training another --save-dir"
            raise UserError(f"holds {counted(saved, f'{stack} layer')}, this model {built}", way)

    # names of parameters, by which methods differ
    missing = sorted((own.keys() - state.keys() - set(constants)) | set(missing_constants))
    extra = sorted(state.keys() - own.keys())
    if missing or extra:
        differences = []
        if missing:
            differences.append(f"it lacks {_first_and_number(missing)}")
        if extra:
            differences.append(f"it also has {_first_and_number(extra)}")
        advice = _flags_to_change(missing, extra) or "train with the flags of its own run"
        raise UserError(
            "was trained with another --method or modifier, or other embedding flags",
            f"{' and '.join(differences)}; {advice}",
        )

    # shapes
    for key, value in own.items():
        if key not in constants and state[key].shape != value.shape:
            raise UserError(_other_shape(key, tuple(state[key].shape), tuple(value.shape), own))


def check_ties(state: StateDict, model: nn.Module) -> None:
    """Raise a UserError if `state` has two different matrices where the model has one under two names.

    Both matrices would be copied into the same parameter, and the later one would replace the other. `state` has all
    names of the model's parameters.
    """
    first_names: dict[nn.Parameter, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        first_name = first_names.setdefault(parameter, name)
        is_second_name = name in TIES and first_name != name
        if is_second_name and not state[name].equal(state[first_name]):
            raise UserError(f"{first_name} and {name}", f"differ, this model has one matrix for both; {TIES[name]}")


def depth(state: StateDict, stack: str) -> int:
    """Count the layers of `stack` in a state dict."""
    last = -1
    for key in state:
        match = re.match(rf"{stack}\.layers\.(\d+)\.", key)
        if match:
            last = max(last, int(match.group(1)))
    return last + 1


def _other_shape(key: str, saved: tuple, built: tuple, own: StateDict) -> str:
    """Return the message that a tensor has another shape in the checkpoint, with the flag that sets it, if one does.

    key: the tensor's name, "encoder.embed_tokens.weight"; saved, built: its shapes in the checkpoint and in the model.
    """
    stack, name = key.split(".", 1)

    if name == "embed_tokens.weight":
        if saved[0] != built[0]:
            data = f"these data have {built[0]} symbols; give the data of its own run"
            return f"holds {saved[0]} {stack} embeddings, {data}"
        return f"is {saved[1]} wide, this model's {stack} {built[1]}; give --{stack}-embed-dim {saved[1]}"

    if name == "embed_positions.weight":
        saved_positions = saved[0] - POSITION_OFFSET
        built_positions = built[0] - POSITION_OFFSET
        if stack == "decoder":
            flag = "--max-target-positions"
        elif depth(own, "decoder"):
            flag = "--max-source-positions"
        else:  # the encoder of a masked language model
            flag = "--max-positions"
        return f"has {saved_positions} learned positions, this model {built_positions}; give {flag} {saved_positions}"

    if name.endswith("fc1.weight"):
        return f"has {stack} feed-forward width {saved[0]}, not {built[0]}; give --{stack}-ffn-embed-dim {saved[0]}"
    return f"{key} has shape {saved}, this model's {built}; give --method, flags and data of its own run"


def _flags_to_change(missing: list[str], extra: list[str]) -> str:
    """Say which flags to give or to drop, as far as FLAGS knows: "give --layernorm-embedding"; "" if it knows none.

    missing: names of parameters that only the model has; extra: names that only the checkpoint has.
    """
    advice = []
    for verb, keys in (("give", extra), ("drop", missing)):
        flags: list[str] = []  # each once, though several parameters ask for it
        for key in keys:
            for pattern, template in FLAGS.items():
                match = re.match(pattern, key)
                if match is None:
                    continue
                flag = match.expand(template)
                if flag not in flags:
                    flags.append(flag)
        if flags:
            advice.append(f"{verb} {' '.join(flags)}")
    return " and ".join(advice)


def other_constant(key: str, saved: Tensor, built: float | list[float], rounding: float = ROUNDING) -> str | None:
    """Return the message that a constant of the method differs from the model's; None if it does not.

    key: its name in the state dict; saved: its number () or numbers (n,) in the checkpoint; built: the model's own;
    rounding: largest relative difference that counts as none.
    """
    reason = "trained at other depths or options, or by another formula"
    saved_numbers = saved.flatten().tolist()
    built_numbers = built if isinstance(built, list) else [built]
    if len(saved_numbers) != len(built_numbers):
        return f"{key} has {counted(len(saved_numbers), 'number')}, this model's {len(built_numbers)}: {reason}"

    for number, expected in zip(saved_numbers, built_numbers, strict=True):
        is_close = abs(number - expected) <= rounding * abs(expected)
        if number != expected and not is_close:  # two equal infinities are not close, because inf - inf is NaN
            return f"{key} is {number:.6g}, this model's {expected:.6g}: {reason}"
    return None


def _first_and_number(keys: list[str]) -> str:
    """Return the first key, and how many more there are: "a" or "a and 2 more"."""
    if len(keys) == 1:
        return keys[0]
    return f"{keys[0]} and {len(keys) - 1} more"
