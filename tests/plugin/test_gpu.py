"""Tests on a CUDA device: half precision at depth, scores equal to a CPU's, waits, optimisers and two GPUs."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import torch
from torch.nn.functional import cross_entropy

from deepnet_fairseq.core import archs
from deepnet_fairseq.core.methods import METHODS
from deepnet_fairseq.plugin.building import build

from ..conftest import TRAIN_FLAGS
from ..support import ranks
from ..support.diverging import TINY, Training
from ..support.helpers import PAD, VOCAB, batch, run_cold, small
from ..support.optimisers import (
    HALF,
    build_optimiser,
    float32_weights,
    largest_difference,
    make_updates,
    model_parameters,
)

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
ON_GPU = tuple(flag for flag in TRAIN_FLAGS if flag != "--cpu")
KINDS_OF_MODEL = (archs.MODEL_NAME, archs.LM, archs.MASKED_LM)  # translators and two kinds of language model


def architecture(kind: str, layers: int) -> str:
    """Return the end of the name of an architecture: the layers of each stack, of which translators have two."""
    return f"{layers}_{layers}" if kind == archs.MODEL_NAME else f"{layers}"


class Output(NamedTuple):
    scores: torch.Tensor  # (B, T, V)
    targets: torch.Tensor  # (B, T), any tokens of as many positions


def compute_scores(model, device: str = "cuda") -> Output:
    """Compute the scores of a padded batch."""
    source, previous = batch()
    source = source.to(device)
    previous = previous.to(device)
    is_translator = hasattr(model, "encoder") and hasattr(model, "decoder")
    scores = model(source, None, previous)[0] if is_translator else model(previous)[0]
    return Output(scores, targets=previous)


@contextmanager
def waiting_raises():
    """Let torch raise an error in the block wherever the CPU waits for the GPU."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("method", sorted(METHODS))
@pytest.mark.parametrize("kind", KINDS_OF_MODEL)
def test_100_layers_of_base_width_stay_finite(kind, method, dtype):
    torch.manual_seed(0)
    with torch.device("cuda"):  # draws 736 million numbers quickly
        model = build(f"{kind}_{architecture(kind, layers=100)}", VOCAB, method=method)
    model.to(dtype).train()

    scores, targets = compute_scores(model)
    loss = cross_entropy(scores.float().flatten(0, 1), targets.flatten(), ignore_index=PAD)
    loss.backward()

    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert torch.isfinite(loss)
    assert gradients
    for gradient in gradients:
        assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("method", sorted(METHODS))
@pytest.mark.parametrize("kind", KINDS_OF_MODEL)
def test_scores_are_those_of_a_cpu(kind, method):
    model = build(f"{kind}_tiny_{architecture(kind, layers=6)}", VOCAB, method=method).double().eval()

    with torch.no_grad():
        on_cpu = compute_scores(model, "cpu")
        on_gpu = compute_scores(model.cuda(), "cuda")

    is_word = on_cpu.targets.ne(PAD)
    assert torch.allclose(on_gpu.scores.cpu()[is_word], on_cpu.scores[is_word], atol=1e-9)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_no_pass_waits_for_the_gpu(method):
    """Forward and backward passes in half precision never wait for the GPU."""
    model = small(2, method=method).cuda().half().train()
    source, previous = batch()
    source = source.cuda()
    previous = previous.cuda()

    with waiting_raises():
        logits, _extra = model(source, None, previous)
        logits.float().sum().backward()


class Trained(NamedTuple):
    optimizer: Any
    params: list[torch.nn.Parameter]


def trained_on_gpu(name: str, kind: str, updates: int) -> Trained:
    """Train with adam or deepnet_adam; kind: a precision and layout of HALF."""
    params = [torch.nn.Parameter(parameter.data.cuda()) for parameter in model_parameters(kind)]
    optimizer = build_optimiser(name, params, kind)
    make_updates(optimizer, params, range(updates))
    return Trained(optimizer, params)


def first_moments(optimizer) -> list[torch.Tensor]:
    """Return Adam's first moments in an optimiser's state."""
    return [entry["exp_avg"].cpu() for entry in optimizer.state_dict()["state"].values()]


@pytest.mark.parametrize("kind", HALF)
def test_deepnet_adam_makes_fairseqs_updates_on_a_gpu(kind):
    theirs = trained_on_gpu("adam", kind, updates=20)
    ours = trained_on_gpu("deepnet_adam", kind, updates=20)

    assert largest_difference(float32_weights(*theirs), float32_weights(*ours)) < 1e-5


@pytest.mark.parametrize("giver, taker", [("adam", "deepnet_adam"), ("deepnet_adam", "adam")])
@pytest.mark.parametrize("kind", HALF)
def test_state_moves_between_adam_and_deepnet_adam_on_a_gpu(kind, giver, taker):
    trained = trained_on_gpu(giver, kind, updates=20)
    fresh = trained_on_gpu(taker, kind, updates=0)

    fresh.optimizer.load_state_dict(trained.optimizer.state_dict())

    assert largest_difference(first_moments(fresh.optimizer), first_moments(trained.optimizer)) == 0


@pytest.mark.parametrize("precision", ["--fp16", "--bf16"])
def test_the_passes_of_an_update_do_not_wait_for_the_gpu(data, tmp_path, precision):
    """The passes are the task's train_step; those of the first update may wait."""
    flags = (*TINY, "--clip-norm", "1", "--optimizer", "deepnet_adam", precision)
    training = Training(data, tmp_path, *flags, common=ON_GPU)
    training.step()
    task = training.trainer.task
    passes = task.train_step
    passes_made = []

    def passes_without_waiting(*args, **kwargs):
        with waiting_raises():
            result = passes(*args, **kwargs)
        passes_made.append(result)
        return result

    task.train_step = passes_without_waiting
    training.step()

    assert len(passes_made) == 1


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one CUDA device")
@pytest.mark.parametrize("mode", [(), ("--zero-sharding", "os")])
def test_two_gpus_train_as_one(data, tmp_path, mode):
    """Training on two GPUs in fp16, by DDP or ZeRO, has the losses of one GPU with the same batches."""
    arch = ("--arch", "deepnet_transformer_tiny", "--dropout", "0", "--optimizer", "deepnet_adam")
    flags = (data, *ON_GPU, *arch, "--fp16", "--fp16-init-scale", "64", "--no-save", "--max-update", "10")

    def losses_of(log, *more):
        """Train, with the output in the file `log`; return the loss of each update."""
        log.write_text(run_cold("fairseq-train", *flags, *more).stdout)
        return [float(row["loss"]) for row in ranks.rows_of_updates(log)]

    one = losses_of(tmp_path / "one", "--distributed-world-size", 1, "--update-freq", 2)
    two = losses_of(tmp_path / "two", "--distributed-world-size", 2, "--update-freq", 1, *mode)

    assert len(one) == 10
    assert two == pytest.approx(one, abs=0.02)
