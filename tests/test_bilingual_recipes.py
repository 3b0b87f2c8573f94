"""The bilingual recipes, on miniatures of the published archives and on text that is tokenised already."""

import html
import json
import re
import shutil
import tarfile
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from fairseq.data import Dictionary, data_utils

from deepnet_fairseq.cli import main
from deepnet_fairseq.data import bilingual
from deepnet_fairseq.data.archive import stream_lines
from deepnet_fairseq.data.language import make_corpus
from deepnet_fairseq.data.miniature import write
from deepnet_fairseq.data.moses import Chain, Limits, clean, line_function
from deepnet_fairseq.data.recipes import RECIPES, Options
from deepnet_fairseq.data.recipes.bilingual import published_segments
from deepnet_fairseq.data.recipes.wmt import FRENCH, GERMAN
from deepnet_fairseq.errors import UserError

from .support.helpers import assert_refused
from .support.prepared import content, killed_at, lines

smoke = pytest.mark.smoke
TEST_SETS = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")


def copy_text(langs, texts, dest, workers, dictionary=None):
    """In place of the binariser, where binarised data is not the question."""
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
    """Of an uninterrupted build."""
    dest = tmp_path_factory.mktemp("with blank") / "iwslt, 14"  # and a comma, which ends a prefix for fairseq
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
    assert len(kept) == 6000  # what the miniature says is fit for training
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


@smoke
def test_binarised_for_fairseq_and_told_in_recipe_json(built):
    dictionary = Dictionary.load(str(built / "bin" / "dict.de.txt"))
    assert len(dictionary) % 8 == 0
    assert (built / "bin" / "dict.de.txt").read_bytes() == (built / "bin" / "dict.en.txt").read_bytes()
    for subset, count in (("train", 5740), ("valid", 260), ("test", 300)):
        for lang in ("de", "en"):
            data = data_utils.load_indexed_dataset(str(built / "bin" / f"{subset}.de-en.{lang}"), dictionary)
            assert len(data) == count
            pieces = lines(built / "text" / "pieces" / f"{subset}.{lang}")
            assert dictionary.string(data[count - 1]) == pieces[-1]
    merges = (built / "bin" / "codes").read_text().split("\n")
    assert merges[0] == "#version: 0.2" and len(merges) == 1 + 500 + 1
    said = json.loads((built / "recipe.json").read_text())
    facts = {"recipe": "iwslt14_de_en", "miniature": True, "pieces": "subword_nmt", "detokenise": True}
    assert (facts | {"lowercase": True}).items() <= said.items()
    assert {"train": 5740, "valid": 260, "test": 300}.items() <= said["counts"].items()
    train = {lang: " ".join(lines(built / "text" / "pieces" / f"train.{lang}")).split() for lang in ("de", "en")}
    assert said["counts"]["types de"] == len(set(train["de"]))
    assert said["counts"]["types joined"] == len({*train["de"], *train["en"]})
    assert said["counts"]["text"]["train"]["en"] == {"sentences": 5740, "pieces": len(train["en"]), "unknown": 0.0}
    assert {"sacremoses", "subword-nmt"} <= said["tools"].keys()
    (file,) = said["files"].values()
    assert re.fullmatch("[0-9a-f]{64}", file["sha256"])
    assert file["size"] == (built / "downloads" / "de-en.tgz").stat().st_size


@smoke
def test_a_second_call_does_nothing_even_when_all_that_led_there_is_gone(built, options, tmp_path, capsys):
    before = content(built)
    shutil.copytree(built, tmp_path / "copy")
    shutil.rmtree(tmp_path / "copy" / "text")
    shutil.rmtree(tmp_path / "copy" / "downloads")
    for dest in (built, tmp_path / "copy"):
        RECIPES["iwslt14_de_en"].build(replace(options, dest=dest, downloads=dest / "downloads"))
        assert capsys.readouterr().out == f"{dest}: whole\n"
        assert content(dest) == before


@smoke
def test_a_kill_at_any_step_changes_nothing(built, options, tmp_path):
    """Killed again and again, each time later; what is there in the end equals an uninterrupted build's."""
    fresh = replace(options, dest=tmp_path / "dest", downloads=tmp_path / "dest" / "downloads", workers=1)
    for step in ("download", "tokenise.train", "learn-bpe", "binarise"):
        killed_at(step, lambda: RECIPES["iwslt14_de_en"].build(fresh))
        assert not (fresh.dest / "recipe.json").exists()
    RECIPES["iwslt14_de_en"].build(fresh)
    assert content(fresh.dest) == content(built)
    assert not [path for path in fresh.dest.rglob("*") if path.name.endswith(".part")]


