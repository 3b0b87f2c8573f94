"""Check binarised data before anything is trained with them, and batch them without losing a sentence.

With broken data fairseq ends in the middle of an epoch, on a GPU with a failed device assertion, or trains on garbage.
It reads binarised files whole when it opens them, so checking all tokens costs little more.
"""

from __future__ import annotations

import logging
import math
import os
import struct
import traceback
from pathlib import Path

import numpy
from fairseq.data import indexed_dataset, iterators

from ..errors import UserError, causes
from .distributed import agreement

log = logging.getLogger(__name__)
# entries in the state of an iterator, beside fairseq's
PROCESSES = "num_shards"  # of the training that saved it
BATCHES = "batches"  # of its epoch, over all processes
BEGUN = "begun"  # True of a place within an epoch that place_now has converted, whose count may be 0
MAGIC, HEADER = b"MMIDIDX\x00\x00", struct.Struct("<9sQBQ")  # followed by sizes in int32 and offsets in int64
TYPES = indexed_dataset._code_to_dtype
OLD_MAGIC = b"TNTIDX\x00\x00"
MEND = "binarise the text anew"


def open_checked(make, path: str, impl, *args, dictionary=None, **kwargs):
    """Open binarised data; raise a UserError, naming the file, if fairseq-preprocess has not written them so.

    make: fairseq's function, which gets path, impl and the other arguments and whose result is returned; path: of the
    files without .idx and .bin; impl: --dataset-impl; dictionary: of the tokens, None if it is not known.
    """
    index = indexed_dataset.index_file_path(path)
    if impl in ("mmap", "cached", "lazy", None) and os.path.exists(index):
        start = numpy.fromfile(index, "u1", HEADER.size).tobytes()
        if start.startswith(MAGIC):
            check_mapped(path, len(dictionary) if dictionary is not None else None)
        elif not start.startswith(OLD_MAGIC):
            raise UserError(f"{index}: is no index of binarised data, or damaged; {MEND}")
    return make(path, impl, *args, dictionary=dictionary, **kwargs)


