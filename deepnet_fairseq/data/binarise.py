"""Text in pieces -> fairseq's binarised data, by fairseq-preprocess."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from .lines import die_with_parent

TYPES = re.compile(r"\] Dictionary: (\d+) types")
TEXT = re.compile(r"\[(\S+)\] (.+?)(?:\.\1)?: (\d+) sents, (\d+) tokens, ([\d.e+-]+)% replaced")
PLAIN = "None"  # what fairseq-preprocess calls the language of text for language models


def binarise(
    langs: tuple[str, str] | None,
    prefixes: dict[str, list[Path]],
    dest: Path,
    workers: int = 2,
    dictionary: Path | None = None,
) -> dict:
    """DEST by fairseq-preprocess, with a joined dictionary: `dictionary`, else one made of the training text.

    langs: source and target, or None for language models; prefixes: "train", "valid" and "test" -> P of the files
    P.LANG, or the files; fairseq calls several of them test, test1, ... Returns {"types": of the dictionary with its
    special symbols, "text": {subset: {lang, or PLAIN: {"sentences", "pieces", "unknown": per cent}}}}; an empty line
    counts as a sentence of no piece. RuntimeError with the last that fairseq-preprocess said if it fails.
    """
    places = [prefix for given in prefixes.values() for prefix in given]
    folder = Path(os.path.commonpath([place.resolve().parent for place in places]))
    names = {split: [os.path.relpath(place.resolve(), folder) for place in given] for split, given in prefixes.items()}
    subsets = {name: f"{split}{i or ''}" for split, given in names.items() for i, name in enumerate(given)}
    command = [sys.executable, "-m", "fairseq_cli.preprocess", "--workers", str(workers)]
    command += ["--destdir", str(dest.resolve())]
    if langs:
        command += ["--joined-dictionary", "--source-lang", langs[0], "--target-lang", langs[1]]
    else:
        command += ["--only-source"]
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
    text: dict[str, dict] = {subset: {} for subset in subsets.values()}
    for lang, name, sentences, tokens, unknown in TEXT.findall(done.stdout):
        pieces = int(tokens) - int(sentences)  # it counts an end of sentence each
        text[subsets[name]][lang] = {"sentences": int(sentences), "pieces": pieces, "unknown": float(unknown)}
    return {"types": int(TYPES.search(done.stdout)[1]), "text": text}
