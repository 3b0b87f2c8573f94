"""What single tables have in `deepnet report`: several languages, miniatures, edit rates, systems trained elsewhere."""

from __future__ import annotations

from .support.reported import grid, log, printed, run, score


def test_multilingual_tables(tmp_path, capsys):
    scored = {"bleu": 31.5, "kind": "sacrebleu", "to_english": 33.0, "from_english": 30.0, "directions": {}}
    shape = {"log": log(("10:00:00", "11:00:00")), "parameters": 862_900_000}
    run(tmp_path, "table2", "deep", layers=100, score=scored, **shape)
    run(tmp_path, "opus100", "deeper", layers=500, score=scored | {"missing": {"test": ["de-en"]}}, **shape)
    rows = grid(printed(capsys, tmp_path, "--table", "2"), "Beside the paper")
    found = {(row["model"], row["layers"]): row for row in rows}
    deep = found["DeepNorm", "200"]
    assert deep["parameters"] == "863M (863M)"
    assert [deep[c] for c in ("X→En", "En→X", "Avg")] == ["33.00", "30.00", "31.50"]
    assert [deep[f"{c}, paper"] for c in ("X→En", "En→X", "Avg")] == ["33.2", "29.0", "31.1"]
    assert found["Zhang et al. 2020", "48"]["Avg"] == "–" and found["Zhang et al. 2020", "48"]["Avg, paper"] == "27.7"
    assert found["DeepNorm", "1000"]["Avg"] == "scored in part"

    sets = {name: {"bleu": bleu} for name, bleu in (("wmt", 34.0), ("opus", 22.0), ("flores", 19.1))}
    run(tmp_path, "table3", "m2m", layers=100, score={"bleu": 25.0, "kind": "sacrebleu", "sets": sets}, **shape)
    row = grid(printed(capsys, tmp_path, "--table", "3"), "Beside the paper")[1]
    assert [row[key] for key in ("WMT", "OPUS", "TED", "Flores")] == ["34.00", "22.00", "not scored", "19.10"]
    theirs = {"system": "M2M-100", "score": {"sets": {"flores": {"bleu": 13.5}}}}
    run(tmp_path, "table3", "m2m100", "pre_ln", 24, **shape | theirs)
    rows = grid(printed(capsys, tmp_path, "--table", "3"), "Overview")
    assert [(row["model"], row["WMT"], row["Flores"]) for row in rows if row["layers"] == "48"] == [
        ("M2M-100", "not scored (31.9)", "13.50 (13.6)")]  # fmt: skip


def test_a_miniature_shows_what_was_run_and_each_language(tmp_path, capsys):
    """Rows without runs are left out. Into German two directions; the second run never writes French."""
    for name, layers, french in (("a", 2, 12.0), ("b", 6, 0.0)):
        bleu = {"en-de": 20.0, "fr-de": 10.0, "en-fr": french}
        sets = {"test": {"bleu": 1.0, "directions": {direction: {"bleu": value} for direction, value in bleu.items()}}}
        run(tmp_path, "opus100", name, layers=layers, score={"bleu": 1.0, "sets": sets}, smoke=True)
    text = printed(capsys, tmp_path, "--table", "opus100")
    assert [row["layers"] for row in grid(text, "Overview")] == ["4", "12"] and "not run |" not in text
    assert grid(text, "Into each language") == [
        {"language": "de", "a": "15.00", "b": "15.00"}, {"language": "fr", "a": "12.00", "b": "0.00"}]  # fmt: skip
    assert [row["layers"] for row in grid(text, "Runs")] == ["2L-2L", "6L-6L"]
    run(tmp_path, "table1", "c", layers=6, bleu=1.0, smoke=True)
    (row,) = grid(printed(capsys, tmp_path, "--table", "1"), "Overview")
    assert row == {"method": "DeepNorm", "6L-6L": "1.00 (27.8)"}


def test_columns_of_admins_tables(tmp_path, capsys):
    """TER in a column of its own, not among the further metrics; a run without warm-up has no published number."""
    edits = {"ter": {"score": 54.0, "mean": 54.1, "ci": 0.5, "signature": "tok:tercom"}}
    run(tmp_path, "admin_wmt14", "a", "admin", 6, corpus="wmt14_en_de", score=score(27.7, **edits))
    text = printed(capsys, tmp_path, "--table", "admin_wmt14")
    (row,) = grid(text, "Beside the paper")
    assert (row["TER"], row["TER, paper"], row["BLEU, paper"]) == ("54.00", "54.1", "27.9")
    assert not any("TER \\[" in header for header in grid(text, "Runs")[0])
    assert grid(text, "Overview")[2]["wmt14\\_en\\_de 6L-6L"] == "27.70 (27.9)"
    for variant in ("", "no_warmup"):
        run(tmp_path, "admin_iwslt14", f"b{variant}", "admin", 6, variant=variant, score=score(35.5, **edits))
    rows = grid(printed(capsys, tmp_path, "--table", "admin_iwslt14"), "Overview")
    found = {row["variant"]: row["BLEU"] for row in rows if row["model"] == "Admin"}
    assert found == {"–": "35.50 (35.67)", "no\\_warmup": "35.50"}
