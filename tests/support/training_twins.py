"""Two models that are to train alike, one of them by another way through its layers."""

import pytest
import torch
import torch.nn.functional as F
from fairseq.modules import FairseqDropout

from deepnet_fairseq.transformer import products
from deepnet_fairseq.transformer.dropout import Dropout

from .helpers import PAD, batch

SHAPES = ((3, 9, 7), (4, 11, 8), (3, 9, 7), (2, 6, 5))  # rows, source, target


def as_on_a_gpu(monkeypatch) -> None:
    """Dropout and attention are torch's; ours for CPUs are nothing to capture or compile."""
    monkeypatch.setattr(Dropout, "forward", FairseqDropout.forward)
    monkeypatch.setattr(products, "LONGEST", 0)


def loss_of(model, shape, seed):
    src, prev = (tokens.to(next(model.parameters()).device) for tokens in batch(*shape, seed=seed))
    scores = model(src, None, prev)[0].float()
    return F.cross_entropy(scores.flatten(0, 1), prev.flatten(), ignore_index=PAD)


def train(model, updates: int = 10, update_freq: int = 2, scale: float = 1.0) -> list[float]:
    """As fairseq trains: seeded per update, gradients accumulated and scaled, grad None after each update."""
    model.train()
    bare = getattr(model, "module", model)
    half = next(model.parameters()).dtype != torch.float32
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.1) if half else torch.optim.Adam(trained, lr=1e-3)
    losses = []
    for update in range(updates):
        bare.set_num_updates(update)
        torch.manual_seed(update)
        for micro in range(update_freq):
            loss = loss_of(model, SHAPES[(update + micro // 2) % len(SHAPES)], seed=10 * update + micro)
            (loss * scale).backward()
            losses.append(loss.item())
        for p in model.parameters():
            if p.grad is not None:
                p.grad.div_(scale)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return losses


def assert_same_training(one, other, tolerance: float = 1e-5, **options):
    """Losses, and weights at the end."""
    assert train(one, **options) == pytest.approx(train(other, **options), rel=tolerance)
    for (name, a), b in zip(one.named_parameters(), other.parameters(), strict=True):
        assert torch.allclose(a, b, atol=tolerance), name
