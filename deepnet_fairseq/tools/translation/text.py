"""Find how a run's text becomes numbers: its dictionaries, what segments its sentences, and its tags of languages."""

from __future__ import annotations

import argparse
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fairseq import tasks
from fairseq.data import Dictionary
from fairseq.data.multilingual.multilingual_utils import get_lang_tok

from ...data.digests import folders_of
from ...data.recipes import RECIPES
from ...data.text_form import read_form
from ...errors import UserError
from ...files import read_object
from ...plugin.checkpoints import vocabulary
from .description import Description, derive_form
from .pieces import KINDS

MANY = "translation_multi_simple_epoch"
TRANSLATION = ("translation", MANY)
WAYS = ", ".join(f"{kind.file} ({name})" for name, kind in KINDS.items() if kind.file)


@dataclass(frozen=True)
class Text:
    """The text of a translation model.

    dictionaries: fairseq's, of source and target, with tags of languages; file: what segments text, None for text that
    comes segmented.
    """

    described: Description
    dictionaries: tuple[Dictionary, Dictionary]
    file: Path | None

    def cutter(self, source: str, target: str):
        """Return what segments and joins text of a direction, of a class of pieces.py."""
        return self.described.cutter(self.file, source, target)

    def write(self, folder: Path) -> None:
        """Write translation.json, and what segments text, into an exported folder."""
        self.described.write(folder)
        if self.file is not None:
            shutil.copyfile(self.file, folder / KINDS[self.described.pieces].file)


def open_task(section: dict[str, Any], data: str, rows: tuple[int, int]):
    """Set up a run's task on the data in a folder; UserError, naming it, if they are not the model's.

    section: the task's settings; rows: how many symbols the model reads and predicts.
    """
    settings = argparse.Namespace(**(section | {"data": data, "task": section["_name"]}))
    if section["_name"] == MANY:
        lang_dict = Path(section.get("lang_dict") or "").name
        if lang_dict:
            for folder in folders_of(data):
                if (folder / lang_dict).is_file():  # it may have moved with the data
                    settings.lang_dict = str(folder / lang_dict)
        settings.source_lang = None  # fairseq would take them as those of a translation, and drop the training's pairs
        settings.target_lang = None
    try:
        task = tasks.setup_task(settings)
    except Exception as error:  # fairseq raises a bare one if it finds no languages
        problem = str(error) or "holds no dictionaries"
        raise UserError(f"--data {data}: {problem}; give the run's binarised data") from error

    dictionaries = (task.source_dictionary, task.target_dictionary)
    for side, dictionary, expected in zip(("source", "target"), dictionaries, rows, strict=True):
        if expected != len(dictionary):
            raise UserError(
                f"--data {data}: the {side} dictionary has {len(dictionary)} symbols, the model {expected}; give the "
                "run's own data, or what `deepnet prepare text --like` has made for this model"
            )
    return task


def check_own(
    origin: dict[str, Any] | None, dictionaries: tuple[Dictionary, Dictionary], data: str, file: Path | None,
    subwords: str | None,
) -> None:  # fmt: skip
    """Raise a UserError, naming the flag, if data or what segments text are not those that a model was trained with.

    origin: of the checkpoint, as vocabulary.origin_of says it; dictionaries, data, file: of the text at hand; subwords:
    value of the flag that named the file, None for no flag.
    """
    sides = dict(zip(vocabulary.SIDES, dictionaries, strict=True))
    present = vocabulary.digests_of(sides, None if subwords == "none" else data, file)
    if origin is not None and subwords not in (None, "none"):
        segmentation = {"pieces": present.pop("pieces")}
        problem = vocabulary.describe_mismatch(origin, segmentation, data, f"--subwords {subwords}")
        if problem:
            raise UserError(f"{problem}; leave it out, or give the file that lies with the data of its own run")
    vocabulary.check_vocabulary(origin, present, data, f"--data {data}")


def read_text(
    section: dict[str, Any], data: str, rows: tuple[int, int], subwords: str | None, method: str,
    positions: tuple[int, int],
) -> Text:  # fmt: skip
    """Return the text of a translation model.

    section, data, rows: as for open_task; subwords: file of what segments text, "none" for text that comes segmented,
    None for the file beside the data; method, positions: of the description. UserError for a task that is not
    translation, and for tags that no export has a place for.
    """
    if section["_name"] not in TRANSLATION:
        raise UserError(f"--task {section['_name']}: translates no text; give a model of {' or '.join(TRANSLATION)}")
    task = open_task(section, data, rows)
    pieces, path = find_subwords(subwords, data)
    chain = find_chain(data) if pieces == "subword_nmt" else None
    if section["_name"] == MANY:
        languages_and_tags = _tags(task)
    else:
        languages_and_tags = {"languages": (task.cfg.source_lang, task.cfg.target_lang)}  # which fairseq found
    described = Description(method=method, positions=positions, pieces=pieces, chain=chain, **languages_and_tags)

    form = None
    if not described.symbols:
        form = read_form(folders_of(data)[-1], described.languages[0])
    if form is None:
        form = derive_form(described, task.source_dictionary.symbols)
    return Text(replace(described, form=form), (task.source_dictionary, task.target_dictionary), path)


def _tags(task: Any) -> dict[str, Any]:
    """Return the languages and tags of translation_multi_simple_epoch: fields of a Description.

    UserError for tags that no export has a place for.
    """
    args = task.args
    if args.lang_tok_replacing_bos_eos:
        raise UserError(
            "--lang-tok-replacing-bos-eos: tags stand for the ends of sentences, which neither CTranslate2 nor "
            "transformers has a place for; give --to transformer"
        )

    source_tag, target_tag = args.langtoks["main"]
    return {
        "languages": tuple(task.langs),
        "symbols": {lang: get_lang_tok(lang, args.lang_tok_style) for lang in task.langs},
        "pairs": tuple(tuple(pair.split("-")) for pair in args.lang_pairs),
        "source_tag": source_tag or "",
        "target_tag": bool(target_tag),
    }


def find_subwords(given: str | None, data: str) -> tuple[str, Path | None]:
    """Return the kind of pieces and its file: `given`, or what lies with the data; UserError if there is none."""
    if given == "none":
        return "none", None
    if given is None:
        return _subwords_beside(data)

    path = Path(given)
    if not path.is_file():
        raise UserError(f"--subwords {given}: no such file")
    with open(path, "rb") as file:
        text = file.read(1024)
    if text.startswith(b"#version") or b"</w>" in text:
        return "subword_nmt", path
    KINDS["sentencepiece"](path, source="", target="", chain=None)  # raises a UserError if it is no model
    return "sentencepiece", path


def _subwords_beside(data: str) -> tuple[str, Path]:
    """Return the kind of pieces and its file that lie with the data, the innermost folder first; UserError for none."""
    for folder in reversed(folders_of(data)):
        for name, kind in KINDS.items():
            if kind.file and (folder / kind.file).is_file():
                return name, folder / kind.file
    raise UserError(
        f"--data {data}: nothing there says what cut its text; give {WAYS} as --subwords FILE, or "
        "--subwords none for text that comes cut, with blanks between pieces"
    )


def find_chain(data: str) -> dict[str, bool]:
    """Return how the test set of a recipe's corpus became Moses' tokens; for other data plain ones."""
    from ...data.moses import Chain

    chain = Chain()
    summary = folders_of(data)[0] / "recipe.json"
    if summary.is_file():
        name = read_object(summary, "make the corpus again").get("recipe")
        chain = getattr(RECIPES.get(str(name)), "test_chain", chain)  # not all recipes have one
    return asdict(chain)
