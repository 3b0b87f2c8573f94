"""What is told of a divergence: divergence.json and divergence.txt beside the checkpoints, some lines for the log."""

from __future__ import annotations

import json
import logging
import math
import statistics
from collections.abc import Iterator
from pathlib import Path

from ...errors import UserError
from ...files import whole
from ..distributed import agreement
from ..probe_record import FILE as PROBES_FILE
from . import GRADIENTS, LOSS, Stop
from .advice import advice
from .search import BACKWARD, FORWARD, NORM, broken_parameters, drop_gradients, repeat

JSON, TEXT = "divergence.json", "divergence.txt"
FORMAT = 1
NAMED = 20  # broken parameters by name
PROBED = 3  # rows of probes
PLACE = {
    FORWARD: "{where} ({module}) gives {value} in {share:.2%} of its numbers",
    BACKWARD: "in the backward pass; the gradient at {where} ({module}) has {value} in {share:.2%} of its numbers",
    NORM: "nowhere: every gradient is finite, their norm is not; the largest is that of {module}",
}
TOGETHER = ": the batch alone gives finite numbers, so they came together in the sum over ranks"
logger = logging.getLogger(__name__)


def event(trainer, stop: Stop, epoch: int, *, search: bool = True) -> dict:
    """All that is known of a divergence, plain data; on every rank at the same time, the same on each.

    Losses are in bits per token, lengths in tokens. search: repeat the update, which tells where it began.
    """
    watch, cfg = trainer.watch, trainer.cfg
    everyone = agreement.gathered(_on_this_rank(trainer, stop, search))
    first = next((i for i, one in enumerate(everyone) if one["first"]), 0)
    broken = sorted({name for one in everyone for name in one["broken"]})
    bad_loss = not all(math.isfinite(one["loss"]) for one in everyone if one["loss"] is not None)
    found = {
        "update": stop.update,
        "kind": LOSS if bad_loss and stop.kind == GRADIENTS else stop.kind,
        "reason": stop.reason,
        "epoch": epoch,
        "lr": trainer.get_lr(),
        "first": everyone[first]["first"],
        "rank": first,
        "search": everyone[first]["failed"],
        "loss": everyone[first]["loss"],
        "parameters": {"count": len(broken), "first": broken[:NAMED]},
        "batch": everyone[first]["batch"],
        "skipped": {"in_a_row": watch.skipped, "in_all": watch.skipped_in_all, "from_scale": watch.scale_before},
        "updates": watch.rows(),
        "probes": _probes(cfg.model),
        **_settings(trainer),
        "rollbacks": {"limit": trainer.rollbacks.limit, "taken": len(trainer.rollbacks.taken)},
        "rollback": None,
    }
    return found | {"advice": advice(found, trainer)}


def _on_this_rank(trainer, stop: Stop, search: bool) -> dict:
    found = {"broken": broken_parameters(trainer.get_model()), "first": None, "loss": None, "failed": None}
    try:
        found |= repeat(trainer, stop.samples, stop.update - 1) if search else {"failed": "the search did not end"}
    except Exception as error:  # whatever it is, the training has diverged, and that is to be told
        found["failed"] = f"{type(error).__name__}: {error}".splitlines()[0]
        drop_gradients(trainer)
    target = getattr(trainer.task, "target_dictionary", None)
    return found | {"batch": describe(stop.samples, -1 if target is None else target.pad())}


def describe(samples: list, padding: int) -> dict:
    """Of all batches of this rank's update: ids (positions in the binarised text, from 0) and lengths in tokens.

    padding: index of the target dictionary's padding. Lengths are missing for tasks that translate nothing.
    """
    ids: list[int] = []
    sources: list[int] = []
    targets: list[int] = []
    for sample in filter(None, samples):
        ids += sample["id"].tolist() if "id" in sample else []
        lengths, target = (sample.get("net_input") or {}).get("src_lengths"), sample.get("target")
        sources += [] if lengths is None else lengths.tolist()
        targets += target.ne(padding).sum(1).tolist() if target is not None and target.dim() == 2 else []
    return {"sentences": len(ids), "ids": ids, "source_lengths": sources, "target_lengths": targets}


def _settings(trainer) -> dict:
    cfg, model, schedule = trainer.cfg, trainer.cfg.model, trainer.cfg.lr_scheduler
    names = ("method", "encoder_layers", "decoder_layers", "encoder_embed_dim", "decoder_embed_dim")
    of_model = {name: getattr(model, name) for name in names if hasattr(model, name)}
    of_model["parameters"] = sum(p.numel() for p in trainer.get_model().parameters())
    setting = {
        "lr": [float(rate) for rate in cfg.optimization.lr],
        "lr_scheduler": getattr(schedule, "_name", None),
        "warmup_updates": int(getattr(schedule, "warmup_updates", 0) or 0),
        "clip_norm": cfg.optimization.clip_norm,
        "precision": next((name for name in ("fp16", "bf16", "amp") if getattr(cfg.common, name, False)), "fp32"),
        "update_freq": list(cfg.optimization.update_freq),
        "max_tokens": cfg.dataset.max_tokens,
        "seed": cfg.common.seed,
    }
    return {"model": of_model, "setting": setting}


def _probes(cfg) -> list[dict]:
    """The last rows of a run with --deepnet-probe, as its file has them."""
    path = Path(getattr(cfg, "probe_dir", None) or ".", PROBES_FILE)
    if not getattr(cfg, "deepnet_probe", None) or not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]  # the last may be one that the first rank still writes
    return [row for row in map(json.loads, lines[-PROBED:]) if "format" not in row]


