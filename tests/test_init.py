"""Initial weights against the closed forms of each method and profile."""

import math

import pytest
import torch
from torch import nn

from deepnet_fairseq.building import build
from deepnet_fairseq.initialisation import branch_weights, init_report, initialize
from deepnet_fairseq.methods import METHODS, get_method

from .support.helpers import PAD, small, stock

# DeepNorm at d = 512, f = 2048: std of (enc fc1, fc2), (dec fc1, fc2), (enc v, out), (dec v, out)
DEEPNORM_STD = {
    (6, 6): (0.0138913, 0.0095954, 0.0219640, 0.0151716),
    (18, 18): (0.0098547, 0.0072909, 0.0155816, 0.0115279),
    (100, 100): (0.0057665, 0.0047490, 0.0091177, 0.0075088),
    (500, 500): (0.0034873, 0.0031758, 0.0055139, 0.0050214),
    (60, 12): (0.0074805, 0.0080687, 0.0118276, 0.0127578),
}
Q_K_STD = 0.0441942


def pooled_std(model, stack, roles):
    """Std over all weights of these roles; 512 x 512 and more entries: sampling error below 0.3%."""
    chosen = [
        weight.linear.weight.flatten()
        for weight in branch_weights(model)
        if weight.site.stack == stack and weight.role in roles
    ]
    return torch.cat(chosen).std().item()


def first_layers(method_name, N, M, keep=2, **fields):
    """A 2L-2L base model initialised as the first layers of an N-M one: what 500L-500L draws, without its memory."""
    model = build(encoder_layers=keep, decoder_layers=keep, method=method_name, vocab=50, **fields)
    torch.manual_seed(0)
    method = get_method(method_name)(N, M)
    initialize(model, method, fields.get("init_profile") or method.init_profiles[0])
    return model


@pytest.mark.parametrize("depths", DEEPNORM_STD)
def test_deepnorm_stds(depths):
    model = first_layers("deepnorm", *depths)
    enc_fc, dec_fc, enc_vo, dec_vo = DEEPNORM_STD[depths]
    for role in ("fc1", "fc2"):
        assert pooled_std(model, "encoder", [role]) == pytest.approx(enc_fc, rel=0.01)
        assert pooled_std(model, "decoder", [role]) == pytest.approx(dec_fc, rel=0.01)
    for role in ("v", "out"):
        assert pooled_std(model, "encoder", [role]) == pytest.approx(enc_vo, rel=0.01)
        assert pooled_std(model, "decoder", [role]) == pytest.approx(dec_vo, rel=0.01)
    for stack in ("encoder", "decoder"):
        for role in ("q", "k"):
            assert pooled_std(model, stack, [role]) == pytest.approx(Q_K_STD, rel=0.01)


def test_deepnorm_is_normal_and_its_variant_uniform():
    """A uniform distribution ends at sqrt(3) = 1.732 standard deviations; a normal one of this size beyond 3.5."""
    for profile, bound in (("xavier_normal", None), ("xavier_uniform", math.sqrt(3))):
        model = first_layers("deepnorm", 6, 6, init_profile=profile)
        weight = model.decoder.layers[0].fc1.weight
        largest = (weight.abs().max() / weight.std()).item()
        assert largest > 3.5 if bound is None else largest == pytest.approx(bound, rel=0.01)
        assert weight.std().item() == pytest.approx(0.0095954, rel=0.01)
        assert not any(weight.linear.bias.any() for weight in branch_weights(model))


HEAD = {"q": 0.03125, "k": 0.03125, "v": 0.03125, "out": 0.044194, "fc1": 0.025516, "fc2": 0.012758}
HEAD_BIAS_BOUND = {"q": 0.0442, "k": 0.0442, "v": 0.0442, "out": 0.0, "fc1": 0.0442, "fc2": 0.0221}
LEGACY = HEAD | {"fc1": 0.027951, "fc2": 0.027951}


