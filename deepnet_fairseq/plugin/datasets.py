"""Check binarised data when they are opened, batch them without losing a sentence, and find a place in an epoch again.

With broken data fairseq ends in the middle of an epoch, on a GPU with a failed device assertion, or trains on garbage.
fairseq reads binarised files whole when it opens them, so checking all tokens costs little more.

A "place" is the state of fairseq's iterator over an epoch, which a checkpoint holds: {"epoch": from 1,
"iterations_in_epoch": batches that each process has done in it, ...}, with the three entries named below.
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
from ..wording import counted
from .distributed import agreement

log = logging.getLogger(__name__)
# entries of a place that this package adds to fairseq's
PROCESSES = "num_shards"  # number of processes of the training that saved it
BATCHES = "batches"  # number of batches of its epoch, over all processes
BEGUN = "begun"  # True: within an epoch, though iterations_in_epoch may be 0 after converted_place
# fairseq's index of binarised text (--dataset-impl mmap) has a header: MAGIC, version, code of the tokens' type, number
# of sentences; then each sentence's size in tokens (int32); then the byte of the .bin file where each begins (int64)
MAGIC, HEADER = b"MMIDIDX\x00\x00", struct.Struct("<9sQBQ")
TYPES = indexed_dataset._code_to_dtype  # code -> NumPy type
OLD_MAGIC = b"TNTIDX\x00\x00"  # of --dataset-impl lazy and cached
MEND = "binarise the text anew"


def open_checked(make, path: str, impl, *args, dictionary=None, **kwargs):
    """Open binarised data; raise a UserError, naming the file, if they are not as fairseq-preprocess writes them.

    make: fairseq's function, which gets path, impl and the other arguments and whose result is returned; path: of the
    files without .idx and .bin; impl: --dataset-impl, None to find out; dictionary: of the tokens, None if it is not
    known. A missing index is left to fairseq. Of the old format (lazy, cached) only the first bytes are checked.
    """
    index = indexed_dataset.index_file_path(path)
    if impl in ("mmap", "cached", "lazy", None) and os.path.exists(index):
        start = numpy.fromfile(index, "u1", HEADER.size).tobytes()
        if start.startswith(MAGIC):
            check_mapped(path, len(dictionary) if dictionary is not None else None)
        elif not start.startswith(OLD_MAGIC):
            raise UserError(index, f"is no index of binarised data, or damaged; {MEND}")
    return make(path, impl, *args, dictionary=dictionary, **kwargs)


def check_mapped(path: str, vocabulary: int | None) -> None:
    """Raise a UserError, naming the file, if PATH.idx and PATH.bin are not what fairseq-preprocess writes.

    path: without .idx and .bin; vocabulary: size of the dictionary, which is above the number of every token; None if
    it is not known, and then tokens are not checked. Only the index is copied to memory. Raises an OSError if a file is
    missing.
    """
    index = indexed_dataset.index_file_path(path)
    data = indexed_dataset.data_file_path(path)

    start = numpy.fromfile(index, "u1", HEADER.size).tobytes()
    if len(start) < HEADER.size:
        raise UserError(index, f"truncated; {MEND}")
    _magic, version, code, sentences = HEADER.unpack(start)
    token_type = numpy.dtype(TYPES.get(code, float))  # float, for an unknown code, is refused below
    is_integer = token_type.kind in "iu"  # NumPy's letters of signed and unsigned integers
    if version != 1 or not is_integer:
        raise UserError(index, f"of version {version} with tokens of type {code}, or damaged; {MEND}")
    if os.path.getsize(index) != HEADER.size + 12 * sentences:  # a sentence's size takes 4 bytes, its place takes 8
        raise UserError(
            index, f"truncated or damaged, its size is not that of {counted(sentences, 'sentence')}; {MEND}"
        )
    if not sentences:
        raise UserError(index, f"holds no sentence; {MEND}")

    # each sentence must have a token and lie inside the .bin file
    data_bytes = os.path.getsize(data)
    sizes = numpy.fromfile(index, "<i4", sentences, offset=HEADER.size)  # in tokens
    offsets = numpy.fromfile(index, "<i8", sentences, offset=HEADER.size + 4 * sentences)  # in bytes
    fewest_tokens = 0 if vocabulary is None else 1  # alignments, which have no dictionary, may be empty
    too_short = numpy.flatnonzero(sizes < fewest_tokens)
    if too_short.size:
        raise UserError(index, f"sentence {too_short[0]} has no token, not even its end; {MEND}")
    ends = offsets + sizes.astype("i8") * token_type.itemsize
    if (offsets < 0).any() or (ends > data_bytes).any() or (offsets % token_type.itemsize).any():
        raise UserError(data, f"truncated, or {index} damaged: it tells of more bytes than {data_bytes:,}; {MEND}")

    # each token must be in the dictionary
    if vocabulary is None:
        return
    tokens = numpy.memmap(data, token_type, "r", shape=data_bytes // token_type.itemsize)
    largest = tokens.max()
    suspect = largest if largest >= vocabulary else tokens.min()  # the smallest may be negative
    if not 0 <= suspect < vocabulary:
        problem = f"holds token {suspect}, its dictionary has {vocabulary:,}"
        raise UserError(data, f"{problem}; take the dict.LANG.txt that was made with it, or {MEND}")


def check_has_dictionaries(folder: str) -> None:
    """Raise a UserError if a folder of translation data has no dictionaries: fairseq's error would name no file."""
    if not any(Path(folder).glob("dict.*.txt")):
        raise UserError(f"the data folder {folder}", "holds no dict.LANG.txt; scripts/prepare_text.sh makes one")


