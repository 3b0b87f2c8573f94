"""Text in, text out: translate lines by a checkpoint or by a folder that `deepnet export` wrote.

translator.py translates lines with an engine, a program of engines.py that translates sentences. pieces.py segments
text and joins pieces; description.py says by which of its classes a model does so, and checkpoint.py and text.py find
it out for a checkpoint. loading.py keeps models for servers, incoming.py reads lines as they come. To cut a line is to
segment it into pieces. A folder for CTranslate2 needs neither torch nor fairseq, so that nothing here imports them
before a checkpoint does.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

from tqdm import tqdm

from ...data.lines import read_lines
from ...errors import UserError
from ...wording import counted
from .description import NAME, Description, read_description
from .engines import CTranslate2, Fairseq, HuggingFace, Hypothesis, Settings
from .incoming import chunks
from .loading import PROCESS, Models
from .translator import CHUNK, TooLong, Translator, Unseen


def load(
    model: str, data: str | None = None, source: str | None = None, target: str | None = None,
    settings: Settings | None = None, subwords: str | None = None,
) -> Translator:  # fmt: skip
    """Load a model: a checkpoint with its data, or a folder of `deepnet export --to ctranslate2` or `huggingface`.

    model: path of either. data: folder of a checkpoint's binarised data, by default the one it was trained on; source,
    target: languages, as "de", which a multilingual model needs; settings: of the search, by default Settings();
    subwords: file that segmented a checkpoint's text, "none" for text that comes segmented, by default the file beside
    the data. UserError for a model that does not translate, and for arguments, named as flags of `deepnet translate`,
    that mean nothing for it.
    """
    if settings is None:
        settings = Settings()
    for name in ("beam", "max_tokens", "threads"):
        number = getattr(settings, name)
        if number is not None and number < 1:
            flag = name.replace("_", "-")
            raise UserError(f"--{flag} {number}", "must be at least 1")

    path = Path(model)
    if not path.exists():
        raise UserError(model, "no such file or folder; give a checkpoint, or a folder of `deepnet export`")
    if not path.is_dir():  # a checkpoint
        with PROCESS.load_alone():
            from .checkpoint import load_checkpoint  # imports torch and fairseq

            return load_checkpoint(model, data, subwords, languages=(source, target), settings=settings)

    # an exported folder
    for flag, given in (("--data", data), ("--subwords", subwords)):
        if given is not None:
            raise UserError(f"{flag} {given}", f"only with a checkpoint; {path} holds what cuts its text")
    described = read_description(path)
    direction = described.direction(source, target)

    engine_class: Any = HuggingFace
    library = "transformers"
    if (path / "model.bin").is_file():  # CTranslate2's file of weights
        engine_class = CTranslate2
        library = "ctranslate2"
    if importlib.util.find_spec(library) is None:
        raise UserError(path, f"needs {library}; pip install {library}")
    with PROCESS.load_alone():
        return Translator(engine_class.of_folder(path, described, direction, settings), described)


def run(
    model: str, file: str | None, settings: Settings, data: str | None, source: str | None, target: str | None,
    subwords: str | None, nbest: int | None = None,
) -> None:  # fmt: skip
    """Translate a file, or standard input, to standard output; tell the engine and the progress on stderr.

    file: its path, None or "-" for standard input. A regular file is checked to its end before its first line is
    translated; a pipe is translated as its lines come. nbest: print so many translations of each line, with their
    scores; None for one without. Other arguments: as for `load`. UserError, with its number, for a line that is not
    UTF-8; and at the end, with all lines translated but these, for lines that are too long for the model.
    """
    _check_order(model, file)
    path = _regular_file(file)
    _check_nbest(nbest, settings)
    translator = load(model, data=data, source=source, target=target, settings=settings, subwords=subwords)
    print(
        f"| {translator.engine.name}, {counted(translator.engine.threads, 'thread')}, beam {settings.beam}",
        file=sys.stderr,
    )

    too_long = TooLong()
    if path is not None:
        _translate_file(translator, path, nbest, too_long)
    elif file is None or file == "-" or os.path.realpath(file) == os.path.realpath("/dev/stdin"):
        # a file that is another name of standard input, as /dev/fd/0, is not opened a second time
        _translate_stream(translator, sys.stdin.buffer, "standard input", nbest, too_long)
    else:  # a named pipe or a terminal
        with open(file, "rb", buffering=0) as pipe:
            _translate_stream(translator, pipe, file, nbest, too_long)
    if too_long.lines:
        raise UserError(too_long, f"{_too_long_for(translator)}; not translated, so split what is too long")


def _check_order(model: str, file: str | None) -> None:
    """Raise a UserError, before anything is loaded, if `file` is a model and `model` is none: they were swapped."""
    if file is not None and _is_model(Path(file)) and not _is_model(Path(model)):
        mended = shlex.join(("deepnet", "translate", file, model))
        raise UserError(model, f"is no checkpoint or exported folder, but {file} is; did you mean {mended}?")


def _is_model(path: Path) -> bool:
    """Return whether a folder has the description of an export, or a file begins as torch writes checkpoints."""
    if path.is_dir():
        return (path / NAME).exists()
    if not path.is_file():  # a pipe, which could not be read a second time
        return False
    with open(path, "rb") as file:
        # a zip archive, or a pickle of torch before 1.6; no text in UTF-8 begins with the latter's byte
        return file.read(4).startswith((b"PK\x03\x04", b"\x80"))


def _regular_file(file: str | None) -> Path | None:
    """Return the path of a file that can be read twice, None for standard input and pipes.

    UserError for a folder, a file that does not exist, and closed standard input.
    """
    if file is None or file == "-":
        if sys.stdin is None:
            raise UserError("standard input", "is closed; give a FILE, or text through a pipe")
        return None
    path = Path(file)
    if not path.exists():
        raise UserError(file, "no such file")
    if path.is_dir():
        raise UserError(file, "is a folder; give a file of text")
    return path if path.is_file() else None


def _check_nbest(nbest: int | None, settings: Settings) -> None:
    """Raise a UserError if a search with settings.beam beams cannot find `nbest` translations; None is always right."""
    if nbest is not None and not 1 <= nbest <= settings.beam:
        raise UserError(f"--nbest {nbest}", f"must be from 1 to the number of beams, --beam {settings.beam}")


def _translate_file(translator: Translator, path: Path, nbest: int | None, too_long: TooLong) -> None:
    """Check all lines of a file, warn of unseen pieces and of lines that are too long, then translate it.

    nbest: as for `run`; too_long: gets the lines that have no translation because they are too long.
    """
    unseen = Unseen()
    lines = 0  # how many
    for line in read_lines(path):
        lines += 1
        translator.cut(line, lines, unseen, too_long)
    _say_unseen(unseen, lines)
    _say_too_long(too_long, translator)

    results = translator.translate(read_lines(path), nbest=nbest, too_long=TooLong())  # which counts them once more
    with tqdm(total=lines, unit=" lines", disable=None) as bar:  # None: no bar unless stderr is a terminal
        for number, result in enumerate(results, 1):
            _print(result, number)
            bar.update()


def _translate_stream(translator: Translator, file: IO[bytes], name: str, nbest: int | None, too_long: TooLong) -> None:
    """Translate lines as they come: those that have arrived together, without waiting for more.

    name: of the file, for messages; nbest: as for `run`; too_long: gets the lines that have no translation because they
    are too long. Unseen pieces are warned of when the first ones come, and at the end if more lines have had some
    since. Lines that are too long are warned of when the first ones come.
    """
    unseen = Unseen()
    done = 0  # how many lines are translated
    warned_of = 0  # how many lines with unseen pieces the last warning counted
    with tqdm(unit=" lines", disable=None) as bar:
        for lines in chunks(file, name, CHUNK):
            were_too_long = too_long.lines
            results = translator.translate_chunk(lines, number=done + 1, nbest=nbest, unseen=unseen, too_long=too_long)
            if not were_too_long:  # at once, for a stream may have no end
                _say_too_long(too_long, translator)
            for number, result in enumerate(results, done + 1):
                _print(result, number)
            sys.stdout.flush()
            done += len(lines)
            bar.update(len(lines))

            if unseen.lines and not warned_of:  # at once, for a stream may have no end
                _say_unseen(unseen, done)
                warned_of = unseen.lines
    if unseen.lines > warned_of:
        _say_unseen(unseen, done)


def _print(result: str | list[Hypothesis], number: int) -> None:
    """Print the result for one line: a translation, or a line NUMBER TAB SCORE TAB TEXT for each of several.

    number: of the line in the input, from 1.
    """
    if isinstance(result, str):
        sys.stdout.write(f"{result}\n")
    else:
        for hypothesis in result:
            sys.stdout.write(f"{number}\t{hypothesis.score:.4f}\t{hypothesis.text}\n")


def _say_unseen(unseen: Unseen, lines: int) -> None:
    """Warn on stderr of pieces that are not in the model's vocabulary, if there are any; lines: how many were read."""
    if unseen.lines:
        have = "has" if unseen.lines == 1 else "have"
        print(
            f"| WARNING: {unseen.lines:,} of {counted(lines, 'line')} {have} pieces that are not in the model's "
            f"vocabulary and are read as unknown (<unk>): {unseen}",
            file=sys.stderr,
        )


