"""One checkpoint as it is deployed: translated by several programs, each in a process of its own, round by round.

Stock fairseq-generate reads it folded, ours as it is, CTranslate2 and transformers what `deepnet export` makes of it.
All get the same sentences in the same batches. The record is written after every round, and gone on with.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from fairseq.data.data_utils import numpy_seed, post_process
from fairseq.data.indexed_dataset import make_builder
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from sacrebleu import BLEU

from ...errors import UserError
from ...files import WRONG_VALUES, read_object, whole
from ...plugin.building import from_checkpoint
from ...study.scoring.generated import generation_speed, read_generated
from ...study.scoring.scores import bleu_metric
from ..environment import environment
from ..export.hub_tokenizers import NAMES, find_subwords
from . import translator
from .results import compared
from .settings import STOCK, Candidate
from .turns import UNAVAILABLE, Cell, interleave

FORMAT, MEASURE = 1, "deployed"
DEFAULT, DEFAULT_TOKENS = "default", 12_000  # fairseq-generate's batches
BATCHES = (DEFAULT, "32", "1")
PEERS = ("ctranslate2", "transformers")
SAME = ("commit", "modified", "versions", "hardware")  # in all rounds of a record
# fields that a task looks up in the rest of a run's config
ALONE: dict[str, Any] = {"dataset_impl": None, "required_seq_len_multiple": 1, "train_subset": ""}
PACKAGE = Path(__file__).parents[2]


class Program(NamedTuple):
    """command: of `deepnet`, writes its model; name: a function of translator.py, which gets flags and type."""

    command: tuple[str, ...]
    name: str
    flags: tuple[str, ...] = ()
    type: str = ""


EXPORT = ("export", "{checkpoint}", "--data", "{data}", "--to")
PROGRAMS = {
    STOCK: Program(("export", "{checkpoint}", "--to", "transformer"), "fairseq_generate"),
    "ours": Program(("average", "{checkpoint}"), "fairseq_generate", ("--user-dir", str(PACKAGE))),
    "ctranslate2": Program((*EXPORT, "ctranslate2"), "ctranslate2", type="float32"),
    "ctranslate2-int8": Program((*EXPORT, "ctranslate2", "--quantization", "int8"), "ctranslate2", type="int8"),
    "transformers": Program((*EXPORT, "huggingface"), "transformers"),
}


@dataclass(frozen=True)
class Settings:
    """checkpoint, data, subset: what is translated by what; sentences: the first so many, `alone` one at a time.

    batches: some of BATCHES; candidates: of PROGRAMS; versions: NAME=FOLDER of this package in another version, which
    is a candidate too; subwords: what cut the text, "" if it lies beside the data; seconds: limit of one process.
    """

    checkpoint: str
    data: str
    subset: str = "test"
    sentences: int = 1000
    alone: int = 100
    batches: tuple[str, ...] = BATCHES
    candidates: tuple[str, ...] = tuple(PROGRAMS)
    versions: tuple[str, ...] = ()
    beam: int = 5
    rounds: int = 3
    threads: int = 1
    subwords: str = ""
    seconds: float = 3600

    def programs(self) -> dict[str, Program]:
        """By name, in the order of the table."""
        others = dict(words.split("=", 1) for words in self.versions)
        ours = {name: PROGRAMS["ours"]._replace(flags=("--user-dir", folder)) for name, folder in others.items()}
        return {name: PROGRAMS[name] for name in self.candidates} | ours

    def check(self) -> None:
        """UserError, naming the flag, for the first that nothing can be measured with."""
        for flag in ("sentences", "alone", "beam", "rounds", "threads", "seconds"):
            if getattr(self, flag) < 1:
                raise UserError(f"--{flag} {getattr(self, flag)}: must be at least 1")
        for flag, known in (("batches", BATCHES), ("candidates", PROGRAMS)):
            if unknown := [word for word in getattr(self, flag) if word not in known]:
                raise UserError(f"--{flag} {','.join(unknown)}: there are {','.join(known)}")
        for words in self.versions:
            name, _, folder = words.partition("=")
            if not name or name in PROGRAMS or not (Path(folder) / "plugin").is_dir():
                raise UserError(f"--version {words}: give NAME=FOLDER, a new name and another deepnet_fairseq")
        if self.subwords:
            find_subwords(self.subwords, self.data)

    def folders(self) -> dict[str, Path]:
        """Code that is measured: this package, and its versions by their names."""
        return {"": PACKAGE} | {name: Path(folder) for name, _, folder in (w.partition("=") for w in self.versions)}

    def pieces(self) -> str | None:
        """How fairseq joins what cut the text; None where nobody says what did."""
        beside = any((Path(self.data) / name).is_file() for name in NAMES)
        kind = find_subwords(self.subwords or None, self.data).kind if self.subwords or beside else None
        return "subword_nmt" if kind == "codes" else kind


def run(settings: Settings, out: Path) -> dict:
    """Measures what the record at `out` has not yet, and gives it, one JSON object; it is written after each round.

    UserError for settings that cannot be, a record of others, and a checkpoint that nothing here translates with.
    """
    settings.check()
    model, languages, positions = _model(settings)
    where = environment(gpus=0)
    where["versions"] |= {name: version(name) for name in PEERS if find_spec(name)}
    record = {
        "format": FORMAT,
        "environment": where,
        "settings": asdict(settings) | _names(settings),
        "model": model,
        "code": {name: digest(folder.rglob("*.py")) for name, folder in settings.folders().items()},
        "text": digest(_text(settings)),
        "bleu": {"joined": settings.pieces(), "signature": str(metric(settings).get_signature())},
        "sentences": {},
        "candidates": [],
        "cells": [],
    }
    cells = _cells(settings, model, _begun(out, record))
    with tempfile.TemporaryDirectory(prefix="deepnet-deployed-") as folder:
        work = Path(folder)
        jobs = {batches: Sentences(settings, languages, positions, batches, work) for batches in settings.batches}
        candidates = [export(name, settings, work) for name in settings.programs()]
        record["candidates"] = [asdict(c) | {"bytes": _bytes(work / c.name)} for c in candidates]
        for (_, name), cell in cells.items():
            if reason := next(c.unavailable for c in candidates if c.name == name):
                cell.end(UNAVAILABLE, reason)
        record["sentences"] = {batches: job.count for batches, job in jobs.items()}
        for turn in range(settings.rounds):
            for batches, sentences in jobs.items():
                print(f"deployed: {model['depth']}, batches {batches}, round {turn + 1}", file=sys.stderr, flush=True)
                mine = {name: cell for (kind, name), cell in cells.items() if kind == batches}
                left = {n: partial(sentences.translate, n) for n, cell in mine.items() if turn not in cell.repeats}
                interleave(mine, left, range(turn, turn + 1), settings.seconds)
            record["cells"] = compared(list(cells.values()))
            with whole(out) as part:
                part.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return record


def _names(settings: Settings) -> dict:
    """Files and folders without where they lie."""
    versions = [words.split("=")[0] for words in settings.versions]
    names = {name: Path(getattr(settings, name)).name for name in ("checkpoint", "data", "subwords")}
    return names | {"versions": versions}


def _text(settings: Settings) -> list[Path]:
    """Files of the data that are read: the set's, and dictionaries."""
    return [*Path(settings.data).glob(f"{settings.subset}.*"), *Path(settings.data).glob("dict.*")]


