"""Search the flags that make a training fit into the memory of a GPU.

A candidate is the user's setting, as given or with changes that save memory: the loss in chunks, layers recomputed, the
optimiser's state sharded over GPUs. Candidates are tried from the one that costs no time to the one that costs most,
and each in smaller and smaller batches, with --update-freq so that an update stays as large. An option is a candidate
in one batch size, with the memory that it takes. Stages are the parts of a model whose costs trace.py counts apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace

from .needs import count, flops, memory
from .setting import FUSED, SHARDED, Setting, recomputation_flags
from .trace import Stage, trace, trace_loss

MOST_GPUS = 1024
USABLE = 0.9  # share of a GPU's memory; the rest is for CUDA's context, workspaces and gaps between blocks
WORTHWHILE = 0.99  # an option is left out unless its peak is below this share of the peak before
GROUP_SIZES = (1, 4)  # numbers of layers that are recomputed together
# limits of one GPU's batch, --max-tokens
MOST_TOKENS = 16_384  # the 128 x 4,096 tokens of an update are still 32 batches, with sentences of all lengths
LEAST_TOKENS = 4096  # in smaller batches launching kernels takes longer than computing
LEAST_TOKENS_RECOMPUTED = 1024  # the limit where layers are recomputed, or where no other way saves memory
# tokens of the smaller of the two batches that `choose` traces, unless a sentence has more
TRACED_TOKENS = 1024


@dataclass(frozen=True)
class Option:
    """Setting that trains the same model in less memory, or the user's own.

    name: in the plan's text, as "recompute each layer"; original: the setting as the user gave it; setting: the
    changed one; memory: bytes that it takes, as needs.memory returns them.
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
        """FLOP a token, divided by those of the original setting; 1.33 if everything is recomputed."""
        # `step` is the operations of an update on all GPUs, which has more tokens on more GPUs
        operations = flops(self.setting).step / self.setting.tokens_per_update
        original_operations = flops(self.original).step / self.original.tokens_per_update
        return operations / original_operations

    @property
    def flags(self) -> str:
        """Flags of fairseq-train that turn the original setting into the option's, in one text; "" if it is the same.

        The number of GPUs is not among them, because it depends on how the training is launched.
        """
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
        """Return the option for JSON: name, flags, gpus, peak in bytes, fits and cost, as the properties give them."""
        numbers = {"gpus": self.setting.gpus, "peak": self.memory.peak, "fits": self.fits, "cost": self.cost}
        return {"name": self.name, "flags": self.flags} | numbers


MemoryOf = Callable[[Setting], SimpleNamespace]  # returns the bytes that a setting takes, as needs.memory does


def recommend(setting: Setting) -> list[Option]:
    """Return options, of which the first is the setting as given, each with less memory than the one before.

    The list ends with the first that fits, which is the recommended one, or with the last that there is. The order is:
    the loss in chunks, layers recomputed one at a time and in groups, the optimiser's state sharded, more GPUs. Each
    option but the first has the largest batches, up to the setting's own, in which it fits; if it fits in none, the
    smallest. Options that do not fit and save hardly anything are left out.
    """
    options = [Option("as given", setting, setting, memory(setting))]
    # if the loss cannot be in chunks, the first candidate is the setting itself, tried here in smaller batches
    for name, candidate in _candidates(setting, most_gpus=MOST_GPUS, chunk_loss=True):
        if options[-1].fits:
            break
        sizes = _batch_sizes(candidate, most=setting.max_tokens)
        option = _in_largest_batch(name, original=setting, candidate=candidate, sizes=sizes, memory_of=memory)
        if option.fits or option.memory.peak < WORTHWHILE * options[-1].memory.peak:
            options.append(option)
    return options


def choose(setting: Setting, batch: bool, recompute: bool, adam: bool) -> tuple[Option, int, float]:
    """Choose batch size, recomputation and sharding so that the setting fits into memory and trains fast.

    Return (option, parameters, operations): the fastest option that fits, or the one that needs least memory if none
    fits; the number of the model's parameters; and the floating-point operations of one update on all GPUs.

    batch: whether --max-tokens may change, with --update-freq, so that an update stays as large; recompute: whether
    layers may be recomputed; adam: whether the optimiser is Adam, whose state can be sharded. If neither batch nor
    recomputation may change, nothing does.
    """
    parameters = count(setting)
    stages_of = _stages_of_any_batch(setting)

    def memory_of(candidate: Setting) -> SimpleNamespace:
        return memory(candidate, parameters, stages_of(candidate))

    candidates = list(_candidates(setting, most_gpus=setting.gpus, recompute=recompute, adam=adam))
    if not batch and not recompute:
        candidates = candidates[:1]  # the setting as given, without the sharded optimiser either
    # if smaller batches are the only way to save memory, they may be as small as with recomputation
    least = LEAST_TOKENS_RECOMPUTED if len(candidates) == 1 else None

    for name, candidate in candidates:  # the fastest first
        sizes: Iterable[int] = [setting.max_tokens]
        if batch:
            sizes = _batch_sizes(candidate, most=MOST_TOKENS, least=least)
        option = _in_largest_batch(name, original=setting, candidate=candidate, sizes=sizes, memory_of=memory_of)
        if option.fits:
            break
    # if none fits, `option` is now the last one, which needs least memory

    operations = flops(option.setting, stages_of(option.setting)).step
    return option, parameters.total, operations


