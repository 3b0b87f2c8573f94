"""deepnet_adam in half precision is fairseq's FP16Optimizer over its adam: numbers, loss scale, overflows, state."""

from __future__ import annotations

import pytest
import torch
from fairseq.optim import FP16Optimizer

from deepnet_fairseq.optim.half_precision import FlatFP16Optimizer
from deepnet_fairseq.transformer.slots import FullPrecision

from .support.helpers import small
from .support.optimised import SHAPES, difference, parameters, settings

FP16 = {"fp16": True, "fp16_init_scale": 128, "fp16_scale_window": 4}
KINDS = {
    "fp16": (torch.float16, FP16),
    "fp16, not flattened": (torch.float16, FP16 | {"fp16_no_flatten_grads": True}),
    "bf16": (torch.bfloat16, {"bf16": True}),
}
OVERFLOWS = (6, 7, 15)


@pytest.fixture(autouse=True)
def no_gpu_needed(monkeypatch):
    """fairseq asks for the number of the GPU where its flat parameters go; a CPU has none."""
    if not torch.cuda.is_available():
        monkeypatch.setattr("torch.cuda.current_device", lambda: None)


def model(kind: str):
    """Half-precision parameters, and two that are kept in float32 as FullPrecision slots are."""
    dtype, _ = KINDS[kind]
    return parameters(dtype) + parameters(shapes=SHAPES[1:3], seed=1)


def built(name: str, kind: str, params):
    return FP16Optimizer.build_optimizer(settings(name, common=KINDS[kind][1]), params)


def train(optimiser, params, updates, unused=()) -> list:
    """Updates with a loss of gradient 1e-3 to 1 by fairseq's calls; the norms, and where it overflows what is said."""
    found = []
    for update in updates:
        optimiser.set_lr(1e-2 * min(1.0, (update + 1) / 10))
        optimiser.zero_grad()
        generator = torch.Generator().manual_seed(update)
        parts = []
        for number, parameter in enumerate(params):
            gradient = torch.randn(parameter.shape, generator=generator) * (1.0 if update % 3 else 1e-3)
            if update in OVERFLOWS and optimiser.scaler is not None and number == 3:
                gradient[0, 0] = 60000.0
            if number not in unused:
                parts.append((parameter * gradient.to(parameter.dtype)).sum().float())
        optimiser.backward(sum(parts))
        optimiser.multiply_grads(0.25)
        try:
            found.append(float(optimiser.clip_grad_norm(0.7 if update % 2 else 0.0)))
            optimiser.step()
        except OverflowError as error:
            found.append(str(error))
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_the_numbers_are_fairseqs(kind):
    """30 updates: clipping, a growing loss scale, overflows; a parameter out of use counts as one with gradient 0."""
    theirs, ours = model(kind), model(kind)
    reference, found = built("adam", kind, theirs), built("deepnet_adam", kind, ours)
    assert type(found) is FlatFP16Optimizer and type(reference) is FP16Optimizer
    norms = train(reference, theirs, range(30), unused=(4,))
    again = train(found, ours, range(30), unused=(4,))
    assert [n for n in norms if isinstance(n, str)] == [n for n in again if isinstance(n, str)]
    numbers = [n for n in norms if not isinstance(n, str)]
    assert [n for n in again if not isinstance(n, str)] == pytest.approx(numbers, rel=1e-5)
    if "fp16" in kind:
        assert any("loss scale" in n for n in norms if isinstance(n, str)) and len(numbers) == 27
        assert reference.scaler.loss_scale == found.scaler.loss_scale
    masters = [view for part in found.optimizer.parts for view in part.flat.views(part.flat.weights)]
    assert difference(_masters(reference, theirs), masters) < 3e-6
    assert all(torch.equal(master.to(p.dtype), p) for master, p in zip(masters, ours, strict=True))
    assert difference(ours, model(kind)) > 0.05


def _masters(reference: FP16Optimizer, params):
    """fairseq's float32 weights in their parameters' shapes."""
    if reference.has_flat_params:
        (flat,) = reference.fp32_params.values()
        pieces = flat.data.split([p.numel() for p in params])
        return [piece.view(p.shape) for piece, p in zip(pieces, params, strict=True)]
    return reference.fp32_params


