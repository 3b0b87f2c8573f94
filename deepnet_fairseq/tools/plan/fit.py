"""Search the flags that make a training fit, from those that cost nothing to those that cost most."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace

from .needs import count, flops, memory
from .setting import FUSED, SHARDED, Setting, recomputation
from .trace import Stage, trace

MOST_GPUS = 1024
USABLE = 0.9  # of a GPU's memory; the rest is for CUDA's context, workspaces and gaps between blocks
SAVES = 0.99  # share of the former peak: an option that saves less is left out
GROUPS = (1, 4)  # layers that are recomputed together
# Tokens of one GPU's batch. MOST: an update of 128 x 4,096 tokens still consists of 32 batches of all lengths. LEAST:
# in smaller batches launching kernels takes longer than computing; with recomputation the limit is LONGEST.
MOST, LEAST, LONGEST = 16_384, 4096, 1024
TRACED = 1024  # tokens that `choose` traces, and twice as many: memory and operations are linear in sentences


@dataclass(frozen=True)
class Option:
    """Option on the way to fitting: a setting, its memory, and the setting as given."""

    name: str
    original: Setting
    setting: Setting
    memory: SimpleNamespace

    @property
    def fits(self) -> bool:
        """True if the peak stays within USABLE of a GPU's memory."""
        return self.memory.peak <= USABLE * self.setting.gpu_memory

    @property
    def cost(self) -> float:
        """Number of operations a token, relative to the setting as given."""
        now, before = (flops(setting).step / setting.batch for setting in (self.setting, self.original))
        return now / before

    @property
    def flags(self) -> str:
        """Flags of fairseq-train that change."""
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


Needs = Callable[[Setting], SimpleNamespace]
Ways = Iterator[tuple[str, Setting]]


def recommend(setting: Setting) -> list[Option]:
    """Return the setting as given and, until one fits, options with less memory; the last is the recommended one.

    The order is: the loss in chunks, layers recomputed one at a time and in groups, the optimiser's state sharded, more
    GPUs, each in the largest batches that fit, if any do. Options that save nothing are left out.
    """
    options = [Option("as given", setting, setting, memory(setting))]
    for name, way in _ways(setting, MOST_GPUS, loss=True):
        if options[-1].fits:
            break
        option = _largest(name, setting, way, _sizes(way, setting.max_tokens), memory)
        if option.memory.peak < SAVES * options[-1].memory.peak:
            options.append(option)
    return options


def choose(setting: Setting, batch: bool, recompute: bool, adam: bool) -> tuple[Option, int, float]:
    """Return the fastest option for the setting's update that fits, else the one with the least memory.

    Also return the numbers of parameters, and of operations in such an update on all GPUs.

    batch: whether --max-tokens may change, with --update-freq, so that an update stays as large; recompute: whether
    layers may be recomputed; adam: whether the optimiser is Adam, which can be sharded.
    """
    parameters, stages = count(setting), _stages(setting)
    ways = list(_ways(setting, setting.gpus, recompute=recompute, adam=adam))
    for name, way in ways if batch or recompute else ways[:1]:
        sizes = _sizes(way, MOST, LONGEST if len(ways) == 1 else 0) if batch else [setting.max_tokens]
        option = _largest(name, setting, way, sizes, lambda taken: memory(taken, parameters, stages(taken)))
        if option.fits:
            break
    return option, parameters.total, flops(option.setting, stages(option.setting)).step


def _ways(setting: Setting, gpus: int, loss: bool = False, recompute: bool = True, adam: bool = True) -> Ways:
    """Yield names and settings of the same batch: cheapest first, sharding over up to `gpus` GPUs last."""
    way, name, chunked = setting, "as given", setting.objective.chunked
    if loss and chunked and not setting.chunked:
        way, name = replace(setting, criterion=chunked), "loss in chunks"
    yield name, way
    for k in GROUPS if recompute and not setting.checkpoint_every else ():
        way = replace(way, checkpoint_every=k)
        yield f"recompute {k} layers at a time" if k > 1 else "recompute each layer", way
    number = max(2, setting.gpus)
    while number <= gpus and adam and not setting.memory_efficient:
        yield f"optimiser over {number} GPUs", replace(way, gpus=number, zero=True, optimizer=FUSED)
        number *= 2


def _largest(name: str, original: Setting, way: Setting, sizes: Iterable[int], needs: Needs) -> Option:
    """Return the option in the first of the sizes in which it fits, else in the last."""
    for tokens in sizes:
        taken = replace(way, max_tokens=tokens, update_freq=original.max_tokens * original.update_freq // tokens)
        label = f"{name}, batches of {tokens:,} tokens x {taken.update_freq}" if tokens != original.max_tokens else name
        option = Option(label, original, taken, needs(taken))
        if option.fits:
            break
    return option


def _sizes(way: Setting, most: int, least: int = 0) -> Iterator[int]:
    """Yield batch sizes in tokens from `most` down, whole fractions of an update."""
    whole, given = way.max_tokens * way.update_freq, way.max_tokens
    least = max(way.length, min(given, least or (LONGEST if way.checkpoint_every else LEAST)))
    for freq in range(1, whole // least + 1):
        if whole % freq == 0 and whole // freq <= max(most, least):
            yield whole // freq


def _stages(setting: Setting) -> Callable[[Setting], list[Stage]]:
    """Return a function for the stages of this model at any batch size, by linear extrapolation from two small ones."""
    sentences = max(1, TRACED // setting.length)
    few, more = (trace(replace(setting, max_tokens=n * sentences * setting.length, update_freq=1)) for n in (1, 2))

    def stages(taken: Setting) -> list[Stage]:
        steps = taken.max_tokens // taken.length / sentences - 2
        return [stage.further(before, steps) for stage, before in zip(more, few, strict=True)]

    return stages
