"""Export to CTranslate2: convert a folded model, then compare its scores of the same tokens with fairseq's.

`served` in all functions is the model to export with its text (served.py); served.folded is the model as one of
fairseq's, a plain Transformer. S source and T target tokens, V symbols.
"""

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

# largest difference of a token's log-probability that is accepted in float32, in nats; quantised models have no limit
TOLERANCE = 1e-2
SENTENCES = 8  # made-up ones that both models score
TOKENS = 40  # of each sentence


def write_ctranslate2(served: Served, out: Path, quantization: str | None) -> float:
    """Write a model with its text into the folder `out` for CTranslate2, whole or not at all.

    quantization: type of the weights as CTranslate2 names it ("int8", "float16", ...), None for float32. Return the
    largest difference of a token's log-probability from fairseq's, in nats. Raises a UserError if CTranslate2 is
    missing, cannot take the model, or computes other scores or translations. These are judged in float32 alone, because
    quantised weights change both.
    """
    folded = served.folded
    is_float32 = quantization in (None, "float32")
    if folded.stock.name not in SCORERS:
        raise UserError("--to ctranslate2", f"CTranslate2 reads no fairseq {folded.stock.name}; give --to transformer")

    with whole(out) as part:  # a temporary path, which is moved to `out` at the end
        convert(folded, served.dictionaries, part, quantization)
        difference = _largest_difference(served, part)
        if is_float32 and not difference <= TOLERANCE:  # a NaN fails as well
            raise UserError("--to ctranslate2", f"its scores differ by {difference:.1e}; nothing was written")
        served.write_text(part)
        if served.text is not None:  # a translation model
            write_readme(served, part)
            if is_float32:
                check_text(served, part, CTranslate2)
    return difference


def _score_translation(model, served: Served, source: Tensor, target: Tensor) -> Tensor:
    """Return log-probabilities (T + 1,) of a target (T,) and its end of sentence, given a source (S,).

    model: a Translator of CTranslate2, which adds the ends itself.
    """
    source_dictionary, target_dictionary = served.dictionaries
    source_pieces = [source_dictionary[number] for number in source.tolist()]
    target_pieces = [target_dictionary[number] for number in target.tolist()]
    (scored,) = model.score_batch([source_pieces], [target_pieces])
    return torch.tensor(scored.log_probs)


def _score_text(model, served: Served, source: Tensor, target: Tensor) -> Tensor:
    """Return the log-probability of target[t] given source[: t + 1], for each t; source, target and result are (T,).

    model: a Generator of CTranslate2. served: not used; it is here because _score_translation takes it.
    """
    scored = model.forward_batch([source.tolist()], return_log_probs=True)
    log_probs = torch.from_numpy(np.array(scored))[0]  # (T, V)
    return log_probs.gather(-1, target.unsqueeze(-1)).squeeze(-1)


# name of fairseq's model -> (name of CTranslate2's class for it, function that scores tokens by that class)
SCORERS = {"transformer": ("Translator", _score_translation), "transformer_lm": ("Generator", _score_text)}


@torch.no_grad()
def _largest_difference(served: Served, folder: Path) -> float:
    """Return the largest difference, in nats, between log-probabilities of made-up tokens by fairseq and CTranslate2.

    folder: what CTranslate2's converter has written.
    """
    import ctranslate2

    our_model = stock_model(served.folded.config, served.folded.state)
    class_name, scorer = SCORERS[served.folded.stock.name]
    their_model = getattr(ctranslate2, class_name)(str(folder), intra_threads=served.choose_threads())
    end = torch.tensor([EOS])
    limits = np.atleast_1d(our_model.max_positions())  # of encoder and decoder, or one number of a language model
    length = min(TOKENS, *limits) - 1  # without the end, which has a position too
    source_size, target_size = served.folded.vocabulary_sizes

    generator = torch.Generator().manual_seed(0)
    largest = 0.0
    for _ in range(SENTENCES):
        source = torch.randint(SPECIALS, source_size, (length,), generator=generator)
        target = torch.randint(SPECIALS, target_size, (length,), generator=generator)
        if served.text is None:  # a language model: the target stands for the tokens that follow the source
            logits = our_model(source[None])[0]  # (1, T, V)
            predicted = target
        else:
            src_tokens = torch.cat([source, end])[None]
            prev_output_tokens = torch.cat([end, target])[None]
            logits = our_model(src_tokens, torch.tensor([length + 1]), prev_output_tokens)[0]  # (1, T + 1, V)
            predicted = torch.cat([target, end])

        log_probs = logits[0].float().log_softmax(-1)
        ours = log_probs.gather(-1, predicted.unsqueeze(-1)).squeeze(-1)
        theirs = scorer(their_model, served, source, target)
        largest = max(largest, (ours - theirs).abs().max().item())
    return largest
