"""`deepnet transfer`: what places a best rate, what follows at another depth, what is refused; runs that are there."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest

from deepnet_fairseq.cli import main
from deepnet_fairseq.errors import UserError
from deepnet_fairseq.study.depth_study import neighbours
from deepnet_fairseq.study.optimum import NOISE, Noise, Optimum, optimum
from deepnet_fairseq.study.runs import recorded_below
from deepnet_fairseq.study.stays import NO, OPEN, YES
from deepnet_fairseq.study.transfer import analyse, fit
from deepnet_fairseq.study.transfer_report import quote, read_transfers, text
from deepnet_fairseq.study.trials import Trial, by_method, trial_of

from .support.helpers import assert_refused
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
            found = optimum(trials(6, -8.9, range(3), 0.1, 0.01, seeds, draw=draw), Noise(0.01, 0), elsewhere=0.0)
            places.append(math.log2(found.rate))
            errors.append(found.error)
        assert np.std(places) == pytest.approx(np.mean(errors), rel=0.1)


def as_the_command(exponent, **options):
    """At its depths: five rates at the first, three at the others, and neighbours of the best till it has them."""
    found, start = [], (-1, 0, 1, 2, 3)
    for layers in (6, 12, 18):
        there = trials(layers, -8.6 + exponent * math.log2(layers / 6), range(-9, 9), **options)
        losses = {round(math.log2(t.rate / 1e-3)): t.loss for t in there if t.seed == 1}
        tried = {step: losses[step] for step in start}
        while wanted := neighbours(tried, -9, 8):
            tried |= {step: losses[step] for step in wanted}
        best = min(tried, key=tried.__getitem__)
        start = (best - 1, best, best + 1)
        found += [t for t in there if round(math.log2(t.rate / 1e-3)) in (tried if t.seed == 1 else start)]
    return found


@pytest.mark.parametrize("exponent", [0.0, -0.3])
def test_intervals_of_exponent_and_rate_hold_what_they_promise(exponent):
    """95%, from a stated noise and from one that three seeds show, at ten rates a depth and at the command's few.

    These know less, but enough to be of use.
    """
    draw, within, known, refused = random.Random(3), {"b": 0, "rate": 0}, [], 0
    for number in range(400):
        study = law if number % 4 < 2 else as_the_command
        some = study(exponent, noise=0.01, seeds=(1, 2, 3) if number % 2 else (1,), draw=draw)
        found = analyse(some, 0.01)
        low, high = found.law.exponents()
        advice = found.law.at(100)
        within["b"] += low <= exponent <= high
        within["rate"] += advice.low <= 2 ** (-8.6 + exponent * math.log2(100 / 6)) <= advice.high
        if study is as_the_command:
            known.append((high - low) / 2)
            refused += found.refusal(100) != ""
    assert all(count / 400 >= 0.95 for count in within.values()), within
    assert np.median(known) < 0.2 and refused / 200 < 1 / 3


def skewed(skew, best, steps, draw, layers=6, noise=0.005):
    """Losses that rise faster above the best than below, by e^skew an octave."""
    found = []
    for k in steps:
        away = skew * (k - best)
        loss = 5 + 0.16 / skew**2 * (math.exp(away) - away - 1) + draw.gauss(0, noise)
        found.append(Trial("deepnorm", 64, 500, layers, 2.0**k, 1, loss))
    return found


@pytest.mark.parametrize("skew", [0.3, 1.0, 2.0])
def test_a_curve_that_is_no_parabola_is_told_by_a_rate_more(skew):
    """The vertex is off, and the error knows of it; of three rates, by what four show at another depth, or by none."""
    draw, within, noise = random.Random(4), {"five": [], "elsewhere": [], "alone": []}, Noise(0.005, 0)
    for _ in range(250):
        bests = {layers: draw.uniform(-0.5, 0.5) for layers in (6, 12)}
        some = skewed(skew, bests[6], range(-2, 3), draw), skewed(skew, bests[12], range(-1, 2), draw, 12)
        five, three = analyse([*some[0], *some[1]], noise.bits).optima
        for kind, one in (("five", five), ("elsewhere", three), ("alone", optimum(some[1], noise))):
            if one.placed:
                within[kind].append(abs(math.log2(one.rate) - bests[one.layers]) <= 1.96 * one.error)
    held = {kind: sum(found) / len(found) for kind, found in within.items()}
    assert all(part >= 0.93 for part in held.values()) and min(map(len, within.values())) > 200, held


@pytest.mark.parametrize(("times", "depths", "least"), [(1, 3, 0.95), (3, 3, 0.80), (10, 3, 0.88), (10, 5, 0.93)])
def test_best_rates_that_scatter_more_than_their_errors(times, depths, least):
    """By the scatter and its few degrees of freedom; three depths show it or, by luck, do not."""
    draw, within = random.Random(5), []
    for _ in range(2000):
        scattered = []
        for layers in (6, 12, 18, 36, 72)[:depths]:
            place = 2 ** (-8.6 + draw.gauss(0, times * 0.05))
            scattered.append(Optimum(layers, 1e-4, 1e-1, 5, place, 0.05, place, place, 5.0))
        low, high = fit(scattered, Noise(NOISE, 0)).exponents()
        within.append(low <= 0 <= high)
    assert sum(within) / 2000 >= least, sum(within) / 2000


def test_beside_a_rate_that_came_to_nothing_the_best_is_anywhere_between():
    """A training that diverges says that the best is below it, and no more."""
    high = [replace(t, loss=math.inf) if t.rate > 2.5e-3 else t for t in trials(6, -8.6)]
    found = optimum(high, Noise(NOISE, 0))
    assert found.rate == pytest.approx(2e-3) and found.error == pytest.approx(2 / math.sqrt(12))
    assert "by its neighbours alone, of which 0.004 came to nothing" in found.note and math.isnan(found.low)
    assert found.rate * 2 ** (-1.96 * found.error) < 1e-3 < 4e-3 < found.rate * 2 ** (1.96 * found.error)
    vague = optimum(high, Noise(0.2, 0))  # 1e-3 loses 0.14 bits, which seeds differ by: so between 5e-4 and 4e-3
    assert vague.rate == pytest.approx(math.sqrt(5e-4 * 4e-3)) and vague.error == pytest.approx(3 / math.sqrt(12))
    again = analyse([*high, *(replace(t, layers=18) for t in high)])
    assert again.stays == OPEN and again.law.exponent == pytest.approx(0) and again.refusal(18) == ""
    assert "could lie anywhere" in again.refusal(100)
    row = next(line for line in text(again, []).splitlines() if line.split()[:1] == ["18"] and "to" in line)
    assert row.split()[-3:] == ["-", "0.58", "5.011"], row


def test_a_best_rate_that_fails_at_another_seed_is_not_placed():
    """What came to nothing once in three trainings is no recommendation."""
    some = law(0, depths=(6, 18), seeds=(1, 2, 3))
    failed = [replace(t, loss=math.inf) if (t.layers, t.rate, t.seed) == (18, 2e-3, 2) else t for t in some]
    found = analyse(failed)
    assert [one.placed for one in found.optima] == [True, False]
    assert found.optima[1].why == "the best rate, 0.002, came to nothing at 1 of 3 seeds"
    assert found.stays == OPEN and "at 1 of 3 seeds" in found.refusal(18)
    beside = [replace(t, loss=math.inf) if (t.layers, t.rate, t.seed) == (18, 4e-3, 2) else t for t in some]
    assert "0.004 came to nothing" in analyse(beside).optima[1].note


def test_what_is_not_placed_is_said():
    flat = Noise(NOISE, 0)
    assert "at an edge, 0.064 the highest" in optimum(trials(6, -2), flat).why
    assert "at an edge, 0.000125 the lowest" in optimum(trials(6, -20), flat).why
    assert optimum(trials(6, -8.6, steps=(1,)), flat).why == "only 0.002 was tried"
    none = [replace(t, loss=math.inf) for t in trials(18, -8.6)]
    assert "nothing was learnt at 10 rates" in optimum(none, flat).why
    for some, said in (
        (law(0, depths=(6,)), "fewer than two depths"),
        ([*law(0, depths=(6, 18)), *trials(50, -2)], "of the nearest depth no best rate is known; 50 layers: the best"),
        (
            law(0, depths=(2, 6)),
            "100 layers are more than 6 times away from what is measured (known from 2 to 6 layers)",
        ),
        (law(1.5, depths=(6, 18)), "drifts to 0.1"),
        (law(0, depths=(6, 18), curve=0.002), "could lie anywhere"),
    ):
        assert said in analyse(some).refusal(100)
    assert analyse(law(0, depths=(8, 18))).refusal(1).startswith("1 layer is more than 6 times away")
    assert not analyse(law(0, depths=(6, 18))).refusal(1)
    assert not analyse(law(0)).refusal(100)
    assert analyse([*law(0, depths=(6, 18)), *trials(100, -2)]).refusal(30) == ""  # an edge that is farther away


@pytest.mark.parametrize(
    ("exponent", "seeds", "noise", "answer", "said"),
    [
        (0.0, (1, 2, 3), 0.01, YES, "by a factor of 1"),
        (-0.2, (1, 2, 3), 0.3, YES, "by a factor of 1.5"),  # costs nothing that seeds do not
        (0.0, (1,), 0.0, OPEN, "no depth has 3 seeds"),
        (-0.45, (1, 2, 3), 0.001, OPEN, "by a factor of 2.6"),
        (-0.8, (1, 2, 3), 0.001, NO, "by a factor of 0.18 from 6 to 50 layers, one way"),
        (-0.8, (1, 2, 3), 0.6, OPEN, "one way; the exponent could be 0"),  # when seeds differ by so much
        (0.0, (1, 2), 0.01, OPEN, "no depth has 3 seeds"),
    ],
)
def test_does_it_stay(exponent, seeds, noise, answer, said):
    """docs/depth_study.md: one step at most and no cost beyond seeds; two steps one way; the rest is open."""
    fixed = [replace(t, loss=t.loss + noise * (t.seed - 2)) for t in law(exponent, seeds=seeds)]
    found = analyse(fixed)
    assert found.stays == answer and said in found.why, found.why
    assert analyse([*law(exponent, depths=(6, 18)), *trials(50, -2)]).stays == OPEN


def test_a_move_there_and_back_counts_whole():
    """Half a step up and one down is a step and a half between two depths."""
    there = [*trials(6, -8.6), *trials(18, -8.0), *trials(50, -9.4)]
    found = analyse([replace(t, seed=seed, loss=t.loss + 0.4 * seed) for seed in (1, 2, 3) for t in there])
    assert found.stays == OPEN and "by a factor of 2.6 at most" in found.why


def test_seeds_of_some_depths_speak_for_the_others():
    """The smallest range of three seeds; 0.05 bits at 6 layers, 0.5 at 18, and a cost of 0.07 at 50, of one seed."""
    some = [replace(t, loss=t.loss + 0.025 * t.seed) for t in law(0, depths=(6,), seeds=(1, 2, 3))]
    some += [replace(t, loss=t.loss + 0.25 * t.seed) for t in law(0, depths=(18,), seeds=(1, 2, 3))]
    assert analyse([*some, *trials(50, -8.6)]).stays == YES
    found = analyse([*some, *trials(50, -9.55, curve=0.4)])
    assert found.stays == OPEN and "costs 0.0" in found.why
    assert found.why.endswith("seeds differ by 0.050 at 6 layers, not measured here")
    assert analyse([t for t in some if t.seed < 3 or t.layers == 6]).stays == YES  # two seeds are no three


def runs(root, shape, rates, seed=1, word=" --encoder-embed-dim 64", **facts):
    """Records of those stacks, losses on a parabola."""
    for rate in rates:
        name = f"deepnorm-{shape[0]}-{shape[1]}-lr{rate:g}-{seed}-{facts.get('updates', 500)}"
        told = {"lr": rate, "updates": 500, "seed": seed, "encoder_layers": shape[0], "decoder_layers": shape[1]}
        loss = 5 + 0.1 * math.log2(rate / 2e-3) ** 2
        place = record(root, "study", name, valid={500: (1, loss)}, **told | facts)
        (place / "command").write_text(f"fairseq-train data --arch deepnet_transformer_tiny{word}")


def trials_below(root):
    return [trial_of(run) for run in recorded_below(root / "study", over=True)]


def test_trainings_that_differ_are_not_pooled(tmp_path):
    """Stacks in another proportion, another length; twice the same is a mistake."""
    for shape in ((6, 6), (6, 3), (12, 6)):
        runs(tmp_path, shape, (1e-3, 2e-3, 4e-3))
    runs(tmp_path, (12, 6), (2e-3,), updates=100)
    groups = by_method(trials_below(tmp_path))
    assert [(g[0].shape, g[0].updates, sorted({t.layers for t in g})) for g in groups] == [
        ((1, 1), 500, [6]),
        ((2, 1), 100, [12]),
        ((2, 1), 500, [6, 12]),
    ]
    assert "deepnorm, layers 2:1, width 64, 500 updates" in text(analyse(groups[2]), [])
    again = replace(groups[2][0], source="again")
    with pytest.raises(UserError, match="two runs of deepnorm, 12 layers, rate 0.001, seed 1, 500 updates"):
        by_method([*groups[2], again])


@pytest.mark.parametrize(
    ("word", "said"),
    [
        (" --encoder-embed-dim=32", 32),
        (" --encoder-embed-dim 64 --encoder-embed-dim=16", 16),
        ("", 64),
        (" --encoder-embed-dim wide", "--encoder-embed-dim wide: must be a number"),
        (" 'unclosed", "is broken (No closing quotation)"),
    ],
)
def test_width_by_the_command(tmp_path, word, said):
    runs(tmp_path, (6, 6), (1e-3,), word=word)
    if isinstance(said, int):
        assert trials_below(tmp_path)[0].width == said
    else:
        with pytest.raises(UserError) as refused:
            trials_below(tmp_path)
        assert said in str(refused.value)


def test_intervals_without_end():
    """Numbers that are too large for a float are clamped; nothing is recommended."""
    found = analyse(law(0, depths=(6, 7)))
    huge = replace(found, law=replace(found.law, exponent_error=1e6))
    assert huge.law.at(30).high < math.inf and huge.law.at(30).low > 0 and "could lie anywhere" in huge.refusal(30)


def test_what_is_quoted_of_several_lengths():
    """The longest trainings speak, and their refusal too."""
    short, long = analyse(law(0, depths=(6, 18))), analyse([replace(t, updates=900) for t in law(0.1, depths=(6, 18))])
    line = quote([long, short], "deepnorm", 64, (18, 18))
    assert line == quote([short, long], "deepnorm", 64, (18, 18)) and "900 updates" in line
    edge = analyse([replace(t, updates=900) for t in [*law(0, depths=(6, 12)), *trials(18, -2)]])
    line = quote([short, edge], "deepnorm", 64, (18, 18))
    assert (
        "no recommendation: of the nearest depth no best rate is known; 18 layers: the best rate is at an edge" in line
    )
    assert "known from 6 to 12 layers alone" in quote([edge], "deepnorm", 64, (13, 13))


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
    out, of_runs = tmp_path / "found.json", ("transfer", "--runs", str(tmp_path / "study"))
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
    known = read_transfers(out)
    line = quote(known, "deepnorm", 64, (10, 10))
    assert "measured between 6, 18 layers of width 64, 500 updates" in line
    assert float(line.split()[3]) == pytest.approx(2 ** (-8.6 - 0.2 * math.log2(10 / 6)), rel=0.01)
    assert "measured at 6, 18 layers" in quote(known, "deepnorm", 64, (18, 18))
    for other in (("pre_ln", 64, (10, 10)), ("deepnorm", 512, (10, 10)), ("deepnorm", 64, (50, 50))):
        assert "were not measured" in quote(known, *other)
    assert "10-5 layers of deepnorm, width 64, were not measured" in quote(known, "deepnorm", 64, (10, 5))
    assert_refused("--up-to 3: no run is that shallow; the shallowest has 6 layers", *of_runs, "--up-to", "3")
    main(["plan", "--arch", "deepnet_transformer_tiny_12_12", "--transfer", str(out)])
    assert "best learning rate 2.2" in capsys.readouterr().out.splitlines()[-1]
