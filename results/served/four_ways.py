"""Translate text by every way that serves a model, compare the texts, and time the programs that a user starts.

    python results/served/four_ways.py NAME CHECKPOINT DATA LINES [--source-lang X --target-lang Y] [--rounds N]

LINES is a file of the source language. Two hundred odd lines are made of its first four, and the rest is translated as
it is. Appends a record to records.jsonl: for each way, how many lines differ from fairseq-interactive's with this
package, and with --rounds the seconds of whole programs for one sentence and for all lines, in turns. It holds no text.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import deepnet_fairseq
from deepnet_fairseq.plugin.building import from_checkpoint
from deepnet_fairseq.tools.environment import environment
from deepnet_fairseq.tools.translation import read_description
from deepnet_fairseq.tools.translation.text import folders_of

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.support.odd import odd_lines

BIN = Path(sys.executable).parent
FOLDERS = ("ctranslate2", "huggingface")
BEAM = ("--beam", "5")


def called(*words) -> tuple[str, float]:
    """Return what a program prints, and its seconds."""
    start = time.monotonic()
    done = subprocess.run([BIN / str(words[0]), *map(str, words[1:])], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr[-2000:])
    return done.stdout, time.monotonic() - start


class Ways:
    """The programs that translate a file, by name, and the lines that they print."""

    def __init__(self, args, folder: Path):
        self.args, self.folder = args, folder
        self.languages = [word for name in ("source_lang", "target_lang") if (lang := getattr(args, name)) is not None
                          for word in (f"--{name.replace('_', '-')}", lang)]  # fmt: skip
        for to in (*FOLDERS, "transformer"):
            called("deepnet", "export", args.checkpoint, "--to", to, "--out", folder / to,
                   *(() if to == "transformer" else ("--data", args.data)))  # fmt: skip
        described = read_description(folder / "ctranslate2")
        places = [place / "spm.model" for place in folders_of(args.data)]
        self.model = next(place for place in places if place.is_file())
        source, target = args.source_lang or described.languages[0], args.target_lang or described.languages[1]
        self.task = ["-s", source, "-t", target, "--max-len-b", described.positions[1] - 1]
        if described.symbols:
            pairs = ",".join("-".join(pair) for pair in described.pairs)
            listed = next(place / "langs.txt" for place in folders_of(args.data) if (place / "langs.txt").is_file())
            self.task += ["--task", "translation_multi_simple_epoch", "--lang-dict", listed, "--lang-pairs", pairs]
            self.task += ["--encoder-langtok", described.source_tag] if described.source_tag else []
            self.task += ["--decoder-langtok"] if described.target_tag else []

    def names(self) -> list[str]:
        return ["ours", "plain fairseq", "checkpoint", *FOLDERS]

    def translate(self, name: str, file: Path) -> tuple[list[str], float]:
        """Return the lines of a translation, and the seconds of the whole program."""
        if name in ("ours", "plain fairseq"):
            user_dir = ("--user-dir", Path(deepnet_fairseq.__file__).parent) if name == "ours" else ()
            path = self.args.checkpoint if name == "ours" else self.folder / "transformer"
            output, seconds = called(
                "fairseq-interactive", self.args.data, *user_dir, "--path", path, *self.task, *BEAM, "--unkpen", "1e9",
                "--bpe", "sentencepiece", "--sentencepiece-model", self.model, "--input", file, "--buffer-size", 1000,
                "--max-tokens", 2000, "--cpu",
            )  # fmt: skip
            pairs = sorted((int(number), text) for number, text in re.findall(r"(?m)^D-(\d+)\t[^\t]+\t(.*)$", output))
            return [text for _, text in pairs], seconds
        model = self.args.checkpoint if name == "checkpoint" else self.folder / name
        data = ("--data", self.args.data) if name == "checkpoint" else ()
        output, seconds = called("deepnet", "translate", model, file, *BEAM, *data, *self.languages)
        return output.split("\n")[:-1], seconds


def main() -> None:
    """Append a record."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name in ("name", "checkpoint", "data", "lines"):
        parser.add_argument(name)
    for flag in ("--source-lang", "--target-lang"):
        parser.add_argument(flag)
    parser.add_argument("--rounds", type=int, default=0, metavar="N", help="of timing; 0 for none")
    args = parser.parse_args()
    deepnet_fairseq.register()
    model, cfg = from_checkpoint(args.checkpoint)
    real = [line for line in Path(args.lines).read_text(encoding="utf-8").split("\n") if line.strip()]
    with tempfile.TemporaryDirectory() as folder:
        ways, odd, file, one = Ways(args, Path(folder)), odd_lines(real), Path(folder) / "lines", Path(folder) / "one"
        file.write_text("".join(f"{line}\n" for line in [*odd, *real]), encoding="utf-8")
        texts = {name: ways.translate(name, file)[0] for name in ways.names()}
        differ = {name: [a != b for a, b in zip(texts["ours"], lines, strict=True)] for name, lines in texts.items()}
        record = {
            "name": args.name, "when": datetime.now(UTC).isoformat(timespec="seconds"), "environment": environment(0),
            "model": f"{len(model.encoder.layers)}-{len(model.decoder.layers)} {cfg.model.method}",
            "odd": len(odd), "real": len(real),
            "differ": {name: [sum(rows[: len(odd)]), sum(rows[len(odd) :])] for name, rows in differ.items()},
            "distinct": len(set(texts["ours"])), "seconds": {},
        }  # fmt: skip
        file.write_text("".join(f"{line}\n" for line in real), encoding="utf-8")
        one.write_text(f"{real[0]}\n", encoding="utf-8")
        for _ in range(args.rounds):
            for name in ways.names():
                for label, given in (("one", one), ("all", file)):
                    times = record["seconds"].setdefault(name, {}).setdefault(label, [])
                    times.append(round(ways.translate(name, given)[1], 3))
    with open(Path(__file__).with_name("records.jsonl"), "a", encoding="utf-8") as records:
        records.write(json.dumps(record) + "\n")
    for name in ways.names():
        seconds = record["seconds"].get(name, {})
        timing = ", ".join(f"{label} {median(times):.2f} s" for label, times in seconds.items())
        print(f"{name}: {record['differ'][name][0]} of {len(odd)} odd lines and {record['differ'][name][1]} of "
              f"{len(real)} others differ from ours; {timing}")  # fmt: skip


if __name__ == "__main__":
    main()
