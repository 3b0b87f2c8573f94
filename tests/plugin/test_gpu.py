"""Tests on a CUDA device: half precision at depth, and the results of a CPU."""

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
DEPTHS = {archs.MODEL_NAME: "{0}_{0}", archs.LM: "{0}", archs.MASKED_LM: "{0}"}


def scores(model, device="cuda"):
    """Compute the scores of a padded batch; return them and the targets."""
    src, prev = (tokens.to(device) for tokens in batch())
    both = all(hasattr(model, stack) for stack in ("encoder", "decoder"))
    return (model(src, None, prev) if both else model(prev))[0], prev


def gradients(model):
    """Compute the loss and the gradients of the trained parameters."""
    model.zero_grad()
    logits, prev = scores(model)
    loss = cross_entropy(logits.float().flatten(0, 1), prev.flatten(), ignore_index=PAD)
    loss.backward()
    return loss.detach(), [p.grad for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("method", sorted(METHODS))
@pytest.mark.parametrize("kind", DEPTHS)
def test_100_layers_of_base_width_stay_finite(kind, method, dtype):
    torch.manual_seed(0)
    with torch.device("cuda"):  # draws 736 million numbers quickly
        model = build(f"{kind}_{DEPTHS[kind].format(100)}", VOCAB, method=method)
    loss, grads = gradients(model.to(dtype).train())
    assert torch.isfinite(loss) and grads and all(torch.isfinite(gradient).all() for gradient in grads)


@pytest.mark.parametrize("method", sorted(METHODS))
@pytest.mark.parametrize("kind", DEPTHS)
def test_same_as_on_the_cpu(kind, method):
    model = build(f"{kind}_tiny_{DEPTHS[kind].format(6)}", VOCAB, method=method).double().eval()
    with torch.no_grad():
        expected, prev = scores(model, "cpu")
        actual = scores(model.cuda())[0].cpu()
    assert torch.allclose(actual[prev.ne(PAD)], expected[prev.ne(PAD)], atol=1e-9)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_no_pass_waits_for_the_gpu(method):
    """Forward and backward passes in half precision never wait for the GPU; torch raises if one does."""
    model = small(2, method=method).cuda().half().train()
    src, prev = (tokens.cuda() for tokens in batch())
    torch.cuda.set_sync_debug_mode("error")
    try:
        logits, _extra = model(src, None, prev)
        logits.float().sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert not torch.backends.cuda.cudnn_sdp_enabled()


@pytest.mark.parametrize("kind", HALF)
def test_deepnet_adam_is_fairseqs(kind):
    """deepnet_adam in half precision equals fairseq's adam on a GPU, and state moves between the two."""
    built = []
    for name in ("adam", "deepnet_adam"):
        params = [torch.nn.Parameter(p.data.cuda()) for p in model_parameters(kind)]
        built.append((build_optimiser(name, params, kind), params))
        make_updates(*built[-1], range(20))
    (reference, _), (tested, _) = built
    assert largest_difference(*(float32_weights(*one) for one in built)) < 1e-5
    tested.load_state_dict(reference.state_dict())
    reference.load_state_dict(tested.state_dict())


@pytest.mark.parametrize("precision", ["--fp16", "--bf16"])
def test_an_update_waits_behind_its_backward_pass(data, tmp_path, precision):
    """An update waits for the GPU only after its backward pass, from the second update on."""
    flags = (*TINY, "--clip-norm", "1", "--optimizer", "deepnet_adam", precision)
    training = Training(data, tmp_path, *flags, common=ON_GPU)
    training.step()
    task, passes = training.trainer.task, training.trainer.task.train_step

    def without_waiting(*args, **kwargs):
        torch.cuda.set_sync_debug_mode("error")
        try:
            return passes(*args, **kwargs)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    task.train_step = without_waiting
    training.step()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one CUDA device")
@pytest.mark.parametrize("mode", [(), ("--zero-sharding", "os")])
def test_two_gpus_are_one(data, tmp_path, mode):
    """Training on two GPUs in fp16 has the losses of one GPU with the same batches, over ten updates."""
    flags = ("--arch", "deepnet_transformer_tiny", "--dropout", "0", "--fp16", "--fp16-init-scale", "64", "--no-save")
    words, losses = (data, *ON_GPU, *flags, "--max-update", "10", "--optimizer", "deepnet_adam"), []
    for world in (1, 2):
        several = ("--update-freq", 2 // world, "--distributed-world-size", world, *(mode if world == 2 else ()))
        (tmp_path / "log").write_text(run_cold("fairseq-train", *words, *several).stdout)
        losses.append([float(row["loss"]) for row in ranks.updates(tmp_path / "log")])
    assert len(losses[0]) == 10 and losses[1] == pytest.approx(losses[0], abs=0.02)
