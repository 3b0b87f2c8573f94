"""Tests of the recipes of OPUS-100 and of the 102 languages, on archives in the published formats."""

from __future__ import annotations

import json
import re
import shutil

import pytest
from fairseq.data import data_utils
from sacrebleu.dataset import DATASETS

from deepnet_fairseq.cli import main
from deepnet_fairseq.data import miniature
from deepnet_fairseq.data.archive import stream_lines
from deepnet_fairseq.data.miniature import write
from deepnet_fairseq.data.recipes.evaluation import FLORES, wmt_archives
from deepnet_fairseq.data.recipes.m2m102 import archives_of, filter_pairs
from deepnet_fairseq.data.recipes.opus100 import ARCHIVES
from deepnet_fairseq.errors import UserError

from ..support.prepared import lines

pytestmark = pytest.mark.smoke

PAIRS = "de-en,de-fr"


def command(recipe, dest, *flags):
    return ["prepare", "corpus", recipe, str(dest), "--miniature", "--workers", "1", *flags]


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


def test_counts_are_known_from_how_the_miniatures_are_made(opus, m2m):
    for dest, known in (
        (opus, {"an-en": 150, "de-en": 3000, "en-fr": 2500, "en-ru": 2000}),
        (m2m, {"de-fr": 3300}),  # de-en also has OPUS-100's pairs, without duplicates and test sentences
    ):
        summary = json.loads((dest / "recipe.json").read_text())
        counts = {pair: held["train"] for pair, held in summary["counts"]["pairs"].items() if "train" in held}
        assert summary["miniature"] and counts == counts | known


def test_opus100_is_what_its_archives_hold(opus):
    for pair in ("de-en", "en-fr", "en-ru"):
        archive = opus / "downloads" / "miniature" / f"opus-100-corpus-{pair}-v1.0.tar.gz"
        there, back = pair.split("-")
        for source, target in ((there, back), (back, there)):
            member = f"opus-100-corpus/v1.0/supervised/{pair}/opus.{pair}-test.{target}"
            raw = [" ".join(line.strip().splitlines()) for line in stream_lines(archive, member)]
            assert lines(opus / "reference" / f"test.{source}-{target}.{target}") == raw
    assert not list((opus / "bin").glob("test.an-en.*"))
    assert "an-en" in lines(opus / "bin" / "pairs.txt") and "an" in lines(opus / "bin" / "langs.txt")


def test_cleaning_says_what_it_left_out(capsys):
    pairs = ["ab", "ab", "ac", ("", "b"), ("d", ""), "ee", ("f" * 1001, "g"), "hi", "jk"]
    kept = list(filter_pairs(pairs, (frozenset("h"), frozenset("k")), "de-en"))
    assert kept == [("a", "b"), ("a", "c")]
    counts = dict(re.findall(r"([a-z][a-z ]*) (\d+)", capsys.readouterr().out.partition(": ")[2]))
    assert counts == {"empty": "2", "equal sides": "1", "too long": "1", "evaluation": "2", "twice": "1", "kept": "2"}


def test_m2m102_sets_of_every_two_languages(m2m):
    """Test sets cover every two languages: en-fr is tested although it is not trained on."""
    assert lines(m2m / "bin" / "pairs.txt") == ["de-en", "en-de", "de-fr", "fr-de"]
    flores = m2m / "evaluation" / "flores101" / "flores101_dataset" / "devtest"
    for source, target in (("de", "en"), ("en", "fr"), ("fr", "en")):
        raw = (flores / f"{FLORES[target]}.devtest").read_text(encoding="utf-8")
        text = (m2m / "reference" / f"flores.{source}-{target}.{target}").read_text(encoding="utf-8")
        assert text.split() == raw.split() and len(text.split("\n")) == 101
    assert {path.name.split(".")[0] for path in (m2m / "bin").glob("*.en-fr.*")} == {"flores", "ted", "wmt"}
    assert (m2m / "reference" / "opus.fr-de.de").exists()
    counts = json.loads((m2m / "recipe.json").read_text())["counts"]
    assert counts["flores"] == 200 and counts["pairs"]["en-fr"]["flores"] == counts["pairs"]["de-en"]["wmt"] == 100


def test_m2m102_keeps_no_archive_and_no_sentence_of_the_test_sets(m2m):
    assert not list((m2m / "downloads").rglob("*.zip*")) + list((m2m / "downloads").rglob("opus-100-corpus-de-en*"))
    devtest, train = (
        {tuple(ids.tolist()) for ids in data_utils.load_indexed_dataset(str(m2m / "bin" / f"{subset}.de-fr.fr"))}
        for subset in ("flores", "train")
    )
    assert len(devtest) == 100 and not devtest & train


