"""Sentence lengths to draw batches from: a distribution like IWSLT-14 German-English's, or a user's own.

A real corpus is not needed to measure speed, its lengths are: they say how much of a batch is padding and how many
sentences it holds.
"""

from __future__ import annotations

from pathlib import Path

import numpy

from ..data.lines import read_lines
from ..errors import UserError

# Sentence lengths are near a log-normal distribution. Those of IWSLT-14 German-English in joint BPE of 10,000 merges
# have this median and spread on both sides; source and target go together.
MEDIAN, SPREAD, CORRELATION, LONGEST = 20, 0.66, 0.97, 245


def log_normal(sentences: int, seed: int) -> numpy.ndarray:
    """(sentences, 2): tokens of source and target without the end of sentence."""
    draw = numpy.random.default_rng(seed).standard_normal((sentences, 2))
    draw[:, 1] = CORRELATION * draw[:, 0] + (1 - CORRELATION**2) ** 0.5 * draw[:, 1]
    return numpy.rint(MEDIAN * numpy.exp(SPREAD * draw)).clip(1, LONGEST).astype(int)


def from_file(path: Path, sentences: int, seed: int) -> numpy.ndarray:
    """(sentences, 2): the same from a file of lines "SOURCE TARGET", drawn with replacement.

    UserError where it holds anything else.
    """
    try:
        rows = [[int(word) for word in line.split()] for line in read_lines(path) if line.strip()]
        lengths = numpy.array(rows, dtype=int)
    except (ValueError, OverflowError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"--lengths {path}: give a line SOURCE TARGET, two numbers, a sentence") from error
    if lengths.ndim != 2 or lengths.shape[1:] != (2,) or lengths.min() < 1:
        raise UserError(f"--lengths {path}: give a line SOURCE TARGET, two numbers of at least 1, a sentence")
    return lengths[numpy.random.default_rng(seed).integers(len(lengths), size=sentences)]
