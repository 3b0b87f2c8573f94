"""Programs run in a fork of the test process, which has imported torch and fairseq: about 1 s a start, not 5 s."""

from __future__ import annotations

import atexit
import gc
import importlib
import logging
import os
import random
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
from pathlib import Path

import torch

from deepnet_fairseq import plugin
from deepnet_fairseq.plugin import command_line

BIN = Path(sys.executable).parent
# Python's defaults
IGNORED_WARNINGS = (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning)


def fork(words: list[str], folder: str | Path, seconds: int = 600) -> subprocess.CompletedProcess:
    """Run a program of this environment's bin folder, or `-m MODULE`, in `folder` with empty standard input.

    seconds: time limit
    """
    with tempfile.TemporaryDirectory() as temporary:
        output = Path(temporary, "output")
        errors = Path(temporary, "errors")
        child = os.fork()
        if child == 0:
            status = 1
            gc.freeze()  # collecting the tests' models and process groups in this process crashed
            try:
                _forget_the_tests(folder, output, errors)
                signal.alarm(seconds)
                status = _run(words)
            finally:
                os._exit(status & 0xFF)
        _, ended = os.waitpid(child, 0)
        return subprocess.CompletedProcess(
            args=words,
            returncode=os.waitstatus_to_exitcode(ended),
            stdout=output.read_text(encoding="utf-8", errors="replace"),
            stderr=errors.read_text(encoding="utf-8", errors="replace"),
        )


def _forget_the_tests(folder: str | Path, output: Path, errors: Path) -> None:
    """Reset the process state that pytest and earlier tests have changed to that of a fresh process.

    folder: its working folder; output, errors: files for its standard output and error
    """
    _reset_streams(output, errors)
    _reset_warnings()
    _reset_logging()
    os.chdir(folder)
    os.environ["OMP_NUM_THREADS"] = "1"
    atexit._clear()
    torch.set_grad_enabled(True)
    random.seed(0)


def _reset_streams(output: Path, errors: Path) -> None:
    for number, path in enumerate([Path(os.devnull), output, errors]):
        os.dup2(os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT), number)
    sys.stdin = sys.__stdin__ = os.fdopen(0)
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w")
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w")


def _reset_warnings() -> None:
    importlib.reload(warnings)  # forget pytest's record of them
    warnings.resetwarnings()
    for category in IGNORED_WARNINGS:
        warnings.simplefilter("ignore", category)
    plugin.silence()


def _reset_logging() -> None:
    logging.root.handlers.clear()  # as at the import of fairseq's programs
    level = os.environ.get("LOGLEVEL", "INFO").upper()
    logging.basicConfig(format=plugin.FORMAT, datefmt="%Y-%m-%d %H:%M:%S", level=level, stream=sys.stdout)
    logging.root.setLevel(level)
    logging.getLogger("fairseq").setLevel(logging.NOTSET)


def _run(words: list[str]) -> int:
    """Run a program and return its exit status; uncaught errors go to sys.excepthook, as in Python itself."""
    status = 1
    try:
        if words[0] == "-m":
            sys.argv = words[1:]
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = [str(BIN / words[0]), *words[1:]]
            command_line.explain_uncaught()  # its hook reads the program's name
            runpy.run_path(sys.argv[0], run_name="__main__")
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
        if status and not isinstance(error.code, int):
            print(error.code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    threading._shutdown()
    atexit._run_exitfuncs()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    return status
