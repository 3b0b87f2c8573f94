"""Check that a checkpoint fits a model, and name the flag that would make it fit."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from torch import Tensor, nn

from ..errors import UserError

StateDict = dict[str, Tensor]
ROUNDING = 0.01  # relative difference of constants that half precision explains
EXACT = 1e-5  # of constants that were always saved in float32
DEPTHS = "give those of its run, or take over parts of it as docs/checkpoints.md says"

# fairseq's `transformer` marks its format with `version`; release 0.12.2 also doubles encoder weights, all zero
FOREIGN_KEY = re.compile(
    r"(encoder|decoder)\.version$|encoder\.layers\.\d+\.(in_proj|out_proj|fc1|fc2)_(weight|bias)$"
    r"|(encoder|decoder)\.embed_positions\.(_float_tensor|weights)$"
)
OLD_PROJECTIONS = re.compile(r"(.*_attn\.)in_proj_(weight|bias)$")  # queries, keys and values in one, until 2019
BEFORE_FIRST = 2  # rows of a table of learned positions up to the padding symbol's
# parameters whose presence tells a flag of the checkpoint's run
FLAGS = {
    r"(encoder|decoder)\.embed_positions\.weight$": r"--\1-learned-pos",
    r"(encoder|decoder)\.layernorm_embedding\.": "--layernorm-embedding",
}
TIES = {  # second name of a shared matrix -> flag with which the model has two matrices
    "lm_head.weight": "give --untie-weights-roberta",
    "decoder.output_projection.weight": "drop --share-decoder-input-output-embed and --share-all-embeddings",
    "decoder.embed_tokens.weight": "drop --share-all-embeddings",
}


def with_split_projections(state: Mapping[str, Tensor]) -> StateDict:
    """Split each entry that fairseq wrote for queries, keys and values together into three."""
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
    """Drop the entries that fairseq's `transformer` writes and nothing reads."""
    return {key: value for key, value in state.items() if key in own or not FOREIGN_KEY.fullmatch(key)}


def check_fit(state: StateDict, own: StateDict, constants: Collection[str] = (), lacked: Collection[str] = ()) -> None:
    """Raise a UserError for the first of depth, method and shapes in which a checkpoint and a model differ.

    state, own: their state dicts; constants: names in `own` whose numbers Stack.check_constants compares; lacked: those
    that the checkpoint should have and has not. The message names the flag where that is known; fairseq's loader adds
    the file.
    """
    for stack in ("encoder", "decoder"):
        saved = depth(state, stack)
        built = depth(own, stack)
        if bool(saved) != bool(built):
            raise UserError(f"holds {saved} {stack} layers, this model {built}: another kind of model; give its --arch")
        if saved != built:
            way = f"give --{stack}-layers {saved}, or for a new training another --save-dir"
            raise UserError(f"holds {saved} {stack} layers, this model has {built}; {way}")

    missing = sorted((own.keys() - state.keys() - set(constants)) | set(lacked))
    extra = sorted(state.keys() - own.keys())
    if missing or extra:
        differences = []
        if missing:
            differences.append(f"it lacks {_first_of(missing)}")
        if extra:
            differences.append(f"it also has {_first_of(extra)}")
        advice = _flags(missing, extra) or "train with the flags of its own run"
        raise UserError(
            "was trained with another --method or modifier, or other embedding flags: "
            f"{' and '.join(differences)}; {advice}"
        )

    for key, value in own.items():
        if key not in constants and state[key].shape != value.shape:
            raise UserError(_other_shape(key, tuple(state[key].shape), tuple(value.shape), own))


def check_ties(state: StateDict, model: nn.Module) -> None:
    """Raise a UserError if two matrices differ that the model shares: the one copied last would replace the other."""
    first_names: dict[nn.Parameter, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        first_name = first_names.setdefault(parameter, name)
        is_second_name = name in TIES and first_name != name
        if is_second_name and not state[name].equal(state[first_name]):
            raise UserError(f"{first_name} and {name} differ, this model has one matrix for both; {TIES[name]}")


def depth(state: StateDict, stack: str) -> int:
    """Count the layers of `stack` in a state dict."""
    last = -1
    for key in state:
        match = re.match(rf"{stack}\.layers\.(\d+)\.", key)
        if match:
            last = max(last, int(match.group(1)))
    return last + 1


def _other_shape(key: str, saved: tuple, built: tuple, own: StateDict) -> str:
    """Say how the shape of a checkpoint's tensor differs from the model's, and name the flag that sets it.

    key: their name; saved, built: shapes in the checkpoint and in the model; own: state dict of the model.
    """
    stack, name = key.split(".", 1)

    if name == "embed_tokens.weight":
        if saved[0] != built[0]:
            data = f"these data have {built[0]} symbols; give the data of its own run"
            return f"holds {saved[0]} {stack} embeddings, {data}"
        return f"is {saved[1]} wide, this model's {stack} {built[1]}; give --{stack}-embed-dim {saved[1]}"

    if name == "embed_positions.weight":
        saved_positions = saved[0] - BEFORE_FIRST
        built_positions = built[0] - BEFORE_FIRST
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


def _flags(missing: list[str], extra: list[str]) -> str:
    """Return the flags that would remove the difference, as far as parameter names tell."""
    advice = []
    for verb, keys in (("give", extra), ("drop", missing)):
        flags: list[str] = []
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
    """Say how a constant of the method in a checkpoint differs from the model's; None if it does not.

    key: its name in the state dict; saved: its number or numbers in the checkpoint; built: those by which the model
    computes; rounding: relative difference that is none.
    """
    reason = "trained at other depths or options, or by another formula"
    numbers = saved.flatten().tolist()
    own = built if isinstance(built, list) else [built]
    if len(numbers) != len(own):
        return f"{key} has {len(numbers)} numbers, this model's {len(own)}: {reason}"

    for number, mine in zip(numbers, own, strict=True):
        is_close = abs(number - mine) <= rounding * abs(mine)  # False for NaN, and for two infinities
        if number != mine and not is_close:
            return f"{key} is {number:.6g}, this model's {mine:.6g}: {reason}"
    return None


def _first_of(keys: list[str]) -> str:
    """Name the first of some keys, and how many more there are."""
    if len(keys) == 1:
        return keys[0]
    return f"{keys[0]} and {len(keys) - 1} more"
