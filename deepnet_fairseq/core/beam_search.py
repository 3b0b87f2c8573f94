"""Beam search on torch alone; the search of fairseq's programs finds the same hypotheses.

B sentences, k beams, V symbols; hypotheses are scored by the mean log-probability of their tokens, EOS included, with
the exponent `length_penalty` on the length (Wu et al. 2016 with another formula; this is fairseq's).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import UserError
from .models import EOS, PAD, DeepModel
from .profile import in_mode


class Hypothesis(NamedTuple):
    """Tokens (T,), without EOS; score: sum of their log-probabilities and EOS's over (T + 1) ** length_penalty."""

    tokens: Tensor
    score: float


@torch.no_grad()
def beam_search(
    model: DeepModel, tokens: Tensor, beams: int = 5, max_length: int = 200, length_penalty: float = 1.0
) -> list[list[Hypothesis]]:
    """Find the k best hypotheses of each sentence, best first, in evaluation mode; restore the model's mode afterwards.

    tokens (B, S): source sentences, or for a causal language model the prompts to continue, padded on either side.
    Prompts of one length are searched together, so that no prompt depends on the others or on its padding.
    max_length: of a hypothesis in tokens, less than the decoder has positions. A sentence is done when k hypotheses
    have ended (fairseq's rule). Raises a UserError for beams or a length below 1, for a prompt longer than the decoder
    has positions, and for a masked language model.
    """
    if "decoder" not in model.stacks():
        raise UserError(f"beam_search: {model.NAME} has no decoder; give a translation or causal language model")
    for name, number in (("beams", beams), ("max_length", max_length)):
        if number < 1:
            raise UserError(f"{name}={number}: must be at least 1")
    if not len(tokens):
        return []
    search = _search if "encoder" in model.stacks() else _continue_prompts
    with in_mode(model, training=False):
        return search(model, tokens, beams, max_length, length_penalty)


def _continue_prompts(
    model: DeepModel, prompts: Tensor, beams: int, max_length: int, length_penalty: float
) -> list[list[Hypothesis]]:
    """Search prompts (B, T) of each length by themselves, without their padding."""
    lengths = prompts.ne(PAD).sum(1)
    by_prompt: list[list[Hypothesis]] = [[] for _ in prompts]

    for length in lengths.unique().tolist():
        places = lengths.eq(length).nonzero().flatten()
        padded = prompts[places]
        of_length = padded[padded.ne(PAD)].view(len(places), length)
        found = _search(model, of_length, beams, max_length, length_penalty)
        for place, hypotheses in zip(places.tolist(), found, strict=True):
            by_prompt[place] = hypotheses
    return by_prompt


def _search(
    model: DeepModel, tokens: Tensor, beams: int, max_length: int, length_penalty: float
) -> list[list[Hypothesis]]:
    """Search tokens (B, S), source sentences or prompts of one length."""
    sentences = len(tokens)
    first_rows = torch.arange(sentences, device=tokens.device)[:, None] * beams  # row of each sentence's first beam
    encoder_out, state, prefix = _begin(model, tokens, beams)  # prefix (B k, prompt)
    prompt_length = prefix.size(1)
    max_length = max(0, min(max_length, model.decoder.max_positions() - prompt_length))

    totals = torch.full((sentences, beams), float("-inf"), device=tokens.device)
    totals[:, 0] = 0  # all beams are the same at first
    ended: list[list[Hypothesis]] = [[] for _ in range(sentences)]
    for length in range(max_length + 1):
        scores, _ = model.decoder(prefix, encoder_out, incremental_state=state)
        log_probs = scores[:, -1].float().log_softmax(-1)  # (B k, V)
        log_probs[:, PAD] = float("-inf")
        if length == 0 and max_length > 0:  # no hypothesis is empty
            log_probs[:, EOS] = float("-inf")
        if length == max_length:  # all have to end
            log_probs[:, :EOS] = float("-inf")
            log_probs[:, EOS + 1 :] = float("-inf")

        # the best 2k continuations of each sentence: k may end here, and k go on
        symbol_count = log_probs.size(1)
        candidates = (totals[..., None] + log_probs.unflatten(0, (-1, beams))).flatten(1)  # (B, k V)
        best, index = candidates.topk(2 * beams)  # (B, 2k), best first
        rows = first_rows + index // symbol_count
        symbols = index % symbol_count

        # an end that is not among the k best of all continuations does not count, as in fairseq
        ends = symbols.eq(EOS) & best.isfinite()
        for sentence, place in ends[:, :beams].nonzero().tolist():
            if len(ended[sentence]) < beams:
                score = best[sentence, place].item() / (length + 1) ** length_penalty
                hypothesis = prefix[rows[sentence, place], prompt_length:].clone()
                ended[sentence].append(Hypothesis(hypothesis, score))
        if all(len(hypotheses) == beams for hypotheses in ended):
            break

        totals, kept = best.masked_fill(ends, float("-inf")).topk(beams)
        rows = rows.gather(1, kept).flatten()
        symbols = symbols.gather(1, kept).flatten()
        prefix = torch.cat([prefix[rows], symbols[:, None]], 1)
        model.decoder.reorder_incremental_state_scripting(state, rows)

    return [sorted(hypotheses, key=lambda hypothesis: -hypothesis.score) for hypotheses in ended]


def _begin(model: DeepModel, tokens: Tensor, beams: int) -> tuple[dict | None, dict, Tensor]:
    """Return the encoder's output, the decoder's cache, and the prefix of each row, (B k, begun).

    A prefix begins with EOS. A language model has no encoder's output; its cache holds the prompts (B, T) in `tokens`.
    """
    state: dict = {}
    rows = torch.arange(len(tokens), device=tokens.device).repeat_interleave(beams)
    start = tokens.new_full((len(rows), 1), EOS)
    if "encoder" in model.stacks():
        encoder_out = model.encoder.reorder_encoder_out(model.encoder(tokens), rows)
        return encoder_out, state, start

    prefix = torch.cat([start, tokens[rows]], 1)
    places = model.decoder.max_positions()
    if prefix.size(1) > places:
        raise UserError(f"a prompt of {tokens.size(1)} tokens: EOS and it must fit into {places} positions; shorten it")
    for length in range(1, prefix.size(1)):
        model.decoder(prefix[:, :length], incremental_state=state)
    return None, state, prefix
