"""A clone's programs in forks of a process that has imported torch and stock fairseq: 1 s to start, not 4.

Over a socket, several at a time, with their caller's folder, environment and files 0, 1 and 2; whoever is killed while
waiting takes the program along. Started as python warm.py SOCKET.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def ask(address: str, program: str, words: list[str]) -> int:
    """The status of the program, run where and as the caller is."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
        line.connect(address)
        request = {"words": [program, *words], "folder": os.getcwd(), "environment": dict(os.environ)}
        with tempfile.TemporaryFile() as file:  # a message has a largest size, an environment has not
            file.write(json.dumps(request).encode())
            file.flush()
            socket.send_fds(line, [b"?"], [0, 1, 2, file.fileno()])
        answer = line.recv(16)
    return int(answer) if answer else 1


def serve(address: str) -> None:
    """Until whoever started this is gone, and its end of the pipe that is file 0 with it."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks that answer
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
        door.bind(address)
        door.listen(16)
        while door in select.select([door, 0], [], [])[0]:
            line, _ = door.accept()
            if not os.fork():
                door.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                answer(line)
                os._exit(0)
            line.close()


def answer(line: socket.socket) -> None:
    """Runs one program in a group of its own, and says how it ended."""
    _, files, _, _ = socket.recv_fds(line, 1, 4)
    child = os.fork()
    if not child:
        line.close()
        os.setpgid(0, 0)
        become(files)
    watched = os.pidfd_open(child)
    ready, _, _ = select.select([line, watched], [], [])
    if watched not in ready:
        os.killpg(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if watched in ready:
        line.send(str(os.waitstatus_to_exitcode(status) & 0xFF).encode())


def become(files: list[int]) -> None:
    """The program; does not return."""
    from tests.warm import server as programs

    for number, file in enumerate(files[:3]):
        os.dup2(file, number)
    with os.fdopen(files[3], "rb") as file:
        file.seek(0)
        request = json.loads(file.read())
    sys.path[0] = ""
    programs.move(request["folder"], request["environment"])
    programs.end(programs.run(*request["words"]))


@contextmanager
def server(python: Path) -> Iterator[dict[str, str]]:
    """Runs one with that Python; yields what the environment of its callers has besides."""
    with tempfile.TemporaryDirectory(prefix="warm") as room:
        address = os.path.join(room, "socket")
        process = subprocess.Popen(
            [python, __file__, address], env=os.environ | {"OMP_NUM_THREADS": "1"}, stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            while not os.path.exists(address) and process.poll() is None:
                time.sleep(0.1)
            yield {"README_WARM": address}
        finally:
            process.kill()
            process.wait()


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    from tests.warm import server as programs

    programs.warm(str(Path(sys.argv[1]).with_name("bytecode")))
    serve(sys.argv[1])
