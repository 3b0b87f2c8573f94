"""Hypotheses of fairseq's generator, and source sentences to translate."""

from __future__ import annotations

import torch
from fairseq.search import Sampling
from fairseq.sequence_generator import SequenceGenerator

from deepnet_fairseq.core.archs import LM

from .helpers import EOS, FIRST, PAD, VOCAB


def source_sentences(*lengths: int) -> torch.Tensor:
    """Draw sentences of random words that end with EOS, (B, longest of `lengths`), padded on the left.

    lengths: tokens of each sentence, EOS included
    """
    generator = torch.Generator().manual_seed(4)
    rows = torch.full((len(lengths), max(lengths)), PAD)
    for row, length in zip(rows, lengths, strict=True):
        words = torch.randint(FIRST, VOCAB, (length - 1,), generator=generator)
        row[-length:] = torch.cat([words, torch.tensor([EOS])])
    return rows


def fairseq_hypotheses(
    model, tokens: torch.Tensor, max_length: int, sampling_topk: int = 0, **options
) -> list[tuple[list[int], list[float]]]:
    """Generate with fairseq's generator; return (tokens, [score, *positional scores]) of every hypothesis.

    The hypotheses of the first sentence come first, the best in front.

    tokens: sentences of a translator, or prompts of a language model; max_length: tokens of a hypothesis at most;
    sampling_topk: sample from so many likeliest tokens, 0 for beam search; options: further ones of SequenceGenerator.
    """
    torch.manual_seed(2)  # of the sampling
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
    """Compute the decoder's scores (B, T, V) of `prev` (B, T) with a cache, one token at a time, as in decoding.

    memory: the encoder's output, if the model has an encoder.
    """
    cache: dict = {}
    steps = []
    for length in range(1, prev.size(1) + 1):
        scores_of_newest, _ = model.decoder(prev[:, :length], *memory, incremental_state=cache)
        steps.append(scores_of_newest)
    return torch.cat(steps, 1)
