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
    """Return whether scripts/setup.sh has made .venv, and for this very folder.

    With a .venv that is missing or of another folder, each script would begin by installing its libraries.
    """
    stamp = ROOT / ".venv" / "complete"  # a checksum of what is installed, then the folder
    return stamp.exists() and stamp.read_text().split(maxsplit=2)[-1].strip() == str(ROOT)


needs_venv = pytest.mark.skipif(not venv_is_of_this_checkout(), reason="scripts/setup.sh has not made .venv here")

# Variables of the environment that scripts read.
SETTINGS = (
    "DATA", "OUT", "SMOKE", "DEPTHS", "METHODS", "SEEDS", "SEED", "GPUS", "NODES", "JOBS", "LAUNCH", "PRECISION",
    "MAX_TOKENS", "PAIRS", "SLURM_JOB_ID", "PARTS", "SIZES", "LRS", "TEXT", "STOP_STUCK", "GENERATE",
    "AVERAGE", "SHARE_EMBEDDINGS", "WARMUP", "ORDER", "PLAN", "KEEP", "RECOMPUTE", "GPU_MEMORY", "TFLOPS", "RECIPE",
)  # fmt: skip
COMMANDS = "--dry-run=commands"  # the flag with which a script prints its commands, one a line, and runs none


def bash(*words, check=True, timeout=600) -> subprocess.CompletedProcess:
    """Run `bash WORDS`, a shell script and its arguments, in the root of the repository.

    check: whether the script must succeed; timeout: seconds
    """
    command = ["bash", *(str(word) for word in words)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=timeout)
    if check:
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done


def _environment(variables: dict) -> dict[str, str]:
    """Return this process's environment with `variables`, and without the SETTINGS that a user may have in theirs."""
    environment = {key: value for key, value in os.environ.items() if key not in SETTINGS}
    environment["PLAN"] = "0"  # a plan of memory and time takes seconds
    for key, value in variables.items():
        environment[key] = str(value)
    return environment


def _process_of_script(name: str, flags: tuple, variables: dict) -> dict:
    """Return the arguments with which subprocess runs scripts/NAME.sh."""
    words = ["bash", ROOT / f"scripts/{name}.sh", *map(str, flags)]
    return {"args": words, "env": _environment(variables), "stdin": subprocess.DEVNULL}


def _experiment_of(name: str) -> str | None:
    """Return the experiment of a script that does nothing but call `deepnet reproduce`, None for another script."""
    calls = re.findall(r'^reproduce (\S+) "\$@"$', (ROOT / f"scripts/{name}.sh").read_text(), flags=re.MULTILINE)
    return calls[0] if calls else None


def script(name, *flags, check=True, timeout=600, **variables) -> subprocess.CompletedProcess:
    """Run `scripts/NAME.sh FLAGS` to its end, with `variables` in its environment.

    A dry run of a script with one experiment is run as the command that the script calls, in a fork: it takes 1 s and
    not 6 s. tests/tools/test_dry_runs.py starts dry runs by bash.

    check: whether the script must succeed; timeout: seconds
    """
    experiment = _experiment_of(name)
    is_dry = any(str(flag).startswith("--dry-run") for flag in flags)
    if is_dry and experiment is not None:
        words = ["deepnet", "reproduce", experiment, "--variables", *map(str, flags)]
        with mock.patch.dict(os.environ, _environment(variables), clear=True):
            done = fork(words, ROOT, timeout)
    else:
        process = _process_of_script(name, flags, variables)
        done = subprocess.run(**process, capture_output=True, text=True, timeout=timeout)
    if check:
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done


def start(name, *flags, **variables) -> subprocess.Popen:
    """Start `scripts/NAME.sh FLAGS` in the background, as the leader of a process group of its own."""

    def heed_ctrl_c() -> None:  # a process in the background may inherit that it ignores SIGINT
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    return subprocess.Popen(
        **_process_of_script(name, flags, variables), stdout=subprocess.DEVNULL, start_new_session=True,
        preexec_fn=heed_ctrl_c,
    )  # fmt: skip


def until(condition, seconds: int = 300) -> None:
    """Wait until condition() holds, for so many seconds at most."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.1)


def dry_run(name, *flags, **variables) -> list[list[str]]:
    """Return the programs that a dry run of scripts/NAME.sh prints, each with its arguments as a list of words.

    The lines that change and make folders are left out, and so are the files to which output goes.
    """
    printed = script(name, COMMANDS, *flags, **variables).stdout
    programs = []
    for line in printed.splitlines():
        words = shlex.split(line)
        if words[:1] in (["cd"], ["mkdir"]):
            continue
        if ">" in words:
            words = words[: words.index(">")]
        programs.append(words)
    return programs


def trainings(name, *flags, **variables) -> list[list[str]]:
    """Return the arguments of fairseq-train for each training of a dry run of scripts/NAME.sh."""
    arguments = []
    for words in dry_run(name, *flags, **variables):
        if "fairseq-train" in words:
            program = words.index("fairseq-train")  # a launcher may stand in front of it
            arguments.append(words[program + 1 :])
    return arguments


def values(words) -> dict[str, str]:
    """Return the value of each flag among a command's words; "" for a switch, the last value of a repeated flag."""
    last_values = {}
    for word, following in zip(words, [*words[1:], "--end"], strict=True):
        if word.startswith("--"):
            last_values[word] = "" if following.startswith("--") else following
    return last_values


def tokens_an_update(flags: dict[str, str]) -> int:
    """Return the largest number of tokens of an update, over all processes and batches.

    flags: of fairseq-train, with their values
    """
    processes = int(flags.get("--distributed-world-size", "1"))
    return processes * int(flags["--max-tokens"]) * int(flags["--update-freq"])
