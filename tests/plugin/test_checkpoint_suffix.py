"""Tests of --checkpoint-suffix: every command finds the files of a training that was given a suffix."""

from __future__ import annotations

import shutil
from pathlib import Path

import fairseq_cli.train
import pytest
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.trainer import Trainer

from deepnet_fairseq.cli import main
from deepnet_fairseq.plugin.checkpoints import reading
from deepnet_fairseq.plugin.trainer import parse_training_flags
from deepnet_fairseq.tools import averaging

from ..conftest import TRAIN_FLAGS
from ..support.diverging import TINY, train
from ..support.errors import assert_refused, refused
from ..support.helpers import USER_DIR, run
from ..support.logs import hypotheses

TWO_UPDATES_AN_EPOCH = (
    "--train-subset", "test", "--batch-size", "10", "--required-batch-size-multiple", "1", "--max-tokens", "10000",
)  # fmt: skip
FLAGS = (*TINY, *TWO_UPDATES_AN_EPOCH)
COMMON = tuple(flag for flag in TRAIN_FLAGS if flag not in ("--disable-validation", "--no-epoch-checkpoints"))
GENERATE = ("--user-dir", USER_DIR, "--cpu")
# The suffixes of three_trainings. 12 stands for a job's number: with it, checkpoint112.pt is of epoch 1.
SUFFIXES = ("", "_a", "12")
UNUSED_SUFFIX = "_c"
TEST_SENTENCES = 20


@pytest.fixture(scope="module")
def three_trainings(data, tmp_path_factory) -> Path:
    """Provide a folder with the checkpoints of three trainings, each of two epochs of two updates.

    X stands for the suffix: checkpoint1X.pt, checkpoint2X.pt, checkpoint_EPOCH_UPDATESX.pt, and those named last,
    previous and best.
    """
    folder = tmp_path_factory.mktemp("run")
    for suffix in SUFFIXES:
        flags = ("--checkpoint-suffix", suffix, "--save-interval-updates", "1", "--max-epoch", "2")
        train(data, folder, *FLAGS, *flags, common=COMMON)
    return folder


@pytest.fixture
def one_training(suffix, three_trainings, tmp_path) -> Path:
    """Provide a folder with the files of one of the three trainings alone; a test's parameter `suffix` tells which."""
    folder = tmp_path / "alone"
    folder.mkdir()
    for path in three_trainings.glob(f"checkpoint*{suffix}.pt"):
        # without a suffix, the pattern checkpoint*.pt finds the files of all three
        if reading.suffix_of(path) == suffix:
            shutil.copy(path, folder)
    return folder


def names(paths) -> list[str]:
    return [path.name for path in paths]


# Reading a checkpoint


@pytest.mark.parametrize("suffix", ["_a"])
def test_fairseq_generate_reads_the_file_with_the_suffix(suffix, one_training, data):
    path = ("--path", one_training / "checkpoint_best.pt", "--checkpoint-suffix", suffix)
    assert not (one_training / "checkpoint_best.pt").exists()

    printed = run("fairseq-generate", data, *GENERATE, "--max-len-b", "3", *path).stdout

    assert len(hypotheses(printed)) == TEST_SENTENCES


def assert_names_the_missing_file(done, flag: str, path: Path) -> None:
    """Check that a program has refused in one line, which names the flag and the missing file."""
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert flag in done.stderr
    assert str(path) in done.stderr


def test_a_missing_file_to_translate_with_is_named_with_the_suffix(three_trainings, data):
    """fairseq adds the suffix even to a name that ends in it already."""
    path = ("--path", three_trainings / "checkpoint_best_a.pt", "--checkpoint-suffix", "_a")

    done = run("fairseq-generate", data, *GENERATE, *path, check=False)

    assert_names_the_missing_file(done, "--path", three_trainings / "checkpoint_best_a_a.pt")


def test_a_missing_file_to_start_from_is_named_with_the_suffix(three_trainings, data, tmp_path):
    start = ("--restore-file", three_trainings / "checkpoint9.pt", "--checkpoint-suffix", "_a")
    save_dir = tmp_path / "none"

    done = run("fairseq-train", data, *COMMON, *FLAGS, "--save-dir", save_dir, *start, check=False)

    assert_names_the_missing_file(done, "--restore-file", three_trainings / "checkpoint9_a.pt")
    assert not save_dir.exists()


@pytest.fixture
def updates_before_steps(monkeypatch) -> list[int]:
    """Provide a list to which every training step adds the number of updates before it."""
    numbers = []
    train_step = Trainer.train_step

    def noted(trainer, *args, **kwargs):
        numbers.append(trainer.get_num_updates())
        return train_step(trainer, *args, **kwargs)

    monkeypatch.setattr(Trainer, "train_step", noted)
    return numbers


@pytest.mark.parametrize("suffix", ["_a"])
def test_a_training_starts_from_the_restore_file_with_its_suffix(
    suffix, one_training, data, tmp_path, updates_before_steps
):
    start = ("--restore-file", str(one_training / "checkpoint_1_1.pt"), "--checkpoint-suffix", suffix)

    train(data, tmp_path / "run", *FLAGS, *start, "--max-update", "2", common=COMMON)

    assert updates_before_steps == [1]
    assert reading.updates(tmp_path / "run" / "checkpoint_last_a.pt") == 2


def test_a_missing_restore_file_of_a_yaml_is_refused(three_trainings, data, tmp_path):
    """The check of the command line does not see the config of fairseq-hydra-train, so the training refuses the file.

    The name of the restore file ends in the suffix already, and fairseq adds the suffix again.
    """
    words = [str(data), *COMMON, *FLAGS, "--save-dir", str(tmp_path), "--checkpoint-suffix", "_a"]
    cfg = convert_namespace_to_omegaconf(parse_training_flags(words))
    cfg.checkpoint.restore_file = str(three_trainings / "checkpoint_1_1_a.pt")

    with refused("--restore-file") as caught:
        fairseq_cli.train.main(cfg)

    assert "checkpoint_1_1_a_a.pt" in caught.value.way_out


