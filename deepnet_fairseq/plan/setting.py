"""What a plan is made for: a model, its batches, precision and optimiser, and the machine."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import torch

from .. import archs
from ..criterions.chunked import NAME, PLAIN
from ..errors import UserError
from ..optim import deepnet_adam
from ..optim.flat import CHUNK
from ..transformer.recomputation import Recomputation

GIB = 2**30
FLOAT32 = 4
MASK_PROB = 0.15  # fairseq's --mask-prob
LANGUAGES = ("xx", "yy")
SAMPLES = ("--length", "--tokens-per-sample")


@dataclass(frozen=True)
class Objective:
    """What one of the models is trained for.

    task, criterion: fairseq's names; chunked: the criterion's form without all logits, None where there is none;
    length: tokens of a sample, by default; length_flags: what says so; dictionaries: files that the task reads; added:
    symbols that it adds to them; masks: are some of the tokens hidden, and only these predicted?; flags: of
    fairseq-train, that the task and the loss need.
    """

    task: str
    criterion: str
    chunked: str | None
    length: int
    length_flags: tuple[str, ...]
    dictionaries: tuple[str, ...] = ("dict.txt",)
    added: int = 0
    masks: bool = False
    flags: tuple[str, ...] = ()

    @property
    def translates(self) -> bool:
        """Are there a source and a target, and is the loss label-smoothed?"""
        return len(self.dictionaries) > 1


OBJECTIVES = {
    archs.MODEL_NAME: Objective(
        "translation", "label_smoothed_cross_entropy", NAME, 32, ("--length",),
        dictionaries=tuple(f"dict.{language}.txt" for language in LANGUAGES),
        flags=("--source-lang", LANGUAGES[0], "--target-lang", LANGUAGES[1], "--label-smoothing", "0.1"),
    ),
    archs.LM: Objective("language_modeling", "cross_entropy", PLAIN, 1024, SAMPLES),
    archs.MASKED_LM: Objective("masked_lm", "masked_lm", None, 1024, SAMPLES, added=1, masks=True),
}  # fmt: skip


@dataclass(frozen=True)
class Precision:
    """One of fairseq-train's ways to compute.

    dtype: of weights, activations and gradients; master: has the optimiser weights in float32 of its own?; flattened:
    are they one tensor for fairseq's adam?; flags: of fairseq-train.
    """

    name: str
    dtype: torch.dtype
    master: bool
    flattened: bool
    flags: str

    @property
    def memory_efficient(self) -> bool:
        """Half precision without a master copy."""
        return self.dtype.itemsize < FLOAT32 and not self.master


PRECISIONS = {
    precision.name: precision
    for precision in (
        Precision("fp32", torch.float32, False, False, ""),
        Precision("fp16", torch.float16, True, True, "--fp16"),
        Precision("bf16", torch.bfloat16, True, False, "--bf16"),
        Precision("memory-efficient-fp16", torch.float16, False, False, "--fp16 --memory-efficient-fp16"),
        Precision("memory-efficient-bf16", torch.bfloat16, False, False, "--bf16 --memory-efficient-bf16"),
    )
}
OPTIMIZERS = ADAM, FLAT = "adam", "deepnet_adam"
SHARDED = {"os": FLAT, "fully_sharded": ADAM}  # what a way of sharding is for
SHARDING_FLAGS = {"none": "", "os": "--zero-sharding os", "fully_sharded": "--ddp-backend fully_sharded"}


@dataclass(frozen=True)
class Setting:
    """A model, its batches and the machine: the flags of a training that its memory and time depend on.

    cfg: a filled model config; source_vocab, target_vocab: rows of the embeddings; max_tokens: source tokens, and
    target tokens, in a batch of one GPU, padding included (of a language model's one text, simply tokens); length:
    tokens of a sentence; optimizer: "adam" or "deepnet_adam"; criterion: by default the model's; chunk: target tokens
    whose logits the chunked criterion makes at a time, 0 for its own choice; mask_prob: share of the tokens that a
    masked language model predicts; checkpoint_every: layers that are recomputed together, 0 for none; sharding: a key
    of SHARDING_FLAGS; gpu_memory: bytes; device: "cpu" or "cuda". UserError, naming the flag, for values out of range
    and for flags that do not go together.
    """

    cfg: argparse.Namespace
    source_vocab: int
    target_vocab: int
    max_tokens: int = 4096
    update_freq: int = 1
    length: int = 32
    precision: Precision = PRECISIONS["fp32"]
    optimizer: str = ADAM
    criterion: str = ""
    chunk: int = 0
    mask_prob: float = MASK_PROB
    checkpoint_every: int = 0
    sharding: str = "none"
    gpus: int = 1
    gpu_memory: int = 80 * GIB
    device: str = "cuda"

    def __post_init__(self):
        if not self.criterion:
            object.__setattr__(self, "criterion", self.objective.criterion)
        for name in ("max_tokens", "update_freq", "length", "gpus", "gpu_memory"):
            if getattr(self, name) <= 0:
                raise UserError(f"--{name.replace('_', '-')} {getattr(self, name)}: must be at least 1")
        if self.chunk < 0:
            raise UserError(f"--loss-chunk-tokens {self.chunk}: must be at least 0")
        if min(self.vocabularies) < 1:
            raise UserError(f"--vocab {self.source_vocab},{self.target_vocab}: a vocabulary has at least 1 entry")
        if self.length > self.max_tokens:
            raise UserError(f"--length {self.length}: longer than a batch of --max-tokens {self.max_tokens}")
        if not 0 < self.mask_prob < 1:
            raise UserError(f"--mask-prob {self.mask_prob:g}: must be above 0 and below 1")
        self._check_criterion()
        self._check_vocabularies()
        self._check_sharding()

    def _check_criterion(self) -> None:
        whole, chunked = self.objective.criterion, self.objective.chunked
        if self.criterion not in (whole, chunked):
            known = whole if chunked is None else f"{whole} or {chunked}"
            raise UserError(f"--criterion {self.criterion}: the plan of a {self.model} knows {known}")
        if self.chunk and not self.chunked:
            way = f"an option of --criterion {chunked}; add it or drop this" if chunked else f"not of {whole}; drop it"
            raise UserError(f"--loss-chunk-tokens {self.chunk}: {way}")

    def _check_vocabularies(self) -> None:
        if self.source_vocab == self.target_vocab:
            return
        sizes = f"{self.source_vocab},{self.target_vocab}"
        if len(self.stacks) == 1:
            raise UserError(f"--vocab {sizes}: a {self.model} has one vocabulary")
        if self.cfg.share_all_embeddings:
            raise UserError(f"--share-all-embeddings: --vocab {sizes} names two dictionaries")

    def _check_sharding(self) -> None:
        flag, name = SHARDING_FLAGS[self.sharding], self.precision.name
        if flag and self.gpus == 1:
            raise UserError(f"{flag}: shards over several GPUs; give --gpus")
        if self.sharding == "os" and self.optimizer != FLAT:
            raise UserError(f"{flag}: with --optimizer {FLAT}; {self.optimizer} is not sharded")
        if self.sharding == "fully_sharded" and self.precision.memory_efficient:
            raise UserError(f"--{name}: not with {flag}; take --{name[-4:]}")
        if self.sharding == "fully_sharded" and self.chunked:
            raise UserError(f"{flag}: not with --criterion {self.criterion}, which needs a whole matrix")
        if self.optimizer == FLAT:
            flags = {"zero_sharding": self.sharding, "ddp_backend": self.sharding, name.replace("-", "_"): True}
            deepnet_adam.check_settings(lambda section, key: flags.get(key))

    @property
    def model(self) -> str:
        """A key of archs.STACKS."""
        return archs.model_of(self.cfg)

    @property
    def objective(self) -> Objective:
        """What the model is trained for."""
        return OBJECTIVES[self.model]

    @property
    def stacks(self) -> tuple[str, ...]:
        """Those that the model has, in forward order."""
        return archs.STACKS[self.model]

    @property
    def layer_fields(self) -> list[str]:
        """The config's fields with the depth of each stack."""
        return [f"{stack}_layers" for stack in self.stacks]

    @property
    def vocabularies(self) -> tuple[int, int]:
        """Symbols that the first stack reads, and those that the model predicts."""
        return self.source_vocab, self.target_vocab

    @property
    def chunked(self) -> bool:
        """Is the loss computed in chunks?"""
        return self.criterion == self.objective.chunked

    @property
    def scored(self) -> int:
        """Tokens of a batch that are projected to the vocabulary."""
        return max(1, round(self.max_tokens * self.mask_prob)) if self.objective.masks else self.max_tokens

    @property
    def offloads(self) -> bool:
        """Do the inputs of what is recomputed wait in the CPU's memory?"""
        return self.cfg.offload_activations and self.checkpoint_every > 0 and self.device == "cuda"

    @property
    def batch(self) -> int:
        """Target tokens of an update, those that are not masked too."""
        return self.max_tokens * self.update_freq * self.gpus

    def optimiser(self, numbers: int, largest: int) -> tuple[int, int]:
        """Bytes kept between updates, and temporary bytes of an update, for so many trained numbers.

        Kept are Adam's moments and, where the weights are in half precision, these in float32 (fairseq's adam their
        gradients too), sharded or not; deepnet_adam copies gradients into a piece of float32 memory. fairseq's adam
        has the root of one tensor's second moment at a time (largest: numbers of the largest) and, without float32
        weights, copies of weight and gradient (optim/adam.py, fp16_optimizer.py of fairseq).
        """
        precision, parts = self.precision, 1 if self.sharding == "none" else self.gpus
        copies = precision.master * (1 if self.optimizer == FLAT else 2)
        kept = -(-numbers * FLOAT32 * (2 + copies) // parts)
        if self.optimizer == FLAT:
            return kept + FLOAT32 * min(numbers, CHUNK[self.device]), 0
        temporaries = 3 if precision.memory_efficient else 1
        return kept, temporaries * FLOAT32 * (numbers if precision.flattened else largest)


def checkpoint_every(cfg) -> int:
    """Layers that a filled model config recomputes together, 0 for none."""
    recomputation = Recomputation.from_config(cfg)
    return 0 if recomputation is None else recomputation.every


def recomputation(every: int) -> str:
    """fairseq-train's flags for recomputing `every` layers together."""
    return {0: "", 1: "--checkpoint-activations"}.get(every, f"--checkpoint-every {every}")
