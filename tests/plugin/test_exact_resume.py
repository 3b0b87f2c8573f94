"""Tests that an interrupted training resumes to the weights, states and logs of an undisturbed one, bit for bit."""

from __future__ import annotations

import signal

import pytest
import torch

from deepnet_fairseq.plugin.optimisers import float32_weights

from ..conftest import TRAIN_FLAGS
from ..faults import states
from ..support.diverging import Training, train
from ..support.lives import TINY, assert_ends_as_undisturbed

VALIDATED = [flag for flag in TRAIN_FLAGS if flag not in ("--disable-validation", "--no-epoch-checkpoints")]
SAVES = "--max-tokens 3000 --save-interval-updates 4 --keep-interval-updates 1"  # 10 updates an epoch
RUN = (*VALIDATED, *TINY, *SAVES.split())
EMA = "--store-ema --ema-decay 0.9"
PLATEAU = "--lr-scheduler reduce_lr_on_plateau --lr-patience 1 --lr-threshold 1"
OVERFLOWS = f"--fp16-init-scale {2**22} --max-update 16"  # about seven batches overflow
# Flags -> moments of the kills: ("update", 6) is the beginning of the sixth update of this start. Further moments are
# the batches of validations, the writes and renames of files, and "end", where fairseq asks after each update whether
# the training is over. The training is started again after each kill.
IN_DEFAULT_SUITE = {
    f"--update-freq 3 {EMA} --max-update 9": [("update", 6), ("write", 2)],
}
IN_SMOKE = {
    "--fp16 --optimizer deepnet_adam --num-workers 2 --max-update 16": [("update", 14), ("rename", 3)],
    f"--fp16 --fp16-scale-window 6 {EMA} {OVERFLOWS}": [("update", 3), ("update", 14)],
    f"--amp --amp-scale-window 6 {OVERFLOWS}": [("update", 12)],
    f"--memory-efficient-fp16 --optimizer radam {OVERFLOWS}": [("update", 14)],
    "--bf16 --optimizer deepnet_adam --max-update 16": [("update", 14)],
    f"--bf16 {EMA} --ema-fp32 --max-update 24": [("update", 3), ("validation", 5)],
    "--optimizer deepnet_adam --max-update 24": [("update", 23)],
    f"{EMA} --ema-update-freq 3 --max-update 14": [("update", 11)],
    f"--update-freq 2,1 {EMA} --ema-fp32 --max-update 14": [("update", 4), ("update", 5)],  # N changes after an epoch
    "--save-interval-updates 0 --max-epoch 3": [("end", 10), ("update", 1), ("end", 10)],  # at an epoch's end
    "--max-update 12": [("end", 12)],  # killed after the last update
    f"{PLATEAU} --max-update 42": [("update", 35)],  # the rate falls, as no loss falls by its whole size
    "--lr 1e-9 --patience 3 --max-update 40": [("end", 11)],  # ends after three validations that are no better
    "--update-epoch-batch-itr True --max-update 24": [("update", 16)],  # other batches in each epoch
}
KILLS = IN_DEFAULT_SUITE | IN_SMOKE
CASES = [*IN_DEFAULT_SUITE, *(pytest.param(flags, marks=pytest.mark.smoke) for flags in IN_SMOKE)]


@pytest.mark.parametrize("flags", CASES)
def test_a_killed_training_ends_as_an_undisturbed_one(flags, data, tmp_path):
    """KILLS has the moments of the kills: in updates, validations and saves, and at the ends of updates."""
    assert_ends_as_undisturbed(tmp_path, (data, *RUN, *flags.split()), moments=KILLS[flags])


@pytest.mark.smoke
@pytest.mark.parametrize(
    "moment",
    [
        ("update", 5),
        ("update", 10),  # the last of an epoch
        ("validation", 4),
        ("update", 16),  # the last of the training
    ],
    ids=str,
)
def test_a_training_stopped_by_sigterm_ends_as_an_undisturbed_one(moment, data, tmp_path):
    """The signal comes in an update or in a validation."""
    assert_ends_as_undisturbed(tmp_path, (data, *RUN, "--max-update", "16"), moments=[moment], kind=signal.SIGTERM)


