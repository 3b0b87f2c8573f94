"""Where the numbers of a training end, and what is told of it: every case is made so that the place is known."""

import copy
import math

import pytest
import torch
from fairseq.dataclass.configs import CheckpointConfig
from fairseq.optim.adam import FairseqAdam, FairseqAdamConfig
from fairseq.optim.lr_scheduler import LR_SCHEDULER_DATACLASS_REGISTRY, LR_SCHEDULER_REGISTRY, build_lr_scheduler
from omegaconf import OmegaConf

from deepnet_fairseq.core.methods import METHODS
from deepnet_fairseq.core.slots import NORM_NAMES
from deepnet_fairseq.errors import UserError
from deepnet_fairseq.plugin.divergence import FLOOR, GRADIENTS, LOSS, Diverged, diagnosis
from deepnet_fairseq.plugin.divergence.advice import advice
from deepnet_fairseq.plugin.divergence.rollback import UNSCALED, scale
from deepnet_fairseq.plugin.divergence.search import addresses

from .support.diverging import TINY, Poison, Training
from .support.helpers import small


@pytest.mark.parametrize("method", sorted(METHODS))
def test_the_branch_with_a_broken_weight_is_named(method, data, tmp_path):
    training = Training(data, tmp_path, *TINY, "--method", method, *METHODS[method].train_flags)
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


def test_a_model_that_is_not_ours_is_addressed_by_its_modules(data, tmp_path):
    """Under --amp, at the floor of its loss scale."""
    training = Training(data, tmp_path, "--arch", "transformer", *TINY[2:], "--amp", "--min-loss-scale", "100")
    with torch.no_grad():
        training.model.decoder.layers[0].fc1.bias[0] = math.inf
    event = training.event()
    assert event["kind"] == FLOOR and event["first"]["where"] == event["first"]["module"] == "decoder.layers.0.fc1"
    assert event["parameters"]["first"] == ["decoder.layers.0.fc1.bias"]


def test_a_gradient_that_is_not_finite_behind_a_finite_forward_pass(data, tmp_path):
    flags = ("--checkpoint-activations",)
    twin = Training(data, tmp_path, *TINY, *flags)
    loss = twin.trainer.train_step([next(twin.batches)])["loss"]
    training = Training(data, tmp_path, *TINY, *flags)
    training.model.decoder.layers[0].fc2.register_forward_hook(lambda module, inputs, y: Poison.apply(y))
    event = training.event()
    assert event["kind"] == GRADIENTS and event["parameters"]["count"] == 0
    assert event["loss"] == pytest.approx(loss, abs=6e-4), "the same dropout; fairseq's log has three digits"
    assert event["first"]["where"] == "decoder.1.ffn" and event["first"]["direction"] == "backward"
    assert "in the backward pass" in diagnosis.long(event)


def test_finite_gradients_whose_norm_overflows(data, tmp_path, monkeypatch):
    training = Training(data, tmp_path, *TINY)
    backward = training.trainer.optimizer.backward
    monkeypatch.setattr(training.trainer.optimizer, "backward", lambda loss: backward(loss * 1e25))
    event = training.event()
    assert event["kind"] == GRADIENTS and event["first"]["direction"] == "norm"
    assert "first           nowhere: every gradient is finite, their norm is not" in diagnosis.long(event)


def test_a_loss_that_is_not_finite_with_gradients_that_are(data, tmp_path, monkeypatch):
    training = Training(data, tmp_path, *TINY)
    criterion, compute = training.trainer.criterion, training.trainer.criterion.compute_loss
    monkeypatch.setattr(criterion, "compute_loss", lambda *a, **k: tuple(x + math.inf for x in compute(*a, **k)))
    event = training.event()
    assert event["kind"] == LOSS and event["reason"] == "the loss is inf" and event["update"] == 1
    assert event["first"] is None


def test_overflows_are_counted_and_only_the_floor_is_a_divergence(data, tmp_path):
    """Loss scale 32, halved at each overflow, floor 1: two overflows, an update at 8, then 4, 2 and out."""
    training = Training(data, tmp_path, *TINY, "--fp16", "--fp16-init-scale", "32", "--min-loss-scale", "1")
    trainer, optimizer = training.trainer, training.trainer.optimizer
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


