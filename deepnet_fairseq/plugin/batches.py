"""Single batches of a training, the same on every rank, for what looks at the model before or beside the training."""

from __future__ import annotations

import numpy
import torch
from fairseq import utils
from fairseq.data import data_utils

HELD_SENTENCES = 32  # size of the batch that stays the same


def first_training_batch(iterator) -> dict:
    """Return net_input of the first batch that rank 0 trains on in epoch 1, the same on every rank.

    With --curriculum, or --grouped-shuffling on several ranks, it is another batch of that epoch.
    """
    first_batch = _first_epoch(iterator)[0]
    return _net_input(iterator, first_batch)


def held_training_batch(iterator, device: torch.device) -> dict:
    """Return net_input, on `device`, of the first sentences of epoch 1's last batch, the same on every rank."""
    last_batch = _first_epoch(iterator)[-1]
    net_input = _net_input(iterator, last_batch[:HELD_SENTENCES])
    return utils.apply_to_sample(lambda tensor: tensor.to(device), net_input)


def _first_epoch(iterator) -> list:
    """Return the batches of epoch 1, lists of sentences' numbers, in the order that fairseq shuffles them into."""
    batches = list(iterator.frozen_batches)
    with data_utils.numpy_seed(iterator.seed + 1):
        numpy.random.shuffle(batches)
    return batches


def _net_input(iterator, batch) -> dict:
    """Collate the sentences of a batch, given by their numbers, and return what the model reads of it."""
    return iterator.collate_fn([iterator.dataset[i] for i in batch])["net_input"]
