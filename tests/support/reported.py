"""Synthetic runs of the papers' tables, with known numbers."""

from __future__ import annotations

import json
import re

from deepnet_fairseq.cli import main

ENVIRONMENT = {
    "commit": "abc1234",
    "modified": False,
    "versions": {"deepnet_fairseq": "0.1", "fairseq": "0.12.3", "torch": "2.6", "python": "3.11", "sacrebleu": "2.6.0"},
    "hardware": "8 x NVIDIA H200",
    "gpus": 8,
    "started": "2026-11-21T10:00:00+00:00",
}


def log(*attempts, losses=((100, 9.0), (200, 5.0))):
    """Return a train.log. attempts: times of the first and the last line of each attempt, as "10:00:00"."""
    lines = []
    for start, end in attempts:
        lines.append(f"2026-11-21 {start} | INFO | fairseq_cli.train | {{'_name': None, 'common': {{}}}}")
        for updates, loss in losses:
            row = json.dumps({"loss": str(loss), "num_updates": str(updates), "wall": str(updates)})
            lines.append(f"2026-11-21 {end} | INFO | train_inner | {row}")
    return "\n".join(lines) + "\n"


def score(bleu, kind="tokenised", **others):
    """Return the score.json of a bilingual run; its sacreBLEU is one point lower."""
    return {
        "bleu": bleu,
        "kind": kind,
        "sacrebleu": {"score": bleu - 1, "mean": bleu - 1.1, "ci": 0.5, "signature": "nrefs:1|tok:13a|version:2.6.0"},
        "tokenised": {"score": bleu, "signature": "tok:none"},
        "chrf": {"score": 50.0, "mean": 50.0, "ci": 0.25, "signature": "nrefs:1|nc:6"},
        "sentences": 3003,
        **others,
    }


def run(root, table, name, method="deepnorm", layers=18, seed=1, bleu=None, **others):
    """Write a run's folder; the run is over unless trained=False.

    others: score, the texts of diverged and stuck, log, environment, command; the rest goes into run.json.
    """
    folder = root / table / name
    folder.mkdir(parents=True)
    scored = others.pop("score", None if bleu is None else score(bleu))
    ended = {name: others.pop(name, None) for name in ("diverged", "stuck")}
    over = others.pop("trained", True)
    environment = others.pop("environment", ENVIRONMENT)
    (folder / "train.log").write_text(others.pop("log", log(("10:00:00", "13:00:00"))))
    (folder / "command").write_text(others.pop("command", "fairseq-train data") + "\n")
    facts = {"method": method, "encoder_layers": layers, "decoder_layers": layers, "seed": seed, "experiment": table}
    (folder / "run.json").write_text(json.dumps(facts | others))
    if over:
        (folder / "trained").touch()
    for name, text in ended.items():
        if text is not None:
            (folder / name).write_text(text)
    if scored is not None:
        (folder / "score.json").write_text(json.dumps(scored))
    if environment is not None:
        (folder / "environment.json").write_text(json.dumps(environment))
    return folder


def printed(capsys, *words):
    main(["report", *map(str, words)])
    return capsys.readouterr().out


def grid(text, title):
    """Return the rows of one Markdown table, each a dict of header -> cell."""
    section = re.search(rf"^## {title}\n\n.*?\n\n(.*?)\n\n", text, re.DOTALL | re.MULTILINE).group(1)
    header, _, *rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines())
    return [dict(zip(header, row, strict=True)) for row in rows]
