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
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest

from deepnet_fairseq.cli import main
from deepnet_fairseq.study import runner
from deepnet_fairseq.study.runs import RecordedRun, read_records
from deepnet_fairseq.tools import compare

from ..support.errors import assert_refused, refusal
from ..support.experiments import until

# stands for fairseq-train: writes a log of a minute and five lines, and its checkpoints
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
LINES_OF_LOG = 5
GENERATE = "print('T-0\\ta b c d\\nD-0\\t-0.1\\ta b c d')"  # a translation that is the reference: BLEU 100
STUCK = "stuck at update 90"
DIVERGED = "diverged at update 90"
DIVERGED_STATUS, STUCK_STATUS = 3, 4  # of fairseq-train, with this package


class StandIns:
    """Stand-ins for fairseq's programs: tests set what trainings do; names and flags of the calls are recorded.

    last_line, status: of a training's output; saves: whether it writes checkpoints; held_out_loss: function of its
    flags, None for one that is stuck.
    """

    def __init__(self):
        self.last_line = "done"
        self.status = 0
        self.saves = True
        self.held_out_loss = lambda flags: 5.0
        self.names: list[str] = []
        self.flags: list[str] = []

    def __call__(self, grid, name: str, words: list[str]) -> list[str]:
        self.names.append(name)
        self.flags.append(" ".join(words))
        if name != "train":
            return [sys.executable, "-c", GENERATE]

        loss = self.held_out_loss(self.flags[-1])
        ends = (self.last_line, str(self.status))
        if loss is None:
            ends = (f"error: {STUCK}", str(STUCK_STATUS))
        folder = words[-1] if self.saves else ""  # --save-dir is the last flag
        return [sys.executable, "-c", TRAIN, str(loss), *ends, folder]

    def install(self, monkeypatch) -> None:
        """Take the place of fairseq's programs."""
        monkeypatch.setattr(compare, "fairseq_command", self)
        monkeypatch.setattr(runner, "POLL", 0.01)


@pytest.fixture
def programs(monkeypatch):
    stand_ins = StandIns()
    stand_ins.install(monkeypatch)
    return stand_ins


def write_data(folder: Path) -> Path:
    """Write data whose files suffice for the command's checks, with one sentence to translate; return their folder."""
    names = ("dict.qaa.txt", "dict.qab.txt", "train.qaa-qab.qaa.idx", "train.qaa-qab.qab.idx", "raw/test.qab")
    for name in names:
        path = folder / "out/data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("a b c d\n")
    return folder / "out/data"


@pytest.fixture
def pair_data(tmp_path):
    return write_data(tmp_path)


def compare_words(data: Path, *more: str, methods: str = "deepnorm") -> list[str]:
    """Return the words of a command of 100 updates; its results go into the folder that the data are in."""
    return ["compare", str(data), "--methods", methods, "--updates", "100", "--out", str(data.parent), *more]


# a grid of methods, depths, rates and seeds


def loss_of_rates(flags: str) -> float | None:
    """Return a loss that is smallest at 2e-3, where seed 2 is stuck; post_ln is always stuck."""
    at_largest = "--lr 2e-3" in flags
    second_seed = "--seed 2" in flags
    if "post_ln" in flags or (at_largest and second_seed):
        return None
    loss = 3.0
    if second_seed:
        loss += 1
    if "--lr 5e-4" in flags:
        loss += 1
    if at_largest:
        loss -= 2
    return loss


@pytest.fixture(scope="module")
def finished_grid(tmp_path_factory):
    """Provide what two calls of one command print and write: a table with a PDF, then JSON with an SVG."""
    folder = tmp_path_factory.mktemp("grid")
    data = write_data(folder)
    grid = ("--depths", "6,18", "--lrs", "5e-4,0.001,2e-3", "--seeds", "1,2", "--jobs", "3")
    words = compare_words(data, *grid, methods="deepnorm,post_ln")
    stand_ins = StandIns()
    stand_ins.held_out_loss = loss_of_rates

    with pytest.MonkeyPatch.context() as patch:
        stand_ins.install(patch)
        with redirect_stdout(StringIO()) as table:
            main([*words, "--plot", str(folder / "plot.pdf")])
        with redirect_stdout(StringIO()) as rows:
            main([*words, "--plot", str(folder / "plot.svg"), "--json"])

    return SimpleNamespace(
        folder=folder, out=data.parent, programs=stand_ins, table=table.getvalue(), rows=json.loads(rows.getvalue())
    )


TRAININGS_OF_GRID = 2 * 2 * 3 * 2  # methods, depths, rates, seeds


