"""Tests of python -m benchmarks: candidates take turns and do equal work, failures are shown, pages show records."""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from functools import partial
from io import StringIO
from typing import NamedTuple

import pytest
import torch

from benchmarks import models
from benchmarks.__main__ import main
from benchmarks.graphs import longest_kernels
from benchmarks.timing import STOCK, Cell, Column, readable, table, take_turns

from ..conftest import TRAIN_FLAGS
from ..support.helpers import ROOT, run, shown_in_results

TINY = ["--cpu", "--max-tokens=300", "--benchmark-vocabulary=120", *models.size("2-1", "tiny")]  # 2 and 1 layers
TOKENS = "tokens per second"  # name of the quantity in the records
BATCHES = {"default": "fairseq's batches", "32": "32 sentences", "1": "one sentence"}  # in records -> on the page


def rows_of(text: str) -> list[list[str]]:
    """Return the rows of the Markdown tables in a text, each a list of cells, without headers and rulers."""
    rows = []
    for line in text.splitlines():
        if line.startswith("| "):
            cells = [cell.strip() for cell in line.split("|")[1:-1]]
            if cells[0] not in ("---", "depth", "batches", ""):
                rows.append(cells)
    return rows


@pytest.fixture(scope="module")
def printed_speed() -> str:
    """Provide what the comparison of speed prints for tiny models where torchscale is not installed."""
    words = "--depths 2-1 --max-tokens 300 --vocabulary 120 --repeats 2 --warmup 1 --sentences 3 --beams 1,2"
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as output:
        patch.setitem(sys.modules, "benchmarks.torchscale", None)
        main(["speed", "--device", "cpu", *words.split(), "--variant", "other=--method deepnorm"])
    return output.getvalue()


def test_speed_refuses_the_name_of_a_table_that_it_does_not_have():
    with pytest.raises(SystemExit) as ended:
        main(["speed", "--device", "cpu", "--candidates", "ours", "--only", "train,translate"])

    assert "--only translate:" in str(ended.value)


@pytest.mark.smoke
def test_speed_names_torch_and_what_is_left_out(printed_speed):
    """torchscale is left out, because it is not installed."""
    assert torch.__version__.partition("+")[0] in printed_speed
    assert "torchscale" in printed_speed


@pytest.mark.smoke
def test_speed_prints_a_row_for_each_model_and_condition(printed_speed):
    """A condition is depth and width, for translation also the sentences of a batch and the beam."""
    conditions = [("2-1", "tiny"), ("2-1", "tiny", "3", "1"), ("2-1", "tiny", "3", "2")]
    expected = []
    for condition in conditions:
        expected += [[*condition, name] for name in ("ours", STOCK, "other")]

    rows = rows_of(printed_speed)

    assert len(rows) == len(expected)
    for row, start in zip(rows, expected, strict=True):
        assert row[: len(start)] == start
        assert row[len(start)].endswith("]")  # the ratio to stock fairseq


class Turns(NamedTuple):
    """The order in which three candidates were called, and the table of what was measured."""

    called: list[str]
    printed: str


@pytest.fixture(scope="module")
def turns() -> Turns:
    """Provide the turns of three candidates: a warm-up, repeat -1, and the repeats 0 and 1.

    Stock fairseq has the speeds 10 and 20, "ours" twice as much, and "late" fails in its warm-up.
    """
    called = []
    cells = {name: Cell(name) for name in (STOCK, "ours", "late")}

    def measure(name, repeat):
        called.append(name)
        if name == "late":
            raise RuntimeError("no such operator\nmore")
        speed = 10.0 * (repeat + 1)
        return {"speed": 2 * speed if name == "ours" else speed}

    take_turns(cells, {name: partial(measure, name) for name in cells}, repeats=range(-1, 2))
    return Turns(called, table(heads=[], columns=[Column("speed", "")], cells=list(cells.values())))


def test_turns_rotate_and_a_failure_ends_a_candidate(turns):
    warm_up = turns.called[:3]
    first = turns.called[3:5]
    second = turns.called[5:]

    assert warm_up == ["late", STOCK, "ours"]  # the warm-up begins with the last candidate
    assert first == [STOCK, "ours"]
    assert second == ["ours", STOCK]


def test_a_candidate_s_row_has_median_range_and_ratio_to_stock(turns):
    """The speeds of "ours" are 20 and 40, and those of stock fairseq 10 and 20."""
    assert "| ours | 30.0 (20.0 to 40.0) [2.00] |" in turns.printed


def test_the_row_of_a_failed_candidate_has_the_first_line_of_its_error(turns):
    (row,) = [line for line in turns.printed.splitlines() if line.startswith("| late |")]

    assert "RuntimeError: no such operator |" in row


class Seen(NamedTuple):
    """What torch's profiler has seen of all launches of a kernel."""

    key: str  # the kernel's name
    self_device_time_total: float  # microseconds


