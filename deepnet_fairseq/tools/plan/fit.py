"""Search the flags that make a training fit, from those that cost nothing to those that cost most."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace

from .needs import count, flops, memory
from .setting import FUSED, SHARDED, Setting, recomputation_flags
from .trace import Stage, trace

MOST_GPUS = 1024
USABLE = 0.9  # share of a GPU's memory; the rest is for CUDA's context, workspaces and gaps between blocks
WORTHWHILE = 0.99  # an option is left out unless its peak is below this share of the peak before
GROUP_SIZES = (1, 4)  # numbers of layers that are recomputed together
# limits of one GPU's batch in tokens
MOST_TOKENS = 16_384  # an update of 128 x 4,096 tokens still consists of 32 batches, of sentences of all lengths
LEAST_TOKENS = 4096  # in smaller batches launching kernels takes longer than computing
LEAST_TOKENS_RECOMPUTED = 1024  # the same with recomputation
# tokens of the smaller of two batches that `choose` traces; memory and operations are linear in the sentences
TRACED_TOKENS = 1024


@dataclass(frozen=True)
class Option:
    """Way to train in less memory.

    name: in the plan's text; original: the setting as the user gave it; setting: that of the option, changed from it;
    memory: what the option takes, as needs.memory returns it.
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
        """Operations a token, divided by those of the original setting."""
        operations = flops(self.setting).step / self.setting.tokens_per_update
        original_operations = flops(self.original).step / self.original.tokens_per_update
        return operations / original_operations

    @property
    def flags(self) -> str:
        """Flags of fairseq-train that turn the original setting into the option's, but for the number of GPUs."""
        new = self.setting
        old = self.original
        changed = []
        if new.optimizer != old.optimizer:
            changed.append(f"--optimizer {new.optimizer}")
        if new.criterion != old.criterion:
            changed.append(f"--criterion {new.criterion}")
        if new.checkpoint_every != old.checkpoint_every:
            changed.append(recomputation_flags(new.checkpoint_every))
        if new.max_tokens != old.max_tokens:
            changed.append(f"--max-tokens {new.max_tokens} --update-freq {new.update_freq}")
        if new.zero != old.zero:
            changed.append(SHARDED)
        return " ".join(changed)

    def as_dict(self) -> dict:
        """Return the option for JSON; peak in bytes."""
        numbers = {"gpus": self.setting.gpus, "peak": self.memory.peak, "fits": self.fits, "cost": self.cost}
        return {"name": self.name, "flags": self.flags} | numbers


MemoryOf = Callable[[Setting], SimpleNamespace]  # such as needs.memory


def recommend(setting: Setting) -> list[Option]:
    """Return the setting as given and, until one fits, options with less memory; the last is the recommended one.

    The order is: the loss in chunks, layers recomputed one at a time and in groups, the optimiser's state sharded, more
    GPUs. Each option has the largest batches in which it fits; if it fits in none, the smallest. Options that do not
    fit and save hardly anything are left out.
    """
    options = [Option("as given", setting, setting, memory(setting))]
    for name, candidate in _candidates(setting, MOST_GPUS, loss=True):
        if options[-1].fits:
            break
        sizes = _batch_sizes(candidate, most=setting.max_tokens)
        option = _in_largest_batch(name, original=setting, candidate=candidate, sizes=sizes, memory_of=memory)
        if option.fits or option.memory.peak < WORTHWHILE * options[-1].memory.peak:
            options.append(option)
    return options


def choose(setting: Setting, batch: bool, recompute: bool, adam: bool) -> tuple[Option, int, float]:
    """Choose batch, recomputation and sharding so that the setting's update fits, as fast as possible.

    Return the fastest option that fits, else the one with the least memory; the number of parameters; and the number of
    operations in such an update on all GPUs.

    batch: whether --max-tokens may change, with --update-freq, so that an update stays as large; recompute: whether
    layers may be recomputed; adam: whether the optimiser is Adam, which can be sharded.
    """
    parameters = count(setting)
    stages_of = _stages_of_any_batch(setting)

    def memory_of(candidate: Setting) -> SimpleNamespace:
        return memory(candidate, parameters, stages_of(candidate))

    candidates = list(_candidates(setting, setting.gpus, recompute=recompute, adam=adam))
    if not batch and not recompute:  # then the optimiser is not sharded either
        candidates = candidates[:1]
    # if smaller batches are the only way to save memory, they may be as small as with recomputation
    least = LEAST_TOKENS_RECOMPUTED if len(candidates) == 1 else None

    for name, candidate in candidates:  # the fastest first
        sizes = _batch_sizes(candidate, most=MOST_TOKENS, least=least) if batch else [setting.max_tokens]
        option = _in_largest_batch(name, original=setting, candidate=candidate, sizes=sizes, memory_of=memory_of)
        if option.fits:
            break

    operations = flops(option.setting, stages_of(option.setting)).step
    return option, parameters.total, operations


