"""Run the programs of many cells, several cells at a time, and end them when this process ends.

A cell is one training with what follows it, as a coroutine: it starts its programs one after the other by
`Runner.program`, and writes their results. Cells may share data without locks: all of them are in this thread, and
another one goes on only where one awaits.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

POLL = 0.2  # seconds between two looks at a program
SECONDS = 5.0  # seconds between two lines of progress
PATIENCE = 60.0  # seconds that a program may take to save after SIGTERM
PR_SET_PDEATHSIG = 1  # of <linux/prctl.h>: set the signal that a process gets when its parent ends


class Ended(NamedTuple):
    """How a program ended, and what it took.

    status: its exit status, or minus the number of the signal that killed it. peak_memory: in bytes. Linux counts from
    the fork on, when the child still has this process's memory, so that it is never less than this process had then.
    """

    status: int
    processor_seconds: float
    peak_memory: int


class Runner:
    """Runs cells, at most `jobs` at a time.

    places: for each of the jobs a dictionary of environment variables, as {"CUDA_VISIBLE_DEVICES": "0"}; a cell gets
    one that no other cell has at the moment, for its programs; () for jobs without variables. pause: a file; while it
    exists, no program is started, and those that run are suspended; None if nobody can pause. show: called every
    `seconds` seconds while cells run, to print their progress; None for no progress.
    """

    def __init__(
        self,
        jobs: int,
        places: Sequence[Mapping[str, str]] = (),
        pause: Path | None = None,
        show: Callable[[], None] | None = None,
        seconds: float = SECONDS,
    ):
        self.jobs = jobs
        self.pause = pause
        self.show = show
        self.seconds = seconds
        self._free_places = [dict(place) for place in places] or [{} for _ in range(jobs)]
        self._running: set[subprocess.Popen] = set()
        self._suspended: set[subprocess.Popen] = set()

    def run(self, cells: Iterable[Callable[[Mapping[str, str]], Awaitable[None]]]) -> None:
        """Run all cells, and return when all have ended; they begin in their order.

        cells: functions that take the environment variables for the cell's programs, one of `places`, and return its
        coroutine. The first error of a cell is raised, after the programs of the others were ended with SIGTERM, upon
        which fairseq-train saves. SIGTERM to this process, and Ctrl-C, end the programs in the same way, and this
        process with SystemExit.
        """
        handlers_before = {number: signal.signal(number, _exit) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            asyncio.run(self._run(cells))
        except BaseExceptionGroup as group:  # asyncio.TaskGroup wraps the errors of its tasks
            raise group.exceptions[0] from None
        finally:
            self._stop()
            for number, handler in handlers_before.items():
                signal.signal(number, handler)

    async def _run(self, cells: Iterable[Callable[[Mapping[str, str]], Awaitable[None]]]) -> None:
        """Start each cell as soon as fewer than `jobs` run, and wait for all; show progress meanwhile."""
        showing = asyncio.create_task(self._show())
        free_jobs = asyncio.Semaphore(self.jobs)
        try:
            async with asyncio.TaskGroup() as group:
                for cell in cells:
                    await free_jobs.acquire()  # _run_at_free_place releases it when the cell ends
                    group.create_task(self._run_at_free_place(cell, free_jobs))
        finally:
            showing.cancel()

    async def _run_at_free_place(
        self, cell: Callable[[Mapping[str, str]], Awaitable[None]], free_jobs: asyncio.Semaphore
    ) -> None:
        """Run a cell with the variables of a free place; then free the place, and let the next cell begin.

        free_jobs: counts the cells that may begin; _run has taken one for this cell, which is given back here.
        """
        place = self._free_places.pop(0)
        try:
            await cell(place)
        finally:
            self._free_places.append(place)
            free_jobs.release()

    async def program(
        self,
        command: Sequence[str],
        log: Path,
        output: Path | None = None,
        variables: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> Ended:
        """Run a program to its end, in a session of its own, so that Ctrl-C does not reach it.

        command: the program and its arguments. log: what it prints is appended to this file. output: its standard
        output overwrites this file and does not go to the log; None: all goes to the log. variables: added to this
        process's environment. folder: working folder, by default this process's.
        """
        while self.pause is not None and self.pause.exists():
            await asyncio.sleep(POLL)
        printed_to = output or log
        mode = "wb" if output else "ab"
        with open(log, "ab") as stderr, open(printed_to, mode) as stdout:
            process = subprocess.Popen(
                list(map(str, command)),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                cwd=folder,
                env=os.environ | dict(variables or {}),
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        self._running.add(process)
        try:
            ended = await self._end_of(process)
        except BaseException:
            _terminate(process)  # it stays in _running, and _stop waits for its end
            raise
        self._running.discard(process)
        self._suspended.discard(process)
        return ended

    def processor_seconds(self) -> float:
        """Return the CPU seconds that the running programs have used so far, without their children, from /proc."""
        seconds = 0.0
        for process in self._running:
            try:
                stat = Path(f"/proc/{process.pid}/stat").read_text()
            except OSError:  # it has just ended
                continue
            fields = stat.rpartition(")")[2].split()  # those after the program's name, from field 3 of proc(5) on
            user = int(fields[11])  # in clock ticks, as the next one
            system = int(fields[12])
            seconds += (user + system) / os.sysconf("SC_CLK_TCK")
        return seconds

    async def _end_of(self, process: subprocess.Popen) -> Ended:
        """Wait for the end of a program, and suspend it meanwhile as long as the file `pause` exists."""
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:  # 0 while it runs
                process.returncode = os.waitstatus_to_exitcode(status)
                return Ended(
                    status=process.returncode,
                    processor_seconds=usage.ru_utime + usage.ru_stime,
                    peak_memory=usage.ru_maxrss * 1024,  # Linux counts KiB
                )
            self._suspend_or_go_on(process)
            await asyncio.sleep(POLL)

    def _suspend_or_go_on(self, process: subprocess.Popen) -> None:
        """Suspend a program that runs if the file `pause` exists, and let a suspended one go on if it does not."""
        paused = self.pause is not None and self.pause.exists()
        if paused and process not in self._suspended:
            os.killpg(process.pid, signal.SIGSTOP)
            self._suspended.add(process)
        elif not paused and process in self._suspended:
            os.killpg(process.pid, signal.SIGCONT)
            self._suspended.discard(process)

    async def _show(self) -> None:
        """Call `show`, if there is one, every `seconds` seconds, until _run cancels this."""
        while self.show is not None:
            await asyncio.sleep(self.seconds)
            self.show()

    def _stop(self) -> None:
        """End all programs that run: SIGTERM to each, and SIGKILL to what still runs PATIENCE seconds later."""
        for process in self._running:
            _terminate(process)
        deadline = time.monotonic() + PATIENCE
        for process in self._running:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self._running.clear()


def _terminate(process: subprocess.Popen) -> None:
    """Send SIGTERM to a program and its children, then SIGCONT: a suspended process ends only when it goes on."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        os.killpg(process.pid, signal.SIGCONT)


def _exit(number: int, frame: object) -> None:
    """Handle a signal: end this process with the status that a shell gives for it.

    number: of the signal; frame: where it arrived, which Python passes to every handler.
    """
    sys.exit(128 + number)


def die_with_parent() -> None:
    """Ask Linux to kill this process when the one that started it ends; on other systems do nothing.

    This is called in the child, before it becomes its program.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
