"""CUDA graphs on a CUDA device: replayed passes are the passes they were captured from."""

import json
import re

import pytest
import torch

from deepnet_fairseq.graphs import compile_layers, use_graphs
from deepnet_fairseq.methods import METHODS

from .conftest import TRAIN_FLAGS
from .support.helpers import batch, run_cold, small
from .support.training_twins import SHAPES, assert_same_training, loss_of

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 5e-3}


def twins(dtype=torch.float32, layers: int = 4, limit: int = 8, **fields):
    """A model with graphs and one without, both on the device."""
    graphed, plain = (small(layers, **fields).cuda().to(dtype).train() for _ in range(2))
    use_graphs(graphed, limit)
    return graphed, plain


def captured(model) -> int:
    return sum(len(stack.transform.captures) for stack in (model.encoder, model.decoder))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("method", sorted(METHODS))
def test_forward_and_gradients(method, dtype):
    graphed, plain = twins(dtype, method=method)
    for seed in range(4):
        losses = []
        for model in (graphed, plain):
            model.zero_grad()
            losses.append(loss_of(model, SHAPES[0], seed))
            losses[-1].backward()
        assert losses[0].item() == pytest.approx(losses[1].item(), rel=TOLERANCE[dtype])
        for (name, a), b in zip(graphed.named_parameters(), plain.parameters(), strict=True):
            if b.grad is not None:
                assert torch.allclose(a.grad, b.grad, atol=TOLERANCE[dtype] * float(b.grad.abs().max() + 1e-3)), name
    assert captured(graphed) == 2


@pytest.mark.parametrize("method", ["deepnorm", "branchnorm", "dlcl", "admin"])
@pytest.mark.parametrize("dtype, scale", [(torch.float32, 1.0), (torch.bfloat16, 1.0), (torch.float16, 128.0)])
def test_20_updates_of_two_batches(method, dtype, scale):
    """With dropout: from the same seed a replay draws what the plain pass draws."""
    graphed, plain = twins(dtype, method=method, dropout=0.1, attention_dropout=0.1)
    assert_same_training(graphed, plain, tolerance=5 * TOLERANCE[dtype], updates=20, scale=scale)
    assert captured(graphed) == 2 * len(set(SHAPES))


def test_each_replay_draws_other_numbers():
    graphed, _plain = twins(dropout=0.5)
    src, prev = (tokens.cuda() for tokens in batch())
    found = [graphed.encoder(src)["encoder_out"][0].detach() for _ in range(8)]
    assert captured(graphed) == 1
    assert all((a - b).abs().max() > 0.1 for i, a in enumerate(found) for b in found[:i])
    many = torch.stack([graphed.encoder(src)["encoder_out"][0].detach() for _ in range(2000)]).mean(0)
    graphed.encoder.transform = graphed.encoder.transform.eager
    expected = torch.stack([graphed.encoder(src)["encoder_out"][0].detach() for _ in range(2000)]).mean(0)
    assert (many - expected).abs().max() < 0.15  # 1/sqrt(2000) is 0.02


def test_shapes_share_their_memory():
    """Ten shapes take little more than the largest of them."""

    def taken(shapes) -> int:
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved()
        model, _ = twins(layers=12, limit=16, encoder_embed_dim=256, encoder_ffn_embed_dim=1024)
        for shape in shapes:
            for seed in range(3):
                loss_of(model, shape, seed).backward()
        assert captured(model) == 2 * len(shapes)
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved() - before

    largest = taken([(64, 64, 64)])
    assert taken([(64, 64, 64), *((64, 64 - 4 * i, 64 - 4 * i) for i in range(1, 10))]) < 2 * largest


def test_compiled_layers_are_captured():
    graphed, plain = (small(4).cuda().train() for _ in range(2))
    compile_layers(graphed)
    use_graphs(graphed, 8)
    assert_same_training(graphed, plain, tolerance=1e-3)
    assert captured(graphed) == 2 * len(set(SHAPES))


def losses_of(data, folder, *flags) -> list[float]:
    """Of a training through fairseq-train on the GPUs there are, by update."""
    train = [flag for flag in TRAIN_FLAGS if flag != "--cpu"]
    arch = ("--arch", "deepnet_transformer_tiny", "--dropout", "0.1", "--num-batch-buckets", "4")
    done = run_cold(
        "fairseq-train", data, *train, *arch, "--max-update", "30", "--no-save", "--save-dir", folder, *flags
    )
    return [float(json.loads(row)["loss"]) for row in re.findall(r"train_inner \| (\{.*\})", done.stdout)]


@pytest.mark.parametrize(
    "flags",
    [(), ("--fp16", "--fp16-init-scale", "64"), ("--memory-efficient-fp16",), ("--bf16",), ("--amp",),
     ("--update-freq", "2"), ("--fp16", "--update-freq", "2"), ("--deepnet-probe", "all")],
    ids=" ".join,
)  # fmt: skip
def test_training_through_fairseq(data, tmp_path, flags):
    """Padded by buckets, on one GPU."""
    one = ("--distributed-world-size", "1", *flags)
    plain, graphed = (
        losses_of(data, tmp_path / name, *one, *more) for name, more in (("a", ()), ("b", ("--cuda-graphs",)))
    )
    assert len(plain) == 30
    assert graphed == pytest.approx(plain, rel=5e-3)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two CUDA devices")
@pytest.mark.parametrize("backend", ["pytorch_ddp", "legacy_ddp"])
def test_training_on_two_gpus(data, tmp_path, backend):
    flags = ("--distributed-world-size", "2", "--ddp-backend", backend, "--fp16", "--update-freq", "2")
    plain, graphed = losses_of(data, tmp_path / "a", *flags), losses_of(data, tmp_path / "b", *flags, "--cuda-graphs")
    assert len(plain) == 30
    assert graphed == pytest.approx(plain, rel=5e-3)
