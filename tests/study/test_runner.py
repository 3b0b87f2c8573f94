"""Tests of the runner of programs: so many cells at a time, pauses, errors, signals, and what programs take."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from deepnet_fairseq.errors import UserError
from deepnet_fairseq.study import runner as module
from deepnet_fairseq.study.runner import Ended, Runner

from ..support.errors import refused
from ..support.experiments import until
from ..support.helpers import ROOT

OFTEN = 0.02  # seconds between two calls of `show`

# Programs.

WAITS_FOR_A_FILE = """import pathlib, sys, time
folder, name = pathlib.Path(sys.argv[1]), sys.argv[2]
(folder / f"{name}.begun").touch()
while not (folder / f"{name}.go").exists():
    time.sleep(0.01)
(folder / f"{name}.ended").touch()"""
SAVES_WHEN_TERMINATED = """import pathlib, signal, sys, time
def save(number, frame):
    pathlib.Path(sys.argv[1]).write_text("saved")
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
pathlib.Path(sys.argv[2]).touch()
time.sleep(60)"""  # as fairseq-train does
PRINTS_AND_FAILS = """import os, sys
print(os.environ['WORD'], os.getcwd())
print('oops', file=sys.stderr)
sys.exit(3)"""
IS_BUSY = """import time
held = bytearray(800_000_000)
end = time.process_time() + 0.3
while time.process_time() < end:
    pass"""
WRITES_THE_TIME = """import pathlib, sys, time
while True:
    pathlib.Path(sys.argv[1]).write_text(str(time.monotonic()))"""
NOTHING = ""


def python(code: str, *words) -> list[str]:
    return [sys.executable, "-c", code, *map(str, words)]


@pytest.fixture(autouse=True)
def looks_at_programs_often(monkeypatch):
    monkeypatch.setattr(module, "POLL", 0.01)


def run_program(command: list[str], **options) -> Ended:
    """Run a program in the only cell of a runner, and return how it ended. options: of Runner.program."""
    runner = Runner(jobs=1)
    ended = []

    async def cell(place):
        ended.append(await runner.program(command, **options))

    runner.run([cell])
    return ended[0]


# Cells and places.


def names_of(folder, ending):
    return {path.stem for path in folder.glob(f"*{ending}")}


def test_as_many_cells_run_at_a_time_as_asked(tmp_path):
    """A cell begins when there is room, in the order given, and each place has one cell at a time."""
    runner = Runner(jobs=2, places=[{"PLACE": "0"}, {"PLACE": "1"}])
    names = []
    places = set()
    others_at_the_beginning = []

    def cell_of(name):
        async def cell(place):
            names.append(name)
            places.add(place["PLACE"])
            others_at_the_beginning.append(names_of(tmp_path, ".begun") - names_of(tmp_path, ".ended"))
            (tmp_path / f"{name}.go").touch()
            ended = await runner.program(python(WAITS_FOR_A_FILE, tmp_path, name), log=tmp_path / "log")
            assert ended.status == 0

        return cell

    runner.run([cell_of(name) for name in "abcd"])

    assert names == ["a", "b", "c", "d"]
    assert places == {"0", "1"}
    assert max(len(others) for others in others_at_the_beginning) < 2
    assert names_of(tmp_path, ".ended") == {"a", "b", "c", "d"}


# A program's output, surroundings and costs.


def test_a_program_has_the_variables_and_the_folder_asked_for(tmp_path):
    """Its log is continued, and gets both of its streams."""
    log = tmp_path / "log"
    log.write_text("before\n")

    ended = run_program(python(PRINTS_AND_FAILS), log=log, variables={"WORD": "hello"}, folder=tmp_path)

    assert ended.status == 3
    first, *printed = log.read_text().splitlines()
    assert first == "before"
    assert sorted(printed) == [f"hello {tmp_path}", "oops"]


def test_an_output_of_its_own_is_replaced_and_not_in_the_log(tmp_path):
    log = tmp_path / "log"
    log.write_text("before\n")
    output = tmp_path / "out"
    output.write_text("old")

    ended = run_program(python(PRINTS_AND_FAILS), log=log, output=output, variables={"WORD": "hello"}, folder=tmp_path)

    assert ended.status == 3
    assert output.read_text() == f"hello {tmp_path}\n"
    assert log.read_text() == "before\noops\n"


def test_what_a_program_takes_is_known(tmp_path):
    """Processor seconds are those of the program alone, and its peak of memory is at least what it held."""
    busy = run_program(python(IS_BUSY), log=tmp_path / "log")
    idle = run_program(python(NOTHING), log=tmp_path / "log")

    assert 0.3 <= busy.processor_seconds < 3
    assert busy.peak_memory > 800_000_000
    assert idle.processor_seconds < busy.processor_seconds


# Pauses.


def test_a_pause_suspends_the_programs_that_run(tmp_path):
    pause = tmp_path / "PAUSE"
    ticks = tmp_path / "ticks"
    looks = []  # at the ticks during the pause

    def watch():
        if pause.exists():
            looks.append(ticks.read_text())
        elif ticks.exists():
            pause.touch()
        if len(looks) == 20:
            os.kill(os.getpid(), signal.SIGTERM)

    runner = Runner(jobs=1, pause=pause, show=watch, seconds=OFTEN)

    async def cell(place):
        await runner.program(python(WRITES_THE_TIME, ticks), log=tmp_path / "log")

    with pytest.raises(SystemExit):
        runner.run([cell])

    after_some_time = looks[10:]
    assert len(set(after_some_time)) == 1


def test_no_program_starts_during_a_pause(tmp_path):
    pause = tmp_path / "PAUSE"
    pause.touch()
    begun = tmp_path / "begun"
    looks = []  # whether the program had begun, during the pause

    def watch():
        if pause.exists():
            looks.append(begun.exists())
        if len(looks) == 20:
            pause.unlink(missing_ok=True)

    runner = Runner(jobs=1, pause=pause, show=watch, seconds=OFTEN)

    async def cell(place):
        await runner.program(["touch", str(begun)], log=tmp_path / "log")

    runner.run([cell])

    assert looks == [False] * 20
    assert begun.exists()


# Errors and signals.


def test_an_error_ends_the_other_programs_first(tmp_path):
    """The first error of a cell is raised, after the other programs have saved."""
    runner = Runner(jobs=2)
    begun = tmp_path / "begun"
    saved = tmp_path / "saved"

    async def lasting_cell(place):
        await runner.program(python(SAVES_WHEN_TERMINATED, saved, begun), log=tmp_path / "log")

    async def failing_cell(place):
        while not begun.exists():
            await runner.program(python(NOTHING), log=tmp_path / "log")
        raise UserError("--lr 0: a mistake")

    with refused("--lr 0"):
        runner.run([lasting_cell, failing_cell])

    assert saved.read_text() == "saved"


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_programs_first(kind, tmp_path):
    """A signal ends this process with its status, after the programs have saved; the handlers are those before."""
    begun = tmp_path / "begun"
    saved = tmp_path / "saved"
    handler_before = signal.getsignal(kind)

    def send_signal():
        if begun.exists():
            os.kill(os.getpid(), kind)

    runner = Runner(jobs=1, show=send_signal, seconds=OFTEN)

    async def cell(place):
        await runner.program(python(SAVES_WHEN_TERMINATED, saved, begun), log=tmp_path / "log")

    with pytest.raises(SystemExit) as ended:
        runner.run([cell])

    assert ended.value.code == 128 + kind
    assert saved.read_text() == "saved"
    assert signal.getsignal(kind) is handler_before


RUNS_A_PROGRAM = """import sys
from pathlib import Path
from deepnet_fairseq.study.runner import Runner
runner = Runner(jobs=1)
async def cell(place):
    await runner.program([sys.executable, "-c", sys.argv[1], *sys.argv[2:]], log=Path(sys.argv[2], "log"))
runner.run([cell])"""


def test_programs_die_with_a_runner_that_is_killed(tmp_path):
    runner = subprocess.Popen(python(RUNS_A_PROGRAM, WAITS_FOR_A_FILE, tmp_path, "one"), cwd=ROOT)
    until((tmp_path / "one.begun").exists)

    runner.kill()
    runner.wait()

    time.sleep(0.5)
    (tmp_path / "one.go").touch()
    time.sleep(0.5)
    assert not (tmp_path / "one.ended").exists()
    assert Path(tmp_path, "log").exists()
