"""The recipes of OPUS-100 and of the 102 languages on archives in the published formats, from a loopback server."""

from __future__ import annotations

import json
import re

import pytest
from fairseq.data import data_utils

from deepnet_fairseq.cli import main
from deepnet_fairseq.data import miniature
from deepnet_fairseq.data.archive import stream_lines
from deepnet_fairseq.data.miniature import write
from deepnet_fairseq.data.recipes.m2m102 import FLORES, archive_of, clean
from deepnet_fairseq.data.recipes.opus100 import ARCHIVES
from deepnet_fairseq.errors import UserError

from .support.prepared import lines

pytestmark = pytest.mark.smoke

PAIRS = "de-en,de-fr"


def command(recipe, dest, *flags):
    return ["prepare", recipe, str(dest), "--miniature", "--workers", "1", *flags]


@pytest.fixture(scope="module")
def opus(tmp_path_factory):
    dest = tmp_path_factory.mktemp("opus100") / "dest"
    main(command("opus100", dest))
    return dest


@pytest.fixture(scope="module")
def m2m(tmp_path_factory):
    dest = tmp_path_factory.mktemp("m2m102") / "dest"
    main(command("m2m102", dest, "--pairs", PAIRS))
    return dest


def test_published_counts_of_opus100():
    """Of the corpus' own README: 44 pairs with 1M sentences, 73 with 100k or more, 95 with 10k or more, about 55M."""
    train = [archive.train for archive in ARCHIVES.values()]
    assert [sum(size >= least for size in train) for least in (10**6, 10**5, 10**4)] == [44, 73, 95]
    assert len(train) == 99 and round(sum(train) / 1e6) == 55
    assert sum(bool(archive.test) for archive in ARCHIVES.values()) == 94


def test_plans(tmp_path, capsys):
    """--from adds test sets to m2m102, whose archives are fetched all the same; text of one's own needs none."""
    (tmp_path / "text" / "de-en").mkdir(parents=True)
    for lang in ("de", "en"):
        (tmp_path / "text" / "de-en" / f"train.{lang}").write_text("ja\n")
    found, text = {}, ("--from", str(tmp_path / "text"))
    for recipe, flags in (("opus100", ()), ("m2m102", text), ("multilingual", text)):
        main(["prepare", recipe, str(tmp_path / "d"), "--plan", "--pairs", "de-en", *flags])
        found[recipe] = capsys.readouterr().out
    for address in ("OPUS-CCMatrix/v1/moses/de-en.txt.zip", "flores101_dataset.tar.gz"):
        assert address in found["m2m102"] and address not in found["multilingual"]
    assert "files:" not in found["multilingual"] and "expected:" not in found["m2m102"]
    assert "https://object.pouta.csc.fi/OPUS-100/v1.0/opus-100-corpus-de-en-v1.0.tar.gz" in found["opus100"]
    assert "67,205,361 bytes, sha256:aca2cb2f" in found["opus100"] and "250,000 pieces" in found["opus100"]
    assert "en-fr" not in found["opus100"] and not (tmp_path / "d").exists()


def test_counts_are_known_from_how_the_miniatures_are_made(opus, m2m):
    counts = {"an-en": 150, "de-en": 3000, "en-fr": 1500, "en-ru": 750}
    for dest, known in ((opus, counts), (m2m, {"de-en": 3300, "de-fr": 3300})):
        summary = json.loads((dest / "recipe.json").read_text())
        found = {pair: held["train"] for pair, held in summary["counts"]["pairs"].items() if "train" in held}
        assert summary["miniature"] and found == known


def test_opus100_is_what_its_archives_hold(opus):
    for pair in ("de-en", "en-fr", "en-ru"):
        archive = opus / "downloads" / "miniature" / f"opus-100-corpus-{pair}-v1.0.tar.gz"
        there, back = pair.split("-")
        for source, target in ((there, back), (back, there)):
            member = f"opus-100-corpus/v1.0/supervised/{pair}/opus.{pair}-test.{target}"
            raw = [" ".join(line.strip().splitlines()) for line in stream_lines(archive, member)]
            assert lines(opus / "reference" / f"test.{source}-{target}.{target}") == raw
    assert not list((opus / "bin").glob("test.an-en.*"))
    assert len(data_utils.load_indexed_dataset(str(opus / "bin" / "valid.an-en.an"))) == 1
    assert "an-en" in lines(opus / "bin" / "pairs.txt") and "an" in lines(opus / "bin" / "langs.txt")


