"""What a method does behind each update reaches the float32 weights, the model and a checkpoint: nGPT's sphere."""

from __future__ import annotations

import pytest
import torch

from deepnet_fairseq.core.methods.ngpt import COLUMNS, ROWS
from deepnet_fairseq.errors import UserError
from deepnet_fairseq.plugin.checkpoints import exact_resume

from .support import ranks
from .support.diverging import TINY, Training, weights
from .test_equal_processes import MODEL, TRAIN_FLAGS

NGPT = ("--method", "ngpt")
OURS = ("--optimizer", "deepnet_adam")
ZERO = (*OURS, "--zero-sharding", "os")


def off_the_sphere(found: dict[str, torch.Tensor]) -> float:
    """The largest distance from 1 of the length of a row or column."""
    lengths = []
    for name, weight in found.items():
        module = name.removesuffix(".weight").rpartition(".")[2]
        if module in ROWS + COLUMNS:
            lengths.append(weight.float().norm(dim=1 if module in ROWS else 0))
    assert len(lengths) > 20
    every = torch.cat(lengths)
    return (every[every != 0] - 1).abs().max().item()  # padding's row is 0


@pytest.mark.parametrize("flags", [("--optimizer", "adam"), OURS, ("--fp16", "--optimizer", "adam"), ("--bf16", *OURS)])
def test_weights_stay_on_the_sphere(flags, data, tmp_path):
    training = Training(data, tmp_path, *TINY, *NGPT, *flags)
    assert off_the_sphere(dict(training.model.named_parameters())) > 0.01
    for _ in range(2):
        training.step()
    named = dict(training.model.named_parameters())
    masters = exact_resume.weights(training.trainer.optimizer)
    assert off_the_sphere(named) < (1e-2 if masters else 1e-6)
    if masters:
        assert off_the_sphere(dict(zip(named, masters, strict=True))) < 1e-6
        assert all(torch.equal(m.to(p.dtype), p) for m, p in zip(masters, named.values(), strict=True))


@pytest.mark.parametrize("precision", [(), pytest.param(("--fp16",), marks=pytest.mark.smoke)])
def test_with_zero(precision, data, tmp_path):
    """Each process normalises the weights of its share."""
    flags = (*TRAIN_FLAGS, *MODEL, *NGPT, *ZERO, *precision, "--max-update", 3, "--save-dir", tmp_path)
    ranks.train(2, tmp_path / "log", data, *flags)
    path = tmp_path / "checkpoint_last.pt"
    assert off_the_sphere(weights(path)) < (1e-3 if precision else 1e-6)


def test_weights_without_a_float32_copy_are_refused(data, tmp_path):
    training = Training(data, tmp_path, *TINY, *NGPT, "--memory-efficient-fp16")
    with pytest.raises(UserError, match="--memory-efficient-fp16, -bf16: not with a method that changes weights"):
        training.step()
