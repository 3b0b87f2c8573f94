"""`deepnet bench`: the work is the same for all, parts are what they say, nothing is skipped silently; its parts."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import sys
import time

import numpy
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from deepnet_fairseq.cli import main
from deepnet_fairseq.errors import UserError
from deepnet_fairseq.tools.bench import memory, synthetic_task, turns
from deepnet_fairseq.tools.bench.benchmarks import training_flops
from deepnet_fairseq.tools.bench.contender import Contender
from deepnet_fairseq.tools.bench.memory import measure_memory
from deepnet_fairseq.tools.bench.results import failures, number, render
from deepnet_fairseq.tools.bench.settings import STOCK, Candidate, Settings, Shape, candidates
from deepnet_fairseq.tools.bench.turns import DIVERGED, FAILED, NO_MEMORY, NO_TIME, Cell

from .support.helpers import ROOT, shown_in_readme

CPU = torch.device("cpu")
TOKENS = "tokens per second"
SHAPE = Shape(2, 1, "tiny")


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    """A file of lengths: every pair of 2 to 9 tokens."""
    path = tmp_path_factory.mktemp("lengths") / "lengths.txt"
    path.write_text("".join(f"{s} {t}\n" for s, t in itertools.product(range(2, 10), repeat=2)))
    return str(path)


@pytest.fixture(scope="module")
def settings(short):
    return Settings(max_tokens=64, vocabulary=120, lengths=short, repeats=2, warmup=1, sentences=(3,), beams=(1, 2))


@pytest.fixture(scope="module")
def bench(short, tmp_path_factory):
    """The JSON of a bench without memory and without torchscale, and the table that was printed."""
    out, printed = tmp_path_factory.mktemp("bench") / "bench.json", io.StringIO()
    words = (
        "--depths 2-1 --widths tiny --only build,train,generate,checkpoint --max-tokens 64 --vocabulary 120 --repeats 2"
    )
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setitem(sys.modules, "deepnet_fairseq.tools.bench.torchscale", None)
        more = ["--sentences=3", "--beams=1,2", f"--lengths={short}", "--device=cpu", f"--out={out}"]
        main(["bench", *words.split(), *more])
    return json.loads(out.read_text()), printed.getvalue().rstrip("\n")


def cells(report, measure, candidate):
    return [c for c in report["cells"] if (c["measure"], c["candidate"]) == (measure, candidate)]


def test_every_cell_is_there(bench):
    """Measures x conditions x candidates, each with its repeats; generation has two beams. A missing peer is named."""
    report, table = bench
    for candidate in ("ours", STOCK):
        for measure, conditions in (("build", 1), ("train", 1), ("generate", 2), ("checkpoint", 1)):
            found = cells(report, measure, candidate)
            assert len(found) == conditions
            for cell in found:
                assert (cell["state"], cell["repeats"]) == ("measured", [0, 1])
                assert all(len(row) == 2 and min(row) > 0 for row in cell["values"].values())
    assert report["environment"]["versions"]["torch"] == torch.__version__
    assert report["settings"]["max_tokens"] == 64 and not failures(report)
    missing = [cell for cell in report["cells"] if cell["candidate"] == "torchscale"]
    assert len(missing) == table.count("| torchscale | cannot run: ") == 5
    assert all(cell["state"] == "cannot run" and "deepnet_fairseq[bench]" in cell["reason"] for cell in missing)


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
    contender.watch_parts()
    steps = [contender.timed_step(batch) for batch in contender.batches(1) * 2]
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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--depths 6", "--depths 6: no depth"),
        ("--widths huge", "--widths huge: no such width"),
        ("--only speed", "--only speed: no measure"),
        ("--only kernels", "--only kernels: no measure.*; kernels on a GPU"),
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
    """Tokens a second, and times stock's, are those of the JSON files in results/bench."""
    recorded = {}
    for path in (ROOT / "results" / "bench").glob("*.json"):
        for cell in json.loads(path.read_text())["cells"]:
            if cell["measure"] in ("train", "generate") and cell["state"] == "measured":
                what = "training" if cell["measure"] == "train" else "translation"
                words = "".join(f", {name} {value}" for name, value in cell["condition"].items())
                value, ratio = cell["summary"][TOKENS]["median"], cell["to_stock"][TOKENS]
                row = recorded.setdefault(f"{what}, {cell['depth']} {cell['width']}{words}", {})
                row[cell["candidate"]] = f"{number(value, '')} [{ratio:.2f}]"
    rows = shown_in_readme("bench")
    assert len(rows) > 2
    for name, *cells in rows:
        assert cells == [recorded[name].get(candidate, "not run") for candidate in ("ours", "stock", "torchscale")]


