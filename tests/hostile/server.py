"""A process that has imported torch, fairseq and the package, and runs each program in a fork of itself: 0.1 s, not 4.

Requests and answers are lines of JSON.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import json
import logging
import os
import resource
import signal
import sys
import traceback
from pathlib import Path

SECONDS, MEMORY = 60, 2 << 30  # of a program; a file that claims to hold more than there is must not be believed
MAINS = {
    "fairseq-train": ("fairseq_cli.train", "cli_main"),
    "fairseq-generate": ("fairseq_cli.generate", "cli_main"),
    "fairseq-validate": ("fairseq_cli.validate", "cli_main"),
    "fairseq-interactive": ("fairseq_cli.interactive", "cli_main"),
    "fairseq-hydra-train": ("fairseq_cli.hydra_train", "cli_main"),
    "deepnet": ("deepnet_fairseq.cli", "main"),
    "fairseq-checkpoint": ("tests.hostile.opening", "checkpoint"),
    "fairseq-data": ("tests.hostile.opening", "data"),
    "fairseq-profile": ("tests.hostile.opening", "profile"),
}


def warm() -> None:
    """The imports that take seconds, under the name of a program of fairseq's: there the package prints mistakes."""
    sys.argv = ["fairseq-train"]
    for name in (*(module for module, _ in MAINS.values()), "matplotlib.pyplot", "sacrebleu", "scipy.stats"):
        importlib.import_module(name)


def serve() -> None:
    answers = os.fdopen(os.dup(1), "w")
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        warm()
    gc.collect()
    gc.freeze()  # a fork that collects garbage would copy every page of it
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if not child:
            _become(request)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(json.dumps(status), file=answers, flush=True)


def _become(request: dict) -> None:
    """The program, from here to the end of the process."""
    words, status = request["words"], 1
    try:
        signal.alarm(SECONDS)
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY,) * 2)
        os.chdir(request["folder"])
        _point_streams(request["out"])
        sys.argv = [os.path.join(os.path.dirname(sys.executable), words[0]), *words[1:]]
        if words[0] == "deepnet":
            sys.excepthook = sys.__excepthook__
        status = _run(*MAINS[words[0]])
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _point_streams(out: str) -> None:
    """Nothing to read; output, errors and what fairseq logs go to the file `out`."""
    empty, file = os.open(os.devnull, os.O_RDONLY), os.open(out, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for descriptor, place in enumerate((empty, file, file)):
        os.dup2(place, descriptor)
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler):  # it has the stream of the import
            handler.setStream(sys.stdout)


def _run(module: str, function: str) -> int:
    """As Python runs a script: status of SystemExit, and the hook for what nobody caught."""
    try:
        getattr(importlib.import_module(module), function)()
        return 0
    except SystemExit as error:
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
            return 1
        return error.code or 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1


if __name__ == "__main__":
    serve()
