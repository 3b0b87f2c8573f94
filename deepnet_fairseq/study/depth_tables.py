"""What the depth study's runs have found, as tables of texts, header first, for its page and for the terminal.

A run is of a cell (depth_study.py); a method's best at a depth is the rate of the lowest held-out loss of the first
seed, among the rates with most seeds, the loss the mean over them. What a training came to nothing by is `ended`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from . import paper
from .depth_study import FIRST, HOUR, Cell, Plan, found_by, leaders, outcome, spent_hours
from .rank_correlation import agreement
from .runs import RecordedRun
from .style import style_of
from .tables.definitions import TABLES

CORE = ("deepnorm", "post_ln", "admin", "keel", "pre_ln", "complete_p")  # that have a full grid of rates
SEEDS = 3  # of each of two methods, that the one may be called better
SAME = {("complete_p", 6): "pre_ln"}  # at its base depth a method is another, and is trained once
FAILED = ("diverged", "stuck", "no number")
WORSE = 100.0  # of cells to come: a loss above any found
NEAREST = {6: 10, 18: 20}  # our depth -> that of the paper's Figure 6 which has no such one


def ended(run: RecordedRun) -> str:
    """One of FAILED, or "trained"."""
    if run.ended_in_nan:
        return "diverged"
    if math.isfinite(outcome(run)):
        return "trained"
    return "stuck" if run.stuck or math.isfinite(run.validation.final) else "no number"


def rate_of(run: RecordedRun) -> float:
    """The peak learning rate."""
    return float(run.facts["lr"])


@dataclass(frozen=True)
class Best:
    """What a method found at a depth.

    losses: held-out, bits a token, of all seeds of the best rate that learnt; empty where no rate did. rate: NaN then.
    failed: how many seeds of that rate came to nothing. edge: "<= ", ">= " where it is the lowest or highest that was
    tried, "only " where no other was. bleu: of the best run. ended: where nothing learnt, how, at how many rates.
    """

    losses: tuple[float, ...] = ()
    rate: float = math.nan
    failed: int = 0
    edge: str = ""
    bleu: float | None = None
    ended: str = ""

    @property
    def loss(self) -> float:
        """Mean over seeds; infinite where nothing learnt."""
        return fmean(self.losses) if self.losses else math.inf

    @property
    def said(self) -> str:
        """As "7.241 (7.210 to 7.265, 3 seeds)"."""
        if not self.losses:
            return self.ended
        count = len(self.losses) + self.failed
        spread = f"{min(self.losses):.3f} to {max(self.losses):.3f}, {count} seeds"
        text = f"{self.loss:.3f}" + (f" ({spread})" if count > 1 else "")
        return text + (f", {self.failed} failed" if self.failed else "")

    @property
    def said_rate(self) -> str:
        """As "<= 0.0005"."""
        return f"{self.edge}{self.rate:g}" if self.losses else "-"

    @property
    def said_bleu(self) -> str:
        """As "12.3"."""
        return "-" if self.bleu is None else f"{self.bleu:.1f}"


class Place(NamedTuple):
    """Cells that are compared: N of N-N models, and how many updates they have."""

    layers: int
    updates: int


Bests = dict[tuple[str, Place], Best]  # method, where -> what it found there


def place_of(run: RecordedRun) -> Place:
    """Of one run."""
    return Place(run.layers, run.facts["updates"])


def grids(runs: list[RecordedRun]) -> list[RecordedRun]:
    """Those of the number of updates that most have: the lengths of others are no grids of rates."""
    lengths = [run.facts["updates"] for run in runs]
    usual = max(lengths, key=lengths.count, default=0)
    return [run for run in runs if run.facts["updates"] == usual]


def followed(runs: list[RecordedRun]) -> list[str]:
    """CORE, then the other methods that grids have at two depths or more."""
    depths = Counter(method for method, _ in {(run.method, run.layers) for run in grids(runs)})
    return [*CORE, *sorted(method for method, count in depths.items() if count > 1 and method not in CORE)]


def long_enough(runs: list[RecordedRun]) -> list[RecordedRun]:
    """All but those shorter than the grids: at their end a loss above guessing is no failure."""
    least = min((run.facts["updates"] for run in grids(runs)), default=0)
    return [run for run in runs if run.facts["updates"] >= least]


def bests(runs: Iterable[RecordedRun]) -> Bests:
    """By method and place; with what is the SAME as another."""
    groups: dict[tuple[str, Place], list[RecordedRun]] = {}
    for run in sorted(runs, key=lambda run: run.name):
        groups.setdefault((run.method, place_of(run)), []).append(run)
    for method, place in list(groups):
        for (other, layers), twin in SAME.items():
            if method == twin and place.layers == layers and any(name == other for name, _ in groups):
                groups.setdefault((other, place), groups[method, place])
    return {where: _best(found) for where, found in sorted(groups.items())}


def _best(runs: list[RecordedRun]) -> Best:
    seeds = Counter(map(rate_of, runs))
    rates, most = sorted(seeds), max(seeds.values())  # one seed of a further rate, as of half a step, only places it
    firsts = [run for run in runs if run.seed == FIRST]
    first = leaders(run for run in firsts if seeds[rate_of(run)] == most) or leaders(firsts)
    if not first:
        ways = sorted({ended(run) for run in runs} & {*FAILED})
        return Best(ended=f"{' or '.join(ways) or 'no number'} ({len(rates)} rate{'s' * (len(rates) > 1)})")
    rate = rate_of(first[0])
    edge = "only " if len(rates) == 1 else "<= " if rate == rates[0] else ">= " if rate == rates[-1] else ""
    all_losses = [outcome(run) for run in runs if rate_of(run) == rate]
    losses = tuple(loss for loss in all_losses if math.isfinite(loss))
    scores = [run.bleu for run in leaders(runs) if run.score is not None]
    return Best(losses, rate, len(all_losses) - len(losses), edge, scores[0] if scores else None)


def _by_loss(found: Bests) -> list[str]:
    """The methods, lowest loss first where most were tried, then those that were not tried there."""
    counts = [place for _, place in found]
    where = max(counts, key=lambda place: (counts.count(place), -place.layers))

    def key(method: str) -> tuple:
        best = found.get((method, where))
        return best is None, best.loss if best else 0.0, method

    return sorted({method for method, _ in found}, key=key)


def _table(runs: list[RecordedRun], text: Callable[[Best], str]) -> list[list[str]]:
    """Methods x depths of text(best), "-" where there is no run."""
    found = bests(grids(runs))
    where = sorted({place for _, place in found})
    rows = [["method", *(f"{place.layers}L-{place.layers}L" for place in where)]]
    for method in _by_loss(found):
        cells = [text(found[method, place]) if (method, place) in found else "-" for place in where]
        rows.append([style_of(method).label, *cells])
    return [row for row in rows if {*row[1:]} != {"-"}]


def rows_of_losses(runs: list[RecordedRun]) -> list[list[str]]:
    """Held-out loss at each method's best rate, mean and range over seeds."""
    return _table(runs, lambda best: best.said)