@pytest.fixture(scope="module")
def eight_updates(data, tmp_path_factory):
    """Provide the last checkpoint of a training that ended after 8 of an epoch's 10 updates."""
    folder = tmp_path_factory.mktemp("eight_updates")
    train(data, folder, *TINY, *SAVES.split(), "--max-update", "8", common=VALIDATED)
    return folder / "checkpoint_last.pt"


def test_continue_once_goes_on_in_the_middle_of_an_epoch_beside_finetune_from_model(data, eight_updates, tmp_path):
    """fairseq loads the checkpoint of --continue-once, and lets the other flag be."""
    begin = (*TINY, *SAVES.split(), "--continue-once", str(eight_updates), "--max-update", "12")
    train(data, tmp_path / "alone", *begin, common=VALIDATED)

    train(data, tmp_path / "beside", *begin, "--finetune-from-model", str(eight_updates), common=VALIDATED)

    actual = states.load(tmp_path / "beside" / "checkpoint_last.pt")
    expected = states.load(tmp_path / "alone" / "checkpoint_last.pt")
    assert expected["extra_state"]["train_iterator"]["epoch"] == 2
    assert list(states.differences(actual, expected)) == []


# Float32 weights and loss scale in the state of an optimiser

LAYOUTS = pytest.mark.parametrize("layout", [(), ("--fp16-no-flatten-grads",)], ids=["flat", "not flat"])
WINDOW = 4  # updates without an overflow after which the loss scale grows


def optimisers_of_two_fp16_trainings(data, folder, *flags) -> tuple:
    """Build two trainings with the same flags, and so the same weights; return their optimisers."""
    scales = ("--fp16-init-scale", "8", "--fp16-scale-window", str(WINDOW))
    first = Training(data, folder, *TINY, "--fp16", *scales, *flags)
    second = Training(data, folder, *TINY, "--fp16", *scales, *flags)
    return first.trainer.optimizer, second.trainer.optimizer


@LAYOUTS
def test_float32_weights_survive_a_resume(layout, data, tmp_path):
    """The weights become different from the model's by 1e-5 of their size, which fp16 does not hold."""
    saved, resumed = optimisers_of_two_fp16_trainings(data, tmp_path, *layout)
    for weight in float32_weights.weights(saved):
        weight.mul_(1 + 1e-5)

    resumed.load_state_dict(saved.state_dict())

    expected = float32_weights.weights(saved)
    actual = float32_weights.weights(resumed)
    assert expected
    for weight, expected_weight in zip(actual, expected, strict=True):
        assert torch.equal(weight, expected_weight)


def scales_of_updates(optimizer, updates: int) -> list[float]:
    """Make updates without an overflow; return the loss scale after each."""
    scales = []
    for _ in range(updates):
        optimizer.scaler.update()
        scales.append(optimizer.scaler.loss_scale)
    return scales


@LAYOUTS
def test_the_growth_of_the_loss_scale_survives_a_resume(layout, data, tmp_path):
    """The scale grows after four updates. Three of them are made before the resume."""
    saved, resumed = optimisers_of_two_fp16_trainings(data, tmp_path, *layout)
    scales_of_updates(saved, updates=WINDOW - 1)

    resumed.load_state_dict(saved.state_dict())

    expected = scales_of_updates(saved, updates=6)
    assert scales_of_updates(resumed, updates=6) == expected
    assert len(set(expected)) > 1  # it grows


def test_float32_weights_of_another_model_are_not_taken_over(data, tmp_path):
    """The float32 weights in the state do not round to the weights of the model, which another seed has drawn."""
    one = Training(data, tmp_path, *TINY, "--fp16", "--seed", "1").trainer.optimizer
    other = Training(data, tmp_path, *TINY, "--fp16", "--seed", "2").trainer.optimizer
    weights_of_one = float32_weights.weights(one)[0].clone()
    before = float32_weights.weights(other)[0].clone()

    other.load_state_dict(one.state_dict())

    after = float32_weights.weights(other)[0]
    assert torch.equal(after, before)
    assert not torch.equal(after, weights_of_one)
