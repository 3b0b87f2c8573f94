"""Tests of averaging: the mean of checkpoints, and the checkpoints that cannot be averaged."""

import re
import weakref

import pytest
import torch
from fairseq import checkpoint_utils

from deepnet_fairseq.cli import main
from deepnet_fairseq.errors import UserError
from deepnet_fairseq.plugin.checkpoints import epoch_weights
from deepnet_fairseq.tools import averaging

from ..conftest import TRAIN_FLAGS
from ..support.errors import assert_refused
from ..support.helpers import USER_DIR, run

ARCH = ("--arch", "deepnet_transformer_tiny", "--encoder-layers", "2", "--decoder-layers", "2")
FLAGS = [flag for flag in TRAIN_FLAGS if flag not in ("--no-epoch-checkpoints", "--disable-validation")]

THREE_EPOCHS = ("--max-epoch", "3", "--max-tokens", "3000")


@pytest.fixture(scope="module")
def folder(data, tmp_path_factory):
    """Provide checkpoints of 3 epochs and of updates 3, 6, ..., each with its validation loss."""
    path = tmp_path_factory.mktemp("run")
    train = ("fairseq-train", data, *FLAGS, *ARCH, *THREE_EPOCHS, "--save-interval-updates", "3")
    run(*train, "--keep-best-checkpoints", "2", "--save-dir", path)
    return path


def assert_mean(out, paths):
    mean, parts = torch.load(out)["model"], [torch.load(path)["model"] for path in paths]
    for name, value in mean.items():
        expected = sum(part[name].double() for part in parts) / len(parts)
        assert torch.allclose(value.double(), expected, atol=1e-7), name


def average(*words) -> None:
    main(["average", *map(str, words)])


def test_last(folder, tmp_path, capsys):
    """--last selects checkpoints by epoch, or by update where there are too few epochs."""
    average(folder, "--last", "2", "--out", tmp_path / "mean.pt")
    assert "checkpoint2.pt, checkpoint3.pt" in capsys.readouterr().out
    assert_mean(tmp_path / "mean.pt", [folder / "checkpoint2.pt", folder / "checkpoint3.pt"])
    average(folder / "checkpoint3.pt", folder / "checkpoint3.pt", "--out", tmp_path / "twice.pt")
    assert (
        capsys.readouterr().err
        == f"WARNING: {folder}/checkpoint3.pt is of the same update as another one; it counts twice\n"
    )
    every = sorted(int(path.stem.split("_")[2]) for path in folder.glob("checkpoint_*_*.pt"))
    assert [int(path.stem.split("_")[2]) for path in averaging.last(folder, 4)] == every[-4:]


@pytest.mark.parametrize("flag, epochs, saves", [("last:2", (2, 3), 3), ("2-2", (2,), 2)])
def test_epochs_leave_their_weights_alone(data, folder, tmp_path, flag, epochs, saves):
    """--epoch-weights saves the weights of an epoch's whole checkpoint, and nothing else of it, in a small file.

    last:2 keeps one file more; whole checkpoints are saved by updates and at the end.
    """
    save = ("--save-dir", tmp_path, "--epoch-weights", flag, "--save-interval-updates", "1000")
    done = run("fairseq-train", data, *FLAGS, *ARCH, *THREE_EPOCHS, *save)
    assert len(re.findall("Saved checkpoint .*checkpoint_last.pt", done.stdout + done.stderr)) == saves
    assert sorted(path.name for path in tmp_path.glob("weights*")) == [f"weights{epoch}.pt" for epoch in epochs]
    for epoch in epochs:
        saved, whole = torch.load(tmp_path / f"weights{epoch}.pt"), torch.load(folder / f"checkpoint{epoch}.pt")
        assert saved["last_optimizer_state"] is None and saved["model"].keys() == whole["model"].keys()
        assert all(torch.equal(saved["model"][name], value) for name, value in whole["model"].items())
    left = {path.name for path in tmp_path.glob("checkpoint*")}
    assert left == {"checkpoint_last.pt", "checkpoint_previous.pt"}
    if len(epochs) == 2:
        average(tmp_path, "--last", "2", "--out", tmp_path / "mean.pt")
        assert_mean(tmp_path / "mean.pt", [folder / f"checkpoint{epoch}.pt" for epoch in epochs])


@pytest.mark.parametrize(
    "max_epoch, max_update, ends, epochs",
    [(0, 100_000, 400, range(390, 401)), (4, 0, 4, range(1, 5)), (0, 0, 499, range(1, 500))],
)
def test_the_last_epochs_are_foretold(max_epoch, max_update, ends, epochs):
    """`last:10` saves the last ten epochs and one more, by the limit on epochs or updates; all if there is none."""
    of_run = (max_epoch, max_update)
    saved = [
        epoch for epoch in range(1, ends + 1) if epoch_weights.may_be_wanted("last:10", epoch, 250 * epoch, *of_run)
    ]
    assert saved == list(epochs)


