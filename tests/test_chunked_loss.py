"""The loss that never holds all logits is fairseq's: value, gradients, log and training; it holds what it says."""

import json

import pytest
import torch
import torch.nn.functional as F
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion, label_smoothed_nll_loss
from fairseq.distributed.module_proxy_wrapper import ModuleProxyWrapper
from omegaconf import OmegaConf
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from deepnet_fairseq.core.archs import MODEL_NAME
from deepnet_fairseq.core.methods import METHODS
from deepnet_fairseq.errors import UserError
from deepnet_fairseq.plugin import chunked_loss
from deepnet_fairseq.plugin.building import blank_task
from deepnet_fairseq.plugin.chunked_cross_entropy import (
    NAME,
    ChunkedLabelSmoothedCrossEntropy,
    ChunkedLabelSmoothedCrossEntropyConfig,
    label_smoothed_loss,
)

from .support.diverging import TINY, train
from .support.helpers import PAD, VOCAB, batch, small
from .support.single_stacks import stock


def sample():
    """3 sentences, 19 tokens to predict; 6 and 5 of chunks of 3."""
    src, prev = batch()
    target = prev.roll(-1, 1)
    inputs = {"src_tokens": src, "src_lengths": src.ne(PAD).sum(1), "prev_output_tokens": prev}
    return {"net_input": inputs, "target": target, "ntokens": int(target.ne(PAD).sum())}


def criteria(chunk=3, **flags):
    """fairseq's and ours, `chunk` tokens at a time."""
    flags = {"task": blank_task(VOCAB), "sentence_avg": False, "label_smoothing": 0.1} | flags
    ours = ChunkedLabelSmoothedCrossEntropy(**flags)
    ours.chunk = chunk
    return LabelSmoothedCrossEntropyCriterion(**flags), ours


def gradients(model, criterion, scale=1.0):
    """The loss of the sample and the gradient of every parameter."""
    model.zero_grad(set_to_none=True)
    loss, _size, _log = criterion(model, sample())
    (loss * scale).backward()
    return loss.item(), {name: p.grad.double() for name, p in model.named_parameters() if p.grad is not None}


def assert_close(found, expected, tolerance=2e-6):
    assert found.keys() == expected.keys()
    size = max(gradient.abs().max() for gradient in expected.values())
    for name, gradient in expected.items():
        assert (found[name] - gradient).abs().max() <= tolerance * size, name


@pytest.mark.parametrize("method", [*sorted(METHODS), "fairseq's own"])
def test_same_loss_and_gradients(method, monkeypatch):
    """With a matrix of its own, and with one that is the embeddings' too; in validation without a gradient."""
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
    given["target"][:, 3] = model(**given["net_input"])[0].argmax(-1)[:, 3]  # so that some targets are the likeliest
    (_, size, theirs), (_, own_size, ours) = (criterion(model, given) for criterion in criteria(**flags))
    assert own_size == size
    assert ours.keys() == theirs.keys()
    for key, value in theirs.items():
        assert float(ours[key]) == pytest.approx(float(value), rel=1e-6), key
    assert flags.get("report_accuracy", False) == (theirs.get("n_correct", 0) > 0)
    counting = criteria(**flags)[1]
    assert counting(model, given | counting.count_targets(given))[2] == ours


