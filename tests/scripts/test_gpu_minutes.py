"""Tests of dev/gpu_minutes.sh: what it runs in which time, its records, its settings, and its miniature on a CPU.

The script runs a list of measurements, its parts, in the minutes that a GPU is lent for. Each part runs in a process of
its own, and its record is appended to a file. A later call goes on with the parts that are open.
"""

import itertools
import json
import shlex
import sys
import time
from types import SimpleNamespace

import pytest
import torch

from deepnet_fairseq.plugin.trainer import parse_training_flags
from dev.gpu import figure6, graphs, minutes, parts, records, thousand_layers, trainings
from dev.gpu.__main__ import main
from dev.gpu.parts import PARTS, Part
from dev.gpu.work import Work

from ..support.errors import refused
from ..support.experiments import bash, needs_venv

# PROGRAM stands for `python -m dev.gpu --run-part NAME --folder FOLDER`: a part's name says what it does. "slow..." is
# half over when it is killed, "broken..." fails, "one" and "other" wait for each other; any other part ends at once.
PROGRAM = """
import json, pathlib, sys, time
name, folder = sys.argv[2], pathlib.Path(sys.argv[4]) / "work" / sys.argv[2]
(folder / "started").touch()
if name.startswith("slow"):
    (folder / "share").write_text("0.5")
    (folder / "so_far.json").write_text(json.dumps({"what": "half of it"}))
    time.sleep(600)
if name.startswith("broken"):
    sys.exit("no such kernel")
(folder / "rows.jsonl").write_text(json.dumps({"what": "number", "value": 7}) + "\\n")
other = {"one": "other", "other": "one"}.get(name)
while other and not (folder.parent / other / "started").exists():
    time.sleep(0.1)  # until the other one runs, too
(folder / "ended").touch()
"""


def part(name, seconds=1.0, **others):
    """Return a part that PROGRAM runs; seconds: its predicted time; others: more fields of Part."""
    return Part(name=name, number=1, what=name, run=lambda work: iter(()), seconds=seconds, **others)


@pytest.fixture
def run_parts(tmp_path, monkeypatch):
    """Provide a function that runs parts, by PROGRAM in tmp_path on one GPU, and returns the new records by name.

    The function's `seconds` are the time that there is; its other options are those of Minutes.run.
    """
    monkeypatch.setattr(minutes, "RESERVE", 0.0)
    monkeypatch.setattr(minutes, "GRACE", 600.0)  # no part is killed because the machine is slow
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    (tmp_path / "text" / "language").mkdir(parents=True)
    (tmp_path / "program.py").write_text(PROGRAM)

    def run_parts(*wanted, seconds=3000.0, **others):
        run = minutes.Minutes(
            until=time.monotonic() + seconds,
            longest=seconds,
            folder=tmp_path,
            file=tmp_path / "records.jsonl",
            out=tmp_path / "out",
            program=[sys.executable, str(tmp_path / "program.py")],
        )
        return {record["part"]: record for record in run.run(list(wanted), **others)}

    return run_parts


def test_a_part_that_fails_is_recorded_with_its_reason(run_parts, tmp_path):
    found = run_parts(part("broken"), part("quick"))

    assert found["broken"]["ended"] == records.FAILED
    assert found["broken"]["why"] == "no such kernel"
    assert "no such kernel" in (tmp_path / "out" / "log.txt").read_text()


def test_parts_after_one_that_fails_are_run(run_parts):
    found = run_parts(part("broken"), part("quick"))

    assert found["quick"]["ended"] == records.DONE
    assert found["quick"]["rows"] == [{"what": "number", "value": 7}]
    assert {"device", "versions", "commit", "seconds", "date"} <= found["quick"].keys()


def test_records_are_written_to_their_file_and_among_the_outputs(run_parts, tmp_path):
    found = run_parts(part("broken"), part("quick"))

    assert len(found) == 2
    assert records.read(tmp_path / "records.jsonl") == list(found.values())
    assert records.read(tmp_path / "out" / "records.jsonl") == list(found.values())


def test_a_part_that_is_done_is_not_run_again(run_parts):
    run_parts(part("quick"))

    found = run_parts(part("quick"), part("quicker"))

    assert list(found) == ["quicker"]


def test_a_part_that_is_done_is_run_again_if_asked_for(run_parts):
    run_parts(part("quick"))

    found = run_parts(part("quick"), open_only=False)

    assert list(found) == ["quick"]


