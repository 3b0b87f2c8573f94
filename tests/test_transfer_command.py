"""`deepnet transfer` on a command: its short trainings, what is kept of them, what is refused, how far outputs move."""

import json
import math
import re
import signal
import warnings
from itertools import pairwise

import pytest
import torch
from fairseq import optim
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.optim import lr_scheduler

from deepnet_fairseq.cli import main
from deepnet_fairseq.core.probes.model_update import layer_outputs
from deepnet_fairseq.errors import UserError
from deepnet_fairseq.plugin.trainer import parse
from deepnet_fairseq.study.runs import recorded_below
from deepnet_fairseq.study.transfer import analyse
from deepnet_fairseq.study.transfer_report import as_dict, read_transfers
from deepnet_fairseq.study.trials import Trial
from deepnet_fairseq.tools import check, transfer
from deepnet_fairseq.tools.plan import measured

from .conftest import TRAIN_FLAGS
from .support.forked import fork
from .support.helpers import assert_refused, batch, small

TINY = ("--arch", "deepnet_transformer_tiny", "--encoder-embed-dim", "16", "--encoder-ffn-embed-dim", "32")
LONG = ("--max-update", "1000", "--warmup-updates", "100", "--dropout", "0")


def words(data, *more):
    """A command of 1,000 updates without a schedule of its own, validated."""
    without = (
        "--disable-validation",
        "--lr-scheduler",
        "inverse_sqrt",
        "--warmup-updates",
        "10",
        "--warmup-init-lr",
        "1e-7",
    )
    return [str(data), *(flag for flag in TRAIN_FLAGS if flag not in without), *TINY, *LONG, *more]


PLACES = ("first layer", "middle", "last")
SCHEDULES = {
    "polynomial_decay": ("--total-num-update", "1000", "--end-learning-rate", "1e-5"),
    "inverse_sqrt": ("--warmup-init-lr", "1e-5"),
    "cosine": ("--min-lr", "1e-5"),
    "fixed": (),
}


def rates(flags, updates):
    """A schedule's rates at those updates."""
    cfg = convert_namespace_to_omegaconf(parse(flags))
    optimizer = optim.build_optimizer(cfg.optimizer, [torch.nn.Parameter(torch.zeros(1))])
    schedule = lr_scheduler.build_lr_scheduler(cfg.lr_scheduler, optimizer)
    return [schedule.step_update(update) for update in updates]


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_proxys_schedule_is_the_commands_in_small(data, name):
    """At the same part of the training it has the same part of the peak."""
    flags = words(data, "--lr-scheduler", name, *SCHEDULES[name])
    one = transfer.proxy(transfer.read_command(flags), 12, 4e-3, 1, 100)
    first = 9 if name == "fixed" else 0  # whose warm-up counts updates from 1
    whole, part = rates(flags, range(first, 1000, 10)), rates([*flags, *one.flags], range(100))
    assert part == pytest.approx([2 * rate for rate in whole], rel=1e-6)
    assert one.layers == {"encoder": 12, "decoder": 12} and one.name == "deepnorm-12-lr0.004-seed1"


def flags_of(words):
    """Flag -> the word behind it."""
    return {flag: after for flag, after in pairwise(words) if flag.startswith("--")}


def test_what_counts_in_updates_is_shorter_too(data):
    more = ("--method", "branchnorm", "--branchnorm-updates", "400", "--pro-res", "--stop-stuck", "500")
    command = transfer.read_command(words(data, *more, "--decoder-layers", "3"))
    said = flags_of(transfer.proxy(command, 12, 1e-3, 5, 100).flags)
    assert said["--branchnorm-updates"] == "40" and said["--pro-res-updates"] == "100"
    assert said["--encoder-layers"] == "12" and said["--decoder-layers"] == "6" and said["--seed"] == "5"
    assert said["--stop-stuck"] == "50" and said["--validate-interval-updates"] == "17"
    plain = transfer.read_command(words(data, "--disable-validation"))
    assert "--stop-stuck" not in flags_of(transfer.proxy(plain, 6, 1e-3, 1, 100).flags)  # it goes by validations
    with pytest.raises(UserError, match="--depths 5: 6-3 layers in proportion"):
        command.at(5)
    early = transfer.read_command(words(data, "--patience", "1", "--stop-time-hours", "0.1"))
    args = parse([*early.words, *transfer.proxy(early, 6, 1e-3, 1, 100).flags])
    assert args.patience == -1 and args.stop_time_hours == 0


