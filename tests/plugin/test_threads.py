"""Tests of the number of processes and threads on a CPU: the decision, where it holds, and that a resume keeps it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest
import torch

from benchmarks.__main__ import main as benchmarks
from deepnet_fairseq import threads
from deepnet_fairseq.core.archs import PRESETS
from deepnet_fairseq.threads import Ratio, processes_and_threads, torch_threads
from deepnet_fairseq.tools import compare
from deepnet_fairseq.tools.check import train_briefly
from deepnet_fairseq.tools.translation import Settings

from ..conftest import TRAIN_FLAGS
from ..support.diverging import TINY, train
from ..support.helpers import ROOT
from ..support.programs import import_program

RENDER = ROOT / "results" / "threads" / "render.py"
CORES = 3
NARROW, WIDE = 64, 512  # in the table of three_cores
TWO_THREADS_ON_NARROW = Ratio(idle=0.8, busy=2.2)  # lose more beside a busy core than they gain
TWO_THREADS_ON_WIDE = Ratio(idle=0.55, busy=1.2)  # gain more


@pytest.fixture
def three_cores(monkeypatch):
    """Provide a machine of three cores on which nobody has set threads: torch takes all of them."""
    for name in threads.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(CORES)))
    monkeypatch.setattr(threads, "_siblings", lambda logical: None)
    monkeypatch.setattr(threads, "measured", lambda: {NARROW: TWO_THREADS_ON_NARROW, WIDE: TWO_THREADS_ON_WIDE})
    monkeypatch.setattr(torch_threads, "chosen", None)
    before = torch.get_num_threads()
    torch.set_num_threads(CORES)
    yield
    torch.set_num_threads(before)


# The decision


@pytest.mark.parametrize(
    ("width", "tasks", "processes", "expected"),
    [
        # the number of processes follows from that of the tasks
        (NARROW, 1, None, (1, 1)),
        (NARROW, 2, None, (2, 1)),
        (NARROW, 9, None, (3, 1)),
        (WIDE, 1, None, (1, 3)),
        (WIDE, 9, None, (1, 3)),
        # it is given
        (NARROW, 9, 5, (5, 1)),
        (WIDE, 9, 2, (2, 1)),
        (WIDE, 9, 5, (5, 1)),
        # other widths are judged by the next lower one in the table
        (16, 2, None, (2, 1)),
        (500, 2, None, (2, 1)),
        (4096, 2, None, (1, 3)),
    ],
)
def test_narrow_models_run_side_by_side_and_wide_ones_alone(three_cores, width, tasks, processes, expected):
    """Narrow models get a thread each, wide ones all cores, and together never more threads than cores."""
    assert processes_and_threads(width, tasks=tasks, processes=processes) == expected


def test_two_hyper_threads_are_one_core(three_cores, monkeypatch):
    """Of three logical cores the first and the last are hyper-threads of one."""
    monkeypatch.setattr(threads, "_siblings", lambda logical: f"{logical % 2},{logical % 2 + 2}")

    assert threads.available_cores() == 2


def test_the_packages_table_has_the_widths_that_were_measured():
    assert [*threads.measured()] == [64, 128, 256, 512]


def test_the_packages_table_gives_the_quickstarts_width_one_thread():
    assert not threads.threads_pay(PRESETS["deepnet_transformer_tiny"]["encoder_embed_dim"])


def test_a_busy_core_never_helps_two_threads_in_the_packages_table():
    for ratio in threads.measured().values():
        assert ratio.idle > 0.4  # two threads take at least half the time of one, but for noise
        assert ratio.busy > ratio.idle


@pytest.mark.parametrize(
    ("config", "width"),
    [
        pytest.param(Namespace(encoder_embed_dim=64, decoder_embed_dim=256), 256, id="two stacks"),
        pytest.param(Namespace(decoder_embed_dim=128), 128, id="one stack"),
        pytest.param(Namespace(encoder_embed_dim=None), None, id="not given"),
    ],
)
def test_the_width_of_a_model_is_the_larger_one_of_its_stacks(config, width):
    assert threads.width_of(config) == width


# torch's threads in this process


def test_torch_follows_the_models_of_a_process_by_turns(three_cores):
    chosen = [torch_threads.use(width) for width in (NARROW, WIDE, NARROW)]

    assert chosen == [1, CORES, 1]


def test_torch_keeps_its_threads_for_a_model_of_unknown_width(three_cores):
    torch_threads.use(NARROW)

    assert torch_threads.use(None) == 1


def test_processes_side_by_side_share_the_cores(three_cores):
    assert torch_threads.use(WIDE, processes=3) == 1


def test_the_users_own_number_holds_until_the_next_model(three_cores):
    assert torch_threads.use(NARROW, given=2) == 2
    assert torch_threads.use(WIDE) == CORES
    assert torch.get_num_threads() == CORES


def test_the_number_that_a_program_has_set_stays(three_cores):
    torch.set_num_threads(2)

    assert torch_threads.use(NARROW) == 2


def test_the_single_thread_of_a_process_that_loads_data_stays(three_cores):
    torch.set_num_threads(1)  # as torch does there

    assert torch_threads.use(WIDE) == 1


def test_the_number_of_the_environment_stays(three_cores, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", str(CORES))

    assert torch_threads.use(NARROW) == CORES
    assert threads.from_environment() == "OMP_NUM_THREADS=3"


def test_a_word_in_the_environment_is_ignored_as_by_openmp(three_cores, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "many")

    assert torch_threads.use(NARROW) == 1


# Translation, `deepnet compare`, `deepnet check`

CTRANSLATE2 = None  # in place of a width: the engine takes all cores


@pytest.mark.parametrize(("width", "expected"), [(CTRANSLATE2, 3), (NARROW, 1), (WIDE, 3)])
def test_translation_takes_threads_by_engine_and_width(three_cores, width, expected):
    assert Settings().choose_threads(width) == expected


@pytest.mark.parametrize("width", [CTRANSLATE2, NARROW])
def test_translation_takes_the_threads_that_are_given(three_cores, width):
    assert Settings(threads=2).choose_threads(width) == 2


@pytest.mark.parametrize("width", [CTRANSLATE2, WIDE])
def test_translation_takes_the_threads_of_the_environment(three_cores, width, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    torch.set_num_threads(2)  # as torch does at its import

    assert Settings().choose_threads(width) == 2


def comparison(folder: Path, seeds=(1,), jobs: int | None = None, flags: tuple[str, ...] = ()) -> compare.Grid:
    """Return a grid of one training for each seed and each of two depths."""
    return compare.Grid(
        data=folder,
        methods=["deepnorm"],
        depths=[2, 4],
        lrs=[1e-3],
        seeds=seeds,
        updates=100,
        out=folder,
        jobs=jobs,
        flags=("--cpu", *flags),
    )


@pytest.mark.parametrize(
    ("jobs", "flags", "expected"),
    [
        (None, (), (3, 1)),
        (2, (), (2, 1)),
        (None, ("--arch", "deepnet_transformer"), (1, 3)),
        (None, ("--encoder-embed-dim=1024",), (1, 3)),
        (3, ("--encoder-embed-dim", "1024"), (3, 1)),
    ],
)
def test_compare_decides_jobs_and_threads_by_width(three_cores, jobs, flags, expected, tmp_path):
    grid = comparison(tmp_path, seeds=(1, 2), jobs=jobs, flags=flags)

    assert grid.share() == expected


def test_programs_of_compare_get_the_threads_of_their_width(three_cores, tmp_path):
    assert compare.thread_variables(comparison(tmp_path)) == {"OMP_NUM_THREADS": "1"}


def test_programs_of_compare_keep_the_threads_of_the_environment(three_cores, tmp_path, monkeypatch):
    monkeypatch.setenv("MKL_NUM_THREADS", "2")

    assert compare.thread_variables(comparison(tmp_path)) == {}


def test_check_takes_one_thread_for_a_narrow_model(three_cores, data):
    arch = ("--arch", "deepnet_transformer_tiny", "--encoder-layers", "1", "--decoder-layers", "1")
    assert PRESETS["deepnet_transformer_tiny"]["encoder_embed_dim"] == NARROW

    train_briefly([str(data), *TRAIN_FLAGS, *arch], 2, None, 60, lambda update, loss: None)

    assert torch.get_num_threads() == 1


# Trainings


@pytest.fixture
def train_until(data, tmp_path, caplog):
    """Provide a function that trains a model of width 16 up to an update, or resumes its training.

    It returns what the training says of threads.
    """

    def run(update: int) -> str:
        caplog.clear()
        with caplog.at_level("INFO", "deepnet_fairseq.training"):
            train(data, tmp_path, *TINY, "--max-update", str(update))
        messages = [record.message for record in caplog.records]
        return " ".join(message for message in messages if "thread" in message)

    return run


def threads_saved(folder: Path) -> int:
    """Return the number of threads in the last checkpoint of a folder."""
    state = torch.load(folder / "checkpoint_last.pt", weights_only=True)
    return state["extra_state"]["deepnet_training"]["threads"]


def set_threads_by_environment(monkeypatch, number: int) -> None:
    """Set torch's threads as the variable OMP_NUM_THREADS does at the start of a program."""
    monkeypatch.setenv("OMP_NUM_THREADS", str(number))
    torch.set_num_threads(number)


