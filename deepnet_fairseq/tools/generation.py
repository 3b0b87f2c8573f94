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


def translate_directions(directions: list[str], folder: Path, flags: list[str]) -> None:
    """Write fairseq-generate's output for each of `directions` to FOLDER/SRC-TGT.txt, its log to FOLDER/SRC-TGT.log.

    directions: as "de-en"; flags: arguments of fairseq-generate, DATA among them, without the languages. A direction
    whose output exists already is skipped; a call that was interrupted leaves no output of the direction that it was
    at. Raises a UserError, naming --directions, for a word that is no direction, or may be several.
    """
    # Codes of the languages of DATA, by its dictionaries. It is not known here which of the flags is DATA, so each is
    # looked at as a folder.
    codes = []
    for flag in flags:
        for path in Path(flag).glob("dict.*.txt"):
            codes.append(path.name.removeprefix("dict.").removesuffix(".txt"))
    pairs = {direction: parse_pair("--directions", direction, codes) for direction in directions}
    remaining = [direction for direction in directions if not (folder / f"{direction}.txt").exists()]

    folder.mkdir(parents=True, exist_ok=True)
    for unfinished in folder.glob("*.part"):  # what an interrupted call has left, as files.whole names it
        unfinished.unlink()
    with _models_loaded_once():
        for direction in tqdm(remaining, unit=" directions", disable=None):  # None: a bar only on a terminal
            source, target = pairs[direction]
            _translate(source, target, result=folder / f"{direction}.txt", flags=flags)


def _translate(source: str, target: str, result: Path, flags: list[str]) -> None:
    """Write fairseq-generate's output for one direction to `result`, whole or not at all, and its log beside it.

    source, target: languages; flags: as for translate_directions.
    """
    parser = options.get_generation_parser()
    args = options.parse_args_and_arch(parser, [*flags, "--source-lang", source, "--target-lang", target])
    log = result.with_suffix(".log")
    # `part` is a temporary file, which is renamed to `result` when it is complete
    with _log_to(log), whole(result) as part, open(part, "w", encoding="utf-8") as file, redirect_stdout(file):
        generate.main(args)


@contextmanager
def _models_loaded_once() -> Iterator[None]:
    """Let fairseq-generate load each model once while the context lasts.

    fairseq's load_model_ensemble is replaced by a function that keeps its results.
    """
    load = checkpoint_utils.load_model_ensemble
    loaded: dict = {}  # names of the checkpoints' files -> what load_model_ensemble has returned

    def load_model_ensemble(filenames, *args, **kwargs):
        """Load the models of these files, or return what the first call has loaded.

        The other arguments are fairseq's. Only the task differs between directions, and only building a model reads it.
        """
        key = tuple(filenames)
        if key not in loaded:
            loaded[key] = load(filenames, *args, **kwargs)
        return loaded[key]

    checkpoint_utils.load_model_ensemble = load_model_ensemble
    try:
        yield
    finally:
        checkpoint_utils.load_model_ensemble = load


@contextmanager
def _log_to(path: Path) -> Iterator[None]:
    """Send log messages from level INFO on to the file `path`, and nowhere else, while the context lasts.

    The levels of the root logger and of fairseq's, which has one of its own, and the root's handlers are put back.
    """
    root = logging.getLogger()
    fairseq = logging.getLogger("fairseq")
    root_handlers = root.handlers[:]
    root_level = root.level
    fairseq_level = fairseq.level

    file = logging.FileHandler(path, "w", encoding="utf-8")
    file.setFormatter(logging.Formatter("%(asctime)s | %(levelname)s | %(name)s | %(message)s"))
    root.handlers[:] = [file]
    root.setLevel(logging.INFO)
    fairseq.setLevel(logging.INFO)
    try:
        yield
    finally:
        root.handlers[:] = root_handlers
        root.setLevel(root_level)
        fairseq.setLevel(fairseq_level)
        file.close()
