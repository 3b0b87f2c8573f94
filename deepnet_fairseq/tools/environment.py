"""Describe the environment of a training: commit, versions, hardware."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from ..wording import counted

PACKAGES = [
    "deepnet_fairseq",
    "fairseq-fixed",
    "fairseq",
    "torch",
    "sacrebleu",
    "sentencepiece",
    "subword-nmt",
    "sacremoses",
]


def environment(gpus: int) -> dict:
    """Return the content of a run's environment.json.

    gpus: number of GPUs that the training has on all machines, 0 for the CPU.

    The result has "commit" and "modified", as `repository` returns them; "versions", of Python and packages;
    "hardware", GPUs or CPU in words; "gpus"; and "started", the time now in UTC and ISO 8601.
    """
    commit, modified = repository()
    return {
        "commit": commit,
        "modified": modified,
        "versions": versions(),
        "hardware": graphics(gpus) if gpus else processor(),
        "gpus": gpus,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def repository() -> tuple[str | None, bool]:
    """Return the short commit of the git checkout that this package is in, and whether tracked files differ from it.

    They are None and False if the package was installed without a checkout or lies in one that does not track it, and
    if there is no git.
    """
    here = Path(__file__).resolve().parent

    def git(*words: str) -> str:
        """Return what git prints in this folder; raise a CalledProcessError if it fails."""
        return subprocess.run(["git", "-C", here, *words], capture_output=True, text=True, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "--", __file__)  # fails if the checkout does not track this file
        commit = git("rev-parse", "--short=10", "HEAD")
        changes = git("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return None, False
    return commit, bool(changes)


def versions() -> dict[str, str]:
    """Return {name: version} of Python and of those of PACKAGES that are installed.

    fairseq-fixed, a distribution of fairseq, counts as fairseq; its version is taken if both are installed.
    """
    installed = {"python": platform.python_version()}
    for package in PACKAGES:  # fairseq-fixed before fairseq
        name = package.removesuffix("-fixed")
        with suppress(PackageNotFoundError):
            installed.setdefault(name, version(package))
    return installed


def graphics(gpus: int) -> str:
    """Describe GPUs as "8 x NVIDIA H200", with the name of this machine's first; "8 x GPU" if torch sees none.

    gpus: number of all GPUs.
    """
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "GPU"
    return f"{gpus} x {name}"


def processor() -> str:
    """Describe the CPU as "CPU, 2 cores: AMD EPYC 7B13"."""
    match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    name = match.group(1).strip() if match else platform.machine()  # Linux names no model on ARM
    cores = len(os.sched_getaffinity(0))
    return f"CPU, {counted(cores, 'core')}: {name}"
