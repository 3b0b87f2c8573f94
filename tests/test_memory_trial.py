"""--memory-trial: the largest batch before the first update, of which nothing stays."""

import logging
import random

import numpy
import pytest
import torch
from fairseq.tasks import FairseqTask

from deepnet_fairseq.errors import UserError
from deepnet_fairseq.plugin import memory_trial

from .conftest import TRAIN_FLAGS
from .support import diverging
from .support.diverging import TINY, Training
from .support.helpers import run

ADMIN = (*TINY, "--method", "admin", "--admin-profile", "auto")
HALF = (*TINY, "--fp16", "--fp16-init-scale", "8")
OURS = (*TINY, "--optimizer", "deepnet_adam", "--deepnet-probe", "all", "--probe-interval", "1")
AGAIN = (*TINY, "--update-freq", "2", "--dropout", "0.3")


@pytest.mark.parametrize("flags", [ADMIN, HALF, OURS, AGAIN], ids=["admin", "half", "ours", "accumulated"])
def test_a_trainings_bits_are_those_without(flags, data, tmp_path):
    """Two updates, and two more after a resume: weights, the optimiser's state, what a probe saw."""
    for when in ("always", "never"):
        for updates in ("2", "4"):
            diverging.train(data, tmp_path / when, *flags, "--memory-trial", when, "--max-update", updates)
    last = [tmp_path / when / "checkpoint_last.pt" for when in ("always", "never")]
    tried, plain = (torch.load(path, weights_only=True) for path in last)
    assert all(tried["model"][name].equal(value) for name, value in plain["model"].items())
    states = (one["last_optimizer_state"]["state"] for one in (tried, plain))
    for mine, theirs in zip(*(state.values() for state in states), strict=True):
        assert all(torch.equal(torch.as_tensor(mine[key]), torch.as_tensor(theirs[key])) for key in theirs)
    probed = [path.with_name("probes.jsonl") for path in last]
    assert flags is not OURS or probed[0].read_text() == probed[1].read_text()


def epoch(training):
    return training.trainer.get_train_iterator(1)


def test_the_largest_batch(data, tmp_path):
    """Of all batches none has more positions, padding included."""
    batches = epoch(Training(data, tmp_path, *TINY))
    rows, width = memory_trial.largest(batches)
    sizes = [
        max(one["net_input"]["src_tokens"].numel(), one["target"].numel())
        for one in (batches.collate_fn([batches.dataset[i] for i in rows]) for rows in batches.frozen_batches)
    ]
    assert len(rows) * width == max(sizes)
    batches.dataset.num_tokens_vec = lambda rows: (_ for _ in ()).throw(NotImplementedError)  # as others have it
    assert memory_trial.largest(batches) == (rows, width)


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory. Tried to ...")])
def test_what_does_not_fit_is_one_line_and_leaves_nothing(error, data, tmp_path, monkeypatch):
    training = Training(data, tmp_path, *TINY, "--memory-trial", "always")
    trainer, step = training.trainer, FairseqTask.train_step

    def fails(*args):
        step(*args)  # the backward pass was all but over
        random.random(), numpy.random.rand(), torch.rand(1)
        raise error

    monkeypatch.setattr(type(trainer.task), "train_step", fails)
    before = [random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist()]
    with pytest.raises(UserError) as caught:
        memory_trial.try_once(pytest.fail, trainer.cfg, trainer, trainer.task, epoch(training))
    line = str(caught.value)
    assert line.startswith("--max-tokens 600: out of memory on the largest batch, ") and "\n" not in line
    assert all(word in line for word in ("sentences of up to", "--checkpoint-activations", "deepnet plan"))
    assert [random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist()] == before
    assert all(p.grad is None or not p.grad.any() for p in training.model.parameters())
    monkeypatch.setattr(type(trainer.task), "train_step", lambda *args: (_ for _ in ()).throw(RuntimeError("another")))
    with pytest.raises(RuntimeError, match="another"):
        memory_trial.try_largest(trainer.cfg, trainer, trainer.task, epoch(training))


@pytest.mark.parametrize("optimiser", ["adam", "deepnet_adam"])
def test_moments_are_kept_room_for_once(optimiser, data, tmp_path):
    """Two numbers of float32 for each weight, until they are there: made by an update, or read from a checkpoint."""
    diverging.train(data, tmp_path, *TINY, "--optimizer", optimiser, "--max-update", "1")
    training = Training(data, tmp_path / "new", *TINY, "--optimizer", optimiser)
    trainer = training.trainer
    room = memory_trial._optimizer_to_come(trainer.cfg, trainer)
    assert sum(one.numel() for one in room) == 2 * sum(p.numel() for p in training.model.parameters())
    trainer.load_checkpoint(str(tmp_path / "checkpoint_last.pt"))
    assert memory_trial._optimizer_to_come(trainer.cfg, trainer) == []


def test_data_that_are_read_as_they_are_asked_for(data, tmp_path, monkeypatch):
    training = Training(data, tmp_path, *TINY)
    batches, read = epoch(training), []
    monkeypatch.setattr(type(batches.dataset), "supports_prefetch", True)
    monkeypatch.setattr(type(batches.dataset), "prefetch", lambda dataset, rows: read.append(rows))
    memory_trial.try_largest(training.trainer.cfg, training.trainer, training.trainer.task, batches)
    assert read == [memory_trial.largest(batches)[0]]


def test_when_it_is_made(data, tmp_path, monkeypatch):
    """auto: beyond 100 layers on a GPU; once in a process."""
    made = []
    monkeypatch.setattr(memory_trial, "try_largest", lambda *args: made.append(args))
    for layers, when, cuda, expected in (
        ("51", "auto", True, 1), ("50", "auto", True, 0), ("51", "auto", False, 0), ("51", "never", True, 0),
        ("2", "always", False, 1),
    ):  # fmt: skip
        made.clear()
        flags = ("--encoder-layers", layers, "--decoder-layers", "50", "--memory-trial", when)
        trainer = Training(data, tmp_path, *TINY, *flags).trainer
        trainer.cuda = cuda
        for _ in range(2):
            memory_trial.try_once(lambda *args: None, trainer.cfg, trainer, trainer.task, None)
        assert len(made) == expected, (layers, when, cuda)


def test_a_training_says_what_fits(data, tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        diverging.train(data, tmp_path, *TINY, "--memory-trial", "always", "--max-update", "1")
    assert any("fits into memory" in record.getMessage() for record in caplog.records)


@pytest.mark.smoke
def test_two_ranks_try_the_same_batch(data, tmp_path):
    """Of sharded weights too; the losses are those without."""
    for backend in ("pytorch_ddp", "fully_sharded"):
        logs = []
        for when in ("always", "never"):
            flags = (*TRAIN_FLAGS, *TINY, "--memory-trial", when, "--max-update", "2", "--ddp-backend", backend)
            folder = tmp_path / f"{backend}-{when}"
            done = run("fairseq-train", data, *flags, "--distributed-world-size", "2", "--save-dir", folder)
            assert ("fits into memory" in done.stdout) == (when == "always")
            logs.append([line.partition('"loss"')[2][:12] for line in done.stdout.splitlines() if '"loss"' in line])
        assert logs[0] == logs[1] and logs[0]
