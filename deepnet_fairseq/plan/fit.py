"""Which flags make a training fit: from those that cost nothing to those that cost most."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from ..errors import UserError
from .needs import Memory, best_group, flops, memory
from .setting import SHARDED, SHARDING_FLAGS, Setting, recomputation

BUSY_TOKENS = 2048  # in a batch, that keep a GPU busy
FEWEST_TOKENS = 256  # a smaller batch is not offered
MOST_GPUS = 1024
# what they spread, and what else changes: a sharded matrix gives no logits in chunks
SHARDINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "os": ("optimiser", {}),
    "fully_sharded": ("all", {"criterion": "", "chunk": 0}),
}
USABLE = 0.95  # of a GPU's memory; the rest is for CUDA's context, workspaces and gaps between blocks
SAVES = 0.99  # of the peak before it: a step that saves less is no step

Ways = Iterator[tuple[str, Setting]]


@dataclass(frozen=True)
class Option:
    """A setting with its peak, offered as a step towards fitting.

    flags: of fairseq-train, those that change; cost: operations for a token, relative to the setting as given.
    """

    name: str
    flags: str
    setting: Setting
    memory: Memory
    cost: float

    @property
    def fits(self) -> bool:
        """Does the peak stay within USABLE of a GPU's memory?"""
        return self.memory.peak <= USABLE * self.setting.gpu_memory

    def as_dict(self) -> dict:
        """For JSON; peak in bytes."""
        numbers = {"gpus": self.setting.gpus, "peak": self.memory.peak, "fits": self.fits, "cost": self.cost}
        return {"name": self.name, "flags": self.flags} | numbers


def recommend(setting: Setting) -> list[Option]:
    """What was asked for and, until one fits, steps towards less memory; the last is the one to take, if it fits.

    In this order: the loss in chunks, batches half as large and twice as many, layers recomputed in groups of the best
    size, both, the optimiser's state sharded, all sharded, more GPUs. Steps that save nothing are left out.
    """
    options = [_option("as given", setting, setting)]
    for ways in (_chunked, _in_smaller_batches, _recomputed, _recomputed_in_smaller_batches, _sharded):
        for name, candidate in ways(setting, options[-1].setting):
            if options[-1].fits:
                return options
            option = _option(name, setting, candidate)
            if option.memory.peak < SAVES * options[-1].memory.peak:
                options.append(option)
    return options


def _chunked(given: Setting, last: Setting) -> Ways:
    chunked = last.objective.chunked
    if chunked and not last.chunked and last.sharding != "fully_sharded":
        yield "loss in chunks", replace(last, criterion=chunked)


def _in_smaller_batches(given: Setting, last: Setting) -> Ways:
    for smaller in _smaller(last, BUSY_TOKENS):
        yield _batches(smaller), smaller


def _recomputed(given: Setting, last: Setting) -> Ways:
    """In batches as large as given: they cost nothing but memory."""
    if not given.checkpoint_every:
        again = _in_groups(replace(last, max_tokens=given.max_tokens, update_freq=given.update_freq))
        yield _groups(again), again


def _recomputed_in_smaller_batches(given: Setting, last: Setting) -> Ways:
    for smaller in _smaller(last, FEWEST_TOKENS) if last.checkpoint_every else ():
        again = smaller if given.checkpoint_every else _in_groups(smaller)
        yield f"{_groups(again)}, {_batches(again)}", again


def _sharded(given: Setting, last: Setting) -> Ways:
    """The optimiser's state, then the weights and gradients too, over the GPUs there are, then over more."""
    gpus = max(2, given.gpus)
    while gpus <= MOST_GPUS:
        for sharding, (what, changes) in SHARDINGS.items():
            with suppress(UserError):  # not with this precision
                sharded = replace(last, gpus=gpus, sharding=sharding, optimizer=SHARDED[sharding], **changes)
                yield f"{what} over {gpus} GPUs", sharded
        gpus *= 2


def _batches(setting: Setting) -> str:
    return f"batches of {setting.max_tokens:,} tokens x {setting.update_freq}"


def _groups(setting: Setting) -> str:
    every = setting.checkpoint_every
    return f"recompute {every} layers at a time" if every > 1 else "recompute each layer"


def _smaller(setting: Setting, fewest: int) -> Iterator[Setting]:
    """As many tokens an update in batches half as large, and half of that, down to `fewest` tokens."""
    tokens, factor = setting.max_tokens // 2, 2
    while tokens >= max(fewest, setting.length):
        yield replace(setting, max_tokens=tokens, update_freq=setting.update_freq * factor)
        tokens, factor = tokens // 2, factor * 2


def _in_groups(setting: Setting) -> Setting:
    return replace(setting, checkpoint_every=best_group(setting))


def _option(name: str, given: Setting, setting: Setting) -> Option:
    cost = _per_token(setting) / _per_token(given)
    return Option(name, _changes(given, setting), setting, memory(setting), cost)


def _per_token(setting: Setting) -> float:
    return flops(setting).step / setting.batch


def _changes(given: Setting, setting: Setting) -> str:
    flags = []
    if setting.optimizer != given.optimizer:
        flags.append(f"--optimizer {setting.optimizer}")
    if setting.criterion != given.criterion:
        flags.append(f"--criterion {setting.criterion}")
    if setting.checkpoint_every != given.checkpoint_every:
        flags.append(recomputation(setting.checkpoint_every))
    if setting.max_tokens != given.max_tokens:
        flags.append(f"--max-tokens {setting.max_tokens} --update-freq {setting.update_freq}")
    if setting.sharding != given.sharding:
        flags.append(SHARDING_FLAGS[setting.sharding])
    return " ".join(flags)