def test_a_row_of_the_table_shows_the_best_rate_without_a_stuck_seed(finished_grid):
    (row,) = [line for line in finished_grid.table.splitlines() if re.match("deepnorm +6L", line)]

    cells = re.split(" {2,}", row)
    assert cells[2:5] == ["1e-3", "3.50 [3.00, 4.00]", "100.0 [100.0, 100.0]"]
    assert cells[-2:] == ["60 s", f"2e-3: {STUCK}"]


def test_every_training_of_a_grid_is_recorded(finished_grid):
    records = read_records(finished_grid.out / "records.jsonl")

    assert len(records) == TRAININGS_OF_GRID
    stuck_post_ln = TRAININGS_OF_GRID // 2
    stuck_deepnorm = 2  # one a depth
    assert len([run for run in records if run.stuck]) == stuck_post_ln + stuck_deepnorm


def test_finished_trainings_are_not_repeated(finished_grid):
    assert finished_grid.programs.names.count("train") == TRAININGS_OF_GRID


def test_json_has_the_best_rates_and_what_failed(finished_grid):
    deepnorm, post_ln, deeper_deepnorm, deeper_post_ln = finished_grid.rows

    assert deepnorm["lr"] == 0.001
    assert deeper_deepnorm["lr"] == 0.001
    assert post_ln["lr"] is None
    assert deeper_post_ln["lr"] is None
    assert deeper_deepnorm["held_out"] == [3.0, 4.0]
    assert set(post_ln["failed"]) == {"5e-4", "1e-3", "2e-3"}
    assert post_ln["bleu"] == []


def test_a_plot_has_the_format_of_its_name(finished_grid):
    assert (finished_grid.folder / "plot.pdf").read_bytes().startswith(b"%PDF")
    assert b"<svg" in (finished_grid.folder / "plot.svg").read_bytes()


def test_only_the_last_checkpoints_are_kept(finished_grid):
    assert not list(finished_grid.out.rglob("checkpoint_best.pt"))
    assert list(finished_grid.out.rglob("checkpoint_last.pt"))


def grid_of(data: Path, methods=("deepnorm",), depths=(6,), updates: int = 100, **more) -> compare.Grid:
    return compare.Grid(data, methods, depths, lrs=[1e-3], seeds=[1], updates=updates, out=data.parent, **more)


@pytest.mark.parametrize(("jobs", "gib", "expected"), [(None, 64, 3), (None, 4, 2), (None, 0.1, 1), (3, 0.1, 3)])
def test_no_more_are_trained_at_a_time_than_fit_into_memory(jobs, gib, expected, pair_data, monkeypatch):
    """At 100L-100L one needs about 1.6 GiB; a machine without memory still trains one, and --jobs wins."""
    monkeypatch.setattr(compare, "free_memory", lambda: gib * 2**30)

    grid = grid_of(pair_data, depths=[6, 100], jobs=jobs, flags=["--cpu"])

    assert grid.jobs_that_fit(jobs or 3) == expected


def test_a_panel_of_the_plot_has_eight_lines_at_most(pair_data):
    methods = ["deepnorm", "post_ln", "pre_ln", "admin", "rezero", "dlcl", "keel", "b2t", "gpas"]
    depths = [2, 4]
    rows = []
    for depth in depths:
        for method in methods:
            rows.append(compare.Best(method, depth, 1e-3, "", {}, [], [5.0], [9.0]))

    picture = compare.picture(grid_of(pair_data, methods, depths), rows)

    lines = [len({series.style for series in panel.series}) for panel in picture.panels]
    assert lines == [8, 8, 1, 1]


def test_losses_have_a_panel_however_low_they_are(pair_data):
    """BLEU has none here: below 2 its differences say nothing."""
    rows = [compare.Best("deepnorm", depth, 1e-3, "", {}, [], [0.5], [0.3]) for depth in (2, 4)]

    picture = compare.picture(grid_of(pair_data, ["deepnorm"], [2, 4]), rows)

    [panel] = picture.panels
    assert panel.series[0].points == {2: 0.5, 4: 0.5}


@pytest.mark.parametrize(("updates", "beta2", "expected"), [(1200, 0.98, 200), (300, 0.98, 100), (99, 0.999, 49)])
def test_a_warmup_that_is_not_a_sixth_of_the_updates_is_noted(updates, beta2, expected, tmp_path):
    """It is longer where Adam's averages need more updates, and at most half of them."""
    grid = grid_of(tmp_path, updates=updates, flags=("--adam-betas", f"(0.9, {beta2})"))

    warmup, note = grid.warmup_updates()

    assert warmup == expected
    assert bool(note) == (warmup != updates / 6)


