"""Tests of the trainings of results/thousand_layers: the task, the plan, the runner, the page.

The task, in symbols.py, is to copy or reverse sentences of random symbols. The plan has groups of cells, and a cell is
a training. The runner, run.py, trains the cells one after the other, and records each in a line.
"""

import itertools
import json
import math
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.optim import build_optimizer
from fairseq.optim.lr_scheduler import build_lr_scheduler

from ..support.experiments import bash, needs_venv, start, until
from ..support.helpers import ROOT
from ..support.programs import import_program

STUDY = ROOT / "results" / "thousand_layers"
# Group "one" has two cells, which differ in their rates. Group "two" takes the better of these rates.
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


@pytest.fixture(scope="module")
def symbols():
    """Provide the module of the task: copying or reversing sentences of symbols."""
    return import_program(STUDY / "symbols.py")


def train_symbols(out, *flags) -> str:
    """Train a 2L-2L model to the end by symbols.py in folder `out`; return what it prints."""
    done = subprocess.run(symbols_command(out, *flags), check=True, capture_output=True, text=True)
    return done.stdout


def symbols_command(out, *flags) -> list:
    """Return the command that trains a 2L-2L model in folder `out`; of a flag given twice the last value counts."""
    return [sys.executable, STUDY / "symbols.py", out, "--layers", "2", "--lr", "4e-3", *map(str, flags)]


def result_of(out) -> dict:
    """Return what the training in folder `out` has written at its end."""
    return json.loads((out / "result.json").read_text())


def entropy(counts: Counter) -> float:
    """Return the entropy, in bits a symbol, of symbols that occur so often."""
    total = sum(counts.values())
    bits = 0.0
    for count in counts.values():
        bits -= count / total * math.log2(count / total)
    return bits


def is_rising(rates) -> bool:
    return all(after > before for before, after in itertools.pairwise(rates))


def is_falling(rates) -> bool:
    return all(after < before for before, after in itertools.pairwise(rates))


@pytest.fixture(scope="module")
def targets(symbols):
    """Provide the targets (40,000, T) of random sentences of the task copy; the last symbol ends a sentence."""
    _, targets = symbols.pairs("copy", symbols.draw(40_000, seed=3))
    return targets


def test_the_stated_unigram_entropy_is_that_of_the_targets(symbols, targets):
    """symbols.UNIGRAM: the loss of a model that knows only how often each symbol occurs."""
    bits = entropy(Counter(targets.flatten().tolist()))

    assert bits == pytest.approx(symbols.UNIGRAM, abs=2e-3)


def test_the_stated_entropy_without_the_source_is_the_mean_over_positions(symbols, targets):
    """symbols.SOURCE_BLIND: the loss of a decoder that ignores its source but knows where a sentence ends."""
    by_position = [entropy(Counter(column.tolist())) for column in targets.T]

    assert sum(by_position) / len(by_position) == pytest.approx(symbols.SOURCE_BLIND, abs=2e-3)


UPDATES_SEEN = 300  # updates of a training whose batches the tests below draw


@pytest.fixture(scope="module")
def held_out_sentences(symbols):
    """Provide the set of the held-out sentences, each a tuple of symbols."""
    return {tuple(sentence) for sentence in symbols.held_out().tolist()}


@pytest.fixture(scope="module")
def batches(symbols):
    """Provide source and target (B, T) of the first updates of the task reverse, with seed 1."""
    return [symbols.batch("reverse", 1, update) for update in range(UPDATES_SEEN)]


def test_held_out_sentences_are_distinct(symbols, held_out_sentences):
    assert len(held_out_sentences) == symbols.HELD_OUT


def test_held_out_sentences_are_never_trained_on(held_out_sentences, batches):
    trained = set()
    for source, _target in batches:
        trained |= {tuple(sentence[:-1]) for sentence in source.tolist()}  # without the end

    assert trained
    assert not held_out_sentences & trained


def test_as_many_random_sentences_as_are_trained_on_have_held_out_ones_among_them(symbols, held_out_sentences):
    """If sentences were not left out, test_held_out_sentences_are_never_trained_on would therefore fail."""
    drawn = symbols.draw(symbols.SENTENCES * UPDATES_SEEN, seed=1)

    assert held_out_sentences & {tuple(sentence) for sentence in drawn.tolist()}


