"""A checkpoint of another language model is refused with the flag that differs, and nothing of it is taken."""

import pytest
import torch

from deepnet_fairseq.building import build
from deepnet_fairseq.errors import UserError

from .support.helpers import VOCAB


def causal(**fields):
    sizes = {"decoder_layers": 2, "decoder_embed_dim": 16, "decoder_ffn_embed_dim": 32, "decoder_attention_heads": 2}
    return build("deepnet_lm", VOCAB, **(sizes | fields))


def masked(**fields):
    sizes = {"encoder_layers": 2, "encoder_embed_dim": 16, "encoder_ffn_embed_dim": 32, "encoder_attention_heads": 2}
    return build("deepnet_masked_lm", VOCAB, **(sizes | fields))


CHECKPOINTS = {
    "of a masked model": (masked, causal, "another kind of model", "--arch"),
    "of a causal model": (causal, masked, "another kind of model", "--arch"),
    "of other depths": (lambda: causal(decoder_layers=3), causal, "--decoder-layers 3"),
    "of other widths": (lambda: masked(encoder_embed_dim=32), masked, "--encoder-embed-dim 32"),
    "of another method": (lambda: causal(method="rezero"), causal, "--method"),
    "learned positions": (lambda: causal(decoder_learned_pos=True), causal, "give --decoder-learned-pos"),
    "computed positions": (masked, lambda: masked(encoder_learned_pos=True), "drop --encoder-learned-pos"),
    "a LayerNorm more": (lambda: masked(layernorm_embedding=True), masked, "give --layernorm-embedding"),
    "fewer positions": (
        lambda: masked(encoder_learned_pos=True, max_positions=64),
        lambda: masked(encoder_learned_pos=True, max_positions=32),
        "64 learned positions, this model 32; give --max-positions 64",
    ),
    "more positions": (
        lambda: causal(decoder_learned_pos=True, max_target_positions=16),
        lambda: causal(decoder_learned_pos=True, max_target_positions=32),
        "16 learned positions, this model 32; give --max-target-positions 16",
    ),
    "two matrices": (lambda: masked(untie_weights_roberta=True), masked, "give --untie-weights-roberta"),
    "two matrices of an LM": (
        causal, lambda: causal(share_decoder_input_output_embed=True), "drop --share-decoder-input-output-embed",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_checkpoints(kind):
    saved, built, *named = CHECKPOINTS[kind]
    model = built()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(UserError) as error:
        model.load_state_dict(saved().state_dict())
    assert "\n" not in str(error.value)
    assert all(word in str(error.value) for word in named), str(error.value)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
