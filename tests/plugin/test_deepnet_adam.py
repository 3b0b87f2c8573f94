"""Tests of deepnet_adam against fairseq's adam in float32 and half precision, and of radam against torch's RAdam."""

from __future__ import annotations

import copy
import math
from itertools import product

import pytest
import torch
from fairseq import optim
from fairseq.dataclass.configs import FairseqConfig
from omegaconf import OmegaConf
from torch import nn

from deepnet_fairseq.core.probes.base import get_probes
from deepnet_fairseq.errors import UserError
from deepnet_fairseq.plugin.building import from_checkpoint
from deepnet_fairseq.plugin.optimisers import half_precision
from deepnet_fairseq.plugin.optimisers.deepnet_adam import REFUSED, HalfPrecisionOptimizer
from deepnet_fairseq.plugin.probe_record import read_record
from deepnet_fairseq.plugin.probing import TrainingProbes
from deepnet_fairseq.tools.averaging import average
from deepnet_fairseq.tools.export.transformer import fold_checkpoint

from ..support.diverging import TINY
from ..support.diverging import train as training
from ..support.helpers import small
from ..support.observing import close, loss_of, net_input, observe

SHAPES = [(7, 5), (3,), (), (64, 64), (130,), (40, 16)]
ABSENT = {4: (1,), 5: (1, 2), 20: (0, 3), 21: (0, 1, 2, 3, 4, 5)}  # update -> parameters without gradients
FP16 = {"fp16": True, "fp16_init_scale": 128, "fp16_scale_window": 4}
KINDS = {
    "fp32": (torch.float32, {}),
    "fp16": (torch.float16, FP16),
    "fp16, not flattened": (torch.float16, FP16 | {"fp16_no_flatten_grads": True}),
    "bf16": (torch.bfloat16, {"bf16": True}),
}
HALF = [kind for kind in KINDS if kind != "fp32"]
OVERFLOWS = (6, 7, 15)
OTHERS = [SHAPES[:-1], [*SHAPES[:-1], (16, 40)], [(5,)]]


@pytest.fixture(autouse=True)
def no_gpu_needed(monkeypatch):
    """Replace torch.cuda.current_device, which fairseq calls for flat parameters, where there is no GPU."""
    if not torch.cuda.is_available():
        monkeypatch.setattr("torch.cuda.current_device", lambda: None)


def settings(name: str, common: dict | None = None, **adam):
    """Return fairseq's whole config with the optimiser `name`."""
    cfg = OmegaConf.structured(FairseqConfig)
    OmegaConf.set_struct(cfg, False)
    cfg.optimization.lr, cfg.optimization.update_freq = [1e-2], [1]
    given = {"adam_betas": "(0.9, 0.98)", "adam_eps": 1e-8, "weight_decay": 0.1} | adam
    cfg.optimizer = {"_name": name} | given
    cfg.common.update(common or {})
    return cfg


def parameters(dtype=torch.float32, shapes=SHAPES, seed: int = 0) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in shapes]


def model(kind: str) -> list[nn.Parameter]:
    """Return parameters of one type, and two that stay in float32 as those of FullPrecision slots do."""
    return parameters(KINDS[kind][0]) + parameters(shapes=SHAPES[1:3], seed=1)


def optimiser(name: str, params, kind: str = "fp32", **given):
    cfg = settings(name, KINDS[kind][1], **given)
    return (
        optim.build_optimizer(cfg.optimizer, params) if kind == "fp32" else half_precision.build_optimizer(cfg, params)
    )


def gradients(params, update: int, overflow: bool = False) -> list[torch.Tensor]:
    """Draw gradients whose size varies strongly from update to update."""
    generator = torch.Generator().manual_seed(update)
    drawn = [torch.randn(p.shape, generator=generator) * (1.0 if update % 3 else 1e-3) for p in params]
    if overflow:
        drawn[3][0, 0] = 60000.0
    return drawn


def train(built, params, updates, max_norm: float = 0.7, absent=lambda update: ()) -> list:
    """Make updates through fairseq's calls in its trainer's order, with a warm-up and clipping in every other.

    Returns the gradient norms, or the message where the update overflows.
    """
    norms, scaled = [], getattr(built, "scaler", None) is not None
    for update in updates:
        built.set_lr(1e-2 * min(1.0, (update + 1) / 10))
        built.zero_grad()
        given = gradients(params, update, overflow=scaled and update in OVERFLOWS)
        there = [n for n in range(len(params)) if n not in absent(update)]
        parts = [(params[n] * given[n].to(params[n])).sum().float() for n in there]
        if parts:
            built.backward(sum(parts))
        built.multiply_grads(0.25)
        try:
            norms.append(float(built.clip_grad_norm(max_norm if update % 2 else 0.0)))
            built.step()
        except OverflowError as error:
            norms.append(str(error))
    return norms


def absent(update):
    return ABSENT.get(update, ())