def trained(monkeypatch, best=2e-3, fail=None):
    """In place of fairseq-train: a log whose loss is a parabola, the optimum falling with depth; what was asked for."""
    asked = []

    def launch(flags, output):
        said = flags_of(flags)
        asked.append((int(said["--encoder-layers"]), float(said["--lr"]), int(said["--seed"])))
        if len(asked) == fail:
            raise KeyboardInterrupt
        away = math.log2(float(said["--lr"]) / best) + 0.25 * math.log2(int(said["--encoder-layers"]) / 6)
        loss = json.dumps({"epoch": 1, "valid_loss": str(5 + 0.1 * away**2), "valid_num_updates": "100"})
        output.write(f"now | INFO | valid | {loss}\n")
        return 0

    monkeypatch.setattr(transfer, "launch", launch)
    return asked


def test_a_killed_command_goes_on_where_it_was(data, tmp_path, monkeypatch, capsys):
    """Each rate is trained once, and the answer is that of a command that was left alone."""
    command = ["transfer", "--depths", "6,12", "--coordinates", "0", *words(data, "--encoder-layers", "24")]
    command += ["--decoder-layers", "24"]
    asked = trained(monkeypatch)
    main([*command, "--out", str(tmp_path / "alone"), "--json", str(tmp_path / "alone.json")])
    everything = list(asked)
    assert [rate for layers, rate, _ in everything if layers == 6] == pytest.approx([5e-4, 2e-3, 8e-3, 1e-3, 4e-3])
    assert len([1 for layers, *_ in everything if layers == 12]) == 3  # around the best of the depth before
    again = trained(monkeypatch, fail=4)
    with pytest.raises(SystemExit):
        main([*command, "--out", str(tmp_path / "killed")])
    asked = trained(monkeypatch)
    main([*command, "--out", str(tmp_path / "killed"), "--json", str(tmp_path / "killed.json")])
    assert again[:3] + asked == everything
    answers = [json.loads((tmp_path / f"{name}.json").read_text()) for name in ("killed", "alone")]
    assert answers[0]["transfers"] == answers[1]["transfers"]
    assert sorted(path.name for path in (tmp_path / "killed").iterdir()) == sorted(
        f"deepnorm-{layers}-lr{rate:g}-seed1.run.json" for layers, rate, _ in everything
    )
    said = answers[0]["transfers"][0]
    assert said["law"]["exponent"] == pytest.approx(-0.25) and said["advice"][0]["rate"] == pytest.approx(2e-3 / 2**0.5)
    assert_refused(
        "is of another command; name a new folder", *command, "--out", str(tmp_path / "alone"), "--clip-norm", "1"
    )


def test_the_coordinate_check_is_kept_too(data, tmp_path, monkeypatch, capsys):
    """A command that is started again reads it; a broken training of it is one still."""
    folder, made = tmp_path / "out", []

    def coordinates(command, depth, updates):
        made.append(depth)
        assert folder.is_dir()
        return {"decoder.1": math.nan, "decoder": 0.1 * depth}

    monkeypatch.setattr(transfer, "coordinates", coordinates)
    command = ["transfer", "--depths", "6,12", "--updates", "0", "--out", str(folder)]
    main([*command, *words(data)])
    before = capsys.readouterr().out
    main([*command, *words(data)])
    assert made == [6, 12] and capsys.readouterr().out == before and "nan" in before
    main([*command, "--coordinates", "2", *words(data)])
    assert made == [6, 12, 6, 12]
    assert_refused("coordinates3.json: is of another command", *command, *words(data, "--clip-norm", "1"))
    for broken in ("[]", '{"command": 1'):
        (folder / "deepnorm-6-coordinates3.json").write_text(broken)
        assert_refused("coordinates3.json: ", *command, *words(data))


def test_one_command_at_a_time(data, tmp_path):
    """In one folder; it is free again when the first is over."""
    command = ("transfer", "--depths", "6", "--coordinates", "0", "--out", str(tmp_path / "out"), *words(data))
    with transfer.held(tmp_path / "out"):
        assert_refused("another `deepnet transfer` is at work in it", *command)
    with transfer.held(tmp_path / "out"):
        assert not list((tmp_path / "out").iterdir())


def test_a_training_that_fails_is_no_result(data, tmp_path, monkeypatch):
    monkeypatch.setattr(transfer, "launch", lambda flags, output: output.write("error: no room\n"))
    command = ["transfer", "--depths", "6", "--coordinates", "0", *words(data)]
    assert_refused("the training failed: error: no room; whole log: ", *command, "--out", str(tmp_path / "out"))
    monkeypatch.setattr(transfer, "launch", lambda flags, output: output.write("x: error: diverged at update 7\n"))
    with pytest.raises(SystemExit) as ended:
        main([*command, "--out", str(tmp_path / "new")])
    assert ended.value.code == 3
    steps = {run.facts["lr"] for run in recorded_below(tmp_path / "new") if run.ended_in_nan}
    assert len(steps) == 5 + transfer.REACH  # those between, then ever lower, and no further than that


