"""The batches of an epoch do not depend on the epoch in which a process began."""

from __future__ import annotations

import argparse

import numpy
import pytest
import torch
from fairseq.data import Dictionary, LanguagePairDataset
from fairseq.tasks.fairseq_task import FairseqTask


def batches(epoch: int, through: int, **flags) -> list[list[int]]:
    """The sentences, as batched, that epoch `through` gives to a process which began in epoch `epoch`."""
    words = [torch.tensor([4, 5, 2])] * 40  # all of one length: their order is drawn
    sizes = numpy.full(len(words), 3)
    dataset = LanguagePairDataset(words, sizes, Dictionary(), words, sizes, Dictionary())
    iterator = FairseqTask(argparse.Namespace()).get_batch_iterator(
        dataset, max_sentences=4, seed=1, epoch=epoch, **flags
    )
    for _ in range(epoch, through):
        iterator.next_epoch_itr()
        iterator.epoch += 1
    return [batch["id"].tolist() for batch in iterator.next_epoch_itr()]


@pytest.mark.parametrize("epoch", [2, 5])
def test_begun_later_makes_the_same_batches(epoch):
    assert batches(1, through=5) == batches(epoch, through=5)


def test_epochs_differ_by_the_order_of_their_batches():
    first, fifth = batches(1, through=1), batches(1, through=5)
    assert first != fifth and sorted(first) == sorted(fifth)


def test_batches_made_anew_each_epoch_are_those_of_the_epoch():
    """--update-epoch-batch-itr: as fairseq has it."""
    first, fifth = (batches(epoch, through=epoch, update_epoch_batch_itr=True) for epoch in (1, 5))
    assert sorted(first) != sorted(fifth)
