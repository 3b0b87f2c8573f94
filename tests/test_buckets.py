"""--num-batch-buckets, which makes shapes repeat."""

import numpy
import torch
from fairseq.data import Dictionary, FairseqDataset, LanguagePairDataset, data_utils

import deepnet_fairseq  # noqa: F401  mends fairseq


class Sentences(FairseqDataset):
    """Of given lengths."""

    def __init__(self, sizes):
        self.sizes = sizes

    def __getitem__(self, index):
        return torch.full((self.sizes[index],), 5)

    def __len__(self):
        return len(self.sizes)


def test_each_bucket_has_as_many_sentences():
    """Of lengths 1 to 100, a quarter up to 25, and so on."""
    assert data_utils.get_buckets(numpy.arange(1, 101), 4).tolist() == [25, 50, 75, 100]
    assert data_utils.get_buckets(numpy.full(10, 7), 4).tolist() == [7]


def test_batches_have_few_shapes_and_every_sentence():
    lengths = numpy.random.default_rng(0).integers(3, 60, (2, 3000))
    words = Dictionary()
    words.add_symbol("word")
    pairs = LanguagePairDataset(
        Sentences(lengths[0]), lengths[0], words, Sentences(lengths[1]), lengths[1], words, num_buckets=4
    )
    batches = pairs.batch_by_size(pairs.ordered_indices(), max_tokens=1000, required_batch_size_multiple=8)
    assert sorted(numpy.concatenate(batches)) == list(range(3000))
    shapes = set()
    for batch in batches:
        inputs = pairs.collater([pairs[i] for i in batch])["net_input"]
        shapes.add((*inputs["src_tokens"].shape, inputs["prev_output_tokens"].size(1)))
    assert len(shapes) < 40 < len(batches)
