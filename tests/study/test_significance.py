"""Tests of `deepnet score BASELINE SYSTEM ..`: p values against sacreBLEU's command, directions, refusals.

p is that of paired bootstrap resampling: how often samples of the sentences would differ as much by chance.
"""

import re
from typing import NamedTuple

import pytest

from deepnet_fairseq.cli import main
from deepnet_fairseq.study.scoring.paired import Comparison, significance

from ..support.errors import refused
from ..support.helpers import run
from ..support.translated import as_lines, random_sentences, with_wrong_words, write_generated

REFERENCES = random_sentences(120)
SIGNIFICANT = 0.05  # the usual level of p


def write_system(folder, translations, references=REFERENCES):
    """Write a run's folder with translations of de-en, and return it."""
    write_generated(folder / "generated.txt", translations, references, direction="de-en")
    return folder


# sacreBLEU as peer.

# A cell of its table, as "52.6 (52.5 ± 3.1) (p = 0.0010)"; the baseline has no p.
SCORE = r"(?P<score>\d+\.\d+)"
INTERVAL = r" \((?P<mean>\d+\.\d+) ± (?P<ci>\d+\.\d+)\)"
P = r" \(p = (?P<p>\d\.\d+)\)"
CELL = re.compile(f"{SCORE}(?:{INTERVAL})?(?:{P})?")
TOLERANCE = 1e-4  # the command prints p with four decimals

SYSTEMS = {  # name -> translations of REFERENCES; "equal" has as many wrong words as the baseline, but others
    "baseline": with_wrong_words(REFERENCES, rate=0.3, seed=1),
    "equal": with_wrong_words(REFERENCES, rate=0.3, seed=2),
    "better": with_wrong_words(REFERENCES, rate=0.1, seed=3),
}


class Compared(NamedTuple):
    """Our comparison of SYSTEMS, and what sacreBLEU's command prints of the same text."""

    ours: Comparison
    printed: str


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("systems")
    runs = []
    files = []
    for name, translations in SYSTEMS.items():
        runs.append(write_system(folder / name, translations))
        file = folder / f"{name}.txt"
        file.write_text(as_lines(translations))
        files.append(file)
    (folder / "ref").write_text(as_lines(REFERENCES))

    flags = ("-m", "bleu", "chrf", "--paired-bs", "--format", "latex", "--width", "5", "--no-color", "--quiet")
    printed = run("-m", "sacrebleu", folder / "ref", "-i", *files, *flags).stdout

    baseline, *others = runs
    comparisons = significance(baseline, others)
    return Compared(comparisons[None], printed)  # the test set of bilingual runs has no name


@pytest.mark.parametrize("rank", range(len(SYSTEMS)), ids=SYSTEMS)
@pytest.mark.parametrize(("column", "metric"), [(0, "BLEU"), (1, "chrF2")])
def test_numbers_are_those_of_the_sacrebleu_command(column, metric, rank, compared):
    """rank: of the system in SYSTEMS and in both tables; column: of the metric in the command's table."""
    _header, *rows = [line for line in compared.printed.splitlines() if " & " in line]  # of a table in LaTeX
    cells = list(CELL.finditer(rows[rank]))
    assert len(rows) == len(SYSTEMS)
    assert len(cells) == 2

    ours = compared.ours.results[metric][rank]

    peer = cells[column]
    assert ours.score == pytest.approx(float(peer["score"]), abs=TOLERANCE)
    assert ours.mean == pytest.approx(float(peer["mean"]), abs=TOLERANCE)
    assert ours.ci == pytest.approx(float(peer["ci"]), abs=TOLERANCE)
    is_baseline = rank == 0
    if is_baseline:
        assert ours.p_value is None
        assert peer["p"] is None
    else:
        assert ours.p_value == pytest.approx(float(peer["p"]), abs=TOLERANCE)


def test_signatures_are_those_of_the_sacrebleu_command(compared):
    assert compared.ours.signatures.keys() == {"BLEU", "chrF2"}
    for signature in compared.ours.signatures.values():
        assert signature in compared.printed


def test_p_is_small_for_a_better_system_alone(compared):
    _baseline, equal, better = compared.ours.results["BLEU"]

    assert equal.p_value > SIGNIFICANT
    assert better.p_value < SIGNIFICANT


