"""deepnet prepare --from: text that is tokenised already; and what is told before anything is made."""

import json
import shutil
from dataclasses import replace

import pytest

from deepnet_fairseq.cli import main
from deepnet_fairseq.data import bilingual
from deepnet_fairseq.data.corpus import make_corpus
from deepnet_fairseq.data.recipes import RECIPES, Options
from deepnet_fairseq.errors import UserError

from .support.bilingual import copy_text, lines
from .support.refused import assert_refused


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(bilingual, "binarise", copy_text)


@pytest.fixture
def given(tmp_path):
    """Tokenised text as a user has it: train, valid, and two test sets."""
    folder = tmp_path / "my text"
    folder.mkdir()
    for split, text in make_corpus({"train": 800, "valid": 40, "test": 30}).items():
        for lang, sentences in (("de", text.source), ("en", text.target)):
            (folder / f"{split}.{lang}").write_text("".join(f"{line}\n" for line in sentences))
    for lang in ("de", "en"):
        shutil.copy(folder / f"test.{lang}", folder / f"test.old.{lang}")
        with open(folder / f"train.{lang}", "a") as file:
            file.write("a b c d e f\n" if lang == "de" else "a\n")  # nothing to train on
    return folder


def from_text(folder, dest, **more):
    options = Options(dest, dest / "downloads", text=folder, vocab=60, miniature=False)
    RECIPES["iwslt14_de_en"].build(replace(options, **more))
    return json.loads((dest / "recipe.json").read_text())


def test_text_that_is_tokenised_already(given, tmp_path, capsys):
    said = from_text(given, tmp_path / "d", workers=1)
    sides = ([len(line.split()) for line in lines(given / f"train.{lang}")] for lang in ("de", "en"))
    train = sum(2 * max(pair) <= 3 * min(pair) for pair in zip(*sides, strict=True))
    assert 700 < train < 801
    assert said["counts"].items() >= {"train": train, "valid": 40, "test": 30, "test1": 30}.items()
    assert said["subsets"] == {"train": "train", "valid": "valid", "test": "test", "test1": "test.old"}
    assert said["files"] == {} and "sacremoses" not in said["tools"]
    assert (tmp_path / "d" / "bin" / "test1.de-en.en.bin").exists()
    assert not (tmp_path / "d" / "reference").exists()  # no one knows the raw text
    out = capsys.readouterr().out
    assert f"| train: {train} sentence pairs (the recipe makes 160,239)" in out
    # the same merges and dictionary for other text, whose other letters are unknown
    codes, dictionary = (tmp_path / "d" / "bin" / name for name in ("codes", "dict.en.txt"))
    shutil.copy(codes, given / "codes")
    shutil.copy(dictionary, given / "dict.txt")
    for lang in ("de", "en"):
        (given / f"test.{lang}").write_text("ж ж\n" * 30)
    said = from_text(given, tmp_path / "e", workers=1, vocab=None)
    assert (tmp_path / "e" / "bin" / "dict.de.txt").read_bytes() == dictionary.read_bytes()
    assert (tmp_path / "e" / "bin" / "codes").read_bytes() == codes.read_bytes()
    assert said["counts"]["text"]["test"]["de"] == {"sentences": 30, "pieces": 60, "unknown": pytest.approx(66.7)}
    assert "| test: unknown are 66.7% of de" in capsys.readouterr().out


def test_text_that_changes_is_read_again(given, tmp_path, quick, capsys):
    from_text(given, tmp_path / "d")
    from_text(given, tmp_path / "d")
    assert capsys.readouterr().out.endswith("d: whole\n")
    with open(given / "test.de", "a") as german, open(given / "test.en", "a") as english:
        german.write("mehr .\n")
        english.write("more .\n")
    from_text(given, tmp_path / "d")
    assert lines(tmp_path / "d" / "bin" / "test.en")[-1].replace("@@ ", "") == "more ."