def test_a_signal_ends_the_training_too():
    """As an exception of the parent, which subprocess.run kills its child for; then the signal means what it did."""
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended, transfer.ended_by_signals():
        signal.raise_signal(signal.SIGTERM)
    assert ended.value.code == 143 and signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--max-update", "0"), "--max-update: give the length of the training to come"),
        (("--lr", "1e-3,1e-4"), "--lr 0.001,0.0001: give one peak rate"),
        (("--lr-scheduler", "reduce_lr_on_plateau"), "--lr-scheduler reduce_lr_on_plateau: cannot be compressed"),
        (("--lr-scheduler", "fixed", "--force-anneal", "3"), "--force-anneal: counts epochs"),
        (("--updates", "2000"), "--updates 2000: must be from 0 to --max-update, 1000"),
        (("--depths", "0"), "--depths 0: "),
        (("--depths", "six"), "--depths six: give whole numbers"),
        (("--factor", "1"), "--factor 1: must be more than 1"),
        (("--seeds", "0"), "--seeds 0: must be at least 1"),
        (("--json", "nowhere/found.json"), "--json nowhere/found.json: there is no folder"),
        (("--noise", "0"), "--noise 0: must be more than 0"),
        (("--arch", "transformer"), "--arch transformer: deepnet transfer is for deepnet_transformer"),
        (("--runs", "nowhere"), "--out: with --runs nothing is trained; drop it"),
        (("--up-to", "6"), "--up-to: goes with --runs alone; drop it"),
        (("--target", "6"), "--target: goes with --runs alone; drop it"),
        (("--updates", "0", "--seeds", "3"), "--seeds: with --updates 0 nothing is trained; drop it"),
        (("--updates", "0", "--coordinates", "0"), "--updates 0: leaves the coordinate check alone"),
    ],
)
def test_mistakes(data, tmp_path, flags, said):
    assert_refused(said, "transfer", "--out", str(tmp_path / "out"), *words(data), *flags)
    assert not (tmp_path / "out").exists()


def test_mistakes_of_files(data, tmp_path):
    assert_refused("give a fairseq-train command, DATA and its flags, or --runs", "transfer")
    assert_refused("--out: name a folder", "transfer", *words(data))
    assert_refused("with --runs no command is given", "transfer", "--runs", "nowhere", *words(data))
    for flag in ("--depths", "--seeds", "--coordinates"):
        assert_refused(f"{flag}: with --runs nothing is trained", "transfer", "--runs", "nowhere", flag, "6")
    assert_refused("holds no finished runs", "transfer", "--runs", str(tmp_path))
    assert_refused("--target 0: a stack needs", "transfer", "--runs", str(tmp_path), "--target", "0")
    (tmp_path / "x.json").write_text("{}")
    assert_refused("is no result of `deepnet transfer`", "plan", "--transfer", str(tmp_path / "x.json"))
    (tmp_path / "x.json").write_text(json.dumps(as_dict([], [], {}) | {"transfers": [{}]}))
    assert_refused("x.json: is broken", "plan", "--transfer", str(tmp_path / "x.json"))
    assert_refused("--check: prints a table; drop --transfer", "plan", "--check", "--transfer", "x.json")


