"""A row of each table in miniature, from the archives to the report, and the same row when the script is killed."""

import json
import os
import random
import signal
import subprocess
import time

import pytest

from .support.experiments import SETTINGS, script
from .support.helpers import ROOT
from .test_scripts import needs_venv

pytestmark = needs_venv

ROWS = {  # script -> folder of its runs, the row
    "table1_wmt17": ("table1", {"METHODS": "admin", "DEPTHS": "2"}),
    "iwslt14_de_en": ("iwslt14", {"METHODS": "deepnorm", "DEPTHS": "2"}),
    "table2_opus100": ("opus100", {"DEPTHS": "4"}),
    "table3_m2m": ("table3", {"DEPTHS": "2"}),
    "admin_wmt14": ("admin_wmt14", {"METHODS": "admin", "DEPTHS": "2"}),
}
SHORT = ("--max-update", "40", "--save-interval-updates", "10", "--log-interval", "10")


def row(out, folder) -> dict:
    """The finished run's score, but for how long it took."""
    (run,) = (out / folder).iterdir()
    score = json.loads((run / "score.json").read_text())
    for one in (score, *score.get("directions", {}).values()):
        one.pop("generation", None)
    for part in score.get("sets", {}).values():
        part.pop("generation", None)
        for one in part["directions"].values():
            one.pop("generation", None)
    return score


@pytest.fixture(scope="module", params=ROWS)
def whole(request, tmp_path_factory):
    """Script, folder and setting of a row that was run without a break, and what it printed."""
    out = tmp_path_factory.mktemp("whole run")
    folder, setting = ROWS[request.param]
    printed = script(request.param, *SHORT, timeout=1200, SMOKE=1, OUT=out, **setting).stdout
    return request.param, folder, setting, out, printed


@pytest.mark.smoke
def test_ends_in_a_row_of_the_report(whole):
    """The report has the run's own numbers, and says that they are a miniature's; a second call trains nothing."""
    name, folder, setting, out, printed = whole
    score = row(out, folder)
    (run,) = (out / folder).iterdir()
    assert "Miniature on generated data" in printed and run.name in printed
    assert f"{score['bleu']:.2f}" in printed
    report = json.loads((out / f"{folder}.json").read_text())
    assert json.dumps(score["bleu"]) in json.dumps(report)
    page = (out / f"{folder}.html").read_text()
    assert page.startswith("<!DOCTYPE html>") and run.name in page
    again = script(name, *SHORT, timeout=600, SMOKE=1, OUT=out, **setting).stdout
    assert "training " not in again and "translating " not in again and row(out, folder) == score


@pytest.mark.slow
@pytest.mark.parametrize("who", ["script", "everything"])
def test_killed_and_started_again_it_ends_in_the_same_row(whole, who, tmp_path):
    """At two random moments; alone, so that its training lives on, or with all it had started."""
    name, folder, setting, out, _ = whole
    clean = {key: value for key, value in os.environ.items() if key not in SETTINGS}
    env = clean | setting | {"SMOKE": "1", "OUT": str(tmp_path)}
    moments = random.Random(f"{name} {who}")
    for _ in range(2):
        process = subprocess.Popen(
            ["bash", ROOT / f"scripts/{name}.sh", *SHORT], env=env, stdout=subprocess.DEVNULL, start_new_session=True
        )
        time.sleep(moments.uniform(3, 30))
        process.send_signal(signal.SIGKILL)
        process.wait()
        if who == "everything":
            subprocess.run(["pkill", "-KILL", "-f", str(tmp_path)])
    script(name, *SHORT, timeout=1200, **{**setting, "SMOKE": 1, "OUT": tmp_path})
    assert row(tmp_path, folder) == row(out, folder)
    assert (tmp_path / f"{folder}.json").exists() and not list(tmp_path.rglob("*.part"))
