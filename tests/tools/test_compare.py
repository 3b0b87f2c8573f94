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
from typing import NamedTuple

import pytest

from deepnet_fairseq.cli import main
from deepnet_fairseq.study import runner
from deepnet_fairseq.study.runs import RecordedRun, read_records
from deepnet_fairseq.tools import compare

from ..support.errors import assert_refused, refusal
from ..support.experiments import until
from ..support.helpers import USER_DIR

# Program that stands for fairseq-train: it writes a log of five lines, which cover a minute, and two checkpoints.
# Arguments: validation loss, last line of the log, exit status, and the folder of the checkpoints, "" to save none.
TRAIN = """import json, pathlib, sys
loss, last_line, status, folder = sys.argv[1:]
print("2026-01-01 00:00:00 | INFO | fairseq_cli.train | {}")
for update in (50, 100):
    print("2026-01-01 00:01:00 | INFO | train_inner |", json.dumps({"loss": "8.5", "num_updates": str(update)}))
row = {"epoch": 1, "valid_loss": loss, "valid_num_updates": "100"}
print("2026-01-01 00:01:00 | INFO | valid |", json.dumps(row))
print(last_line)
if folder:
    for name in ("best", "last"):
        pathlib.Path(folder, f"checkpoint_{name}.pt").touch()
sys.exit(int(status))"""
LINES_OF_LOG = 5
# Program that stands for fairseq-generate: its translation D-0 is the reference T-0, so that BLEU is 100.
GENERATE = "print('T-0\\ta b c d\\nD-0\\t-0.1\\ta b c d')"
STUCK = "stuck at update 90"
DIVERGED = "diverged at update 90"
DIVERGED_STATUS = 3  # exit status of fairseq-train with this package
STUCK_STATUS = 4


class StandIns:
    """Stand-ins for fairseq's programs: tests set how trainings end, and find which programs were called.

    last_line, status: of each training's log, and its exit status
    saves: whether trainings write checkpoints
    held_out_loss: function from the flags of a training to its validation loss, None for a training that is stuck
    names: programs in the order of their calls, "train" or "generate"
    flags: the flags of these calls, each in one text
    """

    def __init__(self):
        self.last_line = "done"
        self.status = 0
        self.saves = True
        self.held_out_loss = lambda flags: 5.0
        self.names: list[str] = []
        self.flags: list[str] = []

    def command(self, grid, name: str, words: list[str]) -> list[str]:
        """Return the command of a stand-in; takes the place of compare.fairseq_command."""
        flags = " ".join(words)
        self.names.append(name)
        self.flags.append(flags)
        if name == "generate":
            return [sys.executable, "-c", GENERATE]

        save_dir = words[words.index("--save-dir") + 1]
        folder = save_dir if self.saves else ""
        loss = self.held_out_loss(flags)
        if loss is None:
            return [sys.executable, "-c", TRAIN, "9.0", f"error: {STUCK}", str(STUCK_STATUS), folder]
        return [sys.executable, "-c", TRAIN, str(loss), self.last_line, str(self.status), folder]

    def install(self, monkeypatch) -> None:
        """Let `deepnet compare` start the stand-ins, and look every 0.01 s whether they have ended."""
        monkeypatch.setattr(compare, "fairseq_command", self.command)
        monkeypatch.setattr(runner, "POLL", 0.01)


@pytest.mark.parametrize("own_methods", [None, "own"])
def test_trainings_read_this_package_as_their_user_dir(own_methods):
    """fairseq imports one --user-dir alone; methods of the user's are imported before it starts."""
    grid = SimpleNamespace(data="data", user_dir=own_methods)

    command = compare.fairseq_command(grid, "train", ["--cpu"])

    assert command[command.index("--user-dir") + 1] == USER_DIR


@pytest.fixture
def programs(monkeypatch):
    """Provide the stand-ins, installed; their trainings end well, with a validation loss of 5 bits."""
    stand_ins = StandIns()
    stand_ins.install(monkeypatch)
    return stand_ins


def write_data(folder: Path) -> Path:
    """Write data whose files suffice for the command's checks, with one sentence to translate; return their folder.

    raw/test.qab: the reference of the test set.
    """
    names = ("dict.qaa.txt", "dict.qab.txt", "train.qaa-qab.qaa.idx", "train.qaa-qab.qab.idx", "raw/test.qab")
    for name in names:
        path = folder / "out/data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("a b c d\n")
    return folder / "out/data"


