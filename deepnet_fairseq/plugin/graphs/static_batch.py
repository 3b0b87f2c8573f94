"""A batch in tensors at fixed addresses, into which the batches of a training are copied one after the other."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .shapes import Shape

# kinds of dimensions: rows (sentences) of a batch, positions of the source, positions of the target
ROWS, SOURCE, TARGET = range(3)
# name of a tensor in fairseq's samples that a graph can read -> the kinds of its dimensions
DIMENSIONS = {
    "src_tokens": (ROWS, SOURCE),
    "src_lengths": (ROWS,),
    "prev_output_tokens": (ROWS, TARGET),
    "target": (ROWS, TARGET),
}


def tensors_of(sample: dict[str, Any]) -> dict[str, Tensor]:
    """Return the tensors of a fairseq sample by name: those in "net_input", and "target"."""
    tensors = {name: value for name, value in sample["net_input"].items() if torch.is_tensor(value)}
    tensors["target"] = sample["target"]
    return tensors


def shape_of(sample: dict[str, Any]) -> Shape:
    """Return a fairseq sample's shape: (rows, source length, target length), of a language model (rows, length)."""
    rows, length = sample["target"].shape
    if "prev_output_tokens" in sample["net_input"]:
        return rows, sample["net_input"]["src_tokens"].size(1), length
    return rows, length


class StaticBatch:
    """A sample of a fixed shape. Shorter sentences are padded at their end, missing rows are rows of padding.

    shape: (rows, source length, target length), of a language model (rows, length);
    sample: what the loss reads, a sample as fairseq's;
    ntokens: its "ntokens", the number of target tokens, as a tensor of shape (); a number of Python would be part of
    the graph as it was at the capture;
    tensors: those of the sample by name (DIMENSIONS), which `fill` overwrites;
    empty: by the same names, the number that stands in a tensor where it has no sentence.
    """

    def __init__(self, like: dict[str, Any], shape: Shape, pad_index: int):
        """Make the tensors, without a sentence in them.

        like: a sample of fairseq with the same tensors, which gives their dtypes and the device; pad_index: index of
        the padding symbol in the dictionary.
        """
        self.shape = shape
        # a language model's shape has one length, which stands for source and target
        size = {ROWS: shape[0], SOURCE: shape[1], TARGET: shape[-1]}
        device = like["target"].device
        self.empty: dict[str, int] = {}
        self.tensors: dict[str, Tensor] = {}
        for name, given in tensors_of(like).items():
            dimensions = DIMENSIONS[name]
            self.empty[name] = pad_index if len(dimensions) == 2 else 0  # symbols, or src_lengths
            sizes = [size[dimension] for dimension in dimensions]
            self.tensors[name] = torch.full(sizes, self.empty[name], dtype=given.dtype, device=device)
        self.ntokens = torch.ones((), dtype=torch.long, device=device)
        self.sample = {
            "id": None,  # numbers of the sentences in the data set, which losses do not read
            "nsentences": shape[0],
            "ntokens": self.ntokens,
            # entries that are no tensors are those of `like`
            "net_input": {name: self.tensors.get(name, value) for name, value in like["net_input"].items()},
            "target": self.tensors["target"],
        }

    def fill(self, sample: dict[str, Any]) -> None:
        """Copy a fairseq sample into the tensors, with padding around it; this shape must cover the sample's."""
        for name, given in tensors_of(sample).items():
            tensor = self.tensors[name]
            if given.shape != tensor.shape:
                tensor.fill_(self.empty[name])  # overwrites the sentences of the batch before
                corner = tuple(slice(length) for length in given.shape)
                tensor = tensor[corner]
            tensor.copy_(given, non_blocking=True)
        self.ntokens.fill_(sample["ntokens"])
