"""Tests of results/records.py: records give the reports of their runs, name no path of a machine, render results/."""

from __future__ import annotations

import json
import re
import shutil
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from deepnet_fairseq.cli import main as deepnet
from deepnet_fairseq.study.runs import read_records
from results.records import main, relative

from ..support.helpers import ROOT
from ..support.recorded import probes_of_figure4 as watched
from ..support.recorded import write_figure_run as record
from ..support.reported import ENVIRONMENT
from ..support.reported import printed_report as printed
from ..support.reported import train_log as log
from ..support.reported import write_run as run

MACHINE = re.compile(r"(?<![\w.])/(work|tmp|root|home|Users|mnt|scratch)/")
LISTING = "2026-11-21 10:00:01 | INFO | fairseq_cli.train | DeepTransformer(\n  (encoder): Encoder(\n  )\n)\n"
PARAMETERS = "2026-11-21 10:00:01 | INFO | fairseq_cli.train | num. shared model params: 61,000,000 (num. trained: 1)\n"
BLOCK = "<!-- report {0} -->\nold\n<!-- /report {0} -->\n"
RESULTS = ROOT / "results"
RECORDS = [
    *(RESULTS / "runs").iterdir(),
    *(RESULTS / "depth_study" / f"{name}.jsonl" for name in ("records", "other_text")),
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Provide runs of Table 1: a baseline, a worse system, a diverged one and an unfinished one, with checkpoints."""
    root = tmp_path_factory.mktemp("machine") / "runs of mine"
    place = str(root / "data" / "bin").replace(" ", "\\ ")  # quoted as in the scripts
    facts = {"command": f"fairseq-train {place} --arch x --tensorboard-logdir /mnt/disk/logs"}
    first, *rest = log(("10:00:00", "13:00:00")).splitlines()
    facts["log"] = "\n".join([f"{first[:-1]}, 'save_dir': '{root}/table1'}}", LISTING + PARAMETERS, *rest]) + "\n"
    for name, method in (("base", "pre_ln"), ("worse", "deepnorm")):
        (run(root, "table1", name, method, bleu=28.0, **facts) / "checkpoint_last.pt").write_bytes(b"0" * 1000)
    run(root, "table1", "gone", "admin", diverged="diverged at update 150", **facts)
    begun = run(root, "table1", "begun", "post_ln", trained=False, **facts)
    (begun / "environment.json").write_text("")  # empty for a moment while a script writes it
    return root


@pytest.fixture(scope="module")
def recorded(runs, tmp_path_factory):
    dest = tmp_path_factory.mktemp("elsewhere") / "records"
    main(["keep", str(runs), str(dest)])
    return dest


def test_reports_are_the_same(runs, recorded, tmp_path, capsys):
    """Reports of records equal those of the runs, except for the unfinished run and the paths of logs."""
    finished = tmp_path / "finished"
    shutil.copytree(runs, finished)
    shutil.rmtree(finished / "table1" / "begun")
    (records,) = [(recorded / "table1.jsonl").read_text().splitlines()]
    commands = {json.loads(line)["command"] for line in records}
    assert commands == {"fairseq-train data/bin --arch x --tensorboard-logdir .../logs"}
    page = printed(capsys, finished, "--table", "1")
    assert printed(capsys, recorded, "--table", "1") == re.sub(r"\(table1/\S+/train.log\)", "(table1.jsonl)", page)


def test_nothing_heavy_and_no_path_is_kept(recorded):
    (file,) = (path for path in recorded.rglob("*") if path.is_file())
    assert [run.name for run in read_records(file)] == ["base", "gone", "worse"]
    assert not MACHINE.search(file.read_text()) and "Encoder" not in file.read_text()


def test_recording_again_replaces_and_keeps_the_others(runs, tmp_path, capsys):
    copy, dest = tmp_path / "runs", tmp_path / "records"
    shutil.copytree(runs, copy)
    main(["keep", str(copy), str(dest)])
    file = dest / "table1.jsonl"
    (copy / "table1" / "worse" / "score.json").unlink()
    shutil.rmtree(copy / "table1" / "gone")
    main(["keep", str(copy), str(dest)])
    records = {run.name: run for run in read_records(file)}
    assert records.keys() == {"base", "gone", "worse"} and records["worse"].score is None
    assert "not over, left out: table1/begun" in capsys.readouterr().out


def test_records_of_one_experiment_in_a_file(runs, tmp_path):
    """Records of one experiment go into one file, named by their places below RUNS, which keeps addresses."""
    main(["keep", str(runs), str(tmp_path / "quickstart.jsonl")])
    (first, *_) = read_records(tmp_path / "quickstart.jsonl")
    assert (first.parts["name"], first.name, first.address) == ("table1/base", "base", "table1/base")


@pytest.mark.parametrize(
    "text, said",
    [
        ("--save-dir /home/me/runs/table1/a --seed 1", "--save-dir table1/a --seed 1"),
        ("a:/home/me/runs/data/x:/home/me/runs/data/y", "a:data/x:data/y"),
        ("--data=/mnt/big/text/train.en", "--data=.../train.en"),
        ("/mnt/my\\ disk/text", ".../text"),
        ("~/text/train.en ~/x", ".../train.en .../x"),
        ("https://example.org/a/b and 1/2, GPUs/TPUs, a / b", "https://example.org/a/b and 1/2, GPUs/TPUs, a / b"),
    ],
)
def test_places(text, said):
    assert relative(text, Path("/home/me/runs")) == said


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
        main(["keep", str(copy), str(tmp_path / "records")])
    assert not (tmp_path / "records").exists()


def test_a_broken_record_is_named(recorded, tmp_path):
    *others, record = (recorded / "table1.jsonl").read_text().splitlines()
    (tmp_path / "table1.jsonl").write_text("".join(f"{line}\n" for line in [*others, record[:-9]]))
    with pytest.raises(SystemExit, match="table1.jsonl: line 3: is no JSON"):
        deepnet(["report", str(tmp_path), "--table", "1"])


@pytest.fixture(scope="module")
def rendered(tmp_path_factory):
    """Provide rendered records: Table 1 at three depths, a miniature of Figure 4, a Figure 5 without probes."""
    root = tmp_path_factory.mktemp("render")
    results = root / "results"
    for layers, bleu in ((6, 27.0), (18, 28.5), (19, 99.0)):
        run(root / "live", "table1", f"deep-{layers}", layers=layers, bleu=bleu)
    for series in ("post_ln_warmup", "post_ln_no_warmup", "post_ln_init_warmup"):
        facts = {"series": series, "smoke": True, "environment": ENVIRONMENT}
        record(root / "live", 4, series, "post_ln", probes=watched(), **facts)
    record(root / "live", 5, "broken", "deepnorm", 6, update=5, environment=ENVIRONMENT)
    main(["keep", str(root / "live"), str(results / "runs")])
    run(results / "runs", "table1", "post", "post_ln", layers=100, bleu=1.0)
    (results / "README.md").write_text(f"before\n{BLOCK.format('index')}after\n")
    with open(root / "said", "w") as file, redirect_stdout(file):
        main(["render", str(results)])
    return root


def test_rendered_pages(rendered):
    output = (rendered / "said").read_text()
    assert "28.50" in (rendered / "results/tables/table1.md").read_text()
    assert f"left out figure5: {rendered / 'results/runs/figure5.jsonl'}: broken: probes: has no model_up" in output
    numbers = (rendered / "results/miniatures.md").read_text()
    assert "![Figure 4: " in numbers and "(figures/miniature/figure4.png)" in numbers
    lines = (rendered / "results" / "README.md").read_text().splitlines()
    assert (lines[0], lines[-2:]) == ("before", ["<!-- /report index -->", "after"]) and "old" not in lines
    rows = {cells[0].strip("| "): cells[1:] for cells in (line.split(" | ") for line in lines)}
    (name,) = [name for name in rows if "Wang et al. 2022, Table 1" in name]
    _, state, number, place = rows[name]
    assert state == "as in the paper, but for its warnings, 4 runs"
    assert number == "DeepNorm 18L-18L, BLEU: 28.50 (28.8)" and place == "[table1.md](tables/table1.md) |"
    assert [rows[f"Wang et al. 2022, Figure {n}"][1] for n in (4, 5, 7)] == ["miniature", "not run", "not run"]


def test_results_are_what_the_records_give(tmp_path):
    """results/ equals what its records render to; `scripts/render_results.sh` repairs a difference."""
    shutil.copytree(
        RESULTS, tmp_path / "results", ignore=shutil.ignore_patterns("tables", "miniature", "miniatures.md")
    )
    main(["render", str(tmp_path / "results")])
    pages = {path.relative_to(tmp_path) for path in tmp_path.rglob("*.md")}
    assert pages >= {path.relative_to(ROOT) for path in RESULTS.rglob("*.md")}
    for page in sorted(pages):
        assert (tmp_path / page).read_text() == (ROOT / page).read_text(), page
    pictures = {path.relative_to(tmp_path) for path in (tmp_path / "results" / "figures").rglob("*.png")}
    assert pictures == {path.relative_to(ROOT) for path in (RESULTS / "figures").rglob("*.png")}
    small = [*(RESULTS / "figures" / "miniature").glob("*.png"), RESULTS / "figures" / "depth.png"]
    assert all(3_000 < path.stat().st_size < 60_000 for path in small)


def test_every_record_says_what_it_is():
    """Every record has a log, command, commit, versions and hardware, and names no path of a machine."""
    records = [one for path in RECORDS for one in read_records(path)]
    assert len(records) == 153 + 205 + 16
    for one in records:
        assert one.log.updates and one.hours and one.command, one.where()
        assert re.fullmatch(r"[0-9a-f]{7,40}", one.environment["commit"]) and not one.environment["modified"]
        assert {"python", "torch", "fairseq", "deepnet_fairseq"} <= one.environment["versions"].keys(), one.where()
        assert one.environment["hardware"]
    texts = [path for path in RESULTS.rglob("*") if path.suffix in (".md", ".json", ".jsonl")]
    assert len(texts) > 20 and not [path for path in texts if MACHINE.search(path.read_text())]
    assert sum(path.stat().st_size for path in RECORDS) < 4_000_000
