"""Where the numbers of a training end, and that it is told: every case is made so that the place is known."""

import math

import pytest
import torch
from fairseq.optim.dynamic_loss_scaler import DynamicLossScaler

from deepnet_fairseq.divergence import Diverged, report, text
from deepnet_fairseq.divergence.event import FLOOR, GRADIENTS, LOSS
from deepnet_fairseq.methods import METHODS

from .support.diverging import TINY, Poison, Training, flags_of


@pytest.mark.parametrize("method", sorted(METHODS))
def test_the_branch_with_a_broken_weight_is_named(method, data, tmp_path):
    training = Training(data, tmp_path, *flags_of(method))
    training.step()
    weights = [weight for stack in ("encoder", "decoder") for layer in getattr(training.model, stack).layers
               for weight in layer.weights()]  # fmt: skip
    weight = weights[7 * sorted(METHODS).index(method) % len(weights)]  # every branch and role in turn
    with torch.no_grad():
        weight.linear.weight[3, 5] = math.nan
    event = training.event()
    assert event["first"]["where"] == str(weight.site) and event["first"]["direction"] == "forward"
    assert event["first"]["value"] == "nan" and 0 < event["first"]["largest"] < 1e4
    assert event["kind"] == LOSS and event["update"] == 2 and math.isnan(event["loss"])
    (name,) = event["parameters"]["first"]
    assert dict(training.model.named_parameters())[name] is weight.linear.weight
    assert [row["update"] for row in event["updates"]] == [1]
    assert not list(tmp_path.iterdir()), "no crash.pt"


@pytest.mark.parametrize("flags", [(), ("--checkpoint-activations",)])
def test_a_gradient_that_is_not_finite_behind_a_finite_forward_pass(flags, data, tmp_path):
    twin = Training(data, tmp_path, *TINY, *flags)
    loss = twin.trainer.train_step([next(twin.batches)])["loss"]
    training = Training(data, tmp_path, *TINY, *flags)
    training.model.decoder.layers[0].fc2.register_forward_hook(lambda module, inputs, y: Poison.apply(y))
    event = training.event()
    assert event["kind"] == GRADIENTS and event["parameters"]["count"] == 0
    assert event["loss"] == pytest.approx(loss, abs=6e-4), "the same dropout; fairseq's log has three digits"
    assert event["first"]["where"] == "decoder.1.ffn" and event["first"]["direction"] == "backward"
    assert "in the backward pass" in text.place(event)


def test_with_recomputation_the_place_is_the_same(data, tmp_path):
    found = []
    for flags in ((), ("--checkpoint-activations",)):
        training = Training(data, tmp_path, *TINY, *flags)
        training.model.encoder.layers[1].residual["ffn"].register_forward_hook(lambda module, inputs, y: y * math.inf)
        found.append(training.event()["first"])
    assert found[0] == found[1] and found[0]["where"] == "encoder.2.ffn"


def test_a_model_that_is_not_ours_is_addressed_by_its_modules(data, tmp_path):
    flags = ("--arch", "transformer", *TINY[2:], "--encoder-layers", "1", "--decoder-layers", "1")
    training = Training(data, tmp_path, *flags)
    with torch.no_grad():
        training.model.decoder.layers[0].fc1.bias[0] = math.inf
    event = training.event()
    assert event["first"]["where"] == event["first"]["module"] == "decoder.layers.0.fc1"
    assert event["parameters"]["first"] == ["decoder.layers.0.fc1.bias"]
    assert text.long(event)


def test_a_loss_that_is_not_finite_with_gradients_that_are(data, tmp_path, monkeypatch):
    training = Training(data, tmp_path, *TINY)
    compute = training.trainer.criterion.compute_loss
    monkeypatch.setattr(
        training.trainer.criterion, "compute_loss", lambda *a, **k: tuple(x + math.inf for x in compute(*a, **k))
    )
    event = training.event()
    assert event["kind"] == LOSS and event["reason"] == "the loss is inf" and event["update"] == 1
    assert event["first"] is None