def test_unknown_pairs_and_missing_ones(tmp_path):
    with pytest.raises(SystemExit, match="OPUS-100 has no such pair"):
        main(["prepare", "opus100", str(tmp_path / "dest"), "--pairs", "de-xx"])
    with pytest.raises(SystemExit, match="12 billion sentence pairs.*--pairs"):
        main(["prepare", "m2m102", str(tmp_path / "dest"), "--plan"])


def test_cleaning_says_what_it_left_out(capsys):
    pairs = ["ab", "ab", "ac", ("", "b"), ("d", ""), "ee", ("f" * 1001, "g"), "hi", "jk"]
    kept = list(clean(pairs, (frozenset("h"), frozenset("k")), "de-en"))
    assert kept == [("a", "b"), ("a", "c")]
    found = dict(re.findall(r"([a-z][a-z ]*) (\d+)", capsys.readouterr().out.partition(": ")[2]))
    assert found == {"empty": "2", "equal sides": "1", "too long": "1", "evaluation": "2", "twice": "1", "kept": "2"}


def test_m2m102_sets_of_every_two_languages(m2m):
    """en-fr is not trained on, and is tested."""
    assert lines(m2m / "bin" / "pairs.txt") == ["de-en", "en-de", "de-fr", "fr-de"]
    flores = m2m / "evaluation" / "flores101" / "flores101_dataset" / "devtest"
    for source, target in (("de", "en"), ("en", "fr"), ("fr", "en")):
        raw = (flores / f"{FLORES[target]}.devtest").read_text(encoding="utf-8")
        found = (m2m / "reference" / f"flores.{source}-{target}.{target}").read_text(encoding="utf-8")
        assert found.split() == raw.split() and len(found.split("\n")) == 101
    assert {path.name.split(".")[0] for path in (m2m / "bin").glob("*.en-fr.*")} == {"flores"}
    assert (m2m / "reference" / "opus.fr-de.de").exists()
    summary = json.loads((m2m / "recipe.json").read_text())
    assert summary["counts"]["flores"] == 200 and summary["counts"]["pairs"]["en-fr"] == {"flores": 100}


def test_m2m102_keeps_no_archive_and_no_sentence_of_the_test_sets(m2m):
    assert not list((m2m / "downloads").rglob("*.zip*"))
    devtest = {tuple(ids.tolist()) for ids in data_utils.load_indexed_dataset(str(m2m / "bin" / "flores.de-fr.fr"))}
    train = {tuple(ids.tolist()) for ids in data_utils.load_indexed_dataset(str(m2m / "bin" / "train.de-fr.fr"))}
    assert len(devtest) == 100 and not devtest & train


def test_m2m102_with_further_test_sets(m2m, tmp_path):
    (tmp_path / "more" / "de-en").mkdir(parents=True)
    for lang, line in (("de", "Guten Tag!"), ("en", "Good day!")):
        (tmp_path / "more" / "de-en" / f"wmt.{lang}").write_text(f"{line}\n")
    dest = tmp_path / "dest"
    flags = ("--spm", str(m2m / "spm.model"), "--from", str(tmp_path / "more"), "--pairs", "de-en")
    main(command("m2m102", dest, *flags))
    assert lines(dest / "reference" / "wmt.de-en.en") == ["Good day!"]
    assert "flores101_dataset.tar.gz" in json.loads((dest / "recipe.json").read_text())["files"]


def test_a_corpus_without_the_pair_is_passed_over(tmp_path, monkeypatch, capsys):
    def fetched(files, folder):
        if files[0].name.endswith(".zip") and files[0] != archive_of("CCMatrix", "de-en"):
            raise UserError(f"{files[0].name}: no address gives it ({files[0].urls[0]}: 404 Not Found)")
        return write(files, folder)

    monkeypatch.setattr(miniature, "write", fetched)
    main(command("m2m102", tmp_path / "dest", "--pairs", "de-en"))
    assert capsys.readouterr().err.count("does not have de-en: passed over") == 2
    assert json.loads((tmp_path / "dest" / "recipe.json").read_text())["counts"]["train"] == 2000
    with pytest.raises(SystemExit, match="de-fr: none of CCMatrix, CCAligned, Tatoeba has it"):
        main(command("m2m102", tmp_path / "other", "--pairs", "de-fr"))
