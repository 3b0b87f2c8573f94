"""Trainings, translations and scores of the list's parts, by fairseq's own programs.

A part yields rows, dictionaries of what it measured: one is what a training or a translation returns here.
"""

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
# flags of every training
COMMON = """--user-dir deepnet_fairseq --arch deepnet_transformer --share-all-embeddings --criterion
    label_smoothed_cross_entropy --label-smoothing 0.1 --adam-betas '(0.9, 0.98)' --seed 1 --log-format json
    --distributed-world-size 1 --no-epoch-checkpoints --save-interval 100000 --validate-interval 100000"""
# flags of the model in miniature; they stand behind those of the full size, which they replace
MINIATURE = "--encoder-embed-dim 16 --encoder-ffn-embed-dim 32 --encoder-attention-heads 2"


def model_flags(method: str, layers: int) -> list[str]:
    """Return the flags of fairseq-train for a method, and for so many layers in the encoder and in the decoder."""
    flags_of_method = shlex.split(" ".join(METHODS[method].train_flags))  # that it needs beside --method
    return [f"--method={method}", *flags_of_method, f"--encoder-layers={layers}", f"--decoder-layers={layers}"]


class Training:
    """A training by fairseq-train that saves into FOLDER/NAME and logs into FOLDER/NAME.log, FOLDER being the part's.

    work: of the part. data: folder of the binarised data. flags: beside COMMON and --max-update, which is `updates`.
    facts: entries for the row of the training, such as its "what". began: moment of time.monotonic() of its last start.
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
        """Change the command so that torchrun starts so many processes, one for each GPU of this machine."""
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        at = self.command.index("-m")  # of "-m fairseq_cli.train", which torchrun takes behind its own flags
        self.command[at:at] = torchrun
        self.command.append(f"--distributed-world-size={processes}")

    @property
    def checkpoint(self) -> Path:
        """The file of the last checkpoint, which may not exist yet."""
        return self.folder / "checkpoint_last.pt"

    def run(self, share: float = 1.0, begins_at: float = 0.0) -> dict:
        """Train to the end, or until the training diverges or is stuck; return its row, see `result`.

        PartFailed if fairseq-train ends otherwise. begins_at, share: the share of the part that is over when the
        training begins, and when it ends, from 0 to 1. While it runs, its share and its row so far are noted in the
        part's folder, for a part that is cut off.
        """

        def look() -> None:
            """Note the share of the part that is over, in proportion to the updates, and the row so far."""
            done = self.last_update() / self.updates
            self.work.share(begins_at + (share - begins_at) * done)
            self.work.so_far(self.result(None))

        self.began = time.monotonic()
        status = self.work.run(self.command, self.name, allowed=tuple(ENDINGS), look=look)
        (self.work.folder / SO_FAR).unlink(missing_ok=True)  # from here on the part has the row itself
        return self.result(status)

    def start(self) -> subprocess.Popen:
        """Start the training, and return its process without waiting for it."""
        self.began = time.monotonic()
        return self.work.start(self.command, self.name)

    def result(self, status: int | None) -> dict:
        """Return the row of the training: `facts`, how it ended, and what its log says.

        status: exit status of fairseq-train, a key of ENDINGS; None while it runs. The entries are "command"; "ended"
        (a value of ENDINGS, or "cut off" while it runs); "seconds" since its start; "updates", the last one in its log;
        "seconds_an_update", the median; "losses" and "valid_losses", lists of [update, bits a token]; "graphs", what
        --cuda-graphs said; and "peak_GiB" of the GPU's memory.
        """
        entries = logged(self.log, "train_inner")
        validations = logged(self.log, "valid")
        return self.facts | {
            "command": shlex.join(without_paths(self.command)),
            "ended": "cut off" if status is None else ENDINGS[status],
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
    """Return the entries of a kind, train_inner or valid, in fairseq's log of JSON; none if there is no log yet.

    A line is "TIME | INFO | KIND | {...}". The last one may be half written and is left out then.
    """
    if not log.exists():
        return []
    mark = f"| {kind} | {{"
    entries = []
    for line in log.read_text(encoding="utf-8", errors="replace").split("\n"):
        if mark in line and line.endswith("}"):
            entries.append(json.loads("{" + line.split(mark, 1)[1]))
    return entries


def seconds_an_update(entries: list[dict]) -> float | None:
    """Return the median seconds of an update over the logged intervals; None if there are not two of them.

    The first interval is left out, since it includes the start of the program. entries: of kind train_inner.
    """
    seconds = []
    for entry in entries[1:]:
        words_a_second = float(entry["wps"])  # "wpb" are the words (tokens) of a batch
        if words_a_second > 0:
            seconds.append(float(entry["wpb"]) / words_a_second)
    return round(statistics.median(seconds), 5) if seconds else None


def graph_lines(log: Path) -> list[str]:
    """Return what --cuda-graphs said in a log: shapes, seconds of capture, padding, or why there are no graphs.

    The line of the command, which begins with "$", also names the flag, but tells nothing.
    """
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    return [line.split("| ")[-1] for line in lines if "--cuda-graphs" in line and not line.startswith("$")]


def without_paths(words: list[str]) -> list[str]:
    """Return the words of a command without this machine's folders: "python", and the names of absolute paths alone."""
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
    """Return the GiB of the GPU's memory that a training had allocated at most, by its log; None on a CPU.

    fairseq logs at its start the memory of the GPU ("total memory"), and in each line the least that PyTorch's
    allocator had left of it in the last update before the line ("gb_free"). Other updates are not seen.
    """
    free = [float(entry["gb_free"]) for entry in logged(log, "train_inner") if "gb_free" in entry]
    if not free:
        return None
    text = log.read_text(encoding="utf-8", errors="replace")
    total = float(text.split("total memory = ", 1)[1].split(" GB", 1)[0])
    return round(total - min(free), 2)


def translate(work: Work, data: Path, checkpoint: Path, flags: list[str], subset: str, tokenize: str) -> dict:
    """Translate a test set by fairseq-generate, and return a row with BLEU and speed.

    data: folder of the binarised data; flags: of fairseq-generate, for the beam, lengths and so on; subset: fairseq's
    name of the test set, test or test1; tokenize: sacreBLEU's tokeniser, "none" for text that is in tokens already. The
    entries are "subset", "bleu", its "signature", the number of "sentences", and those of generation_speed, unless the
    output lacks the line with the speed. PartFailed if fairseq-generate fails or prints no references.
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