@pytest.fixture
def begun_with_two_threads(three_cores, train_until, monkeypatch):
    """Begin a training with two threads, by the environment, whose variable is then unset."""
    set_threads_by_environment(monkeypatch, 2)
    said = train_until(2)
    monkeypatch.delenv("OMP_NUM_THREADS")
    return said


def test_a_narrow_training_has_one_thread_and_says_why(three_cores, train_until, tmp_path):
    said = train_until(1)

    assert torch.get_num_threads() == 1
    assert threads_saved(tmp_path) == 1
    assert "1 thread " in said
    assert "3 cores" in said
    assert "width 16" in said


def test_a_training_takes_and_names_the_threads_of_the_environment(begun_with_two_threads, tmp_path):
    assert torch.get_num_threads() == 2
    assert threads_saved(tmp_path) == 2
    assert "OMP_NUM_THREADS=2" in begun_with_two_threads


def test_a_resume_keeps_the_threads_against_the_environment(begun_with_two_threads, train_until, tmp_path, monkeypatch):
    """It says so, and names the flag by which a training begins with others."""
    set_threads_by_environment(monkeypatch, 1)

    said = train_until(3)

    assert torch.get_num_threads() == 2
    assert threads_saved(tmp_path) == 2
    assert "2 threads" in said
    assert "--reset-meters" in said


