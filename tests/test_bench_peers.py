"""What `deepnet bench` compares with does the same work: torchscale beside stock fairseq, with the same weights."""

from __future__ import annotations

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator

from deepnet_fairseq.tools.bench.contender import Contender
from deepnet_fairseq.tools.bench.settings import STOCK, Settings, Shape, candidates
from deepnet_fairseq.tools.verify import verify

pytest.importorskip("torchscale", reason="pip install --no-deps torchscale==0.3.0")
pytestmark = pytest.mark.peers

SHAPE = Shape(3, 2, "tiny")
SETTINGS = Settings(max_tokens=512, vocabulary=150, dropout=0.0, repeats=1)
STOCKS_OWN = ("version", "_float_tensor")  # buffers that hold nothing


def contender(name: str, method: str = "post_ln", **changed) -> Contender:
    (candidate,) = candidates(name, method)
    assert not candidate.unavailable
    return Contender(candidate, SHAPE, Settings(**(vars(SETTINGS) | changed)))


def copy_weights(stock, peer) -> None:
    """Every one has its counterpart: the feed-forward branch is a module of its own there."""
    weights = {}
    for name, weight in stock.state_dict().items():
        if not name.endswith(STOCKS_OWN):
            weights[name.replace(".fc", ".ffn.fc")] = weight
    expected = {name for name in peer.state_dict() if not name.endswith(STOCKS_OWN)}
    assert weights.keys() == expected
    peer.load_state_dict(weights, strict=False)


@pytest.fixture
def pair():
    """Stock and torchscale with the same weights, and a batch."""
    stock, peer = contender(STOCK), contender("torchscale")
    copy_weights(stock.model, peer.model)
    yield stock, peer
    stock.close()
    peer.close()


def test_same_batches_and_parameters(pair):
    stock, peer = pair
    assert stock.parameters() == peer.parameters()
    for mine, theirs in zip(stock.batches(5), peer.batches(5), strict=True):
        assert torch.equal(mine["net_input"]["src_tokens"], theirs["net_input"]["src_tokens"])
        assert torch.equal(mine["target"], theirs["target"])


def test_same_loss_and_gradients(pair):
    """Of padded batches; through fairseq's criterion."""
    stock, peer = pair
    for batch in stock.batches(3):
        losses = [c.trainer.criterion(c.model.train(), batch)[0] for c in pair]
        assert losses[1].item() == pytest.approx(losses[0].item(), rel=1e-5)
        for loss in losses:
            loss.backward()
    found = dict(peer.model.named_parameters())
    for name, parameter in stock.model.named_parameters():
        grad = found[name.replace(".fc", ".ffn.fc")].grad
        assert torch.allclose(grad, parameter.grad, rtol=1e-3, atol=1e-4), name  # a key's bias has none but rounding


def test_same_translations(pair):
    """Incremental decoding, beams reordered: equal tokens and scores."""
    batch, found = pair[0].batches(1)[0], []
    for side in pair:
        generator = SequenceGenerator(
            [side.model.eval()], side.trainer.task.target_dictionary, beam_size=4, max_len_b=12, max_len_a=0
        )
        found.append(generator.generate([side.model], batch))
    for mine, theirs in zip(*found, strict=True):
        for ours, other in zip(mine, theirs, strict=True):
            assert torch.equal(ours["tokens"], other["tokens"])
            assert ours["score"].item() == pytest.approx(other["score"].item(), abs=1e-4)


def test_deepnorm_is_torchscales_own():
    """Residuals of the encoder count 0.81 (N^4 M)^(1/16)."""
    peer = contender("torchscale", "deepnorm")
    alphas = [layer.alpha for layer in peer.model.encoder.layers]
    peer.close()
    assert alphas == pytest.approx([0.81 * (SHAPE.N**4 * SHAPE.M) ** (1 / 16)] * SHAPE.N)


def test_its_deepnorm_is_not_the_papers():
    """`deepnet verify` says of torchscale what it says of the fixture in tests/test_verify.py; alpha is right."""
    peer = contender("torchscale", "deepnorm")
    tokens = torch.arange(4, 20).view(2, 8)
    audit = verify(peer.model, "deepnorm", inputs=(tokens, None, tokens))
    encoder, decoder = audit.findings
    assert "encoder beta 1.15 (N^4 M)^(-1/16): torchscale's" in encoder
    assert decoder.endswith("torch's default for a Linear")
    assert len(audit.factors) == 5 and {verdict for *_, verdict in audit.factors} == {"fits"}
    peer.close()
