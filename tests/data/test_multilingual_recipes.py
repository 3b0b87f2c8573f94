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

from ..support.errors import assert_refused
from ..support.prepared import lines_of

pytestmark = pytest.mark.smoke

PAIRS = "de-en,de-fr"
TEST_SIZE = 100  # sentences in each test set of the miniatures


def command(recipe, dest, *flags):
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
    return json.loads((dest / "recipe.json").read_text())


@pytest.mark.parametrize(
    ("corpus", "known"),
    [
        ("opus100", {"an-en": 150, "de-en": 3000, "en-fr": 2500, "en-ru": 2000}),
        ("m2m102", {"de-fr": 3300}),  # de-en also has OPUS-100's pairs, without duplicates and test sentences
    ],
)
def test_training_pairs_are_as_many_as_the_miniatures_are_made_with(corpus, known, request):
    recipe = recipe_of(request.getfixturevalue(corpus))

    assert recipe["miniature"]
    for pair, count in known.items():
        assert recipe["counts"]["pairs"][pair]["train"] == count


@pytest.mark.parametrize("direction", ["de-en", "en-de", "en-fr", "fr-en", "en-ru", "ru-en"])
def test_opus100_s_references_are_what_its_archives_hold(direction, opus100):
    source, target = direction.split("-")
    pair = "-".join(sorted([source, target]))
    archive = opus100 / "downloads" / "miniature" / f"opus-100-corpus-{pair}-v1.0.tar.gz"
    published = stream_lines(archive, f"opus-100-corpus/v1.0/supervised/{pair}/opus.{pair}-test.{target}")

    expected = [" ".join(line.strip().splitlines()) for line in published]
    assert lines_of(opus100 / "reference" / f"test.{direction}.{target}") == expected


def test_opus100_trains_a_pair_that_has_no_test_set(opus100):
    assert not list((opus100 / "bin").glob("test.an-en.*"))
    assert "an-en" in lines_of(opus100 / "bin" / "pairs.txt")
    assert "an" in lines_of(opus100 / "bin" / "langs.txt")


def filter_nine_pairs():
    """Return what the cleaning keeps of nine pairs: "h" and "k" are sentences of the test sets."""
    pairs = ["ab", "ab", "ac", ("", "b"), ("d", ""), "ee", ("f" * 1001, "g"), "hi", "jk"]
    return list(filter_pairs(pairs, (frozenset("h"), frozenset("k")), "de-en"))


def test_cleaning_keeps_each_pair_once_that_is_fit_for_training():
    assert filter_nine_pairs() == [("a", "b"), ("a", "c")]


def test_cleaning_counts_what_it_left_out_and_why(capsys):
    filter_nine_pairs()

    _, _, told = capsys.readouterr().out.partition(": ")
    counts = dict(re.findall(r"([a-z][a-z ]*) (\d+)", told))
    assert counts == {"empty": "2", "equal sides": "1", "too long": "1", "evaluation": "2", "twice": "1", "kept": "2"}


@pytest.mark.parametrize("direction", ["de-en", "en-fr", "fr-en"])
def test_m2m102_tests_every_two_languages_on_flores(direction, m2m102):
    """en-fr is tested although it is not trained on."""
    _, target = direction.split("-")
    flores = m2m102 / "evaluation" / "flores101" / "flores101_dataset" / "devtest"
    published = (flores / f"{FLORES[target]}.devtest").read_text(encoding="utf-8")

    text = (m2m102 / "reference" / f"flores.{direction}.{target}").read_text(encoding="utf-8")

    assert text.split() == published.split()
    assert len(text.split("\n")) == TEST_SIZE + 1  # the last line ends too


def test_m2m102_trains_the_pairs_that_were_named(m2m102):
    assert lines_of(m2m102 / "bin" / "pairs.txt") == ["de-en", "en-de", "de-fr", "fr-de"]
    assert {path.name.split(".")[0] for path in (m2m102 / "bin").glob("*.en-fr.*")} == {"flores", "ted", "wmt"}


def test_m2m102_has_opus100_s_test_set_of_a_pair(m2m102):
    assert (m2m102 / "reference" / "opus.fr-de.de").exists()


def test_m2m102_counts_the_sentences_of_its_test_sets(m2m102):
    counts = recipe_of(m2m102)["counts"]

    assert counts["flores"] == 2 * TEST_SIZE
    assert counts["pairs"]["en-fr"]["flores"] == TEST_SIZE
    assert counts["pairs"]["de-en"]["wmt"] == TEST_SIZE