def test_targets_of_reverse_are_the_reversed_sources(symbols, batches):
    """The symbol that ends a sentence is not reversed: it is the last one of source and target."""
    for source, target in batches:
        assert source.shape == (symbols.SENTENCES, symbols.LENGTH + 1)
        assert target.shape == source.shape
        assert target[:, :-1].flip(1).equal(source[:, :-1])
        assert target[:, -1].equal(source[:, -1])


def test_the_rate_warms_up_stays_and_falls_to_zero(symbols):
    """Of 500 updates 40 are the warm-up, 322 (70% of the others) hold the rate, and the last 138 let it fall."""
    rates = [symbols.rate_at(update, peak=1.0, warmup=40, updates=500) for update in range(1, 501)]

    warm_up = rates[:40]
    held = rates[40:362]
    fall = rates[362:]
    assert warm_up[0] == 1 / 40
    assert is_rising(warm_up)
    assert warm_up[-1] == 1.0
    assert held == [1.0] * 322
    assert fall[0] == 1.0  # 138/138
    assert is_falling(fall)
    assert fall[-1] == pytest.approx(1 / 138)  # the update after it would have zero


@pytest.fixture
def first_held_cell():
    """Provide the first cell of the study's plan whose rate is held: of 2,000 updates, 200 of them the warm-up."""
    cells = import_program(STUDY / "cells.py")
    plan = cells.cells_of(cells.read_plan(STUDY / "plan.toml"), cells.Records())
    cell = next(cell for cell in plan if cell.schedule == "held")
    assert cell.warmup == 200
    assert cell.updates == 2000
    return cell


def test_a_held_rate_of_fairseq_train_is_held_and_falls(first_held_cell, data):
    """With the flags of a cell the rate rises for 200 updates, stays, and falls in the last 30% of 2,000, to 1%."""
    texts = import_program(STUDY / "texts.py")
    peak = first_held_cell.lr
    flags = ["--arch=transformer", "--optimizer=adam", f"--lr={peak}", *texts.schedule_flags(first_held_cell)]
    args = options.parse_args_and_arch(options.get_training_parser(), [str(data), *flags])
    config = convert_namespace_to_omegaconf(args)
    optimiser = build_optimizer(config.optimizer, [torch.nn.Parameter(torch.zeros(1))])
    schedule = build_lr_scheduler(config.lr_scheduler, optimiser)

    rates = [schedule.step_update(update) for update in range(2000 + 1)]

    assert is_rising(rates[:201])
    assert set(rates[200:1400]) == {peak}
    assert is_falling(rates[1400:])
    assert rates[2000] == pytest.approx(peak / 100)


class KilledTraining(NamedTuple):
    """Training that was killed and begun again: its folder, whether it had a result when killed, the second output."""

    out: Path
    had_result: bool
    printed_again: str


@pytest.fixture(scope="module")
def killed_training(tmp_path_factory) -> KilledTraining:
    """Provide a training of 100 updates that was killed after it had saved, at update 50, and trained to its end."""
    out = tmp_path_factory.mktemp("symbols") / "killed"
    killed = subprocess.Popen(symbols_command(out, "--updates", 100), stdout=subprocess.DEVNULL)
    until((out / "state.pt").exists)
    killed.kill()
    killed.wait()
    had_result = (out / "result.json").exists()
    return KilledTraining(out, had_result, train_symbols(out, "--updates", 100))


@pytest.mark.smoke
def test_a_killed_training_has_no_result_and_resumes(killed_training):
    assert not killed_training.had_result
    assert "resumed after update 50" in killed_training.printed_again.splitlines()[0]


@pytest.mark.smoke
def test_a_killed_training_ends_as_an_undisturbed_one(killed_training, tmp_path):
    """The resumed training has the same losses, to the bit. A loss is logged every 10 updates."""
    train_symbols(tmp_path / "whole", "--updates", 100)

    whole = result_of(tmp_path / "whole")
    resumed = result_of(killed_training.out)
    assert len(whole["loss"]) == 100 / 10
    assert resumed["loss"] == whole["loss"]
    assert resumed["sentences_right"] == whole["sentences_right"]