def keep_last_batch(batch_by_size, indices, *args, **kwargs):
    """Group sentences into batches as fairseq does, and add those at the end that fairseq leaves out as a last batch.

    fairseq leaves out what does not fill up a multiple of --required-batch-size-multiple (default 8): of the 6,750
    sentences of IWSLT-14's test set fairseq-generate would silently translate and score only 6,744.

    batch_by_size: fairseq's function, which gets indices (numbers of the sentences, in the order in which they are
    batched) and the other arguments. Return the list of batches, arrays of such numbers.
    """
    if not isinstance(indices, numpy.ndarray):
        indices = numpy.fromiter(indices, dtype=numpy.int64)
    batches = list(batch_by_size(indices, *args, **kwargs))
    kept = sum(len(batch) for batch in batches)
    # the seventh argument of fairseq's function, of which `indices` is the first
    fixed_shapes = kwargs.get("fixed_shapes", args[5] if len(args) > 5 else None)
    # without fixed shapes the batches are consecutive slices of `indices`, so that those left out are its end
    if kept < len(indices) and fixed_shapes is None:
        batches.append(indices[kept:])
    return batches


def number_of_batches(iterator) -> int | None:
    """Return the number of batches of an epoch, over all processes; None if fairseq's iterator does not know it.

    Iterators of fairseq that stream the data, or take batches in groups, have no single list of all batches.
    """
    return len(iterator.frozen_batches) if type(iterator) is iterators.EpochBatchIterator else None


