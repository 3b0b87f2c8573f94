"""A translation task over made-up text, so that fairseq's Trainer and generator are measured without files.

The speed of a batch depends on its sentence lengths: they decide how much of it is padding and how many sentences it
holds. Lengths are drawn from a distribution like that of IWSLT-14 German-English.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy
import torch
from fairseq.data import LanguagePairDataset
from fairseq.tasks import register_task
from fairseq.tasks.translation import TranslationConfig, TranslationTask

from deepnet_fairseq.core.models import SPECIALS
from deepnet_fairseq.plugin.building import blank_task
from deepnet_fairseq.plugin.flags import flag

NAME = "deepnet_benchmark"
SENTENCES = 20_000  # pairs of a source and a target
# The lengths of IWSLT-14 German-English in joint BPE of 10,000 merges are near a log-normal distribution with this
# median and spread on both sides; the lengths of a source and its target are correlated. Longer lengths than LONGEST
# are cut to it.
MEDIAN, SPREAD, CORRELATION, LONGEST = 20, 0.66, 0.97, 245


# Annotations are not postponed in this file: fairseq reads the types of a config's fields at run time.
@dataclass
class BenchmarkTaskConfig(TranslationConfig):
    """Options of the task beside those of fairseq's translation."""

    benchmark_vocabulary: int = flag(10_000, "number of types of the joint dictionary")


@register_task(NAME, dataclass=BenchmarkTaskConfig)
class BenchmarkTask(TranslationTask):
    """fairseq's own translation task with a made-up dictionary and made-up sentences; it reads no files."""

    @classmethod
    def setup_task(cls, cfg: BenchmarkTaskConfig, **kwargs) -> "BenchmarkTask":
        """Return the task, whose source and target share a dictionary of cfg.benchmark_vocabulary types."""
        dictionary = blank_task(cfg.benchmark_vocabulary).source_dictionary
        return cls(cfg, dictionary, dictionary)

    def load_dataset(self, split: str, epoch: int = 1, combine: bool = False, **kwargs) -> None:
        """Make the dataset of a split; all splits have the same sentences."""
        source, target = sentences(self.cfg.benchmark_vocabulary)
        source_sizes = numpy.array([len(line) for line in source])
        target_sizes = numpy.array([len(line) for line in target])
        self.datasets[split] = LanguagePairDataset(
            src=source,
            src_sizes=source_sizes,
            src_dict=self.src_dict,
            tgt=target,
            tgt_sizes=target_sizes,
            tgt_dict=self.tgt_dict,
        )


@lru_cache(maxsize=2)
def sentences(vocabulary: int, seed: int = 1) -> tuple[list, list]:
    """Draw SENTENCES sentences; return (sources, targets), lists of tensors of token numbers.

    A sentence is int64 (length + 1,): tokens drawn by Zipf's law (a type's frequency goes as 1 / its rank), and the end
    of the sentence. vocabulary: types of the dictionary, the special ones included; seed: of lengths and tokens.
    """
    # two standard normal numbers a sentence, correlated; exp makes the lengths of source and target log-normal
    normal = numpy.random.default_rng(seed).standard_normal((SENTENCES, 2))
    normal[:, 1] = CORRELATION * normal[:, 0] + (1 - CORRELATION**2) ** 0.5 * normal[:, 1]
    lengths = numpy.rint(MEDIAN * numpy.exp(SPREAD * normal)).clip(1, LONGEST).astype(int)

    generator = numpy.random.default_rng(seed)
    frequencies = 1 / numpy.arange(1, vocabulary - SPECIALS + 1)  # of types by rank, not yet normalised
    probabilities = frequencies / frequencies.sum()
    eos = torch.tensor([blank_task(SPECIALS).source_dictionary.eos()])
    sides = []  # sources, targets
    for side in range(2):
        ranks = generator.choice(len(frequencies), lengths[:, side].sum(), p=probabilities)
        tokens = torch.from_numpy(ranks + SPECIALS)
        lines = tokens.split(lengths[:, side].tolist())
        sides.append([torch.cat([line, eos]) for line in lines])
    return sides[0], sides[1]
