"""Trainings in this process, stepped or run to their end, and means to make them diverge."""

from __future__ import annotations

from pathlib import Path

import fairseq_cli.train
import pytest
import torch
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

from deepnet_fairseq.plugin.divergence import Diverged, headline
from deepnet_fairseq.plugin.trainer import build_trainer, parse_training_flags

from ..conftest import TRAIN_FLAGS

# Flags of a translator of width 16, two layers in each stack.
TINY = (
    "--arch", "deepnet_transformer", "--encoder-layers", "2", "--decoder-layers", "2", "--encoder-embed-dim", "16",
    "--encoder-ffn-embed-dim", "32", "--encoder-attention-heads", "2",
)  # fmt: skip
# Flags of a training that diverges. The warm-up to 300 in 40 updates makes the learning rate 7.5, 15, ... from update 2
# on. T-Fixup has no LayerNorm that would keep the numbers finite: at update 3 they no longer are.
DIVERGING = (*TINY, "--method", "t_fixup", "--lr", "300", "--warmup-updates", "40", "--warmup-init-lr", "1e-4")


class Training:
    """A training that a test makes update by update: fairseq's trainer, and the batches of its first epoch.

    data: folder of binarised data; folder: for checkpoints; common, flags: of fairseq-train, `flags` last so that they
    override the common ones
    """

    def __init__(self, data: Path, folder: Path, *flags: str, common: tuple[str, ...] = TRAIN_FLAGS):
        args = parse_training_flags([str(data), *common, "--save-dir", str(folder), *flags])
        self.trainer = build_trainer(args)
        epoch = self.trainer.get_train_iterator(1)
        self.trainer.begin_epoch(1)
        self.batches = iter(epoch.next_epoch_itr(shuffle=True))

    @property
    def model(self):
        return self.trainer.get_model()

    def step(self) -> None:
        """Make an update with the next batch."""
        self.trainer.train_step([next(self.batches)])

    def diverge(self) -> str:
        """Make the next update, which must diverge; return the line that fairseq-train would print."""
        with pytest.raises(Diverged) as caught:
            self.step()
        error = caught.value
        return headline(self.trainer, error.update, error.kind, error.samples)


def train(data: Path, folder: Path, *flags: str, common: tuple[str, ...] = TRAIN_FLAGS) -> None:
    """Run fairseq-train in this process, with checkpoints in `folder`; arguments as those of Training."""
    args = parse_training_flags([str(data), *common, "--save-dir", str(folder), *flags])
    fairseq_cli.train.main(convert_namespace_to_omegaconf(args))


def weights(path: Path) -> dict[str, torch.Tensor]:
    """Return the model's tensors in a checkpoint, by name."""
    return torch.load(path, weights_only=True)["model"]


def updates_of_last_checkpoint(folder: Path) -> int:
    """Return the number of updates in checkpoint_last.pt of a folder."""
    checkpoint = torch.load(folder / "checkpoint_last.pt", weights_only=True)
    return checkpoint["optimizer_history"][-1]["num_updates"]


class NanGradient(torch.autograd.Function):
    """Identity function whose gradient is NaN."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * float("nan")