@pytest.fixture
def pair_data(tmp_path):
    """Provide a folder with data of a language pair, out/data in the test's folder."""
    return write_data(tmp_path)


def compare_words(data: Path, *more: str, methods: str = "deepnorm") -> list[str]:
    """Return the words of a command of 100 updates; its results go into the folder that the data are in.

    Without more flags it has one training: depth 6, rate 1e-3 and seed 1 are the defaults.
    """
    return ["compare", str(data), "--methods", methods, "--updates", "100", "--out", str(data.parent), *more]


# a grid of methods, depths, rates and seeds

LOSSES = {  # --lr and --seed of a DeepNorm training -> its held-out loss; the lowest rate is not the best
    ("5e-4", "1"): 4.0,
    ("5e-4", "2"): 5.0,
    ("1e-3", "1"): 3.0,
    ("1e-3", "2"): 4.0,
    ("2e-3", "1"): 1.0,
    ("2e-3", "2"): None,  # stuck, so that 2e-3, the rate of the lowest loss, is no candidate
}


def loss_in_grid(flags: str) -> float | None:
    """Return the loss of LOSSES, whatever the depth; None for every post_ln, all of which are stuck."""
    if "--method post_ln" in flags:
        return None
    rate = re.search(r"--lr (\S+)", flags).group(1)
    seed = re.search(r"--seed (\S+)", flags).group(1)
    return LOSSES[rate, seed]


class FinishedGrid(NamedTuple):
    """A grid that was trained, and then asked for once more."""

    folder: Path  # of plot.pdf, which the first call draws, and plot.svg of the second
    out: Path  # of the results
    programs: StandIns  # with the programs of both calls
    table: str  # what the first call prints
    rows: list[dict]  # the JSON that the second call prints


@pytest.fixture(scope="module")
def finished_grid(tmp_path_factory) -> FinishedGrid:
    folder = tmp_path_factory.mktemp("grid")
    data = write_data(folder)
    grid = ("--depths", "6,18", "--lrs", "5e-4,0.001,2e-3", "--seeds", "1,2", "--jobs", "3")
    words = compare_words(data, *grid, methods="deepnorm,post_ln")
    stand_ins = StandIns()
    stand_ins.held_out_loss = loss_in_grid

    with pytest.MonkeyPatch.context() as patch:
        stand_ins.install(patch)
        with redirect_stdout(StringIO()) as table:
            main([*words, "--plot", str(folder / "plot.pdf")])
        with redirect_stdout(StringIO()) as rows:
            main([*words, "--plot", str(folder / "plot.svg"), "--json"])

    return FinishedGrid(
        folder=folder, out=data.parent, programs=stand_ins, table=table.getvalue(), rows=json.loads(rows.getvalue())
    )


def test_a_table_without_marks_has_no_note_on_them(finished_grid):
    """The best rate, 1e-3, lies between the other two."""
    assert "≤" not in finished_grid.table
    assert "≥" not in finished_grid.table


def test_a_best_rate_at_the_edge_of_the_grid_is_marked_and_explained(tmp_path, monkeypatch, capsys):
    stand_ins = StandIns()
    stand_ins.held_out_loss = loss_in_grid
    stand_ins.install(monkeypatch)

    # with seed 1 the higher rate has the lower loss, see LOSSES
    main(compare_words(write_data(tmp_path), "--depths", "6", "--lrs", "1e-3,2e-3", "--seeds", "1"))

    printed = capsys.readouterr().out
    assert "≥ 2e-3" in printed
    assert "≤, ≥:" in printed


TRAININGS_OF_GRID = 2 * 2 * 3 * 2  # methods, depths, rates, seeds


def test_a_row_of_the_table_shows_the_best_rate_without_a_stuck_seed(finished_grid):
    (row,) = [line for line in finished_grid.table.splitlines() if re.match("deepnorm +6L", line)]

    method, depth, rate, loss, bleu, time, failed = re.split(" {2,}", row)

    assert (method, depth) == ("deepnorm", "6L-6L")
    assert rate == "1e-3"
    assert loss == "3.50 [3.00, 4.00]"  # mean, least and largest of both seeds in LOSSES
    assert bleu == "100.0 [100.0, 100.0]"
    assert time == "60 s"  # the minute of TRAIN's log
    assert failed == f"2e-3: {STUCK}"