def test_references_of_other_text_do_not_stay(given, tmp_path, quick):
    from_text(given, tmp_path / "d")
    (tmp_path / "d" / "reference").mkdir()
    (tmp_path / "d" / "reference" / "test.de-en.en").write_text("of an archive\n")
    from_text(given, tmp_path / "d", vocab=50)
    assert not (tmp_path / "d" / "reference").exists()


def spoil(folder, name, text):
    if text is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(text)


SPOILED = {
    "missing": ("train.en", None, r"train\.en: no such file; train\.de is there"),
    "missing on both sides": ("valid.de valid.en", None, r"holds no valid\.de and valid\.en"),
    "unequal": ("valid.de", b"a\nb\n", r"valid\.de has 2 lines, .*valid\.en has 40"),
    "not UTF-8": ("test.old.en", b"caf\xe9\n" * 30, r"test\.old\.en, line 1: not UTF-8"),
    "pieces": ("test.de", b"a@@ b\n" * 30, r"test\.de, line 1: is in BPE pieces already"),
    "a dictionary without codes": ("dict.txt", b"a 1\n", r"dict\.txt: goes with the BPE codes"),
    "codes that are none": ("codes", b"a b\nabc\n", r"codes, line 2: is no merge operation"),
}


@pytest.mark.parametrize("kind", SPOILED)
def test_spoiled_text_is_refused(kind, given, tmp_path):
    names, text, message = SPOILED[kind]
    for name in names.split():
        spoil(given, name, text)
    with pytest.raises(UserError, match=message) as caught:
        from_text(given, tmp_path / "d", vocab=None if names == "codes" else 60)
    assert "\n" not in str(caught.value) and str(given) in str(caught.value)
    assert not (tmp_path / "d" / "bin").exists()


def test_other_mistakes_are_told_in_a_line(given, tmp_path, capsys):
    mistakes = {
        ("nope", "d"): "there is no recipe nope; there are iwslt14_de_en (",
        ("iwslt14_de_en", "d", "--from", "nowhere"): "--from nowhere: no such folder",
        ("iwslt14_de_en", "d", "--pairs", "de-en"): "--pairs: means nothing to the recipe iwslt14_de_en",
        ("iwslt14_de_en", "d", "--vocab", "0"): "--vocab 0: must be 1 or more",
        ("iwslt14_de_en", "d", "--workers", "0"): "--workers 0: must be 1 or more",
        ("multilingual", "d"): "the recipe multilingual needs text: --from FOLDER",
        ("iwslt14_de_en", str(given)): "is there and holds other things (",
    }
    for words, message in mistakes.items():
        dest = tmp_path / words[1] if words[1] == "d" else given
        assert_refused(message, "prepare", words[0], str(dest), *words[2:])


def test_counts_beside_what_is_expected(tmp_path, capsys):
    recipe, options = RECIPES["iwslt14_de_en"], Options(tmp_path, tmp_path)
    for count, said in ((160_239, "(as expected)"), (160_300, "WARNING: 160,239 are expected (sacremoses")):
        recipe.report(options, "train", count)
        assert said in capsys.readouterr().out
    with pytest.raises(UserError, match="train: 150,000 sentence pairs, but 160,239 are expected"):
        recipe.report(options, "train", 150_000)
    recipe.report(replace(options, miniature=True), "train", 5)
    assert capsys.readouterr().out == "| train: 5 sentence pairs\n"


@pytest.mark.parametrize("name, facts", {
    "iwslt14_de_en": ["dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz", "1 to 175 words", "10,000 BPE merges",
                      "one training pair in 23", "lower-case", "train: 160,239", "valid: 7,283", "test: 6,750"],
    "wmt17_en_de": ["europarl-v7.tgz", "40,000 BPE merges", "1 to 250 words", "one training pair in 100"],
    "wmt14_en_de": ["dev.tgz", "32,764 BPE merges", "1 to 80 words", "test: 3,003", "valid: 3,000"],
}.items())  # fmt: skip
def test_plans(name, facts, tmp_path, capsys):
    main(["prepare", name, str(tmp_path / "d"), "--plan"])
    out = capsys.readouterr().out
    assert [fact for fact in facts if fact not in out] == []
    assert not (tmp_path / "d").exists()
