"""A training run on disk: what was set (run.json), its log, its probes and its score."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ..core.methods import METHODS
from ..errors import UserError
from ..files import read_object
from ..plugin.probe_record import FILE, Record, read_record
from .logs import RunLog, Validation, read_log, read_validation

STACKS = ("encoder_layers", "decoder_layers")
ENOUGH = 400  # updates; before, a healthy run may still be where it started
STUCK = 0.68  # of the loss of the first logged interval


@dataclass(frozen=True, eq=False)
class RecordedRun:
    """One folder: run.json, train.log and, as the figure needs them, probes.jsonl and score.json.

    facts: run.json, with method, a name of METHODS, and encoder_layers, decoder_layers or both, as the model has
    stacks, at least; a stack that is not there has 0 layers. seed: None where run.json has none.
    """

    folder: Path
    facts: dict
    method: str
    encoder_layers: int
    decoder_layers: int
    seed: int | None

    @classmethod
    def read(cls, folder: Path) -> RecordedRun:
        """UserError if run.json is missing, broken, or lacks what every run has."""
        path = folder / "run.json"
        facts = _json(path)
        if not isinstance(facts.get("method"), str) or facts["method"] not in METHODS:
            raise UserError(f"{path}: method {facts.get('method')!r} is unknown; see `deepnet methods`")
        for key in [key for key in STACKS if key in facts] or STACKS:
            if type(facts.get(key)) is not int or facts[key] < 1:
                raise UserError(f"{path}: {key} {facts.get(key)!r}: must be a number of layers, 1 or more")
        if not isinstance(facts.get("seed"), int | None):
            raise UserError(f"{path}: seed {facts['seed']!r}: must be a number")
        encoder, decoder = (facts.get(key, 0) for key in STACKS)
        return cls(folder, facts, facts["method"], encoder, decoder, facts.get("seed"))

    @property
    def depth(self) -> str:
        """As "18L-18L", of a language model "12L"."""
        return "-".join(f"{self.facts[key]}L" for key in STACKS if key in self.facts)

    @property
    def total_layers(self) -> int:
        """Of encoder and decoder together."""
        return self.encoder_layers + self.decoder_layers

    @property
    def layers(self) -> int:
        """N of an N-N model; UserError if it is none."""
        if self.encoder_layers != self.decoder_layers:
            raise UserError(f"{self.folder / 'run.json'}: {self.depth}; this figure compares N-N models, move it away")
        return self.decoder_layers

    @property
    def finished(self) -> bool:
        """Is its training over, well or not?"""
        return (self.folder / "trained").exists()

    @property
    def ended_in_nan(self) -> bool:
        """Did its script record that the numbers ended? `diverged` below also judges by the loss."""
        return (self.folder / "diverged").exists()

    @cached_property
    def diverged_at(self) -> int | None:
        """The update, of the file "diverged"; None if it names none."""
        text = (self.folder / "diverged").read_text(encoding="utf-8", errors="replace") if self.ended_in_nan else ""
        found = re.search(r"update (\d+)", text)
        return int(found.group(1)) if found else None

    @cached_property
    def environment(self) -> dict:
        """environment.json: commit, versions, hardware, gpus; empty if that was not recorded."""
        path = self.folder / "environment.json"
        return _json(path) if path.exists() else {}

    @cached_property
    def score(self) -> dict | None:
        """The content of score.json; None where there is none."""
        path = self.folder / "score.json"
        return _json(path) if path.exists() else None

    def choice(self, key: str, choices) -> str:
        """run.json's value of `key`; UserError unless it is one of `choices`."""
        value = self.facts.get(key)
        if not isinstance(value, str) or value not in choices:
            raise UserError(f"{self.folder / 'run.json'}: {key} {value!r}: must be one of {', '.join(choices)}")
        return value

    @cached_property
    def log(self) -> RunLog:
        """Of train.log; UserError if there is none, or nothing in it."""
        return read_log(self.folder / "train.log")

    @cached_property
    def validation(self) -> Validation:
        """The validation losses; without points if the run diverged before its first validation.

        UserError if any other run has none.
        """
        try:
            return read_validation(self.folder / "train.log")
        except UserError:
            if self.diverged:
                return Validation([], [], [])
            raise

    @cached_property
    def record(self) -> Record:
        """What the probes found, of probes.jsonl; UserError if it is missing or broken."""
        return read_record(self.folder / FILE)

    def probed(self, probe: str) -> list[int]:
        """The updates at which that probe found something, in their order."""
        return [update for update in self.record.updates() if self.record.rows[update].get(probe)]

    def probe(self, update: int, probe: str) -> dict[str, float]:
        """address -> value; UserError if that probe was not recorded at that update."""
        values = self.record.rows.get(update, {}).get(probe)
        if not values:
            raise UserError(f"{self.folder / FILE}: has no {probe} at update {update}; record it again with that probe")
        return values

    @cached_property
    def diverged(self) -> bool:
        """Did the numbers end, or did the model learn no more than how often each word occurs?

        The trainer says the first. The second is a rule of thumb: after 400 updates or more, the training loss is still
        above 68% of that of the first logged interval. On the embedded corpus, logged every 25 updates, runs that fail
        are at 75-82% after 400 updates and others below 63%; a log without the start of the run is misjudged.
        """
        if self.ended_in_nan:
            return True
        if not (self.folder / "train.log").is_file():
            return False
        log, final = self.log, self.log.final_loss()
        stuck = log.updates[-1] >= ENOUGH and final > STUCK * log.losses[0]
        return log.diverged or stuck or not math.isfinite(final)

    @cached_property
    def bleu(self) -> float | None:
        """BLEU in 0..100; None if the run diverged before there was anything to score.

        UserError if any other run has none.
        """
        path = self.folder / "score.json"
        if self.score is None and self.diverged:
            return None
        value = _json(path).get("bleu")
        if not isinstance(value, (int, float)):
            raise UserError(f'{path}: holds no number "bleu"; score the run again')
        return float(value)


