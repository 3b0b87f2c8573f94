"""`deepnet check`: signals and verdicts on made-up observations, then the command on real batches."""

import json
import math
import os
import re

import pytest

from deepnet_fairseq.analysis.calibration import cells_of, confusion
from deepnet_fairseq.errors import UserError
from deepnet_fairseq.stability.observed import Observed, ShortTraining
from deepnet_fairseq.stability.signals import evenness, headroom, ln_input, profile
from deepnet_fairseq.stability.verdict import AT_RISK, DIVERGING, STABLE, judge

from .conftest import TRAIN_FLAGS
from .support import recorded
from .support.helpers import ELSEWHERE, run

HEALTHY = {"encoder": 3.0, "decoder": 8.0, "gradient": 0.01}


def observed(update, decoder, loss=None, lr=1e-3, half=None, encoder=(1.0, 1.0, 1.0)):
    """One update with the given gradient norms of three encoder and some decoder layers."""
    norms = {f"encoder.{l}": norm for l, norm in enumerate(encoder, 1)}
    norms |= {f"decoder.{l}": norm for l, norm in enumerate(decoder, 1)}
    norms |= {"decoder.1.ffn.fc1": 1e-30, "encoder.embed_tokens": 1e-30}  # no layers
    probes = {"gradient_norm": norms, "half_precision": half or HEALTHY}
    return Observed(update, lr, 10 - 0.05 * update if loss is None else loss, 1000, probes)


def training(rows, failure=None, peak=1e-3):
    return ShortTraining("deepnorm", (3, 3), 1, peak, rows, failure, 1.0)


def test_even_gradients_are_stable():
    verdict = judge(training([observed(i, [0.5, 0.7, 1.0]) for i in range(30)]))
    assert verdict.kind == STABLE and str(verdict) == "stable" and not verdict.findings and not verdict.notes


@pytest.mark.parametrize(
    "start, later, kind, update",
    [
        (0.02, 1e-6, DIVERGING, 10),  # Post-LN: uneven, then starved from update 10 on
        (0.02, 0.02, AT_RISK, 29),  # uneven, and the learning rate has not done its work yet
        (0.02, 0.5, STABLE, None),  # ReZero: evens out
        (0.3, 0.02, STABLE, None),  # uneven, but over few layers
        (0.5, 0.02, STABLE, None),  # DS-Init, DeepNorm under a warm-up that is too short: even at the start
        (0.5, 1e-4, DIVERGING, 10),  # a hundredth from layer to layer: lost, whatever the start was
        (0.5, 0.0, DIVERGING, 10),
    ],
)
def test_gradients_that_vanish(start, later, kind, update):
    """Smallest over largest gradient of the decoder's layers, before update 10 and from it on."""
    verdict = judge(training([observed(i, [later if i >= 10 else start, 0.7, 1.0]) for i in range(30)]))
    assert verdict.kind == kind
    if update:
        assert verdict.findings[0].update == update and "decoder layer 1 gets" in str(verdict)
    if kind == DIVERGING:
        words = (
            f"diverging at update 10: decoder layer 1 gets {later:.0e} of the largest layer's gradient, {start:.0e} in"
        )
        assert str(verdict).startswith(words)


def test_a_passing_dip_is_no_finding():
    rows = [observed(i, [1e-9 if 10 <= i < 15 else 0.5, 0.7, 1.0]) for i in range(30)]
    assert judge(training(rows)).kind == STABLE


def test_numbers_that_are_not_finite():
    rows = [observed(i, [0.5, 1.0]) for i in range(12)] + [observed(12, [math.nan, math.nan], loss=math.nan)]
    assert str(judge(training(rows, "gradients are Nan/Inf"))).startswith("diverging at update 12: loss or gradients")


def test_rising_loss_is_a_risk():
    verdict = judge(training([observed(i, [0.5, 1.0], loss=10 + i / 10) for i in range(30)]))
    assert verdict.kind == AT_RISK and "the loss rises, from 10.20 to 12.70 bits" in str(verdict)


def test_half_precision_risks():
    wide = [observed(i, [0.5, 1.0], half=HEALTHY | {"decoder": 20000.0}) for i in range(30)]
    assert "activations reach 20000; fp16 ends at 65504: train with --bf16" in str(judge(training(wide)))
    steep = [observed(i, [0.5, 1.0], half=HEALTHY | {"gradient": 1000.0}) for i in range(30)]
    assert "gradients need a loss scale of 0.0625 in fp16" in str(judge(training(steep)))


def test_a_low_learning_rate_is_said():
    verdict = judge(training([observed(i, [0.5, 1.0], lr=1e-6) for i in range(30)]))
    assert verdict.kind == STABLE and "the learning rate came to 0.1% of its peak 0.001" in verdict.notes[0]


def test_signals():
    seen = observed(0, [0.1, 0.4, 0.2])
    assert profile(seen, "decoder") == [0.1, 0.4, 0.2] and evenness([0.1, 0.4, 0.2]) == 0.25
    assert math.isnan(evenness([])) and evenness([0.0, 0.0]) == 0 and math.isnan(evenness([1.0, math.inf]))
    many = observed(0, [float(layer) for layer in range(1, 13)])
    assert profile(many, "decoder") == [float(layer) for layer in range(1, 13)]  # 2 before 10
    room = headroom([seen])
    assert room.activation == 8 and room.doublings == pytest.approx(math.log2(65504 / 8))
    assert room.loss_scale == 4096  # 65504 / (0.01 * 1000 tokens) = 6550.4
    assert headroom([Observed(0, 1e-3, math.nan, 0, {})]) is None
    norms = {"encoder.1.ffn": 2.0, "decoder.1.ffn": 4.0, "decoder.1.self_attn": 9.0, "decoder.layer_norm": 50.0}
    assert ln_input(Observed(0, 1e-3, 1.0, 1, {"ln_input": norms}), "ffn") == 3.0


