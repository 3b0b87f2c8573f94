"""`deepnet deployed`: the same sentences for all, their translations scored as fairseq's are, rounds that go on."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
import torch

from deepnet_fairseq.cli import main
from deepnet_fairseq.study.scoring.generated import generation_speed, read_generated
from deepnet_fairseq.tools.bench import deployed as tool
from deepnet_fairseq.tools.bench import translator
from deepnet_fairseq.tools.bench.results import number
from deepnet_fairseq.tools.bench.settings import Candidate

from .conftest import TRAIN_FLAGS
from .support.helpers import ROOT, run, shown_in_readme

TOKENS = "tokens per second"
TINY = ("--arch", "deepnet_transformer_tiny", "--encoder-layers", "2", "--decoder-layers", "2")


@pytest.fixture(scope="module")
def checkpoint(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("deployed")
    run("fairseq-train", data, *TRAIN_FLAGS, *TINY, "--max-update", "20", "--save-dir", folder)
    return folder / "checkpoint_last.pt"


def deployed(checkpoint, data, out, *flags) -> dict:
    main(["deployed", str(checkpoint), str(data), f"--out={out}", "--sentences=12", "--alone=2", *flags])
    return json.loads(out.read_text())


def cells(record, batches) -> dict[str, dict]:
    return {cell["candidate"]: cell for cell in record["cells"] if cell["condition"] == {"batches": batches}}


@pytest.mark.smoke
def test_each_program_translates_the_same_sentences(checkpoint, data, tmp_path, capsys):
    """The folded model and the one of float32 elsewhere score as ours does; who is not installed says so."""
    flags = "--candidates=stock,ours,ctranslate2,transformers", "--batches=32", "--rounds=1"
    record = deployed(checkpoint, data, tmp_path / "record.json", *flags)
    found = cells(record, "32")
    stock, ours, other = (found[name]["values"] for name in ("stock", "ours", "ctranslate2"))
    assert min(row[0] for values in (stock, ours, other) for name, row in values.items() if name != "bleu") > 0
    assert ours["bleu"] == pytest.approx(stock["bleu"], abs=0.05)
    assert other["bleu"] == pytest.approx(stock["bleu"], abs=1)  # it stops by another rule
    assert other["bytes"] < stock["bytes"]  # it needs no torch
    sizes = {candidate["name"]: candidate["bytes"] for candidate in record["candidates"]}
    assert sizes["ours"] == pytest.approx(sizes["stock"], rel=0.2)
    assert (found["transformers"]["state"] == "measured") or found["transformers"]["reason"]
    assert re.search(r"\| 2-2 \| 32 \| stock \| .*\[1\.00\]", capsys.readouterr().out)


@pytest.fixture
def numbered(monkeypatch):
    """No program is started: rounds are numbered in the order in which they are made."""
    made = []

    def translate(sentences, name, repeat):
        made.append((name, repeat))
        if name == "ours" and len(made) == 5:
            raise KeyboardInterrupt
        return {"tokens per second": 10.0 * len(made), "bytes": 1.0}

    monkeypatch.setattr(tool.Sentences, "translate", translate)
    monkeypatch.setattr(tool, "export", lambda name, settings, work: Candidate(name, (), "gone" * (name == "stock")))
    return made


def test_a_record_is_gone_on_with(checkpoint, data, tmp_path, numbered, capsys, monkeypatch):
    """What was measured stays, the rounds that are missing are made; of other settings or code it is refused."""
    out, flags = tmp_path / "record.json", ("--candidates=stock,ours,ctranslate2", "--batches=1,32")
    with pytest.raises(SystemExit, match="130"):
        deployed(checkpoint, data, out, *flags)
    before = json.loads(out.read_text())
    assert {cell["candidate"]: cell["repeats"] for cell in before["cells"]} == {
        "stock": [],
        "ours": [0],
        "ctranslate2": [0],
    }
    del numbered[:]
    record = deployed(checkpoint, data, out, *flags, "--rounds=2")
    assert sorted(numbered) == [(name, 1) for name in ("ctranslate2", "ours") for _ in range(2)]
    for batches in ("1", "32"):
        for name, cell in cells(record, batches).items():
            (old,) = cells(before, batches)[name]["values"].get("tokens per second", [None])
            assert cell["repeats"] == ([] if name == "stock" else [0, 1])
            assert cell["state"] == ("cannot run" if name == "stock" else "measured")
            assert old is None or cell["values"]["tokens per second"][0] == old
    printed = capsys.readouterr().out
    assert printed.count("| stock | cannot run: gone |") == 2
    main(["deployed", "--render", str(out)])
    assert capsys.readouterr().out == printed
    with pytest.raises(SystemExit, match="a record with another settings; give another"):
        deployed(checkpoint, data, out, *flags, "--beam=2")
    assert record["sentences"] == {"1": 2, "32": 12} and record["bleu"]["joined"] == "sentencepiece"
    monkeypatch.setattr(tool, "digest", lambda files: "another")
    with pytest.raises(SystemExit, match="a record with another code; give another"):
        deployed(checkpoint, data, out, *flags, "--rounds=2")


def test_a_program_that_fails_later_is_no_success(checkpoint, data, tmp_path, numbered, capsys):
    """Its round stands, the table says how many there are, and the command ends with the reason."""
    numbered[:] = [("", 0)] * 4  # the fifth ends all, if it is ours

    def broken(sentences, name, repeat):
        if name == "ours" and repeat:
            raise RuntimeError("no such operator")
        return {"tokens per second": 10.0, "bytes": 1.0}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tool.Sentences, "translate", broken)
        with pytest.raises(SystemExit, match="failed: ours at 2-2 .*no such operator"):
            deployed(checkpoint, data, tmp_path / "record.json", "--candidates=ours,ctranslate2", "--batches=32")
    assert "| 2-2 | 32 | ours (1 of 3 rounds; failed: RuntimeError: no such operator) | 10" in capsys.readouterr().out
    other = json.loads((tmp_path / "record.json").read_text())
    other["settings"]["checkpoint"] = "another.pt"
    (tmp_path / "other.json").write_text(json.dumps(other))
    main(["deployed", "--render", str(tmp_path / "record.json"), str(tmp_path / "other.json")])
    printed = capsys.readouterr().out
    assert "| 2-2, checkpoint_last.pt | 32 | ctranslate2 |" in printed and "| 2-2, another.pt | 32 |" in printed


def test_a_sentence_that_is_too_long_is_named_before_any_export(checkpoint, data, tmp_path, monkeypatch):
    """fairseq-generate would refuse it, the other programs would not."""
    task = tool.task_on(str(data), ("qaa", "qab"))
    task.load_dataset("test")
    sizes = [max(task.dataset("test").size(index)) for index in range(12)]
    most = max(sizes) - 1
    before = tool._model
    monkeypatch.setattr(tool, "_model", lambda settings: (*before(settings)[:2], (most, most)))
    monkeypatch.setattr(tool, "export", lambda *words: pytest.fail("exported"))
    first = sizes.index(max(sizes))
    with pytest.raises(SystemExit, match=rf"--subset test: sentence {first + 1} has .* give --sentences {first}, or"):
        deployed(checkpoint, data, tmp_path / "record.json", "--batches=32")


def test_sentences_and_speed_are_printed_as_fairseq_prints_them(tmp_path, capsys):
    """By what scores fairseq-generate; tokens are counted with the ends of sentences."""
    sentences = [{"id": 1, "reference": "b c"}, {"id": 0, "reference": "a"}]
    (tmp_path / "batches").write_text(json.dumps([sentences[:1], sentences[1:]]))
    found = iter([[["x", "y"]], [["z"]]])
    translator.translate_all({"batches": str(tmp_path / "batches")}, lambda batch: next(found))
    (tmp_path / "generated.txt").write_text(capsys.readouterr().out)
    generated, speed = read_generated(tmp_path / "generated.txt"), generation_speed(tmp_path / "generated.txt")
    assert (generated.translations, generated.references) == (["z", "x y"], ["a", "b c"])
    assert speed["tokens_per_second"] == pytest.approx(2.5 * speed["sentences_per_second"], rel=0.01)


def test_sentences_lie_in_fairseqs_batches(data):
    """All of them once, short ones first, source and numbers the same tokens."""
    task = tool.task_on(str(data), ("qaa", "qab"))
    task.load_dataset("test")
    batches = tool.listed(task, "test", {"max_sentences": 8})
    assert [len(batch) for batch in batches] == [8, 8, 4]
    sentences = [sentence for batch in batches for sentence in batch]
    assert sorted(sentence["id"] for sentence in sentences) == list(range(20))
    lengths = [len(sentence["numbers"]) for sentence in sentences]
    assert lengths == sorted(lengths)
    for sentence in sentences:
        assert task.source_dictionary.string(torch.tensor(sentence["numbers"])) == " ".join(sentence["source"])


def test_the_worker_imports_no_library_before_it_is_asked():
    """Its memory is what the program needs."""
    source = Path(translator.__file__).read_text()
    found = re.findall(r"^(?:import|from) (\w+)", source, re.MULTILINE)
    assert set(found) - {"__future__"} <= set(sys.stdlib_module_names)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("a.pt", "give CHECKPOINT, DATA and --out"),
        ("a.pt data --out=o.json --batches=7", "--batches 7: there are default,32,1"),
        ("a.pt data --out=o.json --candidates=nobody", "--candidates nobody: there are stock,ours"),
        ("a.pt data --out=o.json --version=old=nowhere", "--version old=nowhere: give NAME=FOLDER"),
        ("a.pt data --out=o.json --rounds=0", "--rounds 0: must be at least 1"),
        ("--render nowhere", "nowhere"),
    ],
)
def test_mistakes_are_named_before_anything_is_measured(words, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=re.escape(said)):
        main(["deployed", *words.split()])
    assert not list(tmp_path.iterdir())


def test_readme_shows_what_was_measured():
    """README's table is of results/deployed's records."""
    names = {"default": "fairseq's batches", "32": "32 sentences", "1": "one sentence"}
    recorded = {}
    for path in (ROOT / "results" / "deployed").glob("*.json"):
        record = json.loads(path.read_text())
        for cell in record["cells"]:
            median, ratio = cell["summary"][TOKENS]["median"], cell["to_stock"][TOKENS]
            row = recorded.setdefault(f"{record['model']['depth']}, {names[cell['condition']['batches']]}", {})
            row[cell["candidate"]] = f"{number(median, '')} [{ratio:.2f}]"
    rows = shown_in_readme("deployed")
    programs = "stock", "ours", "ctranslate2", "ctranslate2-int8", "transformers"
    assert len(rows) == 6
    assert [values for _, *values in rows] == [[recorded[name][one] for one in programs] for name, *_ in rows]
