"""deepnet_adam is fairseq's adam: numbers, norms, clipping, state, and what it refuses."""

from __future__ import annotations

import math

import pytest
import torch
from fairseq import optim
from fairseq.optim.adam import FairseqAdam
from torch import nn

from deepnet_fairseq.errors import UserError
from deepnet_fairseq.optim import flat
from deepnet_fairseq.optim.deepnet_adam import REFUSED
from deepnet_fairseq.probes.attach import TrainingProbes
from deepnet_fairseq.probes.base import get_probes
from deepnet_fairseq.probes.record import read_record

from .support.helpers import small
from .support.observing import close, loss_of, net_input, observe
from .support.optimised import SHAPES, difference, optimiser, parameters, set_gradients, settings, train

ABSENT = {4: (1,), 5: (1, 2), 20: (0, 3), 21: (0, 1, 2, 3, 4, 5)}  # update -> parameters without gradient


def absent(update):
    return ABSENT.get(update, ())


@pytest.fixture(params=[2**18, 1024, 100], ids=["one chunk", "several chunks", "parameters in several chunks"])
def chunk(request, monkeypatch):
    monkeypatch.setitem(flat.CHUNK, "cpu", request.param)


def exact(updates, eps: float, max_norm: float = 0.7):
    """fairseq's formula in float64, written down anew."""
    params = [p.detach().double() for p in parameters()]
    state = [(0, torch.zeros_like(p), torch.zeros_like(p)) for p in params]
    for update in updates:
        holders = parameters()
        set_gradients(holders, update, absent=absent(update))
        grads = [None if h.grad is None else h.grad.double() * 0.25 for h in holders]
        norm = math.sqrt(sum(g.square().sum().item() for g in grads if g is not None))
        clip = min(1.0, max_norm / (norm + 1e-6)) if update % 2 else 1.0
        lr = 1e-2 * min(1.0, (update + 1) / 10)
        for number, gradient in enumerate(grads):
            if gradient is None:
                continue
            step, m, v = state[number]
            step, m, v = step + 1, 0.9 * m + 0.1 * clip * gradient, 0.98 * v + 0.02 * (clip * gradient) ** 2
            state[number] = (step, m, v)
            params[number] = params[number] * (1 - lr * 0.1)
            size = lr * math.sqrt(1 - 0.98**step) / (1 - 0.9**step)
            params[number] -= size * m / (v.sqrt() + eps)
    return params


@pytest.mark.parametrize("eps", [1e-8, 1e-2])
def test_the_numbers_are_fairseqs(eps, chunk):
    """30 updates with warm-up, weight decay, clipping and gradients that are not there; eps as large as sqrt(v) too."""
    theirs, ours = parameters(), parameters()
    expected = train(optimiser("adam", theirs, adam_eps=eps), theirs, range(30), absent=absent)
    found = train(optimiser("deepnet_adam", ours, adam_eps=eps), ours, range(30), absent=absent)
    assert found == pytest.approx(expected, rel=1e-6)
    reference = exact(range(30), eps)
    assert difference(theirs, reference) < 2e-6 and difference(ours, reference) < 2e-6
    moved = difference(ours, parameters())
    assert moved > 0.1  # 2e-6 is small against what training did


def test_a_long_sum_of_squares_is_right():
    """The norm of 2^24 gradients of 1 and of a few large ones: 4096 sqrt(1 + ...), to float32's precision."""
    params = [nn.Parameter(torch.zeros(2**24)), nn.Parameter(torch.zeros(3))]
    built = optimiser("deepnet_adam", params)
    params[0].grad, params[1].grad = torch.ones(2**24), torch.full((3,), 1000.0)
    assert built.clip_grad_norm(0).item() == pytest.approx(math.sqrt(2**24 + 3e6), rel=2e-7)


