"""Decide what a training runs on: GPUs of this machine or of a cluster's machines, or the CPU.

A miniature is an experiment with small models on generated data, to try it (--smoke).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...errors import UserError
from ...threads import processes_and_threads
from ...wording import counted

CPU_WIDTH = 64  # width C of most models that miniatures train on a CPU
MANY = 1000  # trainings: more than a machine has cores, so that all cores are shared out
ASSUMED_MEMORY = 80.0  # GiB of a GPU, for plans on a machine without any
LAUNCHERS = ("spawn", "torchrun", "slurm")
PRECISIONS = ("fp16", "bf16", "fp32")
IN_JOB = "SLURM_JOB_ID"  # environment variable that a job of SLURM has


@dataclass(frozen=True)
class Hardware:
    """What each training of an experiment gets.

    gpus: number of GPUs on each machine, 0 to train on the CPU; nodes: number of machines; launch: what starts the
    processes of a training, one of LAUNCHERS ("spawn": fairseq-train itself); precision: one of PRECISIONS; jobs:
    number of trainings at a time; visible: this machine's GPUs, as CUDA_VISIBLE_DEVICES names them, empty to train on
    the CPU; memory: GiB of a GPU; threads: number of threads of a training on the CPU, 1 on GPUs.
    """

    gpus: int
    nodes: int
    launch: str
    precision: str
    jobs: int
    visible: Sequence[str]
    memory: float
    threads: int

    @property
    def world(self) -> int:
        """Number of processes of a training: one for each GPU, or a single one on the CPU."""
        return max(1, self.gpus * self.nodes)

    @property
    def device_flags(self) -> list[str]:
        """Flags of fairseq-train for the devices."""
        return ["--distributed-world-size", str(self.world)] if self.gpus else ["--cpu"]

    @property
    def decoding_flags(self) -> list[str]:
        """Flags of fairseq-generate, and of the programs that evaluate, for the device and its precision."""
        if not self.gpus:
            return ["--cpu"]
        return [] if self.precision == "fp32" else [f"--{self.precision}"]

    @property
    def places(self) -> list[Mapping[str, str]]:
        """Environment variables for each of the trainings that run at a time, which give it its GPUs or threads.

        There is one {name: value} for each of the `jobs`. On the CPU the user's OMP_NUM_THREADS goes before `threads`.
        """
        if not self.gpus:  # on the CPU
            threads = os.environ.get("OMP_NUM_THREADS", str(self.threads))
            return [{"OMP_NUM_THREADS": threads}] * self.jobs
        if self.nodes > 1 or not self.visible:  # SLURM gives each job its GPUs, or a dry run assumes them
            return [{}] * self.jobs

        places: list[Mapping[str, str]] = []
        for number in range(self.jobs):
            first = number * self.gpus
            share = self.visible[first : first + self.gpus]
            places.append({"CUDA_VISIBLE_DEVICES": ",".join(share)})
        return places


def visible_gpus() -> list[str]:
    """Return the GPUs of this machine that may be used, as CUDA_VISIBLE_DEVICES names them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return _ask_nvidia_smi("index")
    visible = []
    for name in named.split(","):
        if name.strip() == "-1":  # CUDA ignores this name and all that follow
            break
        if name.strip():
            visible.append(name.strip())
    return visible


def smallest_memory() -> float:
    """Return the memory of the machine's smallest GPU in GiB, ASSUMED_MEMORY where no GPU tells it."""
    # nvidia-smi prints a word instead of a number where a GPU does not tell its memory
    mebibytes = [int(size) for size in _ask_nvidia_smi("memory.total") if size.isdecimal() and int(size) > 0]
    return round(min(mebibytes) / 1024, 1) if mebibytes else ASSUMED_MEMORY


def _ask_nvidia_smi(what: str) -> list[str]:
    """Return a property of each GPU as text; empty without a GPU or its driver.

    what: the property's name in `nvidia-smi --query-gpu`.
    """
    command = ["nvidia-smi", f"--query-gpu={what}", "--format=csv,noheader,nounits"]
    if shutil.which(command[0]) is None:
        return []
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout.split() if done.returncode == 0 else []


def hardware(
    papers_gpus: int,
    gpus: int | None = None,
    nodes: int = 1,
    launch: str = "spawn",
    precision: str | None = None,
    jobs: int | None = None,
    memory: float | None = None,
    small: bool = False,
    only_printed: bool = False,
) -> Hardware:
    """Decide what each training gets; an argument that is None is decided by what the machine has.

    papers_gpus: number of GPUs of a training in the paper, the most that it gets if `gpus` is None; gpus, nodes,
    launch, precision, jobs, memory: as for Hardware; small: True for a miniature or a small experiment, which trains on
    the CPU unless `gpus` is given; only_printed: True for a dry run, which assumes `gpus` GPUs, or the paper's number,
    on a machine without any, unless `small`. Raises a UserError, naming the flag, for what the machine does not have,
    and for flags of SLURM that do not go together.
    """
    visible = visible_gpus()

    # SLURM starts trainings on several machines
    if launch == "slurm" and not only_printed and shutil.which("sbatch") is None:
        problem = "there is no sbatch here; start this on a login node of the cluster, or leave it out"
        raise UserError("--launch slurm", problem)
    if nodes > 1 and launch != "slurm" and IN_JOB not in os.environ:
        raise UserError(f"--nodes {nodes}", "several machines are started by SLURM; add --launch slurm")

    # number of GPUs of one machine: this one's, or as many as wanted if SLURM gives a machine or a dry run assumes one
    available = len(visible)
    is_assumed = not available and only_printed and not small
    if launch == "slurm" or is_assumed:
        available = gpus or papers_gpus

    # train on the CPU
    if not available or (small and gpus is None):
        cpu_will_do = gpus == 1 and small  # the CPU stands for the one GPU
        if gpus is not None and not cpu_will_do:
            raise UserError(f"--gpus {gpus}", "this machine has none; leave it out to train on the CPU")
        if launch == "slurm":
            raise UserError("--launch slurm", "say how many GPUs each job gets (--gpus), or leave it out")
        share = processes_and_threads(CPU_WIDTH, tasks=MANY)
        return Hardware(
            gpus=0,
            nodes=nodes,
            launch=launch,
            precision=precision or "fp32",
            jobs=jobs or share.processes,
            visible=[],
            memory=memory or smallest_memory(),
            threads=share.threads,
        )

    # train on GPUs
    per_training = gpus or min(papers_gpus, available)
    if per_training > available:
        raise UserError(f"--gpus {per_training}", f"this machine has {available}")
    at_a_time = available // per_training
    if jobs is not None and jobs > at_a_time:
        raise UserError(
            f"--jobs {jobs}",
            f"this machine has {counted(available, 'GPU')}, for {counted(at_a_time, 'training')} on {per_training}",
        )
    return Hardware(
        gpus=per_training,
        nodes=nodes,
        launch=launch,
        precision=precision or "fp16",
        jobs=jobs or at_a_time,
        visible=visible,
        memory=memory or smallest_memory(),
        threads=1,
    )