# Training

BEST = ("--keep-best-checkpoints", "1", "--max-epoch", "3")


def test_a_suffix_that_fairseq_takes_for_a_score_is_refused(data, tmp_path):
    """fairseq reads the score of a best checkpoint behind the last "_" of its name: the suffix must have no "_"."""
    with refused("--checkpoint-suffix _a"):
        train(data, tmp_path, *FLAGS, *BEST, "--checkpoint-suffix", "_a", common=COMMON)

    assert list(tmp_path.iterdir()) == []


def test_the_best_checkpoint_is_kept_with_the_suffix(data, tmp_path):
    train(data, tmp_path, *FLAGS, *BEST, "--checkpoint-suffix", ".a", common=COMMON)

    (best,) = tmp_path.glob("checkpoint.best_loss_*")
    assert best.name.endswith(".a.pt")


def test_a_finished_fine_tuning_makes_no_update_when_started_again(
    three_trainings, data, tmp_path, updates_before_steps
):
    start = ("--finetune-from-model", str(three_trainings / "checkpoint2_a.pt"), "--checkpoint-suffix", "_b")
    flags = (*FLAGS, *start, "--max-update", "1")

    train(data, tmp_path, *flags, common=COMMON)
    train(data, tmp_path, *flags, common=COMMON)

    assert updates_before_steps == [0]
    assert reading.updates(tmp_path / "checkpoint_last_b.pt") == 1


def test_epoch_weights_of_another_training_are_not_removed(data, tmp_path):
    """A training with --epoch-weights last:1 removes only the weights of its own earlier epochs."""
    of_the_last = ("--epoch-weights", "last:1")

    train(data, tmp_path, *FLAGS, *of_the_last, "--checkpoint-suffix", "", "--max-epoch", "2")
    train(data, tmp_path, *FLAGS, *of_the_last, "--checkpoint-suffix", "12", "--max-epoch", "3")

    weights_of_first = "weights2.pt"  # of epoch 2
    weights_of_second = "weights312.pt"  # of epoch 3, suffix 12
    assert set(names(tmp_path.glob("weights*"))) == {weights_of_first, weights_of_second}
    assert names(averaging.last(tmp_path, 1, "12")) == [weights_of_second]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_resume_takes_the_newest_file_of_the_same_suffix(suffix, three_trainings, tmp_path):
    """The newest file of the same suffix takes the place of a checkpoint_last that is missing."""
    folder = tmp_path / "folder"
    shutil.copytree(three_trainings, folder)
    for name in ("last", "previous"):
        for path in folder.glob(f"checkpoint_{name}*{suffix}.pt"):
            path.unlink()

    files = reading.all_but_last(folder, suffix)

    assert {reading.suffix_of(path) for path in files} == {suffix}
    assert files[0].name in (f"checkpoint2{suffix}.pt", f"checkpoint_2_4{suffix}.pt")  # both of update 4
    assert reading.other_than_last(folder, suffix) == files[0]


def test_a_resume_takes_no_file_of_another_suffix(three_trainings):
    assert reading.other_than_last(three_trainings, UNUSED_SUFFIX) is None


# Averaging


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_average_takes_the_last_checkpoints_with_the_suffix(suffix, three_trainings, tmp_path, capsys):
    out = str(tmp_path / "mean.pt")

    main(["average", str(three_trainings), "--last", "2", "--out", out, "--checkpoint-suffix", suffix])

    assert f"checkpoint1{suffix}.pt, checkpoint2{suffix}.pt" in capsys.readouterr().out


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_average_needs_no_suffix_in_a_folder_of_one_training(suffix, one_training, tmp_path, capsys):
    main(["average", str(one_training), "--last", "2", "--out", str(tmp_path / "mean.pt")])

    assert f"checkpoint1{suffix}.pt, checkpoint2{suffix}.pt" in capsys.readouterr().out


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_best_checkpoints_are_those_of_one_training(suffix, three_trainings, one_training):
    best = averaging.best(three_trainings, 3, suffix)

    assert {reading.suffix_of(path) for path in best} == {suffix}
    assert names(best) == names(averaging.best(one_training, 3))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_last_checkpoints_by_updates_are_those_of_one_training(suffix, three_trainings):
    # there are only two epochs, so the last three of the four updates are taken
    last = averaging.last(three_trainings, 3, suffix)

    assert names(last) == [f"checkpoint_1_2{suffix}.pt", f"checkpoint_2_3{suffix}.pt", f"checkpoint_2_4{suffix}.pt"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_suffix_is_read_from_the_files_where_no_name_tells_it(suffix, one_training):
    """Only the names of checkpoint_last, _previous and _best tell the suffix. Other names may end in a job's number."""
    for name in ("last", "previous", "best"):
        for path in one_training.glob(f"checkpoint_{name}*"):
            path.unlink()

    assert names(averaging.last(one_training, 1)) == [f"checkpoint2{suffix}.pt"]


def test_checkpoints_of_several_trainings_are_not_averaged(three_trainings, tmp_path):
    out = str(tmp_path / "mean.pt")

    assert_refused("--checkpoint-suffix", "average", three_trainings, "--last", "2", "--out", out)


def test_a_suffix_without_checkpoints_is_refused(three_trainings):
    with refused(three_trainings) as caught:
        averaging.last(three_trainings, 2, UNUSED_SUFFIX)

    assert " 0 " in caught.value.way_out  # there are 0 checkpoints, where 2 are wanted
