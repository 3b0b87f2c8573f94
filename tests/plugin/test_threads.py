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
from deepnet_fairseq.threads import Ratio, Share, processes_and_threads, torch_threads
from deepnet_fairseq.tools import compare
from deepnet_fairseq.tools.check import train_briefly
from deepnet_fairseq.tools.translation import Settings

from ..conftest import TRAIN_FLAGS
from ..support.diverging import TINY, train
from ..support.helpers import ROOT
from ..support.programs import import_program

RENDER = ROOT / "results" / "threads" / "render.py"
CORES = 3
NARROW = 64  # widths of models, in the table of three_cores
WIDE = 512
TWO_THREADS_ON_NARROW = Ratio(idle=0.8, busy=2.2)  # lose 2.2 beside a busy core and gain 1 / 0.8 on idle ones
TWO_THREADS_ON_WIDE = Ratio(idle=0.55, busy=1.2)  # lose 1.2, gain 1 / 0.55


@pytest.fixture
def three_cores(monkeypatch):
    """Pretend a machine of three cores, where threads cost narrow models more than they gain, and wide ones less.

    Nobody has set the number of threads there, and torch begins with a thread for each core.
    """
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


ONE_ON_ALL_CORES = Share(processes=1, threads=CORES)


@pytest.mark.parametrize(
    ("width", "tasks", "expected"),
    [
        (NARROW, 1, Share(processes=1, threads=1)),
        (NARROW, 2, Share(processes=2, threads=1)),
        (NARROW, 9, Share(processes=CORES, threads=1)),
        (WIDE, 1, ONE_ON_ALL_CORES),
        (WIDE, 9, ONE_ON_ALL_CORES),
    ],
)
def test_narrow_models_run_side_by_side_and_wide_ones_alone(three_cores, width, tasks, expected):
    assert processes_and_threads(width, tasks=tasks) == expected


@pytest.mark.parametrize(
    ("width", "processes", "threads_of_each"),
    [
        (NARROW, 5, 1),
        (WIDE, 2, 1),  # two threads each would be more than three cores
        (WIDE, 5, 1),
    ],
)
def test_a_given_number_of_processes_shares_the_cores(three_cores, width, processes, threads_of_each):
    """Each process gets a thread, and there are more threads than cores only if there are more processes than cores."""
    assert processes_and_threads(width, tasks=9, processes=processes) == Share(processes, threads_of_each)


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        pytest.param(16, Share(processes=2, threads=1), id="16 as 64"),  # the lowest of the table
        pytest.param(500, Share(processes=2, threads=1), id="500 as 64"),
        pytest.param(4096, ONE_ON_ALL_CORES, id="4096 as 512"),
    ],
)
def test_other_widths_are_judged_by_the_next_lower_one_in_the_table(three_cores, width, expected):
    assert processes_and_threads(width, tasks=2) == expected


def test_two_hyper_threads_are_one_core(three_cores, monkeypatch):
    """The first and the last of three logical cores are hyper-threads of one core."""
    siblings = {0: "0,2", 1: "1", 2: "0,2"}  # as Linux lists them
    monkeypatch.setattr(threads, "_siblings", siblings.get)

    assert threads.available_cores() == 2


def test_the_packages_table_has_the_widths_that_were_measured():
    """results/threads/README.md has the same widths."""
    assert list(threads.measured()) == [64, 128, 256, 512]


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


def test_torch_gets_the_threads_of_each_model_that_a_process_takes_in_turn(three_cores):
    chosen = [torch_threads.use(width) for width in (NARROW, WIDE, NARROW)]

    assert chosen == [1, CORES, 1]


def test_torch_keeps_its_threads_for_a_model_of_unknown_width(three_cores):
    torch_threads.use(NARROW)

    assert torch_threads.use(None) == 1


def test_processes_side_by_side_share_the_cores(three_cores):
    assert torch_threads.use(WIDE, processes=CORES) == 1


def test_a_number_that_the_user_gives_is_taken(three_cores):
    assert torch_threads.use(NARROW, given=2) == 2
    assert torch.get_num_threads() == 2


def test_a_number_that_the_user_has_given_for_one_model_is_not_that_of_the_next(three_cores):
    torch_threads.use(NARROW, given=2)

    assert torch_threads.use(WIDE) == CORES
    assert torch.get_num_threads() == CORES


def test_the_number_that_a_program_has_set_stays(three_cores):
    """The program is not one of the package's, where a narrow model would get one thread."""
    torch.set_num_threads(2)

    assert torch_threads.use(NARROW) == 2


