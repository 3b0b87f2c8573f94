"""What a report says, what it advises, and the parts that need no training."""

import copy
import math
from argparse import Namespace

import pytest
import torch
from fairseq.dataclass.configs import CheckpointConfig
from fairseq.optim.adam import FairseqAdam, FairseqAdamConfig
from fairseq.optim.lr_scheduler import LR_SCHEDULER_DATACLASS_REGISTRY, LR_SCHEDULER_REGISTRY, build_lr_scheduler
from omegaconf import OmegaConf

from deepnet_fairseq.divergence import address, report, schedule, text
from deepnet_fairseq.divergence.advice import advice
from deepnet_fairseq.divergence.batch import describe
from deepnet_fairseq.errors import UserError

from .support.diverging import TINY, Training
from .support.helpers import PAD, small

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


@pytest.mark.parametrize("name", sorted(LR_SCHEDULER_REGISTRY.keys() - schedule.UNSCALED.keys()))
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
        schedule.scale(cfg, 0.25)
    assert rates[1] == pytest.approx([rate / 4 for rate in rates[0]], rel=1e-12) and max(rates[0]) >= 2e-3 * 0.99
    assert len({*rates[0]}) > 3


def test_a_schedule_that_cannot_be_scaled_is_refused():
    with pytest.raises(UserError, match="--rollbacks: not with --lr-scheduler manual"):
        schedule.check(Namespace(lr_scheduler=Namespace(_name="manual")))


BROKEN = ("", "[]", "{}", '{"format": 1}', '{"format": 2, "events": []}', "\0", '{"format": 1, "events": [3]}',
          '{"format": 1, "events": {"update": 1}}')  # fmt: skip


@pytest.mark.parametrize("content", BROKEN)
def test_a_broken_report_is_named(content, tmp_path):
    (tmp_path / report.JSON).write_text(content)
    with pytest.raises(UserError, match=f"{report.JSON}: no report of a divergence, or broken"):
        report.read(tmp_path)


def test_every_part_of_a_model_has_an_address():
    """Of every weight its branch's; of a layer's parts that no branch owns the layer's."""
    model = small(layers=3, method="admin")
    found = address.addresses(model)
    paths = {module: path for path, module in model.named_modules()}
    for stack in (model.encoder, model.decoder):
        for layer in stack.layers:
            for weight in layer.weights():
                assert found[paths[weight.linear]] == str(weight.site)
            for sublayer, site in layer.sites.items():
                for module in filter(None, layer.around(sublayer)):
                    assert found[paths[module]] == str(site)
            assert found[paths[layer.dropout]] == f"{site.stack}.{site.layer}"
    assert found["encoder.embed_tokens"] == "encoder.embed_tokens"


def sample(*pairs):
    """A batch of sentences with these source and target lengths."""
    target = torch.full((len(pairs), max(b for _, b in pairs)), PAD)
    for row, (_, length) in zip(target, pairs, strict=True):
        row[:length] = 7
    lengths = torch.tensor([a for a, _ in pairs])
    return {"id": torch.arange(len(pairs)) + 40, "net_input": {"src_lengths": lengths}, "target": target}


def test_a_batch_in_numbers():
    found = describe([sample((3, 5), (4, 2)), None, {}, sample((9, 1))], PAD)
    assert found == {
        "sentences": 3, "ids": [40, 41, 40], "source_lengths": [3, 4, 9], "target_lengths": [5, 2, 1]
    }  # fmt: skip


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


def row(update, loss=7.0, gnorm=1.0):
    return {"update": update, "loss": loss, "gnorm": gnorm, "lr": 1e-4, "loss_scale": None}


ODD = {"sentences": 1, "ids": [5], "source_lengths": [3], "target_lengths": [900]}
SEEN = {  # what is seen -> what is advised, and nowhere else
    "a broken checkpoint": ({"parameters": {"count": 1, "first": ["a.weight"]}, "updates": []}, "an older checkpoint"),
    "weights that broke": (
        {"parameters": {"count": 1, "first": ["a.weight"]}, "updates": [row(4)]},
        "before this update (a.weight)",
    ),
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
    for method in ("deepnorm", "admin", "ds_init", "t_fixup", "pre_ln"):
        monkeypatch.setitem(trainer.cfg.model, "method", method)
        assert not any("is not made for" in line for line in advice(event, trainer)), method


def test_the_short_form_is_short(plain):
    _, event = plain
    event = event | {
        "skipped": {"in_a_row": 3, "in_all": 9, "from_scale": 8.0},
        "parameters": {"count": 4, "first": "a"},
    }
    lines = text.short(event)
    assert len(lines) <= 8 and lines[0] == "diverged at update 1: loss not finite, first at decoder.1.ffn (forward)"
    assert "3 overflows in a row before this, 9 in all" in " ".join(lines)
    assert event["batch"]["sentences"] == len(event["batch"]["ids"]) == len(event["batch"]["target_lengths"]) > 0


def test_what_is_written_is_read_again(plain, tmp_path):
    """Also what is not finite, as words."""
    _, event = plain
    report.write(tmp_path, [event, event])
    (again, _) = report.read(tmp_path)
    assert again["loss"] == "nan" and again["update"] == 1 and again["first"] == event["first"]
    assert text.long(again) in (tmp_path / report.TEXT).read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == [report.JSON, report.TEXT]


def test_the_last_probes_are_in_the_report(data, tmp_path):
    training = Training(data, tmp_path, *TINY, "--deepnet-probe", "gradient_norm", "--probe-interval", "1")
    for _ in range(4):
        training.step()
    with torch.no_grad():
        training.model.decoder.layers[0].fc1.weight[0] = math.nan
    event = training.event()
    assert [row["update"] for row in event["probes"]] == [2, 3, 4]
    assert "gradient_norm: " in text.long(event) and event["probes"][0]["gradient_norm"]
