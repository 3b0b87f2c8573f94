"""Tests of the plans of every recipe in the registry, and of the miniatures of their files."""

from __future__ import annotations

import re

import pytest

from deepnet_fairseq.cli import main
from deepnet_fairseq.data.miniature import ARCHIVES
from deepnet_fairseq.data.recipes import RECIPES, Options

PUBLISHED = {  # facts that the plans state beside their files and counts
    "iwslt14_de_en": (
        "dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz",
        "19,982,877 bytes, md5:10936dfdf616504ddbd844e91b94ef4a", "1 to 175 words", "10,000 BPE merges",
        "one training pair in 23", "lower-case", "train: 160,239", "valid: 7,283", "test: 6,750",
    ),
    "opus100": (
        "https://object.pouta.csc.fi/OPUS-100/v1.0/opus-100-corpus-de-en-v1.0.tar.gz",
        "67,205,361 bytes, sha256:aca2cb2f", "250,000 pieces",
    ),
    "m2m102": ("OPUS-CCMatrix/v1/moses/de-en.txt.zip", "flores101_dataset.tar.gz", "opus-100-corpus-de-en-v1.0.tar"),
}  # fmt: skip


@pytest.mark.parametrize("name", RECIPES)
def test_a_plan_names_files_and_counts_and_makes_nothing(name, tmp_path, capsys):
    """A recipe's plan names files and counts, each file with a miniature, and writes nothing."""
    recipe, dest, text = RECIPES[name], tmp_path / "dest", tmp_path / "text"
    (text / "de-en").mkdir(parents=True)
    for lang in ("de", "en"):
        (text / "de-en" / f"train.{lang}").touch()
    pairs = ("--pairs", "de-en") if "pairs" in recipe.takes else ()
    own = ("--from", str(text)) if name == "multilingual" else ()
    main(["prepare", "corpus", name, str(dest), "--plan", *pairs, *own])
    plan = capsys.readouterr().out
    files = recipe.files(Options(dest, dest, pairs=pairs[1:] or None, text=text if own else None))
    facts = [fact for file in files for fact in (*file.urls, file.checksum or "no checksum known")]
    facts += [f"{what}: {count:,}" for what, count in recipe.expected.items()]
    assert [fact for fact in (*facts, *PUBLISHED.get(name, ())) if fact not in plan] == []
    assert all(any(re.search(pattern, file.urls[0]) for pattern in ARCHIVES) for file in files)
    assert bool(files) == (not own) and not dest.exists()
