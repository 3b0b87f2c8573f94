"""`deepnet transfer`: what places a best rate, what follows at another depth, what is refused; its short trainings."""

import json
import math
import random
from dataclasses import replace
from itertools import pairwise

import numpy as np
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
from deepnet_fairseq.study.transfer import NO, NOISE, OPEN, YES, Noise, Trial, analyse, optimum, trial_of
from deepnet_fairseq.study.transfer_report import as_dict, quote
from deepnet_fairseq.tools import transfer

from .conftest import TRAIN_FLAGS
from .support.forked import fork
from .support.helpers import assert_refused, batch, small
from .support.recorded import record

TINY = (
    "--arch",
    "deepnet_transformer_tiny",
    "--encoder-embed-dim",
    "16",
    "--encoder-ffn-embed-dim",
    "32",
    "--dropout",
    "0",
)
LONG = ("--max-update", "1000", "--warmup-updates", "100")


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


def trials(layers, optimum, steps=range(-3, 7), curve=0.08, noise=0.0, seeds=(1,), base=1e-3, draw=None):
    """Rates base x 2^k, of which the best is 2^optimum: losses on a parabola, of so many bits an octave squared."""
    found = []
    for seed in seeds:
        for k in steps:
            loss = 5 + curve * (k + math.log2(base) - optimum) ** 2 + (draw.gauss(0, noise) if draw else 0)
            found.append(Trial("deepnorm", 64, 500, layers, base * 2**k, seed, loss))
    return found


def law(exponent, depths=(6, 18, 50), at_six=-8.6, **options):
    """Trials whose best rates are 2^at_six (layers / 6)^exponent."""
    return [t for n in depths for t in trials(n, at_six + exponent * math.log2(n / 6), **options)]


@pytest.mark.parametrize("best", [-9.31, -8.97, -7.5])
@pytest.mark.parametrize("steps", [range(-3, 7), (-3, -1, 1, 3, 5)])
def test_the_vertex_of_a_parabola_is_found(best, steps):
    """And what costs no more than the noise, wherever rates were tried; one step of the grid is the most it reaches."""
    found = optimum(trials(6, best, steps), Noise(0.02, 0))
    assert math.log2(found.rate) == pytest.approx(best) and found.loss == pytest.approx(5)
    assert math.log2(found.low) == pytest.approx(best - 0.5) and math.log2(found.high) == pytest.approx(best + 0.5)
    wide = optimum(trials(6, best, steps), Noise(10.0, 0))
    assert wide.high / wide.low == pytest.approx(4 if steps != (-3, -1, 1, 3, 5) else 16)


def test_the_error_is_the_scatter_of_the_vertex():
    """Over draws of the noise; three seeds make it smaller by sqrt 3."""
    for seeds in ((1,), (1, 2, 3)):
        places, errors, draw = [], [], random.Random(2)
        for _ in range(600):
            found = optimum(trials(6, -8.9, range(3), 0.1, 0.01, seeds, draw=draw), Noise(0.01, 0))
            places.append(math.log2(found.rate))
            errors.append(found.error)
        assert np.std(places) == pytest.approx(np.mean(errors), rel=0.1)


@pytest.mark.parametrize("exponent", [0.0, -0.3])
def test_intervals_of_exponent_and_rate_hold_what_they_promise(exponent):
    """95%, from a stated noise and from one that three seeds show."""
    draw, within = random.Random(3), {"b": 0, "rate": 0}
    for number in range(400):
        some = law(exponent, noise=0.01, seeds=(1, 2, 3) if number % 2 else (1,), draw=draw)
        found = analyse(some, 0.01)
        low, high = found.law.exponents()
        advice = found.law.at(100)
        within["b"] += low <= exponent <= high
        within["rate"] += advice.low <= 2 ** (-8.6 + exponent * math.log2(100 / 6)) <= advice.high
    assert all(count / 400 >= 0.92 for count in within.values()), within


@pytest.mark.parametrize("skew", [0.3, 1.0])
def test_a_curve_that_is_no_parabola_is_told_by_a_rate_more(skew):
    """Losses that rise faster above the best than below, whose parabola's vertex is off: the error knows of it."""
    draw, within, without = random.Random(4), 0, 0
    for _ in range(300):
        best, some = draw.uniform(-0.5, 0.5), []
        for k in range(-3, 4):
            away = skew * (k - best)
            loss = 5 + 0.16 / skew**2 * (math.exp(away) - away - 1) + draw.gauss(0, 0.005)
            some.append(Trial("deepnorm", 64, 500, 6, 2.0**k, 1, loss))
        found, alone = optimum(some, Noise(0.005, 0)), optimum(some[2:5], Noise(0.005, 0))
        within += abs(math.log2(found.rate) - best) <= 1.96 * found.error
        without += not alone.placed or abs(math.log2(alone.rate) - best) <= 1.96 * alone.error
    assert within / 300 >= 0.93 and without < within, (within, without)