def name_of(figure: int | str) -> str:
    """Name of a figure's files: "figure4" of DeepNet's Figure 4, the figure's own of another paper's."""
    return figure if isinstance(figure, str) else f"figure{figure}"


def folder_of(figure: int | str) -> str:
    """Name of the folder of a figure's runs: its experiment's where others share them, else the figure's."""
    shared = {6: "iwslt14", 8: "opus100", "normformer3": "normformer_clm", "normformer4": "normformer_clm"}
    shared["depth"] = "quickstart"
    return shared.get(figure, name_of(figure))


def runs_of(folder: Path, figure: int | str) -> list[RecordedRun]:
    """The figure's finished runs below folder, by name; UserError if there is none."""
    finished = [path for path in _folders(folder / folder_of(figure)) if (path / "trained").exists()]
    if not finished:
        raise UserError(f"{folder / folder_of(figure)}: holds no finished runs; record some first")
    return [RecordedRun.read(path) for path in finished]


def unfinished(folder: Path, figure: int | str) -> list[str]:
    """Names of the figure's runs below folder that were begun and are not over."""
    return [path.name for path in _folders(folder / folder_of(figure)) if not (path / "trained").exists()]


def recorded_below(folder: Path) -> list[RecordedRun]:
    """The runs in `folder`, finished or not, by name."""
    return [RecordedRun.read(path) for path in _folders(folder)]


def _folders(folder: Path) -> list[Path]:
    """Folders with a run.json; the scripts add an empty file `trained` when the run is over.

    The quickstart's lie one deeper, in a folder of their depth, length and seed.
    """
    return sorted(path.parent for pattern in ("*/run.json", "*/*/run.json") for path in folder.glob(pattern))


def _json(path: Path) -> dict:
    return read_object(path, "record the run again")
