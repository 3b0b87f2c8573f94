"""Find how a checkpoint's text becomes numbers: its dictionaries, what segments its sentences, and its language tags.

fairseq's settings of a run's task, and the folder of its binarised data, tell most of it.
"""

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

MULTILINGUAL = "translation_multi_simple_epoch"  # fairseq's task
TRANSLATION = ("translation", MULTILINGUAL)
FILES = ", ".join(f"{kind.file} ({name})" for name, kind in KINDS.items() if kind.file)  # for a message


@dataclass(frozen=True)
class Text:
    """The text of a translation model.

    dictionaries: fairseq's, of source and target, with tags of languages; file: that text is segmented by (pieces.py),
    None for text that comes segmented.
    """

    described: Description
    dictionaries: tuple[Dictionary, Dictionary]
    file: Path | None

    def cutter(self, source: str, target: str):
        """Return an object of pieces.py that segments the source language and joins pieces of the target language."""
        return self.described.cutter(self.file, source, target)

    def write(self, folder: Path) -> None:
        """Write translation.json, and a copy of the file that segments text, into an exported folder."""
        self.described.write(folder)
        if self.file is not None:
            shutil.copyfile(self.file, folder / KINDS[self.described.pieces].file)


def open_task(section: dict[str, Any], data: str, vocabulary_sizes: tuple[int, int]):
    """Return fairseq's task of a run, set up on the binarised data in a folder.

    section: the task's section of the run's config; vocabulary_sizes: how many symbols the model reads and predicts.
    UserError, naming the folder, if it holds no data of that task, or data of other sizes.
    """
    settings = argparse.Namespace(**(section | {"data": data, "task": section["_name"]}))
    if section["_name"] == MULTILINGUAL:
        lang_dict = Path(section.get("lang_dict") or "").name
        if lang_dict:
            for folder in folders_of(data):
                if (folder / lang_dict).is_file():  # it may have moved with the data
                    settings.lang_dict = str(folder / lang_dict)
        # with these fairseq would set up a translation of one direction, and drop the pairs of the training
        settings.source_lang = None
        settings.target_lang = None

    try:
        task = tasks.setup_task(settings)
    except Exception as error:  # fairseq raises a bare one if it finds no languages
        problem = str(error) or "holds no dictionaries"
        raise UserError(f"--data {data}", f"{problem}; give the run's binarised data") from error

    dictionaries = (task.source_dictionary, task.target_dictionary)
    for side, dictionary, expected in zip(("source", "target"), dictionaries, vocabulary_sizes, strict=True):
        if expected != len(dictionary):
            raise UserError(
                f"--data {data}",
                f"the {side} dictionary has {len(dictionary)} symbols, the model {expected}; give the "
                "run's own data, or what `deepnet prepare text --like` has made for this model",
            )
    return task


def check_own(
    origin: dict[str, Any] | None, dictionaries: tuple[Dictionary, Dictionary], data: str, file: Path | None,
    subwords: str | None,
) -> None:  # fmt: skip
    """Raise a UserError, naming the flag, for a text that is not cut and numbered as that of the model's training.

    origin: of the checkpoint, as vocabulary.origin_of returns it, None if unknown: nothing is compared then;
    dictionaries, data, file: of the text at hand, the file as in Text; subwords: value of --subwords, which names the
    file, None without the flag.
    """
    sides = dict(zip(vocabulary.SIDES, dictionaries, strict=True))
    folder = None if subwords == "none" else data  # where the file is looked for if `file` is None
    present = vocabulary.digests_of(sides, folder, file)

    # what the flag names is compared on its own, and before the data, so that the error can name the flag
    if origin is not None and subwords not in (None, "none"):
        segmentation = {"pieces": present.pop("pieces")}
        problem = vocabulary.describe_mismatch(origin, segmentation, data, f"--subwords {subwords}")
        if problem:
            raise UserError(f"{problem}; leave it out, or give the file that lies with the data of its own run")

    vocabulary.check_vocabulary(origin, present, data, f"--data {data}")


