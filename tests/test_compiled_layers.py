"""The compiled layer: one compilation for all layers and shapes, and the numbers of the plain one."""

import copy

import pytest
import torch
from torch._dynamo.utils import counters

from deepnet_fairseq.graphs import compile_layers
from deepnet_fairseq.methods import METHODS

from .support.helpers import batch, small
from .support.observing import close, net_input, observe
from .support.training_twins import SHAPES, as_on_a_gpu, assert_same_training, loss_of


@pytest.fixture(autouse=True)
def compilations(monkeypatch):
    """Counts compiled graphs."""
    as_on_a_gpu(monkeypatch)
    torch._dynamo.reset()
    counters.clear()
    yield lambda: counters["stats"]["unique_graphs"]
    torch._dynamo.reset()


def compiled(model, backend: str = "eager"):
    compile_layers(model, backend=backend)
    return model


def assert_same_gradients(one, other, shapes, tolerance):
    for model in (one, other):
        model.train().zero_grad()
        for seed, shape in enumerate(shapes):
            loss_of(model, shape, seed).backward()
    largest = max(float(p.grad.abs().max()) for p in other.parameters() if p.grad is not None)
    for (name, a), b in zip(one.named_parameters(), other.parameters(), strict=True):
        assert a.grad is b.grad is None or torch.allclose(a.grad, b.grad, atol=tolerance * largest), name


def test_18_layers_are_one_compilation_a_stack(compilations):
    """Of whatever shape; and one more a stack where the source has no padding, so no mask."""
    one, other = compiled(small(18)), small(18)
    assert_same_gradients(one, other, SHAPES, 1e-6)
    assert compilations() == 2
    assert not counters["graph_break"]
    src, prev = batch(4, 12, 7)
    one(src.clamp(min=5), None, prev)[0].sum().backward()
    assert compilations() == 4


def test_a_layer_that_differs_is_another(compilations):
    """Admin's first omega of a stack is not trained."""
    assert_same_gradients(compiled(small(3, method="admin")), small(3, method="admin"), SHAPES[:1], 1e-6)
    assert compilations() == 4


@pytest.mark.parametrize("flags", [{}, {"checkpoint_activations": True}], ids=["", "recomputed"])
def test_training(flags):
    """With dropout: these backends leave the random numbers as they are."""
    options = {"method": "pre_ln", "dropout": 0.1} | flags
    assert_same_training(compiled(small(2, **options), "aot_eager"), small(2, **options), updates=4)


def test_what_does_not_train_runs_plain(compilations):
    model = compiled(small(2))
    src, prev = batch()
    model(src, None, prev)
    model.train()
    with torch.no_grad():
        model(src, None, prev)
    model(src, None, prev, return_all_hiddens=True)
    twin = copy.deepcopy(model).train()
    loss_of(twin, SHAPES[0], 0).backward()
    assert compilations() == 0
    loss_of(model, SHAPES[0], 0).backward()
    assert compilations() == 2


def test_probes_see_their_update():
    """Hooks that come after the compilation are called."""
    model = compiled(small(2)).train()
    loss_of(model, SHAPES[0], 0).backward()
    model.zero_grad()
    found, expected = observe(model, [net_input()]), observe(small(2).train(), [net_input()])
    for probe in expected:
        close(found[probe], expected[probe])


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method(method, backend):
    tolerance = {"aot_eager": 1e-6, "inductor": 1e-4}[backend]
    assert_same_gradients(compiled(small(3, method=method), backend), small(3, method=method), SHAPES, tolerance)