def test_every_training_of_a_grid_is_recorded(finished_grid):
    records = read_records(finished_grid.out / "records.jsonl")

    assert len(records) == TRAININGS_OF_GRID
    stuck_post_ln = TRAININGS_OF_GRID // 2
    stuck_deepnorm = 2  # rate 2e-3 and seed 2, at each depth
    assert len([run for run in records if run.stuck]) == stuck_post_ln + stuck_deepnorm


def test_finished_trainings_are_not_repeated(finished_grid):
    """The grid was asked for twice, and each of its trainings ran once."""
    assert finished_grid.programs.names.count("train") == TRAININGS_OF_GRID


def test_json_has_the_best_rates_and_what_failed(finished_grid):
    deepnorm, post_ln, deeper_deepnorm, deeper_post_ln = finished_grid.rows  # 6 layers, 6, 18, 18

    assert deepnorm["lr"] == 0.001
    assert deeper_deepnorm["lr"] == 0.001
    assert post_ln["lr"] is None
    assert deeper_post_ln["lr"] is None
    assert post_ln["edge"] == ""  # without a best rate none is at the edge of the grid
    assert deeper_deepnorm["held_out"] == [3.0, 4.0]  # of both seeds, as in LOSSES
    assert set(post_ln["failed"]) == {"5e-4", "1e-3", "2e-3"}
    assert post_ln["bleu"] == []


def test_a_plot_has_the_format_of_its_name(finished_grid):
    assert (finished_grid.folder / "plot.pdf").read_bytes().startswith(b"%PDF")
    assert b"<svg" in (finished_grid.folder / "plot.svg").read_bytes()


def test_only_the_last_checkpoints_are_kept(finished_grid):
    """TRAIN writes two checkpoints, of which checkpoint_best.pt is removed."""
    assert not list(finished_grid.out.rglob("checkpoint_best.pt"))
    assert len(list(finished_grid.out.rglob("checkpoint_last.pt"))) == TRAININGS_OF_GRID


def grid_of(data: Path, methods=("deepnorm",), depths=(6,), updates: int = 100, **more) -> compare.Grid:
    """Return a grid of one rate and one seed."""
    return compare.Grid(data, methods, depths, lrs=[1e-3], seeds=[1], updates=updates, out=data.parent, **more)


@pytest.mark.parametrize(
    ("jobs", "gib", "expected"),
    [
        (None, 64, 3),  # all that the cores suffice for
        (None, 4, 2),
        (None, 0.1, 1),  # too little for one, which is trained all the same
        (3, 0.1, 3),  # --jobs 3 wins over the memory
    ],
)
def test_no_more_are_trained_at_a_time_than_fit_into_memory(jobs, gib, expected, pair_data, monkeypatch):
    """A training of the deepest model, 100L-100L, needs 1.5 GiB: 0.8 for the model, and 0.7 for the program."""
    cores_suffice_for = 3
    monkeypatch.setattr(compare, "free_memory", lambda: gib * 2**30)

    grid = grid_of(pair_data, depths=[6, 100], jobs=jobs, flags=["--cpu"])

    assert grid.jobs_that_fit(jobs or cores_suffice_for) == expected


def test_a_training_is_planned_with_the_vocabularies_of_source_and_target(tmp_path, monkeypatch):
    """The source language's name stands behind the target's in the alphabet."""
    names = ("dict.qab.txt", "dict.qaa.txt", "train.qab-qaa.qab.idx", "train.qab-qaa.qaa.idx")
    for name in names:
        (tmp_path / name).write_text("a 1\n")
    (tmp_path / "dict.qab.txt").write_text("a 1\n" * 100)
    planned = []
    monkeypatch.setattr(compare, "memory", lambda setting: planned.append(setting.vocab) or SimpleNamespace(peak=1))

    grid_of(tmp_path, flags=["--cpu"]).jobs_that_fit(2)

    special_symbols = 4
    assert planned == [(100 + special_symbols, 1 + special_symbols)]


