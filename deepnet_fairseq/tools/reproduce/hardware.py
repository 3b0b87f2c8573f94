"""Decide on what a training runs: GPUs of this machine or of a cluster's, or the CPU."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...errors import UserError
from ...threads import processes_and_threads

NARROW = 64  # width of all models that miniatures train on a CPU
MANY = 1000  # more rows than there are cores
MEMORY = 80.0  # GiB, where nothing tells a GPU's
LAUNCHERS, PRECISIONS = ("spawn", "torchrun", "slurm"), ("fp16", "bf16", "fp32")
IN_JOB = "SLURM_JOB_ID"


@dataclass(frozen=True)
class Hardware:
    """What a training gets.

    gpus: of each machine, 0 to train on the CPU; nodes: machines; launch: one of LAUNCHERS; precision: one of
    PRECISIONS; jobs: trainings at a time; visible: the machine's GPUs by the names of CUDA_VISIBLE_DEVICES; memory: GiB
    of a GPU; threads: of a training on the CPU.
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
        """Processes of a training."""
        return max(1, self.gpus * self.nodes)

    @property
    def place(self) -> list[str]:
        """Flags of fairseq-train for the devices."""
        return ["--distributed-world-size", str(self.world)] if self.gpus else ["--cpu"]

    @property
    def decoding(self) -> list[str]:
        """Flags of fairseq-generate for the device."""
        if not self.gpus:
            return ["--cpu"]
        return [] if self.precision == "fp32" else [f"--{self.precision}"]

    @property
    def places(self) -> list[Mapping[str, str]]:
        """Variables of each training that runs at a time: its GPUs, or its threads."""
        if not self.gpus:
            threads = os.environ.get("OMP_NUM_THREADS", str(self.threads))
            return [{"OMP_NUM_THREADS": threads}] * self.jobs
        if self.nodes > 1 or not self.visible:
            return [{}] * self.jobs

        places: list[Mapping[str, str]] = []
        for number in range(self.jobs):
            first = number * self.gpus
            share = self.visible[first : first + self.gpus]
            places.append({"CUDA_VISIBLE_DEVICES": ",".join(share)})
        return places


def visible_gpus() -> list[str]:
    """Return the names of the machine's GPUs that may be used."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return _ask("index")
    visible = []
    for name in named.split(","):
        if name.strip() == "-1":  # CUDA sees none from there on
            break
        if name.strip():
            visible.append(name.strip())
    return visible


def smallest_memory() -> float:
    """Return the GiB of the machine's smallest GPU, MEMORY where there is none."""
    sizes = [float(size) / 1024 for size in _ask("memory.total") if size.isdecimal() and int(size) > 0]
    return round(min(sizes), 1) if sizes else MEMORY


def _ask(what: str) -> list[str]:
    """Ask nvidia-smi for something of each GPU; an empty list without it."""
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
    """Decide what each training gets; None lets the machine decide.

    papers_gpus: of a training in the paper, the most that it gets unasked; small: of a miniature or a small experiment,
    which trains on the CPU unless GPUs are asked for; only_printed: of a dry run, which assumes the paper's GPUs on a
    machine without any. Raises a UserError, naming the flag, for what the machine has not.
    """
    visible = visible_gpus()
    if launch == "slurm" and not only_printed and shutil.which("sbatch") is None:
        problem = "there is no sbatch here; start this on a login node of the cluster, or leave it out"
        raise UserError(f"--launch slurm: {problem}")
    if nodes > 1 and launch != "slurm" and IN_JOB not in os.environ:
        raise UserError(f"--nodes {nodes}: several machines are started by SLURM; add --launch slurm")

    here = len(visible)
    if launch == "slurm" or (not here and only_printed and not small):
        here = gpus or papers_gpus
    if not here or (small and gpus is None):
        if gpus is not None and not (gpus == 1 and (small or only_printed)):
            raise UserError(f"--gpus {gpus}: this machine has none; leave it out to train on the CPU")
        if launch == "slurm":
            raise UserError("--launch slurm: say how many GPUs each job gets (--gpus), or leave it out")
        share = processes_and_threads(NARROW, tasks=MANY)
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

    each = gpus or min(papers_gpus, here)
    if each > here:
        raise UserError(f"--gpus {each}: this machine has {here}")
    at_a_time = here // each
    if jobs is not None and jobs > at_a_time:
        raise UserError(f"--jobs {jobs}: {here} GPUs are enough for {at_a_time} trainings on {each}")
    return Hardware(
        gpus=each,
        nodes=nodes,
        launch=launch,
        precision=precision or "fp16",
        jobs=jobs or at_a_time,
        visible=visible,
        memory=memory or smallest_memory(),
        threads=1,
    )
