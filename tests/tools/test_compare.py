"""Tests of `deepnet compare` and `quickstart`, with stand-ins for fairseq's programs.

The real programs run in the smoke test, with a method in a user's folder, and in tests/scripts/test_scripts.py.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from deepnet_fairseq.cli import main
from deepnet_fairseq.study import runner
from deepnet_fairseq.study.runs import RecordedRun, read_records
from deepnet_fairseq.tools import compare

from ..support.errors import assert_refused
from ..support.experiments import until

# stands for fairseq-train: writes a log of a minute, its output and its checkpoints
TRAIN = """import json, pathlib, sys
loss, said, status, folder = sys.argv[1:]
print("2026-01-01 00:00:00 | INFO | fairseq_cli.train | {}")
for update in (50, 100):
    print("2026-01-01 00:01:00 | INFO | train_inner |", json.dumps({"loss": "8.5", "num_updates": str(update)}))
row = {"epoch": 1, "valid_loss": loss, "valid_num_updates": "100"}
print("2026-01-01 00:01:00 | INFO | valid |", json.dumps(row))
print(said)
for name in ("best", "last") * bool(folder):
    pathlib.Path(folder, f"checkpoint_{name}.pt").touch()
sys.exit(int(status))"""
GENERATE = "print('T-0\\ta b c d\\nD-0\\t-0.1\\ta b c d')"
MINE = """from deepnet_fairseq.core.methods import register
from deepnet_fairseq.core.methods.pre_ln import PreLN
@register("mine")
class Mine(PreLN): 'Pre-LN by another name.'
"""


class Programs:
    """Stand-in for fairseq's programs: tests set the loss, output and status of trainings; commands are recorded."""

    said, status, saves = "done", 0, True

    def __init__(self):
        self.names, self.flags = [], []
        self.loss = lambda flags: 5.0

    def __call__(self, grid, name, words):
        self.names.append(name)
        self.flags.append(" ".join(words))
        command = [GENERATE]
        if name == "train":
            loss = self.loss(self.flags[-1])
            message, status = ("error: stuck at update 90", 4) if loss is None else (self.said, self.status)
            command = [TRAIN, str(loss), message, str(status), words[-1] * self.saves]
        return [sys.executable, "-c", *command]


@pytest.fixture
def programs(monkeypatch):
    made = Programs()
    monkeypatch.setattr(compare, "fairseq_command", made)
    monkeypatch.setattr(runner, "POLL", 0.01)
    return made


@pytest.fixture
def pair(tmp_path):
    """Provide a data folder whose files suffice for the command's checks, with one sentence to translate."""
    for file in ("dict.qaa.txt", "dict.qab.txt", "train.qaa-qab.qaa.idx", "train.qaa-qab.qab.idx", "raw/test.qab"):
        (tmp_path / "out/data" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "out/data" / file).write_text("a b c d\n")
    return tmp_path / "out/data"


def words(data, *more, methods="deepnorm"):
    return ["compare", str(data), "--methods", methods, "--updates", "100", "--out", str(data.parent), *more]


def test_the_best_rate_the_spread_and_the_picture(programs, pair, tmp_path, capsys):
    """The best rate has no stuck seed; finished trainings are not repeated, and their plot stays the same."""

    def loss(flags):
        if "post_ln" in flags or ("--lr 2e-3" in flags and "--seed 2" in flags):
            return None
        return 3.0 + ("--seed 2" in flags) + ("--lr 5e-4" in flags) - 2 * ("--lr 2e-3" in flags)

    programs.loss = loss
    grid = ("--depths", "6,18", "--lrs", "5e-4,0.001,2e-3", "--seeds", "1,2", "--jobs", "3")
    asked = words(pair, *grid, "--plot", f"{tmp_path}/p.pdf", methods="deepnorm,post_ln")
    main(asked)
    (row,) = [line for line in capsys.readouterr().out.splitlines() if re.match("deepnorm +6L", line)]
    assert re.split(" {2,}", row)[2:5] == ["1e-3", "3.50 [3.00, 4.00]", "100.0 [100.0, 100.0]"]
    assert row.endswith(" 60 s      2e-3: stuck at update 90")
    records = read_records(pair.parent / "records.jsonl")
    assert len(records) == 24 and sum(run.stuck for run in records) == 14
    assert (tmp_path / "p.pdf").read_bytes().startswith(b"%PDF")
    main([*asked[:-1], f"{tmp_path}/p.svg", "--json"])
    rows = json.loads(capsys.readouterr().out)
    assert programs.names.count("train") == 24 and b"<svg" in (tmp_path / "p.svg").read_bytes()
    assert [row["lr"] for row in rows] == [0.001, None, 0.001, None] and rows[2]["held_out"] == [3.0, 4.0]
    assert {*rows[1]["failed"]} == {"5e-4", "1e-3", "2e-3"} and rows[1]["bleu"] == []
    assert not list(pair.parent.rglob("checkpoint_best.pt")) and list(pair.parent.rglob("checkpoint_last.pt"))


