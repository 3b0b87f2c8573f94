"""Tests that post_ln and pre_ln equal fairseq's models: same keys, scores and other outputs."""

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator

from deepnet_fairseq.core.archs import LM, MASKED_LM, MODEL_NAME, ROBERTA
from deepnet_fairseq.plugin.building import blank_task

from ..support.helpers import PAD, TOLERANCE, VOCAB
from ..support.single_stacks import EVERY, batch, disturb, inputs, loss_of, scores, small, stock

FP32 = TOLERANCE[torch.float32]
METHODS = {"post_ln": False, "pre_ln": True}  # whether the LayerNorm precedes the branch
COMMON = [
    {},
    {"layernorm_embedding": True, "no_scale_embedding": True},
    {"no_token_positional_embeddings": True},
    {"activation_fn": "gelu"},
]
VARIANTS = {
    MODEL_NAME: [
        *COMMON,
        {"share_all_embeddings": True},
        {"share_decoder_input_output_embed": True},
        {"encoder_learned_pos": True, "decoder_learned_pos": True},
        {"decoder_embed_dim": 24, "decoder_ffn_embed_dim": 40},
    ],
    LM: [*COMMON, {"decoder_learned_pos": True}, {"share_decoder_input_output_embed": True}],
    MASKED_LM: [*COMMON[:-1], {"activation_fn": "relu"}, {"encoder_learned_pos": True},
                {"untie_weights_roberta": True}, ROBERTA],
}  # fmt: skip
OURS = {  # roberta's defaults, which our architecture does not set
    "encoder_learned_pos": False, "layernorm_embedding": False, "no_scale_embedding": False, "activation_fn": "gelu",
}  # fmt: skip
CASES = [(kind, method, 18, {}) for kind in EVERY for method in METHODS]
CASES += [(kind, list(METHODS)[n % 2], 2, fields) for kind in EVERY for n, fields in enumerate(VARIANTS[kind][1:])]
NAMES = ["-".join([kind, method, *fields]) for kind, method, _, fields in CASES]
EXTRA = {"version", "embed_positions._float_tensor"}  # entries that no code reads


def pair(kind, method, layers=2, **fields):
    """Build our model with the state dict of fairseq's; return both."""
    own = OURS if kind == MASKED_LM else {}
    theirs = disturb(stock(kind, layers, METHODS[method], **(own | fields)))
    ours = disturb(small(kind, layers, method=method, **fields), 1.0)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def assert_same_scores(kind, models):
    """Check that scores differ by at most 2e-6 of the largest; measured are 3.5e-7, and 1.2e-6 in absolute numbers."""
    given = inputs(kind)
    real = given[-1].ne(PAD)
    ours, theirs = (scores(model, *given)[real] for model in models)
    assert ours.std() > 0.1 and (ours - theirs).abs().max() <= 2e-6 * theirs.abs().max()


@pytest.mark.parametrize(("kind", "method", "layers", "fields"), CASES, ids=NAMES)
def test_same_scores(kind, method, layers, fields):
    assert_same_scores(kind, pair(kind, method, layers, **fields))


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize("method", METHODS)
def test_same_keys_and_gradients_in_the_same_order(method, kind):
    """Keys and gradients come in fairseq's order, by which optimisers number parameters and Adam's state.

    roberta wraps its encoder in a second module.
    """
    ours, theirs = pair(kind, method)
    shells = {f"encoder.{key}" if key.startswith("lm_head.") else key for key in ours.state_dict()}
    plain = {key.replace("sentence_encoder.", "") for key in theirs.state_dict()}
    assert {key.split(".", 1)[1] for key in shells ^ plain} <= EXTRA
    theirs.NAME = kind
    for model in (ours, theirs):
        loss_of(model.train()).backward()
    for (name, p), q in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(p.grad, q.grad, rtol=1e-3, atol=1e-5), name


