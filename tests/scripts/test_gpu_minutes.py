"""Tests of dev/gpu_minutes.sh: what it runs in which time, its records, its settings, and its miniature on a CPU."""

import json
import re
import shlex
import sys
import time
from functools import partial

import pytest
import torch

from deepnet_fairseq.errors import UserError
from deepnet_fairseq.plugin.trainer import parse_training_flags
from dev.gpu import figure6, graphs, minutes, parts, records, thousand_layers, trainings
from dev.gpu.__main__ import main
from dev.gpu.parts import PARTS, Part
from dev.gpu.work import Work

from ..support.experiments import bash, needs_venv

# Stands in for `python -m dev.gpu`: a part's name says what it does.
PROGRAM = """
import json, pathlib, sys, time
name, folder = sys.argv[2], pathlib.Path(sys.argv[4]) / "work" / sys.argv[2]
(folder / "started").touch()
if name.startswith("slow"):
    (folder / "share").write_text("0.5")
    (folder / "so_far.json").write_text(json.dumps({"what": "half of it"}))
    time.sleep(60)
if name.startswith("broken"):
    sys.exit("no such kernel")
(folder / "rows.jsonl").write_text(json.dumps({"what": "number", "value": 7}) + "\\n")
other = {"one": "other", "other": "one"}.get(name)
while other and not (folder.parent / other / "started").exists():
    time.sleep(0.1)  # until the other one runs, too
(folder / "ended").touch()
"""


def part(name, seconds=1.0, **others):
    return Part(name=name, number=1, what=name, run=lambda work: iter(()), seconds=seconds, **others)


