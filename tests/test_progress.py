"""What is shown of a download."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace

from deepnet_fairseq.data.remote import progress
from deepnet_fairseq.data.remote.download import fetch

from .support.fetching import BODY, a_file, a_server, hasty  # noqa: F401
from .support.loopback import Fault


class Terminal(io.StringIO):
    def isatty(self):
        return True


def kept_in(bars):
    def init(self, *args, **options):
        bars.append(self)
        super(type(self), self).__init__(*args, **options)

    return init


def test_bar_resumes_where_it_was(server, file, tmp_path, monkeypatch):
    """On a terminal one bar a file, which begins with what is there and counts no byte twice."""
    monkeypatch.setattr(sys, "stderr", Terminal())
    bars = []
    monkeypatch.setattr(progress, "tqdm", type("Kept", (progress.tqdm,), {"__init__": kept_in(bars)}))
    (tmp_path / "a.gz.part").write_bytes(BODY[:512_000])
    server.faults["/a.gz"] = [Fault(after=100_000)]
    fetch(file, tmp_path)
    (bar,) = bars
    assert (bar.initial, bar.n, bar.total) == (512_000, len(BODY), len(BODY))
    assert " 50%|" in sys.stderr.getvalue() and "1.02M/1.02M" in sys.stderr.getvalue()


def test_lines_in_a_log(monkeypatch, capsys):
    """One a tenth or 30 s; a rate and the time left."""
    now = [0.0]
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with progress.progress("a.gz", 10_000_000) as lines:
        for step in range(1, 1001):
            now[0] = step / 10
            lines.at(step * 10_000)
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 10
    assert told[0] == "a.gz: 1.0 MB of 10.0 MB (10%), 100.0 kB/s, 90 s left"
    assert told[-1] == "a.gz: 10.0 MB of 10.0 MB (100%), 100.0 kB/s"
    with progress.progress("b", None) as lines:
        for step in range(100):
            now[0] += 1
            lines.at(step)
    assert len(capsys.readouterr().err.splitlines()) == 4  # three times 30 s, and the end
