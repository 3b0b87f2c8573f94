"""Tests of averaging: the mean of checkpoints, and the checkpoints that cannot be averaged."""

from __future__ import annotations

import re
import weakref
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from fairseq import checkpoint_utils

from deepnet_fairseq.cli import main
from deepnet_fairseq.plugin.checkpoints import epoch_weights
from deepnet_fairseq.tools import averaging

from ..conftest import TRAIN_FLAGS
from ..support.errors import assert_refused, refusal, refused
from ..support.helpers import run
from ..support.logs import TRANSLATE, hypotheses, losses

ARCH = ("--arch", "deepnet_transformer_tiny", "--encoder-layers", "2", "--decoder-layers", "2")
EPOCHS_NOT_SAVED = ("--no-epoch-checkpoints", "--disable-validation")  # of TRAIN_FLAGS; here epochs are saved
SAVING_FLAGS = tuple(flag for flag in TRAIN_FLAGS if flag not in EPOCHS_NOT_SAVED)
SENTENCES_OF_TEST_SET = 20  # of the fixture `data`
THREE_EPOCHS = (*SAVING_FLAGS, *ARCH, "--max-epoch", "3", "--max-tokens", "3000")


@pytest.fixture(scope="module")
def run_folder(data, tmp_path_factory):
    """Provide the folder of a run: checkpoints of epochs 1 to 3 and of updates 3, 6, .., each with a validation loss.

    Their names are checkpointEPOCH.pt and checkpoint_EPOCH_UPDATE.pt. Copies of the two best are named
    checkpoint.best_loss_LOSS.pt.
    """
    folder = tmp_path_factory.mktemp("run")
    saves = ("--save-interval-updates", "3", "--keep-best-checkpoints", "2", "--save-dir", folder)
    run("fairseq-train", data, *THREE_EPOCHS, *saves)
    return folder


def average(*words) -> None:
    """Run `deepnet average WORDS` in this process."""
    main(["average", *map(str, words)])


def weights_of(path) -> dict[str, torch.Tensor]:
    """Return the parameters in a checkpoint."""
    return torch.load(path)["model"]


def validation_loss(path) -> float:
    """Return the validation loss that a checkpoint was saved with."""
    return torch.load(path)["extra_state"]["val_loss"]


def assert_mean(out, paths) -> None:
    """Check that the parameters in the file `out` are the means of those in other checkpoints."""
    checkpoints = [weights_of(path) for path in paths]
    for name, value in weights_of(out).items():
        expected = torch.stack([weights[name].double() for weights in checkpoints]).mean(0)
        assert torch.allclose(value.double(), expected, atol=1e-7), name


def write_edited(path, out, change) -> None:
    """Write a copy of a checkpoint after change(state)."""
    state = torch.load(path)
    change(state)
    torch.save(state, out)


# the last checkpoints


def test_last_averages_the_last_epochs(run_folder, tmp_path):
    average(run_folder, "--last", "2", "--out", tmp_path / "mean.pt")

    assert_mean(tmp_path / "mean.pt", [run_folder / "checkpoint2.pt", run_folder / "checkpoint3.pt"])


def test_the_averaged_checkpoints_are_printed_oldest_first(run_folder, tmp_path, capsys):
    average(run_folder, "--last", "2", "--out", tmp_path / "mean.pt")

    assert "checkpoint2.pt, checkpoint3.pt" in capsys.readouterr().out


def test_last_takes_checkpoints_by_update_where_epochs_are_too_few(run_folder):
    """There are three epochs, and four checkpoints are asked for."""
    by_update = {}
    for path in run_folder.glob("checkpoint_*_*.pt"):
        _, _, update = path.stem.split("_")
        by_update[int(update)] = path
    last_updates = sorted(by_update)[-4:]

    paths = averaging.last(run_folder, 4)

    assert paths == [by_update[update] for update in last_updates]


def test_a_checkpoint_given_twice_is_warned_of(run_folder, tmp_path, capsys):
    path = run_folder / "checkpoint3.pt"

    average(path, path, "--out", tmp_path / "twice.pt")

    (warning,) = capsys.readouterr().err.splitlines()
    assert "WARNING" in warning
    assert str(path) in warning


