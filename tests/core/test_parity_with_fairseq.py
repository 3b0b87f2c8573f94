"""Tests that post_ln and pre_ln equal fairseq's models: same keys, scores and other outputs."""

from itertools import product

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
    {"layernorm_embedding": True, "no_scale_embedding": True},
    {"no_token_positional_embeddings": True},
]
VARIANTS = {  # flags beside a method
    MODEL_NAME: [
        *COMMON,
        {"activation_fn": "gelu"},
        {"share_all_embeddings": True},
        {"share_decoder_input_output_embed": True},
        {"encoder_learned_pos": True, "decoder_learned_pos": True},
        {"decoder_embed_dim": 24, "decoder_ffn_embed_dim": 40},
    ],
    LM: [
        *COMMON,
        {"activation_fn": "gelu"},
        {"decoder_learned_pos": True},
        {"share_decoder_input_output_embed": True},
    ],
    MASKED_LM: [
        *COMMON,
        {"activation_fn": "relu"},
        {"encoder_learned_pos": True},
        {"untie_weights_roberta": True},
        ROBERTA,
    ],
}
OUR_DEFAULTS = {  # for roberta, which has others
    "encoder_learned_pos": False, "layernorm_embedding": False, "no_scale_embedding": False, "activation_fn": "gelu",
}  # fmt: skip


def models_to_compare():
    """Yield kind, method, layers and flags: every method at 18 layers, and every variant with one method, in turn."""
    for kind in EVERY:
        for method in METHODS:
            yield kind, method, 18, {}
    for kind in EVERY:
        for number, fields in enumerate(VARIANTS[kind]):
            yield kind, list(METHODS)[number % 2], 2, fields


CASES = list(models_to_compare())
NAMES = ["-".join([kind, method, *fields]) for kind, method, _, fields in CASES]
UNREAD = {"version", "embed_positions._float_tensor"}  # entries of fairseq's state dicts that no code reads


def ours_and_fairseqs(kind, method, layers=2, **fields):
    """Build our model with the state dict of fairseq's; return both."""
    defaults = OUR_DEFAULTS if kind == MASKED_LM else {}
    theirs = disturb(stock(kind, layers, METHODS[method], **(defaults | fields)))
    ours = disturb(small(kind, layers, method=method, **fields), 1.0)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def assert_same_scores(kind, ours, theirs):
    """Check that scores differ by at most 2e-6 of the largest; measured are 3.5e-7, and 1.2e-6 in absolute numbers."""
    given = inputs(kind)
    real = given[-1].ne(PAD)

    actual = scores(ours, *given)[real]
    expected = scores(theirs, *given)[real]

    assert actual.std() > 0.1
    assert (actual - expected).abs().max() <= 2e-6 * expected.abs().max()


@pytest.mark.parametrize(("kind", "method", "layers", "fields"), CASES, ids=NAMES)
def test_scores_are_fairseqs(kind, method, layers, fields):
    ours, theirs = ours_and_fairseqs(kind, method, layers, **fields)

    assert_same_scores(kind, ours, theirs)


every_kind_and_method = pytest.mark.parametrize(("kind", "method"), list(product(EVERY, METHODS)))


@every_kind_and_method
def test_keys_are_fairseqs(kind, method):
    """But those that nothing reads; roberta wraps its encoder in a second module, sentence_encoder."""
    ours, theirs = ours_and_fairseqs(kind, method)

    our_keys = {f"encoder.{key}" if key.startswith("lm_head.") else key for key in ours.state_dict()}
    their_keys = {key.replace("sentence_encoder.", "") for key in theirs.state_dict()}

    different = {key.split(".", 1)[1] for key in our_keys ^ their_keys}
    assert different <= UNREAD


@every_kind_and_method
def test_gradients_come_in_fairseqs_order(kind, method):
    """Optimisers number parameters by it, and with them Adam's state."""
    ours, theirs = ours_and_fairseqs(kind, method)
    theirs.NAME = kind

    for model in (ours, theirs):
        loss_of(model.train()).backward()

    for (name, p), q in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(p.grad, q.grad, rtol=1e-3, atol=1e-5), name


def generated(model, tokens, beam, **prompts):
    """Return the tokens of every hypothesis of fairseq's generator."""
    generator = SequenceGenerator([model], blank_task(VOCAB).target_dictionary, beam_size=beam, max_len_b=14)
    sample = {"net_input": {"src_tokens": tokens, "src_lengths": tokens.ne(PAD).sum(1)}}
    hypotheses = []
    for of_sentence in generator.generate([model], sample, **prompts):
        hypotheses += [one["tokens"].tolist() for one in of_sentence]
    return hypotheses


every_search = pytest.mark.parametrize(("method", "beam"), [("post_ln", 4), ("pre_ln", 1)])


@every_search
def test_translations_are_fairseqs(method, beam):
    ours, theirs = ours_and_fairseqs(MODEL_NAME, method, 3)
    src = inputs(MODEL_NAME)[0]

    translations = generated(ours, src, beam)

    assert len(translations) == len(src) * beam
    assert translations == generated(theirs, src, beam)


