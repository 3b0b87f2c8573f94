"""Export to CTranslate2: convert fairseq's plain model, then compare both models' scores of the same tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ...core.models import EOS, SPECIALS
from ...errors import UserError
from ...files import whole
from ..translation.engines import CTranslate2
from .checks import check_text
from .convert import convert
from .readme import write_readme
from .served import Served
from .transformer import stock_model

# largest difference of a token's log-probability that is accepted in float32, in nats; of quantised models any is
TOLERANCE = 1e-2
ROWS = 8  # made-up sentences that both models score
TOKENS = 40  # of each sentence


def write_ctranslate2(served: Served, out: Path, quantization: str | None) -> float:
    """Write a folder for CTranslate2, whole or not at all.

    quantization: as CTranslate2 names it ("int8", "float16", ...), None for float32. Return the largest difference of a
    token's log-probability from fairseq's, in nats. UserError if CTranslate2 is missing, cannot take the model, or
    computes other scores.
    """
    folded = served.folded
    exact = quantization in (None, "float32")
    if folded.stock.name not in SCORERS:
        raise UserError("--to ctranslate2", f"CTranslate2 reads no fairseq {folded.stock.name}; give --to transformer")

    with whole(out) as part:
        convert(folded, served.dictionaries, part, quantization)
        difference = _largest_difference(served, part)
        if exact and not difference <= TOLERANCE:  # a NaN fails as well
            raise UserError("--to ctranslate2", f"its scores differ by {difference:.1e}; nothing was written")
        served.write_text(part)
        if served.text is not None:
            write_readme(served, part)
            if exact:
                check_text(served, part, CTranslate2)
    return difference


def _score_translation(model, served: Served, source: Tensor, target: Tensor) -> Tensor:
    """Return log-probabilities (T + 1,) of a target (T,) and its end, given a source (S,); model: a Translator."""
    source_dictionary, target_dictionary = served.dictionaries
    source_pieces = [source_dictionary[number] for number in source.tolist()]
    target_pieces = [target_dictionary[number] for number in target.tolist()]
    (scored,) = model.score_batch([source_pieces], [target_pieces])
    return torch.tensor(scored.log_probs)


def _score_text(model, served: Served, source: Tensor, target: Tensor) -> Tensor:
    """Return log-probabilities (T,) of targets (T,), each given the tokens of the source (T,) up to its place.

    model: a Generator of CTranslate2.
    """
    log_probs = torch.from_numpy(np.array(model.forward_batch([source.tolist()], return_log_probs=True)))
    return log_probs[0].gather(-1, target.unsqueeze(-1)).squeeze(-1)


# fairseq's model -> CTranslate2's class for it, and the function that scores tokens by that
SCORERS = {"transformer": ("Translator", _score_translation), "transformer_lm": ("Generator", _score_text)}


@torch.no_grad()
def _largest_difference(served: Served, folder: Path) -> float:
    """Return the largest difference of log-probabilities, in nats, of made-up tokens by fairseq and by CTranslate2.

    folder: of CTranslate2's model.
    """
    import ctranslate2

    our_model = stock_model(served.folded.config, served.folded.state)
    class_name, scorer = SCORERS[served.folded.stock.name]
    their_model = getattr(ctranslate2, class_name)(str(folder))
    end = torch.tensor([EOS])
    length = min(TOKENS, *np.atleast_1d(our_model.max_positions())) - 1  # without the end, which has a position too
    source_size, target_size = served.folded.vocabulary_sizes

    generator = torch.Generator().manual_seed(0)
    largest = 0.0
    for _ in range(ROWS):
        source = torch.randint(SPECIALS, source_size, (length,), generator=generator)
        target = torch.randint(SPECIALS, target_size, (length,), generator=generator)
        if served.text is None:  # a language model
            logits = our_model(source[None])[0]  # (1, T, V)
            predicted = target
        else:
            src_tokens = torch.cat([source, end])[None]
            prev_output_tokens = torch.cat([end, target])[None]
            logits = our_model(src_tokens, torch.tensor([length + 1]), prev_output_tokens)[0]  # (1, T + 1, V)
            predicted = torch.cat([target, end])
        ours = logits[0].float().log_softmax(-1).gather(-1, predicted.unsqueeze(-1)).squeeze(-1)
        theirs = scorer(their_model, served, source, target)
        largest = max(largest, (ours - theirs).abs().max().item())
    return largest
