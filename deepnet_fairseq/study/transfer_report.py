"""What `deepnet transfer` found as tables and as JSON, and the line that other commands quote of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..files import WRONG_VALUES, read_object
from ..text_table import render
from .optimum import Noise, Optimum
from .transfer import Law, Transfer, analyse
from .trials import Trial, counted, loss_lost, shape_of

FORMAT = "deepnet_fairseq transfer 1"
MEND = "write it with `deepnet transfer --json FILE`"


def text(transfer: Transfer, targets: Iterable[int]) -> str:
    """Best rates by depth, exponent, does it stay, what is recommended or why nothing is."""
    noise = transfer.noise
    source = f"from {noise.freedom} degrees of freedom" if noise.freedom else "stated"
    costless = "costs no more than seeds differ"
    rows = [["layers", "rates tried", "trainings", "best rate", costless, "error, octaves", "loss"]]
    for one in transfer.optima:
        tried = f"{one.lowest:.2g} to {one.highest:.2g}"
        found = ["-"] * 4
        if one.placed:
            same = "-" if math.isnan(one.low) else f"{one.low:.1e} to {one.high:.1e}"
            found = [f"{one.rate:.2e}", same, f"{one.error:.2f}", f"{one.loss:.3f}"]
        rows.append([str(one.layers), tried, str(one.trainings), *found])
    lines = [
        f"{transfer.method}, {_setting(transfer)}; a loss differs by {noise.bits:.3f} bits over seeds ({source})",
        "",
        render(rows),
        *(f"{counted(one.layers)}: {one.why or one.note}" for one in transfer.optima if one.why or one.note),
        "",
    ]
    if transfer.law:
        low, high = transfer.law.exponents()
        lines.append(f"rate ~ depth^{transfer.law.exponent:.2f} ({low:.2f} to {high:.2f})")
    lines.append(f"does it stay? {transfer.stays}: {transfer.why}")
    for layers in targets:
        why = transfer.refusal(layers)
        if why or transfer.law is None:
            lines.append(f"at {counted(layers)}: no recommendation: {why}")
        else:
            advice = transfer.law.at(layers)
            lines.append(f"at {counted(layers)}: {advice.rate:.2e} ({advice.low:.1e} to {advice.high:.1e})")
    return "\n".join(lines)


def _setting(transfer: Transfer) -> str:
    """Width and length; the stacks' layers in proportion where they are not equal."""
    encoder, decoder = transfer.shape
    shape = f"layers {encoder}:{decoder}, " if encoder and decoder and encoder != decoder else ""
    return f"{shape}width {transfer.width}, {transfer.updates} updates"


def held_out(groups: Sequence[Sequence[Trial]], up_to: int, targets: Iterable[int], stated: float) -> list[list[str]]:
    """A header, and a row a method and depth: the rate predicted from depths to `up_to` beside what was found there.

    Twice: by the law, and as if the rate stayed at that of the deepest. "~": of what was found beside a rate that
    failed. lost: bits at the tried rate nearest to the prediction, against the best, "all" if that came to nothing; "-"
    where none lies within half an octave, or one alone was tried.
    """
    rows = [["method", "layers", "predicted", "interval", "found", "error", "factor", "lost", "unchanged", "lost"]]
    targets = list(targets)
    for group in groups:
        known = [trial for trial in group if trial.layers <= up_to]
        whole = analyse(group, stated)
        if not known:
            continue
        part = analyse(known, stated)
        for layers in targets:
            there = [trial for trial in group if trial.layers == layers]
            found = next((one for one in whole.optima if one.layers == layers), None)
            rows.append([part.method, str(layers), *_predicted(part, layers, found, there)])
    return rows


def _predicted(part: Transfer, layers: int, found: Optimum | None, there: Sequence[Trial]) -> list[str]:
    why = part.refusal(layers)
    placed = [one for one in part.optima if one.placed]
    cells = ["refused", "-"]
    seen = ["-", "-"] if found is None else ["not placed", "-"] if not found.placed else []
    seen = seen or [f"{'~' * bool(found.note)}{found.rate:.2e}", f"{found.error:.2f}"]
    factor, lost = "-", "-"
    if not why and part.law:
        advice = part.law.at(layers)
        cells = [f"{advice.rate:.2e}", f"{advice.low:.1e} to {advice.high:.1e}"]
        factor = f"{found.rate / advice.rate:.2f}" if found and found.placed else "-"
        lost = _bits(loss_lost(there, advice.rate) if there else None)
    unchanged = ["-", "-"]
    if placed:
        unchanged = [f"{placed[-1].rate:.2e}", _bits(loss_lost(there, placed[-1].rate) if there else None)]
    return [*cells, *seen, factor, lost, *unchanged]


