"""Say which commands a row of an experiment takes: its training, the average, translations and score.

A row is one training of an experiment (study/experiment.py), a word one argument of a command, as "--lr" or "5e-4". The
plan is what `deepnet plan` chooses for each row, so that it fits into a GPU's memory: batches, and whether activations
are recomputed. Admin's profile is what that method measures on the first batch, before it trains
(plugin/admin_profile.py).
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import UserError
from ...study.experiment import Experiment, Flags, Row
from .corpus import Corpus
from .evaluation import Judge, Perplexity, Translation
from .hardware import Hardware
from .words import as_words, last_value, whole_number

# number of layers from which, without a plan, a model recomputes activations, and shards the state of its optimiser
RECOMPUTED_FROM = 200
SHARDED_FROM = 400
STUCK = 10_000  # updates after which the plan expects a training to end if the paper's diverged
AUTO_PROFILE = "auto"  # value of --admin-profile: measured at the start of the training
FIRST_PORT = 29400  # of those at which the machines of a job meet; torchrun's default
PORTS = 1000  # how many there are


@dataclass(frozen=True)
class Setting:
    """What all rows of an experiment have in common.

    corpus: the binarised data
    out: folder of all experiments' folders, which hold the folders of their rows
    chosen: "EXPERIMENT'S FOLDER/ROW'S NAME" -> words of flags of fairseq-train that the plan chose for the row
    too_large: likewise -> GiB of a GPU that the row would take, for rows that the plan found no flags for
    hours: likewise -> hours of the training by the plan, for rows that are not trained yet
    disk: the most bytes of disk that the trainings to come take by the plan; 0 without a plan
    extra: words of the user's flags of fairseq-train, which override all others
    generation: words of the user's flags of fairseq-generate
    recompute: whether activations are recomputed, None to let the plan decide
    planned: whether a plan is made
    only: name of the one row to run, None for all
    """

    experiment: Experiment
    hardware: Hardware
    corpus: Corpus
    out: Path
    chosen: Mapping[str, Sequence[str]] = field(default_factory=dict)
    too_large: Mapping[str, float] = field(default_factory=dict)
    hours: Mapping[str, float] = field(default_factory=dict)
    disk: float = 0.0
    extra: Sequence[str] = ()
    generation: Sequence[str] = ()
    recompute: bool | None = None
    planned: bool = True
    only: str | None = None

    def rows(self) -> list[Row]:
        """Return the experiment's rows, or only the one that was asked for."""
        rows = self.experiment.rows(self.hardware.world)
        return [row for row in rows if self.only in (None, row.name)]

    def folder(self, row: Row) -> Path:
        """Return the folder in which a row is trained."""
        return self.out / self.experiment.folder / row.name

    def training(self, row: Row) -> list[str]:
        """Return the words after fairseq-train: DATA and flags.

        The last one counts if a flag occurs twice, so those that override others are behind them.
        """
        run = str(self.folder(row))
        flags: Flags = {"optimizer": self.adam} | row.flags
        if "max-epoch" in flags and self.corpus.shards > 1 and flags["max-epoch"]:  # 0 is no limit
            flags["max-epoch"] = flags["max-epoch"] * self.corpus.shards  # fairseq counts a shard as an epoch

        # the flags of the paper
        words = [self.corpus.data, "--user-dir", "deepnet_fairseq", *self.corpus.task, *as_words(flags)]
        if self.recompute is False:  # not None, which lets the row or the plan decide
            words = [word for word in words if word != "--checkpoint-activations"]
        words += ["--save-dir", run, "--seed", str(row.seed), "--log-format", "json"]

        # the flags of the machine and of the plan
        words += self.precision_flags(row.method) + self.hardware.device_flags + self.memory_flags(row)
        words += list(self.chosen.get(f"{self.experiment.folder}/{row.name}", ()))
        if self.recompute:
            words.append("--checkpoint-activations")

        # the flags of the user
        words += self.extra

        # Admin's training would measure its profile itself. Here it reads the file that the command of `profile` writes
        for index in range(1, len(words)):
            if words[index - 1] == "--admin-profile" and words[index] == AUTO_PROFILE:
                words[index] = f"{run}/profile.json"
        return words

    @property
    def adam(self) -> str:
        """The optimizer that stands for a paper's Adam.

        deepnet_adam has the same results as fairseq's adam, faster, but cannot do memory-efficient half precision.
        """
        # the experiment's half_precision is "memory-efficient" or missing
        memory_efficient = self.hardware.precision != "fp32" and self.experiment.get("half_precision") is not None
        return "adam" if memory_efficient else "deepnet_adam"

    def precision_flags(self, method: str) -> list[str]:
        """Return the flag of half precision, such as --fp16 or --memory-efficient-fp16; none for fp32.

        method: of the row; the experiment says which ones the paper trains in fp32.
        """
        precision = self.hardware.precision
        in_fp32 = self.experiment.get("full_precision", ())
        if precision == "fp32" or method in in_fp32:
            return []
        kind = self.experiment.get("half_precision")  # "memory-efficient", or None
        return [f"--{kind}-{precision}"] if kind else [f"--{precision}"]

    @property
    def judge(self) -> Judge:
        """The way to judge trained models: by their translations, or by perplexity."""
        judge_class = Translation if self.experiment.get("translation") is not None else Perplexity
        return judge_class(self.experiment, self.corpus, self.hardware, self.extra, self.generation)

    def memory_flags(self, row: Row) -> list[str]:
        """Return the flags that let a deep model fit into memory, if there is no plan to choose them.

        Rows that are not scored, those of figures, get none: they are measured as they are.
        """
        if self.planned or not row.scored:
            return []
        words = []
        if row.layers >= RECOMPUTED_FROM and self.recompute is None:
            words.append("--checkpoint-activations")
        if row.layers >= SHARDED_FROM and self.hardware.world > 1:
            words += ["--zero-sharding", "os", "--optimizer", "deepnet_adam"]
        return words

    def profile(self, row: Row) -> list[str]:
        """Return the command that measures Admin's profile on the first batch and writes it; empty for other methods.

        It takes the flags of the row's training but for --admin-profile, which names the file to write, and runs in one
        process, because the profile is the same for any number of them.
        """
        words = self.training(row)
        path = last_value("--admin-profile", words)
        if path is None:
            return []

        kept = []  # words but --admin-profile and its value
        before = ""  # the word before
        for word in words:
            if "--admin-profile" not in (word, before):
                kept.append(word)
            before = word
        return ["deepnet", "profile", *kept, "--distributed-world-size", "1", "--out", path]

    def launcher(self, only_printed: bool = False) -> list[str]:
        """Return the words that start fairseq-train.

        On several machines srun starts torchrun on each of them, which starts a process for each GPU. On one machine
        torchrun does that if it is asked for, else fairseq-train itself. only_printed: as for first_host, whose
        UserError is raised.
        """
        hardware = self.hardware
        torchrun = ["torchrun", "--nproc-per-node", str(hardware.gpus)]
        program = ["--no-python", "fairseq-train"]  # torchrun would take the name for a file of Python
        if hardware.nodes > 1:
            srun = ["srun", "--kill-on-bad-exit=1", "--ntasks-per-node=1"]
            return [*srun, *torchrun, *self.rendezvous(only_printed), *program]
        if hardware.launch == "torchrun" and hardware.gpus:
            return [*torchrun, *program]
        return ["fairseq-train"]

    def rendezvous(self, only_printed: bool = False) -> list[str]:
        """Return torchrun's flags by which its processes on the machines of a SLURM job find each other.

        They meet at a port of the first machine. It depends on the job, because two jobs may share a machine.
        only_printed: as for first_host, whose UserError is raised.
        """
        job = os.environ.get("SLURM_JOB_ID", "job")  # "job" in a dry run outside of one
        port = FIRST_PORT
        if job.isdecimal():
            port += int(job) % PORTS
        nodes = ["--nnodes", str(self.hardware.nodes), "--rdzv-backend", "c10d", "--rdzv-id", job]
        return [*nodes, "--rdzv-endpoint", f"{first_host(only_printed)}:{port}"]

    def facts(self, row: Row) -> dict[str, Any]:
        """Return the content of the row's run.json, by which tables and figures find it.

        batch_tokens: of an update, padding included; paper_batch_tokens: the paper's, missing where there is no paper;
        averaged: number of checkpoints; the row's own facts, such as its method, come first.
        """
        words = self.training(row)
        tokens = whole_number(last_value("--max-tokens", words))  # of a batch in one process
        frequency = whole_number(last_value("--update-freq", words) or "1")  # batches of an update in one process
        averaged, _epochs = self.experiment.average
        facts = dict(row.facts) | {
            "experiment": self.experiment.folder,
            "corpus": self.corpus.name,
            "paper_corpus": self.corpus.recipe,
            "seed": row.seed,
            "smoke": self.experiment.choice.smoke,
            "averaged": averaged,
            "batch_tokens": self.hardware.world * tokens * frequency,
        }
        if row.paper_tokens is not None:
            facts["paper_batch_tokens"] = row.paper_tokens
        return facts

    def average(self, row: Row) -> list[str]:
        """Return the command that averages checkpoints, to be printed; empty if a single one is scored.

        run.Work makes the command that is run, because a training that ended before its last epoch leaves fewer files.
        """
        averaged, epochs = self.experiment.average  # number of checkpoints, and "last:10" or "36-45"
        run = self.folder(row)
        if averaged == 1:
            return []
        if epochs.startswith("last:"):
            return ["deepnet", "average", str(run), "--last", str(averaged), "--out", str(run / "averaged.pt")]
        first, last = map(int, epochs.split("-"))
        files = [str(run / f"weights{epoch}.pt") for epoch in range(first, last + 1)]
        return ["deepnet", "average", *files, "--out", str(run / "averaged.pt")]

    def planned_words(self, row: Row, tokens: int | None) -> list[str]:
        """Return the words that describe a row's training to the plan: a line for plan.rows.read_rows.

        That function explains the flags. tokens: of a batch, as the user gave them; None to let the plan choose.
        """
        experiment = self.experiment
        words = self.training(row)
        facts = json.dumps(dict(row.facts) | {"corpus": self.corpus.recipe})

        # updates after which a training ends if the paper's diverged
        stuck = experiment.stuck
        if experiment.choice.stuck is None and not experiment.choice.smoke:
            stuck = STUCK
        if "--disable-validation" in words:  # a training is found stuck by its losses on the validation set
            stuck = 0

        # files with weights that stay: the last checkpoint, and the average
        averaged, _epochs = experiment.average  # number of checkpoints
        kept = 1 if averaged == 1 else 2
        if "--no-save" in words:
            kept = 0

        # what the plan may choose to fit into a GPU's memory
        free = []
        if self.hardware.gpus and tokens is None:
            free.append("batch")
        if self.hardware.gpus and self.recompute is None:
            free.append("recompute")

        done = ["--done"] if (self.folder(row) / "trained").exists() else []
        vocabulary_size = self.corpus.vocabulary_size(experiment.vocabulary)
        epoch_tokens = experiment["corpus_size"]["tokens"] // self.corpus.shards  # fairseq counts a shard as an epoch
        return [
            f"{experiment.folder}/{row.name}", *done, "--kept", str(kept), "--vocab", str(vocabulary_size),
            "--corpus-tokens", str(epoch_tokens), "--facts", facts, "--experiment", experiment.folder,
            "--stuck", str(stuck), "--free", ",".join(free), "--gpu-memory", f"{self.hardware.memory:g}", *words,
        ]  # fmt: skip


def first_host(only_printed: bool = False) -> str:
    """Return the name of the first machine of the SLURM job that this process is in.

    only_printed: True for a dry run, in which it is "" where it cannot be told. Otherwise that is a UserError: without
    a name torchrun would not know where its machines meet.
    """
    listed = os.environ.get("SLURM_JOB_NODELIST", "")  # compressed, as "node[3-5]", which scontrol expands
    words = ["scontrol", "show", "hostnames", listed]
    problem = ""
    host = ""
    if not listed:
        problem = "SLURM_JOB_NODELIST is not set"
    elif shutil.which("scontrol") is None:
        problem = "there is none on PATH"
    else:
        done = subprocess.run(words, capture_output=True, text=True)
        host = done.stdout.strip().split("\n")[0]
        if done.returncode or not host:
            said = done.stderr.strip().splitlines() or ["it named no machine"]
            problem = f"ended with status {done.returncode} ({said[-1]})"

    if not problem:
        return host
    if only_printed:
        return ""
    way_out = "start this in a job of --launch slurm with scontrol on its PATH, or train on one machine (--nodes 1)"
    raise UserError(shlex.join(words), f"{problem}; {way_out}")
