"""How fast fairseq makes batches of binarised text, and what an epoch's order takes."""

from __future__ import annotations

import time
import tracemalloc
from pathlib import Path

import numpy
from fairseq.data import LanguagePairDataset
from fairseq.data.indexed_dataset import MMapIndexedDatasetBuilder
from fairseq.tasks.translation import TranslationConfig, TranslationTask

from ...bench.task import sentences
from ...building import blank_task

LANGUAGES = ("xx", "yy")
VOCABULARY = 10_000
PAIRS, INDEXED = 20_000, 200_000
MAX_TOKENS = 4096


def loader_rate(folder: Path) -> float:
    """Target tokens/s that one process makes batches of, in its processor time.

    Sentences like IWSLT-14's in fairseq's memory-mapped files (from the page cache), in batches of 4,096 tokens, no
    subprocess.
    """
    task = _task(folder)
    for language, lines in zip(LANGUAGES, sentences(PAIRS, VOCABULARY, None, 1), strict=True):
        _write(folder / f"train.{LANGUAGES[0]}-{LANGUAGES[1]}.{language}", lines)
        task.source_dictionary.save(str(folder / f"dict.{language}.txt"))
    task.load_dataset("train")
    batches = _iterator(task, task.dataset("train"))
    start, tokens = time.process_time(), 0
    for batch in batches:
        tokens += batch["ntokens"]
    return tokens / (time.process_time() - start)


def index_cost(folder: Path) -> tuple[float, float]:
    """Seconds and bytes a pair to sort, batch and shuffle an epoch, which every process does for all pairs."""
    seconds = _indexed(_task(folder))
    tracemalloc.start()  # slows what it watches
    _indexed(_task(folder))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return seconds / INDEXED, peak / INDEXED


def _indexed(task) -> float:
    lengths = numpy.random.default_rng(1).integers(4, 60, (2, INDEXED))
    words = task.source_dictionary
    dataset = LanguagePairDataset(range(INDEXED), lengths[0], words, range(INDEXED), lengths[1], words)
    start = time.process_time()
    _iterator(task, dataset)
    return time.process_time() - start


def _iterator(task, dataset):
    """An epoch's batches, as fairseq's Trainer asks for them."""
    positions = (1024, 1024)
    found = task.get_batch_iterator(dataset, max_tokens=MAX_TOKENS, max_positions=positions, seed=1)
    return found.next_epoch_itr(shuffle=True)


def _task(folder: Path):
    elsewhere = {"dataset_impl": "mmap", "train_subset": "train", "required_seq_len_multiple": 1}  # from other sections
    cfg = TranslationConfig(data=str(folder), source_lang=LANGUAGES[0], target_lang=LANGUAGES[1], **elsewhere)
    dictionary = blank_task(VOCABULARY).source_dictionary
    return TranslationTask(cfg, dictionary, dictionary)


def _write(prefix: Path, lines: list) -> None:
    builder = MMapIndexedDatasetBuilder(f"{prefix}.bin", dtype=numpy.uint16)
    for line in lines:
        builder.add_item(line)
    builder.finalize(f"{prefix}.idx")