def _candidates(
    setting: Setting, most_gpus: int, chunk_loss: bool = False, recompute: bool = True, adam: bool = True
) -> Iterator[tuple[str, Setting]]:
    """Yield (name, setting) of candidates, from the fastest, which changes least, to the one that needs least memory.

    Each candidate keeps what the ones before it have changed. The batches are those of `setting`.

    most_gpus: the most GPUs over which the optimiser's state may be sharded; chunk_loss: whether the first candidate
    computes the loss in chunks, if the setting does not do so already and the model has such a loss; otherwise the
    first one is the setting as given; recompute, adam: as for `choose`.
    """
    candidate = setting
    chunked_criterion = setting.objective.chunked
    if chunk_loss and chunked_criterion and not setting.chunked:
        candidate = replace(setting, criterion=chunked_criterion)
        yield "loss in chunks", candidate
    else:
        yield "as given", candidate

    if recompute and not setting.checkpoint_every:  # otherwise the user has already chosen what is recomputed
        for layers in GROUP_SIZES:
            candidate = replace(candidate, checkpoint_every=layers)
            yield f"recompute {layers} layers at a time" if layers > 1 else "recompute each layer", candidate

    # only deepnet_adam is sharded, and it cannot do memory-efficient half precision
    if adam and not setting.memory_efficient:
        gpus = max(2, setting.gpus)
        while gpus <= most_gpus:
            yield f"optimiser over {gpus} GPUs", replace(candidate, gpus=gpus, zero=True, optimizer=FUSED)
            gpus *= 2


def _in_largest_batch(
    name: str, original: Setting, candidate: Setting, sizes: Iterable[int], memory_of: MemoryOf
) -> Option:
    """Return the option of a candidate in the first batch size in which it fits; if it fits in none, in the last.

    name: of the candidate, to which a batch size other than the original one is added; original: the setting as the
    user gave it; sizes: batch sizes in tokens, the largest first, at least one; memory_of: see MemoryOf.
    """
    update_tokens = original.max_tokens * original.update_freq  # on one GPU; their number stays the same
    for tokens in sizes:
        setting = replace(candidate, max_tokens=tokens, update_freq=update_tokens // tokens)
        label = name
        if tokens != original.max_tokens:
            label += f", batches of {tokens:,} tokens x {setting.update_freq}"

        option = Option(name=label, original=original, setting=setting, memory=memory_of(setting))
        if option.fits:
            break
    return option


def _batch_sizes(setting: Setting, most: int, least: int | None = None) -> Iterator[int]:
    """Yield batch sizes in tokens from `most` down to `least`; each divides the tokens of an update without remainder.

    least: None for LEAST_TOKENS, or LEAST_TOKENS_RECOMPUTED if layers are recomputed. The limit is lower if the
    setting's own batch is smaller than that, and higher if a single sentence is longer. If no size lies between the
    limits, as where an update has a prime number of tokens above `most`, the setting's own size is the only one.
    """
    if least is None:
        least = LEAST_TOKENS_RECOMPUTED if setting.checkpoint_every else LEAST_TOKENS
    least = max(setting.length, min(setting.max_tokens, least))
    most = max(most, least)

    update_tokens = setting.max_tokens * setting.update_freq  # of one GPU
    found = False
    for update_freq in range(1, update_tokens // least + 1):  # more batches would be smaller than `least`
        tokens, remainder = divmod(update_tokens, update_freq)
        if remainder == 0 and tokens <= most:
            found = True
            yield tokens
    if not found:
        yield setting.max_tokens


def _stages_of_any_batch(setting: Setting) -> Callable[[Setting], list[Stage]]:
    """Trace two small batches, and return a function that gives the stages (trace.Stage) of any batch size.

    The function takes a setting that may differ from this one in the batch, in recomputation and in sharding. It
    extrapolates from the two batches, because costs are linear in the number of sentences and tracing each size would
    be slower. Only a loss in chunks has costs that are not linear, and is traced at each size.
    """
    sentences = max(1, TRACED_TOKENS // setting.length)
    tokens = sentences * setting.length
    small = trace(replace(setting, max_tokens=tokens, update_freq=1))
    double = trace(replace(setting, max_tokens=2 * tokens, update_freq=1))

    def stages_of(candidate: Setting) -> list[Stage]:
        # a step adds one batch as large as `small`; `double` is two of these, and the candidate's batch this many
        small_batches = candidate.max_tokens // candidate.length / sentences
        steps = small_batches - 2
        stages = [
            stage_of_double.extrapolated(stage_of_small, steps)
            for stage_of_double, stage_of_small in zip(double, small, strict=True)
        ]
        if candidate.chunked:
            stages[-1] = trace_loss(candidate)
        return stages

    return stages_of