@pytest.mark.parametrize(
    "unfit",
    [part("long", seconds=10_000), part("several", gpus=99), part("german", text="mix")],
    ids=["takes too long", "needs more GPUs", "needs a text that is not there"],
)
def test_parts_that_do_not_fit_are_left_out(run_parts, unfit):
    """There are 3,000 seconds, one GPU, and no text but "language". The part after the unfit one is run."""
    found = run_parts(unfit, part("quick"))

    assert list(found) == ["quick"]


LATER = 5000.0  # seconds by which the clock jumps


@pytest.fixture
def record_of_part_cut_off(run_parts, tmp_path, monkeypatch):
    """Provide the record of a part "slow" that is killed: the clock jumps once the part says that half is done."""
    so_far = tmp_path / "work" / "slow" / "so_far.json"

    def monotonic() -> float:
        is_half_over = so_far.exists() and so_far.read_text().endswith("}")
        return time.monotonic() + (LATER if is_half_over else 0.0)

    monkeypatch.setattr(minutes, "time", SimpleNamespace(monotonic=monotonic, sleep=time.sleep))
    return run_parts(part("slow"))["slow"]


def test_a_part_whose_time_is_over_is_killed_and_recorded_as_cut_off(record_of_part_cut_off, tmp_path):
    """The record has what the part had measured by then, and the seconds that it ran."""
    assert record_of_part_cut_off["ended"] == records.CUT
    assert record_of_part_cut_off["rows"] == [{"what": "half of it"}]
    assert LATER <= record_of_part_cut_off["seconds"] < 2 * LATER
    assert not (tmp_path / "work" / "slow" / "ended").exists()


def test_a_part_that_was_cut_off_stays_open_and_is_planned_by_its_speed(record_of_part_cut_off, tmp_path):
    """The recorded seconds are those of half the part, so the whole part is predicted to take twice as many."""
    known = records.read(tmp_path / "records.jsonl")

    assert not records.is_done(known, "slow")
    assert parts.predicted(part("slow"), known, longest=60.0) == record_of_part_cut_off["seconds"] / 0.5


@pytest.fixture
def two_at_a_time_are_faster(tmp_path):
    """Write a record in which two trainings at a time make 12 updates a second, and one alone makes 10."""
    measured = [{"what": graphs.ALONE, "updates_a_second": 10}, {"what": graphs.TWO, "updates_a_second": 12}]
    records.append(tmp_path / "records.jsonl", {"part": "two_at_a_time", "ended": "done", "rows": measured})


@pytest.mark.usefixtures("two_at_a_time_are_faster")
def test_parts_run_side_by_side_where_that_was_measured_to_be_faster(run_parts):
    """Each of the three parts may run beside one other part. The first two do, so the third finds none."""
    found = run_parts(part("one", beside="cells"), part("other", beside="cells"), part("third", beside="cells"))

    assert found["one"]["beside"] == ["other"]
    assert found["other"]["beside"] == ["one"]
    assert "beside" not in found["third"]
    assert found["one"]["ended"] == records.DONE  # each waits for the other to run
    assert found["other"]["ended"] == records.DONE


@pytest.mark.usefixtures("two_at_a_time_are_faster")
def test_a_part_that_does_not_fit_beside_another_one_runs_alone(run_parts):
    """There are 1,000 seconds. Each part needs 700, and both side by side need 2 * 700 / 1.2 = 1,167."""
    parts_of_700_s = [part("first", seconds=700, beside="cells"), part("second", seconds=700, beside="cells")]

    found = run_parts(*parts_of_700_s, seconds=1000.0)

    assert list(found) == ["first", "second"]
    assert "beside" not in found["first"]
    assert "beside" not in found["second"]


def collect(there, here) -> None:
    """Run `python -m dev.gpu --collect THERE --records HERE`, which adds the records of one file to another."""
    with pytest.raises(SystemExit) as ended:
        main(["--collect", str(there), "--records", str(here)])
    assert ended.value.code == 0


def test_records_of_another_machine_are_added_once(tmp_path):
    """The file here has one of the three records already. Collecting them again adds none."""
    there = tmp_path / "there.jsonl"
    here = tmp_path / "here.jsonl"
    for seconds in range(3):
        records.append(there, {"part": "equal", "seconds": seconds})
    records.append(here, {"part": "equal", "seconds": 1})

    collect(there, here)
    collect(there, here)

    assert [record["seconds"] for record in records.read(here)] == [1, 0, 2]