@pytest.mark.parametrize("flag", ["last:0", "3-2", "ten"])
def test_epochs_that_cannot_be(flag):
    with pytest.raises(UserError, match=f"--epoch-weights {flag}: give last:N"):
        epoch_weights.check_epoch_weights(flag)


def test_best(folder, tmp_path):
    average(folder, "--best", "2", "--out", tmp_path / "mean.pt")
    files = [*folder.glob("checkpoint_*_*.pt"), *folder.glob("checkpoint[0-9].pt")]
    scores = {path: torch.load(path)["extra_state"]["val_loss"] for path in files}
    paths = averaging.best(folder, 2)
    assert [torch.load(path)["extra_state"]["val_loss"] for path in paths] == sorted(set(scores.values()))[:2]
    assert_mean(tmp_path / "mean.pt", paths)


@pytest.mark.parametrize("way", ["last", "best"])
def test_memory_does_not_grow_with_the_number(way, folder, tmp_path, monkeypatch):
    """Reading a checkpoint, the first one's weights are in memory at most, and no optimiser's state."""
    weights, moments, alive = [], [], []
    load = checkpoint_utils.load_checkpoint_to_cpu

    def loaded(path, *args, **kwargs):
        alive.append([sum(one() is not None for one in kept) for kept in (weights, moments)])
        state = load(path, *args, **kwargs)
        weights.append(weakref.ref(next(iter(state["model"].values()))))
        moments.append(weakref.ref(state["last_optimizer_state"]["state"][0]["exp_avg"]))
        return state

    monkeypatch.setattr(checkpoint_utils, "load_checkpoint_to_cpu", loaded)
    average(folder, f"--{way}", "3", "--out", tmp_path / "mean.pt")
    assert len(alive) >= 3
    assert all(first <= 1 and optimisers == 0 for first, optimisers in alive), alive


def test_the_mean_translates_and_trains_on(data, folder, tmp_path):
    out = tmp_path / "mean.pt"
    run("deepnet", "average", folder / "checkpoint1.pt", folder / "checkpoint3.pt", "--out", out)
    flags = ("--path", out, "--user-dir", USER_DIR, "--cpu", "--beam", "1", "--max-len-b", "3", "--max-len-a", "0")
    assert "Translated 20 sentences" in run("fairseq-generate", data, *flags).stdout
    train = ("fairseq-train", data, *TRAIN_FLAGS, *ARCH, "--finetune-from-model", out, "--max-update", "1", "--no-save")
    run(*train)
    assert out.stat().st_size < 0.6 * (folder / "checkpoint1.pt").stat().st_size  # no optimiser, tied weights once


def edited(path, out, change):
    """Write a copy of a checkpoint after change(state)."""
    state = torch.load(path)
    change(state)
    torch.save(state, out)


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [("model", "method", "post_ln"), ("model", "encoder_layers", 3), ("common", "seed", 9)],
)
def test_other_models_are_not_mixed_in(folder, tmp_path, section, name, value):
    def change(state):
        state["cfg"][section].update({name: value})
        if name == "encoder_layers":  # otherwise the file is damaged
            added = {key.replace("layers.1", "layers.2"): weight for key, weight in state["model"].items()}
            state["model"] |= {key: weight for key, weight in added.items() if key.startswith("encoder.layers.2")}

    paths = (str(folder / "checkpoint1.pt"), str(tmp_path / "other.pt"))
    edited(paths[0], paths[1], change)
    flag = f"--{name.replace('_', '-')} {value}"
    assert_refused(f"other.pt: trained with {flag}", "average", *paths, "--out", str(tmp_path / "mean.pt"))
    assert not (tmp_path / "mean.pt").exists()


def test_a_score_that_is_no_number_is_not_among_the_best(folder, tmp_path):
    for name, score in (("checkpoint1.pt", 3.0), ("checkpoint2.pt", float("nan")), ("checkpoint3.pt", 1.0)):
        edited(folder / name, tmp_path / name, lambda state, score=score: state["extra_state"].update(val_loss=score))
    assert [path.name for path in averaging.best(tmp_path, 2)] == ["checkpoint3.pt", "checkpoint1.pt"]


REFUSED = {  # words of the command -> words of the refusal
    "{folder}": "add --last K or --best K",
    "{folder} --last 99": "not 99; give --last ",
    "{folder} --best 99": "smaller --best",
    "{folder}/checkpoint1.pt --last 1": "one folder",
    "{folder}/checkpoint1.pt --out {folder}/checkpoint1.pt": "one of the files to read",
    "{folder} --last 0": "--last 0: must be at least 1",
    "{folder}/checkpoint1.pt --out /dev/null": "no ordinary file",
}


@pytest.mark.parametrize("words", REFUSED)
def test_refusals(words, folder, tmp_path):
    out = () if "--out" in words else ("--out", str(tmp_path / "mean.pt"))
    assert_refused(REFUSED[words], "average", *words.format(folder=folder).split(), *out)
    assert not (tmp_path / "mean.pt").exists()