def test_m2m102_keeps_no_archive_of_training_text(m2m102):
    assert not list((m2m102 / "downloads").rglob("*.zip*"))
    assert not list((m2m102 / "downloads").rglob("opus-100-corpus-de-en*"))


def binarised_sentences(prefix):
    """Return the sentences of binarised data, as tuples of numbers."""
    return {tuple(numbers.tolist()) for numbers in data_utils.load_indexed_dataset(str(prefix))}


def test_m2m102_trains_on_no_sentence_of_a_test_set(m2m102):
    tested = binarised_sentences(m2m102 / "bin" / "flores.de-fr.fr")
    trained = binarised_sentences(m2m102 / "bin" / "train.de-fr.fr")

    assert len(tested) == TEST_SIZE
    assert trained
    assert not tested & trained


@pytest.fixture(params=["wmt19 en-de", "wmt19 de-en", "wmt14 en-fr", "wmt14 fr-en"])
def wmt_set(request, m2m102, tmp_path, monkeypatch):
    """Provide sacreBLEU's data set, which reads the miniature's archive, and a direction of it."""
    name, direction = request.param.split()
    dataset = DATASETS[name]
    monkeypatch.setattr(dataset, "_outdir", str(tmp_path / name))
    monkeypatch.setattr(dataset, "_rawdir", str(tmp_path / name / "raw"))
    monkeypatch.setattr(dataset, "maybe_download", lambda: None)
    archive = m2m102 / "downloads" / "miniature" / wmt_archives()[name].name
    shutil.unpack_archive(archive, tmp_path / name / "raw")
    return dataset, direction


def test_wmt_sets_are_sacrebleu_s_own_and_of_one_direction(wmt_set, m2m102):
    dataset, direction = wmt_set
    source, target = direction.split("-")

    references = [reference.strip() for (reference,) in dataset.references(direction)]
    assert len(references) == TEST_SIZE
    assert lines_of(m2m102 / "reference" / f"wmt.{direction}.{target}") == references

    sources = [sentence.strip() for sentence in dataset.source(direction)]
    assert lines_of(m2m102 / "evaluation" / "wmt" / direction / f"test.{source}") == sources


def ted_text(m2m102, lang):
    return lines_of(m2m102 / "evaluation" / "ted" / f"test.{lang}")


def test_ted_s_text_is_detokenised(m2m102):
    french = ted_text(m2m102, "fr")

    assert all(french)
    assert not [line for line in french if re.search(r" [.,)]|\( |NULL", line)]


def test_ted_s_sentences_that_a_language_lacks_are_left_out(m2m102):
    """A third of the German is missing."""
    missing = [number for number, line in enumerate(ted_text(m2m102, "de")) if not line]
    assert missing == list(range(1, TEST_SIZE, 3))

    kept = [line for number, line in enumerate(ted_text(m2m102, "fr")) if number not in missing]
    assert len(kept) == 67
    assert lines_of(m2m102 / "reference" / "ted.de-fr.fr") == kept


def test_ted_is_a_test_of_the_languages_that_are_trained(m2m102):
    assert not list((m2m102 / "reference").glob("ted.*.ru"))
    assert (m2m102 / "reference" / "ted.en-fr.fr").exists()


@pytest.mark.parametrize(
    ("corpus", "archive"),
    [
        ("CCMatrix", ["CCMatrix.de-zh.zip", "CCMatrix.de-zh.de", "CCMatrix.de-zh.zh"]),
        ("CCAligned", ["CCAligned.de-zh_CN.zip", "CCAligned.de-zh_CN.de", "CCAligned.de-zh_CN.zh_CN"]),
        ("Tatoeba", ["Tatoeba.cmn-de.zip", "Tatoeba.cmn-de.de", "Tatoeba.cmn-de.cmn"]),
    ],
)
def test_each_corpus_has_language_codes_of_its_own(corpus, archive):
    """They are those by which OPUS names the files; the members are in the order of the pair."""
    file, members = archives_of("de-zh")[corpus]

    assert [file.name, *members] == archive


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
    """Let all archives of training text be missing but CCMatrix's of de-en."""

    def fetch(files, folder):
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
    assert all("de-en" in line for line in told)
    assert recipe_of(tmp_path / "dest")["counts"]["train"] == 2000


@pytest.mark.usefixtures("only_ccmatrix_has_de_en")
def test_a_pair_that_no_corpus_has_is_refused(tmp_path):
    assert_refused("--pairs de-fr", *command("m2m102", tmp_path / "dest", "--pairs", "de-fr"))
