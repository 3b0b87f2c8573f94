"""post_ln and pre_ln are fairseq's `transformer`: same keys, same logits, same translations from the same weights."""

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator

from deepnet_fairseq.building import blank_task

from .support.helpers import PAD, TOLERANCE, VOCAB, batch, logits, small, stock

METHODS = {"post_ln": {}, "pre_ln": {"encoder_normalize_before": True, "decoder_normalize_before": True}}
VARIANTS = [
    {"share_all_embeddings": True},
    {"share_decoder_input_output_embed": True},
    {"encoder_learned_pos": True, "decoder_learned_pos": True},
    {"layernorm_embedding": True, "no_scale_embedding": True},
    {"no_token_positional_embeddings": True},
    {"activation_fn": "gelu"},
    {"decoder_embed_dim": 24, "decoder_ffn_embed_dim": 40},
]


def pair(method, layers, **fields):
    theirs = stock(layers, **(METHODS[method] | fields))
    ours = small(layers, method=method, **fields)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def assert_same_logits(ours, theirs):
    src, prev = batch()
    real = prev.ne(PAD)
    difference = (logits(ours, src, prev) - logits(theirs, src, prev))[real].abs().max()
    assert difference <= TOLERANCE[torch.float32]


@pytest.mark.parametrize("layers", [6, 18])
@pytest.mark.parametrize("method", METHODS)
def test_same_logits(method, layers):
    assert_same_logits(*pair(method, layers))


@pytest.mark.parametrize("fields", VARIANTS, ids=lambda fields: "+".join(fields))
@pytest.mark.parametrize("method", METHODS)
def test_same_logits_with_flags(method, fields):
    assert_same_logits(*pair(method, 2, **fields))


@pytest.mark.parametrize("method", METHODS)
def test_same_keys_but_version(method):
    theirs = stock(2, **METHODS[method]).state_dict().keys()
    assert theirs ^ small(2, method=method).state_dict().keys() == {"encoder.version", "decoder.version"}


def test_deepnorm_adds_its_constants_alone():
    """So that a trained model folds back into a stock one."""
    added = small(2, method="deepnorm").state_dict().keys() - small(2, method="post_ln").state_dict().keys()
    assert added == {"encoder.alpha", "decoder.alpha"}


@pytest.mark.parametrize("method", METHODS)
def test_same_order_of_parameters(method):
    """Optimisers number parameters by it, so the state of Adam carries over too."""
    theirs, ours = stock(2, **METHODS[method]), small(2, method=method)
    assert [name for name, _ in ours.named_parameters()] == [name for name, _ in theirs.named_parameters()]


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("method", METHODS)
def test_same_translations(method, beam):
    src, _prev = batch(rows=4)
    sample = {"net_input": {"src_tokens": src, "src_lengths": src.ne(PAD).sum(1), "prev_output_tokens": src}}
    found = []
    for model in pair(method, 3):
        generator = SequenceGenerator([model], blank_task(VOCAB).target_dictionary, beam_size=beam, max_len_b=12)
        found.append([hypothesis["tokens"].tolist() for hypotheses in generator(sample) for hypothesis in hypotheses])
    assert found[0] == found[1]


@pytest.mark.parametrize("method", METHODS)
def test_same_attention_weights(method):
    src, prev = batch()
    with torch.no_grad():
        ours, theirs = (model(src, None, prev)[1]["attn"][0] for model in pair(method, 2))
    assert torch.allclose(ours[prev.ne(PAD)], theirs[prev.ne(PAD)], atol=TOLERANCE[torch.float32])


@pytest.mark.parametrize("method", METHODS)
def test_same_gradients(method):
    src, prev = batch()
    grads = []
    for model in pair(method, 3, share_all_embeddings=True):
        model(src, None, prev)[0][prev.ne(PAD)].logsumexp(-1).sum().backward()
        grads.append({name: p.grad for name, p in model.named_parameters()})
    for name, grad in grads[1].items():
        assert torch.allclose(grads[0][name], grad, rtol=1e-3, atol=1e-5), name


def test_reads_a_checkpoint_of_the_release_with_doubled_encoder_weights():
    theirs = stock(2).state_dict()
    doubled = {f"encoder.layers.{i}.{name}": torch.zeros(3) for i in (0, 1) for name in ("in_proj_weight", "fc1_bias")}
    model = small(2, method="post_ln")
    model.load_state_dict(theirs | doubled)
    assert torch.equal(model.encoder.layers[1].fc2.weight, theirs["encoder.layers.1.fc2.weight"])
