"""Tests of averaging: the mean of checkpoints, and the checkpoints that cannot be averaged."""

import re
import weakref

import pytest
import torch
from fairseq import checkpoint_utils

from deepnet_fairseq.cli import main
from deepnet_fairseq.plugin.checkpoints import epoch_weights
from deepnet_fairseq.tools import averaging

from ..conftest import TRAIN_FLAGS
from ..support.errors import assert_refused, refused
from ..support.helpers import USER_DIR, run

ARCH = ("--arch", "deepnet_transformer_tiny", "--encoder-layers", "2", "--decoder-layers", "2")
WITHOUT = ("--no-epoch-checkpoints", "--disable-validation")
FLAGS = (*(flag for flag in TRAIN_FLAGS if flag not in WITHOUT), *ARCH, "--max-epoch", "3", "--max-tokens", "3000")


@pytest.fixture(scope="module")
def run_folder(data, tmp_path_factory):
    """Provide checkpoints of 3 epochs and of updates 3, 6, ..., each with its validation loss."""
    folder = tmp_path_factory.mktemp("run")
    saves = ("--save-interval-updates", "3", "--keep-best-checkpoints", "2", "--save-dir", folder)
    run("fairseq-train", data, *FLAGS, *saves)
    return folder


def average(*words) -> None:
    """Run `deepnet average WORDS` in this process."""
    main(["average", *map(str, words)])


def weights_of(path) -> dict[str, torch.Tensor]:
    return torch.load(path)["model"]


def validation_loss(path) -> float:
    return torch.load(path)["extra_state"]["val_loss"]


def assert_mean(out, paths) -> None:
    """Check that the parameters of a file are the means of those in others."""
    parts = [weights_of(path) for path in paths]
    for name, value in weights_of(out).items():
        expected = sum(part[name].double() for part in parts) / len(parts)
        assert torch.allclose(value.double(), expected, atol=1e-7), name


def write_edited(path, out, change) -> None:
    """Write a copy of a checkpoint after change(state)."""
    state = torch.load(path)
    change(state)
    torch.save(state, out)


# the last checkpoints


def test_last_averages_the_last_epochs(run_folder, tmp_path, capsys):
    average(run_folder, "--last", "2", "--out", tmp_path / "mean.pt")

    assert "checkpoint2.pt, checkpoint3.pt" in capsys.readouterr().out
    assert_mean(tmp_path / "mean.pt", [run_folder / "checkpoint2.pt", run_folder / "checkpoint3.pt"])


def test_last_takes_checkpoints_by_update_where_epochs_are_too_few(run_folder):
    by_update = {}
    for path in run_folder.glob("checkpoint_*_*.pt"):
        by_update[int(path.stem.split("_")[2])] = path

    last_updates = sorted(by_update)[-4:]

    assert averaging.last(run_folder, 4) == [by_update[update] for update in last_updates]


def test_a_checkpoint_given_twice_is_warned_of(run_folder, tmp_path, capsys):
    path = run_folder / "checkpoint3.pt"

    average(path, path, "--out", tmp_path / "twice.pt")

    (warning,) = capsys.readouterr().err.splitlines()
    assert warning.startswith(f"WARNING: {path} ")


# the best checkpoints


def test_best_averages_those_of_the_lowest_validation_loss(run_folder, tmp_path):
    average(run_folder, "--best", "2", "--out", tmp_path / "mean.pt")

    paths = averaging.best(run_folder, 2)
    files = [*run_folder.glob("checkpoint_*_*.pt"), *run_folder.glob("checkpoint[0-9].pt")]
    losses = {validation_loss(path) for path in files}  # a model saved under two names counts once
    assert [validation_loss(path) for path in paths] == sorted(losses)[:2]
    assert_mean(tmp_path / "mean.pt", paths)


def test_a_score_that_is_not_a_number_is_not_among_the_best(run_folder, tmp_path):
    scores = {"checkpoint1.pt": 3.0, "checkpoint2.pt": float("nan"), "checkpoint3.pt": 1.0}
    for name, score in scores.items():
        write_edited(
            run_folder / name, tmp_path / name, lambda state, score=score: state["extra_state"].update(val_loss=score)
        )

    assert [path.name for path in averaging.best(tmp_path, 2)] == ["checkpoint3.pt", "checkpoint1.pt"]


