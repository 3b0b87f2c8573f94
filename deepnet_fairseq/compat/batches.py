"""Batching that loses no sentence, on several processes too, and on another number of them than before."""

import logging
import types

import numpy
from fairseq.data import bucket_pad_length_dataset, data_utils
from fairseq.data.iterators import EpochBatchIterator
from fairseq.tasks.fairseq_task import FairseqTask
from fairseq.trainer import Trainer

from .wrapping import wrap

logger = logging.getLogger(__name__)
PROCESSES = "num_shards"


def lose_no_sentence() -> None:
    """Wraps what fairseq's batches are made, counted and resumed by. Idempotent.

    It drops a last batch whose size is no multiple of --required-batch-size-multiple (8): of the 6,750 sentences of
    IWSLT-14's test set fairseq-generate then translates and scores 6,744, without a word. And --num-batch-buckets needs
    two names that numpy 2 has no more: a TypeError.
    """
    wrap(data_utils, "batch_by_size", _complete)
    wrap(Trainer, "train_step", _empty_first)
    wrap(FairseqTask, "train_step", _as_nothing)
    wrap(EpochBatchIterator, "state_dict", _of_how_many)
    wrap(EpochBatchIterator, "load_state_dict", _for_as_many)
    for module in (data_utils, bucket_pad_length_dataset):
        module.get_buckets = get_buckets
    if not hasattr(numpy, "compat"):
        vars(numpy)["compat"] = types.SimpleNamespace(long=int)


def _complete(batch_by_size, indices, *args, **kwargs):
    if not isinstance(indices, numpy.ndarray):
        indices = numpy.fromiter(indices, dtype=numpy.int64)
    batches = list(batch_by_size(indices, *args, **kwargs))
    kept = sum(len(batch) for batch in batches)
    fixed_shapes = kwargs.get("fixed_shapes", args[5] if len(args) > 5 else None)
    if kept < len(indices) and fixed_shapes is None:  # batches are consecutive slices
        batches.append(indices[kept:])
    return batches


def _empty_first(train_step, trainer, samples, *args, **kwargs):
    """At an epoch's end a process that has fewer batches than the others computes some that count for nothing.

    fairseq takes all of an update's batches on a process for such if its last one is: with --update-freq the gradients
    of the others are then divided by too few tokens.
    """
    return train_step(trainer, sorted(samples, key=bool), *args, **kwargs)


def _as_nothing(train_step, task, sample, model, criterion, optimizer, update_num, ignore_grad=False):
    loss, size, logged = train_step(task, sample, model, criterion, optimizer, update_num, ignore_grad)
    return (loss, size * 0, {key: value * 0 for key, value in logged.items()}) if ignore_grad else (loss, size, logged)


def _of_how_many(state_dict, iterator) -> dict:
    """A checkpoint counts the batches of one process, which has more of them when there are fewer processes."""
    return state_dict(iterator) | {PROCESSES: iterator.num_shards}


def _for_as_many(load_state_dict, iterator, state: dict) -> None:
    before, now = state.get(PROCESSES, iterator.num_shards), iterator.num_shards
    done = state["iterations_in_epoch"] * before
    if done % now:
        logger.warning(f"resumed on {now} processes after {before}: the last {done % now} batches come again")
    load_state_dict(iterator, state | {"iterations_in_epoch": done // now})


def get_buckets(sizes, num_buckets: int) -> numpy.ndarray:
    """Upper ends of at most num_buckets ranges of lengths, each with about as many of `sizes`; as fairseq has it."""
    return numpy.unique(numpy.percentile(sizes, numpy.linspace(0, 100, num_buckets + 1), method="lower")[1:])
