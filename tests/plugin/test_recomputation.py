"""Tests of recomputation by groups of layers: gradients equal to the last bit, in less memory.

The method dlcl has tests here, too: its layers share a tensor, the history of all outputs so far.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from deepnet_fairseq.core.methods.dlcl import LayerWeights
from deepnet_fairseq.plugin.flags import namespace

from ..support.errors import refused
from ..support.helpers import SMALL, batch, small
from ..support.observing import loss_of, net_input

BYTES_OF_A_FLOAT = 4
DROPOUTS = {"dropout": 0.2, "attention_dropout": 0.1, "activation_dropout": 0.1}
GROUPINGS = {  # layers of a group -> fields of the config
    "each": {"checkpoint_activations": True},
    "two": {"checkpoint_every": 2},
    "five": {"checkpoint_every": 5},  # the last group of 7 layers is smaller
    "all": {"checkpoint_every": 99},
}
DLCL = {
    "LayerNorms at the end": {"dlcl_norm": "post"},
    "sums of the last two": {"dlcl_window": 2},
    "embedding normalised": {"dlcl_normalize_embedding": True},
    "DenseFormer": {"dlcl_plain": True, "dlcl_dilation": 2, "dlcl_period": 3},
}


class Step(NamedTuple):
    """What a training step leaves: gradients by parameter, and the state of torch's random numbers."""

    gradients: dict[str, Tensor]
    random_state: Tensor


def training_step(model, forward_context=None) -> Step:
    """Make a forward pass, in a context if one is given, and a backward pass outside it."""
    model.zero_grad(set_to_none=True)
    torch.manual_seed(3)
    with forward_context or nullcontext():
        loss = loss_of(model, net_input())
    loss.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.requires_grad}
    return Step(gradients, torch.get_rng_state())


def assert_same_bits(actual: Step, expected: Step) -> None:
    assert actual.gradients.keys() == expected.gradients.keys()
    for name, gradient in expected.gradients.items():
        assert torch.equal(actual.gradients[name], gradient), name
    assert torch.equal(actual.random_state, expected.random_state)


def plain_and_recomputing(grouping: str, **fields):
    """Build a model of 7 layers a stack that keeps its activations, and one that recomputes them by a grouping.

    The two models have equal weights, and dropout.
    """
    plain = small(7, **(DROPOUTS | fields))
    recomputing = small(7, **(DROPOUTS | fields | GROUPINGS[grouping]))
    return plain.train(), recomputing.train()


@pytest.mark.parametrize("grouping", GROUPINGS)
def test_recomputation_changes_no_bit_of_the_gradients(grouping):
    """Recomputation changes no bit of the random state, either. core/test_methods.py has a test with every method."""
    plain, recomputing = plain_and_recomputing(grouping)

    assert_same_bits(training_step(recomputing), training_step(plain))


@pytest.mark.parametrize("variant", DLCL)
def test_recomputation_changes_no_bit_through_dlcls_history(variant):
    plain, recomputing = plain_and_recomputing("five", method="dlcl", **DLCL[variant])

    assert_same_bits(training_step(recomputing), training_step(plain))


def test_recomputation_changes_no_bit_with_frozen_embeddings():
    """The input of the first layer then needs no gradient."""
    plain, recomputing = plain_and_recomputing("two", share_all_embeddings=True)
    for model in (plain, recomputing):
        model.encoder.embed_tokens.weight.requires_grad_(False)

    assert_same_bits(training_step(recomputing), training_step(plain))


def test_recomputation_changes_no_bit_in_mixed_precision():
    """The forward pass is recomputed under autocast, although the backward pass runs outside it."""
    plain, recomputing = plain_and_recomputing("two")

    step = training_step(recomputing, torch.autocast("cpu", dtype=torch.bfloat16))

    assert_same_bits(step, training_step(plain, torch.autocast("cpu", dtype=torch.bfloat16)))


class LiveStorages(TorchDispatchMode):
    """Recorder of the memory of all tensors that are made inside the context."""

    def __init__(self):
        super().__init__()
        self.made = {}  # address of a memory -> weak reference, bytes

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        results = result if isinstance(result, (tuple, list)) else (result,)
        for tensor in results:
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                self.made[storage.data_ptr()] = StorageWeakRef(storage), storage.nbytes()
        return result

    def size(self) -> int:
        """Return the bytes of the memory that is still in use."""
        return sum(size for storage, size in self.made.values() if not storage.expired())


