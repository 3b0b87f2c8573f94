"""Tests of `deepnet check`: signals and verdicts on synthetic observations, then the command on real batches."""

import json
import math
import os

import pytest

from deepnet_fairseq.cli import main
from deepnet_fairseq.tools.check import AT_RISK, DIVERGING, STABLE, UNKNOWN, Observed, ShortTraining, judge

from ..conftest import TRAIN_FLAGS
from ..support.errors import assert_refused
from ..support.helpers import run

PEAK = 1e-3  # learning rate
UPDATES = 30
HEALTHY = {"encoder": 3.0, "decoder": 8.0, "gradient": 0.01}  # largest numbers, far from fp16's 65504
EVEN = (0.5, 0.7, 1.0)  # gradient norms of decoder layers


def observed(update: int, decoder=EVEN, loss: float | None = None, lr: float = PEAK, largest=None) -> Observed:
    """Return one observed update.

    decoder: gradient norms of the decoder's layers, 1 in three layers of the encoder; loss: falls with the updates if
    it is None; largest: numbers that differ from HEALTHY.
    """
    norms = {f"encoder.{layer}": 1.0 for layer in (1, 2, 3)}
    for layer, norm in enumerate(decoder, 1):
        norms[f"decoder.{layer}"] = norm
    for address in ("decoder.1.ffn.fc1", "encoder.embed_tokens"):  # no layers
        norms[address] = 1e-30
    if loss is None:
        loss = 10 - 0.05 * update
    probes = {"gradient_norm": norms, "half_precision": HEALTHY | (largest or {})}
    return Observed(update, lr, loss, tokens=1000, probes=probes)


def training(rows: list[Observed], failure: str | None = None) -> ShortTraining:
    """Return a short training of a 3L-3L model."""
    return ShortTraining(
        "deepnorm", layers=(3, 3), parameters=1, peak=PEAK, observed=rows, failure=failure, seconds=1.0
    )


def only(items: list):
    (item,) = items
    return item


# verdicts


def test_even_gradients_are_stable():
    verdict = judge(training([observed(update) for update in range(UPDATES)]))

    assert verdict.kind == STABLE
    assert str(verdict) == "stable"
    assert not verdict.findings
    assert not verdict.notes


def test_a_dip_of_gradients_that_recover_is_stable():
    rows = [observed(update) for update in range(UPDATES)]
    for update in range(10, 15):
        rows[update] = observed(update, decoder=(1e-9, *EVEN[1:]))

    verdict = judge(training(rows))

    assert verdict.kind == STABLE
    assert not verdict.findings


def test_nine_updates_are_too_few_for_a_verdict():
    verdict = judge(training([observed(update) for update in range(9)]))

    assert str(verdict) == UNKNOWN
    assert "9 updates" in verdict.notes[0]


def test_a_learning_rate_far_below_its_peak_is_noted():
    verdict = judge(training([observed(update, lr=PEAK / 1000) for update in range(UPDATES)]))

    note = only(verdict.notes)
    assert "0.1%" in note
    assert "0.001" in note


VANISHING = 10  # the first update with other norms


@pytest.mark.parametrize(
    "start, later, kind, update",
    [
        (0.02, 1e-6, DIVERGING, VANISHING),  # Post-LN: uneven, then vanishing
        (0.02, 0.02, AT_RISK, UPDATES - 1),  # uneven, before the learning rate has its effect
        (0.02, 0.5, STABLE, None),  # ReZero: becomes even
        (0.3, 0.02, STABLE, None),  # uneven, but over few layers
        (0.5, 0.02, STABLE, None),  # DS-Init, or DeepNorm with too short a warm-up: even at the start
        (0.5, 1e-4, DIVERGING, VANISHING),  # a hundredth from layer to layer: diverging, whatever the start
        (0.5, 0.0, DIVERGING, VANISHING),
    ],
)
def test_vanishing_gradients_decide_the_verdict(start, later, kind, update):
    """By the ratio of smallest to largest norm at the start and at the end."""
    rows = []
    for number in range(UPDATES):
        smallest = start if number < VANISHING else later
        rows.append(observed(number, decoder=(smallest, 0.7, 1.0)))

    verdict = judge(training(rows))

    assert verdict.kind == kind
    if update is not None:
        assert verdict.findings[0].update == update
        assert "decoder layer 1" in str(verdict)
    if kind == DIVERGING:
        assert f"{later:.0e}" in str(verdict)
        assert f"{start:.0e}" in str(verdict)


def test_numbers_that_are_not_finite_are_divergence():
    rows = [observed(update) for update in range(12)]
    rows.append(observed(12, decoder=(math.nan, math.nan, math.nan), loss=math.nan))

    verdict = judge(training(rows, failure="gradients are Nan/Inf"))

    assert verdict.kind == DIVERGING
    assert verdict.findings[0].update == 12
    assert "gradients are Nan/Inf" in str(verdict)


def test_a_rising_loss_is_a_risk():
    verdict = judge(training([observed(update, loss=10 + update / 10) for update in range(UPDATES)]))

    assert verdict.kind == AT_RISK
    medians = ("10.20", "12.70")  # of the first and last five updates
    for loss in medians:
        assert loss in str(verdict)


def test_activations_near_the_end_of_fp16_are_a_risk():
    verdict = judge(training([observed(update, largest={"decoder": 20000.0}) for update in range(UPDATES)]))

    assert verdict.kind == AT_RISK
    assert "20000" in str(verdict)
    assert "--bf16" in str(verdict)


