"""Tests of the trainings of results/thousand_layers: the task, the plan, the runner, the page."""

import importlib.util
import json
import math
import os
import signal
import subprocess
import sys
from collections import Counter

import pytest
import torch
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.optim import build_optimizer
from fairseq.optim.lr_scheduler import build_lr_scheduler

from ..support.experiments import bash, needs_venv, start, until
from ..support.helpers import ROOT

STUDY = ROOT / "results" / "thousand_layers"
PLAN = """
[[group]]
name = "one"
experiment = "C1"
task = "copy"
methods = ["deepnorm"]
layers = [{layers}]
lrs = [2e-3, 4e-3]
warmups = [10]
updates = {updates}
seeds = [1]
seconds = {{ {layers} = 0.01 }}

[[group]]
name = "two"
after = "one"
experiment = "C1"
task = "reverse"
methods = ["deepnorm"]
layers = [{layers}]
lrs = "best"
warmups = [10]
updates = 10
seeds = [1]
seconds = {{ {layers} = 0.01 }}
"""


def module(name):
    """Import a script of the study, which imports its neighbours by name."""
    sys.path.insert(0, str(STUDY))
    try:
        spec = importlib.util.spec_from_file_location(name, STUDY / f"{name}.py")
        sys.modules[name] = made = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(made)
        return made
    finally:
        sys.path.remove(str(STUDY))


@pytest.fixture(scope="module")
def symbols():
    return module("symbols")


def symbols_command(out, *flags):
    return [sys.executable, STUDY / "symbols.py", out, "--layers", "2", "--lr", "4e-3", *map(str, flags)]


def runner(work, plan, *flags):
    return [sys.executable, STUDY / "run.py", work, "--plan", plan, "--records", work / "records.jsonl", *flags]


def entropy(counts) -> float:
    total = sum(counts.values())
    return -sum(count / total * math.log2(count / total) for count in counts.values())


def test_entropies_are_those_of_the_batches(symbols):
    """Stated entropies are those of 40,000 sentences: unigram, and by position without the source."""
    targets = [symbols.pairs("copy", symbols.draw(40_000, seed=3))[1]][0]
    assert entropy(Counter(targets.flatten().tolist())) == pytest.approx(symbols.UNIGRAM, abs=2e-3)
    by_position = [entropy(Counter(column.tolist())) for column in targets.T]
    assert sum(by_position) / len(by_position) == pytest.approx(symbols.SOURCE_BLIND, abs=2e-3)


def test_held_out_sentences_are_never_trained_on(symbols):
    held_out = {tuple(row) for row in symbols.held_out().tolist()}
    assert len(held_out) == symbols.HELD_OUT
    drawn = symbols.draw(2 * symbols.SENTENCES * 300, seed=1).tolist()
    assert held_out & {tuple(row) for row in drawn}  # without the filter some would be drawn
    for update in range(300):
        source, target = symbols.batch("reverse", 1, update)
        assert source.shape == target.shape == (symbols.SENTENCES, symbols.LENGTH + 1)
        assert not held_out & {tuple(row[:-1]) for row in source.tolist()}
        assert target[:, :-1].flip(1).equal(source[:, :-1])


def test_rate_warms_up_holds_and_falls_to_zero(symbols):
    rates = [symbols.rate_at(update, 1.0, 40, 500) for update in range(1, 501)]
    assert rates[0] == 1 / 40 and rates[39:362] == [1.0] * 323
    assert all(after < before for before, after in zip(rates[362:], rates[363:], strict=False))
    assert rates[499] == pytest.approx(1 / 138)


def test_a_held_rate_of_fairseq_train_is_held_and_falls(data):
    """With the flags of a held cell the rate rises for 200 updates, stays, and falls in the last 30% of 2,000."""
    cells, texts = module("cells"), module("texts")
    held = next(
        cell
        for cell in cells.cells_of(cells.read_plan(STUDY / "plan.toml"), cells.Records())
        if cell.schedule == "held"
    )
    flags = ["--arch=transformer", "--optimizer=adam", f"--lr={held.lr}", *texts.schedule_flags(held)]
    args = options.parse_args_and_arch(options.get_training_parser(), [str(data), *flags])
    config = convert_namespace_to_omegaconf(args)
    optimiser = build_optimizer(config.optimizer, [torch.nn.Parameter(torch.zeros(1))])
    schedule = build_lr_scheduler(config.lr_scheduler, optimiser)
    rates = [schedule.step_update(update) for update in range(held.updates + 1)]
    assert held.warmup == 200 and held.updates == 2000
    assert all(after > before for before, after in zip(rates[:200], rates[1:201], strict=True))
    assert set(rates[200:1400]) == {held.lr}
    assert all(after < before for before, after in zip(rates[1400:], rates[1401:], strict=False))
    assert rates[2000] == pytest.approx(held.lr / 100)


