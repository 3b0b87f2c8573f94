"""Tests that a run folder of an earlier version, whose training was killed half-way, is trained to its end.

Commit 01546ea wrote golden/run_folder by the command in the test, scripts/iwslt14_de_en.sh with FLAGS. Both the script
and its training were killed with SIGKILL after update 29, five updates after the last save. golden/run_folder.json has
the losses that commit 01546ea logged when the same command was started again, from update 25 to 60.
"""

import json
import re
import shutil

import pytest

from ..golden.training import GOLDEN
from ..support.experiments import needs_venv, script

pytestmark = [needs_venv, pytest.mark.smoke]

WRITTEN_UNDER = "/tmp/golden"  # OUT of the script that wrote the folder
NAME = "iwslt14/deepnorm-2-seed1"  # of the run, in OUT
TOLERANCE = 0.0021  # two units of the last decimal that is logged
FLAGS = (  # as in the file `command`, and in its order: a run is not resumed with other flags
    "--encoder-embed-dim", "8", "--encoder-ffn-embed-dim", "16", "--encoder-attention-heads", "2", "--dropout", "0",
    "--max-update", "60", "--save-interval-updates", "8", "--keep-interval-updates", "2", "--log-interval", "1",
    "--stop-stuck", "0",
)  # fmt: skip


def losses_by_update(log: str) -> dict[str, dict[str, float]]:
    """Return the losses in a log: {kind of line: {update: loss}}.

    Kinds: train_inner, of one update; train, mean of an epoch; valid. Updates are texts, as keys of JSON are.
    """
    losses: dict[str, dict[str, float]] = {}
    for kind, content in re.findall(r"\| (train_inner|valid|train) \| ({.*})", log):
        row = json.loads(content)
        prefix = "" if kind == "train_inner" else f"{kind}_"
        losses.setdefault(kind, {})[row[f"{prefix}num_updates"]] = float(row[f"{prefix}loss"])
    return losses


@pytest.fixture
def run_of_earlier_version(tmp_path):
    """Provide a copy of the golden folder as if it had been written here, and with it a save that was killed."""
    run = tmp_path / NAME
    shutil.copytree(GOLDEN / "run_folder", run)
    command = run / "command"
    command.write_text(command.read_text().replace(WRITTEN_UNDER, str(tmp_path)))
    (run / "checkpoint_last.pt.4711part").write_bytes(b"of a save that was killed")
    return run


def test_a_killed_run_of_an_earlier_version_is_trained_to_its_end(run_of_earlier_version, tmp_path):
    """The run goes on behind its last save, with update 25, has the recorded losses, and is scored."""
    run = run_of_earlier_version
    log_of_killed = (run / "train.log").read_text()

    script("iwslt14_de_en", *FLAGS, SMOKE=1, OUT=tmp_path, METHODS="deepnorm", DEPTHS=2)

    expected = json.loads((GOLDEN / "run_folder.json").read_text())
    log = (run / "train.log").read_text()
    assert log.startswith(log_of_killed)
    resumed = losses_by_update(log.removeprefix(log_of_killed))
    assert resumed.keys() == expected.keys()
    for kind, losses in expected.items():
        assert resumed[kind] == pytest.approx(losses, abs=TOLERANCE)

    assert (run / "trained").exists()  # the mark of a finished training
    score = json.loads((run / "score.json").read_text())
    assert score["bleu"] < 1  # of a model of width 8 after 60 updates
    assert not list(run.glob("*part"))  # what was left of the killed save
