"""Text of several language pairs, and the data that `deepnet prepare corpus multilingual` makes of it."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from deepnet_fairseq.cli import main
from deepnet_fairseq.data import multilingual
from deepnet_fairseq.data.miniature.text import translations

LANGS = ("de", "en", "fr")
TRAINING_PAIRS = {"de-en": 360, "en-fr": 90}  # sentence pairs
HELD_OUT = 20  # sentence pairs of a validation or test set
MISSING_SET = ("en-fr", "valid")  # the text has no files of this set


def prepare_many_pairs(text: Path, dest: Path, *flags: str) -> Path:
    """Run `deepnet prepare corpus multilingual` in this process; return `dest`, the folder that it makes.

    text: folder with PAIR/SUBSET.LANG; flags: further ones
    """
    main(["prepare", "corpus", "multilingual", str(dest), "--from", str(text), "--workers", "1", *flags])
    return dest


@pytest.fixture(scope="module", name="many_pairs_text")
def make_many_pairs_text(tmp_path_factory) -> Path:
    """Provide a folder with text, PAIR/SUBSET.LANG of both pairs; SUBSET is train, valid or test."""
    folder = tmp_path_factory.mktemp("text")
    rows = translations("many", LANGS)  # an endless iterator of distinct sentences, each in all LANGS
    for pair, size in TRAINING_PAIRS.items():
        (folder / pair).mkdir()
        for subset, count in {"train": size, "valid": HELD_OUT, "test": HELD_OUT}.items():
            chosen = list(islice(rows, count))
            if (pair, subset) == MISSING_SET:
                continue
            for lang in pair.split("-"):
                column = LANGS.index(lang)
                sentences = "".join(f"{row[column]}\n" for row in chosen)
                (folder / pair / f"{subset}.{lang}").write_text(sentences)
    return folder


@pytest.fixture(scope="module", name="many_pairs")
def make_many_pairs(many_pairs_text, tmp_path_factory) -> Path:
    """Provide the folder of a prepared corpus of both pairs, with its binarised data in bin/."""
    return prepare_many_pairs(many_pairs_text, tmp_path_factory.mktemp("prepared") / "dest", "--vocab", "300")


@pytest.fixture(scope="module", name="sharded_pairs")
def make_sharded_pairs(many_pairs_text, many_pairs, tmp_path_factory) -> Path:
    """Provide the folder of the same corpus in two shards, bin/shard00 and bin/shard01, by the pieces of `many_pairs`.

    A pair of languages needs at least 100 sentence pairs a shard here: de-en's 360 are in both shards, en-fr's 90 in
    the first alone.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(multilingual, "LEAST_IN_SHARD", 100)
        dest = tmp_path_factory.mktemp("sharded") / "dest"
        return prepare_many_pairs(many_pairs_text, dest, "--shards", "2", "--spm", str(many_pairs / "spm.model"))
