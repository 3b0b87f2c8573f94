"""Tests of the recipes of OPUS-100 and of the 102 languages, on archives in the published formats.

The archives are miniatures (data/miniature), which --miniature puts in the place of downloads. The recipe m2m102 has
the test sets opus, flores, wmt and ted of Table 3 of the paper DeepNet.
"""

from __future__ import annotations

import json
import re
import shutil
from typing import NamedTuple

import pytest
from fairseq.data import data_utils
from sacrebleu.dataset import DATASETS
from sacrebleu.dataset.base import Dataset

from deepnet_fairseq.cli import main
from deepnet_fairseq.data import miniature
from deepnet_fairseq.data.archive import stream_lines
from deepnet_fairseq.data.miniature import multilingual as generated
from deepnet_fairseq.data.miniature import write
from deepnet_fairseq.data.recipes.evaluation import FLORES, wmt_archives
from deepnet_fairseq.data.recipes.m2m102 import archives_of, filter_pairs
from deepnet_fairseq.data.recipes.opus100 import ARCHIVES
from deepnet_fairseq.errors import UserError

from ..support.errors import assert_refused
from ..support.prepared import lines_of

pytestmark = pytest.mark.smoke

PAIRS = "de-en,de-fr"  # that m2m102 trains on here
TEST_SIZE = generated.HELD_OUT  # 100 sentences in each test set of the miniatures


def command(recipe, dest, *flags):
    """Return the words after `deepnet` that make a recipe's miniature in the folder `dest`."""
    return ["prepare", "corpus", recipe, str(dest), "--miniature", "--workers", "1", *flags]


@pytest.fixture(scope="module")
def opus100(tmp_path_factory):
    """Provide the folder of OPUS-100's miniature."""
    dest = tmp_path_factory.mktemp("opus100") / "dest"
    main(command("opus100", dest))
    return dest


@pytest.fixture(scope="module")
def m2m102(tmp_path_factory):
    """Provide the folder of the 102 languages' miniature, of two pairs."""
    dest = tmp_path_factory.mktemp("m2m102") / "dest"
    main(command("m2m102", dest, "--pairs", PAIRS))
    return dest


def recipe_of(dest):
    """Return the content of recipe.json in the folder of a corpus."""
    return json.loads((dest / "recipe.json").read_text())


@pytest.mark.parametrize(
    ("corpus", "pair", "count"),
    [
        ("opus100", "an-en", generated.SMALL),  # 150
        ("opus100", "de-en", generated.OPUS_100["de-en"]),  # 3,000
        ("opus100", "en-fr", generated.OPUS_100["en-fr"]),  # 2,500
        ("opus100", "en-ru", generated.OPUS_100["en-ru"]),  # 2,000
        ("m2m102", "de-fr", sum(generated.SIZES.values())),  # 3,300 of CCMatrix, CCAligned and Tatoeba
    ],
)
def test_recipe_json_counts_the_training_pairs_that_cleaning_keeps(corpus, pair, count, request):
    recipe = recipe_of(request.getfixturevalue(corpus))

    assert recipe["miniature"]
    assert recipe["counts"]["pairs"][pair]["train"] == count


@pytest.mark.parametrize("direction", ["de-en", "en-de", "en-fr", "fr-en", "en-ru", "ru-en"])
def test_opus100_s_references_are_what_its_archives_hold(direction, opus100):
    source, target = direction.split("-")
    pair = "-".join(sorted([source, target]))
    archive = opus100 / "downloads" / "miniature" / f"opus-100-corpus-{pair}-v1.0.tar.gz"
    published = stream_lines(archive, f"opus-100-corpus/v1.0/supervised/{pair}/opus.{pair}-test.{target}")

    expected = [" ".join(line.strip().splitlines()) for line in published]  # U+2028 and its like become blanks
    assert lines_of(opus100 / "reference" / f"test.{direction}.{target}") == expected


def test_opus100_trains_a_pair_that_has_no_test_set(opus100):
    assert not list((opus100 / "bin").glob("test.an-en.*"))
    assert "an-en" in lines_of(opus100 / "bin" / "pairs.txt")
    assert "an" in lines_of(opus100 / "bin" / "langs.txt")


MINED_PAIRS = [
    ("a", "b"),
    ("a", "b"),  # twice
    ("a", "c"),
    ("", "b"),  # empty
    ("d", ""),  # empty
    ("e", "e"),  # equal sides
    ("f" * 1001, "g"),  # too long
    ("h", "i"),  # a source of the test sets
    ("j", "k"),  # a target of the test sets
]


def filter_mined_pairs():
    """Return what the cleaning of m2m102 keeps of MINED_PAIRS."""
    tested = (frozenset("h"), frozenset("k"))  # sources and targets of the test sets
    return list(filter_pairs(MINED_PAIRS, tested, "de-en"))


def test_cleaning_keeps_each_pair_once_that_is_fit_for_training():
    assert filter_mined_pairs() == [("a", "b"), ("a", "c")]


