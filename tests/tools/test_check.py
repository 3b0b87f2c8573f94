"""Tests of `deepnet check`: signals and verdicts on synthetic observations, then the command on real batches."""

from __future__ import annotations

import json
import math
import os
from typing import NamedTuple

import pytest
from fairseq.trainer import Trainer

from deepnet_fairseq.cli import main
from deepnet_fairseq.plugin.divergence import GRADIENTS, LOSS
from deepnet_fairseq.tools.check import (
    AT_RISK,
    DIVERGING,
    STABLE,
    UNKNOWN,
    Observed,
    ShortTraining,
    judge,
    train_briefly,
)

from ..conftest import TRAIN_FLAGS
from ..support.errors import assert_refused
from ..support.helpers import run
from ..support.logs import losses as losses_of_log

PEAK = 1e-3  # learning rate
UPDATES = 30
HEALTHY = {"encoder": 3.0, "decoder": 8.0, "gradient": 0.01}  # largest absolute values, far from fp16's 65504
EVEN = (0.5, 0.7, 1.0)  # gradient norms of decoder layers 1 to 3


def observed(
    update: int,
    decoder: tuple[float, ...] = EVEN,
    loss: float | None = None,
    lr: float = PEAK,
    largest: dict[str, float] | None = None,
) -> Observed:
    """Return the observation of one update of a 3L-3L model.

    decoder: gradient norms of the decoder's layers, while those of the encoder's are 1; loss: of the batch, by default
    one that falls from update to update; largest: absolute values that differ from HEALTHY.
    """
    norms = {f"encoder.{layer}": 1.0 for layer in (1, 2, 3)}
    for layer, norm in enumerate(decoder, start=1):
        norms[f"decoder.{layer}"] = norm
    for address in ("decoder.1.ffn.fc1", "encoder.embed_tokens"):  # no layers: they must not count as such
        norms[address] = 1e-30
    if loss is None:
        loss = 10 - 0.05 * update
    probes = {"gradient_norm": norms, "half_precision": HEALTHY | (largest or {})}
    return Observed(update, lr, loss, tokens=1000, probes=probes)


def training(rows: list[Observed], failure: str | None = None) -> ShortTraining:
    """Return a short training of a 3L-3L model with these updates; failure: how it diverged, None if it did not."""
    return ShortTraining(
        "deepnorm", layers=(3, 3), parameters=1, peak=PEAK, observed=rows, failure=failure, seconds=1.0
    )


def training_of(updates: int = UPDATES, **same_in_all) -> ShortTraining:
    """Return a short training of so many updates, all of them observed(.., **same_in_all)."""
    return training([observed(update, **same_in_all) for update in range(updates)])


# verdicts


def test_even_gradients_are_stable():
    verdict = judge(training_of(decoder=EVEN))

    assert verdict.kind == STABLE
    assert str(verdict) == "stable"
    assert not verdict.findings
    assert not verdict.notes


def test_a_dip_of_gradients_that_recover_is_stable():
    """The first and the last five updates count, and the dip is between them."""
    rows = [observed(update) for update in range(UPDATES)]
    for update in range(10, 15):
        rows[update] = observed(update, decoder=(1e-9, 0.7, 1.0))

    verdict = judge(training(rows))

    assert verdict.kind == STABLE
    assert not verdict.findings


def test_nine_updates_are_too_few_for_a_verdict():
    """A verdict compares five updates at the start with five at the end."""
    verdict = judge(training_of(updates=9))

    assert verdict.kind == UNKNOWN
    assert "9 updates" in verdict.notes[0]


def test_a_learning_rate_far_below_its_peak_is_noted():
    verdict = judge(training_of(lr=PEAK / 1000))

    (note,) = verdict.notes
    assert "0.1%" in note
    assert f"{PEAK:g}" in note


class Vanishing(NamedTuple):
    """Evenness of the decoder's gradients in a training, and the verdict on it.

    Evenness: the norm of the smallest layer, which is the first, divided by that of the largest, 1.
    """

    start: float  # evenness before update CHANGE
    later: float  # evenness from that update on
    kind: str  # of the verdict
    update: int | None = None  # at which the finding shows; None without a finding