def result_of(method: str, depth: int, held_out: float, bleu: float) -> compare.Best:
    """Return the result of a method at a depth, from one seed; its runs are left out, which no picture needs."""
    return compare.Best(
        method, depth, lr=1e-3, edge="", failed={}, runs=[], held_out=[held_out], bleu=[bleu]
    )  # fmt: skip


def test_a_panel_of_the_plot_has_eight_lines_at_most(pair_data):
    """Nine methods take two panels for the loss and two for BLEU, whose lines all differ in style."""
    methods = ["deepnorm", "post_ln", "pre_ln", "admin", "rezero", "dlcl", "keel", "b2t", "gpas"]
    depths = [2, 4]
    results = []
    for depth in depths:
        for method in methods:
            results.append(result_of(method, depth, held_out=5.0, bleu=9.0))

    picture = compare.picture(grid_of(pair_data, methods, depths), results)

    styles_of_panels = []
    for panel in picture.panels:
        styles_of_panels.append({series.style for series in panel.series})
    # loss and BLEU of the first eight methods, then those of the ninth
    assert [len(styles) for styles in styles_of_panels] == [8, 8, 1, 1]


def test_losses_have_a_panel_however_low_they_are_and_bleu_below_2_has_none(pair_data):
    results = [result_of("deepnorm", depth, held_out=0.5, bleu=0.3) for depth in (2, 4)]

    picture = compare.picture(grid_of(pair_data, ["deepnorm"], [2, 4]), results)

    (panel,) = picture.panels
    assert panel.series[0].points == {2: 0.5, 4: 0.5}  # the losses by depth


@pytest.mark.parametrize(
    ("updates", "beta2", "expected"),
    [
        (1200, 0.98, 200),  # a sixth
        (300, 0.98, 100),  # 2 / (1 - beta2), more than a sixth, 50
        (99, 0.999, 49),  # a half, less than 2 / (1 - beta2), 2000
    ],
)
def test_a_warmup_is_a_sixth_of_the_updates_unless_adam_needs_more(updates, beta2, expected, tmp_path):
    """Adam's second moments need 2 / (1 - beta2) updates (Ma and Yarats 2021). A half of all is the most."""
    grid = grid_of(tmp_path, updates=updates, flags=("--adam-betas", f"(0.9, {beta2})"))

    warmup, note = grid.warmup_updates()

    assert warmup == expected
    is_noted = note != ""
    assert is_noted == (warmup != updates / 6)


# results other than a loss and a score


def test_data_without_references_give_losses_alone(programs, pair_data, capsys):
    """A folder of binarised text without raw text has nothing to score against."""
    (pair_data / "raw/test.qab").unlink()

    main(compare_words(pair_data, "--json"))

    (row,) = json.loads(capsys.readouterr().out)
    assert row["held_out"] == [5.0]
    assert row["bleu"] == []
    assert programs.names == ["train"]


def test_with_the_flag_cpu_a_machine_with_a_gpu_trains_and_translates_on_its_cpu(
    programs, pair_data, run_folder, monkeypatch
):
    monkeypatch.setattr(compare, "DEVICE_FLAGS", [])  # as on a machine with a GPU

    main(compare_words(pair_data, "--cpu"))

    assert programs.names == ["train", "generate"]
    assert all("--cpu" in flags.split() for flags in programs.flags)
    environment = json.loads((run_folder / "environment.json").read_text())
    assert environment["gpus"] == 0


@pytest.fixture(params=[True, False], ids=["saved before", "saved nothing"])
def diverging_programs(programs, request):
    """Provide stand-ins whose trainings diverge, after they have saved or before."""
    programs.last_line = f"fairseq-train: error: {DIVERGED}; lower --lr"
    programs.status = DIVERGED_STATUS
    programs.saves = request.param
    return programs


def test_a_training_that_diverges_is_a_result(diverging_programs, pair_data, capsys):
    main(compare_words(pair_data))

    assert f"1e-3: {DIVERGED}" in capsys.readouterr().out
    assert diverging_programs.names == ["train"]  # no translation


