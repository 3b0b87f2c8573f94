"""Translate text by every way that serves a model, compare the texts, and time the programs that a user starts.

    python results/served/four_ways.py NAME CHECKPOINT DATA LINES [--source-lang X --target-lang Y] [--rounds N]

LINES is a file of the source language. Two hundred odd lines are made of its first four, and the rest is translated as
it is. Appends a record to records.jsonl: for each way, how many lines differ from fairseq-interactive's with this
package, and with --rounds the seconds of whole programs for one sentence and for all lines, in turns. The record holds
no text. The made lines are called odd (unusual characters, see tests/support/odd.py), the others real.
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
FOLDERS = ("ctranslate2", "huggingface")  # kinds of export that `deepnet translate` reads
BEAM = ("--beam", "5")


def run(program: str, *arguments) -> tuple[str, float]:
    """Run a program of this Python environment; return its standard output, and its seconds by the clock.

    arguments: texts, paths or numbers. If the program fails, this one ends with the last of its messages.
    """
    start = time.monotonic()
    done = subprocess.run([BIN / program, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr[-2000:])
    return done.stdout, time.monotonic() - start


class Ways:
    """The ways to translate a file, by name; each is a program that runs once for the file.

    "ours" is fairseq-interactive with this package, "plain fairseq" the same without it, on the exported Transformer;
    "checkpoint", "ctranslate2" and "huggingface" are `deepnet translate` on the checkpoint and on its two exports.
    """

    def __init__(self, args, folder: Path):
        """Export the checkpoint in every form into `folder`, and find the flags that the programs take.

        args: the flags of `main`.
        """
        self.args = args
        self.folder = folder
        self.languages: list[str] = []  # flags of `deepnet translate`
        if args.source_lang is not None:
            self.languages += ["--source-lang", args.source_lang]
        if args.target_lang is not None:
            self.languages += ["--target-lang", args.target_lang]

        for name in FOLDERS:
            run("deepnet", "export", args.checkpoint, "--to", name, "--out", folder / name, "--data", args.data)
        run("deepnet", "export", args.checkpoint, "--to", "transformer", "--out", folder / "transformer")

        described = read_description(folder / "ctranslate2")
        self.segmentation = self._file_of_data("spm.model")
        source = args.source_lang or described.languages[0]
        target = args.target_lang or described.languages[1]
        # flags of fairseq-interactive; a translation has at most the decoder's positions, one of them for its end
        self.task = ["-s", source, "-t", target, "--max-len-b", described.positions[1] - 1]
        if described.symbols:  # a multilingual model: the source or the target begins with a token for a language
            pairs = ",".join("-".join(pair) for pair in described.pairs)
            languages = self._file_of_data("langs.txt")
            self.task += ["--task", "translation_multi_simple_epoch", "--lang-dict", languages, "--lang-pairs", pairs]
            if described.source_tag:
                self.task += ["--encoder-langtok", described.source_tag]
            if described.target_tag:
                self.task += ["--decoder-langtok"]

    def _file_of_data(self, name: str) -> Path:
        """Return the file of that name of the corpus: the first one in the folders above DATA and in DATA itself."""
        files = [folder / name for folder in folders_of(self.args.data)]
        return next(file for file in files if file.is_file())

    def names(self) -> list[str]:
        """Return the names of the ways."""
        return ["ours", "plain fairseq", "checkpoint", *FOLDERS]

    def translate(self, name: str, file: Path) -> tuple[list[str], float]:
        """Return the lines of a file's translation, and the seconds of the whole program. name: one of names()."""
        if name == "ours":
            user_dir = ("--user-dir", Path(deepnet_fairseq.__file__).parent)
            return self._by_fairseq(self.args.checkpoint, user_dir, file)
        if name == "plain fairseq":
            return self._by_fairseq(self.folder / "transformer", (), file)

        if name == "checkpoint":
            words = [self.args.checkpoint, file, *BEAM, "--data", self.args.data]
        else:
            words = [self.folder / name, file, *BEAM]
        output, seconds = run("deepnet", "translate", *words, *self.languages)
        return output.split("\n")[:-1], seconds

    def _by_fairseq(self, checkpoint: str | Path, user_dir: tuple, file: Path) -> tuple[list[str], float]:
        """Translate a file by fairseq-interactive; return as `translate` does.

        user_dir: ("--user-dir", folder) for this package's model, () for fairseq's own. A penalty of 1e9 (--unkpen)
        keeps the token of unknown words out of translations, as in the other ways.
        """
        output, seconds = run(
            "fairseq-interactive", self.args.data, *user_dir, "--path", checkpoint, *self.task, *BEAM,
            "--unkpen", "1e9", "--bpe", "sentencepiece", "--sentencepiece-model", self.segmentation,
            "--input", file, "--buffer-size", 1000, "--max-tokens", 2000, "--cpu",
        )  # fmt: skip
        # "D-<number of the line>\t<score>\t<translation>", in the order of fairseq's batches
        printed = re.findall(r"(?m)^D-(\d+)\t[^\t]+\t(.*)$", output)
        in_order = sorted((int(number), text) for number, text in printed)
        return [text for _, text in in_order], seconds


