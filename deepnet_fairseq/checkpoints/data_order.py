"""The batches of a resumed training are those of the training it continues.

fairseq makes the batches once a process, with a seed of the epoch the process begins in, and shuffles them anew each
epoch: resumed in a later epoch than the first, a run has other batches. In the middle of an epoch it then sees some
sentences twice and some not at all.
"""

from __future__ import annotations

from fairseq.tasks.fairseq_task import FairseqTask

from ..compat.wrapping import wrap


def install() -> None:
    """Patches FairseqTask.get_batch_iterator; may be called again."""
    wrap(FairseqTask, "get_batch_iterator", _get_batch_iterator)


def made_in(trainer) -> int | None:
    """The epoch whose seed made the batches that are shuffled for every epoch; None if each epoch makes its own."""
    task, subset = trainer.task, trainer.cfg.dataset.train_subset
    iterator = task.dataset_to_epoch_iter.get(task.datasets.get(subset))
    return getattr(iterator, "made_in", None)


def make_as_in(trainer, epoch: int | None) -> None:
    """The next training batches are to be made as in that epoch."""
    trainer.task.make_as_in = (epoch, trainer.cfg.dataset.update_ordered_indices_seed)


def _get_batch_iterator(original, task, *args, **kwargs):
    now = kwargs.get("epoch")
    epoch, seed_moves = vars(task).pop("make_as_in", (None, False))
    if epoch is None or now is None or kwargs.get("disable_iterator_cache") or kwargs.get("update_epoch_batch_itr"):
        epoch = now
    elif seed_moves:
        kwargs["seed"] += epoch - now
    iterator = original(task, *args, **kwargs | ({} if now is None else {"epoch": epoch}))
    if not hasattr(iterator, "made_in"):
        iterator.made_in, iterator.epoch = epoch, now if now is not None else iterator.epoch
    return iterator
