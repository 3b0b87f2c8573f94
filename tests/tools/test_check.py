"""Tests of `deepnet check`: signals and verdicts on synthetic observations, then the command on real batches."""

import json
import math
import os

import pytest

from deepnet_fairseq.cli import main
from deepnet_fairseq.tools.check import AT_RISK, DIVERGING, STABLE, UNKNOWN, Observed, ShortTraining, judge

from ..conftest import TRAIN_FLAGS
from ..support.helpers import run

HEALTHY = {"encoder": 3.0, "decoder": 8.0, "gradient": 0.01}


def observed(update, decoder, loss=None, lr=1e-3, half=None, encoder=(1.0, 1.0, 1.0)):
    """Return one observed update with the given gradient norms of three encoder layers and some decoder layers."""
    norms = {f"encoder.{l}": norm for l, norm in enumerate(encoder, 1)}
    norms |= {f"decoder.{l}": norm for l, norm in enumerate(decoder, 1)}
    norms |= {"decoder.1.ffn.fc1": 1e-30, "encoder.embed_tokens": 1e-30}  # addresses that are not layers
    probes = {"gradient_norm": norms, "half_precision": half or HEALTHY}
    return Observed(update, lr, 10 - 0.05 * update if loss is None else loss, 1000, probes)


def training(rows, failure=None, peak=1e-3):
    return ShortTraining("deepnorm", (3, 3), 1, peak, rows, failure, 1.0)


def test_even_gradients_are_stable():
    """Even gradients are stable, even after a dip; a learning rate that stays below its peak gives a note."""
    verdict = judge(training([observed(i, [1e-9 if 10 <= i < 15 else 0.5, 0.7, 1.0]) for i in range(30)]))
    assert verdict.kind == STABLE and str(verdict) == "stable" and not verdict.findings and not verdict.notes
    few = judge(training([observed(i, [0.5, 1.0]) for i in range(9)]))
    assert str(few) == UNKNOWN and "only 9 updates" in few.notes[0]
    (note,) = judge(training([observed(i, [0.5, 1.0], lr=1e-6) for i in range(30)])).notes
    assert "the learning rate came to 0.1% of its peak 0.001" in note


@pytest.mark.parametrize(
    "start, later, kind, update",
    [
        (0.02, 1e-6, DIVERGING, 10),  # Post-LN: uneven, then vanishing from update 10 on
        (0.02, 0.02, AT_RISK, 29),  # uneven, before the learning rate has its effect
        (0.02, 0.5, STABLE, None),  # ReZero: becomes even
        (0.3, 0.02, STABLE, None),  # uneven, but over few layers
        (0.5, 0.02, STABLE, None),  # DS-Init, or DeepNorm with too short a warm-up: even at the start
        (0.5, 1e-4, DIVERGING, 10),  # a hundredth from layer to layer: diverging, whatever the start
        (0.5, 0.0, DIVERGING, 10),
    ],
)
def test_gradients_that_vanish(start, later, kind, update):
    """Vanishing gradients decide the verdict by the ratio of smallest to largest norm, before and after update 10."""
    verdict = judge(training([observed(i, [later if i >= 10 else start, 0.7, 1.0]) for i in range(30)]))
    assert verdict.kind == kind
    if update:
        assert verdict.findings[0].update == update and "decoder layer 1 gets" in str(verdict)
    if kind == DIVERGING:
        assert f"{later:.0e} of the largest layer's gradient, {start:.0e} in" in str(verdict)


def test_gradients_of_zero_have_no_headroom():
    """Where nothing flows, there is nothing to compare with fp16's largest number."""
    rows = [observed(1, (1.0, 1.0, 1.0), half=HEALTHY | {"gradient": 0.0})]
    assert training(rows).headroom is None
    assert training([observed(1, (1.0, 1.0, 1.0))]).headroom is not None


def test_numbers_that_are_not_finite():
    rows = [observed(i, [0.5, 1.0]) for i in range(12)] + [observed(12, [math.nan, math.nan], loss=math.nan)]
    assert str(judge(training(rows, "gradients are Nan/Inf"))).startswith("diverging at update 12: loss or gradients")