@smoke
def test_wmt(tmp_path, quick):
    """fairseq's, cleaned after BPE, and that of the Admin authors, cleaned before it, with newstest2013 to validate."""
    for name in ("wmt17_en_de", "wmt14_en_de"):
        RECIPES[name].build(Options(tmp_path / name, tmp_path, fetch=write, workers=2))
    text, binarised = tmp_path / "wmt17_en_de" / "text", tmp_path / "wmt17_en_de" / "bin"
    tokenised = {lang: lines(text / "tokenised" / f"train.{lang}") for lang in ("en", "de")}
    for lang, side in tokenised.items():
        raw = []
        for file, member in GERMAN.items():
            raw += list(stream_lines(tmp_path / file.name, member.format(lang)))
        moses = line_function(lang, Chain(normalise=True, aggressive=True))
        assert [moses(line) for line in raw[:100]] == side[:100] and len(side) == len(raw)
        assert lines(text / "split" / f"valid.{lang}") == side[99::100]
    pieces = [lines(text / "pieces" / f"train.{lang}") for lang in ("en", "de")]
    kept = list(zip(*(lines(binarised / f"train.{lang}") for lang in ("en", "de")), strict=True))
    assert kept == list(clean(zip(*pieces, strict=True), Limits(1.5, 1, 250))) and len(kept) < len(pieces[0])
    references = lines(tmp_path / "wmt17_en_de" / "reference" / "test.en-de.de")
    moses = line_function("de", Chain(aggressive=True))
    assert [moses(line.replace("’", "'")) for line in references] == lines(text / "tokenised" / "test.de")
    text = tmp_path / "wmt14_en_de" / "text"
    kept = list(zip(*(lines(text / "clean" / f"train.{lang}") for lang in ("en", "de")), strict=True))
    assert kept == list(clean(zip(*tokenised.values(), strict=True), Limits(9, 1, 80)))
    moses = line_function("de", Chain(normalise=True, aggressive=True))
    valid = [moses(line) for line in stream_lines(tmp_path / "dev.tgz", "dev/newstest2013.de")]
    assert [line.replace("@@ ", "") for line in lines(tmp_path / "wmt14_en_de" / "bin" / "valid.de")] == valid


@smoke
def test_wmt_english_french(tmp_path, quick):
    """Five corpora in the script's order, the last packed twice; each 1333rd pair validates."""
    RECIPES["wmt14_en_fr"].build(Options(tmp_path / "d", tmp_path, fetch=write, workers=2))
    assert [path.name for path in tmp_path.glob("*.tar")] == ["training-giga-fren.tar"]
    tokenised = {lang: lines(tmp_path / "d" / "text" / "tokenised" / f"train.{lang}") for lang in ("en", "fr")}
    moses = line_function("fr", Chain(normalise=True, aggressive=True))
    position = 0
    for file, member in FRENCH.items():
        raw = list(stream_lines(tmp_path / file.name, member.format("fr")))
        assert [moses(line) for line in raw[:20]] == tokenised["fr"][position : position + 20]
        position += len(raw)
    assert position == len(tokenised["fr"]) == len(tokenised["en"])
    assert lines(tmp_path / "d" / "text" / "split" / "valid.en") == tokenised["en"][1332::1333]
    published = stream_lines(tmp_path / "test-full.tgz", "test-full/newstest2014-fren-ref.fr.sgm")
    assert list(published_segments(published)) == lines(tmp_path / "d" / "reference" / "test.en-fr.fr")


@pytest.fixture
def given(tmp_path):
    """Tokenised text as a user has it: train, valid, and two test sets."""
    folder = tmp_path / "my text"
    folder.mkdir()
    for split, text in make_corpus({"train": 800, "valid": 40, "test": 30}).items():
        for lang, sentences in zip(("de", "en"), zip(*text, strict=True), strict=True):
            (folder / f"{split}.{lang}").write_text("".join(f"{line}\n" for line in sentences))
    for lang in ("de", "en"):
        shutil.copy(folder / f"test.{lang}", folder / f"test.old.{lang}")
        with open(folder / f"train.{lang}", "a") as file:
            file.write("a b c d e f\n" if lang == "de" else "a\n")  # nothing to train on
    return folder


def from_text(folder, dest, **more):
    options = Options(dest, dest / "downloads", text=folder, vocab=60)
    RECIPES["iwslt14_de_en"].build(replace(options, **more))
    return json.loads((dest / "recipe.json").read_text())


