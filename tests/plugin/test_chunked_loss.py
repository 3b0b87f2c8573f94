"""Tests of the chunked loss: it equals fairseq's in value, gradients, log and training, and holds at most one chunk."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion, label_smoothed_nll_loss
from fairseq.distributed.module_proxy_wrapper import ModuleProxyWrapper
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from deepnet_fairseq.core.archs import MODEL_NAME
from deepnet_fairseq.core.methods import METHODS
from deepnet_fairseq.errors import UserError
from deepnet_fairseq.plugin import chunked_loss
from deepnet_fairseq.plugin.building import blank_task
from deepnet_fairseq.plugin.chunked_cross_entropy import (
    LABEL_SMOOTHED,
    ChunkedLabelSmoothedCrossEntropy,
    label_smoothed_loss,
)

from ..support.helpers import PAD, VOCAB, batch, small
from ..support.single_stacks import stock


def sample():
    """Return a batch of 3 sentences with 19 tokens to predict."""
    src, prev = batch()
    target = prev.roll(-1, 1)
    inputs = {"src_tokens": src, "src_lengths": src.ne(PAD).sum(1), "prev_output_tokens": prev}
    return {"net_input": inputs, "target": target, "ntokens": int(target.ne(PAD).sum())}


def criteria(chunk=3, **flags):
    """Return fairseq's criterion and ours, which works on `chunk` tokens at a time."""
    flags = {"task": blank_task(VOCAB), "sentence_avg": False, "label_smoothing": 0.1} | flags
    ours = ChunkedLabelSmoothedCrossEntropy(**flags)
    ours.chunk = chunk
    return LabelSmoothedCrossEntropyCriterion(**flags), ours


def gradients(model, criterion, scale=1.0):
    """Return the loss of the sample and the gradient of every parameter."""
    model.zero_grad(set_to_none=True)
    loss, _size, _log = criterion(model, sample())
    (loss * scale).backward()
    return loss.item(), {name: p.grad.double() for name, p in model.named_parameters() if p.grad is not None}


def assert_close(actual, expected, tolerance=2e-6):
    assert actual.keys() == expected.keys()
    size = max(gradient.abs().max() for gradient in expected.values())
    for name, gradient in expected.items():
        assert (actual[name] - gradient).abs().max() <= tolerance * size, name


@pytest.mark.parametrize("method", [*sorted(METHODS), "fairseq's own"])
def test_same_loss_and_gradients(method, monkeypatch):
    """Loss and gradients equal fairseq's, with and without tied embeddings; validation computes no gradient."""
    tied = {"share_all_embeddings": len(method) % 2 == 0}
    model = stock(MODEL_NAME, **tied) if method == "fairseq's own" else small(2, method=method, **tied)
    theirs, ours = (gradients(model, criterion, scale=3.0) for criterion in criteria())
    assert ours[0] == pytest.approx(theirs[0], rel=1e-6)
    assert_close(ours[1], theirs[1])
    monkeypatch.setattr(chunked_loss, "_add_gradients", lambda *_: pytest.fail("a gradient in validation"))
    with torch.no_grad():
        assert criteria()[1](model, sample())[0].item() == pytest.approx(theirs[0], rel=1e-6)


@pytest.mark.parametrize(
    "flags", [{}, {"label_smoothing": 0.0}, {"sentence_avg": True}, {"report_accuracy": True, "ignore_prefix_size": 2}]
)
def test_same_log(flags):
    model, given = small(2), sample()
    given["target"][:, 3] = model(**given["net_input"])[0].argmax(-1)[:, 3]  # some targets must be the likeliest tokens
    (_, size, theirs), (_, own_size, ours) = (criterion(model, given) for criterion in criteria(**flags))
    assert own_size == size and ours.keys() == theirs.keys()
    for key, value in theirs.items():
        assert float(ours[key]) == pytest.approx(float(value), rel=1e-6), key


class Largest(TorchDispatchMode):
    """Recorder of the most rows of any tensor as wide as the vocabulary."""

    rows = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.dim() > 1 and result.size(-1) == VOCAB:
            self.rows = max(self.rows, result.numel() // VOCAB)
        return result


def test_no_more_logits_than_a_chunk():
    """Logits are held for at most one chunk.

    19 tokens make two chunks of at most 17; the weight itself, transposed, has 16 rows.
    """
    rows = []
    for criterion in criteria(17):
        with Largest() as largest:
            gradients(small(1), criterion)
        rows.append(largest.rows)
    assert rows == [sample()["target"].numel(), 16]


@pytest.mark.parametrize("frozen", ["output_projection", "features"])
def test_what_is_frozen_gets_none(frozen):
    model = small(1)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(("output_projection" in name) != (frozen == "output_projection"))
    theirs, ours = (gradients(model, criterion) for criterion in criteria(label_smoothing=0.0))
    assert_close(ours[1], theirs[1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_no_worse_than_fairseqs(dtype):
    """Errors against float64 are no larger than fairseq's; unlikely words have gradients below the range of fp16."""
    generator = torch.Generator().manual_seed(0)
    features = (4 * torch.randn(300, 32, generator=generator)).to(dtype)
    weight = (torch.randn(3000, 32, generator=generator) / 3).to(dtype)
    targets = torch.randint(0, 8, (300,), generator=generator)  # frequent words, so that sums are large

    def fairseqs(x, w):
        lprobs = F.log_softmax(x @ w.t(), -1, dtype=torch.promote_types(x.dtype, torch.float32))
        return label_smoothed_nll_loss(lprobs, targets, 0.1)[0]

    def ours(x, w):
        return label_smoothed_loss(x, w, targets, 0.1, 70).loss

    grads = []
    for loss, kind in ((fairseqs, torch.float64), (fairseqs, dtype), (ours, dtype)):
        inputs = [one.detach().clone().to(kind).requires_grad_() for one in (features, weight)]
        grads.append([gradient.double() for gradient in torch.autograd.grad(loss(*inputs), inputs)])
    for truth, their, own in zip(*grads, strict=True):
        assert torch.isfinite(own).all() and (own - truth).norm() <= 1.05 * (their - truth).norm()


def test_autocast():
    model = small(2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        theirs, ours = (gradients(model, criterion) for criterion in criteria())
    assert ours[0] == pytest.approx(theirs[0], rel=1e-4)
    assert_close(ours[1], theirs[1], 0.02)


def test_refusals(group):
    _, ours = criteria()
    with pytest.raises(UserError, match=f"--criterion {LABEL_SMOOTHED}: the model has no output projection"):
        ours(stock(MODEL_NAME, 1, adaptive_softmax_cutoff="10,20"), sample())
    unused = ModuleProxyWrapper(DistributedDataParallel(small(1), process_group=group, find_unused_parameters=True))
    with pytest.raises(UserError, match="--find-unused-parameters: not with"):
        ours(unused, sample())
    cfg = SimpleNamespace(loss_chunk_tokens=-1, sentence_avg=False, label_smoothing=0.1)
    with pytest.raises(UserError, match="--loss-chunk-tokens -1: must be"):
        ChunkedLabelSmoothedCrossEntropy.build_criterion(cfg, blank_task(VOCAB))
