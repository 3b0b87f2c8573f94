"""Tests of incremental decoding with shared, preallocated caches against decoding without a cache."""

import copy

import pytest
import torch
from fairseq.search import Sampling
from fairseq.sequence_generator import SequenceGenerator

from deepnet_fairseq.core.archs import LM, MODEL_NAME
from deepnet_fairseq.core.cache import SHARE, STEPS
from deepnet_fairseq.core.methods import METHODS

from ..support.helpers import EOS, FIRST, PAD, TOLERANCE, VOCAB, small
from ..support.single_stacks import awake
from ..support.single_stacks import batch as text

FP32 = TOLERANCE[torch.float32]
SEARCHES = [((MODEL_NAME, LM)[number % 2], name, 4) for number, name in enumerate(sorted(METHODS))]
SEARCHES += [(kind, "deepnorm", beam) for kind in (MODEL_NAME, LM) for beam in (1, 5)]


def sources(*lengths):
    """Draw sentences of random words, padded on the left."""
    generator = torch.Generator().manual_seed(4)
    rows = torch.full((len(lengths), max(lengths)), PAD)
    for row, length in zip(rows, lengths, strict=True):
        row[-length:] = torch.cat(
            [torch.randint(FIRST, VOCAB, (length - 1,), generator=generator), torch.tensor([EOS])]
        )
    return rows


def prefixes():
    """Draw prefixes of 3, 5 and 1 tokens, padded on the right as the task pads them."""
    tokens = text(length=5)
    tokens[0, 3:] = tokens[2, 1:] = PAD
    return tokens


def generated(model, given, longest=2 * STEPS, **options):
    """Generate with fairseq's generator; return tokens, score and positional scores of every hypothesis."""
    torch.manual_seed(2)
    sample = {"net_input": {"src_tokens": given, "src_lengths": given.ne(PAD).sum(1)}}
    if "sampling" in options:
        options["search_strategy"] = Sampling(model.decoder.dictionary, sampling_topk=options.pop("sampling"))
    search = SequenceGenerator([model], model.decoder.dictionary, max_len_a=0, max_len_b=longest, **options)
    more = {"prefix_tokens": given} if model.NAME == LM else {}
    beams = search.generate([model], sample, **more)
    return [(h["tokens"].tolist(), [float(h["score"]), *h["positional_scores"].tolist()]) for hypotheses in beams
            for h in hypotheses]  # fmt: skip


def plainly(model):
    """Return a copy of the model that decodes without a cache: every step reads the whole prefix again."""
    plain = copy.deepcopy(model)
    forward = plain.decoder.forward
    plain.decoder.forward = lambda *args, incremental_state=None, **kwargs: forward(*args, **kwargs)
    return plain


def assert_plain(model, given, **options):
    """Check that generation with and without caches gives the same tokens and scores; return them."""
    cached, plain = (generated(each, given, **options) for each in (model, plainly(model)))
    assert [tokens for tokens, _ in cached] == [tokens for tokens, _ in plain]
    for (_, ours), (_, theirs) in zip(cached, plain, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-4)
    return cached


@pytest.mark.parametrize("kind", [MODEL_NAME, LM])
def test_what_is_sampled_is_what_the_plain_path_samples(kind):
    """Sampling from the ten likeliest tokens gives the same with and without a cache."""
    samples = assert_plain(awake(kind), prefixes() if kind == LM else sources(3, 9, 6), beam_size=3, sampling=10)
    assert len({tuple(tokens) for tokens, _ in samples}) > 3  # three are drawn for each sentence


@pytest.mark.parametrize(("kind", "name", "beam"), SEARCHES)
def test_beam_search_finds_what_the_plain_path_finds(kind, name, beam):
    """Beam search finds the same with and without a cache, past the length at which the cache drops entries."""
    model, given = awake(kind, method=name), prefixes() if kind == LM else sources(3, 9, 6, 4, 8, 7)
    hypotheses = assert_plain(model, given, beam_size=beam, longest=2 * STEPS if kind == LM else 3 * STEPS)
    assert len(hypotheses) == len(given) * beam


