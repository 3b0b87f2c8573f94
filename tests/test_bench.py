"""`deepnet bench`: the work is the same for all, parts of a step are what they say, nothing is skipped silently."""

from __future__ import annotations

import contextlib
import io
import json
import sys
import time

import pytest
import torch

from deepnet_fairseq.bench.contender import Contender
from deepnet_fairseq.bench.memory import measure_memory
from deepnet_fairseq.bench.report import failures, number, render
from deepnet_fairseq.bench.settings import STOCK, Candidate, Shape, candidates
from deepnet_fairseq.bench.trials import PARTS, Watched
from deepnet_fairseq.bench.turns import FAILED, Cell
from deepnet_fairseq.cli import main

from .support.benched import SHAPE, short_sentences, short_settings
from .support.helpers import ROOT

CPU = torch.device("cpu")
PEER = "deepnet_fairseq.bench.torchscale"


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    return short_sentences(tmp_path_factory.mktemp("lengths"))


@pytest.fixture(scope="module")
def settings(short):
    return short_settings(short)


@pytest.fixture(scope="module")
def bench(short, tmp_path_factory):
    """The JSON of a bench without memory and without torchscale, and the table that was printed."""
    out, printed = tmp_path_factory.mktemp("bench") / "bench.json", io.StringIO()
    words = (
        "--depths 2-1 --widths tiny --only build,train,generate,checkpoint --max-tokens 64 --vocabulary 120 --repeats 2"
    )
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setitem(sys.modules, PEER, None)
        more = ["--sentences=3", "--beams=1,2", f"--lengths={short}", "--device=cpu", f"--out={out}"]
        main(["bench", *words.split(), *more])
    return json.loads(out.read_text()), printed.getvalue().rstrip("\n")


def cells(report, measure, candidate):
    return [c for c in report["cells"] if (c["measure"], c["candidate"]) == (measure, candidate)]


def test_every_cell_is_there(bench):
    """Measures x conditions x candidates, each with its repeats; generation has two beams."""
    report, _ = bench
    for candidate in ("ours", STOCK):
        for measure, conditions in (("build", 1), ("train", 1), ("generate", 2), ("checkpoint", 1)):
            found = cells(report, measure, candidate)
            assert len(found) == conditions
            for cell in found:
                assert (cell["state"], cell["repeats"]) == ("measured", [0, 1])
                assert all(len(row) == 2 and min(row) > 0 for row in cell["values"].values())
    assert report["environment"]["versions"]["torch"] == torch.__version__
    assert report["settings"]["max_tokens"] == 64 and not failures(report)


def test_a_missing_peer_is_named(bench):
    report, table = bench
    found = [cell for cell in report["cells"] if cell["candidate"] == "torchscale"]
    assert len(found) == 5
    assert all(cell["state"] == "cannot run" and "deepnet_fairseq[bench]" in cell["reason"] for cell in found)
    assert table.count("| torchscale | cannot run: ") == 5


@pytest.mark.parametrize("measure", ["train", "generate"])
def test_the_work_is_the_same(bench, measure):
    """Tokens and parameters; the last are what a count by hand gives."""
    report, _ = bench
    d, ffn = 64, 128
    attention, feed, norm = 4 * (d * d + d), 2 * d * ffn + ffn + d, 2 * d
    expected = 120 * d + 2 * (attention + feed + 2 * norm) + (2 * attention + feed + 3 * norm)
    rows = [cells(report, measure, candidate) for candidate in ("ours", STOCK)]
    for same in zip(*rows):
        assert {cell["facts"]["parameters"] for cell in same} == {expected}
        assert len({tuple(cell["facts"]["tokens"]) for cell in same}) == 1
    if measure == "train":
        assert all(0 < tokens <= 64 for tokens in rows[0][0]["facts"]["tokens"])


def test_speeds_are_work_by_time(bench):
    report, _ = bench
    for candidate in ("ours", STOCK):
        for measure, quantity in (("train", "step"), ("generate", "seconds")):
            for cell in cells(report, measure, candidate):
                speeds = zip(cell["facts"]["tokens"], cell["values"][quantity])
                assert cell["values"]["tokens per second"] == pytest.approx([work / time for work, time in speeds])


def test_parts_make_a_step(bench):
    report, _ = bench
    for candidate in ("ours", STOCK):
        (cell,) = cells(report, "train", candidate)
        for repeat, step in enumerate(cell["values"]["step"]):
            parts = [cell["values"][part][repeat] for part in (*PARTS, "rest")]
            assert min(parts) > 0 and sum(parts) == pytest.approx(step)