def test_a_broken_line_of_records_is_named_with_its_file(tmp_path):
    (tmp_path / "records.jsonl").write_text('{"part": "equal"}\nbroken\n')

    with refused("records.jsonl, line 2"):
        records.read(tmp_path / "records.jsonl")


@pytest.mark.parametrize(
    ("flags", "wrong"),
    [
        (["--only", "equall"], "equall"),  # no part
        (["--collect", "none.jsonl"], "none.jsonl"),
        (["--minutes", "9", "--folder", "/none"], "/none"),  # a folder without the text of --prepare
    ],
)
def test_a_mistake_in_a_flag_is_named_in_one_line(flags, wrong, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)  # a missing GPU would be named first

    with pytest.raises(SystemExit) as ended:
        main(flags)

    (line,) = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2
    assert wrong in line


def test_the_committed_records_are_of_parts_of_the_list():
    """Records in results/gpu that were made before there was a list name no part."""
    known = records.read(records.RECORDS)

    recorded = {record["part"] for record in known if "part" in record}
    assert recorded
    assert recorded <= {part.name for part in PARTS}


# settings

LONGEST = 600.0  # seconds that a part may take


def work_of(tmp_path):
    """Return the settings of a part on a GPU that has 1,000 s to run in tmp_path, without records of earlier parts."""
    return Work(folder=tmp_path, text=tmp_path, until=time.monotonic() + 1000, records=[])


def flag_values(words):
    """Return flag -> value in the words of a command, None for a switch; the last one counts, as for argparse.

    A flag and its value may be two words or one, --flag=value.
    """
    single = []
    for word in words:
        single += word.split("=", 1)
    flags = {}
    for word, following in itertools.pairwise([*single, "--"]):
        if word.startswith("--"):
            flags[word] = None if following.startswith("--") else following
    return flags


FLAGS_OF_A_CELL = {  # where a cell saves, what it logs, and how it uses one GPU
    "--save-dir", "--log-interval", "--save-interval-updates", "--keep-interval-updates", "--save-interval",
    "--validate-interval", "--cuda-graphs", "--update-freq",
}  # fmt: skip


@needs_venv
def test_figure_6_has_the_flags_of_the_paper_s_script(tmp_path):
    """A cell is one training of the figure, a method at a depth. At full length it differs in FLAGS_OF_A_CELL alone."""
    done = bash("-c", "METHODS=pre_ln DEPTHS=50 GPUS=1 exec bash scripts/iwslt14_de_en.sh --dry-run=commands")
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("fairseq-train")]
    _program, _data, *words_of_script = shlex.split(line)
    script = flag_values(words_of_script)

    cell = flag_values([
        *shlex.split(trainings.COMMON), *figure6.flags(work_of(tmp_path), "pre_ln", 50),
        f"--warmup-updates={figure6.WARMUP}", f"--max-update={figure6.UPDATES}", "--disable-validation",
    ])  # fmt: skip

    every_flag = script.keys() | cell.keys()
    differing = {flag for flag in every_flag if script.get(flag, "not given") != cell.get(flag, "not given")}
    assert differing <= FLAGS_OF_A_CELL
    assert script["--update-freq"] == "1"  # fairseq's default, which the cell leaves


def assert_fairseq_train_takes(flags, data, folder):
    """Check that fairseq-train's parser knows the flags, and that they ask for CUDA graphs."""
    common = [str(data), *shlex.split(trainings.COMMON), "--save-dir", str(folder)]
    assert parse_training_flags([*common, *flags]).cuda_graphs


@pytest.mark.parametrize("name", ["deepnorm", "post_ln", "pre_ln"])
def test_fairseq_train_knows_the_flags_of_figure_6_on_a_gpu(name, tmp_path, data):
    """Among the flags are --cuda-graphs and --stop-stuck, which the miniature on a CPU never passes."""
    flags = figure6.flags(work_of(tmp_path), name, layers=10) + figure6.STOP_STUCK

    assert_fairseq_train_takes(flags, data, tmp_path)


def test_fairseq_train_knows_the_flags_of_1000_layers_on_a_gpu(tmp_path, data):
    flags = thousand_layers.flags(work_of(tmp_path), tokens=4096, updates=1300)

    assert_fairseq_train_takes(flags, data, tmp_path)