def test_finite_gradients_whose_norm_overflows(data, tmp_path, monkeypatch):
    training = Training(data, tmp_path, *TINY)
    backward = training.trainer.optimizer.backward
    monkeypatch.setattr(training.trainer.optimizer, "backward", lambda loss: backward(loss * 1e25))
    event = training.event()
    assert event["kind"] == GRADIENTS and event["first"]["direction"] == "norm"
    assert text.place(event).startswith("nowhere: every gradient is finite, their norm is not")


def test_overflows_are_counted_and_only_the_floor_is_a_divergence(data, tmp_path, monkeypatch):
    """Loss scale 32, halved at each overflow, floor 1: two overflows, an update at 8, then 4, 2 and out."""
    training = Training(data, tmp_path, *TINY)
    trainer, optimizer = training.trainer, training.trainer.optimizer
    monkeypatch.setattr(torch.Tensor, "cuda", lambda self: self)  # fairseq's in the branch of an overflow
    optimizer.scaler = DynamicLossScaler(init_scale=32.0, min_loss_scale=1.0)
    trainer.cfg.common.fp16 = True
    overflows = iter([True, True, False, True, True, True, True])
    clip = optimizer.clip_grad_norm

    def clip_grad_norm(*args, **kwargs):
        norm = clip(*args, **kwargs)
        optimizer.scaler.check_overflow(math.inf if next(overflows) else norm)
        return norm

    optimizer.clip_grad_norm = clip_grad_norm
    for _ in range(5):
        training.step()
    assert trainer.get_num_updates() == 1 and (trainer.watch.skipped, trainer.watch.skipped_in_all) == (2, 4)
    (row,) = trainer.watch.rows()
    assert row["loss_scale"] == 8.0 and row["update"] == 1 and row["gnorm"] > 0
    event = training.event()
    assert event["kind"] == FLOOR and "Minimum loss scale reached" in event["reason"] and event["update"] == 2
    assert event["skipped"] == {"in_a_row": 2, "in_all": 4, "from_scale": 8.0}
    assert any("--bf16" in words for words in event["advice"])


def test_amp_on_a_cpu_diverges_too(data, tmp_path):
    training = Training(data, tmp_path, *TINY, "--amp")
    training.step()
    with torch.no_grad():
        training.model.encoder.layers[0].fc1.weight[0, 0] = math.inf
    assert training.event()["first"]["where"] == "encoder.1.ffn"


def test_the_last_updates_are_those_of_the_log(data, tmp_path):
    """Twenty of them, with the losses of the same training without a watch."""
    training = Training(data, tmp_path, *TINY)
    logged = []
    for _ in range(22):
        rate = training.trainer.get_lr()
        row = training.trainer.train_step([next(training.batches)])
        logged.append((row["loss"], rate))
    rows = training.trainer.watch.rows()
    assert [row["update"] for row in rows] == list(range(3, 23))
    assert [(row["loss"], row["lr"]) for row in rows] == logged[2:]


def test_the_search_leaves_the_model_as_it_was(data, tmp_path):
    """The batch that failed, repaired, trains as if nothing had been."""
    losses = []
    for broken in (False, True):
        training = Training(data, tmp_path, *TINY)
        training.step()
        samples, weight = [next(training.batches)], training.model.decoder.layers[1].fc1.weight
        if broken:
            kept = weight.detach().clone()
            with torch.no_grad():
                weight[0] = math.nan
            with pytest.raises(Diverged) as caught:
                training.trainer.train_step(samples)
            report.event(training.trainer, caught.value.stop, 1)
            with torch.no_grad():
                weight.copy_(kept)
        training.trainer.train_step(samples)
        losses.append(training.trainer.train_step(samples)["loss"])
        assert not any(module._forward_hooks for module in training.model.modules())
    assert losses[0] == losses[1]
