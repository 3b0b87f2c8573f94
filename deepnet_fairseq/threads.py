"""Decide how many processes and threads a computation on a CPU takes, by the width of its model.

OpenMP's threads wait for each other after every operation. The operations of a narrow model are so short that a second
thread gains little on an idle machine, and costs much as soon as another program takes one of the cores: the other
thread then waits for the operating system again and again. threads.toml holds the measured ratios, and
results/threads/README.md says how they were measured.

    python -m deepnet_fairseq.threads WIDTH TASKS     prints the number of processes and threads, for shell scripts
"""

from __future__ import annotations

import os
import re
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")  # of the environment; torch starts with the number that they give


class Share(NamedTuple):
    """Number of processes that run side by side, and of threads of each."""

    processes: int
    threads: int


class Ratio(NamedTuple):
    """Seconds of a computation with two threads over those with one, on idle cores and beside one busy core."""

    idle: float
    busy: float


@cache
def measured() -> dict[int, Ratio]:
    """Read threads.toml: width of a model in features -> its measured ratio, narrow models first."""
    table = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return {int(width): Ratio(**table[width]) for width in sorted(table, key=int)}


def threads_pay(width: int) -> bool:
    """Return whether several threads speed a model up more on idle cores than they slow it down beside a busy core.

    With the ratios of threads.toml the speed-up is 1 / idle and the slow-down is busy. width: of the model in features;
    one that was not measured is judged by the next lower one that was, and one below all of them by the lowest.
    """
    table = measured()
    nearest = max((known for known in table if known <= width), default=min(table))
    ratio = table[nearest]
    return ratio.idle * ratio.busy < 1  # 1 / idle > busy


def processes_and_threads(width: int, tasks: int = 1, processes: int | None = None) -> Share:
    """Share the cores of this machine between `tasks` computations with models of that width.

    A narrow model gets one thread, and several tasks run side by side; a wide one gets all cores, and its tasks run one
    after the other. The threads of a task do not depend on the number of tasks, so that its results, to the last bit,
    do not either.

    width: of the model in features; tasks: number of computations; processes: how many run side by side, if that is
    decided already, as by the ranks of a training; None to choose. Together the processes get no more threads than
    there are cores, but each gets at least one.
    """
    cores = available_cores()
    threads = cores if threads_pay(width) else 1
    if processes is None:
        processes = max(1, min(tasks, cores // threads))
    threads = max(1, min(threads, cores // processes))
    return Share(processes, threads)


def available_cores() -> int:
    """Count the physical cores that this process may use. Two hyper-threads of a core count once, as for torch.

    Where the system does not say which hyper-threads belong together, every logical core counts.
    """
    logical = os.sched_getaffinity(0)
    physical = {_siblings(number) for number in logical}
    return len(logical) if None in physical else len(physical)


def _siblings(logical: int) -> str | None:
    """Return the hyper-threads of a logical core's physical core, as "0,4"; None where the system does not say."""
    try:
        return Path(f"/sys/devices/system/cpu/cpu{logical}/topology/thread_siblings_list").read_text()
    except OSError:
        return None


def width_of(config: Any) -> int | None:
    """Return the width of a model by its config, of two stacks the larger one; None if the config has none."""
    fields = (getattr(config, f"{stack}_embed_dim", None) for stack in ("encoder", "decoder"))
    return max((width for width in fields if isinstance(width, int)), default=None)


def from_environment() -> str | None:
    """Return the environment's setting of the number of threads, as "OMP_NUM_THREADS=4"; None without one."""
    for name in VARIABLES:
        value = os.environ.get(name, "")
        if re.match(r"\d", value):  # OpenMP ignores other values; "4,2" has a number for each level of nesting
            return f"{name}={value}"
    return None


class TorchThreads:
    """Sets the number of threads that torch computes with in this process; `torch_threads` is the only instance.

    chosen: the number that was set through it last, None before the first time.
    """

    chosen: int | None = None

    def set_elsewhere(self) -> bool:
        """Return whether the environment, torchrun, a data loader or a program has set torch's number of threads.

        A program that has set the number with which torch starts anyway is not noticed.
        """
        import torch

        starting_numbers = (available_cores(), len(os.sched_getaffinity(0)))  # torch starts with one of these
        expected = (self.chosen, *starting_numbers)
        return from_environment() is not None or torch.get_num_threads() not in expected

    def use(self, width: int | None, processes: int = 1, given: int | None = None) -> int:
        """Set torch's number of threads for a model of that width, and return the number that torch then has.

        width: in features, None if unknown; processes: how many compute side by side on this machine; given: the number
        that the user wants, which is set in any case. Without it the number stays as it is if it was set elsewhere, or
        if the width is unknown.
        """
        import torch

        if given is not None:
            self.set(given)
        elif width is not None and not self.set_elsewhere():
            self.set(processes_and_threads(width, processes=processes).threads)
        return torch.get_num_threads()

    def set(self, number: int) -> None:
        """Set torch's number of threads, whoever has set it before."""
        import torch

        torch.set_num_threads(number)
        self.chosen = number


torch_threads = TorchThreads()  # one for the process, because torch's number is the process's


if __name__ == "__main__":
    print(*processes_and_threads(int(sys.argv[1]), tasks=int(sys.argv[2])))
