"""Tests of `deepnet score` of many directions: means over directions and test sets, directions that are missing.

A direction is a pair of languages, "de-en"; each has an output of fairseq-generate, in a folder that is named by the
test set. Those of the set "test" may also be in the run's folder "generated".
"""

import re
from statistics import fmean

import pytest

from deepnet_fairseq.cli import main
from deepnet_fairseq.study.scoring.scores import group_of_direction, score

from ..support.errors import refused
from ..support.translated import random_sentences, with_wrong_words, write_generated, write_prepared_corpus

WRONG_WORDS = {  # direction -> share of words that are wrong, so that the directions differ in BLEU
    "de-en": 0.1,
    "zh-Hans-en": 0.2,
    "en-de": 0.3,
    "en-sr-Latn-RS": 0.4,
    "de-fr": 0.5,
}
REFERENCES = {direction: random_sentences(40, seed) for seed, direction in enumerate(WRONG_WORDS)}
SECONDS = 1.5  # of translating a direction
# Scores are rounded to two decimals: a rounded mean, and the mean of rounded numbers, are each off by 0.005 at most.
ROUNDED = 0.011


def write_directions(folder, directions=WRONG_WORDS):
    """Write the outputs of these directions, by default of all five, into a folder."""
    for direction in directions:
        references = REFERENCES[direction]
        translations = with_wrong_words(references, WRONG_WORDS[direction])
        write_generated(folder / f"{direction}.txt", translations, references, seconds=SECONDS)


@pytest.fixture(scope="module")
def run_of_five_directions(tmp_path_factory):
    run = tmp_path_factory.mktemp("run")
    write_directions(run / "generated")
    return run


@pytest.fixture(scope="module")
def together(run_of_five_directions):
    """Provide the score of the whole run."""
    return score(run_of_five_directions)


@pytest.fixture(scope="module")
def alone(run_of_five_directions):
    """Provide direction -> the score of its output alone."""
    folder = run_of_five_directions / "generated"
    return {direction: score(folder / f"{direction}.txt") for direction in WRONG_WORDS}


def test_directions_score_together_as_they_do_alone(together, alone):
    assert together["directions"] == alone
    assert together["sets"]["test"]["directions"] == alone
    different_bleu = {scores["bleu"] for scores in alone.values()}
    assert len(different_bleu) == 5


def test_bleu_is_the_mean_over_directions(together, alone):
    mean = fmean(scores["bleu"] for scores in alone.values())

    assert together["bleu"] == pytest.approx(mean, abs=ROUNDED)


@pytest.mark.parametrize(
    ("name", "directions"),
    [("to_english", ["de-en", "zh-Hans-en"]), ("from_english", ["en-de", "en-sr-Latn-RS"])],
)
def test_bleu_into_and_from_english_is_the_mean_over_these_directions(name, directions, together, alone):
    mean = fmean(alone[direction]["bleu"] for direction in directions)

    assert together[name] == pytest.approx(mean, abs=ROUNDED)


def test_bleu_between_others_is_that_of_the_only_direction_without_english(together, alone):
    assert together["between_others"] == alone["de-fr"]["bleu"]


def test_the_kind_of_bleu_of_a_run_is_that_of_all_its_directions(together):
    assert together["kind"] == "sacrebleu"


def test_the_seconds_of_a_run_are_the_sum_over_its_directions(together):
    assert together["generation"] == {"seconds": 5 * SECONDS}


def test_without_data_no_direction_is_missing(together):
    assert together["missing"] == {}


@pytest.mark.parametrize(
    ("source", "target", "name"),
    [("de", "eng", "to_english"), ("eng_Latn", "ces_Latn", "from_english"), ("es", "de", "between_others")],
)
def test_directions_are_grouped_by_english_in_any_code(source, target, name):
    assert group_of_direction(source, target) == name


# Several test sets.


def test_the_score_of_several_test_sets_is_their_mean(tmp_path):
    write_directions(tmp_path / "flores", ["de-en", "en-de"])
    write_directions(tmp_path / "ted", ["de-fr"])

    result = score(tmp_path)

    sets = result["sets"]
    assert list(sets) == ["flores", "ted"]
    assert list(sets["flores"]["directions"]) == ["de-en", "en-de"]
    assert list(sets["ted"]["directions"]) == ["de-fr"]
    mean = fmean([sets["flores"]["bleu"], sets["ted"]["bleu"]])
    assert result["bleu"] == pytest.approx(mean, abs=ROUNDED)


def test_the_score_of_several_test_sets_is_that_of_test_if_there_is_one(tmp_path):
    write_directions(tmp_path / "flores", ["de-en", "en-de"])
    write_directions(tmp_path / "ted", ["de-fr"])
    write_directions(tmp_path / "test", ["zh-Hans-en"])

    result = score(tmp_path)

    assert list(result["directions"]) == ["zh-Hans-en"]
    assert result["bleu"] == result["directions"]["zh-Hans-en"]["bleu"]


# Directions that are missing.


@pytest.fixture
def data_of_five_directions(tmp_path):
    """Provide data of the five directions, and of xx-en, which has no test set and so is not missed."""
    references = {f"test.{direction}": text for direction, text in REFERENCES.items()}
    return write_prepared_corpus(tmp_path / "c", references, pairs=(*WRONG_WORDS, "xx-en"))


@pytest.fixture
def three_directions(tmp_path):
    """Provide a folder with the outputs of all directions but de-fr and en-de."""
    write_directions(tmp_path / "generated", ["de-en", "en-sr-Latn-RS", "zh-Hans-en"])
    return tmp_path / "generated"


def test_missing_directions_are_refused(three_directions, data_of_five_directions):
    with refused(three_directions) as caught:
        score(three_directions, data_of_five_directions)

    for direction in ("de-fr", "en-de"):
        assert direction in caught.value.way_out
    assert "--partial" in caught.value.way_out
    assert "xx-en" not in caught.value.way_out


def test_with_partial_missing_directions_are_named_beside_the_others(three_directions, data_of_five_directions):
    result = score(three_directions, data_of_five_directions, partial=True)

    assert result["missing"] == {"test": ["de-fr", "en-de"]}
    assert len(result["directions"]) == 3


def test_the_printed_table_names_missing_directions(three_directions, data_of_five_directions, capsys):
    main(["score", str(three_directions), "--data", str(data_of_five_directions), "--partial"])

    table = capsys.readouterr().out
    assert re.search(r"test +mean +\d+\.\d\d\n", table)  # test set, name of the mean, BLEU
    assert "de-fr, en-de" in table


def test_no_direction_is_missing_if_all_are_there(data_of_five_directions, tmp_path):
    write_directions(tmp_path / "generated")

    result = score(tmp_path / "generated", data_of_five_directions)

    assert result["missing"] == {}
