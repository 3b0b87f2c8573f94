"""deepnet record: the same reports of records as of runs, and no path of a machine in them."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from deepnet_fairseq.analysis.records.places import relative
from deepnet_fairseq.analysis.records.short_log import short_log
from deepnet_fairseq.cli import main

from .support.reported import as_json, log, printed, run
from .support.translated import noisy, sentences, write_corpus, write_generated

PATHS = re.compile(r"/(home|root|tmp|work|mnt)\b")
LISTING = "2026-11-21 10:00:01 | INFO | fairseq_cli.train | DeepTransformer(\n  (encoder): Encoder(\n  )\n)\n"
PARAMETERS = "2026-11-21 10:00:01 | INFO | fairseq_cli.train | num. shared model params: 61,000,000 (num. trained: 1)\n"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Table 1: a baseline, a worse system, one that diverged, one that still runs; their corpus and checkpoints."""
    root = tmp_path_factory.mktemp("machine") / "runs of mine"
    references = sentences(60)
    data = write_corpus(root / "data", {"test.de-en": references})
    place = str(data).replace(" ", "\\ ")  # as the scripts quote it
    said = {"command": f"fairseq-train {place} --arch x --tensorboard-logdir /mnt/disk/logs"}
    first, *rest = log(("10:00:00", "13:00:00")).splitlines()
    said["log"] = "\n".join([f"{first[:-1]}, 'save_dir': '{root}/table1'}}", LISTING + PARAMETERS, *rest]) + "\n"
    for name, method, rate in (("base", "pre_ln", 0.2), ("worse", "deepnorm", 0.8)):
        folder = run(root, "table1", name, method, bleu=28.0, **said)
        write_generated(folder / "generated.txt", noisy(references, rate), references)
        (folder / "checkpoint_last.pt").write_bytes(b"0" * 1000)
    run(root, "table1", "gone", "admin", diverged="diverged at update 150", **said)
    begun = run(root, "table1", "begun", "post_ln", trained=False, **said)
    (begun / "environment.json").write_text("")  # as it is for a second while a script writes it
    return root


@pytest.fixture(scope="module")
def recorded(runs, tmp_path_factory):
    dest = tmp_path_factory.mktemp("elsewhere") / "records"
    main(["record", str(runs), str(dest)])
    return dest


def test_reports_are_the_same(runs, recorded, tmp_path, capsys):
    """But for the run that is not over, and the places in commands; the paired test is remembered."""
    finished = tmp_path / "finished"
    shutil.copytree(runs, finished)
    shutil.rmtree(finished / "table1" / "begun")
    whole, kept = as_json(capsys, finished), as_json(capsys, recorded)
    assert [entry.pop("command") for entry in kept["runs"]] == [
        "fairseq-train data/bin --arch x --tensorboard-logdir .../logs"
    ] * 3
    assert all(entry.pop("command") for entry in whole["runs"])
    assert kept == whole
    found = {entry["name"]: entry for entry in kept["runs"]}
    assert found["worse"]["p"] == pytest.approx(1 / 1001) and found["worse"]["baseline_run"] == "base"
    assert found["worse"]["parameters"] == 61_000_000 and found["worse"]["wall_hours"] == 3
    assert found["gone"]["diverged_at"] == 150
    for form in ("md", "tex"):
        assert printed(capsys, recorded, "--table", "1", "--format", form) == printed(
            capsys, finished, "--table", "1", "--format", form
        )


def test_nothing_heavy_and_no_path_is_kept(recorded):
    files = [path for path in recorded.rglob("*") if path.is_file()]
    assert {path.parent.name for path in files} == {"base", "worse", "gone"}
    assert {path.suffix for path in files} == {".json", ".log", ""}
    for path in files:
        assert not PATHS.search(path.read_text()) and "Encoder" not in path.read_text(), path


def test_recording_again_replaces(runs, tmp_path, capsys):
    copy, dest = tmp_path / "runs", tmp_path / "records"
    shutil.copytree(runs, copy)
    main(["record", str(copy), str(dest)])
    first = {path.relative_to(dest): path.read_bytes() for path in dest.rglob("*") if path.is_file()}
    main(["record", str(copy), str(dest)])
    assert {path.relative_to(dest): path.read_bytes() for path in dest.rglob("*") if path.is_file()} == first
    (copy / "table1" / "worse" / "score.json").unlink()
    main(["record", str(copy), str(dest)])
    assert not (dest / "table1" / "worse" / "score.json").exists()
    assert "not over, left out: table1/begun" in capsys.readouterr().out


@pytest.mark.parametrize(
    "text, said",
    [
        ("--save-dir /home/me/runs/table1/a --seed 1", "--save-dir table1/a --seed 1"),
        ("a:/home/me/runs/data/x:/home/me/runs/data/y", "a:data/x:data/y"),
        ("--data=/mnt/big/text/train.en", "--data=.../train.en"),
        ("/mnt/my\\ disk/text", ".../text"),
        ("~/text/train.en ~/x", ".../train.en .../x"),
        ("https://example.org/a/b and 1/2, GPUs/TPUs, a / b", "https://example.org/a/b and 1/2, GPUs/TPUs, a / b"),
        ("data-bin/de-en ../up ./here", "data-bin/de-en ../up ./here"),
    ],
)
def test_places(text, said):
    assert relative(text, Path("/home/me/runs")) == said


def test_log_keeps_what_is_read_and_no_probes():
    row = '2026-11-21 10:00:02 | INFO | train_inner | {"loss": "9", "num_updates": "1", "wall": "2", "probe/x": "1"}'
    kept = short_log(
        f"{LISTING}{PARAMETERS}{row}\n2026-11-21 10:00:03 | INFO | other | words\nerror: diverged at update 1\n"
    )
    assert [line.split(" | ")[-1] for line in kept.splitlines()] == [
        "num. shared model params: 61,000,000 (num. trained: 1)",
        '{"loss": "9", "num_updates": "1", "wall": "2"}',
        "error: diverged at update 1",
    ]


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda root: (root / "table1/base/environment.json").unlink(), "base: has no environment.json"),
        (lambda root: (root / "table1/base/run.json").write_text("{"), "run.json: is no JSON"),
        (lambda root: shutil.rmtree(root), "no such folder"),
        (lambda root: [path.unlink() for path in root.rglob("trained")], "holds no finished runs"),
    ],
)
def test_mistakes(change, said, runs, tmp_path):
    copy = tmp_path / "runs"
    shutil.copytree(runs, copy)
    change(copy)
    with pytest.raises(SystemExit, match=said):
        main(["record", str(copy), str(tmp_path / "records")])
    assert not (tmp_path / "records").exists()


def test_records_within_the_runs_are_refused(runs):
    with pytest.raises(SystemExit, match="lies in"):
        main(["record", str(runs), str(runs / "records")])


def test_paired_test_that_is_no_number(recorded, tmp_path):
    copy = tmp_path / "records"
    shutil.copytree(recorded, copy)
    (copy / "table1/worse/paired.json").write_text(json.dumps({"table1/base": "x"}))
    with pytest.raises(SystemExit, match=r"paired\.json: p against table1/base is 'x'"):
        main(["report", str(copy), "--table", "1"])
