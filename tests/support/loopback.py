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
        server = self.server
        path = self.path
        server.faults[path] = iter(server.faults.get(path, ()))
        fault = next(server.faults[path], Fault())
        server.asked.append((path, dict(self.headers)))

        if fault.status:
            status, headers, body = fault.status, dict(fault.headers), b""
        elif path in server.files:
            headers = dict(server.headers[path])
            status, body = self.part_of(server.files[path], headers)
        else:
            status, headers, body = 404, dict(fault.headers), b""

        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        self.send(body, fault)

    def part_of(self, body: bytes, headers: dict) -> tuple[int, bytes]:
        """Return status and bytes for the Range that is asked for; the answer's Content-Range is put into `headers`."""
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

        if breaks_off and fault.then == "stall":
            self.server.closing.wait(30)
        if breaks_off and fault.then == "reset":
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
