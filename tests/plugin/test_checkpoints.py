"""Tests of checkpoint files: written whole or not at all, damage noticed, shared memory kept shared."""

from __future__ import annotations

import errno
import io
import logging
import os
import signal

import pytest
import torch
from fairseq.file_io import PathManager

from deepnet_fairseq.plugin.checkpoints import atomic, reading
from deepnet_fairseq.plugin.checkpoints.saving import on_cpu

from ..support.broken import flip_a_bit
from ..support.errors import refused
from ..support.prepared import files_in

NO_SUFFIX = ""  # of --checkpoint-suffix


def state_after(updates: int, size: int = 100) -> dict:
    """Return the content of a small checkpoint, whose only weight differs from update to update.

    size: numbers of the weight
    """
    weights = torch.arange(size, dtype=torch.float32) + updates
    return {"model": {"w": weights}, "optimizer_history": [{"num_updates": updates}]}


def file_names(folder) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.fixture
def last(tmp_path):
    """Provide the path of a checkpoint_last.pt, which is not there yet."""
    return tmp_path / "checkpoint_last.pt"


@pytest.fixture
def previous(tmp_path):
    """Provide the path of checkpoint_previous.pt, by which the last checkpoint but one is kept."""
    return tmp_path / "checkpoint_previous.pt"


# Saving


@pytest.fixture(params=[True, False], ids=["hard links", "no hard links"])
def file_system(request, monkeypatch):
    """Run the test on a file system with hard links, and on one without."""

    def refuse(*paths):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    has_hard_links = request.param
    if not has_hard_links:
        monkeypatch.setattr(os, "link", refuse)


@pytest.mark.usefixtures("file_system")
def test_the_first_save_has_no_previous_checkpoint(last, tmp_path):
    atomic.save(state_after(1), last)

    assert reading.updates(last) == 1
    assert file_names(tmp_path) == {last.name}


@pytest.mark.usefixtures("file_system")
@pytest.mark.parametrize("saves", [2, 3])
def test_a_save_keeps_the_one_before_as_checkpoint_previous(saves, last, previous, tmp_path):
    for updates in range(1, saves + 1):
        atomic.save(state_after(updates), last)

    assert reading.updates(last) == saves
    assert reading.updates(previous) == saves - 1
    assert file_names(tmp_path) == {last.name, previous.name}


@pytest.mark.usefixtures("file_system")
def test_saving_another_checkpoint_leaves_checkpoint_previous(last, previous, tmp_path):
    atomic.save(state_after(1), last)
    atomic.save(state_after(2), last)

    atomic.save(state_after(3), tmp_path / "checkpoint_best.pt")

    assert reading.updates(last) == 2
    assert reading.updates(previous) == 1


@pytest.mark.usefixtures("file_system")
def test_a_save_follows_two_that_were_killed_between_their_renames(last, previous):
    """A save gives checkpoint_last the name checkpoint_previous, and then the new file the name checkpoint_last.

    A run that was killed in between leaves one file with both names. The next save keeps what this file holds.
    """
    for updates in (1, 2, 3):
        atomic.save(state_after(updates), last)
    for _killed_run in range(2):
        atomic.keep_previous(last)  # the first rename of a save

    atomic.save(state_after(4), last)

    assert reading.updates(last) == 4
    assert reading.updates(previous) == 3


# Functions that a save calls, each with its module: a test kills the process in the place of one of them.
MOMENTS = {"save": torch, "fsync": os, "link": os, "replace": os}