def test_the_search_leaves_the_model_as_it_was(data, tmp_path):
    """The batch that failed, repaired, trains as if nothing had been; the last probes are in the report."""
    losses = []
    for broken in (False, True):
        training = Training(data, tmp_path, *TINY, "--deepnet-probe", "gradient_norm", "--probe-interval", "1")
        for _ in range(4):
            training.step()
        samples, weight = [next(training.batches)], training.model.decoder.layers[1].fc1.weight
        if broken:
            kept = weight.detach().clone()
            with torch.no_grad():
                weight[0] = math.nan
            with pytest.raises(Diverged) as caught:
                training.trainer.train_step(samples)
            event = diagnosis.event(training.trainer, caught.value.stop, 1)
            assert [row["update"] for row in event["probes"]] == [2, 3, 4]
            assert "gradient_norm: " in diagnosis.long(event) and event["probes"][0]["gradient_norm"]
            with torch.no_grad():
                weight.copy_(kept)
        training.trainer.train_step(samples)
        losses.append(training.trainer.train_step(samples)["loss"])
        assert not any(module._forward_hooks for module in training.model.modules())
    assert losses[0] == losses[1]


SCHEDULES = {
    "cosine": {"warmup_updates": 5, "warmup_init_lr": 1e-4, "min_lr": 1e-5, "lr_period_updates": 8},
    "fixed": {"warmup_updates": 5},
    "inverse_sqrt": {"warmup_updates": 5, "warmup_init_lr": 1e-4},
    "polynomial_decay": {"warmup_updates": 5, "end_learning_rate": 1e-4},
    "reduce_lr_on_plateau": {"warmup_updates": 5},
    "step": {"warmup_updates": 5, "min_lr": 1e-4, "lr_deacy_period": 7},
    "t_fixup": {"decay_period": 7},
    "tri_stage": {"warmup_steps": 5, "hold_steps": 5, "decay_steps": 5},
    "triangular": {"max_lr": 8e-3, "lr_period_updates": 8},
}


@pytest.mark.parametrize("name", sorted(LR_SCHEDULER_REGISTRY.keys() - UNSCALED.keys()))
def test_every_schedule_is_scaled_as_a_whole(name):
    """Of fairseq's and ours, with every learning rate that can be given to it."""
    given = {"optimization": {"lr": [2e-3], "max_update": 20}, "common": {"tpu": False}}
    cfg = OmegaConf.create(given | {"checkpoint": CheckpointConfig()})
    cfg.optimizer = OmegaConf.structured(FairseqAdamConfig)
    cfg.lr_scheduler = OmegaConf.structured(LR_SCHEDULER_DATACLASS_REGISTRY[name])
    cfg.lr_scheduler.update({"_name": name} | SCHEDULES[name])
    rates = []
    for _ in range(2):
        optimizer = FairseqAdam(cfg.optimizer, [torch.nn.Parameter(torch.ones(1))])
        built = build_lr_scheduler(cfg.lr_scheduler, optimizer)
        built.step_begin_epoch(1)
        rates.append([built.step_update(update) or optimizer.get_lr() for update in range(20)])
        scale(cfg, 0.25)
    assert rates[1] == pytest.approx([rate / 4 for rate in rates[0]], rel=1e-12) and max(rates[0]) >= 2e-3 * 0.99
    assert len({*rates[0]}) > 3


@pytest.fixture(scope="module")
def plain(data, tmp_path_factory):
    """A 18L-18L Post-LN's trainer and the report of its first update, in which nothing is wrong but a weight."""
    depth = ("--method", "post_ln", "--encoder-layers", "18", "--decoder-layers", "18", "--lr", "1e-3")
    training = Training(data, tmp_path_factory.mktemp("plain"), *TINY, *depth, "--warmup-updates", "100")
    with torch.no_grad():
        training.model.decoder.layers[0].fc1.weight[0] = math.nan
    event = training.event()
    event["parameters"] = {"count": 0, "first": []}
    return training.trainer, event