@pytest.mark.parametrize(("method", "beam"), [("post_ln", 4), ("pre_ln", 1)])
@pytest.mark.parametrize("kind", [MODEL_NAME, LM])
def test_same_translations_and_continuations(kind, method, beam):
    tokens = inputs(kind)[0] if kind == MODEL_NAME else batch()[1:]
    sample = {"net_input": {"src_tokens": tokens, "src_lengths": tokens.ne(PAD).sum(1)}}
    more = {} if kind == MODEL_NAME else {"prefix_tokens": tokens[:, :4]}
    outputs = []
    for model in pair(kind, method, 3):
        search = SequenceGenerator([model], blank_task(VOCAB).target_dictionary, beam_size=beam, max_len_b=14)
        outputs.append([h["tokens"].tolist() for row in search.generate([model], sample, **more) for h in row])
    assert outputs[0] == outputs[1] and len(outputs[0]) == len(tokens) * beam
    assert not more or all(row[:4] == tokens[i // beam, :4].tolist() for i, row in enumerate(outputs[0]))


@pytest.mark.parametrize("method", METHODS)
def test_same_attention_weights(method):
    given = inputs(MODEL_NAME)
    with torch.no_grad():
        ours, theirs = (model(*given)[1]["attn"][0][given[2].ne(PAD)] for model in pair(MODEL_NAME, method))
    assert torch.allclose(ours, theirs, atol=FP32)


def contracts(model, src, prev) -> dict:
    """Return the other outputs of fairseq's encoder and decoder, by argument."""
    lengths, encoder, decoder = src.ne(PAD).sum(1), model.encoder, model.decoder
    memory = encoder(src, lengths)
    other = encoder.embed_tokens(src).flip(0)
    numbers = encoder.num_layers, decoder.num_layers, encoder.max_source_positions, decoder.max_target_positions
    return {
        "one head": model(src, lengths, prev, alignment_layer=0, alignment_heads=1)[1]["attn"][0],
        "full context": decoder(prev, memory, full_context_alignment=True, src_lengths=lengths)[0],
        "embeddings given": encoder(src, lengths, token_embeddings=other)["encoder_out"][0],
        "rows": encoder.reorder_encoder_out(memory, torch.tensor([0, 0, 0, 1, 1, 1]))["encoder_out"][0],
        "attributes": torch.tensor([*numbers, model.args.encoder_layers]).float(),
    }


def test_contracts_of_encoder_and_decoder():
    src, _, prev = inputs(MODEL_NAME)
    src, prev = src[:2, -4:], prev[:2, :3]  # a part without padding
    with torch.no_grad():
        ours, theirs = (contracts(model, src, prev) for model in pair(MODEL_NAME, "post_ln"))
    for asked, answer in theirs.items():
        torch.testing.assert_close(ours[asked], answer, atol=FP32, rtol=1e-4, msg=asked)


def test_reads_a_checkpoint_of_the_release_with_doubled_encoder_weights():
    theirs = stock(MODEL_NAME).state_dict()
    doubled = {f"encoder.layers.{i}.{name}": torch.zeros(3) for i in (0, 1) for name in ("in_proj_weight", "fc1_bias")}
    model = small(MODEL_NAME, method="post_ln")
    model.load_state_dict(theirs | doubled)
    assert torch.equal(model.encoder.layers[1].fc2.weight, theirs["encoder.layers.1.fc2.weight"])


@pytest.mark.parametrize("method", METHODS)
def test_masked_tokens_and_features(method):
    """The head at chosen positions equals the head everywhere; its input equals roberta's features."""
    tokens = batch()
    chosen = torch.zeros_like(tokens, dtype=torch.bool)
    chosen[1, 2] = chosen[2, 5] = chosen[0, 0] = True
    ours, theirs = pair(MASKED_LM, method)
    with torch.no_grad():
        assert torch.allclose(ours(tokens, masked_tokens=chosen)[0], ours(tokens)[0][chosen], atol=FP32)
        logits = [model(tokens, masked_tokens=chosen)[0] for model in (ours, theirs)]
        features = [model(tokens, features_only=True)[0][tokens.ne(PAD)] for model in (ours, theirs)]
    assert logits[0].shape == (3, VOCAB)
    assert torch.allclose(*logits, atol=FP32) and torch.allclose(*features, atol=FP32)


@pytest.mark.parametrize("head_scale", ["fairseq", "none"])
@pytest.mark.parametrize("scale_residual", [True, False])
def test_normformer_is_fairseqs(head_scale, scale_residual):
    """normformer equals `transformer_lm` with NormFormer's flags, which scale heads after W_out."""
    scales = {"scale_fc": True, "scale_attn": True, "scale_heads": head_scale == "fairseq"}
    theirs = disturb(stock(LM, 2, True, **scales, scale_resids=scale_residual, activation_fn="gelu"))
    options = {"normformer_head_scale": head_scale, "normformer_scale_residual": scale_residual}
    ours = disturb(small(LM, 2, method="normformer", activation_fn="gelu", **options), 1.0)
    places = {
        "c_attn": "outer.self_attn.0.c", "attn_ln": f"outer.self_attn.{int(head_scale == 'fairseq')}",
        "ffn_layernorm": "inner", "w_resid": "residual.ffn.omega",
    }  # fmt: skip
    state = {".".join(places.get(word, word) for word in key.split(".")): v for key, v in theirs.state_dict().items()}
    ours.load_state_dict(state)
    assert_same_scores(LM, (ours, theirs))