@pytest.mark.parametrize("worst", [math.nan, math.inf])
def test_norms_that_are_not_finite(worst):
    for name in ("adam", "deepnet_adam"):
        params = parameters()
        built = optimiser(name, params)
        set_gradients(params, 1)
        params[3].grad[5, 5] = worst
        norm = built.clip_grad_norm(1.0)
        assert norm.shape == () and norm.dtype == torch.float32
        assert math.isnan(norm) if math.isnan(worst) else norm == math.inf


def test_norm_over_ranks_and_without_gradients():
    for name in ("adam", "deepnet_adam"):
        params = parameters()
        built = optimiser(name, params)
        assert built.clip_grad_norm(1.0).item() == 0.0
        built.zero_grad()
        set_gradients(params, 1)
        alone = built.clip_grad_norm(0.0)
        assert built.clip_grad_norm(0.0, aggregate_norm_fn=lambda norm: 3 * norm).item() == pytest.approx(
            3 * alone.item()
        )


def test_a_factor_may_be_a_tensor_and_comes_from_several_calls():
    ours, theirs = parameters(), parameters()
    for built, params in ((optimiser("deepnet_adam", ours), ours), (optimiser("adam", theirs), theirs)):
        for update in range(3):
            built.zero_grad()
            set_gradients(params, update)
            built.multiply_grads(torch.tensor(0.5))
            built.multiply_grads(3)
            built.step(scale=4.0)
    assert difference(ours, theirs) < 1e-6


def test_steps_without_gradients_or_norms_leave_no_trace():
    """Dropped gradients, as after an overflow, and their factor do not reach the next update."""
    ours, again = parameters(), parameters()
    built, fresh = optimiser("deepnet_adam", ours), optimiser("deepnet_adam", again)
    set_gradients(ours, 7)
    built.multiply_grads(1e9)
    built.clip_grad_norm(0.1)
    built.zero_grad()
    assert all(p.grad is None for p in ours)
    train(built, ours, range(3))
    train(fresh, again, range(3))
    assert difference(ours, again) == 0


def test_memory_is_one_and_aligned():
    """Views of one storage, each at 64 bytes, in the model's order, without what is frozen or of another type."""
    params = parameters() + parameters(torch.bfloat16)
    frozen = nn.Parameter(torch.ones(4), requires_grad=False)
    own = frozen.data_ptr()
    optimiser("deepnet_adam", [*params, frozen])
    full, half = ({p.untyped_storage().data_ptr() for p in group} for group in (params[:6], params[6:]))
    assert len(full) == len(half) == 1 and full != half and frozen.data_ptr() == own
    assert all(p.data_ptr() % 64 == 0 and p.is_contiguous() for p in params)
    assert difference(params[:6], parameters()) == 0
    starts = [p.data_ptr() for p in params[:6]]
    assert starts == sorted(starts)


def test_a_model_cast_later_is_noticed():
    """Its weights would be trained no more."""
    model = nn.Linear(4, 4)
    built = optimiser("deepnet_adam", model.parameters())
    model.double()
    set_gradients(model.parameters(), 1)
    with pytest.raises(RuntimeError, match="behind the optimiser's back"):
        built.step()


def test_state_is_fairseqs_both_ways():
    """12 updates, the state handed over, 12 more: as 24 without a change. Entries, order and types are fairseq's."""
    kept = {}
    for first, second in (("adam", "adam"), ("adam", "deepnet_adam"), ("deepnet_adam", "adam")):
        params = parameters()
        built = optimiser(first, params)
        train(built, params, range(12), absent=absent)
        state = built.state_dict()
        built = optimiser(second, params)
        built.load_state_dict(state, {"lr": 1e-2})
        train(built, params, range(12, 24), absent=absent)
        kept[first, second] = params, built.state_dict()
    params, expected = kept["adam", "adam"]
    for others, state in kept.values():
        assert difference(others, params) < 2e-6
        assert state["param_groups"] == expected["param_groups"]
        assert list(state["state"]) == list(expected["state"])
        for place, entry in expected["state"].items():
            assert entry.keys() == state["state"][place].keys() and entry["step"] == state["state"][place]["step"]
            assert type(state["state"][place]["step"]) is int
            for name in ("exp_avg", "exp_avg_sq"):
                assert state["state"][place][name].shape == entry[name].shape
                assert difference([state["state"][place][name]], [entry[name]]) < 1e-6


