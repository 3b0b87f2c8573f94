"""Run fairseq-generate for many directions of one model, which is loaded once.

OPUS-100 has 188 directions, Flores-101 as many as there are pairs: fairseq-generate would load the model for each.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

from fairseq import checkpoint_utils, options
from fairseq_cli import generate
from tqdm import tqdm

from ..files import whole
from ..languages import parse_pair


def translate(directions: list[str], folder: Path, flags: list[str]) -> None:
    """Write fairseq-generate's output for each of `directions` to FOLDER/SRC-TGT.txt, its log to FOLDER/SRC-TGT.log.

    flags: those of fairseq-generate, without the languages. A direction that exists is left alone; an interrupted one
    does not exist. Raises a UserError, naming --directions, for words that are no direction.
    """
    known = [path.name[5:-4] for flag in flags for path in Path(flag).glob("dict.*.txt")]  # language codes of DATA
    pairs = {direction: parse_pair("--directions", direction, known) for direction in directions}
    left = [direction for direction in directions if not (folder / f"{direction}.txt").exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for unfinished in folder.glob("*.part"):
        unfinished.unlink()
    with _loaded_once():
        for direction in tqdm(left, unit=" directions", disable=None):
            _translate(*pairs[direction], folder / f"{direction}.txt", flags)


def _translate(source: str, target: str, result: Path, flags: list[str]) -> None:
    parser = options.get_generation_parser()
    args = options.parse_args_and_arch(parser, [*flags, "--source-lang", source, "--target-lang", target])
    log = result.with_suffix(".log")
    with _logged(log), whole(result) as part, open(part, "w", encoding="utf-8") as file, redirect_stdout(file):
        generate.main(args)


@contextmanager
def _loaded_once() -> Iterator[None]:
    """Cache the models that fairseq loads, by their checkpoints, while the context lasts."""
    load, known = checkpoint_utils.load_model_ensemble, {}

    def load_model_ensemble(filenames, *args, **kwargs):
        key = tuple(filenames)
        if key not in known:
            known[key] = load(filenames, *args, **kwargs)
        return known[key]

    checkpoint_utils.load_model_ensemble = load_model_ensemble
    try:
        yield
    finally:
        checkpoint_utils.load_model_ensemble = load


@contextmanager
def _logged(path: Path) -> Iterator[None]:
    """Redirect fairseq's log to `path` alone while the context lasts."""
    root = logging.getLogger()
    before, level, fairseq = root.handlers[:], root.level, logging.getLogger("fairseq")
    file = logging.FileHandler(path, "w", encoding="utf-8")
    file.setFormatter(logging.Formatter("%(asctime)s | %(levelname)s | %(name)s | %(message)s"))
    of_fairseq = fairseq.level
    root.handlers[:] = [file]
    root.setLevel(logging.INFO)
    fairseq.setLevel(logging.INFO)
    try:
        yield
    finally:
        root.handlers[:] = before
        root.setLevel(level)
        fairseq.setLevel(of_fairseq)
        file.close()
