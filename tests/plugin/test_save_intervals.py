"""Tests of --save-interval-updates where an epoch ends with an update that is to be saved."""

from __future__ import annotations

import signal

import pytest
import torch

from ..conftest import TRAIN_FLAGS
from ..faults import states
from ..support.diverging import train
from ..support.lives import TINY, assert_ends_as_one_left_alone, live

FIVE = ("--train-subset", "test", "--batch-size", "5", "--required-batch-size-multiple", "1", "--max-tokens", "10000")
FLAGS = (*TINY, *FIVE)  # four updates an epoch
VALIDATED = tuple(flag for flag in TRAIN_FLAGS if flag != "--disable-validation")
EPOCHS = tuple(flag for flag in VALIDATED if flag != "--no-epoch-checkpoints")


def names(folder) -> set[str]:
    return {path.name.removeprefix("checkpoint").removesuffix(".pt") for path in folder.glob("checkpoint*.pt")}


ALWAYS = {"_last", "_previous", "_best"}
CASES = {  # flags -> numbered checkpoints after 13 updates
    "--save-interval-updates 2": {"_1_2", "_1_4", "_2_6", "_2_8", "_3_10", "_3_12"},
    "--save-interval-updates 4": {"_1_4", "_2_8", "_3_12"},
    "--save-interval-updates 6": {"_2_6", "_3_12"},
    "--save-interval-updates 2 --keep-interval-updates 3": {"_2_8", "_3_10", "_3_12"},
    "--save-interval-updates 2 --keep-interval-updates 1 --keep-interval-updates-pattern 8": {"_2_8", "_3_12"},
    "--save-interval-updates 4 --validate-after-updates 5": {"_2_8", "_3_12"},
    "--save-interval-updates 4 --validate-interval 2": {"_1_4", "_2_8", "_3_12"},
}


@pytest.mark.parametrize("flags", CASES)
def test_every_update_that_is_to_be_saved_is(flags, data, tmp_path):
    train(data, tmp_path, *FLAGS, "--max-update", "13", *flags.split(), common=VALIDATED)
    assert names(tmp_path) - ALWAYS == CASES[flags]


def test_beside_checkpoints_of_epochs(data, tmp_path, monkeypatch):
    """The update and the epoch that it ends are two names of one file, and old ones of both kinds are removed."""
    written = []
    save = torch.save
    monkeypatch.setattr(torch, "save", lambda content, file: (written.append(file.name), save(content, file)))
    saves = ("--save-interval-updates", "2", "--keep-interval-updates", "2", "--keep-last-epochs", "2")
    train(data, tmp_path, *FLAGS, *saves, "--max-update", "12", common=EPOCHS)
    assert names(tmp_path) - ALWAYS == {"2", "3", "_3_10", "_3_12"}
    assert (tmp_path / "checkpoint3.pt").samefile(tmp_path / "checkpoint_3_12.pt")
    assert (tmp_path / "checkpoint_last.pt").samefile(tmp_path / "checkpoint_3_12.pt")
    assert len(written) == 6  # each of the updates once


def test_a_training_resumes_from_it(data, tmp_path):
    """A training that begins with the checkpoint of an epoch's last update ends as one that went on."""
    common = (data, *VALIDATED, *FLAGS, "--dropout", "0.1", "--save-interval-updates", "4")
    assert live(tmp_path / "log", *common, "--max-update", "10", "--save-dir", tmp_path / "on") == 0
    middle = ("--restore-file", tmp_path / "on" / "checkpoint_1_4.pt")
    assert live(tmp_path / "log", *common, *middle, "--max-update", "10", "--save-dir", tmp_path / "again") == 0
    ended = [states.load(tmp_path / name / "checkpoint_last.pt") for name in ("again", "on")]
    assert list(states.differences(*ended)) == []


@pytest.mark.smoke
@pytest.mark.parametrize(
    "kind, moment",
    [
        (signal.SIGTERM, ("update", 4)),  # the epoch's last update
        (signal.SIGTERM, ("validation", 2)),  # that at its end
        (signal.SIGKILL, ("rename", 5)),  # of that update's checkpoint
    ],
)
def test_an_interrupted_training_has_it_too(kind, moment, data, tmp_path):
    """A signal at an epoch's end takes no checkpoint away: files and numbers are those of a training left alone."""
    command = (data, *VALIDATED, *FLAGS, "--save-interval-updates", "2", "--max-update", "9")
    assert_ends_as_one_left_alone(tmp_path, command, [moment], kind=kind)
