"""Activation checkpointing by groups of layers: the same gradients to the last bit, in less memory, by every route."""

import json
from collections import Counter

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from deepnet_fairseq.config import namespace
from deepnet_fairseq.errors import UserError
from deepnet_fairseq.methods import METHODS
from deepnet_fairseq.probes import PROBES
from deepnet_fairseq.transformer import recomputation
from deepnet_fairseq.transformer.recomputation import Recomputation

from .conftest import TRAIN_FLAGS
from .support.every_slot import EverySlot
from .support.helpers import batch, run, small
from .support.observing import close, loss_of, net_input, observe
from .support.tensors import Storages

DROPOUT = {"dropout": 0.2, "attention_dropout": 0.1, "activation_dropout": 0.1}
HOW = {
    "each": {"checkpoint_activations": True},
    "two": {"checkpoint_every": 2},
    "five": {"checkpoint_every": 5},  # the last group is smaller
    "all": {"checkpoint_every": 99},
    "offloaded": {"checkpoint_every": 2, "offload_activations": True},
}


def gradients(model, seed=3):
    """Of one training step, and the random state it leaves."""
    model.zero_grad(set_to_none=True)
    torch.manual_seed(seed)
    loss_of(model, net_input()).backward()
    return {name: p.grad for name, p in model.named_parameters() if p.requires_grad}, torch.get_rng_state()


def assert_equal(found, expected):
    (found, random), (expected, other) = found, expected
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert torch.equal(found[name], gradient), name
    assert torch.equal(random, other)


def pair(how, layers=7, **fields):
    """A model that keeps its activations and one that does not, equal weights, in training with dropout."""
    models = [small(layers, **(DROPOUT | fields | more)) for more in ({}, HOW[how])]
    return [model.train() for model in models]


@pytest.mark.parametrize("how", ["each", "five"])
@pytest.mark.parametrize("method", sorted(METHODS))
def test_same_gradients(method, how):
    plain, recomputed = pair(how, method=method)
    assert_equal(gradients(recomputed), gradients(plain))


@pytest.mark.parametrize("how", HOW)
def test_same_gradients_however(how):
    plain, recomputed = pair(how)
    assert_equal(gradients(recomputed), gradients(plain))


@pytest.mark.parametrize("fields", [{"dlcl_norm": "post"}, {"dlcl_window": 2}, {"dlcl_normalize_embedding": True}])
def test_same_gradients_through_a_history(fields):
    plain, recomputed = pair("two", method="dlcl", **fields)
    assert_equal(gradients(recomputed), gradients(plain))


def test_same_gradients_in_every_slot(monkeypatch):
    monkeypatch.setitem(METHODS, "every_slot", EverySlot)
    monkeypatch.setattr(EverySlot, "name", "every_slot", raising=False)
    plain, recomputed = pair("two", method="every_slot")
    assert_equal(gradients(recomputed), gradients(plain))


def test_same_gradients_where_the_input_has_none():
    """Frozen embeddings: the first layer's input asks for no gradient."""
    models = pair("two", share_all_embeddings=True)
    for model in models:
        model.encoder.embed_tokens.weight.requires_grad_(False)
    assert_equal(gradients(models[1]), gradients(models[0]))


def test_same_gradients_in_mixed_precision():
    """The backward pass lies outside autocast, and recomputes inside."""

    def mixed(model):
        torch.manual_seed(3)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(model, net_input())
        loss.backward()
        return {name: p.grad for name, p in model.named_parameters()}, torch.get_rng_state()

    plain, recomputed = pair("two")
    assert_equal(mixed(recomputed), mixed(plain))


def test_a_second_backward_pass_recomputes_again():
    plain, recomputed = pair("two")
    found = []
    for model in (plain, recomputed):
        torch.manual_seed(3)
        loss = loss_of(model, net_input())
        weights = [model.encoder.layers[0].fc1.weight, model.decoder.layers[3].fc2.weight]
        found.append([torch.autograd.grad(loss, weights, retain_graph=again) for again in (True, False)])
    for passes in zip(*found, strict=True):
        for expected, gradient in zip(*passes, strict=True):
            assert torch.equal(gradient, expected)


@pytest.mark.parametrize("unused", [True, False])
def test_same_gradients_in_several_processes(group, unused):
    plain, recomputed = pair("two")
    expected = gradients(plain)
    gradients(DistributedDataParallel(recomputed, find_unused_parameters=unused))
    assert_equal(gradients(recomputed), expected)


@pytest.mark.parametrize("how", ["two", "offloaded"])
def test_probes_see_the_same(how):
    found = []
    for model in pair(how):
        torch.manual_seed(3)
        found.append(observe(model, [net_input()]))
    for probe in PROBES:
        close(found[1][probe], found[0][probe], 1e-6)