# results other than a loss and a score


def test_data_without_references_give_losses_alone(programs, pair_data, capsys):
    """A folder of binarised text without raw text has nothing to score against."""
    (pair_data / "raw/test.qab").unlink()

    main(compare_words(pair_data, "--json"))

    (row,) = json.loads(capsys.readouterr().out)
    assert row["held_out"] == [5.0]
    assert row["bleu"] == []
    assert programs.names == ["train"]


@pytest.mark.parametrize("saves", [True, False])
def test_a_training_that_diverges_is_a_result_and_not_repeated(programs, pair_data, saves, capsys):
    programs.last_line = f"fairseq-train: error: {DIVERGED}; lower --lr"
    programs.status = DIVERGED_STATUS
    programs.saves = saves

    for _ in range(2):
        main(compare_words(pair_data))

        assert f"1e-3: {DIVERGED}" in capsys.readouterr().out
        assert programs.names == ["train"]


@pytest.fixture
def broken_programs(programs):
    """Provide stand-ins whose trainings fail before they save."""
    programs.last_line = "RuntimeError: no memory"
    programs.status = 1
    programs.saves = False
    return programs


@pytest.fixture
def run_folder(pair_data):
    """Provide the folder of the only training of compare_words()."""
    return pair_data.parent / "6L-6L-100-updates-seed1/deepnorm-lr1e-3"


def lines_of_log(run_folder: Path) -> int:
    return len((run_folder / "train.log").read_text().splitlines())


def test_a_training_that_fails_is_named_with_its_last_line_and_its_log(broken_programs, pair_data, run_folder):
    line = refusal(*compare_words(pair_data))

    assert "deepnorm 6L-6L lr 1e-3 seed 1" in line
    assert broken_programs.last_line in line
    assert f"{run_folder}/train.log" in line


def test_a_training_that_failed_before_it_saved_begins_its_log_anew(broken_programs, pair_data, run_folder):
    for _ in range(2):
        refusal(*compare_words(pair_data))

        assert lines_of_log(run_folder) == LINES_OF_LOG


def mend(programs: StandIns, run_folder: Path) -> None:
    """Let trainings end well from now on, and the failed one have a checkpoint."""
    programs.last_line = "done"
    programs.status = 0
    (run_folder / "checkpoint_last.pt").touch()


def test_a_training_that_failed_after_it_saved_continues_its_log(broken_programs, pair_data, run_folder):
    refusal(*compare_words(pair_data))
    mend(broken_programs, run_folder)

    main(compare_words(pair_data))

    assert lines_of_log(run_folder) == 2 * LINES_OF_LOG


def test_a_training_is_not_resumed_with_other_flags(broken_programs, pair_data, run_folder):
    refusal(*compare_words(pair_data))
    mend(broken_programs, run_folder)

    line = refusal(*compare_words(pair_data, "--clip-norm", "1"))

    assert f"{run_folder}: " in line
    assert "another flags" in line
    assert lines_of_log(run_folder) == LINES_OF_LOG


def test_a_finished_training_is_not_one_of_other_data(programs, pair_data, run_folder):
    main(compare_words(pair_data))
    (pair_data / "dict.qaa.txt").write_text("other\n")

    line = refusal(*compare_words(pair_data))

    assert f"{run_folder}: " in line
    assert "another" in line


@pytest.fixture
def default_sigint():
    """Let Ctrl-C raise KeyboardInterrupt: a shell lets background jobs ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_running_training_first(pair_data, monkeypatch, number, default_sigint):
    """A signal ends the running training first, and does not count it as trained."""
    ended_by = pair_data.parent / "ended"
    training = f"""import os, pathlib, signal, sys, time
def end(number, frame):
    pathlib.Path({str(ended_by)!r}).write_text(str(number))
    sys.exit(1)