def test_a_parameter_that_never_had_a_gradient_has_no_state():
    for name in ("adam", "deepnet_adam"):
        params = parameters()
        built = optimiser(name, params)
        assert built.state_dict()["state"] == {}
        train(built, params, range(2), absent=lambda _: (1,))
        assert list(built.state_dict()["state"]) == [0, 2, 3, 4, 5]


def test_the_file_of_a_state_holds_three_tensors(tmp_path):
    """Written with the parameters it is one entry of the archive each for weights, means and squares."""
    params = parameters(shapes=SHAPES * 50)
    built = optimiser("deepnet_adam", params)
    train(built, params, range(2))
    path = tmp_path / "state.pt"
    torch.save({"model": [p.data for p in params], "last_optimizer_state": built.state_dict()}, path)
    reader = torch._C.PyTorchFileReader(str(path))
    assert sum("/data/" in f"/{name}" for name in reader.get_all_records()) == 3
    state = torch.load(path, weights_only=True)
    assert difference(state["model"], params) == 0
    again = parameters(shapes=SHAPES * 50)
    other = optimiser("adam", again)
    other.load_state_dict(state["last_optimizer_state"])
    entries = built.state_dict()["state"]
    assert all(torch.equal(other.optimizer.state[p]["exp_avg"], entries[i]["exp_avg"]) for i, p in enumerate(again))


@pytest.mark.parametrize("shapes", [SHAPES[:-1], [*SHAPES[:-1], (16, 40)], [(5,)]])
def test_the_state_of_another_model_is_refused(shapes):
    """Nothing of it is taken over."""
    params, others = parameters(), parameters(shapes=shapes)
    built, other = optimiser("deepnet_adam", params), optimiser("deepnet_adam", others)
    train(other, others, range(2))
    with pytest.raises(UserError, match="optimiser state is of other parameters; add --reset-optimizer"):
        built.load_state_dict(other.state_dict())
    assert built.state_dict()["state"] == {}


def test_fairseq_takes_it_for_its_own():
    """By this name a checkpoint says what it was trained with, and fairseq resumes only what has the same."""
    assert type(optimiser("deepnet_adam", parameters())).__name__ == FairseqAdam.__name__


@pytest.mark.parametrize(("section", "key"), REFUSED)
def test_refusals_name_the_flag(section, key):
    value = REFUSED[section, key][0][0]
    cfg = settings("deepnet_adam")
    cfg[section][key] = value
    flag = f"--{key.replace('_', '-')}" + ("" if value is True else f" {value}")
    with pytest.raises(UserError, match=rf"^{flag}: not with --optimizer deepnet_adam: \w"):
        optim.build_optimizer(cfg.optimizer, parameters())


def test_probes_read_the_gradients_of_the_mean_loss(tmp_path):
    """They look before the factor is applied, and fairseq's name for it tells them."""
    model, inputs = small(2), net_input()
    built = optimiser("deepnet_adam", list(model.parameters()))
    probes = TrainingProbes(model, get_probes("gradient_norm"), 1, tmp_path, {"method": "deepnorm"})
    built.zero_grad()
    probes.before_step(built, 0)
    (loss_of(model, inputs) * 64).backward()
    built.multiply_grads(1 / 64)
    built.clip_grad_norm(1e-3)
    found = read_record(tmp_path / "probes.jsonl").rows[0]["gradient_norm"]
    close(found, observe(small(2), [inputs])["gradient_norm"], 1e-4)