# --epoch-weights


@pytest.fixture(scope="module", params=["last:2", pytest.param("2-2", marks=pytest.mark.smoke)])
def trained_with_epoch_weights(request, data, tmp_path_factory):
    """Provide --epoch-weights of a run of 3 epochs, its folder and its output."""
    folder = tmp_path_factory.mktemp("epoch_weights")
    saves = ("--epoch-weights", request.param, "--save-interval-updates", "1000", "--save-dir", folder)
    done = run("fairseq-train", data, *FLAGS, *saves)
    return request.param, folder, done.stdout + done.stderr


EPOCHS = {"last:2": (2, 3), "2-2": (2,)}  # whose weights are left


def test_epoch_weights_leaves_files_of_those_epochs(trained_with_epoch_weights):
    flag, folder, _ = trained_with_epoch_weights

    names = [path.name for path in folder.glob("weights*")]
    assert sorted(names) == [f"weights{epoch}.pt" for epoch in EPOCHS[flag]]


def test_epoch_weights_saves_the_weights_of_a_checkpoint_and_no_optimiser(trained_with_epoch_weights, run_folder):
    flag, folder, _ = trained_with_epoch_weights

    for epoch in EPOCHS[flag]:
        saved = torch.load(folder / f"weights{epoch}.pt")
        whole = weights_of(run_folder / f"checkpoint{epoch}.pt")
        assert saved["last_optimizer_state"] is None
        assert saved["model"].keys() == whole.keys()
        for name, value in whole.items():
            assert torch.equal(saved["model"][name], value), name


def test_epoch_weights_leaves_whole_checkpoints_for_a_resume_alone(trained_with_epoch_weights):
    _, folder, _ = trained_with_epoch_weights

    assert {path.name for path in folder.glob("checkpoint*")} == {"checkpoint_last.pt", "checkpoint_previous.pt"}


def test_epochs_that_only_keep_weights_save_no_whole_checkpoint(trained_with_epoch_weights):
    """Whole checkpoints are saved by updates and at the end."""
    flag, _, output = trained_with_epoch_weights

    saves = {"last:2": 3, "2-2": 2}  # last:2 keeps the weights of one epoch more, in case the end is predicted wrongly
    assert len(re.findall("Saved checkpoint .*checkpoint_last.pt", output)) == saves[flag]


def test_files_of_epoch_weights_are_averaged_as_whole_checkpoints(trained_with_epoch_weights, run_folder, tmp_path):
    flag, folder, _ = trained_with_epoch_weights
    epochs = EPOCHS[flag]

    average(folder, "--last", len(epochs), "--out", tmp_path / "mean.pt")

    assert_mean(tmp_path / "mean.pt", [run_folder / f"checkpoint{epoch}.pt" for epoch in epochs])


UPDATES_AN_EPOCH = 250


@pytest.mark.parametrize(
    "max_epoch, max_update, last_epoch, saved",
    [(0, 100_000, 400, range(390, 401)), (4, 0, 4, range(1, 5)), (0, 0, 499, range(1, 500))],
)
def test_epoch_weights_predicts_the_last_epochs(max_epoch, max_update, last_epoch, saved):
    """`last:10` saves the last ten epochs and one more, by the limit on epochs or updates; all if there is none."""
    wanted = []
    for epoch in range(1, last_epoch + 1):
        updates = UPDATES_AN_EPOCH * epoch
        if epoch_weights.may_be_wanted("last:10", epoch, updates, max_epoch, max_update):
            wanted.append(epoch)

    assert wanted == list(saved)


@pytest.mark.parametrize("flag", ["last:0", "3-2", "ten"])
def test_epoch_weights_that_name_no_epochs_are_refused(flag):
    with refused(f"--epoch-weights {flag}") as caught:
        epoch_weights.check_epoch_weights(flag)
    assert "last:N" in caught.value.way_out


# what is averaged, and how