signal.signal(signal.SIGTERM, end)
os.kill(os.getppid(), {number:d})
time.sleep(60)"""
    monkeypatch.setattr(compare, "fairseq_command", lambda *_: [sys.executable, "-c", training])
    handler = signal.getsignal(number)

    with pytest.raises(SystemExit) as ended:
        main(compare_words(pair_data))

    assert ended.value.code == 128 + number
    assert signal.getsignal(number) is handler
    assert ended_by.read_text() == str(int(signal.SIGTERM))
    assert not list(pair_data.parent.rglob("trained"))


# mistakes


@pytest.mark.parametrize(("flags", "subject"), [
    ("--methods deepnorm,deepnrom", "--method deepnrom: "), ("--depths 6,0", "--depths 0: "),
    ("--lrs 1e-3,0", "--lrs 0.0: "), ("--lrs x", "--lrs x: "), ("--warmup 2", "--warmup 2: "),
    ("--jobs 0", "--jobs 0: "), ("--encoder-layers=6", "--encoder-layers=6: "), ("--plot p.gif", "--plot p.gif: "),
])  # fmt: skip
def test_a_wrong_flag_is_named_and_nothing_is_written(flags, subject, programs, pair_data, tmp_path):
    assert_refused(subject, *compare_words(pair_data, *flags.split()), "--out", tmp_path / "new")

    assert programs.names == []
    assert not (tmp_path / "new").exists()


def test_depths_are_given_by_their_own_flag(programs, pair_data):
    assert_refused("--depths", *compare_words(pair_data, "--encoder-layers=6"))


def test_a_folder_without_data_of_a_language_pair_is_named(programs, tmp_path):
    line = refusal(*compare_words(tmp_path), "--out", tmp_path / "new")

    assert f"error: {tmp_path}: " in line
    assert "language pair" in line
    assert programs.names == []
    assert not (tmp_path / "new").exists()


# quickstart


def quickstart_words(data: Path, methods: str) -> list[str]:
    flags = ("--depth", "2", "--updates", "100", "--seed", "3", "--out", str(data.parent))
    return ["quickstart", *flags, "--methods", methods]


def test_quickstart_is_a_call_of_compare(programs, pair_data):
    """quickstart --depth 2 --updates 100 --seed 3 records a run of compare --depths 2 .. --seeds 3."""
    main(quickstart_words(pair_data, "deepnorm"))

    run = RecordedRun(pair_data.parent / "2L-2L-100-updates-seed3/deepnorm-lr1e-3")
    assert run.depth == "2L-2L"
    assert run.seed == 3
    command = f"deepnet compare {pair_data} --methods deepnorm --depths 2 --lrs 1e-3 --seeds 3"
    assert run.command.startswith(command)


def test_quickstart_writes_what_it_prints_and_a_picture(programs, pair_data, capsys):
    main(quickstart_words(pair_data, "deepnorm"))

    assert (pair_data.parent / "result.txt").read_text() in capsys.readouterr().out
    assert (pair_data.parent / "loss.png").stat().st_size > 5000


def test_quickstart_again_trains_nothing_and_prints_the_same(programs, pair_data, capsys):
    main(quickstart_words(pair_data, "deepnorm"))
    first = capsys.readouterr().out

    main(quickstart_words(pair_data, "deepnorm"))

    assert capsys.readouterr().out == first
    assert programs.names == ["train", "generate"]


def test_quickstart_trains_only_an_added_method(programs, pair_data):
    main(quickstart_words(pair_data, "deepnorm"))

    main(quickstart_words(pair_data, "deepnorm,admin"))

    assert programs.names == ["train", "generate"] * 2
    assert "--admin-profile auto" in programs.flags[2]


def test_quickstart_refuses_an_unknown_method(programs, pair_data):
    assert_refused("--method deepnrom: ", *quickstart_words(pair_data, "deepnrom"))


# the real programs

OWN_METHOD = """from deepnet_fairseq.core.methods import register
from deepnet_fairseq.core.methods.pre_ln import PreLN
@register("mine")
class Mine(PreLN): 'Pre-LN by another name.'
"""


@pytest.mark.smoke
def test_a_killed_comparison_resumes_with_a_method_of_ones_own(data, tmp_path):
    """Killed with SIGKILL, `deepnet compare` takes its trainings along; the next call resumes their checkpoints."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own/mine.py").write_text(OWN_METHOD)
    out = tmp_path / "out"
    run = out / "1L-1L-60-updates-seed1/mine-lr1e-3"
    program = str(Path(sys.executable).parent / "deepnet")
    more = f"--updates 60 --depths 1 --jobs 2 --max-tokens 300 --out {out} --user-dir {tmp_path}/own".split()
    command = [program, *compare_words(data, *more, methods="mine,pre_ln")]

    first = subprocess.Popen(command)
    until(lambda: (run / "checkpoint_last.pt").exists() or first.poll() is not None)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    size = (run / "train.log").stat().st_size
    assert size

    subprocess.run(command, check=True)

    log = (run / "train.log").read_text()
    assert "Loaded checkpoint" in log[size:]
    mine, pre_ln = [json.loads(line) for line in (out / "records.jsonl").read_text().splitlines()]
    assert mine["run"]["method"] == "mine"
    assert pre_ln["run"]["method"] == "pre_ln"
    assert "bleu" in mine["score"]
    assert mine["log"]["valid"][-1]["valid_loss"] == pre_ln["log"]["valid"][-1]["valid_loss"]
