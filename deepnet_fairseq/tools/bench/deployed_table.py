"""The table of `deepnet deployed`, of one record or of several, Markdown."""

from __future__ import annotations

from .results import Column, number, value
from .settings import STOCK
from .turns import MEASURED

COLUMNS = (
    Column("tokens per second", "tokens/s", "", True),
    Column("sentences per second", "sentences/s", ""),
    Column("bleu", "BLEU", ""),
    Column("bytes", "peak memory", "B"),
    Column("seconds", "start to end"),
)


def render(records: list[dict]) -> str:
    """Where and how, a line a record, then one table of all.

    A row a depth, kind of batches and program; of two records of one depth it names the checkpoint. A program that
    ended before its rounds were over says so behind its name, and one that could not run in place of its numbers.
    """
    heads = ["depth", "batches", "program", *(column.head for column in COLUMNS), "on disk"]
    rows = [heads, ["---"] * len(heads)]
    depths = [record["model"]["depth"] for record in records]
    for record in records:
        where, sizes = record["model"]["depth"], {one["name"]: one["bytes"] for one in record["candidates"]}
        if depths.count(where) > 1:
            where += f", {record['settings']['checkpoint']}"
        for cell in record["cells"]:
            program, values = cell["candidate"], [f"{cell['state']}: {cell['reason']}", *[""] * len(COLUMNS)]
            if cell["state"] == MEASURED:
                values = [value(cell, column, record) for column in COLUMNS]
                values.append(number(sizes[program], "B"))
                if cell["reason"]:
                    program += f" ({len(cell['repeats'])} of {_rounds(record)} rounds; {cell['reason']})"
            rows.append([where, cell["condition"]["batches"], program, *values])
    said = f"Medians (smallest to largest) [times {STOCK}'s in the same round]; batches: fairseq's default of 12,000 "
    said += "tokens, 32 sentences, one sentence."
    return "\n".join([*map(_heading, records), "", said, "", *(f"| {' | '.join(row)} |" for row in rows)])


def _rounds(record: dict) -> int:
    return max((len(cell["repeats"]) for cell in record["cells"]), default=0)


def _heading(record: dict) -> str:
    """Model, data, machine and versions."""
    where, model, settings = record["environment"], record["model"], record["settings"]
    counts = ", ".join(f"{count:,} in batches {batches}" for batches, count in record["sentences"].items())
    commit = f"commit {where['commit']}{' with changes' * where['modified']}" if where["commit"] else "no commit"
    scored = "of text" if record["bleu"]["joined"] else "of the dictionary's symbols"
    rounds = _rounds(record)
    return (
        f"- {settings['checkpoint']}: {model['depth']} {model['method']}, width {model['width']}, "
        f"{model['parameters']:,} parameters, on {settings['data']}: {where['hardware']}, {settings['threads']} "
        f"thread{'s' * (settings['threads'] > 1)}, fp32, beam {settings['beam']}; sentences: {counts}; {rounds} "
        f"round{'s' * (rounds != 1)}, {where['started']}, {commit}; BLEU {scored} "
        f"(`{record['bleu']['signature']}`); {', '.join(map(' '.join, where['versions'].items()))}"
    )
