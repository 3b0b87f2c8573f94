"""A clone that scripts/setup.sh sets up in no time: Python, pip and the compiler are stand-ins."""

from __future__ import annotations

import shutil
import signal
import subprocess
from pathlib import Path

from .helpers import ROOT

PYTHON = """#!/bin/bash
name="$(basename "$0")"
case "$*" in
    "-c import ensurepip, venv") exit "${NO_VENV:-0}" ;;
    "-c import sys; sys.exit("*) [[ "$name" == python3.1[12] ]] ;;
    "-c import sys; print("*) echo "$name" ;;
    "-c import sysconfig; "*) echo /include ;;
    "-m venv "*)
        mkdir -p "$3/bin" "$3/lib/$name/site-packages"
        ln -s "$0" "$3/bin/python"
        ln -s "$(dirname "$0")/pip" "$3/bin/pip"
        echo "VIRTUAL_ENV='$3'" >"$3/bin/activate" ;;
    *) echo "Python of $name" ;;
esac
"""
# A package is there once its dist-info has INSTALLER. PIP_FAILS, PIP_HANGS: words of the call that fails or waits.
PIP = """#!/bin/bash
echo "$*" >>"$CALLS"
case "$*" in
    *"${PIP_FAILS:-nothing}"*) echo "${PIP_SAYS:-}" >&2; exit 1 ;;
    *--dry-run*) exit 1 ;;
esac
site="$(echo "$(dirname "$0")"/../lib/python*/site-packages)"
case "$*" in
    *torch==*) package=torch-2.13.0+cpu ;;
    *fairseq-fixed*) package=fairseq_fixed-0.12.3.1 ;;
    *numpy*) package=numpy-2.4.6 ;;
    *) package=deepnet_fairseq-1 ;;
esac
mkdir -p "$site/$package.dist-info"
case "$*" in *"${PIP_HANGS:-nothing}"*) : >"$CALLS.hangs"; exec sleep 60 ;; esac  # no child: bash would outlive Ctrl-C
touch "$site/$package.dist-info/INSTALLER"
"""
NEEDED = ("basename", "bash", "cat", "cksum", "dirname", "env", "flock", "grep", "ln", "mkdir", "realpath", "rm", "sh",
          "sleep", "tail", "touch", "wc")  # fmt: skip
COMPILER = '#!/bin/bash\nexit "${NO_HEADERS:-0}"\n'
STEPS = ["torch==2.13.0+cpu", "numpy cython setuptools wheel", "fairseq-fixed", ".[dev]"]


class Clone:
    """A folder with what the set-up reads, in an environment of stand-ins alone."""

    def __init__(self, folder: Path):
        self.root, self.programs = folder / "a clone", folder / "bin"
        self.environment = {"PATH": str(self.programs), "CALLS": str(folder / "calls"), "HOME": str(folder / "no home")}
        (self.root / "scripts").mkdir(parents=True)
        self.programs.mkdir()
        for file in ("setup.py", "scripts/setup.sh", "scripts/constraints.txt"):
            (self.root / file).write_bytes((ROOT / file).read_bytes())
        for name in NEEDED:
            (self.programs / name).symlink_to(shutil.which(name))
        self.program("python3.11", PYTHON)
        self.program("pip", PIP)
        self.program("c++", COMPILER)

    def program(self, name: str, text: str) -> None:
        (self.programs / name).write_text(text)
        (self.programs / name).chmod(0o755)

    def setup(self, *words: str, **environment: str) -> subprocess.CompletedProcess:
        """Runs `words`, by default the script by bash; the output is that of both streams."""
        return self.start(*words, **environment).finish()

    def start(self, *words: str, **environment: str) -> Started:
        (self.root.parent / "calls").write_text("")
        return Started(words or ("bash", "scripts/setup.sh"), self.root, self.environment | environment)

    @property
    def steps(self) -> list[str]:
        """What pip was to install in the last call, by its place in STEPS."""
        lines = (self.root.parent / "calls").read_text().splitlines()
        return [step for line in lines if "--dry-run" not in line for step in STEPS if step in line]

    @property
    def complete(self) -> bool:
        return (self.root / ".venv/complete").exists()


class Started(subprocess.Popen):
    """A set-up that runs, leader of its process group, to which Ctrl-C is not forbidden."""

    def __init__(self, words, folder: Path, environment: dict[str, str]):
        def heed():
            signal.signal(signal.SIGINT, signal.SIG_DFL)

        super().__init__(
            words, cwd=folder, env=environment, text=True, start_new_session=True, preexec_fn=heed,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def finish(self) -> subprocess.CompletedProcess:
        output, _ = self.communicate(timeout=60)
        return subprocess.CompletedProcess(self.args, self.returncode, output)
