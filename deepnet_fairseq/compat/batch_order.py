"""A resumed training makes the batches that one left alone has made.

fairseq draws the order among sentences of the same lengths by the seed plus the epoch in which a process makes its
batches, and makes them once for all epochs: in the first one, or in the one that a training resumes in.
"""

from fairseq.tasks.fairseq_task import FairseqTask

from .wrapping import wrap


def make_as_in_first_epoch() -> None:
    """Idempotent."""
    wrap(FairseqTask, "get_batch_iterator", _as_in_first_epoch)


def _as_in_first_epoch(get_batch_iterator, task, dataset, *args, **kwargs):
    epoch = kwargs.get("epoch", 1)
    anew = kwargs.get("disable_iterator_cache") or kwargs.get("update_epoch_batch_itr")
    if epoch == 1 or anew or not task.can_reuse_epoch_itr(dataset) or dataset in task.dataset_to_epoch_iter:
        return get_batch_iterator(task, dataset, *args, **kwargs)
    iterator = get_batch_iterator(task, dataset, *args, **kwargs | {"epoch": 1})
    dataset.set_epoch(epoch)
    iterator.epoch = epoch
    return iterator
