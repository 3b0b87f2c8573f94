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
    """Option on the way to fitting.

    original: the setting as given; setting: the option's own; memory: what it takes, of needs.memory.
    """

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
        operations = flops(self.setting).step / self.setting.batch
        original_operations = flops(self.original).step / self.original.batch
        return operations / original_operations

    @property
    def flags(self) -> str:
        """Flags of fairseq-train that change."""
        new = self.setting
        old = self.original
        changed = []
        if new.optimizer != old.optimizer:
            changed.append(f"--optimizer {new.optimizer}")
        if new.criterion != old.criterion:
            changed.append(f"--criterion {new.criterion}")
        if new.checkpoint_every != old.checkpoint_every:
            changed.append(recomputation(new.checkpoint_every))
        if new.max_tokens != old.max_tokens:
            changed.append(f"--max-tokens {new.max_tokens} --update-freq {new.update_freq}")
        if new.zero != old.zero:
            changed.append(SHARDED)
        return " ".join(changed)

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
        sizes = _sizes(way, most=setting.max_tokens)
        option = _largest(name=name, original=setting, way=way, sizes=sizes, needs=memory)
        if option.memory.peak < SAVES * options[-1].memory.peak:
            options.append(option)
    return options


def choose(setting: Setting, batch: bool, recompute: bool, adam: bool) -> tuple[Option, int, float]:
    """Return the fastest option for the setting's update that fits, else the one with the least memory.

    Also return the numbers of parameters, and of operations in such an update on all GPUs.

    batch: whether --max-tokens may change, with --update-freq, so that an update stays as large; recompute: whether
    layers may be recomputed; adam: whether the optimiser is Adam, which can be sharded.
    """
    parameters = count(setting)
    stages_of = _stages(setting)

    def needs(taken: Setting) -> SimpleNamespace:
        return memory(taken, parameters, stages_of(taken))

    ways = list(_ways(setting, setting.gpus, recompute=recompute, adam=adam))
    if not batch and not recompute:  # nothing is free to choose, the optimiser's sharding neither
        ways = ways[:1]
    least = LONGEST if len(ways) == 1 else None  # with no other way a batch may be as small as with recomputation

    for name, way in ways:
        sizes = _sizes(way, most=MOST, least=least) if batch else [setting.max_tokens]
        option = _largest(name=name, original=setting, way=way, sizes=sizes, needs=needs)
        if option.fits:
            break

    operations = flops(option.setting, stages_of(option.setting)).step
    return option, parameters.total, operations


def _ways(setting: Setting, gpus: int, loss: bool = False, recompute: bool = True, adam: bool = True) -> Ways:
    """Yield names and settings of the same batch: cheapest first, sharding over up to `gpus` GPUs last.

    loss: whether the loss may be computed in chunks; recompute, adam: as for `choose`. Each way keeps what the ways
    before it have changed.
    """
    way = setting
    chunked = setting.objective.chunked
    if loss and chunked and not setting.chunked:
        way = replace(setting, criterion=chunked)
        yield "loss in chunks", way
    else:
        yield "as given", way

    if recompute and not setting.checkpoint_every:
        for layers in GROUPS:
            way = replace(way, checkpoint_every=layers)
            yield f"recompute {layers} layers at a time" if layers > 1 else "recompute each layer", way

    if adam and not setting.memory_efficient:
        number = max(2, setting.gpus)
        while number <= gpus:
            yield f"optimiser over {number} GPUs", replace(way, gpus=number, zero=True, optimizer=FUSED)
            number *= 2


def _largest(name: str, original: Setting, way: Setting, sizes: Iterable[int], needs: Needs) -> Option:
    """Return the option in the first of the sizes in which it fits, else in the last.

    sizes: tokens of a batch; needs: function for the memory of a setting.
    """
    update = original.max_tokens * original.update_freq  # tokens of an update on one GPU, which stay
    for tokens in sizes:
        taken = replace(way, max_tokens=tokens, update_freq=update // tokens)
        label = name
        if tokens != original.max_tokens:
            label += f", batches of {tokens:,} tokens x {taken.update_freq}"

        option = Option(name=label, original=original, setting=taken, memory=needs(taken))
        if option.fits:
            break
    return option


def _sizes(way: Setting, most: int, least: int | None = None) -> Iterator[int]:
    """Yield batch sizes in tokens from `most` down to `least`, whole fractions of an update.

    least: None for LEAST, or with recomputation LONGEST; never above the given size, nor below a sentence. Where no
    fraction lies between them, as of a prime number of tokens, the given size is the only one.
    """
    if least is None:
        least = LONGEST if way.checkpoint_every else LEAST
    least = max(way.length, min(way.max_tokens, least))

    update = way.max_tokens * way.update_freq
    found = False
    for freq in range(1, update // least + 1):
        if update % freq == 0 and update // freq <= max(most, least):
            found = True
            yield update // freq
    if not found:
        yield way.max_tokens


def _stages(setting: Setting) -> Callable[[Setting], list[Stage]]:
    """Return a function for the stages of this model at any batch size, by linear extrapolation from two small ones."""
    sentences = max(1, TRACED // setting.length)
    tokens = sentences * setting.length
    small = trace(replace(setting, max_tokens=tokens, update_freq=1))
    double = trace(replace(setting, max_tokens=2 * tokens, update_freq=1))

    def stages_of(taken: Setting) -> list[Stage]:
        steps = taken.max_tokens // taken.length / sentences - 2  # in batches of `sentences`, beyond the double one
        return [stage.further(before, steps) for stage, before in zip(double, small, strict=True)]

    return stages_of