def test_a_resume_keeps_the_threads_against_the_decision_by_width(begun_with_two_threads, train_until, tmp_path):
    torch.set_num_threads(CORES)  # as torch does at the start of a program

    train_until(3)

    assert torch.get_num_threads() == 2
    assert threads_saved(tmp_path) == 2


def test_a_resume_on_fewer_cores_has_no_more_threads_than_cores(
    begun_with_two_threads, train_until, tmp_path, monkeypatch
):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0})
    torch.set_num_threads(1)

    said = train_until(3)

    assert torch.get_num_threads() == 1
    assert threads_saved(tmp_path) == 1
    assert "2 threads" in said


# The page of results, and the benchmark behind it


@pytest.fixture(scope="module")
def render():
    """Provide the module results/threads/render.py."""
    return import_program(RENDER)


@pytest.fixture
def records():
    """Provide records of two widths, in both of which a second thread halves the time on idle cores.

    Beside a busy core it doubles that of the narrow one, so that it gains as much as it loses there.
    """
    seconds = {
        # (width, threads, busy cores)
        (64, 1, 0): 0.5,
        (64, 2, 0): 0.25,
        (64, 1, 1): 0.5,
        (64, 2, 1): 1.0,
        (512, 1, 0): 4.0,
        (512, 2, 0): 2.0,
        (512, 1, 1): 4.0,
        (512, 2, 1): 6.0,
    }
    return [
        {"width": width, "threads": number, "busy": busy, "median": median, "layers": 6}
        for (width, number, busy), median in seconds.items()
    ]


def test_page_and_table_are_those_of_the_records():
    subprocess.run([sys.executable, RENDER, "--check"], check=True)


def test_ratios_are_the_seconds_of_two_threads_over_those_of_one(render, records):
    assert render.ratios(records) == {64: Ratio(idle=0.5, busy=2.0), 512: Ratio(idle=0.5, busy=1.5)}


def test_a_width_where_threads_gain_as_much_as_they_lose_gets_one(render, records):
    rows = render.by_width(records).splitlines()[2:]
    threads_chosen = [row.split(" | ")[-1] for row in rows]

    assert threads_chosen == ["1 |", "all cores |"]


def test_the_packages_table_is_written_from_the_records(render, records):
    assert "64 = { idle = 0.50, busy = 2.00 }" in render.package_table(records)


@pytest.mark.smoke
@pytest.mark.skipif(threads.available_cores() < 2, reason="measures two threads")
def test_the_benchmark_writes_a_record_for_each_condition(tmp_path, capsys):
    threads_before = torch.get_num_threads()
    path = tmp_path / "records.jsonl"

    benchmarks(["threads", "--smoke", "--widths", "64", "--busy", "0,1", "--out", str(path)])

    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(one["threads"], one["busy"]) for one in records] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    for record in records:
        assert record["median"] > 0
        assert record["environment"]["hardware"]
    assert torch.get_num_threads() == threads_before
    assert "1 thread, 1 busy" in capsys.readouterr().out
