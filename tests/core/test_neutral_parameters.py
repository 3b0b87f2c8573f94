"""Tests that a method with neutral parameters equals the one it extends, bit for bit where algebra allows.

A parameter or constant is neutral if the equation gives the same without it, as with a factor of 1. Models
have width 16.
"""

from collections.abc import Callable
from itertools import product
from typing import NamedTuple

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
    """Build a model of another method, all of whose weights are those of `model`."""
    other = three_layers_of(kind, method)
    state = model.state_dict()
    other.load_state_dict({key: state[key] for key in other.state_dict()})
    return other


def scores(model, kind):
    return single_stacks.scores(model, *single_stacks.inputs(kind))


def gradients_of_first_layers(model, kind):
    """Compute the gradients of each stack's first fc1."""
    first_matrices = [stack.layers[0].fc1.weight for stack in model.stacks().values()]
    loss = model.train()(*single_stacks.inputs(kind))[0].square().mean()
    return torch.autograd.grad(loss, first_matrices)


# Changes that make a model's method neutral


def leave_unchanged(model):
    pass


def set_alpha_to_one(model):
    for _, residual in residuals(model):
        residual.alpha = 1.0


@torch.no_grad()
def set_factors_of_branches_to_one(model):
    for _, residual in residuals(model):
        residual.a.fill_(1.0)


@torch.no_grad()
def read_the_last_layer_alone(model):
    """Make the next layer read DLCL's newest output, and not a sum of all outputs that LayerNorms have normalised."""
    for stack in model.stacks().values():
        stack.mixer.norms = nn.ModuleList(nn.Identity() for _ in stack.mixer.norms)
        stack.mixer.weights.weight.copy_(torch.eye(len(stack.mixer.norms)))


def finish_the_rise_of_branches(model):
    model.set_num_updates(4000)  # BranchNorm's T


def remove_inner_norms(model):
    """Remove Sub-LN's LayerNorms in front of the last matrices."""
    for stack in model.stacks().values():
        for layer in stack.layers:
            layer.inner = EMPTY
            layer.self_attn.inner = EMPTY


class Extension(NamedTuple):
    """A method that equals the method `base` once it is made neutral."""

    method: str
    options: dict
    neutralise: Callable
    base: str


NORMFORMER_WITHOUT_NORMS = {
    "normformer_no_attention_norm": True, "normformer_no_ffn_norm": True, "normformer_scale_residual": True,
}  # fmt: skip
EXTENSIONS = {
    "deepnorm, alpha 1": Extension("deepnorm", {}, set_alpha_to_one, "post_ln"),
    "admin, not profiled": Extension("admin", {}, leave_unchanged, "post_ln"),
    "admin_torch, omega 1": Extension(
        "admin_torch", {"admin_torch_output_change": "linear"}, leave_unchanged, "post_ln"
    ),
    "branchnorm after T": Extension("branchnorm", {}, finish_the_rise_of_branches, "post_ln"),
    "dlcl post, W = I": Extension("dlcl", {"dlcl_norm": "post"}, read_the_last_layer_alone, "post_ln"),
    "dlcl pre, W = I": Extension("dlcl", {"dlcl_norm": "pre"}, read_the_last_layer_alone, "pre_ln"),
    "sub_ln less its LN": Extension("sub_ln", {}, remove_inner_norms, "pre_ln"),
    "rezero, a = 1": Extension("rezero", {}, set_factors_of_branches_to_one, "t_fixup"),
    "ds_init": Extension("ds_init", {}, leave_unchanged, "post_ln"),
    "post_ln_init": Extension("post_ln_init", {}, leave_unchanged, "post_ln"),
    "gpas at first": Extension("gpas", {}, leave_unchanged, "pre_ln"),
    "denseformer at first": Extension(
        "dlcl", {"dlcl_plain": True, "dlcl_init": "last"}, leave_unchanged, "pre_ln"
    ),
    "normformer, factors 1": Extension("normformer", NORMFORMER_WITHOUT_NORMS, leave_unchanged, "pre_ln"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *product([archs.MODEL_NAME], EXTENSIONS),
        *product([archs.LM, archs.MASKED_LM], ["deepnorm, alpha 1", "normformer, factors 1"]),
    ],
)
def test_a_neutral_method_is_the_one_it_extends_bit_for_bit(kind, name):
    """Scores and gradients are equal."""
    extension = EXTENSIONS[name]
    model = three_layers_of(kind, extension.method, **extension.options)
    extension.neutralise(model)
    base = with_the_weights_of(model, kind, extension.base)

    assert torch.equal(scores(model, kind), scores(base, kind))
    gradients = gradients_of_first_layers(model, kind)
    for gradient, expected in zip(gradients, gradients_of_first_layers(base, kind), strict=True):
        assert torch.equal(gradient, expected)


@torch.no_grad()
def move_matrices_from_zero(model):
    """Add noise to matrices, but not to R-Fixup's numbers, which are neutral at first."""
    for parameter in model.parameters():
        if parameter.dim() == 2:
            parameter.add_(torch.randn(parameter.shape), alpha=0.1)


def test_r_fixup_at_first_is_t_fixup_with_biases_of_zero():
    """R-Fixup has no biases. Its matrices get noise here, because the last one of a branch begins at zero."""
    r_fixup = small(3, method="r_fixup")
    move_matrices_from_zero(r_fixup)
    t_fixup = small(3, method="t_fixup")
    state = r_fixup.state_dict()
    weights = {}
    for key, value in t_fixup.state_dict().items():
        weights[key] = torch.zeros_like(value) if key.endswith("bias") else state[key]
    t_fixup.load_state_dict(weights)

    actual = logits(r_fixup, *batch())

    assert torch.allclose(actual, logits(t_fixup, *batch()), atol=1e-5)


FLOAT32_NAMES = {  # method -> ends of the names of parameters and buffers that half precision would ruin
    "admin": (".omega",),
    "rezero": (".a",),
    "dlcl": (".weights.weight",),
    "branchnorm": (".a",),
    "r_fixup": (".shift", ".scale"),
}
every_half_precision = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])


@every_half_precision
@pytest.mark.parametrize("method", FLOAT32_NAMES)
def test_numbers_that_half_precision_ruins_stay_in_float32(method, dtype):
    state = small(2, method=method).to(dtype).state_dict()

    expected = {name for name in state if name.endswith(FLOAT32_NAMES[method])}
    in_float32 = {name for name, tensor in state.items() if tensor.dtype == torch.float32}
    assert expected
    assert in_float32 == expected


@pytest.mark.parametrize("method", FLOAT32_NAMES)
def test_all_numbers_become_float64_in_double_precision(method):
    model = small(1, method=method).double()

    assert {parameter.dtype for parameter in model.parameters()} == {torch.float64}


@every_half_precision
@pytest.mark.parametrize("method", FLOAT32_NAMES)
def test_no_number_stays_in_float64_after_a_cast_to_half_precision(method, dtype):
    model = small(1, method=method).double()

    model.to(dtype)

    assert {tensor.dtype for tensor in model.state_dict().values()} == {dtype, torch.float32}