def read_text(
    section: dict[str, Any], data: str, vocabulary_sizes: tuple[int, int], subwords: str | None, method: str,
    positions: tuple[int, int],
) -> Text:  # fmt: skip
    """Find the text of a translation model; its files are read, and nothing is written.

    section, data, vocabulary_sizes: as for open_task; subwords: file that segments text, "none" for text that comes
    segmented, None for the file beside the data; method, positions: as in Description. UserError for a task that is not
    translation, for data that are not the model's, and for tags that neither CTranslate2 nor transformers can use.
    """
    if section["_name"] not in TRANSLATION:
        raise UserError(f"--task {section['_name']}", f"translates no text; give a model of {' or '.join(TRANSLATION)}")
    task = open_task(section, data, vocabulary_sizes)
    pieces, path = find_subwords(subwords, data)
    chain = find_chain(data) if pieces == "subword_nmt" else None
    if section["_name"] == MULTILINGUAL:
        languages_and_tags = _languages_and_tags(task)
    else:  # both languages are set: fairseq finds them in the names of the data's files
        languages_and_tags = {"languages": (task.cfg.source_lang, task.cfg.target_lang)}
    described = Description(method=method, positions=positions, pieces=pieces, chain=chain, **languages_and_tags)

    form = None
    if not described.symbols:  # a multilingual model has no single source language
        form = read_form(folders_of(data)[-1], described.languages[0])
    if form is None:
        form = derive_form(described, task.source_dictionary.symbols)
    return Text(replace(described, form=form), (task.source_dictionary, task.target_dictionary), path)


def _languages_and_tags(task: Any) -> dict[str, Any]:
    """Return the fields of a Description that a task translation_multi_simple_epoch gives, by name.

    UserError for tags in the place of the end of sentence, which neither CTranslate2 nor transformers can use.
    """
    args = task.args
    if args.lang_tok_replacing_bos_eos:
        raise UserError(
            "--lang-tok-replacing-bos-eos",
            "tags stand for the ends of sentences, which neither CTranslate2 nor "
            "transformers has a place for; give --to transformer",
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
    """Return the kind of pieces, a key of KINDS, and the file that segments text, None for text that comes segmented.

    given: that file, whose content tells its kind, "none", or None for the file beside the data. UserError if there is
    no such file, or no SentencePiece model and no codes in it.
    """
    if given == "none":
        return "none", None
    if given is None:
        return _subwords_beside(data)

    path = Path(given)
    if not path.is_file():
        raise UserError(f"--subwords {given}", "no such file")
    with open(path, "rb") as file:
        beginning = file.read(1024)
    if beginning.startswith(b"#version") or b"</w>" in beginning:  # of subword-nmt's codes, new and old
        return "subword_nmt", path
    KINDS["sentencepiece"](path, source="", target="", chain=None)  # raises a UserError if it is no model
    return "sentencepiece", path


def _subwords_beside(data: str) -> tuple[str, Path]:
    """Return the kind of pieces and the file that lies with the data, by its name.

    The innermost of folders_of(data) comes first. UserError if none has such a file.
    """
    for folder in reversed(folders_of(data)):
        for name, kind in KINDS.items():
            if kind.file and (folder / kind.file).is_file():
                return name, folder / kind.file
    raise UserError(
        f"--data {data}",
        f"nothing there says what cut its text; give {FILES} as --subwords FILE, or "
        "--subwords none for text that comes cut, with blanks between pieces",
    )


def find_chain(data: str) -> dict[str, bool]:
    """Return the fields of the Chain by which Moses' tokens of the data's test set were made.

    A recipe that made the data says it; for other data it is a Chain of the defaults.
    """
    from ...data.moses import Chain

    chain = Chain()
    summary = folders_of(data)[0] / "recipe.json"
    if summary.is_file():
        name = read_object(summary, "make the corpus again").get("recipe")
        recipe = RECIPES.get(str(name))
        chain = getattr(recipe, "test_chain", chain)  # not all recipes have one
    return asdict(chain)
