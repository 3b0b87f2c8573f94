"""Tests that the numbers in the modules of a user's method are its constants: saved, and compared when a model loads.

A checkpoint is refused if the file of its method has been changed since. The error names the constant: "residual_c"
for an attribute c of the module in the slot `residual`.
"""

from typing import NamedTuple

import pytest
import torch
from torch import nn

from deepnet_fairseq.core.methods import Method
from deepnet_fairseq.core.slots import Residual
from deepnet_fairseq.errors import UserError

from ..support.helpers import batch, logits, small
from ..support.own_methods import ScaledBranch, method_with, registered


class ScaledByItsClass(Residual):
    """Merge x + c f, c an attribute of the class."""

    c = 0.5

    def forward(self, x, f):
        return x + self.c * f


class DoubledByItsClass(ScaledByItsClass):
    c = 2


class ScaledByFactors(Residual):
    """Merge a x + b f, (a, b) a tuple, the attribute `factors`."""

    def __init__(self, *factors: float):
        super().__init__()
        self.factors = factors

    def forward(self, x, f):
        return self.factors[0] * x + self.factors[1] * f


class ScaledByTime(Residual):
    """Merge x + a f; a is a buffer that rises to 1 in `updates` updates."""

    def __init__(self, updates: int):
        super().__init__()
        self.updates = updates
        self.register_buffer("a", torch.tensor(0.0))

    def forward(self, x, f):
        return x + self.a * f

    def set_num_updates(self, updates):
        self.a.fill_(updates / self.updates)


def scaled_by_layer(factor) -> type[Method]:
    """Return the method x + factor(l) f in layer l, from 1."""
    return method_with(residual=lambda self, site: ScaledBranch(factor(site.layer)))


def with_leaky_relu(slope: float) -> type[Method]:
    """Return a method with a leaky ReLU, inside a container, at the end of each branch."""
    return method_with(outer=lambda self, site: nn.Sequential(nn.LeakyReLU(slope)))


def with_dropout(p: float) -> type[Method]:
    """Return a method with dropout at the end of each branch."""
    return method_with(Residual, outer=lambda self, site: nn.Dropout(p))


def with_norms(first: str, others: str) -> type[Method]:
    """Return a method whose LayerNorms stand at `first` in the first layer, at `others` in the others."""
    return method_with(norm_place=lambda self, site: first if site.layer == 1 else others)


def naming_no_constant(c: float) -> type[Method]:
    """Return the method x + c f, which says of itself that it has no constants."""
    return method_with(ScaledBranch, c, constants=lambda self, stack: {})


def model_of_class(method: type[Method]):
    """Build a small model of a method that is registered for this alone."""
    with registered(method) as name:
        return small(method=name)


class Change(NamedTuple):
    """A method before and after its file was changed, and the name of the constant that has changed."""

    before: type[Method]
    after: type[Method]
    constant: str


# method_with() is the method x + 0.5 f, with the ScaledBranch of own_methods.py
CHANGES = {
    "an attribute": Change(method_with(), method_with(ScaledBranch, 0.501), "residual_c"),
    "an attribute of a class": Change(method_with(ScaledByItsClass), method_with(DoubledByItsClass), "residual_c"),
    "one of a tuple": Change(
        method_with(ScaledByFactors, 1, 0.5), method_with(ScaledByFactors, 1, 0.6), "residual_factors"
    ),
    "the number of one layer": Change(
        scaled_by_layer(lambda l: l**-0.5), scaled_by_layer(lambda l: l**-0.6), "residual_c"
    ),
    "one for all layers to one a layer": Change(method_with(), scaled_by_layer(lambda l: 0.5 / l), "residual_c"),
    "inside another module": Change(with_leaky_relu(0.1), with_leaky_relu(0.2), "outer_negative_slope"),
    "the place of a LayerNorm": Change(with_norms("pre", "post"), with_norms("post", "pre"), "norm_place"),
}
# a new module in front of each branch, with a number: checkpoints from before the change lack the constant
ADDED = Change(method_with(), method_with(before=lambda self, site: nn.ELU()), "before_alpha")
CHANGES_AND_ADDED = CHANGES | {"one number more": ADDED}


@pytest.mark.parametrize("name", CHANGES)
def test_a_constant_is_saved_with_the_model(name):
    change = CHANGES[name]

    state = model_of_class(change.before).state_dict()

    assert f"encoder.{change.constant}" in state


