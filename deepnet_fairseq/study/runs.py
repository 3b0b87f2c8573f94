"""Read training runs: their settings, log, probes and score.

A live run is a folder, see run_folder.py. A record is one line of a file of records: a JSON object with the same
contents, which results/records.py keeps when the folder is gone. The runs of an experiment are folders in
RUNS/EXPERIMENT, or lines of RUNS/EXPERIMENT.jsonl, or both. A part is one file of the folder, or one entry of the
record; FILES has the names of parts and files. Probes record values by update and address, a place in the model such as
"decoder.18".
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
from ..files import parse_json, read_json_object
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

    recorded: whether it is a record. place: the file that holds the record, or the folder of a live run. path: the
    folder of a live run; for a record, RUNS/EXPERIMENT/NAME, a folder that need not exist. name: the last part of path;
    address: its last two parts, mostly EXPERIMENT/NAME. log_file: the file that holds the log; for a record that is the
    file of records.

    parts: contents of its files, by the keys of FILES: dictionaries, texts, and for "probes" a list of rows. facts: the
    part "run", with at least "method", a name of METHODS, and the numbers of layers "encoder_layers", "decoder_layers"
    or both. encoder_layers, decoder_layers: these, 0 for a stack that the model does not have; total_layers: their sum.
    seed: None if run.json has none. environment: commit, versions, hardware, gpus; {} if not recorded. command: the
    text of the file, score: the content of score.json; None if there is none.

    finished: its training is over, well or not. ended_in_nan: the trainer stopped it because its numbers were no longer
    finite; `diverged` also judges by the loss. stuck: the trainer stopped it because it predicted no better than the
    words' frequencies. miniature: it is of a small version of an experiment, on generated data (--smoke).
    """

    def __init__(self, place: Path, record: dict[str, Any] | None = None):
        """Read the folder `place` of a live run, or take a record.

        record: the JSON object in one line of the file `place`, with "name" and the parts; None for a live run. Raises
        a UserError if something is broken, or facts are missing.
        """
        self.place = place
        self.recorded = record is not None
        if record is None:
            self.parts = _parts(place)
            self.path = place
            self.log_file = place / FILES["log"]
        else:
            self.parts = record
            self.path = place.with_suffix("") / record["name"]  # RUNS/EXPERIMENT/NAME
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
        """Raise a UserError for a part of a wrong type, an unknown method, wrong numbers of layers, or a wrong seed."""
        for part, value in self.parts.items():
            expected = TYPES.get(part, dict)
            if not isinstance(value, expected):
                raise UserError(self.where(part), f"is broken; {WAY_OUT}")

        facts = self.facts
        if not isinstance(facts.get("method"), str) or facts["method"] not in METHODS:
            raise UserError(self.where(), f"method {facts.get('method')!r} is unknown; see `deepnet methods`")

        stacks = [key for key in STACKS if key in facts]
        for key in stacks or STACKS:  # a run without any has an error too, about the first of STACKS
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
        """Return the number of updates at the last logged loss; None if none is logged, or if a loss is broken."""
        try:
            return self.log.updates[-1]
        except UserError:
            return None

    @cached_property
    def state(self) -> str:
        """Return the state of training and scoring, as tables print it.

        It is "diverged at update 400", "stuck (...)", "running (update 400)", UNSCORED, SCORED, or "scored in part" if
        some direction of translation has no score.
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
        """Return the value of a key of run.json; raise a UserError unless it is one of `choices`."""
        value = self.facts.get(key)
        if not isinstance(value, str) or value not in choices:
            raise UserError(self.where(), f"{key} {value!r}: must be one of {', '.join(choices)}")
        return value

    @cached_property
    def log(self) -> Curve:
        """Return the losses of training by update; raise a UserError if the log lacks them or is broken."""
        return curve(self.parts.get("log", {}), "train_inner", self.where("log"))

    @cached_property
    def validation(self) -> Curve:
        """Return the validation losses by update; an empty Curve if the run diverged before its first validation.

        Raises a UserError if a run that did not diverge has no validation losses, or broken ones.
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
        """Return what the probes recorded, update -> probe -> address -> value in Record.rows; empty without probes.

        Raises a UserError if the file is broken.
        """
        rows = self.parts.get("probes")
        return Record({}, {}) if rows is None else record_of(rows, self.where("probes"))

    def updates_with(self, probe: str) -> list[int]:
        """Return the updates at which this probe recorded values, in order."""
        return [update for update in self.probes.updates() if self.probes.rows[update].get(probe)]

    def probe_values(self, probe: str, update: int) -> dict[str, float]:
        """Return the values of a probe at an update, by address; raise a UserError if it recorded none at this update.

        probe: its name, as "gradient_norm"; update: the number of updates made before.
        """
        values = self.probes.rows.get(update, {}).get(probe)
        if not values:
            lacking = f"has no {probe} at update {update}; train with --deepnet-probe {probe}"
            raise UserError(self.where("probes"), lacking)
        return values

    @cached_property
    def diverged(self) -> bool:
        """Tell whether the training failed: its numbers stopped being finite, or it learnt only the words' frequencies.

        A run that the trainer did not stop for either is judged by the training losses in its log. It failed if the
        last ones are not finite. As a rule of thumb it also failed if after ENOUGH updates or more they are still above
        STUCK times the first logged loss: on the made language of data/language, logged every 25 updates, runs that
        fail are at 75-82% of it after 400 updates and others below 63%. A log that lacks the start of the run is
        misjudged.
        """
        if self.ended_in_nan or self.stuck:  # the trainer stopped it
            return True
        if "log" not in self.parts:  # nothing to judge by
            return False

        final_loss = self.log.final_loss()  # mean of the last few
        if not math.isfinite(final_loss):
            return True
        return self.log.updates[-1] >= ENOUGH and final_loss > STUCK * self.log.losses[0]

    @property
    def bleu(self) -> float | None:
        """Return BLEU in 0..100; None if the run diverged and was not scored.

        Raises a UserError if another run was not scored, or if a score has no "bleu".
        """
        if self.score is None and self.diverged:
            return None
        value = (self.score or {}).get("bleu")
        if not isinstance(value, (int, float)):
            raise UserError(self.where("score"), 'holds no number "bleu"; score the run again')
        return float(value)