CHANGE = 10  # the first update with other norms
LAST = UPDATES - 1


@pytest.mark.parametrize(
    "case",
    [
        # Post-LN: uneven, below 0.1 at the start, then vanishing, below 1e-3 at the end
        Vanishing(start=0.02, later=1e-6, kind=DIVERGING, update=CHANGE),
        # uneven at the start and at the end, but not vanishing: a risk, found at the last update
        Vanishing(start=0.02, later=0.02, kind=AT_RISK, update=LAST),
        # ReZero: becomes even
        Vanishing(start=0.02, later=0.5, kind=STABLE),
        # DS-Init, or DeepNorm with too short a warm-up: even at the start, and later uneven
        Vanishing(start=0.3, later=0.02, kind=STABLE),
        Vanishing(start=0.5, later=0.02, kind=STABLE),
        # even at the start, later sqrt(1e-4), a hundredth, from layer to layer: lost, whatever the start
        Vanishing(start=0.5, later=1e-4, kind=DIVERGING, update=CHANGE),
        Vanishing(start=0.5, later=0.0, kind=DIVERGING, update=CHANGE),
    ],
    ids=str,
)
def test_vanishing_gradients_decide_the_verdict(case):
    rows = []
    for update in range(UPDATES):
        evenness = case.start if update < CHANGE else case.later
        rows.append(observed(update, decoder=(evenness, 0.7, 1.0)))

    verdict = judge(training(rows))

    assert verdict.kind == case.kind
    if case.update is not None:
        assert verdict.findings[0].update == case.update
        assert "decoder layer 1" in str(verdict)
    if case.kind == DIVERGING:
        assert f"{case.later:.0e}" in str(verdict)
        assert f"{case.start:.0e}" in str(verdict)


def test_gradients_that_fade_slowly_over_many_layers_are_stable():
    """The gradients fade by 8% from layer to layer. Over 40 layers they are uneven, but no more than by the depth."""
    norms = tuple(0.92**layer for layer in range(40, 0, -1))

    assert min(norms) / max(norms) < 0.1  # an evenness that is a risk over three layers
    assert judge(training_of(decoder=norms)).kind == STABLE


def test_numbers_that_are_not_finite_are_divergence():
    rows = [observed(update) for update in range(12)]
    rows.append(observed(12, decoder=(math.nan, math.nan, math.nan), loss=math.nan))

    verdict = judge(training(rows, failure="gradients are Nan/Inf"))

    assert verdict.kind == DIVERGING
    assert verdict.findings[0].update == 12
    assert "gradients are Nan/Inf" in str(verdict)


def test_a_loss_of_batches_without_targets_is_no_divergence():
    """Without targets the mean loss is 0 / 0, and gradients are zero. The trainer goes on with the next update."""
    rows = [observed(update) for update in range(UPDATES)]
    rows[12] = observed(12, decoder=(0.0, 0.0, 0.0), loss=math.nan)

    verdict = judge(training(rows, failure=None))

    assert verdict.kind == STABLE
    assert not verdict.findings


def test_a_training_that_diverged_in_its_warmup_is_not_asked_for_more_updates():
    rows = [observed(update, lr=PEAK / 1000) for update in range(5)]
    rows.append(observed(5, loss=math.nan, lr=PEAK / 1000))

    verdict = judge(training(rows, failure=LOSS))

    assert verdict.kind == DIVERGING
    assert not verdict.notes


def test_the_layer_with_the_smallest_gradient_is_named_where_the_last_ones_are_not_finite():
    rows = [observed(update, decoder=(0.7, 1e-9, 1.0)) for update in range(12)]
    rows.append(observed(12, decoder=(math.nan, math.nan, math.nan), loss=math.nan))

    verdict = judge(training(rows, failure="gradients are Nan/Inf"))

    (vanishing,) = [finding for finding in verdict.findings if "decoder" in finding.evidence]
    assert "layer 2 " in vanishing.evidence


