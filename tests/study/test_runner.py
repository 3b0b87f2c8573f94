"""Tests of the runner of programs: so many cells at a time, pauses, errors, signals, and what programs take.

A cell is a coroutine that runs programs, as the training, translating and scoring of one entry of a table. A cell is
given its place, a dictionary of environment variables, such as the GPU that it may use. `show` is a function that the
runner calls every so many seconds, usually to print progress; here it watches the programs, or acts on them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import NamedTuple

import pytest

from deepnet_fairseq.errors import UserError
from deepnet_fairseq.study import runner as module
from deepnet_fairseq.study.runner import Ended, Runner

from ..faults.life import lives
from ..support.errors import refused
from ..support.experiments import until
from ..support.helpers import ROOT

OFTEN = 0.02  # seconds between two calls of `show`

# Programs.

# Arguments: a folder and a name. The program writes its process number into NAME.pid, makes NAME.begun, waits for
# NAME.go, and makes NAME.ended.
WAITS_FOR_A_FILE = """import os, pathlib, sys, time
folder, name = pathlib.Path(sys.argv[1]), sys.argv[2]
(folder / f"{name}.pid").write_text(str(os.getpid()))
(folder / f"{name}.begun").touch()
while not (folder / f"{name}.go").exists():
    time.sleep(0.01)