# the best checkpoints


def test_the_best_have_the_lowest_validation_losses(run_folder):
    files = [*run_folder.glob("checkpoint_*_*.pt"), *run_folder.glob("checkpoint[0-9].pt")]
    losses = {validation_loss(path) for path in files}  # a set: a model saved under two names counts once

    paths = averaging.best(run_folder, 2)

    assert [validation_loss(path) for path in paths] == sorted(losses)[:2]


def test_best_averages_the_best_checkpoints(run_folder, tmp_path):
    average(run_folder, "--best", "2", "--out", tmp_path / "mean.pt")

    assert_mean(tmp_path / "mean.pt", averaging.best(run_folder, 2))


def test_a_score_that_is_not_a_number_is_not_among_the_best(run_folder, tmp_path):
    scores = {"checkpoint1.pt": 3.0, "checkpoint2.pt": float("nan"), "checkpoint3.pt": 1.0}
    for name, score in scores.items():
        state = torch.load(run_folder / name)
        state["extra_state"]["val_loss"] = score
        torch.save(state, tmp_path / name)

    paths = averaging.best(tmp_path, 2)

    assert [path.name for path in paths] == ["checkpoint3.pt", "checkpoint1.pt"]


# --epoch-weights


def test_before_the_first_update_any_epoch_may_be_the_last():
    """An epoch whose batches were all skipped has made no update, by which the last one could be predicted."""
    assert epoch_weights.may_be_wanted("last:1", epoch=1, updates=0, max_epoch=0, max_update=9)


EPOCHS = {"last:2": (2, 3), "2-2": (2,)}  # --epoch-weights -> epochs whose weights stay after three epochs


class RunWithEpochWeights(NamedTuple):
    """A training of three epochs that was given --epoch-weights, and that saves nothing by updates before its end."""

    flag: str  # value of --epoch-weights
    folder: Path  # of its checkpoints
    log: str

    @property
    def epochs(self) -> tuple[int, ...]:
        return EPOCHS[self.flag]


@pytest.fixture(scope="module", params=["last:2", pytest.param("2-2", marks=pytest.mark.smoke)])
def run_with_epoch_weights(request, data, tmp_path_factory) -> RunWithEpochWeights:
    folder = tmp_path_factory.mktemp("epoch_weights")
    # where updates are saved, epochs need not be; here 1000 are more updates than the training makes
    saves = ("--epoch-weights", request.param, "--save-interval-updates", "1000", "--save-dir", folder)
    done = run("fairseq-train", data, *THREE_EPOCHS, *saves)
    return RunWithEpochWeights(flag=request.param, folder=folder, log=done.stdout)


def test_epoch_weights_leaves_files_of_those_epochs(run_with_epoch_weights):
    names = [path.name for path in run_with_epoch_weights.folder.glob("weights*")]

    assert sorted(names) == [f"weights{epoch}.pt" for epoch in run_with_epoch_weights.epochs]


def test_epoch_weights_saves_the_weights_of_a_checkpoint_and_no_optimiser(run_with_epoch_weights, run_folder):
    """The same training saved whole checkpoints in run_folder."""
    for epoch in run_with_epoch_weights.epochs:
        saved = torch.load(run_with_epoch_weights.folder / f"weights{epoch}.pt")
        whole = weights_of(run_folder / f"checkpoint{epoch}.pt")

        assert saved["last_optimizer_state"] is None
        assert saved["model"].keys() == whole.keys()
        for name, value in whole.items():
            assert torch.equal(saved["model"][name], value), name


def test_epoch_weights_leaves_no_whole_checkpoints_but_those_for_a_resume(run_with_epoch_weights):
    names = {path.name for path in run_with_epoch_weights.folder.glob("checkpoint*")}

    assert names == {"checkpoint_last.pt", "checkpoint_previous.pt"}


