"""Text of many pairs into one vocabulary and one folder: what is in it, and what is wrong with the text."""

from __future__ import annotations

import json
import math
from collections import Counter
from random import Random

import numpy as np
import pytest
from fairseq.data import data_utils

from deepnet_fairseq.data.multilingual.pair_text import PairText
from deepnet_fairseq.data.multilingual.prepare import binarise
from deepnet_fairseq.data.multilingual.vocabulary import Pieces, Vocabulary, sample, shares
from deepnet_fairseq.errors import UserError

from .support.helpers import run
from .support.many_languages import (
    HELD_OUT,
    SIZES,
    lines,
    prepare,
    prepare_shards,
    sentences,
    stands_for,
    write,
    write_text,
)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def prepared(text, tmp_path_factory):
    return prepare(text, tmp_path_factory.mktemp("prepared") / "dest", "--vocab", "300")


def test_shares_by_hand():
    assert shares({"de": 8, "gd": 1}, 3) == pytest.approx({"de": 2 / 3, "gd": 1 / 3})
    assert shares({"de": 8, "gd": 1}, 1) == pytest.approx({"de": 8 / 9, "gd": 1 / 9})
    assert shares({"de": 10**6, "gd": 1}, 1e9) == pytest.approx({"de": 0.5, "gd": 0.5}, abs=1e-6)


def test_sample_takes_whole_copies_and_a_fair_rest():
    drawn = Counter(sample(range(10), 10, 25, Random(1)))
    assert sum(drawn.values()) == 25 and set(drawn.values()) == {2, 3} and set(drawn) == set(range(10))
    rounds = 4000
    chosen = Counter(line for seed in range(rounds) for line in sample(range(10), 10, 3, Random(seed)))
    error = 5 * math.sqrt(0.3 * 0.7 / rounds)  # five standard deviations of a share
    assert all(chosen[line] / rounds == pytest.approx(0.3, abs=error) for line in range(10))


def test_vocabulary_is_trained_on_languages_in_their_shares(tmp_path):
    def pair(langs, count):
        return PairText(langs, {"train": lambda: ((f"{langs[0]} {i}", f"{langs[1]} {i}") for i in range(count))}, {})

    texts = [pair(("de", "en"), 8000), pair(("en", "gd"), 1000)]
    drawn = Pieces(tmp_path, 100, 5.0).draw(texts, {"de-en": 8000, "en-gd": 1000})
    found = {lang: list(lines) for lang, lines in drawn.items()}
    total = sum(map(len, found.values()))
    weights = {"de": 8000**0.2, "en": 9000**0.2, "gd": 1000**0.2}
    for lang, weight in weights.items():
        assert len(found[lang]) / total == pytest.approx(weight / sum(weights.values()), abs=1e-3)
        assert all(line.startswith(lang) for line in found[lang])
    assert len(set(found["en"])) > 4000  # of both pairs


def test_the_same_bytes_as_fairseq_preprocess(text, prepared, tmp_path):
    vocabulary = Vocabulary(prepared / "spm.model")
    for lang in ("de", "en"):
        pieces = vocabulary.processor.encode(lines(text / "de-en" / f"train.{lang}"), out_type=str)
        (tmp_path / f"train.{lang}").write_text("".join(" ".join(line) + "\n" for line in pieces))
    dictionary = prepared / "bin" / "dict.de.txt"
    run("fairseq-preprocess", "-s", "de", "-t", "en", "--trainpref", tmp_path / "train", "--srcdict", dictionary,
        "--tgtdict", dictionary, "--destdir", tmp_path / "bin")  # fmt: skip
    for lang in ("de", "en"):
        for end in ("bin", "idx"):
            name = f"train.de-en.{lang}.{end}"
            assert (tmp_path / "bin" / name).read_bytes() == (prepared / "bin" / name).read_bytes()


def test_pieces_outside_the_vocabulary_are_unk(prepared):
    ids = Vocabulary(prepared / "spm.model").encode(["ж", ""])
    assert ids[0].tolist()[-2:] == [3, 2] and ids[1].tolist() == [2]


def test_text_counts_and_lists(text, prepared):
    folder = prepared / "bin"
    for pair in SIZES:
        for subset in ("train", "test"):
            for lang in pair.split("-"):
                given, found = lines(text / pair / f"{subset}.{lang}"), sentences(folder, f"{subset}.{pair}", lang)
                assert len(found) == len(given) and all(map(stands_for, found, given))
                assert sum("<unk>" in line for line in found) < 0.03 * len(found)
    assert sentences(folder, "valid.en-fr", "fr") == lines(text / "en-fr" / "train.fr")[:1]  # stands in for none
    assert lines(folder / "langs.txt") == ["de", "en", "fr"]
    assert lines(folder / "pairs.txt") == ["de-en", "en-de", "en-fr", "fr-en"]
    summary = json.loads((prepared / "recipe.json").read_text())
    assert summary["counts"]["train"] == sum(SIZES.values())
    assert summary["counts"]["pairs"]["de-en"] == {"train": 360, "valid": 20, "test": 20}
    assert (summary["pieces"], summary["detokenise"], summary["lowercase"]) == ("sentencepiece", False, False)


