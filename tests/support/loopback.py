"""HTTP server on 127.0.0.1 that serves bytes from memory and fails on demand as real servers do."""

from __future__ import annotations

import fcntl
import re
import socket
import struct
import termios
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True)
class Fault:
    """Fault of the answer to one request: another status in place of the file, or an end before the file's."""

    status: int | None = None  # of the answer without a body that is sent in place of the file
    headers: dict = field(default_factory=dict)  # of that answer
    after: int | None = None  # bytes of the body after which the answer breaks off
    ending: str = "close"  # how it does: "close" (FIN) or "reset" (RST) of the connection, or "stall" with it open


class Loopback(ThreadingHTTPServer):
    """Server, its files, its faults and a record of all requests.

    Set by a test:
      files: path -> content
      faults: path -> a fault for each of the first requests; itertools.repeat(fault) is one for every request
      headers: path -> headers of every answer, such as ETag or Content-Type
      ignores: headers that the server ignores: "Range" (sends the whole file), "If-Range" (sends any version)

    Recorded:
      asked: (path, headers) of each request, in order
      sent: path -> bytes of all bodies that were sent
    """

    daemon_threads = True

    def __init__(self, files: dict[str, bytes]):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = dict(files)
        self.faults: dict[str, Iterable[Fault]] = {}
        self.headers: dict[str, dict[str, str]] = defaultdict(dict)
        self.ignores: set[str] = set()
        self.asked: list[tuple[str, dict]] = []
        self.sent: Counter[str] = Counter()
        self.closing = threading.Event()  # ends answers that stall

    def handle_error(self, *_):
        """Print nothing: connections that end early are intended."""

    def url(self, path: str = "") -> str:
        """Return the address of a path on this server."""
        return f"http://127.0.0.1:{self.server_port}{path}"

    def ranges(self, path: str) -> list[str | None]:
        """Return the Range header of each request for `path`."""
        return [headers.get("Range") for asked, headers in self.asked if asked == path]


class _Handler(BaseHTTPRequestHandler):
    """Answers of the server to one connection."""

    protocol_version = "HTTP/1.1"
    server: Loopback

    def log_message(self, *_):
        """Print nothing."""

    def do_GET(self):
        """Answer a request with its fault's status, the file or a part of it, or 404 where there is no such file."""
        server = self.server
        path = self.path
        server.faults[path] = iter(server.faults.get(path, ()))  # the same iterator from the second request on
        fault = next(server.faults[path], Fault())
        server.asked.append((path, dict(self.headers)))

        headers = dict(fault.headers)
        body = b""
        if fault.status:
            status = fault.status
        elif path in server.files:
            headers = dict(server.headers[path])
            status, body = self.part_of(server.files[path], headers)
        else:
            status = 404

        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        self.send(body, fault)

    def part_of(self, body: bytes, headers: dict) -> tuple[int, bytes]:
        """Return status and bytes for the Range that is asked for, of the file `body`.

        headers: of the answer; Content-Range is added to them
        """
        ignored = self.server.ignores
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        only_if = self.headers.get("If-Range", "")
        same_version = not only_if or "If-Range" in ignored or only_if in headers.values()
        if not asked or not same_version or "Range" in ignored:
            return 200, body

        start = int(asked[1])
        if start >= len(body):
            headers["Content-Range"] = f"bytes */{len(body)}"
            return 416, b""
        headers["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
        return 206, body[start:]

    def send(self, body: bytes, fault: Fault) -> None:
        """Send the body as far as the fault lets it, and end the connection in the fault's way."""
        breaks_off = fault.after is not None
        if breaks_off:
            self.close_connection = True
        body = body[: fault.after]
        try:
            self.server.sent[self.path] += len(body)  # first: its receiver may check at once
            self.wfile.write(body)
        except OSError:  # the client has closed the connection
            self.close_connection = True

        if breaks_off and fault.ending == "stall":
            self.server.closing.wait(30)
        if breaks_off and fault.ending == "reset":
            until_received(self.connection)
            on_for_no_time = struct.pack("ii", 1, 0)  # struct linger: with it `close` sends RST
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, on_for_no_time)
            self.connection.close()


def until_received(connection: socket.socket) -> None:
    """Wait until the other side's system has all bytes that were sent; a reset would drop the others."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        (unacknowledged,) = struct.unpack("i", fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4)))
        if not unacknowledged:
            return
        time.sleep(0.001)


@contextmanager
def serve(files: dict[str, bytes]):
    """Provide a Loopback with these files, path -> content, on a free port until the end of the block."""
    server = Loopback(files)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.closing.set()
        server.shutdown()
        server.server_close()
        thread.join()