(folder / f"{name}.ended").touch()"""
# Arguments: a file into which the program writes "saved" upon SIGTERM, as fairseq-train saves, and a file that it makes
# when it has begun.
SAVES_WHEN_TERMINATED = """import pathlib, signal, sys, time
def save(number, frame):
    pathlib.Path(sys.argv[1]).write_text("saved")
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
pathlib.Path(sys.argv[2]).touch()
time.sleep(60)"""
PRINTS_AND_FAILS = """import os, sys
print(os.environ['WORD'], os.getcwd())
print('oops', file=sys.stderr)
sys.exit(3)"""
MEMORY_OF_BUSY = 800_000_000  # bytes
SECONDS_OF_BUSY = 0.3  # of a processor
IS_BUSY = f"""import time
held = bytearray({MEMORY_OF_BUSY})
end = time.process_time() + {SECONDS_OF_BUSY}
while time.process_time() < end:
    pass"""
# Argument: a file, into which the program writes the time over and over.
WRITES_THE_TIME = """import pathlib, sys, time
while True:
    pathlib.Path(sys.argv[1]).write_text(str(time.monotonic()))"""
NOTHING = ""


def python(code: str, *words) -> list[str]:
    """Return the command that runs the Python code with these arguments."""
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


class CellsSeen(NamedTuple):
    """What cells have seen: their names in the order they began, their places, and for each how many others ran."""

    names: list[str]
    places: set[str]
    running_at_begin: list[int]


@pytest.fixture
def cells_seen(tmp_path):
    """Run four cells, with one program each, at two places; provide what they saw when they began."""
    runner = Runner(jobs=2, places=[{"PLACE": "0"}, {"PLACE": "1"}])
    seen = CellsSeen(names=[], places=set(), running_at_begin=[])

    def cell_of(name):
        async def cell(place):
            running = names_of(tmp_path, ".begun") - names_of(tmp_path, ".ended")
            seen.names.append(name)
            seen.places.add(place["PLACE"])
            seen.running_at_begin.append(len(running))
            (tmp_path / f"{name}.go").touch()
            ended = await runner.program(python(WAITS_FOR_A_FILE, tmp_path, name), log=tmp_path / "log")
            assert ended.status == 0

        return cell

    runner.run([cell_of(name) for name in "abcd"])
    return seen


def test_cells_begin_in_the_order_given(cells_seen):
    assert cells_seen.names == ["a", "b", "c", "d"]


def test_with_two_jobs_a_cell_begins_beside_at_most_one_other(cells_seen):
    assert max(cells_seen.running_at_begin) < 2


def test_all_places_are_used(cells_seen):
    assert cells_seen.places == {"0", "1"}


def test_all_cells_run_to_their_end(cells_seen, tmp_path):
    assert names_of(tmp_path, ".ended") == {"a", "b", "c", "d"}


# A program's output, surroundings and costs.


def test_a_program_has_the_variables_and_the_folder_asked_for(tmp_path):
    """The log is continued, and gets both streams of the program, in any order."""
    log = tmp_path / "log"
    log.write_text("before\n")

    ended = run_program(python(PRINTS_AND_FAILS), log=log, variables={"WORD": "hello"}, folder=tmp_path)

    first, *printed = log.read_text().splitlines()
    assert first == "before"
    assert sorted(printed) == [f"hello {tmp_path}", "oops"]
    assert ended.status == 3


def test_stdout_in_a_file_of_its_own_replaces_it_and_is_not_in_the_log(tmp_path):
    log = tmp_path / "log"
    log.write_text("before\n")
    output = tmp_path / "out"
    output.write_text("old")

    run_program(python(PRINTS_AND_FAILS), log=log, output=output, variables={"WORD": "hello"}, folder=tmp_path)

    assert output.read_text() == f"hello {tmp_path}\n"
    assert log.read_text() == "before\noops\n"


def test_the_processor_time_and_memory_of_a_program_are_measured(tmp_path):
    """Processor seconds are those of one program alone, and its peak of memory is at least what it held."""
    busy = run_program(python(IS_BUSY), log=tmp_path / "log")
    idle = run_program(python(NOTHING), log=tmp_path / "log")

    assert busy.processor_seconds >= SECONDS_OF_BUSY
    assert busy.processor_seconds < 3  # seconds, of which the start of Python is a part
    assert busy.peak_memory > MEMORY_OF_BUSY
    assert idle.processor_seconds < busy.processor_seconds


# Pauses.


LOOKS = 20  # at a pause, before it ends


def test_a_pause_suspends_the_programs_that_run(tmp_path):
    """The program writes into the file `ticks` without a stop; during the pause its content stays."""
    pause = tmp_path / "PAUSE"
    ticks = tmp_path / "ticks"
    seen_during_pause = []  # contents of `ticks`

    def watch():
        if pause.exists():
            seen_during_pause.append(ticks.read_text())
        elif ticks.exists():  # the program runs
            pause.touch()
        if len(seen_during_pause) == LOOKS:
            os.kill(os.getpid(), signal.SIGTERM)  # ends the runner

    runner = Runner(jobs=1, pause=pause, show=watch, seconds=OFTEN)

    async def cell(place):
        await runner.program(python(WRITES_THE_TIME, ticks), log=tmp_path / "log")

    with pytest.raises(SystemExit):
        runner.run([cell])

    seen_when_suspended = seen_during_pause[LOOKS // 2 :]  # the program may run on for a moment
    assert len(set(seen_when_suspended)) == 1


def test_no_program_starts_during_a_pause(tmp_path):
    """The program starts when the pause has ended."""
    pause = tmp_path / "PAUSE"
    pause.touch()
    begun = tmp_path / "begun"
    begun_during_pause = []  # at each look, whether the program had begun

    def watch():
        if pause.exists():
            begun_during_pause.append(begun.exists())
        if len(begun_during_pause) == LOOKS:
            pause.unlink(missing_ok=True)

    runner = Runner(jobs=1, pause=pause, show=watch, seconds=OFTEN)

    async def cell(place):
        await runner.program(["touch", str(begun)], log=tmp_path / "log")

    runner.run([cell])

    assert begun_during_pause == [False] * LOOKS
    assert begun.exists()


# Errors and signals.


def test_the_error_of_a_cell_is_raised_after_the_programs_of_others_have_saved(tmp_path):
    runner = Runner(jobs=2)
    begun = tmp_path / "begun"
    saved = tmp_path / "saved"

    async def lasting_cell(place):
        await runner.program(python(SAVES_WHEN_TERMINATED, saved, begun), log=tmp_path / "log")

    async def failing_cell(place):
        while not begun.exists():  # of the other cell
            await runner.program(python(NOTHING), log=tmp_path / "log")
        raise UserError("--lr 0: a mistake")

    with refused("--lr 0"):
        runner.run([lasting_cell, failing_cell])

    assert saved.read_text() == "saved"


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_runner_after_its_programs_have_saved(kind, tmp_path):
    """The exit status is that of the signal, whose handler is again the one before."""
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


# Arguments: code of a program, and its arguments, of which the first is the folder for the log.
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

    program = int((tmp_path / "one.pid").read_text())
    assert lives(program)

    runner.kill()
    runner.wait()

    until(lambda: not lives(program), seconds=60)
    assert not (tmp_path / "one.ended").exists()
