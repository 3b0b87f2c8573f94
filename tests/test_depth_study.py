"""The depth study: the order of its cells, what holds and resumes it, its table."""

import json
import math
import os
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from deepnet_fairseq.core.methods import METHODS
from deepnet_fairseq.data.language import make_corpus
from deepnet_fairseq.errors import UserError
from deepnet_fairseq.study.depth_study import (
    Found,
    found_by,
    leaders,
    outcome,
    read_plan,
    spent_hours,
)
from deepnet_fairseq.study.depth_tables import rows_by_rate
from deepnet_fairseq.study.runs import RecordedRun, recorded_below

from .support.experiments import script, start, until, values
from .support.helpers import ROOT
from .support.recorded import record
from .test_scripts import needs_venv

FOLDER = ROOT / "scripts" / "depth_study"
PLAN = FOLDER / "plan.toml"
HELD = FOLDER / "held.py"
SMALL = """
base = 1e-3
lowest = -1
highest = 3
updates = 12
translated = 12
budget = 1
groups = {{ two = [{methods}] }}
flags = {{}}
seconds = {{ 1 = 0.1 }}
[[stage]]
title = "coarse"
methods = "two"
layers = [1]
steps = [1]
"""


def small(tmp_path, *methods):
    path = tmp_path / "plan.toml"
    path.write_text(SMALL.format(methods=", ".join(f'"{method}"' for method in methods)))
    return path


def simulate(plan, loss):
    """The cells of a whole study, in which loss(cell) is what a cell finds."""
    found, cells = Found(plan, {}), []
    while cell := found.next():
        assert cell.name not in found.losses
        found.losses[cell.name] = loss(cell)
        cells.append(cell)
    return found, cells


def test_a_best_rate_lies_between_two_and_the_budget_is_kept():
    """Whatever the optimum: in full grids its neighbours are tried, at 50 layers too."""
    plan = read_plan(PLAN)
    optimum = {"deepnorm": 1.3, "pre_ln": 3.6, "post_ln": -1.0, "admin": 0.4, "keel": 5.2, "complete_p": 2.0}
    found, cells = simulate(plan, lambda cell: 5 + (cell.step - optimum.get(cell.method, 1)) ** 2 + 0.01 * cell.seed)
    for method, best in optimum.items():
        for layers in (6, 18, 50) if method != "complete_p" else (18, 50):
            assert found.best(method, layers) == round(best)
            assert {round(best) + step for step in (-1, 0, 1)} <= found.rates(method, layers).keys()
        assert found.rates(method, 100).keys() >= {round(best)}
    assert {cell.method for cell in cells} == set(METHODS)
    assert 8 < sum(plan.hours(cell) for cell in cells) <= plan.budget
    assert all(one.stage <= other.stage for one, other in pairwise(cells))
    assert [(cell.layers, cell.step) for cell in cells[:5]] == [(6, 1)] * 5
    seeds = {(cell.method, cell.layers, cell.step, cell.seed) for cell in cells if cell.seed > 1}
    assert ("keel", 18, 5, 2) in seeds and ("keel", 18, 5, 3) in seeds
    halves = {cell.name for cell in cells if cell.step % 1}
    assert len(halves) == 12 and "keel-18-lr0.0226274-seed1" in halves  # half a step below 3.2e-2


def test_longer_cells_are_refined_among_themselves():
    """Where six times as long wants another rate: both neighbours of that rate, whatever the grid has found."""
    plan = read_plan(PLAN)
    shift = {500: 1.2, 3000: 2.3}
    found, _ = simulate(plan, lambda cell: 5 + (cell.step - shift.get(cell.updates, 0)) ** 2)
    for layers in (6, 18, 50):
        assert found.best("deepnorm", layers) == 1
        assert found.rates("deepnorm", layers, 3000).keys() >= {1, 2, 3}


def test_where_nothing_is_learnt_rates_between_and_below_are_tried_and_the_base_goes_on():
    plan = read_plan(PLAN)
    found, cells = simulate(plan, lambda cell: math.inf if cell.method == "post_ln" else 5 + (cell.step - 1) ** 2)
    assert found.rates("post_ln", 6).keys() == set(range(-2, 4))
    assert found.rates("post_ln", 18).keys() == {-2, -1, 0}
    assert [cell.step for cell in cells if cell.method == "post_ln" and cell.layers > 18] == [0, 0, -1, -2, 0, 0]
    assert not [cell for cell in cells if cell.method == "post_ln" and cell.seed > 1]


