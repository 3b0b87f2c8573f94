"""scripts/normformer_lm.sh in miniature: from generated text to tables and figures, killed and started again."""

import json
import os
import signal
import subprocess
import time

import pytest

from .support.experiments import SETTINGS, script
from .support.helpers import ROOT
from .test_scripts import needs_venv

pytestmark = [needs_venv, pytest.mark.smoke]  # but the one that is killed, which is slow

SHORT = ("--max-update", "30", "--total-num-update", "30", "--save-interval-updates", "10")
ROW = {"SMOKE": 1, "PARTS": "clm", "METHODS": "normformer", "LRS": "1e-3"}
RUN = "normformer_clm/normformer-125m-lr1e-3-seed1"


def score(run) -> dict:
    """Subset -> loss; seconds differ."""
    return {name: one["loss"] for name, one in json.loads((run / "score.json").read_text())["sets"].items()}


def last_valid_loss(run) -> float:
    lines = [line for line in (run / "train.log").read_text().splitlines() if "| INFO | valid | {" in line]
    return float(json.loads(lines[-1].split("| valid | ")[1])["valid_loss"])


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A folder with a causal row and what it printed, and a masked row of two rates, one of which diverges."""
    out = tmp_path_factory.mktemp("normformer")
    causal = script("normformer_lm", *SHORT, timeout=1200, OUT=out, **ROW).stdout
    masked = {"SMOKE": 1, "PARTS": "mlm", "METHODS": "pre_ln", "LRS": "1e-3 1e30", "OUT": out}
    return out, causal, script("normformer_lm", *SHORT, timeout=1200, **masked).stdout


def test_a_causal_row_ends_in_table_and_figures(whole):
    """Its perplexity is that of the training's own last validation: same text, same blocks, another program."""
    out, printed, _ = whole
    run = out / RUN
    facts = json.loads((run / "run.json").read_text())
    assert (facts["size"], facts["lr"], facts["decoder_layers"], facts["smoke"]) == ("125M", "1e-3", 4, True)
    assert "encoder_layers" not in facts and score(run)["valid"] == pytest.approx(last_valid_loss(run), abs=2e-3)
    report = json.loads((out / "normformer_clm.json").read_text())
    (row,) = (row for row in report["results"] if row["runs"])
    assert row["cells"]["valid"]["mean"] == pytest.approx(2 ** score(run)["valid"], abs=0.02)
    assert run.name in printed and "Miniature on generated data" in printed
    for figure in ("normformer3", "normformer4"):
        assert (out / f"{figure}.png").stat().st_size > 5000 and (out / f"{figure}.txt").exists()


def test_a_rate_that_diverges_is_a_result(whole):
    out, _, printed = whole
    kept, lost = (out / f"normformer_mlm/pre_ln-base-lr{lr}-seed1" for lr in ("1e-3", "1e30"))
    assert (lost / "trained").exists() and (lost / "diverged").exists() and not (lost / "score.json").exists()
    assert "diverged at update" in printed and score(kept)["valid"] == pytest.approx(last_valid_loss(kept), abs=2e-3)
    report = json.loads((out / "normformer_mlm.json").read_text())
    row = next(row for row in report["results"] if row["runs"])
    assert row["best"] == [kept.name] and row["cells"]["valid"]["state"] == "scored" and len(row["runs"]) == 2


def test_a_second_call_trains_nothing_and_other_settings_are_refused(whole):
    out, *_ = whole
    again = script("normformer_lm", *SHORT, OUT=out, **ROW).stdout
    assert "(log: " not in again and "evaluating " not in again
    other = script("normformer_lm", *SHORT, "--dropout", "0.1", check=False, OUT=out, **ROW)
    assert other.returncode == 1 and "was trained with other settings (its file command)" in other.stderr


def test_killed_and_started_again_it_ends_in_the_same_row(whole, tmp_path):
    out, *_ = whole
    setting = ROW | {"DATA": out / "data/text", "OUT": tmp_path}
    clean = {key: value for key, value in os.environ.items() if key not in SETTINGS}
    words = ["bash", ROOT / "scripts/normformer_lm.sh", *SHORT]
    environment = clean | {key: str(value) for key, value in setting.items()}
    process = subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, start_new_session=True)
    deadline = time.monotonic() + 300
    while not list((tmp_path / RUN).glob("checkpoint*.pt")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)  # its training lives on, and is waited for
    process.wait()
    script("normformer_lm", *SHORT, timeout=1200, **setting)
    assert score(tmp_path / RUN) == score(out / RUN)
    assert (tmp_path / "normformer_clm.json").exists() and not list(tmp_path.rglob("*.part"))