def _say_too_long(too_long: TooLong, translator: Translator) -> None:
    """Warn on stderr of lines that are too long for the model, if there are any."""
    if too_long.lines:
        print(f"| WARNING: {too_long}: {_too_long_for(translator)}; the translation is empty", file=sys.stderr)


def _too_long_for(translator: Translator) -> str:
    """Return what is wrong with lines that are too long, for a message."""
    return f"more tokens than the {translator.source_positions:,} that the model has positions for"


MODELS = Models()  # that calls of `translate` have loaded


def translate(
    model: str | Path, lines: Iterable[str], *, data: str | None = None, source_lang: str | None = None,
    target_lang: str | None = None, subwords: str | None = None, nbest: int | None = None, **settings: Any,
) -> list[Any]:  # fmt: skip
    """Translate lines of text; the model stays loaded for later calls with the same arguments.

    model: path of a checkpoint or exported folder; data, source_lang, target_lang, subwords: as data, source, target
    and subwords of `load`; nbest: return for each line a list of its `nbest` best translations, as pairs (text, score),
    in place of a text; settings: fields of engines.Settings (beam, lenpen, max_tokens, threads, int8).
    Several threads may call it at once, and processes that were forked from one that did. UserError for what cannot be
    translated; a UserWarning names characters and pieces that are not in the model's vocabulary.
    """
    if isinstance(lines, str):  # whose characters would be taken for lines
        raise UserError("lines", "give a list of lines, as [text]")
    options = {"data": data, "source": source_lang, "target": target_lang, "subwords": subwords}
    search = Settings(**settings)
    _check_nbest(nbest, search)
    key = (str(model), data, source_lang, target_lang, subwords, search)  # all that `load` is given
    translator = MODELS.get(key, lambda: load(str(model), **options, settings=search))

    unseen = Unseen()
    translations = list(translator.translate(lines, nbest=nbest, unseen=unseen))
    new = (unseen.characters.keys() | unseen.pieces.keys()) - translator.warned_of
    if new:  # a character is warned of once, so that a server's log does not fill with warnings
        translator.warned_of |= new
        message = f"{model}: some pieces are not in the model's vocabulary and are read as unknown (<unk>): {unseen}"
        warnings.warn(message, stacklevel=3)  # names the line that calls deepnet_fairseq.translate
    return translations


__all__ = ["CHUNK", "NAME", "CTranslate2", "Description", "Fairseq", "HuggingFace", "Hypothesis", "Settings", "TooLong",
           "Translator", "Unseen", "load", "read_description", "translate"]  # fmt: skip
