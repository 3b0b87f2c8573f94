"""Beam search on torch alone; the search of fairseq's programs finds the same hypotheses.

B sentences, k beams of a sentence, V symbols. A beam is a hypothesis that is still growing, and has one row of the
decoder's batch; the rows of a sentence follow one another. The score of a hypothesis of T tokens is the sum of their
log-probabilities and of that of EOS, divided by (T + 1) ** length_penalty, as in fairseq; 1 gives the mean. (Wu et al.
2016, section 7, have another formula.)
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import UserError
from ..wording import counted
from .models import EOS, PAD, DeepModel
from .profile import in_mode


class Hypothesis(NamedTuple):
    """One result of a search.

    tokens (T,): without the prompt of a language model and without EOS; score: as at the top of this file.
    """

    tokens: Tensor
    score: float


@torch.no_grad()
def beam_search(
    model: DeepModel, tokens: Tensor, beams: int = 5, max_length: int = 200, length_penalty: float = 1.0
) -> list[list[Hypothesis]]:
    """Return up to k hypotheses of each sentence, best first; the model is in evaluation mode during the search alone.

    tokens (B, S): source sentences, or for a causal language model the prompts to continue, padded on either side;
    a prompt's hypotheses do not depend on the other prompts or on its padding. beams: k. max_length: of a hypothesis in
    tokens, without EOS and without the prompt; it is lowered to what the decoder's positions allow. length_penalty:
    exponent in the score, see the top of this file. A sentence is done when k hypotheses have ended (fairseq's rule).
    Raises a UserError for beams or a max_length below 1, for a prompt that with EOS in front is longer than the decoder
    has positions, and for a masked language model.
    """
    if "decoder" not in model.stacks():
        raise UserError("beam_search", f"{model.NAME} has no decoder; give a translation or causal language model")
    for name, number in (("beams", beams), ("max_length", max_length)):
        if number < 1:
            raise UserError(f"{name}={number}", "must be at least 1")
    if not len(tokens):
        return []
    search = _search if "encoder" in model.stacks() else _continue_prompts  # a language model's tokens are prompts
    with in_mode(model, training=False):
        return search(model, tokens, beams, max_length, length_penalty)


def _continue_prompts(
    model: DeepModel, prompts: Tensor, beams: int, max_length: int, length_penalty: float
) -> list[list[Hypothesis]]:
    """Search continuations of prompts (B, T), all prompts of one length together; result as of beam_search.

    A batch without padding makes the hypotheses of a prompt independent of the other prompts.
    """
    lengths = prompts.ne(PAD).sum(1)
    by_prompt: list[list[Hypothesis]] = [[] for _ in prompts]  # filled in in the order of lengths

    for length in lengths.unique().tolist():
        indices = lengths.eq(length).nonzero().flatten()  # of the prompts of this length
        padded = prompts[indices]
        unpadded = padded[padded.ne(PAD)].view(len(indices), length)
        found = _search(model, unpadded, beams, max_length, length_penalty)
        for index, hypotheses in zip(indices.tolist(), found, strict=True):
            by_prompt[index] = hypotheses
    return by_prompt


def _search(
    model: DeepModel, tokens: Tensor, beams: int, max_length: int, length_penalty: float
) -> list[list[Hypothesis]]:
    """Search hypotheses for tokens (B, S), source sentences or prompts of one length without padding.

    Arguments and result are those of beam_search.
    """
    num_sentences = len(tokens)
    first_rows = torch.arange(num_sentences, device=tokens.device)[:, None] * beams  # row of each sentence's first beam
    # prefix: tokens of each beam so far, (B k, length), a token longer in each step
    encoder_out, state, prefix = _begin(model, tokens, beams)
    prompt_length = prefix.size(1)  # EOS included
    max_length = max(0, min(max_length, model.decoder.max_positions() - prompt_length))

    # sum of log-probabilities of each beam; all beams of a sentence are the same at first, so only one takes part
    totals = torch.full((num_sentences, beams), float("-inf"), device=tokens.device)
    totals[:, 0] = 0
    ended: list[list[Hypothesis]] = [[] for _ in range(num_sentences)]
    for length in range(max_length + 1):  # number of tokens of the hypotheses so far
        # log-probabilities of the next token, without those that may not come
        scores, _extra = model.decoder(prefix, encoder_out, incremental_state=state)
        log_probs = scores[:, -1].float().log_softmax(-1)  # (B k, V)
        log_probs[:, PAD] = float("-inf")
        if length == 0 and max_length > 0:  # no hypothesis is empty, unless the positions leave no room for a token
            log_probs[:, EOS] = float("-inf")
        if length == max_length:  # all have to end
            log_probs[:, :EOS] = float("-inf")
            log_probs[:, EOS + 1 :] = float("-inf")

        # the best 2k continuations of each sentence: if k of them end here, k are left to go on
        num_symbols = log_probs.size(1)
        candidates = totals[..., None] + log_probs.unflatten(0, (-1, beams))  # their totals (B, k, V)
        best, index = candidates.flatten(1).topk(2 * beams)  # total and number (0 to k V - 1), (B, 2k), best first
        rows = first_rows + index // num_symbols  # of the beam that each one continues
        symbols = index % num_symbols

        # an end that is not among the k best of all continuations does not count, as in fairseq
        ends = symbols.eq(EOS) & best.isfinite()
        for sentence, rank in ends[:, :beams].nonzero().tolist():
            if len(ended[sentence]) < beams:
                score = best[sentence, rank].item() / (length + 1) ** length_penalty
                hypothesis = prefix[rows[sentence, rank], prompt_length:].clone()
                ended[sentence].append(Hypothesis(hypothesis, score))
        if all(len(hypotheses) == beams for hypotheses in ended):
            break

        # the k best continuations that have not ended become the beams of the next step
        totals, kept = best.masked_fill(ends, float("-inf")).topk(beams)
        rows = rows.gather(1, kept).flatten()
        symbols = symbols.gather(1, kept).flatten()
        prefix = torch.cat([prefix[rows], symbols[:, None]], 1)
        model.decoder.reorder_incremental_state_scripting(state, rows)

    return [sorted(hypotheses, key=lambda hypothesis: -hypothesis.score) for hypotheses in ended]


def _begin(model: DeepModel, tokens: Tensor, beams: int) -> tuple[dict | None, dict, Tensor]:
    """Return the encoder's output, the decoder's incremental_state, and the prefix of each row, (B k, prompt_length).

    A prefix is what the decoder reads first: EOS, in a language model followed by the prompt in `tokens`. A language
    model has None for the encoder's output, and keys and values of the prefix in the incremental_state, except those of
    its last token, which the search's first step computes.
    """
    state: dict = {}
    rows = torch.arange(len(tokens), device=tokens.device).repeat_interleave(beams)
    start = tokens.new_full((len(rows), 1), EOS)
    if "encoder" in model.stacks():
        by_sentence = model.encoder(tokens)
        encoder_out = model.encoder.reorder_encoder_out(by_sentence, rows)  # each sentence in the rows of its beams
        return encoder_out, state, start

    prefix = torch.cat([start, tokens[rows]], 1)
    limit = model.decoder.max_positions()
    if prefix.size(1) > limit:
        raise UserError(
            f"a prompt of {counted(tokens.size(1), 'token')}", f"EOS and it must fit into {limit} positions; shorten it"
        )
    for length in range(1, prefix.size(1)):  # the decoder takes one token in each call
        model.decoder(prefix[:, :length], incremental_state=state)
    return None, state, prefix