def rows_of_summary(runs: list[RecordedRun]) -> list[list[str]]:
    """For the README: mean loss at the best rate, and that rate, by depth; then longer trainings with BLEU.

    A depth at which no method has learnt anything is left out.
    """
    methods = followed(runs)
    shown = [run for run in runs if run.method in methods]
    usual, found = bests(grids(shown)), bests(shown)
    short = sorted({place for (_, place), best in usual.items() if best.losses})
    long = sorted({place for (_, place), best in found.items() if best.bleu and place not in short})

    def text(method: str, place: Place) -> str:
        best = found.get((method, place))
        if best is None:
            return "-"
        if twin := SAME.get((method, place.layers)):
            return f"as {style_of(twin).label}"
        if place in short:
            return f"{best.loss:.2f} ({best.edge}{best.rate:.2g})" if best.losses else best.ended
        return f"{best.loss:.2f}; {best.said_bleu}"

    named = [f"{layers}L-{layers}L" + f", {updates:,}; BLEU" * ((layers, updates) in long)
             for layers, updates in (*short, *long)]  # fmt: skip
    return [["method", *named], *([style_of(method).label, *(text(method, place) for place in (*short, *long))]
                                  for method in _by_loss(usual))]  # fmt: skip


def rows_of_rates(runs: list[RecordedRun]) -> list[list[str]]:
    """The best rate."""
    return _table(runs, lambda best: best.said_rate)


