"""What a plan is made for."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from ..criterions.chunked import NAME as CHUNKED
from ..errors import UserError
from ..optim import deepnet_adam
from .precision import OPTIMIZERS, PRECISIONS, Adam, DeepnetAdam, Precision
from .tape import DEVICES, Device

GIB = 2**30
WHOLE = "label_smoothed_cross_entropy"
CRITERIA = (WHOLE, CHUNKED)
SHARDED = {"os": DeepnetAdam, "fully_sharded": Adam}  # the optimiser that a way of sharding is for
SHARDING_FLAGS = {"none": "", "os": "--zero-sharding os", "fully_sharded": "--ddp-backend fully_sharded"}


@dataclass(frozen=True)
class Setting:
    """cfg: a filled model config; source_vocab, target_vocab: rows of the embeddings; max_tokens: source tokens, and
    target tokens, in a batch of one GPU, padding included; length: tokens of a sentence; chunk: target tokens whose
    logits the chunked criterion makes at a time, 0 for its own choice; checkpoint_every: layers that are recomputed
    together, 0 for none; sharding: a key of SHARDING_FLAGS; gpu_memory: bytes.
    """

    cfg: argparse.Namespace
    source_vocab: int
    target_vocab: int
    max_tokens: int = 4096
    update_freq: int = 1
    length: int = 32
    precision: Precision = PRECISIONS["fp32"]
    optimizer: type[Adam] | type[DeepnetAdam] = OPTIMIZERS["adam"]
    criterion: str = WHOLE
    chunk: int = 0
    checkpoint_every: int = 0
    sharding: str = "none"
    gpus: int = 1
    gpu_memory: int = 80 * GIB
    device: Device = DEVICES["cuda"]

    def __post_init__(self):
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
        if self.chunk and self.criterion != CHUNKED:
            raise UserError(
                f"--loss-chunk-tokens {self.chunk}: an option of --criterion {CHUNKED}; add it or drop this"
            )
        if self.cfg.share_all_embeddings and self.source_vocab != self.target_vocab:
            raise UserError(
                f"--share-all-embeddings: --vocab {self.source_vocab},{self.target_vocab} names two dictionaries"
            )
        self._check_sharding()

    def _check_sharding(self) -> None:
        flag = SHARDING_FLAGS[self.sharding]
        if self.sharding != "none" and self.gpus == 1:
            raise UserError(f"{flag}: shards over several GPUs; give --gpus")
        if self.sharding == "os" and self.optimizer is not DeepnetAdam:
            raise UserError(f"{flag}: with --optimizer {DeepnetAdam.name}; {self.optimizer.name} is not sharded")
        if self.sharding == "fully_sharded" and self.precision.memory_efficient:
            raise UserError(f"--{self.precision.name}: not with {flag}; take --{self.precision.name[-4:]}")
        if self.sharding == "fully_sharded" and self.criterion == CHUNKED:
            raise UserError(f"{flag}: not with --criterion {CHUNKED}, which needs a whole matrix")
        if self.optimizer is DeepnetAdam:
            flags = {
                "zero_sharding": self.sharding,
                "ddp_backend": self.sharding,
                self.precision.name.replace("-", "_"): True,
            }
            deepnet_adam.check_settings(lambda section, key: flags.get(key))

    @property
    def offloads(self) -> bool:
        """Do the inputs of what is recomputed wait in the CPU's memory?"""
        return self.cfg.offload_activations and self.checkpoint_every > 0 and self.device.name == "cuda"

    @property
    def batch(self) -> int:
        """Target tokens of an update."""
        return self.max_tokens * self.update_freq * self.gpus
