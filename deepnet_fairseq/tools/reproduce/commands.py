"""Say what is run for a row of an experiment: its training, the average, translations and score."""

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
from .words import last_of, whole_number, words_of

DEEP, DEEPEST = 200, 400  # layers from which a model recomputes, and shards its optimiser, if no plan says so
STUCK = 10_000  # updates after which a training ends whose cell diverged in the paper
AUTO_PROFILE = "auto"
PORT, PORTS = 29400, 1000  # first one, and number, of the ports at which the machines of a job meet


@dataclass(frozen=True)
class Setting:
    """What all rows of an experiment have in common.

    out: folder of its runs' folders; chosen: flags that the plan chose for a row, by FOLDER/NAME; too_large: rows that
    the plan found no flags for, with the GiB that each would take; extra: the user's flags of fairseq-train, which
    override all; generation: the user's of fairseq-generate; recompute: whether activations are recomputed, None to let
    the plan decide; planned: whether there is a plan; only: the name of the one row to run.
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
        """Return the words after fairseq-train."""
        run = str(self.folder(row))
        flags: Flags = {"optimizer": self.adam} | row.flags
        if "max-epoch" in flags and self.corpus.shards > 1 and flags["max-epoch"]:
            flags["max-epoch"] = flags["max-epoch"] * self.corpus.shards
        words = [self.corpus.data, "--user-dir", "deepnet_fairseq", *self.corpus.task, *words_of(flags)]
        if self.recompute is False:
            words = [word for word in words if word != "--checkpoint-activations"]
        words += ["--save-dir", run, "--seed", str(row.seed), "--log-format", "json"]
        words += self.mixed(row.method) + self.hardware.place + self.memory(row)
        words += list(self.chosen.get(f"{self.experiment.folder}/{row.name}", ()))
        if self.recompute:
            words.append("--checkpoint-activations")
        words += self.extra
        for number, word in enumerate(words[1:], 1):
            if words[number - 1] == "--admin-profile" and word == AUTO_PROFILE:
                words[number] = f"{run}/profile.json"
        return words

    @property
    def adam(self) -> str:
        """The optimiser of a paper's Adam: ours has the same results, faster, but not in memory-efficient precision."""
        efficient = self.hardware.precision != "fp32" and self.experiment.get("half_precision") is not None
        return "adam" if efficient else "deepnet_adam"

    def mixed(self, method: str) -> list[str]:
        """Return the flag of half precision, none for a method that the paper trains in fp32."""
        full = self.experiment.get("full_precision", ())
        if self.hardware.precision == "fp32" or method in full:
            return []
        kind = self.experiment.get("half_precision")
        return [f"--{kind}-{self.hardware.precision}" if kind else f"--{self.hardware.precision}"]

    @property
    def judge(self) -> Judge:
        """How trained models are judged."""
        kind = Translation if self.experiment.get("translation") is not None else Perplexity
        return kind(self.experiment, self.corpus, self.hardware, self.extra, self.generation)

    def memory(self, row: Row) -> list[str]:
        """Return the flags by which a deep model fits into memory, if no plan is made.

        Rows that are not scored, those of figures, get none: they are measured as they are.
        """
        if self.planned or not row.scored:
            return []
        words = []
        if row.layers >= DEEP and self.recompute is None:
            words.append("--checkpoint-activations")
        if row.layers >= DEEPEST and self.hardware.world > 1:
            words += ["--zero-sharding", "os", "--optimizer", "deepnet_adam"]
        return words

    def profile(self, row: Row) -> list[str]:
        """Return the command that profiles the first batch, for Admin; empty for other methods.

        It runs on one process, since a profile holds for any number.
        """
        words = self.training(row)
        path = last_of("--admin-profile", words)
        if path is None:
            return []
        kept, before = [], ""
        for word in words:
            if "--admin-profile" not in (word, before):
                kept.append(word)
            before = word
        return ["deepnet", "profile", *kept, "--distributed-world-size", "1", "--out", path]

    def launcher(self) -> list[str]:
        """Return the words that start fairseq-train."""
        hardware = self.hardware
        torchrun = ["torchrun", "--nproc-per-node", str(hardware.gpus)]
        if hardware.nodes > 1:
            agents = [*torchrun, *self.rendezvous()]
            return ["srun", "--kill-on-bad-exit=1", "--ntasks-per-node=1", *agents, "--no-python", "fairseq-train"]
        if hardware.launch == "torchrun" and hardware.gpus:
            return [*torchrun, "--no-python", "fairseq-train"]
        return ["fairseq-train"]

    def rendezvous(self) -> list[str]:
        """Return the words by which torchrun's agents on several machines of a job of SLURM find each other.

        Each job has a port of its own, because two may share a machine.
        """
        job = os.environ.get("SLURM_JOB_ID", "job")
        port = PORT
        if job.isdecimal():
            port += int(job) % PORTS
        nodes = ["--nnodes", str(self.hardware.nodes), "--rdzv-backend", "c10d", "--rdzv-id", job]
        return [*nodes, "--rdzv-endpoint", f"{first_host()}:{port}"]

    def facts(self, row: Row) -> dict[str, Any]:
        """Return the content of the row's run.json."""
        words = self.training(row)
        tokens = whole_number(last_of("--max-tokens", words))
        frequency = whole_number(last_of("--update-freq", words) or "1")
        number, _epochs = self.experiment.average
        facts = dict(row.facts) | {
            "experiment": self.experiment.folder,
            "corpus": self.corpus.name,
            "paper_corpus": self.corpus.recipe,
            "seed": row.seed,
            "smoke": self.experiment.choice.smoke,
            "averaged": number,
            "batch_tokens": self.hardware.world * tokens * frequency,
        }
        if row.paper_tokens is not None:
            facts["paper_batch_tokens"] = row.paper_tokens
        return facts

    def average(self, row: Row) -> list[str]:
        """Return the command that averages checkpoints as it is known before the training; empty if one is scored."""
        number, epochs = self.experiment.average
        run = self.folder(row)
        if number == 1:
            return []
        if epochs.startswith("last:"):
            return ["deepnet", "average", str(run), "--last", str(number), "--out", str(run / "averaged.pt")]
        first, last = map(int, epochs.split("-"))
        files = [str(run / f"weights{epoch}.pt") for epoch in range(first, last + 1)]
        return ["deepnet", "average", *files, "--out", str(run / "averaged.pt")]

    def planned_words(self, row: Row, tokens: int | None) -> list[str]:
        """Return the words of a row for tools.plan.rows. tokens: of a batch, None if the plan chooses them."""
        number, _epochs = self.experiment.average
        words = self.training(row)
        facts = json.dumps(dict(row.facts) | {"corpus": self.corpus.recipe})
        stuck = self.experiment.stuck
        if self.experiment.choice.stuck is None and not self.experiment.choice.smoke:
            stuck = STUCK
        if "--disable-validation" in words:
            stuck = 0
        kept = 1 if number == 1 else 2
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
            "--vocab", str(self.corpus.symbols(self.experiment.vocabulary)),
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