@pytest.mark.smoke
def test_a_training_that_is_over_is_not_repeated(killed_training):
    out = killed_training.out
    result = result_of(out)

    printed = train_symbols(out, "--updates", 100)

    assert "this training is over" in printed.splitlines()[-1]
    assert result_of(out) == result


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("flags", "ended", "update"),
    [
        (("--lr", "1e-9", "--stop-stuck", "60", "--updates", "90"), "stuck", 60),  # the value of --stop-stuck
        (("--lr", "1e30"), "diverged", 10),  # found at the first line of the log
    ],
)
def test_a_training_that_is_stuck_or_diverges_has_a_result(flags, ended, update, tmp_path):
    """The result counts the layers without a gradient in each stack."""
    train_symbols(tmp_path, *flags)

    result = result_of(tmp_path)
    assert result["ended"] == ended
    assert result["update"] == update
    assert result["silent_layers"].keys() == {"encoder", "decoder"}


def test_layers_without_a_gradient_are_counted_by_stack(symbols):
    """All layers have a gradient after a backward pass. Then the gradient of one decoder layer is set to zero."""
    model = symbols.model_of("deepnorm", layers=3, task="copy", seed=1)
    source, target = symbols.batch("copy", seed=1, update=1)
    scores, _ = model(source, None, target.roll(1, 1))
    scores.sum().backward()
    assert symbols.silent_layers(model) == {"encoder": 0, "decoder": 0}

    for parameter in model.decoder.layers[1].parameters():
        parameter.grad.zero_()

    assert symbols.silent_layers(model) == {"encoder": 0, "decoder": 1}


class TrainedPlan(NamedTuple):
    """Folder of a plan that the runner has trained, the lines of its records, and the list printed before that."""

    folder: Path
    lines: list[str]
    listed_before: str

    def run(self, *flags) -> str:
        """Return what the runner prints when it is called again."""
        return run_plan(self.folder, *flags)


def run_plan(work, *flags) -> str:
    """Run the runner on the plan and the records in folder `work`; return what it prints."""
    command = [sys.executable, STUDY / "run.py", work, "--plan", work / "plan.toml"]
    command += ["--records", work / "records.jsonl", *flags]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def trained_plan(tmp_path_factory):
    """Provide PLAN after its training, at 2L-2L. Its second group waits for the best rate of the first."""
    folder = tmp_path_factory.mktemp("trained plan")
    (folder / "plan.toml").write_text(PLAN.format(layers=2, updates=60))
    listed_before = run_plan(folder, "--list")
    run_plan(folder)
    return TrainedPlan(folder, (folder / "records.jsonl").read_text().splitlines(), listed_before)


@pytest.mark.smoke
def test_the_runner_lists_cells_to_come_and_groups_that_wait(trained_plan):
    """The two cells of group "one" are to come, and group "two" waits for it."""
    assert trained_plan.listed_before.count("to come") == 2
    assert re.search(r"\btwo: .*\bone\b", trained_plan.listed_before)


@pytest.mark.smoke
def test_the_runner_records_each_cell_in_the_order_of_the_plan(trained_plan):
    records = [json.loads(line) for line in trained_plan.lines]

    assert [record["task"] for record in records] == ["copy", "copy", "reverse"]
    assert records[2]["predicted_hours"] == 0.0  # 10 updates of 0.01 s, rounded to hundredths of an hour


@pytest.mark.smoke
def test_records_of_the_runner_have_no_folder_of_the_machine(trained_plan):
    assert trained_plan.lines
    for line in trained_plan.lines:
        assert str(trained_plan.folder) not in line


@pytest.mark.smoke
def test_a_waiting_cell_gets_the_best_rate_of_its_group(trained_plan):
    *of_copy, of_reverse = [json.loads(line) for line in trained_plan.lines]

    best = min(of_copy, key=lambda record: record["final_loss"])
    assert of_reverse["lr"] == best["lr"]


@pytest.mark.smoke
def test_the_runner_trains_each_cell_once(trained_plan):
    printed = trained_plan.run()

    assert "nothing is left to train" in printed.splitlines()[-1]
    assert (trained_plan.folder / "records.jsonl").read_text().splitlines() == trained_plan.lines


