"""Search the flags that make a training fit: from those that cost nothing to those that cost most."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from types import SimpleNamespace

from ...errors import UserError
from .needs import count, flops, follow, memory
from .setting import FUSED, SHARDED, Setting, recomputation
from .trace import Stage, trace

BUSY_TOKENS = 2048  # of a batch that keeps a GPU busy
FEWEST_TOKENS = 256  # a smaller batch is not offered
MOST_GPUS = 1024
USABLE = 0.9  # of a GPU's memory; the rest is for CUDA's context, workspaces and gaps between blocks
SAVES = 0.99  # of the peak before it: an option that saves less is left out
GROUPS = (1, 2, 4, 8)  # layers that are recomputed together
# tokens of one GPU's batch that `choose` takes: an update of the paper's, of 128 batches of all lengths, then still is
# 32 of them; with fewer than LEAST and all activations kept, launching kernels takes longer than computing
MOST, LEAST, LONGEST = 16_384, 4096, 1024
SENTENCES = 32  # of a language pair that are traced: memory and operations are linear in their number


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


Ways = Iterator[tuple[str, Setting]]


def recommend(setting: Setting) -> list[Option]:
    """Return the setting as given and, until one fits, steps towards less memory; the last is the one to take.

    In this order: the loss in chunks, batches half as large and twice as many, layers recomputed in larger and larger
    groups, both, the optimiser's state sharded, more GPUs. Steps that save nothing are left out.
    """
    options = [Option("as given", setting, setting, memory(setting))]
    for name, candidate in _steps(options):
        option = Option(name, setting, candidate, memory(candidate))
        if option.memory.peak < SAVES * options[-1].memory.peak:
            options.append(option)
        if option.fits:
            break
    return options


def _steps(options: list[Option]) -> Ways:
    """Yield a name and a setting until the last of the options, which the caller appends, fits."""
    original = options[0].setting
    if options[-1].fits:
        return
    if original.objective.chunked and not original.chunked:
        yield "loss in chunks", replace(original, criterion=original.objective.chunked)
    yield from _in_smaller_batches(options[-1].setting, BUSY_TOKENS)
    if not original.checkpoint_every:  # in batches as large as given, which cost nothing but memory
        whole = replace(options[-1].setting, max_tokens=original.max_tokens, update_freq=original.update_freq)
        for k in GROUPS:
            yield _groups(k), replace(whole, checkpoint_every=k)
    last = options[-1].setting
    for batches, smaller in _in_smaller_batches(last, FEWEST_TOKENS) if last.checkpoint_every else ():
        yield f"{_groups(last.checkpoint_every)}, {batches}", smaller
    gpus = max(2, original.gpus)
    while gpus <= MOST_GPUS:
        with suppress(UserError):  # not with this precision
            yield f"optimiser over {gpus} GPUs", replace(options[-1].setting, gpus=gpus, zero=True, optimizer=FUSED)
        gpus *= 2


def _in_smaller_batches(last: Setting, fewest: int) -> Ways:
    """As many tokens an update in batches half as large, and half of that, down to `fewest` tokens."""
    tokens, factor = last.max_tokens // 2, 2
    while tokens >= max(fewest, last.length):
        smaller = replace(last, max_tokens=tokens, update_freq=last.update_freq * factor)
        yield f"batches of {tokens:,} tokens x {smaller.update_freq}", smaller
        tokens, factor = tokens // 2, factor * 2


def _groups(every: int) -> str:
    return f"recompute {every} layers at a time" if every > 1 else "recompute each layer"


def choose(setting: Setting, batch: bool, recompute: bool, adam: bool = True) -> tuple[Option, list[Stage]]:
    """Return the fastest way to make the setting's update that fits, else the one that takes least, and its stages.

    batch: whether --max-tokens may change, with --update-freq, so that an update stays as large; recompute: whether
    layers may be recomputed; adam: whether the optimiser is Adam, which can be sharded. Recomputation costs a third of
    the operations: it comes when batches of LEAST tokens do not fit without. Sharding, which costs an exchange, is last.
    """
    ways = [setting]
    if recompute and not setting.checkpoint_every:
        ways.append(replace(setting, checkpoint_every=1))
    if (batch or recompute) and adam and setting.gpus > 1 and not setting.memory_efficient:
        ways.append(replace(ways[-1], zero=True, optimizer=FUSED))
    stages, parameters, option = _stages(setting), count(setting), None
    for way in ways:
        for tokens in _sizes(setting, LEAST if way is not ways[-1] else LONGEST) if batch else [setting.max_tokens]:
            freq = setting.max_tokens * setting.update_freq // tokens
            taken = replace(way, max_tokens=tokens, update_freq=freq)
            traced = stages(taken)
            option = Option("chosen", setting, taken, follow(taken, parameters, traced))
            if option.fits:
                return option, traced
    assert option
    return option, traced


def _sizes(setting: Setting, fewest: int) -> Iterator[int]:
    """Yield tokens of a batch from MOST down, of which an update takes a whole number."""
    whole = setting.max_tokens * setting.update_freq
    fewest = max(setting.length, min(fewest, setting.max_tokens))
    for freq in range(1, whole // fewest + 1):
        if whole % freq == 0 and whole // freq <= max(MOST, fewest):
            yield whole // freq


def _stages(setting: Setting) -> Callable[[Setting], list[Stage]]:
    """Return what gives the stages of this model in batches of any size, by the line through two small ones."""
    sentences = max(1, SENTENCES * 32 // setting.length)
    few, more = (trace(replace(setting, max_tokens=n * sentences * setting.length, update_freq=1)) for n in (1, 2))

    def stages(taken: Setting) -> list[Stage]:
        steps = taken.max_tokens // taken.length / sentences - 2
        return [stage.further(before, steps) for stage, before in zip(more, few, strict=True)]

    return stages