def read(folder: Path) -> list[dict]:
    """The events of the run in `folder`, oldest first. UserError for a file that nobody here has written."""
    path = Path(folder, JSON)
    if not path.is_file():
        return []
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        events = found["events"]
        if found["format"] != FORMAT or not all(isinstance(one["update"], int) for one in events):
            raise ValueError(f"format {found['format']!r}")
        return events
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path}: no report of a divergence, or broken ({error}); remove it") from error


def write(folder: Path, events: list[dict]) -> None:
    """Both files, each whole. A disk that takes neither is told of in the log."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with whole(folder / JSON) as part:
            part.write_text(json.dumps(_plain({"format": FORMAT, "events": events}), indent=1) + "\n", encoding="utf-8")
        with whole(folder / TEXT) as part:
            part.write_text("\n\n".join(map(long, events)) + "\n", encoding="utf-8")
    except OSError as error:
        logger.warning(f"{folder / JSON}: could not be written ({error})")
        for line in long(events[-1]).splitlines():
            logger.warning(line)


def _plain(value):
    """JSON has no words for NaN and infinities: they become "nan", "inf" and "-inf"."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def headline(event: dict) -> str:
    """What has happened, in one line. Scripts look for how it begins."""
    first = event["first"]
    place = f", first at {first['where']} ({first['direction']})" if first else ""
    return f"diverged at update {event['update']}: {event['kind']}{place}"


def short(event: dict) -> list[str]:
    """At most eight lines, for the log."""
    place, broken, skipped = _in_words(event)
    lines = [headline(event), f"first: {place}"]
    lines += [broken] if event["parameters"]["count"] else []
    lines += [f"update {row['update']}: {_row(row)}" for row in event["updates"][-1:]]
    lines += [skipped] if event["skipped"]["in_all"] else []
    return lines + [f"try: {words}" for words in event["advice"][: 8 - len(lines)]]


def long(event: dict) -> str:
    """A page, for divergence.txt."""
    batch, (place, broken, skipped) = event["batch"], _in_words(event)
    sides = batch["source_lengths"] + batch["target_lengths"]
    most, usual = max(sides, default=0), int(statistics.median(batch["source_lengths"] or sides or [0]))
    lines = [
        headline(event),
        f"noticed by      {event['reason']}",
        f"model           {' '.join(f'{key} {value}' for key, value in event['model'].items())}",
        f"setting         {' '.join(f'{key} {value}' for key, value in event['setting'].items())}",
        f"epoch           {event['epoch']}, learning rate {event['lr']:.4g}, loss now {_number(event['loss'])}",
        f"first           {place}",
        f"weights         {broken}",
        f"batch           rank {event['rank']}: {batch['sentences']} sentences, longest {most} tokens, median {usual}",
        f"half precision  {skipped}",
        "last updates",
        *(f"  {row['update']:>8}  {_row(row)}" for row in event["updates"]),
        *(["last probes"] if event["probes"] else []),
        *(f"  {line}" for row in event["probes"] for line in _probe(row)),
        "what to try",
        *(f"  - {words}" for words in event["advice"]),
        *([set_back(event["rollback"])] if event["rollback"] else []),
    ]
    return "\n".join(lines)


def set_back(rollback: dict) -> str:
    """What was done about it, in one line; rollback: of Rollbacks.back."""
    rates = ", ".join(f"{rate:.4g}" for rate in rollback["lr"])
    return (
        f"rollback {rollback['number']} of {rollback['limit']}: back to update {rollback['update']} of "
        f"{rollback['checkpoint']}, --lr times {rollback['factor']:g}, now {rates}"
    )


def _in_words(event: dict) -> tuple[str, str, str]:
    """Where the first number that is not finite came up, or why that was not found; broken parameters; overflows."""
    first, parameters, skipped = event["first"], event["parameters"], event["skipped"]
    if first is None:
        place = "not found" + (f" ({event['search']})" if event["search"] else TOGETHER)
    else:
        place = f"{PLACE[first['direction']].format(**first)}; the largest before it {first['largest']:.4g}"
        place += f" at {first['at']}" if first["at"] else ""
    more = f" and {parameters['count'] - 1} more" if parameters["count"] > 1 else ""
    broken = f"not finite: {parameters['first'][0]}{more}" if parameters["count"] else "all finite"
    counts = f"{skipped['in_a_row']} overflows in a row before this, {skipped['in_all']} in all since the start"
    return place, broken, counts if skipped["in_all"] else "no overflow"


def _row(row: dict) -> str:
    scale = "" if row["loss_scale"] is None else f"  loss scale {row['loss_scale']:g}"
    return f"loss {_number(row['loss'])}  gnorm {_number(row['gnorm'])}  lr {_number(row['lr'])}{scale}"


def _probe(row: dict) -> Iterator[str]:
    for probe in (key for key in row if key != "update"):
        known = {where: value for where, value in row[probe].items() if value is not None}
        if known:
            low, high = min(known, key=known.get), max(known, key=known.get)
            span = f"{known[low]:.4g} at {low} to {known[high]:.4g} at {high}"
            yield f"{row['update']:>8}  {probe}: {span}, {len(row[probe]) - len(known)} not finite"


def _number(value: float | str | None) -> str:
    return "-" if value is None else f"{float(value):.4g}"  # what is not finite is a word in JSON
