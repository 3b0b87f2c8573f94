"""A language that a small causal model learns in seconds: every symbol says the next, in one of two ways.

A sentence begins with one of two marks. The mark chooses the table by which symbols follow each other, so a model has
to look back at it as well as at the last symbol; the last symbols of the alphabet end a sentence.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .helpers import EOS, FIRST, PAD, VOCAB

MARKS, ENDS = 2, 6
LONGEST = 24


def chains(rows: int, seed: int = 0, vocab: int = VOCAB) -> Tensor:
    """(B, LONGEST): eos, mark, symbols, eos, padding."""
    tables = [torch.randperm(vocab - FIRST - MARKS, generator=torch.Generator().manual_seed(n)) for n in range(MARKS)]
    generator = torch.Generator().manual_seed(seed)
    marks = torch.randint(MARKS, (rows,), generator=generator)
    symbols = torch.randint(vocab - FIRST - MARKS, (rows,), generator=generator)
    columns, ended = [torch.full((rows,), EOS), FIRST + marks], torch.zeros(rows, dtype=torch.bool)
    for _ in range(LONGEST - len(columns)):
        columns.append(torch.where(ended, PAD, FIRST + MARKS + symbols))
        ended |= symbols >= vocab - FIRST - MARKS - ENDS
        symbols = torch.stack(tables)[marks, symbols]
    found = torch.stack(columns, 1)
    return found.scatter(1, found.ne(PAD).sum(1, keepdim=True).clamp(max=LONGEST - 1), EOS)


def teach(model, steps: int = 100, vocab: int = VOCAB):
    """Trains a causal model until what it says follows the tables."""
    model.train().set_num_updates(1000)
    optimizer = torch.optim.Adam((p for p in model.parameters() if p.requires_grad), lr=1e-2)
    for step in range(steps):
        tokens = chains(64, step + 1, vocab)
        scores = model(tokens[:, :-1])[0]
        loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten(), ignore_index=PAD)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval(), loss.item()
