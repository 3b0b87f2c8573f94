"""`deepnet transfer`: what places a best rate, what follows at another depth, what is refused; runs that are there."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest

from deepnet_fairseq.cli import main
from deepnet_fairseq.errors import UserError
from deepnet_fairseq.study.runs import recorded_below
from deepnet_fairseq.study.transfer import NO, NOISE, OPEN, YES, Noise, Trial, analyse, optimum, trial_of
from deepnet_fairseq.study.transfer_report import quote

from .support.recorded import record


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
    assert all(count / 400 >= 0.95 for count in within.values()), within


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
    assert float(row[9]) == float(row[11]) == 0  # nothing is lost, unchanged from 18 layers neither
    assert float(row[10]) == pytest.approx(2 ** (-8.6 - 0.2 * math.log2(18 / 6)), rel=0.01)
    line = quote(out, "deepnorm", 64, 10)
    assert "measured at 6, 18 layers of width 64, 500 updates" in line
    assert float(line.split()[3]) == pytest.approx(2 ** (-8.6 - 0.2 * math.log2(10 / 6)), rel=0.01)
    for other in (("pre_ln", 64, 10), ("deepnorm", 512, 10), ("deepnorm", 64, 50)):
        assert "did not measure" in quote(out, *other)
    main(["plan", "--arch", "deepnet_transformer_tiny_12_12", "--transfer", str(out)])
    assert "best learning rate 2.2" in capsys.readouterr().out.splitlines()[-1]
