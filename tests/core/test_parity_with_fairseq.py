"""Tests that post_ln and pre_ln equal fairseq's models: same keys, scores and other outputs.

`small(kind, layers, **fields)` builds our model of width 16, `stock` fairseq's `transformer`, `transformer_lm` or
`roberta` of that size. `inputs(kind)` are the arguments of a call of either; the last are the tokens of the decoder or
of the only stack. fairseq's models may differ at padding, so that outputs are compared at real tokens.
"""

from itertools import product

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator

from deepnet_fairseq.core.archs import LM, MASKED_LM, MODEL_NAME, ROBERTA
from deepnet_fairseq.plugin.building import blank_task

from ..support.helpers import PAD, TOLERANCE, VOCAB
from ..support.single_stacks import EVERY_KIND as EVERY_KIND
from ..support.single_stacks import batch, disturb, inputs, loss_of, scores, small, stock

FP32 = TOLERANCE[torch.float32]
IS_PRE_NORM = {"post_ln": False, "pre_ln": True}  # method -> fairseq's normalize_before
METHODS = list(IS_PRE_NORM)
FLAGS_OF_EVERY_KIND = [
    {"layernorm_embedding": True, "no_scale_embedding": True},
    {"no_token_positional_embeddings": True},
]
FLAGS = {  # kind of model -> flags beside a method, one set for each comparison
    MODEL_NAME: [
        *FLAGS_OF_EVERY_KIND,
        {"activation_fn": "gelu"},
        {"share_all_embeddings": True},
        {"share_decoder_input_output_embed": True},
        {"encoder_learned_pos": True, "decoder_learned_pos": True},
        {"decoder_embed_dim": 24, "decoder_ffn_embed_dim": 40},
    ],
    LM: [
        *FLAGS_OF_EVERY_KIND,
        {"activation_fn": "gelu"},
        {"decoder_learned_pos": True},
        {"share_decoder_input_output_embed": True},
    ],
    MASKED_LM: [
        *FLAGS_OF_EVERY_KIND,
        {"activation_fn": "relu"},
        {"encoder_learned_pos": True},
        {"untie_weights_roberta": True},
        ROBERTA,
    ],
}
DEFAULTS_OF_MASKED_LM = {  # of our masked language model, which differ from roberta's
    "encoder_learned_pos": False, "layernorm_embedding": False, "no_scale_embedding": False, "activation_fn": "gelu",
}  # fmt: skip


def models_to_compare():
    """Yield kind, method, layers and flags: every method at 18 layers; every set of flags at 2, methods in turn."""
    for kind in EVERY_KIND:
        for method in METHODS:
            yield kind, method, 18, {}
    for kind in EVERY_KIND:
        for number, flags in enumerate(FLAGS[kind]):
            yield kind, METHODS[number % 2], 2, flags


COMPARED = list(models_to_compare())
COMPARED_IDS = ["-".join([kind, method, *flags]) for kind, method, _, flags in COMPARED]
UNREAD = {"version", "embed_positions._float_tensor"}  # entries of fairseq's state dicts that no code reads


def ours_and_fairseqs(kind, method, layers=2, **flags):
    """Build our model and fairseq's with the same weights; return both.

    fairseq's weights get noise, without which LayerNorms are ones and biases zeros. Our model has other noise before it
    loads them.
    """
    defaults = DEFAULTS_OF_MASKED_LM if kind == MASKED_LM else {}
    theirs = disturb(stock(kind, layers, IS_PRE_NORM[method], **(defaults | flags)))
    ours = disturb(small(kind, layers, method=method, **flags), amount=1.0)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def assert_same_scores(kind, ours, theirs):
    """Check that scores at real tokens differ by at most 2e-6 of the largest, six times what was measured."""
    given = inputs(kind)
    real = given[-1].ne(PAD)

    actual = scores(ours, *given)[real]
    expected = scores(theirs, *given)[real]

    assert actual.std() > 0.1  # scores that are all alike would prove nothing
    assert (actual - expected).abs().max() <= 2e-6 * expected.abs().max()