def check_mapped(path: str, vocabulary: int | None) -> None:
    """Raise a UserError, naming the file, if PATH.idx and PATH.bin are not what fairseq-preprocess writes.

    vocabulary: size of the dictionary, above all tokens; None: not known. Takes the memory of the index alone.
    """
    index = indexed_dataset.index_file_path(path)
    data = indexed_dataset.data_file_path(path)

    start = numpy.fromfile(index, "u1", HEADER.size).tobytes()
    if len(start) < HEADER.size:
        raise UserError(f"{index}: truncated; {MEND}")
    _, version, code, sentences = HEADER.unpack(start)
    kind = numpy.dtype(TYPES.get(code, float))
    if version != 1 or kind.kind not in "iu":
        raise UserError(f"{index}: of version {version} with tokens of type {code}, or damaged; {MEND}")
    if os.path.getsize(index) != HEADER.size + 12 * sentences:
        raise UserError(f"{index}: truncated or damaged, its size is not that of {sentences:,} sentences; {MEND}")
    if not sentences:
        raise UserError(f"{index}: holds no sentence; {MEND}")

    size = os.path.getsize(data)
    sizes = numpy.fromfile(index, "<i4", sentences, offset=HEADER.size)
    offsets = numpy.fromfile(index, "<i8", sentences, offset=HEADER.size + 4 * sentences)
    fewest_tokens = 0 if vocabulary is None else 1  # alignments, which have no dictionary, may be empty
    short = numpy.flatnonzero(sizes < fewest_tokens)
    if short.size:
        raise UserError(f"{index}: sentence {short[0]} has no token, not even its end; {MEND}")
    ends = offsets + sizes.astype("i8") * kind.itemsize
    if (offsets < 0).any() or (ends > size).any() or (offsets % kind.itemsize).any():
        raise UserError(f"{data}: truncated, or {index} damaged: it tells of more bytes than {size:,}; {MEND}")

    if vocabulary is None:
        return
    tokens = numpy.memmap(data, kind, "r", shape=size // kind.itemsize)  # of any size: it is not copied
    largest = tokens.max()
    suspect = largest if largest >= vocabulary else tokens.min()
    if not 0 <= suspect < vocabulary:
        problem = f"{data}: holds token {suspect}, its dictionary has {vocabulary:,}"
        raise UserError(f"{problem}; take the dict.LANG.txt that was made with it, or {MEND}")


def check_folder(folder: str) -> None:
    """Raise a UserError if a folder of translation data holds no dictionaries; other tasks' errors name the file."""
    if not any(Path(folder).glob("dict.*.txt")):
        raise UserError(f"the data folder {folder}: holds no dict.LANG.txt; scripts/prepare_text.sh makes one")


def keep_last_batch(batch_by_size, indices, *args, **kwargs):
    """Keep a last batch whose size is no multiple of --required-batch-size-multiple (default 8), which fairseq drops.

    batch_by_size: fairseq's function, which gets indices and the other arguments. Of the 6,750 sentences of IWSLT-14's
    test set fairseq-generate would translate and score 6,744, without a word.
    """
    if not isinstance(indices, numpy.ndarray):
        indices = numpy.fromiter(indices, dtype=numpy.int64)
    batches = list(batch_by_size(indices, *args, **kwargs))
    kept = sum(len(batch) for batch in batches)
    # the seventh argument of fairseq's function; with it, batches are no consecutive slices of the indices
    fixed_shapes = kwargs.get("fixed_shapes", args[5] if len(args) > 5 else None)
    if kept < len(indices) and fixed_shapes is None:
        batches.append(indices[kept:])
    return batches


def batches_of(iterator) -> int | None:
    """Return the number of batches in the present epoch of all processes; None if an iterator does not know it."""
    return len(iterator.frozen_batches) if type(iterator) is iterators.EpochBatchIterator else None


def place_now(place: dict, iterator, update_freq: int, skip_remainder: bool) -> dict:
    """Convert the place at which a training was saved for the batches, processes and updates that it has now.

    place: state of the iterator in the checkpoint; iterator: the epoch's, made by the present flags; update_freq:
    batches a process and update; skip_remainder: the flag --skip-remainder-batch. Where nothing has changed the place
    is the same. With other batches (--max-tokens, or other data) it is after the same share of the epoch. It is always
    at the beginning of an update, from which fairseq counts those that are left, and before the epoch's last one.
    """
    if not place.get("iterations_in_epoch"):  # between two epochs, or in an export
        return place
    processes = iterator.num_shards
    batches = batches_of(iterator)
    done = place["iterations_in_epoch"] * place.get(PROCESSES, processes)
    if batches is None:
        return place | {"iterations_in_epoch": done // processes, BEGUN: True}

    before = place.get(BATCHES)  # not in checkpoints of fairseq and of earlier versions
    if before is not None:
        wanted = done * batches // before
    elif done < batches:
        wanted = done
    else:
        wanted = 0

    length = math.ceil(batches / processes)
    if iterator.skip_remainder_batch:
        length -= 1
    updates = length // update_freq if skip_remainder else math.ceil(length / update_freq)
    made = min(wanted // processes // update_freq, updates - 1)
    iterations = max(0, made) * update_freq

    if agreement.is_first() and iterations * processes != done:
        _say_where(place["epoch"], done, before, iterations * processes, batches)
    return place | {"iterations_in_epoch": iterations, BEGUN: True}


def place_to_save(place: dict, iterator, processes: int) -> dict:
    """Return the state of the batches' iterator with what a resume on other batches or processes needs.

    place: fairseq's state; iterator: the epoch's, which knows its batches; processes: number of the training's ranks.
    """
    place = {key: value for key, value in place.items() if key != BEGUN}  # the mark of this training's own resume
    place[PROCESSES] = processes
    if place.get("iterations_in_epoch"):  # between two epochs nothing has to be converted
        place[BATCHES] = batches_of(iterator)
    return place


def _say_where(epoch: int, done: int, before: int | None, now: int, batches: int) -> None:
    """Log that an epoch goes on after `now` of its `batches`; `done` of `before` were done, or of an unknown number."""
    if before is None and done >= batches:
        log.warning(f"epoch {epoch} has only {batches} batches now, and {done} were done: it begins again")
    elif before is None or before == batches:
        log.warning(f"epoch {epoch} goes on at an update's beginning: the last {done - now} batches come again")
    else:
        log.warning(
            f"epoch {epoch} has {batches} batches now, and had {before} when the checkpoint was saved: it goes on "
            f"after {now} where {done} were done; in this epoch some sentences come twice, and others do not "
            "(--reset-dataloader starts the data over)"
        )


def explain_lost_loader(cfg, error: Exception) -> None:
    """Raise a UserError if the cause of `error` is a data-loading process that was killed. cfg: the whole config.

    torch raises such an error at any place of the training; if the process was handing over a batch, a socket's error.
    """
    frames = traceback.extract_tb(error.__traceback__)
    in_loader = any(frame.name == "_try_get_data" for frame in frames)
    halfway = in_loader and not isinstance(error, RuntimeError)  # killed while it was handing over a batch
    if halfway or any("DataLoader worker (pid" in str(cause) for cause in causes(error)):
        raise UserError(
            f"--num-workers {cfg.dataset.num_workers}: a process that loads data was killed, often for memory; take "
            f"fewer, and start the training again: it resumes from {cfg.checkpoint.save_dir}"
        ) from error