def metric(settings: Settings) -> BLEU:
    """Of text if pieces of SentencePiece are joined to it; of words that somebody has tokenised otherwise."""
    found = bleu_metric(tokenize="13a" if settings.pieces() == "sentencepiece" else "none")
    found.corpus_score(["a"], [["a"]])  # before it there is no signature
    return found


def digest(files: Iterable[Path]) -> str:
    """Of what is in all of them."""
    found = hashlib.sha256()
    for path in sorted(files):
        found.update(hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()


def _model(settings: Settings) -> tuple[dict, tuple[str, str], tuple[int, int]]:
    """What the record says of the model; source and target language; their most tokens."""
    model, cfg = from_checkpoint(settings.checkpoint)
    if cfg.task._name != "translation":
        raise UserError(f"{settings.checkpoint}: of --task {cfg.task._name}; this is for --task translation")
    depth = "-".join(str(len(stack.layers)) for stack in model.stacks().values())
    task = task_on(settings.data, (cfg.task.source_lang, cfg.task.target_lang))
    said = {"method": str(cfg.model.method), "depth": depth, "width": cfg.model.encoder_embed_dim}
    said |= {"parameters": sum(parameter.numel() for parameter in model.parameters())}
    with open(settings.checkpoint, "rb") as file:
        said["sha256"] = hashlib.file_digest(file, "sha256").hexdigest()
    return said, (task.cfg.source_lang, task.cfg.target_lang), model.max_positions()


def task_on(data: str, languages: tuple[str | None, str | None]) -> TranslationTask:
    """fairseq's task on a folder; UserError if that holds no binarised data."""
    cfg = TranslationConfig(data=data, source_lang=languages[0], target_lang=languages[1], **ALONE)
    try:
        return TranslationTask.setup_task(cfg)
    except UserError:
        raise
    except Exception as error:  # of languages that are nowhere it raises a bare one
        raise UserError(f"{data}: {error}; give the folder of the run's binarised data") from error


def _begun(out: Path, record: dict) -> list[dict]:
    """Cells of a record that is there; UserError if it is not of this model, these settings and this machine."""
    if not out.exists():
        return []
    other = "give another file, or remove it"
    found = read_object(out, other)
    this = json.loads(json.dumps(record))
    more = {"rounds": 0, "seconds": 0}  # may differ
    try:
        pairs = {name: (found["environment"][name], this["environment"][name]) for name in SAME}
        pairs |= {name: (found[name], this[name]) for name in ("model", "code", "text")}
        pairs |= {"settings": (found["settings"] | more, this["settings"] | more)}
        cells = found["cells"]
    except WRONG_VALUES as error:
        raise UserError(f"--out {out}: is not what `deepnet deployed` writes; {other}") from error
    for name, (theirs, ours) in pairs.items():
        if theirs != ours:
            raise UserError(f"--out {out}: a record with another {name}; {other}")
    return cells


def _cells(settings: Settings, model: dict, begun: list[dict]) -> dict[tuple[str, str], Cell]:
    """By batches and candidate, with the repeats that were made before."""
    cells = {}
    for batches in settings.batches:
        for name in settings.programs():
            cell = Cell(MEASURE, name, model["depth"], str(model["width"]), {"batches": batches})
            for old in begun:
                if (old["candidate"], old["condition"]) == (name, cell.condition) and old["repeats"]:
                    cell.repeats, cell.values, cell.facts = old["repeats"], old["values"], old["facts"]
            cells[batches, name] = cell
    return cells


def export(name: str, settings: Settings, work: Path) -> Candidate:
    """Its model is written to work / name, or why it cannot be is noted."""
    said = {"checkpoint": settings.checkpoint, "data": settings.data}
    program = settings.programs()[name]
    words = tuple(word.format(**said) for word in program.command)
    words += ("--subwords", settings.subwords) if settings.subwords and program.name == "transformers" else ()
    command = [sys.executable, "-m", PACKAGE.name, *words, "--out", str(work / name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    why = (done.stderr.strip() or "no message").splitlines()[-1] if done.returncode else ""
    return Candidate(name, program.command, why.split("error: ", 1)[-1])


def _bytes(path: Path) -> int:
    """Of a file, or of all in a folder; 0 if there is none."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


class Sentences:
    """The first sentences of the test set as each program reads them, in fairseq's batches."""

    def __init__(
        self, settings: Settings, languages: tuple[str, str], positions: tuple[int, int], batches: str, work: Path
    ):
        self.settings, self.work, self.folder = settings, work, work / f"batches-{batches}"
        count = settings.alone if batches == "1" else settings.sentences
        self.folder.mkdir()
        task = self._write_data(languages, count)
        self.symbols = task.target_dictionary.symbols
        dataset = task.dataset(settings.subset)
        self.count = len(dataset)
        for index in range(self.count):  # fairseq-generate would refuse, the other programs would not
            if any(tokens > most for tokens, most in zip(dataset.size(index), positions, strict=True)):
                long = f"sentence {index + 1} has {dataset.size(index)} tokens, the model positions for {positions}"
                raise UserError(f"--subset {settings.subset}: {long}; give --sentences {index}, or another subset")
        flags = ["--gen-subset", settings.subset, "--source-lang", languages[0], "--target-lang", languages[1]]
        size = [] if batches == DEFAULT else ["--batch-size", batches]
        size += ["--required-batch-size-multiple", "1"]  # stock fairseq leaves out the last sentences otherwise
        self.flags = [str(self.folder), "--cpu", "--beam", str(settings.beam), *flags, *size]
        self.pieces = settings.pieces()
        self.metric = metric(settings)
        sizes = {"max_tokens": DEFAULT_TOKENS} if batches == DEFAULT else {"max_sentences": int(batches)}
        (self.folder / "batches.json").write_text(json.dumps(listed(task, settings.subset, sizes)), encoding="utf-8")

    def _write_data(self, languages: tuple[str, str], count: int) -> TranslationTask:
        """A binarised test set of `count` sentences; the task on it."""
        subset = self.settings.subset
        task = task_on(self.settings.data, languages)
        task.load_dataset(subset)
        dataset = task.dataset(subset)
        sides = ((dataset.src, task.source_dictionary), (dataset.tgt, task.target_dictionary))
        for language, (side, dictionary) in zip(languages, sides, strict=True):
            if side is None:
                raise UserError(f"--subset {subset}: has no {language} side; give one with references")
            prefix = self.folder / f"{subset}.{'-'.join(languages)}.{language}"
            builder = make_builder(f"{prefix}.bin", impl="mmap", vocab_size=len(dictionary))
            for index in range(min(count, len(side))):
                builder.add_item(side[index])
            builder.finalize(f"{prefix}.idx")
            dictionary.save(str(self.folder / f"dict.{language}.txt"))
        task = task_on(str(self.folder), languages)
        task.load_dataset(subset)
        return task

    def translate(self, name: str, repeat: int) -> dict[str, float]:
        """One process: tokens and sentences a second, BLEU, peak memory, seconds from start to end."""
        program = self.settings.programs()[name]
        peak, model = self.folder / "peak", str(self.work / name)
        job = {"program": program.name, "model": model, "batches": str(self.folder / "batches.json")}
        job |= {"beam": self.settings.beam, "threads": self.settings.threads, "symbols": self.symbols}
        job |= {"flags": [*self.flags, "--path", model, *program.flags], "peak": str(peak), "type": program.type}
        written, printed = self.folder / "job.json", self.folder / "generated.txt"
        written.write_text(json.dumps(job), encoding="utf-8")
        environment = os.environ | {"OMP_NUM_THREADS": str(self.settings.threads)}
        start = time.perf_counter()
        with open(printed, "w", encoding="utf-8") as file, open(self.folder / "generate.log", "w") as log:
            command = [sys.executable, "-P", translator.__file__, str(written)]
            done = subprocess.run(command, stdout=file, stderr=log, env=environment, check=False)
        seconds = time.perf_counter() - start
        if done.returncode:
            lines = (self.folder / "generate.log").read_text(errors="replace").strip().splitlines()
            raise RuntimeError(lines[-1] if lines else f"status {done.returncode}")
        speed = generation_speed(printed)
        assert speed is not None  # every program prints it
        rates = {f"{what} per second": speed[f"{what}_per_second"] for what in ("tokens", "sentences")}
        return rates | {"bleu": self._bleu(printed), "bytes": float(peak.read_text()), "seconds": seconds}

    def _bleu(self, printed: Path) -> float:
        found = read_generated(printed)
        sides = found.translations, found.references or []
        text, references = ([post_process(line, self.pieces) for line in side] for side in sides)
        return self.metric.corpus_score(text, [references]).score


def listed(task: TranslationTask, subset: str, sizes: dict[str, int]) -> list[list[dict]]:
    """Sentences in the batches that fairseq-generate makes, in its order."""
    dataset, target = task.dataset(subset), task.target_dictionary
    with numpy_seed(1):
        order = dataset.ordered_indices()

    def sentence(index: int) -> dict:
        numbers = dataset.src[index].tolist()
        source = [task.source_dictionary[number] for number in numbers if number != task.source_dictionary.eos()]
        return {
            "id": index,
            "source": source,
            "numbers": numbers,
            "reference": target.string(dataset.tgt[index], None, escape_unk=True),
        }

    batches = dataset.batch_by_size(order, required_batch_size_multiple=1, **sizes)
    return [[sentence(int(index)) for index in batch] for batch in batches]
