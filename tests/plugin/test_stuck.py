"""Tests of --stop-stuck, which ends a training that learns word frequencies and no more."""

import math
import re

import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy import label_smoothed_nll_loss
from fairseq.logging import metrics

from deepnet_fairseq.plugin import stuck
from deepnet_fairseq.plugin.trainer import build_trainer, parse_training_flags

from ..conftest import TRAIN_FLAGS
from ..support.diverging import TINY, Training, train, updates
from ..support.helpers import PAD, run
from ..support.lm_trainings import FLAGS, KINDS, make_text

WATCHED = tuple(flag for flag in TRAIN_FLAGS if flag != "--disable-validation")
# This rate changes nothing: the model guesses at random, which is worse than by frequencies.
STILL = (*TINY, "--lr", "1e-9", "--validate-interval-updates", "2", "--save-interval-updates", "2")


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.4])
def test_the_bound_is_the_lowest_loss_of_a_constant_prediction(smoothing):
    """The bound is the lowest loss of a constant prediction, as descent on fairseq's own loss finds it."""
    target = torch.tensor([4, 4, 4, 5, 5, 6])
    logits = torch.zeros(9, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([logits], max_iter=200, line_search_fn="strong_wolfe")

    def loss():
        optimizer.zero_grad()
        lprobs = logits.log_softmax(0).expand(len(target), -1)
        value = label_smoothed_nll_loss(lprobs, target, smoothing)[0] / len(target) / math.log(2)
        value.backward()
        return value

    optimizer.step(loss)
    assert float(loss()) == pytest.approx(stuck.entropy(torch.bincount(target, minlength=9), smoothing), abs=1e-5)


def test_updates_count_from_the_first_bad_validation_in_a_row():
    watch = stuck.Stuck(300)
    for update, loss in ((100, 9.0), (200, 8.0), (300, 7.4), (400, 7.6), (500, 8.0), (600, 8.1)):
        watch.note_validation(update, loss, 8.0)
        assert not watch.over
    watch.note_validation(700, 7.6, 8.0)
    assert watch.over and watch.since == 400 and watch.headline().startswith("stuck at update 700: since update 400 ")
    watch.limit = 0
    assert not watch.over


@pytest.fixture(scope="module")
def ended(data, tmp_path_factory):
    """Provide a training that cannot learn, stopped after 6 updates: its folder and output."""
    folder = tmp_path_factory.mktemp("stuck")
    flags = (*WATCHED, *STILL, "--stop-stuck", "6", "--max-update", "20", "--save-dir", folder)
    return folder, run("fairseq-train", data, *flags, check=False)


def test_a_model_that_learns_nothing_is_stopped(ended):
    """A model that learns nothing is stopped at update 8, with status 4 and one line; its checkpoints stay."""
    folder, done = ended
    assert done.returncode == stuck.STATUS == 4
    (line,) = (line for line in done.stdout.splitlines() if "error: " in line)
    assert line.startswith("fairseq-train: error: stuck at update 8: since update 2 ")
    assert updates(folder) == 8


def test_it_stays_stopped_and_goes_on_if_told(ended, data, capsys):
    """A stopped training makes no update when it is started again; with --stop-stuck 0 it continues."""
    folder, _ = ended
    with pytest.raises(SystemExit) as again:
        validated_train(data, folder, "--stop-stuck", "6")
    assert again.value.code == stuck.STATUS and updates(folder) == 8
    assert "error: stuck at update 8: " in capsys.readouterr().err
    validated_train(data, folder, "--stop-stuck", "0", "--max-update", "9")
    assert updates(folder) == 9


def validated_train(data, folder, *flags):
    train(data, folder, *STILL, "--max-update", "20", *flags, common=WATCHED)


def test_a_model_that_learns_is_not_stopped(data, tmp_path, caplog):
    """A model that learns is not stopped, although it was no better than guessing for a while."""
    shallow = ("--encoder-layers", "1", "--decoder-layers", "1", "--encoder-embed-dim", "32", "--lr", "2e-2")
    flags = ("--stop-stuck", "80", "--max-update", "90", "--validate-interval-updates", "10")
    train(data, tmp_path, *TINY, *shallow, *flags, common=WATCHED)
    assert "hardly better than guessing" in caplog.text


@pytest.mark.parametrize("kind", KINDS)
def test_a_language_models_bound_is_of_what_its_loss_is_of(kind, tmp_path):
    """The bound of a language model counts what its loss counts: all tokens, or the masked ones."""
    flags = (*KINDS[kind], "--stop-stuck", "10", "--save-dir", str(tmp_path))
    trainer = build_trainer(parse_training_flags([str(make_text(tmp_path)), *FLAGS, *flags]))
    trainer.task.load_dataset("valid")
    batches = list(trainer.get_valid_iterator("valid").next_epoch_itr(shuffle=False))
    with metrics.aggregate(new_root=True) as meters:
        for sample in batches:
            trainer.valid_step(sample)
    targets = torch.cat([sample["target"].flatten() for sample in batches])
    counts = targets[targets.ne(PAD)].bincount()
    share = counts.sum() / sum(sample["net_input"]["src_tokens"].ne(PAD).sum() for sample in batches)
    assert share == 1.0 if kind == "causal" else 0.1 < share < 0.2
    trainer.task.post_validate(trainer.get_model(), meters.get_smoothed_values() | {"num_updates": 0}, meters)
    bound = torch.distributions.Categorical(counts.double()).entropy() / math.log(2)
    assert trainer.stuck.bound == pytest.approx(float(bound)) and trainer.stuck.loss > trainer.stuck.bound


@pytest.mark.smoke
def test_two_processes_agree(data, ended, tmp_path):
    """Two processes, which see half of the text each, have the bound of one and end together."""
    flags = (*WATCHED, *STILL, "--stop-stuck", "2", "--max-update", "20", "--save-dir", tmp_path)
    both = run("fairseq-train", data, *flags, "--distributed-world-size", "2", check=False)
    assert both.returncode == stuck.STATUS and both.stdout.count("error: stuck at update 4: since update 2 ") == 1
    bounds = [re.search(r"hardly better .*, guessing ([\d.]+) bits", done.stdout)[1] for done in (ended[1], both)]
    assert bounds[0] == bounds[1]


WRONG = {
    "--disable-validation": ("--disable-validation",),
    "--sentence-avg": ("--sentence-avg",),
    "--criterion": ("--criterion", "label_smoothed_cross_entropy_with_ctc"),
}


@pytest.mark.parametrize("flag", WRONG)
def test_flags_that_leave_nothing_to_go_by(flag, data, tmp_path, capsys):
    with pytest.raises(SystemExit):
        train(data, tmp_path / "run", *TINY, "--stop-stuck", "9", *WRONG[flag], common=WATCHED)
    assert f"error: --stop-stuck: not with {flag}" in capsys.readouterr().err and not (tmp_path / "run").exists()


def test_each_target_is_counted_once(data, tmp_path):
    """Each target is counted once, although a process without data gets empty batches."""
    watch = stuck.Stuck(1)
    trainer = Training(data, tmp_path, *TINY).trainer
    for sample in ({"target": torch.tensor([[4, 4, 2], [5, 2, PAD]])}, {}, None):
        watch.count(sample, trainer.task)
    assert watch.counts.nonzero().flatten().tolist() == [2, 4, 5] and watch.counts.sum() == 5