def test_a_training_that_diverged_is_not_repeated(diverging_programs, pair_data, capsys):
    main(compare_words(pair_data))
    capsys.readouterr()

    main(compare_words(pair_data))

    assert f"1e-3: {DIVERGED}" in capsys.readouterr().out
    assert diverging_programs.names == ["train"]


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
    """Return the number of lines in a training's log."""
    return len((run_folder / "train.log").read_text().splitlines())


def test_a_training_that_fails_is_named_with_its_last_line_and_its_log(broken_programs, pair_data, run_folder):
    line = refusal(*compare_words(pair_data))

    assert "deepnorm 6L-6L lr 1e-3 seed 1" in line
    assert broken_programs.last_line in line
    assert f"{run_folder}/train.log" in line


def test_a_training_that_failed_before_it_saved_begins_its_log_anew(broken_programs, pair_data, run_folder):
    refusal(*compare_words(pair_data))

    refusal(*compare_words(pair_data))

    assert broken_programs.names == ["train", "train"]
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

    assert_refused(f"{run_folder}: ", *compare_words(pair_data, "--clip-norm", "1"))

    assert broken_programs.names == ["train"]
    assert lines_of_log(run_folder) == LINES_OF_LOG


def test_a_training_that_failed_before_it_saved_begins_with_other_flags(broken_programs, pair_data, run_folder):
    refusal(*compare_words(pair_data))
    broken_programs.last_line = "done"
    broken_programs.status = 0
    broken_programs.saves = True

    main(compare_words(pair_data, "--clip-norm", "1"))

    assert "--clip-norm 1" in RecordedRun(run_folder).facts["flags"]
    assert lines_of_log(run_folder) == LINES_OF_LOG


def test_flags_of_finished_trainings_are_not_looked_at(programs, pair_data, monkeypatch):
    """A table can be printed again though a later release refuses a flag."""
    main(compare_words(pair_data))
    monkeypatch.setattr(compare, "check_training_flags", lambda flags: pytest.fail("looked at"))

    main(compare_words(pair_data))

    assert programs.names == ["train", "generate"]


def test_a_finished_training_is_not_one_of_other_data(programs, pair_data, run_folder):
    """The dictionaries tell the data apart."""
    main(compare_words(pair_data))
    (pair_data / "dict.qaa.txt").write_text("other\n")

    assert_refused(f"{run_folder}: ", *compare_words(pair_data))


@pytest.fixture
def default_sigint():
    """Let Ctrl-C raise KeyboardInterrupt: a shell lets background jobs, as tests may be, ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


# Program that stands for a fairseq-train of a minute: it sends its parent, the command, a signal as a user may, and
# writes into a file which signal ends it. To be filled in: {file}, {signal_to_parent}.
INTERRUPTING = """import os, pathlib, signal, sys, time
def end(number, frame):
    pathlib.Path({file!r}).write_text(str(number))
    sys.exit(1)
