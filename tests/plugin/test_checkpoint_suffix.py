"""Tests of --checkpoint-suffix: every command finds the files that a training with it has written."""

from __future__ import annotations

import shutil

import fairseq_cli.train
import pytest
import torch
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

from deepnet_fairseq.cli import main
from deepnet_fairseq.errors import UserError
from deepnet_fairseq.plugin.checkpoints import reading
from deepnet_fairseq.plugin.trainer import parse_training_flags
from deepnet_fairseq.tools import averaging

from ..conftest import TRAIN_FLAGS
from ..support.diverging import TINY, train, updates
from ..support.errors import assert_refused
from ..support.helpers import USER_DIR, run

TEN = ("--train-subset", "test", "--batch-size", "10", "--required-batch-size-multiple", "1", "--max-tokens", "10000")
FLAGS = (*TINY, *TEN)  # two updates an epoch
COMMON = tuple(flag for flag in TRAIN_FLAGS if flag not in ("--disable-validation", "--no-epoch-checkpoints"))
SUFFIXES = ("", "_a", "12")  # 12: as of a job's number, so that checkpoint112.pt is of epoch 1


@pytest.fixture(scope="module")
def folder(data, tmp_path_factory):
    """Provide a folder with two epochs, of two updates each, of three trainings."""
    path = tmp_path_factory.mktemp("run")
    for suffix in SUFFIXES:
        flags = ("--checkpoint-suffix", suffix, "--save-interval-updates", "1", "--max-epoch", "2")
        train(data, path, *FLAGS, *flags, common=COMMON)
    return path


def only(folder, suffix, to):
    """Copy the files of one training to a new folder."""
    to.mkdir()
    for path in folder.glob(f"checkpoint*{suffix}.pt"):
        if reading.suffix_of(path) == suffix:
            shutil.copy(path, to)
    return to


def test_fairseq_generate_reads_it(folder, data):
    words = (data, "--user-dir", USER_DIR, "--cpu", "--max-len-b", "3", "--path", folder / "checkpoint_best.pt")
    run("fairseq-generate", *words, "--checkpoint-suffix", "_a")


@pytest.mark.parametrize("flag, name", [("--path", "checkpoint_best_a.pt"), ("--restore-file", "checkpoint9.pt")])
def test_a_file_that_is_not_there_is_named(flag, name, folder, data, tmp_path):
    """The line names the file with the suffix, which fairseq adds to a name that has it already too."""
    program, more = "fairseq-generate", (data, "--user-dir", USER_DIR, "--cpu")
    if flag == "--restore-file":
        program, more = "fairseq-train", (data, *COMMON, *FLAGS, "--save-dir", tmp_path / "none")
    done = run(program, *more, flag, folder / name, "--checkpoint-suffix", "_a", check=False)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert flag in done.stderr and name.replace(".pt", "_a.pt") in done.stderr
    assert not (tmp_path / "none").exists()


def test_restore_file(folder, data, tmp_path):
    """A training starts from the named file with its suffix; one in a YAML that is not there is refused."""
    start = ("--restore-file", str(folder / "checkpoint_1_1.pt"), "--checkpoint-suffix", "_a")
    train(data, tmp_path, *FLAGS, *start, "--max-update", "2", common=COMMON)
    assert torch.load(tmp_path / "checkpoint_last_a.pt", weights_only=True)["optimizer_history"][-1]["num_updates"] == 2
    cfg = convert_namespace_to_omegaconf(
        parse_training_flags([str(data), *COMMON, *FLAGS, *start, "--save-dir", str(tmp_path)])
    )
    cfg.checkpoint.restore_file = str(folder / "checkpoint_1_1_a.pt")
    with pytest.raises(UserError, match="checkpoint_1_1_a_a.pt"):
        fairseq_cli.train.main(cfg)