@pytest.mark.parametrize(("jobs", "gib", "expected"), [(None, 64, 3), (None, 4, 2), (None, 0.1, 1), (3, 0.1, 3)])
def test_no_more_at_a_time_than_fit_into_memory(jobs, gib, expected, pair, monkeypatch):
    """At 100L-100L one needs about 1.6 GiB; a machine without memory still trains one, and --jobs wins."""
    monkeypatch.setattr(compare, "free_memory", lambda: gib * 2**30)
    grid = compare.Grid(pair, ["deepnorm"], [6, 100], [1e-3], [1], 100, pair.parent, jobs=jobs, flags=["--cpu"])
    assert grid.jobs_that_fit(jobs or 3) == expected


def test_a_panel_has_eight_lines_at_most(programs, pair):
    methods = ["deepnorm", "post_ln", "pre_ln", "admin", "rezero", "dlcl", "keel", "b2t", "gpas"]
    grid = compare.Grid(pair, methods, [2, 4], [1e-3], [1], 100, pair.parent)
    rows = [compare.Best(m, n, 1e-3, "", {}, [], [5.0], [9.0]) for n in grid.depths for m in methods]
    lines = [len({one.style for one in panel.series}) for panel in compare.picture(grid, rows).panels]
    assert lines == [8, 8, 1, 1]


def test_data_without_references_give_losses_alone(programs, pair, capsys):
    """A folder of binarised text without raw text has nothing to score against; the table says `-`."""
    (pair / "raw/test.qab").unlink()
    main(words(pair, "--json"))
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["held_out"], row["bleu"], programs.names) == ([5.0], [], ["train"])


@pytest.mark.parametrize("saves", [True, False])
def test_a_training_that_diverges_is_a_result(programs, pair, saves, capsys):
    programs.said, programs.status, programs.saves = "fairseq-train: error: diverged at update 90; lower --lr", 3, saves
    for _ in range(2):
        main(words(pair))
        assert "1e-3: diverged at update 90" in capsys.readouterr().out and programs.names == ["train"]


def test_one_that_breaks_is_resumed(programs, pair):
    """A failed training is reported and resumed; its log continues if there is a checkpoint, and restarts otherwise."""
    programs.said, programs.status, programs.saves = "RuntimeError: no memory", 1, False
    run = pair.parent / "6L-6L-100-updates-seed1/deepnorm-lr1e-3"
    for _ in range(2):
        message = f"training deepnorm 6L-6L lr 1e-3 seed 1 failed: RuntimeError: no memory; whole log: {run}/train.log"
        assert_refused(message, *words(pair))
        assert len((run / "train.log").read_text().splitlines()) == 5
    (run / "checkpoint_last.pt").touch()
    programs.said, programs.status = "done", 0
    assert_refused("deepnorm-lr1e-3: had another flags", *words(pair, "--clip-norm", "1"))
    main(words(pair))
    assert len((run / "train.log").read_text().splitlines()) == 10
    (pair / "dict.qaa.txt").write_text("other\n")
    assert_refused("deepnorm-lr1e-3: had another ", *words(pair))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_training_first(pair, monkeypatch, number):
    """A signal ends the running training first, and does not count it as trained."""
    ended_by = pair.parent / "ended"
    ends = f"""import os, pathlib, signal, sys, time
def end(number, frame):
    pathlib.Path({str(ended_by)!r}).write_text(str(number))
    sys.exit(1)
signal.signal(signal.SIGTERM, end)
os.kill(os.getppid(), {number:d})
time.sleep(60)"""
    ignored = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets background jobs ignore SIGINT
    before = signal.getsignal(number)
    monkeypatch.setattr(compare, "fairseq_command", lambda *_: [sys.executable, "-c", ends])
    with pytest.raises(SystemExit) as ended:
        main(words(pair))
    assert ended.value.code == 128 + number and signal.getsignal(number) is before
    signal.signal(signal.SIGINT, ignored)
    assert ended_by.read_text() == str(int(signal.SIGTERM)) and not list(pair.parent.rglob("trained"))