def test_every_part_of_a_model_has_an_address():
    """Of a branch's LayerNorm and slots the branch's, of a layer's parts that no branch owns the layer's."""
    model = small(layers=3, method="admin")
    found = addresses(model)
    paths = {module: path for path, module in model.named_modules()}
    for layer in (*model.encoder.layers, *model.decoder.layers):
        for sublayer, site in layer.sites.items():
            norm = getattr(layer, NORM_NAMES[sublayer])
            assert {found[paths[module]] for module in (*layer.slots(sublayer).values(), norm)} == {str(site)}
        assert found[paths[layer.dropout]] == f"{site.stack}.{site.layer}"
    assert found["encoder.embed_tokens"] == "encoder.embed_tokens"


def row(update, loss=7.0, gnorm=1.0):
    return {"update": update, "loss": loss, "gnorm": gnorm, "lr": 1e-4, "loss_scale": None}


BROKEN_WEIGHT = {"count": 1, "first": ["a.weight"]}
ODD = {"sentences": 1, "ids": [5], "source_lengths": [3], "target_lengths": [900]}
SEEN = {  # what is seen -> what is advised, and nowhere else
    "a broken checkpoint": ({"parameters": BROKEN_WEIGHT, "updates": []}, "an older checkpoint"),
    "weights that broke": ({"parameters": BROKEN_WEIGHT, "updates": [row(4)]}, "before this update (a.weight)"),
    "a sentence": ({"batch": ODD}, "sentence 5 of the training set has 3 source and 900 target tokens"),
    "warm-up": ({"update": 60, "setting": {"warmup_updates": 100}}, "update 60 is within the warm-up of 100"),
    "no warm-up": ({"setting": {"warmup_updates": 0}}, "there is no warm-up"),
    "a rate": ({"setting": {"lr": [0.5]}}, "--lr 0.5 is above all that is usual"),
    "gradients": ({"updates": [row(u, gnorm=1.0 if u < 9 else 80.0) for u in range(10)]}, "--clip-norm 1"),
    "a loss": ({"updates": [row(3, 6.5), row(4, 5.5), row(5, 9.5)]}, "rose from 5.5 at update 4 to 9.5"),
}


@pytest.mark.parametrize("seen", SEEN)
def test_advice_is_of_what_was_seen(seen, plain):
    trainer, event = plain
    quiet = copy.deepcopy(event) | {"update": 500, "updates": [row(499)]}
    before = advice(quiet, trainer)
    changes, words = SEEN[seen]
    for key, value in changes.items():
        quiet[key] = quiet[key] | value if key == "setting" else value
    after = advice(quiet, trainer)
    assert any(words in line for line in after) and not any(words in line for line in before), after


def test_advice_by_method_and_precision(plain, monkeypatch):
    trainer, event = plain
    assert any("post_ln is not made for 18 layers: --method deepnorm" in line for line in event["advice"])
    assert not any("--bf16" in line or "omega" in line for line in event["advice"])
    monkeypatch.setitem(trainer.cfg.common, "fp16", True)
    half = event | {"first": event["first"] | {"largest": 60000.0}}
    assert any("values reached 6e+04 of fp16's 65504: --bf16" in line for line in advice(half, trainer))
    told = set()
    for method in METHODS:
        monkeypatch.setitem(trainer.cfg.model, "method", method)
        told |= {method} if any("is not made for" in line for line in advice(event, trainer)) else set()
    assert told == {"post_ln", "post_ln_init"}


def test_what_is_written_is_read_again(plain, tmp_path):
    """Also what is not finite, as words; a broken file is named."""
    _, event = plain
    diagnosis.write(tmp_path, [event, event])
    (again, _) = diagnosis.read(tmp_path)
    assert again["loss"] == "nan" and again["update"] == 1 and again["first"] == event["first"]
    assert diagnosis.long(again) in (tmp_path / diagnosis.TEXT).read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == [diagnosis.JSON, diagnosis.TEXT]
    for content in ("", "[]", '{"format": 1}', '{"format": 2, "events": []}', '{"format": 1, "events": [3]}'):
        (tmp_path / diagnosis.JSON).write_text(content)
        with pytest.raises(UserError, match=f"{diagnosis.JSON}: no report of a divergence, or broken"):
            diagnosis.read(tmp_path)