def test_a_stage_waits_for_what_it_goes_by():
    found = Found(read_plan(PLAN), {})
    named = list(found.cells())
    assert {cell.stage for cell in named} == {1} and len({cell.name for cell in named}) == 15
    words = str(next(Found(read_plan(PLAN).only(["complete_p"]), {}).cells())).split()
    assert words[:6] == ["complete_p-18-lr0.002-seed1", "complete_p", "18", "1", "0.002", "500"]
    assert words[6:] == ["--complete-p-base-depth", "6"]


def test_machines_share_a_study_by_methods_and_longer_cells_are_no_cells_of_a_grid():
    plan = read_plan(PLAN)
    cells = [simulate(part, lambda cell: 5 + cell.step**2)[1] for part in (plan, plan.only(["keel"]))]
    assert [str(cell) for cell in cells[0] if cell.method == "keel"] == list(map(str, cells[1]))
    longer = [cell for cell in cells[0] if (cell.method, cell.layers, cell.updates) == ("deepnorm", 6, 3000)]
    assert longer[0].name == "deepnorm-6-lr0.001-seed1-updates3000" and not longer[0].grid
    found = Found(plan, {cell.name: 1.0 for cell in longer})
    assert found.rates("deepnorm", 6) == {} and found.rates("deepnorm", 6, 3000).keys() >= {-1, 0, 1}
    with pytest.raises(UserError, match="METHODS: deepnrom"):
        plan.only(["deepnrom"])


@pytest.mark.parametrize(
    "text, said", [("base = 1", "is no plan"), (SMALL.format(methods='"deepnrom"'), "stage 1: method deepnrom")]
)
def test_a_broken_plan_is_named(text, said, tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text(text)
    with pytest.raises(UserError, match=said):
        read_plan(path)


def cell_run(root, method, layers, rate, loss, seed=1, updates=500, **others):
    """A run of the study that has ended at that held-out loss, of 1,800 seconds."""
    name = f"{method}-{layers}-lr{rate:g}-seed{seed}" + (f"-updates{updates}" if updates != 500 else "")
    facts = {"lr": rate, "updates": updates, "seed": seed}
    folder = record(root, "depth_study", name, method, layers, valid={updates: (1, loss)}, **facts | others)
    (folder / "spent.json").write_text(json.dumps({"training": {"processor_seconds": 1800.0}}))
    return folder


def test_what_runs_have_found(tmp_path):
    """Rates at an edge are marked; means and ranges over seeds; what came to nothing is no best."""
    cell_run(tmp_path, "deepnorm", 6, 0.0005, 5.0)
    cell_run(tmp_path, "deepnorm", 6, 0.001, 4.0, bleu=12.25)
    cell_run(tmp_path, "deepnorm", 6, 0.001, 4.2, seed=2)
    cell_run(tmp_path, "deepnorm", 6, 0.002, 1.0, diverged="diverged at update 7")
    cell_run(tmp_path, "deepnorm", 18, 0.002, 4.5)
    cell_run(tmp_path, "deepnorm", 18, 0.001, 5.5)
    cell_run(tmp_path, "post_ln", 18, 0.001, 9.0, stuck="stuck at update 750")
    cell_run(tmp_path, "post_ln", 18, 0.002, 8.95, guessing=8.917)  # at its end no better
    runs = recorded_below(tmp_path / "depth_study", over=True)
    assert sorted(run.name for run in leaders(runs)) == ["deepnorm-18-lr0.002-seed1", "deepnorm-6-lr0.001-seed1"]
    assert rows_by_rate(runs)[1:] == [
        ["deepnorm", "4.100 (4.000 to 4.200, 2 seeds)", "0.001", "12.2", "4.500", ">= 0.002", "-"],
        ["post_ln", "-", "-", "-", "stuck (2 rates)", "-", "-"],
    ]
    assert [outcome(run) for run in runs if run.method == "post_ln"] == [math.inf] * 2
    assert spent_hours(runs) == pytest.approx(4.0)
    found = found_by(read_plan(PLAN), runs)
    assert found.best("deepnorm", 6) == 0 and found.neighbours("deepnorm", 18) == [2]


def test_a_held_command_waits_and_goes_on(tmp_path):
    """While PAUSE is there nothing is done; a signal reaches it all the same, and what it took is added up."""
    pause, spent, ticks = tmp_path / "PAUSE", tmp_path / "spent.json", tmp_path / "ticks"
    loop = "import sys, time\nwhile True: open(sys.argv[1], 'a').write('.'); time.sleep(0.01)"
    environment = os.environ | {"PAUSE_FILE": str(pause), "SPENT_FILE": str(spent)}
    command = [sys.executable, HELD, "training", sys.executable, "-c", loop, ticks]

    def state(process):  # of its child, by the kernel
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        return Path(f"/proc/{children[0]}/stat").read_text().split()[2] if children else ""

    for attempt in (1, 2):
        process = subprocess.Popen(command, env=environment)
        until(ticks.exists, 20)
        pause.touch()
        until(lambda process=process: state(process) == "T", 20)
        before = ticks.stat().st_size
        if attempt == 1:
            pause.unlink()
            until(lambda before=before: ticks.stat().st_size > before, 20)
            pause.touch()
            until(lambda process=process: state(process) == "T", 20)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 128 + signal.SIGTERM
        pause.unlink()
        ticks.unlink()
        said = json.loads(spent.read_text())["training"]
        assert said["attempts"] == attempt and said["peak_memory_bytes"] > 1e6
    process = subprocess.Popen(command, env=environment)
    until(lambda: json.loads(spent.read_text())["training"]["attempts"] == 3, 20)
    child = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())
    for victim in (process.pid, child):  # nobody is left to add up
        os.kill(victim, signal.SIGKILL)
    process.wait(timeout=20)
    assert subprocess.run([*command[:3], "sh", "-c", "exit 3"], env=environment, check=False).returncode == 3
    assert json.loads(spent.read_text())["training"]["attempts"] == 4


