"""Tests that a checkpoint of another model is refused with the flag that differs."""

from functools import lru_cache

import pytest
import torch
from fairseq import checkpoint_utils

from deepnet_fairseq import register
from deepnet_fairseq.core.archs import LM, MASKED_LM
from deepnet_fairseq.core.methods import METHODS
from deepnet_fairseq.errors import UserError
from deepnet_fairseq.plugin.building import build

from .support import single_stacks
from .support.helpers import SMALL, VOCAB, small


def refused(state, model, *words):
    """Check that a state is refused in one line with these words, and that the model keeps its weights."""
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(UserError) as caught:
        model.load_state_dict(state)
    assert "\n" not in str(caught.value) and all(word in str(caught.value) for word in words), str(caught.value)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


OTHERS = [  # fields of the checkpoint's model, words of the refusal
    ({"encoder_layers": 3}, ("3 encoder layers", "has 2", "--encoder-layers 3")),
    ({"decoder_layers": 5}, ("5 decoder layers", "--decoder-layers 5")),
    ({"encoder_embed_dim": 32}, ("--encoder-embed-dim 32",)),
    ({"decoder_ffn_embed_dim": 48}, ("--decoder-ffn-embed-dim 48",)),
    ({"decoder_learned_pos": True}, ("decoder.embed_positions", "flags")),
]


@pytest.mark.parametrize(("fields", "words"), OTHERS)
def test_a_model_of_another_shape_is_refused(fields, words):
    refused(small(2, **fields).state_dict(), small(2), *words)


def test_another_vocabulary_is_refused():
    other = build(vocab=VOCAB + 8, encoder_layers=2, decoder_layers=2, **SMALL)
    refused(other.state_dict(), small(2), f"holds {VOCAB + 8} encoder embeddings", "data of its own run")


@lru_cache
def of_method(name):
    """Build a model that other methods' checkpoints are loaded into."""
    return causal(4, method=name)


@pytest.mark.parametrize("saved", sorted(METHODS))
def test_other_methods(saved):
    """A checkpoint loads into another method only if the function is the same; every other pair is refused."""
    tokens = single_stacks.batch()
    source = single_stacks.awake(LM, 4, method=saved)
    for built in METHODS:
        model = of_method(built)
        try:
            model.load_state_dict(source.state_dict())
        except UserError as error:
            assert saved != built and ("--method" in str(error) or "other depths or options" in str(error))
        else:
            assert torch.equal(single_stacks.scores(model, tokens), single_stacks.scores(source, tokens)), built


def test_constants_of_another_depth():
    """Layers cut from a deeper model are refused, because alpha is that of the depth they were trained at."""
    state = small(2).state_dict() | {"encoder.alpha": torch.tensor(3.415742)}
    refused(state, small(2), "encoder.alpha", "3.416", "other depths")


def test_constants_survive_half_precision():
    model = small(18)
    model.load_state_dict({name: tensor.half() for name, tensor in small(18).state_dict().items()})


def causal(layers=2, **fields):
    return single_stacks.small(LM, layers, **fields)


def masked(layers=2, **fields):
    return single_stacks.small(MASKED_LM, layers, **fields)


CHECKPOINTS = {
    "of a masked model": (masked, causal, "another kind of model", "--arch"),
    "learned positions": (lambda: causal(decoder_learned_pos=True), causal, "give --decoder-learned-pos"),
    "computed positions": (masked, lambda: masked(encoder_learned_pos=True), "drop --encoder-learned-pos"),
    "a LayerNorm more": (lambda: masked(layernorm_embedding=True), masked, "give --layernorm-embedding"),
    "fewer positions": (
        lambda: masked(encoder_learned_pos=True, max_positions=64),
        lambda: masked(encoder_learned_pos=True, max_positions=32),
        "64 learned positions, this model 32; give --max-positions 64",
    ),
    "two matrices": (lambda: masked(untie_weights_roberta=True), masked, "give --untie-weights-roberta"),
}  # fmt: skip


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_checkpoints_of_other_language_models(kind):
    saved, built, *named = CHECKPOINTS[kind]
    refused(saved().state_dict(), built(), *named)


def test_overrides_that_prune_layers_are_refused(trained):
    """Overrides that prune layers are refused; fairseq would silently ignore them for our configs."""
    register()
    with pytest.raises(UserError, match="encoder_layers_to_keep: .* export the model"):
        checkpoint_utils.load_checkpoint_to_cpu(str(trained / "checkpoint_last.pt"), {"encoder_layers_to_keep": "0,2"})