@pytest.mark.parametrize("name", CHANGES_AND_ADDED)
def test_a_checkpoint_that_was_rounded_to_half_precision_loads(name):
    """The rounded constants count as equal."""
    change = CHANGES_AND_ADDED[name]
    state = model_of_class(change.before).state_dict()
    rounded = {key: value.half() for key, value in state.items()}

    model_of_class(change.before).load_state_dict(rounded)


@pytest.mark.parametrize("name", CHANGES_AND_ADDED)
def test_a_checkpoint_with_another_constant_is_refused_by_its_name(name):
    change = CHANGES_AND_ADDED[name]
    state = model_of_class(change.before).state_dict()

    with pytest.raises(UserError, match=rf"(encoder|decoder)\.{change.constant}"):
        model_of_class(change.after).load_state_dict(state)


@pytest.mark.parametrize("name", CHANGES)
def test_a_stack_alone_refuses_another_constant_by_its_name(name):
    change = CHANGES[name]
    state = model_of_class(change.before).encoder.state_dict()

    with pytest.raises(UserError, match=rf"encoder\.{change.constant}"):
        model_of_class(change.after).encoder.load_state_dict(state)


def test_a_stack_alone_refuses_a_checkpoint_without_its_constant():
    """The refusal is torch's own error for a missing key."""
    state = model_of_class(ADDED.before).encoder.state_dict()

    with pytest.raises(RuntimeError, match=ADDED.constant):
        model_of_class(ADDED.after).encoder.load_state_dict(state)


# Checkpoints without constants


def without_constants(state: dict) -> dict:
    """Return a state dict as earlier versions saved it, without constants: with the keys of a Post-LN model."""
    keys = small(method="post_ln").state_dict().keys()
    return {key: value for key, value in state.items() if key in keys}


def test_a_method_adds_its_constant_to_each_stack_and_nothing_else():
    state = model_of_class(method_with()).state_dict()

    added = state.keys() - without_constants(state).keys()

    assert added == {"encoder.residual_c", "decoder.residual_c"}


class TwoModels(NamedTuple):
    """Two models of the method x + 0.5 f."""

    source: nn.Module  # as it was initialised
    zeroed: nn.Module  # all parameters are zero: equal to the first only if it loads them


@pytest.fixture
def two_models() -> TwoModels:
    with registered(method_with()) as name:
        source = small(method=name)
        zeroed = small(method=name)
    for parameter in zeroed.parameters():
        nn.init.zeros_(parameter)
    return TwoModels(source, zeroed)


def test_a_checkpoint_of_an_earlier_version_without_constants_loads(two_models):
    source, model = two_models
    src, prev = batch()

    model.load_state_dict(without_constants(source.state_dict()))

    assert torch.equal(logits(model, src, prev), logits(source, src, prev))


def test_a_stack_alone_loads_a_checkpoint_with_its_own_constant(two_models):
    source, model = two_models

    model.encoder.load_state_dict(source.encoder.state_dict())

    for name, parameter in source.encoder.named_parameters():
        assert torch.equal(model.encoder.get_parameter(name), parameter), name


def test_a_model_of_a_method_with_constants_loads_a_checkpoint_of_post_ln():
    """A checkpoint of post_ln has no constants, like one of an earlier version."""
    post_ln = small(method="post_ln")

    model_of_class(method_with()).load_state_dict(post_ln.state_dict())


def test_a_model_of_post_ln_refuses_a_checkpoint_of_a_method_with_constants():
    state = model_of_class(method_with()).state_dict()

    with pytest.raises(UserError, match="residual_c"):
        small(method="post_ln").load_state_dict(state)


@pytest.mark.parametrize("name", ["post_ln", "pre_ln"])
def test_post_and_pre_ln_save_no_constant_as_in_fairseq(name):
    """Names of parameters have two dots or more, as fairseq's "encoder.layers.0.fc1.weight"; those of constants one."""
    for key in small(method=name).state_dict():
        assert key.count(".") > 1


# Numbers that are no constants

MAY_CHANGE = {  # what changes in the file -> the method before, the method after
    "the length of a schedule": (method_with(ScaledByTime, 100), method_with(ScaledByTime, 200)),
    "the rate of a dropout": (with_dropout(0.1), with_dropout(0.2)),
    "a number that the method does not name": (naming_no_constant(0.5), naming_no_constant(0.6)),
}


@pytest.mark.parametrize("change", MAY_CHANGE)
def test_a_number_that_is_no_constant_may_change_after_the_save(change):
    before, after = MAY_CHANGE[change]
    state = model_of_class(before).state_dict()

    model_of_class(after).load_state_dict(state)
