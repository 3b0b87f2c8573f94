"""Tests of the chunked loss: value, gradients and log equal fairseq's, and it holds the logits of one chunk at most."""

from __future__ import annotations

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
from deepnet_fairseq.plugin import chunked_loss
from deepnet_fairseq.plugin.building import blank_task
from deepnet_fairseq.plugin.chunked_cross_entropy import (
    LABEL_SMOOTHED,
    ChunkedLabelSmoothedCrossEntropy,
    label_smoothed_loss,
)

from ..support.errors import refused
from ..support.helpers import PAD, SMALL, VOCAB, batch, small
from ..support.single_stacks import stock

STOCK = "fairseq's own"  # the name of fairseq's own model among those of our methods
EVERY_MODEL = [*sorted(METHODS), STOCK]
CHUNK = 3  # tokens: the sample's 19 make seven chunks
WIDTH = SMALL["encoder_embed_dim"]


def translation_sample() -> dict:
    """Return a batch of 3 sentences of 7 positions, with 19 tokens to predict and 2 of padding."""
    src, prev = batch()
    target = prev.roll(-1, 1)
    inputs = {"src_tokens": src, "src_lengths": src.ne(PAD).sum(1), "prev_output_tokens": prev}
    return {"net_input": inputs, "target": target, "ntokens": int(target.ne(PAD).sum())}


def settings_of_criteria(flags: dict) -> dict:
    """Return the arguments of a criterion: some values of our own, replaced by `flags`."""
    return {"task": blank_task(VOCAB), "sentence_avg": False, "label_smoothing": 0.1} | flags


def fairseqs_criterion(**flags) -> LabelSmoothedCrossEntropyCriterion:
    return LabelSmoothedCrossEntropyCriterion(**settings_of_criteria(flags))


def chunked_criterion(chunk: int = CHUNK, **flags) -> ChunkedLabelSmoothedCrossEntropy:
    """Build our criterion, which works on `chunk` tokens at a time."""
    criterion = ChunkedLabelSmoothedCrossEntropy(**settings_of_criteria(flags))
    criterion.chunk = chunk
    return criterion


def loss_and_gradients(model, criterion, scale: float = 1.0) -> tuple[float, dict[str, torch.Tensor]]:
    """Return the loss of the sample, and the gradient of `scale` times the loss by name of the parameter.

    Parameters without a gradient are left out.
    """
    model.zero_grad(set_to_none=True)
    loss, _size, _log = criterion(model, translation_sample())
    (loss * scale).backward()

    gradients = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            gradients[name] = parameter.grad.double()
    return loss.item(), gradients


def assert_gradients_close(actual, expected, tolerance: float = 2e-6) -> None:
    """Check that no number differs by more than the tolerance, relative to the largest number of all gradients."""
    assert actual.keys() == expected.keys()
    largest = max(gradient.abs().max() for gradient in expected.values())
    for name, gradient in expected.items():
        assert (actual[name] - gradient).abs().max() <= tolerance * largest, name


def model_of(method: str):
    """Build a model of two layers, with tied embeddings for about half of the names: those of even length."""
    tied = len(method) % 2 == 0
    if method == STOCK:
        return stock(MODEL_NAME, share_all_embeddings=tied)
    return small(2, method=method, share_all_embeddings=tied)


@pytest.mark.parametrize("method", EVERY_MODEL)
def test_loss_and_gradients_equal_fairseqs(method):
    """The gradients are computed together with the loss, and have to follow a factor that comes later, a loss scale."""
    model = model_of(method)

    expected_loss, expected_gradients = loss_and_gradients(model, fairseqs_criterion(), scale=3.0)
    loss, gradients = loss_and_gradients(model, chunked_criterion(), scale=3.0)

    assert loss == pytest.approx(expected_loss, rel=1e-6)
    assert_gradients_close(gradients, expected_gradients)


@pytest.mark.parametrize("method", EVERY_MODEL)
def test_validation_computes_the_loss_and_no_gradient(method, monkeypatch):
    model = model_of(method)
    monkeypatch.setattr(chunked_loss, "_add_gradients", lambda *_: pytest.fail("a gradient in validation"))

    with torch.no_grad():
        expected, _, _ = fairseqs_criterion()(model, translation_sample())
        loss, _, _ = chunked_criterion()(model, translation_sample())

    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize(
    "flags",
    [{}, {"label_smoothing": 0.0}, {"sentence_avg": True}, {"report_accuracy": True, "ignore_prefix_size": 2}],
    ids=str,
)
def test_the_log_equals_fairseqs(flags):
    model = small(2)
    sample = translation_sample()
    likeliest = model(**sample["net_input"])[0].argmax(-1)
    sample["target"][:, 3] = likeliest[:, 3]  # one word a sentence is right; otherwise the accuracy would be 0

    _, expected_size, expected_log = fairseqs_criterion(**flags)(model, sample)
    _, size, log = chunked_criterion(**flags)(model, sample)

    assert size == expected_size
    assert log.keys() == expected_log.keys()
    for key, value in expected_log.items():
        assert float(log[key]) == pytest.approx(float(value), rel=1e-6), key


