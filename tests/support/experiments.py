"""Experiment scripts for tests: run to the end, started in the background, or as --dry-run lists their commands."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time

from .helpers import ROOT

SETTINGS = (
    "DATA", "OUT", "SMOKE", "DEPTHS", "METHODS", "SEEDS", "SEED", "GPUS", "NODES", "JOBS", "LAUNCH", "PRECISION",
    "MAX_TOKENS", "PAIRS", "SLURM_JOB_ID", "PARTS", "SIZES", "LRS", "TEXT", "STOP_STUCK", "GENERATE",
    "AVERAGE", "SHARE_EMBEDDINGS", "WARMUP", "ORDER", "PLAN", "KEEP", "RECOMPUTE", "GPU_MEMORY", "TFLOPS", "RECIPE",
)  # fmt: skip
COMMANDS = "--dry-run=commands"


def _command(name, flags, environment) -> dict:
    clean = {key: value for key, value in os.environ.items() if key not in SETTINGS}
    env = clean | {"PLAN": "0"} | {key: str(value) for key, value in environment.items()}  # a plan takes seconds
    return {"args": ["bash", ROOT / f"scripts/{name}.sh", *map(str, flags)], "env": env, "stdin": subprocess.DEVNULL}


def script(name, *flags, check=True, timeout=600, **environment):
    """Run scripts/NAME.sh to its end."""
    done = subprocess.run(**_command(name, flags, environment), capture_output=True, text=True, timeout=timeout)
    assert not check or done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done


def start(name, *flags, **environment) -> subprocess.Popen:
    """Start scripts/NAME.sh in the background, as the leader of a process group."""
    heed = (signal.SIGINT, signal.SIG_DFL)  # background jobs ignore Ctrl-C by default
    return subprocess.Popen(
        **_command(name, flags, environment), stdout=subprocess.DEVNULL, start_new_session=True,
        preexec_fn=lambda: signal.signal(*heed),
    )  # fmt: skip


def until(condition, seconds: int = 300) -> None:
    """Wait until the condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def dry_run(name, *flags, **environment) -> list[list[str]]:
    """Return the commands of a dry run, each split into words."""
    return [shlex.split(line) for line in script(name, COMMANDS, *flags, **environment).stdout.splitlines()]


def trainings(name, *flags, **environment) -> list[list[str]]:
    """Return the arguments of fairseq-train for each training of a dry run."""
    commands = dry_run(name, *flags, **environment)
    return [words[words.index("fairseq-train") + 1 :] for words in commands if "fairseq-train" in words]


def values(words) -> dict[str, str]:
    """Return the last value of each flag, "" for a switch."""
    pairs = zip(words, [*words[1:], "--"], strict=True)
    return {word: "" if value.startswith("--") else value for word, value in pairs if word.startswith("--")}