@pytest.mark.parametrize("method", ["post_ln", "pre_ln"])
@pytest.mark.parametrize(("profile", "stds"), [("fairseq_head", HEAD), ("xavier_legacy", LEGACY)])
def test_vanilla_profiles(method, profile, stds):
    model = first_layers(method, 6, 6, init_profile=profile)
    for role, std in stds.items():
        assert pooled_std(model, "encoder", [role]) == pytest.approx(std, rel=0.01)
        assert pooled_std(model, "decoder", [role]) == pytest.approx(std, rel=0.01)
    for weight in branch_weights(model):
        bound = HEAD_BIAS_BOUND[weight.role] if profile == "fairseq_head" else 0.0
        assert weight.linear.bias.abs().max().item() == pytest.approx(bound, rel=0.02)


@pytest.mark.parametrize("decoder_width", [256, 384])
def test_fairseq_head_is_what_fairseq_draws(decoder_width):
    """Every tensor of the stock model has the std of ours, at a size where sampling noise is below 3%."""
    wide = {"encoder_embed_dim": 256, "encoder_ffn_embed_dim": 512, "decoder_embed_dim": decoder_width}
    ours, theirs = small(2, method="post_ln", **wide).state_dict(), stock(2, **wide).state_dict()
    for name, tensor in ours.items():
        if tensor.dim() == 2 and "embed_tokens" not in name and "output_projection" not in name:
            assert tensor.std().item() == pytest.approx(theirs[name].std().item(), rel=0.03), name


@pytest.mark.parametrize(("profile", "variance"), [("fairseq_head", 0.0556), ("xavier_legacy", 0.32)])
def test_variance_of_the_feed_forward_branch(profile, variance):
    """Gaussian input of unit variance, d = 512, f = 2048, ReLU, no dropout: 1/18 and 2df/(d+f)^2."""
    layer = first_layers("post_ln", 6, 6, init_profile=profile).encoder.layers[0]
    x = torch.randn(2000, 512, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        f = layer.fc2(layer.fc1(x).relu())
    assert f.var().item() == pytest.approx(variance, rel=0.1)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_embeddings_norms_and_padding(method):
    model = build(encoder_layers=1, decoder_layers=1, method=method, vocab=2000, decoder_learned_pos=True)
    for embedding in (model.encoder.embed_tokens, model.decoder.embed_tokens, model.decoder.embed_positions):
        assert embedding.weight[PAD].abs().max() == 0
    stds = {  # T-Fixup's (9N)^(-1/4) at N = 1, R-Fixup's zeros
        model.encoder.embed_tokens: 512**-0.5 * (9**-0.25 if method == "t_fixup" else 1),
        model.decoder.embed_tokens: 512**-0.5 * (9**-0.25 if method == "t_fixup" else 1),
        model.decoder.embed_positions: 512**-0.5,
        model.decoder.output_projection: 512**-0.5 * (0 if method == "r_fixup" else 1),
    }
    for module, std in stds.items():
        assert module.weight[PAD + 1 :].std().item() == pytest.approx(std, rel=0.01)
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            assert torch.equal(module.weight, torch.ones_like(module.weight))
            assert torch.equal(module.bias, torch.zeros_like(module.bias))


@pytest.mark.parametrize("method", sorted(METHODS))
def test_what_is_drawn_is_what_the_method_says(method):
    """Measured over expected std, pooled over the layers of a stack; at least 330,000 entries each."""
    torch.manual_seed(0)
    model = build(encoder_layers=3, decoder_layers=3, method=method, vocab=50, encoder_embed_dim=336)
    built = get_method(method)(3, 3)
    for row in init_report(model, built, built.init_profiles[0]):
        assert row.ratio == pytest.approx(1, abs=0.01), row


def test_unknown_parameter_raises():
    model = small(1)
    model.encoder.surprise = nn.Parameter(torch.zeros(3))
    with pytest.raises(ValueError, match=r"encoder\.surprise"):
        initialize(model, METHODS["deepnorm"](1, 1), "xavier_normal")


def test_same_seed_same_weights():
    first, second = small(2).state_dict(), small(2).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
