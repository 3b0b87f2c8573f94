"""A file on a server of this machine, and what becomes of it in a folder."""

from __future__ import annotations

import dataclasses
import hashlib

import pytest

from deepnet_fairseq.data.remote import patience
from deepnet_fairseq.data.remote.patience import Patience
from deepnet_fairseq.data.remote.source import RemoteFile

from .loopback import Fault, serve

BODY = bytes(range(256)) * 4000  # 1,024,000 bytes
WRONG = BODY[:-1] + b"\0"
BUSY = Fault(status=503)
HASTY = Patience(first_wait=0.01, longest_wait=0.02)
IMPATIENT = dataclasses.replace(HASTY, read=0.7)


def sha256(body):
    return f"sha256:{hashlib.sha256(body).hexdigest()}"


@pytest.fixture(autouse=True)
def hasty(monkeypatch):
    monkeypatch.setattr(patience, "PATIENCE", HASTY)
    monkeypatch.delenv("DEEPNET_MIRROR", raising=False)


@pytest.fixture(name="server")
def a_server():
    with serve({"/a.gz": BODY}) as running:
        yield running


@pytest.fixture(name="file")
def a_file(server):
    return RemoteFile("a.gz", (server.url("/a.gz"),), len(BODY), sha256(BODY), "the publisher")


def seen(folder):
    """Names that do not start with a dot."""
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def gets(server):
    return [path for method, path, _ in server.asked if method == "GET"]
