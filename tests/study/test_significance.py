"""Tests of `deepnet score BASELINE SYSTEM`: p values against sacreBLEU's command, and their properties."""

import re

import pytest

from deepnet_fairseq.cli import main
from deepnet_fairseq.errors import UserError
from deepnet_fairseq.study.scoring.paired import significance

from ..support.helpers import run
from ..support.translated import noisy, sentences, write_generated

TEXT = sentences(120)


def record(folder, rate, seed=1, text=TEXT):
    """Write a run's folder whose translations have a share `rate` of wrong words."""
    write_generated(folder / "generated.txt", noisy(text, rate, seed), text, "de-en")
    return folder


SYSTEMS = ((0.3, 1), (0.3, 2), (0.1, 3))  # rate and seed of a baseline, an equal system and a better one
CELL = r"(\d+\.\d+)(?: \((\d+\.\d+) ± (\d+\.\d+)\))?(?: \(p = (\d\.\d+)\))?"  # score, mean, interval, p


def test_numbers_are_those_of_the_sacrebleu_command(tmp_path):
    runs = [record(tmp_path / f"run{seed}", rate, seed) for rate, seed in SYSTEMS]
    (tmp_path / "ref").write_text("\n".join(TEXT) + "\n")
    files = [tmp_path / f"system{seed}" for _, seed in SYSTEMS]
    for file, (rate, seed) in zip(files, SYSTEMS, strict=True):
        file.write_text("\n".join(noisy(TEXT, rate, seed)) + "\n")
    printed = run("-m", "sacrebleu", tmp_path / "ref", "-i", *files, "-m", "bleu", "chrf", "--paired-bs",
                  "--format", "latex", "--width", "5", "--no-color", "--quiet").stdout  # fmt: skip
    peers = [re.findall(CELL, line) for line in printed.splitlines() if " & " in line][1:]
    ours = significance(runs[0], runs[1:])[None]
    for results, cells in zip(zip(*ours.results.values()), peers, strict=True):
        for value, peer in zip(results, cells, strict=True):
            values = (value.score, value.mean, value.ci, value.p_value)
            same = [float(number) == pytest.approx(mine, abs=1e-4) for number, mine in zip(peer, values) if number]
            assert all(same) and len(same) == 2 + (1 if value.p_value is None else 2)
    assert ours.results["BLEU"][1].p_value > 0.05 > ours.results["BLEU"][2].p_value
    assert all(signature in printed for signature in ours.signatures.values())


def test_other_sentences_are_refused(tmp_path):
    base = record(tmp_path / "base", 0.3)
    with pytest.raises(UserError, match="given twice"):
        significance(base, [base])
    with pytest.raises(UserError, match=r"short.generated\.txt: has other references than"):
        significance(base, [record(tmp_path / "short", 0.2, text=TEXT[:100])])
    with pytest.raises(UserError, match="other references"):
        significance(base, [record(tmp_path / "other", 0.2, text=sentences(120, seed=5))])
    write_generated(tmp_path / "many" / "de-en.txt", TEXT, TEXT)
    with pytest.raises(UserError, match="no direction"):
        significance(base, [tmp_path / "many"])


@pytest.fixture
def multilingual(tmp_path):
    """Provide two systems: the new one is better in de-en, worse in en-de, equal in fr-en.

    Each also has a direction that the other lacks.
    """
    rates = {"base": {"de-en": 0.4, "en-de": 0.1, "fr-en": 0.3, "en-fr": 0.1},
             "new": {"de-en": 0.1, "en-de": 0.3, "fr-en": 0.3, "de-fr": 0.1}}  # fmt: skip
    for run_, directions in rates.items():
        for direction, rate in directions.items():
            write_generated(tmp_path / run_ / "generated" / "test" / f"{direction}.txt", noisy(TEXT, rate), TEXT)
    return tmp_path / "base", tmp_path / "new"


def test_directions(multilingual, capsys):
    base, new = multilingual
    comparisons = significance(base, [new])
    assert list(comparisons) == [("test", "de-en"), ("test", "en-de"), ("test", "fr-en")]
    main(["score", str(base), str(new)])
    printed = capsys.readouterr().out
    lines = printed.splitlines()
    assert lines[0].split()[:4] == ["set", "direction", "system", "BLEU"] and re.search(r"0\.00\d\d\*", lines[3])
    assert lines[-2].startswith("BLEU: nrefs:1|bs:1000|") and lines[-1].startswith("chrF2: ")
    comparison = comparisons["test", "de-en"]
    assert comparison.systems == ["base", "new"] and comparison.results["BLEU"][1].p_value < 0.05