def test_an_epoch_before_the_last_whose_weights_are_not_wanted_saves_nothing(run_with_epoch_weights):
    """An epoch whose weights are wanted, and the last one, save checkpoint_last.pt."""
    epochs_that_save = {
        "last:2": (1, 2, 3),  # one more than two, in case the last epoch is predicted wrongly
        "2-2": (2, 3),
    }

    saves = re.findall("Saved checkpoint .*checkpoint_last.pt", run_with_epoch_weights.log)

    assert len(saves) == len(epochs_that_save[run_with_epoch_weights.flag])


def test_files_of_epoch_weights_are_averaged_as_whole_checkpoints(run_with_epoch_weights, run_folder, tmp_path):
    epochs = run_with_epoch_weights.epochs

    average(run_with_epoch_weights.folder, "--last", len(epochs), "--out", tmp_path / "mean.pt")

    assert_mean(tmp_path / "mean.pt", [run_folder / f"checkpoint{epoch}.pt" for epoch in epochs])


UPDATES_AN_EPOCH = 250


class Limits(NamedTuple):
    """Limits of a training, 0 for none, and the epochs whose weights last:10 writes."""

    max_epoch: int
    max_update: int
    epochs: int  # that the training has; where nothing limits it, those that are looked at
    written: range


@pytest.mark.parametrize(
    "limits",
    [
        Limits(max_epoch=0, max_update=400 * UPDATES_AN_EPOCH, epochs=400, written=range(390, 401)),
        Limits(max_epoch=4, max_update=0, epochs=4, written=range(1, 5)),
        Limits(max_epoch=0, max_update=0, epochs=499, written=range(1, 500)),
    ],
    ids=["by updates", "by epochs", "no limit"],
)
def test_epoch_weights_predicts_the_last_epochs(limits):
    """`last:10` writes the last ten epochs and one more, by the limit on epochs or updates; without a limit all."""
    written = []
    for epoch in range(1, limits.epochs + 1):
        updates = UPDATES_AN_EPOCH * epoch
        if epoch_weights.may_be_wanted("last:10", epoch, updates, limits.max_epoch, limits.max_update):
            written.append(epoch)

    assert written == list(limits.written)


@pytest.mark.parametrize("flag", ["last:0", "3-2", "ten"])
def test_epoch_weights_that_name_no_epochs_are_refused(flag):
    with refused(f"--epoch-weights {flag}") as caught:
        epoch_weights.check_epoch_weights(flag)
    assert "last:N" in caught.value.way_out


# what is averaged, and how


@pytest.mark.parametrize("way", ["last", "best"])
def test_memory_does_not_grow_with_the_number_of_checkpoints(way, run_folder, tmp_path, monkeypatch):
    """While a checkpoint is read, the weights of one other are in memory at most, and no optimiser's state."""
    weights = []  # weak references to a tensor of weights, and one of the optimiser, of each checkpoint read so far
    moments = []
    weights_alive = []  # how many of these tensors are in memory at the beginning of each read
    moments_alive = []
    load = checkpoint_utils.load_checkpoint_to_cpu

    def count_alive(references: list) -> int:
        return len([reference for reference in references if reference() is not None])

    def watched_load(path, *args, **kwargs):
        weights_alive.append(count_alive(weights))
        moments_alive.append(count_alive(moments))
        state = load(path, *args, **kwargs)
        weights.append(weakref.ref(next(iter(state["model"].values()))))
        moments.append(weakref.ref(state["last_optimizer_state"]["state"][0]["exp_avg"]))
        return state

    monkeypatch.setattr(checkpoint_utils, "load_checkpoint_to_cpu", watched_load)

    average(run_folder, f"--{way}", "3", "--out", tmp_path / "mean.pt")

    assert len(weights_alive) >= 3
    assert max(weights_alive) == 1  # the first one's, to which the mean is written
    assert max(moments_alive) == 0


@pytest.fixture(scope="module")
def mean_of_epochs(run_folder, tmp_path_factory):
    """Provide the mean of epochs 1 and 3."""
    out = tmp_path_factory.mktemp("mean") / "mean.pt"
    run("deepnet", "average", run_folder / "checkpoint1.pt", run_folder / "checkpoint3.pt", "--out", out)
    return out


