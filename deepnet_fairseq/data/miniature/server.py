"""A loopback server of one folder that can resume: what a mirror of the corpora looks like from a program."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from ...errors import UserError


@contextmanager
def serve(folder: Path, port: int = 0) -> Iterator[str]:
    """Serves `folder` on 127.0.0.1 and gives the URL; port 0 takes a free one. UserError if the port cannot be had."""
    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), partial(Handler, directory=str(folder)))
    except (OSError, OverflowError) as error:
        raise UserError(f"--port {port}: {error}; leave it out, and a free one is taken") from error
    with server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


class Handler(SimpleHTTPRequestHandler):
    """Files with a single Range, If-Range and a strong ETag that depends on the content alone; no listing, no log."""

    protocol_version = "HTTP/1.1"

    def send_head(self):
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            self.send_error(HTTPStatus.NOT_FOUND)
            return None
        content = path.read_bytes()
        tag = f'"{hashlib.sha256(content).hexdigest()}"'
        asked = self.headers.get("Range") if self.headers.get("If-Range", tag) == tag else None
        found = span(asked, len(content))
        if found is None:
            return self._answer(HTTPStatus.OK, tag, content)
        first, last = found
        if first > last:
            return self._answer(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, tag, b"", f"bytes */{len(content)}")
        part = content[first : last + 1]
        return self._answer(HTTPStatus.PARTIAL_CONTENT, tag, part, f"bytes {first}-{last}/{len(content)}")

    def _answer(self, status: HTTPStatus, tag: str, body: bytes, content_range: str = "") -> io.BytesIO:
        headers = {"Content-Type": "application/octet-stream", "Content-Length": len(body), "ETag": tag}
        headers |= {"Accept-Ranges": "bytes"} | ({"Content-Range": content_range} if content_range else {})
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, str(value))
        self.end_headers()
        return io.BytesIO(body)

    def log_message(self, format, *args):
        pass


def span(asked: str | None, size: int) -> tuple[int, int] | None:
    """First and last byte of "bytes=FIRST-LAST", "bytes=FIRST-" or "bytes=-LENGTH"; None for anything else: all.

    first > last where the file has no such bytes.
    """
    found = re.fullmatch(r"bytes=(\d*)-(\d*)", asked or "")
    first, last = found.groups() if found else ("", "")
    if first:
        return int(first), min(int(last or size), size - 1)
    return (max(0, size - int(last)), size - 1) if last else None