@pytest.mark.parametrize(("kind", "method", "layers", "flags"), COMPARED, ids=COMPARED_IDS)
def test_scores_are_fairseqs(kind, method, layers, flags):
    ours, theirs = ours_and_fairseqs(kind, method, layers, **flags)

    assert_same_scores(kind, ours, theirs)


every_kind_and_method = pytest.mark.parametrize(("kind", "method"), list(product(EVERY_KIND, METHODS)))


@every_kind_and_method
def test_keys_of_state_dicts_are_fairseqs_but_for_those_that_nothing_reads(kind, method):
    """roberta has its encoder in a second module, sentence_encoder, and its lm_head in the encoder."""
    ours, theirs = ours_and_fairseqs(kind, method)

    our_keys = {f"encoder.{key}" if key.startswith("lm_head.") else key for key in ours.state_dict()}
    their_keys = {key.replace("sentence_encoder.", "") for key in theirs.state_dict()}

    assert our_keys <= their_keys
    only_theirs = {key.split(".", 1)[1] for key in their_keys - our_keys}  # without the stack's name
    assert only_theirs <= UNREAD


@every_kind_and_method
def test_parameters_come_in_fairseqs_order_and_have_its_gradients(kind, method):
    """Optimisers number the parameters, and the state of Adam, in this order."""
    ours, theirs = ours_and_fairseqs(kind, method)
    theirs.NAME = kind  # for loss_of

    loss_of(ours.train()).backward()
    loss_of(theirs.train()).backward()

    for (name, parameter), theirs_there in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(parameter.grad, theirs_there.grad, rtol=1e-3, atol=1e-5), name


def generated(model, tokens, beams, **prompts):
    """Generate with fairseq's generator; return the tokens of all hypotheses, `beams` for each row of tokens (B, S)."""
    generator = SequenceGenerator([model], blank_task(VOCAB).target_dictionary, beam_size=beams, max_len_b=14)
    sample = {"net_input": {"src_tokens": tokens, "src_lengths": tokens.ne(PAD).sum(1)}}
    hypotheses = []
    for of_sentence in generator.generate([model], sample, **prompts):
        hypotheses += [one["tokens"].tolist() for one in of_sentence]
    return hypotheses


every_search = pytest.mark.parametrize(("method", "beams"), [("post_ln", 4), ("pre_ln", 1)])


@every_search
def test_translations_are_fairseqs(method, beams):
    ours, theirs = ours_and_fairseqs(MODEL_NAME, method, layers=3)
    src, _, _ = inputs(MODEL_NAME)

    translations = generated(ours, src, beams)

    assert len(translations) == len(src) * beams
    assert translations == generated(theirs, src, beams)