def test_beside_a_rate_that_came_to_nothing_the_best_is_anywhere_between():
    """A training that diverges says that the best is below it, and no more."""
    high = [replace(t, loss=math.inf) if t.rate > 2.5e-3 else t for t in trials(6, -8.6)]
    found = optimum(high, Noise(NOISE, 0))
    assert found.rate == pytest.approx(2e-3) and found.error == pytest.approx(2 / math.sqrt(12))
    assert "by its neighbours alone, of which 0.004 came to nothing" in found.note
    assert found.rate * 2 ** (-1.96 * found.error) < 1e-3 < 4e-3 < found.rate * 2 ** (1.96 * found.error)
    again = analyse([*high, *(replace(t, layers=18) for t in high)])
    assert again.stays == OPEN and again.law.exponent == pytest.approx(0) and again.refusal(18) == ""
    assert "could lie anywhere" in again.refusal(100)


def test_what_is_not_placed_is_said():
    flat = Noise(NOISE, 0)
    assert "at an edge, 0.064 the highest" in optimum(trials(6, -2), flat).why
    assert "at an edge, 0.000125 the lowest" in optimum(trials(6, -20), flat).why
    none = [replace(t, loss=math.inf) for t in trials(18, -8.6)]
    assert "nothing was learnt at 10 rates" in optimum(none, flat).why
    for some, said in (
        (law(0, depths=(6,)), "fewer than two depths"),
        ([*law(0, depths=(6, 18)), *trials(50, -2)], "of the nearest depth no best rate is known; 50 layers: the best"),
        (law(0, depths=(2, 6)), "100 layers are more than 6 times away"),
        (law(1.5, depths=(6, 18)), "drifts to 0.1"),
        (law(0, depths=(6, 18), curve=0.002), "could lie anywhere"),
    ):
        assert said in analyse(some).refusal(100)
        with pytest.raises(UserError, match="deepnorm, 100 layers: no rate is recommended"):
            analyse(some).advice(100)
    assert not analyse(law(0)).refusal(100)
    assert analyse([*law(0, depths=(6, 18)), *trials(100, -2)]).refusal(30) == ""  # an edge that is farther away


@pytest.mark.parametrize(
    ("exponent", "seeds", "noise", "answer", "said"),
    [
        (0.0, (1, 2, 3), 0.01, YES, "by a factor of 1"),
        (-0.2, (1, 2, 3), 0.3, YES, "by a factor of 1.5"),  # costs nothing that seeds do not
        (0.0, (1,), 0.0, OPEN, "no seeds"),
        (-0.45, (1, 2, 3), 0.001, OPEN, "by a factor of 2.6"),
        (-0.8, (1, 2, 3), 0.001, NO, "by a factor of 0.18 from 6 to 50 layers, one way"),
    ],
)
def test_does_it_stay(exponent, seeds, noise, answer, said):
    """docs/depth_study.md: one step at most and no cost beyond seeds; two steps one way; the rest is open."""
    fixed = [replace(t, loss=t.loss + noise * (t.seed - 2)) for t in law(exponent, seeds=seeds)]
    found = analyse(fixed)
    assert found.stays == answer and said in found.why, found.why
    assert analyse([*law(exponent, depths=(6, 18)), *trials(50, -2)]).stays == OPEN