@pytest.mark.parametrize("how", ["each", "two", "all"])
def test_each_layer_runs_twice(how):
    _, model = pair(how)
    calls = Counter()
    layers = [*model.encoder.layers, *model.decoder.layers]
    for layer in layers:
        layer.fc1.register_forward_hook(lambda module, *_: calls.update([module]))
    gradients(model)
    assert [calls[layer.fc1] for layer in layers] == [2] * len(layers)
    calls.clear()
    with torch.no_grad():
        loss_of(model, net_input())
    assert [calls[layer.fc1] for layer in layers] == [1] * len(layers)


def kept(model, rows=64):
    """Bytes that wait for the backward pass."""
    inputs = net_input(rows=rows)
    with Storages() as storages:
        loss = loss_of(model, inputs)
    return storages.living(), loss


def test_nothing_is_kept_but_the_input_of_each_group():
    """Equal but for one tensor of (rows, length, width) floats a group and stack; 12 layers are 12, 6, 4, 1 groups."""
    rows, width = 64, 16
    source, target = (tokens.size(1) for tokens in batch())
    one = 4 * rows * (source + target) * width
    plain = small(12, **DROPOUT).train()
    sizes = {every: kept(small(12, **DROPOUT, checkpoint_every=every).train())[0] for every in (1, 2, 3, 12)}
    assert {every: (size - sizes[12]) / one for every, size in sizes.items()} == {1: 11, 2: 5, 3: 3, 12: 0}
    assert sizes[1] < 0.1 * kept(plain)[0]


def test_freed_memory_is_returned(monkeypatch):
    """glibc keeps it in holes too small for the next tensor; now and then, not a call for each layer."""
    returned = []
    monkeypatch.setattr(recomputation.HEAP, "trim", returned.append)
    monkeypatch.setattr(recomputation.HEAP, "holes", 0)
    plain, recomputed = pair("each")
    gradients(recomputed)
    assert not returned
    layers, size = 14, recomputation.HEAP.holes
    monkeypatch.setattr(recomputation, "AT_MOST", size // 4)
    gradients(recomputed)
    assert 3 <= len(returned) <= 4 < layers
    before = recomputation.HEAP.holes
    gradients(plain)
    assert recomputation.HEAP.holes == before


def test_what_differs_the_second_time_is_told():
    """A graph that asks for another number of tensors would be filled with wrong ones."""
    x, times = torch.ones(3, requires_grad=True), iter((1, 2))
    y = Recomputation()(lambda x, _: x.exp() if next(times) == 1 else x.exp().exp(), x, [])
    with pytest.raises(RuntimeError, match="recomputed layers saved 2 tensors, 1 in the forward pass"):
        y.sum().backward()


@pytest.mark.parametrize("every", [0, -2])
def test_refusals(every):
    with pytest.raises(UserError, match=f"--checkpoint-every {every}: must be at least 1"):
        small(1, checkpoint_every=every)


@pytest.mark.parametrize("how", HOW)
def test_how_implies_that(how):
    """fairseq's own --offload-activations does so too."""
    assert namespace("deepnet_transformer", **HOW[how]).checkpoint_activations
    assert not namespace("deepnet_transformer").checkpoint_activations


def test_training(data, tmp_path):
    """The losses and gradient norms of a run are those of one that keeps its activations."""
    arch = ("--arch", "deepnet_transformer_tiny", "--dropout", "0.3", "--max-update", "3", "--no-save")
    found = []
    for flags in ((), ("--checkpoint-every", "4", "--offload-activations")):
        lines = run("fairseq-train", data, *TRAIN_FLAGS, *arch, *flags, "--save-dir", tmp_path).stdout.splitlines()
        rows = [json.loads(line.split("| train_inner | ")[1]) for line in lines if "train_inner" in line]
        found.append([(row["loss"], row["gnorm"]) for row in rows])
    assert len(found[0]) == 3
    assert found[0] == found[1]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_offloaded_to_the_cpu(dtype):
    """The same gradients, and of 12 inputs a stack none on the GPU: less than a third of what they take."""
    inputs = {name: tensor.cuda() for name, tensor in net_input(rows=512).items()}
    found, sizes = [], []
    for fields in ({}, {"checkpoint_activations": True}, {"offload_activations": True}):
        model = small(12, **DROPOUT, encoder_embed_dim=64, **fields).train().to("cuda", dtype)
        torch.manual_seed(3)
        before = torch.cuda.memory_allocated()
        scores = model(**inputs)[0]
        loss = scores.float().logsumexp(-1).sum()
        del scores
        sizes.append(torch.cuda.memory_allocated() - before)
        loss.backward()
        found.append({name: p.grad for name, p in model.named_parameters()})
    for name, gradient in found[0].items():
        assert torch.equal(found[1][name], gradient) and torch.equal(found[2][name], gradient), name
    inputs_of_layers = 11 * sum(tokens.numel() for tokens in inputs.values() if tokens.dim() > 1) * 64 * dtype.itemsize
    assert sizes[1] - sizes[2] > 0.9 * inputs_of_layers
    assert sizes[1] < 0.3 * sizes[0]
