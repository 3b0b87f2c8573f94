"""deepnet render: from records to pages, of made-up runs with known numbers."""

from __future__ import annotations

from contextlib import redirect_stdout

import pytest

from deepnet_fairseq.cli import main

from .support.recorded import record, watched
from .support.reported import run

BLOCK = "<!-- report {0} -->\nold\n<!-- /report {0} -->\n"


@pytest.fixture(scope="module")
def rendered(tmp_path_factory):
    """Table 1 with three depths, Figure 4 in miniature, Figure 5 without its probes; a page with three places."""
    root = tmp_path_factory.mktemp("render")
    results, page = root / "results", root / "page.md"
    for layers, bleu in ((6, 27.0), (18, 28.5), (19, 99.0)):
        run(results / "runs", "table1", f"deep-{layers}", layers=layers, bleu=bleu)
    run(results / "runs", "table1", "post", "post_ln", layers=100, bleu=1.0)
    for series in ("post_ln_warmup", "post_ln_no_warmup", "post_ln_init_warmup"):
        record(results / "runs", 4, series, "post_ln", probes=watched(), series=series, smoke=True)
    record(results / "runs", 5, "broken", "deepnorm", 6, update=5)
    page.write_text(BLOCK.format("1") + "between\n" + BLOCK.format("2"))
    (results / "README.md").write_text(BLOCK.format("index"))
    with open(root / "said", "w") as said, redirect_stdout(said):
        main(["render", str(results), "--page", str(page)])
    return root


def test_pages(rendered):
    said = (rendered / "said").read_text()
    page = (rendered / "page.md").read_text()
    assert "28.50 (28.8)" in page and "(results/tables/table1.md)" in page and "\nbetween\n" in page
    assert page.endswith("<!-- report 2 -->\nNot run here yet.\n<!-- /report 2 -->\n") and "old" not in page
    assert "28.50" in (rendered / "results/tables/table1.md").read_text()
    assert f"left out figure5: {rendered / 'results/runs/figure5/broken'}" in said
    assert "wrote" in said and (rendered / "results/figures/miniature/figure4.png").stat().st_size > 5000
    numbers = (rendered / "results/miniatures.md").read_text()
    assert "![Figure 4: " in numbers and "(figures/miniature/figure4.png)" in numbers


def test_index_has_the_deepest_row_with_a_published_number(rendered):
    lines = (rendered / "results" / "README.md").read_text().splitlines()
    rows = {cells[0].strip("| "): cells[1:] for cells in (line.split(" | ") for line in lines)}
    (name,) = [name for name in rows if "Wang et al. 2022, Table 1" in name]
    _, state, number, place = rows[name]
    assert state == "as in the paper, but for its warnings, 4 runs"
    assert number == "DeepNorm 18L-18L, BLEU: 28.50 (28.8)" and place == "[table1.md](tables/table1.md) |"
    assert rows["Wang et al. 2022, Figure 4"][1] == "miniature"
    assert rows["Wang et al. 2022, Figure 5"][1] == rows["Wang et al. 2022, Figure 7"][1] == "not run"


def test_nothing_recorded(tmp_path):
    with pytest.raises(SystemExit, match="runs: no such folder; record runs there"):
        main(["render", str(tmp_path), "--page", str(tmp_path / "page.md")])
    assert not list(tmp_path.iterdir())
