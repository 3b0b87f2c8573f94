"""A divergence in words: some lines for the log, a page for divergence.txt."""

from __future__ import annotations

from .batch import longest
from .search import BACKWARD, FORWARD, NORM

PLACE = {
    FORWARD: "{where} ({module}) gives {value} in {share:.2%} of its numbers",
    BACKWARD: "in the backward pass; the gradient at {where} ({module}) has {value} in {share:.2%} of its numbers",
    NORM: "nowhere: every gradient is finite, their norm is not; the largest is that of {module}",
}


def headline(event: dict) -> str:
    """What has happened, in one line; event, here and below: of report.event. Scripts look for how it begins."""
    first = event["first"]
    place = f", first at {first['where']} ({first['direction']})" if first else ""
    return f"diverged at update {event['update']}: {event['kind']}{place}"


def short(event: dict) -> list[str]:
    """At most eight lines, for the log."""
    last = event["updates"][-1:]
    lines = [headline(event), f"first: {place(event)}"]
    if event["parameters"]["count"]:
        lines.append(_broken(event))
    lines += [f"update {row['update']}: {_row(row)}" for row in last]
    if event["skipped"]["in_all"]:
        lines.append(_skipped(event))
    return lines + [f"try: {words}" for words in event["advice"][: 8 - len(lines)]]


def long(event: dict) -> str:
    """A page, for divergence.txt."""
    batch, setting = event["batch"], event["setting"]
    most, usual = longest(batch)
    lines = [
        headline(event),
        f"noticed by      {event['reason']}",
        f"model           {' '.join(f'{key} {value}' for key, value in event['model'].items())}",
        f"setting         {' '.join(f'{key} {value}' for key, value in setting.items())}",
        f"epoch           {event['epoch']}, learning rate {event['lr']:.4g}, loss now {_number(event['loss'])}",
        f"first           {place(event)}",
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


def place(event: dict) -> str:
    """Where the first number that is not finite came up, in words, or why that was not found."""
    first = event["first"]
    if first is None:
        return (
            event["search"]
            and f"not found ({event['search']})"
            or ("not found: the batch alone gives finite numbers, so they came together in the sum over ranks")
        )
    words = PLACE[first["direction"]].format(**first)
    return f"{words}; the largest before it {first['largest']:.4g}" + (f" at {first['at']}" if first["at"] else "")


def set_back(rollback: dict) -> str:
    """What was done about it, in one line; rollback: of Rollbacks.back."""
    rates = ", ".join(f"{rate:.4g}" for rate in rollback["lr"])
    return (
        f"rollback {rollback['number']} of {rollback['limit']}: back to update {rollback['update']} of "
        f"{rollback['checkpoint']}, --lr times {rollback['factor']:g}, now {rates}"
    )


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