@pytest.mark.parametrize("way", ["last", "best"])
def test_memory_does_not_grow_with_the_number_of_checkpoints(way, run_folder, tmp_path, monkeypatch):
    """While a checkpoint is read, the weights of one other are in memory at most, and no optimiser's state."""
    weights = []  # weak references, one a checkpoint
    moments = []  # of its optimiser
    alive_at_reads = []
    load = checkpoint_utils.load_checkpoint_to_cpu

    def count_alive(references: list) -> int:
        return len([reference for reference in references if reference() is not None])

    def watched_load(path, *args, **kwargs):
        alive_at_reads.append((count_alive(weights), count_alive(moments)))
        state = load(path, *args, **kwargs)
        weights.append(weakref.ref(next(iter(state["model"].values()))))
        moments.append(weakref.ref(state["last_optimizer_state"]["state"][0]["exp_avg"]))
        return state

    monkeypatch.setattr(checkpoint_utils, "load_checkpoint_to_cpu", watched_load)
    average(run_folder, f"--{way}", "3", "--out", tmp_path / "mean.pt")

    assert len(alive_at_reads) >= 3
    for others_weights, optimisers in alive_at_reads:
        assert others_weights <= 1
        assert optimisers == 0


@pytest.fixture
def mean_of_epochs(run_folder, tmp_path):
    """Provide the mean of epochs 1 and 3."""
    out = tmp_path / "mean.pt"
    run("deepnet", "average", run_folder / "checkpoint1.pt", run_folder / "checkpoint3.pt", "--out", out)
    return out


def test_the_mean_translates(data, mean_of_epochs):
    search = ("--cpu", "--beam", "1", "--max-len-b", "3", "--max-len-a", "0")

    done = run("fairseq-generate", data, "--path", mean_of_epochs, "--user-dir", USER_DIR, *search)

    assert "Translated 20 sentences" in done.stdout


def test_the_mean_is_trained_on(data, mean_of_epochs):
    flags = (*TRAIN_FLAGS, *ARCH, "--finetune-from-model", mean_of_epochs, "--max-update", "1", "--no-save")

    run("fairseq-train", data, *flags)


def test_the_mean_has_no_optimiser_and_tied_weights_once(run_folder, mean_of_epochs):
    assert mean_of_epochs.stat().st_size < 0.6 * (run_folder / "checkpoint1.pt").stat().st_size


# refusals


def add_a_third_encoder_layer(state: dict) -> None:
    """Give the state the weights of a third layer, without which its config of 3 layers would be a damaged file."""
    for name, weight in list(state["model"].items()):
        if name.startswith("encoder.layers.1"):
            state["model"][name.replace("layers.1", "layers.2")] = weight


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [("model", "method", "post_ln"), ("model", "encoder_layers", 3), ("common", "seed", 9)],
)
def test_a_checkpoint_of_another_run_is_refused(run_folder, tmp_path, section, name, value):
    def change(state):
        state["cfg"][section].update({name: value})
        if name == "encoder_layers":
            add_a_third_encoder_layer(state)

    first = run_folder / "checkpoint1.pt"
    other = tmp_path / "other.pt"
    write_edited(first, other, change)

    words = ("average", first, other, "--out", tmp_path / "mean.pt")
    assert_refused(other, *words)
    assert_refused(f"--{name.replace('_', '-')} {value}", *words)

    assert not (tmp_path / "mean.pt").exists()


REFUSED = {  # words of the command -> what the refusal names
    "{folder}": "--last K",
    "{folder} --last 99": "give --last ",
    "{folder} --best 99": "--best",
    "{folder}/checkpoint1.pt --last 1": "--last and --best: ",
    "{folder}/checkpoint1.pt --out {folder}/checkpoint1.pt": "--out {folder}/checkpoint1.pt",
    "{folder} --last 0": "--last 0: ",
    "{folder}/checkpoint1.pt --checkpoint-suffix _a": "--checkpoint-suffix: ",
    "{folder}/checkpoint1.pt --out /dev/null": "--out /dev/null",
}


@pytest.mark.parametrize("words", REFUSED)
def test_a_wrong_choice_of_checkpoints_is_refused(words, run_folder, tmp_path):
    out = () if "--out" in words else ("--out", tmp_path / "mean.pt")

    named = REFUSED[words].format(folder=run_folder)
    assert_refused(named, "average", *words.format(folder=run_folder).split(), *out)

    assert not (tmp_path / "mean.pt").exists()
