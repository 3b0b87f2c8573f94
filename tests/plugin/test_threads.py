"""Tests of the number of processes and threads on a CPU: the decision, where it holds, and that a resume keeps it."""

from __future__ import annotations

import importlib.util
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

RENDER = ROOT / "results" / "threads" / "render.py"
CORES = 3


@pytest.fixture
def cores(monkeypatch):
    """Provide a machine of three cores on which nobody has set threads: torch takes all of them."""
    for name in threads.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(CORES)))
    monkeypatch.setattr(threads, "_siblings", lambda logical: None)
    monkeypatch.setattr(threads, "measured", lambda: {64: Ratio(0.8, 2.2), 512: Ratio(0.55, 1.2)})
    monkeypatch.setattr(torch_threads, "chosen", None)
    before = torch.get_num_threads()
    torch.set_num_threads(CORES)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("width", "tasks", "processes", "expected"), [
    (64, 1, None, (1, 1)), (64, 2, None, (2, 1)), (64, 9, None, (3, 1)), (64, 9, 5, (5, 1)),
    (512, 1, None, (1, 3)), (512, 9, None, (1, 3)), (512, 9, 2, (2, 1)), (512, 9, 5, (5, 1)),
    (16, 2, None, (2, 1)), (500, 2, None, (2, 1)), (4096, 2, None, (1, 3)),
])  # fmt: skip
def test_narrow_models_run_side_by_side_and_wide_ones_alone(cores, width, tasks, processes, expected):
    """Narrow models get a thread each, wide ones all cores, and together never more threads than cores."""
    assert processes_and_threads(width, tasks=tasks, processes=processes) == expected


def test_two_hyper_threads_are_one_core(cores, monkeypatch):
    monkeypatch.setattr(threads, "_siblings", lambda logical: f"{logical % 2},{logical % 2 + 2}")
    assert threads.available_cores() == 2


def test_installed_table():
    """The installed table has four widths, and gives models of the quickstart's width one thread."""
    table = threads.measured()
    assert [*table] == [64, 128, 256, 512] and not threads.threads_pay(64)
    assert all(0.4 < one.idle < one.busy for one in table.values())  # a busy core never helps two threads


def test_torch_follows_the_models_of_a_process_by_turns(cores):
    assert [torch_threads.use(width) for width in (64, 512, 64, None)] == [1, 3, 1, 1]
    assert torch_threads.use(512, processes=3) == 1 and torch_threads.use(64, given=2) == 2
    assert torch_threads.use(512) == 3 == torch.get_num_threads()


def test_what_others_have_set_stays(cores, monkeypatch):
    """The number of a program, of a data loader's process and of the environment stays."""
    torch.set_num_threads(2)
    assert torch_threads.use(64) == 2
    torch.set_num_threads(1)  # as torch does in a process that loads data
    assert torch_threads.use(512) == 1
    torch.set_num_threads(CORES)
    monkeypatch.setenv("OMP_NUM_THREADS", str(CORES))
    assert torch_threads.use(64) == CORES and threads.from_environment() == "OMP_NUM_THREADS=3"
    monkeypatch.setenv("OMP_NUM_THREADS", "many")  # OpenMP ignores it
    assert torch_threads.use(64) == 1


def test_width_is_the_larger_one_of_two_stacks():
    assert threads.width_of(Namespace(encoder_embed_dim=64, decoder_embed_dim=256)) == 256
    assert threads.width_of(Namespace(decoder_embed_dim=128)) == 128
    assert threads.width_of(Namespace(encoder_embed_dim=None)) is None


def test_translation_takes_threads_by_engine(cores, monkeypatch):
    """torch's engines go by width, CTranslate2 takes all cores; --threads and the environment hold for both."""
    assert [Settings().cores(width) for width in (None, 64, 512)] == [3, 1, 3]
    assert [Settings(threads=2).cores(width) for width in (None, 64)] == [2, 2]
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    torch.set_num_threads(2)
    assert [Settings().cores(width) for width in (None, 512)] == [2, 2]


@pytest.mark.parametrize(("jobs", "flags", "expected"), [
    (None, (), (3, 1)), (2, (), (2, 1)), (None, ("--arch", "deepnet_transformer"), (1, 3)),
    (None, ("--encoder-embed-dim=1024",), (1, 3)), (3, ("--encoder-embed-dim", "1024"), (3, 1)),
])  # fmt: skip
def test_compare_decides_jobs_and_threads(cores, jobs, flags, expected, tmp_path):
    grid = compare.Grid(tmp_path, ["deepnorm"], [2, 4], [1e-3], [1, 2], 100, tmp_path, jobs, ("--cpu", *flags))
    assert grid.share() == expected


