"""Tests of a row of each table in miniature, from archives to report, also when the script is killed."""

import json
import random
import re
import shutil
import subprocess
import time

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
SHORT = ("--max-update", "40", "--save-interval-updates", "10", "--log-interval", "10")


def row(run) -> dict:
    """Return the run's score without the time it took."""
    return json.loads((run / "score.json").read_text(), object_hook=lambda fields: fields | {"generation": None})


@pytest.fixture(scope="module", params=ROWS)
def whole(request, tmp_path_factory):
    """Provide the script, setting, run and output of an undisturbed row."""
    out = tmp_path_factory.mktemp("whole run")
    folder, setting = ROWS[request.param]
    printed = script(request.param, *SHORT, timeout=1200, SMOKE=1, OUT=out, PLAN=1, **setting).stdout
    (run,) = (out / folder).iterdir()
    return request.param, setting, run, printed


@pytest.mark.smoke
def test_ends_in_a_row_of_the_report(whole):
    """A row ends in the report with the run's numbers, marked as a miniature; a second call trains nothing."""
    name, setting, run, printed = whole
    score, table = row(run), run.parent
    assert "Miniature on generated data" in printed and run.name in printed and f"{score['bleu']:.2f}" in printed
    assert f"{score['bleu']:.2f}" in table.with_suffix(".md").read_text()
    kept = sorted(run.glob("*.pt"))  # weights only, of the average and the last checkpoint
    assert {path.name for path in kept} <= {"averaged.pt", "checkpoint_last.pt"} and "== plan" in printed
    assert all(torch.load(path, weights_only=False)["last_optimizer_state"] is None for path in kept)
    assert (run / "disk").read_text() in printed
    work = re.compile(f"(training|translating .*with) {re.escape(str(run))}")
    again = script(name, *SHORT, SMOKE=1, OUT=table.parent, **setting).stdout
    assert work.search(printed) and not work.search(again) and row(run) == score


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, least", [("table1_wmt17", 40), ("iwslt14_de_en", 40), ("opus100", 10), ("table3_m2m", 10)]
)
def test_a_miniature_says_something(name, least, tmp_path):
    """DeepNorm translates a miniature into each language, and Post-LN at 18L-18L is stuck."""
    printed = script(name, timeout=1800, SMOKE=1, OUT=tmp_path).stdout
    scores = [json.loads(path.read_text()) for path in tmp_path.glob("*/deepnorm-*/score.json")]
    bleus = [one["bleu"] for score in scores for subset in score.get("sets", {"": {"directions": {"": score}}}).values()
             for one in subset["directions"].values()]  # fmt: skip
    assert min(bleus) > least
    assert ("stuck at update" in printed) == (name in ("table1_wmt17", "iwslt14_de_en"))


@pytest.mark.slow
@pytest.mark.parametrize("who", ["script", "everything"])
def test_killed_and_started_again_it_ends_in_the_same_row(whole, who, tmp_path):
    """A script killed at two random moments, alone or with its children, ends in the same row."""
    name, setting, run, _ = whole
    setting = setting | {"SMOKE": 1, "OUT": tmp_path}
    moments = random.Random(f"{name} {who}")
    for _ in range(2):
        process = start(name, *SHORT, **setting)
        time.sleep(moments.uniform(3, 30))
        process.kill()
        process.wait()
        if who == "everything":
            subprocess.run(["pkill", "-KILL", "-f", str(tmp_path)])
    script(name, *SHORT, timeout=1200, **setting)
    assert row(tmp_path / run.parent.name / run.name) == row(run)
    assert (tmp_path / f"{run.parent.name}.md").exists() and not list(tmp_path.rglob("*.part"))


TWO = {"SMOKE": 1, "METHODS": "deepnorm pre_ln", "DEPTHS": "2", "STOP_STUCK": 0}


@pytest.fixture(scope="module")
def two_rows(tmp_path_factory):
    """Provide the data, and the folder of two rows that nobody disturbed."""
    out = tmp_path_factory.mktemp("two rows")
    script("iwslt14_de_en", *SHORT, OUT=out, **TWO)
    return out


def weights(run) -> dict:
    content = torch.load(run / "checkpoint_last.pt", weights_only=False)
    return content["model"]


