"""fairseq-generate --prefix-size on references that are empty, or shorter than the prefix."""

from __future__ import annotations

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator
from fairseq.tasks.translation import TranslationConfig, TranslationTask

from deepnet_fairseq.building import blank_task
from deepnet_fairseq.errors import UserError

from .support.helpers import EOS, PAD, VOCAB, sentences, small

SHORT, EMPTY = [[7, 8, 9], [7, EOS, PAD]], [[7, 8, 9], [EOS, PAD, PAD]]


def translate(prefixes, beam: int) -> list[list[int]]:
    """The best translation of each sentence, by the task's own step."""
    model, source = small(1, share_all_embeddings=True), sentences(len(prefixes), VOCAB)
    dictionary = blank_task(VOCAB).target_dictionary
    sample = {
        "id": torch.tensor([40, 17]),
        "net_input": {"src_tokens": source, "src_lengths": source.ne(PAD).sum(1)},
    }
    search = SequenceGenerator([model], dictionary, beam_size=beam, max_len_a=0, max_len_b=8)
    task = TranslationTask(TranslationConfig(), dictionary, dictionary)
    found = task.inference_step(search, [model], sample, prefix_tokens=torch.tensor(prefixes))
    return [best[0]["tokens"].tolist() for best in found]


@pytest.mark.parametrize(("prefixes", "beam"), [(SHORT, 3), (SHORT, 1), (EMPTY, 1)])
def test_translations_begin_with_them(prefixes, beam):
    for prefix, tokens in zip(prefixes, translate(prefixes, beam), strict=True):
        begun = [token for token in prefix if token != PAD]
        assert tokens[: len(begun)] == begun


def test_an_empty_reference_is_named():
    with pytest.raises(UserError, match=r"--prefix-size 3: line 18 of the data has an empty translation"):
        translate(EMPTY, 3)
