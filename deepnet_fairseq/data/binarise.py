"""Text in pieces -> fairseq's binarised data, by fairseq-preprocess."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from .lines import die_with_parent

TYPES = re.compile(r"\] Dictionary: (\d+) types")
COUNTS = r"(\d+) sents, (\d+) tokens, ([\d.e+-]+)% replaced"
TEXT = re.compile(rf"\[(\S+)\] (.+)\.\1: {COUNTS}")
PLAIN_TEXT = re.compile(rf"\[None\] (.+): {COUNTS}")


def binarise(
    langs: tuple[str, str],
    prefixes: dict[str, list[Path]],
    dest: Path,
    workers: int = 2,
    dictionary: Path | None = None,
) -> dict:
    """DEST, with a joined dictionary: `dictionary`, else one made of the training text.

    langs: source and target; prefixes: "train", "valid" and "test" -> P of the files P.LANG; fairseq calls several of
    them test, test1, ... Returns {"types": of the dictionary with its special symbols, "text": {subset: {lang:
    {"sentences", "pieces", "unknown": per cent}}}}. RuntimeError with the last that fairseq-preprocess said if it
    fails.
    """
    flags = ["--joined-dictionary", "--source-lang", langs[0], "--target-lang", langs[1]]
    subsets, said = _preprocess(flags, prefixes, dest, workers, dictionary)
    text: dict[str, dict] = {subset: {} for subset in subsets.values()}
    for lang, name, *counts in TEXT.findall(said):
        text[subsets[name]][lang] = _counts(*counts)
    return {"types": int(TYPES.search(said)[1]), "text": text}


def binarise_plain(paths: dict[str, list[Path]], dest: Path, workers: int = 2, dictionary: Path | None = None) -> dict:
    """DEST for language models: dict.txt, train.bin, train.idx, ...; paths: "train", "valid" and "test" -> files.

    Returns {"types": ..., "text": {subset: {"sentences", "pieces", "unknown"}}}, as `binarise`; an empty line counts as
    a sentence of no piece.
    """
    subsets, said = _preprocess(["--only-source"], paths, dest, workers, dictionary)
    text = {subsets[name]: _counts(*counts) for name, *counts in PLAIN_TEXT.findall(said)}
    return {"types": int(TYPES.search(said)[1]), "text": text}


def _counts(sentences: str, tokens: str, unknown: str) -> dict:
    pieces = int(tokens) - int(sentences)  # it counts an end of sentence each
    return {"sentences": int(sentences), "pieces": pieces, "unknown": float(unknown)}


def _preprocess(
    flags: list[str], prefixes: dict[str, list[Path]], dest: Path, workers: int, dictionary: Path | None
) -> tuple[dict[str, str], str]:
    """Runs it; its name of every file -> subset ("test1"), and what it said."""
    places = [prefix for given in prefixes.values() for prefix in given]
    folder = Path(os.path.commonpath([place.resolve().parent for place in places]))
    names = {split: [os.path.relpath(place.resolve(), folder) for place in given] for split, given in prefixes.items()}
    command = [sys.executable, "-m", "fairseq_cli.preprocess", *flags, "--workers", str(workers)]
    command += ["--destdir", str(dest.resolve())]
    for split, given in names.items():
        command += [f"--{split}pref", ",".join(given)]
    if dictionary is not None:
        command += ["--srcdict", str(dictionary.resolve())]
    done = subprocess.run(  # from within the folder: a comma in its path would end a prefix
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, preexec_fn=die_with_parent
    )
    if done.returncode:
        raise RuntimeError(f"fairseq-preprocess failed:\n{done.stdout[-2000:]}")
    (dest / "preprocess.log").unlink(missing_ok=True)
    return {name: f"{split}{i or ''}" for split, given in names.items() for i, name in enumerate(given)}, done.stdout
