"""Sentence pairs -> the .bin and .idx files fairseq maps into memory, as a stream and in several shards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path

import torch
from fairseq.data import indexed_dataset

from ...atomic_output import whole
from ...errors import UserError
from .vocabulary import Vocabulary

BATCH = 20_000  # sentence pairs encoded at a time


def binarise(
    pairs: Iterable[tuple[str, str]],
    vocabulary: Vocabulary,
    prefixes: Sequence[tuple[Path, Path]],
    threads: int = 1,
) -> dict[str, int]:
    """Writes what fairseq-preprocess would, without segmented text in between.

    prefixes: the paths of source and target less .bin and .idx, one pair of them a shard; sentence i goes to shard i
    modulo their number. Returns how many sentences there were, and pieces on either side, as {"sentences", "source",
    "target"}. UserError for fewer sentences than shards.
    """
    counts = {"sentences": 0, "source": 0, "target": 0}
    pairs = iter(pairs)
    with ExitStack() as files:
        shards = [[_Side(prefix, vocabulary, files) for prefix in shard] for shard in prefixes]
        while batch := list(islice(pairs, BATCH)):
            for side, name in enumerate(("source", "target")):
                encoded = vocabulary.encode([pair[side] for pair in batch], threads)
                for number, ids in enumerate(encoded, counts["sentences"]):
                    shards[number % len(shards)][side].builder.add_item(torch.from_numpy(ids))
                counts[name] += sum(map(len, encoded))
            counts["sentences"] += len(batch)
        if counts["sentences"] < len(shards):
            raise UserError(
                f"{prefixes[0][0].name}: {counts['sentences']} sentence pairs, too few for {len(shards)} shards"
            )
        for written in (written for shard in shards for written in shard):
            written.builder.finalize(written.index)
    return counts


class _Side:
    """One language of one shard; its two files get their names when `files` closes, the index last."""

    def __init__(self, prefix: Path, vocabulary: Vocabulary, files: ExitStack):
        self.index = files.enter_context(whole(Path(f"{prefix}.idx")))
        data = files.enter_context(whole(Path(f"{prefix}.bin")))
        self.builder = indexed_dataset.make_builder(str(data), "mmap", len(vocabulary))
