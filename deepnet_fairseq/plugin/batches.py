"""Return single batches of a training, the same on every rank, to measure a model before or during its training.

Admin's profile is measured on the first batch. The held batch is one that stays the same throughout a run: probes
compare the model's outputs on it from update to update.
"""

from __future__ import annotations

import numpy
import torch
from fairseq import utils
from fairseq.data import data_utils

HELD_SENTENCES = 32  # of the held batch, at most


def first_training_batch(iterator) -> dict:
    """Return the model's input for the first batch that rank 0 trains on in epoch 1, the same on every rank.

    iterator: fairseq's EpochBatchIterator of the training. The input is fairseq's net_input, {argument of the model's
    forward: tensor}, on the CPU. With --curriculum, or --grouped-shuffling on several ranks, fairseq orders the batches
    of that epoch differently, and the batch is not rank 0's first.
    """
    first_batch = _batches_of_first_epoch(iterator)[0]
    return _net_input(iterator, first_batch)


def held_training_batch(iterator, device: torch.device) -> dict:
    """Return the model's input for the held batch, as first_training_batch does, but on `device`.

    The held batch is the first HELD_SENTENCES sentences of the last batch of epoch 1.
    """
    last_batch = _batches_of_first_epoch(iterator)[-1]
    net_input = _net_input(iterator, last_batch[:HELD_SENTENCES])
    return utils.apply_to_sample(lambda tensor: tensor.to(device), net_input)


def _batches_of_first_epoch(iterator) -> list:
    """Return the batches of epoch 1, each a list of sentence numbers, in the order that fairseq shuffles them into."""
    batches = list(iterator.frozen_batches)  # before shuffling, the same in every epoch
    with data_utils.numpy_seed(iterator.seed + 1):  # seed plus epoch, as in fairseq's EpochBatchIterator
        numpy.random.shuffle(batches)
    return batches


def _net_input(iterator, batch) -> dict:
    """Collate a batch, a list of sentence numbers, and return the model's input for it."""
    return iterator.collate_fn([iterator.dataset[i] for i in batch])["net_input"]