def bytes_for_the_backward_pass(model, rows: int = 64) -> int:
    """Return how many bytes wait for the backward pass after a forward pass over a batch of `rows` rows."""
    inputs = net_input(rows=rows)
    with LiveStorages() as storages:
        loss = loss_of(model, inputs)
    size = storages.size()
    assert loss.requires_grad  # the loss keeps alive what waits
    return size


@pytest.mark.parametrize("layers_a_group", [1, 2, 3])
def test_each_group_of_layers_keeps_only_its_input(layers_a_group):
    """Each group beyond the first of a stack keeps its input (rows, length, width) in addition."""
    rows = 64
    width = SMALL["encoder_embed_dim"]
    source, target = batch()
    inputs_of_a_group = rows * width * (source.size(1) + target.size(1))  # numbers in encoder and decoder
    one_group = small(12, **DROPOUTS, checkpoint_every=12).train()
    groups = small(12, **DROPOUTS, checkpoint_every=layers_a_group).train()

    more = bytes_for_the_backward_pass(groups, rows) - bytes_for_the_backward_pass(one_group, rows)

    further_groups = 12 // layers_a_group - 1
    assert more == further_groups * inputs_of_a_group * BYTES_OF_A_FLOAT


def test_recomputation_of_each_layer_keeps_less_than_a_tenth_of_the_activations():
    plain = small(12, **DROPOUTS).train()
    recomputing = small(12, **DROPOUTS, checkpoint_every=1).train()

    assert bytes_for_the_backward_pass(recomputing) < 0.1 * bytes_for_the_backward_pass(plain)


@pytest.mark.parametrize("grouping", GROUPINGS)
def test_each_flag_of_groups_switches_recomputation_on(grouping):
    """A model asks its config for checkpoint_activations alone whether it is to recompute."""
    assert namespace("deepnet_transformer", **GROUPINGS[grouping]).checkpoint_activations


def test_without_a_flag_nothing_is_recomputed():
    assert not namespace("deepnet_transformer").checkpoint_activations


def test_a_group_has_at_least_one_layer():
    with refused("--checkpoint-every 0"):
        small(1, checkpoint_every=0)


def last_sum_of_a_chain(weights: LayerWeights, factors: list[Tensor]) -> Tensor:
    """Compute a chain of layers x -> a sin(x) from x = 1 on, each on dlcl's sum of all outputs so far.

    factors: a of each layer, (B, T, C)
    """
    history = []
    x = torch.as_tensor(1.0)
    for factor in factors:
        x = weights(factor * torch.sin(x), history)
    return x


@pytest.mark.parametrize("window", [pytest.param(0, id="of all outputs"), pytest.param(2, id="of the last two")])
def test_gradient_of_dlcls_sum_is_that_of_finite_differences(window):
    layers = 4
    generator = torch.Generator().manual_seed(0)
    weights = LayerWeights(layers, "average", window).double()
    factors = []
    for _ in range(layers):
        factors.append(torch.randn(2, 4, 5, generator=generator, dtype=torch.float64, requires_grad=True))

    def last_sum(*_changed):  # gradcheck changes the tensors themselves
        return last_sum_of_a_chain(weights, factors)

    assert torch.autograd.gradcheck(last_sum, [weights.weight, *factors])


def test_dlcls_memory_grows_linearly_with_depth():
    ten = bytes_for_the_backward_pass(small(10, method="dlcl").train())
    twenty = bytes_for_the_backward_pass(small(20, method="dlcl").train())
    forty = bytes_for_the_backward_pass(small(40, method="dlcl").train())

    assert forty - twenty == pytest.approx(2 * (twenty - ten), rel=0.02)


def test_dlcl_adds_up_in_float32():
    """1,000 outputs of weight 1/1,000 give 1, where a sum in float16 would give 0.98."""
    weights = LayerWeights(1000, "average", window=None).half()
    history = []
    for _ in range(1000):
        total = weights(torch.ones(1, 1, 4, dtype=torch.float16), history)

    assert total.dtype == torch.float16
    assert torch.allclose(total.float(), torch.ones(4), atol=1e-3)
