"""Tests of results/records.py: records give the reports of their runs, name no path of a machine, render results/."""

from __future__ import annotations

import io
import json
import re
import shutil
from contextlib import redirect_stdout
from pathlib import Path
from typing import NamedTuple

import pytest

from deepnet_fairseq.study.runs import read_records
from results.records import main, relative

from ..support.errors import assert_refused
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
        folder = run(root, "table1", name, method, bleu=28.0, **facts)
        (folder / "checkpoint_last.pt").write_bytes(b"0" * 1000)
    run(root, "table1", "gone", "admin", diverged="diverged at update 150", **facts)
    begun = run(root, "table1", "begun", "post_ln", trained=False, **facts)
    (begun / "environment.json").write_text("")  # empty for a moment while a script writes it
    return root


@pytest.fixture(scope="module")
def recorded(runs, tmp_path_factory):
    """Provide the folder of the records of `runs`."""
    dest = tmp_path_factory.mktemp("elsewhere") / "records"
    main(["keep", str(runs), str(dest)])
    return dest


def test_a_report_of_records_equals_that_of_the_runs(runs, recorded, tmp_path, capsys):
    """But for the unfinished run and the paths of logs."""
    finished = tmp_path / "finished"
    shutil.copytree(runs, finished)
    shutil.rmtree(finished / "table1" / "begun")

    page = printed(capsys, finished, "--table", "1")

    expected = re.sub(r"\(table1/\S+/train.log\)", "(table1.jsonl)", page)
    assert printed(capsys, recorded, "--table", "1") == expected


def test_a_recorded_command_has_no_path_of_the_machine(recorded):
    lines = (recorded / "table1.jsonl").read_text().splitlines()

    commands = {json.loads(line)["command"] for line in lines}
    assert commands == {"fairseq-train data/bin --arch x --tensorboard-logdir .../logs"}


def test_only_finished_runs_are_kept(recorded):
    (file,) = (path for path in recorded.rglob("*") if path.is_file())

    assert [run.name for run in read_records(file)] == ["base", "gone", "worse"]


def test_no_path_of_the_machine_and_no_listing_of_the_model_are_kept(recorded):
    content = (recorded / "table1.jsonl").read_text()

    assert "fairseq-train" in content
    assert not MACHINE.search(content)
    assert "Encoder" not in content


@pytest.fixture
def recorded_again(runs, tmp_path):
    """Provide the file of records made a second time: then one run has no score, and one is gone."""
    copy = tmp_path / "runs"
    shutil.copytree(runs, copy)
    main(["keep", str(copy), str(tmp_path / "records")])
    (copy / "table1" / "worse" / "score.json").unlink()
    shutil.rmtree(copy / "table1" / "gone")
    main(["keep", str(copy), str(tmp_path / "records")])
    return tmp_path / "records" / "table1.jsonl"


def test_recording_again_replaces_records_and_keeps_those_of_missing_runs(recorded_again):
    records = {run.name: run for run in read_records(recorded_again)}

    assert records.keys() == {"base", "gone", "worse"}
    assert records["worse"].score is None


def test_a_run_that_is_not_over_is_named(capsys, recorded_again):
    assert recorded_again.exists()
    assert "table1/begun" in capsys.readouterr().out


def test_records_of_one_file_are_addressed_by_their_place_below_the_runs(runs, tmp_path):
    main(["keep", str(runs), str(tmp_path / "quickstart.jsonl")])

    (first, *_) = read_records(tmp_path / "quickstart.jsonl")
    assert first.parts["name"] == "table1/base"
    assert first.name == "base"
    assert first.address == "table1/base"


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
def test_paths_become_relative_to_the_runs_or_lose_their_folders(text, said):
    assert relative(text, Path("/home/me/runs")) == said


def remove_trained(root) -> None:
    for path in root.rglob("trained"):
        path.unlink()


@pytest.mark.parametrize(
    "spoil, facts",
    [
        (lambda root: (root / "table1/base/environment.json").unlink(), ["base: ", "environment.json"]),
        (lambda root: (root / "table1/base/run.json").write_text("{"), ["run.json: ", "JSON"]),
        (shutil.rmtree, ["runs: "]),
        (remove_trained, ["runs: ", "trained"]),
    ],
    ids=["no environment", "broken run.json", "no folder", "no finished runs"],
)
def test_runs_that_cannot_be_recorded_are_named_and_nothing_is_written(spoil, facts, runs, tmp_path):
    copy = tmp_path / "runs"
    shutil.copytree(runs, copy)
    spoil(copy)

    with pytest.raises(SystemExit) as ended:
        main(["keep", str(copy), str(tmp_path / "records")])

    for fact in facts:
        assert fact in str(ended.value)
    assert not (tmp_path / "records").exists()


def test_a_broken_record_is_named_by_its_line(recorded, tmp_path):
    *others, last = (recorded / "table1.jsonl").read_text().splitlines()
    (tmp_path / "table1.jsonl").write_text("".join(f"{line}\n" for line in [*others, last[:-9]]))

    assert_refused("table1.jsonl: line 3: ", "report", tmp_path, "--table", "1")


