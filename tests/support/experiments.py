"""Experiment scripts for tests: run to the end, started in the background, or as --dry-run lists their commands."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import time
from unittest import mock

import pytest

from .forked import fork
from .helpers import ROOT


def venv_is_of_this_checkout() -> bool:
    """Return whether scripts/setup.sh has made .venv for this folder: for another it would install in the test."""
    stamp = ROOT / ".venv" / "complete"  # a checksum of what is installed, then the folder
    return stamp.exists() and stamp.read_text().split(maxsplit=2)[-1].strip() == str(ROOT)


needs_venv = pytest.mark.skipif(not venv_is_of_this_checkout(), reason="scripts/setup.sh has not made .venv here")

SETTINGS = (
    "DATA", "OUT", "SMOKE", "DEPTHS", "METHODS", "SEEDS", "SEED", "GPUS", "NODES", "JOBS", "LAUNCH", "PRECISION",
    "MAX_TOKENS", "PAIRS", "SLURM_JOB_ID", "PARTS", "SIZES", "LRS", "TEXT", "STOP_STUCK", "GENERATE",
    "AVERAGE", "SHARE_EMBEDDINGS", "WARMUP", "ORDER", "PLAN", "KEEP", "RECOMPUTE", "GPU_MEMORY", "TFLOPS", "RECIPE",
)  # fmt: skip
COMMANDS = "--dry-run=commands"


def bash(*words, check=True, timeout=600) -> subprocess.CompletedProcess:
    """Run a shell script in the root of the repository."""
    command = ["bash", *(str(word) for word in words)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=timeout)
    assert not check or done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done


def _environment(variables: dict) -> dict[str, str]:
    """Return this process's environment with `variables`, without settings that a user may have in theirs."""
    clean = {key: value for key, value in os.environ.items() if key not in SETTINGS}
    return clean | {"PLAN": "0"} | {key: str(value) for key, value in variables.items()}  # a plan takes seconds


def _command(name, flags, variables) -> dict:
    words = ["bash", ROOT / f"scripts/{name}.sh", *map(str, flags)]
    return {"args": words, "env": _environment(variables), "stdin": subprocess.DEVNULL}


def _experiment_of(name: str) -> str | None:
    """Return the experiment of a script that does nothing but call `deepnet reproduce`, None for another script."""
    calls = re.findall(r'^reproduce (\S+) "\$@"$', (ROOT / f"scripts/{name}.sh").read_text(), flags=re.MULTILINE)
    return calls[0] if calls else None


def script(name, *flags, check=True, timeout=600, **variables) -> subprocess.CompletedProcess:
    """Run scripts/NAME.sh to its end.

    A dry run of a script with one experiment is run as the command that the script calls, in a fork: it takes 1 s and
    not 6 s. tests/tools/test_dry_runs.py starts dry runs by bash.
    """
    experiment = _experiment_of(name)
    is_dry = any(str(flag).startswith("--dry-run") for flag in flags)
    if is_dry and experiment is not None:
        words = ["deepnet", "reproduce", experiment, "--variables", *map(str, flags)]
        with mock.patch.dict(os.environ, _environment(variables), clear=True):
            done = fork(words, ROOT, timeout)
    else:
        done = subprocess.run(**_command(name, flags, variables), capture_output=True, text=True, timeout=timeout)
    assert not check or done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done


def start(name, *flags, **variables) -> subprocess.Popen:
    """Start scripts/NAME.sh in the background, as the leader of a process group."""
    heed = (signal.SIGINT, signal.SIG_DFL)  # background jobs ignore Ctrl-C by default
    return subprocess.Popen(
        **_command(name, flags, variables), stdout=subprocess.DEVNULL, start_new_session=True,
        preexec_fn=lambda: signal.signal(*heed),
    )  # fmt: skip


def until(condition, seconds: int = 300) -> None:
    """Wait until the condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def dry_run(name, *flags, **variables) -> list[list[str]]:
    """Return the commands of a dry run, each split into words."""
    return [shlex.split(line) for line in script(name, COMMANDS, *flags, **variables).stdout.splitlines()]


def trainings(name, *flags, **variables) -> list[list[str]]:
    """Return the arguments of fairseq-train for each training of a dry run."""
    commands = dry_run(name, *flags, **variables)
    return [words[words.index("fairseq-train") + 1 :] for words in commands if "fairseq-train" in words]


def values(words) -> dict[str, str]:
    """Return the last value of each flag, "" for a switch."""
    pairs = zip(words, [*words[1:], "--"], strict=True)
    return {word: "" if value.startswith("--") else value for word, value in pairs if word.startswith("--")}


def batch(flags: dict[str, str]) -> int:
    """Return the tokens of an update at most, over all processes and micro-batches."""
    processes = int(flags.get("--distributed-world-size", "1"))
    return processes * int(flags["--max-tokens"]) * int(flags["--update-freq"])
