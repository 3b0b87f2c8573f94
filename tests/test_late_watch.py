"""A stable training that begins to grow is told of before its numbers end, and few others are."""

import logging
import math
import random
import re

import pytest
import torch

from deepnet_fairseq.errors import UserError
from deepnet_fairseq.plugin import config
from deepnet_fairseq.plugin.divergence.late import ENOUGH, GROWTH, Growth, of_blocks, of_updates
from scripts import late_watch

from .conftest import TRAIN_FLAGS
from .support import ranks
from .support.diverging import TINY, Training, weights
from .support.helpers import ROOT
from .test_equal_processes import MODES

PAGE = (ROOT / "results" / "late_watch.md").read_text(encoding="utf-8")


def alarms(shape, numbers=1000, name="gradient norm", noise=0.3, seed=0, unit=of_updates):
    """Of shape(i) times log-normal noise: where, and how large the growth is said to be."""
    draw, history, found = random.Random(seed), unit(name), []
    for i in range(numbers):
        if grown := history.told(shape(i) * math.exp(draw.gauss(0, noise))):
            found.append((i, grown))
    return found


@pytest.mark.parametrize("shape", [
    lambda i: 1.0,
    lambda i: 1 / (1 + i / 100),  # as a loss falls
    lambda i: 1 + i / 300,  # as a norm rises that always did
    lambda i: 100.0 if i % 50 > 47 else 1.0,  # two batches of fifty
    lambda i: 50.0 if i < ENOUGH else 1.0,  # it begins high
])  # fmt: skip
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_what_is_no_growth(shape, seed):
    assert alarms(shape, seed=seed) == []
    assert alarms(lambda i: 10.0, seed=seed, name="loss", noise=0.03) == []


@pytest.mark.parametrize(("factor", "within"), [(3, 10), (20, 3)])
def test_a_step_is_noticed_within_ten_numbers_or_three(factor, within):
    """A step of `factor` is found, with its size to within three times the noise, and not before it is there."""
    (first, *more) = alarms(lambda i: factor if i >= 500 else 1.0)
    assert 500 < first[0] < 500 + within and not more, "what follows is the new measure"
    assert abs(math.log(first[1] / factor)) < 0.9


def test_slow_growth_is_noticed_before_it_is_large():
    (first, *_) = alarms(lambda i: 1.02 ** max(0, i - 500), 700)
    assert 1.02 ** (first[0] - 500) < 5
    (first, *_) = alarms(lambda i: 1.1 ** max(0, i - 40), 80, unit=of_blocks, noise=0.05)
    assert 1.1 ** (first[0] - 40) < 5


def test_the_unit_does_not_matter():
    """Of what is compared with itself."""
    grows = lambda i: 1.03 ** max(0, i - 300)  # noqa: E731
    one, thousand = alarms(grows), alarms(lambda i: 1000 * grows(i))
    assert [i for i, _ in one] == [i for i, _ in thousand]
    assert [g for _, g in one] == pytest.approx([g for _, g in thousand])


def test_numbers_that_are_not_finite_or_equal():
    history = of_updates("loss")
    assert not any(history.told(value) for _ in range(200) for value in (math.nan, math.inf, 0.0, -1.0, 2.0))
    growth = Growth()
    said = [growth.told({"gradient norm": 1.0 if i < 300 else 4.0, "loss": 2.0}) for i in range(400)]
    first = next(word for word in said if word)
    assert first == "the gradient norm is 4 times its median of the updates before" and "loss" in GROWTH


def test_false_alarms_on_all_recorded_runs():
    """None of them ended in numbers that are not finite. The page says how many, of those that there were then."""
    found = [late_watch.replay(record) for record in sorted((ROOT / "results" / "runs").rglob("*.run.json"))]
    judged = [one for one in found if one is not None]
    count, alarmed = map(int, re.search(r"\| (\d+) of (\d+) \|", PAGE).groups()[::-1])
    assert len(judged) >= count > 150 and sum(map(bool, judged)) >= alarmed
    assert sum(map(bool, judged)) <= 0.02 * len(judged)


def test_no_bit_of_a_training_changes_and_the_layer_is_named(data, tmp_path, caplog):
    """Looked at in each of the first updates; then the first decoder layer's output grows tenfold."""
    trainings = [Training(data, tmp_path, *TINY, "--watch-interval", interval) for interval in ("1", "0")]
    for _ in range(4):
        for training in trainings:
            training.step()
    watched, alone = (training.model.state_dict() for training in trainings)
    assert all(watched[name].equal(alone[name]) for name in alone)
    assert len(trainings[0].trainer.late.layers.looks) == 3 and trainings[1].trainer.late.layers is None
    layer = trainings[0].model.decoder.layers[0]
    with torch.no_grad():
        layer.fc2.weight *= 30
    trainings[0].trainer.late.wanted = True
    with caplog.at_level(logging.WARNING):
        trainings[0].step()
    (line,) = (record.getMessage() for record in caplog.records if "growing most" in record.getMessage())
    assert line.startswith("growing most at update 5: ") and "the LayerNorm's input of decoder.1.ffn (" in line, line


def alarmed(*process):
    """A rank whose numbers have grown at update 5."""
    told = Growth.told

    def at_five(growth, numbers):
        made = growth.__dict__["made"] = getattr(growth, "made", 0) + 1
        return "it grows" if made == 5 else told(growth, numbers)

    Growth.told = at_five
    ranks.be_rank(*process)


@pytest.mark.smoke
@pytest.mark.parametrize("mode", ["ddp", "zero"])
def test_two_processes_say_it_once_and_train_as_without(mode, data, tmp_path, monkeypatch):
    """A rank of a sharded model has parts of gradients, and names no layer."""
    monkeypatch.setattr(ranks, "be_rank", alarmed)
    logs, ended = [], []
    for interval in ("1", "0"):
        folder = tmp_path / interval
        folder.mkdir()
        flags = (*TRAIN_FLAGS, *TINY, *MODES[mode], "--max-update", "8", "--watch-interval", interval)
        logs.append(ranks.train(2, folder / "log", data, *flags, "--save-dir", folder))
        ended.append(weights(folder / "checkpoint_last.pt"))
    said = (tmp_path / "1" / "log").read_text()
    assert said.count("growing at update 5: it grows") == 1
    assert said.count("growing most at update 6: the gradient norm of ") == (mode != "fsdp")
    assert [row["loss"] for row in logs[0]] == [row["loss"] for row in logs[1]] and len(logs[0]) == 8
    assert all(ended[0][name].equal(ended[1][name]) for name in ended[1])


def test_the_flag():
    with pytest.raises(UserError, match="--watch-interval -1: must be 0 or more"):
        config.namespace("deepnet_transformer", watch_interval=-1)


@pytest.mark.slow
@pytest.mark.parametrize("fault", late_watch.FAULTS)
def test_a_training_made_to_diverge_late(fault, data):
    """Told of after the fault and before the end, unless that is in the next update; a training without, never."""
    found = late_watch.train(data, fault)
    if fault.startswith("none"):
        assert not found["alarms"] and found["ended"] is None
        return
    assert all(update >= late_watch.FROM for update in found["alarms"])
    if "1,000" not in fault:
        assert found["alarms"] and found["alarms"][0] < (found["ended"] or late_watch.UPDATES)
