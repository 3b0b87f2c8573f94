"""Tests of recomputation by groups of layers: gradients equal to the last bit, in less memory, by every route.

dlcl's history, the only tensor that layers share, is covered too.
"""

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from deepnet_fairseq.core.methods.dlcl import LayerWeights
from deepnet_fairseq.errors import UserError
from deepnet_fairseq.plugin.flags import namespace

from ..support.helpers import batch, small
from ..support.observing import loss_of, net_input

DROPOUT = {"dropout": 0.2, "attention_dropout": 0.1, "activation_dropout": 0.1}
HOW = {
    "each": {"checkpoint_activations": True},
    "two": {"checkpoint_every": 2},
    "five": {"checkpoint_every": 5},  # the last group is smaller
    "all": {"checkpoint_every": 99},
}


def gradients(model, seed=3):
    """Return the gradients of one training step, and the random state after it."""
    model.zero_grad(set_to_none=True)
    torch.manual_seed(seed)
    loss_of(model, net_input()).backward()
    return {name: p.grad for name, p in model.named_parameters() if p.requires_grad}, torch.get_rng_state()


def assert_equal(actual, expected):
    (actual, random), (expected, other) = actual, expected
    assert actual.keys() == expected.keys()
    for name, gradient in expected.items():
        assert torch.equal(actual[name], gradient), name
    assert torch.equal(random, other)


def pair(how, layers=7, **fields):
    """Build a model that keeps its activations and one that recomputes them, with equal weights and dropout."""
    models = [small(layers, **(DROPOUT | fields | more)) for more in ({}, HOW[how])]
    return [model.train() for model in models]


@pytest.mark.parametrize("how", HOW)
def test_same_gradients(how):
    """Recomputation gives the same gradients and random state; test_methods.py covers every method."""
    plain, recomputed = pair(how)
    assert_equal(gradients(recomputed), gradients(plain))


DENSE = {"dlcl_plain": True, "dlcl_dilation": 2, "dlcl_period": 3}
FIELDS = [{"dlcl_norm": "post"}, {"dlcl_window": 2}, {"dlcl_normalize_embedding": True}, DENSE]


@pytest.mark.parametrize("fields", FIELDS)
def test_same_gradients_through_a_history(fields):
    plain, recomputed = pair("five", method="dlcl", **fields)
    assert_equal(gradients(recomputed), gradients(plain))


def test_same_gradients_where_the_input_has_none():
    """Recomputation gives the same gradients with frozen embeddings, when the first input needs none."""
    models = pair("two", share_all_embeddings=True)
    for model in models:
        model.encoder.embed_tokens.weight.requires_grad_(False)
    assert_equal(gradients(models[1]), gradients(models[0]))


def test_same_gradients_in_mixed_precision():
    """Recomputation under autocast gives the same gradients, although the backward pass runs outside it."""

    def mixed(model):
        torch.manual_seed(3)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(model, net_input())
        loss.backward()
        return {name: p.grad for name, p in model.named_parameters()}, torch.get_rng_state()

    plain, recomputed = pair("two")
    assert_equal(mixed(recomputed), mixed(plain))


class Storages(TorchDispatchMode):
    """Recorder of the bytes of all tensors that are made inside and still live."""

    def __init__(self):
        super().__init__()
        self.made = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                self.made[storage.data_ptr()] = StorageWeakRef(storage), storage.nbytes()
        return result

    def living(self) -> int:
        return sum(size for storage, size in self.made.values() if not storage.expired())


def kept(model, rows=64):
    """Return the bytes that wait for the backward pass, and the loss."""
    inputs = net_input(rows=rows)
    with Storages() as storages:
        loss = loss_of(model, inputs)
    return storages.living(), loss


def test_nothing_is_kept_but_the_input_of_each_group():
    """Recomputation keeps one tensor of (rows, length, width) floats for each group and stack, and no more."""
    rows, width = 64, 16
    source, target = (tokens.size(1) for tokens in batch())
    one = 4 * rows * (source + target) * width
    plain = small(12, **DROPOUT).train()
    sizes = {every: kept(small(12, **DROPOUT, checkpoint_every=every).train())[0] for every in (1, 2, 3, 12)}
    assert {every: (size - sizes[12]) / one for every, size in sizes.items()} == {1: 11, 2: 5, 3: 3, 12: 0}
    assert sizes[1] < 0.1 * kept(plain)[0]


def test_flags():
    """Flags that set how to recompute switch recomputation on."""
    assert all(namespace("deepnet_transformer", **how).checkpoint_activations for how in HOW.values())
    assert not namespace("deepnet_transformer").checkpoint_activations
    with pytest.raises(UserError, match="--checkpoint-every 0: must be at least 1"):
        small(1, checkpoint_every=0)


def chain(weights, outputs):
    """Compute layers x_k -> y_k sin(x_k), each on the sum of all outputs so far."""
    history, x = [], 1.0
    for output in outputs:
        x = weights(output * torch.sin(torch.as_tensor(x)), history)
    return x


@pytest.mark.parametrize("window", [0, 2])
def test_gradient_of_dlcls_sum_by_finite_differences(window):
    generator = torch.Generator().manual_seed(0)
    weights = LayerWeights(4, "average", window).double()
    outputs = [torch.randn(2, 4, 5, generator=generator, dtype=torch.float64, requires_grad=True) for _ in range(4)]
    assert torch.autograd.gradcheck(lambda *_: chain(weights, outputs), [weights.weight, *outputs])


def test_dlcls_memory_grows_linearly_with_depth():
    ten, twenty, forty = (kept(small(layers, method="dlcl").train())[0] for layers in (10, 20, 40))
    assert forty - twenty == pytest.approx(2 * (twenty - ten), rel=0.02)


def test_dlcl_adds_up_in_float32():
    """dlcl sums in float32: 1,000 outputs of weight 1/1,000 give 1, where float16 would give 0.98."""
    weights, history = LayerWeights(1000, "average", 0).half(), []
    for _ in range(1000):
        total = weights(torch.ones(1, 1, 4, dtype=torch.float16), history)
    assert total.dtype == torch.float16 and torch.allclose(total.float(), torch.ones(4), atol=1e-3)
