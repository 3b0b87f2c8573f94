"""A checkpoint of another model is refused with the flag that differs."""

import pytest
import torch

from deepnet_fairseq.building import build
from deepnet_fairseq.errors import UserError
from deepnet_fairseq.methods import METHODS

from .support.helpers import SMALL, VOCAB, batch, logits, small


def refused(state, model, *words):
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(UserError) as caught:
        model.load_state_dict(state)
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())  # nothing half-loaded


def test_other_depths():
    refused(small(3).state_dict(), small(2), "3 encoder layers", "has 2", "--encoder-layers 3")
    refused(small(2, decoder_layers=5).state_dict(), small(2), "5 decoder layers", "--decoder-layers 5")


@pytest.mark.parametrize("built", sorted(METHODS))
@pytest.mark.parametrize("saved", sorted(METHODS))
def test_other_methods(saved, built):
    """What loads computes the same function (methods that differ at the start only); all else is refused."""
    source, model = small(2, method=saved), small(2, method=built)
    try:
        model.load_state_dict(source.state_dict())
    except UserError:
        assert saved != built
        refused(source.state_dict(), model, "--method")
    else:
        assert torch.equal(logits(model, *batch()), logits(source, *batch()))


def test_constants_of_another_depth():
    """Layers cut out of a deeper model keep the alpha they were trained with, so they do not fit a shallower one."""
    state = small(2).state_dict() | {"encoder.alpha": torch.tensor(3.415742)}
    refused(state, small(2), "encoder.alpha", "3.416", "other depths")


def test_constants_survive_half_precision():
    model = small(18)
    model.load_state_dict({name: tensor.half() for name, tensor in small(18).state_dict().items()})


def test_other_widths_and_vocabularies():
    refused(small(2, encoder_embed_dim=32).state_dict(), small(2), "--encoder-embed-dim 32")
    refused(small(2, decoder_ffn_embed_dim=48).state_dict(), small(2), "--decoder-ffn-embed-dim 48")
    other = build(vocab=VOCAB + 8, encoder_layers=2, decoder_layers=2, **SMALL)
    refused(other.state_dict(), small(2), f"holds {VOCAB + 8} encoder embeddings", "data of its own run")


def test_other_embedding_flags():
    refused(small(2, decoder_learned_pos=True).state_dict(), small(2), "decoder.embed_positions", "flags")
