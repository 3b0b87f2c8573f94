"""A reader's clone: a copy of the tracked files, an environment that looks set up, and the text a reader has."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deepnet_fairseq.data.corpus import make_corpus, write_corpus

from . import smaller

ROOT = Path(__file__).resolve().parents[2]
STAND_IN = Path(__file__).with_name("stand_in.py")
SIZES = {"train": 104, "valid": 10, "test": 10}  # one batch: a multiple of 8
ACTIVATE = """# the environment of a clone that is a copy: its programs, and its package before the installed one
export VIRTUAL_ENV={venv}
export PATH="$VIRTUAL_ENV/bin:$PATH"
export PYTHONPATH={root}
"""
PROGRAM = """#!/bin/sh
exec {python} -S -E {stand_in} {name} {real} "$@"
"""


def copy_of_tracked_files(root: Path) -> Path:
    """The files git knows, as they are in the working tree."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).exists():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, root / name)
    return root


def set_up(root: Path) -> None:
    """A .venv of links to this environment, complete in the eyes of scripts/setup.sh, with the small programs."""
    venv, real = root / ".venv", Path(sys.prefix)
    (venv / "bin").mkdir(parents=True)
    (venv / "lib").symlink_to(real / "lib")
    if (real / "pyvenv.cfg").exists():
        shutil.copy(real / "pyvenv.cfg", venv)
    for program in (real / "bin").iterdir():
        if not program.name.lower().startswith("activate"):
            (venv / "bin" / program.name).symlink_to(program)
    words = {"venv": shlex.quote(str(venv)), "root": shlex.quote(str(root))}
    (venv / "bin" / "activate").write_text(ACTIVATE.format(**words))
    (venv / "complete").write_text(stamp(root))
    for name in smaller.PROGRAMS:
        make_small(venv / "bin" / name)


def stamp(root: Path) -> str:
    """What scripts/setup.sh of that clone writes when it is done, asked of the script itself."""
    text = (root / "scripts" / "setup.sh").read_text()
    question = root / "scripts" / "stamp.sh"
    line = re.search(r"^deepnet_stamp=.*$", text, re.MULTILINE)
    question.write_text(text[: line.end()] + '\nprintf %s "$deepnet_stamp"\n')
    try:
        return subprocess.run(["bash", question], capture_output=True, text=True, check=True).stdout
    finally:
        question.unlink()


def make_small(program: Path) -> Path:
    """Puts the small one in a program's place; where the real one is then, in real/ beside bin/."""
    real = program.parents[1] / "real" / program.name
    real.parent.mkdir(exist_ok=True)
    program.rename(real)
    words = (program.with_name("python3"), STAND_IN, program.name, real)
    quoted = dict(zip(("python", "stand_in", "name", "real"), (shlex.quote(str(word)) for word in words), strict=True))
    program.write_text(PROGRAM.format(**quoted))
    program.chmod(0o755)
    return real


@contextmanager
def small_programs(root: Path) -> Iterator[None]:
    """A real clone's environment with the small programs, for as long as that lasts."""
    programs = [root / ".venv" / "bin" / name for name in smaller.PROGRAMS]
    real = [make_small(program) for program in programs]
    try:
        yield
    finally:
        for path, program in zip(real, programs, strict=True):
            path.replace(program)


def write_text(folder: Path) -> None:
    """corpus/{train,valid,test}.{de,en}: the parallel text that the page supposes a reader to have."""
    write_corpus(make_corpus(SIZES, nouns=20, verbs=10), folder)
    for file in folder.iterdir():
        file.rename(file.with_suffix({".qaa": ".de", ".qab": ".en"}[file.suffix]))


def make_clone(root: Path) -> Path:
    """All of it, for a test."""
    root.mkdir(parents=True)
    copy_of_tracked_files(root)
    set_up(root)
    write_text(root / "corpus")
    return root