def difference(ours, theirs) -> float:
    """Return the largest difference of two lists of tensors."""
    return max((a.double() - b.double()).abs().max().item() for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("eps", [1e-8, 1e-2])
def test_the_numbers_are_fairseqs(eps):
    """Updates equal fairseq's over 30 steps with warm-up, weight decay, clipping, absent gradients and a large eps."""
    theirs, ours = parameters(), parameters()
    expected = train(optimiser("adam", theirs, adam_eps=eps), theirs, range(30), absent=absent)
    norms = train(optimiser("deepnet_adam", ours, adam_eps=eps), ours, range(30), absent=absent)
    assert norms == pytest.approx(expected, rel=1e-6)
    assert difference(ours, theirs) < 4e-6 and difference(ours, parameters()) > 0.1


def test_radam_waits_until_its_rate_is_known():
    """radam equals torch's RAdam from update 6 on, and takes no steps before, as in the code of Admin's authors."""
    params, twins = parameters(torch.float64), parameters(torch.float64)
    built = optimiser("radam", params)
    theirs = torch.optim.RAdam(twins, 1e-2, (0.9, 0.98), weight_decay=0.1, decoupled_weight_decay=True)
    for update in range(1, 13):
        before = [param.detach().clone() for param in params]
        for param, twin, given in zip(params, twins, gradients(params, update), strict=True):
            twin.data.copy_(param.data)
            param.grad = twin.grad = given.double()
        built.step()
        theirs.step()
        expected = twins if update > 5 else [param * (1 - 1e-2 * 0.1) for param in before]
        assert difference(params, expected) < 1e-12 and built.get_lr() == 1e-2


def test_radam_in_half_precision():
    """radam with --memory-efficient-fp16 stays close to float32, keeps float32 moments and resumes to the bit."""
    params, wide = parameters(torch.float16), [nn.Parameter(p.detach().float()) for p in parameters(torch.float16)]
    twins, cfg = [nn.Parameter(p.detach().clone()) for p in params], settings("radam", FP16)
    built, again = (half_precision.build_optimizer(cfg, of) for of in (params, twins))
    train(built, params, range(20, 32))
    train(optimiser("radam", wide), wide, range(20, 32))
    assert difference(params, wide) < 4e-3 + 12 * 2**-10  # rounding of the updates, for weights from 2 to 4
    assert all(moment.dtype == torch.float32 for state in built.optimizer.state.values() for moment in state.values())
    torch._foreach_copy_([twin.data for twin in twins], [param.data for param in params])
    again.load_state_dict(copy.deepcopy(built.state_dict()))
    for one, of in ((built, params), (again, twins)):
        train(one, of, range(32, 36))
    assert difference(params, twins) == 0


def masters(built, params) -> list[torch.Tensor]:
    """Return the float32 weights of fairseq's half-precision optimiser or ours, in the parameters' shapes."""
    if isinstance(built, HalfPrecisionOptimizer):
        return built.float32_weights()
    if not built.has_flat_params:
        return built.fp32_params
    (whole,) = built.fp32_params.values()
    pieces = whole.data.split([p.numel() for p in params])
    return [piece.view(p.shape) for piece, p in zip(pieces, params, strict=True)]


@pytest.mark.parametrize("kind", HALF)
def test_the_numbers_in_half_precision_are_fairseqs(kind):
    """Updates in half precision equal fairseq's over 30 steps, with clipping, overflows and a growing loss scale.

    A parameter without a gradient counts as one with gradient 0.
    """
    theirs, ours = model(kind), model(kind)
    reference, tested = optimiser("adam", theirs, kind), optimiser("deepnet_adam", ours, kind)
    assert type(tested) is HalfPrecisionOptimizer and type(reference) is half_precision.DeepFP16
    norms, again = (train(o, p, range(30), absent=lambda _: (4,)) for o, p in ((reference, theirs), (tested, ours)))
    for norm, expected in zip(again, norms, strict=True):
        assert norm == (expected if isinstance(expected, str) else pytest.approx(expected, rel=1e-5))
    if "fp16" in kind:
        assert sum("loss scale" in str(norm) for norm in norms) == 3
        assert reference.scaler.loss_scale == tested.scaler.loss_scale
    own = masters(tested, ours)
    assert difference(masters(reference, theirs), own) < 3e-6
    assert all(torch.equal(master.to(p.dtype), p) for master, p in zip(own, ours, strict=True))
    assert difference(ours, model(kind)) > 0.05


@pytest.mark.parametrize("kind", KINDS)
def test_state_is_fairseqs_both_ways(kind):
    """State moves between adam and deepnet_adam in both directions: 12 and 12 updates equal 24 without a change."""
    kept, missing = [], absent if kind == "fp32" else lambda _: ()
    for first, second in (("adam", "adam"), ("adam", "deepnet_adam"), ("deepnet_adam", "adam")):
        params = model(kind)
        built = optimiser(first, params, kind)
        train(built, params, range(12), absent=missing)
        state = built.state_dict()
        built = optimiser(second, params, kind)
        built.load_state_dict(state, {"lr": 1e-2})
        train(built, params, range(12, 24), absent=missing)
        kept.append((params, built.state_dict()))
    params, expected = kept[0]
    assert ("loss_scale" in expected) == ("fp16" in kind)
    assert len(expected["state"]) == (1 if kind == "fp16" else len(params))
    weights, moments = (2e-6, 1e-6) if kind == "fp32" else (2e-2, 1e-3)  # the last place of half precision
    for others, state in kept:
        assert difference(others, params) < weights
        for key in expected.keys() - {"state", "fp32_params"}:
            assert state[key] == expected[key]
        assert state.keys() == expected.keys() and list(state["state"]) == list(expected["state"])
        for place, entry in expected["state"].items():
            own = state["state"][place]
            assert own.keys() == entry.keys() and own["step"] == entry["step"] and type(own["step"]) is int
            assert difference([own["exp_avg"], own["exp_avg_sq"]], [entry["exp_avg"], entry["exp_avg_sq"]]) < moments


def test_norms():
    """Gradient norms hold float32 precision for many small and a few large values, and report NaN and infinity."""
    params = [nn.Parameter(torch.zeros(2**24)), nn.Parameter(torch.zeros(3))]
    built = optimiser("deepnet_adam", params)
    assert built.clip_grad_norm(1.0).item() == 0.0
    for worst in (1000.0, math.nan, math.inf):
        built.zero_grad()
        params[0].grad, params[1].grad = torch.ones(2**24), torch.full((3,), worst)
        expected = math.sqrt(2**24 + 3 * worst**2)
        total = built.clip_grad_norm(0.0, lambda norm: 3 * norm).item()
        assert total == pytest.approx(3 * expected, rel=2e-7, nan_ok=True)


@pytest.mark.parametrize(("kind", "shapes"), [*product(("fp32", "bf16"), OTHERS), ("fp16", OTHERS[0])])
def test_the_state_of_another_model_is_refused(kind, shapes):
    """The state of another model is refused as a whole; in fp16 only the length of the flat tensor can tell."""
    dtype = KINDS[kind][0]
    params, others = parameters(dtype), parameters(dtype, shapes)
    built, other = optimiser("deepnet_adam", params, kind), optimiser("deepnet_adam", others, kind)
    assert built.state_dict()["state"] == {}
    train(other, others, range(2))
    with pytest.raises(UserError, match="optimiser state is of other parameters; add --reset-optimizer"):
        built.load_state_dict(other.state_dict())
    assert built.state_dict()["state"] == {}


@pytest.mark.parametrize(("section", "key"), REFUSED)
def test_refusals_name_the_flag(section, key):
    cfg = settings("deepnet_adam")
    cfg[section][key] = True
    with pytest.raises(UserError, match=rf"^--{key.replace('_', '-')}: not with --optimizer deepnet_adam: \w"):
        optim.build_optimizer(cfg.optimizer, parameters())


def test_probes_read_the_gradients_of_the_mean_loss(tmp_path):
    """Probes read the gradients of the mean loss, although they look before the scaling factor is applied."""
    net, inputs = small(2), net_input()
    built = optimiser("deepnet_adam", list(net.parameters()))
    probes = TrainingProbes(net, get_probes("gradient_norm"), 1, tmp_path, {"method": "deepnorm"})
    built.zero_grad()
    probes.before_batch(0)
    (loss_of(net, inputs) * 64).backward()
    built.multiply_grads(1 / 64)
    probes.see_gradients(half_precision.gradient_scale(built))
    probes.end_update(made=True)
    norms = read_record(tmp_path / "probes.jsonl").rows[0]["gradient_norm"]
    close(norms, observe(small(2), [inputs])["gradient_norm"], 1e-4)


@pytest.mark.parametrize("flags", [(), ("--bf16",)], ids=["fp32", "bf16"])
def test_checkpoints_are_small_and_export(flags, data, tmp_path):
    """Checkpoints of deepnet_adam store each tensor once; they can be averaged and exported."""
    training(data, tmp_path, *TINY, "--optimizer", "deepnet_adam", *flags, "--max-update", "2")
    path = tmp_path / "checkpoint_last.pt"
    state, model = torch.load(path, weights_only=True), from_checkpoint(str(path))[0]
    trained = [state["model"][name] for name, _ in model.named_parameters()]
    each = 16 if flags else 12  # bytes: the weights, two moments, and with bf16 the float32 weights
    assert path.stat().st_size < 1.25 * each * sum(p.numel() for p in model.parameters()) + 100_000
    average([path, path], tmp_path / "mean.pt")
    assert difference(from_checkpoint(str(tmp_path / "mean.pt"))[0].parameters(), trained) == 0
    assert fold_checkpoint(str(tmp_path / "mean.pt")).difference < 1e-4
