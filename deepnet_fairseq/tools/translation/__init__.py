"""Text in, text out: translate lines by a checkpoint or by a folder that `deepnet export` wrote.

pieces.py cuts and joins text, description.py says how for a model, engines.py translates. A folder for CTranslate2
needs neither torch nor fairseq.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ...data.lines import is_blank, one_line, read_lines, split_lines
from ...errors import UserError
from ...threads import counted
from .description import NAME, Description, read_description
from .engines import CTranslate2, Fairseq, HuggingFace, Settings

CHUNK = 1000  # lines that are translated together, the longest with the longest


class Translator:
    """Translates lines of text.

    engine: one of engines.py; described: how much text its model takes.
    """

    def __init__(self, engine: Any, described: Description):
        self.engine, self.positions = engine, described.positions[0]

    def cut(self, line: str, number: int) -> list | None:
        """Return the tokens of a line, None for a blank one; UserError, with the number, if they are too many."""
        if is_blank(line):
            return None
        tokens = self.engine.cut(one_line(line))
        if len(tokens) + 1 > self.positions:  # the end is one more
            raise UserError(
                f"line {number}: is {len(tokens) + 1:,} tokens long, and the model has positions for "
                f"{self.positions:,}; split the line"
            )
        return tokens

    def translate(self, lines: Iterable[str], chunk: int = CHUNK) -> Iterator[str]:
        """Yield the translation of each line, in order; a blank line stays empty. chunk: lines taken at a time."""
        numbered = iter(enumerate(lines, 1))
        while taken := [self.cut(line, number) for number, line in islice(numbered, chunk)]:
            translations = iter(self.engine.translate([tokens for tokens in taken if tokens is not None]))
            yield from ("" if tokens is None else next(translations) for tokens in taken)


def load(
    model: str, data: str | None = None, source: str | None = None, target: str | None = None,
    settings: Settings | None = None, subwords: str | None = None,
) -> Translator:  # fmt: skip
    """Load a model: a checkpoint with its data, or a folder of `deepnet export --to ctranslate2` or `huggingface`.

    data: folder of a checkpoint's binarised data, by default where it was trained from; source, target: languages,
    which a multilingual model needs; subwords: file of what cut a checkpoint's text, by default that of the data.
    UserError for a model that does not translate, and for flags that mean nothing for it.
    """
    settings, path = settings or Settings(), Path(model)
    for flag in ("beam", "max_tokens", "threads"):
        if (number := getattr(settings, flag)) is not None and number < 1:
            raise UserError(f"--{flag.replace('_', '-')} {number}: must be at least 1")
    if not path.exists():
        raise UserError(f"{model}: no such file or folder; give a checkpoint, or a folder of `deepnet export`")
    if not path.is_dir():
        from .checkpoint import load_checkpoint

        return load_checkpoint(model, data, subwords, (source, target), settings)
    for flag, given in (("--data", data), ("--subwords", subwords)):
        if given is not None:
            raise UserError(f"{flag} {given}: only with a checkpoint; {path} holds what cuts its text")
    described = read_description(path)
    direction = described.direction(source, target)
    kind, library = (CTranslate2, "ctranslate2") if (path / "model.bin").is_file() else (HuggingFace, "transformers")
    if importlib.util.find_spec(library) is None:
        raise UserError(f"{path}: needs {library}; pip install {library}")
    return Translator(kind.of_folder(path, described, direction, settings), described)


def run(
    model: str, file: str | None, settings: Settings, data: str | None, source: str | None, target: str | None,
    subwords: str | None,
) -> None:  # fmt: skip
    """Translate a file, or standard input, to standard output; say on stderr what translates, and how far it is.

    A file is checked to its end before the first line is translated: UserError, with the number of a line that is not
    UTF-8 or too long. From a terminal each line is translated at once. Other arguments: as for `load`.
    """
    if file is not None and not Path(file).is_file():
        raise UserError(f"{file}: no such file")
    translator = load(model, data, source, target, settings, subwords)
    print(f"| {translator.engine.name}, {counted(translator.engine.threads)}, beam {settings.beam}", file=sys.stderr)
    if file is None:
        lines, number, chunk = split_lines(sys.stdin.buffer, "standard input"), None, 1 if sys.stdin.isatty() else CHUNK
    else:
        number, chunk = 0, CHUNK
        for number, line in enumerate(read_lines(Path(file)), 1):
            translator.cut(line, number)
        lines = read_lines(Path(file))
    with tqdm(total=number, unit=" lines", disable=None) as bar:
        for line in translator.translate(lines, chunk):
            sys.stdout.write(f"{line}\n")
            bar.update()
            if chunk == 1:
                sys.stdout.flush()


@functools.lru_cache(maxsize=1)
def _loaded(model: str, options: tuple, settings: Settings) -> Translator:
    return load(model, **dict(options), settings=settings)


def translate(
    model: str | Path, lines: Iterable[str], *, data: str | None = None, source_lang: str | None = None,
    target_lang: str | None = None, subwords: str | None = None, **settings: Any,
) -> list[str]:  # fmt: skip
    """Translate lines of text; the model stays loaded for the next call with the same arguments.

    model: checkpoint or exported folder; settings: of engines.Settings (beam, lenpen, max_tokens, threads, int8).
    UserError for what cannot be translated.
    """
    if isinstance(lines, str):
        raise UserError("lines: give a list of lines, as [text]")
    options = {"data": data, "source": source_lang, "target": target_lang, "subwords": subwords}
    return list(_loaded(str(model), tuple(options.items()), Settings(**settings)).translate(lines))


__all__ = ["CHUNK", "NAME", "CTranslate2", "Description", "Fairseq", "HuggingFace", "Settings", "Translator", "load",
           "read_description", "translate"]  # fmt: skip