@every_search
def test_continuations_are_fairseqs(method, beams):
    ours, theirs = ours_and_fairseqs(LM, method, layers=3)
    tokens = batch()[1:]  # two rows without padding
    prompts = tokens[:, :4]

    continuations = generated(ours, tokens, beams, prefix_tokens=prompts)

    assert len(continuations) == len(tokens) * beams
    assert continuations == generated(theirs, tokens, beams, prefix_tokens=prompts)
    for number, continuation in enumerate(continuations):
        assert continuation[:4] == prompts[number // beams].tolist()


@pytest.mark.parametrize("method", METHODS)
def test_alignments_are_fairseqs(method):
    """Alignments are attention weights of target tokens on source tokens, (B, T, S)."""
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


def sizes_that_fairseqs_tools_read(model, src, lengths, prev):
    numbers = [
        model.encoder.num_layers,
        model.decoder.num_layers,
        model.encoder.max_source_positions,
        model.decoder.max_target_positions,
        model.args.encoder_layers,
    ]
    return torch.tensor(numbers).float()


@pytest.mark.parametrize(
    "output_of",
    [
        alignment_of_one_head,
        scores_with_full_context,
        memory_of_given_embeddings,
        memory_with_repeated_rows,
        sizes_that_fairseqs_tools_read,
    ],
)
def test_further_outputs_of_encoder_and_decoder_are_fairseqs(output_of):
    src, _, prev = inputs(MODEL_NAME)
    src = src[:2, -4:]  # a part without padding
    prev = prev[:2, :3]
    lengths = src.ne(PAD).sum(1)
    ours, theirs = ours_and_fairseqs(MODEL_NAME, "post_ln")

    with torch.no_grad():
        actual = output_of(ours, src, lengths, prev)
        expected = output_of(theirs, src, lengths, prev)

    torch.testing.assert_close(actual, expected, atol=FP32, rtol=1e-4)


def test_a_checkpoint_of_fairseq_0_12_2_is_loaded():
    """fairseq 0.12.2 writes further entries for an encoder's layers, which are zero and which nothing reads."""
    read = stock(MODEL_NAME).state_dict()
    unread = {}
    for layer in (0, 1):
        unread[f"encoder.layers.{layer}.in_proj_weight"] = torch.zeros(3)
        unread[f"encoder.layers.{layer}.fc1_bias"] = torch.zeros(3)
    model = small(MODEL_NAME, method="post_ln")

    model.load_state_dict(read | unread)

    assert torch.equal(model.encoder.layers[1].fc2.weight, read["encoder.layers.1.fc2.weight"])


@pytest.fixture
def chosen_positions():
    """Provide the mask (B, T) of the positions whose words a batch asks for: one in each of its three rows."""
    chosen = torch.zeros_like(batch(), dtype=torch.bool)
    chosen[0, 0] = True
    chosen[1, 2] = True
    chosen[2, 5] = True
    return chosen


@pytest.mark.parametrize("method", METHODS)
def test_scores_at_chosen_positions_are_robertas(method, chosen_positions):
    tokens = batch()
    ours, theirs = ours_and_fairseqs(MASKED_LM, method)

    with torch.no_grad():
        actual = ours(tokens, masked_tokens=chosen_positions)[0]
        expected = theirs(tokens, masked_tokens=chosen_positions)[0]

    assert actual.shape == (3, VOCAB)
    assert torch.allclose(actual, expected, atol=FP32)


@pytest.mark.parametrize("method", METHODS)
def test_scores_at_chosen_positions_equal_those_of_all_positions_there(method, chosen_positions):
    tokens = batch()
    model, _ = ours_and_fairseqs(MASKED_LM, method)

    with torch.no_grad():
        at_chosen = model(tokens, masked_tokens=chosen_positions)[0]
        everywhere = model(tokens)[0]

    assert torch.allclose(at_chosen, everywhere[chosen_positions], atol=FP32)


@pytest.mark.parametrize("method", METHODS)
def test_features_are_robertas(method):
    """Features are the encoder's output, in front of the head, (B, T, C)."""
    tokens = batch()
    real = tokens.ne(PAD)
    ours, theirs = ours_and_fairseqs(MASKED_LM, method)

    with torch.no_grad():
        actual = ours(tokens, features_only=True)[0]
        expected = theirs(tokens, features_only=True)[0]

    assert torch.allclose(actual[real], expected[real], atol=FP32)


@pytest.mark.parametrize("head_scale", ["fairseq", "none"])
@pytest.mark.parametrize("scale_residual", [True, False])
def test_normformers_scores_are_those_of_fairseqs_flags(head_scale, scale_residual):
    """fairseq's `transformer_lm` has NormFormer's flags, of which scale_heads scales heads after W_out."""
    scales_heads = head_scale == "fairseq"
    their_flags = {
        "scale_fc": True,
        "scale_attn": True,
        "scale_heads": scales_heads,
        "scale_resids": scale_residual,
        "activation_fn": "gelu",
    }
    our_flags = {
        "method": "normformer",
        "normformer_head_scale": head_scale,
        "normformer_scale_residual": scale_residual,
        "activation_fn": "gelu",
    }
    our_words = {  # words of fairseq's names of parameters -> of ours
        "c_attn": "outer.self_attn.0.c",
        "attn_ln": "outer.self_attn.1" if scales_heads else "outer.self_attn.0",
        "ffn_layernorm": "inner",
        "w_resid": "residual.ffn.omega",
    }
    theirs = disturb(stock(LM, layers=2, pre_norm=True, **their_flags))
    ours = disturb(small(LM, layers=2, **our_flags), amount=1.0)

    state = {}
    for key, value in theirs.state_dict().items():
        words = [our_words.get(word, word) for word in key.split(".")]
        state[".".join(words)] = value
    ours.load_state_dict(state)

    assert_same_scores(LM, ours, theirs)
