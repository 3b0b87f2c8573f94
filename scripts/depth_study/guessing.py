"""Prints the held-out loss, bits a token, of guessing by the frequencies of pieces: guessing.py DATA SOURCE TARGET"""

import sys
from pathlib import Path

import torch
from fairseq.data import Dictionary, data_utils

from deepnet_fairseq.plugin.divergence.stuck import entropy

data, source, target = sys.argv[1:]
dictionary = Dictionary.load(str(Path(data) / f"dict.{target}.txt"))
sentences = data_utils.load_indexed_dataset(str(Path(data) / f"valid.{source}-{target}.{target}"), dictionary)
pieces = torch.cat([sentences[index] for index in range(len(sentences))]).long()
print(f"{entropy(torch.bincount(pieces, minlength=len(dictionary))):.3f}")
