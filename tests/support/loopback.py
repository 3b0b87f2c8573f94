"""HTTP server on 127.0.0.1 that serves bytes from memory and fails on demand as real servers do."""

from __future__ import annotations

import re
import socket
import struct
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True)
class Fault:
    """Fault of the answer to one request.

    status, headers: sent in place of the file
    after: number of body bytes after which the answer stops: `then` is "close", "reset" (RST, not FIN) or "stall"
    """

    status: int | None = None
    headers: dict = field(default_factory=dict)
    after: int | None = None
    then: str = "close"


class Loopback(ThreadingHTTPServer):
    """Server, its files, its faults and a record of all requests.

    files: path -> bytes
    faults: path -> faults, one for each request, then none; itertools.repeat(fault) repeats one
    headers: path -> headers of every answer, such as ETag or Content-Type
    ignores: headers that the server ignores: "Range" (sends the whole file), "If-Range" (sends any version)
    asked: (path, headers) in the order of requests; sent: path -> body bytes
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
        self.closing = threading.Event()

    def handle_error(self, *_):  # connections that end early are intended
        pass

    def url(self, path: str = "") -> str:
        return f"http://127.0.0.1:{self.server_port}{path}"

    def ranges(self, path: str) -> list[str | None]:
        """Return the Range header of each request for `path`."""
        return [headers.get("Range") for asked, headers in self.asked if asked == path]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Loopback

    def log_message(self, *_):
        pass

    def do_GET(self):
        state, path = self.server, self.path
        state.faults[path] = iter(state.faults.get(path, ()))
        fault = next(state.faults[path], Fault())
        state.asked.append((path, dict(self.headers)))
        status, headers, body = fault.status or 404, dict(fault.headers), b""
        if path in state.files and not fault.status:
            headers = dict(state.headers[path])
            status, body = self.part_of(state.files[path], headers)
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        self.send(body, fault)

    def part_of(self, body: bytes, headers: dict) -> tuple[int, bytes]:
        ignores, only_if = self.server.ignores, self.headers.get("If-Range", "")
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        fits = not only_if or "If-Range" in ignores or only_if in headers.values()
        if not (asked and fits) or "Range" in ignores:
            return 200, body
        start = int(asked[1])
        part = f"{start}-{len(body) - 1}" if start < len(body) else "*"
        headers["Content-Range"] = f"bytes {part}/{len(body)}"
        return 416 if part == "*" else 206, body[start:]

    def send(self, body: bytes, fault: Fault) -> None:
        self.close_connection |= fault.after is not None
        body = body[: fault.after]
        try:
            self.server.sent[self.path] += len(body)  # first: its receiver may check at once
            self.wfile.write(body)
        except OSError:  # the client has closed the connection
            self.close_connection = True
        if fault.after is not None and fault.then == "stall":
            self.server.closing.wait(30)
        if fault.after is not None and fault.then == "reset":
            time.sleep(0.05)  # lets the sent bytes arrive
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()


@contextmanager
def serve(files: dict[str, bytes]):
    """Provide a Loopback that answers on a port of its own until the end of the block."""
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
