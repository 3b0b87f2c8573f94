"""Miniatures of the corpora: in the formats of the published archives, with counts that recipes come to, too."""

import io
import json
import re
import tarfile
import zipfile
from dataclasses import replace
from itertools import islice
from xml.etree import ElementTree

import pytest

from deepnet_fairseq.cli import main
from deepnet_fairseq.data.miniature import ARCHIVES, archive, write
from deepnet_fairseq.data.miniature.text import translations
from deepnet_fairseq.data.multilingual.languages import FLORES
from deepnet_fairseq.data.recipes import RECIPES, Options

WMT_17 = ("training-parallel-europarl-v7.tgz", "training-parallel-commoncrawl.tgz", "training-parallel-nc-v12.tgz")
OPUS = "https://object.pouta.csc.fi/OPUS-{}/v1/moses/{}.txt.zip"
TAGS = ("url", "keywords", "talkid", "title", "description")


def texts(url: str) -> dict[str, str]:
    with tarfile.open(fileobj=io.BytesIO(archive(url))) as tar:
        return {entry.name: tar.extractfile(entry).read().decode() for entry in tar if entry.isfile()}


def lines(text: str) -> list[str]:
    assert text.endswith("\n")
    return text[:-1].split("\n")


def words(line: str) -> int:
    return len(re.findall(r"\w+|[^\w\s]", line))


def survives_cleaning(source: str, target: str, ratio: float = 1.5, longest: int = 175) -> bool:
    """What clean-corpus-n.perl keeps, near enough for what is spoilt on purpose."""
    short, long = sorted((words(source), words(target)))
    return short >= 1 and long <= longest and long <= ratio * short


@pytest.fixture(scope="module")
def iwslt():
    return texts("http://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz")


def test_iwslt14_training_text_stands_between_tags_and_cleaning_drops_what_is_spoilt(iwslt):
    sides = [lines(iwslt[f"de-en/train.tags.de-en.{lang}"]) for lang in ("de", "en")]
    for side in sides:
        assert {
            tag: sum(line.startswith(f"<{tag}>") and line.endswith(f"</{tag}>") for line in side) for tag in TAGS
        } == (dict.fromkeys(TAGS, 120))
    kept = [
        tuple(re.sub("</?(title|description)>", "", line) for line in pair)
        for pair in zip(*sides, strict=True)
        if not re.match("<(url|keywords|talkid)>", pair[0])
    ]
    clean = [pair for pair in kept if survives_cleaning(*pair)]
    assert len(clean) == 6000
    assert len(kept) == 6060
    assert sum(not pair[0] for pair in kept) == 20
    assert sum(words(pair[0]) > 175 and words(pair[1]) > 175 for pair in kept) == 20
    assert len(set(clean)) == len(clean)
    assert all(any(character in line for line, _ in clean) for character in "\"'’&[]")


def test_iwslt14_test_sets_are_xml_with_aligned_segments(iwslt):
    segments = {"de": [], "en": []}
    for name, text in iwslt.items():
        if name.endswith(".xml"):
            root = ElementTree.fromstring(text.encode())
            assert root.tag == "mteval" and len(root.findall("*/doc")) == 2
            assert all(re.fullmatch(r'<seg id="\d+"> .* </seg>', line) for line in lines(text) if "<seg" in line)
            segments[name.split(".")[-2]].append([seg.text for seg in root.iter("seg")])
            assert "&amp;" in text
    for found in segments.values():
        assert [len(part) for part in found] == [60] * 5
    assert any("’" in seg for part in segments["en"] for seg in part)
    assert all(survives_cleaning(*pair) for parts in zip(*segments.values()) for pair in zip(*parts))
    train = set(lines(iwslt["de-en/train.tags.de-en.en"]))
    assert not any(seg.strip() in train for part in segments["en"] for seg in part)


@pytest.mark.parametrize("name, size", zip(WMT_17, (2030, 1030, 1030)))
def test_wmt_training_archives(name, size):
    members = {
        "training-parallel-europarl-v7.tgz": "training/europarl-v7.de-en",
        "training-parallel-commoncrawl.tgz": "commoncrawl.de-en",
        "training-parallel-nc-v12.tgz": "training/news-commentary-v12.de-en",
    }
    found = texts(f"http://www.statmt.org/wmt13/{name}")
    assert set(found) == {f"{members[name]}.{lang}" for lang in ("de", "en")}
    pairs = list(zip(*(lines(found[f"{members[name]}.{lang}"]) for lang in ("de", "en")), strict=True))
    assert len(pairs) == size
    assert sum(survives_cleaning(*pair, longest=250) for pair in pairs) == size - 30
    web = "\u2028" in "".join(found.values())
    assert web == ("crawl" in name)
    if web:  # such a reader would come out of step
        assert len(found["commoncrawl.de-en.de"].splitlines()) > size


