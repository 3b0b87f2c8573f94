"""Tests that two trainings never share a folder."""

import os
import socket

import pytest

from deepnet_fairseq.errors import UserError
from deepnet_fairseq.plugin.checkpoints import lock
from deepnet_fairseq.plugin.checkpoints.lock import FolderLock

from ..conftest import TRAIN_FLAGS
from ..support import ranks
from ..support.lives import TINY, live

HOST = socket.gethostname()


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(lock, "GRACE", 0.4)


def test_held_until_released(tmp_path):
    """A folder stays locked for other trainings until its own locks another, or ends; locking it twice is fine."""
    folder = tmp_path / "new" / "run"
    first, second = FolderLock(), FolderLock()
    first.take(folder)
    first.take(folder)
    with pytest.raises(UserError, match=rf"another training holds it \(process {os.getpid()} on {HOST}\)"):
        second.take(folder)

    first.take(tmp_path)
    second.take(folder)

    second.release()
    first.take(folder)
    first.release()


def test_a_second_training_ends_in_one_line(data, tmp_path):
    """A second training in a folder ends in one line on every rank before it writes; --no-save needs no lock."""
    run, log = tmp_path / "run", tmp_path / "log"
    flags = (data, *TRAIN_FLAGS, *TINY, "--max-update", "1", "--save-dir", run)
    held = FolderLock()
    held.take(run)
    ranks.train(2, log, *flags, check=False)
    errors = [line for line in log.read_text().splitlines() if "error:" in line]
    assert len(errors) == 2 and f"{run}: another training holds it (process {os.getpid()} on {HOST}" in errors[0]
    assert "Traceback" not in log.read_text() and [path.name for path in run.iterdir()] == [lock.NAME]
    assert live(log, *flags, "--no-save") == 0
    held.release()
    assert live(log, *flags) == 0