def overview(out) -> str:
    """Return the table of results; the notes below it have times and folders."""
    return (out / "iwslt14.md").read_text().split("## Runs")[0]


@pytest.mark.slow
def test_a_runner_killed_at_ten_moments(two_rows, tmp_path):
    """Killed ten times at random moments and begun again, it ends with the same bits and the same table."""
    shutil.copytree(two_rows / "data", tmp_path / "data")
    moments = random.Random(61)
    for _ in range(10):
        process = start("iwslt14_de_en", *SHORT, OUT=tmp_path, **TWO)
        time.sleep(moments.uniform(2, 15))
        process.kill()
        process.wait()
    script("iwslt14_de_en", *SHORT, timeout=1200, OUT=tmp_path, **TWO)

    for undisturbed in (two_rows / "iwslt14").iterdir():
        killed = tmp_path / "iwslt14" / undisturbed.name
        before, after = weights(undisturbed), weights(killed)
        assert before.keys() == after.keys()
        assert all(torch.equal(before[name], after[name]) for name in before)
        assert row(killed) == row(undisturbed)
    assert overview(tmp_path) == overview(two_rows)
    assert not list(tmp_path.rglob("*.part"))


LM_SHORT = ("--max-update", "30", "--total-num-update", "30", "--save-interval-updates", "10")
LM_ROW = {"SMOKE": 1, "PARTS": "clm", "METHODS": "normformer", "LRS": "1e-3"}
LM_RUN = "normformer_clm/normformer-125m-lr1e-3-seed1"


def losses(run) -> dict:
    """Return the loss of each subset; seconds differ."""
    return {name: one["loss"] for name, one in json.loads((run / "score.json").read_text())["sets"].items()}


def last_valid_loss(run) -> float:
    lines = [line for line in (run / "train.log").read_text().splitlines() if "| INFO | valid | {" in line]
    return float(json.loads(lines[-1].split("| valid | ")[1])["valid_loss"])


@pytest.fixture(scope="module")
def language_models(tmp_path_factory):
    """Provide a folder with a causal row, its output, and a masked row of two rates of which one diverges."""
    out = tmp_path_factory.mktemp("normformer")
    causal = script("normformer_lm", *LM_SHORT, timeout=1200, OUT=out, **LM_ROW).stdout
    masked = {"SMOKE": 1, "PARTS": "mlm", "METHODS": "pre_ln", "LRS": "1e-3 1e30", "OUT": out}
    return out, causal, script("normformer_lm", *LM_SHORT, timeout=1200, **masked).stdout


@pytest.mark.smoke
def test_a_causal_row_ends_in_table_and_figures(language_models):
    """A causal row ends in table and figures; its perplexity is that of the training's last validation.

    A second call trains nothing.
    """
    out, printed, _ = language_models
    run = out / LM_RUN
    facts = json.loads((run / "run.json").read_text())
    assert (facts["size"], facts["lr"], facts["decoder_layers"], facts["smoke"]) == ("125M", "1e-3", 4, True)
    assert "encoder_layers" not in facts and losses(run)["valid"] == pytest.approx(last_valid_loss(run), abs=2e-3)
    assert f"{2 ** losses(run)['valid']:.2f}" in (out / "normformer_clm.md").read_text()
    assert run.name in printed and "Miniature on generated data" in printed
    for figure in ("normformer3", "normformer4"):
        assert (out / f"{figure}.png").stat().st_size > 5000 and (out / f"{figure}.md").exists()
    again = script("normformer_lm", *LM_SHORT, OUT=out, **LM_ROW).stdout
    assert "(log: " not in again and "evaluating " not in again


@pytest.mark.smoke
def test_a_rate_that_diverges_is_a_result(language_models):
    out, _, printed = language_models
    kept, lost = (out / f"normformer_mlm/pre_ln-base-lr{lr}-seed1" for lr in ("1e-3", "1e30"))
    assert (lost / "trained").exists() and (lost / "diverged").exists() and not (lost / "score.json").exists()
    assert "diverged at update" in printed and losses(kept)["valid"] == pytest.approx(last_valid_loss(kept), abs=2e-3)
    page = (out / "normformer_mlm.md").read_text()
    assert f"{2 ** losses(kept)['valid']:.2f}" in page and kept.name in page and lost.name in page