@pytest.mark.smoke
def test_the_runner_lists_no_hours_of_a_plan_that_is_trained(trained_plan):
    listed = trained_plan.run("--list")

    assert "to come" not in listed
    assert re.search(r"\b0\.0 predicted", listed)


def test_vectors_that_differ_in_some_directions_have_so_many_dimensions():
    """The number is the participation ratio.

    Unequal directions count for less: variances 1 and 3 give (1 + 3)^2 / (1^2 + 3^2) = 1.6.
    """
    dimensions = import_program(STUDY / "dimensions.py").dimensions
    torch.manual_seed(1)
    shared = torch.randn(64)  # a vector that all have in common counts for nothing
    corners = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=3)))  # corners of a cube
    on_a_line = shared + corners[:, :1] * torch.randn(64)
    in_three = torch.cat([corners, torch.zeros(8, 61)], 1) + shared
    unequal = in_three - shared
    unequal[:, 1] *= 3**0.5
    unequal[:, 2] = 0

    assert dimensions(on_a_line) == pytest.approx(1)
    assert dimensions(in_three) == pytest.approx(3)
    assert dimensions(unequal) == pytest.approx(1.6)


def test_the_page_s_tables_are_those_of_the_records():
    """Tables on the page are those that results/thousand_layers/render.py writes."""
    done = subprocess.run([sys.executable, STUDY / "render.py", "--check"], capture_output=True, text=True)

    assert done.returncode == 0, done.stderr


@pytest.mark.smoke
@needs_venv
def test_script_trains_a_miniature_from_the_readme_s_command(tmp_path):
    """scripts/thousand_layers.sh trains a 6L-6L miniature, which copies all 20 held-out sentences.

    A sentence has 4 tokens: 3 of 20 symbols, and the end. The unigram entropy is therefore 3/4 log2(20 x 4/3) + 1/4
    log2(4) = 4.05 bits a token, and the entropy without the source is 3/4 log2(20) = 3.24.
    """
    done = bash("scripts/thousand_layers.sh", tmp_path / "out", "--layers", 6, "--lr", "4e-3", "--updates", 300)

    assert re.search(r"\b4\.05\b.*\b3\.24\b", done.stdout)
    assert "20 of 20" in done.stdout.splitlines()[-1]
    assert result_of(tmp_path / "out")["loss"][-1] < 0.1


@needs_venv
def test_script_names_a_wrong_method_and_writes_nothing(tmp_path):
    done = bash("scripts/thousand_layers.sh", tmp_path / "out", "--method", "deepnrom", check=False)

    assert done.returncode != 0
    assert "deepnrom" in done.stderr
    assert not (tmp_path / "out").exists()


@needs_venv
@pytest.mark.parametrize("words", ["", "begin", "start none", "list"])  # a list before any training
def test_trainings_script_refuses_what_it_cannot_do(words, tmp_path):
    """scripts/trainings.sh trains in the folder that the variable TRAININGS names. A refusal leaves no folder there."""
    command = ["bash", ROOT / "scripts/trainings.sh", *words.split()]
    environment = os.environ | {"TRAININGS": str(tmp_path / "work")}

    done = subprocess.run(command, env=environment, capture_output=True, text=True)

    assert done.returncode != 0
    assert done.stderr
    assert not (tmp_path / "work").exists()


@pytest.mark.smoke
@needs_venv
def test_ctrl_c_leaves_a_training_that_resumes(tmp_path):
    """Ctrl-C ends the script. The same command resumes the training, whose model copies all sentences in the end."""
    flags = ("--layers", "6", "--lr", "4e-3", "--updates", "300")
    first = start("thousand_layers", str(tmp_path / "out"), *flags)
    until((tmp_path / "out" / "state.pt").exists)

    os.killpg(first.pid, signal.SIGINT)
    status = first.wait(timeout=60)
    lines = bash("scripts/thousand_layers.sh", tmp_path / "out", *flags).stdout.splitlines()

    assert status != 0
    assert "resumed after update " in lines[0]
    assert "20 of 20" in lines[-1]
