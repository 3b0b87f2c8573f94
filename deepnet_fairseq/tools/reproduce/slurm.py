"""Submit rows to SLURM, a job each: it trains and scores the row, and is requeued when its time is nearly over.

The text of a job is a shell script for sbatch, which reads SBATCH_PARTITION, SBATCH_TIMELIMIT and so on. Libraries that
submit Python functions keep these in a pickle; here a job is a command that can be read and run by hand.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence

from ...errors import UserError
from ...study.experiment import Row
from .commands import Setting

CORES = 4  # of each GPU: one that trains, and others that load data
SECONDS = 180  # before the end of its time in which a job learns of it


def job(setting: Setting, row: Row, command: Sequence[str]) -> str:
    """Return the text of a row's job.

    command: `deepnet reproduce` with the user's flags but --launch and --row; the setting has those of fairseq-train.
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
#SBATCH --cpus-per-task={CORES * hardware.gpus}
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@{SECONDS}
trap 'scontrol requeue "$SLURM_JOB_ID"' USR1  # sent when the time is nearly over
{shlex.join(words)} &
wait $!
"""


def submit(setting: Setting, command: Sequence[str]) -> None:
    """Submit a job for each row; raise a UserError if sbatch refuses one."""
    for row in setting.rows():
        log = setting.out / setting.experiment.folder / f"{row.name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        text = job(setting, row, command)
        done = subprocess.run(
            ["sbatch", "--parsable", "--output", str(log)], input=text, capture_output=True, text=True
        )
        if done.returncode:
            said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
            raise UserError(f"--launch slurm: sbatch refused {row.name} ({said})")
        print(f"{row.name}: job {done.stdout.strip()}", flush=True)
