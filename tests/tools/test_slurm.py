"""Tests of a job of SLURM, with stand-ins for its programs: two machines of a job are two processes on this one.

`LAUNCH=slurm scripts/NAME.sh` submits a job for each row of an experiment by sbatch. SLURM sends a job the signal USR1
before its time is over; the job then asks to be requeued, is ended by TERM, saves, and resumes when it runs again.
"""

from __future__ import annotations

import os
import signal
import subprocess

import pytest
import torch

from ..support.experiments import needs_venv, script, until

pytestmark = [needs_venv, pytest.mark.slow]

# Stand-ins for SLURM's programs. sbatch keeps the job that it is given, and answers with the job's number.
SBATCH = """#!/bin/sh
cat >"$STAND_IN/job"
echo 4711
"""
# scontrol shows the name of the first machine, and keeps the number of a job that is requeued.
SCONTROL = """#!/bin/sh
case "$1" in
    show) echo localhost ;;
    requeue) echo "$2" >>"$STAND_IN/requeued" ;;
esac
"""
# srun runs a command on two machines, hands on TERM, and ends with the higher status.
SRUN = """#!/bin/bash
while [[ "$1" == --* ]]; do shift; done
trap 'kill -TERM $(jobs -p)' TERM
"$@" & one=$!
"$@" & other=$!
wait $one; first=$?
wait $other; second=$?
exit $((first > second ? first : second))
"""
# Settings of one row, in miniature, on two machines with one process each. By GPUS each machine has a GPU, but by FLAGS
# the row is trained on the CPU.
ROW = {"METHODS": "deepnorm", "DEPTHS": "2", "SMOKE": "1", "GPUS": "1", "NODES": "2", "MAX_TOKENS": "500"}
FLAGS = ("--cpu", "--distributed-backend", "gloo", "--max-update", "60", "--save-interval-updates", "10")
NAME = "iwslt14/deepnorm-2-seed1"  # of the row's folder in OUT


@pytest.fixture
def cluster(tmp_path):
    """Provide the environment variables by which the stand-ins are found, and keep in tmp_path what they are given."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in {"sbatch": SBATCH, "scontrol": SCONTROL, "srun": SRUN}.items():
        program = folder / name
        program.write_text(text)
        program.chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    return {"PATH": path, "STAND_IN": str(tmp_path), "CUDA_VISIBLE_DEVICES": "0", "PRECISION": "fp32"}


def submit(cluster, out, folder) -> subprocess.Popen:
    """Submit the row, with its results in `out`, and start its job, as SLURM does later.

    folder: where the stand-ins keep the job, tmp_path.
    """
    script("iwslt14_de_en", *FLAGS, OUT=out, LAUNCH="slurm", **ROW, **cluster)
    environment = os.environ | cluster | {"SLURM_JOB_ID": "4711", "SLURM_JOB_NODELIST": "n[1-2]"}
    with open(folder / f"{out.name}.log", "w") as log:
        return subprocess.Popen(
            ["bash", folder / "job"], env=environment, stdout=log, stderr=log, start_new_session=True
        )


def last_weights(run) -> dict[str, torch.Tensor]:
    """Return the weights by name of the last checkpoint in a run's folder."""
    return torch.load(run / "checkpoint_last.pt", weights_only=False)["model"]


@pytest.fixture
def run_left_alone(cluster, tmp_path):
    """Provide the folder of the row whose job ran to its end, on two machines."""
    job = submit(cluster, tmp_path / "alone", tmp_path)
    assert job.wait(600) == 0
    run = tmp_path / "alone" / NAME
    assert "2 devices" in (run / "train.log").read_text()
    return run


@pytest.fixture
def requeued_run(cluster, tmp_path):
    """Provide the folder of the row whose job has asked to be requeued after its first checkpoint, and was ended."""
    run = tmp_path / "stopped" / NAME
    job = submit(cluster, tmp_path / "stopped", tmp_path)
    until((run / "checkpoint_last.pt").exists)
    os.kill(job.pid, signal.SIGUSR1)
    until((tmp_path / "requeued").exists)
    os.killpg(job.pid, signal.SIGTERM)  # as SLURM does after a requeue
    job.wait(120)
    assert (tmp_path / "requeued").read_text() == "4711\n"  # the job's own number
    assert not (run / "trained").exists()
    return run


def test_a_requeued_job_on_two_machines_ends_as_one_left_alone(cluster, run_left_alone, requeued_run, tmp_path):
    """The requeued job runs again, and its weights are the same to the bit."""
    job = submit(cluster, tmp_path / "stopped", tmp_path)

    assert job.wait(600) == 0
    weights = last_weights(requeued_run)
    for name, expected in last_weights(run_left_alone).items():
        assert torch.equal(weights[name], expected), name
