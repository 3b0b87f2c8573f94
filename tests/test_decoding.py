"""Incremental decoding with shared, preallocated caches: what beam search sees is what the plain path computes."""

from collections import Counter

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator
from torch.utils._python_dispatch import TorchDispatchMode

from deepnet_fairseq.methods import METHODS
from deepnet_fairseq.transformer.decoding import ROOM

from .support.helpers import EOS, FIRST, PAD, TOLERANCE, VOCAB, batch, logits, small

FP32 = TOLERANCE[torch.float32]


def sources(*lengths):
    """Sentences of random words, padded on the left."""
    generator = torch.Generator().manual_seed(4)
    rows = torch.full((len(lengths), max(lengths)), PAD)
    for row, length in zip(rows, lengths, strict=True):
        row[-length:] = torch.cat(
            [torch.randint(FIRST, VOCAB, (length - 1,), generator=generator), torch.tensor([EOS])]
        )
    return rows


def translate(model, src, beam, longest):
    sample = {"net_input": {"src_tokens": src, "src_lengths": src.ne(PAD).sum(1)}}
    search = SequenceGenerator([model], model.decoder.dictionary, beam_size=beam, max_len_a=0, max_len_b=longest)
    return [[(h["tokens"].tolist(), float(h["score"])) for h in found] for found in search.generate([model], sample)]


def plainly(model):
    """The same model without a cache: every step reads the whole prefix again."""
    forward = model.decoder.forward
    model.decoder.forward = lambda *args, incremental_state=None, **kwargs: forward(*args, **kwargs)
    return model


@pytest.mark.parametrize("method", sorted(METHODS))
@pytest.mark.parametrize("beam", [1, 5])
def test_beam_search_finds_what_the_plain_path_finds(method, beam):
    """Past the first room of the cache, so that what no beam needs is dropped on the way."""
    src, longest = sources(3, 9, 6, 4, 8, 7), 3 * ROOM
    model = small(2, method=method)
    for parameter in model.parameters():  # away from a start at which all hypotheses look alike
        parameter.data.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)), alpha=0.1)
    assert_plain(model, src, beam, longest)


def test_sentences_that_end_early_leave_the_batch():
    model = small(2)
    forward = model.decoder.forward

    def as_long_as_the_source(tokens, encoder_out, **kwargs):
        scores, extra = forward(tokens, encoder_out, **kwargs)
        lengths = encoder_out["src_lengths"][0][encoder_out["rows"], 0]
        scores[lengths == tokens.size(1), -1, EOS] += 50
        return scores, extra

    model.decoder.forward = as_long_as_the_source
    lengths = [len(found[0][0]) for found in assert_plain(model, sources(3, 9, 6, 4, 8, 7), 5, 2 * ROOM)]
    assert lengths == [3, 9, 6, 4, 8, 7]


def assert_plain(model, src, beam, longest):
    """Beam search with caches = beam search without: tokens and scores, which it returns."""
    cached = translate(model, src, beam, longest)
    plain = translate(plainly(model), src, beam, longest)
    for ours, theirs in zip(cached, plain, strict=True):
        assert [tokens for tokens, _ in ours] == [tokens for tokens, _ in theirs]
        assert [score for _, score in ours] == pytest.approx([score for _, score in theirs], abs=1e-4)
    return plain


def test_what_no_beam_looks_back_at_is_dropped():
    """Where all beams descend from one, the cache keeps a prefix once, not once a beam."""
    model, beams = small(1), 4
    src = sources(5)
    with torch.no_grad():
        memory = model.encoder.reorder_encoder_out(model.encoder(src), torch.zeros(beams, dtype=torch.long))
        state, prev = {}, torch.full((beams, 1), EOS)
        for _ in range(4 * ROOM):
            model.decoder(prev, memory, incremental_state=state)
            model.decoder.reorder_incremental_state_scripting(state, torch.zeros(beams, dtype=torch.long))
            prev = torch.cat([prev, torch.full((beams, 1), 5)], 1)
    cache, _steps = state[model.decoder.CACHE]
    assert cache.steps == 4 * ROOM
    assert cache.used < cache.steps + beams * ROOM < cache.steps * beams


def test_rows_of_several_sentences_may_be_mixed():
    """Callers are free to reorder beyond a sentence's own beams; the cache then takes each row for itself."""
    model, beams = small(2), 3
    src = sources(5, 4)
    expand = torch.arange(2).repeat_interleave(beams)
    prev = torch.randint(FIRST, VOCAB, (2 * beams, 7), generator=torch.Generator().manual_seed(3))
    first, second = torch.tensor([1, 0, 0, 5, 3, 3]), torch.tensor([4, 0, 5, 5, 1])
    with torch.no_grad():
        memory = model.encoder.reorder_encoder_out(model.encoder(src), expand)
        state, rows, seen = {}, expand, prev
        for t in range(6):
            last = model.decoder(seen[:, : t + 1], memory, incremental_state=state)[0]
            if t in (1, 3):
                order = first if t == 1 else second
                model.decoder.reorder_incremental_state_scripting(state, order)
                memory = model.encoder.reorder_encoder_out(memory, order)
                rows, seen = rows[order], seen[order]
    assert torch.allclose(last[:, -1], logits(model, src[rows], seen[:, :6])[:, -1], atol=FP32)


class Kernels(TorchDispatchMode):
    """Counts what would be launched on a GPU."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.counts[function] += not function.is_view
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [1, 0, 3, 3], [2, 3], [3, 0, 1, 1]])
def test_reordering_costs_the_same_at_any_depth(order):
    def launched(layers):
        model = small(layers)
        src = sources(5, 3)
        with torch.no_grad():
            memory = model.encoder.reorder_encoder_out(model.encoder(src), torch.tensor([0, 0, 1, 1]))
            state = {}
            for t in range(3):
                model.decoder(torch.full((4, t + 1), 5), memory, incremental_state=state)
            with Kernels() as kernels:
                model.decoder.reorder_incremental_state_scripting(state, torch.tensor(order))
                model.encoder.reorder_encoder_out(memory, torch.tensor(order))
        return kernels.counts.total()

    assert launched(1) == launched(9)


def test_alignments_are_those_of_the_plain_path():
    model = small(2)
    src, prev = batch()
    prev = prev[1:]
    with torch.no_grad():
        memory, state = model.encoder(src[1:]), {}
        model.decoder.make_generation_fast_(need_attn=True)
        steps = [model.decoder(prev[:, : t + 1], memory, incremental_state=state)[1]["attn"][0] for t in range(3)]
        whole = model.decoder(prev[:, :3], memory)[1]["attn"][0]
    assert torch.allclose(torch.cat(steps, 1), whole, atol=FP32)
