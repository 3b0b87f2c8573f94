"""deepnet report --into: the overview between two lines of another page."""

from __future__ import annotations

import re

import pytest

from deepnet_fairseq.cli import main

from .support.reported import run

PAGE = "# Mine\n\n<!-- report 1 -->\nold\n<!-- /report 1 -->\n\nEnd.\n"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    run(root, "table1", "a", "pre_ln", bleu=28.0)
    run(root, "table1", "b", "deepnorm", bleu=28.0)
    run(root, "table1", "c", "admin", diverged="diverged at update 150")
    return root


def test_into_a_page(runs, tmp_path, capsys):
    """Rows of methods that were run, with links to the page and the runs; what stands around stays."""
    page, full = tmp_path / "page.md", tmp_path / "table.md"
    page.write_text(PAGE)
    words = ["report", str(runs), "--table", "1", "--out", str(full), "--into", str(page)]
    main(words)
    first = page.read_text()
    assert first.startswith("# Mine\n\n<!-- report 1 -->\n") and first.endswith("<!-- /report 1 -->\n\nEnd.\n")
    rows = {line.split(" | ")[0]: line for line in first.splitlines() if line.startswith("| ")}
    assert set(rows) == {"| method", "| ---", "| DeepNorm", "| Pre-LN", "| Admin"}
    assert "28.00 (28.8)" in rows["| DeepNorm"] and "diverged at update 150 (28.8)" in rows["| Admin"]
    assert "not run" not in first and "old" not in first and "commit abc1234" in first
    links = re.findall(r"\]\(([^)]*)\)", first)
    assert [(tmp_path / link).resolve() for link in links] == [full, (runs / "table1").resolve()]
    main(words)
    assert page.read_text() == first
    capsys.readouterr()
    main(words[:4] + ["--into", str(page)])
    assert capsys.readouterr().out == f"put table 1 into {page}\n"


@pytest.mark.parametrize(
    "text, said",
    [
        (None, "no such page"),
        (PAGE.replace("report 1", "report 2"), "needs the lines"),
        (PAGE + PAGE, "once each"),
        (PAGE.replace("<!-- /report 1 -->", ""), "needs the lines"),
        (b"\xff", "no UTF-8 text"),
    ],
)
def test_page_without_a_place_is_refused(text, said, runs, tmp_path):
    """And nothing is written."""
    page = tmp_path / "page.md"
    if text is not None:
        page.write_bytes(text if isinstance(text, bytes) else text.encode())
    before = page.read_bytes() if page.exists() else None
    with pytest.raises(SystemExit, match=said):
        main(["report", str(runs), "--table", "1", "--out", str(tmp_path / "t.md"), "--into", str(page)])
    assert not (tmp_path / "t.md").exists() and (page.read_bytes() if page.exists() else None) == before


def test_miniature_says_so(tmp_path):
    run(tmp_path / "runs", "table1", "a", bleu=28.0, smoke=True)
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    main(["report", str(tmp_path / "runs"), "--table", "1", "--into", str(page)])
    assert "> **Miniature on generated data: numbers say nothing about the paper's.**" in page.read_text()
