"""Tests of a row of each table in miniature, from archives to report, also when the script is killed.

A script of a table, called with SMOKE=1, trains each of its rows on a small generated corpus in OUT/FOLDER/ROW, scores
it, and writes the report OUT/FOLDER.md.
"""

import json
import random
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from ..support.experiments import needs_venv, script, start

pytestmark = needs_venv

ROWS = {  # script -> folder of its runs, settings of the row
    "table1_wmt17": ("table1", {"METHODS": "admin", "DEPTHS": "2"}),
    "iwslt14_de_en": ("iwslt14", {"METHODS": "deepnorm", "DEPTHS": "2"}),
    "table2_opus100": ("opus100", {"DEPTHS": "4"}),
    "table3_m2m": ("table3", {"DEPTHS": "2"}),
    "admin_wmt14": ("admin_wmt14", {"METHODS": "admin", "DEPTHS": "2", "PRECISION": "fp16"}),  # as on a GPU; radam
    "admin_wmt14_en_fr": ("admin_wmt14_en_fr", {"METHODS": "admin", "DEPTHS": "2-1"}),
    "admin_iwslt14": ("admin_iwslt14", {"METHODS": "admin", "DEPTHS": "2", "WARMUP": "0"}),
}
SHORT = ("--max-update", "40", "--save-interval-updates", "10", "--log-interval", "10")  # flags of fairseq-train


def score_without_times(run) -> dict:
    """Return the content of the run's score.json, without the time that generation took."""
    return json.loads((run / "score.json").read_text(), object_hook=lambda fields: fields | {"generation": None})


class UndisturbedRow(NamedTuple):
    """Row that a script has trained without a break: the script, its settings, the run's folder, what was printed."""

    script: str
    setting: dict
    run: Path
    printed: str

    @property
    def report(self) -> Path:
        """Return the report's file, beside the folder with the runs of the table."""
        return self.run.parent.with_suffix(".md")


@pytest.fixture(scope="module", params=ROWS)
def undisturbed_row(request, tmp_path_factory):
    """Provide the row of each script of ROWS."""
    out = tmp_path_factory.mktemp("whole run")
    folder, setting = ROWS[request.param]
    printed = script(request.param, *SHORT, timeout=1200, SMOKE=1, OUT=out, PLAN=1, **setting).stdout
    (run,) = (out / folder).iterdir()
    return UndisturbedRow(request.param, setting, run, printed)


@pytest.mark.smoke
def test_a_row_ends_in_the_report_with_its_score(undisturbed_row):
    """The report, which is printed too, is marked as a miniature's."""
    printed = undisturbed_row.printed
    bleu = f"{score_without_times(undisturbed_row.run)['bleu']:.2f}"

    assert "Miniature" in printed
    assert undisturbed_row.run.name in printed
    assert bleu in printed
    assert bleu in undisturbed_row.report.read_text()


@pytest.mark.smoke
def test_a_row_prints_its_plan_and_the_size_of_what_it_keeps(undisturbed_row):
    """The file `disk` in the row's folder says how large the checkpoints are that are kept."""
    disk = (undisturbed_row.run / "disk").read_text()

    assert "== plan" in undisturbed_row.printed
    assert disk
    assert disk in undisturbed_row.printed


@pytest.mark.smoke
def test_a_row_keeps_weights_alone(undisturbed_row):
    """The row keeps the averaged checkpoint, if there is one, and the last one, without the optimiser's state."""
    kept = sorted(undisturbed_row.run.glob("*.pt"))

    assert kept
    assert {path.name for path in kept} <= {"averaged.pt", "checkpoint_last.pt"}
    for path in kept:
        assert torch.load(path, weights_only=False)["last_optimizer_state"] is None


@pytest.mark.smoke
def test_a_second_call_of_a_row_trains_and_translates_nothing(undisturbed_row):
    """Training and translating, which are announced with the run's folder, are not announced again."""
    name, setting, run, printed = undisturbed_row
    score = score_without_times(run)
    announced = re.compile(f"(training|translating .*with) {re.escape(str(run))}")

    again = script(name, *SHORT, SMOKE=1, OUT=run.parent.parent, **setting).stdout

    assert announced.search(printed)
    assert not announced.search(again)
    assert score_without_times(run) == score