signal.signal(signal.SIGTERM, end)
os.kill(os.getppid(), {signal_to_parent:d})
time.sleep(60)"""


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_running_training_first(pair_data, monkeypatch, sent, default_sigint):
    """The training does not count as trained: its folder has no file `trained`."""
    file = pair_data.parent / "signal"
    training = INTERRUPTING.format(file=str(file), signal_to_parent=sent)
    monkeypatch.setattr(compare, "fairseq_command", lambda *_: [sys.executable, "-c", training])
    handler_before = signal.getsignal(sent)

    with pytest.raises(SystemExit) as ended:
        main(compare_words(pair_data))

    assert file.read_text() == str(int(signal.SIGTERM))  # SIGTERM ends the training, whichever signal the command got
    assert ended.value.code == 128 + sent  # as a shell reports it
    assert signal.getsignal(sent) is handler_before
    assert not list(pair_data.parent.rglob("trained"))


# options of one method


@pytest.mark.parametrize("option", ["--dlcl-window 2", "--dlcl-window=2", "--dlcl-plain"])
def test_an_option_of_a_method_goes_to_its_trainings_alone(option, programs, pair_data):
    words = compare_words(pair_data, "--jobs", "1", *option.split(), "--clip-norm", "1", methods="dlcl,deepnorm")

    main(words)

    of_dlcl, of_deepnorm = [flags for name, flags in zip(programs.names, programs.flags) if name == "train"]
    assert f"{option} --clip-norm 1" in of_dlcl
    assert option.split("=")[0] not in of_deepnorm
    assert "--clip-norm 1" in of_deepnorm


def test_a_recorded_command_has_no_options_of_other_methods(programs, pair_data, run_folder):
    """A recorded command trains one method alone, and would be refused with options of another."""
    main(compare_words(pair_data, "--jobs", "1", "--dlcl-window", "2", methods="dlcl,deepnorm"))

    assert "--dlcl-window" not in RecordedRun(run_folder).command
    assert "--dlcl-window 2" in RecordedRun(run_folder.with_name("dlcl-lr1e-3")).command


# mistakes


@pytest.mark.parametrize(("flags", "subject"), [
    ("--methods deepnorm,deepnrom", "--method deepnrom: "), ("--depths 6,0", "--depths 0: "),
    ("--lrs 1e-3,0", "--lrs 0.0: "), ("--lrs x", "--lrs x: "), ("--warmup 2", "--warmup 2: "),
    ("--jobs 0", "--jobs 0: "), ("--encoder-layers=6", "--encoder-layers=6: "), ("--plot p.gif", "--plot p.gif: "),
    ("--dlcl-window 2", "--dlcl-window 2: "), ("--methods dlcl --dlcl-window -1", "--dlcl-window -1: "),
    ("--methods deepnorm,dlcl --dlcl-norm token", "--dlcl-norm"), ("--no-such-flag 1", "--no-such-flag"),
    ("--clip-norm x", "--clip-norm"), ("--max-tokens", "--max-tokens"),
])  # fmt: skip
def test_a_wrong_flag_is_named_and_nothing_is_written(flags, subject, programs, pair_data, tmp_path):
    words = compare_words(pair_data, *flags.split())

    assert_refused(subject, *words, "--out", tmp_path / "new")  # the last --out counts

    assert programs.names == []
    assert not (tmp_path / "new").exists()


def test_layers_are_refused_with_the_flag_for_depths(programs, pair_data):
    assert_refused("--depths", *compare_words(pair_data, "--encoder-layers=6"))


def test_a_folder_without_data_of_a_language_pair_is_named(programs, tmp_path):
    assert_refused(f"error: {tmp_path}: ", *compare_words(tmp_path), "--out", tmp_path / "new")

    assert programs.names == []
    assert not (tmp_path / "new").exists()


# quickstart


def quickstart_words(data: Path, methods: str) -> list[str]:
    """Return the words of a quickstart into the folder of the data, which it takes for those that it makes."""
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
    assert (pair_data.parent / "loss.png").stat().st_size > 5000  # bytes: an empty picture has fewer


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
    second_training = programs.flags[2]
    assert "--method admin" in second_training
    assert "--admin-profile auto" in second_training  # Admin needs it to be trained (Method.train_flags)


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
    """Killed with SIGKILL, `deepnet compare` takes its trainings along; the next call resumes their checkpoints.

    The user's method is Pre-LN by another name: resumed, it ends with the loss of Pre-LN.
    """
    (tmp_path / "own").mkdir()
    (tmp_path / "own/mine.py").write_text(OWN_METHOD)
    out = tmp_path / "out"
    log = out / "1L-1L-60-updates-seed1/mine-lr1e-3/train.log"
    program = str(Path(sys.executable).parent / "deepnet")
    more = f"--updates 60 --depths 1 --jobs 2 --max-tokens 300 --out {out} --user-dir {tmp_path}/own".split()
    command = [program, *compare_words(data, *more, methods="mine,pre_ln")]

    first = subprocess.Popen(command)
    until(lambda: log.with_name("checkpoint_last.pt").exists() or first.poll() is not None)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    log_of_first = log.read_text()
    assert log_of_first
    subprocess.run(command, check=True)

    log_of_second = log.read_text().removeprefix(log_of_first)
    assert "Loaded checkpoint" in log_of_second
    mine, pre_ln = [json.loads(line) for line in (out / "records.jsonl").read_text().splitlines()]
    assert mine["run"]["method"] == "mine"
    assert pre_ln["run"]["method"] == "pre_ln"
    assert "bleu" in mine["score"]
    assert mine["log"]["valid"][-1]["valid_loss"] == pre_ln["log"]["valid"][-1]["valid_loss"]
