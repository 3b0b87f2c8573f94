"""What is told of a divergence: divergence.json and divergence.txt beside the checkpoints, some lines for the log."""

from __future__ import annotations

import json
import logging
import math
import statistics
from pathlib import Path

from ..atomic_output import whole
from ..distributed import agreement
from ..errors import UserError
from ..probes.record import FILE as PROBES_FILE
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


def event(trainer, stop: Stop, epoch: int) -> dict:
    """All that is known of a divergence, plain data; on every rank at the same time, the same on each.

    Losses are in bits per token, lengths in tokens.
    """
    watch, cfg, rate = trainer.watch, trainer.cfg, trainer.get_lr()
    everyone = agreement.gathered(_on_this_rank(trainer, stop))
    seen = next((i for i, one in enumerate(everyone) if one["first"]), 0)
    broken = sorted({name for one in everyone for name in one["broken"]})
    bad_loss = not all(math.isfinite(one["loss"]) for one in everyone if one["loss"] is not None)
    found = {
        "update": stop.update,
        "kind": LOSS if bad_loss and stop.kind == GRADIENTS else stop.kind,
        "reason": stop.reason,
        "epoch": epoch,
        "lr": rate,
        "first": everyone[seen]["first"],
        "rank": seen,
        "search": everyone[seen]["failed"],
        "loss": everyone[seen]["loss"],
        "parameters": {"count": len(broken), "first": broken[:NAMED]},
        "batch": everyone[seen]["batch"],
        "skipped": {"in_a_row": watch.skipped, "in_all": watch.skipped_in_all, "from_scale": watch.scale_before},
        "updates": watch.rows(),
        "probes": _probes(cfg.model),
        "model": _model(trainer),
        "setting": _setting(cfg),
        "rollbacks": {"limit": trainer.rollbacks.limit, "taken": len(trainer.rollbacks.taken)},
        "rollback": None,
    }
    return found | {"advice": advice(found, trainer)}


def _on_this_rank(trainer, stop: Stop) -> dict:
    found = {"broken": broken_parameters(trainer.get_model()), "first": None, "loss": None, "failed": None}
    try:
        found |= repeat(trainer, stop.samples, stop.update - 1)
    except Exception as error:  # whatever it is, the training has diverged, and that is to be told
        found["failed"] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        drop_gradients(trainer)
    target = getattr(trainer.task, "target_dictionary", None)
    return found | {"batch": describe(stop.samples, -1 if target is None else target.pad())}


def describe(samples: list, padding: int) -> dict:
    """Of all batches of this rank's update: ids (positions in the binarised text, from 0) and lengths in tokens.

    padding: index of the target dictionary's padding. Lengths are missing for tasks that translate nothing.
    """
    found = {"ids": [], "source_lengths": [], "target_lengths": []}
    for sample in filter(None, samples):
        if "id" in sample:
            found["ids"] += sample["id"].tolist()
        lengths = (sample.get("net_input") or {}).get("src_lengths")
        if lengths is not None:
            found["source_lengths"] += lengths.tolist()
        if sample.get("target") is not None and sample["target"].dim() == 2:
            found["target_lengths"] += sample["target"].ne(padding).sum(1).tolist()
    return {"sentences": len(found["ids"]), **found}


def _model(trainer) -> dict:
    cfg = trainer.cfg.model
    names = ("method", "encoder_layers", "decoder_layers", "encoder_embed_dim", "decoder_embed_dim")
    found = {name: getattr(cfg, name) for name in names if hasattr(cfg, name)}
    return found | {"parameters": sum(p.numel() for p in trainer.get_model().parameters())}


