"""post_ln and pre_ln are fairseq's `transformer_lm` and `roberta`: the same scores from the same weights."""

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator

from deepnet_fairseq import archs
from deepnet_fairseq.building import blank_task

from .support.helpers import PAD, TOLERANCE, VOCAB
from .support.single_stacks import KINDS, batch, disturb, loss_of, scores, small, stock

METHODS = {"post_ln": False, "pre_ln": True}  # is the LayerNorm before the branch?
COMMON = [
    {},
    {"layernorm_embedding": True, "no_scale_embedding": True},
    {"no_token_positional_embeddings": True},
    {"activation_fn": "gelu"},
    {"activation_fn": "relu"},
]
VARIANTS = {
    archs.LM: [*COMMON, {"decoder_learned_pos": True}, {"share_decoder_input_output_embed": True}],
    archs.MASKED_LM: [*COMMON, {"encoder_learned_pos": True}, {"untie_weights_roberta": True}, archs.ROBERTA],
}
OURS = {  # what roberta takes where a flag leaves it open, and our architecture leaves out
    "encoder_learned_pos": False, "layernorm_embedding": False, "no_scale_embedding": False, "activation_fn": "gelu",
}  # fmt: skip
CASES = [(kind, fields) for kind in KINDS for fields in VARIANTS[kind]]
NAMES = ["-".join([kind, *fields]) for kind, fields in CASES]


def pair(kind, method, layers=2, **fields):
    """Ours with the state dict of theirs."""
    own = OURS if kind == archs.MASKED_LM else {}
    theirs = stock(kind, layers, METHODS[method], **(own | fields))
    ours = disturb(small(kind, layers, method=method, **fields), 1.0)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


@pytest.mark.parametrize(("kind", "fields"), CASES, ids=NAMES)
@pytest.mark.parametrize("method", METHODS)
def test_same_scores(method, kind, fields):
    tokens = batch()
    ours, theirs = (scores(model, tokens)[tokens.ne(PAD)] for model in pair(kind, method, **fields))
    assert ours.std() > 0.1
    assert (ours - theirs).abs().max() <= TOLERANCE[torch.float32]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", METHODS)
def test_same_scores_at_depth(method, kind):
    tokens = batch()
    ours, theirs = (scores(model, tokens)[tokens.ne(PAD)] for model in pair(kind, method, 18))
    assert (ours - theirs).abs().max() <= TOLERANCE[torch.float32]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", METHODS)
def test_same_gradients(method, kind):
    ours, theirs = pair(kind, method)
    theirs.NAME = kind
    for model in (ours, theirs):
        loss_of(model.train()).backward()
    found = {id(p): p.grad for p in theirs.parameters()}
    for (name, p), q in zip(ours.named_parameters(), theirs.parameters(), strict=True):  # fairseq's order, for Adam
        assert torch.allclose(p.grad, found[id(q)], rtol=1e-3, atol=1e-5), name


@pytest.mark.parametrize("method", METHODS)
def test_keys_of_the_language_model(method):
    theirs, ours = (model.state_dict().keys() for model in reversed(pair(archs.LM, method)))
    assert theirs ^ ours <= {"decoder.version", "decoder.embed_positions._float_tensor"}
    assert "decoder.output_projection.weight" in ours


@pytest.mark.parametrize("method", METHODS)
def test_keys_of_the_masked_language_model(method):
    ours, theirs = pair(archs.MASKED_LM, method)
    shells = {f"encoder.{key}" if key.startswith("lm_head.") else key for key in ours.state_dict()}
    plain = {key.replace("sentence_encoder.", "") for key in theirs.state_dict()}
    assert shells ^ plain <= {"encoder.version", "encoder.embed_positions._float_tensor"}


@pytest.mark.parametrize("method", METHODS)
def test_masked_tokens_and_features(method):
    """The head at chosen places is the head at those places; what the head reads is roberta's too."""
    tokens = batch()
    chosen = torch.zeros_like(tokens, dtype=torch.bool)
    chosen[1, 2] = chosen[2, 5] = chosen[0, 0] = True
    ours, theirs = pair(archs.MASKED_LM, method)
    with torch.no_grad():
        assert torch.allclose(ours(tokens, masked_tokens=chosen)[0], ours(tokens)[0][chosen], atol=1e-6)
        found = [model(tokens, masked_tokens=chosen)[0] for model in (ours, theirs)]
        features = [model(tokens, features_only=True)[0][tokens.ne(PAD)] for model in (ours, theirs)]
    assert found[0].shape == (3, VOCAB)
    assert torch.allclose(*found, atol=1e-5) and torch.allclose(*features, atol=1e-5)


@pytest.mark.parametrize("head_scale", ["fairseq", "none"])
@pytest.mark.parametrize("scale_residual", [True, False])
def test_normformer_is_fairseqs(head_scale, scale_residual):
    """`transformer_lm` has NormFormer's operations as flags, with the heads scaled behind W_out."""
    scales = {"scale_fc": True, "scale_attn": True, "scale_heads": head_scale == "fairseq"}
    theirs = stock(archs.LM, 2, True, **scales, scale_resids=scale_residual, activation_fn="gelu")
    options = {"normformer_head_scale": head_scale, "normformer_scale_residual": scale_residual}
    ours = disturb(small(archs.LM, 2, method="normformer", activation_fn="gelu", **options), 1.0)
    places = {
        "c_attn": "outer.self_attn.0.c", "attn_ln": f"outer.self_attn.{int(head_scale == 'fairseq')}",
        "ffn_layernorm": "inner", "w_resid": "residual.ffn.omega",
    }  # fmt: skip

    def here(key):
        words = key.split(".")
        return ".".join(places.get(word, word) for word in words)

    ours.load_state_dict({here(key): value for key, value in theirs.state_dict().items()})
    tokens = batch()
    real = tokens.ne(PAD)
    assert torch.allclose(scores(ours, tokens)[real], scores(theirs, tokens)[real], atol=1e-5)


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("method", METHODS)
def test_same_continuations(method, beam):
    tokens = batch()[1:]
    sample = {"net_input": {"src_tokens": tokens, "src_lengths": tokens.ne(PAD).sum(1)}}
    found = []
    for model in pair(archs.LM, method):
        search = SequenceGenerator([model], blank_task(VOCAB).target_dictionary, beam_size=beam, max_len_b=16)
        hypotheses = search.generate([model], sample, prefix_tokens=tokens[:, :4])
        found.append([h["tokens"].tolist() for row in hypotheses for h in row])
    assert found[0] == found[1] and len(found[0]) == 2 * beam
    assert all(row[:4] == tokens[i // beam, :4].tolist() for i, row in enumerate(found[0]))