def rows_of_other_lengths(runs: list[RecordedRun]) -> list[list[str]]:
    """Trainings longer than those of the grids: a row each method and place, lowest loss first."""
    usual = bests(grids(runs))
    lengths = {place.updates for _, place in usual}
    found = bests(run for run in long_enough(runs) if run.facts["updates"] not in lengths)
    rows = [["depth", "updates", "method", "loss", "BLEU", "its rate", "loss, short", "GB", "core-hours"]]
    for (method, place), best in sorted(found.items(), key=lambda item: (item[0][1], item[1].loss)):
        if (method, place.layers) in SAME:
            continue
        own = [run for run in runs if run.method == method and place_of(run) == place]
        short = [one.said for (name, there), one in usual.items() if (name, there.layers) == (method, place.layers)]
        spent = [run.parts.get("spent", {}).get("training", {}) for run in own]
        memory = max(one.get("peak_memory_bytes", 0) for one in spent) / 1e9
        cells = [best.said, best.said_bleu, best.said_rate, *(short or ["-"])]
        cost = [f"{memory:.1f}" if memory else "-", f"{spent_hours(own):.2f}"]
        rows.append([f"{place.layers}L-{place.layers}L", f"{place.updates:,}", style_of(method).label, *cells, *cost])
    return rows


def rows_of_courses(runs: list[RecordedRun]) -> list[list[str]]:
    """Of the deepest models: held-out loss after each quarter of the training, memory, seconds an update.

    Of the processor, but of the clock where parts were killed uncounted: fewer attempts added up than the log has.
    """
    deepest = max((run.layers for run in runs), default=0)
    quarters = ("a quarter", "half", "three quarters", "the end")
    rows = [["depth", "method", "rate", "updates", *quarters, "GB", "seconds an update"]]
    for run in sorted(runs, key=lambda run: (run.facts["updates"], run.method, rate_of(run))):
        if run.layers == deepest:
            spent = run.parts.get("spent", {}).get("training", {})
            losses = [f"{loss:.2f}" for loss in run.validation.losses][-4:]
            seconds = spent.get("processor_seconds")
            if spent.get("attempts", 1) < len(run.parts.get("log", {}).get("attempts", [])):
                seconds = run.hours * HOUR
            memory = f"{spent['peak_memory_bytes'] / 1e9:.1f}" if "peak_memory_bytes" in spent else "-"
            cost = [memory, f"{seconds / run.facts['updates']:.1f}" if seconds else "-"]
            what = [style_of(run.method).label, f"{rate_of(run):g}", f"{run.facts['updates']:,}"]
            rows.append([f"{deepest}L-{deepest}L", *what, *["-"] * (4 - len(losses)), *losses, *cost])
    return rows


def rows_by_rate(runs: list[RecordedRun]) -> list[list[str]]:
    """For the terminal: a row a method, at each place the loss at its best rate, that rate, BLEU."""
    found = bests(runs)
    where = sorted({place for _, place in found})
    named = [f"{layers}L-{layers}L, {updates:,} updates:" for layers, updates in where]
    rows = [["method", *(f"{name} {what}" for name in named for what in ("loss", "rate", "BLEU"))]]
    for method in sorted({method for method, _ in found}):
        cells = [found.get((method, place)) for place in where]
        texts = [[best.said, best.said_rate, best.said_bleu] if best else ["-"] * 3 for best in cells]
        rows.append([method, *(text for three in texts for text in three)])
    return rows


def rows_of_winners(runs: list[RecordedRun]) -> list[list[str]]:
    """At each depth, of CORE: the lowest loss, who ties with it as ranges of seeds overlap, who is behind."""
    every = bests(run for run in grids(runs) if run.method in CORE)
    found = {(method, where): best for (method, where), best in every.items() if (method, where.layers) not in SAME}
    rows = [["depth", "lowest", "loss", "a tie by their seeds", "behind by their seeds", "too few seeds to say"]]
    for place in sorted({place for _, place in found}):
        here = {method: best for (method, where), best in found.items() if where == place and best.losses}
        if not here:
            continue
        first = min(here, key=lambda method: here[method].loss)
        ties, behind, alone = [], [], []
        for method in sorted(here.keys() - {first}, key=lambda method: here[method].loss):
            few = min(len(here[method].losses), len(here[first].losses)) < SEEDS
            tied = min(here[method].losses) <= max(here[first].losses)
            (alone if few else ties if tied else behind).append(style_of(method).label)
        lists = [", ".join(names) or "-" for names in (ties, behind, alone)]
        rows.append([f"{place.layers}L-{place.layers}L", style_of(first).label, f"{here[first].loss:.3f}", *lists])
    return rows


