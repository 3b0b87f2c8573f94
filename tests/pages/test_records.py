"""Tests of results/records.py: records give reports and pages, and name no path of a machine.

`records.py keep RUNS DEST` writes a record of each finished run, one line of JSON with the contents of its folder, into
DEST/EXPERIMENT.jsonl. `records.py render RESULTS` writes tables, pictures and an index from RESULTS/runs.
"""

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
from ..support.recorded import probes_of_figure4, write_figure_run
from ..support.reported import ENVIRONMENT, printed_report, train_log, write_run

PATH_OF_MACHINE = re.compile(r"(?<![\w.])/(work|tmp|root|home|Users|mnt|scratch)/")
# what fairseq-train logs of the model
LISTING = "2026-11-21 10:00:01 | INFO | fairseq_cli.train | DeepTransformer(\n  (encoder): Encoder(\n  )\n)\n"
PARAMETERS = "2026-11-21 10:00:01 | INFO | fairseq_cli.train | num. shared model params: 61,000,000 (num. trained: 1)\n"
RESULTS = ROOT / "results"
COMMITTED = [  # files of records
    *(RESULTS / "runs").iterdir(),
    *(RESULTS / "depth_study" / f"{name}.jsonl" for name in ("records", "other_text")),
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Provide runs of Table 1: two with scores and checkpoints, a diverged one, and one that is not over.

    Their commands and logs name paths of this machine: the folder of the runs, and /mnt/disk/logs.
    """
    root = tmp_path_factory.mktemp("machine") / "runs of mine"
    data = str(root / "data" / "bin").replace(" ", "\\ ")  # quoted as in the scripts
    command = f"fairseq-train {data} --arch x --tensorboard-logdir /mnt/disk/logs"
    settings, *progress = train_log(("10:00:00", "13:00:00")).splitlines()
    settings_with_folder = f"{settings[:-1]}, 'save_dir': '{root}/table1'}}"
    log = "\n".join([settings_with_folder, LISTING + PARAMETERS, *progress]) + "\n"

    for name, method in (("base", "pre_ln"), ("worse", "deepnorm")):
        folder = write_run(root, "table1", name, method, bleu=28.0, command=command, log=log)
        (folder / "checkpoint_last.pt").write_bytes(b"0" * 1000)
    write_run(root, "table1", "gone", "admin", diverged="diverged at update 150", command=command, log=log)
    begun = write_run(root, "table1", "begun", "post_ln", trained=False, command=command, log=log)
    (begun / "environment.json").write_text("")  # empty for a moment while a script writes it
    return root


@pytest.fixture(scope="module")
def recorded(runs, tmp_path_factory):
    """Provide the folder of the records of `runs`, whose only file is table1.jsonl."""
    folder = tmp_path_factory.mktemp("elsewhere") / "records"
    main(["keep", str(runs), str(folder)])
    return folder


def test_a_report_of_records_equals_that_of_the_runs(runs, recorded, tmp_path, capsys):
    """A report of records leaves out the run that is not over, and links to the records in place of the logs."""
    finished = tmp_path / "finished"
    shutil.copytree(runs, finished)
    shutil.rmtree(finished / "table1" / "begun")

    of_runs = printed_report(capsys, finished, "--table", "1")

    of_records = printed_report(capsys, recorded, "--table", "1")

    assert of_records == re.sub(r"\(table1/\S+/train.log\)", "(table1.jsonl)", of_runs)


def test_a_recorded_command_has_no_path_of_the_machine(recorded):
    lines = (recorded / "table1.jsonl").read_text().splitlines()

    commands = {json.loads(line)["command"] for line in lines}
    assert commands == {"fairseq-train data/bin --arch x --tensorboard-logdir .../logs"}


def test_only_finished_runs_are_kept(recorded):
    (file,) = [path for path in recorded.rglob("*") if path.is_file()]

    names = [run.name for run in read_records(file)]
    assert names == ["base", "gone", "worse"]


def test_no_path_of_the_machine_and_no_listing_of_the_model_are_kept(recorded):
    content = (recorded / "table1.jsonl").read_text()

    assert "fairseq-train" in content
    assert not PATH_OF_MACHINE.search(content)
    assert "Encoder" not in content


@pytest.fixture
def recorded_again(runs, tmp_path):
    """Provide the file of records that were made twice: the second time one run has lost its score, and one is gone."""
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


def test_a_run_that_is_not_over_is_named(runs, tmp_path, capsys):
    main(["keep", str(runs), str(tmp_path / "records")])

    assert "table1/begun" in capsys.readouterr().out


def test_records_in_a_file_of_all_experiments_are_named_by_their_folder(runs, tmp_path):
    """The command names one file in place of a folder of files."""
    main(["keep", str(runs), str(tmp_path / "quickstart.jsonl")])

    (first, *_) = read_records(tmp_path / "quickstart.jsonl")
    assert first.parts["name"] == "table1/base"
    assert first.name == "base"
    assert first.address == "table1/base"


@pytest.mark.parametrize(
    "text, recorded_text",
    [
        ("--save-dir /home/me/runs/table1/a --seed 1", "--save-dir table1/a --seed 1"),
        ("a:/home/me/runs/data/x:/home/me/runs/data/y", "a:data/x:data/y"),
        ("--data=/mnt/big/text/train.en", "--data=.../train.en"),
        ("/mnt/my\\ disk/text", ".../text"),
        ("~/text/train.en ~/x", ".../train.en .../x"),
        ("https://example.org/a/b and 1/2, GPUs/TPUs, a / b", "https://example.org/a/b and 1/2, GPUs/TPUs, a / b"),
    ],
)
def test_paths_become_relative_to_the_runs_or_lose_their_folders(text, recorded_text):
    assert relative(text, base=Path("/home/me/runs")) == recorded_text


def remove_environment(runs) -> None:
    (runs / "table1/base/environment.json").unlink()


def break_run_json(runs) -> None:
    (runs / "table1/base/run.json").write_text("{")


def remove_marks_of_finished_runs(runs) -> None:
    for path in runs.rglob("trained"):
        path.unlink()


@pytest.mark.parametrize(
    "spoil, facts",
    [
        (remove_environment, ["base: ", "environment.json"]),
        (break_run_json, ["run.json: ", "JSON"]),
        (shutil.rmtree, ["runs: "]),
        (remove_marks_of_finished_runs, ["runs: ", "trained"]),
    ],
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
    with_broken_line_3 = [*others, last[:-9]]
    (tmp_path / "table1.jsonl").write_text("".join(f"{line}\n" for line in with_broken_line_3))

    assert_refused("table1.jsonl: line 3: ", "report", tmp_path, "--table", "1")


class Rendered(NamedTuple):
    """The folder of records and of the pages rendered from them, and what the rendering printed."""

    results: Path
    printed: str

    def index(self) -> dict[str, list[str]]:
        """Return the rows of the index: what a paper has -> script, what was run here, numbers, link to the page."""
        rows = {}
        for line in (self.results / "README.md").read_text().splitlines():
            if line.startswith("| "):
                cells = [cell.strip() for cell in line.strip("|").split(" | ")]
                name, *others = cells
                rows[name] = others
        return rows


@pytest.fixture(scope="module")
def rendered(tmp_path_factory):
    """Provide what is rendered of runs of Table 1 (four depths), a miniature of Figure 4, a Figure 5 without probes.

    The run of 100 layers is no record but a live run among the records. The page had the lines "before" and "after"
    around a marked section, which held "old".
    """
    root = tmp_path_factory.mktemp("render")
    live = root / "live"
    results = root / "results"
    for layers, bleu in ((6, 27.0), (18, 28.5), (19, 99.0)):
        write_run(live, "table1", f"deep-{layers}", layers=layers, bleu=bleu)
    for series in ("post_ln_warmup", "post_ln_no_warmup", "post_ln_init_warmup"):
        facts = {"series": series, "smoke": True, "environment": ENVIRONMENT}
        write_figure_run(live, 4, series, "post_ln", probes=probes_of_figure4(), **facts)
    write_figure_run(live, 5, "broken", "deepnorm", 6, update=5, environment=ENVIRONMENT)
    main(["keep", str(live), str(results / "runs")])
    write_run(results / "runs", "table1", "post", "post_ln", layers=100, bleu=1.0)
    (results / "README.md").write_text("before\n<!-- report index -->\nold\n<!-- /report index -->\nafter\n")

    output = io.StringIO()
    with redirect_stdout(output):
        main(["render", str(results)])
    return Rendered(results, output.getvalue())


def test_a_table_is_rendered_from_its_records(rendered):
    assert "28.50" in (rendered.results / "tables/table1.md").read_text()


def test_a_figure_whose_records_are_incomplete_is_left_out_and_named(rendered):
    (line,) = [line for line in rendered.printed.splitlines() if "figure5" in line]

    assert f"{rendered.results / 'runs/figure5.jsonl'}: broken: probes: " in line  # the record and the part of it
    assert "model_update" in line
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
    """The run of 19 layers, with a BLEU of 99, is not comparable: the paper has no such model."""
    rows = rendered.index()

    (name,) = [name for name in rows if "Wang et al. 2022, Table 1" in name]
    _script, run_here, numbers, link = rows[name]
    assert "4 runs" in run_here
    assert "miniature" not in run_here
    assert numbers == "DeepNorm 18L-18L, BLEU: 28.50 (28.8)"
    assert link == "[table1.md](tables/table1.md)"


@pytest.mark.parametrize(
    "figure, expected",
    [(4, "miniature"), (5, "not run"), (7, "not run")],
    ids=["of a miniature", "incomplete records", "no records"],
)
def test_the_index_says_what_was_run_of_a_figure(figure, expected, rendered):
    _script, run_here, *_ = rendered.index()[f"Wang et al. 2022, Figure {figure}"]

    assert run_here == expected


@pytest.fixture(scope="module")
def results_anew(tmp_path_factory):
    """Provide a folder with a copy of results/, whose tables and miniatures were rendered anew from the records."""
    root = tmp_path_factory.mktemp("anew")
    without_rendered = shutil.ignore_patterns("tables", "miniature", "miniatures.md")
    shutil.copytree(RESULTS, root / "results", ignore=without_rendered)
    main(["render", str(root / "results")])
    return root


def below(root: Path, pattern: str) -> set[Path]:
    """Return the paths in root/results that match the pattern, relative to root."""
    return {path.relative_to(root) for path in (root / "results").rglob(pattern)}


def test_pages_of_results_are_those_that_the_records_give(results_anew):
    """`scripts/render_results.sh` repairs a difference."""
    pages = below(results_anew, "*.md")

    assert pages >= below(ROOT, "*.md")
    for page in sorted(pages):
        assert (results_anew / page).read_text() == (ROOT / page).read_text(), page


def test_pictures_of_results_are_those_that_the_records_give(results_anew):
    committed = below(ROOT, "figures/**/*.png")

    assert committed
    assert below(results_anew, "figures/**/*.png") == committed


def test_pictures_of_results_are_small(results_anew):
    figures = results_anew / "results" / "figures"
    pictures = [*(figures / "miniature").glob("*.png"), figures / "depth.png"]

    assert len(pictures) > 1
    for picture in pictures:
        size = picture.stat().st_size
        assert size > 3_000, picture  # bytes
        assert size < 60_000, picture


@pytest.fixture(scope="module")
def committed_records():
    """Provide the runs of all committed records."""
    records = []
    for path in COMMITTED:
        records += read_records(path)
    return records


def test_every_committed_record_says_how_its_run_was_made(committed_records):
    """A record has a log, hours, a command, a commit without changes, versions and hardware."""
    assert len(committed_records) == 153 + 205 + 16  # of runs/, of the depth study, and of its other text
    for run in committed_records:
        assert run.log.updates, run.where()
        assert run.hours, run.where()
        assert run.command, run.where()
        assert re.fullmatch(r"[0-9a-f]{7,40}", run.environment["commit"]), run.where()
        assert not run.environment["modified"], run.where()
        assert {"python", "torch", "fairseq", "deepnet_fairseq"} <= run.environment["versions"].keys(), run.where()
        assert run.environment["hardware"], run.where()


def test_no_page_or_record_of_results_names_a_path_of_a_machine():
    texts = [path for path in RESULTS.rglob("*") if path.suffix in (".md", ".json", ".jsonl")]

    with_paths = [path for path in texts if PATH_OF_MACHINE.search(path.read_text())]
    assert len(texts) > 20
    assert with_paths == []


def test_the_committed_records_are_small():
    size = sum(path.stat().st_size for path in COMMITTED)

    assert size < 4_000_000  # bytes, which a clone has to fetch