def test_the_best_checkpoints_are_kept(data, tmp_path):
    """fairseq reads a score behind the last _ of a name: a suffix with one is refused before a file is made."""
    best = ("--keep-best-checkpoints", "1", "--max-epoch", "3")
    with pytest.raises(UserError, match="--checkpoint-suffix _a: "):
        train(data, tmp_path, *FLAGS, *best, "--checkpoint-suffix", "_a", common=COMMON)
    assert list(tmp_path.iterdir()) == []
    train(data, tmp_path, *FLAGS, *best, "--checkpoint-suffix", ".a", common=COMMON)
    assert [path.name.endswith(".a.pt") for path in tmp_path.glob("checkpoint.best_loss_*")] == [True]


def test_a_fine_tuning_resumes(folder, data, tmp_path):
    """A fine-tuning that is over makes no update when it is started again."""
    start = ("--finetune-from-model", str(folder / "checkpoint2_a.pt"), "--checkpoint-suffix", "_b")
    for _ in range(2):
        train(data, tmp_path, *FLAGS, *start, "--max-update", "1", common=COMMON)
        shutil.copy(tmp_path / "checkpoint_last_b.pt", tmp_path / "checkpoint_last.pt")
        assert updates(tmp_path) == 1
        (tmp_path / "checkpoint_last.pt").unlink()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_averages(suffix, folder, tmp_path, capsys):
    """The last and the best checkpoints are those of one training, with or without others in the folder."""
    alone = only(folder, suffix, tmp_path / "alone")
    for place, more in ((folder, ("--checkpoint-suffix", suffix)), (alone, ())):
        main(["average", str(place), "--last", "2", "--out", str(tmp_path / "mean.pt"), *more])
        assert f"checkpoint1{suffix}.pt, checkpoint2{suffix}.pt" in capsys.readouterr().out
    best = averaging.best(folder, 3, suffix)
    assert [path.name for path in best] == [path.name for path in averaging.best(alone, 3)]
    assert {reading.suffix_of(path) for path in best} == {suffix}
    by_update = [path.name for path in averaging.last(folder, 3, suffix)]
    assert by_update == [f"checkpoint_{update}{suffix}.pt" for update in ("1_2", "2_3", "2_4")]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_averages_without_a_last_checkpoint(suffix, folder, tmp_path):
    """The suffix stands in the files too, where none of those is left whose name tells it."""
    alone = only(folder, suffix, tmp_path / "alone")
    for path in alone.glob("checkpoint_[lpb]*"):
        path.unlink()
    assert [path.name for path in averaging.last(alone, 1)] == [f"checkpoint2{suffix}.pt"]


def test_several_trainings_are_not_averaged(folder, tmp_path):
    words = ("average", str(folder), "--last", "2", "--out", str(tmp_path / "mean.pt"))
    assert_refused("--checkpoint-suffix", *words)
    with pytest.raises(UserError, match="not 2"):
        averaging.last(folder, 2, "_c")


def test_weights_of_epochs(data, tmp_path):
    """--epoch-weights removes only the weights of its own training."""
    for suffix, epochs in (("", "2"), ("12", "3")):
        flags = ("--checkpoint-suffix", suffix, "--epoch-weights", "last:1", "--max-epoch", epochs)
        train(data, tmp_path, *FLAGS, *flags)
    assert {path.name for path in tmp_path.glob("weights*")} == {"weights2.pt", "weights312.pt"}
    assert [path.name for path in averaging.last(tmp_path, 1, "12")] == ["weights312.pt"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_resume_takes_no_file_of_another_training(suffix, folder, tmp_path):
    """The newest file of the same suffix takes the place of a checkpoint_last that is missing."""
    place = tmp_path / "folder"
    shutil.copytree(folder, place)
    for path in place.glob(f"checkpoint_[lp]*{suffix}.pt"):
        path.unlink()
    files = reading.all_but_last(place, suffix)
    assert {reading.suffix_of(path) for path in files} == {suffix}
    assert reading.other_than_last(place, suffix) == files[0]
    assert files[0].name in (f"checkpoint2{suffix}.pt", f"checkpoint_2_4{suffix}.pt")
    assert reading.other_than_last(place, "_c") is None
