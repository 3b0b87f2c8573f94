"""Export to CTranslate2 by its own converter, from fairseq's plain model; then both models score the same tokens."""

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

LARGEST = 1e-2  # difference of a token's log-probability, in float32; quantised models are only reported
ROWS = 8  # made-up sentences that both models score
TOKENS = 40  # of each sentence


def write_ctranslate2(served: Served, out: Path, quantization: str | None) -> float:
    """Write a folder for CTranslate2, whole or not at all; return the largest difference of a log-probability.

    quantization: as CTranslate2 names it ("int8", "float16", ...), None for float32. UserError if CTranslate2 is
    missing, cannot take the model, or disagrees.
    """
    folded = served.folded
    exact = quantization in (None, "float32")
    if folded.stock.name not in SCORERS:
        raise UserError(f"--to ctranslate2: CTranslate2 reads no fairseq {folded.stock.name}; give --to transformer")

    with whole(out) as part:
        convert(folded, served.dictionaries, part, quantization)
        difference = _largest_difference(served, part)
        if exact and not difference <= LARGEST:  # a NaN fails as well
            raise UserError(f"--to ctranslate2: its scores differ by {difference:.1e}; nothing was written")
        served.write_text(part)
        if served.text is not None:
            write_readme(served, part)
            if exact:
                check_text(served, part, CTranslate2)
    return difference


def _score_translation(model, served: Served, source: Tensor, target: Tensor) -> Tensor:
    """Return log-probabilities (T + 1,) of a target (T,) and its end, given a source (S,)."""
    source_dictionary, target_dictionary = served.dictionaries
    source_pieces = [source_dictionary[i] for i in source.tolist()]
    target_pieces = [target_dictionary[i] for i in target.tolist()]
    (scored,) = model.score_batch([source_pieces], [target_pieces])
    return torch.tensor(scored.log_probs)


def _score_text(model, served: Served, source: Tensor, target: Tensor) -> Tensor:
    """Return log-probabilities (T,) of targets (T,), each given the tokens of the source (T,) up to its place."""
    log_probs = torch.from_numpy(np.array(model.forward_batch([source.tolist()], return_log_probs=True)))
    return log_probs[0].gather(-1, target.unsqueeze(-1)).squeeze(-1)


SCORERS = {"transformer": ("Translator", _score_translation), "transformer_lm": ("Generator", _score_text)}


@torch.no_grad()
def _largest_difference(served: Served, folder: Path) -> float:
    """Compare log-probabilities of made-up tokens by fairseq's plain model and by CTranslate2's, in nats."""
    import ctranslate2

    our_model = stock_model(served.folded.model, served.folded.state)
    class_name, scorer = SCORERS[served.folded.stock.name]
    their_model = getattr(ctranslate2, class_name)(str(folder))
    end = torch.tensor([EOS])
    length = min(TOKENS, *np.atleast_1d(our_model.max_positions())) - 1
    source_size, target_size = served.folded.vocabulary_sizes

    generator = torch.Generator().manual_seed(0)
    largest = 0.0
    for _ in range(ROWS):
        source = torch.randint(SPECIALS, source_size, (length,), generator=generator)
        target = torch.randint(SPECIALS, target_size, (length,), generator=generator)
        if served.text is None:  # a language model
            logits = our_model(source[None])[0]
            predicted = target
        else:
            prev_output_tokens = torch.cat([end, target])[None]
            logits = our_model(torch.cat([source, end])[None], torch.tensor([length + 1]), prev_output_tokens)[0]
            predicted = torch.cat([target, end])
        ours = logits[0].float().log_softmax(-1).gather(-1, predicted.unsqueeze(-1)).squeeze(-1)
        theirs = scorer(their_model, served, source, target)
        largest = max(largest, (ours - theirs).abs().max().item())
    return largest
