"""A training on two hosts, one of which is cut off from the network."""

from __future__ import annotations

import time

import pytest

from .faults import states
from .faults.campaign import Training, make_data
from .faults.hosts import two_hosts
from .faults.log import Log
from .support.helpers import run

TIMEOUT = 5  # seconds, --heartbeat-timeout
LAST = "checkpoint_last.pt"


def start(hosts, training, folder, name):
    """torchrun on both hosts, and their logs."""
    logs = [Log(folder.parent / f"{name}{host.number}.log") for host in hosts]
    flags = training.flags(folder)
    return [host.train(flags, log.path, hosts[0]) for host, log in zip(hosts, logs)], logs


def wait(processes, logs, until):
    """Until the first log says so; fails after a minute."""
    deadline = time.monotonic() + 60
    while until not in logs[0].read():
        assert time.monotonic() < deadline and all(process.poll() is None for process in processes), logs[0].text
        time.sleep(0.005)


def stops(processes, within: float) -> list[int]:
    """The launchers' exit statuses."""
    deadline = time.monotonic() + within
    try:
        return [process.wait(max(0, deadline - time.monotonic())) for process in processes]
    finally:
        for process in processes:
            process.kill()


@pytest.mark.slow
def test_cut_off_stops_in_time_and_resumes(tmp_path):
    """Both hosts stop with one line; joined again and started again, they end as a training that was not disturbed."""
    training = Training("cut", make_data(tmp_path), 2, 40, ("--optimizer", "adam", "--heartbeat-timeout", str(TIMEOUT)))
    with two_hosts() as hosts:
        if hosts is None:
            pytest.skip("no network namespaces for this user")
        _cut_and_join(hosts, training, tmp_path)


def _cut_and_join(hosts, training, tmp_path):
    folder, alone = tmp_path / "cut", tmp_path / "undisturbed"
    processes, logs = start(hosts, training, folder, "first")
    wait(processes, logs, "epoch 1 @ 6 updates, score")
    hosts[1].ip("link", "set", hosts[1].interface, "down")
    assert stops(processes, within=TIMEOUT + 20) == [1, 1]
    for rank, log in enumerate(logs):
        before, line, after = log.read().partition("fairseq-train: error: ")
        assert after.startswith(f"process {rank} of 2: another one is gone or cannot be reached"), log.text
        assert str(folder) in after.splitlines()[0]
        assert "Traceback" not in before  # after it torchrun's own
    assert 6 <= states.check(folder, logs[0].saved()) < training.updates

    hosts[1].ip("link", "set", hosts[1].interface, "up")
    processes, logs = start(hosts, training, folder, "second")
    assert stops(processes, within=60) == [0, 0], logs[0].path.read_text()
    assert "Loaded checkpoint" in logs[0].read() and "@ 3 updates" not in logs[0].text
    run("torchrun", "--nproc_per_node", "2", "--no-python", "fairseq-train", *training.flags(alone))
    assert list(states.differences(states.load(folder / LAST), states.load(alone / LAST))) == []