def name_of(figure: int | str) -> str:
    """Return the name of a figure's files: "figure4" for 4, which is DeepNet's Figure 4; "depth" for "depth"."""
    return figure if isinstance(figure, str) else f"figure{figure}"


def folder_of(figure: int | str) -> str:
    """Return the name of the folder of a figure's runs: that of another experiment in SHARED, else the figure's name.

    figure: a number is that of DeepNet's figure.
    """
    return SHARED.get(figure, name_of(figure))


def runs_of(folder: Path, figure: int | str) -> list[RecordedRun]:
    """Read the figure's runs whose training is over, ordered by path; raise a UserError if there is none.

    folder: RUNS, which holds the folders of experiments and figures; figure: see folder_of.
    """
    finished = recorded_below(folder / folder_of(figure), over=True)
    if not finished:
        raise UserError(folder / folder_of(figure), "holds no finished runs; record some first")
    return finished


def holds_runs(folder: Path) -> bool:
    """Tell whether the folder RUNS/EXPERIMENT exists, for live runs, or the file RUNS/EXPERIMENT.jsonl of records."""
    return folder.is_dir() or _records_file(folder).is_file()


def recorded_below(folder: Path, over: bool = False) -> list[RecordedRun]:
    """Read the live runs in a folder RUNS/EXPERIMENT and the records in RUNS/EXPERIMENT.jsonl, ordered by path.

    over: leave out live runs whose training is not over, and whose files may be half-written.
    """
    runs = [RecordedRun(place) for place in live_runs(folder) if is_over(place) or not over]
    file = _records_file(folder)
    if file.is_file():
        runs += read_records(file)
    return sorted(runs, key=lambda run: run.path)


def read_records(path: Path) -> list[RecordedRun]:
    """Read a file of records: in each line a JSON object with a "name".

    Raises a UserError, naming the line, or the record and the part of it, for what is broken.
    """
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
    """Return the parts of a live run, key of FILES -> content of the file, without parts that have no file.

    Raises a UserError for a broken file, or if there is no run.json.
    """
    parts: dict[str, Any] = {}
    for part, name in FILES.items():
        path = folder / name
        if part != "run" and not path.exists():  # a missing run.json raises the error below
            continue
        if part == "log":
            parts[part] = read_log(path)
        elif part == "probes":
            parts[part] = read_rows(path)
        elif part in TEXTS:
            parts[part] = path.read_text(encoding="utf-8", errors="replace").strip()
        else:
            parts[part] = read_json_object(path, WAY_OUT)
    return parts


def is_over(place: Path) -> bool:
    """Tell whether the training in the folder `place` is over, well or not: it then has a file `trained`."""
    return (place / TRAINED).exists()


def live_runs(folder: Path) -> list[Path]:
    """List the folders below `folder`, RUNS/EXPERIMENT, that have a run.json, ordered by path.

    Most are FOLDER/NAME. Those of `deepnet quickstart` are FOLDER/SETTING/NAME, with a SETTING for each depth, length
    and seed.
    """
    files = [*folder.glob("*/run.json"), *folder.glob("*/*/run.json")]
    return sorted(file.parent for file in files)
