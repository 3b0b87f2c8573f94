"""Tests of the bilingual recipes, on miniatures of the published archives and on tokenised text."""

import html
import json
import re
import shutil
import tarfile
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from fairseq.data import Dictionary, data_utils

from deepnet_fairseq.data import bilingual
from deepnet_fairseq.data.archive import stream_lines
from deepnet_fairseq.data.language import make_corpus
from deepnet_fairseq.data.miniature import write
from deepnet_fairseq.data.moses import Chain, Limits, clean, line_function
from deepnet_fairseq.data.recipes import RECIPES, Options
from deepnet_fairseq.data.recipes.bilingual import published_segments
from deepnet_fairseq.data.recipes.wmt import FRENCH, GERMAN
from deepnet_fairseq.errors import UserError
from deepnet_fairseq.tools.translation.pieces import MosesPieces
from deepnet_fairseq.tools.translation.text import find_chain

from ..support.errors import assert_refused
from ..support.prepared import content, killed_at, lines

smoke = pytest.mark.smoke
TEST_SETS = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")


def copy_text(langs, texts, dest, workers, dictionary=None):
    """Copy text in place of binarising it, for tests that do not need binarised data."""
    for subset, prefix in texts.items():
        for lang in langs:
            shutil.copy(f"{prefix}.{lang}", dest / f"{subset}.{lang}")
    (dest / f"dict.{langs[0]}.txt").write_text("word 1\n")
    count = {"sentences": 1, "pieces": 1, "unknown": 0.0}
    return {"types": 8, "text": {subset: dict.fromkeys(langs, count) for subset in texts}}


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(bilingual, "binarise", copy_text)


@pytest.fixture(scope="module")
def options(tmp_path_factory):
    """Provide the options of an uninterrupted build."""
    dest = tmp_path_factory.mktemp("with blank") / "iwslt, 14"  # with a comma too, which ends a prefix in fairseq
    return Options(dest, dest / "downloads", fetch=write, workers=2)


@pytest.fixture(scope="module")
def built(options):
    RECIPES["iwslt14_de_en"].build(options)
    return options.dest


@smoke
@pytest.mark.parametrize("lang", ["de", "en"])
def test_every_step_of_iwslt14(built, lang):
    with tarfile.open(built / "downloads" / "de-en.tgz") as tar:
        read = {entry.name: tar.extractfile(entry).read().decode() for entry in tar if entry.isfile()}
    xml = (ElementTree.fromstring(read[f"de-en/IWSLT14.{name}.de-en.{lang}.xml"].encode()) for name in TEST_SETS)
    test = [segment.text.strip() for root in xml for segment in root.iter("seg")]
    raw = read[f"de-en/train.tags.de-en.{lang}"].split("\n")[:-1]
    talks = [line for line in raw if not re.match("<(url|keywords|talkid)>", line)]
    moses, text = line_function(lang, Chain(lowercase=True)), built / "text"
    tokenised = lines(text / "tokenised" / f"train.{lang}")
    assert len(tokenised) == len(talks) == 6060
    assert tokenised[:60] == [moses(re.sub("</?(title|description)>", "", line)) for line in talks[:60]]
    kept = lines(text / "clean" / f"train.{lang}")
    assert len(kept) == 6000  # the miniature's number of pairs that are fit for training
    assert lines(text / "split" / f"valid.{lang}") == kept[22::23]
    assert lines(text / "split" / f"train.{lang}") == [line for i, line in enumerate(kept, 1) if i % 23]
    direction = "en-de.de" if lang == "de" else "de-en.en"
    references = lines(built / "reference" / f"test.{direction}")
    assert [html.unescape(line) for line in references] == [" ".join(line.split()) for line in test]
    assert len(test) == 300 and any("’" in line for line in references)
    assert lines(text / "tokenised" / f"test.{lang}") == [moses(line.replace("’", "'")) for line in references]
    for subset, stage in (("train", "split"), ("valid", "split"), ("test", "tokenised")):
        pieces = lines(text / "pieces" / f"{subset}.{lang}")
        assert any("@@ " in line for line in pieces)
        assert [line.replace("@@ ", "") for line in pieces] == lines(text / stage / f"{subset}.{lang}")
    ours = MosesPieces(built / "bin" / "codes", lang, lang, find_chain(str(built / "bin")))  # `deepnet translate`
    assert [" ".join(ours.cut(line.replace("’", "'"))) for line in references] == pieces


@smoke
def test_the_data_are_what_recipe_json_says(built):
    recipe = json.loads((built / "recipe.json").read_text())
    facts = {"recipe": "iwslt14_de_en", "miniature": True, "pieces": "subword_nmt", "detokenise": True}
    assert (facts | {"lowercase": True}).items() <= recipe.items()
    dictionary = Dictionary.load(str(built / "bin" / "dict.de.txt"))
    for subset, count in (("train", 5740), ("valid", 260), ("test", 300)):
        assert recipe["counts"][subset] == count
        for lang in ("de", "en"):
            data = data_utils.load_indexed_dataset(str(built / "bin" / f"{subset}.de-en.{lang}"), dictionary)
            pieces = lines(built / "text" / "pieces" / f"{subset}.{lang}")
            assert len(data) == count and dictionary.string(data[count - 1]) == pieces[-1]
    train = [" ".join(lines(built / "text" / "pieces" / f"train.{lang}")).split() for lang in ("de", "en")]
    assert recipe["counts"]["types joined"] == len({*train[0], *train[1]})
    assert len((built / "bin" / "codes").read_text().splitlines()) == 1 + 500


