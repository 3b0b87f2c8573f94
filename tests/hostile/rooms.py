"""Fixtures of the hostile tests, and what every refusal is held to."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..conftest import TRAIN_FLAGS
from ..support.helpers import USER_DIR
from .checkpoints import CANARY
from .programs import Programs, contents

WIDTHS = {"layers": 1, "embed-dim": 16, "ffn-embed-dim": 16, "attention-heads": 1}
MODEL = ("--arch", "deepnet_transformer_tiny") + tuple(
    str(word) for stack in ("encoder", "decoder") for name, n in WIDTHS.items() for word in (f"--{stack}-{name}", n)
)
TRAIN = (*TRAIN_FLAGS, *MODEL, "--max-update", "1")
GENERATE = ("--user-dir", USER_DIR, "--cpu", "--task", "translation", "--max-tokens", "2000")


@pytest.fixture(name="programs", scope="session")
def the_programs(tmp_path_factory):
    return Programs(tmp_path_factory.mktemp("programs"))


@pytest.fixture(name="sound", scope="session")
def a_sound_checkpoint(programs, data, tmp_path_factory) -> Path:
    """Of a 1L-1L model of width 16, after an update."""
    folder = tmp_path_factory.mktemp("sound")
    done = programs.run("fairseq-train", data, *TRAIN, "--save-dir", folder)
    assert done.status == 0, done.printed
    return folder / "checkpoint_last.pt"


def refused(programs: Programs, room: Path, words: tuple, *says: str) -> None:
    """One line with all of `says`; no code of a file was run, and all files of the room are as they were."""
    before = contents(room)
    outcome = programs.run(*words)
    outcome.check_refusal(*says)
    check_harmless(programs, room, before)


def check_harmless(programs: Programs, room: Path, before: dict[str, str]) -> None:
    assert not (programs.folder / CANARY).exists(), "code of the file was run"
    after = contents(room)
    assert {name: after.get(name) for name in before} == before
    assert not [name for name in after.keys() - before.keys() if not name.endswith(".log")]
