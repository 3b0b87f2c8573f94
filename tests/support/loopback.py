"""An HTTP server on 127.0.0.1 that serves bytes from memory, and goes wrong the way real ones do when told to."""

from __future__ import annotations

import re
import socket
import struct
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True)
class Fault:
    """What happens to one GET request.

    status, headers: answered instead of the file
    after: body bytes after which it ends: `then` "close", "reset" (RST instead of FIN) or "stall" (nothing more comes)
    pause: seconds between pieces of `piece` bytes
    """

    status: int | None = None
    headers: dict = field(default_factory=dict)
    after: int | None = None
    then: str = "close"
    pause: float = 0.0
    piece: int = 1 << 16


FINE = Fault()


class Loopback:
    """What is served and what was asked.

    files: path -> bytes
    faults: path -> faults, one a GET request, then none; itertools.repeat(fault) for ever
    headers: path -> headers of every answer, such as ETag or Content-Type
    ignores_range: paths of which the whole is always sent; ignores_if_range: the range, whatever the version
    no_head: paths that answer HEAD with 405
    no_length: paths sent without Content-Length, so that only the end of the connection ends them
    asked: (method, path, headers) in the order they came; sent: path -> body bytes
    """

    def __init__(self, files: dict[str, bytes], address: tuple[str, int]):
        self.files, self.address = dict(files), address
        self.faults: dict[str, Iterable[Fault]] = {}
        self.headers: dict[str, dict[str, str]] = defaultdict(dict)
        self.ignores_range: set[str] = set()
        self.ignores_if_range: set[str] = set()
        self.no_head: set[str] = set()
        self.no_length: set[str] = set()
        self.asked: list[tuple[str, str, dict]] = []
        self.sent: Counter[str] = Counter()
        self.closing = threading.Event()

    def url(self, path: str = "") -> str:
        return f"http://{self.address[0]}:{self.address[1]}{path}"

    def ranges(self, path: str) -> list[str | None]:
        """The Range header of each GET of `path`."""
        return [headers.get("Range") for method, asked, headers in self.asked if (method, asked) == ("GET", path)]

    def next_fault(self, path: str) -> Fault:
        faults = self.faults.setdefault(path, ())
        if not isinstance(faults, Iterator):
            faults = self.faults[path] = iter(faults)
        return next(faults, FINE)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: Loopback

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.serve(Fault(status=405) if self.path in self.state.no_head else FINE)

    def do_GET(self):
        self.serve(self.state.next_fault(self.path))

    def serve(self, fault: Fault) -> None:
        state, path = self.state, self.path
        state.asked.append((self.command, path, dict(self.headers)))
        body = state.files.get(path)
        if body is None or fault.status:
            self.answer(fault.status or 404, fault.headers, b"")
            return
        headers = dict(state.headers[path])
        status, body = self.part_of(body, headers)
        self.answer(status, headers, body, fault)

    def part_of(self, body: bytes, headers: dict) -> tuple[int, bytes]:
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        only_if = None if self.path in self.state.ignores_if_range else self.headers.get("If-Range")
        if not asked or self.path in self.state.ignores_range or only_if not in (None, *headers.values()):
            return 200, body
        start = int(asked[1])
        if start >= len(body):
            headers["Content-Range"] = f"bytes */{len(body)}"
            return 416, b""
        headers["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
        return 206, body[start:]

    def answer(self, status: int, headers: dict, body: bytes, fault: Fault = FINE) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if self.path in self.state.no_length:
            self.close_connection = True
        else:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.send(body, fault)

    def send(self, body: bytes, fault: Fault) -> None:
        end = len(body) if fault.after is None else min(fault.after, len(body))
        try:
            for start in range(0, end, fault.piece):
                piece = body[start : min(start + fault.piece, end)]
                self.wfile.write(piece)
                self.state.sent[self.path] += len(piece)
                time.sleep(fault.pause)
        except OSError:  # the other side has had enough
            self.close_connection = True
        if fault.after is not None:
            self.close_connection = True
            if fault.then == "stall":
                self.state.closing.wait(30)
            if fault.then == "reset":
                time.sleep(0.05)  # what was sent arrives
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_):  # connections that end early are what this is for
        pass

    def shutdown_request(self, request):
        if request.fileno() >= 0:
            super().shutdown_request(request)


@contextmanager
def serve(files: dict[str, bytes]):
    """A Loopback that answers on a port of its own until the end of the block."""
    server = _Server(("127.0.0.1", 0), _Handler)
    state = Loopback(files, server.server_address)
    server.RequestHandlerClass = type("Handler", (_Handler,), {"state": state})
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        state.closing.set()
        server.shutdown()
        server.server_close()
        thread.join()