def records_of_cell(layers, of_updates, seconds_an_update, ended, part_ended):
    """Return the records after one cell of Figure 6: DeepNorm with so many layers in each stack.

    of_updates: its length; ended: how the training ended; part_ended: how the part, with the translations too, ended.
    """
    row = {"what": "training", "layers": layers, "of_updates": of_updates, "ended": ended}
    row["seconds_an_update"] = seconds_an_update
    return [{"part": f"figure6-deepnorm-{layers}", "ended": part_ended, "rows": [row]}]


def test_a_shallow_cell_is_trained_at_full_length():
    """The paper has 8,000 updates, of which 4,000 are the warm-up."""
    updates, warmup = figure6.length(10, records=[], longest=LONGEST)

    assert updates == 8000
    assert warmup == 4000


def test_a_depth_that_is_too_slow_gets_fewer_updates_and_warm_up_in_proportion():
    updates, warmup = figure6.length(100, records=[], longest=LONGEST)

    assert updates < 8000
    assert warmup / updates == pytest.approx(4000 / 8000, abs=1e-3)
    assert figure6.predicted(100, records=[], longest=LONGEST) <= LONGEST


@pytest.fixture
def records_of_cell_of_100_layers():
    """Provide the records after a first cell of 100 layers, which was trained for 3,100 updates of 0.15 s."""
    return records_of_cell(100, of_updates=3100, seconds_an_update=0.15, ended="trained", part_ended="done")


def test_all_methods_of_a_depth_get_the_length_of_the_first_one(records_of_cell_of_100_layers):
    updates, warmup = figure6.length(100, records_of_cell_of_100_layers, LONGEST)
    seconds = figure6.predicted(100, records_of_cell_of_100_layers, LONGEST)

    assert updates == 3100
    assert warmup == 3100 / 2
    assert seconds == pytest.approx(figure6.seconds_beside_updates(100) + 3100 * 0.15)


def test_a_cell_does_not_change_the_length_of_another_depth(records_of_cell_of_100_layers):
    assert figure6.length(50, records_of_cell_of_100_layers, LONGEST) == figure6.length(50, [], LONGEST)


def test_a_cell_that_was_cut_off_is_planned_anew_by_its_speed():
    """The new length is in hundreds of updates: all that fit, at 0.2 s each, beside programs and translations."""
    known = records_of_cell(50, of_updates=6900, seconds_an_update=0.2, ended="cut off", part_ended="cut off")

    updates, _warmup = figure6.length(50, known, LONGEST)

    seconds = LONGEST - figure6.seconds_beside_updates(50)
    assert seconds - 100 * 0.2 < updates * 0.2 <= seconds
    assert updates % 100 == 0


def test_a_cell_with_time_for_too_few_updates_is_not_trained():
    """At 0.5 s an update at most 1,200 fit into 600 s; a cell needs 2,000 to say something about a method."""
    known = records_of_cell(100, of_updates=3000, seconds_an_update=0.5, ended="cut off", part_ended="cut off")

    assert figure6.predicted(100, known, LONGEST) is None


def test_1000_layers_take_the_largest_batch_that_costs_little():
    """229 ms are within 15% of the smallest batch's 200 ms, 231 are not."""
    milliseconds = {2048: 200.0, 4096: 229.0, 8192: 231.0}  # tokens of a batch -> time of an update
    timed = {tokens: {"ms": ms, "first_update_s": 5.0} for tokens, ms in milliseconds.items()}

    tokens, _updates = thousand_layers.choose(timed, seconds=400.0)

    assert tokens == 4096


def test_1000_layers_get_the_updates_that_fit_beside_start_and_captures():
    """The start takes 20 s, and each of 8 captured graphs 5 s."""
    timed = {2048: {"ms": 200.0, "first_update_s": 5.0}}

    _tokens, updates = thousand_layers.choose(timed, seconds=500.0)

    assert updates == (500 - 20 - 8 * 5) / 0.2


def test_the_rate_of_1000_layers_stays_until_the_last_400_of_1400_updates(tmp_path):
    """The rate warms up to 1.25e-4 for 200 updates, stays for 800, two thirds of the others, and falls."""
    flags = flag_values(thousand_layers.flags(work_of(tmp_path), tokens=4096, updates=1400))

    assert flags["--warmup-steps"] == "200"
    assert flags["--hold-steps"] == "800"
    assert flags["--decay-steps"] == "400"
    assert flags["--lr"] == "0.000125"
    assert flags["--encoder-layers"] == "500"
    assert flags["--method"] == "deepnorm"


