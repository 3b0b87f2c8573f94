"""Run the programs of many cells, several cells at a time, and take them along when this process ends.

A cell is a coroutine that runs its programs one after the other by `Runner.program`, and writes what came of them. All
cells are in this thread, so that they may share what they like; only one of them runs between two awaits.
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
SECONDS = 5.0  # between two lines of progress
PATIENCE = 60.0  # seconds that a program may take to save after SIGTERM
DIED_WITH_PARENT = 1  # PR_SET_PDEATHSIG of <linux/prctl.h>


class Ended(NamedTuple):
    """Exit status of a program, negative for a signal; what it took: processor seconds, and bytes of memory.

    Linux counts the memory from the fork on, so that it is never less than this process had then.
    """

    status: int
    processor_seconds: float
    peak_memory: int


class Runner:
    """Runner of cells, `jobs` at a time, each on a place of its own.

    places: for each cell that may run at a time, variables that its programs get, such as CUDA_VISIBLE_DEVICES; pause:
    a file; while it exists, no program is started, and those that run are suspended. show: called every so many
    `seconds` while cells run, to print their progress.
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
        self._free = [dict(place) for place in places] or [{} for _ in range(jobs)]
        self._running: set[subprocess.Popen] = set()
        self._suspended: set[subprocess.Popen] = set()

    def run(self, cells: Iterable[Callable[[Mapping[str, str]], Awaitable[None]]]) -> None:
        """Run all cells in their order, each called with the variables of its place.

        The first error of a cell ends the others with SIGTERM, upon which fairseq-train saves, and is raised. So does
        SIGTERM to this process, or Ctrl-C, which end it with SystemExit.
        """
        before = {kind: signal.signal(kind, _exit) for kind in (signal.SIGTERM, signal.SIGINT)}
        try:
            asyncio.run(self._run(cells))
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            self._stop()
            for kind, handler in before.items():
                signal.signal(kind, handler)

    async def _run(self, cells: Iterable[Callable[[Mapping[str, str]], Awaitable[None]]]) -> None:
        showing = asyncio.create_task(self._show())
        room = asyncio.Semaphore(self.jobs)
        try:
            async with asyncio.TaskGroup() as group:
                for cell in cells:
                    await room.acquire()
                    group.create_task(self._in_place(cell, room))
        finally:
            showing.cancel()

    async def _in_place(self, cell: Callable[[Mapping[str, str]], Awaitable[None]], room: asyncio.Semaphore) -> None:
        place = self._free.pop(0)
        try:
            await cell(place)
        finally:
            self._free.append(place)
            room.release()

    async def program(
        self,
        command: Sequence[str],
        log: Path,
        output: Path | None = None,
        variables: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> Ended:
        """Run a program to its end, in a session of its own, so that Ctrl-C does not reach it.

        log: gets what the program prints, after what it holds already; output: file for standard output alone, which
        is replaced; variables: added to this process's; folder: working folder, by default this process's.
        """
        while self.pause is not None and self.pause.exists():
            await asyncio.sleep(POLL)
        with open(log, "ab") as errors, open(output or log, "wb" if output else "ab") as out:
            process = subprocess.Popen(
                list(map(str, command)),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                cwd=folder,
                env=os.environ | dict(variables or {}),
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        self._running.add(process)
        try:
            ended = await self._end_of(process)
        except BaseException:
            _terminate(process)  # with all others, for which `_stop` then waits
            raise
        self._running.discard(process)
        self._suspended.discard(process)
        return ended

    def processor_seconds(self) -> float:
        """Return the processor seconds that the running programs have used, from Linux's /proc."""
        seconds = 0.0
        for process in self._running:
            try:
                fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has just ended
                continue
            seconds += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return seconds

    async def _end_of(self, process: subprocess.Popen) -> Ended:
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                process.returncode = os.waitstatus_to_exitcode(status)
                return Ended(process.returncode, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)
            self._suspend_or_go_on(process)
            await asyncio.sleep(POLL)

    def _suspend_or_go_on(self, process: subprocess.Popen) -> None:
        wanted = self.pause is not None and self.pause.exists()
        if wanted and process not in self._suspended:
            os.killpg(process.pid, signal.SIGSTOP)
            self._suspended.add(process)
        elif not wanted and process in self._suspended:
            os.killpg(process.pid, signal.SIGCONT)
            self._suspended.discard(process)

    async def _show(self) -> None:
        while self.show is not None:
            await asyncio.sleep(self.seconds)
            self.show()

    def _stop(self) -> None:
        """End all programs that run, by SIGTERM, and after PATIENCE by SIGKILL."""
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
    """Send SIGTERM to a program and its children; one that is suspended goes on, to answer it."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        os.killpg(process.pid, signal.SIGCONT)


def _exit(number: int, frame: object) -> None:
    sys.exit(128 + number)


def die_with_parent() -> None:
    """Ask Linux to kill this process with the one that started it; runs in the child, before its program."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(DIED_WITH_PARENT, signal.SIGKILL)
