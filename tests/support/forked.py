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

BIN = Path(sys.executable).parent  # the folder of this environment's programs
IGNORED_WARNINGS = (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning)  # by default


def fork(words: list[str], folder: str | Path, seconds: int = 600) -> subprocess.CompletedProcess:
    """Run a program to its end in a fork of this process, with empty standard input; return its status and output.

    words: the program's name, which is in BIN, or "-m" and a module's name; then its arguments
    folder: its working folder; seconds: after which it gets SIGALRM
    """
    with tempfile.TemporaryDirectory() as temporary:
        output = Path(temporary, "output")
        errors = Path(temporary, "errors")
        child = os.fork()
        if child == 0:
            status = 1
            gc.freeze()  # without it the fork crashed when it collected the tests' models and process groups
            try:
                _forget_the_tests(folder, output, errors)
                signal.alarm(seconds)
                status = _run(words)
            finally:
                os._exit(status & 0xFF)  # not sys.exit: pytest must not go on in the fork

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
    """Connect standard input, output and error, file descriptors 0 to 2, to /dev/null and two files."""
    for descriptor, path in enumerate([Path(os.devnull), output, errors]):
        os.dup2(os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT), descriptor)
    sys.stdin = sys.__stdin__ = os.fdopen(0)
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w")
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w")


def _reset_warnings() -> None:
    """Print warnings as a program that has imported the plug-in does: Python's filters, and the plug-in's."""
    importlib.reload(warnings)  # undoes that pytest records them
    warnings.resetwarnings()
    for category in IGNORED_WARNINGS:
        warnings.simplefilter("ignore", category)
    plugin.silence()


def _reset_logging() -> None:
    """Log to standard output, as fairseq's programs arrange it when they are imported."""
    logging.root.handlers.clear()
    level = os.environ.get("LOGLEVEL", "INFO").upper()
    logging.basicConfig(format=plugin.FORMAT, datefmt="%Y-%m-%d %H:%M:%S", level=level, stream=sys.stdout)
    logging.root.setLevel(level)
    logging.getLogger("fairseq").setLevel(logging.NOTSET)


def _run(words: list[str]) -> int:
    """Run a program in this process as Python does; return its exit status. Uncaught errors go to sys.excepthook."""
    status = 1
    try:
        if words[0] == "-m":
            sys.argv = words[1:]
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = [str(BIN / words[0]), *words[1:]]
            command_line.explain_uncaught()  # sets sys.excepthook, by the program's name in sys.argv
            runpy.run_path(sys.argv[0], run_name="__main__")
        status = 0
    except SystemExit as error:  # its code is a status, None for success, or a text for standard error
        if isinstance(error.code, int):
            status = error.code
        elif error.code is None:
            status = 0
        else:
            print(error.code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    # what Python does at its end, which os._exit leaves out
    threading._shutdown()
    atexit._run_exitfuncs()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    return status
