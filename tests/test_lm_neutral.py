"""With neutral parameters a method is the one it extends, in a language model bit for bit; NormFormer's sizes."""

import pytest
import torch
from torch import nn

from deepnet_fairseq.building import build, parameter_count
from deepnet_fairseq.config import namespace
from deepnet_fairseq.profiling.omega import residuals

from .support.single_stacks import KINDS, batch, loss_of, scores, small, stack_of

SYMBOLS = 51_200  # GPT-2's 50,257 and what fills them up


def unchanged(model):
    pass


def with_alpha_one(model):
    for _, residual in residuals(model):
        residual.alpha = 1.0


def with_gates_open(model):
    with torch.no_grad():
        for _, residual in residuals(model):
            residual.a.fill_(1.0)


def reading_the_last_layer(model):
    mixer = model.stacks()[stack_of(model.NAME)].mixer
    mixer.norms = nn.ModuleList(nn.Identity() for _ in mixer.norms)
    with torch.no_grad():
        mixer.weights.weight.copy_(torch.eye(len(mixer.norms)))


def after_the_rise(model):
    model.set_num_updates(4000)


def without_its_norms(model):
    for layer in model.stacks()[stack_of(model.NAME)].layers:
        layer.inner = layer.self_attn.inner = None


BARE = {"normformer_no_attention_norm": True, "normformer_no_ffn_norm": True}
ONLY_RESIDUALS = BARE | {"normformer_scale_residual": True, "normformer_head_scale": "none"}
PAIRS = {  # method, options, what makes it neutral, the method that it is then
    "deepnorm, alpha 1": ("deepnorm", {}, with_alpha_one, "post_ln"),
    "admin, not profiled": ("admin", {}, unchanged, "post_ln"),
    "admin_torch, linear": ("admin_torch", {"admin_torch_output_change": "linear"}, unchanged, "post_ln"),
    "branchnorm after T": ("branchnorm", {}, after_the_rise, "post_ln"),
    "dlcl post, W = I": ("dlcl", {"dlcl_norm": "post"}, reading_the_last_layer, "post_ln"),
    "dlcl pre, W = I": ("dlcl", {}, reading_the_last_layer, "pre_ln"),
    "sub_ln less its LN": ("sub_ln", {}, without_its_norms, "pre_ln"),
    "rezero, a = 1": ("rezero", {}, with_gates_open, "t_fixup"),
    "normformer, head scale alone": ("normformer", BARE, unchanged, "pre_ln"),
    "normformer, fairseq's head scale alone": (
        "normformer", BARE | {"normformer_head_scale": "fairseq"}, unchanged, "pre_ln",
    ),
    "normformer, residual scaling alone": ("normformer", ONLY_RESIDUALS, unchanged, "pre_ln"),
    "normformer, both": ("normformer", BARE | {"normformer_scale_residual": True}, unchanged, "pre_ln"),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pair", PAIRS)
def test_neutral_is_the_base_method_bit_for_bit(pair, kind):
    method, options, neutralise, base = PAIRS[pair]
    model, other = small(kind, 3, method=method, **options), small(kind, 3, method=base)
    neutralise(model)
    state = model.state_dict()
    other.load_state_dict({key: state[key] for key in other.state_dict()})
    assert torch.equal(scores(model, batch()), scores(other, batch()))
    found = [torch.autograd.grad(loss_of(m.train()), m.stacks()[stack_of(kind)].layers[0].fc1.weight) for m in
             (model, other)]  # fmt: skip
    assert torch.equal(found[0][0], found[1][0])


@pytest.mark.parametrize("kind", KINDS)
def test_normformer_with_its_norms_is_another_function(kind):
    """Its LayerNorms start at gain 1, not at the identity."""
    model, other = small(kind, 3, method="normformer"), small(kind, 3, method="pre_ln")
    state = model.state_dict()
    other.load_state_dict({key: state[key] for key in other.state_dict()})
    assert (scores(model, batch()) - scores(other, batch())).abs().max() > 0.01


def parameters(arch, vocab, **fields):
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in build(arch, vocab, **fields).parameters())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("options", "added"),
    [
        ({}, 5_128),  # h + 2d + 2f
        ({"normformer_scale_residual": True}, 5_640),  # and d
        ({"normformer_no_attention_norm": True}, 5_128 - 1024),
        ({"normformer_no_ffn_norm": True}, 5_128 - 4096),
        ({"normformer_head_scale": "none"}, 5_120),
    ],
)
def test_what_normformer_adds_to_a_layer(options, added, kind):
    layers = {f"{stack_of(kind)}_layers": 6}
    pre_ln = parameters(kind, 50, method="pre_ln", **layers)
    assert parameters(kind, 50, method="normformer", **layers, **options) == pre_ln + 6 * added


NORMFORMER = {  # layers, d, f, h, activation; millions of parameters published for NormFormer and its Pre-LN baseline
    "125m": (12, 768, 3072, 12, "gelu", 124.5, None),
    "355m": (24, 1024, 4096, 16, "gelu", 355.0, 354.7),
    "1.3b": (24, 2048, 8192, 32, "gelu", None, 1313.5),
    "2.7b": (32, 2560, 10240, 32, "relu_squared", 2649.5, None),
}


@pytest.mark.parametrize("size", NORMFORMER)
def test_published_models(size):
    """One tied matrix of 51,200 symbols, no learned positions: to the 0.1 million that is published."""
    layers, dim, ffn, heads, activation, published, baseline = NORMFORMER[size]
    arch = f"normformer_lm_{size}"
    cfg = namespace(arch)
    found = (cfg.decoder_layers, cfg.decoder_embed_dim, cfg.decoder_ffn_embed_dim, cfg.decoder_attention_heads)
    assert found == (layers, dim, ffn, heads)
    assert (cfg.method, cfg.activation_fn, cfg.share_decoder_input_output_embed) == ("normformer", activation, True)
    pre_ln = layers * (4 * dim * dim + 2 * dim * ffn + ffn + 9 * dim) + SYMBOLS * dim + 2 * dim
    normformer = pre_ln + layers * (heads + 2 * dim + 2 * ffn)
    assert parameters(arch, SYMBOLS, method="pre_ln") == pre_ln
    assert parameters(arch, SYMBOLS) == parameter_count(arch, SYMBOLS) == normformer
    for count, millions in ((normformer, published), (pre_ln, baseline)):
        assert millions is None or count / 1e6 == pytest.approx(millions, abs=0.05)