def test_wmt_sets_are_sacrebleus_own_and_of_one_direction(m2m, tmp_path, monkeypatch):
    for name, directions in (("wmt19", ("en-de", "de-en")), ("wmt14", ("en-fr", "fr-en"))):
        dataset, archive = DATASETS[name], m2m / "downloads" / "miniature" / wmt_archives()[name].name
        monkeypatch.setattr(dataset, "_outdir", str(tmp_path / name))
        monkeypatch.setattr(dataset, "_rawdir", str(tmp_path / name / "raw"))
        monkeypatch.setattr(dataset, "maybe_download", lambda: None)
        shutil.unpack_archive(archive, tmp_path / name / "raw")
        for direction in directions:
            source, target = direction.split("-")
            references = [reference.strip() for (reference,) in dataset.references(direction)]
            assert lines(m2m / "reference" / f"wmt.{direction}.{target}") == references and len(references) == 100
            sources = list(map(str.strip, dataset.source(direction)))
            assert lines(m2m / "evaluation" / "wmt" / direction / f"test.{source}") == sources


def test_ted_is_detokenised_and_leaves_out_what_a_language_lacks(m2m):
    """TED's text is detokenised, and sentences that a language lacks are left out: here a third of the German."""
    german, french = (lines(m2m / "evaluation" / "ted" / f"test.{lang}") for lang in ("de", "fr"))
    assert [not line for line in german] == [number % 3 == 1 for number in range(100)]
    assert all(french) and not [line for line in french if re.search(r" [.,)]|\( |NULL", line)]
    kept = [line for number, line in enumerate(french) if number % 3 != 1]
    assert lines(m2m / "reference" / "ted.de-fr.fr") == kept and len(kept) == 67
    assert not list((m2m / "reference").glob("ted.*.ru")) and (m2m / "reference" / "ted.en-fr.fr").exists()


def test_each_corpus_has_codes_of_its_own():
    """Each corpus has its own language codes, as OPUS names the files, and members in the order of the pair."""
    archives = {corpus: (file.name, *members) for corpus, (file, members) in archives_of("de-zh").items()}
    assert archives["CCMatrix"] == ("CCMatrix.de-zh.zip", "CCMatrix.de-zh.de", "CCMatrix.de-zh.zh")
    assert archives["CCAligned"] == ("CCAligned.de-zh_CN.zip", "CCAligned.de-zh_CN.de", "CCAligned.de-zh_CN.zh_CN")
    assert archives["Tatoeba"] == ("Tatoeba.cmn-de.zip", "Tatoeba.cmn-de.de", "Tatoeba.cmn-de.cmn")
    (persian, _), (opus_100, _) = (archives_of("en-fa")[corpus] for corpus in ("Tatoeba", "OPUS-100"))
    assert persian.urls == ("https://object.pouta.csc.fi/OPUS-Tatoeba/v2023-04-12/moses/en-pes.txt.zip",)
    assert opus_100.checksum == f"sha256:{ARCHIVES['en-fa'].sha256}" and opus_100.size == ARCHIVES["en-fa"].size


def test_m2m102_with_further_test_sets(m2m, tmp_path):
    (tmp_path / "more" / "de-en").mkdir(parents=True)
    for lang, line in (("de", "Guten Tag!"), ("en", "Good day!")):
        (tmp_path / "more" / "de-en" / f"wmt.{lang}").write_text(f"{line}\n")
    dest = tmp_path / "dest"
    flags = ("--spm", str(m2m / "spm.model"), "--from", str(tmp_path / "more"), "--pairs", "de-en")
    main(command("m2m102", dest, *flags))
    assert lines(dest / "reference" / "wmt.de-en.en") == ["Good day!"]  # none of sacreBLEU's set of this name
    assert "flores101_dataset.tar.gz" in json.loads((dest / "recipe.json").read_text())["files"]


def test_a_corpus_without_the_pair_is_passed_over(tmp_path, monkeypatch, capsys):
    def fetched(files, folder):
        if re.search(r"\.zip$|-de-en-", files[0].name) and files[0].name != "CCMatrix.de-en.zip":
            raise UserError(f"{files[0].name}: no address gives it ({files[0].urls[0]}: 404 Not Found)")
        return write(files, folder)

    monkeypatch.setattr(miniature, "write", fetched)
    main(command("m2m102", tmp_path / "dest", "--pairs", "de-en"))
    assert capsys.readouterr().err.count("does not have de-en: passed over") == 3
    assert json.loads((tmp_path / "dest" / "recipe.json").read_text())["counts"]["train"] == 2000
    with pytest.raises(SystemExit, match="de-fr: none of CCMatrix, CCAligned, Tatoeba has it"):
        main(command("m2m102", tmp_path / "other", "--pairs", "de-fr"))
