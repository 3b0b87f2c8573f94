"""--compile-layers: one compilation for all layers and shapes, and the training of the plain layers."""

from __future__ import annotations

import argparse
import copy

import pytest
import torch
import torch.nn.functional as F
from fairseq import checkpoint_utils
from fairseq.modules import FairseqDropout
from torch._dynamo.utils import counters
from torch.nn.parallel import DistributedDataParallel

from deepnet_fairseq.core import attention
from deepnet_fairseq.core.methods import METHODS
from deepnet_fairseq.core.modules import Dropout
from deepnet_fairseq.errors import UserError
from deepnet_fairseq.plugin.building import build, from_checkpoint
from deepnet_fairseq.plugin.compiled_layers import attach, compile_layers
from deepnet_fairseq.plugin.config import namespace

from .support.diverging import TINY, Training, train
from .support.helpers import FIRST, PAD, VOCAB, batch, small
from .support.observing import close, net_input, observe

SHAPES = ((3, 9, 7), (4, 11, 8), (3, 9, 7), (2, 6, 5))  # rows, source, target


@pytest.fixture(autouse=True)
def compilations(monkeypatch):
    """Counts compiled graphs. Dropout and attention are torch's, as on a GPU; ours for CPUs are nothing to compile."""
    monkeypatch.setattr(Dropout, "forward", FairseqDropout.forward)
    monkeypatch.setattr(attention, "LONGEST", 0)
    torch._dynamo.reset()
    counters.clear()
    yield lambda: counters["stats"]["unique_graphs"]
    torch._dynamo.reset()


def compiled(model, backend: str = "eager"):
    compile_layers(model, backend=backend)
    return model


def loss_of(model, shape, seed):
    src, prev = batch(*shape, seed=seed)
    inputs = (src, None, prev) if hasattr(model, "encoder") and hasattr(model, "decoder") else (prev,)
    return F.cross_entropy(model(*inputs)[0].flatten(0, 1), prev.flatten(), ignore_index=PAD)


def assert_same_gradients(one, other, shapes=SHAPES, tolerance=1e-5):
    """Of one update from batches of these shapes, each seeded."""
    for model in (one, other):
        model.train().zero_grad()
        for seed, shape in enumerate(shapes):
            torch.manual_seed(seed)
            loss_of(model, shape, seed).backward()
    largest = max(float(p.grad.abs().max()) for p in other.parameters() if p.grad is not None)
    for (name, a), b in zip(one.named_parameters(), other.parameters(), strict=True):
        assert a.grad is b.grad is None or torch.allclose(a.grad, b.grad, atol=tolerance * largest), name


def test_18_layers_are_one_compilation_a_stack(compilations):
    """Of whatever shape; and one more a stack where the source has no padding, so no mask, or where a layer differs."""
    one, other = compiled(small(18)), small(18)
    assert_same_gradients(one, other, SHAPES[:2], 1e-6)
    assert compilations() == 2
    assert not counters["graph_break"]
    src, prev = batch(4, 12, 7)
    one(src.clamp(min=FIRST), None, prev)[0].sum().backward()
    assert compilations() == 4
    model = compiled(small(3, method="admin"))  # whose first omega of a stack is not trained
    assert_same_gradients(model, small(3, method="admin"), SHAPES[:1], 1e-6)
    assert compilations() == 8


def test_a_layer_is_one_graph_under_ddp(group):
    """Of 3 MB: dynamo would cut it behind the parameters of DDP's first bucket, of 1 MB."""
    graphs = []
    model = small(2, encoder_embed_dim=256, encoder_ffn_embed_dim=1024).train()
    compile_layers(model, backend=lambda graph, _: graphs.append(graph) or graph.forward)
    src, prev = batch()
    DistributedDataParallel(model)(src, None, prev)[0].sum().backward()
    assert len(graphs) == 2


def test_dropout_and_recomputation():
    """These backends leave the random numbers as they are."""
    options = {"method": "pre_ln", "dropout": 0.1, "checkpoint_activations": True}
    assert_same_gradients(compiled(small(2, **options), "aot_eager"), small(2, **options))


@pytest.mark.parametrize("model", ["deepnet_lm", pytest.param("deepnet_masked_lm", marks=pytest.mark.slow)])
def test_training_of_one_stack(model):
    torch.manual_seed(0)
    plain = build(f"{model}_tiny_6", VOCAB, method="normformer", dropout=0.1, attention_dropout=0.1)
    assert_same_gradients(compiled(copy.deepcopy(plain)), plain)


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


def test_only_training_is_refused_on_the_cpu(data, tmp_path):
    """A checkpoint of a training on a GPU translates on the CPU: its task begins no epoch."""
    refusal = "--compile-layers: for a GPU, and this training runs on the CPU; drop the flag, or --cpu"
    with pytest.raises(UserError, match=refusal):
        Training(data, tmp_path, *TINY, "--compile-layers")
    attach(small(1), argparse.Namespace(), namespace("deepnet_transformer_tiny", compile_layers=True))


def test_a_checkpoint_from_when_there_were_cuda_graphs(data, tmp_path, capsys):
    """It loads, resumes and translates; the flag itself is no flag any more."""
    train(data, tmp_path, *TINY, "--max-update", "1")
    path = tmp_path / "checkpoint_last.pt"
    state = torch.load(path, weights_only=True)
    state["cfg"]["model"] |= {"cuda_graphs": True, "cuda_graphs_limit": 64}
    torch.save(state, path)
    model, cfg = from_checkpoint(str(path))
    (own,), _ = checkpoint_utils.load_model_ensemble([str(path)], arg_overrides={"data": str(data)})
    assert cfg.model.method == "deepnorm" and all(map(torch.equal, model.parameters(), own.parameters()))
    train(data, tmp_path, *TINY, "--max-update", "2")
    assert torch.load(path, weights_only=True)["optimizer_history"][-1]["num_updates"] == 2
    with pytest.raises(SystemExit):
        train(data, tmp_path, *TINY, "--cuda-graphs")
    assert "unknown: --cuda-graphs; --help lists the flags" in capsys.readouterr().err