@every_search
def test_continuations_are_fairseqs(method, beam):
    ours, theirs = ours_and_fairseqs(LM, method, 3)
    tokens = batch()[1:]
    prompts = tokens[:, :4]

    continuations = generated(ours, tokens, beam, prefix_tokens=prompts)

    assert len(continuations) == len(tokens) * beam
    assert continuations == generated(theirs, tokens, beam, prefix_tokens=prompts)
    for number, continuation in enumerate(continuations):
        assert continuation[:4] == prompts[number // beam].tolist()


@pytest.mark.parametrize("method", METHODS)
def test_alignments_are_fairseqs(method):
    src, lengths, prev = inputs(MODEL_NAME)
    ours, theirs = ours_and_fairseqs(MODEL_NAME, method)

    with torch.no_grad():
        actual = ours(src, lengths, prev)[1]["attn"][0]
        expected = theirs(src, lengths, prev)[1]["attn"][0]

    real = prev.ne(PAD)
    assert torch.allclose(actual[real], expected[real], atol=FP32)


def alignment_of_one_head(model, src, lengths, prev):
    return model(src, lengths, prev, alignment_layer=0, alignment_heads=1)[1]["attn"][0]


def scores_with_full_context(model, src, lengths, prev):
    memory = model.encoder(src, lengths)
    return model.decoder(prev, memory, full_context_alignment=True, src_lengths=lengths)[0]


def memory_of_given_embeddings(model, src, lengths, prev):
    other = model.encoder.embed_tokens(src).flip(0)
    return model.encoder(src, lengths, token_embeddings=other)["encoder_out"][0]


def memory_with_repeated_rows(model, src, lengths, prev):
    rows = torch.tensor([0, 0, 0, 1, 1, 1])
    return model.encoder.reorder_encoder_out(model.encoder(src, lengths), rows)["encoder_out"][0]


def numbers_that_fairseqs_tools_read(model, src, lengths, prev):
    numbers = [
        model.encoder.num_layers,
        model.decoder.num_layers,
        model.encoder.max_source_positions,
        model.decoder.max_target_positions,
        model.args.encoder_layers,
    ]
    return torch.tensor(numbers).float()


@pytest.mark.parametrize(
    "answer",
    [
        alignment_of_one_head,
        scores_with_full_context,
        memory_of_given_embeddings,
        memory_with_repeated_rows,
        numbers_that_fairseqs_tools_read,
    ],
)
def test_other_answers_of_encoder_and_decoder_are_fairseqs(answer):
    src, _, prev = inputs(MODEL_NAME)
    src = src[:2, -4:]  # a part without padding
    prev = prev[:2, :3]
    lengths = src.ne(PAD).sum(1)
    ours, theirs = ours_and_fairseqs(MODEL_NAME, "post_ln")

    with torch.no_grad():
        actual = answer(ours, src, lengths, prev)
        expected = answer(theirs, src, lengths, prev)

    torch.testing.assert_close(actual, expected, atol=FP32, rtol=1e-4)


def test_a_checkpoint_of_release_0_12_2_is_loaded():
    """Release 0.12.2 writes further encoder weights, which are zero and which nothing reads."""
    theirs = stock(MODEL_NAME).state_dict()
    doubled = {}
    for layer in (0, 1):
        doubled[f"encoder.layers.{layer}.in_proj_weight"] = torch.zeros(3)
        doubled[f"encoder.layers.{layer}.fc1_bias"] = torch.zeros(3)
    model = small(MODEL_NAME, method="post_ln")

    model.load_state_dict(theirs | doubled)

    assert torch.equal(model.encoder.layers[1].fc2.weight, theirs["encoder.layers.1.fc2.weight"])


@pytest.fixture
def chosen_positions():
    """Provide which positions of a batch are masked: one in each row."""
    chosen = torch.zeros_like(batch(), dtype=torch.bool)
    chosen[0, 0] = True
    chosen[1, 2] = True
    chosen[2, 5] = True
    return chosen


@pytest.mark.parametrize("method", METHODS)
def test_scores_at_chosen_positions_are_robertas(method, chosen_positions):
    """They equal our scores everywhere, too."""
    tokens = batch()
    ours, theirs = ours_and_fairseqs(MASKED_LM, method)

    with torch.no_grad():
        actual = ours(tokens, masked_tokens=chosen_positions)[0]
        everywhere = ours(tokens)[0]
        expected = theirs(tokens, masked_tokens=chosen_positions)[0]

    assert actual.shape == (3, VOCAB)
    assert torch.allclose(actual, everywhere[chosen_positions], atol=FP32)
    assert torch.allclose(actual, expected, atol=FP32)


@pytest.mark.parametrize("method", METHODS)
def test_features_are_robertas(method):
    tokens = batch()
    real = tokens.ne(PAD)
    ours, theirs = ours_and_fairseqs(MASKED_LM, method)

    with torch.no_grad():
        actual = ours(tokens, features_only=True)[0]
        expected = theirs(tokens, features_only=True)[0]

    assert torch.allclose(actual[real], expected[real], atol=FP32)


@pytest.mark.parametrize("head_scale", ["fairseq", "none"])
@pytest.mark.parametrize("scale_residual", [True, False])
def test_normformer_is_fairseqs(head_scale, scale_residual):
    """normformer equals `transformer_lm` with NormFormer's flags, which scale heads after W_out."""
    scales_heads = head_scale == "fairseq"
    theirs = stock(
        LM, 2, True, scale_fc=True, scale_attn=True, scale_heads=scales_heads, scale_resids=scale_residual,
        activation_fn="gelu",
    )  # fmt: skip
    ours = small(
        LM, 2, method="normformer", normformer_head_scale=head_scale, normformer_scale_residual=scale_residual,
        activation_fn="gelu",
    )  # fmt: skip
    places = {  # words of fairseq's names -> of ours
        "c_attn": "outer.self_attn.0.c",
        "attn_ln": "outer.self_attn.1" if scales_heads else "outer.self_attn.0",
        "ffn_layernorm": "inner",
        "w_resid": "residual.ffn.omega",
    }
    disturb(theirs)
    disturb(ours, 1.0)

    state = {}
    for key, value in theirs.state_dict().items():
        words = [places.get(word, word) for word in key.split(".")]
        state[".".join(words)] = value
    ours.load_state_dict(state)

    assert_same_scores(LM, ours, theirs)
