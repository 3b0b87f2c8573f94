"""A GPU without a GPU: fairseq's whole training step on fake tensors of cuda:0, in a process of its own.

The process runs a CPU build of torch behind a small library that makes it believe in a device (guard.cpp). Nothing is
computed, so that a step at 100L-100L takes seconds. The result says what a GPU would be asked to do: launches of
kernels, host-device synchronisations, copies, and times by a model of the device. None of it is a measurement.
"""

from __future__ import annotations

import argparse
import hashlib
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

import torch

from deepnet_fairseq.errors import UserError
from deepnet_fairseq.user_dir import import_user_dir

SOURCE = Path(__file__).with_name("guard.cpp")
COMPILER = shutil.which("g++") or shutil.which("clang++")  # None if there is neither
# parts of an update that each column of the table adds up; () stands for all of them
COLUMNS: tuple[tuple[str, ...], ...] = (("forward",), ("backward",), ("clip", "optimizer"), ())


def obstacle() -> str | None:
    """Return what keeps the fake GPU from working here, with a way out; None if nothing does."""
    if torch.version.cuda:
        return "PyTorch's build for CUDA has hooks of its own: install the CPU build"
    if not COMPILER:
        return "no C++ compiler: install g++ or clang++"
    return None


def guard() -> Path:
    """Return the file of the library that is compiled from guard.cpp; UserError if there is an obstacle.

    The library is compiled at its first use on this machine (2 s), and again for another source, another version of
    torch or another path of the compiler. Several processes may do so at once.
    """
    reason = obstacle()
    if reason:
        raise UserError(f"launches: {reason}")

    built_from = SOURCE.read_bytes() + torch.__version__.encode() + COMPILER.encode()
    name = hashlib.sha256(built_from).hexdigest()[:16]
    built = Path(tempfile.gettempdir(), f"fake_gpu_{os.getuid()}", f"{name}.so")
    if built.exists():
        return built

    built.parent.mkdir(exist_ok=True)
    torch_folder = Path(torch.__file__).parent
    headers = torch_folder / "include"
    library = torch_folder / "lib"
    with tempfile.TemporaryDirectory(dir=built.parent) as folder:
        words = ["-O1", "-shared", "-fPIC", "-std=c++20", "-w", SOURCE, "-o", f"{folder}/guard.so"]
        words += [f"-I{headers}", f"-L{library}", f"-Wl,-rpath,{library}", "-lc10", "-ltorch_cpu"]
        subprocess.run([COMPILER, *words], check=True)
        os.replace(f"{folder}/guard.so", built)  # in one step: another process sees a whole file or none
    return built


class FakeGPU:
    """A process in which torch believes in a GPU. It computes one call after the other; close() ends it.

    user_dir: folder with methods of a user's own, to be known there too; None for those of the package alone.
    """

    def __init__(self, user_dir: str | Path | None = None):
        """Start the process, with the library of guard.cpp loaded before torch."""
        self.pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
        with mock.patch.dict(os.environ, LD_PRELOAD=str(guard())):
            self.pool.submit(os.getpid).result()  # a pool starts its process at the first call, so make one now
        if user_dir is not None:
            self(import_user_dir, user_dir)

    def __call__(self, function, *args, **kwargs) -> Any:
        """Return what function(*args, **kwargs) returns in that process.

        function: one of a module, since the process imports it by its name. An error that it raises becomes an
        AssertionError with the traceback; a SystemExit, as of a program that refuses its flags, stays one.
        """
        return self.pool.submit(_called, function, args, kwargs).result()

    def close(self) -> None:
        """End the process."""
        self.pool.shutdown()


def _called(function, args: tuple, kwargs: dict) -> Any:
    """Call a function, in the process of a FakeGPU; turn an error into one that reaches the caller's process."""
    try:
        return function(*args, **kwargs)
    except Exception as error:  # not every exception can be sent to another process
        raise AssertionError("".join(traceback.format_exception(error))) from None


def launches(args: argparse.Namespace) -> None:
    """Print a table with a model a row: kernel launches by part of an update, synchronisations, modelled milliseconds.

    Then print what the CPU waits for, and in which function. args: the flags of `python -m benchmarks launches`.
    """
    from ..models import chosen, size
    from .step import train

    precision = [] if args.precision == "fp32" else [f"--{args.precision}"]
    heads = ["", "forward", "backward", "clip, optimizer", "all", "waits", "ms"]
    rows = [heads, ["---"] * len(heads)]
    waits = []
    gpu = FakeGPU()
    for name, flags in chosen(args.candidates, args.variant).items():
        record = gpu(train, [*size(args.depth, args.width), *flags, *precision])
        row = [name]
        for parts in COLUMNS:
            row.append(f"{record.launches(*parts):,}")
        milliseconds = 1000 * record.seconds.total()
        rows.append([*row, str(record.waits.total()), f"{milliseconds:.1f}"])
        for wait, count in sorted(record.waits.items()):
            waits.append(f"- {name}: {count} x {wait}")
    gpu.close()

    lines = [f"| {' | '.join(row)} |" for row in rows]
    print(*lines, *waits, sep="\n")
