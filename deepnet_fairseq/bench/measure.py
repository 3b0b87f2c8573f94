"""The cells of one shape: candidates built, trained and made to translate side by side."""

from __future__ import annotations

from .candidate import Candidate
from .cell import NO_TIME, UNAVAILABLE, Cell
from .contender import Contender
from .generating import Translator, batches_to_translate
from .interleave import interleave, recorded
from .settings import Settings, Shape


def measure(shape: Shape, candidates: list[Candidate], settings: Settings, only: tuple[str, ...]) -> list[Cell]:
    """All cells of `only`, a subset of settings.MEASURES."""
    found = []
    if {"build", "train"} & set(only):
        found += _train(shape, candidates, settings, only)
    if "generate" in only:
        found += _generate(shape, candidates, settings)
    return found


def cells_of(measure: str, shape: Shape, candidates: list[Candidate], **setting) -> dict[str, Cell]:
    """A cell for each candidate; one that cannot run here has said why."""
    found = {}
    for candidate in candidates:
        cell = Cell(measure, candidate.name, shape.depth, shape.width, setting)
        if candidate.unavailable:
            cell.end(UNAVAILABLE, candidate.unavailable)
        found[candidate.name] = cell
    return found


def _built(shape, candidates, settings, cells: dict[str, Cell], train: bool = True) -> dict[str, Contender]:
    """Those that could be built; why the others could not is in their cells."""
    alive = {}
    for candidate in candidates:
        cell = cells[candidate.name]
        if cell.reason:
            continue
        with recorded(cell, settings.seconds):
            alive[candidate.name] = Contender(candidate, shape, settings, train)
            cell.facts["parameters"] = alive[candidate.name].parameters()
    return alive


def _train(shape, candidates, settings: Settings, only) -> list[Cell]:
    cells = cells_of("train", shape, candidates)
    alive = _built(shape, candidates, settings, cells)
    built = cells_of("build", shape, candidates)
    for name, contender in alive.items():
        built[name].add({"build": contender.build})
    batches = {name: contender.batches(settings.warmup + settings.repeats) for name, contender in alive.items()}
    for name, contender in alive.items():
        contender.watch()
        cells[name].facts["tokens"] = [batch["ntokens"] for batch in batches[name][settings.warmup :]]
    runs = {name: _step(contender, batches[name]) for name, contender in alive.items()}
    warm = cells_of("train", shape, candidates)
    interleave(warm, runs, range(settings.warmup), settings.seconds)
    interleave(cells, runs, range(settings.warmup, settings.warmup + settings.repeats), settings.seconds)
    for contender in alive.values():
        contender.close()
    return [cell for measure, row in (("build", built), ("train", cells)) if measure in only for cell in row.values()]


def _step(contender: Contender, batches: list[dict]):
    def run(repeat: int) -> dict | None:
        batch = batches[repeat % len(batches)]
        seconds = contender.step(batch)
        return seconds and seconds | {"tokens per second": batch["ntokens"] / seconds["step"]}

    return run


def _generate(shape, candidates, settings: Settings) -> list[Cell]:
    first = cells_of("generate", shape, candidates)
    alive = _built(shape, candidates, settings, first, train=False)
    translators = {name: Translator(contender) for name, contender in alive.items()}
    found = []
    for sentences in settings.sentences:
        for beam in settings.beams:
            cells = cells_of("generate", shape, candidates, sentences=sentences, beam=beam)
            for name, cell in cells.items():
                cell.facts |= first[name].facts
                if first[name].reason and not cell.reason:
                    cell.end(first[name].state or NO_TIME, first[name].reason)
            runs = {
                name: _translate(
                    translators[name], batches_to_translate(alive[name], sentences, settings.repeats), beam
                )
                for name in alive
            }
            interleave(cells_of("generate", shape, candidates), runs, range(1), settings.seconds)
            interleave(cells, runs, range(settings.repeats), settings.seconds)
            found += cells.values()
    for contender in alive.values():
        contender.close()
    return found


def _translate(translator: Translator, batches: list[dict], beam: int):
    def run(repeat: int) -> dict:
        seconds, tokens = translator.translate(batches[repeat % len(batches)], beam)
        return {"seconds": seconds, "tokens per second": tokens / seconds}

    return run
