"""Find the vocabulary of a trained model (--like), to prepare a second corpus with the same pieces and dictionaries.

A model is fine-tuned on text that is cut as its own was, because each row of its embeddings stands for one piece. Its
vocabulary, a SentencePiece model and fairseq's dictionaries, is with the data that it was trained on, and in folders of
`deepnet export`.

A "dictionary" is a file dict.LANG.txt of fairseq, with a symbol and its count in each line. "Data" are binarised data:
a folder, or fairseq's list of folders, of which the first has the dictionaries.
"""

from __future__ import annotations

import argparse
import os
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..files import parse_json, read_json_object, split_paths
from ..wording import counted
from . import digests
from .lines import read_lines, write_lines
from .vocabulary import FAIRSEQ_SPECIAL

EXPORTED = "translation.json"  # file in a folder of `deepnet export` that tells how to prepare text for its model
MODELS = ("spm.model", "sentencepiece.bpe.model")  # names of a SentencePiece model with data, and in exports
CHECKPOINTS = ("checkpoint_last.pt", "checkpoint_best.pt")  # of a run's folder, the preferred one first
SHOWN = 8  # unseen symbols that a warning names


@dataclass(frozen=True)
class KnownVocabulary:
    """Vocabulary of a trained model.

    pieces: file of the SentencePiece model that cuts its text
    dictionaries: language -> lines of fairseq's dict.LANG.txt
    """

    pieces: Path
    dictionaries: dict[str, list[str]]

    def write_dictionaries(self, folder: Path) -> dict[str, Path]:
        """Write dict.LANG.txt of each language into `folder`; return language -> its path."""
        paths = {lang: folder / f"dict.{lang}.txt" for lang in self.dictionaries}
        for lang, path in paths.items():
            write_lines(path, self.dictionaries[lang])
        return paths

    def note_unseen(self, lang: str, subset: str, lines: Iterable[str]) -> None:
        """Print a warning if a text has pieces that the dictionary of its language lacks; they become <unk>.

        lang: language of the text
        subset: name of the text, for the warning
        lines: of the text, with blanks between the pieces
        """
        known = set(_symbols(self.dictionaries[lang]))
        unseen = Counter[str]()  # piece -> its count in the text
        affected = 0  # lines with an unseen piece
        total = 0  # lines
        for line in lines:
            total += 1
            missing = [piece for piece in line.split() if piece not in known]
            if missing:
                affected += 1
                unseen.update(missing)

        if unseen:
            shown = " ".join(piece for piece, _ in unseen.most_common(SHOWN))
            if len(unseen) > SHOWN:
                shown += " ..."
            print(
                f"| WARNING: {subset}.{lang}: the model has never seen some symbols of {affected:,} of "
                f"{counted(total, 'line')} ({counted(len(unseen), 'kind')}, {counted(unseen.total(), 'time')} <unk>): "
                f"{shown}"
            )


def find_vocabulary(given: str | os.PathLike[str], langs: tuple[str, str]) -> KnownVocabulary:
    """Return the vocabulary of a model, with its dictionaries of two languages.

    given: value of --like: a checkpoint, a run's folder of checkpoints, a folder of binarised data, or one of
        `deepnet export`
    langs: source and target

    Before this is called with a checkpoint, deepnet_fairseq.register() must be called, so that torch can load fairseq's
    classes. Raises a UserError that names --like if the pieces and dictionaries cannot be found.
    """
    path = Path(given)
    if not path.exists():
        raise UserError(f"--like {path}", "no such file or folder; give a checkpoint, its data, or an exported folder")
    if path.is_dir() and (path / EXPORTED).is_file():
        return _of_export(path, langs)
    if path.is_dir() and any(path.glob("dict.*.txt")):
        return _of_data(f"--like {path}", str(path), langs)
    if path.is_dir():
        path = _checkpoint_in(path)
    return _of_checkpoint(path, langs)


def _checkpoint_in(folder: Path) -> Path:
    """Return a checkpoint in a run's folder: checkpoint_last.pt, else checkpoint_best.pt, else the newest file *.pt.

    Any will do, because all checkpoints of a run have the same vocabulary. Raises a UserError if there is none.
    """
    named = _first_file(folder, CHECKPOINTS)
    if named is not None:
        return named

    others = sorted(folder.glob("*.pt"), key=lambda path: path.stat().st_mtime)
    if not others:
        raise UserError(
            f"--like {folder}",
            f"holds neither dict.LANG.txt nor a checkpoint nor {EXPORTED}; give a checkpoint, the "
            "binarised data of its run, or a folder of `deepnet export`",
        )
    return others[-1]