def test_the_longest_kernels_come_first_in_milliseconds_of_an_update():
    seen_in_two_updates = [Seen("add", 3_000), Seen("product", 8_000), Seen("dropout", 1_000)]

    found = longest_kernels(seen_in_two_updates, updates=2, most=2)

    assert list(found.items()) == [("all", 6.0), ("product", 4.0), ("add", 1.5)]


@pytest.mark.smoke
def test_deployed_programs_translate_the_same_sentences(data, tmp_path, capsys):
    """The programs have nearly the same BLEU, in the fourth column; ctranslate2 stops by another rule."""
    tiny = ("--arch", "deepnet_transformer_tiny", "--encoder-layers", "2", "--decoder-layers", "2")
    run("fairseq-train", data, *TRAIN_FLAGS, *tiny, "--max-update", "20", "--save-dir", tmp_path)
    words = "--sentences 12 --batches 32 --rounds 1 --joined sentencepiece --candidates stock,ours,ctranslate2"

    main(["deployed", str(tmp_path / "checkpoint_last.pt"), str(data), *words.split()])

    rows = rows_of(capsys.readouterr().out)
    assert [row[1] for row in rows] == [STOCK, "ours", "ctranslate2"]
    stock, ours, ctranslate2 = rows
    assert "[1.00]" in stock[2]  # its speed is compared with itself
    assert float(ours[3]) == pytest.approx(float(stock[3]), abs=0.05)
    assert float(ctranslate2[3]) == pytest.approx(float(stock[3]), abs=1)
    for row in rows:
        for cell in row:
            assert cell
            assert "failed" not in cell


def torchscale_name(name: str) -> str:
    """Return torchscale's name of a parameter of stock fairseq."""
    return name.replace(".fc", ".ffn.fc")


def loss_with_gradients(trainer, sample) -> float:
    """Return the loss of a trainer's model on a batch, and leave the gradients in its parameters."""
    loss, *_ = trainer.criterion(trainer.model, sample)
    loss.backward()
    return loss.item()


@pytest.mark.peers
def test_torchscale_does_the_same_work():
    """torchscale's model with stock fairseq's weights gives the same loss and gradients."""
    assert "torchscale" in models.chosen("torchscale", [])  # torchscale is installed
    stock = models.trainer_of([*TINY, "--dropout=0", *models.MODELS[STOCK]])
    torchscale = models.trainer_of([*TINY, "--dropout=0", *models.MODELS["torchscale"]])
    weights = {torchscale_name(name): weight for name, weight in stock.model.state_dict().items()}
    missing, _unexpected = torchscale.model.load_state_dict(weights, strict=False)
    assert not [name for name in missing if "version" not in name]
    (sample,) = models.batches(stock, 1)

    stock_loss = loss_with_gradients(stock, sample)
    torchscale_loss = loss_with_gradients(torchscale, sample)

    assert torchscale_loss == pytest.approx(stock_loss, rel=1e-5)
    theirs = dict(torchscale.model.named_parameters())
    for name, parameter in stock.model.named_parameters():
        gradient = theirs[torchscale_name(name)].grad
        assert torch.allclose(gradient, parameter.grad, rtol=1e-3, atol=1e-4), name


PROGRAMS = {  # study -> candidates in the columns of its table
    "bench": ("ours", "stock", "torchscale"),
    "deployed": ("stock", "ours", "ctranslate2", "ctranslate2-int8", "transformers"),
}


def place_of(study: str, record: dict, cell: dict) -> str | None:
    """Return the name of the row, in the table of results/STUDY/README.md, that shows a cell of a record.

    A record is a file of measurements of one model, and a cell that of one candidate under one condition. None for a
    cell that no row shows.
    """
    if study == "deployed":
        return f"{record['model']['depth']}, {BATCHES[cell['condition']['batches']]}"
    if cell["measure"] == "train" and cell["state"] == "measured":
        return f"training, {cell['depth']} {cell['width']}"
    return None


@pytest.mark.parametrize("study", PROGRAMS)
def test_the_pages_of_speed_show_recorded_results(study):
    """Each cell of the tables is the median in the records beside the page, with its ratio to stock fairseq."""
    recorded: dict[str, dict] = {}  # name of a row -> candidate -> cell
    for path in (ROOT / "results" / study).glob("*.json"):
        record = json.loads(path.read_text())
        for cell in record["cells"]:
            place = place_of(study, record, cell)
            if place is not None:
                median = readable(cell["summary"][TOKENS]["median"], "")
                recorded.setdefault(place, {})[cell["candidate"]] = f"{median} [{cell['to_stock'][TOKENS]:.2f}]"

    rows = shown_in_results(study)

    assert len(rows) > 2
    for name, *shown in rows:
        assert shown == [recorded[name].get(program, "not run") for program in PROGRAMS[study]]
