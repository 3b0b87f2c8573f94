"""Runs a command that waits while a file PAUSE is there, and adds up what it takes: held.py WHAT COMMAND...

PAUSE_FILE and SPENT_FILE name the files. The command is stopped and goes on as by Ctrl-Z and fg, within a second.
SPENT_FILE becomes a JSON object: WHAT -> processor_seconds and attempts, summed, and the largest peak_memory_bytes.
Until the command ends, processor_seconds are those that it was not held: what is left if this is killed with it.
The exit status is the command's; SIGTERM is passed on, also to one that is held.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

POLL = 0.5  # seconds
NOTED = 30.0  # seconds


def main() -> int:
    """Starts, watches, sums up."""
    what, *command = sys.argv[1:]
    pause, spent = (Path(os.environ[name]) for name in ("PAUSE_FILE", "SPENT_FILE"))
    while pause.exists():  # not begun either
        time.sleep(POLL)
    child = os.posix_spawnp(command[0], command, os.environ, setpgroup=0)  # so that it is told of a signal once
    held = False
    before = json.loads(spent.read_text()) if spent.exists() else {}
    ran, noted = 0.0, 0.0

    def stop(number, frame):
        os.kill(child, number)
        os.kill(child, signal.SIGCONT)

    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, stop)
    while True:
        ended, status, usage = os.wait4(child, os.WNOHANG)
        if ended:
            break
        if pause.exists() != held:
            held = not held
            os.kill(child, signal.SIGSTOP if held else signal.SIGCONT)
        if ran >= noted:
            note(spent, before, what, ran, 0)
            noted = ran + NOTED
        then = time.monotonic()
        time.sleep(POLL)
        ran += 0.0 if held else time.monotonic() - then
    note(spent, before, what, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def note(path: Path, told: dict, what: str, seconds: float, peak: int) -> None:
    """One attempt more than told; the file is whole at any time."""
    first = told.get(what, {"processor_seconds": 0.0, "attempts": 0, "peak_memory_bytes": 0})
    now = {
        "processor_seconds": round(first["processor_seconds"] + seconds, 1),
        "attempts": first["attempts"] + 1,
        "peak_memory_bytes": max(first["peak_memory_bytes"], peak),
    }
    part = path.with_suffix(".part")
    part.write_text(json.dumps(told | {what: now}) + "\n")
    os.replace(part, path)


if __name__ == "__main__":
    sys.exit(main())