@pytest.fixture
def entries_of_cut_off_log(tmp_path):
    """Provide the entries read from a log of updates of 1,000 words, at 10, 500, 1,000 and 800 words a second.

    The log has five lines, of which the last is cut off.
    """
    lines = []
    for updates, words_a_second in ((10, "10"), (20, "500"), (30, "1000"), (40, "800")):
        entry = {"num_updates": str(updates), "nll_loss": "3", "wpb": "1000", "wps": words_a_second}
        lines.append(f"2026-01-01 | INFO | train_inner | {json.dumps(entry)}")
    lines.append('| train_inner | {"num_upd')
    (tmp_path / "train.log").write_text("\n".join(lines))
    return trainings.logged(tmp_path / "train.log", "train_inner")


def test_a_line_of_the_log_that_is_cut_off_does_not_count(entries_of_cut_off_log):
    assert [entry["num_updates"] for entry in entries_of_cut_off_log] == ["10", "20", "30", "40"]


def test_seconds_of_an_update_are_the_median_without_the_log_s_first_interval(entries_of_cut_off_log):
    """The first interval includes the start of the program. In the others an update took 2, 1 and 1.25 s."""
    assert trainings.seconds_an_update(entries_of_cut_off_log) == pytest.approx(1.25)


def kind(name: str) -> str:
    """Return the kind of a part: its name up to a hyphen, as "figure6" for every cell of that figure."""
    return name.partition("-")[0]


@pytest.fixture(scope="module")
def committed_records():
    """Provide the text of results/gpu's records before the miniature is run."""
    return records.RECORDS.read_text()


@pytest.fixture(scope="module")
def miniature(tmp_path_factory, committed_records):
    """Provide name of a part -> its record, after SMOKE=1 dev/gpu_minutes.sh, which runs each kind of part on a CPU."""
    folder = tmp_path_factory.mktemp("miniature")
    bash("-c", f"SMOKE=1 exec bash dev/gpu_minutes.sh --folder {folder} --out {folder}/out", timeout=1500)
    return {record["part"]: record for record in records.read(folder / "records.jsonl")}


@pytest.mark.smoke
@needs_venv
def test_the_miniature_ends_every_kind_of_part(miniature):
    assert {kind(name) for name in miniature} == {kind(part.name) for part in PARTS}
    for name, record in miniature.items():
        assert record["ended"] == records.DONE, name


@pytest.mark.smoke
@needs_venv
def test_a_killed_training_of_the_miniature_resumes_to_the_same_weights(miniature):
    resumed = miniature["killed"]["rows"][-1]

    assert resumed["attempts"] == 2
    assert resumed["killed_after_update"] < resumed["updates"]
    assert resumed["largest_difference"] == 0.0


@pytest.mark.smoke
@needs_venv
def test_two_processes_of_the_miniature_make_the_weights_of_one(miniature):
    """The weights differ by rounding, because two processes sum up gradients in another order than one."""
    _of_one, *of_several = miniature["several"]["rows"]

    assert of_several
    for row in of_several:
        assert row["processes"] == 2
        assert row["largest_difference"] < 1e-5


@pytest.mark.smoke
@needs_venv
def test_equal_trainings_of_the_miniature_make_equal_losses(miniature):
    """plain_again: the largest difference of the losses of two trainings with nothing changed."""
    rows = miniature["equal"]["rows"]

    assert rows
    for row in rows:
        assert row["plain_again"] == 0.0


@pytest.mark.smoke
@needs_venv
def test_the_miniature_collects_the_tests_of_a_gpu(miniature):
    assert miniature["tests"]["rows"][0]["collected"] > 100


@pytest.mark.smoke
@needs_venv
def test_the_miniature_of_1000_layers_times_trains_and_evaluates(miniature):
    measured = [row["what"] for row in miniature["thousand_layers"]["rows"]]

    assert measured == ["time of an update"] * 3 + ["training", "translations", "held-out bits"]


@pytest.mark.smoke
@needs_venv
def test_the_miniature_leaves_the_committed_records_alone(miniature, committed_records):
    assert miniature
    assert records.RECORDS.read_text() == committed_records