def converted_place(place: dict, iterator, update_freq: int, skip_remainder: bool) -> dict:
    """Convert the place at which a training was saved to the batches, processes and updates that it has now.

    place: as in the checkpoint; iterator: fairseq's over the epoch, made by the present flags; update_freq: batches
    that a process takes for one update; skip_remainder: the flag --skip-remainder-batch. Return the new place.

    Where nothing has changed the place is the same. With other batches (--max-tokens, or other data) it is after the
    same share of the epoch. Within an epoch it is at the beginning of an update, since fairseq counts the updates that
    are left from there, and it leaves the epoch at least one update. If the number of batches is not known, only the
    number of processes is converted, and nothing is rounded to updates.
    """
    if not place.get("iterations_in_epoch"):  # between two epochs, or in an export
        return place
    processes = iterator.num_shards
    batches = number_of_batches(iterator)
    # batches, over all processes; a checkpoint of fairseq does not say how many processes there were
    done_before = place["iterations_in_epoch"] * place.get(PROCESSES, processes)
    if batches is None:
        return place | {"iterations_in_epoch": done_before // processes, BEGUN: True}

    # batches to be taken for done, over all processes
    batches_before = place.get(BATCHES)  # not in checkpoints of fairseq and of earlier versions
    if batches_before is not None:
        done = done_before * batches // batches_before
    elif done_before < batches:
        done = done_before
    else:  # more were done than there are now: begin the epoch again
        done = 0

    # round down to the beginning of an update, the epoch's last one at most
    iterations_in_all = math.ceil(batches / processes)  # batches of one process in the epoch
    if iterator.skip_remainder_batch:
        iterations_in_all -= 1  # as fairseq's iterator does, which drops the last one
    updates = iterations_in_all // update_freq if skip_remainder else math.ceil(iterations_in_all / update_freq)
    updates_done = min(done // processes // update_freq, updates - 1)
    iterations = max(0, updates_done) * update_freq

    done = iterations * processes
    if agreement.is_first() and done != done_before:
        _log_new_place(place["epoch"], done_before, batches_before, done, batches)
    return place | {"iterations_in_epoch": iterations, BEGUN: True}


def place_to_save(place: dict, iterator, processes: int) -> dict:
    """Return a place with the entries that converted_place needs if batches or processes change before the resume.

    place: fairseq's state of the iterator; iterator: fairseq's over the epoch; processes: of the training.
    """
    # BEGUN is not saved: it describes the place at which this process has resumed, not the one that is saved
    place = {key: value for key, value in place.items() if key != BEGUN}
    place[PROCESSES] = processes
    if place.get("iterations_in_epoch"):  # between two epochs nothing has to be converted
        place[BATCHES] = number_of_batches(iterator)
    return place


def _log_new_place(epoch: int, done_before: int, batches_before: int | None, done: int, batches: int) -> None:
    """Warn that an epoch does not go on exactly where it was saved.

    The epoch was saved after done_before of batches_before batches, and goes on after `done` of `batches`; all four are
    numbers over all processes. batches_before: None if it is not known.
    """
    now = counted(batches, "batch", "batches")
    if batches_before is None and done_before >= batches:
        log.warning(f"epoch {epoch} has only {now} now, and {done_before} were done before: it begins again")
    elif batches_before is None or batches_before == batches:
        again = counted(done_before - done, "batch", "batches")
        log.warning(f"epoch {epoch} goes on at an update's beginning, {again} back: their sentences come twice")
    else:
        log.warning(
            f"epoch {epoch} has {now} now, and had {batches_before} when the checkpoint was saved: it goes "
            f"on after {done} where {done_before} were done; in this epoch some sentences come twice, and others do "
            "not (--reset-dataloader starts the data over)"
        )


def explain_lost_loader(cfg, error: Exception) -> None:
    """Raise a UserError if the cause of `error` is a data-loading process that was killed; else do nothing.

    cfg: the whole config. torch raises a RuntimeError that names the process, at any place of the training; but if the
    process was handing over a batch, reading that batch fails with a socket's error (OSError or EOFError).
    """
    frames = traceback.extract_tb(error.__traceback__)
    was_reading_batch = any(frame.name == "_try_get_data" for frame in frames)  # torch's, of the data loader
    lost_while_handing_over = was_reading_batch and not isinstance(error, RuntimeError)
    if lost_while_handing_over or any("DataLoader worker (pid" in str(cause) for cause in causes(error)):
        raise UserError(
            f"--num-workers {cfg.dataset.num_workers}",
            f"a process that loads data was killed, often for memory; take "
            f"fewer, and start the training again: it resumes from {cfg.checkpoint.save_dir}",
        ) from error
