"""Tests that a loss which changes its batch, as R-Drop's does, changes it for nobody else."""

from __future__ import annotations

import torch
from fairseq import utils

from ..conftest import TRAIN_FLAGS
from ..support.diverging import TINY, Training, train

RDROP = ("--criterion", "label_smoothed_cross_entropy_with_rdrop", "--rdrop-alpha", "5")
BLEU = ("--eval-bleu", "--eval-bleu-args", '{"beam": 1, "max_len_b": 10}')


def validated(data, folder, *flags) -> dict:
    """Return what the validation of a training batch logs of its translations, by an untrained model."""
    training = Training(data, folder, *TINY, *BLEU, *flags)
    training.model.eval()
    criterion = training.trainer.criterion.eval()
    with torch.no_grad():
        _, _, logged = training.trainer.task.valid_step(next(training.batches), training.model, criterion)
    return {name: value for name, value in logged.items() if name.startswith("_bleu")}


def test_bleu_beside_rdrop_is_that_beside_another_loss(data, tmp_path):
    expected = validated(data, tmp_path / "plain")
    assert expected["_bleu_ref_len"] > 0
    assert validated(data, tmp_path / "rdrop", *RDROP) == expected


def test_rdrop_trains_with_a_validation_of_bleu(data, tmp_path):
    common = tuple(flag for flag in TRAIN_FLAGS if flag != "--disable-validation")
    train(data, tmp_path, *TINY, *RDROP, *BLEU, "--max-update", "2", common=common)
    last = torch.load(tmp_path / "checkpoint_last.pt", weights_only=True)
    assert last["optimizer_history"][-1]["num_updates"] == 2 and last["extra_state"]["val_loss"] > 0


def spoil(model, sample, reduce=True):
    """Compute a loss in place of a criterion, and spoil the batch: its tensors, and what it holds."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    loss = sum(weight.sum() for weight in weights)
    sample["net_input"]["src_tokens"] = torch.cat([sample["net_input"]["src_tokens"]] * 2)
    sample["net_input"].pop("src_lengths")
    sample.clear()
    return loss, 1, {"loss": loss.data, "ntokens": 1, "nsentences": 1, "sample_size": 1}


def test_a_batch_is_as_it_was_after_a_loss_that_spoils_it(data, tmp_path):
    training = Training(data, tmp_path, *TINY)
    criterion, sample = training.trainer.criterion, next(training.batches)
    before = utils.apply_to_sample(torch.clone, sample)
    criterion.forward = spoil
    training.trainer.train_step([sample])
    assert same(sample, before)

    def spoil_numbers(model, sample, reduce=True):
        sample["target"].fill_(0)
        sample["net_input"]["src_tokens"].add_(1)
        return spoil(model, sample)

    criterion.forward = spoil_numbers  # only after a validation are the numbers read again
    training.trainer.valid_step(sample)
    assert same(sample, before)


def same(sample: dict, other: dict) -> bool:
    """Return whether two nested batches hold the same keys and numbers."""
    if sample.keys() != other.keys():
        return False
    pairs = [(value, other[name]) for name, value in sample.items()]
    return all(same(*pair) if isinstance(pair[0], dict) else torch.equal(*map(torch.as_tensor, pair)) for pair in pairs)
