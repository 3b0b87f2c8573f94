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
from deepnet_fairseq.study.runner import Runner

from ..support.experiments import until
from ..support.helpers import ROOT

# a program that notes when it begins and ends, and lasts until a file appears
WAITS = """import pathlib, sys, time
folder, name = pathlib.Path(sys.argv[1]), sys.argv[2]
(folder / f"{name}.begun").touch()
while not (folder / f"{name}.go").exists():
    time.sleep(0.01)
(folder / f"{name}.ended").touch()"""
# one that saves when it is told to end, as fairseq-train does
SAVES = """import pathlib, signal, sys, time
def save(number, frame):
    pathlib.Path(sys.argv[1]).write_text("saved")
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
pathlib.Path(sys.argv[2]).touch()
time.sleep(60)"""


@pytest.fixture(autouse=True)
def often(monkeypatch):
    monkeypatch.setattr(module, "POLL", 0.01)
    monkeypatch.setattr(module, "SECONDS", 0.02)


def python(code: str, *words) -> list[str]:
    return [sys.executable, "-c", code, *map(str, words)]


def test_as_many_at_a_time_as_asked(tmp_path):
    """A cell begins when there is room, in the order given, and each place has one cell at a time."""
    runner = Runner(jobs=2, places=[{"PLACE": "0"}, {"PLACE": "1"}])
    seen = []

    def cell(name):
        async def run(place):
            others = {path.stem for path in tmp_path.glob("*.begun")} - {path.stem for path in tmp_path.glob("*.ended")}
            seen.append((name, place["PLACE"], others))
            (tmp_path / f"{name}.go").touch()
            ended = await runner.program(python(WAITS, tmp_path, name), log=tmp_path / "log")
            assert ended.status == 0

        return run

    runner.run([cell(name) for name in "abcd"])

    assert [name for name, _, _ in seen] == ["a", "b", "c", "d"]
    assert {place for _, place, _ in seen} == {"0", "1"}
    assert all(len(others) < 2 for _, _, others in seen)
    assert sorted(path.stem for path in tmp_path.glob("*.ended")) == ["a", "b", "c", "d"]


def test_output_log_variables_and_folder(tmp_path):
    """The log is continued and gets both streams; an output of its own is replaced; the folder is as asked."""
    code = "import os, sys; print(os.environ['WORD'], os.getcwd()); print('oops', file=sys.stderr); sys.exit(3)"
    (tmp_path / "log").write_text("before\n")
    (tmp_path / "out").write_text("old")
    runner = Runner(jobs=1)
    ended = []

    async def cell(place):
        where = {"variables": {"WORD": "hello"}, "folder": tmp_path}
        ended.append(await runner.program(python(code), log=tmp_path / "log", **where))
        ended.append(await runner.program(python(code), log=tmp_path / "log", output=tmp_path / "out", **where))

    runner.run([cell])

    assert [one.status for one in ended] == [3, 3]
    assert sorted((tmp_path / "log").read_text().splitlines()) == sorted(
        ["before", f"hello {tmp_path}", "oops", "oops"]
    )
    assert (tmp_path / "out").read_text() == f"hello {tmp_path}\n"


def test_what_a_program_takes_is_known(tmp_path):
    """Processor seconds are those of the program alone, and its peak of memory is at least what it held."""
    code = """import time
held = bytearray(800_000_000)
end = time.process_time() + 0.3
while time.process_time() < end:
    pass"""
    runner = Runner(jobs=1)
    took = []

    async def cell(place):
        took.append(await runner.program(python(code), log=tmp_path / "log"))
        took.append(await runner.program(python(""), log=tmp_path / "log"))

    runner.run([cell])

    busy, idle = took
    assert 0.3 <= busy.processor_seconds < 3
    assert busy.peak_memory > 800_000_000
    assert idle.processor_seconds < busy.processor_seconds


def test_a_pause_suspends_programs_and_starts_none(tmp_path):
    """While the file is there a program makes no progress, and the next one does not begin."""
    pause = tmp_path / "PAUSE"
    code = "import pathlib, sys, time\nwhile True:\n    pathlib.Path(sys.argv[1]).write_text(str(time.monotonic()))"
    shown = []
    runner = Runner(jobs=1, pause=pause, show=lambda: shown.append(watch()))
    ticks = tmp_path / "ticks"

    def watch():
        if not pause.exists() and ticks.exists():
            pause.touch()
        elif pause.exists() and len(shown) > 10:
            still.append(ticks.read_text())
            if len(still) > 5:
                raise_signal()

    def raise_signal():
        os.kill(os.getpid(), signal.SIGTERM)

    still: list[str] = []

    async def cell(place):
        await runner.program(python(code, ticks), log=tmp_path / "log")

    with pytest.raises(SystemExit):
        runner.run([cell])
    assert len(set(still)) == 1


def test_an_error_ends_the_others_first(tmp_path):
    """The first error of a cell is raised, after the other programs have saved."""
    runner = Runner(jobs=2)
    begun, saved = tmp_path / "begun", tmp_path / "saved"

    async def lasting(place):
        await runner.program(python(SAVES, saved, begun), log=tmp_path / "log")

    async def failing(place):
        while not begun.exists():
            await runner.program(python(""), log=tmp_path / "log")
        raise UserError("--lr 0: a mistake")

    with pytest.raises(UserError, match="--lr 0"):
        runner.run([lasting, failing])
    assert saved.read_text() == "saved"


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_programs_first(kind, tmp_path):
    """A signal ends this process with its status, after the programs have saved; the handlers are those before."""
    runner = Runner(jobs=1)
    begun, saved = tmp_path / "begun", tmp_path / "saved"
    before = signal.getsignal(kind)
    runner.show = lambda: begun.exists() and os.kill(os.getpid(), kind)

    async def cell(place):
        await runner.program(python(SAVES, saved, begun), log=tmp_path / "log")

    with pytest.raises(SystemExit) as ended:
        runner.run([cell])
    assert ended.value.code == 128 + kind
    assert saved.read_text() == "saved"
    assert signal.getsignal(kind) is before


RUNS = """import sys
from pathlib import Path
from deepnet_fairseq.study.runner import Runner
runner = Runner(jobs=1)
async def cell(place):
    await runner.program([sys.executable, "-c", sys.argv[1], *sys.argv[2:]], log=Path(sys.argv[2], "log"))
runner.run([cell])"""


def test_programs_die_with_a_runner_that_is_killed(tmp_path):
    killed = subprocess.Popen(python(RUNS, WAITS, tmp_path, "one"), cwd=ROOT)
    until((tmp_path / "one.begun").exists)
    killed.kill()
    killed.wait()
    time.sleep(0.5)
    (tmp_path / "one.go").touch()
    time.sleep(0.5)
    assert not (tmp_path / "one.ended").exists()
    assert Path(tmp_path, "log").exists()
