"""Language models on two processes, and killed and resumed in the middle of an epoch."""

from __future__ import annotations

import signal

import pytest
from fairseq import checkpoint_utils

from .faults import states
from .support import ranks
from .support.lives import live, rows
from .support.lm_trainings import FLAGS, KINDS, make_text
from .test_equal_processes import MODES, assert_same


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return make_text(tmp_path_factory.mktemp("text"))


def train(folder, text, world, kind, *flags):
    """Losses of 12 updates of the batches of 2, and the checkpoint."""
    words = (*FLAGS, *KINDS[kind], "--disable-validation", "--max-update", 12, "--update-freq", 2 // world, *flags)
    found = ranks.train(world, folder / "log", text, *words, "--save-dir", folder)
    state = checkpoint_utils.load_checkpoint_to_cpu(str(folder / "checkpoint_last.pt"))
    return [float(row["loss"]) for row in found], state


@pytest.fixture(scope="module", params=KINDS)
def alone(request, text, tmp_path_factory):
    """A kind of model, and what one process makes of it."""
    return request.param, train(tmp_path_factory.mktemp("alone"), text, 1, request.param)


CHUNKED = ("--criterion", "chunked_cross_entropy")


@pytest.mark.parametrize("mode", ["ddp", "zero", "fsdp"])
def test_two_processes_are_one(alone, mode, text, tmp_path):
    """Losses, weights and moments; which tokens are masked does not depend on the process."""
    kind, (expected, one) = alone
    more = CHUNKED if (kind, mode) == ("causal", "ddp") else ()
    losses, state = train(tmp_path, text, 2, kind, *MODES[mode], *more)
    assert len(losses) == 12 and losses == pytest.approx(expected, abs=2.1e-3) and expected[-1] < expected[0]
    assert_same(state, one)


LIVES = {  # flags, moments of death
    "causal": (("--write-checkpoints-asynchronously",), [("update", 6), ("update", 5)]),
    "masked": ((), [("update", 6), ("update", 5)]),
}


@pytest.mark.parametrize("kind", LIVES)
def test_killed_training_ends_as_one_left_alone(kind, text, tmp_path):
    """In the first epoch and in the second; the tokens that are masked are the same again."""
    flags, deaths = LIVES[kind]
    command = (text, *FLAGS, *KINDS[kind], "--dropout", "0.1", "--max-tokens", "800", "--save-interval-updates", "4")
    command += ("--keep-interval-updates", "1", "--max-update", "10", *flags)
    found = []
    for name, moments in (("alone", []), ("killed", deaths)):
        log, save = tmp_path / f"{name}.log", tmp_path / name
        for moment in moments:
            assert live(log, *command, "--save-dir", save, at=moment) == -signal.SIGKILL
        assert live(log, *command, "--save-dir", save) == 0, log.read_text()[-2000:]
        found.append((states.load(save / "checkpoint_last.pt"), rows(log), sorted(p.name for p in save.iterdir())))
    (one, expected, names), (other, logged, files) = found
    assert logged == expected and files == names
    assert list(states.differences(other, one)) == []