def test_wmt_held_out_sets():
    dev, test = (texts(f"http://www.statmt.org/wmt13/{name}") for name in ("dev.tgz", "test-full.tgz"))
    kinds = [f"{kind}.{lang}.sgm" for kind in ("src", "ref") for lang in ("de", "en")]
    assert set(test) == {f"test-full/newstest2014-deen-{kind}" for kind in kinds}
    assert set(dev) == {f"dev/newstest2013.{lang}" for lang in ("de", "en")} | {
        f"dev/newstest2013-{kind}" for kind in kinds
    }
    for text in test.values():
        assert len(ElementTree.fromstring(text).findall("doc/p/seg")) == 200
    plain = lines(dev["dev/newstest2013.en"])
    assert [seg.text for seg in ElementTree.fromstring(dev["dev/newstest2013-src.en.sgm"]).iter("seg")] == plain
    assert '<seg id="1">' in test["test-full/newstest2014-deen-ref.de.sgm"]


def test_opus100_pairs_are_of_unequal_size_and_no_english_sentence_is_trained_and_tested_on():
    english = {"train": set(), "dev": set(), "test": set()}
    for pair, size in {"de-en": 3000, "en-fr": 1500, "en-ru": 750, "an-en": 150}.items():
        found = texts(f"https://example.org/opus-100-corpus-{pair}-v1.0.tar.gz")
        splits = {"train": size + 1} | ({} if pair == "an-en" else {"dev": 100, "test": 100})
        assert {name: len(lines(text)) for name, text in found.items()} == {
            f"opus-100-corpus/v1.0/supervised/{pair}/opus.{pair}-{split}.{lang}": number
            for split, number in splits.items()
            for lang in pair.split("-")
        }
        assert sum(line == "" for text in found.values() for line in lines(text)) == 1
        for split in splits:
            english[split].update(lines(found[f"opus-100-corpus/v1.0/supervised/{pair}/opus.{pair}-{split}.en"]))
        assert any(re.search("[а-я]", text) for text in found.values()) == ("ru" in pair)
    assert not english["train"] & (english["dev"] | english["test"]) and not english["dev"] & english["test"]


def test_m2m102_zips_and_test_sets():
    for corpus, pair, size in (("CCMatrix", "de-en", 2000), ("CCAligned", "en-fr", 500), ("Tatoeba", "de-en", 300)):
        with zipfile.ZipFile(io.BytesIO(archive(OPUS.format(corpus, pair)))) as content:
            sides = [f"{corpus}.{pair}.{lang}" for lang in pair.split("-")]
            assert set(content.namelist()) == {*sides, "README", "LICENSE"}
            assert [len(lines(content.read(side).decode())) for side in sides] == [size + 6, size + 6]  # 6 are unfit
    flores = texts("https://example.org/flores101_dataset.tar.gz")
    assert {len(lines(text)) for name, text in flores.items() if name.endswith(("dev", "devtest"))} == {100}
    names = {f"flores101_dataset/{split}/{code}.{split}" for split in ("dev", "devtest") for code in FLORES.values()}
    assert {"flores101_dataset/dev/eng.dev", "flores101_dataset/devtest/zho_simpl.devtest"} <= names
    assert set(flores) == names | {"flores101_dataset/README"}
    zero = texts("https://example.org/opus-100-corpus-zeroshot-v1.0.tar.gz")
    assert len(zero) == 2 * 15
    assert len(lines(zero["opus-100-corpus/v1.0/zero-shot/de-fr/opus.de-fr-test.fr"])) == 100


def test_languages_say_the_same_in_alphabets_of_their_own():
    rows = list(islice(translations("test", ("de", "fr", "ru"), frames=("{}",)), 300))
    for other in (1, 2):
        letters = {}
        for row in rows:
            for here, there in zip(row[0], row[other], strict=True):
                assert letters.setdefault(here, there) == there
        assert len(set(letters.values())) == len(letters)
        assert letters["a"] != "a" or letters["e"] != "e"
    other = islice(translations("other", ("de",), frames=("{}",)), 300)
    known = {word for row in rows for word in row[0].split()}
    spoken = [word for row in other for word in row[0].split()]
    assert sum(word in known for word in spoken) > 0.8 * len(spoken)  # the rest are names and compounds


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


PAIRS = {  # as known from how the miniatures are made
    "opus100": {"an-en": 150, "de-en": 3000, "en-fr": 1500, "en-ru": 750},
    "m2m102": {"de-en": 3300, "de-fr": 3300, "en-fr": 1650},
}


@pytest.mark.smoke
@pytest.mark.parametrize("name, subset", [("opus100", "test"), ("m2m102", "flores")])
def test_multilingual_recipe_makes_a_whole_corpus_of_it(name, subset, tmp_path):
    main(["prepare", name, str(tmp_path), "--miniature", "--workers", "1"])
    summary = json.loads((tmp_path / "recipe.json").read_text())
    assert summary["miniature"] and summary["recipe"] == name
    assert {pair: counts["train"] for pair, counts in summary["counts"]["pairs"].items()} == PAIRS[name]
    assert len(lines((tmp_path / "reference" / f"{subset}.en-fr.fr").read_text())) == 100
