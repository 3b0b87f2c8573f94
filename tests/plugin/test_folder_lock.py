"""Tests that two trainings never share a folder."""

from __future__ import annotations

import os
import socket

import pytest

from deepnet_fairseq.plugin.checkpoints import lock
from deepnet_fairseq.plugin.checkpoints.lock import FolderLock

from ..conftest import TRAIN_FLAGS
from ..support import ranks
from ..support.errors import refused
from ..support.lives import TINY, live

THIS_PROCESS = f"process {os.getpid()} on {socket.gethostname()}"


@pytest.fixture(autouse=True)
def short_wait_for_a_lock(monkeypatch):
    monkeypatch.setattr(lock, "GRACE", 0.4)


@pytest.fixture
def folder(tmp_path):
    """Provide the path of a folder that does not exist yet."""
    return tmp_path / "new" / "run"


@pytest.fixture
def held(folder):
    """Provide a lock of the folder, as another training has it."""
    held = FolderLock()
    held.take(folder)
    yield held
    held.release()


def assert_free(folder) -> None:
    """Check that another training can lock the folder."""
    another = FolderLock()
    another.take(folder)
    another.release()


def test_a_folder_that_another_training_holds_is_refused_with_its_process(held, folder):
    with refused(folder) as caught:
        FolderLock().take(folder)

    assert f"({THIS_PROCESS})" in caught.value.way_out


def test_a_training_may_lock_its_folder_twice(held, folder):
    held.take(folder)

    with refused(folder):
        FolderLock().take(folder)


def test_a_training_that_locks_another_folder_frees_the_first(held, folder, tmp_path):
    held.take(tmp_path)

    assert_free(folder)


def test_a_released_folder_can_be_locked_again(held, folder):
    held.release()

    assert_free(folder)


@pytest.fixture
def one_update(data, folder):
    """Provide the arguments of fairseq-train for one update in the folder."""
    return (data, *TRAIN_FLAGS, *TINY, "--max-update", "1", "--save-dir", folder)


def test_a_second_training_ends_in_one_line_of_each_rank(held, folder, one_update, tmp_path):
    """It ends before it writes."""
    ranks.train(2, tmp_path / "log", *one_update, check=False)

    log = (tmp_path / "log").read_text()
    errors = [line for line in log.splitlines() if "error:" in line]
    assert len(errors) == 2
    assert f"{folder}: " in errors[0]
    assert THIS_PROCESS in errors[0]
    assert "Traceback" not in log
    assert [path.name for path in folder.iterdir()] == [lock.NAME]


def test_a_training_that_saves_nothing_needs_no_lock(held, one_update, tmp_path):
    assert live(tmp_path / "log", *one_update, "--no-save") == 0


def test_a_training_starts_in_a_released_folder(held, one_update, tmp_path):
    held.release()

    assert live(tmp_path / "log", *one_update) == 0