def write_lines(file: Path, lines: list[str]) -> None:
    """Write a file of text, each line with its end."""
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def main() -> None:
    """Translate and time by every way, append a record, and print a line for each way."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("name", help="name of the model in the record")
    parser.add_argument("checkpoint", help="file of the model")
    parser.add_argument("data", help="folder of the model's binarised data")
    parser.add_argument("lines", help="file of text in the source language, a sentence a line")
    for flag, what in (("--source-lang", "text"), ("--target-lang", "translation")):
        parser.add_argument(flag, help=f"language of the {what}, which a multilingual model needs")
    parser.add_argument("--rounds", type=int, default=0, metavar="N", help="how often to time each way (default: 0)")
    args = parser.parse_args()
    deepnet_fairseq.register()
    model, cfg = from_checkpoint(args.checkpoint)
    lines = Path(args.lines).read_text(encoding="utf-8").split("\n")
    real = [line for line in lines if line.strip()]

    with tempfile.TemporaryDirectory() as folder:
        ways = Ways(args, Path(folder))
        odd = odd_lines(real)
        file = Path(folder) / "lines"
        one_line = Path(folder) / "one"
        write_lines(file, [*odd, *real])
        translations: dict[str, list[str]] = {}  # by way: the translated lines, those of the odd ones first
        for name in ways.names():
            translations[name], _seconds = ways.translate(name, file)

        differ = {}  # by way: [how many odd lines differ from those of "ours", how many real ones]
        for name, translated in translations.items():
            differences = [a != b for a, b in zip(translations["ours"], translated, strict=True)]
            differ[name] = [sum(differences[: len(odd)]), sum(differences[len(odd) :])]

        seconds: dict[str, dict[str, list[float]]] = {}  # {way: {"one" or "all" (lines): seconds of each round}}
        record = {
            "name": args.name,
            "when": datetime.now(UTC).isoformat(timespec="seconds"),
            "environment": environment(0),
            "model": f"{len(model.encoder.layers)}-{len(model.decoder.layers)} {cfg.model.method}",
            "odd": len(odd),
            "real": len(real),
            "differ": differ,
            "distinct": len(set(translations["ours"])),  # few distinct ones would make a poor comparison
            "seconds": seconds,  # which the rounds fill
        }
        write_lines(file, real)
        write_lines(one_line, real[:1])
        for _ in range(args.rounds):
            for name in ways.names():
                for label, given in (("one", one_line), ("all", file)):
                    times = seconds.setdefault(name, {}).setdefault(label, [])
                    times.append(round(ways.translate(name, given)[1], 3))

    with open(Path(__file__).with_name("records.jsonl"), "a", encoding="utf-8") as records:
        records.write(json.dumps(record) + "\n")
    for name, (odd_differ, real_differ) in differ.items():
        times_by_label = seconds.get(name, {})  # {} without --rounds
        timing = ", ".join(f"{label} {median(times):.2f} s" for label, times in times_by_label.items())
        print(
            f"{name}: translates {odd_differ} of {len(odd)} odd lines, and {real_differ} of {len(real)} real ones, "
            f"otherwise than ours; {timing or 'not timed'}"
        )


if __name__ == "__main__":
    main()
