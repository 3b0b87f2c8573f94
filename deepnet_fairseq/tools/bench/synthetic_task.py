"""A translation task over made-up text: what fairseq's Trainer and generator are measured on, without files.

A real corpus is not needed to measure speed, its sentence lengths are: they say how much of a batch is padding and how
many sentences it holds. They are drawn from a distribution like IWSLT-14 German-English's, or a user's own.
Annotations are not postponed here: fairseq reads the types of a config's fields at run time.
"""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Optional  # fairseq reads field types at run time and does not know X | None

import numpy
import torch
from fairseq.data import LanguagePairDataset
from fairseq.tasks import register_task
from fairseq.tasks.translation import TranslationConfig, TranslationTask

from ...core.models import SPECIALS
from ...data.lines import read_lines
from ...errors import UserError
from ...plugin.building import blank_task
from ...plugin.config import flag

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


NAME = "deepnet_bench"
SENTENCES = 20_000


@dataclass
class BenchTaskConfig(TranslationConfig):
    """fairseq's translation, beside what its text is made up from."""

    bench_vocabulary: int = flag(10_000, "types of the one dictionary")
    bench_lengths: Optional[str] = flag(None, "file of lengths; like IWSLT-14's by default")
    bench_seed: int = flag(1, "what lengths and tokens are drawn from")


@register_task(NAME, dataclass=BenchTaskConfig)
class BenchTask(TranslationTask):
    """fairseq's own translation task; only its dictionary and its sentences are made up."""

    @classmethod
    def setup_task(cls, cfg: BenchTaskConfig, **kwargs) -> "BenchTask":
        dictionary = blank_task(cfg.bench_vocabulary).source_dictionary
        return cls(cfg, dictionary, dictionary)

    def load_dataset(self, split: str, epoch: int = 1, combine: bool = False, **kwargs) -> None:
        cfg = self.cfg
        source, target = sentences(cfg.bench_vocabulary, cfg.bench_lengths, cfg.bench_seed)
        sizes = [numpy.array([len(line) for line in side]) for side in (source, target)]
        self.datasets[split] = LanguagePairDataset(source, sizes[0], self.src_dict, target, sizes[1], self.tgt_dict)


@lru_cache(maxsize=2)
def sentences(vocabulary: int, lengths: str | None, seed: int) -> tuple[list, list]:
    """SENTENCES lines of each side, int64 (length + 1,), which end in eos; types by Zipf's law."""
    sizes = log_normal(SENTENCES, seed) if lengths is None else from_file(Path(lengths), SENTENCES, seed)
    draw = numpy.random.default_rng(seed)
    frequencies = 1 / numpy.arange(1, vocabulary - SPECIALS + 1)
    eos, sides = torch.tensor([blank_task(SPECIALS).source_dictionary.eos()]), []
    for side in range(2):
        kinds = draw.choice(len(frequencies), sizes[:, side].sum(), p=frequencies / frequencies.sum()) + SPECIALS
        lines = torch.from_numpy(kinds).split(sizes[:, side].tolist())
        sides.append([torch.cat([line, eos]) for line in lines])
    return tuple(sides)
