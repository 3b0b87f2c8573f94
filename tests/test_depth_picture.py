"""The quickstart's runs by depth: `deepnet figures --only depth`, what its text says, how small the picture is."""

from __future__ import annotations

import json

import pytest
from PIL import Image

from deepnet_fairseq.analysis.comparison import compare
from deepnet_fairseq.analysis.figures import depth
from deepnet_fairseq.analysis.recorded_run import runs_of
from deepnet_fairseq.cli import main

from .support.recorded import falling, record
from .support.reported import log
from .support.translated import sentences, write_generated


@pytest.fixture
def runs(tmp_path):
    """Two depths and methods, as quickstart.sh lays them out."""
    for layers, last in ((18, 400), (50, 800)):
        for method, loss, bleu in (("deepnorm", 3.0 + layers / 100, 36.8), ("post_ln", 8.04, None)):
            made = record(tmp_path, "depth", method, method, layers, losses=falling(loss, last), bleu=bleu, seed=1)
            place = tmp_path / "quickstart" / f"{layers}L-{layers}L-{last}-updates-seed1"
            place.mkdir(exist_ok=True)
            made.rename(place / method)
    return tmp_path


def test_text_says_where_each_run_ends(runs):
    text = depth.draw(runs_of(runs, "depth"), runs / "a.png")
    rows = [line.split() for line in text.splitlines() if line.startswith(("18L", "50L"))]
    assert [row[:6] for row in rows] == [
        ["18L-18L", "DeepNorm", "1", "400", "3.18", "36.80"],
        ["18L-18L", "Post-LN", "1", "400", "8.04", "-"],
        ["50L-50L", "DeepNorm", "1", "800", "3.50", "36.80"],
        ["50L-50L", "Post-LN", "1", "800", "8.04", "-"],
    ]


def test_title_is_the_numbers_and_no_more(runs):
    found = depth.finding(runs_of(runs, "depth"))
    assert found == "18 and 50 layers: DeepNorm ends at 3.2 and 3.5 bits; Post-LN ends at 8.0 bits"


def test_picture_of_few_colours(runs):
    """As wide as two pages of GitHub, half the size or less, and the same each time."""
    sizes = {}
    for name, words in (("all", ()), ("few", ("--colours", "64")), ("again", ("--colours", "64"))):
        main(["figures", str(runs), "--only", "depth", "--out", str(runs / name), *words])
        sizes[name] = (runs / name / "depth.png").read_bytes()
    assert sizes["few"] == sizes["again"] and len(sizes["few"]) < 0.6 * len(sizes["all"])
    with Image.open(runs / "few" / "depth.png") as picture:
        assert picture.width == 1800 and len(picture.getcolors()) <= 64
    with pytest.raises(SystemExit, match="--colours 1: must be 2 to 256"):
        main(["figures", str(runs), "--only", "depth", "--colours", "1"])


def test_compared_runs_keep_their_score(tmp_path):
    """Perfect translations, and a score that is there already."""
    text = sentences(20)
    (tmp_path / "reference").write_text("\n".join(text) + "\n")
    for name in ("a", "b"):
        write_generated(tmp_path / name / "generated.txt", text, text)
        (tmp_path / name / "train.log").write_text(log(("10:00:00", "11:00:00")))
    (tmp_path / "b" / "score.json").write_text('{"bleu": 1}')
    compare([tmp_path / "a", tmp_path / "b"], tmp_path / "reference", tmp_path / "plot.png")
    assert json.loads((tmp_path / "a" / "score.json").read_text())["bleu"] == 100
    assert (tmp_path / "b" / "score.json").read_text() == '{"bleu": 1}'
