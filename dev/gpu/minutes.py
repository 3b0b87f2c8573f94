"""Run the open parts that fit into the minutes, each in a process of its own, and record what they gave.

A part is an entry of the list (parts.py); it is open until a record says that it was done. Its process writes into its
folder: rows (dictionaries of what it measured) into rows.jsonl, the share of its work that it has done into share, and
a row that is not complete yet into so_far.json. A record is one try of a part, with its rows.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from deepnet_fairseq.tools.environment import graphics, processor, versions

from . import graphs, parts, records, text
from .parts import Part
from .records import CUT, DONE, FAILED, ROOT
from .work import PYTHON, ROWS, SHARE, SO_FAR, last_line

LATE = 1.6  # a part may take so many times what was predicted, plus GRACE, where there is time
GRACE = 30.0  # seconds
ENOUGH = 1.1  # factor by which two trainings must make more updates side by side, for parts to run so
MINIATURE = 60.0  # seconds that a part in miniature takes at most, on a busy machine
RESERVE = 5.0  # seconds for the last record
POLL = 0.2  # seconds between looks at the running parts
SHOWN = 60  # last lines of a log that are kept, each cut to LINE characters
LINE = 500


@dataclass
class Running:
    """A part that runs."""

    part: Part
    process: subprocess.Popen
    folder: Path  # for all that the part writes
    began: float  # moment of time.monotonic()
    until: float  # moment at which it is killed, likewise


@dataclass
class Minutes:
    """The minutes of one call of dev/gpu_minutes.sh."""

    until: float  # moment of time.monotonic() at which they are over
    longest: float  # seconds that one part may take at most
    folder: Path  # with the text in FOLDER/text; each part gets FOLDER/work/NAME
    file: Path  # of the records
    out: Path | None = None  # folder for copies of the new records and the ends of the logs; None for no copies
    miniature: bool = False  # whether the list runs on a CPU, with tiny models
    program: list[str] = field(default_factory=lambda: [PYTHON, "-m", "dev.gpu"])  # command that runs a part
    known: list[dict] = field(default_factory=list)  # all records, the oldest first

    def run(self, wanted: list[Part], open_only: bool = True) -> list[dict]:
        """Run the parts that fit into the time that is left, and record them; return the new records.

        The parts run in their order, but for one that runs side by side with an earlier part, as its companion, and so
        comes forward. If the two do not fit, the earlier part runs alone. A part that does not fit, or lacks something,
        is skipped with a line that says why. open_only: leave out parts that are done.
        """
        self.known = records.read(self.file)
        new: list[dict] = []
        left = [part for part in wanted if not (open_only and records.is_done(self.known, part.name))]
        while left:
            part = left.pop(0)
            together = [part, *self._companions(part, left)]  # which run side by side
            seconds = self._seconds(together)
            reason = self._why_not(part, seconds)
            if reason is not None and len(together) > 1:
                together = [part]
                seconds = self._seconds(together)
                reason = self._why_not(part, seconds)
            if reason is not None:
                print(f"== {part.name}: {reason}", flush=True)
                continue
            for companion in together[1:]:
                left.remove(companion)
            assert seconds is not None
            for record in self._run_together(together, seconds):
                records.append(self.file, record)
                self.known.append(record)
                new.append(record)
                if self.out is not None:
                    records.append(self.out / "records.jsonl", record)
        return new

    def _companions(self, part: Part, left: list[Part]) -> list[Part]:
        """Return the part of `left` to run side by side with this one, in a list that may be empty.

        Two parts with the same word in Part.beside may run so, if two_at_a_time has found that the GPU then makes at
        least ENOUGH times as many updates. Miniatures measure nothing, and any two run at a time to be over sooner.
        """
        if self.miniature:
            return left[:1]
        if not part.beside or graphs.gain_of_two(self.known) < ENOUGH:
            return []
        return [other for other in left if other.beside == part.beside][:1]

    def _seconds(self, together: list[Part]) -> float | None:
        """Return the seconds that parts need side by side; None if one of them makes no sense in the time it may take.

        together: one part or two.
        """
        if self.miniature:
            return MINIATURE * len(together)
        needed = 0.0
        for part in together:
            seconds = parts.predicted(part, self.known, self.longest)
            if seconds is None:
                return None
            needed += seconds
        # `needed` is for one after the other; side by side they make `gain` times as many updates in a second
        gain = graphs.gain_of_two(self.known) if len(together) > 1 else 1.0
        return needed / gain

    def _why_not(self, part: Part, seconds: float | None) -> str | None:
        """Return why a part cannot run now, None if it can. seconds: as _seconds returns them."""
        gpus = torch.cuda.device_count()
        if not self.miniature and gpus < part.gpus:
            return f"needs {part.gpus} GPUs, torch sees {gpus}"
        if not (self.folder / "text" / part.text).exists():
            return f"needs {self.folder}/text/{part.text}, which dev/gpu_minutes.sh --prepare --mix DIR makes"
        if seconds is None:
            return "its time suffices for too few updates"
        left = self._left()
        if seconds > left:
            return f"needs {seconds / 60:.1f} minutes, {max(left, 0) / 60:.1f} are left"
        return None

    def _left(self) -> float:
        """Return the seconds that are left for parts, below 0 if the time is over."""
        return self.until - RESERVE - time.monotonic()

    def _run_together(self, together: list[Part], seconds: float) -> Iterator[dict]:
        """Run parts side by side; yield the record of each as it ends or is killed.

        seconds: predicted for them together. A part that takes much longer is killed, so that it does not use up the
        time of others. If this program ends first, it kills them all.
        """
        limit = min(LATE * seconds + GRACE, self._left())
        running = [self._start(part, limit) for part in together]
        names = " and ".join(part.name for part in together)
        print(f"== {names}: begins; {seconds / 60:.1f} minutes are predicted", flush=True)
        try:
            while running:
                time.sleep(POLL)
                for one in list(running):
                    has_ended = one.process.poll() is not None
                    if has_ended or time.monotonic() > one.until:
                        running.remove(one)
                        end(one.process)  # where it has ended by itself, programs that it started may still run
                        others = [part.name for part in together if part != one.part]
                        yield self._record(one, cut=not has_ended, beside=others)
        finally:
            for one in running:
                end(one.process)

    def _start(self, part: Part, limit: float) -> Running:
        """Start the process of a part, in an empty folder. limit: seconds after which it is killed.

        The process is the first of a process group, so that it can be killed with all that it started.
        """
        folder = self.folder / "work" / part.name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        command = [*self.program, "--run-part", part.name, "--folder", self.folder, "--records", self.file]
        now = time.monotonic()
        command += ["--until", f"{now + limit:.1f}", "--longest", f"{self.longest:.0f}"]
        if self.miniature:
            command.append("--smoke")
        with open(folder / "part.log", "w", encoding="utf-8") as log:
            process = subprocess.Popen(
                [str(word) for word in command],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return Running(part, process, folder, began=now, until=now + limit)

    def _record(self, one: Running, cut: bool, beside: list[str]) -> dict:
        """Return the record of a part that is over; copy the ends of its logs into `out`, if there is one.

        cut: whether it was killed because its time was over. beside: names of the parts that ran side by side with it.
        The record has "part", "ended" (DONE, CUT or FAILED), "seconds", "device", "date", "versions", "commit",
        "modified" and "rows"; and where there is such a thing "why" it failed, "beside", and the "share" of its work
        that it did.
        """
        if cut:
            ended = CUT
        elif one.process.returncode != 0:
            ended = FAILED
        else:
            ended = DONE
        record: dict[str, Any] = {
            "part": one.part.name,
            "ended": ended,
            "seconds": round(time.monotonic() - one.began, 1),
            "device": processor() if self.miniature else graphics(torch.cuda.device_count()),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "versions": versions(),
        }
        record |= text.read_commit(self.folder)
        if ended == FAILED:
            record["why"] = last_line(one.folder / "part.log")
        if beside:
            record["beside"] = beside
        if (one.folder / SHARE).exists():
            record["share"] = float((one.folder / SHARE).read_text())
        record["rows"] = records.read(one.folder / ROWS)
        if cut and (one.folder / SO_FAR).exists():  # the row of the training that was cut off
            record["rows"].append(json.loads((one.folder / SO_FAR).read_text()))
        print(f"== {one.part.name}: {ended} after {record['seconds']:.0f} s {record.get('why', '')}", flush=True)
        if self.out is not None:
            keep_logs(one.folder, self.out / "log.txt")
        return record


def end(process: subprocess.Popen) -> None:
    """Kill what is left of a part: its process, and those that it started. Does nothing if all have ended."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def keep_logs(folder: Path, file: Path) -> None:
    """Add the last lines of each log in a part's folder to a file, below a line with the log's name."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(file, "a", encoding="utf-8") as output:
        for log in sorted(folder.glob("*.log")):
            lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
            output.write(f"==> {folder.name}/{log.name}\n")
            output.writelines(f"{line[:LINE]}\n" for line in lines[-SHOWN:])
