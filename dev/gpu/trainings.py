"""Trainings, translations and scores of the list's parts, by fairseq's own programs."""

from __future__ import annotations

import json
import shlex
import statistics
import subprocess
import time
from pathlib import Path

from sacrebleu.metrics import BLEU

from deepnet_fairseq.core.methods import METHODS
from deepnet_fairseq.study.scoring.generated import generation_speed, read_generated

from .work import PYTHON, SO_FAR, PartFailed, Work

DIVERGED, STUCK = 3, 4  # fairseq-train's statuses for trainings that are results, too
ENDINGS = {0: "trained", DIVERGED: "diverged", STUCK: "stuck"}
COMMON = """--user-dir deepnet_fairseq --arch deepnet_transformer --share-all-embeddings --criterion
    label_smoothed_cross_entropy --label-smoothing 0.1 --adam-betas '(0.9, 0.98)' --seed 1 --log-format json
    --distributed-world-size 1 --no-epoch-checkpoints --save-interval 100000 --validate-interval 100000"""
MINIATURE = "--encoder-embed-dim 16 --encoder-ffn-embed-dim 32 --encoder-attention-heads 2"


def model_flags(method: str, layers: int) -> list[str]:
    """Return the flags of a method, and of as many layers in the encoder as in the decoder."""
    own = shlex.split(" ".join(METHODS[method].train_flags))
    return [f"--method={method}", *own, f"--encoder-layers={layers}", f"--decoder-layers={layers}"]


class Training:
    """A training by fairseq-train that saves into FOLDER/NAME and logs into FOLDER/NAME.log.

    flags: beside COMMON and --max-update, which is `updates`. facts: of the training, for its row of the record.
    """

    def __init__(
        self,
        work: Work,
        data: Path,
        flags: list[str],
        updates: int,
        name: str = "train",
        facts: dict | None = None,
    ):
        self.work = work
        self.updates = updates
        self.name = name
        self.facts = facts or {}
        self.folder = work.folder / name
        self.log = work.log(name)
        flags = [*shlex.split(COMMON), *flags, f"--max-update={updates}"]
        self.command = [PYTHON, "-m", "fairseq_cli.train", str(data), *flags, "--save-dir", str(self.folder)]
        self.began = time.monotonic()

    def by_torchrun(self, processes: int) -> None:
        """Start one process for each of so many GPUs of this machine."""
        program = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        at = self.command.index("-m")
        self.command[at:at] = program
        self.command.append(f"--distributed-world-size={processes}")

    @property
    def checkpoint(self) -> Path:
        """Return the place of the last checkpoint."""
        return self.folder / "checkpoint_last.pt"

    def run(self, share: float = 1.0, begins_at: float = 0.0) -> dict:
        """Train to the end, or until the training diverges or is stuck; return what the log says.

        begins_at, share: how much of the part is over before the training and after it, from 0 to 1; meanwhile it is
        noted by the updates that are made.
        """

        def look() -> None:
            done = self.last_update() / self.updates
            self.work.share(begins_at + (share - begins_at) * done)
            self.work.so_far(self.result(None))

        self.began = time.monotonic()
        status = self.work.run(self.command, self.name, allowed=tuple(ENDINGS), look=look)
        (self.work.folder / SO_FAR).unlink(missing_ok=True)
        return self.result(status)

    def start(self) -> subprocess.Popen:
        """Start training, and return the process."""
        self.began = time.monotonic()
        return self.work.start(self.command, self.name)

    def result(self, status: int | None) -> dict:
        """Return how the training ended, and what its log says. status: of fairseq-train, None while it runs."""
        entries = logged(self.log, "train_inner")
        validations = logged(self.log, "valid")
        return self.facts | {
            "command": shlex.join(without_paths(self.command)),
            "ended": "cut off" if status is None else ENDINGS.get(status, f"status {status}"),
            "seconds": round(time.monotonic() - self.began, 1),
            "updates": self.last_update(),
            "seconds_an_update": seconds_an_update(entries),
            "losses": [[int(one["num_updates"]), float(one["nll_loss"])] for one in entries],
            "valid_losses": [[int(one["valid_num_updates"]), float(one["valid_nll_loss"])] for one in validations],
            "graphs": graph_lines(self.log),
            "peak_GiB": peak_memory(self.log),
        }

    def last_update(self) -> int:
        """Return the last update in the log, 0 before the first."""
        entries = logged(self.log, "train_inner")
        return int(entries[-1]["num_updates"]) if entries else 0


def logged(log: Path, kind: str) -> list[dict]:
    """Return the entries of a kind, train_inner or valid, in fairseq's log of JSON; none if there is no log yet."""
    if not log.exists():
        return []
    mark = f"| {kind} | {{"
    entries = []
    for line in log.read_text(encoding="utf-8", errors="replace").split("\n"):
        if mark in line and line.endswith("}"):
            entries.append(json.loads("{" + line.split(mark, 1)[1]))
    return entries


def seconds_an_update(entries: list[dict]) -> float | None:
    """Return the median over the intervals of a log, of which the first begins with the program; None without one."""
    seconds = []
    for entry in entries[1:]:
        words_a_second = float(entry["wps"])
        if words_a_second > 0:
            seconds.append(float(entry["wpb"]) / words_a_second)
    return round(statistics.median(seconds), 5) if seconds else None


def graph_lines(log: Path) -> list[str]:
    """Return what --cuda-graphs said of itself: shapes, seconds of capture, padding, or why there are no graphs."""
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    return [line.split("| ")[-1] for line in lines if "--cuda-graphs" in line and not line.startswith("$")]


def without_paths(words: list[str]) -> list[str]:
    """Return a command without the folders of this machine."""
    shown = []
    for word in words:
        if word == PYTHON:
            shown.append("python")
        elif word.startswith("/"):
            shown.append(word.rsplit("/", 1)[1])
        else:
            shown.append(word)
    return shown


def peak_memory(log: Path) -> float | None:
    """Return the GiB that a training had allocated at most, by its log; None on a CPU."""
    free = [float(entry["gb_free"]) for entry in logged(log, "train_inner") if "gb_free" in entry]
    if not free:
        return None
    text = log.read_text(encoding="utf-8", errors="replace")
    total = float(text.split("total memory = ", 1)[1].split(" GB", 1)[0])
    return round(total - min(free), 2)


def translate(work: Work, data: Path, checkpoint: Path, flags: list[str], subset: str, tokenize: str) -> dict:
    """Translate a test set by fairseq-generate and return BLEU and speed.

    flags: beam, lengths and so on; tokenize: sacreBLEU's tokeniser, "none" for text that is in tokens already.
    """
    name = f"generate_{subset}"
    place = ["--cpu"] if work.miniature else ["--fp16"]
    words = [
        PYTHON, "-m", "fairseq_cli.generate", str(data), "--user-dir", "deepnet_fairseq", "--path", str(checkpoint),
        "--gen-subset", subset, "--remove-bpe", "sentencepiece", *flags, *place,
    ]  # fmt: skip
    out = work.folder / f"{name}.txt"
    work.run(words, name, out=out)
    generated = read_generated(out)
    if generated.references is None:
        raise PartFailed(f"{name}: fairseq-generate printed no references")
    metric = BLEU(force=True, tokenize=tokenize)
    score = metric.corpus_score(generated.translations, [generated.references])
    row = {
        "subset": subset,
        "bleu": round(score.score, 2),
        "signature": str(metric.get_signature()),
        "sentences": len(generated.translations),
    }
    return row | (generation_speed(generated) or {})
