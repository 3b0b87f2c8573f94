"""The recipes on miniatures of their corpora: all files served, whole corpora with counts known from the making."""

import hashlib
import json
import re
from functools import cache
from pathlib import Path

import pytest
import requests

from deepnet_fairseq.cli import main
from deepnet_fairseq.data.miniature import build, serve
from deepnet_fairseq.data.miniature.folder import MINIATURES
from deepnet_fairseq.data.recipes import RECIPES, Options
from deepnet_fairseq.errors import UserError

pytestmark = pytest.mark.smoke


def lines(text: str) -> list[str]:
    assert text.endswith("\n")
    return text[:-1].split("\n")


@pytest.fixture(scope="module")
def mirror(tmp_path_factory):
    """name -> the folder of its miniature, built once."""
    return cache(lambda name: _built(name, tmp_path_factory.mktemp(name)))


def _built(name, folder):
    build(name, folder)
    return folder


def test_every_recipe_that_downloads_has_a_miniature_and_each_file_is_served(mirror, tmp_path):
    options = Options(dest=tmp_path, downloads=tmp_path, miniature=True)
    assert {name for name, recipe in RECIPES.items() if recipe.files(options)} == set(MINIATURES)
    for name in MINIATURES:
        with serve(mirror(name)) as url, requests.Session() as session:
            sums = dict(reversed(line.split("  ")) for line in lines(session.get(f"{url}/SHA256SUMS").text))
            addresses = [address for file in RECIPES[name].files(options) for address in file.urls]
            assert set(sums) == {address.partition("://")[2] for address in addresses}
            for place, known in sums.items():
                assert hashlib.sha256(session.get(f"{url}/{place}").content).hexdigest() == known


def prepare(name, folder, dest):
    with serve(folder) as url:
        main(["prepare", name, str(dest), "--miniature", "--mirror", url, "--workers", "1"])
    return json.loads((dest / "recipe.json").read_text())


def test_miniature_that_there_is_not():
    with pytest.raises(UserError, match="no such miniature; there are iwslt14_de_en"):
        build("wmt99", Path("nowhere"))
    with pytest.raises(UserError, match="--pairs: means nothing to the recipe iwslt14_de_en"):
        build("iwslt14_de_en", Path("nowhere"), ("de-en",))


COUNTS = {  # of the recipe's steps, as known from how the miniature is made
    "iwslt14_de_en": {"training text": 6060, "clean": 6000, "train": 6000 - 260, "valid": 6000 // 23, "test": 300},
    "wmt17_en_de": {"training text": 4090, "test": 200},
}


@pytest.mark.parametrize("name", COUNTS)
def test_bilingual_recipe_makes_a_whole_corpus_of_it(name, mirror, tmp_path, capsys):
    summary = prepare(name, mirror(name), tmp_path)
    printed = capsys.readouterr().out
    found = dict(re.findall(r"\| ([\w ]+): ([\d,]+) sentence pairs", printed))
    assert {what: int(found[what].replace(",", "")) for what in COUNTS[name]} == COUNTS[name]
    assert summary["miniature"] and summary["recipe"] == name
    assert 4000 * 0.95 < summary["counts"]["train"] <= 6000
    langs = ("de", "en")
    for source, target in (langs, langs[::-1]):
        reference = tmp_path / "reference" / f"test.{source}-{target}.{target}"
        assert len(lines(reference.read_text())) == COUNTS[name]["test"]


PAIRS = {
    "opus100": {"an-en": 150, "de-en": 3000, "en-fr": 1500, "en-ru": 750},
    "m2m102": {"de-en": 3300, "de-fr": 3300, "en-fr": 1650},
}


@pytest.mark.parametrize("name, subset", [("opus100", "test"), ("m2m102", "flores")])
def test_multilingual_recipe_makes_a_whole_corpus_of_it(name, subset, mirror, tmp_path):
    summary = prepare(name, mirror(name), tmp_path)
    assert summary["miniature"] and summary["recipe"] == name
    assert {pair: counts["train"] for pair, counts in summary["counts"]["pairs"].items()} == PAIRS[name]
    assert len(lines((tmp_path / "reference" / f"{subset}.en-fr.fr").read_text())) == 100


def test_pairs_that_are_named_are_served(tmp_path):
    build("m2m102", tmp_path, ("ja-en", "an-en"))  # Flores-101 does not have an
    assert sorted(path.name for path in tmp_path.rglob("*.zip")) == ["an-en.txt.zip"] * 3 + ["en-ja.txt.zip"] * 3