def test_the_single_thread_of_a_process_that_loads_data_stays(three_cores):
    torch.set_num_threads(1)  # as torch does in such a process

    assert torch_threads.use(WIDE) == 1


def test_the_number_of_the_environment_stays(three_cores, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", str(CORES))

    assert torch_threads.use(NARROW) == CORES
    assert threads.from_environment() == f"OMP_NUM_THREADS={CORES}"


def test_a_word_in_the_environment_is_ignored_as_by_openmp(three_cores, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "many")

    assert torch_threads.use(NARROW) == 1


# Translation, `deepnet compare`, `deepnet check`

CTRANSLATE2 = None  # in place of a width: this engine takes all cores whatever the width is


@pytest.mark.parametrize(("width", "expected"), [(CTRANSLATE2, CORES), (NARROW, 1), (WIDE, CORES)])
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
    """Return a grid of `deepnet compare` with one training for each seed and each of two depths.

    jobs: how many run side by side, None to choose; flags: of fairseq-train; the width is NARROW without any
    """
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
        (None, (), Share(processes=CORES, threads=1)),
        (2, (), Share(processes=2, threads=1)),
        (None, ("--arch", "deepnet_transformer"), ONE_ON_ALL_CORES),  # width 512
        (None, ("--encoder-embed-dim=1024",), ONE_ON_ALL_CORES),
        (3, ("--encoder-embed-dim", "1024"), Share(processes=3, threads=1)),
    ],
)
def test_compare_decides_jobs_and_threads_by_width(three_cores, jobs, flags, expected, tmp_path):
    """Two seeds at two depths are four trainings."""
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

    train_briefly(
        [str(data), *TRAIN_FLAGS, *arch], updates=2, warmup=None, seconds=60, progress=lambda update, loss: None
    )

    assert torch.get_num_threads() == 1


# Trainings


@pytest.fixture
def train_until(data, tmp_path, caplog):
    """Provide a function that trains a model of width 16 up to an update; a second call resumes the training.

    It returns the messages of the training's log that have "thread" in them.
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
def begun_with_two_threads(three_cores, train_until, monkeypatch) -> str:
    """Train up to update 2 with OMP_NUM_THREADS=2, which is then unset; provide what the log says of threads."""
    set_threads_by_environment(monkeypatch, 2)
    said = train_until(2)
    monkeypatch.delenv("OMP_NUM_THREADS")
    return said


def test_a_narrow_training_has_one_thread_and_says_why(three_cores, train_until, tmp_path):
    """The log names the number of cores and the width."""
    said = train_until(1)

    assert torch.get_num_threads() == 1
    assert threads_saved(tmp_path) == 1
    assert "1 thread " in said
    assert f"{CORES} cores" in said
    assert "width 16" in said


def test_a_training_takes_and_names_the_threads_of_the_environment(begun_with_two_threads, tmp_path):
    assert torch.get_num_threads() == 2
    assert threads_saved(tmp_path) == 2
    assert "OMP_NUM_THREADS=2" in begun_with_two_threads


def test_a_resume_keeps_the_threads_against_the_environment(begun_with_two_threads, train_until, tmp_path, monkeypatch):
    """The log names the flag by which a resume takes another number of threads."""
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
    """The log names the number of threads with which the training was begun."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0})  # one core
    torch.set_num_threads(1)  # as torch does at the start of a program

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
    """Provide the benchmark's records of two widths, in both of which a second thread halves the time on idle cores.

    Beside a busy core the second thread doubles the time of the narrow model, so that it loses as much as it gains. The
    wide model then takes 1.5 times as long.
    """
    seconds = {
        # (width, threads, busy cores): seconds of an update
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
    """With --check the program writes nothing, and fails if it would write another page or table."""
    subprocess.run([sys.executable, RENDER, "--check"], check=True)


def test_ratios_are_the_seconds_of_two_threads_over_those_of_one(render, records):
    assert render.ratios(records) == {64: Ratio(idle=0.5, busy=2.0), 512: Ratio(idle=0.5, busy=1.5)}


def test_a_width_where_threads_gain_as_much_as_they_lose_gets_one(render, records):
    _header, _rule, narrow, wide = render.by_width(records).splitlines()

    assert narrow.split(" | ")[-1] == "1 |"  # the last column: threads chosen
    assert wide.split(" | ")[-1] == "all cores |"


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