def test_ratios_are_of_the_same_repeat():
    """A repeat that one of two lacks is left out: 2/1, 9/3, 8/2; the median."""
    mine, other = Cell("train", "ours", "6-6", "tiny"), Cell("train", STOCK, "6-6", "tiny")
    for repeat, value in ((0, 2.0), (1, 100.0), (2, 9.0), (3, 8.0)):
        mine.add(repeat, {"step": value})
    for repeat, value in ((0, 1.0), (2, 3.0), (3, 2.0), (4, 1.0)):
        other.add(repeat, {"step": value})
    assert mine.relative_to(other) == {"step": 3.0}
    assert mine.summary()["step"] == {"n": 4, "median": 8.5, "min": 2.0, "max": 100.0}


def test_order_rotates_and_failures_are_recorded():
    called = []

    def run(name, error=None):
        def once(repeat):
            called.append(name)
            if error:
                raise error
            return {"seconds": 1.0}

        return once

    errors = {
        "a": None,
        "b": ValueError("odd\nmore"),
        "c": RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
        "d": FloatingPointError("not finite"),
    }
    found = {name: Cell("train", name, "6-6", "tiny") for name in errors}
    turns.interleave(found, {name: run(name, error) for name, error in errors.items()}, range(3), 60)
    assert called == ["a", "b", "c", "d", "a", "a"]
    assert [cell.state for cell in found.values()] == ["measured", FAILED, NO_MEMORY, DIVERGED]
    assert found["b"].reason == "ValueError: odd" and found["a"].repeats == [0, 1, 2]
    with pytest.raises(UserError):
        turns.interleave({"e": Cell("train", "e", "6-6", "tiny")}, {"e": run("e", UserError("--flag"))}, range(1), 60)


def test_time_is_bounded():
    """The repeat that is too long is broken off; those before it stand, and none follows."""
    found = {name: Cell("train", name, "6-6", "tiny") for name in ("slow", "slower")}
    start = time.monotonic()
    runs = {"slow": lambda repeat: time.sleep(30 * repeat) or {"seconds": 1.0}, "slower": lambda repeat: time.sleep(30)}
    turns.interleave(found, runs, range(3), 0.3)
    assert time.monotonic() - start < 10
    assert (found["slow"].state, found["slow"].repeats) == ("measured", [0]) and found["slow"].reason
    assert found["slower"].state == NO_TIME


def test_memory_that_is_not_there_is_an_error_not_a_killed_process():
    """The block is never touched: without the limit the system would give it."""
    cell, bytes_ = Cell("train", "ours", "6-6", "tiny"), memory.free_memory(CPU) + 2**28
    with memory.limited(CPU), turns.note_ending(cell, 60):
        torch.empty(bytes_, dtype=torch.uint8)
    assert cell.state == NO_MEMORY


def test_candidates_that_do_not_fit_together_take_turns():
    """500L-500L base is 3.7 billion parameters, 59 GB of training state; a tiny 6L-6L one 18 MB."""
    assert memory.parameters(Shape(500, 500, "base"), 10_000) == pytest.approx(3.68e9, rel=0.01)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "free_memory", lambda device: 24 * 2**30)
        assert memory.side_by_side(3, Shape(6, 6, "tiny"), Settings())
        assert not memory.side_by_side(1, Shape(500, 500, "base"), Settings())


def test_lengths_are_like_those_of_iwslt14():
    """25.2 and 24.6 tokens on average; the same from one seed."""
    drawn = synthetic_task.log_normal(20_000, seed=3)
    assert drawn.mean(axis=0) == pytest.approx([25.2, 24.6], rel=0.04)
    assert drawn.min() >= 1
    assert numpy.corrcoef(numpy.log(drawn), rowvar=False)[0, 1] == pytest.approx(0.97, abs=0.01)
    assert (drawn == synthetic_task.log_normal(20_000, seed=3)).all()


@pytest.mark.parametrize("text", ["3\n", "3 4 5\n", "3 x\n", "0 3\n", ""])
@pytest.mark.filterwarnings("ignore:loadtxt")
def test_a_file_of_other_things_is_refused(tmp_path, text):
    (tmp_path / "lengths").write_text(text)
    with pytest.raises(UserError, match="--lengths .*SOURCE TARGET"):
        synthetic_task.from_file(tmp_path / "lengths", 10, 1)


def test_flops_are_those_torch_counts(settings):
    """Of stock fairseq without padding, but for the half of the decoder's scores that its mask throws away."""
    contender = Contender(candidates(STOCK)[0], SHAPE, settings)
    source, target = torch.randint(4, 100, (3, 7)), torch.randint(4, 100, (3, 5))
    batch = {"net_input": {"src_tokens": source, "src_lengths": None, "prev_output_tokens": target}}
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:  # others are not counted on a CPU
        contender.model.train()(**batch["net_input"])[0].sum().backward()
    contender.close()
    masked = 6 * 3 * SHAPE.M * 5 * 5 * 64
    assert counter.get_total_flops() == training_flops(SHAPE, 120, batch) + masked