def cell(folder, method, layers, verdict, losses):
    run = recorded.record(folder, 9, f"{method}-{layers}", method, layers, losses=losses)
    (run / "check.json").write_text(json.dumps({"verdict": verdict}))


def test_calibration(tmp_path):
    """Four cells: right both ways, a false alarm, a miss."""
    cell(tmp_path, "deepnorm", 6, "stable", recorded.HEALTHY)
    cell(tmp_path, "post_ln", 18, "diverging", recorded.STUCK)
    cell(tmp_path, "rezero", 6, "at risk", recorded.HEALTHY)
    cell(tmp_path, "dlcl", 18, "stable", recorded.STUCK)
    text = confusion(cells_of(tmp_path / "figure9"))
    assert "2 of 4 cells agree (50%)" in text
    rows = {line.split()[0]: line for line in text.splitlines() if line}
    assert re.split(r" {2,}", rows["deepnorm"]) == ["deepnorm", "stable, trained", "-"]
    assert "stable, diverged (!)" in rows["dlcl"] and "at risk, trained (!)" in rows["rezero"]
    assert rows["stable"].split() == ["stable", "1", "1"] and rows["diverging"].split() == ["diverging", "0", "1"]
    (tmp_path / "figure9" / "dlcl-18" / "check.json").write_text("{}")
    with pytest.raises(UserError, match="check.json: is no report of `deepnet check --json`"):
        cells_of(tmp_path / "figure9")
    with pytest.raises(UserError, match="holds no finished runs with a check.json"):
        cells_of(tmp_path)


FLAGS = (*TRAIN_FLAGS, "--arch", "deepnet_transformer_tiny", "--dropout", "0")


def check(data, *flags, expect=0):
    done = run("deepnet", "check", data, *FLAGS, *flags, check=False)
    assert done.returncode == expect, done.stdout[-2000:]
    return done.stdout


@pytest.mark.smoke
def test_deepnorm_is_stable_where_post_ln_is_not(data):
    """18L-18L at the peak learning rate; nothing is written anywhere."""
    before = sorted(os.listdir(ELSEWHERE.name))
    deep = ("--encoder-layers", "18", "--decoder-layers", "18", "--lr", "1e-3", "--warmup-updates", "20")
    good = check(data, *deep)
    assert good.splitlines()[-1] == "verdict: stable" and "18L-18L deepnorm" in good
    for heading in ("model update", "LN input ffn", "grad decoder", "decoder 18", "fp16: activations up to"):
        assert heading in good
    bad = check(data, *deep, "--method", "post_ln", expect=3)
    assert "verdict: diverging at update" in bad and "decoder layer 1 gets" in bad
    assert sorted(os.listdir(ELSEWHERE.name)) == before  # where the programs run


def test_json_and_the_real_schedule(data):
    """As fairseq-train itself would take its learning rates; a whole command line may be given."""
    out = run(
        "deepnet", "check", "--json", "--updates", "10", "fairseq-train", data, *FLAGS, "--warmup-updates", "100"
    ).stdout
    found = json.loads(out[out.index("{") :].splitlines()[0])
    assert found["verdict"] == "stable" and found["layers"] == [6, 6] and len(found["updates"]) == 10
    lrs = [row["lr"] for row in found["updates"]]
    assert lrs == pytest.approx([1e-7 + i * (2e-3 - 1e-7) / 100 for i in range(10)], rel=1e-6)
    assert any("of its peak 0.002" in note for note in found["notes"])
    compressed = run("deepnet", "check", data, *FLAGS, "--json", "--updates", "10", "--compress-warmup", "4").stdout
    rates = [row["lr"] for row in json.loads(compressed[compressed.index("{") :].splitlines()[0])["updates"]]
    assert rates[4] == pytest.approx(2e-3) and rates[7] == pytest.approx(2e-3 * math.sqrt(4 / 7))


def test_its_losses_are_fairseq_trains(data, tmp_path):
    out = run("deepnet", "check", data, *FLAGS, "--json", "--updates", "10").stdout
    ours = [row["loss"] for row in json.loads(out[out.index("{") :].splitlines()[0])["updates"]]
    trained = run("fairseq-train", data, *FLAGS, "--max-update", "10", "--no-save", "--save-dir", tmp_path).stdout
    theirs = [
        json.loads(line.split("| train_inner | ")[1])["loss"] for line in trained.splitlines() if "train_inner" in line
    ]
    assert ours == pytest.approx([float(loss) for loss in theirs], abs=2e-3)


@pytest.mark.parametrize(
    "flags, message",
    [
        (("--updates", "3"), "--updates 3: give at least 10"),
        (("--seconds", "0"), "--seconds 0: must be more than 0"),
        (("--compress-warmup", "0"), "--compress-warmup 0: must be at least 1"),
        (("--compress-warmup", "5", "--warmup-updates", "0"), "--warmup-updates 0: inverse_sqrt divides by it"),
        (("--arch", "transformer"), "--arch transformer: the check is for deepnet_transformer"),
        (("--method", "nonsense"), "--method nonsense: unknown"),
        (("--nonsense",), "unknown: --nonsense"),
        (("--restore-file", "x.pt"), "--restore-file x.pt: no such file"),
        (
            ("--finetune-from-model", __file__),
            "--finetune-from-model: the check looks at a training from its first update",
        ),
    ],
)
def test_mistakes(data, flags, message):
    done = run("deepnet", "check", data, *FLAGS, *flags, check=False)
    assert done.returncode != 0 and message in done.stdout.splitlines()[-1] and "Traceback" not in done.stdout