def bleus_of(score: dict) -> list[float]:
    """Return the BLEU scores in a score.json: one if it is bilingual, else one for each direction of each test set."""
    if "sets" not in score:
        return [score["bleu"]]
    bleus = []
    for subset in score["sets"].values():
        bleus += [direction["bleu"] for direction in subset["directions"].values()]
    return bleus


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, least_bleu, is_post_ln_stuck",
    [
        ("table1_wmt17", 40, True),
        ("iwslt14_de_en", 40, True),
        ("opus100", 10, False),  # trains DeepNorm alone
        ("table3_m2m", 10, False),
    ],
)
def test_deepnorm_translates_a_miniature_and_post_ln_at_18_layers_is_stuck(
    name, least_bleu, is_post_ln_stuck, tmp_path
):
    """DeepNorm translates into each language; least_bleu is well above the BLEU of a model that has learnt nothing."""
    printed = script(name, timeout=1800, SMOKE=1, OUT=tmp_path).stdout

    bleus = []
    for path in tmp_path.glob("*/deepnorm-*/score.json"):
        bleus += bleus_of(json.loads(path.read_text()))
    assert min(bleus) > least_bleu
    assert ("stuck" in printed) == is_post_ln_stuck


def start_and_kill(moment: float, name, **setting) -> None:
    """Start a script and kill it, but not its children, after `moment` seconds."""
    process = start(name, *SHORT, **setting)
    time.sleep(moment)
    process.kill()
    process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("who", ["script", "everything"])
def test_a_script_killed_twice_ends_in_the_same_row(undisturbed_row, who, tmp_path):
    """The script is killed at two random moments, alone or with its children, and then begun again.

    A file NAME.part is one that is not written to its end.
    """
    name, setting, undisturbed_run, _ = undisturbed_row
    setting = setting | {"SMOKE": 1, "OUT": tmp_path}
    table = undisturbed_run.parent.name
    moments = random.Random(f"{name} {who}")
    for _ in range(2):
        start_and_kill(moments.uniform(3, 30), name, **setting)
        if who == "everything":
            subprocess.run(["pkill", "-KILL", "-f", str(tmp_path)])

    script(name, *SHORT, timeout=1200, **setting)

    run = tmp_path / table / undisturbed_run.name
    assert score_without_times(run) == score_without_times(undisturbed_run)
    assert (tmp_path / f"{table}.md").exists()
    assert not list(tmp_path.rglob("*.part"))


TWO_ROWS = {"SMOKE": 1, "METHODS": "deepnorm pre_ln", "DEPTHS": "2", "STOP_STUCK": 0}


@pytest.fixture(scope="module")
def two_undisturbed_rows(tmp_path_factory):
    """Provide the folder of two rows that were trained without a break, and of their data."""
    out = tmp_path_factory.mktemp("two rows")
    script("iwslt14_de_en", *SHORT, OUT=out, **TWO_ROWS)
    return out


@pytest.fixture(scope="module")
def two_rows_killed_ten_times(two_undisturbed_rows, tmp_path_factory):
    """Provide the folder of two equal rows, whose script was killed at ten random moments and then begun again."""
    out = tmp_path_factory.mktemp("killed rows")
    shutil.copytree(two_undisturbed_rows / "data", out / "data")
    moments = random.Random(61)
    for _ in range(10):
        start_and_kill(moments.uniform(2, 15), "iwslt14_de_en", OUT=out, **TWO_ROWS)
    script("iwslt14_de_en", *SHORT, timeout=1200, OUT=out, **TWO_ROWS)
    return out


def last_weights_of(run) -> dict[str, torch.Tensor]:
    """Return the weights by name of the last checkpoint in a run's folder."""
    return torch.load(run / "checkpoint_last.pt", weights_only=False)["model"]


def table_of_results(out) -> str:
    """Return the report without the notes below its table, which have times and folders."""
    return (out / "iwslt14.md").read_text().split("## Runs")[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["deepnorm-2-seed1", "pre_ln-2-seed1"])
def test_a_row_killed_at_ten_moments_ends_with_the_same_bits(name, two_undisturbed_rows, two_rows_killed_ten_times):
    undisturbed = two_undisturbed_rows / "iwslt14" / name
    killed = two_rows_killed_ten_times / "iwslt14" / name

    expected = last_weights_of(undisturbed)
    weights = last_weights_of(killed)
    assert weights.keys() == expected.keys()
    for parameter in expected:
        assert torch.equal(weights[parameter], expected[parameter]), parameter
    assert score_without_times(killed) == score_without_times(undisturbed)


@pytest.mark.slow
def test_rows_killed_at_ten_moments_end_in_the_same_table(two_undisturbed_rows, two_rows_killed_ten_times):
    assert table_of_results(two_rows_killed_ten_times) == table_of_results(two_undisturbed_rows)
    assert not list(two_rows_killed_ten_times.rglob("*.part"))


