"""`deepnet quickstart` with stand-ins for fairseq's programs: what it records, skips, resumes and refuses.

The real ones run in tests/test_scripts.py and test_packaging.py, among the smoke tests.
"""

from __future__ import annotations

import json
import re
import signal
import sys

import pytest

from deepnet_fairseq.cli import main
from deepnet_fairseq.study.runs import RecordedRun
from deepnet_fairseq.tools import quickstart

from .support.helpers import assert_refused

# in place of fairseq-train: three lines of a log, 100 seconds apart, and what follows them
TRAIN = """import json, sys
print("2026-01-01 00:00:00 | INFO | fairseq_cli.train | {}")
for update in (25, 100):
    print("2026-01-01 00:01:40 | INFO | train_inner |", json.dumps({"loss": "8.5", "num_updates": str(update)}))
said, status, checkpoint = sys.argv[1:4]
print(said)
if checkpoint:
    open(checkpoint, "w").close()
sys.exit(int(status))"""
GENERATE = "print('T-0\\ta b c d\\nD-0\\t-0.1\\ta b c d')"


class Programs:
    """What was asked for, and what a training says and leaves."""

    def __init__(self):
        self.asked: list[tuple[str, list[str]]] = []
        self.said, self.status, self.saves = "done", 0, True

    def __call__(self, name, data, words):
        self.asked.append((name, words))
        if name == "generate":
            return [sys.executable, "-c", GENERATE]
        checkpoint = f"{words[words.index('--save-dir') + 1]}/checkpoint_last.pt" if self.saves else ""
        return [sys.executable, "-c", TRAIN, self.said, str(self.status), checkpoint]

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.asked]


@pytest.fixture
def programs(monkeypatch):
    made = Programs()
    monkeypatch.setattr(quickstart, "program", made)
    return made


@pytest.fixture
def out(tmp_path):
    """With data, of which one sentence is to be translated."""
    folder = tmp_path / "out"
    for file, text in (("data/dict.qaa.txt", ""), ("text/test.qab", "a b c d\n")):
        (folder / file).parent.mkdir(parents=True)
        (folder / file).write_text(text)
    return folder


def run_of(out, method="deepnorm"):
    return out / "2L-2L-100-updates-seed3" / method


def words(out, methods="deepnorm"):
    return ["quickstart", "--methods", methods, "--depth", "2", "--updates", "100", "--seed", "3", "--out", str(out)]


def test_it_trains_translates_and_compares_once(programs, out, capsys):
    """A method that is added is trained alone; the records are those of a run of the script in a clone."""
    main(words(out))
    first = capsys.readouterr().out
    assert programs.names == ["train", "generate"]
    assert "   update 100 of 100, loss 8.5\n" in first and "   update 25 " not in first
    run = RecordedRun(run_of(out))
    assert (run.depth, run.seed, run.facts["experiment"], run.score["bleu"]) == ("2L-2L", 3, "quickstart", 100.0)
    assert run.command == "scripts/quickstart.sh --methods deepnorm --depth 2 --updates 100 --seed 3"
    assert run.log.updates == [25, 100] and json.loads((run_of(out) / "environment.json").read_text())["gpus"] == 0
    (row,) = [line for line in first.splitlines() if line.startswith("deepnorm ")]
    assert re.split(" {2,}", row) == ["deepnorm", "100", "8.50", "100.00", "100 s"]
    assert row in (out / "result.txt").read_text() and (out / "loss.png").stat().st_size > 5000
    main(words(out))
    assert programs.names == ["train", "generate"]
    assert capsys.readouterr().out == "\n== result" + first.split("\n== result")[1]
    main(words(out, "deepnorm,admin"))
    assert programs.names == ["train", "generate"] * 2
    flags = " ".join(programs.asked[-2][1])
    assert "--method admin --admin-profile auto" in flags and "--seed 3 " in flags


@pytest.mark.parametrize("saves", [True, False])
@pytest.mark.parametrize("how", ["stuck", "diverged"])
def test_a_training_that_fails_is_a_result(programs, out, how, saves, capsys):
    """One that diverged is translated with what it saved last; one that learnt nothing is not."""
    programs.said, programs.status, programs.saves = f"fairseq-train: error: {how} at update 90; lower --lr", 3, saves
    main(words(out, "post_ln"))
    assert programs.names == (["train", "generate"] if saves and how == "diverged" else ["train"])
    assert (run_of(out, "post_ln") / how).read_text() == f"{how} at update 90\n"
    printed = capsys.readouterr().out
    assert f"8.50 ({how})" in printed and ("stuck: stopped after 300" in printed) == (how == "stuck")
    main(words(out, "post_ln"))
    assert programs.names.count("train") == 1


def test_one_that_breaks_is_resumed(programs, out):
    """Its log is gone on with where there is a checkpoint, and begun again where there is none."""
    programs.said, programs.status, programs.saves = "RuntimeError: no memory", 1, False
    log = run_of(out) / "train.log"
    for _ in range(2):
        assert_refused(f"training with deepnorm failed: RuntimeError: no memory; whole log: {log}", *words(out))
        assert len(log.read_text().splitlines()) == 4
    assert not (run_of(out) / "trained").exists()
    (run_of(out) / "checkpoint_last.pt").touch()
    programs.said, programs.status = "done", 0
    main(words(out))
    assert len(log.read_text().splitlines()) == 8


@pytest.mark.parametrize(("number", "seconds"), [(signal.SIGTERM, 60), (signal.SIGINT, 0)])
def test_a_signal_ends_the_training_first(out, monkeypatch, number, seconds):
    """SIGTERM is passed on, Ctrl-C has reached the training by itself; none is left behind, none counts as trained."""
    ends = f"import os, time; os.kill(os.getppid(), {number:d}); time.sleep({seconds})"
    monkeypatch.setattr(quickstart, "program", lambda *_: [sys.executable, "-c", ends])
    before = signal.getsignal(number)
    with pytest.raises(SystemExit) as ended:
        main(words(out))
    assert ended.value.code == 128 + number and signal.getsignal(number) is before
    assert not (run_of(out) / "trained").exists()


def test_what_cannot_be_leaves_nothing(programs, tmp_path):
    out = str(tmp_path / "out")
    assert_refused("--updates 24: give at least 25", "quickstart", "--updates", "24", "--out", out)
    assert_refused("--depth 0: must be at least 1", "quickstart", "--depth", "0", "--out", out)
    assert_refused("--method deepnrom: unknown", "quickstart", "--methods", "deepnorm,deepnrom", "--out", out)
    assert programs.asked == [] and not (tmp_path / "out").exists()