def test_runs_that_are_there(tmp_path, capsys):
    """Records of a study: rate, seed, width of the command; what came to nothing is infinite; predicted and found."""
    for trial in law(-0.2, depths=(6, 18, 50), steps=range(-1, 4)):
        name = f"deepnorm-{trial.layers}-lr{trial.rate:g}-seed1"
        facts = {"lr": trial.rate, "updates": 500, "seed": 1}
        place = record(tmp_path, "study", name, "deepnorm", trial.layers, valid={500: (1, trial.loss)}, **facts)
        (place / "command").write_text("fairseq-train data --arch deepnet_transformer_tiny --encoder-embed-dim 64")
    place = record(tmp_path, "study", "stuck", "post_ln", 6, lr=1e-3, updates=500, stuck="stuck at update 300")
    (place / "command").write_text("fairseq-train data --arch deepnet_transformer_tiny")
    found = [trial_of(run) for run in recorded_below(tmp_path / "study", over=True)]
    assert {trial.width for trial in found} == {64} and [t.loss for t in found if t.method == "post_ln"] == [math.inf]
    out = tmp_path / "found.json"
    with pytest.raises(SystemExit) as ended:
        main(["transfer", "--runs", str(tmp_path / "study"), "--method", "post_ln", "--target", "50"])
    assert ended.value.code == 3 and "no recommendation: the best rate is known at fewer" in capsys.readouterr().out
    main(["transfer", "--runs", str(tmp_path / "study"), "--up-to", "18", "--target", "50,100", "--json", str(out)])
    said = capsys.readouterr().out
    assert "rate ~ depth^-0.20" in said
    row = next(line.split() for line in said.splitlines() if line.startswith("deepnorm  ") and "50" in line.split())
    best = 2 ** (-8.6 - 0.2 * math.log2(50 / 6))
    assert float(row[2]) == pytest.approx(best, rel=0.01) and float(row[6]) == pytest.approx(best, rel=0.01)
    line = quote(out, "deepnorm", 64, 10)
    assert "measured at 6, 18 layers of width 64, 500 updates" in line
    assert float(line.split()[3]) == pytest.approx(2 ** (-8.6 - 0.2 * math.log2(10 / 6)), rel=0.01)
    for other in (("pre_ln", 64, 10), ("deepnorm", 512, 10), ("deepnorm", 64, 50)):
        assert "did not measure" in quote(out, *other)
    main(["plan", "--arch", "deepnet_transformer_tiny_12_12", "--transfer", str(out)])
    assert "best learning rate 2.2" in capsys.readouterr().out.splitlines()[-1]


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
    with pytest.raises(KeyboardInterrupt):
        main([*command, "--out", str(tmp_path / "killed")])
    asked = trained(monkeypatch)
    main([*command, "--out", str(tmp_path / "killed"), "--json", str(tmp_path / "killed.json")])
    assert again[:3] + asked == everything
    assert (tmp_path / "killed.json").read_text() == (tmp_path / "alone.json").read_text()
    assert sorted(path.name for path in (tmp_path / "killed").iterdir()) == sorted(
        f"deepnorm-{layers}-lr{rate:g}-seed1.run.json" for layers, rate, _ in everything
    )
    said = json.loads((tmp_path / "killed.json").read_text())["transfers"][0]
    assert said["law"]["exponent"] == pytest.approx(-0.25) and said["advice"][0]["rate"] == pytest.approx(2e-3 / 2**0.5)
    assert_refused(
        "is of another command; name a new folder", *command, "--out", str(tmp_path / "alone"), "--clip-norm", "1"
    )


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
        (("--noise", "0"), "--noise 0: must be more than 0"),
        (("--arch", "transformer"), "--arch transformer: deepnet transfer is for deepnet_transformer"),
        (("--runs", "nowhere"), "with --runs no command is given"),
    ],
)
def test_mistakes(data, tmp_path, flags, said):
    assert_refused(said, "transfer", "--out", str(tmp_path / "out"), *words(data), *flags)
    assert not (tmp_path / "out").exists()


def test_mistakes_of_files(data, tmp_path):
    assert_refused("--out: name a folder", "transfer", *words(data))
    assert_refused("holds no finished runs", "transfer", "--runs", str(tmp_path))
    (tmp_path / "x.json").write_text("{}")
    assert_refused("is no result of `deepnet transfer`", "plan", "--transfer", str(tmp_path / "x.json"))
    (tmp_path / "x.json").write_text(json.dumps(as_dict([], [], {}) | {"transfers": [{}]}))
    assert_refused("x.json: is broken", "plan", "--transfer", str(tmp_path / "x.json"))


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


def test_coordinates(data, tmp_path, capsys):
    """Nothing moves without an update; at one rate Post-LN's output moves more with more layers, and all moves."""
    command = transfer.read_command(words(data, "--method", "post_ln"))
    found = {depth: transfer.coordinates(command, depth, 2) for depth in (1, 4)}
    assert all(value > 0 for values in found.values() for value in values.values())
    assert found[4]["decoder"] > found[1]["decoder"]
    command = [
        "transfer",
        "--depths",
        "1,4",
        "--coordinates",
        "2",
        "--updates",
        "0",
        *words(data, "--method", "post_ln"),
    ]
    main([*command, "--json", str(tmp_path / "found.json")])  # trains no further
    rows = [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()]
    assert [row for row in rows if row.startswith("decoder")] == [
        f"decoder{n}" for n in (", first layer", ", middle", ", last", "")
    ]
    said = json.loads((tmp_path / "found.json").read_text())["coordinates"]
    assert said == {str(n): pytest.approx(values, rel=1e-3) for n, values in found.items()}


@pytest.mark.smoke
def test_end_to_end(data, tmp_path, monkeypatch, capsys):
    """Real trainings, two depths: a rate comes out, and records that --runs reads to the same answer."""

    def launch(flags, output):
        done = fork(["-m", "fairseq_cli.train", *flags], tmp_path)
        output.write(done.stdout + done.stderr)
        return done.returncode

    monkeypatch.setattr(transfer, "launch", launch)
    command = words(data, "--encoder-layers", "4", "--decoder-layers", "4", "--stop-stuck", "1000000")
    main(["transfer", "--depths", "1,2", "--updates", "30", "--out", str(tmp_path / "out"), *command, "--lr", "3e-2"])
    said = capsys.readouterr().out
    main(["transfer", "--runs", str(tmp_path / "out"), "--target", "4"])
    assert capsys.readouterr().out.strip() in said and "as depth^" in said
