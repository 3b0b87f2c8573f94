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
        "19,982,877 bytes, md5:10936dfdf616504ddbd844e91b94ef4a", "1 to 175", "10,000 BPE",
        "pair in 23", "lower-case", "train: 160,239", "valid: 7,283", "test: 6,750",
    ),
    "opus100": (
        "https://object.pouta.csc.fi/OPUS-100/v1.0/opus-100-corpus-de-en-v1.0.tar.gz",
        "67,205,361 bytes, sha256:aca2cb2f", "250,000 pieces",
    ),
    "m2m102": ("OPUS-CCMatrix/v1/moses/de-en.txt.zip", "flores101_dataset.tar.gz", "opus-100-corpus-de-en-v1.0.tar"),
}  # fmt: skip
WITHOUT_FILES = "multilingual"  # its text is the user's own


@pytest.fixture(params=RECIPES)
def recipe(request):
    return RECIPES[request.param]


@pytest.fixture
def options(recipe, tmp_path):
    """Provide the options of a recipe for the pair de-en, with an empty text for the one that needs the user's."""
    pairs = ("de-en",) if "pairs" in recipe.takes else None
    text = None
    if recipe.name == WITHOUT_FILES:
        text = tmp_path / "text"
        (text / "de-en").mkdir(parents=True)
        (text / "de-en" / "train.de").touch()
        (text / "de-en" / "train.en").touch()
    return Options(tmp_path / "dest", tmp_path / "dest", pairs=pairs, text=text)


@pytest.fixture
def printed_plan(recipe, options, capsys):
    """Provide what `deepnet prepare corpus --plan` prints."""
    flags = []
    if options.pairs:
        flags += ["--pairs", *options.pairs]
    if options.text:
        flags += ["--from", str(options.text)]
    main(["prepare", "corpus", recipe.name, str(options.dest), "--plan", *flags])
    return capsys.readouterr().out


def test_a_plan_names_each_file_and_its_checksum(recipe, options, printed_plan):
    files = recipe.files(options)

    assert bool(files) == (recipe.name != WITHOUT_FILES)
    for file in files:
        assert (file.checksum or "no checksum") in printed_plan
        for url in file.urls:
            assert url in printed_plan


def test_a_plan_names_the_expected_counts_and_what_is_published(recipe, printed_plan):
    for what, count in recipe.expected.items():
        assert f"{what}: {count:,}" in printed_plan
    for fact in PUBLISHED.get(recipe.name, ()):
        assert fact in printed_plan


def test_a_plan_makes_nothing(options, printed_plan):
    assert printed_plan
    assert not options.dest.exists()


def test_each_file_of_a_recipe_has_a_miniature(recipe, options):
    files = recipe.files(options)

    assert bool(files) == (recipe.name != WITHOUT_FILES)
    for file in files:
        assert any(re.search(pattern, file.urls[0]) for pattern in ARCHIVES), file
