"""Tests of a job of SLURM, with stand-ins for its programs: two machines of a job are two processes on this one."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest
import torch

from ..scripts.test_scripts import needs_venv
from ..support.experiments import script, until

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


@pytest.fixture
def cluster(tmp_path):
    """Provide the environment of a job on stand-ins for SLURM's programs."""
    for name, text in {"sbatch": SBATCH, "scontrol": SCONTROL, "srun": SRUN}.items():
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(text)
        program.chmod(0o755)
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    return {"PATH": path, "STAND_IN": str(tmp_path), "CUDA_VISIBLE_DEVICES": "0", "PRECISION": "fp32"}


def submit(cluster, out, folder) -> subprocess.Popen:
    """Submit the row, and start its job."""
    script("iwslt14_de_en", *FLAGS, OUT=out, LAUNCH="slurm", **ROW, **cluster)
    environment = os.environ | cluster | {"SLURM_JOB_ID": "4711", "SLURM_JOB_NODELIST": "n[1-2]"}
    with open(folder / f"{out.name}.log", "w") as log:
        return subprocess.Popen(
            ["bash", folder / "job"], env=environment, stdout=log, stderr=log, start_new_session=True
        )


def test_two_machines_meet_and_a_requeued_job_goes_on(cluster, tmp_path):
    """A job whose time is over is requeued, saves, and ends with the bits of one that was left alone."""
    alone = submit(cluster, tmp_path / "alone", tmp_path)
    assert alone.wait(600) == 0
    run = tmp_path / "alone/iwslt14/deepnorm-2-seed1"
    assert "training on 2 devices" in (run / "train.log").read_text()

    stopped = submit(cluster, tmp_path / "stopped", tmp_path)
    run_of_stopped = tmp_path / "stopped/iwslt14/deepnorm-2-seed1"
    until((run_of_stopped / "checkpoint_last.pt").exists)
    os.kill(stopped.pid, signal.SIGUSR1)
    until((tmp_path / "requeued").exists)
    os.killpg(stopped.pid, signal.SIGTERM)  # as SLURM does after a requeue
    stopped.wait(120)
    assert not (run_of_stopped / "trained").exists()
    assert (tmp_path / "requeued").read_text() == "4711\n"

    again = submit(cluster, tmp_path / "stopped", tmp_path)
    assert again.wait(600) == 0
    weights = [torch.load(one / "checkpoint_last.pt", weights_only=False)["model"] for one in (run, run_of_stopped)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
