"""Tests that a loss which changes its batch changes it for nobody else.

fairseq's R-Drop loss does so: it replaces the tensors of the model's input by two copies of each, one below the other.
"""

from __future__ import annotations

import pytest
import torch
from fairseq import utils

from ..conftest import TRAIN_FLAGS
from ..support.diverging import TINY, Training, train, updates_of_last_checkpoint

RDROP = ("--criterion", "label_smoothed_cross_entropy_with_rdrop", "--rdrop-alpha", "5")
BLEU = ("--eval-bleu", "--eval-bleu-args", '{"beam": 1, "max_len_b": 10}')


def bleu_statistics(data, folder, *flags) -> dict:
    """Return what the validation of a training batch logs for BLEU, counts of n-grams and lengths, by a new model."""
    training = Training(data, folder, *TINY, *BLEU, *flags)
    training.model.eval()
    criterion = training.trainer.criterion.eval()
    with torch.no_grad():
        _, _, logged = training.trainer.task.valid_step(next(training.batches), training.model, criterion)
    return {name: value for name, value in logged.items() if name.startswith("_bleu")}


def test_bleu_beside_rdrop_equals_bleu_beside_another_loss(data, tmp_path):
    expected = bleu_statistics(data, tmp_path / "plain")
    statistics = bleu_statistics(data, tmp_path / "rdrop", *RDROP)

    assert expected["_bleu_ref_len"] > 0  # words of the references
    assert statistics == expected


def test_rdrop_trains_with_a_validation_of_bleu(data, tmp_path):
    validating = tuple(flag for flag in TRAIN_FLAGS if flag != "--disable-validation")

    train(data, tmp_path, *TINY, *RDROP, *BLEU, "--max-update", "2", common=validating)

    last = torch.load(tmp_path / "checkpoint_last.pt", weights_only=True)
    assert updates_of_last_checkpoint(tmp_path) == 2
    assert last["extra_state"]["val_loss"] > 0


# Two functions in the place of a criterion's forward


def spoil_structure(model, sample, reduce=True):
    """Return some loss; replace a tensor of the batch, and then remove all that it holds."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    loss = sum(weight.sum() for weight in weights)
    sample["net_input"]["src_tokens"] = torch.cat([sample["net_input"]["src_tokens"]] * 2)
    sample["net_input"].pop("src_lengths")
    sample.clear()
    return loss, 1, {"loss": loss.data, "ntokens": 1, "nsentences": 1, "sample_size": 1}


def spoil_numbers(model, sample, reduce=True):
    """Return some loss; change the numbers of the batch's tensors in place, and then do as spoil_structure."""
    sample["target"].fill_(0)
    sample["net_input"]["src_tokens"].add_(1)
    return spoil_structure(model, sample)


@pytest.fixture
def training(data, tmp_path) -> Training:
    """Provide a training of a small translator before its first update."""
    return Training(data, tmp_path, *TINY)


def test_a_batch_survives_a_training_step_with_a_loss_that_empties_it(training):
    sample = next(training.batches)
    before = utils.apply_to_sample(torch.clone, sample)
    training.trainer.criterion.forward = spoil_structure

    training.trainer.train_step([sample])

    assert same_batch(sample, before)


def test_a_batch_survives_a_validation_with_a_loss_that_changes_its_numbers(training):
    """After a training step nobody reads the numbers of a batch again, but --eval-bleu does after a validation."""
    sample = next(training.batches)
    before = utils.apply_to_sample(torch.clone, sample)
    training.trainer.criterion.forward = spoil_numbers

    training.trainer.valid_step(sample)

    assert same_batch(sample, before)


def same_batch(sample: dict, other: dict) -> bool:
    """Return whether two nested batches hold the same keys and numbers."""
    if sample.keys() != other.keys():
        return False
    for name, value in sample.items():
        if isinstance(value, dict):
            equal = same_batch(value, other[name])
        else:
            equal = torch.equal(torch.as_tensor(value), torch.as_tensor(other[name]))
        if not equal:
            return False
    return True
