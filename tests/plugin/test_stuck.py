"""Tests of --stop-stuck N, which ends a training that learns word frequencies and no more.

The bound is the loss of guessing: of the best constant prediction. A validation is bad unless its loss is more than 0.5
bits lower. A training ends once all validations of the last N updates were bad.
"""

import math
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy import label_smoothed_nll_loss
from fairseq.logging import metrics

from deepnet_fairseq.plugin import stuck
from deepnet_fairseq.plugin.trainer import build_trainer, parse_training_flags

from ..conftest import TRAIN_FLAGS
from ..support.diverging import TINY, Training, train, updates_of_last_checkpoint
from ..support.errors import assert_one_line
from ..support.helpers import PAD, run
from ..support.lm_trainings import FLAGS, KINDS, make_text

VALIDATED = tuple(flag for flag in TRAIN_FLAGS if flag != "--disable-validation")
# This learning rate changes nothing: the model guesses at random, which is worse than by frequencies.
LEARNS_NOTHING = (*TINY, "--lr", "1e-9", "--validate-interval-updates", "2", "--save-interval-updates", "2")
MASKED_SHARE = 0.15  # of the tokens, fairseq's default --mask-prob


# The bound


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.4])
def test_the_bound_is_the_lowest_loss_of_a_constant_prediction(smoothing):
    """Descent on fairseq's own loss, with scores that are the same at every place, finds the same bound."""
    vocabulary = 9
    target = torch.tensor([4, 4, 4, 5, 5, 6])
    logits = torch.zeros(vocabulary, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([logits], max_iter=200, line_search_fn="strong_wolfe")

    def bits_per_token():
        """Compute the loss and its gradient."""
        optimizer.zero_grad()
        log_probabilities = logits.log_softmax(0).expand(len(target), -1)
        loss, _ = label_smoothed_nll_loss(log_probabilities, target, smoothing)
        bits = loss / len(target) / math.log(2)
        bits.backward()
        return bits

    optimizer.step(bits_per_token)

    bound = stuck.entropy(torch.bincount(target, minlength=vocabulary), smoothing)
    assert float(bits_per_token()) == pytest.approx(bound, abs=1e-5)


@pytest.mark.parametrize(
    "kind, share, tolerance", [("causal", 1.0, 0.0), ("masked", MASKED_SHARE, 0.05)], ids=["causal", "masked"]
)
def test_a_language_models_bound_is_of_the_tokens_that_its_loss_is_of(kind, share, tolerance, tmp_path):
    """share: the part of the validation set's tokens that are targets: all, or those that are drawn to be masked."""
    flags = (*KINDS[kind], "--stop-stuck", "10", "--save-dir", str(tmp_path))
    trainer = build_trainer(parse_training_flags([str(make_text(tmp_path)), *FLAGS, *flags]))
    trainer.task.load_dataset("valid")
    batches = list(trainer.get_valid_iterator("valid").next_epoch_itr(shuffle=False))

    # a validation as fairseq-train makes it
    with metrics.aggregate(new_root=True) as meters:
        for sample in batches:
            trainer.valid_step(sample)
    trainer.task.post_validate(trainer.get_model(), meters.get_smoothed_values() | {"num_updates": 0}, meters)

    targets = torch.cat([sample["target"].flatten() for sample in batches])
    counts = targets[targets.ne(PAD)].bincount()
    entropy = torch.distributions.Categorical(counts.double()).entropy() / math.log(2)
    assert trainer.stuck.bound == pytest.approx(float(entropy))
    assert trainer.stuck.loss > trainer.stuck.bound  # the model has not been trained

    tokens = sum(sample["net_input"]["src_tokens"].ne(PAD).sum() for sample in batches)
    assert float(counts.sum() / tokens) == pytest.approx(share, abs=tolerance)


@pytest.fixture
def task(data, tmp_path):
    """Provide fairseq's task of a training, with the dictionary of its targets."""
    return Training(data, tmp_path, *TINY).trainer.task


def test_padding_is_no_target(task):
    monitor = stuck.Stuck(limit=1)

    monitor.count({"target": torch.tensor([[4, 4, 2], [5, 2, PAD]])}, task)

    assert monitor.counts.nonzero().flatten().tolist() == [2, 4, 5]
    assert monitor.counts.sum() == 5


@pytest.mark.parametrize("no_batch", [{}, None], ids=["empty", "none"])
def test_a_process_without_data_counts_no_targets(no_batch, task):
    monitor = stuck.Stuck(limit=1)
    monitor.count({"target": torch.tensor([[4, 4, 2]])}, task)

    monitor.count(no_batch, task)

    assert monitor.counts.sum() == 3


# The updates since the first bad validation


@pytest.fixture
def monitor_at_its_limit():
    """Provide a monitor with a limit of 300 updates whose validations have been bad from update 400 to 700.

    Losses of 7.5 and more are bad, as the bound is 8. Only the loss after update 300 is not bad.
    """
    monitor = stuck.Stuck(limit=300)
    bound = 8.0
    losses = {100: 9.0, 200: 8.0, 300: 7.4, 400: 7.6, 500: 8.0, 600: 8.1}
    for update, loss in losses.items():
        monitor.note_validation(update, loss, bound)
        assert not monitor.over, update
    monitor.note_validation(700, 7.6, bound)
    return monitor


def test_updates_count_from_the_first_bad_validation_in_a_row(monitor_at_its_limit):
    assert monitor_at_its_limit.since == 400
    assert monitor_at_its_limit.over  # at update 700, and not before


def test_the_headline_names_both_updates(monitor_at_its_limit):
    """Scripts look for the first words of the headline."""
    headline = monitor_at_its_limit.headline()

    assert headline.startswith("stuck at update 700: ")
    assert "update 400" in headline


def test_a_limit_of_zero_ends_no_training(monitor_at_its_limit):
    monitor_at_its_limit.limit = 0

    assert not monitor_at_its_limit.over


# Trainings


def train_without_learning(data, folder, *flags: str) -> None:
    """Run fairseq-train in this process, for 20 updates at most, each second of which is validated."""
    train(data, folder, *LEARNS_NOTHING, "--max-update", "20", *flags, common=VALIDATED)


class StoppedTraining(NamedTuple):
    """A training that has been stopped."""

    folder: Path  # of its checkpoints
    program: subprocess.CompletedProcess


@pytest.fixture(scope="module")
def stopped_training(data, tmp_path_factory) -> StoppedTraining:
    """Provide a training of at most 20 updates that cannot learn, with --stop-stuck 6."""
    folder = tmp_path_factory.mktemp("stuck")
    flags = (*VALIDATED, *LEARNS_NOTHING, "--stop-stuck", "6", "--max-update", "20", "--save-dir", folder)
    return StoppedTraining(folder, run("fairseq-train", data, *flags, check=False))


def test_a_training_that_learns_nothing_is_stopped(stopped_training):
    """Validations are bad from the first one on, after update 2. Six updates later the training ends."""
    folder, program = stopped_training

    assert program.returncode == 4  # documented
    assert stuck.STATUS == 4
    assert_one_line(program, "fairseq-train: error: stuck at update 8: ", "update 2 ")
    assert updates_of_last_checkpoint(folder) == 8


def test_a_stopped_training_makes_no_update_when_started_again(stopped_training, data, capsys):
    folder = stopped_training.folder

    with pytest.raises(SystemExit) as ended:
        train_without_learning(data, folder, "--stop-stuck", "6")

    assert ended.value.code == stuck.STATUS
    assert updates_of_last_checkpoint(folder) == 8
    assert "error: stuck at update 8: " in capsys.readouterr().err


def test_a_stopped_training_continues_with_a_limit_of_zero(stopped_training, data, tmp_path):
    shutil.copy(stopped_training.folder / "checkpoint_last.pt", tmp_path)  # of update 8

    train_without_learning(data, tmp_path, "--stop-stuck", "0", "--max-update", "9")

    assert updates_of_last_checkpoint(tmp_path) == 9


def test_a_training_that_learns_is_not_stopped(data, tmp_path, caplog):
    """The training reaches its last update, although the first validations are bad, which the log tells."""
    shallow = ("--encoder-layers", "1", "--decoder-layers", "1", "--encoder-embed-dim", "32", "--lr", "2e-2")
    flags = ("--stop-stuck", "80", "--max-update", "90", "--validate-interval-updates", "10")

    train(data, tmp_path, *TINY, *shallow, *flags, common=VALIDATED)

    assert updates_of_last_checkpoint(tmp_path) == 90
    bad_validations = [record for record in caplog.records if record.name == stuck.logger.name]
    assert bad_validations


@pytest.mark.smoke
def test_two_processes_have_the_bound_of_one_and_end_together(data, stopped_training, tmp_path):
    """Each process sees half of the text, but the bound is that of the whole text."""
    flags = (*VALIDATED, *LEARNS_NOTHING, "--stop-stuck", "2", "--max-update", "20", "--save-dir", tmp_path)

    two = run("fairseq-train", data, *flags, "--distributed-world-size", "2", check=False)

    assert two.returncode == stuck.STATUS
    assert two.stdout.count("error: stuck at update 4: ") == 1
    assert logged_bound(two.stdout) == logged_bound(stopped_training.program.stdout)


def logged_bound(output: str) -> float:
    """Return the loss of guessing that a training logs with its first bad validation."""
    return float(re.search(r"guessing ([\d.]+) bits", output)[1])


# Flags that do not go with --stop-stuck

CONFLICTS = {
    "--disable-validation": ("--disable-validation",),
    "--sentence-avg": ("--sentence-avg",),
    "--criterion": ("--criterion", "label_smoothed_cross_entropy_with_ctc"),
}


@pytest.mark.parametrize("flag", CONFLICTS)
def test_a_flag_without_losses_of_single_words_is_refused(flag, data, tmp_path, capsys):
    """With such a flag no loss can be compared with the bound. The folder of checkpoints is not made."""
    folder = tmp_path / "run"

    with pytest.raises(SystemExit):
        train(data, folder, *TINY, "--stop-stuck", "9", *CONFLICTS[flag], common=VALIDATED)

    line = capsys.readouterr().err.strip().split("\n")[-1]
    assert "error: --stop-stuck: " in line
    assert flag in line
    assert not folder.exists()
