"""Language models on a CUDA device: half precision at depth, and graphs of one stack."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.nn.functional import cross_entropy

from deepnet_fairseq.building import build
from deepnet_fairseq.graphs import use_graphs
from deepnet_fairseq.methods import METHODS

from .support.helpers import FIRST, PAD, VOCAB

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
MODELS = ("deepnet_lm", "deepnet_masked_lm")
TOLERANCE = {torch.float32: 1e-4, torch.float16: 5e-3}


def tokens(rows: int = 4, length: int = 12, seed: int = 0) -> torch.Tensor:
    """(B, T), a row of them padded on the right."""
    found = torch.randint(FIRST, VOCAB, (rows, length), generator=torch.Generator().manual_seed(seed))
    found[0, length - 3 :] = PAD
    return found


def loss_of(model, x: torch.Tensor) -> torch.Tensor:
    scores = model(x)[0].float()
    return cross_entropy(scores.flatten(0, 1), x.roll(-1, 1).flatten(), ignore_index=PAD)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("method", sorted(METHODS))
@pytest.mark.parametrize("model", MODELS)
def test_100_layers_of_base_width_stay_finite(model, method, dtype):
    torch.manual_seed(0)
    own = build(f"{model}_100", VOCAB, method=method).cuda().to(dtype).train()
    loss = loss_of(own, tokens().cuda())
    loss.backward()
    assert torch.isfinite(loss)
    assert all(torch.isfinite(p.grad).all() for p in own.parameters() if p.grad is not None)


@pytest.mark.parametrize("model", MODELS)
def test_same_as_on_the_cpu(model):
    own, x = build(f"{model}_tiny_6", VOCAB).double().eval(), tokens()
    with torch.no_grad():
        expected = own(x)[0]
        found = own.cuda()(x.cuda())[0].cpu()
    assert torch.allclose(found[x.ne(PAD)], expected[x.ne(PAD)], atol=1e-9)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("method", ["deepnorm", "normformer", "dlcl", "admin"])
@pytest.mark.parametrize("model", MODELS)
def test_graphs_of_one_stack(model, method, dtype):
    """Replayed passes are the passes they were captured from: losses and gradients."""
    torch.manual_seed(0)
    plain = build(f"{model}_tiny_6", VOCAB, method=method, dropout=0.0).cuda().to(dtype).train()
    graphed = copy.deepcopy(plain)
    use_graphs(graphed, 8)
    for seed in range(4):
        losses = []
        for one in (graphed, plain):
            one.zero_grad()
            losses.append(loss_of(one, tokens(seed=seed).cuda()))
            losses[-1].backward()
        assert losses[0].item() == pytest.approx(losses[1].item(), rel=TOLERANCE[dtype])
        for (name, a), b in zip(graphed.named_parameters(), plain.parameters(), strict=True):
            if b.grad is not None:
                assert torch.allclose(a.grad, b.grad, atol=TOLERANCE[dtype] * float(b.grad.abs().max() + 1e-3)), name
    assert [len(stack.transform.captures) for stack in graphed.stacks().values()] == [1]