@pytest.fixture
def call(tmp_path, monkeypatch):
    """Return a function that runs parts for some seconds and returns their records by name."""
    monkeypatch.setattr(minutes, "RESERVE", 0.0)
    monkeypatch.setattr(minutes, "GRACE", 0.0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    (tmp_path / "text" / "language").mkdir(parents=True)
    (tmp_path / "program.py").write_text(PROGRAM)

    def run(*wanted, seconds=30.0, **others):
        made = minutes.Minutes(
            until=time.monotonic() + seconds,
            longest=seconds,
            folder=tmp_path,
            file=tmp_path / "records.jsonl",
            out=tmp_path / "out",
            program=[sys.executable, str(tmp_path / "program.py")],
        )
        return {record["part"]: record for record in made.run(list(wanted), **others)}

    run.folder = tmp_path
    return run


def test_a_part_that_fails_costs_itself(call):
    found = call(part("broken"), part("quick"))

    assert found["broken"]["ended"] == records.FAILED
    assert found["broken"]["why"] == "no such kernel"
    assert found["quick"]["ended"] == records.DONE
    assert found["quick"]["rows"] == [{"what": "number", "value": 7}]
    assert {"device", "versions", "commit", "seconds", "date"} <= found["quick"].keys()
    assert records.read(call.folder / "records.jsonl") == list(found.values())
    assert records.read(call.folder / "out" / "records.jsonl") == list(found.values())
    assert "no such kernel" in (call.folder / "out" / "log.txt").read_text()


def test_what_is_done_is_not_run_again(call):
    call(part("quick"))

    assert list(call(part("quick"), part("quicker"))) == ["quicker"]
    assert list(call(part("quick"), open_only=False)) == ["quick"]


def test_parts_that_do_not_fit_are_left_out(call):
    found = call(part("long", seconds=100), part("quick"), part("several", gpus=99), part("german", text="mix"))

    assert list(found) == ["quick"]


def test_a_part_without_time_is_killed_and_planned_by_its_speed(call):
    slow = part("slow", seconds=4.0)
    found = call(slow, seconds=5.0)["slow"]

    assert found["ended"] == records.CUT
    assert found["rows"] == [{"what": "half of it"}]
    assert 4.5 < found["seconds"] < 20
    assert not (call.folder / "work" / "slow" / "ended").exists()
    known = records.read(call.folder / "records.jsonl")
    assert parts.predicted(slow, known, longest=60.0) == found["seconds"] / 0.5
    assert not records.is_done(known, "slow")


def test_parts_run_side_by_side_where_that_was_measured_to_be_faster(call):
    measured = [{"what": graphs.ALONE, "updates_a_second": 10}, {"what": graphs.TWO, "updates_a_second": 12}]
    records.append(call.folder / "records.jsonl", {"part": "two_at_a_time", "ended": "done", "rows": measured})
    found = call(part("one", beside="cells"), part("other", beside="cells"), part("third", beside="cells"))

    assert found["one"]["beside"] == ["other"] and found["other"]["beside"] == ["one"]
    assert "beside" not in found["third"]
    assert found["one"]["ended"] == found["other"]["ended"] == records.DONE  # each waits for the other to run


def test_records_of_another_machine_are_added_once(tmp_path):
    for number in range(3):
        records.append(tmp_path / "there.jsonl", {"part": "equal", "seconds": number})
    records.append(tmp_path / "here.jsonl", {"part": "equal", "seconds": 1})
    main_with = partial(main, ["--collect", str(tmp_path / "there.jsonl"), "--records", str(tmp_path / "here.jsonl")])

    for _ in range(2):
        with pytest.raises(SystemExit) as ended:
            main_with()
        assert ended.value.code == 0
        assert [record["seconds"] for record in records.read(tmp_path / "here.jsonl")] == [1, 0, 2]


def test_a_broken_file_of_records_is_named(tmp_path):
    (tmp_path / "records.jsonl").write_text('{"part": "equal"}\nbroken\n')
    with pytest.raises(UserError, match="records.jsonl, line 2"):
        records.read(tmp_path / "records.jsonl")


@pytest.mark.parametrize(
    "flags", [["--only", "equall"], ["--collect", "none.jsonl"], ["--minutes", "9", "--folder", "/none"]]
)
def test_mistakes_are_one_line(flags, capsys):
    with pytest.raises(SystemExit) as ended:
        main(flags)
    assert ended.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_committed_records_are_read():
    """The records in results/gpu are readable, and name parts of the list, or were made before it."""
    known = records.read(records.RECORDS)
    names = {part.name for part in PARTS}
    assert known and {record["part"] for record in known if "part" in record} <= names


# settings

LONGEST = 600.0  # seconds of a part


def work_of(tmp_path, known=()):
    return Work(folder=tmp_path, text=tmp_path, until=time.monotonic() + 1000, records=list(known))


def flag_values(words):
    """Return flag -> value of a command; the last one counts, as for argparse."""
    values, words = {}, [word for one in words for word in one.split("=", 1)]
    for word, following in zip(words, [*words[1:], "--"]):
        if word.startswith("--"):
            values[word] = None if following.startswith("--") else following
    return values


@needs_venv
def test_figure_6_has_the_flags_of_the_paper_s_script(tmp_path):
    """Cells at full length have the flags of scripts/iwslt14_de_en.sh, but for where it saves and what it logs."""
    done = bash("-c", "METHODS=pre_ln DEPTHS=50 GPUS=1 exec bash scripts/iwslt14_de_en.sh --dry-run=commands")
    [line] = [line for line in done.stdout.splitlines() if line.startswith("fairseq-train")]
    script = flag_values(shlex.split(line)[2:])
    cell = flag_values([
        *shlex.split(trainings.COMMON), *figure6.flags(work_of(tmp_path), "pre_ln", 50),
        f"--warmup-updates={figure6.WARMUP}", f"--max-update={figure6.UPDATES}", "--disable-validation",
    ])  # fmt: skip

    differing = {flag for flag in script.keys() | cell.keys() if script.get(flag, "no") != cell.get(flag, "no")}
    assert differing <= {
        "--save-dir", "--log-interval", "--save-interval-updates", "--keep-interval-updates", "--save-interval",
        "--validate-interval", "--cuda-graphs", "--update-freq",
    }  # fmt: skip
    assert script["--update-freq"] == "1"  # fairseq's default


@pytest.mark.parametrize("name", ["deepnorm", "post_ln", "pre_ln"])
def test_fairseq_takes_the_flags_of_a_gpu(name, tmp_path, data):
    """Flags that the miniature leaves out, as --cuda-graphs and --stop-stuck, are ones that fairseq-train knows."""
    work = work_of(tmp_path)
    common = [str(data), *shlex.split(trainings.COMMON), "--save-dir", str(tmp_path)]
    for flags in (figure6.flags(work, name, 10) + figure6.STOP_STUCK, thousand_layers.flags(work, 4096, 1300)):
        assert parse_training_flags([*common, *flags]).cuda_graphs


def test_cells_are_shortened_alike_at_a_depth():
    """A depth that is too slow gets fewer updates and warm-up in proportion, the same for all its methods."""
    assert figure6.length(10, [], LONGEST) == (8000, 4000)

    updates, warmup = figure6.length(100, [], LONGEST)
    assert updates < 8000 and warmup / updates == pytest.approx(0.5, abs=1e-3)
    assert figure6.predicted(100, [], LONGEST) <= LONGEST

    row = {"what": "training", "layers": 100, "of_updates": 3100, "ended": "trained", "seconds_an_update": 0.15}
    known = [{"part": "figure6-deepnorm-100", "ended": "done", "rows": [row]}]
    assert figure6.length(100, known, LONGEST) == (3100, 1550)
    assert figure6.predicted(100, known, LONGEST) == pytest.approx(figure6.beside(100) + 3100 * 0.15)
    assert figure6.length(50, known, LONGEST) == figure6.length(50, [], LONGEST)


def test_a_cell_that_was_cut_off_is_planned_anew_by_its_speed():
    row = {"what": "training", "layers": 50, "of_updates": 6900, "ended": "cut off", "seconds_an_update": 0.2}
    known = [{"part": "figure6-deepnorm-50", "ended": "cut off", "rows": [row]}]
    updates, _ = figure6.length(50, known, LONGEST)
    assert updates == int((LONGEST - figure6.beside(50)) / 0.2) // 100 * 100


def test_too_few_updates_are_not_trained():
    row = {"what": "training", "layers": 100, "of_updates": 3000, "ended": "cut off", "seconds_an_update": 0.5}
    known = [{"part": "figure6-deepnorm-100", "ended": "cut off", "rows": [row]}]
    assert figure6.predicted(100, known, LONGEST) is None


def test_the_largest_batch_is_taken_that_costs_little():
    timed = {
        tokens: {"ms": ms, "first_update_s": 5.0} for tokens, ms in {2048: 200.0, 4096: 229.0, 8192: 231.0}.items()
    }
    tokens, updates = thousand_layers.choose(timed, seconds=400.0)
    assert tokens == 4096
    assert 0.6 * 400 < updates * 0.229 < 400 - 10


def test_the_rate_of_1000_layers_is_held_for_two_thirds(tmp_path):
    values = flag_values(thousand_layers.flags(work_of(tmp_path), tokens=4096, updates=1400))
    steps = [int(values[f"--{name}-steps"]) for name in ("warmup", "hold", "decay")]
    assert steps == [200, 800, 400]
    assert (values["--lr"], values["--encoder-layers"], values["--method"]) == ("0.00025", "500", "deepnorm")


def test_seconds_of_an_update_are_those_of_fairseq_s_log(tmp_path):
    """The first interval, which has the start of the program, does not count; nor does a line that is cut off."""
    lines = []
    for updates, wps in ((10, "10"), (20, "500"), (30, "1000"), (40, "800")):
        entry = {"num_updates": str(updates), "nll_loss": "3", "wpb": "1000", "wps": wps}
        lines.append(f"2026-01-01 | INFO | train_inner | {json.dumps(entry)}")
    (tmp_path / "train.log").write_text("\n".join([*lines, '| train_inner | {"num_upd']))
    entries = trainings.logged(tmp_path / "train.log", "train_inner")
    assert [entry["num_updates"] for entry in entries] == ["10", "20", "30", "40"]
    assert trainings.seconds_an_update(entries) == pytest.approx(1.25)


@pytest.mark.smoke
@needs_venv
def test_the_whole_list_in_miniature(tmp_path):
    """SMOKE=1 runs every kind of part on a CPU: trainings resume, and several processes make one's weights."""
    before = records.RECORDS.read_text()
    bash("-c", f"SMOKE=1 exec bash dev/gpu_minutes.sh --folder {tmp_path} --out {tmp_path}/out", timeout=1500)
    found = {record["part"]: record for record in records.read(tmp_path / "records.jsonl")}
    assert {name: record["ended"] for name, record in found.items()} == dict.fromkeys(found, records.DONE)
    kinds = {re.sub(r"-.*", "", part.name) for part in PARTS}
    assert {re.sub(r"-.*", "", name) for name in found} == kinds

    resumed = found["killed"]["rows"][-1]
    assert resumed["attempts"] == 2 and resumed["killed_after_update"] < resumed["updates"]
    assert resumed["largest_difference"] == 0.0
    for row in found["several"]["rows"][1:]:
        assert row["processes"] == 2 and row["largest_difference"] < 1e-5
    assert all(row["plain_again"] == 0.0 for row in found["equal"]["rows"])
    assert found["tests"]["rows"][0]["collected"] > 100
    measured = ["time of an update"] * 3 + ["training", "translations", "held-out bits"]
    assert [row["what"] for row in found["thousand_layers"]["rows"]] == measured
    assert records.RECORDS.read_text() == before