def test_other_risks():
    """A rising loss, large activations in fp16 and large gradients in fp16 are at risk."""
    rising = [observed(i, [0.5, 1.0], loss=10 + i / 10) for i in range(30)]
    wide = [observed(i, [0.5, 1.0], half=HEALTHY | {"decoder": 20000.0}) for i in range(30)]
    steep = [observed(i, [0.5, 1.0], half=HEALTHY | {"gradient": 1000.0}) for i in range(30)]
    assert str(judge(training(rising))) == "at risk: the loss rises, from 10.20 to 12.70 bits"
    assert "activations reach 20000; fp16 ends at 65504: train with --bf16" in str(judge(training(wide)))
    assert "gradients need a loss scale of 0.0625 in fp16" in str(judge(training(steep)))


FLAGS = (*TRAIN_FLAGS, "--arch", "deepnet_transformer_tiny", "--dropout", "0")


def check(capsys, data, *flags, expect=0):
    """Run the command in this process and return its output."""
    capsys.readouterr()
    if expect:
        with pytest.raises(SystemExit) as ended:
            main(["check", str(data), *FLAGS, *flags])
        assert ended.value.code == expect
    else:
        main(["check", str(data), *FLAGS, *flags])
    return capsys.readouterr().out


@pytest.mark.smoke
def test_deepnorm_is_stable_where_post_ln_is_not(data, capsys, tmp_path, monkeypatch):
    """DeepNorm at 18L-18L and the peak learning rate is stable and Post-LN is not; no file is written."""
    monkeypatch.chdir(tmp_path)
    deep = ("--encoder-layers", "18", "--decoder-layers", "18", "--lr", "1e-3", "--warmup-updates", "20")
    good = check(capsys, data, *deep)
    assert good.splitlines()[-1] == "verdict: stable" and "18L-18L deepnorm" in good
    for heading in ("model update", "LN input ffn", "grad decoder", "decoder 18", "fp16: activations up to"):
        assert heading in good
    bad = check(capsys, data, *deep, "--method", "post_ln", expect=3)
    assert "verdict: diverging at update" in bad and "decoder layer 1 gets" in bad
    assert not os.listdir(tmp_path)


def test_json_and_the_real_schedule(data, capsys):
    """`deepnet check` sees the learning rates and losses of fairseq-train, whose whole command line it accepts."""
    flags = ("check", "--json", "--updates", "10", "fairseq-train", data, *FLAGS, "--warmup-updates", "100")
    out = run("deepnet", *flags).stdout
    report = json.loads(out[out.index("{") :].splitlines()[0])
    assert report["verdict"] == "stable" and report["layers"] == [6, 6] and len(report["updates"]) == 10
    lrs = [row["lr"] for row in report["updates"]]
    assert lrs == pytest.approx([1e-7 + i * (2e-3 - 1e-7) / 100 for i in range(10)], rel=1e-6)
    assert any("of its peak 0.002" in note for note in report["notes"])
    trained = run("fairseq-train", data, *FLAGS, "--warmup-updates", "100", "--max-update", "10", "--no-save").stdout
    theirs = [json.loads(line.split("| train_inner | ")[1]) for line in trained.splitlines() if "train_inner" in line]
    assert [row["loss"] for row in report["updates"]] == pytest.approx([float(row["loss"]) for row in theirs], abs=2e-3)
    short = check(capsys, data, "--json", "--updates", "10", "--compress-warmup", "4")
    report = json.loads(next(line for line in short.splitlines() if line.startswith("{")))
    rates = [row["lr"] for row in report["updates"]]
    assert rates[4] == pytest.approx(2e-3) and rates[7] == pytest.approx(2e-3 * math.sqrt(4 / 7))
    slow = check(capsys, data, "--warmup-updates", "50", "--updates", "10", "--compress-warmup", "25")
    assert "--updates 50 goes there" in slow


@pytest.mark.parametrize(
    "flags, message",
    [
        ("--updates 3", "--updates 3: give at least 10"),
        ("--seconds 0", "--seconds 0: give at least 1"),
        ("--compress-warmup 5 --lr-scheduler cosine --warmup-updates 0", "this schedule has no warm-up"),
        ("--arch transformer", "--arch transformer: the check is for deepnet_transformer"),
        (f"--finetune-from-model {__file__}", "--finetune-from-model: the check looks at a training from its first"),
    ],
)
def test_mistakes(data, capsys, flags, message):
    with pytest.raises(SystemExit, match=message):
        main(["check", str(data), *FLAGS, *flags.split()])
