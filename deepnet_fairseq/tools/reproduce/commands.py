"""Say which commands a row of an experiment takes: its training, the average, translations and score.

A word is one argument of a command, as "--lr" or "5e-4".
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...study.experiment import Experiment, Flags, Row
from .corpus import Corpus
from .evaluation import Judge, Perplexity, Translation
from .hardware import Hardware
from .words import as_words, last_value, whole_number

# without a plan, layers from which a model recomputes activations, and from which it shards its optimiser's state
RECOMPUTED_FROM, SHARDED_FROM = 200, 400
STUCK = 10_000  # updates after which the plan expects a training to end if the paper's diverged
AUTO_PROFILE = "auto"  # value of --admin-profile: measured at the start of the training
PORT, PORTS = 29400, 1000  # first one, and number, of the ports at which the machines of a job meet


@dataclass(frozen=True)
class Setting:
    """What all rows of an experiment have in common.

    out: folder of all experiments' folders, which hold the folders of their rows
    chosen: "EXPERIMENT'S FOLDER/ROW'S NAME" -> flags of fairseq-train that the plan chose for the row
    too_large: likewise -> GiB of a GPU that the row would take, for rows that the plan found no flags for
    extra: the user's flags of fairseq-train, which override all others
    generation: the user's flags of fairseq-generate
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
    extra: Sequence[str] = ()
    generation: Sequence[str] = ()
    recompute: bool | None = None
    planned: bool = True
    only: str | None = None

    def rows(self) -> list[Row]:
        """Return the experiment's rows, or the one that was asked for."""
        rows = self.experiment.rows(self.hardware.world)
        return [row for row in rows if self.only in (None, row.name)]

    def folder(self, row: Row) -> Path:
        """Return the folder of a row."""
        return self.out / self.experiment.folder / row.name

    def training(self, row: Row) -> list[str]:
        """Return the words after fairseq-train: DATA, and flags, of which the last one counts if one occurs twice."""
        run = str(self.folder(row))
        flags: Flags = {"optimizer": self.adam} | row.flags
        if "max-epoch" in flags and self.corpus.shards > 1 and flags["max-epoch"]:
            flags["max-epoch"] = flags["max-epoch"] * self.corpus.shards  # fairseq counts a shard as an epoch
        words = [self.corpus.data, "--user-dir", "deepnet_fairseq", *self.corpus.task, *as_words(flags)]
        if self.recompute is False:
            words = [word for word in words if word != "--checkpoint-activations"]
        words += ["--save-dir", run, "--seed", str(row.seed), "--log-format", "json"]
        words += self.precision_flags(row.method) + self.hardware.device_flags + self.memory_flags(row)
        words += list(self.chosen.get(f"{self.experiment.folder}/{row.name}", ()))
        if self.recompute:
            words.append("--checkpoint-activations")
        words += self.extra

        # the profile that Admin's training would measure itself comes from a file, which `profile` makes before it
        for index in range(1, len(words)):
            if words[index - 1] == "--admin-profile" and words[index] == AUTO_PROFILE:
                words[index] = f"{run}/profile.json"
        return words

    @property
    def adam(self) -> str:
        """The optimizer that stands for a paper's Adam.

        deepnet_adam has the same results as fairseq's adam, faster, but cannot do memory-efficient half precision.
        """
        memory_efficient = self.hardware.precision != "fp32" and self.experiment.get("half_precision") is not None
        return "adam" if memory_efficient else "deepnet_adam"

    def precision_flags(self, method: str) -> list[str]:
        """Return the flag of half precision, none for a method that the paper trains in fp32."""
        in_fp32 = self.experiment.get("full_precision", ())
        if self.hardware.precision == "fp32" or method in in_fp32:
            return []
        kind = self.experiment.get("half_precision")  # "memory-efficient", or None
        return [f"--{kind}-{self.hardware.precision}" if kind else f"--{self.hardware.precision}"]

    @property
    def judge(self) -> Judge:
        """The way to judge trained models: by their translations, or by perplexity."""
        kind = Translation if self.experiment.get("translation") is not None else Perplexity
        return kind(self.experiment, self.corpus, self.hardware, self.extra, self.generation)

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
        """Return the command that measures Admin's profile on the first batch; empty for other methods.

        It runs on one process, since the profile is the same for any number.
        """
        words = self.training(row)
        path = last_value("--admin-profile", words)
        if path is None:
            return []

        kept = []  # words but --admin-profile and its value
        before = ""
        for word in words:
            if "--admin-profile" not in (word, before):
                kept.append(word)
            before = word
        return ["deepnet", "profile", *kept, "--distributed-world-size", "1", "--out", path]

    def launcher(self) -> list[str]:
        """Return the words that start fairseq-train: its name, with torchrun before it, or with srun and torchrun."""
        hardware = self.hardware
        torchrun = ["torchrun", "--nproc-per-node", str(hardware.gpus)]
        if hardware.nodes > 1:
            agents = [*torchrun, *self.rendezvous()]
            return ["srun", "--kill-on-bad-exit=1", "--ntasks-per-node=1", *agents, "--no-python", "fairseq-train"]
        if hardware.launch == "torchrun" and hardware.gpus:
            return [*torchrun, "--no-python", "fairseq-train"]
        return ["fairseq-train"]

    def rendezvous(self) -> list[str]:
        """Return torchrun's flags by which its processes on the machines of a SLURM job find each other.

        Each job has a port of its own, because two may share a machine.
        """
        job = os.environ.get("SLURM_JOB_ID", "job")
        port = PORT
        if job.isdecimal():
            port += int(job) % PORTS
        nodes = ["--nnodes", str(self.hardware.nodes), "--rdzv-backend", "c10d", "--rdzv-id", job]
        return [*nodes, "--rdzv-endpoint", f"{first_host()}:{port}"]

    def facts(self, row: Row) -> dict[str, Any]:
        """Return the content of the row's run.json, by which tables and figures find it."""
        words = self.training(row)
        tokens = whole_number(last_value("--max-tokens", words))
        frequency = whole_number(last_value("--update-freq", words) or "1")
        averaged, _epochs = self.experiment.average  # number of checkpoints
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
        """Return the command that averages checkpoints; empty if a single one is scored.

        After a training that ended before its last epoch fewer files are averaged: run.Work then makes the command.
        """
        averaged, epochs = self.experiment.average
        run = self.folder(row)
        if averaged == 1:
            return []
        if epochs.startswith("last:"):
            return ["deepnet", "average", str(run), "--last", str(averaged), "--out", str(run / "averaged.pt")]
        first, last = map(int, epochs.split("-"))
        files = [str(run / f"weights{epoch}.pt") for epoch in range(first, last + 1)]
        return ["deepnet", "average", *files, "--out", str(run / "averaged.pt")]

    def planned_words(self, row: Row, tokens: int | None) -> list[str]:
        """Return the line of a row, split into words, for plan.rows.read_rows.

        tokens: of a batch, as the user gave them; None to let the plan choose.
        """
        averaged, _epochs = self.experiment.average  # number of checkpoints
        words = self.training(row)
        facts = json.dumps(dict(row.facts) | {"corpus": self.corpus.recipe})

        stuck = self.experiment.stuck
        if self.experiment.choice.stuck is None and not self.experiment.choice.smoke:
            stuck = STUCK
        if "--disable-validation" in words:  # whose losses would show it
            stuck = 0

        kept = 1 if averaged == 1 else 2  # the last checkpoint, and the average
        if "--no-save" in words:
            kept = 0

        free = []
        if self.hardware.gpus and tokens is None:
            free.append("batch")
        if self.hardware.gpus and self.recompute is None:
            free.append("recompute")
        return [
            f"{self.experiment.folder}/{row.name}",
            *(["--done"] if (self.folder(row) / "trained").exists() else []),
            "--kept", str(kept),
            "--vocab", str(self.corpus.vocabulary_size(self.experiment.vocabulary)),
            "--corpus-tokens", str(self.experiment["corpus_size"]["tokens"] // self.corpus.shards),
            "--facts", facts, "--experiment", self.experiment.folder, "--stuck", str(stuck),
            "--free", ",".join(free), "--gpu-memory", f"{self.hardware.memory:g}", *words,
        ]  # fmt: skip


def first_host() -> str:
    """Return the first machine of a job of SLURM, "" outside of one."""
    listed = os.environ.get("SLURM_JOB_NODELIST", "")
    if not listed or shutil.which("scontrol") is None:
        return ""
    done = subprocess.run(["scontrol", "show", "hostnames", listed], capture_output=True, text=True)
    return done.stdout.split("\n")[0]
