"""Launcher of fairseq-train on several processes, forked after torch and fairseq were imported."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import re
import socket
import sys
from pathlib import Path

import fairseq_cli.train

from deepnet_fairseq.errors import user_error_line

CONTEXT = multiprocessing.get_context("forkserver")  # forks from a process that has only imported this file
CONTEXT.set_forkserver_preload([__name__])


def train(world: int, log: Path, *flags, timeout: float = 300, check: bool = True) -> list[dict]:
    """Train on `world` processes as torchrun starts them, or on one alone; return the log's row of each update."""
    port, words = free_port(), ["fairseq-train", *map(str, flags)]
    processes = [CONTEXT.Process(target=be_rank, args=(n, world, port, words, log)) for n in range(world)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout)
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    assert not check or not any(codes), (codes, log.read_text()[-3000:])
    return updates(log)


def free_port() -> int:
    """Return a port without a listener, below the range that the kernel assigns to outgoing connections."""
    while True:
        port = random.SystemRandom().randint(12_000, 30_000)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port


def updates(log: Path) -> list[dict]:
    """Return the log's row of each update."""
    return [json.loads(row) for row in re.findall(r"train_inner \| (\{.*\})", log.read_text())]


def be_rank(number: int, world: int, port: int, words: list[str], log: Path) -> None:
    """Run a program as rank `number` of `world` processes of torchrun, or on its own if `world` is 1."""
    if world > 1:
        os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "WORLD_SIZE": str(world)}
        os.environ |= {"RANK": str(number), "LOCAL_RANK": str(number)}
    fairseq_train(words, log)


def fairseq_train(words: list[str], log: Path) -> None:
    """Run fairseq-train in this process, which ends as the program does; the output goes to `log`."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(output, stream)
    sys.argv = words
    try:
        fairseq_cli.train.cli_main()
    except Exception as error:
        line = user_error_line(error)
        if line is None:
            raise
        sys.exit(f"fairseq-train: error: {line}")
