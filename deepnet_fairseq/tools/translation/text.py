"""Find how a checkpoint's text becomes numbers: its dictionaries, what segments its sentences, and its language tags.

fairseq's settings of a run's task, and the folder of its binarised data, tell most of it. To cut text is to segment it.
The task's section is the part "task" of a run's config as a dictionary: the task's settings and, as "_name", its name.
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
from ...files import read_json_object
from ...plugin.checkpoints import vocabulary
from .description import Description, derive_form
from .pieces import KINDS

MULTILINGUAL = "translation_multi_simple_epoch"  # fairseq's task
TRANSLATION = ("translation", MULTILINGUAL)
FILES = ", ".join(f"{kind.file} ({name})" for name, kind in KINDS.items() if kind.file)  # for a message


@dataclass(frozen=True)
class Text:
    """How a translation model's text becomes numbers.

    described: pieces, languages and form of the text; dictionaries: fairseq's, of source and target, which hold the
    tags of languages too; file: by which text is segmented (pieces.py), None for text that comes segmented.
    """

    described: Description
    dictionaries: tuple[Dictionary, Dictionary]
    file: Path | None

    def cutter(self, source: str, target: str) -> Any:
        """Return an object of pieces.py that segments the source language and joins pieces of the target language."""
        return self.described.cutter(self.file, source, target)

    def write(self, folder: Path) -> None:
        """Write translation.json, and a copy of the file that segments text, into an exported folder."""
        self.described.write(folder)
        if self.file is not None:
            shutil.copyfile(self.file, folder / KINDS[self.described.pieces].file)


def open_task(section: dict[str, Any], data: str, vocabulary_sizes: tuple[int, int]):
    """Return fairseq's task of a run, set up on the binarised data in a folder.

    section: the task's section of the run's config; data: the folder; vocabulary_sizes: how many symbols the model
    reads, and how many it predicts. UserError, naming the folder, if it holds no data of that task, or dictionaries of
    other sizes.
    """
    settings = argparse.Namespace(**(section | {"data": data, "task": section["_name"]}))
    if section["_name"] == MULTILINGUAL:
        # the file that lists the languages (--lang-dict) may have moved with the data
        lang_dict = Path(section.get("lang_dict") or "").name
        if lang_dict:
            for folder in folders_of(data):
                if (folder / lang_dict).is_file():
                    settings.lang_dict = str(folder / lang_dict)
        # with a source and a target fairseq would set up a single direction, and drop the pairs of the training
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
    """Raise a UserError, naming the flag, unless text is segmented and numbered as in the model's training.

    origin: where the checkpoint comes from, with digests of its vocabulary, as vocabulary.origin_of returns it; None if
    unknown: nothing is compared then. dictionaries, data, file: those that text is about to be translated with, the
    file as in Text; subwords: value of --subwords, which has named the file; "none", or None without the flag.
    """
    dictionary_of_side = dict(zip(vocabulary.SIDES, dictionaries, strict=True))
    folder = None if subwords == "none" else data  # where the file is looked for if `file` is None
    present = vocabulary.digests_of(dictionary_of_side, folder, file)

    # A file that the flag names is compared on its own first, so that the error can name the flag. Its digest is taken
    # out of `present`, and the dictionaries are compared below.
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
    """Return how a translation model's text becomes numbers; its files are read, and nothing is written.

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
    else:
        # fairseq has found both languages in the names of the data's files, if the settings do not name them
        languages_and_tags = {"languages": (task.cfg.source_lang, task.cfg.target_lang)}
    described = Description(method=method, positions=positions, pieces=pieces, chain=chain, **languages_and_tags)

    # the form of the source text: as it was recorded beside the data, or as the dictionary shows it
    form = None
    if not described.symbols:  # no language tags: the model is of one direction, and so of one source language
        form = read_form(folders_of(data)[-1], described.languages[0])
    if form is None:
        form = derive_form(described, task.source_dictionary.symbols)
    return Text(replace(described, form=form), (task.source_dictionary, task.target_dictionary), path)


def _languages_and_tags(task: Any) -> dict[str, Any]:
    """Return {name of a field of Description: value} for the fields that a task translation_multi_simple_epoch tells.

    These are languages, symbols, pairs, source_tag and target_tag. UserError for tags in the place of the end of
    sentence, which neither CTranslate2 nor transformers can use.
    """
    args = task.args
    if args.lang_tok_replacing_bos_eos:
        raise UserError(
            "--lang-tok-replacing-bos-eos",
            "tags stand for the ends of sentences, which neither CTranslate2 nor "
            "transformers has a place for; give --to transformer",
        )

    source_tag, target_tag = args.langtoks["main"]  # of the parallel text; None where there is no tag
    return {
        "languages": tuple(task.langs),
        "symbols": {lang: get_lang_tok(lang, args.lang_tok_style) for lang in task.langs},
        "pairs": tuple(tuple(pair.split("-")) for pair in args.lang_pairs),
        "source_tag": source_tag or "",
        "target_tag": bool(target_tag),
    }


def find_subwords(given: str | None, data: str) -> tuple[str, Path | None]:
    """Return (kind, file): the kind of pieces, a key of KINDS, and the file that text is segmented by.

    The file is None for text that comes segmented.

    given: value of --subwords: the file, whose content tells its kind; "none" for text that comes segmented; None
    without the flag, for the file beside the data. data: folder of the binarised data. UserError if there is no such
    file, or neither a SentencePiece model nor codes of subword-nmt in it.
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
    if beginning.startswith(b"#version") or b"</w>" in beginning:
        # codes of subword-nmt: newer ones begin with their version; merges at the end of a word have </w>
        return "subword_nmt", path
    KINDS["sentencepiece"](path, source="", target="", chain=None)  # raises a UserError if it is no model
    return "sentencepiece", path


def _subwords_beside(data: str) -> tuple[str, Path]:
    """Return (kind, file) for the file that segments text and lies with the data; its name tells the kind.

    It is looked for in the folder of the data, and in those above if a recipe made the data. UserError if none of them
    has such a file.
    """
    for folder in reversed(folders_of(data)):  # whose last one is that of the data
        for name, kind in KINDS.items():
            if kind.file and (folder / kind.file).is_file():
                return name, folder / kind.file
    raise UserError(
        f"--data {data}",
        f"nothing there says what cut its text; give {FILES} as --subwords FILE, or "
        "--subwords none for text that comes cut, with blanks between pieces",
    )


def find_chain(data: str) -> dict[str, bool]:
    """Return the fields of data.moses.Chain, the scripts that made the Moses tokens of the data's test set.

    They may differ from those of the training set. The recipe that made the data names them; for data without a recipe,
    and recipes that do not name them, they are the defaults.
    """
    from ...data.moses import Chain

    chain = Chain()
    summary = folders_of(data)[0] / "recipe.json"  # if a recipe made the data, it is in the first folder
    if summary.is_file():
        name = read_json_object(summary, "make the corpus again").get("recipe")
        recipe = RECIPES.get(str(name))
        chain = getattr(recipe, "test_chain", chain)
    return asdict(chain)
