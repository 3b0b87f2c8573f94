"""results/: what is rendered is what the records give, and every record says where it comes from."""

from __future__ import annotations

import json
import re
import shutil

import pytest

from deepnet_fairseq.analysis.recorded_run import RecordedRun
from deepnet_fairseq.cli import main

from .support.helpers import ROOT

RESULTS = ROOT / "results"
RUNS = sorted(path.parent for path in (RESULTS / "runs").rglob("run.json"))
TEXTS = sorted(path for path in RESULTS.rglob("*") if path.suffix not in (".png", "") or path.name == "command")
MACHINE = re.compile(r"(?<![\w.])/(work|tmp|root|home|Users|mnt|scratch)/")
PICTURE = 60_000  # bytes, of one that is rendered
ALL = 3_000_000  # of the records


@pytest.fixture(scope="module")
def rendered(tmp_path_factory):
    """The repository's README.md and results, rendered once more."""
    root = tmp_path_factory.mktemp("rendered")
    shutil.copytree(RESULTS, root / "results", ignore=shutil.ignore_patterns("tables", "miniature", "miniatures.md"))
    shutil.copy(ROOT / "README.md", root)
    main(["render", str(root / "results"), "--page", str(root / "README.md")])
    return root


def test_pages_are_what_the_records_give(rendered):
    """`scripts/render_results.sh` mends this."""
    pages = {path.relative_to(rendered) for path in rendered.rglob("*.md")}
    assert pages >= {path.relative_to(ROOT) for path in RESULTS.rglob("*.md")}
    for page in sorted(pages):
        assert (rendered / page).read_text() == (ROOT / page).read_text(), page


def test_pictures_are_there_and_small(rendered):
    pictures = {path.relative_to(rendered) for path in (rendered / "results" / "figures").rglob("*.png")}
    assert pictures == {path.relative_to(ROOT) for path in (RESULTS / "figures").rglob("*.png")}
    small = [*(RESULTS / "figures" / "miniature").glob("*.png"), RESULTS / "figures" / "depth.png"]
    assert all(5_000 < path.stat().st_size < PICTURE for path in small)


@pytest.mark.parametrize("folder", RUNS, ids=lambda path: "/".join(path.relative_to(RESULTS / "runs").parts))
def test_record_says_what_it_is(folder):
    """Log, command, commit, versions, hardware; nothing else lies there."""
    run = RecordedRun.read(folder)
    assert run.finished and run.log.updates and (folder / "command").read_text().strip()
    assert re.fullmatch(r"[0-9a-f]{7,40}", run.environment["commit"]) and not run.environment["modified"]
    assert {"python", "torch", "fairseq", "deepnet_fairseq"} <= run.environment["versions"].keys()
    assert run.environment["hardware"]
    known = {"run.json", "environment.json", "score.json", "paired.json", "probes.jsonl", "train.log"}
    assert {path.name for path in folder.iterdir()} <= known | {"command", "trained", "diverged"}


def test_no_path_of_a_machine():
    assert len(TEXTS) > 20
    assert not [path for path in TEXTS if MACHINE.search(path.read_text())]


def test_records_are_light():
    assert RUNS and sum(path.stat().st_size for path in (RESULTS / "runs").rglob("*") if path.is_file()) < ALL


def test_links_of_tables_lead_somewhere():
    for page in [*(RESULTS / "tables").glob("*.md"), RESULTS / "miniatures.md", RESULTS / "README.md"]:
        for target in re.findall(r"\]\(<?([^)>\s]+)>?\)", page.read_text()):
            assert "://" in target or (page.parent / target.split("#")[0]).exists(), f"{page}: {target}"


def test_scores_are_those_of_the_pages():
    """A number by hand of what is rendered: each run's BLEU of the quickstart stands in its table."""
    table = (RESULTS / "quickstart.md").read_text().split("<!-- report quickstart -->")[1]
    for folder in (RESULTS / "runs" / "quickstart").glob("*/*"):
        bleu = json.loads((folder / "score.json").read_text())["bleu"]
        assert f" | {bleu:.2f} | " in table
