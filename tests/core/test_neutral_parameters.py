"""Tests that a method with neutral parameters equals the one it extends, bit for bit where algebra allows."""

from itertools import product

import pytest
import torch
from torch import nn

from deepnet_fairseq.core import archs
from deepnet_fairseq.core.profile import residuals
from deepnet_fairseq.core.slots import EMPTY

from ..support import single_stacks
from ..support.helpers import batch, logits, small


def three_layers_of(kind, method, **options):
    """Build a model of three layers a stack in evaluation mode."""
    return single_stacks.small(kind, 3, method=method, **options)


def with_the_weights_of(model, kind, method):
    """Build a model of another method with the weights of `model`, as far as it has them."""
    other = three_layers_of(kind, method)
    state = model.state_dict()
    other.load_state_dict({key: state[key] for key in other.state_dict()})
    return other


def scores(model, kind):
    return single_stacks.scores(model, *single_stacks.inputs(kind))


def gradients_of_first_layers(model, kind):
    """Compute the gradients of each stack's first fc1."""
    loss = model.train()(*single_stacks.inputs(kind))[0].square().mean()
    return torch.autograd.grad(loss, [stack.layers[0].fc1.weight for stack in model.stacks().values()])


# Changes that make a method neutral.


def unchanged(model):
    pass


def with_alpha_one(model):
    for _, residual in residuals(model):
        residual.alpha = 1.0


@torch.no_grad()
def with_gates_open(model):
    for _, residual in residuals(model):
        residual.a.fill_(1.0)


@torch.no_grad()
def reading_the_last_layer(model):
    for stack in model.stacks().values():
        stack.mixer.norms = nn.ModuleList(nn.Identity() for _ in stack.mixer.norms)
        stack.mixer.weights.weight.copy_(torch.eye(len(stack.mixer.norms)))


def after_the_rise(model):
    model.set_num_updates(4000)


def without_its_norms(model):
    for stack in model.stacks().values():
        for layer in stack.layers:
            layer.inner = EMPTY
            layer.self_attn.inner = EMPTY


NO_NORMS = {"normformer_no_attention_norm": True, "normformer_no_ffn_norm": True}
PAIRS = {  # method, options, the change that makes it neutral, the method that it then equals
    "deepnorm, alpha 1": ("deepnorm", {}, with_alpha_one, "post_ln"),
    "admin, not profiled": ("admin", {}, unchanged, "post_ln"),
    "admin_torch, linear": ("admin_torch", {"admin_torch_output_change": "linear"}, unchanged, "post_ln"),
    "branchnorm after T": ("branchnorm", {}, after_the_rise, "post_ln"),
    "dlcl post, W = I": ("dlcl", {"dlcl_norm": "post"}, reading_the_last_layer, "post_ln"),
    "dlcl pre, W = I": ("dlcl", {"dlcl_norm": "pre"}, reading_the_last_layer, "pre_ln"),
    "sub_ln less its LN": ("sub_ln", {}, without_its_norms, "pre_ln"),
    "rezero, a = 1": ("rezero", {}, with_gates_open, "t_fixup"),
    "ds_init": ("ds_init", {}, unchanged, "post_ln"),
    "post_ln_init": ("post_ln_init", {}, unchanged, "post_ln"),
    "gpas at first": ("gpas", {}, unchanged, "pre_ln"),
    "denseformer at first": ("dlcl", {"dlcl_plain": True, "dlcl_init": "last"}, unchanged, "pre_ln"),
    "normformer, paper's": ("normformer", NO_NORMS | {"normformer_scale_residual": True}, unchanged, "pre_ln"),
}  # fmt: skip
CASES = [
    *product([archs.MODEL_NAME], PAIRS),
    *product((archs.LM, archs.MASKED_LM), ("deepnorm, alpha 1", "normformer, paper's")),
]


@pytest.mark.parametrize(("kind", "pair"), CASES)
def test_a_neutral_method_is_the_one_it_extends_bit_for_bit(kind, pair):
    """Scores and gradients are equal."""
    method, options, neutralise, base = PAIRS[pair]
    model = three_layers_of(kind, method, **options)
    neutralise(model)
    other = with_the_weights_of(model, kind, base)

    assert torch.equal(scores(model, kind), scores(other, kind))
    gradients = gradients_of_first_layers(model, kind)
    for gradient, expected in zip(gradients, gradients_of_first_layers(other, kind), strict=True):
        assert torch.equal(gradient, expected)


@torch.no_grad()
def move_matrices_from_zero(model):
    """Add noise to matrices, but not to scalars, which are neutral as they are."""
    for parameter in model.parameters():
        if parameter.dim() == 2:
            parameter.add_(torch.randn(parameter.shape), alpha=0.1)


def test_r_fixup_is_t_fixup_without_biases():
    model = small(3, method="r_fixup")
    move_matrices_from_zero(model)
    other = small(3, method="t_fixup")
    state = model.state_dict()

    weights = {}
    for key, value in other.state_dict().items():
        weights[key] = torch.zeros_like(value) if key.endswith("bias") else state[key]
    other.load_state_dict(weights)

    assert torch.allclose(logits(model, *batch()), logits(other, *batch()), atol=1e-5)


FULL_PRECISION = {  # method -> ends of the names of parameters that half precision would ruin
    "admin": (".omega",),
    "rezero": (".a",),
    "dlcl": (".weights.weight",),
    "branchnorm": (".a",),
    "r_fixup": (".shift", ".scale"),
}


@pytest.mark.parametrize("precision", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("method", FULL_PRECISION)
def test_numbers_that_half_precision_ruins_stay_in_float32(method, precision):
    state = small(2, method=method).to(precision).state_dict()

    expected = {name for name in state if name.endswith(FULL_PRECISION[method])}
    assert expected
    assert {name for name, tensor in state.items() if tensor.dtype == torch.float32} == expected


@pytest.mark.parametrize("precision", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("method", FULL_PRECISION)
def test_double_precision_holds_for_all_numbers_until_the_next_cast(method, precision):
    model = small(1, method=method).double()
    in_double = {parameter.dtype for parameter in model.parameters()}

    model.to(precision)

    assert in_double == {torch.float64}
    assert {tensor.dtype for tensor in model.state_dict().values()} == {precision, torch.float32}