@pytest.mark.parametrize(("updates", "beta2", "found"), [(1200, 0.98, 200), (300, 0.98, 100), (99, 0.999, 49)])
def test_warmup_is_never_too_short_without_a_word(updates, beta2, found, tmp_path):
    flags = ("--adam-betas", f"(0.9, {beta2})")
    grid = compare.Grid(tmp_path, ["deepnorm"], [6], [1e-3], [1], updates, tmp_path, flags=flags)
    assert (grid.warmup_updates()[0], bool(grid.warmup_updates()[1])) == (found, found != 200)


@pytest.mark.parametrize(("said", "more"), [
    ("--method deepnrom: unknown", "--methods deepnorm,deepnrom"), ("--depths 0: must", "--depths 6,0"),
    ("--lrs 0.0: must", "--lrs 1e-3,0"), ("--lrs x: give", "--lrs x"), ("--warmup 2: must", "--warmup 2"),
    ("--jobs 0: must", "--jobs 0"), ("give --depths", "--encoder-layers=6"), ("--plot p.gif: name", "--plot p.gif"),
    ("one language pair", ""),
])  # fmt: skip
def test_what_cannot_be_leaves_nothing(said, more, programs, pair, tmp_path):
    data = pair if more else tmp_path
    assert_refused(said, *words(data, *more.split()), "--out", str(tmp_path / "new"))
    assert programs.names == [] and not (tmp_path / "new").exists()


def test_the_quickstart_is_a_call_of_it(programs, pair, capsys):
    """`deepnet quickstart` calls compare: it skips recorded trainings, and trains only an added method."""
    out = pair.parent
    words = ["quickstart", "--depth", "2", "--updates", "100", "--seed", "3", "--out", str(out), "--methods"]
    main([*words, "deepnorm"])
    first = capsys.readouterr().out
    run = RecordedRun(out / "2L-2L-100-updates-seed3/deepnorm-lr1e-3")
    assert (run.depth, run.seed, run.bleu, run.environment["gpus"]) == ("2L-2L", 3, 100.0, 0)
    assert run.command.startswith(f"deepnet compare {pair} --methods deepnorm --depths 2 --lrs 1e-3 --seeds 3")
    assert (out / "result.txt").read_text() in first and (out / "loss.png").stat().st_size > 5000
    main([*words, "deepnorm"])
    assert programs.names == ["train", "generate"] and capsys.readouterr().out == first
    main([*words, "deepnorm,admin"])
    assert programs.names == ["train", "generate"] * 2 and "--admin-profile auto" in programs.flags[2]
    assert_refused("--method deepnrom: unknown", *words[:-1], "--methods", "deepnrom")


@pytest.mark.smoke
def test_killed_and_resumed_with_a_method_of_ones_own(data, tmp_path):
    """Killed with SIGKILL, `deepnet compare` takes its trainings along; the next call resumes their checkpoints."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own/mine.py").write_text(MINE)
    out, run = tmp_path / "out", tmp_path / "out/1L-1L-60-updates-seed1/mine-lr1e-3"
    program = str(Path(sys.executable).parent / "deepnet")
    more = f"--updates 60 --depths 1 --jobs 2 --max-tokens 300 --out {out} --user-dir {tmp_path}/own".split()
    command = [program, *words(data, *more, methods="mine,pre_ln")]
    first = subprocess.Popen(command)
    until(lambda: (run / "checkpoint_last.pt").exists() or first.poll() is not None)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    size = (run / "train.log").stat().st_size
    subprocess.run(command, check=True)
    text = (run / "train.log").read_text()
    assert size and "Loaded checkpoint" in text[size:]
    mine, theirs = (json.loads(line) for line in (out / "records.jsonl").read_text().splitlines())
    assert (mine["run"]["method"], theirs["run"]["method"]) == ("mine", "pre_ln") and "bleu" in mine["score"]
    assert mine["log"]["valid"][-1]["valid_loss"] == theirs["log"]["valid"][-1]["valid_loss"]
