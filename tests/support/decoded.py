"""Hypotheses of fairseq's generator, and source sentences to translate."""

from __future__ import annotations

import torch
from fairseq.search import Sampling
from fairseq.sequence_generator import SequenceGenerator

from deepnet_fairseq.core.archs import LM

from .helpers import EOS, FIRST, PAD, VOCAB


def source_sentences(*lengths: int) -> torch.Tensor:
    """Draw sentences of random words that end with EOS, padded on the left; lengths count EOS."""
    generator = torch.Generator().manual_seed(4)
    rows = torch.full((len(lengths), max(lengths)), PAD)
    for row, length in zip(rows, lengths, strict=True):
        words = torch.randint(FIRST, VOCAB, (length - 1,), generator=generator)
        row[-length:] = torch.cat([words, torch.tensor([EOS])])
    return rows


def fairseq_hypotheses(
    model, tokens: torch.Tensor, max_length: int, sampling_topk: int = 0, **options
) -> list[tuple[list[int], list[float]]]:
    """Generate with fairseq's generator; return (tokens, [score, *positional scores]) of every hypothesis, in order.

    tokens: sentences of a translator, or prompts of a language model; sampling_topk: sample from so many likeliest
    tokens, 0 to search; options: of SequenceGenerator.
    """
    torch.manual_seed(2)
    if sampling_topk:
        options["search_strategy"] = Sampling(model.decoder.dictionary, sampling_topk=sampling_topk)
    generator = SequenceGenerator([model], model.decoder.dictionary, max_len_a=0, max_len_b=max_length, **options)
    sample = {"net_input": {"src_tokens": tokens, "src_lengths": tokens.ne(PAD).sum(1)}}
    prompts = {"prefix_tokens": tokens} if model.NAME == LM else {}

    hypotheses = []
    for of_sentence in generator.generate([model], sample, **prompts):
        for one in of_sentence:
            scores = [float(one["score"]), *one["positional_scores"].tolist()]
            hypotheses.append((one["tokens"].tolist(), scores))
    return hypotheses


def step_by_step(model, prev: torch.Tensor, *memory) -> torch.Tensor:
    """Compute scores (B, T, V) by decoding `prev` (B, T) with a cache, one token at a time.

    memory: the encoder's output, if the model has an encoder.
    """
    state: dict = {}
    steps = []
    for length in range(1, prev.size(1) + 1):
        step, _ = model.decoder(prev[:, :length], *memory, incremental_state=state)
        steps.append(step)
    return torch.cat(steps, 1)