def test_sentences_that_end_early_leave_the_batch():
    model = small(2)
    decoder = type(model.decoder)

    class AsLongAsTheSource(decoder):
        def forward(self, tokens, encoder_out, **kwargs):
            logits, extra = decoder.forward(self, tokens, encoder_out, **kwargs)
            lengths = encoder_out["src_lengths"][0][:, 0]
            logits[lengths == tokens.size(1), -1, EOS] += 50
            return logits, extra

    model.decoder.__class__ = AsLongAsTheSource
    hypotheses = assert_plain(model, sources(3, 9, 6, 4, 8, 7), beam_size=5)
    assert [len(tokens) for tokens, _ in hypotheses[::5]] == [3, 9, 6, 4, 8, 7]


ORDERS = {  # orders of rows, two beams for each sentence
    "ends": [[0, 0, 4, 5, 7, 6, 8, 9], [1, 0, 2, 3, 7, 6], [3, 2, 4, 5], [2, 2]],
    "the last ends": [[0, 1, 2, 2, 4, 5, 6, 7], [0, 1, 3, 2]],
    "change places": [[8, 9, 1, 0, 2, 3, 6, 7, 5, 4], [2, 3, 0, 1, 8, 8]],
    "goes on twice": [[0, 1, 8, 9, 5, 4, 6, 7], [7, 6, 1, 1, 0, 0], [4, 4, 0, 0]],
}


@pytest.mark.parametrize("orders", ORDERS.values(), ids=ORDERS)
def test_rows_are_those_of_the_plain_path_whatever_their_order(orders):
    """Scores and alignments equal those without a cache in any order of rows, also when the cache grows."""
    model, beams = small(2), 2
    model.decoder.make_generation_fast_(need_attn=True)
    src, generator = sources(5, 9, 3, 6, 4), torch.Generator().manual_seed(5)
    prev, state = torch.full((len(src) * beams, 1), EOS), {}
    rows = torch.arange(len(src)).repeat_interleave(beams)
    with torch.no_grad():
        memory = model.encoder.reorder_encoder_out(model.encoder(src), rows)
        for step in range(STEPS + 4):
            logits, extra = model.decoder(prev, memory, incremental_state=state)
            plain, expected = model.decoder(prev, memory)
            assert torch.allclose(logits, plain[:, -1:], atol=FP32)
            assert torch.allclose(extra["attn"][0], expected["attn"][0][:, -1:], atol=FP32)
            order = torch.tensor(orders[step]) if step < len(orders) else torch.arange(len(prev))
            memory = model.encoder.reorder_encoder_out(memory, order)
            model.decoder.reorder_incremental_state_scripting(state, order)
            prev = torch.cat([prev[order], torch.randint(FIRST, VOCAB, (len(order), 1), generator=generator)], 1)


def run_steps(model, lengths, beams, orders):
    """Decode one step for each order of the rows, reordering after the step; return the cache."""
    with torch.no_grad():
        rows = torch.arange(len(lengths)).repeat_interleave(beams)
        memory = model.encoder.reorder_encoder_out(model.encoder(sources(*lengths)), rows)
        prev, state = torch.full((len(rows), 1), EOS), {}
        for order in map(torch.tensor, orders):
            model.decoder(prev, memory, incremental_state=state)
            memory = model.encoder.reorder_encoder_out(memory, order)
            model.decoder.reorder_incremental_state_scripting(state, order)
            prev = torch.cat([prev[order], torch.full((len(order), 1), 5)], 1)
    return state[model.decoder.CACHE]["cache"]


def test_where_a_sentence_ends_no_other_moves_until_a_quarter_has():
    model = small(2)
    cache = run_steps(model, (5, 4, 6, 3, 7), 2, [[0, 1, 4, 5, 6, 7, 8, 9]])
    assert cache.num_entries == 5 and cache.entries.tolist() == [0, 2, 3, 4]
    cache = run_steps(model, (5, 4, 6, 3, 7), 2, [[0, 1, 4, 5, 6, 7, 8, 9], [0, 1, 4, 5, 6, 7]])
    assert cache.entries is None and cache.num_entries == 3 < SHARE * 5
    assert all(one.size(0) == 3 for held in (*cache.prefixes.values(), *cache.sources.values()) for one in held)