def _setting(cfg) -> dict:
    schedule = cfg.lr_scheduler
    return {
        "lr": [float(rate) for rate in cfg.optimization.lr],
        "lr_scheduler": getattr(schedule, "_name", None),
        "warmup_updates": int(getattr(schedule, "warmup_updates", 0) or 0),
        "clip_norm": cfg.optimization.clip_norm,
        "precision": next((name for name in ("fp16", "bf16", "amp") if getattr(cfg.common, name, False)), "fp32"),
        "update_freq": list(cfg.optimization.update_freq),
        "max_tokens": cfg.dataset.max_tokens,
        "seed": cfg.common.seed,
    }


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
    lines = [headline(event), f"first: {_place(event)}"]
    if event["parameters"]["count"]:
        lines.append(_broken(event))
    lines += [f"update {row['update']}: {_row(row)}" for row in event["updates"][-1:]]
    if event["skipped"]["in_all"]:
        lines.append(_skipped(event))
    return lines + [f"try: {words}" for words in event["advice"][: 8 - len(lines)]]


def long(event: dict) -> str:
    """A page, for divergence.txt."""
    batch = event["batch"]
    sides = batch["source_lengths"] + batch["target_lengths"]
    most, usual = max(sides, default=0), int(statistics.median(batch["source_lengths"] or sides or [0]))
    lines = [
        headline(event),
        f"noticed by      {event['reason']}",
        f"model           {' '.join(f'{key} {value}' for key, value in event['model'].items())}",
        f"setting         {' '.join(f'{key} {value}' for key, value in event['setting'].items())}",
        f"epoch           {event['epoch']}, learning rate {event['lr']:.4g}, loss now {_number(event['loss'])}",
        f"first           {_place(event)}",
        f"weights         {_broken(event)}",
        f"batch           rank {event['rank']}: {batch['sentences']} sentences, longest {most} tokens, median {usual}",
        f"half precision  {_skipped(event)}",
        "last updates",
        *(f"  {row['update']:>8}  {_row(row)}" for row in event["updates"]),
    ]
    if event["probes"]:
        lines += ["last probes", *(f"  {line}" for row in event["probes"] for line in _probe(row))]
    lines += ["what to try", *(f"  - {words}" for words in event["advice"])]
    if event["rollback"]:
        lines.append(set_back(event["rollback"]))
    return "\n".join(lines)


def set_back(rollback: dict) -> str:
    """What was done about it, in one line; rollback: of Rollbacks.back."""
    rates = ", ".join(f"{rate:.4g}" for rate in rollback["lr"])
    return (
        f"rollback {rollback['number']} of {rollback['limit']}: back to update {rollback['update']} of "
        f"{rollback['checkpoint']}, --lr times {rollback['factor']:g}, now {rates}"
    )


def _place(event: dict) -> str:
    """Where the first number that is not finite came up, in words, or why that was not found."""
    first = event["first"]
    if first is None:
        why = event["search"] and f" ({event['search']})"
        return (
            f"not found{why or ': the batch alone gives finite numbers, so they came together in the sum over ranks'}"
        )
    words = PLACE[first["direction"]].format(**first)
    return f"{words}; the largest before it {first['largest']:.4g}" + (f" at {first['at']}" if first["at"] else "")


def _broken(event: dict) -> str:
    parameters = event["parameters"]
    if not parameters["count"]:
        return "all finite"
    more = parameters["count"] - 1
    return f"not finite: {parameters['first'][0]}" + (f" and {more} more" if more else "")


def _skipped(event: dict) -> str:
    skipped = event["skipped"]
    if not skipped["in_all"]:
        return "no overflow"
    return f"{skipped['in_a_row']} overflows in a row before this, {skipped['in_all']} in all since the start"


def _row(row: dict) -> str:
    scale = "" if row["loss_scale"] is None else f"  loss scale {row['loss_scale']:g}"
    return f"loss {_number(row['loss'])}  gnorm {_number(row['gnorm'])}  lr {_number(row['lr'])}{scale}"


def _probe(row: dict) -> list[str]:
    lines = []
    for probe, values in row.items():
        known = {where: value for where, value in values.items() if value is not None} if probe != "update" else {}
        if known:
            low, high = min(known, key=known.get), max(known, key=known.get)
            lines.append(
                f"{row['update']:>8}  {probe}: {known[low]:.4g} at {low} to {known[high]:.4g} at {high}, "
                f"{len(values) - len(known)} not finite"
            )
    return lines


def _number(value: float | str | None) -> str:
    return "-" if value is None else f"{float(value):.4g}"  # what is not finite is a word in JSON