@pytest.mark.parametrize("candidate", candidates("ours,stock"), ids=lambda candidate: candidate.name)
def test_time_is_in_its_part(candidate, settings):
    """Each part has what was made slower in it; were it counted elsewhere, or twice, the rest would lack its own."""
    contender = Contender(candidate, SHAPE, settings)
    trainer = contender.trainer
    delays = {
        "forward": slow(trainer.criterion, "forward", 0.1),
        "backward": slow(trainer.optimizer, "backward", 0.2),
        "clip": slow(trainer.optimizer, "multiply_grads", 0.1) + slow(trainer, "clip_grad_norm", 0.2),
        "optimizer": slow(trainer.task, "optimizer_step", 0.4),
        "rest": slow(trainer, "set_num_updates", 0.5),
    }
    watched = Watched(contender, 1)
    steps = [watched.step(watched.batch(0)) for _ in range(2)]
    contender.close()
    for step in steps:
        assert all(step[part] >= delay for part, delay in delays.items()), step


def slow(owner, attribute, seconds):
    """Delays a method of this object by so much, and says by how much."""
    original = getattr(owner, attribute)

    def slowly(*args, **kwargs):
        time.sleep(seconds)
        return original(*args, **kwargs)

    setattr(owner, attribute, slowly)
    return seconds


def test_peak_memory_is_of_a_process_of_its_own(settings):
    """What this process holds does not count, and what training needs does: four numbers a parameter at least."""
    ballast = torch.ones(2**28)  # 1 GiB
    cell = Cell("memory", "ours", SHAPE.depth, SHAPE.width)
    measure_memory(candidates("ours", optimizer="adam")[0], Shape(2, 1, "base"), settings, cell)
    values = {quantity: row[0] for quantity, row in cell.values.items()}
    assert values["baseline RSS"] < ballast.numel() * 4
    assert values["bytes"] == values["peak RSS"] - values["baseline RSS"]
    assert 16 * cell.facts["parameters"] < values["bytes"] < 2**29


def test_memory_of_a_candidate_that_fails_says_why(settings, capfd):
    cell = Cell("memory", "odd", SHAPE.depth, SHAPE.width)
    measure_memory(Candidate("odd", ("--arch=no_such_arch", "--optimizer=adam")), SHAPE, settings, cell)
    assert (cell.state, cell.reason) == (FAILED, "status 2") and "no_such_arch" in capfd.readouterr().err


def test_the_json_renders(bench, tmp_path, capsys):
    """--render prints what the run printed; a row for each cell, medians and ratios from the JSON."""
    report, table = bench
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(report))
    main(["bench", "--render", str(path)])
    assert capsys.readouterr().out.rstrip("\n") == table
    assert sum(line.startswith("| 2-1 | tiny |") for line in table.splitlines()) == len(report["cells"])
    (cell,) = cells(report, "train", "ours")
    median, ratio = cell["summary"]["tokens per second"]["median"], cell["to_stock"]["tokens per second"]
    (row,) = [line for line in table.splitlines() if line.startswith("| 2-1 | tiny | ours |") and "%" in line]
    assert f"| {number(median, '')} (" in row and f"[{ratio:.2f}]" in row
    cell["state"], cell["reason"], cell["summary"] = "out of memory", "no more", {}
    assert "| ours | out of memory: no more |" in render(report)


def test_variants_are_ours_with_more_flags():
    """Flags of --ours are in both; --method and --optimizer reach ours only, deepnorm torchscale too."""
    ours, stock, variant = candidates("ours,stock", "deepnorm", "adam", "--a 1", ("rows=--b '2 3'",))
    assert ours.flags == ("--arch=deepnet_transformer", "--method=deepnorm", "--optimizer=adam", "--a", "1")
    assert variant.flags == (*ours.flags, "--b", "2 3") and variant.name == "rows"
    assert stock.flags == ("--arch=transformer", "--optimizer=adam")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--depths 6", "--depths 6: no depth"),
        ("--widths huge", "--widths huge: no such width"),
        ("--only speed", "--only speed: no measure"),
        ("--candidates nobody", "--candidates nobody: no candidate"),
        ("--variant rows", "--variant rows: give NAME=FLAGS"),
        ("--variant stock=--x", "--variant stock=--x: give NAME=FLAGS"),
        ("--repeats 0", "--repeats 0: must be at least 1"),
        ("--sentences many", "--sentences many: give whole numbers"),
        ("--max-tokens 100", "--max-tokens 100: one sentence has"),
        ("--lengths nowhere", "nowhere"),
        ("--render nowhere", "nowhere"),
    ],
)
def test_mistakes_are_named_before_anything_is_measured(words, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=said):
        main(["bench", "--device", "cpu", *words.split(" ", 1)])
    assert not list(tmp_path.iterdir())


def test_readme_shows_recorded_results():
    """Its rows are those that the JSON files in results/bench give."""
    shown = (ROOT / "README.md").read_text().split("<!-- bench -->")[1].split("<!-- /bench -->")[0]
    recorded = [render(json.loads(path.read_text())) for path in (ROOT / "results" / "bench").glob("*.json")]
    rows = [row for row in shown.splitlines() if "| ours |" in row or "| stock |" in row or "| torchscale |" in row]
    assert len(rows) > 6
    assert all(any(row in table for table in recorded) for row in rows)