@smoke
def test_a_kill_at_any_step_changes_nothing(built, options, tmp_path, capsys):
    """A build killed at four successive steps gives the corpus of an uninterrupted one, and keeps no leftovers."""
    fresh = replace(options, dest=tmp_path / "dest", downloads=tmp_path / "dest" / "downloads", workers=1)
    for step in ("download", "tokenise.train", "learn-bpe", "binarise"):
        killed_at(step, lambda: RECIPES["iwslt14_de_en"].build(fresh))
        assert not (fresh.dest / "recipe.json").exists()
    RECIPES["iwslt14_de_en"].build(fresh)
    assert content(fresh.dest) == content(built) and not list(fresh.dest.rglob("*.part"))
    for folder in ("text", "downloads"):
        shutil.rmtree(fresh.dest / folder)
    capsys.readouterr()
    RECIPES["iwslt14_de_en"].build(fresh)
    assert capsys.readouterr().out == f"{fresh.dest}: whole\n" and content(fresh.dest) == content(built)


def assert_tokenised(actual, lang, folder, members):
    """Check that lines are those of the archives' members in order, normalised and tokenised by Moses' rules."""
    raw = [line for file, member in members.items() for line in stream_lines(folder / file.name, member.format(lang))]
    moses = line_function(lang, Chain(normalise=True, aggressive=True))
    assert len(actual) == len(raw) and actual[::50] == [moses(line) for line in raw[::50]]


def sides(folder, subset):
    return [lines(folder / f"{subset}.{lang}") for lang in ("en", "de")]


@smoke
def test_wmt(tmp_path, quick):
    """WMT-17 cleans after BPE as fairseq does;

    WMT-14 cleans before it as Admin's authors do and validates on newstest2013.
    """
    wmt17, wmt14 = (tmp_path / name for name in ("wmt17_en_de", "wmt14_en_de"))
    for dest in (wmt17, wmt14):
        RECIPES[dest.name].build(Options(dest, tmp_path, fetch=write, workers=2))
    tokenised, pieces = sides(wmt17 / "text" / "tokenised", "train"), sides(wmt17 / "text" / "pieces", "train")
    for lang, side in zip(("en", "de"), tokenised, strict=True):
        assert_tokenised(side, lang, tmp_path, GERMAN)
        assert lines(wmt17 / "text" / "split" / f"valid.{lang}") == side[99::100]
    kept = list(clean(zip(*pieces, strict=True), Limits(1.5, 1, 250)))
    assert list(zip(*sides(wmt17 / "bin", "train"), strict=True)) == kept and len(kept) < len(pieces[0])
    kept = list(clean(zip(*tokenised, strict=True), Limits(9, 1, 80)))
    assert list(zip(*sides(wmt14 / "text" / "clean", "train"), strict=True)) == kept
    moses = line_function("de", Chain(normalise=True, aggressive=True))
    valid = [moses(line) for line in stream_lines(tmp_path / "dev.tgz", "dev/newstest2013.de")]
    assert [line.replace("@@ ", "") for line in lines(wmt14 / "bin" / "valid.de")] == valid


@smoke
def test_wmt_english_french(tmp_path, quick):
    """WMT-14 En-Fr holds five corpora in order, the last packed twice; each 1333rd pair is for validation."""
    dest = tmp_path / "dest"
    RECIPES["wmt14_en_fr"].build(Options(dest, tmp_path, fetch=write, workers=2))
    train = lines(dest / "text" / "tokenised" / "train.fr")
    assert_tokenised(train, "fr", tmp_path, FRENCH)
    assert lines(dest / "text" / "split" / "valid.fr") == train[1332::1333]
    published = stream_lines(tmp_path / "test-full.tgz", "test-full/newstest2014-fren-ref.fr.sgm")
    assert list(published_segments(published)) == lines(dest / "reference" / "test.en-fr.fr")


@pytest.fixture
def given(tmp_path):
    """Provide a user's tokenised text: train, valid, and two test sets."""
    folder = tmp_path / "my text"
    folder.mkdir()
    for split, text in make_corpus({"train": 800, "valid": 40, "test": 30}).items():
        for lang, sentences in zip(("de", "en"), zip(*text, strict=True), strict=True):
            (folder / f"{split}.{lang}").write_text("".join(f"{line}\n" for line in sentences))
    for lang in ("de", "en"):
        shutil.copy(folder / f"test.{lang}", folder / f"test.old.{lang}")
        with open(folder / f"train.{lang}", "a") as file:
            file.write("a b c d e f\n" if lang == "de" else "a\n")  # pairs that are not fit for training
    return folder


