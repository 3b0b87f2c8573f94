"""Search the flags that make a training fit: from those that cost nothing to those that cost most."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from types import SimpleNamespace

from ...errors import UserError
from .needs import best_group, flops, memory
from .setting import FUSED, SHARDED, Setting, recomputation

BUSY_TOKENS = 2048  # of a batch that keeps a GPU busy
FEWEST_TOKENS = 256  # a smaller batch is not offered
MOST_GPUS = 1024
USABLE = 0.95  # of a GPU's memory; the rest is for CUDA's context, workspaces and gaps between blocks
SAVES = 0.99  # of the peak before it: an option that saves less is left out


@dataclass(frozen=True)
class Option:
    """A setting with what it needs, offered as a step towards fitting, and the setting as given."""

    name: str
    original: Setting
    setting: Setting
    memory: SimpleNamespace

    @property
    def fits(self) -> bool:
        """Whether the peak stays within USABLE of a GPU's memory."""
        return self.memory.peak <= USABLE * self.setting.gpu_memory

    @property
    def cost(self) -> float:
        """Operations for a token, relative to the setting as given."""
        now, before = (flops(setting).step / setting.batch for setting in (self.setting, self.original))
        return now / before

    @property
    def flags(self) -> str:
        """The flags of fairseq-train that change."""
        new = self.setting
        flags = {
            "optimizer": f"--optimizer {new.optimizer}",
            "criterion": f"--criterion {new.criterion}",
            "checkpoint_every": recomputation(new.checkpoint_every),
            "max_tokens": f"--max-tokens {new.max_tokens} --update-freq {new.update_freq}",
            "zero": SHARDED,
        }
        return " ".join(flag for name, flag in flags.items() if getattr(new, name) != getattr(self.original, name))

    def as_dict(self) -> dict:
        """Return the option for JSON; peak in bytes."""
        numbers = {"gpus": self.setting.gpus, "peak": self.memory.peak, "fits": self.fits, "cost": self.cost}
        return {"name": self.name, "flags": self.flags} | numbers


def recommend(setting: Setting) -> list[Option]:
    """Return the setting as given and, until one fits, steps towards less memory; the last is the one to take.

    In this order: the loss in chunks, batches half as large and twice as many, layers recomputed in groups of the best
    size, both, the optimiser's state sharded, more GPUs. Steps that save nothing are left out.
    """
    options = [Option("as given", setting, setting, memory(setting))]
    for ways in (_chunked, _in_smaller_batches, _recomputed, _recomputed_in_smaller_batches, _sharded):
        for name, candidate in ways(setting, options[-1].setting):
            if options[-1].fits:
                return options
            option = Option(name, setting, candidate, memory(candidate))
            if option.memory.peak < SAVES * options[-1].memory.peak:
                options.append(option)
    return options


Ways = Iterator[tuple[str, Setting]]


def _chunked(original: Setting, last: Setting) -> Ways:
    chunked = last.objective.chunked
    if chunked and not last.chunked:
        yield "loss in chunks", replace(last, criterion=chunked)


def _in_smaller_batches(original: Setting, last: Setting, fewest: int = BUSY_TOKENS) -> Ways:
    """As many tokens an update in batches half as large, and half of that, down to `fewest` tokens."""
    tokens, factor = last.max_tokens // 2, 2
    while tokens >= max(fewest, last.length):
        smaller = replace(last, max_tokens=tokens, update_freq=last.update_freq * factor)
        yield f"batches of {tokens:,} tokens x {smaller.update_freq}", smaller
        tokens, factor = tokens // 2, factor * 2


def _recomputed(original: Setting, last: Setting) -> Ways:
    """Recomputed layers in batches as large as given, which cost nothing but memory."""
    if not original.checkpoint_every:
        whole = replace(last, max_tokens=original.max_tokens, update_freq=original.update_freq)
        again = replace(whole, checkpoint_every=best_group(whole))
        yield _groups(again), again


def _recomputed_in_smaller_batches(original: Setting, last: Setting) -> Ways:
    for batches, smaller in _in_smaller_batches(original, last, FEWEST_TOKENS) if last.checkpoint_every else ():
        again = smaller if original.checkpoint_every else replace(smaller, checkpoint_every=best_group(smaller))
        yield f"{_groups(again)}, {batches}", again


def _sharded(original: Setting, last: Setting) -> Ways:
    """The optimiser's state over the GPUs there are, then over more."""
    gpus = max(2, original.gpus)
    while gpus <= MOST_GPUS:
        with suppress(UserError):  # not with this precision
            yield f"optimiser over {gpus} GPUs", replace(last, gpus=gpus, zero=True, optimizer=FUSED)
        gpus *= 2


def _groups(setting: Setting) -> str:
    every = setting.checkpoint_every
    return f"recompute {every} layers at a time" if every > 1 else "recompute each layer"