class LargestLogits(TorchDispatchMode):
    """Recorder of the most rows of any tensor as wide as the vocabulary."""

    rows = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.dim() > 1 and result.size(-1) == VOCAB:
            self.rows = max(self.rows, result.numel() // VOCAB)
        return result


def test_fairseqs_loss_holds_the_logits_of_every_position():
    with LargestLogits() as largest:
        loss_and_gradients(small(1), fairseqs_criterion())

    assert largest.rows == translation_sample()["target"].numel()


def test_the_chunked_loss_holds_the_logits_of_one_chunk():
    """19 tokens make two chunks of 10 and 9, as 17 are allowed at a time.

    The largest tensor as wide as the vocabulary is then the transposed weight, with a row for each of 16 features.
    """
    with LargestLogits() as largest:
        loss_and_gradients(small(1), chunked_criterion(chunk=17))

    assert largest.rows == WIDTH


@pytest.mark.parametrize("frozen", ["output projection", "all but the output projection"])
def test_frozen_parameters_get_no_gradients(frozen):
    """The gradients of the parameters that are not frozen equal fairseq's."""
    model = small(1)
    for name, parameter in model.named_parameters():
        in_projection = "output_projection" in name
        is_frozen = in_projection if frozen == "output projection" else not in_projection
        parameter.requires_grad_(not is_frozen)

    _, expected = loss_and_gradients(model, fairseqs_criterion(label_smoothing=0.0))
    _, gradients = loss_and_gradients(model, chunked_criterion(label_smoothing=0.0))

    assert gradients
    assert_gradients_close(gradients, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_no_worse_than_fairseqs(dtype):
    """Our gradients are no further from those in float64 than fairseq's are.

    Gradients of unlikely words are below fp16's range.
    """
    tokens = 300
    width = 32
    vocabulary = 3000
    generator = torch.Generator().manual_seed(0)
    features = (4 * torch.randn(tokens, width, generator=generator)).to(dtype)
    weight = (torch.randn(vocabulary, width, generator=generator) / 3).to(dtype)
    targets = torch.randint(0, 8, (tokens,), generator=generator)  # few words, each frequent: large sums

    def fairseqs_loss(x, w):
        lprobs = F.log_softmax(x @ w.t(), -1, dtype=torch.promote_types(x.dtype, torch.float32))
        loss, _nll_loss = label_smoothed_nll_loss(lprobs, targets, epsilon=0.1)
        return loss

    def chunked(x, w):
        return label_smoothed_loss(x, w, targets, smoothing=0.1, chunk=70).loss

    def gradients(loss_function, kind):
        """Return the gradients of features and weight, computed in a type."""
        inputs = [tensor.detach().clone().to(kind).requires_grad_() for tensor in (features, weight)]
        loss = loss_function(*inputs)
        return [gradient.double() for gradient in torch.autograd.grad(loss, inputs)]

    truth = gradients(fairseqs_loss, torch.float64)
    theirs = gradients(fairseqs_loss, dtype)
    ours = gradients(chunked, dtype)

    for exact, their, our in zip(truth, theirs, ours, strict=True):
        assert torch.isfinite(our).all()
        assert (our - exact).norm() <= 1.05 * (their - exact).norm()  # 5% for the luck of rounding


def test_loss_and_gradients_equal_fairseqs_under_autocast():
    """Both losses round products to bf16, by up to 0.4%. The gradients are sums of such products in another order."""
    model = small(2)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected_loss, expected_gradients = loss_and_gradients(model, fairseqs_criterion())
        loss, gradients = loss_and_gradients(model, chunked_criterion())

    assert loss == pytest.approx(expected_loss, rel=1e-4)
    assert_gradients_close(gradients, expected_gradients, tolerance=0.02)


def test_a_model_without_one_output_projection_is_refused():
    model = stock(MODEL_NAME, 1, adaptive_softmax_cutoff="10,20")  # a projection for each of three groups of words

    with refused(f"--criterion {LABEL_SMOOTHED}"):
        chunked_criterion()(model, translation_sample())


def test_a_search_for_unused_parameters_is_refused(group):
    """DistributedDataParallel would take the output projection for unused: the loss multiplies by it, not the model."""
    wrapped = DistributedDataParallel(small(1), process_group=group, find_unused_parameters=True)

    with refused("--find-unused-parameters"):
        chunked_criterion()(ModuleProxyWrapper(wrapped), translation_sample())


def test_a_negative_chunk_is_refused():
    """fairseq builds a criterion from the command line by build_criterion."""
    cfg = SimpleNamespace(loss_chunk_tokens=-1, sentence_avg=False, label_smoothing=0.1)

    with refused("--loss-chunk-tokens -1"):
        ChunkedLabelSmoothedCrossEntropy.build_criterion(cfg, blank_task(VOCAB))