def test_cleaning_counts_what_it_left_out_and_why(capsys):
    filter_mined_pairs()

    _, _, printed = capsys.readouterr().out.partition("de-en: ")
    counts = dict(re.findall(r"([a-z][a-z ]*) (\d+)", printed))  # reason -> number
    assert counts == {"empty": "2", "equal sides": "1", "too long": "1", "evaluation": "2", "twice": "1", "kept": "2"}


@pytest.mark.parametrize("direction", ["de-en", "en-fr", "fr-en"])
def test_m2m102_tests_every_two_languages_on_flores(direction, m2m102):
    """en-fr is tested although it is not trained on; white space is not compared."""
    _, target = direction.split("-")
    flores = m2m102 / "evaluation" / "flores101" / "flores101_dataset" / "devtest"
    published = (flores / f"{FLORES[target]}.devtest").read_text(encoding="utf-8")

    text = (m2m102 / "reference" / f"flores.{direction}.{target}").read_text(encoding="utf-8")

    assert text.split() == published.split()
    assert text.count("\n") == TEST_SIZE


def test_m2m102_trains_the_pairs_that_were_named(m2m102):
    assert lines_of(m2m102 / "bin" / "pairs.txt") == ["de-en", "en-de", "de-fr", "fr-de"]


def test_m2m102_has_test_sets_alone_of_a_pair_that_was_not_named(m2m102):
    subsets = {path.name.split(".")[0] for path in (m2m102 / "bin").glob("*.en-fr.*")}

    assert subsets == {"flores", "ted", "wmt"}


def test_m2m102_has_opus100_s_zero_shot_test_set(m2m102):
    """OPUS-100 has a test set of de-fr, but no training text."""
    assert (m2m102 / "reference" / "opus.fr-de.de").exists()


def test_m2m102_counts_the_sentences_of_its_test_sets(m2m102):
    counts = recipe_of(m2m102)["counts"]

    assert counts["flores"] == 2 * TEST_SIZE  # of the two pairs that are trained on
    assert counts["pairs"]["en-fr"]["flores"] == TEST_SIZE
    assert counts["pairs"]["de-en"]["wmt"] == TEST_SIZE


def test_m2m102_keeps_no_archive_of_training_text(m2m102):
    assert not list((m2m102 / "downloads").rglob("*.zip*"))
    assert not list((m2m102 / "downloads").rglob("opus-100-corpus-de-en*"))


def binarised_sentences(prefix):
    """Return the set of sentences of binarised data, each as a tuple of the numbers of its pieces."""
    return {tuple(numbers.tolist()) for numbers in data_utils.load_indexed_dataset(str(prefix))}


def test_m2m102_trains_on_no_sentence_of_a_test_set(m2m102):
    tested = binarised_sentences(m2m102 / "bin" / "flores.de-fr.fr")
    trained = binarised_sentences(m2m102 / "bin" / "train.de-fr.fr")

    assert len(tested) == TEST_SIZE
    assert trained
    assert not tested & trained


class WmtSet(NamedTuple):
    """sacreBLEU's data set of a test set of WMT, and a direction of it."""

    dataset: Dataset
    direction: str


@pytest.fixture(params=["wmt19 en-de", "wmt19 de-en", "wmt14 en-fr", "wmt14 fr-en"])
def wmt_set(request, m2m102, tmp_path, monkeypatch):
    """Provide the WmtSet of a test set in a direction, whose data set reads the miniature's archive."""
    name, direction = request.param.split()
    dataset = DATASETS[name]
    monkeypatch.setattr(dataset, "_outdir", str(tmp_path / name))
    monkeypatch.setattr(dataset, "_rawdir", str(tmp_path / name / "raw"))
    monkeypatch.setattr(dataset, "maybe_download", lambda: None)
    archive = m2m102 / "downloads" / "miniature" / wmt_archives()[name].name
    shutil.unpack_archive(archive, tmp_path / name / "raw")
    return WmtSet(dataset, direction)


def test_references_of_wmt_are_sacrebleu_s_of_the_direction(wmt_set, m2m102):
    """The miniature has other sentences for the other direction, as WMT has from 2019 on."""
    _, target = wmt_set.direction.split("-")
    references = [reference.strip() for (reference,) in wmt_set.dataset.references(wmt_set.direction)]

    assert len(references) == TEST_SIZE
    assert lines_of(m2m102 / "reference" / f"wmt.{wmt_set.direction}.{target}") == references


def test_sources_of_wmt_are_sacrebleu_s_of_the_direction(wmt_set, m2m102):
    source, _ = wmt_set.direction.split("-")
    sources = [sentence.strip() for sentence in wmt_set.dataset.source(wmt_set.direction)]

    assert len(sources) == TEST_SIZE
    assert lines_of(m2m102 / "evaluation" / "wmt" / wmt_set.direction / f"test.{source}") == sources


