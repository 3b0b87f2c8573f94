"""--num-batch-buckets on numpy 2, from which two names are gone that fairseq uses for it."""

import types

import numpy
from fairseq.data import bucket_pad_length_dataset, data_utils


def bucket_lengths() -> None:
    """Replaces data_utils.get_buckets and gives numpy.compat back; without, the flag ends in a TypeError."""
    for module in (data_utils, bucket_pad_length_dataset):
        module.get_buckets = get_buckets
    if not hasattr(numpy, "compat"):
        vars(numpy)["compat"] = types.SimpleNamespace(long=int)


def get_buckets(sizes, num_buckets: int) -> numpy.ndarray:
    """Upper ends of at most num_buckets ranges of lengths, each with about as many of `sizes`; as fairseq has it."""
    return numpy.unique(numpy.percentile(sizes, numpy.linspace(0, 100, num_buckets + 1), method="lower")[1:])
