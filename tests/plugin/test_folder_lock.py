"""Tests that two trainings never share a folder: each locks its --save-dir, by a file in it."""

from __future__ import annotations

import os
import socket

import pytest

from deepnet_fairseq.plugin.checkpoints import lock
from deepnet_fairseq.plugin.checkpoints.lock import FolderLock

from ..conftest import TRAIN_FLAGS
from ..support import ranks
from ..support.errors import refused
from ..support.lives import TINY, status_of_training

THIS_PROCESS = f"process {os.getpid()} on {socket.gethostname()}"


@pytest.fixture(autouse=True)
def short_wait_for_a_lock(monkeypatch):
    """Wait 0.4 s, not 5, for a folder that is locked."""
    monkeypatch.setattr(lock, "GRACE", 0.4)


@pytest.fixture
def folder(tmp_path):
    """Provide the path of a folder that does not exist yet."""
    return tmp_path / "new" / "run"


@pytest.fixture
def folders_lock(folder):
    """Provide the lock of the folder by a training in this process."""
    taken = FolderLock()
    taken.take(folder)
    yield taken
    taken.release()


def assert_free(folder) -> None:
    """Check that another training can lock the folder."""
    another = FolderLock()
    another.take(folder)
    another.release()


@pytest.mark.usefixtures("folders_lock")
def test_a_folder_that_another_training_has_locked_is_refused_with_its_process(folder):
    with refused(folder) as caught:
        FolderLock().take(folder)

    assert THIS_PROCESS in caught.value.way_out


def test_a_training_may_lock_its_folder_twice(folders_lock, folder):
    folders_lock.take(folder)

    with refused(folder):
        FolderLock().take(folder)


def test_a_training_that_locks_another_folder_frees_the_first(folders_lock, folder, tmp_path):
    folders_lock.take(tmp_path)

    assert_free(folder)


def test_a_released_folder_can_be_locked_again(folders_lock, folder):
    folders_lock.release()

    assert_free(folder)


@pytest.fixture
def one_update(data, folder) -> tuple:
    """Provide the arguments of fairseq-train for one update in the folder."""
    return (data, *TRAIN_FLAGS, *TINY, "--max-update", "1", "--save-dir", folder)


@pytest.mark.smoke
@pytest.mark.usefixtures("folders_lock")
def test_both_ranks_of_a_second_training_end_in_one_line_and_write_nothing(folder, one_update, tmp_path):
    ranks.train(2, tmp_path / "log", *one_update, check=False)

    log = (tmp_path / "log").read_text()
    errors = [line for line in log.splitlines() if "error:" in line]
    assert len(errors) == 2
    assert f"{folder}: " in errors[0]
    assert THIS_PROCESS in errors[0]
    assert "Traceback" not in log
    assert [path.name for path in folder.iterdir()] == [lock.NAME]


@pytest.mark.usefixtures("folders_lock")
def test_a_training_that_saves_nothing_needs_no_lock(one_update, tmp_path):
    status = status_of_training(tmp_path / "log", *one_update, "--no-save")

    assert status == 0


def test_a_training_starts_in_a_released_folder(folders_lock, one_update, tmp_path):
    folders_lock.release()

    status = status_of_training(tmp_path / "log", *one_update)

    assert status == 0