def test_programs_of_compare_get_the_threads(cores, tmp_path, monkeypatch):
    """Each program gets the number by width, unless the environment has one."""
    grid = compare.Grid(tmp_path, ["deepnorm"], [2], [1e-3], [1], 100, tmp_path, flags=["--cpu"])
    assert compare.thread_variables(grid) == {"OMP_NUM_THREADS": "1"}
    monkeypatch.setenv("MKL_NUM_THREADS", "2")
    assert compare.thread_variables(grid) == {}


def test_check_takes_one_thread_for_a_narrow_model(cores, data):
    arch = ("--arch", "deepnet_transformer_tiny", "--encoder-layers", "1", "--decoder-layers", "1")
    assert PRESETS["deepnet_transformer_tiny"]["encoder_embed_dim"] == 64
    train_briefly([str(data), *TRAIN_FLAGS, *arch], 2, None, 60, lambda update, loss: None)
    assert torch.get_num_threads() == 1


def test_training_says_its_threads_and_a_resume_keeps_them(cores, data, tmp_path, monkeypatch, caplog):
    """A narrow training has one thread; one that began with two goes on with two, and says what it does not follow."""

    def trained(folder, updates) -> tuple[int, str]:
        """Train up to an update; return the threads in the checkpoint, and what the program said of them."""
        caplog.clear()
        with caplog.at_level("INFO", "deepnet_fairseq.training"):
            train(data, tmp_path / folder, *TINY, "--max-update", str(updates))
        state = torch.load(tmp_path / folder / "checkpoint_last.pt", weights_only=True)["extra_state"]
        assert state["deepnet_training"]["threads"] == torch.get_num_threads()
        return torch.get_num_threads(), " ".join(one.message for one in caplog.records if "thread" in one.message)

    number, said = trained("narrow", 1)
    assert number == 1 and "1 thread on 3 cores" in said and "width 16" in said

    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    torch.set_num_threads(2)
    number, said = trained("run", 2)
    assert number == 2 and "OMP_NUM_THREADS=2" in said

    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    number, said = trained("run", 3)
    assert number == 2 and "2 threads" in said and "--reset-meters" in said

    monkeypatch.delenv("OMP_NUM_THREADS")
    torch.set_num_threads(CORES)
    assert trained("run", 4)[0] == 2

    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0})
    torch.set_num_threads(1)
    number, said = trained("run", 5)
    assert number == 1 and "had 2 threads" in said


def load(script: Path):
    spec = importlib.util.spec_from_file_location("render_threads", script)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_page_and_table_are_those_of_the_records():
    subprocess.run([sys.executable, RENDER, "--check"], check=True)


def test_ratios_are_of_the_medians():
    """A width at which two threads gain as much as they lose gets one."""
    taken = {(64, 1, 0): 0.5, (64, 2, 0): 0.25, (64, 1, 1): 0.5, (64, 2, 1): 1.0}
    taken |= {(512, 1, 0): 4.0, (512, 2, 0): 2.0, (512, 1, 1): 4.0, (512, 2, 1): 6.0}
    names = ("width", "threads", "busy")
    records = [dict(zip(names, key)) | {"median": value, "layers": 6} for key, value in taken.items()]
    render = load(RENDER)
    assert render.ratios(records) == {64: Ratio(0.5, 2.0), 512: Ratio(0.5, 1.5)}
    assert [row.split(" | ")[-1] for row in render.by_width(records).splitlines()[2:]] == ["1 |", "all cores |"]
    assert "64 = { idle = 0.50, busy = 2.00 }" in render.package_table(records)


@pytest.mark.skipif(threads.available_cores() < 2, reason="measures two threads")
def test_benchmark_writes_a_record_for_each_condition(tmp_path, capsys):
    before = torch.get_num_threads()
    benchmarks(["threads", "--smoke", "--widths", "64", "--busy", "0,1", "--out", str(tmp_path / "records.jsonl")])
    records = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    assert [(one["threads"], one["busy"]) for one in records] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert all(one["median"] > 0 and one["environment"]["hardware"] for one in records)
    assert torch.get_num_threads() == before and "1 thread, 1 busy" in capsys.readouterr().out