@pytest.mark.parametrize("kind", KINDS)
def test_state_is_fairseqs_both_ways(kind):
    """Handed over after 10 updates, loss scale included; --fp16 has one flat entry."""
    kept = []
    for first, second in (("adam", "adam"), ("adam", "deepnet_adam"), ("deepnet_adam", "adam")):
        params = model(kind)
        optimiser = built(first, kind, params)
        train(optimiser, params, range(10))
        state = optimiser.state_dict()
        optimiser = built(second, kind, params)
        optimiser.load_state_dict(state, {"lr": 1e-2})
        train(optimiser, params, range(10, 20))
        kept.append((params, optimiser.state_dict()))
    params, expected = kept[0]
    assert ("loss_scale" in expected) == ("fp16" in kind)
    assert len(expected["state"]) == (1 if kind == "fp16" else len(params))
    for others, state in kept:
        assert difference(others, params) < 2e-2  # one unit of half precision's last place, here and there
        assert state.keys() == expected.keys() and state.get("loss_scale") == expected.get("loss_scale")
        assert state["param_groups"] == expected["param_groups"] and state["state"].keys() == expected["state"].keys()
        for place, entry in expected["state"].items():
            assert entry["step"] == state["state"][place]["step"]
            for name in ("exp_avg", "exp_avg_sq"):
                assert state["state"][place][name].dtype == torch.float32
                assert difference([state["state"][place][name]], [entry[name]]) < 1e-3


def test_a_state_fits_either_layout():
    """--fp16-no-flatten-grads may be added or dropped where deepnet_adam resumes; fairseq's cannot."""
    layouts = ("fp16", "fp16, not flattened")
    for first, second in (layouts, layouts[::-1]):
        params = model(first)
        one, other = built("deepnet_adam", first, params), built("deepnet_adam", second, model(first))
        train(one, params, range(5))
        other.load_state_dict(one.state_dict())
        for part, same in zip(one.optimizer.parts, other.optimizer.parts, strict=True):
            assert part.steps == same.steps and all(torch.equal(part.moments[n], same.moments[n]) for n in part.moments)


@pytest.mark.parametrize("method", ["admin", "rezero", "r_fixup"])
def test_slots_in_full_precision(method):
    """A model in bf16 whose slots are in float32: these are trained in place, the others have float32 copies."""
    net = small(2, method=method).to(torch.bfloat16)
    params = list(net.parameters())
    optimiser = built("deepnet_adam", "bf16", params)
    slots = [m for m in net.modules() if isinstance(m, FullPrecision)]
    kept = {id(p) for m in slots for p in m.parameters(recurse=False) if p.requires_grad}
    by_type = {part.flat.parameters[0].dtype: part for part in optimiser.optimizer.parts}
    full = by_type[torch.float32]
    assert {id(p) for p in full.flat.parameters} == kept
    assert full.flat.weights.data_ptr() == full.flat.parameters[0].data_ptr()
    half = by_type[torch.bfloat16]
    assert half.flat.weights.dtype == torch.float32 and len(half.places) + len(full.places) == len(
        optimiser.optimizer.param_groups[0]["params"]
    )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("kind", KINDS)
def test_on_a_gpu_as_on_a_cpu(kind, monkeypatch):
    """Both optimisers with their parameters there, and the state handed over by way of a file on the CPU."""
    theirs, ours = ([torch.nn.Parameter(p.data.cuda()) for p in model(kind)] for _ in range(2))
    reference, found = built("adam", kind, theirs), built("deepnet_adam", kind, ours)
    for optimiser, params in ((reference, theirs), (found, ours)):
        for update in range(20):
            optimiser.zero_grad()
            generator = torch.Generator().manual_seed(update)
            sums = [(p * torch.randn(p.shape, generator=generator).to(p)).sum().float() for p in params]
            optimiser.backward(sum(sums))
            optimiser.multiply_grads(torch.tensor(0.25, device="cuda"))
            optimiser.clip_grad_norm(0.7)
            optimiser.step()
    masters = [view for part in found.optimizer.parts for view in part.flat.views(part.flat.weights)]
    assert difference(_masters(reference, theirs), masters) < 1e-5
    found.load_state_dict(reference.state_dict())
    reference.load_state_dict(found.state_dict())
