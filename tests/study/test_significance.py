"""Tests of `deepnet score BASELINE SYSTEM`: p values against sacreBLEU's command, directions, refusals."""

import re

import pytest

from deepnet_fairseq.cli import main
from deepnet_fairseq.study.scoring.paired import significance

from ..support.errors import refused
from ..support.helpers import run
from ..support.translated import as_lines, random_sentences, with_wrong_words, write_generated

TEXT = random_sentences(120)
SIGNIFICANT = 0.05  # the usual level of p
# share of wrong words and seed of a baseline, an equal system and a better one
SYSTEMS = {"baseline": (0.3, 1), "equal": (0.3, 2), "better": (0.1, 3)}


def write_system(folder, rate, seed=1, text=TEXT):
    """Write a run's folder whose translations have a share `rate` of wrong words."""
    write_generated(folder / "generated.txt", with_wrong_words(text, rate, seed), text, direction="de-en")
    return folder


# sacreBLEU as peer.

SCORE = r"(?P<score>\d+\.\d+)"
INTERVAL = r" \((?P<mean>\d+\.\d+) ± (?P<ci>\d+\.\d+)\)"
P = r" \(p = (?P<p>\d\.\d+)\)"
CELL = re.compile(f"{SCORE}(?:{INTERVAL})?(?:{P})?")


@pytest.fixture(scope="module")
def three_systems(tmp_path_factory):
    """Provide our comparison of SYSTEMS, and what sacreBLEU's command prints of the same text."""
    folder = tmp_path_factory.mktemp("systems")
    runs = []
    files = []
    for name, (rate, seed) in SYSTEMS.items():
        runs.append(write_system(folder / name, rate, seed))
        files.append(folder / f"{name}.txt")
        files[-1].write_text(as_lines(with_wrong_words(TEXT, rate, seed)))
    (folder / "ref").write_text(as_lines(TEXT))

    flags = ("-m", "bleu", "chrf", "--paired-bs", "--format", "latex", "--width", "5", "--no-color", "--quiet")
    printed = run("-m", "sacrebleu", folder / "ref", "-i", *files, *flags).stdout
    comparison = significance(runs[0], runs[1:])[None]
    return comparison, printed


@pytest.mark.parametrize("rank", range(len(SYSTEMS)), ids=SYSTEMS)
@pytest.mark.parametrize(("column", "metric"), [(0, "BLEU"), (1, "chrF2")])
def test_numbers_are_those_of_the_sacrebleu_command(column, metric, rank, three_systems):
    comparison, printed = three_systems
    _header, *rows = [line for line in printed.splitlines() if " & " in line]
    cells = list(CELL.finditer(rows[rank]))
    assert len(rows) == len(SYSTEMS)
    assert len(cells) == 2

    ours = comparison.results[metric][rank]

    peer = cells[column]
    assert ours.score == pytest.approx(float(peer["score"]), abs=1e-4)
    assert ours.mean == pytest.approx(float(peer["mean"]), abs=1e-4)
    assert ours.ci == pytest.approx(float(peer["ci"]), abs=1e-4)
    if rank == 0:  # the baseline
        assert ours.p_value is None
        assert peer["p"] is None
    else:
        assert ours.p_value == pytest.approx(float(peer["p"]), abs=1e-4)


def test_signatures_are_those_of_the_sacrebleu_command(three_systems):
    comparison, printed = three_systems

    assert comparison.signatures.keys() == {"BLEU", "chrF2"}
    for signature in comparison.signatures.values():
        assert signature in printed


def test_p_is_small_for_a_better_system_alone(three_systems):
    comparison, _ = three_systems

    _baseline, equal, better = comparison.results["BLEU"]

    assert equal.p_value > SIGNIFICANT
    assert better.p_value < SIGNIFICANT


# What cannot be compared.


@pytest.fixture
def baseline(tmp_path):
    return write_system(tmp_path / "base", 0.3)


def test_a_system_given_twice_is_refused(baseline):
    with refused(baseline):
        significance(baseline, [baseline])


@pytest.mark.parametrize("text", [TEXT[:100], random_sentences(120, seed=5)], ids=["fewer", "other"])
def test_translations_of_other_sentences_are_refused(text, baseline, tmp_path):
    other = write_system(tmp_path / "other", 0.2, text=text)

    with refused(other / "generated.txt") as caught:
        significance(baseline, [other])

    assert str(baseline / "generated.txt") in caught.value.way_out


def test_systems_without_a_common_direction_are_refused(baseline, tmp_path):
    many = tmp_path / "many"
    write_generated(many / "de-en.txt", TEXT, TEXT)

    with refused(baseline) as caught:
        significance(baseline, [many])

    assert str(many) in caught.value.way_out


# Several directions.


@pytest.fixture
def multilingual_systems(tmp_path):
    """Provide two systems: the new one is better in de-en, worse in en-de, equal in fr-en.

    Each also has a direction that the other lacks.
    """
    shares_of_wrong_words = {
        "base": {"de-en": 0.4, "en-de": 0.1, "fr-en": 0.3, "en-fr": 0.1},
        "new": {"de-en": 0.1, "en-de": 0.3, "fr-en": 0.3, "de-fr": 0.1},
    }
    for system, directions in shares_of_wrong_words.items():
        folder = tmp_path / system / "generated" / "test"
        for direction, rate in directions.items():
            write_generated(folder / f"{direction}.txt", with_wrong_words(TEXT, rate), TEXT)
    return tmp_path / "base", tmp_path / "new"


def test_systems_are_compared_in_the_directions_that_both_have(multilingual_systems):
    base, new = multilingual_systems

    comparisons = significance(base, [new])

    assert list(comparisons) == [("test", "de-en"), ("test", "en-de"), ("test", "fr-en")]
    better = comparisons["test", "de-en"]
    assert better.systems == ["base", "new"]
    assert better.results["BLEU"][1].p_value < SIGNIFICANT


def test_the_printed_table_has_a_star_for_a_difference(multilingual_systems, capsys):
    base, new = multilingual_systems

    main(["score", str(base), str(new)])

    header, _dashes, _base, better, *_, bleu, chrf = capsys.readouterr().out.splitlines()
    assert header.split()[:4] == ["set", "direction", "system", "BLEU"]
    assert re.search(r"0\.00\d\d\*", better)
    assert bleu.startswith("BLEU: nrefs:1|bs:1000|")
    assert chrf.startswith("chrF2: ")
