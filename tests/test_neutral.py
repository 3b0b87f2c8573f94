"""With neutral parameters each method is the one it extends, bit for bit where the algebra says so."""

import pytest
import torch
from torch import nn

from deepnet_fairseq.profiling.omega import residuals

from .support.helpers import batch, logits, small


def twin(model, base, **fields):
    """A model of method `base` with the weights of `model`."""
    other = small(3, method=base, **fields)
    state = model.state_dict()
    other.load_state_dict({key: state[key] for key in other.state_dict()})
    return other


def set_factors(model, name, value):
    for _, residual in residuals(model):
        setattr(residual, name, value)


def identity_instead_of_norms(stack):
    stack.mixer.norms = nn.ModuleList(nn.Identity() for _ in stack.mixer.norms)
    with torch.no_grad():
        stack.mixer.weights.weight.copy_(torch.eye(len(stack.mixer.norms)))


def silent(method, **fields):
    return small(3, method=method, **fields)


def deepnorm_with_alpha_one():
    model = silent("deepnorm")
    set_factors(model, "alpha", 1.0)
    return model


def rezero_with_gates_open():
    model = silent("rezero")
    with torch.no_grad():
        for _, residual in residuals(model):
            residual.a.fill_(1.0)
    return model


def dlcl_reading_the_last_layer(norm):
    model = silent("dlcl", dlcl_norm=norm)
    identity_instead_of_norms(model.encoder)
    identity_instead_of_norms(model.decoder)
    return model


def branchnorm_after_its_rise():
    model = silent("branchnorm")
    model.set_num_updates(4000)
    return model


def sub_ln_without_its_norms():
    model = silent("sub_ln")
    for layer in (*model.encoder.layers, *model.decoder.layers):
        layer.inner = layer.self_attn.inner = None
    return model


BARE = {"normformer_no_attention_norm": True, "normformer_no_ffn_norm": True, "normformer_scale_residual": True}
PAIRS = {
    "deepnorm, alpha 1": (deepnorm_with_alpha_one, "post_ln"),
    "admin, not profiled": (lambda: silent("admin"), "post_ln"),
    "admin_torch, linear": (lambda: silent("admin_torch", admin_torch_output_change="linear"), "post_ln"),
    "branchnorm after T": (branchnorm_after_its_rise, "post_ln"),
    "dlcl post, W = I": (lambda: dlcl_reading_the_last_layer("post"), "post_ln"),
    "dlcl pre, W = I": (lambda: dlcl_reading_the_last_layer("pre"), "pre_ln"),
    "normformer, paper's head scale": (lambda: silent("normformer", **BARE), "pre_ln"),
    "normformer, fairseq's": (lambda: silent("normformer", **BARE, normformer_head_scale="fairseq"), "pre_ln"),
    "sub_ln less its LN": (sub_ln_without_its_norms, "pre_ln"),
    "rezero, a = 1": (rezero_with_gates_open, "t_fixup"),
    "ds_init": (lambda: silent("ds_init"), "post_ln"),
    "post_ln_init": (lambda: silent("post_ln_init"), "post_ln"),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_neutral_is_the_base_method_bit_for_bit(pair):
    make, base = PAIRS[pair]
    model = make()
    assert torch.equal(logits(model, *batch()), logits(twin(model, base), *batch()))


def test_r_fixup_is_t_fixup_without_biases():
    model = silent("r_fixup")
    with torch.no_grad():
        for parameter in model.parameters():  # wake the zero matrices, not the scalars
            if parameter.dim() == 2:
                parameter.add_(torch.randn(parameter.shape), alpha=0.1)
    other = small(3, method="t_fixup")
    state = model.state_dict()
    biases = {key: torch.zeros_like(value) for key, value in other.state_dict().items() if key.endswith("bias")}
    other.load_state_dict({key: state[key] for key in other.state_dict() if key in state} | biases)
    assert torch.allclose(logits(model, *batch()), logits(other, *batch()), atol=1e-5)


@pytest.mark.parametrize(("method", "fields"), [("ds_init", {"ds_init_exponent": 0.0}), ("post_ln_init", {})])
def test_neutral_init_is_that_of_post_ln(method, fields):
    """Exponent 0, or one layer alone, the top one: the same draws from the same seed."""
    model, base = (
        small(1, method=m, init_profile="xavier_legacy", **f) for m, f in ((method, fields), ("post_ln", {}))
    )
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), base.parameters(), strict=True))


@pytest.mark.parametrize(("method", "names"), [("admin", ".omega"), ("rezero", ".a"), ("dlcl", ".weights.weight"),
                                               ("branchnorm", ".a"), ("r_fixup", (".shift", ".scale"))])  # fmt: skip
@pytest.mark.parametrize("precision", [torch.float16, torch.bfloat16])
def test_numbers_that_half_precision_ruins_stay_in_float32(method, names, precision):
    model = small(2, method=method).to(precision)
    kept = {name for name, tensor in model.state_dict().items() if tensor.dtype == torch.float32}
    assert kept == {name for name in model.state_dict() if name.endswith(names)}
    assert len(kept) > 0
    there_and_back = small(1, method=method).double()
    assert all(p.dtype == torch.float64 for p in there_and_back.parameters())
    there_and_back.to(precision)
    assert {tensor.dtype for tensor in there_and_back.state_dict().values()} == {precision, torch.float32}
