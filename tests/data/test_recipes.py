"""Tests of the plans of all recipes, which `deepnet prepare corpus RECIPE --plan` prints, and of their miniatures.

A miniature is a small generated archive in the place of a file to download.
"""

from __future__ import annotations

import re

import pytest

from deepnet_fairseq.cli import main
from deepnet_fairseq.data.miniature import ARCHIVES
from deepnet_fairseq.data.recipes import RECIPES, Options

IWSLT14_FACTS = (
    "dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz",
    "19,982,877",  # bytes of the archive
    "md5:10936dfdf616504ddbd844e91b94ef4a",
    # of fairseq's prepare-iwslt14.sh
    "10,000",  # merges of BPE
    "1 to 175",  # words of a sentence
    "pair in 23",  # is held out for validation
    "lower-case",
    "train: 160,239",  # sentence pairs
    "valid: 7,283",
    "test: 6,750",
)
OPUS100_FACTS = (
    "https://object.pouta.csc.fi/OPUS-100/v1.0/opus-100-corpus-de-en-v1.0.tar.gz",
    "67,205,361",  # bytes of the archive
    "sha256:aca2cb2f",  # and more digits
    "250,000",  # pieces of SentencePiece
)
M2M102_FILES = ("OPUS-CCMatrix/v1/moses/de-en.txt.zip", "flores101_dataset.tar.gz", "opus-100-corpus-de-en-v1.0.tar")
PUBLISHED = {"iwslt14_de_en": IWSLT14_FACTS, "opus100": OPUS100_FACTS, "m2m102": M2M102_FILES}  # that plans state
WITHOUT_FILES = "multilingual"  # recipe that downloads nothing: its text is the user's own


@pytest.fixture(params=RECIPES)
def recipe(request):
    """Provide each recipe in turn."""
    return RECIPES[request.param]


@pytest.fixture
def options(recipe, tmp_path):
    """Provide the options of the recipe: the pair de-en if it takes pairs, and empty text if it needs the user's."""
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
    """Provide what `deepnet prepare corpus --plan` prints for the recipe."""
    flags = []
    if options.pairs:
        flags += ["--pairs", *options.pairs]
    if options.text:
        flags += ["--from", str(options.text)]
    main(["prepare", "corpus", recipe.name, str(options.dest), "--plan", *flags])
    return capsys.readouterr().out


def test_all_recipes_but_that_of_the_user_s_text_download_files(recipe, options):
    has_files = len(recipe.files(options)) > 0

    assert has_files == (recipe.name != WITHOUT_FILES)


def test_a_plan_names_each_file_and_its_checksum(recipe, options, printed_plan):
    for file in recipe.files(options):
        assert (file.checksum or "no checksum") in printed_plan
        for url in file.urls:
            assert url in printed_plan


def test_a_plan_names_the_counts_that_its_recipe_expects(recipe, printed_plan):
    for what, count in recipe.expected.items():
        assert f"{what}: {count:,}" in printed_plan


@pytest.mark.parametrize("recipe", PUBLISHED, indirect=True)
def test_a_plan_names_what_is_published_of_its_corpus(recipe, printed_plan):
    for fact in PUBLISHED[recipe.name]:
        assert fact in printed_plan


def test_a_plan_makes_no_folder(options, printed_plan):
    assert printed_plan
    assert not options.dest.exists()


def test_each_file_of_a_recipe_has_a_miniature(recipe, options):
    for file in recipe.files(options):
        patterns = [pattern for pattern in ARCHIVES if re.search(pattern, file.urls[0])]
        assert patterns, file