def _bits(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}" if math.isfinite(value) else "all"


def as_dict(transfers: Iterable[Transfer], targets: Iterable[int], moved: dict[int, dict[str, float]]) -> dict:
    """For JSON, which quote() reads. moved: depth -> address -> change of that output, of a coordinate check."""
    targets, found = list(targets), []
    for transfer in transfers:
        said: dict[str, Any] = asdict(transfer) | {"advice": []}
        said["optima"] = [_finite(vars(one)) for one in transfer.optima]
        for layers in targets:
            why = transfer.refusal(layers)
            told = {"layers": layers, "refused": why} if why or transfer.law is None else vars(transfer.law.at(layers))
            said["advice"].append(told)
        found.append(said)
    return {"format": FORMAT, "transfers": found, "coordinates": {n: _finite(values) for n, values in moved.items()}}


def _finite(values: dict) -> dict:
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in values.items()
    }


def read_transfers(path: Path) -> list[Transfer]:
    """Of a file of as_dict; UserError, naming it, for another."""
    said = read_object(path, MEND)
    if said.get("format") != FORMAT:
        raise UserError(f"{path}: is no result of `deepnet transfer`; {MEND}")
    try:
        return [_transfer(one) for one in said["transfers"]]
    except WRONG_VALUES as error:
        raise UserError(f"{path}: is broken ({error!r}); {MEND}") from error


def _transfer(said: dict) -> Transfer:
    optima = [
        Optimum(**{key: math.nan if value is None else value for key, value in one.items()}) for one in said["optima"]
    ]
    law = None if said["law"] is None else Law(**said["law"])
    own = {key: said[key] for key in ("method", "width", "updates", "stays", "why")}
    encoder, decoder = said["shape"]
    found = Transfer(noise=Noise(**said["noise"]), optima=tuple(optima), law=law, shape=(encoder, decoder), **own)
    for part in (found, found.noise, *found.optima, *([law] if law else [])):
        _check_types(part)
    return found


def _check_types(part: Any) -> None:
    """TypeError where a number or a text of a dataclass is none, which Python lets pass."""
    kinds: dict[str, Any] = {"int": int, "float": (int, float), "str": str}
    for field in fields(part):
        value = getattr(part, field.name)
        if not isinstance(value, kinds.get(str(field.type), object)) or isinstance(value, bool):
            raise TypeError(f"{field.name} {value!r}")
    if isinstance(part, Transfer) and not all(type(layers) is int for layers in part.shape):
        raise TypeError(f"shape {part.shape!r}")
    if isinstance(part, Optimum) and part.layers < 1:
        raise ValueError(f"layers {part.layers!r}")


def quote(transfers: Iterable[Transfer], method: str, width: int, stacks: tuple[int, int]) -> str:
    """One line: a model's best rate by the longest trainings, where it lies within what was measured; else why not.

    transfers: of read_transfers; stacks: layers of encoder and decoder, 0 for one that is not there.
    """
    layers = max(stacks)
    said, fitting = "best learning rate", []
    for one in transfers:
        depths = [optimum.layers for optimum in one.optima]
        within = depths and min(depths) <= layers <= max(depths)
        if within and (one.method, one.width, one.shape) == (method, width, shape_of(*stacks)):
            fitting.append(one)
    if not fitting:
        return f"{said}: {'-'.join(str(n) for n in stacks if n)} layers of {method}, width {width}, were not measured"
    longest = max(fitting, key=lambda one: one.updates)
    depths = [optimum.layers for optimum in longest.optima if optimum.placed]
    why = longest.refusal(layers)
    if why or longest.law is None:
        return f"{said}: no recommendation: {why}"
    if not min(depths) <= layers <= max(depths):
        return f"{said}: no recommendation: known from {min(depths)} to {max(depths)} layers alone"
    advice = longest.law.at(layers)
    where = "at" if layers in depths else "between"
    where += f" {', '.join(map(str, depths))} layers of {_setting(longest)}"
    return f"{said} {advice.rate:.2e} ({advice.low:.1e} to {advice.high:.1e}), measured {where}"