def _of_checkpoint(path: Path, langs: tuple[str, str]) -> KnownVocabulary:
    """Return the vocabulary of the data that a checkpoint was trained on.

    path: of the checkpoint, which names the folder of its data

    Raises a UserError if the file is no checkpoint, or if its data are gone or have another vocabulary by now.
    """
    import torch  # here, because data and exports are read without it

    try:
        content = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
        task = _task_of(content)
        data = task["data"]
    except Exception as error:  # a file of another kind makes torch raise errors of any kind
        raise UserError(f"--like {path}", "is no checkpoint of fairseq-train that can be read") from error
    where = f"--like {path}: its data {data}"  # beginning of messages
    folder = Path(split_paths(data)[0])
    if not folder.is_dir():
        raise UserError(f"{where} are not there; give the folder where they lie now, or one of `deepnet export`")
    known = _of_data(where, data, langs)

    # The data may have been prepared anew since the training. The checkpoint has recorded digests of its SentencePiece
    # model, as "pieces", and of its dictionaries, as "source" and "target". Each must be that of one of the files that
    # are there now. Older checkpoints have recorded none.
    recorded = digests.recorded(content.get("task_state")) or {}
    compared = ["pieces"]
    present = [digests.of_cutting([known.pieces])]
    if str(task.get("_name")) == "translation":  # dictionaries of other tasks have tags of languages that files lack
        compared += ["source", "target"]
        for file in folder.glob("dict.*.txt"):
            present.append(digests.of_symbols([*FAIRSEQ_SPECIAL, *_symbols(read_lines(file))]))
    for name in compared:
        if recorded.get(name) is not None and recorded[name] not in present:
            raise UserError(f"{where} have been prepared again since; give a copy of the old ones, or an export")
    return known


def _task_of(content: Any) -> dict[str, Any]:
    """Return the settings of a checkpoint's task, with the name of the task as "_name".

    content: what torch.load returned; new releases of fairseq save "cfg", which has them as "task", and old ones a
        Namespace of all settings as "args"
    """
    section = (content.get("cfg") or {}).get("task") or content.get("args")
    if isinstance(section, argparse.Namespace):
        return {"_name": getattr(section, "task", None)} | vars(section)
    return section


def _of_data(where: str, data: str, langs: tuple[str, str]) -> KnownVocabulary:
    """Return the vocabulary of binarised data.

    Raises a UserError if a dictionary is missing, or if no SentencePiece model is found that cut the data.

    where: beginning of messages, which names the data
    data: their folder, or fairseq's list of folders
    langs: source and target
    """
    dictionaries = {lang: _dictionary_lines(where, data, lang) for lang in langs}
    files = digests.cutting_files(data)  # a SentencePiece model, merges of subword-nmt, or GPT-2's two files
    if len(files) != 1 or files[0].name not in MODELS:
        first = Path(split_paths(data)[0])
        has = "were cut by other means" if files else "hold no spm.model"
        raise UserError(
            f"{where} {has}",
            f"cut the text as it was cut then, and binarise it by fairseq-preprocess --srcdict and "
            f"--tgtdict with {first / f'dict.{langs[0]}.txt'}",
        )
    return KnownVocabulary(files[0], dictionaries)


def _dictionary_lines(where: str, data: str, lang: str) -> list[str]:
    """Return the lines of a language's dictionary.

    For a language that the data lack, these are the lines of the dictionary that all their languages share; a UserError
    is raised if they have different ones, or none.

    where: beginning of messages, which names the data
    data: their folder, or fairseq's list of folders
    """
    folder = Path(split_paths(data)[0])
    own = folder / f"dict.{lang}.txt"
    if own.is_file():
        return list(read_lines(own))

    others = {path: list(read_lines(path)) for path in sorted(folder.glob("dict.*.txt"))}
    distinct = {tuple(_symbols(lines)) for lines in others.values()}
    if len(distinct) != 1:
        names = ", ".join(path.name for path in others) or "no dictionary"
        raise UserError(where, f"there is no {own.name}, but {names}; give SOURCE and TARGET as the model has them")
    return next(iter(others.values()))


def _of_export(folder: Path, langs: tuple[str, str]) -> KnownVocabulary:
    """Return the vocabulary of a model in a folder of `deepnet export`, for CTranslate2 or Hugging Face.

    langs: source and target

    Raises a UserError if the model's text is not cut by SentencePiece, or if a vocabulary is missing or broken.
    """
    where = f"--like {folder}"
    described = read_json_object(folder / EXPORTED, "export the model again with `deepnet export`")
    pieces = _first_file(folder, MODELS)
    if described.get("pieces") != "sentencepiece" or pieces is None:
        raise UserError(where, "its model's text is not cut by SentencePiece; give the data of its run")

    tags = set((described.get("symbols") or {}).values())  # of languages; the task adds them, dict.LANG.txt has none
    dictionaries = {}
    for lang, side in zip(langs, ("source", "target"), strict=True):
        names = ("shared_vocabulary.json", f"{side}_vocabulary.json", "vocab.json")
        file = _first_file(folder, names)
        if file is None:
            raise UserError(where, f"holds none of {', '.join(names)}; export the model again")
        # a list of symbols or a dict, symbol -> number; both have the symbols in the order of their numbers
        try:
            symbols = list(parse_json(file.read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            raise UserError(where, f"its {file.name} is broken ({error}); export the model again") from error
        not_special = symbols[len(FAIRSEQ_SPECIAL) :]  # dict.LANG.txt lacks fairseq's special symbols, which are first
        dictionaries[lang] = [f"{symbol} 1" for symbol in not_special if symbol not in tags]  # any count will do
    return KnownVocabulary(pieces, dictionaries)


def _first_file(folder: Path, names: Iterable[str]) -> Path | None:
    """Return the path of the first of `names` that is a file in the folder, None if none is."""
    for name in names:
        if (folder / name).is_file():
            return folder / name
    return None


def _symbols(lines: Iterable[str]) -> list[str]:
    """Return the symbols of a dictionary's lines, without their counts and fairseq's flag "overwrite"."""
    return [re.sub(r" \d+( #fairseq:overwrite)?$", "", line) for line in lines]
