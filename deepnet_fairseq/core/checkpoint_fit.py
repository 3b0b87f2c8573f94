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
        if match := OLD_PROJECTIONS.fullmatch(key):
            parts = zip("qkv", value.chunk(3), strict=True)
            split |= {f"{match[1]}{name}_proj.{match[2]}": part for name, part in parts}
        else:
            split[key] = value
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
        saved, built = depth(state, stack), depth(own, stack)
        if bool(saved) != bool(built):
            raise UserError(f"holds {saved} {stack} layers, this model {built}: another kind of model; give its --arch")
        if saved != built:
            way = f"give --{stack}-layers {saved}, or for a new training another --save-dir"
            raise UserError(f"holds {saved} {stack} layers, this model has {built}; {way}")
    missing = sorted((own.keys() - state.keys() - set(constants)) | set(lacked))
    extra = sorted(state.keys() - own.keys())
    if missing or extra:
        raise UserError(
            "was trained with another --method or modifier, or other embedding flags: "
            f"{_some('it lacks', missing)}{' and ' if missing and extra else ''}{_some('it also has', extra)}; "
            f"{_flags(missing, extra) or 'train with the flags of its own run'}"
        )
    for key, value in own.items():
        if key not in constants and state[key].shape != value.shape:
            raise UserError(_other_shape(key, tuple(state[key].shape), tuple(value.shape), own))


def check_ties(state: StateDict, model: nn.Module) -> None:
    """Raise a UserError if two matrices differ that the model shares: the one copied last would replace the other."""
    first: dict[nn.Parameter, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        other = first.setdefault(parameter, name)
        if name in TIES and other != name and not state[name].equal(state[other]):
            raise UserError(f"{other} and {name} differ, this model has one matrix for both; {TIES[name]}")


def depth(state: StateDict, stack: str) -> int:
    """Count the layers of `stack` in a state dict."""
    last = -1
    for key in state:
        match = re.match(rf"{stack}\.layers\.(\d+)\.", key)
        if match:
            last = max(last, int(match.group(1)))
    return last + 1


def _other_shape(key: str, saved: tuple, built: tuple, own: StateDict) -> str:
    stack, name = key.split(".", 1)
    if name == "embed_tokens.weight":
        if saved[0] != built[0]:
            data = f"these data have {built[0]} symbols; give the data of its own run"
            return f"holds {saved[0]} {stack} embeddings, {data}"
        return f"is {saved[1]} wide, this model's {stack} {built[1]}; give --{stack}-embed-dim {saved[1]}"
    if name == "embed_positions.weight":
        saved, built = saved[0] - BEFORE_FIRST, built[0] - BEFORE_FIRST
        of_pair = "--max-source-positions" if depth(own, "decoder") else "--max-positions"
        flag = "--max-target-positions" if stack == "decoder" else of_pair
        return f"has {saved} learned positions, this model {built}; give {flag} {saved}"
    if name.endswith("fc1.weight"):
        return f"has {stack} feed-forward width {saved[0]}, not {built[0]}; give --{stack}-ffn-embed-dim {saved[0]}"
    return f"{key} has shape {saved}, this model's {built}; give --method, flags and data of its own run"


def _flags(missing: list[str], extra: list[str]) -> str:
    """Return the flags that would remove the difference, as far as parameter names tell."""
    advice = []
    for verb, keys in (("give", extra), ("drop", missing)):
        matching = (m.expand(flag) for key in keys for pattern, flag in FLAGS.items() if (m := re.match(pattern, key)))
        if flags := " ".join(dict.fromkeys(matching)):
            advice.append(f"{verb} {flags}")
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
        if number != mine and not abs(number - mine) <= rounding * abs(mine):
            return f"{key} is {number:.6g}, this model's {mine:.6g}: {reason}"
    return None


def _some(verb: str, keys: list[str]) -> str:
    return f"{verb} {keys[0]}" + (f" and {len(keys) - 1} more" if len(keys) > 1 else "") if keys else ""
