"""What a plan is made for."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from .. import archs
from ..errors import UserError
from ..optim import deepnet_adam
from .objective import MASK_PROB, Objective, objective_of
from .precision import OPTIMIZERS, PRECISIONS, Adam, DeepnetAdam, Precision
from .tape import DEVICES, Device

GIB = 2**30
Optimizer = type[Adam] | type[DeepnetAdam]
SHARDED: dict[str, Optimizer] = {"os": DeepnetAdam, "fully_sharded": Adam}  # what a way of sharding is for
SHARDING_FLAGS = {"none": "", "os": "--zero-sharding os", "fully_sharded": "--ddp-backend fully_sharded"}


@dataclass(frozen=True)
class Setting:
    """A model, its batches and the machine: the flags of a training that its memory and time depend on.

    cfg: a filled model config; source_vocab, target_vocab: rows of the embeddings; max_tokens: source tokens, and
    target tokens, in a batch of one GPU, padding included (of a language model's one text, simply tokens); length:
    tokens of a sentence; criterion: by default the model's; chunk: target tokens whose logits the chunked criterion
    makes at a time, 0 for its own choice; mask_prob: share of the tokens that a masked language model predicts;
    checkpoint_every: layers that are recomputed together, 0 for none; sharding: a key of SHARDING_FLAGS; gpu_memory:
    bytes. UserError, naming the flag, for values out of range and for flags that do not go together.
    """

    cfg: argparse.Namespace
    source_vocab: int
    target_vocab: int
    max_tokens: int = 4096
    update_freq: int = 1
    length: int = 32
    precision: Precision = PRECISIONS["fp32"]
    optimizer: Optimizer = OPTIMIZERS["adam"]
    criterion: str = ""
    chunk: int = 0
    mask_prob: float = MASK_PROB
    checkpoint_every: int = 0
    sharding: str = "none"
    gpus: int = 1
    gpu_memory: int = 80 * GIB
    device: Device = DEVICES["cuda"]

    def __post_init__(self):
        if not self.criterion:
            object.__setattr__(self, "criterion", self.objective.criterion)
        for name in ("max_tokens", "update_freq", "length", "gpus", "gpu_memory"):
            if getattr(self, name) <= 0:
                raise UserError(f"--{name.replace('_', '-')} {getattr(self, name)}: must be at least 1")
        for name in ("chunk", "checkpoint_every"):
            if getattr(self, name) < 0:
                flag = {"chunk": "loss-chunk-tokens"}.get(name, name.replace("_", "-"))
                raise UserError(f"--{flag} {getattr(self, name)}: must be at least 0")
        if min(self.source_vocab, self.target_vocab) < 1:
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
            raise UserError(f"--criterion {self.criterion}: the plan of a {archs.model_of(self.cfg)} knows {known}")
        if self.chunk and not self.chunked:
            way = f"an option of --criterion {chunked}; add it or drop this" if chunked else f"not of {whole}; drop it"
            raise UserError(f"--loss-chunk-tokens {self.chunk}: {way}")

    def _check_vocabularies(self) -> None:
        if self.source_vocab == self.target_vocab:
            return
        sizes = f"{self.source_vocab},{self.target_vocab}"
        if len(self.stacks) == 1:
            raise UserError(f"--vocab {sizes}: a {archs.model_of(self.cfg)} has one vocabulary")
        if self.cfg.share_all_embeddings:
            raise UserError(f"--share-all-embeddings: --vocab {sizes} names two dictionaries")

    def _check_sharding(self) -> None:
        flag = SHARDING_FLAGS[self.sharding]
        if self.sharding != "none" and self.gpus == 1:
            raise UserError(f"{flag}: shards over several GPUs; give --gpus")
        if self.sharding == "os" and self.optimizer is not DeepnetAdam:
            raise UserError(f"{flag}: with --optimizer {DeepnetAdam.name}; {self.optimizer.name} is not sharded")
        if self.sharding == "fully_sharded" and self.precision.memory_efficient:
            raise UserError(f"--{self.precision.name}: not with {flag}; take --{self.precision.name[-4:]}")
        if self.sharding == "fully_sharded" and self.chunked:
            raise UserError(f"{flag}: not with --criterion {self.criterion}, which needs a whole matrix")
        if self.optimizer is DeepnetAdam:
            flags = {
                "zero_sharding": self.sharding,
                "ddp_backend": self.sharding,
                self.precision.name.replace("-", "_"): True,
            }
            deepnet_adam.check_settings(lambda section, key: flags.get(key))

    @property
    def objective(self) -> Objective:
        """What the model is trained for."""
        return objective_of(self.cfg)

    @property
    def stacks(self) -> tuple[str, ...]:
        """Those that the model has, in forward order."""
        return archs.STACKS[archs.model_of(self.cfg)]

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
        return self.objective.scored(self.max_tokens, self.mask_prob)

    @property
    def offloads(self) -> bool:
        """Do the inputs of what is recomputed wait in the CPU's memory?"""
        return self.cfg.offload_activations and self.checkpoint_every > 0 and self.device.name == "cuda"

    @property
    def batch(self) -> int:
        """Target tokens of an update, those that are not masked too."""
        return self.max_tokens * self.update_freq * self.gpus
