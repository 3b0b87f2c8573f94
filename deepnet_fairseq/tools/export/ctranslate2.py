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

LARGEST = 1e-2  # on the log-probability of a token, in float32; quantised models are only reported
ROWS, TOKENS = 8, 40  # of the made-up sentences that both score


def write_ctranslate2(served: Served, out: Path, quantization: str | None) -> float:
    """Write a folder for CTranslate2, whole or not at all; return the largest difference of a log-probability.

    quantization: as CTranslate2 names it ("int8", "float16", ...), None for float32. UserError if CTranslate2 is
    missing, cannot take the model, or disagrees.
    """
    folded, exact = served.folded, quantization in (None, "float32")
    if folded.stock.name not in SCORERS:
        raise UserError(f"--to ctranslate2: CTranslate2 reads no fairseq {folded.stock.name}; give --to transformer")
    with whole(out) as part:
        convert(folded, served.dictionaries, part, quantization)
        difference = _largest_difference(served, part)
        if exact and not difference <= LARGEST:
            raise UserError(f"--to ctranslate2: its scores differ by {difference:.1e}; nothing was written")
        served.write_text(part)
        if served.text is not None:
            write_readme(served, part)
            if exact:
                check_text(served, part, CTranslate2)
    return difference


def _score_translation(model, served: Served, source: Tensor, target: Tensor) -> Tensor:
    """Return log-probabilities (T,) of a target and its end, behind a source; both (T,)."""
    source_words, target_words = served.dictionaries
    rows = [source_words[i] for i in source.tolist()], [target_words[i] for i in target.tolist()]
    return torch.tensor(model.score_batch([rows[0]], [rows[1]])[0].log_probs)


def _score_text(model, served: Served, source: Tensor, target: Tensor) -> Tensor:
    """Return log-probabilities (T,) of targets, each behind the tokens up to its place of the source."""
    scores = model.forward_batch([source.tolist()], return_log_probs=True)
    return torch.from_numpy(np.array(scores))[0].gather(-1, target.unsqueeze(-1)).squeeze(-1)


SCORERS = {"transformer": ("Translator", _score_translation), "transformer_lm": ("Generator", _score_text)}


@torch.no_grad()
def _largest_difference(served: Served, folder: Path) -> float:
    """Compare log-probabilities of made-up tokens by fairseq's plain model and by CTranslate2's, in nats."""
    import ctranslate2

    model, (kind, scorer) = stock_model(served.folded.model, served.folded.state), SCORERS[served.folded.stock.name]
    theirs_model = getattr(ctranslate2, kind)(str(folder))
    end, generator = torch.tensor([EOS]), torch.Generator().manual_seed(0)
    longest = min(TOKENS, *np.atleast_1d(model.max_positions())) - 1
    largest = 0.0
    for _ in range(ROWS):
        source, target = (torch.randint(SPECIALS, size, (longest,), generator=generator) for size in served.folded.rows)
        if served.text is None:  # a language model
            ours, theirs = model(source[None])[0], scorer(theirs_model, served, source, target)
        else:
            before = torch.cat([end, target])[None]
            ours = model(torch.cat([source, end])[None], torch.tensor([longest + 1]), before)[0]
            target, theirs = torch.cat([target, end]), scorer(theirs_model, served, source, target)
        ours = ours[0].float().log_softmax(-1).gather(-1, target.unsqueeze(-1)).squeeze(-1)
        largest = max(largest, (ours - theirs).abs().max().item())
    return largest
