"""CUDA graphs and compiled layers of a stack alone, without a GPU: training with them is training without them."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.nn.functional import cross_entropy

from deepnet_fairseq.building import build
from deepnet_fairseq.graphs import compile_layers, use_graphs

from .support.helpers import FIRST, PAD, VOCAB
from .support.recorded_graphs import Recorded
from .support.training_twins import as_on_a_gpu

SHAPES = ((3, 9), (4, 12), (3, 9), (2, 6))  # rows, tokens


@pytest.fixture(autouse=True)
def gpu_alike(monkeypatch):
    as_on_a_gpu(monkeypatch)
    Recorded.replays = 0
    torch._dynamo.reset()


def losses_of(model) -> list[float]:
    """Of 10 updates with dropout, seeded each; one row of a batch is padded."""
    optimizer, found = torch.optim.Adam(model.parameters(), lr=1e-3), []
    for update in range(10):
        torch.manual_seed(update)
        x = torch.randint(FIRST, VOCAB, SHAPES[update % len(SHAPES)])
        x[0, -2:] = PAD
        scores = model(x)[0].flatten(0, 1)
        loss = cross_entropy(scores, x.roll(-1, 1).flatten(), ignore_index=PAD)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        found.append(loss.item())
    return found


@pytest.mark.parametrize("method", ["deepnorm", "normformer", "dlcl"])
@pytest.mark.parametrize("model", ["deepnet_lm", "deepnet_masked_lm"])
def test_training_is_the_same(model, method):
    """Each of the three shapes is recorded at its first pass and replayed at the others."""
    torch.manual_seed(0)
    plain = build(f"{model}_tiny_6", VOCAB, method=method, dropout=0.1, attention_dropout=0.1).train()
    graphed, compiled = copy.deepcopy(plain), copy.deepcopy(plain)
    use_graphs(graphed, 8, capture=Recorded)
    compile_layers(compiled, backend="eager")
    expected = losses_of(plain)
    assert losses_of(graphed) == pytest.approx(expected, rel=1e-5)
    assert Recorded.replays == 10 - len(set(SHAPES))
    assert losses_of(compiled) == pytest.approx(expected, rel=1e-5)
    for (name, a), b, c in zip(plain.named_parameters(), graphed.parameters(), compiled.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-5) and torch.allclose(a, c, atol=1e-5), name
