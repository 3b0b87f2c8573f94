"""Submit rows to SLURM, a job each: it trains and scores the row, and is requeued when its time is nearly over.

A job is a shell script for sbatch, which takes its partition, time limit and so on from the environment variables
SBATCH_PARTITION, SBATCH_TIMELIMIT, ... Libraries that submit Python functions pickle them; this script can be read, and
run by hand.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

from ...errors import UserError
from ...study.experiment import Row
from .commands import Setting

CORES_PER_GPU = 4  # one for the process that trains, the others for loading data
NOTICE = 180  # seconds before the end of its time at which a job gets the signal USR1


def job(setting: Setting, row: Row, command: Sequence[str]) -> str:
    """Return the shell script of a row's job, for sbatch: it runs `deepnet reproduce` for this row alone.

    command: words of `deepnet reproduce` with the user's flags, but without --launch, --row and those of fairseq-train,
    which are in setting.extra and stand behind "--".
    """
    hardware = setting.hardware
    name = f"{setting.experiment.folder}-{row.name}"
    words = [*command, "--row", row.name, "--launch", "torchrun", "--jobs", "1"]
    if setting.extra:
        words += ["--", *setting.extra]
    return f"""#!/usr/bin/env bash
#SBATCH --job-name={name}
#SBATCH --nodes={hardware.nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node={hardware.gpus}
#SBATCH --cpus-per-task={CORES_PER_GPU * hardware.gpus}
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@{NOTICE}
trap 'scontrol requeue "$SLURM_JOB_ID"' USR1  # sent when the time is nearly over
{shlex.join(words)} &
wait $!
"""


def log_of(setting: Setting, row: Row) -> Path:
    """Return the file to which the output of a row's job goes."""
    return setting.out / setting.experiment.folder / f"{row.name}.log"


def sbatch(log: Path) -> list[str]:
    """Return the command that submits a job, whose script is its standard input; log: file for the job's output."""
    return ["sbatch", "--parsable", "--output", str(log)]


def submit(setting: Setting, command: Sequence[str]) -> None:
    """Submit a job for each row, and print the jobs' numbers.

    command: as for `job`. Raises a UserError if sbatch refuses a job; those before it stay submitted.
    """
    for row in setting.rows():
        log = log_of(setting, row)
        log.parent.mkdir(parents=True, exist_ok=True)
        text = job(setting, row, command)
        done = subprocess.run(sbatch(log), input=text, capture_output=True, text=True)
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["it said nothing"]
            said = lines[-1]
            raise UserError("--launch slurm", f"sbatch refused {row.name} ({said})")
        print(f"{row.name}: job {done.stdout.strip()}", flush=True)