class Largest(TorchDispatchMode):
    """The most rows that any tensor `width` numbers wide had."""

    def __init__(self, width: int):
        super().__init__()
        self.width, self.rows = width, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(tensor, torch.Tensor) and tensor.dim() > 1 and tensor.size(-1) == self.width:
                self.rows = max(self.rows, tensor.numel() // self.width)
        return result


@pytest.mark.parametrize("chunk", [17, 18])
def test_no_more_logits_than_a_chunk(chunk):
    """The model is 16 wide: a transposed weight has 16 rows."""
    model, (theirs, ours) = small(1), criteria(chunk)
    rows = {}
    for criterion in (theirs, ours):
        with Largest(VOCAB) as largest:
            gradients(model, criterion)
        rows[criterion] = largest.rows
    tokens = sample()["ntokens"]
    assert rows[theirs] == sample()["target"].numel()
    assert chunk < tokens < 2 * chunk
    assert rows[ours] == max(16, -(-tokens // 2))


@pytest.mark.parametrize("frozen", ["output_projection", "features"])
def test_what_is_frozen_gets_none(frozen):
    model = small(1)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(("output_projection" in name) != (frozen == "output_projection"))
    theirs, ours = (gradients(model, criterion) for criterion in criteria(label_smoothing=0.0))
    assert_close(ours[1], theirs[1])


NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, NO_GPU])])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("scale", [1.0, 128.0])
def test_half_precision_is_no_worse_than_fairseqs(dtype, scale, device):
    """Against float64 from the same numbers; the gradient of an unlikely word is below what fp16 holds."""
    generator = torch.Generator().manual_seed(0)
    features = (4 * torch.randn(300, 32, generator=generator)).to(device, dtype)
    weight = (torch.randn(3000, 32, generator=generator) / 3).to(device, dtype)
    targets = torch.randint(0, 8, (300,), generator=generator).to(device)  # frequent words: large sums

    def errors(loss, x, w):
        x, w = x.requires_grad_(), w.requires_grad_()
        (loss(x, w) * scale).backward()
        return [x.grad.double(), w.grad.double()]

    def reference(x, w):
        lprobs = F.log_softmax(x @ w.t(), -1, dtype=torch.promote_types(x.dtype, torch.float32))
        return label_smoothed_nll_loss(lprobs, targets, 0.1)[0]

    exact = errors(reference, features.double(), weight.double())
    theirs = errors(reference, features.clone(), weight.clone())
    ours = errors(lambda x, w: label_smoothed_loss(x, w, targets, 0.1, 70).loss, features.clone(), weight.clone())
    for truth, their, own in zip(exact, theirs, ours, strict=True):
        assert torch.isfinite(own).all()
        assert (own - truth).norm() <= 1.05 * (their - truth).norm()


def test_autocast():
    model = small(2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        theirs, ours = (gradients(model, criterion) for criterion in criteria())
    assert ours[0] == pytest.approx(theirs[0], rel=1e-4)
    assert_close(ours[1], theirs[1], 0.02)


def test_refusals(group):
    _, ours = criteria()
    adaptive = stock(MODEL_NAME, 1, adaptive_softmax_cutoff="10,20")
    with pytest.raises(UserError, match=f"--criterion {NAME}: the model has no output projection"):
        ours(adaptive, sample())
    unused = ModuleProxyWrapper(DistributedDataParallel(small(1), process_group=group, find_unused_parameters=True))
    with pytest.raises(UserError, match="--find-unused-parameters: not with"):
        ours(unused, sample())
    cfg = OmegaConf.structured(ChunkedLabelSmoothedCrossEntropyConfig(loss_chunk_tokens=-1, sentence_avg=False))
    with pytest.raises(UserError, match="--loss-chunk-tokens -1: must be"):
        ChunkedLabelSmoothedCrossEntropy.build_criterion(cfg, blank_task(VOCAB))


def test_a_run_may_switch(data, tmp_path, caplog):
    """Four updates of fairseq's loss; and after two of them two of ours, under --update-freq and without a reset."""
    flags = (*TINY, "--update-freq", "2", "--max-update", "4")

    def losses(folder, *more):
        caplog.clear()
        with caplog.at_level("INFO"):  # whatever earlier tests set
            train(data, folder, *flags, *more)
        rows = [r.getMessage() for r in caplog.records if r.name == "train_inner"]
        return [float(json.loads(row)["loss"]) for row in rows]

    whole = losses(tmp_path / "theirs", "--save-interval-updates", "2")
    resumed = ("--restore-file", str(tmp_path / "theirs" / "checkpoint_1_2.pt"), "--loss-chunk-tokens", "100")
    assert len(whole) == 4 and whole[-1] < whole[0]
    own = losses(tmp_path / "ours", "--criterion", NAME, *resumed, "--no-save")
    assert own == pytest.approx(whole[2:], abs=0.002)