def test_text_that_is_tokenised_already(given, tmp_path, monkeypatch, capsys):
    with monkeypatch.context() as patched:
        patched.setattr(bilingual, "binarise", copy_text)
        said = from_text(given, tmp_path / "d", workers=1)
    sides = ([len(line.split()) for line in lines(given / f"train.{lang}")] for lang in ("de", "en"))
    train = sum(2 * max(pair) <= 3 * min(pair) for pair in zip(*sides, strict=True))
    pieces = lines(tmp_path / "d" / "bin" / "train.de") + lines(tmp_path / "d" / "bin" / "train.en")
    assert 700 < train < 801 and len(pieces) == 2 * train
    assert said["subsets"] == {"train": "train", "valid": "valid", "test": "test", "test1": "test.old"}
    assert said["files"] == {} and "sacremoses" not in said["tools"]
    assert not (tmp_path / "d" / "reference").exists()  # no one knows the raw text
    (tmp_path / "d" / "reference").mkdir()  # as of an earlier corpus in this folder
    # the same merges and dictionary for other text, whose other letters are unknown
    codes = shutil.copy(tmp_path / "d" / "bin" / "codes", given / "codes")
    dictionary = "".join(f"{piece} 1\n" for piece in set(" ".join(pieces).split()))
    (given / "dict.txt").write_text(dictionary)
    for lang in ("de", "en"):
        (given / f"test.{lang}").write_text("ж ж\n" * 30)
    capsys.readouterr()
    said = from_text(given, tmp_path / "d", workers=1, vocab=None)
    assert not (tmp_path / "d" / "reference").exists()
    assert (tmp_path / "d" / "bin" / "dict.de.txt").read_text() == dictionary
    assert (tmp_path / "d" / "bin" / "codes").read_bytes() == codes.read_bytes()
    assert said["counts"].items() >= {"train": train, "valid": 40, "test": 30, "test1": 30}.items()
    assert said["counts"]["text"]["test"]["de"] == {"sentences": 30, "pieces": 60, "unknown": pytest.approx(66.7)}
    assert (tmp_path / "d" / "bin" / "test1.de-en.en.bin").exists()
    out = capsys.readouterr().out
    assert f"| train: {train} sentence pairs (the recipe makes 160,239)" in out
    assert "| test: unknown are 66.7% of de" in out


SPOILED = {
    "missing": ("train.en", None, r"train\.en: no such file; train\.de is there"),
    "missing on both sides": ("valid.de valid.en", None, r"holds no valid\.de and valid\.en"),
    "unequal": ("test.old.de", b"a\nb\n", r"test\.old\.de has 2 lines, .*test\.old\.en has 30"),
    "pieces": ("test.de", b"a@@ b\n" * 30, r"test\.de, line 1: is in BPE pieces already"),
    "a dictionary without codes": ("dict.txt", b"a 1\n", r"dict\.txt: goes with the BPE codes"),
}


@pytest.mark.parametrize("kind", SPOILED)
def test_spoiled_text_is_refused(kind, given, tmp_path):
    names, text, message = SPOILED[kind]
    for name in names.split():
        (given / name).unlink() if text is None else (given / name).write_bytes(text)
    with pytest.raises(UserError, match=message) as caught:
        from_text(given, tmp_path / "d", vocab=60)
    assert "\n" not in str(caught.value) and str(given) in str(caught.value)
    assert not (tmp_path / "d" / "bin").exists()


def test_other_mistakes_are_told_in_a_line(tmp_path):
    mistakes = {
        ("nope", "d"): "there is no recipe nope; there are iwslt14_de_en (",
        ("iwslt14_de_en", "d", "--from", "nowhere"): "--from nowhere: no such folder",
        ("iwslt14_de_en", "d", "--pairs", "de-en"): "--pairs: means nothing to the recipe iwslt14_de_en",
        ("iwslt14_de_en", "d", "--vocab", "0"): "--vocab 0: must be 1 or more",
        ("iwslt14_de_en", "d", "--workers", "0"): "--workers 0: must be 1 or more",
        ("multilingual", "d"): "the recipe multilingual needs text: --from FOLDER",
    }
    for words, message in mistakes.items():
        assert_refused(message, "prepare", words[0], str(tmp_path / "d"), *words[2:])


def test_counts_beside_what_is_expected(tmp_path, capsys):
    recipe, options = RECIPES["iwslt14_de_en"], Options(tmp_path, tmp_path)
    for count, said in ((160_239, "(as expected)"), (160_300, "WARNING: 160,239 are expected (sacremoses")):
        recipe.check_count(options, "train", count)
        assert said in capsys.readouterr().out
    with pytest.raises(UserError, match="train: 150,000 sentence pairs, but 160,239 are expected"):
        recipe.check_count(options, "train", 150_000)
    RECIPES["wmt17_en_de"].check_count(options, "valid", 40_400)  # less than 1% off a log of the script
    with pytest.raises(UserError, match="train: 3,900,000 sentence pairs, but 3,961,179 are expected"):
        RECIPES["wmt17_en_de"].check_count(options, "train", 3_900_000)
    capsys.readouterr()
    recipe.check_count(replace(options, fetch=write), "train", 5)
    assert capsys.readouterr().out == "| train: 5 sentence pairs\n"


def test_plan(tmp_path, capsys):
    main(["prepare", "iwslt14_de_en", str(tmp_path / "d"), "--plan"])
    out = capsys.readouterr().out
    facts = ("dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz", "1 to 175 words", "10,000 BPE merges",
             "19,982,877 bytes, md5:10936dfdf616504ddbd844e91b94ef4a",
             "one training pair in 23", "lower-case", "train: 160,239", "valid: 7,283", "test: 6,750")  # fmt: skip
    assert [fact for fact in facts if fact not in out] == [] and not (tmp_path / "d").exists()
