"""Miniatures of the corpora: in the formats of the published archives, with counts that recipes come to, too."""

import io
import re
import tarfile
from dataclasses import replace
from itertools import islice
from xml.etree import ElementTree

from deepnet_fairseq.data.miniature import ARCHIVES, archive, write
from deepnet_fairseq.data.miniature.text import translations
from deepnet_fairseq.data.recipes import RECIPES, Options

FAIRSEQ = "https://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz"
WMT, OPUS_100 = "http://www.statmt.org/wmt13/{}.tgz", "https://example.org/opus-100-corpus-{}-v1.0.tar.gz"
TAGS = ("url", "keywords", "talkid", "title", "description")


def texts(url: str) -> dict[str, str]:
    with tarfile.open(fileobj=io.BytesIO(archive(url))) as tar:
        return {entry.name: tar.extractfile(entry).read().decode() for entry in tar if entry.isfile()}


def lines(text: str) -> list[str]:
    return text.removesuffix("\n").split("\n")


def survives_cleaning(source: str, target: str, ratio: float = 1.5, longest: int = 175) -> bool:
    """What clean-corpus-n.perl keeps, near enough for what is spoilt on purpose."""
    short, long = sorted(len(re.findall(r"\w+|[^\w\s]", line)) for line in (source, target))
    return short >= 1 and long <= longest and long <= ratio * short


def test_iwslt14():
    """Training text between tags, of which cleaning drops what is spoilt; test sets in XML, none of it trained on."""
    found = texts(FAIRSEQ)
    sides = [lines(found[f"de-en/train.tags.de-en.{lang}"]) for lang in ("de", "en")]
    for side in sides:
        whole = {tag: sum(line.startswith(f"<{tag}>") and line.endswith(f"</{tag}>") for line in side) for tag in TAGS}
        assert whole == dict.fromkeys(TAGS, 120)
    rows = [pair for pair in zip(*sides, strict=True) if not re.match("<(url|keywords|talkid)>", pair[0])]
    kept = [tuple(re.sub("</?(title|description)>", "", line) for line in pair) for pair in rows]
    clean = [pair for pair in kept if survives_cleaning(*pair)]
    assert (len(kept), len(clean), len(set(clean)), sum(not pair[0] for pair in kept)) == (6060, 6000, 6000, 20)
    assert all(any(character in line for line, _ in clean) for character in "\"'’&[]")
    segments = {"de": [], "en": []}
    for name, text in found.items():
        if name.endswith(".xml"):
            root = ElementTree.fromstring(text.encode())
            assert root.tag == "mteval" and len(root.findall("*/doc")) == 2 and "&amp;" in text
            segments[name.split(".")[-2]] += [seg.text for seg in root.iter("seg")]
    assert [len(found) for found in segments.values()] == [300, 300]
    assert all(survives_cleaning(*pair) for pair in zip(*segments.values()))
    assert not {seg.strip() for seg in segments["en"]} & set(sides[1])


def test_wmt():
    """As many pairs as cleaning shall keep, and 30 for it to drop; some web text has lines within lines."""
    for name, size in (("europarl-v7", 2030), ("commoncrawl", 1030)):
        sides = [lines(text) for text in texts(WMT.format(f"training-parallel-{name}")).values()]
        pairs = list(zip(*sides, strict=True))
        assert len(pairs) == size and sum(survives_cleaning(*pair, longest=250) for pair in pairs) == size - 30
        web = len("\n".join(pair[0] for pair in pairs).splitlines()) > size  # such a reader would come out of step
        assert web == ("crawl" in name)
    test = texts(WMT.format("test-full"))
    assert {len(ElementTree.fromstring(text).findall("doc/p/seg")) for text in test.values()} == {200}


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


def test_languages_say_the_same_in_alphabets_of_their_own():
    rows = list(islice(translations("test", ("de", "fr", "ru"), frames=("{}",)), 300))
    for other in (1, 2):
        pairs = {pair for row in rows for pair in zip(row[0], row[other], strict=True)}
        assert len(pairs) == len({here for here, _ in pairs}) == len({there for _, there in pairs})
        assert any(here != there for here, there in pairs)


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
