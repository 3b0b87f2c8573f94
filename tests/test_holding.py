"""No two trainings in one folder."""

import fcntl
import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from deepnet_fairseq.errors import UserError
from deepnet_fairseq.plugin.checkpoints import holding

from .conftest import TRAIN_FLAGS
from .support import ranks
from .support.lives import TINY, live

HOST = socket.gethostname()


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(holding, "GRACE", 0.4)
    yield
    holding.release()


def taken_by_child(folder) -> bool:
    """Does a forked process get it?"""
    if not (child := os.fork()):
        try:
            holding.take(folder)
        except UserError:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def heartbeat(folder, host: str, pid: int, age: float) -> Path:
    path = folder / holding.HEARTBEAT
    path.write_text(json.dumps({"host": host, "pid": pid, "begun": "2026-01-01 00:00:00"}))
    os.utime(path, (time.time() - age,) * 2)
    return path


def test_held_until_released(tmp_path):
    """And nothing is left; the same process may ask again."""
    folder = tmp_path / "new" / "run"
    holding.take(folder)
    holding.take(folder)
    told = json.loads((folder / holding.HEARTBEAT).read_text())
    assert (told["host"], told["pid"]) == (HOST, os.getpid())
    assert not taken_by_child(folder)
    holding.release()
    assert not list(folder.iterdir()) and taken_by_child(folder)


@pytest.mark.parametrize("file_locks", [True, False])
def test_whose_heartbeat_counts(file_locks, tmp_path, monkeypatch):
    """Another host's while it is fresh, this host's where there is no flock and its process lives."""
    if not file_locks:  # as of NFS
        monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(9, "Bad file descriptor")))
    another = pytest.raises(UserError, match=r"process 7 on far, begun .*, heard of 5\d\d s ago.*remove .*in_use\.json")
    heartbeat(tmp_path, "far", 7, 599)
    with another:
        holding.take(tmp_path)
    heartbeat(tmp_path, "far", 7, 601)
    holding.take(tmp_path)
    assert json.loads((tmp_path / holding.HEARTBEAT).read_text())["host"] == HOST
    holding.release()
    dead = subprocess.Popen(["true"])
    dead.wait()
    heartbeat(tmp_path, HOST, dead.pid, 1)
    holding.take(tmp_path)
    holding.release()
    path = heartbeat(tmp_path, HOST, os.getppid(), 1)
    if file_locks:
        holding.take(tmp_path)  # which the lock knows better: another process has that number now
    else:
        with pytest.raises(UserError, match=f"process {os.getppid()} on {HOST}"):
            holding.take(tmp_path)
        assert path.exists()


def test_half_a_heartbeat_and_a_full_disk(tmp_path, monkeypatch):
    """A file that names nobody counts for a moment; one that cannot be written is no obstacle, nor is it left."""
    (tmp_path / holding.HEARTBEAT).write_text("{")
    half = holding._Hold(tmp_path)
    assert not half.begin() and "another training holds it; wait" in half.taken()
    holding.take(tmp_path)  # half a second later
    holding.release()
    monkeypatch.setattr(json, "dumps", Mock(side_effect=OSError(28, "No space left on device")))
    holding.take(tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_heart_beats(tmp_path, monkeypatch):
    """And another that took over keeps its file."""
    monkeypatch.setattr(holding, "BEAT", 0.05)
    holding.take(tmp_path)
    path = tmp_path / holding.HEARTBEAT
    os.utime(path, (0, 0))
    time.sleep(0.3)
    assert time.time() - path.stat().st_mtime < 60
    heartbeat(tmp_path, "far", 7, 0)
    holding.release()
    assert path.exists()


def test_a_killed_holder_is_no_obstacle(tmp_path):
    """Though a process that it forked, to load data, is still there."""
    ready, begun = os.pipe()
    if not (holder := os.fork()):
        holding.take(tmp_path)
        if not os.fork():
            os.write(begun, str(os.getpid()).encode())
            time.sleep(60)
        time.sleep(60)
    loader = int(os.read(ready, 10))
    try:
        with pytest.raises(UserError, match=f"process {holder} on {HOST}"):
            holding.take(tmp_path)
        os.kill(holder, signal.SIGKILL)
        os.waitpid(holder, 0)
        holding.take(tmp_path)
    finally:
        os.kill(loader, signal.SIGKILL)


def test_a_second_training_ends_in_one_line(data, tmp_path):
    """On each rank, before anything is written; one that saves nothing needs no folder."""
    run, log = tmp_path / "run", tmp_path / "log"
    flags = (data, *TRAIN_FLAGS, *TINY, "--max-update", "1", "--save-dir", run)
    holding.take(run)
    ranks.train(2, log, *flags, check=False)
    said = [line for line in log.read_text().splitlines() if "error:" in line]
    assert len(said) == 2 and f"{run}: another training holds it (process {os.getpid()} on {HOST}" in said[0]
    assert "Traceback" not in log.read_text() and [path.name for path in run.iterdir()] == [holding.HEARTBEAT]
    assert live(log, *flags, "--no-save") == 0
    holding.release()
    assert live(log, *flags) == 0 and not (run / holding.HEARTBEAT).exists()