def rows_of_agreement(runs: list[RecordedRun]) -> list[list[str]]:
    """Rank correlation of our losses with BLEU of DeepNet's Figure 6 and Table 1, depth by depth, length by length."""
    found = bests(runs)
    usual = {run.facts["updates"] for run in grids(runs)}
    header = ["ours", "the paper's", "methods", "of them nothing learnt", "Spearman", "p", "Kendall", "p of Kendall"]
    rows = [[*header, "least p possible"]]
    for place in sorted({place for _, place in found}):
        # a training that came to nothing ranks last, on a level with others of the kind
        ours = {method: -best.loss for (method, where), best in found.items() if where == place}
        for name, theirs in _published(place.layers):
            if len(ours.keys() & theirs.keys()) < 3:
                continue
            told = agreement(ours, theirs)
            numbers = (told.spearman, told.spearman_p, told.kendall, told.kendall_p, told.least_p)
            failed = sum(math.isinf(ours[method]) for method in told.methods)
            counts = [str(len(told.methods)), str(failed)]
            length = "" if place.updates in usual else f", {place.updates:,} updates"
            rows.append([f"{place.layers}L-{place.layers}L{length}", name, *counts, *map(_two_digits, numbers)])
    return rows


def _two_digits(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2g}" if 1e-9 < abs(value) < 0.1 else f"{value:.2f}"


def _published(layers: int) -> list[tuple[str, dict[str, float]]]:
    """What it is, and each method's BLEU; lowest of all for one that diverged."""
    found = []
    if (depth := NEAREST.get(layers, layers)) in paper.FIGURE6_LAYERS:
        index = paper.FIGURE6_LAYERS.index(depth)
        points = {method: float(values[index]) for method, values in paper.FIGURE6.items()}
        found.append((f"Figure 6, {depth}L-{depth}L", points))
    table: dict[str, float] = {}
    for row in TABLES["1"].rows:
        value = row.published.get("bleu")
        if value is not None and row.facts.get("decoder_layers") == layers:
            table[str(row.facts["method"])] = -math.inf if isinstance(value, str) else value
    return [*found, *([(f"Table 1, {layers}L-{layers}L", table)] if table else [])]


def rows_of_stages(plan: Plan, runs: list[RecordedRun]) -> list[list[str]]:
    """By stage: cells that are over and their core-hours, cells left out and what they were predicted to take."""
    named = [
        cell for method in sorted({m for s in plan.stages for m in s.methods}) for cell in _named(plan, method, runs)
    ]
    stages = {cell.name: cell.stage for cell in named}
    for run in runs:
        stages.setdefault(run.name, _stage_of(plan, run))
    over = {run.name for run in runs}
    rows = [["stage", "what", "cells", "core-hours", "left out", "their core-hours, predicted"]]
    for number, title in [*((stage.number, stage.title) for stage in plan.stages), (0, "of no stage")]:
        done = [run for run in runs if stages[run.name] == number]
        left = [cell for cell in named if cell.stage == number and cell.name not in over]
        if number or done:
            hours = sum(map(plan.hours, left))
            rows.append([str(number or "-"), title, str(len(done)), f"{spent_hours(done):.2f}", str(len(left)),
                         f"{hours:.1f}" if left else "-"])  # fmt: skip
    left = [cell for cell in named if cell.name not in over]
    hours = sum(map(plan.hours, left))
    return [*rows, ["", "all", str(len(runs)), f"{spent_hours(runs):.2f}", str(len(left)), f"{hours:.1f}"]]


def _named(plan: Plan, method: str, runs: list[RecordedRun]) -> list[Cell]:
    """The method's cells, to the end of the plan, if no cell to come finds a better rate than is known.

    What a method is trained at depends on its own runs alone.
    """
    found = found_by(plan.only([method]), [run for run in runs if run.method == method])
    cells = {cell.name: cell for cell in found.cells()}
    while cell := found.next():
        found.losses[cell.name] = WORSE + len(cells)  # the first of a depth is its best
        cells.setdefault(cell.name, cell)
    return list(cells.values())


def _stage_of(plan: Plan, run: RecordedRun) -> int:
    """Of one that the plan no longer names: a neighbour, or the best before a better was found; 0 if of no stage."""
    fits = [
        stage
        for stage in plan.stages
        if run.method in stage.methods and place_of(run) in [(n, stage.updates) for n in stage.layers]
    ]
    return next((stage.number for stage in sorted(fits, key=lambda stage: not stage.refine)), 0)


def rows_of_costs(runs: list[RecordedRun]) -> list[list[str]]:
    """Core-hours of each method by depth, with the number of cells."""
    depths, methods = sorted({run.layers for run in runs}), sorted({run.method for run in runs})
    rows = [["method", *(f"{layers}L-{layers}L" for layers in depths), "all"]]
    for method in [*methods, None]:
        cells = []
        for layers in [*depths, None]:
            here = [run for run in runs if method in (None, run.method) and layers in (None, run.layers)]
            cells.append(f"{spent_hours(here):.2f} ({len(here)})" if here else "-")
        rows.append([style_of(method).label if method else "all", *cells])
    return rows
