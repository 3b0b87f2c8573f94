"""Batching that loses no sentence, on several processes too, and on another number of them than before."""

import functools
import logging

import numpy
from fairseq.data import data_utils
from fairseq.data.iterators import EpochBatchIterator
from fairseq.tasks.fairseq_task import FairseqTask
from fairseq.trainer import Trainer

from ..wrapping import wrap

logger = logging.getLogger(__name__)
PROCESSES = "num_shards"


def keep_last_batch() -> None:
    """fairseq drops a last batch whose size is no multiple of --required-batch-size-multiple (8).

    Of the 6,750 sentences of IWSLT-14's test set fairseq-generate then translates and scores 6,744, without a word.
    Wraps data_utils.batch_by_size.
    """
    original = data_utils.batch_by_size
    if not hasattr(original, "__wrapped__"):
        data_utils.batch_by_size = _complete(original)


def _complete(batch_by_size):
    @functools.wraps(batch_by_size)
    def complete(indices, *args, **kwargs):
        if not isinstance(indices, numpy.ndarray):
            indices = numpy.fromiter(indices, dtype=numpy.int64)
        batches = list(batch_by_size(indices, *args, **kwargs))
        kept = sum(len(batch) for batch in batches)
        fixed_shapes = kwargs.get("fixed_shapes", args[5] if len(args) > 5 else None)
        if kept < len(indices) and fixed_shapes is None:  # batches are consecutive slices
            batches.append(indices[kept:])
        return batches

    return complete


def count_last_update() -> None:
    """At an epoch's end a process that has fewer batches than the others computes some that count for nothing.

    fairseq takes all of an update's batches on a process for such if its last one is: with --update-freq the gradients
    of the others are then divided by too few tokens. Wraps Trainer.train_step and FairseqTask.train_step.
    """
    wrap(Trainer, "train_step", _empty_first)
    wrap(FairseqTask, "train_step", _as_nothing)


def _empty_first(train_step, trainer, samples, *args, **kwargs):
    return train_step(trainer, sorted(samples, key=bool), *args, **kwargs)


def _as_nothing(train_step, task, sample, model, criterion, optimizer, update_num, ignore_grad=False):
    loss, size, logged = train_step(task, sample, model, criterion, optimizer, update_num, ignore_grad)
    return (loss, size * 0, {key: value * 0 for key, value in logged.items()}) if ignore_grad else (loss, size, logged)


def resume_on_any_number() -> None:
    """Of an epoch's batches, a checkpoint counts those of one process, which has more of them when there are fewer.

    Wraps EpochBatchIterator.state_dict, which notes the number of processes, and load_state_dict, which counts anew.
    """
    wrap(EpochBatchIterator, "state_dict", _of_how_many)
    wrap(EpochBatchIterator, "load_state_dict", _for_as_many)


def _of_how_many(state_dict, iterator) -> dict:
    return state_dict(iterator) | {PROCESSES: iterator.num_shards}


def _for_as_many(load_state_dict, iterator, state: dict) -> None:
    before, now = state.get(PROCESSES, iterator.num_shards), iterator.num_shards
    done = state["iterations_in_epoch"] * before
    if done % now:
        logger.warning(f"resumed on {now} processes after {before}: the last {done % now} batches come again")
    load_state_dict(iterator, state | {"iterations_in_epoch": done // now})
