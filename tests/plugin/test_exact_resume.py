"""Tests that an interrupted training resumes to the weights, states and logs of an undisturbed one, bit for bit."""

from __future__ import annotations

import signal

import pytest
import torch

from deepnet_fairseq.plugin.optimisers import float32_weights

from ..conftest import TRAIN_FLAGS
from ..support.diverging import Training
from ..support.lives import TINY, assert_ends_as_one_left_alone

WHOLE = [flag for flag in TRAIN_FLAGS if flag not in ("--disable-validation", "--no-epoch-checkpoints")]
SAVES = "--max-tokens 3000 --save-interval-updates 4 --keep-interval-updates 1"  # 10 updates an epoch
RUN = (*WHOLE, *TINY, *SAVES.split())
EMA = "--store-ema --ema-decay 0.9"
PLATEAU = "--lr-scheduler reduce_lr_on_plateau --lr-patience 1 --lr-threshold 1"
CASES = {  # flags -> moments of the kills
    f"--update-freq 3 {EMA} --max-update 9": [("update", 6), ("write", 2)],
    "--fp16 --optimizer deepnet_adam --num-workers 2 --max-update 16": [("update", 14), ("rename", 3)],
}
HALF = f"--fp16-init-scale {2**22} --max-update 16"  # about seven batches overflow
MORE = {
    f"--fp16 --fp16-scale-window 6 {EMA} {HALF}": [("update", 3), ("update", 14)],
    f"--amp --amp-scale-window 6 {HALF}": [("update", 12)],
    f"--memory-efficient-fp16 --optimizer radam {HALF}": [("update", 14)],
    "--bf16 --optimizer deepnet_adam --max-update 16": [("update", 14)],
    f"--bf16 {EMA} --ema-fp32 --max-update 24": [("update", 3), ("validation", 5)],
    "--optimizer deepnet_adam --max-update 24": [("update", 23)],
    f"{EMA} --ema-update-freq 3 --max-update 14": [("update", 11)],
    f"--update-freq 2,1 {EMA} --ema-fp32 --max-update 14": [("update", 4), ("update", 5)],  # other in each epoch
    "--save-interval-updates 0 --max-epoch 3": [("end", 10), ("update", 1), ("end", 10)],  # at an epoch's end
    "--max-update 12": [("end", 12)],  # killed after the last update
    f"{PLATEAU} --max-update 42": [("update", 35)],
    "--lr 1e-9 --patience 3 --max-update 40": [("end", 11)],
    "--update-epoch-batch-itr True --max-update 24": [("update", 16)],
}


@pytest.mark.parametrize("flags", [*CASES, *(pytest.param(flags, marks=pytest.mark.smoke) for flags in MORE)])
def test_killed_training_ends_as_one_left_alone(flags, data, tmp_path):
    """A training killed after updates, in the second epoch and in the middle of saves ends as an undisturbed one."""
    assert_ends_as_one_left_alone(tmp_path, (data, *RUN, *flags.split()), (CASES | MORE)[flags])


@pytest.mark.smoke
@pytest.mark.parametrize("moment", [("update", 5), ("update", 10), ("validation", 4), ("update", 16)], ids=str)
def test_stopped_training_ends_as_one_left_alone(moment, data, tmp_path):
    """A training stopped by SIGTERM at any point, validation included, ends as an undisturbed one."""
    assert_ends_as_one_left_alone(tmp_path, (data, *RUN, "--max-update", "16"), [moment], kind=signal.SIGTERM)


@pytest.mark.parametrize("layout", [(), ("--fp16-no-flatten-grads",)], ids=["flat", "not flat"])
def test_float32_weights_and_loss_scale_go_on(layout, data, tmp_path):
    """Float32 master weights and the growth of the loss scale survive a resume."""
    flags = (*TINY, "--fp16", *layout, "--fp16-init-scale", "8", "--fp16-scale-window", "4")
    first, second = (Training(data, tmp_path, *flags).trainer for _ in range(2))
    for value in float32_weights.weights(first.optimizer):
        value.mul_(1 + 1e-5)
    for _ in range(3):
        first.optimizer.scaler.update()
    second.optimizer.load_state_dict(first.optimizer.state_dict())
    assert all(map(torch.equal, *map(float32_weights.weights, (first.optimizer, second.optimizer))))
    scales = []
    for scaler in (first.optimizer.scaler, second.optimizer.scaler):
        for _ in range(6):
            scaler.update()
            scales.append(scaler.loss_scale)
    assert scales[:6] == scales[6:] and len(set(scales)) > 1


def test_weights_of_another_model_are_not_taken(data, tmp_path):
    trainers = [Training(data, tmp_path, *TINY, "--fp16", "--seed", seed).trainer for seed in "12"]
    first, before = (float32_weights.weights(trainer.optimizer)[0].clone() for trainer in trainers)
    trainers[1].optimizer.load_state_dict(trainers[0].optimizer.state_dict())
    (loaded, *_) = float32_weights.weights(trainers[1].optimizer)
    assert torch.equal(loaded, before) and not torch.equal(loaded, first)
