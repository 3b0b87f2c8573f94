"""Tests of --save-interval-updates where an epoch ends with an update that is to be saved."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from ..conftest import TRAIN_FLAGS
from ..faults import states
from ..support.diverging import train
from ..support.lives import TINY, assert_ends_as_undisturbed, status_of_training

FOUR_UPDATES_AN_EPOCH = (  # of the 20 sentences of the test set
    "--train-subset", "test", "--batch-size", "5", "--required-batch-size-multiple", "1", "--max-tokens", "10000",
)  # fmt: skip
FLAGS = (*TINY, *FOUR_UPDATES_AN_EPOCH)
VALIDATED = tuple(flag for flag in TRAIN_FLAGS if flag != "--disable-validation")
SAVED_BY_EPOCHS = tuple(flag for flag in VALIDATED if flag != "--no-epoch-checkpoints")


def numbered_checkpoints(folder: Path) -> set[str]:
    """Return what follows "checkpoint" in the names of checkpoints: "2" of an epoch, "_3_10" of an update of it."""
    names = {path.stem.removeprefix("checkpoint") for path in folder.glob("checkpoint*.pt")}
    return names - {"_last", "_previous", "_best"}


CHECKPOINTS_OF_13_UPDATES = {  # flags -> checkpoints; updates 4, 8 and 12 end an epoch
    "--save-interval-updates 2": {"_1_2", "_1_4", "_2_6", "_2_8", "_3_10", "_3_12"},
    "--save-interval-updates 4": {"_1_4", "_2_8", "_3_12"},
    "--save-interval-updates 6": {"_2_6", "_3_12"},
    # the last three
    "--save-interval-updates 2 --keep-interval-updates 3": {"_2_8", "_3_10", "_3_12"},
    # the last one, and those whose update is divisible by 8
    "--save-interval-updates 2 --keep-interval-updates 1 --keep-interval-updates-pattern 8": {"_2_8", "_3_12"},
    # fairseq saves no update before that of --validate-after-updates
    "--save-interval-updates 4 --validate-after-updates 4": {"_1_4", "_2_8", "_3_12"},
    "--save-interval-updates 4 --validate-after-updates 5": {"_2_8", "_3_12"},
    # only every second epoch is validated; as many checkpoints are saved as without the flag
    "--save-interval-updates 4 --validate-interval 2": {"_1_4", "_2_8", "_3_12"},
}


@pytest.mark.parametrize("flags", CHECKPOINTS_OF_13_UPDATES)
def test_an_update_that_ends_an_epoch_is_saved_like_others(flags, data, tmp_path):
    """fairseq saves such an update as the epoch's checkpoint only, which --no-epoch-checkpoints switches off."""
    train(data, tmp_path, *FLAGS, "--max-update", "13", *flags.split(), common=VALIDATED)

    assert numbered_checkpoints(tmp_path) == CHECKPOINTS_OF_13_UPDATES[flags]


class SavedTraining(NamedTuple):
    """The folder of a training, and the names of the files that torch.save wrote to, in order."""

    folder: Path
    written: list[str]


@pytest.fixture(scope="module")
def saved_by_updates_and_epochs(data, tmp_path_factory) -> SavedTraining:
    """Provide a training of 12 updates: every second one and every epoch is saved, the last two of each are kept."""
    folder = tmp_path_factory.mktemp("epochs")
    written = []
    save = torch.save

    def note_and_save(content, file):
        written.append(file.name)
        save(content, file)

    keep_two = ("--save-interval-updates", "2", "--keep-interval-updates", "2", "--keep-last-epochs", "2")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "save", note_and_save)
        train(data, folder, *FLAGS, *keep_two, "--max-update", "12", common=SAVED_BY_EPOCHS)
    return SavedTraining(folder, written)


def test_old_checkpoints_of_updates_and_of_epochs_are_removed(saved_by_updates_and_epochs):
    folder = saved_by_updates_and_epochs.folder

    assert numbered_checkpoints(folder) == {"2", "3", "_3_10", "_3_12"}


@pytest.mark.parametrize("name", ["checkpoint3.pt", "checkpoint_last.pt"])
def test_an_update_and_the_epoch_that_it_ends_are_one_file(name, saved_by_updates_and_epochs):
    folder = saved_by_updates_and_epochs.folder

    assert (folder / name).samefile(folder / "checkpoint_3_12.pt")


def test_an_update_that_ends_an_epoch_is_written_once(saved_by_updates_and_epochs):
    """Every second update of 12 is written, and the updates that end an epoch are among these."""
    written = saved_by_updates_and_epochs.written

    assert len(written) == 12 // 2


def assert_a_resume_from_the_epochs_end_changes_nothing(folder, *command) -> None:
    """Check that a training that resumes from its save at an epoch's end, update 4, ends as it did when it went on.

    folder: for both trainings; command: arguments of fairseq-train
    """
    went_on = folder / "went_on"
    resumed = folder / "resumed"
    assert status_of_training(folder / "log", *command, "--save-dir", went_on) == 0
    from_the_epochs_end = ("--restore-file", went_on / "checkpoint_1_4.pt")

    assert status_of_training(folder / "log", *command, *from_the_epochs_end, "--save-dir", resumed) == 0

    actual = states.load(resumed / "checkpoint_last.pt")
    expected = states.load(went_on / "checkpoint_last.pt")
    assert list(states.differences(actual, expected)) == []


def test_a_resume_from_an_epochs_end_ends_as_the_training_that_went_on(data, tmp_path):
    command = (data, *VALIDATED, *FLAGS, "--dropout", "0.1", "--save-interval-updates", "4", "--max-update", "10")

    assert_a_resume_from_the_epochs_end_changes_nothing(tmp_path, *command)


def test_the_loss_that_a_schedule_goes_by_is_saved_with_epoch_weights_too(data, tmp_path):
    """The rate falls after each epoch, because no loss falls by its whole size; a resume makes the first such step."""
    falling = (
        "--lr-scheduler", "reduce_lr_on_plateau", "--lr-patience", "0", "--lr-threshold", "1", "--warmup-updates", "1",
    )  # fmt: skip
    saves = ("--epoch-weights", "last:1", "--save-interval-updates", "4")

    assert_a_resume_from_the_epochs_end_changes_nothing(
        tmp_path, data, *VALIDATED, *FLAGS, *falling, *saves, "--max-update", "10"
    )


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("kind", "moment"),
    [
        pytest.param(signal.SIGTERM, ("update", 4), id="SIGTERM in the epoch's last update"),
        # the first validation, after update 2, has four batches, and this is the second batch of the next one
        pytest.param(signal.SIGTERM, ("validation", 6), id="SIGTERM in the validation at the epoch's end"),
        # update 2 renames checkpoint_1_2, _best and _last into place, update 4 checkpoint_1_4 and then _best
        pytest.param(signal.SIGKILL, ("rename", 5), id="SIGKILL in the save of the epoch's last update"),
    ],
)
def test_a_training_interrupted_at_an_epochs_end_ends_as_one_left_alone(kind, moment, data, tmp_path):
    """moment: as status_of_training takes it, the n-th call of a function of fairseq's or of os.replace."""
    command = (data, *VALIDATED, *FLAGS, "--save-interval-updates", "2", "--max-update", "9")

    assert_ends_as_undisturbed(tmp_path, command, [moment], kind=kind)