@pytest.mark.smoke
def test_a_killed_training_ends_as_an_undisturbed_one(tmp_path):
    """A killed training ends with the losses of an undisturbed one, to the bit; its seconds add up."""
    flags = ("--updates", 100)
    subprocess.run(symbols_command(tmp_path / "whole", *flags), check=True, stdout=subprocess.DEVNULL)
    killed = subprocess.Popen(symbols_command(tmp_path / "killed", *flags), stdout=subprocess.DEVNULL)
    until((tmp_path / "killed" / "state.pt").exists)
    killed.kill()
    killed.wait()
    assert not (tmp_path / "killed" / "result.json").exists()
    again = subprocess.run(
        symbols_command(tmp_path / "killed", *flags), check=True, capture_output=True, text=True
    ).stdout
    assert again.startswith("resumed after update 50\n")
    whole, resumed = (json.loads((tmp_path / name / "result.json").read_text()) for name in ("whole", "killed"))
    assert resumed["loss"] == whole["loss"] and resumed["sentences_right"] == whole["sentences_right"]
    assert len(whole["loss"]) == 10 and resumed["seconds"] > 0
    once_more = subprocess.run(
        symbols_command(tmp_path / "killed", *flags), check=True, capture_output=True, text=True
    ).stdout
    assert once_more.endswith("this training is over\n")


@pytest.mark.parametrize(
    ("flags", "ended", "update"),
    [(("--lr", "1e-9", "--stop-stuck", "60", "--updates", "90"), "stuck", 60), (("--lr", "1e30"), "diverged", 10)],
)
def test_stuck_and_diverged_are_results(flags, ended, update, tmp_path):
    subprocess.run(symbols_command(tmp_path, *flags), check=True, stdout=subprocess.DEVNULL)
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["ended"], result["update"]) == (ended, update)
    assert result["silent_layers"].keys() == {"encoder", "decoder"}


def test_layers_without_a_gradient_are_counted(symbols):
    model = symbols.model_of("deepnorm", 3, "copy", 1)
    source, target = symbols.batch("copy", 1, 1)
    model(source, None, target.roll(1, 1))[0].sum().backward()
    assert symbols.silent_layers(model) == {"encoder": 0, "decoder": 0}
    for parameter in model.decoder.layers[1].parameters():
        parameter.grad.zero_()
    assert symbols.silent_layers(model) == {"encoder": 0, "decoder": 1}


def test_runner_trains_the_plan_once(tmp_path):
    """The runner trains each cell once, records it, and gives waiting cells the best rate of their group."""
    (tmp_path / "plan.toml").write_text(PLAN.format(layers=2, updates=60))
    command = runner(tmp_path, tmp_path / "plan.toml")
    before = subprocess.run([*command, "--list"], check=True, capture_output=True, text=True).stdout
    assert "two: waits for one" in before and before.count("to come") == 2
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    records = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    assert [one["task"] for one in records] == ["copy", "copy", "reverse"]
    best = min(records[:2], key=lambda one: one["final_loss"])
    assert records[2]["lr"] == best["lr"] and records[2]["predicted_hours"] == 0.0
    assert all(str(tmp_path) not in line for line in (tmp_path / "records.jsonl").read_text().splitlines())
    again = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert again.endswith("nothing is left to train here\n")
    after = subprocess.run([*command, "--list"], check=True, capture_output=True, text=True).stdout
    assert "to come" not in after and "0.0 predicted for the named cells that are left" in after


def test_the_page_s_tables_are_those_of_the_records():
    """Tables on the page are those that results/thousand_layers/render.py writes."""
    done = subprocess.run([sys.executable, STUDY / "render.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@needs_venv
def test_script_trains_a_miniature_from_the_readme_s_command(tmp_path):
    """scripts/thousand_layers.sh trains a 6L-6L miniature, which copies held-out sentences."""
    done = bash("scripts/thousand_layers.sh", tmp_path / "out", "--layers", 6, "--lr", "4e-3", "--updates", 300)
    assert "bits a token (unigram entropy 4.05, without the source 3.24)" in done.stdout
    assert done.stdout.endswith("20 of 20 sentences are right\n")
    assert json.loads((tmp_path / "out" / "result.json").read_text())["loss"][-1] < 0.1


@needs_venv
def test_script_says_what_is_wrong_in_a_line(tmp_path):
    done = bash("scripts/thousand_layers.sh", tmp_path / "out", "--method", "deepnrom", check=False)
    assert done.returncode and "deepnrom" in done.stderr and not (tmp_path / "out").exists()


@needs_venv
@pytest.mark.parametrize("words", ["", "begin", "start none", "list"])
def test_trainings_script_refuses_what_it_cannot_do(words, tmp_path):
    environment = os.environ | {"TRAININGS": str(tmp_path / "work")}
    done = subprocess.run(
        ["bash", ROOT / "scripts/trainings.sh", *words.split()], env=environment, capture_output=True, text=True
    )
    assert done.returncode and done.stderr and not (tmp_path / "work").exists()


@pytest.mark.smoke
@needs_venv
def test_ctrl_c_leaves_a_training_that_resumes(tmp_path):
    """Ctrl-C ends the script in the foreground, and the same command resumes."""
    flags = ("--layers", "6", "--lr", "4e-3", "--updates", "300")
    first = start("thousand_layers", str(tmp_path / "out"), *flags)
    until((tmp_path / "out" / "state.pt").exists)
    os.killpg(first.pid, signal.SIGINT)
    assert first.wait(timeout=60) != 0
    again = bash("scripts/thousand_layers.sh", tmp_path / "out", *flags).stdout
    assert again.startswith("resumed after update ") and again.endswith("20 of 20 sentences are right\n")