WRONG = {  # place in a file of one transfer, and what stands there
    "a rate": (("optima", 0, "rate"), "fast"),
    "a depth": (("optima", 0, "layers"), 0),
    "no depth": (("optima", 0, "layers"), None),
    "an exponent": (("law", "exponent"), "0.1"),
    "a law": (("law",), {}),
    "a length": (("updates",), "500"),
    "a shape": (("shape",), ["1", 1]),
    "half a shape": (("shape",), [1]),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_file_with_values_of_another_kind(tmp_path, name):
    trials = [
        Trial("deepnorm", 64, 500, n, 1e-3 * 2**k, 1, 5 + 0.1 * (k - 0.2) ** 2) for n in (6, 18) for k in range(-2, 3)
    ]
    said, path = as_dict([analyse(trials)], [12], {}), tmp_path / "x.json"
    path.write_text(json.dumps(said))
    assert [one.law.exponent for one in read_transfers(path)] == pytest.approx([0], abs=1e-6)
    *way, last = WRONG[name][0]
    place = said["transfers"][0]
    for key in way:
        place = place[key]
    place[last] = WRONG[name][1]
    path.write_text(json.dumps(said))
    assert_refused("x.json: is broken", "plan", "--transfer", str(path))


def test_a_file_is_read_before_any_work(data, monkeypatch):
    monkeypatch.setattr(check, "train_briefly", lambda *_: pytest.fail("trained"))
    assert_refused("missing.json: no such file", "check", "--transfer", "missing.json", *words(data))
    monkeypatch.setattr(measured, "measured_rate", lambda *_: pytest.fail("trained"))
    arch = ("--arch", "deepnet_transformer_tiny", "--updates", "10")
    assert_refused("missing.json: no such file", "plan", "--measure", "--transfer", "missing.json", *arch)


def test_outputs_of_layers_end_in_those_of_stacks():
    """Post-LN's last layer is the stack's output; Pre-LN's has a LayerNorm behind it."""
    src, prev = batch()
    for method, same in (("post_ln", True), ("pre_ln", False)):
        found = layer_outputs(
            small(3, method=method), {"src_tokens": src, "src_lengths": None, "prev_output_tokens": prev}
        )
        assert set(found) == {f"{s}{l}" for s in ("encoder", "decoder") for l in ("", ".1", ".2", ".3")}
        assert found["decoder"].shape == (prev.ne(1).sum(), 16)
        assert torch.equal(found["decoder"], found["decoder.3"]) == same
    grown = transfer.growth({n: {"decoder": 0.3 * n**0.5, "decoder.1": 1.0} for n in (6, 12, 18)})
    assert grown == pytest.approx({"decoder": 0.5})
    for still in ({6: 0.3}, {6: 0.0, 12: 0.3}, {6: 0.3, 12: math.nan}):  # one depth; it did not move; it broke off
        found = {depth: {"decoder": change, "decoder.1": change} for depth, change in still.items()}
        with warnings.catch_warnings(action="error"):
            assert math.isnan(transfer.growth(found)["decoder"])
            assert transfer.coordinates_table(found, 3, 16).splitlines()[-3].split()[-1] == "-"


def test_coordinates(data, tmp_path, capsys):
    """At one rate outputs of Pre-LN move more with more layers; CompleteP's, which is made for that, do not."""
    grown = {}
    for method in ("pre_ln", "complete_p"):
        flags = ("--method", method, "--complete-p-base-depth", "1") if method == "complete_p" else ("--method", method)
        command = transfer.read_command(words(data, *flags))
        found = {depth: transfer.coordinates(command, depth, 2) for depth in (1, 4)}
        grown[method] = transfer.growth(found)["decoder"]
    assert abs(grown["complete_p"]) < 0.25 < grown["pre_ln"], grown
    out = ("--updates", "0", "--json", str(tmp_path / "found.json"))  # trains no further
    main(["transfer", "--depths", "1,4", "--coordinates", "2", *out, *words(data, *flags)])
    rows = [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()]
    assert [row for row in rows if row.startswith("decoder")] == [
        f"decoder{n}" for n in (", first layer", ", middle", ", last", "")
    ]
    said = json.loads((tmp_path / "found.json").read_text())["coordinates"]
    assert said == {str(n): pytest.approx(values, rel=1e-3) for n, values in found.items()}


@pytest.mark.smoke
def test_end_to_end(data, tmp_path, monkeypatch, capsys):
    """Real trainings, two depths: an answer, whatever it is, and records that --runs reads to the same."""

    def launch(flags, output):
        done = fork(["-m", "fairseq_cli.train", *flags], tmp_path)
        output.write(done.stdout + done.stderr)
        return done.returncode

    monkeypatch.setattr(transfer, "launch", launch)
    command = words(data, "--encoder-layers", "4", "--decoder-layers", "4", "--stop-stuck", "1000000")
    out = ("--out", str(tmp_path / "out"), "--json", str(tmp_path / "found.json"))

    def ended(*flags):
        try:
            main(["transfer", *flags])
        except SystemExit as ended:
            return ended.code
        return 0

    status = ended("--depths", "1,2", "--updates", "30", *out, *command, "--lr", "3e-2")
    said = capsys.readouterr().out
    assert status == (3 if "no recommendation" in said else 0) and "as depth^" in said
    assert ended("--runs", str(tmp_path / "out"), "--target", "4") == status
    assert capsys.readouterr().out.strip() in said
    for layers, told in (
        ("2", r"\d.*measured at 1, 2 layers|: no recommendation: "),
        ("4", ": 4-4 layers of deepnorm, "),
    ):
        depth = ("--encoder-layers", layers, "--decoder-layers", layers)
        main(["check", "--updates", "10", "--transfer", str(tmp_path / "found.json"), *words(data, *depth)])
        assert re.search(f"^best learning rate.*({told})", capsys.readouterr().out.splitlines()[-1])
