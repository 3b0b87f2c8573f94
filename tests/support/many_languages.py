"""A small text of three languages, prepared; and what fairseq reads of it."""

from __future__ import annotations

import re
from itertools import islice

import pytest
from fairseq.data import Dictionary, data_utils

from deepnet_fairseq.cli import main
from deepnet_fairseq.data.miniature.text import translations
from deepnet_fairseq.data.multilingual import prepare as preparation

LANGS = ("de", "en", "fr")
SIZES = {"de-en": 360, "en-fr": 90}
HELD_OUT = 20


def write_text(folder):
    """FOLDER/PAIR/SUBSET.LANG; en-fr has no valid set."""
    rows = translations("many", LANGS)
    for pair, size in SIZES.items():
        for subset, count in {"train": size, "valid": HELD_OUT, "test": HELD_OUT}.items():
            chosen = list(islice(rows, count))
            if (pair, subset) != ("en-fr", "valid"):
                write(folder / pair / subset, pair.split("-"), [[row[LANGS.index(x)] for row in chosen] for x in LANGS])
    return folder


def write(prefix, langs, sides):
    prefix.parent.mkdir(exist_ok=True)
    for lang in langs:
        prefix.with_suffix(f".{lang}").write_text("".join(f"{line}\n" for line in sides[LANGS.index(lang)]))


def prepare(text, dest, *flags):
    main(["prepare", "multilingual", str(dest), "--from", str(text), "--workers", "1", *flags])
    return dest


def prepare_shards(text, prepared, dest):
    """de-en in two shards, en-fr, which is small, in one; with the vocabulary of `prepared`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preparation, "LEAST", 100)
        return prepare(text, dest, "--shards", "2", "--spm", str(prepared / "spm.model"))


def lines(path):
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def sentences(folder, stem, lang):
    """Binarised sentences as the text they stand for, by fairseq's own reading of data and dictionary."""
    dictionary = Dictionary.load(str(folder / f"dict.{lang}.txt"))
    data = data_utils.load_indexed_dataset(str(folder / f"{stem}.{lang}"), dictionary)
    return [dictionary.string(ids, bpe_symbol="sentencepiece") for ids in data]


def stands_for(found, given):
    """Equal, but for characters too rare for the vocabulary."""
    return re.fullmatch(re.escape(found).replace("<unk>", ".+"), given)