def test_a_rising_loss_is_a_risk():
    rows = [observed(update, loss=10 + update / 10) for update in range(UPDATES)]

    verdict = judge(training(rows))

    assert verdict.kind == AT_RISK
    median_of_first_five = 10 + 2 / 10  # updates 0 to 4
    median_of_last_five = 10 + 27 / 10  # updates 25 to 29
    assert f"{median_of_first_five:.2f}" in str(verdict)
    assert f"{median_of_last_five:.2f}" in str(verdict)


def test_activations_near_the_end_of_fp16_are_a_risk():
    """Activations of 20000 reach 65504 within two doublings; fewer than four are a risk, and bf16 is the way out."""
    verdict = judge(training_of(largest={"decoder": 20000.0}))

    assert verdict.kind == AT_RISK
    assert "20000" in str(verdict)
    assert "--bf16" in str(verdict)


def test_gradients_that_need_a_loss_scale_below_one_are_a_risk():
    """1000 tokens with gradients of 1000 sum to 15.3 times 65504; the largest power of two below 1 / 15.3 is 1 / 16."""
    verdict = judge(training_of(largest={"gradient": 1000.0}))

    assert verdict.kind == AT_RISK
    assert str(1 / 16) in str(verdict)


def test_gradients_of_zero_have_no_headroom():
    """No loss scale would be too large for them."""
    assert training_of(updates=1, largest={"gradient": 0.0}).headroom is None


def test_headroom_is_how_far_the_largest_numbers_are_from_fp16s():
    headroom = training_of(updates=1, largest={"decoder": 65504 / 8, "gradient": 65504 / 1000 / 5}).headroom

    assert headroom.activation == 65504 / 8
    assert headroom.doublings == pytest.approx(3)  # 8 is 2 ** 3
    assert headroom.loss_scale == 4  # a power of two: 1000 tokens with this gradient sum up to a fifth of 65504


# the command

FLAGS = (*TRAIN_FLAGS, "--arch", "deepnet_transformer_tiny", "--dropout", "0")
PEAK_OF_FLAGS = 2e-3  # --lr in TRAIN_FLAGS
BEGINNING_OF_FLAGS = 1e-7  # --warmup-init-lr there
# flags of a training that reaches its peak learning rate at update 20, within the updates of a check by default
EIGHTEEN_LAYERS = ("--encoder-layers", "18", "--decoder-layers", "18", "--lr", "1e-3", "--warmup-updates", "20")
UNSTABLE = 3  # exit status


def check(data, *flags) -> None:
    """Run `deepnet check` in this process, with FLAGS and those given, of which the later ones count."""
    main(["check", str(data), *FLAGS, *flags])


def json_report(printed: str) -> dict:
    """Return the report that `deepnet check --json` prints in one line, possibly between other lines."""
    (line,) = [line for line in printed.splitlines() if line.startswith("{")]
    return json.loads(line)


def rates_of(report: dict) -> list[float]:
    """Return the learning rate of each update."""
    return [row["lr"] for row in report["updates"]]


@pytest.fixture
def working_folder(tmp_path, monkeypatch):
    """Provide the empty folder in which the test runs."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.smoke
def test_deepnorm_is_stable_at_a_rate_where_post_ln_is_not(data, capsys, working_folder):
    """The models are 18L-18L, and reach their peak learning rate. The check leaves no file."""
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


SLOW_WARMUP = ("--warmup-updates", "100")  # a check of ten updates makes a tenth of this warm-up


def break_third_update(kind, monkeypatch) -> None:
    """Make the loss of a training's third update, or the norm of its gradients, NaN."""
    if kind == GRADIENTS:
        clip_grad_norm = Trainer.clip_grad_norm

        def clip(trainer, *args):
            norm = clip_grad_norm(trainer, *args)
            return norm * math.nan if trainer.get_num_updates() == 2 else norm

        monkeypatch.setattr(Trainer, "clip_grad_norm", clip)
        return

    train_step = Trainer.train_step

    def step(trainer, *args):
        logged = train_step(trainer, *args)
        return logged | {"loss": math.nan} if trainer.get_num_updates() == 3 else logged

    monkeypatch.setattr(Trainer, "train_step", step)


