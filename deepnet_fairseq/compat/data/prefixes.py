"""fairseq-generate --prefix-size, which begins each translation with the first tokens of its reference."""

from __future__ import annotations

from fairseq.tasks.fairseq_task import FairseqTask

from ...errors import UserError
from ..wrapping import wrap


def explain_mistakes() -> None:
    """Idempotent."""
    wrap(FairseqTask, "inference_step", _begun)


def _begun(step, task, generator, models, sample, prefix_tokens=None, constraints=None):
    """UserError for an empty reference: its </s> ends one hypothesis of the beam, and the others never end."""
    if prefix_tokens is not None and getattr(generator, "beam_size", 1) > 1:
        empty = prefix_tokens[:, 0] == task.target_dictionary.eos()
        if empty.any():
            lines = sorted(number + 1 for number in sample["id"][empty].tolist())
            raise UserError(
                f"--prefix-size {prefix_tokens.size(1)}: line {lines[0]} of the data has an empty translation, "
                "which begins nothing; remove such pairs (scripts/prepare_text.sh --drop-empty), or take --beam 1"
            )
    return step(task, generator, models, sample, prefix_tokens=prefix_tokens, constraints=constraints)
