"""Miniatures of the corpora: in the formats of the published archives, with counts that recipes come to, too."""

import io
import re
import tarfile
from dataclasses import replace
from xml.etree import ElementTree

from deepnet_fairseq.data.miniature import ARCHIVES, archive, write
from deepnet_fairseq.data.recipes import RECIPES, Options

FAIRSEQ = "https://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz"
WMT, OPUS_100 = "http://www.statmt.org/wmt13/{}.tgz", "https://example.org/opus-100-corpus-{}-v1.0.tar.gz"
TAGS = ("url", "keywords", "talkid", "title", "description")


def texts(url: str) -> dict[str, str]:
    with tarfile.open(fileobj=io.BytesIO(archive(url))) as tar:
        return {entry.name: tar.extractfile(entry).read().decode() for entry in tar if entry.isfile()}


def lines(text: str) -> list[str]:
    return text.removesuffix("\n").split("\n")


def test_markup():
    """What parsers of XML take, with entities; some text of the web has lines within lines."""
    found = texts(FAIRSEQ)
    for side in (lines(found[f"de-en/train.tags.de-en.{lang}"]) for lang in ("de", "en")):
        whole = {tag: sum(line.startswith(f"<{tag}>") and line.endswith(f"</{tag}>") for line in side) for tag in TAGS}
        assert whole == dict.fromkeys(TAGS, 120)
    for name, text in (found | texts(WMT.format("test-full"))).items():
        if name.endswith((".xml", ".sgm")):
            root = ElementTree.fromstring(text.encode())
            assert len(list(root.iter("seg"))) == (60 if "de-en/" in name else 200) and "&amp;" in text
    web = texts(WMT.format("training-parallel-commoncrawl"))["commoncrawl.de-en.de"]
    assert len(web.splitlines()) > len(lines(web))  # such a reader would come out of step


def test_no_english_sentence_is_trained_and_tested_on():
    english = {"train": set(), "dev": set(), "test": set()}
    for pair in ("en-fr", "en-ru", "an-en"):
        found = texts(OPUS_100.format(pair))
        assert sum(line == "" for text in found.values() for line in lines(text)) == 1
        for name, text in found.items():
            if name.endswith(".en"):
                english[name.rpartition("-")[2].removesuffix(".en")].update(lines(text))
        assert any(re.search("[а-я]", text) for text in found.values()) == ("ru" in pair)
    assert not english["train"] & (english["dev"] | english["test"]) and not english["dev"] & english["test"]


def test_every_file_of_every_recipe_has_a_miniature(tmp_path):
    """Of the same bytes each time; what is there already is left alone."""
    options = Options(tmp_path, tmp_path, miniature=True)
    for recipe in RECIPES.values():
        for file in recipe.files(options):
            assert [pattern for pattern in ARCHIVES if re.search(pattern, file.urls[0])], file
    (file,) = RECIPES["opus100"].files(replace(options, pairs=("an-en",)))
    path = write([file], tmp_path)[file.name]
    assert path.read_bytes() == archive(file.urls[0])
    path.write_bytes(b"mine")
    write([file], tmp_path)
    assert path.read_bytes() == b"mine"
