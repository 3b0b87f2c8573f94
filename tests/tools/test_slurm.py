"""Tests of a job of SLURM, with stand-ins for its programs: two machines of a job are two processes on this one."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest
import torch

from ..support.experiments import needs_venv, script, until

pytestmark = [needs_venv, pytest.mark.slow]

SBATCH = """#!/bin/sh
cat >"$STAND_IN/job"
echo 4711
"""
SCONTROL = """#!/bin/sh
case "$1" in
    show) echo localhost ;;
    requeue) echo "$2" >>"$STAND_IN/requeued" ;;
esac
"""
SRUN = """#!/bin/bash
while [[ "$1" == --* ]]; do shift; done
trap 'kill -TERM $(jobs -p)' TERM
"$@" & one=$!
"$@" & other=$!
wait $one; first=$?
wait $other; second=$?
exit $((first > second ? first : second))
"""
# two machines with one process each, which say that they have a GPU, and train on the CPU
ROW = {"METHODS": "deepnorm", "DEPTHS": "2", "SMOKE": "1", "GPUS": "1", "NODES": "2", "MAX_TOKENS": "500"}
FLAGS = ("--cpu", "--distributed-backend", "gloo", "--max-update", "60", "--save-interval-updates", "10")


NAME = "iwslt14/deepnorm-2-seed1"


@pytest.fixture
def cluster(tmp_path):
    """Provide the environment of a job on stand-ins for SLURM's programs."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in {"sbatch": SBATCH, "scontrol": SCONTROL, "srun": SRUN}.items():
        program = folder / name
        program.write_text(text)
        program.chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    return {"PATH": path, "STAND_IN": str(tmp_path), "CUDA_VISIBLE_DEVICES": "0", "PRECISION": "fp32"}


def submit(cluster, out, folder) -> subprocess.Popen:
    """Submit the row, and start its job."""
    script("iwslt14_de_en", *FLAGS, OUT=out, LAUNCH="slurm", **ROW, **cluster)
    environment = os.environ | cluster | {"SLURM_JOB_ID": "4711", "SLURM_JOB_NODELIST": "n[1-2]"}
    with open(folder / f"{out.name}.log", "w") as log:
        return subprocess.Popen(
            ["bash", folder / "job"], env=environment, stdout=log, stderr=log, start_new_session=True
        )


def last_weights(run) -> dict[str, torch.Tensor]:
    return torch.load(run / "checkpoint_last.pt", weights_only=False)["model"]


@pytest.fixture
def run_left_alone(cluster, tmp_path):
    """Provide the folder of a row whose job was left alone."""
    job = submit(cluster, tmp_path / "alone", tmp_path)
    assert job.wait(600) == 0
    return tmp_path / "alone" / NAME


def test_a_requeued_job_on_two_machines_ends_as_one_left_alone(cluster, run_left_alone, tmp_path):
    """A job whose time is over is requeued, saves, and ends with the bits of one that was left alone."""
    assert "2 devices" in (run_left_alone / "train.log").read_text()

    run = tmp_path / "stopped" / NAME
    job = submit(cluster, tmp_path / "stopped", tmp_path)
    until((run / "checkpoint_last.pt").exists)
    os.kill(job.pid, signal.SIGUSR1)
    until((tmp_path / "requeued").exists)
    os.killpg(job.pid, signal.SIGTERM)  # as SLURM does after a requeue
    job.wait(120)
    assert not (run / "trained").exists()
    assert (tmp_path / "requeued").read_text() == "4711\n"

    requeued_job = submit(cluster, tmp_path / "stopped", tmp_path)

    assert requeued_job.wait(600) == 0
    weights = last_weights(run)
    for name, value in last_weights(run_left_alone).items():
        assert torch.equal(weights[name], value), name