def text_of(folder):
    """A small text in two languages."""
    folder.mkdir()
    for split, pairs in make_corpus({"train": 300, "valid": 20, "test": 10}, 1, nouns=20, verbs=10).items():
        for language, lines in zip(("qaa", "qab"), zip(*pairs, strict=True), strict=True):
            (folder / f"{split}.{language}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return folder


@needs_venv
def test_the_next_command_is_that_of_the_first_cell_without_a_run(tmp_path):
    text, out = text_of(tmp_path / "text"), tmp_path / "out"
    cell_run(out, "deepnorm", 1, 0.002, 5.0)
    said = script("depth_study", text, "--dry-run", OUT=out, PLAN_FILE=small(tmp_path, "deepnorm", "keel")).stdout
    flags = values(said.splitlines()[-1].split())
    assert {
        "--method": "keel", "--lr": "0.002", "--max-update": "12", "--total-num-update": "12", "--warmup-updates": "2",
        "--max-tokens": "1024", "--encoder-layers": "1", "--seed": "1", "--cpu": "",
    }.items() <= flags.items()  # fmt: skip
    assert not (out / "data").exists()
    (text / "test.qab").unlink()
    refused = script("depth_study", text, OUT=out, check=False)
    assert refused.returncode and "test.qab: no such file" in refused.stderr


@pytest.mark.smoke
@needs_venv
def test_two_cells_killed_and_resumed(tmp_path):
    """Each is trained once, whatever happens to the script; records have verdicts and costs; leaders keep weights."""
    text, out = text_of(tmp_path / "text"), tmp_path / "out"
    plan = small(tmp_path, "deepnorm", "pre_ln")
    plan.write_text(plan.read_text().replace("updates = 12", "updates = 120"))
    settings = {"OUT": out, "PLAN_FILE": plan, "VOCAB": 100}
    words = ("depth_study", text)
    first = start(*words, **settings)
    run = out / "depth_study" / "deepnorm-1-lr0.002-seed1"
    until((run / "checkpoint_last.pt").exists)
    os.killpg(first.pid, signal.SIGTERM)
    assert first.wait(timeout=60) != 0
    done = script(*words, **settings)
    assert "deepnorm  " in done.stdout.splitlines()[-2]
    assert "Loaded checkpoint" in (run / "train.log").read_text()
    records = sorted((out / "records").glob("*.run.json"))
    assert [path.name for path in records] == ["deepnorm-1-lr0.002-seed1.run.json", "pre_ln-1-lr0.002-seed1.run.json"]
    for recorded in map(RecordedRun, records):
        assert recorded.facts["lr"] == 0.002 and recorded.parts["check"]["verdict"] in ("stable", "at risk")
        assert recorded.parts["spent"]["training"]["processor_seconds"] > 1 and "updates" not in recorded.parts["check"]
        assert recorded.validation.end == 120 and recorded.bleu is not None
        assert {"check", "training", "translation"} == recorded.parts["spent"].keys()
        assert (out / "depth_study" / recorded.name / "checkpoint_last.pt").exists()
    before = [path.stat().st_mtime for path in records]
    again = script(*words, **settings)
    assert "== deepnorm" not in again.stdout and [path.stat().st_mtime for path in records] == before