def test_references_are_the_raw_text_of_either_side(text, prepared):
    for pair in SIZES:
        there, back = pair.split("-")
        for source, target in ((there, back), (back, there)):
            reference = prepared / "reference" / f"test.{source}-{target}.{target}"
            assert reference.read_text() == (text / pair / f"test.{target}").read_text()


def test_shards_together_are_the_data(text, prepared, tmp_path):
    sharded = prepare_shards(text, prepared, tmp_path / "sharded")
    assert (sharded / "spm.model").read_bytes() == (prepared / "spm.model").read_bytes()
    folders = [sharded / "bin" / name for name in ("shard00", "shard01")]
    for lang in ("de", "en"):
        whole, *parts = (
            data_utils.load_indexed_dataset(str(folder / f"train.de-en.{lang}"))
            for folder in (prepared / "bin", *folders)
        )
        assert [len(part) for part in parts] == [180, 180]
        for number in range(len(whole)):
            assert np.array_equal(whole[number], parts[number % 2][number // 2])
    held = {path.name.split(".")[0] for path in folders[1].iterdir()}
    assert held == {"train"} and not list(folders[1].glob("*fr*"))


def test_a_pair_that_comes_later_leaves_the_others(text, tmp_path, capsys):
    dest = prepare(text, tmp_path / "dest", "--vocab", "200", "--pairs", "de-en")
    before = {path: path.stat().st_mtime_ns for path in [dest / "spm.model", *(dest / "bin").glob("*.de-en.*")]}
    assert len(before) == 1 + 3 * 4
    prepare(text, dest, "--vocab", "200", "--pairs", "en-fr")
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert lines(dest / "bin" / "pairs.txt") == ["de-en", "en-de", "en-fr", "fr-en"]
    capsys.readouterr()
    prepare(text, dest, "--vocab", "200", "--pairs", "en-fr")
    assert capsys.readouterr().out == f"{dest}: whole\n"
    prepare(text, dest, "--vocab", "150")
    assert "== pair.de-en\n" in capsys.readouterr().out  # another vocabulary, everything anew


def test_text_that_changes_is_read_again(text, prepared, tmp_path, capsys):
    copy = tmp_path / "text"
    for pair in SIZES:
        (copy / pair).mkdir(parents=True)
        for path in (text / pair).iterdir():
            (copy / pair / path.name).write_bytes(path.read_bytes())
    dest = prepare(copy, tmp_path / "dest", "--spm", str(prepared / "spm.model"))
    write(copy / "en-fr" / "test", ("en", "fr"), [["kurz"], ["short"], ["court"]])
    capsys.readouterr()
    prepare(copy, dest, "--spm", str(prepared / "spm.model"))
    out = capsys.readouterr().out
    assert "== pair.en-fr\n" in out and "== pair.de-en: done before" in out and "== vocabulary: done before" in out
    assert lines(dest / "reference" / "test.en-fr.fr") == ["court"]


DAMAGES = {
    "unequal": (lambda pair: (pair / "train.de").write_text("kurz\n"), r"train\.de ends after line 1, .*train\.en"),
    "empty": (lambda pair: (pair / "valid.en").write_text("\n" * HELD_OUT), r"valid\.en, line 1: empty"),
    "encoding": (lambda pair: (pair / "test.de").write_bytes(b"a\n\xff\n"), r"test\.de, line 2: not UTF-8"),
    "missing": (lambda pair: (pair / "train.en").unlink(), r"train\.en: no such file"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_text_is_named(damage, text, tmp_path, capsys):
    spoil, complaint = DAMAGES[damage]
    pair = tmp_path / "text" / "de-en"
    pair.mkdir(parents=True)
    for path in (text / "de-en").iterdir():
        (pair / path.name).write_bytes(path.read_bytes())
    spoil(pair)
    with pytest.raises(SystemExit, match=complaint):
        prepare(tmp_path / "text", tmp_path / "dest", "--vocab", "200")
    assert not (tmp_path / "dest" / "recipe.json").exists() and not list(tmp_path.rglob("*.part"))


@pytest.mark.parametrize(
    "flags, complaint",
    [
        (("--pairs", "de-es"), "de-es: no such folder"),
        (("--vocab", "100000"), r"--vocab 100000: this text supports at most \d+"),
        (("--vocab", "20"), r"--vocab 20: below this text's \d+ characters"),
        (("--temperature", "0"), r"--temperature 0\.0: must be above 0"),
        (("--shards", "0"), "--shards 0: must be 1 or more"),
        (("--spm", "nowhere"), "--spm nowhere: no such file"),
        (("--spm", __file__), "no SentencePiece model"),
        (("--spm", __file__, "--vocab", "9"), "leave out --vocab"),
        (("--moses", "."), "--moses: means nothing"),
    ],
)
def test_flags_that_cannot_be(flags, complaint, text, tmp_path):
    with pytest.raises(SystemExit, match=complaint):
        prepare(text, tmp_path / "dest", *flags)


def test_too_few_sentences_for_the_shards(prepared, tmp_path):
    prefixes = [(tmp_path / f"{i}.de", tmp_path / f"{i}.en") for i in range(3)]
    with pytest.raises(UserError, match="2 sentence pairs, too few for 3 shards"):
        binarise(iter([("a", "b")] * 2), Vocabulary(prepared / "spm.model"), prefixes)
    assert not list(tmp_path.iterdir())
