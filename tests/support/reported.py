"""Synthetic runs of the papers' tables, with known numbers, and the reports of them."""

from __future__ import annotations

import json
import re
from pathlib import Path

from deepnet_fairseq.cli import main

ENVIRONMENT = {
    "commit": "abc1234",
    "modified": False,
    "versions": {"deepnet_fairseq": "0.1", "fairseq": "0.12.3", "torch": "2.6", "python": "3.11", "sacrebleu": "2.6.0"},
    "hardware": "8 x NVIDIA H200",
    "gpus": 8,
    "started": "2026-11-21T10:00:00+00:00",
}
DAY = "2026-11-21"
LOSSES = {100: 9.0, 200: 5.0}  # of training, in bits per token by update


def train_log(*attempts: tuple[str, str]) -> str:
    """Return the text of a train.log, of a training that was started once or, after interruptions, several times.

    attempts: of each start, the times of its first and its last line, as "10:00:00"
    """
    lines = []
    for start, end in attempts:
        lines.append(f"{DAY} {start} | INFO | fairseq_cli.train | {{'_name': None, 'common': {{}}}}")
        for updates, loss in LOSSES.items():
            row = json.dumps({"loss": str(loss), "num_updates": str(updates), "wall": str(updates)})
            lines.append(f"{DAY} {end} | INFO | train_inner | {row}")
    return "\n".join(lines) + "\n"


def bilingual_score(bleu: float, kind: str = "tokenised", **others) -> dict:
    """Return the content of a bilingual run's score.json, in which sacreBLEU is one point below `bleu`.

    kind: what was scored for the paper's number; others: entries that differ
    """
    return {
        "bleu": bleu,
        "kind": kind,
        "sacrebleu": {"score": bleu - 1, "mean": bleu - 1.1, "ci": 0.5, "signature": "nrefs:1|tok:13a|version:2.6.0"},
        "tokenised": {"score": bleu, "signature": "tok:none"},
        "chrf": {"score": 50.0, "mean": 50.0, "ci": 0.25, "signature": "nrefs:1|nc:6"},
        "sentences": 3003,
        **others,
    }


def write_run(
    root: Path,
    table: str,
    name: str,
    method: str = "deepnorm",
    layers: int = 18,
    seed: int | None = 1,
    bleu: float | None = None,
    *,
    score: dict | None = None,
    trained: bool = True,
    diverged: str | None = None,
    stuck: str | None = None,
    log: str | None = None,
    environment: dict | None = ENVIRONMENT,
    command: str = "fairseq-train data",
    **facts,
) -> Path:
    """Write a run's folder, ROOT/TABLE/NAME, and return it.

    layers: of each stack; bleu: of a bilingual score.json, which `score` replaces, None for no such file; trained:
    whether the training is over; diverged, stuck: texts of the files of these names, None for no such file; log: text
    of train.log, None for a training of three hours; environment: content of environment.json, None for no such file;
    command: text of the file of this name; facts: further entries of run.json.
    """
    if score is None and bleu is not None:
        score = bilingual_score(bleu)
    if log is None:
        log = train_log(("10:00:00", "13:00:00"))
    usual = {"method": method, "encoder_layers": layers, "decoder_layers": layers, "seed": seed, "experiment": table}

    folder = root / table / name
    folder.mkdir(parents=True)
    (folder / "train.log").write_text(log)
    (folder / "command").write_text(f"{command}\n")
    (folder / "run.json").write_text(json.dumps(usual | facts))
    if trained:
        (folder / "trained").touch()
    if diverged is not None:
        (folder / "diverged").write_text(diverged)
    if stuck is not None:
        (folder / "stuck").write_text(stuck)
    if score is not None:
        (folder / "score.json").write_text(json.dumps(score))
    if environment is not None:
        (folder / "environment.json").write_text(json.dumps(environment))
    return folder


def printed_report(capsys, *words: object) -> str:
    """Return what `deepnet report WORDS` prints."""
    main(["report", *map(str, words)])
    return capsys.readouterr().out


def table_of_section(page: str, title: str) -> list[dict[str, str]]:
    """Return the rows of the table in the section `title` of a report, each header -> cell.

    In the page's Markdown the section is a heading, a paragraph and the table, with empty lines between.
    """
    section = re.search(rf"^## {title}\n\n.*?\n\n(.*?)\n\n", page, re.DOTALL | re.MULTILINE).group(1)
    lines = []
    for line in section.splitlines():
        cells = line.split("|")[1:-1]
        lines.append([cell.strip() for cell in cells])

    header, _dashes, *rows = lines
    return [dict(zip(header, row, strict=True)) for row in rows]
