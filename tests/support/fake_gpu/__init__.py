"""A GPU without a GPU: fairseq's whole training step on fake tensors of cuda:0, in a process of its own.

The process runs a CPU build of torch behind a small library that makes it believe in a device (guard.cpp); nothing is
computed, so a step at 100L-100L takes seconds. What comes back says what a GPU would be asked to do: launches of
kernels, waits of the CPU, copies, and times by a model of the device. None of it is a measurement.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import multiprocessing
import os
import shutil
import subprocess
import tempfile
import traceback
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

SOURCE = Path(__file__).with_name("guard.cpp")
COMPILER = shutil.which("g++") or shutil.which("clang++")


def guard() -> Path:
    """The library, built at its first use on this machine: 2 s. Two processes may build it at once."""
    assert COMPILER is not None
    version = importlib.metadata.version("torch")
    name = hashlib.sha256(SOURCE.read_bytes() + version.encode() + COMPILER.encode()).hexdigest()[:16]
    built = Path(tempfile.gettempdir(), f"fake_gpu_{os.getuid()}", f"{name}.so")
    if not built.exists():
        built.parent.mkdir(exist_ok=True)
        spec = importlib.util.find_spec("torch")
        torch = Path(spec.origin).parent
        with tempfile.TemporaryDirectory(dir=built.parent) as room:
            words = ["-O1", "-shared", "-fPIC", "-std=c++20", "-w", SOURCE, "-o", f"{room}/guard.so"]
            paths = [f"-I{torch}/include", f"-L{torch}/lib", f"-Wl,-rpath,{torch}/lib", "-lc10", "-ltorch_cpu"]
            subprocess.run([COMPILER, *words, *paths], check=True)
            os.replace(f"{room}/guard.so", built)
    return built


class FakeGPU:
    """A process that has the device. One serves for many calls, one after the other; close() ends it."""

    def __init__(self):
        self.pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
        with mock.patch.dict(os.environ, LD_PRELOAD=str(guard())):  # it has to be there before torch
            self.pool.submit(os.getpid).result()

    def __call__(self, function, *args, **kwargs) -> Any:
        """What function(*args, **kwargs) gives there; the function is found there by its name.

        AssertionError with the traceback for what it raises; SystemExit for a program that refuses its flags.
        """
        return self.pool.submit(_called, function, args, kwargs).result()

    def close(self) -> None:
        self.pool.shutdown()


def _called(function, args: tuple, kwargs: dict) -> Any:
    try:
        return function(*args, **kwargs)
    except Exception as error:  # not every kind can be sent
        raise AssertionError("".join(traceback.format_exception(error))) from None
