"""Tests of checkpoint files: written whole or not at all, damage noticed, shared memory kept shared."""

from __future__ import annotations

import io
import logging
import os
import signal

import pytest
import torch
from fairseq.file_io import PathManager

from deepnet_fairseq.errors import UserError
from deepnet_fairseq.plugin.checkpoints import atomic, reading
from deepnet_fairseq.plugin.checkpoints.saving import on_cpu


def state(updates: int, size: int = 100) -> dict:
    weights = torch.arange(size, dtype=torch.float32) + updates
    return {"model": {"w": weights}, "optimizer_history": [{"num_updates": updates}]}


def names(folder) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("links", [True, False])
def test_previous_stays_until_the_next_is_whole(links, tmp_path, monkeypatch):
    """The previous checkpoint stays until the next is whole, also on file systems without hard links.

    A run that was killed between the two renames finds both names to be one file.
    """
    if not links:
        monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError(1, "Operation not permitted")))
    last, previous = tmp_path / "checkpoint_last.pt", tmp_path / "checkpoint_previous.pt"
    for updates in (1, 2, 3):
        atomic.save(state(updates), last)
        assert reading.updates(last) == updates and previous.exists() == (updates > 1)
    assert reading.updates(previous) == 2 and names(tmp_path) == {last.name, previous.name}
    atomic.save(state(4), tmp_path / "checkpoint_best.pt")
    assert reading.updates(previous) == 2
    atomic.keep_previous(last)
    atomic.keep_previous(last)
    atomic.save(state(5), last)
    assert reading.updates(previous) == 3


@pytest.mark.parametrize("moment", ["save", "fsync", "link", "replace"])
def test_killed_while_it_saves(moment, tmp_path):
    """A save killed at any of its steps leaves the old file or the new one; the next run removes what is left."""
    last = tmp_path / "checkpoint_last.pt"
    atomic.save(state(1), last)
    if not (child := os.fork()):
        owner = torch if moment == "save" else os
        setattr(owner, moment, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        atomic.save(state(2), last)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert reading.updates(last) == 1 and any(name.endswith(".part") for name in names(tmp_path))

    (tmp_path / "weights7.pt.1.part").write_bytes(b"of a killed run")
    (tmp_path / "generated.part").write_bytes(b"of another program")
    atomic.remove_unfinished(tmp_path)
    atomic.save(state(3), last)
    assert reading.updates(last) == 3 and reading.updates(atomic.previous_of(last)) == 1
    assert names(tmp_path) == {"checkpoint_last.pt", "checkpoint_previous.pt", "generated.part"}


def test_full_disk(tmp_path, monkeypatch):
    """A full disk is reported with the system's reason, not torch's, and the old file stays unchanged."""
    last = tmp_path / "checkpoint_last.pt"
    atomic.save(state(1), last)
    before = last.read_bytes()
    (tmp_path / f"checkpoint_last.pt.{os.getpid()}.part").symlink_to("/dev/full")
    with pytest.raises(atomic.SaveError, match=r"checkpoint_last\.pt: could not be saved \(No space left on device\)"):
        atomic.save(state(2, 100_000), last)
    assert last.read_bytes() == before and names(tmp_path) == {last.name}


def test_fairseqs_copies_are_ours(tmp_path):
    last, other = tmp_path / "checkpoint_last.pt", tmp_path / "checkpoint_1_2.pt"
    for updates, path in ((1, last), (2, other)):
        torch.save(state(updates), path)
    assert PathManager.copy(str(other), str(last), overwrite=True)
    assert [reading.updates(path) for path in (last, atomic.previous_of(last))] == [2, 1]


def test_every_flipped_bit_that_matters_is_noticed(tmp_path):
    """A flipped bit in any byte is reported as damage, unless torch reads the same tensor.

    Bit 0x10 turns a member into a folder, for which torch reads uninitialised memory.
    """
    path, saved, expected = tmp_path / "checkpoint1.pt", io.BytesIO(), torch.arange(100.0)
    torch.save({"w": expected}, saved)
    content = saved.getvalue()
    for offset in range(len(content)):
        for bit in {0x10, 1 << offset % 8} if offset % 4 == 0 else (0x10,):
            path.write_bytes(content[:offset] + bytes([content[offset] ^ bit]) + content[offset + 1 :])
            assert reading.damage(path) is not None or torch.equal(torch.load(path)["w"], expected)


def test_older_formats_are_left_to_torch(tmp_path):
    path = tmp_path / "old.pt"
    torch.save(state(1), path, _use_new_zipfile_serialization=False)
    reading.check_whole(path)
    assert reading.damage(tmp_path / "none.pt") == "No such file or directory"


def damaged(path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_the_newest_that_is_whole(tmp_path, caplog):
    """Recovery takes the whole checkpoint with the most updates, whatever its name, and the best by validation last."""
    caplog.set_level(logging.WARNING, reading.log.name)
    updates = {"_last": 9, "_1_2": 2, "1": 4, "_2_6": 6, "_2_8": 8, "_previous": 7, "_best": 5, ".best_loss_1.5": 3}
    files = {name: tmp_path / f"checkpoint{name}.pt" for name in updates}
    for name, path in files.items():
        torch.save(state(updates[name]), path)
    assert reading.other_than_last(tmp_path, "") is None
    order, chosen = ["_last", "_2_8", "_previous", "_2_6", "1", "_1_2", "_best", ".best_loss_1.5"], []
    for name in order[:-1]:
        damaged(files[name])
        chosen.append(reading.other_than_last(tmp_path, ""))
    assert chosen == [files[name] for name in order[1:]]
    assert f"{files['_last']}: truncated or damaged" in caplog.messages[0] and caplog.messages[0].endswith("_2_8.pt")
    damaged(files[order[-1]])
    with pytest.raises(UserError, match="holds no other checkpoint that is whole; nothing was changed"):
        reading.other_than_last(tmp_path, "")


def test_a_missing_last_is_not_a_new_beginning(tmp_path):
    assert reading.other_than_last(tmp_path / "none", "") is None and reading.other_than_last(tmp_path, "") is None
    torch.save(state(3), tmp_path / "checkpoint_1_3.pt")
    assert reading.other_than_last(tmp_path, "") == tmp_path / "checkpoint_1_3.pt"
    assert reading.other_than_last(tmp_path, "-rank-0") is None


def test_ties_stay_ties():
    """A tied weight in half precision stays one tensor when it is copied to float32, in any container."""
    first, second = torch.arange(16.0).bfloat16().view(4, 4), torch.ones(3)
    moved = on_cpu({"model": {"a": first, "tie": first}, "state": [(second, 3)], "none": None})
    assert torch.equal(moved["model"]["a"], first.float()) and moved["model"]["tie"] is moved["model"]["a"]
    assert moved["state"][0][0].data_ptr() == second.data_ptr()  # full precision already, so it is not copied
