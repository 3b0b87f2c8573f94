"""Tests of python -m benchmarks: candidates do equal work, parts are timed where they belong, failures are shown."""

from __future__ import annotations

import json
import sys
from functools import partial

import pytest
import torch

from benchmarks import models
from benchmarks.__main__ import main
from benchmarks.timing import STOCK, Cell, Column, readable, table, take_turns

from ..conftest import TRAIN_FLAGS
from ..support.helpers import ROOT, run, shown_in_results

SMALL = ["--cpu", "--max-tokens=300", "--benchmark-vocabulary=120", *models.size("2-1", "tiny")]
TOKENS = "tokens per second"  # name of the quantity in the records
RECORDED = {"default": "fairseq's batches", "32": "32 sentences", "1": "one sentence"}


def rows_of(text: str) -> list[list[str]]:
    """Return the rows of Markdown tables, without headers and rulers."""
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]
    return [row for row in rows if row[0] not in ("---", "depth", "batches", "")]


def test_speed_prints_a_row_for_each_model_and_condition(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "benchmarks.torchscale", None)
    words = "--depths 2-1 --max-tokens 300 --vocabulary 120 --repeats 2 --warmup 1 --sentences 3 --beams 1,2"
    main(["speed", "--device", "cpu", *words.split(), "--variant", "other=--method deepnorm"])
    printed = capsys.readouterr().out
    assert "torchscale is left out" in printed and torch.__version__.partition("+")[0] in printed
    rows = rows_of(printed)
    places = [("2-1", "tiny", *more) for more in ((), ("3", "1"), ("3", "2"))]
    expected = [[*place, name] for place in places for name in ("ours", STOCK, "other")]
    assert [row[: len(words)] for row, words in zip(rows, expected, strict=True)] == expected
    assert all(row[len(words)].endswith("]") for row, words in zip(rows, expected))


def test_turns_rotate_and_a_failure_ends_a_candidate():
    called, cells = [], {name: Cell(name) for name in (STOCK, "ours", "late")}

    def go(name, repeat):
        called.append(name)
        if name == "late" and repeat:
            raise RuntimeError("no such operator\nmore")
        return {"speed": 10.0 * (repeat + 1) * (1 + (name == "ours"))}

    take_turns(cells, {name: partial(go, name) for name in cells}, range(-1, 2))
    assert called == ["late", STOCK, "ours", STOCK, "ours", "ours", STOCK]  # the warm-up of "late" has failed
    printed = table([], [Column("speed", "")], list(cells.values()))
    assert "| ours | 30.0 (20.0 to 40.0) [2.00] |" in printed
    assert "| late |  failed: RuntimeError: no such operator |" in printed


@pytest.mark.smoke
def test_deployed_programs_translate_the_same_sentences(data, tmp_path, capsys):
    tiny = ("--arch", "deepnet_transformer_tiny", "--encoder-layers", "2", "--decoder-layers", "2")
    run("fairseq-train", data, *TRAIN_FLAGS, *tiny, "--max-update", "20", "--save-dir", tmp_path)
    words = "--sentences 12 --batches 32 --rounds 1 --joined sentencepiece --candidates stock,ours,ctranslate2"
    main(["deployed", str(tmp_path / "checkpoint_last.pt"), str(data), *words.split()])
    stock, ours, other = rows_of(capsys.readouterr().out)
    assert [row[1] for row in (stock, ours, other)] == [STOCK, "ours", "ctranslate2"] and "[1.00]" in stock[2]
    assert float(ours[3]) == pytest.approx(float(stock[3]), abs=0.05)
    assert float(other[3]) == pytest.approx(float(stock[3]), abs=1)  # its stopping rule differs
    assert all(cell and "failed" not in cell for row in (stock, ours, other) for cell in row)


@pytest.mark.peers
def test_torchscale_does_the_same_work():
    """torchscale's model with stock fairseq's weights gives the same loss and gradients."""
    assert "torchscale" in models.chosen("torchscale", [])
    stock, peer = (models.trainer_of([*SMALL, "--dropout=0", *models.MODELS[n]]) for n in (STOCK, "torchscale"))
    weights = {name.replace(".fc", ".ffn.fc"): weight for name, weight in stock.model.state_dict().items()}
    missing, _ = peer.model.load_state_dict(weights, strict=False)
    assert not [name for name in missing if "version" not in name]
    losses = [side.criterion(side.model, models.batches(stock, 1)[0])[0] for side in (stock, peer)]
    sum(losses).backward()
    assert losses[0].item() == pytest.approx(losses[1].item(), rel=1e-5)
    theirs = dict(peer.model.named_parameters())
    for name, parameter in stock.model.named_parameters():
        assert torch.allclose(theirs[name.replace(".fc", ".ffn.fc")].grad, parameter.grad, rtol=1e-3, atol=1e-4), name


@pytest.mark.parametrize("study", ["bench", "deployed"])
def test_the_pages_of_speed_show_recorded_results(study):
    """Tables in results/bench and results/deployed equal the records beside them."""
    recorded: dict[str, dict] = {}
    for path in (ROOT / "results" / study).glob("*.json"):
        record = json.loads(path.read_text())
        for cell in record["cells"]:
            if study == "bench" and (cell["measure"] != "train" or cell["state"] != "measured"):
                continue
            place = f"training, {cell['depth']} {cell['width']}"
            if study == "deployed":
                place = f"{record['model']['depth']}, {RECORDED[cell['condition']['batches']]}"
            median, ratio = cell["summary"][TOKENS]["median"], cell["to_stock"][TOKENS]
            recorded.setdefault(place, {})[cell["candidate"]] = f"{readable(median, '')} [{ratio:.2f}]"
    programs = ("stock", "ours", "ctranslate2", "ctranslate2-int8", "transformers")
    programs = ("ours", "stock", "torchscale") if study == "bench" else programs
    shown = {name: values for name, *values in shown_in_results(study)}
    assert len(shown) > 2
    assert shown == {name: [recorded[name].get(program, "not run") for program in programs] for name in shown}