def test_gradients_that_need_a_loss_scale_below_one_are_a_risk():
    verdict = judge(training([observed(update, largest={"gradient": 1000.0}) for update in range(UPDATES)]))

    assert verdict.kind == AT_RISK
    assert "0.0625" in str(verdict)  # 2 ** -4; 1000 tokens x 1000 are 15 times 65504


def test_gradients_of_zero_have_no_headroom():
    """Where nothing flows, there is nothing to compare with fp16's largest number."""
    assert training([observed(1, largest={"gradient": 0.0})]).headroom is None


def test_gradients_other_than_zero_have_headroom():
    assert training([observed(1)]).headroom is not None


# the command

FLAGS = (*TRAIN_FLAGS, "--arch", "deepnet_transformer_tiny", "--dropout", "0")
EIGHTEEN_LAYERS = ("--encoder-layers", "18", "--decoder-layers", "18", "--lr", "1e-3", "--warmup-updates", "20")
UNSTABLE = 3  # exit status
PEAK_OF_FLAGS = 2e-3


def check(data, *flags) -> None:
    """Run `deepnet check` in this process."""
    main(["check", str(data), *FLAGS, *flags])


def json_report(printed: str) -> dict:
    (line,) = [line for line in printed.splitlines() if line.startswith("{")]
    return json.loads(line)


@pytest.fixture
def working_folder(tmp_path, monkeypatch):
    """Provide the empty folder in which the test runs."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.smoke
def test_deepnorm_is_stable_at_a_rate_where_post_ln_is_not(data, capsys, working_folder):
    """At 18L-18L and the peak learning rate; no file is left."""
    check(data, *EIGHTEEN_LAYERS)

    printed = capsys.readouterr().out
    assert printed.splitlines()[-1] == "verdict: stable"
    assert "18L-18L deepnorm" in printed
    for heading in ("model update", "LN input ffn", "grad decoder", "decoder 18", "fp16"):
        assert heading in printed
    assert not os.listdir(working_folder)


@pytest.mark.smoke
def test_post_ln_diverges_at_a_rate_where_deepnorm_is_stable(data, capsys, working_folder):
    with pytest.raises(SystemExit) as ended:
        check(data, *EIGHTEEN_LAYERS, "--method", "post_ln")

    assert ended.value.code == UNSTABLE
    printed = capsys.readouterr().out
    assert "verdict: diverging" in printed
    assert "decoder layer 1" in printed
    assert not os.listdir(working_folder)


@pytest.fixture(scope="module")
def report_of_ten_updates(data):
    """Provide the report of a check whose words end in the whole command line of fairseq-train."""
    command = ("fairseq-train", data, *FLAGS, "--warmup-updates", "100")
    return json_report(run("deepnet", "check", "--json", "--updates", "10", *command).stdout)


def test_a_report_has_the_verdict_the_layers_and_the_updates(report_of_ten_updates):
    assert report_of_ten_updates["verdict"] == "stable"
    assert report_of_ten_updates["layers"] == [6, 6]
    assert len(report_of_ten_updates["updates"]) == 10


def test_a_check_warms_up_as_the_training(report_of_ten_updates):
    rates = [row["lr"] for row in report_of_ten_updates["updates"]]

    step = (PEAK_OF_FLAGS - 1e-7) / 100
    assert rates == pytest.approx([1e-7 + update * step for update in range(10)], rel=1e-6)


def test_a_check_that_ends_in_the_warmup_says_so(report_of_ten_updates):
    assert any(f"peak {PEAK_OF_FLAGS}" in note for note in report_of_ten_updates["notes"])


def test_a_check_has_the_losses_of_the_training(data, report_of_ten_updates):
    flags = ("--warmup-updates", "100", "--max-update", "10", "--no-save")
    log = run("fairseq-train", data, *FLAGS, *flags).stdout
    rows = [json.loads(line.split("| train_inner | ")[1]) for line in log.splitlines() if "train_inner" in line]

    losses = [row["loss"] for row in report_of_ten_updates["updates"]]
    assert losses == pytest.approx([float(row["loss"]) for row in rows], abs=2e-3)


def test_a_compressed_warmup_reaches_the_peak_and_falls_from_it(data, capsys):
    check(data, "--json", "--updates", "10", "--compress-warmup", "4")

    rates = [row["lr"] for row in json_report(capsys.readouterr().out)["updates"]]
    assert rates[4] == pytest.approx(PEAK_OF_FLAGS)
    assert rates[7] == pytest.approx(PEAK_OF_FLAGS * math.sqrt(4 / 7))  # inverse_sqrt


def test_a_check_too_short_for_its_warmup_names_the_updates_it_takes(data, capsys):
    check(data, "--warmup-updates", "50", "--updates", "10", "--compress-warmup", "25")

    assert "--updates 50" in capsys.readouterr().out


@pytest.mark.parametrize(
    "flags, subject",
    [
        ("--updates 3", "--updates 3: "),
        ("--seconds 0", "--seconds 0: "),
        ("--compress-warmup 5 --lr-scheduler cosine --warmup-updates 0", "--compress-warmup: "),
        ("--arch transformer", "--arch transformer: "),
        (f"--finetune-from-model {__file__}", "--finetune-from-model: "),
    ],
)
def test_a_wrong_flag_is_named(data, flags, subject):
    assert_refused(subject, "check", data, *FLAGS, *flags.split())