def from_text(folder, dest, **more):
    RECIPES["iwslt14_de_en"].build(Options(dest, dest / "downloads", text=folder, **{"vocab": 60} | more))
    return json.loads((dest / "recipe.json").read_text())


def test_text_that_is_tokenised_already(given, tmp_path, monkeypatch):
    dest = tmp_path / "d"
    with monkeypatch.context() as patched:
        patched.setattr(bilingual, "binarise", copy_text)
        recipe = from_text(given, dest, workers=1)
        (dest / "reference").mkdir()  # left by an earlier corpus in this folder
        from_text(given, dest, workers=1, vocab=50)
    counts = ([len(line.split()) for line in lines(given / f"train.{lang}")] for lang in ("de", "en"))
    train = sum(2 * max(pair) <= 3 * min(pair) for pair in zip(*counts, strict=True))
    assert 700 < train < 801 and [len(lines(dest / "bin" / f"train.{lang}")) for lang in ("de", "en")] == [train] * 2
    assert recipe["subsets"] == {"train": "train", "valid": "valid", "test": "test", "test1": "test.old"}
    assert recipe["files"] == {} and not (dest / "reference").exists()  # the raw text is unknown


def test_merges_and_dictionary_of_other_text(given, tmp_path, capsys):
    """Letters that given merges and dictionary lack become unknown, and are counted."""
    (given / "codes").write_text("#version: 0.2\nq q\n")
    letters = sorted(set("".join(lines(given / "train.de") + lines(given / "train.en"))) - {" "})
    dictionary = "".join(f"{letter}{end} 1\n" for letter in letters for end in ("", "@@"))
    (given / "dict.txt").write_text(dictionary)
    for lang in ("de", "en"):
        (given / f"test.{lang}").write_text("ж ж\n" * 30)
        (given / f"test.old.{lang}").write_text("<unk> </s> <unk>\n" * 30)
    recipe = from_text(given, tmp_path / "d", workers=1, vocab=None)
    assert (tmp_path / "d" / "bin" / "dict.de.txt").read_text() == dictionary
    assert recipe["counts"]["text"]["test"]["de"] == {"sentences": 30, "pieces": 60, "unknown": pytest.approx(66.7)}
    assert (tmp_path / "d" / "bin" / "test1.de-en.en.bin").exists()
    out = capsys.readouterr().out
    assert "| test: unknown are 66.7% of de" in out
    assert "WARNING: " in out and "own marks as words, so often: {'<unk>': 120, '</s>': 60}; escape them" in out


SPOILED = {
    "missing": ("train.en", None, r"train\.en: no such file; train\.de is there"),
    "missing on both sides": ("valid.de valid.en", None, r"holds no valid\.de and valid\.en"),
    "unequal": ("test.old.de", b"a\nb\n", r"test\.old\.de has 2 lines and .*test\.old\.en has 30"),
    "pieces": ("test.de", b"a@@ b\n" * 30, r"test\.de, line 1: is in BPE pieces already"),
    "codes": ("codes", b"#version: 0.2\na \xff\n", r"codes, line 2: not UTF-8"),
    "a dictionary without codes": ("dict.txt", b"a 1\n", r"dict\.txt: goes with the BPE codes"),
}


@pytest.mark.parametrize("kind", SPOILED)
def test_spoiled_text_is_refused(kind, given, tmp_path):
    names, text, message = SPOILED[kind]
    for name in names.split():
        (given / name).unlink() if text is None else (given / name).write_bytes(text)
    with pytest.raises(UserError, match=message) as caught:
        from_text(given, tmp_path / "d", vocab=None if kind == "codes" else 60)
    assert "\n" not in str(caught.value) and str(given) in str(caught.value)
    assert not (tmp_path / "d" / "bin").exists()


MISTAKES = {
    ("nope",): "there is no recipe nope; there are iwslt14_de_en (",
    ("iwslt14_de_en", "--from", "nowhere"): "--from nowhere: no such folder",
    ("iwslt14_de_en", "--pairs", "de-en"): "--pairs: means nothing to the recipe iwslt14_de_en",
    ("multilingual",): "the recipe multilingual needs text: --from FOLDER",
    ("opus100", "--pairs", "de-xx"): "OPUS-100 has no such pair",
    ("m2m102", "--plan"): "12 billion sentence pairs",
}


@pytest.mark.parametrize("words", MISTAKES, ids=" ".join)
def test_other_mistakes_are_told_in_a_line(words, tmp_path):
    assert_refused(MISTAKES[words], "prepare", "corpus", words[0], str(tmp_path / "d"), *words[1:])


def test_counts_beside_what_is_expected(tmp_path, capsys):
    recipe, options = RECIPES["iwslt14_de_en"], Options(tmp_path, tmp_path)
    for count, message in ((160_239, "(as expected)"), (160_300, "WARNING: 160,239 are expected (sacremoses")):
        recipe.check_count(options, "train", count)
        assert message in capsys.readouterr().out
    with pytest.raises(UserError, match="train: 150,000 sentence pairs, but 160,239 are expected"):
        recipe.check_count(options, "train", 150_000)