def test_what_no_beam_looks_back_at_is_dropped():
    """The cache keeps a prefix once where all beams descend from one hypothesis, not once for each beam."""
    beams = 4
    cache = run_steps(small(1), (5,), beams, [[0] * beams] * (4 * STEPS))
    assert cache.used < 4 * STEPS + beams * STEPS < 4 * STEPS * beams


@pytest.mark.parametrize("recomputing", [False, True])
def test_gradients_flow_through_the_cache(recomputing):
    """Gradients of decoding token by token, as in REINFORCE, equal those of a whole pass."""
    model = small(3, dropout=0.0, attention_dropout=0.0, checkpoint_activations=recomputing).train()
    src, generator = sources(5, 9, 3), torch.Generator().manual_seed(1)
    prev = torch.randint(FIRST, VOCAB, (3, 2 * STEPS), generator=generator)
    gradients = []
    for cached in (False, True):
        model.zero_grad()
        memory, state = model.encoder(src), {}
        if cached:
            rows = [model.decoder(prev[:, : t + 1], memory, incremental_state=state)[0] for t in range(prev.size(1))]
            scores = torch.cat(rows, 1)
        else:
            scores = model.decoder(prev, memory)[0]
        scores.log_softmax(-1).square().mean().backward()
        gradients.append({name: p.grad for name, p in model.named_parameters()})
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("mixed", [False, True])
def test_hooks_and_replaced_forwards_change_a_step_as_they_change_the_whole_pass(mixed):
    """A step equals the whole pass under hooks and replaced forwards, also in autocast's bfloat16."""
    model, calls = small(2), []
    model.decoder.layers[0].register_forward_hook(lambda _module, _given, y: 2 * y)
    model.decoder.layers[1].fc1.register_forward_pre_hook(lambda _module, given: calls.append(given[0].shape))
    forward = model.decoder.layers[1].forward
    model.decoder.layers[1].forward = lambda *args, **kwargs: forward(*args, **kwargs) + 1
    src, prev = sources(5, 9, 3), torch.randint(FIRST, VOCAB, (3, 6), generator=torch.Generator().manual_seed(1))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=mixed):
        memory, state = model.encoder(src), {}
        whole = model.decoder(prev, memory)[0]
        steps = [model.decoder(prev[:, : t + 1], memory, incremental_state=state)[0] for t in range(6)]
    assert whole.dtype == (torch.bfloat16 if mixed else torch.float32)
    tolerance = 0.1 if mixed else FP32  # bfloat16 rounds a logit of 4 by 0.03
    torch.testing.assert_close(torch.cat(steps, 1), whole, atol=tolerance, rtol=1e-4)
    assert [tuple(shape) for shape in calls] == [(3, 6, 16)] + 6 * [(3, 1, 16)]


def test_hypotheses_of_several_sentences_do_not_change_places():
    model = small(1)
    with torch.no_grad():
        memory = model.encoder.reorder_encoder_out(model.encoder(sources(5, 4)), torch.tensor([0, 0, 1, 1]))
        model.decoder(torch.full((4, 1), EOS), memory, incremental_state=(state := {}))
    for order in ([0, 2, 3, 3], [0, 1, 2]):
        with pytest.raises(ValueError, match="several sentences"):
            model.decoder.reorder_incremental_state_scripting(state, torch.tensor(order))


def test_no_attention_weights_where_there_is_no_source():
    """Attention weights are None in a language model, although fairseq-generate asks for them."""
    model = awake(LM)
    for need_attn in (True, False):
        model.decoder.make_generation_fast_(need_attn=need_attn)
        with torch.no_grad():
            assert model(text())[1]["attn"] == [None]
            assert model(text()[:, :1], incremental_state={})[1]["attn"] == [None]