def ted_text(m2m102, lang):
    """Return the lines of the TED test set in a language; a line is empty where it has no translation."""
    return lines_of(m2m102 / "evaluation" / "ted" / f"test.{lang}")


def test_ted_s_text_is_detokenised(m2m102):
    """TED's text is published in tokens, with blanks around punctuation, and with __NULL__ for a missing sentence."""
    french = ted_text(m2m102, "fr")

    assert "" not in french
    assert not [line for line in french if re.search(r" [.,)]|\( |NULL", line)]


def test_ted_s_sentences_that_a_language_lacks_are_left_out(m2m102):
    """In the miniature a third of the German is missing: the second line, the fifth, ..."""
    missing = [number for number, line in enumerate(ted_text(m2m102, "de")) if not line]
    assert missing == list(range(1, TEST_SIZE, 3))

    kept = [line for number, line in enumerate(ted_text(m2m102, "fr")) if number not in missing]
    assert len(kept) == TEST_SIZE - len(missing)
    assert lines_of(m2m102 / "reference" / "ted.de-fr.fr") == kept


def test_ted_tests_every_two_languages_that_are_trained_on(m2m102):
    """The languages trained on are German, English and French. TED has Russian too."""
    assert not list((m2m102 / "reference").glob("ted.*.ru"))
    assert (m2m102 / "reference" / "ted.en-fr.fr").exists()


@pytest.mark.parametrize(
    ("corpus", "name", "members"),  # as OPUS names them: the archive, the text in German and that in Chinese
    [
        ("CCMatrix", "CCMatrix.de-zh.zip", ["CCMatrix.de-zh.de", "CCMatrix.de-zh.zh"]),
        ("CCAligned", "CCAligned.de-zh_CN.zip", ["CCAligned.de-zh_CN.de", "CCAligned.de-zh_CN.zh_CN"]),
        ("Tatoeba", "Tatoeba.cmn-de.zip", ["Tatoeba.cmn-de.de", "Tatoeba.cmn-de.cmn"]),
    ],
)
def test_each_corpus_of_opus_has_language_codes_of_its_own(corpus, name, members):
    file, found = archives_of("de-zh")[corpus]

    assert file.name == name
    assert found == members


def test_an_archive_of_opus_has_its_published_address():
    file, _ = archives_of("en-fa")["Tatoeba"]

    assert file.urls == ("https://object.pouta.csc.fi/OPUS-Tatoeba/v2023-04-12/moses/en-pes.txt.zip",)


def test_an_archive_of_opus100_has_its_recorded_checksum_and_size():
    file, _ = archives_of("en-fa")["OPUS-100"]

    assert file.checksum == f"sha256:{ARCHIVES['en-fa'].sha256}"
    assert file.size == ARCHIVES["en-fa"].size


def test_the_user_s_test_set_takes_the_place_of_one_of_its_name(m2m102, tmp_path):
    own = tmp_path / "more" / "de-en"
    own.mkdir(parents=True)
    (own / "wmt.de").write_text("Guten Tag!\n")
    (own / "wmt.en").write_text("Good day!\n")
    dest = tmp_path / "dest"

    flags = ("--spm", str(m2m102 / "spm.model"), "--from", str(tmp_path / "more"), "--pairs", "de-en")
    main(command("m2m102", dest, *flags))

    assert lines_of(dest / "reference" / "wmt.de-en.en") == ["Good day!"]
    assert "flores101_dataset.tar.gz" in recipe_of(dest)["files"]


@pytest.fixture
def only_ccmatrix_has_de_en(monkeypatch):
    """Let OPUS have no archive of training text but CCMatrix's of de-en."""

    def fetch(files, folder):
        """Write the miniatures of files, or raise what download.fetch_all raises for a missing one."""
        name = files[0].name
        if re.search(r"\.zip$|-de-en-", name) and name != "CCMatrix.de-en.zip":
            raise UserError(f"{name}: no address gives it ({files[0].urls[0]}: 404 Not Found)")
        return write(files, folder)

    monkeypatch.setattr(miniature, "write", fetch)


@pytest.mark.usefixtures("only_ccmatrix_has_de_en")
def test_a_corpus_without_the_pair_is_passed_over(tmp_path, capsys):
    main(command("m2m102", tmp_path / "dest", "--pairs", "de-en"))

    told = [line for line in capsys.readouterr().err.split("\n") if "passed over" in line]
    assert len(told) == 3
    for corpus in ("CCAligned", "OPUS-100", "Tatoeba"):
        assert any(corpus in line for line in told), corpus
    assert recipe_of(tmp_path / "dest")["counts"]["train"] == generated.SIZES["CCMatrix"]


@pytest.mark.usefixtures("only_ccmatrix_has_de_en")
def test_a_pair_that_no_corpus_has_is_refused(tmp_path):
    assert_refused("--pairs de-fr", *command("m2m102", tmp_path / "dest", "--pairs", "de-fr"))
