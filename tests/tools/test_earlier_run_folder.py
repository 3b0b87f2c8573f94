"""Tests that a run folder of an earlier version, whose training was killed half-way, is trained to its end.

Commit 01546ea wrote golden/run_folder by the script below. Its training and the script were killed with SIGKILL after
update 29, five updates after the last save; golden/run_folder.json has the losses of the same command started again.
"""

import json
import re
import shutil

import pytest

from ..golden.training import GOLDEN
from ..support.experiments import needs_venv, script

pytestmark = [needs_venv, pytest.mark.smoke]

WRITTEN_UNDER = "/tmp/golden"  # OUT of the script that wrote the folder
NAME = "iwslt14/deepnorm-2-seed1"
FLAGS = (  # in the order of the file `command`
    "--encoder-embed-dim", "8", "--encoder-ffn-embed-dim", "16", "--encoder-attention-heads", "2", "--dropout", "0",
    "--max-update", "60", "--save-interval-updates", "8", "--keep-interval-updates", "2", "--log-interval", "1",
    "--stop-stuck", "0",
)  # fmt: skip


def losses_by_update(log: str) -> dict[str, dict[str, float]]:
    """Return the losses in a log by kind of line (train_inner, valid, train) and update."""
    losses: dict[str, dict[str, float]] = {}
    for kind, content in re.findall(r"\| (train_inner|valid|train) \| ({.*})", log):
        row = json.loads(content)
        prefix = "" if kind == "train_inner" else f"{kind}_"
        losses.setdefault(kind, {})[row[f"{prefix}num_updates"]] = float(row[f"{prefix}loss"])
    return losses


@pytest.fixture
def run_of_earlier_version(tmp_path):
    """Provide a copy of the golden folder, as if it had been written here, with a save that was killed."""
    run = tmp_path / NAME
    shutil.copytree(GOLDEN / "run_folder", run)
    command = run / "command"
    command.write_text(command.read_text().replace(WRITTEN_UNDER, str(tmp_path)))
    (run / "checkpoint_last.pt.4711part").write_bytes(b"of a save that was killed")
    return run


def test_a_killed_run_of_an_earlier_version_is_trained_to_its_end(run_of_earlier_version, tmp_path):
    """It resumes at update 25 of the last save, has the losses of then to three decimals, and is scored."""
    run = run_of_earlier_version
    before = (run / "train.log").read_text()

    script("iwslt14_de_en", *FLAGS, SMOKE=1, OUT=tmp_path, METHODS="deepnorm", DEPTHS=2)

    expected = json.loads((GOLDEN / "run_folder.json").read_text())
    resumed = losses_by_update((run / "train.log").read_text().removeprefix(before))
    assert resumed.keys() == expected.keys()
    for kind, losses in expected.items():
        assert resumed[kind] == pytest.approx(losses, abs=0.0021)

    assert (run / "trained").exists()
    assert json.loads((run / "score.json").read_text())["bleu"] < 1
    assert not list(run.glob("*part"))
