"""Tests of Admin in fairseq's programs: a model is profiled once, before the optimiser is built, and never again.

A profile measures the variance of every residual branch on a batch, from which the branch's omega follows (Liu et al.
2020). It comes from `deepnet profile`, in a file, or from the training itself by --admin-profile auto.
"""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import NamedTuple

import numpy
import pytest
import torch

from deepnet_fairseq.plugin.batches import first_training_batch
from deepnet_fairseq.plugin.trainer import build_trainer, parse_training_flags

from ..conftest import TRAIN_FLAGS
from ..support.errors import assert_one_line
from ..support.helpers import run
from ..support.logs import TRANSLATE, hypotheses, losses

ADMIN = ("--arch", "deepnet_transformer_tiny", "--encoder-layers", "3", "--decoder-layers", "2", "--method", "admin")
BRANCHES = 3 * 2 + 2 * 3  # an encoder layer has two, a decoder layer three
TEST_SENTENCES = 20
PROFILED = "admin profile"  # in a line of the log wherever a model is profiled, or a profile is read


class Profile(NamedTuple):
    path: Path  # a JSON file, {"omega": {"decoder.2.ffn": 1.5, ..}}: a number for each branch
    printed: str  # by the command that wrote it


class Trained(NamedTuple):
    checkpoint: Path
    printed: str  # the log


@pytest.fixture(scope="module")
def profile(data, tmp_path_factory) -> Profile:
    """Provide the file that `deepnet profile` has written, and what the command has printed."""
    path = tmp_path_factory.mktemp("profile") / "profile.json"
    printed = run("deepnet", "profile", data, *TRAIN_FLAGS, *ADMIN, "--out", path).stdout
    return Profile(path, printed)


@pytest.fixture(scope="module")
def trained_with_auto(data, tmp_path_factory) -> Trained:
    """Provide a training of three updates with --admin-profile auto."""
    folder = tmp_path_factory.mktemp("auto")
    flags = ("--admin-profile", "auto", "--max-update", "3", "--save-dir", folder)
    printed = run("fairseq-train", data, *TRAIN_FLAGS, *ADMIN, *flags).stdout
    return Trained(folder / "checkpoint_last.pt", printed)


@pytest.fixture
def losses_with_profile(data):
    """Provide a function that trains with a profile from a file, and returns the losses of three updates."""

    def train(path) -> dict[int, float]:
        flags = ("--admin-profile", path, "--max-update", "3", "--no-save")
        return losses(run("fairseq-train", data, *TRAIN_FLAGS, *ADMIN, *flags).stdout)

    return train


def test_deepnet_profile_writes_an_omega_for_every_branch(profile):
    assert len(json.loads(profile.path.read_text())["omega"]) == BRANCHES
    assert str(profile.path) in profile.printed
    assert "INFO | fairseq." not in profile.printed  # no log of a training


def test_a_training_with_auto_logs_the_profile_once(trained_with_auto):
    (line,) = [line for line in trained_with_auto.printed.splitlines() if PROFILED in line]

    assert "auto" in line
    assert "encoder 1 to" in line  # omega goes from 1, the first branch's, to the last branch's


def test_a_profile_from_a_file_trains_as_auto(profile, trained_with_auto, losses_with_profile):
    assert losses_with_profile(profile.path) == losses(trained_with_auto.printed)


def test_another_omega_in_the_file_changes_the_training(profile, trained_with_auto, losses_with_profile, tmp_path):
    content = json.loads(profile.path.read_text())
    content["omega"]["decoder.2.ffn"] *= 2
    path = tmp_path / "other.json"
    path.write_text(json.dumps(content))

    assert losses_with_profile(path) != losses(trained_with_auto.printed)


@pytest.mark.parametrize("flags", [("--admin-profile", "no-longer-there.json"), ()], ids=["a missing file", "no flag"])
def test_resuming_does_not_profile(flags, data, trained_with_auto):
    """The checkpoint of update 3 holds omega, so a resume needs neither --admin-profile nor the file it names."""
    resume = ("--max-update", "4", "--no-save", "--restore-file", trained_with_auto.checkpoint)

    printed = run("fairseq-train", data, *TRAIN_FLAGS, *ADMIN, *resume, *flags).stdout

    assert list(losses(printed)) == [4]
    assert PROFILED not in printed


def test_resuming_without_checkpoint_last_does_not_profile(data, trained_with_auto, tmp_path):
    """The checkpoint before the last one is in the folder, and is resumed from."""
    shutil.copy(trained_with_auto.checkpoint, tmp_path / "checkpoint_previous.pt")

    printed = run("fairseq-train", data, *TRAIN_FLAGS, *ADMIN, "--max-update", "4", "--save-dir", tmp_path).stdout

    assert list(losses(printed)) == [4]
    assert PROFILED not in printed


def test_translating_does_not_profile(data, trained_with_auto):
    printed = run("fairseq-generate", data, *TRANSLATE, "--path", trained_with_auto.checkpoint).stdout

    assert len(hypotheses(printed)) == TEST_SENTENCES
    assert PROFILED not in printed


def test_training_without_a_profile_is_refused_before_a_folder_is_made(data, tmp_path):
    done = run("fairseq-train", data, *TRAIN_FLAGS, *ADMIN, "--save-dir", tmp_path / "save", check=False)

    assert_one_line(done, "--method admin", "deepnet profile", "--admin-profile auto")
    assert not (tmp_path / "save").exists()


def test_a_profile_of_another_depth_is_refused(data, profile, tmp_path):
    flags = ("--admin-profile", profile.path, "--encoder-layers", "4", "--save-dir", tmp_path / "save")

    done = run("fairseq-train", data, *TRAIN_FLAGS, *ADMIN, *flags, check=False)

    assert_one_line(done, f"--admin-profile {profile.path}", " 3", " 4")  # encoder layers of the profile and the model


def random_states() -> tuple:
    """Return the states of the generators of Python and numpy, from which fairseq draws the order of batches."""
    return random.getstate(), numpy.random.get_state()[1].tolist()


def test_the_profiled_batch_is_the_first_one_trained_on(data):
    """The batch is taken from fairseq's own iterator, which then draws the same random numbers as without a profile."""
    words = [str(data), *TRAIN_FLAGS, *ADMIN, "--admin-profile", "auto", "--seed", "7"]
    trainer = build_trainer(parse_training_flags(words))
    epoch = trainer.get_train_iterator(epoch=1)
    states_before = random_states()

    profiled = first_training_batch(epoch)

    assert random_states() == states_before
    trained = next(epoch.next_epoch_itr(shuffle=True))
    assert torch.equal(profiled["src_tokens"], trained["net_input"]["src_tokens"])