def _candidates(
    setting: Setting, gpus: int, loss: bool = False, recompute: bool = True, adam: bool = True
) -> Iterator[tuple[str, Setting]]:
    """Yield names and settings that take less and less memory, in batches as given; what costs least time comes first.

    Each candidate keeps what the ones before it have changed.

    gpus: the most over which the optimiser's state may be sharded; loss: whether the loss may be computed in chunks;
    recompute, adam: as for `choose`.
    """
    candidate = setting
    chunked = setting.objective.chunked
    if loss and chunked and not setting.chunked:
        candidate = replace(setting, criterion=chunked)
        yield "loss in chunks", candidate
    else:
        yield "as given", candidate

    if recompute and not setting.checkpoint_every:
        for layers in GROUP_SIZES:
            candidate = replace(candidate, checkpoint_every=layers)
            yield f"recompute {layers} layers at a time" if layers > 1 else "recompute each layer", candidate

    if adam and not setting.memory_efficient:
        number = max(2, setting.gpus)
        while number <= gpus:
            yield f"optimiser over {number} GPUs", replace(candidate, gpus=number, zero=True, optimizer=FUSED)
            number *= 2


def _in_largest_batch(
    name: str, original: Setting, candidate: Setting, sizes: Iterable[int], memory_of: MemoryOf
) -> Option:
    """Return the option of a candidate in the first batch size in which it fits; if it fits in none, in the last.

    sizes: tokens of a batch, the largest first.
    """
    update = original.max_tokens * original.update_freq  # tokens of an update on one GPU, which do not change
    for tokens in sizes:
        setting = replace(candidate, max_tokens=tokens, update_freq=update // tokens)
        label = name
        if tokens != original.max_tokens:
            label += f", batches of {tokens:,} tokens x {setting.update_freq}"

        option = Option(name=label, original=original, setting=setting, memory=memory_of(setting))
        if option.fits:
            break
    return option


def _batch_sizes(setting: Setting, most: int, least: int | None = None) -> Iterator[int]:
    """Yield batch sizes in tokens, whole fractions of an update, from `most` down to `least`.

    least: None for LEAST_TOKENS, or LEAST_TOKENS_RECOMPUTED if layers are recomputed. The setting's own size lowers
    `least`, and the length of a sentence raises it. If no fraction lies between the limits, as of a prime number of
    tokens, the setting's own size is the only one.
    """
    if least is None:
        least = LEAST_TOKENS_RECOMPUTED if setting.checkpoint_every else LEAST_TOKENS
    least = max(setting.length, min(setting.max_tokens, least))

    update = setting.max_tokens * setting.update_freq
    found = False
    for freq in range(1, update // least + 1):
        if update % freq == 0 and update // freq <= max(most, least):
            found = True
            yield update // freq
    if not found:
        yield setting.max_tokens


def _stages_of_any_batch(setting: Setting) -> Callable[[Setting], list[Stage]]:
    """Trace two small batches, and return a function that extrapolates from them to a setting of any batch size.

    The function takes settings that differ from this one in the batch, recomputation and sharding, and returns the
    stages as `trace` would.
    """
    sentences = max(1, TRACED_TOKENS // setting.length)
    tokens = sentences * setting.length
    small = trace(replace(setting, max_tokens=tokens, update_freq=1))
    double = trace(replace(setting, max_tokens=2 * tokens, update_freq=1))

    def stages_of(candidate: Setting) -> list[Stage]:
        # a step is the difference of the two traced batches: `sentences` more
        steps = candidate.max_tokens // candidate.length / sentences - 2
        return [stage.extrapolated(before, steps) for stage, before in zip(double, small, strict=True)]

    return stages_of
