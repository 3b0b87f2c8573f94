"""What the plug-in mends in fairseq."""

import argparse
import pathlib

import numpy
import pytest
import torch
from fairseq.data import data_utils
from fairseq.file_io import PathManager

from deepnet_fairseq import compat
from deepnet_fairseq.checkpoints.atomic import SaveError
from deepnet_fairseq.errors import UserError, user_error_line


@pytest.mark.parametrize("count", [1, 7, 20, 500, 6750])
def test_no_sentence_is_lost_in_batches(count):
    sizes = numpy.sort(numpy.random.default_rng(0).integers(5, 40, count))
    batches = data_utils.batch_by_size(
        numpy.arange(count), num_tokens_fn=lambda i: sizes[i], num_tokens_vec=sizes, max_tokens=1000,
        required_batch_size_multiple=8,
    )  # fmt: skip
    assert numpy.concatenate(batches).tolist() == list(range(count))
    assert all(len(batch) * sizes[batch[-1]] <= 1000 for batch in batches)


def test_denormals_are_flushed():
    assert (torch.tensor([1e-40]) * 1.0).item() == 0.0


def test_plain_data_loads_and_code_does_not(tmp_path):
    path = tmp_path / "plain.pt"
    plain = {"args": argparse.Namespace(lr=[0.1]), "counts": numpy.array([1, 2]), "best": numpy.float64(3.0)}
    torch.save(plain, path)
    assert torch.load(path)["args"] == plain["args"]
    torch.save({"args": pathlib.PurePosixPath("code would stand here")}, path)
    with pytest.raises(Exception, match="Unsupported"):
        torch.load(path)


def test_the_line_for_a_user():
    """fairseq's wrapper names the file, our error the reason, whichever way they are chained."""
    try:
        try:
            raise UserError("holds 3 encoder layers")
        except UserError:
            raise Exception("Cannot load model parameters from checkpoint a/b.pt; please ensure ...")  # noqa: B904
    except Exception as error:
        assert user_error_line(error) == "a/b.pt: holds 3 encoder layers"
    assert user_error_line(ValueError("a bug")) is None


def test_only_known_messages_are_silenced(recwarn):
    import warnings

    compat.silence()
    warnings.warn("'pin_memory' argument is set as true but no accelerator is found, then", stacklevel=1)
    warnings.warn("something new", stacklevel=1)
    assert [str(w.message) for w in recwarn if w.category is UserWarning] == ["something new"]


def test_a_checkpoint_is_replaced_in_one_move(tmp_path, monkeypatch):
    """A copy that breaks off leaves the old file as it was and nothing beside it."""
    old, new = tmp_path / "checkpoint_last.pt", tmp_path / "checkpoint_1_50.pt"
    old.write_bytes(b"old")
    new.write_bytes(b"new" * 1000)

    def breaks_off(source, destination):
        pathlib.Path(destination).write_bytes(pathlib.Path(source).read_bytes()[:100])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(SaveError, match="No space left"):
        patch.setattr("shutil.copyfile", breaks_off)
        PathManager.copy(str(new), str(old), overwrite=True)
    assert old.read_bytes() == b"old"
    assert PathManager.copy(str(new), str(old), overwrite=True)
    assert old.read_bytes() == new.read_bytes()
    assert (tmp_path / "checkpoint_previous.pt").read_bytes() == b"old"
    assert sorted(path.stem for path in tmp_path.iterdir()) == [f"checkpoint_{s}" for s in ("1_50", "last", "previous")]
