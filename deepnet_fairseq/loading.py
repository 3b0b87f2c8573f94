"""Does this checkpoint fit this model? If not: which flag is it."""

from __future__ import annotations

import re

from torch import Tensor

from .errors import UserError

StateDict = dict[str, Tensor]

# fairseq's `transformer` marks its format with `version`; release 0.12.2 also doubles encoder weights, all zero
FOREIGN_KEY = re.compile(
    r"(encoder|decoder)\.version$|encoder\.layers\.\d+\.(in_proj|out_proj|fc1|fc2)_(weight|bias)$"
    r"|(encoder|decoder)\.embed_positions\._float_tensor$"
)


def without_foreign_keys(state: StateDict, own: StateDict) -> StateDict:
    """`state` less the entries that fairseq's `transformer` writes and nothing reads."""
    return {key: value for key, value in state.items() if key in own or not FOREIGN_KEY.fullmatch(key)}


def check_fit(state: StateDict, own: StateDict) -> None:
    """UserError naming depth, method, width or vocabulary, whichever differs first."""
    for stack in ("encoder", "decoder"):
        held, built = depth(state, stack), depth(own, stack)
        if bool(held) != bool(built):
            raise UserError(f"holds {held} {stack} layers, this model {built}: another kind of model; give its --arch")
        if held != built:
            raise UserError(f"holds {held} {stack} layers, this model has {built}; give --{stack}-layers {held}")
    missing, extra = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
    if missing or extra:
        raise UserError(
            "was trained with another --method or other embedding flags: "
            f"{_some('it lacks', missing)}{' and ' if missing and extra else ''}{_some('it also has', extra)}; "
            "train with the flags of its own run"
        )
    for key, value in own.items():
        if state[key].shape != value.shape:
            raise UserError(_other_shape(key, tuple(state[key].shape), tuple(value.shape)))
    _check_constants(state, own)


def depth(state: StateDict, stack: str) -> int:
    """Number of layers of `stack` in a state dict."""
    layers = (re.match(rf"{stack}\.layers\.(\d+)\.", key) for key in state)
    return 1 + max((int(match.group(1)) for match in layers if match), default=-1)


def _other_shape(key: str, held: tuple, built: tuple) -> str:
    stack, name = key.split(".", 1)
    if name == "embed_tokens.weight":
        if held[0] != built[0]:
            return (
                f"holds {held[0]} {stack} embeddings, these data have {built[0]} symbols; give the data of its own run"
            )
        return f"is {held[1]} wide, this model's {stack} {built[1]}; give --{stack}-embed-dim {held[1]}"
    if name.endswith("fc1.weight"):
        return f"has {stack} feed-forward width {held[0]}, not {built[0]}; give --{stack}-ffn-embed-dim {held[0]}"
    return f"{key} has shape {held}, this model's {built}; give the flags and data of its own run"


def _check_constants(state: StateDict, own: StateDict) -> None:
    for key, value in own.items():
        if key.count(".") > 1 or value.dim() > 0:  # not one of Method.constants
            continue
        held, built = float(state[key]), float(value)
        if abs(held - built) > 0.01 * abs(built):  # half precision rounds them
            raise UserError(f"{key} is {held:.4g}, this model's {built:.4g}: trained at other depths or options")


def _some(verb: str, keys: list[str]) -> str:
    return f"{verb} {keys[0]}" + (f" and {len(keys) - 1} more" if len(keys) > 1 else "") if keys else ""