LM_SHORT = ("--max-update", "30", "--total-num-update", "30", "--save-interval-updates", "10")
CAUSAL_ROW = {"SMOKE": 1, "PARTS": "clm", "METHODS": "normformer", "LRS": "1e-3"}
MASKED_ROWS = {"SMOKE": 1, "PARTS": "mlm", "METHODS": "pre_ln", "LRS": "1e-3 1e30"}  # the second rate diverges


def scored_loss(run) -> float:
    """Return the bits a token of the validation text, from the run's score.json."""
    return json.loads((run / "score.json").read_text())["sets"]["valid"]["loss"]


def last_logged_loss(run) -> float:
    """Return the bits a token of the training's last validation, from its log."""
    lines = [line for line in (run / "train.log").read_text().splitlines() if "| INFO | valid | {" in line]
    return float(json.loads(lines[-1].split("| valid | ")[1])["valid_loss"])


class LanguageModels(NamedTuple):
    """Folder of a causal row and of two masked ones, of which the second diverges; what was printed for each part."""

    out: Path
    printed_of_causal: str
    printed_of_masked: str

    @property
    def causal(self) -> Path:
        return self.out / "normformer_clm/normformer-125m-lr1e-3-seed1"

    @property
    def masked(self) -> Path:
        return self.out / "normformer_mlm/pre_ln-base-lr1e-3-seed1"

    @property
    def diverged(self) -> Path:
        return self.out / "normformer_mlm/pre_ln-base-lr1e30-seed1"


@pytest.fixture(scope="module")
def language_models(tmp_path_factory):
    """Provide the rows that scripts/normformer_lm.sh has trained in miniature."""
    out = tmp_path_factory.mktemp("normformer")
    causal = script("normformer_lm", *LM_SHORT, timeout=1200, OUT=out, **CAUSAL_ROW).stdout
    masked = script("normformer_lm", *LM_SHORT, timeout=1200, OUT=out, **MASKED_ROWS).stdout
    return LanguageModels(out, causal, masked)


@pytest.mark.smoke
def test_a_causal_row_records_what_it_is(language_models):
    """The miniature of the 125M model has 4 decoder layers and no encoder."""
    facts = json.loads((language_models.causal / "run.json").read_text())

    assert facts["size"] == "125M"
    assert facts["lr"] == "1e-3"
    assert facts["decoder_layers"] == 4
    assert facts["smoke"] is True
    assert "encoder_layers" not in facts


@pytest.mark.smoke
def test_the_score_of_a_causal_row_is_that_of_its_last_validation(language_models):
    """fairseq logs losses with three decimals."""
    run = language_models.causal

    assert scored_loss(run) == pytest.approx(last_logged_loss(run), abs=2e-3)


@pytest.mark.smoke
def test_a_causal_row_ends_in_a_table_of_perplexities(language_models):
    """A perplexity is 2 to the power of the loss in bits."""
    page = (language_models.out / "normformer_clm.md").read_text()

    assert f"{2 ** scored_loss(language_models.causal):.2f}" in page
    assert language_models.causal.name in language_models.printed_of_causal
    assert "Miniature" in language_models.printed_of_causal


@pytest.mark.smoke
@pytest.mark.parametrize("figure", ["normformer3", "normformer4"])
def test_a_causal_row_ends_in_figures(figure, language_models):
    assert (language_models.out / f"{figure}.png").stat().st_size > 5000
    assert (language_models.out / f"{figure}.md").exists()


@pytest.mark.smoke
def test_a_second_call_of_a_causal_row_trains_and_evaluates_nothing(language_models):
    again = script("normformer_lm", *LM_SHORT, OUT=language_models.out, **CAUSAL_ROW).stdout

    announced = re.compile(r"\(log: |evaluating ")  # a training names its log
    assert announced.search(language_models.printed_of_causal)
    assert not announced.search(again)


@pytest.mark.smoke
def test_a_rate_that_diverges_is_a_result_without_a_score(language_models):
    run = language_models.diverged

    assert (run / "trained").exists()  # the training is over
    assert (run / "diverged").exists()
    assert not (run / "score.json").exists()
    assert "diverged" in language_models.printed_of_masked
    assert run.name in (language_models.out / "normformer_mlm.md").read_text()


@pytest.mark.smoke
def test_a_rate_beside_one_that_diverges_is_scored(language_models):
    run = language_models.masked
    page = (language_models.out / "normformer_mlm.md").read_text()

    assert scored_loss(run) == pytest.approx(last_logged_loss(run), abs=2e-3)
    assert f"{2 ** scored_loss(run):.2f}" in page
    assert run.name in page