@pytest.fixture(params=MOMENTS)
def killed_save(request, last):
    """Save a checkpoint after one update; kill the process that saves the next one at one of the MOMENTS."""
    function = request.param
    atomic.save(state_after(1), last)

    child = os.fork()
    if not child:
        setattr(MOMENTS[function], function, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        atomic.save(state_after(2), last)
        os._exit(0)

    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL


@pytest.mark.usefixtures("killed_save")
def test_a_killed_save_leaves_the_old_checkpoint(last, tmp_path):
    assert reading.updates(last) == 1
    assert list(tmp_path.glob("*.part")), "no unfinished file: the save was not killed"


@pytest.mark.usefixtures("killed_save")
def test_a_new_run_removes_what_killed_saves_have_left(last, previous, tmp_path):
    (tmp_path / "weights7.pt.1.part").write_bytes(b"of a killed run of process 1")
    (tmp_path / "generated.part").write_bytes(b"of another program")

    atomic.remove_unfinished(tmp_path)
    atomic.save(state_after(3), last)

    assert reading.updates(last) == 3
    assert reading.updates(previous) == 1
    assert file_names(tmp_path) == {last.name, previous.name, "generated.part"}


def test_a_full_disk_leaves_the_old_checkpoint(last, tmp_path):
    """A full disk is reported with the system's reason, not torch's, and the old file stays unchanged."""
    atomic.save(state_after(1), last)
    before = files_in(tmp_path)
    unfinished = tmp_path / f"checkpoint_last.pt.{os.getpid()}.part"  # name of the file that a save writes first
    unfinished.symlink_to("/dev/full")  # which takes no byte

    with refused(last) as caught:
        atomic.save(state_after(2, size=100_000), last)

    assert caught.type is atomic.SaveError
    assert os.strerror(errno.ENOSPC) in caught.value.way_out
    assert files_in(tmp_path) == before
    assert file_names(tmp_path) == {last.name}


def test_a_copy_over_the_last_checkpoint_keeps_it_as_checkpoint_previous(last, previous, tmp_path):
    """fairseq saves a checkpoint once, and copies it to its other names by PathManager.copy."""
    other = tmp_path / "checkpoint_1_2.pt"
    torch.save(state_after(1), last)
    torch.save(state_after(2), other)

    assert PathManager.copy(str(other), str(last), overwrite=True)

    assert reading.updates(last) == 2
    assert reading.updates(previous) == 1


# Damage

FOLDER_BIT = 0x10  # in a zip member's attributes: turns it into a folder, for which torch reads uninitialised memory


def bits_to_flip(offset: int) -> set[int]:
    """Return the bits to flip in the byte at an offset: FOLDER_BIT, and one of all eight by turns in every fourth."""
    if offset % 4 == 0:
        return {FOLDER_BIT, 1 << offset // 4 % 8}
    return {FOLDER_BIT}


def test_a_flipped_bit_in_any_byte_is_noticed(tmp_path):
    """A flipped bit is reported as damage, unless torch reads the same tensor, as after a flip in a time stamp."""
    path = tmp_path / "checkpoint1.pt"
    expected = torch.arange(100.0)
    file = io.BytesIO()
    torch.save({"w": expected}, file)
    content = file.getvalue()

    for offset, byte in enumerate(content):
        for bit in bits_to_flip(offset):
            path.write_bytes(content[:offset] + bytes([byte ^ bit]) + content[offset + 1 :])

            if reading.damage(path) is None:
                assert torch.equal(torch.load(path)["w"], expected), (offset, bit)


def test_formats_before_torch_1_6_are_left_to_torch(tmp_path):
    path = tmp_path / "old.pt"
    torch.save(state_after(1), path, _use_new_zipfile_serialization=False)

    reading.check_whole(path)  # raises no UserError


def test_a_missing_file_is_described_in_the_systems_words(tmp_path):
    assert reading.damage(tmp_path / "none.pt") == os.strerror(errno.ENOENT)


# Resuming from another checkpoint than the last

# Updates of a folder's checkpoints. A resume takes the first whole one in this order: the most updates first, whatever
# the name, but the best by validation at the end.
UPDATES = {
    "checkpoint_last.pt": 9,
    "checkpoint_2_8.pt": 8,
    "checkpoint_previous.pt": 7,
    "checkpoint_2_6.pt": 6,
    "checkpoint1.pt": 4,
    "checkpoint_1_2.pt": 2,
    "checkpoint_best.pt": 5,
    "checkpoint.best_loss_1.5.pt": 3,
}


@pytest.fixture
def checkpoints(tmp_path) -> list:
    """Provide the files of UPDATES, in that order."""
    files = []
    for name, updates in UPDATES.items():
        torch.save(state_after(updates), tmp_path / name)
        files.append(tmp_path / name)
    return files


@pytest.mark.usefixtures("checkpoints")
def test_a_resume_takes_the_last_checkpoint_if_it_is_whole(tmp_path):
    assert reading.other_than_last(tmp_path, NO_SUFFIX) is None


@pytest.mark.parametrize("damaged", range(1, len(UPDATES)))
def test_a_resume_takes_the_newest_whole_checkpoint(damaged, checkpoints, tmp_path):
    """damaged: number of damaged files, counted from the last checkpoint on."""
    for path in checkpoints[:damaged]:
        flip_a_bit(path)

    assert reading.other_than_last(tmp_path, NO_SUFFIX) == checkpoints[damaged]


def test_the_log_names_the_damaged_checkpoint_and_the_one_taken(checkpoints, tmp_path, caplog):
    caplog.set_level(logging.WARNING, reading.log.name)
    damaged, newest_whole = checkpoints[:2]
    flip_a_bit(damaged)

    reading.other_than_last(tmp_path, NO_SUFFIX)

    (message,) = caplog.messages
    assert message.startswith(f"{damaged}: ")
    assert message.endswith(str(newest_whole))


def test_a_folder_of_damaged_checkpoints_is_refused_and_left_alone(checkpoints, tmp_path):
    for path in checkpoints:
        flip_a_bit(path)
    before = files_in(tmp_path)

    with refused(checkpoints[0], tmp_path) as caught:
        reading.other_than_last(tmp_path, NO_SUFFIX)

    assert "--restore-file" in caught.value.way_out
    assert files_in(tmp_path) == before


@pytest.mark.parametrize("folder", ["", "none"], ids=["an empty folder", "no folder"])
def test_a_run_without_checkpoints_begins_anew(folder, tmp_path):
    assert reading.other_than_last(tmp_path / folder, NO_SUFFIX) is None


def test_without_a_last_checkpoint_a_resume_takes_the_newest_other(tmp_path):
    path = tmp_path / "checkpoint_1_3.pt"
    torch.save(state_after(3), path)

    assert reading.other_than_last(tmp_path, NO_SUFFIX) == path


def test_a_checkpoint_without_the_suffix_is_not_taken_with_it(tmp_path):
    torch.save(state_after(3), tmp_path / "checkpoint_1_3.pt")

    assert reading.other_than_last(tmp_path, "-rank-0") is None


# Copies in float32


def test_tied_weights_in_half_precision_stay_tied_in_float32():
    """A checkpoint holds weights in float32, as fairseq's checkpoints do, and a weight with two names once."""
    weight = torch.arange(16.0).bfloat16().view(4, 4)

    copied = on_cpu({"model": {"a": weight, "tie": weight}, "none": None})

    assert torch.equal(copied["model"]["a"], weight.float())
    assert copied["model"]["tie"] is copied["model"]["a"]
    assert copied["none"] is None


def test_tensors_in_full_precision_are_not_copied():
    """Tensors on the CPU in full precision are not copied, in whatever container they are."""
    tensor = torch.ones(3)

    copied = on_cpu({"state": [(tensor, 3)]})

    assert copied["state"][0][0].data_ptr() == tensor.data_ptr()
