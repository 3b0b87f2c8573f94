"""A process that has imported torch and stock fairseq; each program it is asked for is a fork of it.

The fork runs the program's own script: from there on all is as in a process started for it, the imports of fairseq's
programs and of the package among it. A request is a line of JSON, its answer the program's status.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import logging
import os
import resource
import runpy
import signal
import sys
import threading
from pathlib import Path

LIBRARIES = (  # torch._dynamo, a second and a half, comes with the first optimiser
    "torch._dynamo", "torch.distributed.fsdp", "torch.distributed.tensor", "torch.utils.checkpoint", "hydra",
    "sacrebleu", "scipy.stats", "sentencepiece", "matplotlib.pyplot", "fairseq.options", "fairseq.tasks.translation",
    "fairseq.trainer", "fairseq.checkpoint_utils", "fairseq.sequence_generator",
)  # fmt: skip


def warm(bytecode: str) -> None:
    """The imports that take seconds, without what they set and fairseq's programs set before them."""
    for name in LIBRARIES:
        importlib.import_module(name)
    logging.root.handlers.clear()
    logging.root.setLevel(logging.WARNING)
    sys.pycache_prefix, sys.dont_write_bytecode = bytecode, False  # the package is compiled once, whatever is set
    gc.collect()
    gc.freeze()  # a fork that collects garbage would copy every page of it


def serve(requests, answers) -> None:
    for line in requests:
        child = os.fork()
        if not child:
            answers.close()
            request = json.loads(line)
            become(request)
            end(run(*request["words"]))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=answers, flush=True)


def become(request: dict) -> None:
    """Where the program runs, what it writes to, and what it may use."""
    move(request["folder"], request["environment"])
    for descriptor, path in ((1, request["out"]), (2, request["errors"])):
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.dup2(file, descriptor)
        os.close(file)
    signal.alarm(request["seconds"])
    if request["memory"]:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + request["memory"],) * 2)


def move(folder: str, environment: dict[str, str]) -> None:
    """To the program's folder, environment and PYTHONPATH."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    places = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[1:1] = [place for place in places if place and place not in sys.path]


def run(program: str, *words: str) -> int:
    """Its status; what nobody caught goes to the hook, as with Python itself."""
    try:
        if program == "-m":
            sys.argv, sys.path[0] = [*words], os.getcwd()
            runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        else:
            sys.argv, sys.path[0] = [program, *words], os.path.dirname(program)
            runpy.run_path(program, run_name="__main__")
        return 0
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        print(error.code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    return 1


def end(status: int) -> None:
    """As Python does, but for the removal of every object, which would copy the pages of all that was imported."""
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status & 0xFF)


if __name__ == "__main__":
    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    silence = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(silence, descriptor)
    warm(bytecode=sys.argv[1])
    serve(requests, answers)