@pytest.fixture
def baseline(tmp_path):
    return write_system(tmp_path / "base", with_wrong_words(REFERENCES, rate=0.3))


def test_without_a_seed_the_systems_have_the_same_samples(baseline, tmp_path, monkeypatch):
    """With SACREBLEU_SEED=none samples are new at each call. Equal translations have equal scores all the same."""
    monkeypatch.setenv("SACREBLEU_SEED", "none")
    equal = write_system(tmp_path / "equal", with_wrong_words(REFERENCES, rate=0.3))

    results = [significance(baseline, [equal])[None].results["BLEU"] for _call in range(2)]

    for of_baseline, of_equal in results:
        assert of_equal.mean == of_baseline.mean
        assert of_equal.ci == of_baseline.ci
    assert results[0][0].mean != results[1][0].mean


# What cannot be compared.


def test_a_seed_that_is_no_number_is_refused(baseline, tmp_path, monkeypatch):
    monkeypatch.setenv("SACREBLEU_SEED", "lucky")
    system = write_system(tmp_path / "system", REFERENCES)

    with refused("SACREBLEU_SEED=lucky"):
        significance(baseline, [system])


def test_a_system_given_twice_is_refused(baseline):
    with refused(baseline):
        significance(baseline, [baseline])


@pytest.mark.parametrize("sentences", [REFERENCES[:100], random_sentences(120, seed=5)], ids=["fewer", "other"])
def test_translations_of_other_sentences_are_refused(sentences, baseline, tmp_path):
    other = write_system(tmp_path / "other", with_wrong_words(sentences, rate=0.2), references=sentences)

    with refused(other / "generated.txt") as caught:
        significance(baseline, [other])

    assert str(baseline / "generated.txt") in caught.value.way_out


def test_systems_without_a_common_direction_are_refused(baseline, tmp_path):
    """Both systems translate de-en, but a direction is common only within test sets of one name.

    The baseline's test set, of generated.txt, has no name. That of the other system, of de-en.txt, is named "test".
    """
    multilingual = tmp_path / "multilingual"
    write_generated(multilingual / "de-en.txt", REFERENCES, REFERENCES)

    with refused(baseline) as caught:
        significance(baseline, [multilingual])

    assert str(multilingual) in caught.value.way_out


# Several directions.


@pytest.fixture
def multilingual_systems(tmp_path):
    """Provide the folders of two systems: the new one is better in de-en, worse in en-de, equal in fr-en.

    Each also has a direction that the other lacks.
    """
    shares_of_wrong_words = {
        "base": {"de-en": 0.4, "en-de": 0.1, "fr-en": 0.3, "en-fr": 0.1},
        "new": {"de-en": 0.1, "en-de": 0.3, "fr-en": 0.3, "de-fr": 0.1},
    }
    for system, rates in shares_of_wrong_words.items():
        folder = tmp_path / system / "generated" / "test"
        for direction, rate in rates.items():
            write_generated(folder / f"{direction}.txt", with_wrong_words(REFERENCES, rate), REFERENCES)
    return tmp_path / "base", tmp_path / "new"


def test_systems_are_compared_in_the_directions_that_both_have(multilingual_systems):
    base, new = multilingual_systems

    comparisons = significance(base, [new])

    assert list(comparisons) == [("test", "de-en"), ("test", "en-de"), ("test", "fr-en")]
    of_better_direction = comparisons["test", "de-en"]
    assert of_better_direction.systems == ["base", "new"]
    _base, new_system = of_better_direction.results["BLEU"]
    assert new_system.p_value < SIGNIFICANT


def test_the_printed_table_has_a_star_behind_p_of_a_difference(multilingual_systems, capsys):
    """The first two rows are of de-en, in which the new system is better than the baseline."""
    base, new = multilingual_systems

    main(["score", str(base), str(new)])

    header, _dashes, _base, better, *_, bleu_signature, chrf_signature = capsys.readouterr().out.splitlines()
    assert header.split()[:4] == ["set", "direction", "system", "BLEU"]
    assert re.search(r"0\.00\d\d\*", better)
    assert bleu_signature.startswith("BLEU: nrefs:1|bs:1000|")
    assert chrf_signature.startswith("chrF2: ")
