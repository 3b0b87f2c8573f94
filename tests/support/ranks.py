"""Launcher of fairseq-train on several processes, forked from a process that has imported torch and fairseq."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import re
import socket
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import fairseq_cli.train

from deepnet_fairseq.errors import user_error_line

Around = Callable[[int], AbstractContextManager]  # can be pickled

CONTEXT = multiprocessing.get_context("forkserver")  # forks from a process that has only imported this file
CONTEXT.set_forkserver_preload([__name__])


def train(
    world: int, log: Path, *flags, timeout: float = 300, check: bool = True, around: Around = nullcontext
) -> list[dict]:
    """Run `fairseq-train FLAGS` on `world` processes as torchrun does, or on one alone; return the rows of its updates.

    log: file that all processes append their output to; timeout: seconds to wait for a process, before all are killed;
    check: whether all must succeed; around: called with the number of a process in it, returns the context in which it
    trains.
    """
    port = free_port()
    words = ["fairseq-train", *map(str, flags)]
    processes = []
    for number in range(world):
        processes.append(CONTEXT.Process(target=be_rank, args=(number, world, port, words, log, around)))

    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout)
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()

    if check:
        assert not any(codes), (codes, log.read_text()[-3000:])
    return rows_of_updates(log)


def free_port() -> int:
    """Return a port without a listener, below the range that the kernel assigns to outgoing connections."""
    while True:
        port = random.SystemRandom().randint(12_000, 30_000)
        with socket.socket() as probe:
            nobody_listens = probe.connect_ex(("127.0.0.1", port)) != 0
        if nobody_listens:
            return port


def rows_of_updates(log: Path) -> list[dict]:
    """Return the numbers that a log of --log-format json --log-interval 1 has of each update, in order."""
    return [json.loads(row) for row in re.findall(r"train_inner \| (\{.*\})", log.read_text())]


def be_rank(number: int, world: int, port: int, words: list[str], log: Path, around: Around = nullcontext) -> None:
    """Run fairseq-train in this process as rank `number` of `world`, or on its own if `world` is 1.

    port: of the first rank, for torch.distributed; words: the program's name and its flags; log: file for the output;
    around: as for `train`
    """
    if world > 1:
        os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "WORLD_SIZE": str(world)}
        os.environ |= {"RANK": str(number), "LOCAL_RANK": str(number)}
    with around(number):
        fairseq_train(words, log)


def fairseq_train(words: list[str], log: Path) -> None:
    """Run fairseq-train in this process, and end it as the program ends; append the output to `log`."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for descriptor in (1, 2):  # standard output and error
        os.dup2(output, descriptor)
    sys.argv = words
    try:
        fairseq_cli.train.cli_main()
    except Exception as error:
        line = user_error_line(error)
        if line is None:
            raise
        sys.exit(f"fairseq-train: error: {line}")