class Rendered(NamedTuple):
    """Folder of records and the pages rendered from them, and what the rendering prints."""

    results: Path
    printed: str

    def index(self) -> dict[str, list[str]]:
        """Return the rows of the index: first cell -> other cells."""
        rows = {}
        for line in (self.results / "README.md").read_text().splitlines():
            if line.startswith("| "):
                first, *others = (cell.strip() for cell in line.strip("|").split(" | "))
                rows[first] = others
        return rows


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
    output = io.StringIO()
    with redirect_stdout(output):
        main(["render", str(results)])
    return Rendered(results, output.getvalue())


def test_a_table_is_rendered_from_its_records(rendered):
    assert "28.50" in (rendered.results / "tables/table1.md").read_text()


def test_a_figure_whose_records_are_incomplete_is_left_out_and_named(rendered):
    (line,) = [line for line in rendered.printed.splitlines() if "figure5" in line]

    assert f"{rendered.results / 'runs/figure5.jsonl'}: broken: probes: " in line
    assert "model_up" in line
    assert not list(rendered.results.rglob("figure5.png"))


def test_a_miniature_s_picture_is_on_the_page_of_miniatures(rendered):
    page = (rendered.results / "miniatures.md").read_text()

    assert "![Figure 4: " in page
    assert "(figures/miniature/figure4.png)" in page


def test_rendering_replaces_what_is_between_the_marks_alone(rendered):
    lines = (rendered.results / "README.md").read_text().splitlines()

    assert lines[0] == "before"
    assert lines[-2:] == ["<!-- /report index -->", "after"]
    assert "old" not in lines


def test_the_index_shows_the_best_comparable_row_of_a_table_beside_the_paper_s(rendered):
    """The paper has no model of 19 layers."""
    rows = rendered.index()

    (name,) = [name for name in rows if "Wang et al. 2022, Table 1" in name]
    _, state, number, place = rows[name]
    assert state.startswith("as in the paper")
    assert state.endswith("4 runs")
    assert number == "DeepNorm 18L-18L, BLEU: 28.50 (28.8)"
    assert place == "[table1.md](tables/table1.md)"


@pytest.mark.parametrize("figure, state", [(4, "miniature"), (5, "not run"), (7, "not run")])
def test_the_index_says_how_far_a_figure_is(figure, state, rendered):
    assert rendered.index()[f"Wang et al. 2022, Figure {figure}"][1] == state


@pytest.fixture(scope="module")
def results_anew(tmp_path_factory):
    """Provide a folder with results/, its tables and miniatures rendered from its records."""
    root = tmp_path_factory.mktemp("anew")
    rendered = shutil.ignore_patterns("tables", "miniature", "miniatures.md")
    shutil.copytree(RESULTS, root / "results", ignore=rendered)
    main(["render", str(root / "results")])
    return root


def below(root: Path, pattern: str) -> set[Path]:
    """Return the paths in root/results that match, from root."""
    return {path.relative_to(root) for path in (root / "results").rglob(pattern)}


def test_pages_of_results_are_what_the_records_give(results_anew):
    """`scripts/render_results.sh` repairs a difference."""
    pages = below(results_anew, "*.md")

    assert pages >= below(ROOT, "*.md")
    for page in sorted(pages):
        assert (results_anew / page).read_text() == (ROOT / page).read_text(), page


def test_pictures_of_results_are_those_that_the_records_give(results_anew):
    assert below(results_anew, "figures/**/*.png") == below(ROOT, "figures/**/*.png")
    assert below(ROOT, "figures/**/*.png")


def test_pictures_of_results_are_small(results_anew):
    figures = results_anew / "results" / "figures"
    pictures = [*(figures / "miniature").glob("*.png"), figures / "depth.png"]

    assert len(pictures) > 1
    for picture in pictures:
        assert 3_000 < picture.stat().st_size < 60_000, picture


@pytest.fixture(scope="module")
def committed_records():
    records = []
    for path in RECORDS:
        records += read_records(path)
    return records


def test_every_record_says_what_it_is(committed_records):
    """Every record has a log, hours, a command, commit, versions and hardware."""
    assert len(committed_records) == 153 + 205 + 16
    for one in committed_records:
        assert one.log.updates, one.where()
        assert one.hours, one.where()
        assert one.command, one.where()
        assert re.fullmatch(r"[0-9a-f]{7,40}", one.environment["commit"]), one.where()
        assert not one.environment["modified"], one.where()
        assert {"python", "torch", "fairseq", "deepnet_fairseq"} <= one.environment["versions"].keys(), one.where()
        assert one.environment["hardware"], one.where()


def test_no_page_or_record_of_results_names_a_path_of_a_machine():
    texts = [path for path in RESULTS.rglob("*") if path.suffix in (".md", ".json", ".jsonl")]

    assert len(texts) > 20
    assert not [path for path in texts if MACHINE.search(path.read_text())]


def test_the_records_are_small():
    assert sum(path.stat().st_size for path in RECORDS) < 4_000_000