def test_the_mean_translates(data, mean_of_epochs):
    done = run("fairseq-generate", data, "--path", mean_of_epochs, *TRANSLATE)

    assert len(hypotheses(done.stdout)) == SENTENCES_OF_TEST_SET


def test_a_training_starts_from_the_mean(data, mean_of_epochs):
    flags = (*TRAIN_FLAGS, *ARCH, "--finetune-from-model", mean_of_epochs, "--max-update", "1", "--no-save")

    done = run("fairseq-train", data, *flags)

    assert list(losses(done.stdout)) == [1]  # the update that was made


def test_the_mean_has_no_optimiser(mean_of_epochs):
    assert torch.load(mean_of_epochs)["last_optimizer_state"] is None


def test_the_mean_has_tied_weights_once(mean_of_epochs):
    """The training had --share-all-embeddings, so its checkpoints, too, have one embedding."""
    weights = weights_of(mean_of_epochs)

    embedding = weights["encoder.embed_tokens.weight"]
    assert weights["decoder.embed_tokens.weight"].data_ptr() == embedding.data_ptr()
    assert weights["decoder.output_projection.weight"].data_ptr() == embedding.data_ptr()


# refusals


def train_with_post_ln(state: dict) -> None:
    """Change a checkpoint's config as if another method had trained it."""
    state["cfg"]["model"]["method"] = "post_ln"


def add_a_third_encoder_layer(state: dict) -> None:
    """Add a layer to a checkpoint's config, and its weights, without which the file would count as damaged."""
    state["cfg"]["model"]["encoder_layers"] = 3
    for name, weight in list(state["model"].items()):
        if name.startswith("encoder.layers.1"):
            state["model"][name.replace("layers.1", "layers.2")] = weight


def train_with_another_seed(state: dict) -> None:
    """Change the seed in a checkpoint's config."""
    state["cfg"]["common"]["seed"] = 9


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        (train_with_post_ln, "--method post_ln"),
        (add_a_third_encoder_layer, "--encoder-layers 3"),
        (train_with_another_seed, "--seed 9"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(run_folder, tmp_path, change, difference):
    first = run_folder / "checkpoint1.pt"
    other = tmp_path / "other.pt"
    write_edited(first, other, change)

    line = refusal("average", first, other, "--out", tmp_path / "mean.pt")

    assert f"{other}: " in line
    assert difference in line
    assert not (tmp_path / "mean.pt").exists()


REFUSED = {  # words of the command, without --out -> what the refusal names
    "{folder}": "--last K",  # the flag that chooses among the folder's checkpoints
    "{folder} --last 99": "--last ",
    "{folder} --best 99": "--best",
    "{folder} --last 0": "--last 0: ",
    "{folder}/checkpoint1.pt --last 1": "--last and --best: ",  # these flags take folders only
    "{folder}/checkpoint1.pt --checkpoint-suffix _a": "--checkpoint-suffix: ",  # this flag takes folders only
}


@pytest.mark.parametrize("words", REFUSED)
def test_a_wrong_choice_of_checkpoints_is_refused(words, run_folder, tmp_path):
    chosen = words.format(folder=run_folder).split()

    assert_refused(REFUSED[words], "average", *chosen, "--out", tmp_path / "mean.pt")

    assert not (tmp_path / "mean.pt").exists()


def test_an_averaged_checkpoint_is_not_overwritten(run_folder):
    checkpoint = run_folder / "checkpoint1.pt"
    before = checkpoint.read_bytes()

    assert_refused(f"--out {checkpoint}", "average", checkpoint, "--out", checkpoint)

    assert checkpoint.read_bytes() == before


def test_a_mean_is_not_written_to_a_device(run_folder):
    """/dev/null would be replaced by a file."""
    assert_refused("--out /dev/null", "average", run_folder / "checkpoint1.pt", "--out", "/dev/null")

    assert Path("/dev/null").is_char_device()


@pytest.mark.parametrize("way", ["last", "best"])
def test_a_folder_of_checkpoints_that_is_not_there_is_named(way, tmp_path):
    assert_refused(f"{tmp_path}/nowhere: ", "average", tmp_path / "nowhere", f"--{way}", 2, "--out", tmp_path / "a.pt")
