"""Read training runs: their settings, log, probes and score.

A live run is a folder, see run_folder.py. A record is one line of a file of records: a JSON object with the same
contents, which results/records.py keeps when the folder is gone. Either way RUNS/EXPERIMENT holds the runs of an
experiment, as folders in it or as lines of RUNS/EXPERIMENT.jsonl. A part is one file of the folder, or one entry of the
record; FILES has their names.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

from ..core.methods import METHODS
from ..errors import UserError
from ..files import parse_json, read_object
from ..plugin.probe_record import Record, read_rows, record_of
from .logs import Curve, curve, read_log, training_hours
from .run_folder import FILES, TRAINED

RECORDS = ".jsonl"  # ending of a file of records, behind the name of the runs' folder
TEXTS = ("command", "diverged", "stuck")  # the parts that are plain text
TYPES = {"name": str, "probes": list} | dict.fromkeys(TEXTS, str)  # part -> its type; the others are dictionaries
WAY_OUT = "record the run again"  # ends error messages
SCORED = "scored"  # states of a run, see RecordedRun.state
UNSCORED = "not scored"
SHARED = {  # figure without runs of its own -> the folder of the experiment whose runs it shows
    6: "iwslt14",
    8: "opus100",
    10: "table3",
    "depth": "quickstart",
    "normformer3": "normformer_clm",
    "normformer4": "normformer_clm",
}
STACKS = ("encoder_layers", "decoder_layers")  # keys of run.json: the numbers of layers
ENOUGH = 400  # updates; before them a healthy run may still be at its initial loss
STUCK = 0.68  # share of the first logged loss above which a run is stuck; see RecordedRun.diverged


class RecordedRun:
    """A training run, live or recorded.

    place: its folder, or the file that holds its record; recorded: it is the latter. path: the run's folder, or the one
    that it would have if it were live. name: of that folder; address: EXPERIMENT/NAME. log_file: file that holds its
    log.

    parts: contents of its files, by the keys of FILES: dictionaries, texts, and for "probes" a list of rows. facts: the
    part "run", with at least method, a name of METHODS, and the layers of the model's stacks, encoder_layers,
    decoder_layers or both; a missing stack has 0 layers. seed: None if run.json has none. environment: commit,
    versions, hardware, gpus; empty if not recorded. command, score: None if there is none.

    finished: its training is over, well or not. ended_in_nan: it has a mark that its numbers stopped being finite;
    `diverged` also judges by the loss. stuck: it was stopped because it did no better than unigram entropy. miniature:
    it was trained on generated data.
    """

    def __init__(self, place: Path, record: dict[str, Any] | None = None):
        """Read the folder `place` of a live run, or take a record.

        record: the object in a line of the file `place`. Raises a UserError if something is broken, or facts are
        missing.
        """
        self.place = place
        self.recorded = record is not None
        if record is None:
            self.parts = _parts(place)
            self.path = place
            self.log_file = place / FILES["log"]
        else:
            self.parts = record
            self.path = place.with_suffix("") / record["name"]
            self.log_file = place
        self.name = self.path.name
        self.address = f"{self.path.parent.name}/{self.path.name}"
        self.facts = self.parts.get("run", {})
        self._check()

        self.method: str = self.facts["method"]
        self.seed: int | None = self.facts.get("seed")
        self.encoder_layers = self.facts.get("encoder_layers", 0)
        self.decoder_layers = self.facts.get("decoder_layers", 0)
        self.total_layers = self.encoder_layers + self.decoder_layers

        self.finished = self.recorded or is_over(self.place)
        self.ended_in_nan = "diverged" in self.parts
        self.stuck = "stuck" in self.parts
        self.miniature = self.facts.get("smoke") is True  # no other value counts
        self.environment = self.parts.get("environment", {})
        self.command = self.parts.get("command")
        self.score = self.parts.get("score")

    def _check(self) -> None:
        """Raise a UserError for a part of another type, an unknown method, and layers or a seed that are no numbers."""
        for part, value in self.parts.items():
            if not isinstance(value, TYPES.get(part, dict)):
                raise UserError(self.where(part), f"is broken; {WAY_OUT}")

        facts = self.facts
        if not isinstance(facts.get("method"), str) or facts["method"] not in METHODS:
            raise UserError(self.where(), f"method {facts.get('method')!r} is unknown; see `deepnet methods`")

        stacks = [key for key in STACKS if key in facts]
        for key in stacks or STACKS:  # of a run without any, the first is named as missing
            if type(facts.get(key)) is not int or facts[key] < 1:
                raise UserError(self.where(), f"{key} {facts.get(key)!r}: must be a number of layers, 1 or more")

        if not isinstance(facts.get("seed"), int | None):
            raise UserError(self.where(), f"seed {facts['seed']!r}: must be a number")

    def where(self, part: str = "run") -> str:
        """Name the place of a part, a key of FILES, for errors: its file, or the record and the entry in it."""
        return f"{self.place}: {self.name}: {part}" if self.recorded else str(self.place / FILES[part])

    @property
    def depth(self) -> str:
        """Return the depth as "18L-18L", of a language model "12L"."""
        return "-".join(f"{self.facts[key]}L" for key in STACKS if key in self.facts)

    @property
    def layers(self) -> int:
        """Return N of an N-N model; raise a UserError if it is none."""
        if self.encoder_layers != self.decoder_layers:
            raise UserError(self.where(), f"{self.depth}; this figure compares N-N models, move it away")
        return self.decoder_layers

    @cached_property
    def updates(self) -> int | None:
        """Return the number of updates at the last logged loss; None if none is logged."""
        try:
            return self.log.updates[-1]
        except UserError:
            return None

    @cached_property
    def state(self) -> str:
        """Return the state of training and scoring, as tables print it.

        The state is SCORED if the training is over and no direction of translation lacks a score.
        """
        if self.ended_in_nan:
            match = re.search(r"update \d+", self.parts["diverged"])
            return f"diverged at {match.group()}" if match else "diverged"
        if self.stuck:
            return "stuck (at the frequencies of words)"
        if not self.finished:
            return f"running (update {self.updates or 0})"
        if self.score is None:
            return UNSCORED
        return "scored in part" if self.score.get("missing") else SCORED

    def fact(self, key: str, choices: Iterable[str]) -> str:
        """Return the fact `key`; raise a UserError unless it is one of `choices`."""
        value = self.facts.get(key)
        if not isinstance(value, str) or value not in choices:
            raise UserError(self.where(), f"{key} {value!r}: must be one of {', '.join(choices)}")
        return value

    @cached_property
    def log(self) -> Curve:
        """Return the losses of training; raise a UserError if there is no log, or nothing in it."""
        return curve(self.parts.get("log", {}), "train_inner", self.where("log"))

    @cached_property
    def validation(self) -> Curve:
        """Return the validation losses; without points if the run diverged before its first validation.

        Raises a UserError if another run has none.
        """
        try:
            return curve(self.parts.get("log", {}), "valid", self.where("log"))
        except UserError:
            if self.diverged:
                return Curve([], [], [])
            raise

    @property
    def hours(self) -> float | None:
        """Return the hours of training, all attempts together; None if the log has no times."""
        return training_hours(self.parts.get("log", {}), self.where("log"))

    @cached_property
    def probes(self) -> Record:
        """Return what the probes recorded, an empty Record without probes; raise a UserError if it is broken."""
        rows = self.parts.get("probes")
        return Record({}, {}) if rows is None else record_of(rows, self.where("probes"))

    def updates_with(self, probe: str) -> list[int]:
        """Return the updates at which this probe recorded values, in order."""
        return [update for update in self.probes.updates() if self.probes.rows[update].get(probe)]

    def probe_values(self, probe: str, update: int) -> dict[str, float]:
        """Return address -> value of a probe at an update; raise a UserError if it recorded none there."""
        values = self.probes.rows.get(update, {}).get(probe)
        if not values:
            lacking = f"has no {probe} at update {update}; train with --deepnet-probe {probe}"
            raise UserError(self.where("probes"), lacking)
        return values

    @cached_property
    def diverged(self) -> bool:
        """Tell whether the training failed: numbers stopped being finite, or the model learnt no more than frequencies.

        Both are known if the trainer stopped for them. Otherwise the log is judged. A last loss that is not finite is
        the first. The second is a rule of thumb: after ENOUGH updates or more, the training loss is still above STUCK
        times that of the first logged interval. On the embedded corpus, logged every 25 updates, runs that fail are at
        75-82% of it after 400 updates and others below 63%. A log that lacks the start of the run is misjudged.
        """
        if self.ended_in_nan or self.stuck:
            return True
        if "log" not in self.parts:
            return False

        final_loss = self.log.final_loss()
        if not math.isfinite(final_loss):
            return True
        return self.log.updates[-1] >= ENOUGH and final_loss > STUCK * self.log.losses[0]

    @property
    def bleu(self) -> float | None:
        """Return BLEU in 0..100; None if the run diverged before there was anything to score.

        Raises a UserError if another run has none.
        """
        if self.score is None and self.diverged:
            return None
        value = (self.score or {}).get("bleu")
        if not isinstance(value, (int, float)):
            raise UserError(self.where("score"), 'holds no number "bleu"; score the run again')
        return float(value)


def name_of(figure: int | str) -> str:
    """Return the name of a figure's files: "figure4" for 4, DeepNet's Figure 4; any other figure is its own name."""
    return figure if isinstance(figure, str) else f"figure{figure}"


def folder_of(figure: int | str) -> str:
    """Return the name of the folder of a figure's runs: the one in SHARED, else the figure's own name."""
    return SHARED.get(figure, name_of(figure))


def runs_of(folder: Path, figure: int | str) -> list[RecordedRun]:
    """Read the figure's finished runs, ordered by name; raise a UserError if there is none.

    folder: RUNS, which holds the folders of experiments and figures.
    """
    finished = recorded_below(folder / folder_of(figure), over=True)
    if not finished:
        raise UserError(folder / folder_of(figure), "holds no finished runs; record some first")
    return finished


def holds_runs(folder: Path) -> bool:
    """Tell whether RUNS/EXPERIMENT is a folder of live runs, or has a file of records."""
    return folder.is_dir() or _records_file(folder).is_file()


def recorded_below(folder: Path, over: bool = False) -> list[RecordedRun]:
    """Read the live runs in a folder RUNS/EXPERIMENT and the records in RUNS/EXPERIMENT.jsonl, ordered by name.

    over: leave out live runs that are not over, whose files may be half-written.
    """
    runs = [RecordedRun(place) for place in live_runs(folder) if is_over(place) or not over]
    file = _records_file(folder)
    if file.is_file():
        runs += read_records(file)
    return sorted(runs, key=lambda run: run.path)


def read_records(path: Path) -> list[RecordedRun]:
    """Read a file of records: in each line a JSON object with a "name". Raises a UserError, naming a broken line."""
    runs = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            record = parse_json(line.decode("utf-8"))
        except ValueError as error:
            raise UserError(path, f"line {number}: is no JSON ({error}); {WAY_OUT}") from error
        if not isinstance(record, dict) or not isinstance(record.get("name"), str):
            raise UserError(path, f"line {number}: must hold one JSON object with a name; {WAY_OUT}")
        runs.append(RecordedRun(path, record))
    return runs


def _records_file(folder: Path) -> Path:
    """Return FOLDER.jsonl, the file that holds the records of the runs in `folder`."""
    return folder.with_name(f"{folder.name}{RECORDS}")


def _parts(folder: Path) -> dict[str, Any]:
    """Return the parts of a live run; raise a UserError for a broken file, or if there is no run.json."""
    parts: dict[str, Any] = {}
    for part, name in FILES.items():
        path = folder / name
        if part != "run" and not path.exists():
            continue
        if part == "log":
            parts[part] = read_log(path)
        elif part == "probes":
            parts[part] = read_rows(path)
        elif part in TEXTS:
            parts[part] = path.read_text(encoding="utf-8", errors="replace").strip()
        else:
            parts[part] = read_object(path, WAY_OUT)
    return parts


def is_over(place: Path) -> bool:
    """Tell whether the training in this folder is over, well or not: it then has a file `trained`."""
    return (place / TRAINED).exists()


def live_runs(folder: Path) -> list[Path]:
    """List the folders of the live runs in `folder`, by name: those with a run.json.

    The runs of the quickstart lie one level deeper, in a folder for each depth, length and seed.
    """
    files = [*folder.glob("*/run.json"), *folder.glob("*/*/run.json")]
    return sorted(file.parent for file in files)