@pytest.fixture(scope="module")
def report_of_ten_updates(data) -> dict:
    """Provide the report of ten updates of a slow warm-up; the command ends in that of fairseq-train, as a user has it.

    deepnet_transformer_tiny has 6 layers in each stack.
    """
    command = ("fairseq-train", data, *FLAGS, *SLOW_WARMUP)
    return json_report(run("deepnet", "check", "--json", "--updates", "10", *command).stdout)


def test_a_report_has_the_verdict_the_layers_and_the_updates(report_of_ten_updates):
    assert report_of_ten_updates["verdict"] == "stable"
    assert report_of_ten_updates["layers"] == [6, 6]
    assert len(report_of_ten_updates["updates"]) == 10


def test_a_check_warms_up_as_the_training(report_of_ten_updates):
    """The rate rises linearly, over 100 updates, from --warmup-init-lr to --lr."""
    step = (PEAK_OF_FLAGS - BEGINNING_OF_FLAGS) / 100
    expected = [BEGINNING_OF_FLAGS + update * step for update in range(10)]

    assert rates_of(report_of_ten_updates) == pytest.approx(expected, rel=1e-6)


def test_a_check_that_ends_in_the_warmup_names_the_peak_in_a_note(report_of_ten_updates):
    notes = " ".join(report_of_ten_updates["notes"])

    assert f"{PEAK_OF_FLAGS:g}" in notes


def test_a_check_has_the_losses_of_the_training(data, report_of_ten_updates):
    log = run("fairseq-train", data, *FLAGS, *SLOW_WARMUP, "--max-update", "10", "--no-save").stdout

    losses = [row["loss"] for row in report_of_ten_updates["updates"]]
    assert losses == pytest.approx(list(losses_of_log(log).values()), abs=2e-3)  # the log has three decimals


def test_a_compressed_warmup_reaches_the_peak_and_falls_from_it(data, capsys):
    """The rate falls by the inverse square root of the updates, as after a warm-up of 4 updates."""
    check(data, "--json", "--updates", "10", "--compress-warmup", "4")

    rates = rates_of(json_report(capsys.readouterr().out))
    assert rates[4] == pytest.approx(PEAK_OF_FLAGS)
    assert rates[7] == pytest.approx(PEAK_OF_FLAGS * math.sqrt(4 / 7))


def test_a_check_too_short_for_its_warmup_names_the_updates_it_takes(data, capsys):
    """A check takes twice the compressed warm-up, here 2 * 25 updates."""
    check(data, "--warmup-updates", "50", "--updates", "10", "--compress-warmup", "25")

    assert "--updates 50" in capsys.readouterr().out


@pytest.mark.parametrize("kind", [LOSS, GRADIENTS])
def test_a_failed_update_has_its_number_and_its_learning_rate(kind, data, monkeypatch):
    """The third update fails. Updates are counted from 0, so its number is 2."""
    break_third_update(kind, monkeypatch)

    short_training = train_briefly(
        [str(data), *FLAGS, *SLOW_WARMUP], updates=10, warmup=None, seconds=600, progress=lambda update, loss: None
    )

    assert short_training.failure == kind
    assert [seen.update for seen in short_training.observed] == [0, 1, 2]
    step = (PEAK_OF_FLAGS - BEGINNING_OF_FLAGS) / 100
    assert short_training.observed[-1].lr == pytest.approx(BEGINNING_OF_FLAGS + 2 * step)
    assert judge(short_training).findings[0].update == 2


@pytest.mark.parametrize(
    ("flags", "subject"),
    [
        ("--updates 3", "--updates 3: "),
        ("--seconds 0", "--seconds 0: "),
        ("--compress-warmup 5 --lr-scheduler cosine --warmup-updates 0", "--compress-warmup: "),
        ("--arch transformer", "--arch transformer: "),  # fairseq's own model
        (f"--finetune-from-model {__file__}", "--finetune-from-model: "),  # an existing file, whatever is in it
    ],
)
def test_a_wrong_flag_is_named(data, flags, subject):
    assert_refused(subject, "check", data, *FLAGS, *flags.split())
