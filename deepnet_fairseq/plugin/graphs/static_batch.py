"""A batch in tensors at fixed addresses, into which the batches of a training are copied one after the other."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .shapes import Shape

ROWS, SOURCE, TARGET = range(3)  # kinds of dimensions: sentences of a batch, positions of source and of target
# name of a tensor in fairseq's samples that a graph can read -> what its dimensions are
DIMENSIONS = {
    "src_tokens": (ROWS, SOURCE),
    "src_lengths": (ROWS,),
    "prev_output_tokens": (ROWS, TARGET),
    "target": (ROWS, TARGET),
}


def tensors_of(sample: dict[str, Any]) -> dict[str, Tensor]:
    """Return the tensors of a sample by name: those of net_input and the target."""
    tensors = {name: value for name, value in sample["net_input"].items() if torch.is_tensor(value)}
    tensors["target"] = sample["target"]
    return tensors


def shape_of(sample: dict[str, Any]) -> Shape:
    """Return a sample's shape: (rows, source length, target length), of a language model (rows, length)."""
    rows, length = sample["target"].shape
    if "prev_output_tokens" in sample["net_input"]:
        return rows, sample["net_input"]["src_tokens"].size(1), length
    return rows, length


class StaticBatch:
    """A sample of a fixed shape. Shorter sentences are padded at their end, missing rows are rows of padding.

    sample: what the loss reads, a sample as fairseq's. Its "ntokens", the number of target tokens, is a tensor () too,
    so that a computation with it becomes part of the graph. tensors: those of the sample by name, which `fill`
    overwrites; empty: the number that fills each of them where it has no sentence.
    """

    def __init__(self, like: dict[str, Any], shape: Shape, pad_index: int):
        """Make the tensors, without a sentence in them.

        like: a sample of fairseq with the same tensors, for their types and the device; pad_index: index of the padding
        symbol in the dictionary.
        """
        self.shape = shape
        # a language model reads one side, whose length is that of source and target
        size = {ROWS: shape[0], SOURCE: shape[1], TARGET: shape[-1]}
        device = like["target"].device
        self.empty: dict[str, int] = {}
        self.tensors: dict[str, Tensor] = {}
        for name, given in tensors_of(like).items():
            dimensions = DIMENSIONS[name]
            self.empty[name] = pad_index if len(dimensions) == 2 else 0  # symbols, or lengths
            sizes = [size[dimension] for dimension in dimensions]
            self.tensors[name] = torch.full(sizes, self.empty[name], dtype=given.dtype, device=device)
        self.ntokens = torch.ones((), dtype=torch.long, device=device)
        self.sample = {
            "id": None,
            "nsentences": shape[0],
            "ntokens": self.ntokens,
            "net_input": {name: self.tensors.get(name, value) for name, value in like["net_input"].items()},
            "target": self.tensors["target"],
        }

    def fill(self, sample: dict[str, Any]) -> None:
        """Copy a sample that this shape covers into the tensors."""
        for name, given in tensors_of(sample).items():
            tensor = self.tensors[name]
            if given.shape != tensor.shape:
                tensor.fill_(self.empty[name])  # the sentences of the previous batch
                corner = tuple(slice(length) for length in given.shape)
                tensor = tensor[corner]
            tensor.copy_(given, non_blocking=True)
        self.ntokens.fill_(sample["ntokens"])
