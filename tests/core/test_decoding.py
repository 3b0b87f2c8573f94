"""Tests of incremental decoding with shared, preallocated caches against decoding without a cache."""

import copy
from itertools import product

import pytest
import torch

from deepnet_fairseq.core.archs import LM, MODEL_NAME
from deepnet_fairseq.core.cache import SHARE, STEPS
from deepnet_fairseq.core.methods import METHODS

from ..support.decoded import fairseq_hypotheses, source_sentences, step_by_step
from ..support.helpers import EOS, FIRST, PAD, TOLERANCE, VOCAB, small
from ..support.single_stacks import batch as text_batch
from ..support.single_stacks import noisy_model

FP32 = TOLERANCE[torch.float32]
SEARCHES = [((MODEL_NAME, LM)[number % 2], name, 4) for number, name in enumerate(sorted(METHODS))]
SEARCHES += product((MODEL_NAME, LM), ["deepnorm"], (1, 5))


def prompts():
    """Draw prompts of 3, 5 and 1 tokens, padded on the right as the task pads them."""
    tokens = text_batch(length=5)
    tokens[0, 3:] = PAD
    tokens[2, 1:] = PAD
    return tokens


def random_words(*shape, seed):
    return torch.randint(FIRST, VOCAB, shape, generator=torch.Generator().manual_seed(seed))


def without_cache(model):
    """Return a copy of the model that decodes without a cache: every step reads the whole prefix again."""
    plain = copy.deepcopy(model)
    forward = plain.decoder.forward
    plain.decoder.forward = lambda *args, incremental_state=None, **kwargs: forward(*args, **kwargs)
    return plain


def assert_same_without_cache(model, tokens, max_length=2 * STEPS, **options):
    """Check that generation with and without a cache gives the same tokens and scores; return the tokens."""
    cached = fairseq_hypotheses(model, tokens, max_length, **options)
    plain = fairseq_hypotheses(without_cache(model), tokens, max_length, **options)

    generated = [tokens for tokens, _ in cached]
    assert generated == [tokens for tokens, _ in plain]
    for (_, ours), (_, theirs) in zip(cached, plain, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-4)
    return generated


@pytest.mark.parametrize("kind", [MODEL_NAME, LM])
def test_sampling_with_a_cache_equals_sampling_without(kind):
    """Tokens are sampled from the ten likeliest, three times for each sentence."""
    given = prompts() if kind == LM else source_sentences(3, 9, 6)

    samples = assert_same_without_cache(noisy_model(kind), given, beam_size=3, sampling_topk=10)

    different = {tuple(tokens) for tokens in samples}
    assert len(different) > 3


@pytest.mark.parametrize(("kind", "name", "beam"), SEARCHES)
def test_beam_search_with_a_cache_equals_beam_search_without(kind, name, beam):
    """The search goes past the length at which the cache drops entries."""
    model = noisy_model(kind, method=name)
    if kind == LM:
        given = prompts()
        max_length = 2 * STEPS
    else:
        given = source_sentences(3, 9, 6, 4, 8, 7)
        max_length = 3 * STEPS

    hypotheses = assert_same_without_cache(model, given, max_length, beam_size=beam)

    assert len(hypotheses) == len(given) * beam


def test_sentences_that_end_early_do_not_change_the_others():
    """A model that ends each sentence at the length of its source decodes the same with and without a cache."""
    lengths = [3, 9, 6, 4, 8, 7]
    model = small(2)
    decoder_class = type(model.decoder)

    class AsLongAsTheSource(decoder_class):
        def forward(self, tokens, encoder_out, **kwargs):
            logits, extra = decoder_class.forward(self, tokens, encoder_out, **kwargs)
            source_lengths = encoder_out["src_lengths"][0][:, 0]
            logits[source_lengths == tokens.size(1), -1, EOS] += 50
            return logits, extra

    model.decoder.__class__ = AsLongAsTheSource
    hypotheses = assert_same_without_cache(model, source_sentences(*lengths), beam_size=5)

    best = hypotheses[::5]
    assert [len(tokens) for tokens in best] == lengths


class Beams:
    """Hypotheses of sentences of these lengths, decoded with a cache step by step; a test chooses who continues."""

    @torch.no_grad()
    def __init__(self, model, lengths, beams):
        self.model = model
        rows = torch.arange(len(lengths)).repeat_interleave(beams)
        encoded = model.encoder(source_sentences(*lengths))
        self.memory = model.encoder.reorder_encoder_out(encoded, rows)
        self.prev = torch.full((len(rows), 1), EOS)
        self.state = {}

    @torch.no_grad()
    def step(self):
        """Return the logits and the alignment of the last token."""
        logits, extra = self.model.decoder(self.prev, self.memory, incremental_state=self.state)
        return logits, extra["attn"][0]

    @torch.no_grad()
    def step_without_cache(self):
        """Return the same from a pass over the whole prefix."""
        logits, extra = self.model.decoder(self.prev, self.memory)
        alignment = extra["attn"][0]
        return logits[:, -1:], alignment if alignment is None else alignment[:, -1:]

    def reorder(self, order, words):
        """Continue the hypotheses `order` by one word each, (len(order), 1)."""
        order = torch.tensor(order)
        self.memory = self.model.encoder.reorder_encoder_out(self.memory, order)
        self.model.decoder.reorder_incremental_state_scripting(self.state, order)
        self.prev = torch.cat([self.prev[order], words], 1)

    @property
    def cache(self):
        return self.state[self.model.decoder.CACHE]["cache"]


def cache_after(model, lengths, beams, orders):
    """Return the cache after a step for each order of the rows, reordered after the step."""
    decoding = Beams(model, lengths, beams)
    for order in orders:
        decoding.step()
        decoding.reorder(order, torch.full((len(order), 1), 5))
    return decoding.cache


ORDERS = {  # rows that continue after each step, two beams for each of five sentences
    "sentences end": [[0, 0, 4, 5, 7, 6, 8, 9], [1, 0, 2, 3, 7, 6], [3, 2, 4, 5], [2, 2]],
    "the last sentence ends": [[0, 1, 2, 2, 4, 5, 6, 7], [0, 1, 3, 2]],
    "sentences change places": [[8, 9, 1, 0, 2, 3, 6, 7, 5, 4], [2, 3, 0, 1, 8, 8]],
    "a sentence goes on twice": [[0, 1, 8, 9, 5, 4, 6, 7], [7, 6, 1, 1, 0, 0], [4, 4, 0, 0]],
}


@pytest.mark.parametrize("orders", ORDERS.values(), ids=ORDERS)
def test_a_cached_step_equals_a_whole_pass_whatever_the_order_of_rows(orders):
    """Scores and alignments are equal, also when the cache grows."""
    model = small(2)
    model.decoder.make_generation_fast_(need_attn=True)
    decoding = Beams(model, (5, 9, 3, 6, 4), beams=2)
    generator = torch.Generator().manual_seed(5)

    for number in range(STEPS + 4):
        logits, alignment = decoding.step()
        expected_logits, expected_alignment = decoding.step_without_cache()
        assert torch.allclose(logits, expected_logits, atol=FP32)
        assert torch.allclose(alignment, expected_alignment, atol=FP32)

        order = orders[number] if number < len(orders) else list(range(len(decoding.prev)))
        words = torch.randint(FIRST, VOCAB, (len(order), 1), generator=generator)
        decoding.reorder(order, words)


FIVE_SENTENCES = (5, 4, 6, 3, 7)  # lengths


def test_the_cache_keeps_the_rows_of_an_ended_sentence_for_a_while():
    cache = cache_after(small(2), FIVE_SENTENCES, 2, [[0, 1, 4, 5, 6, 7, 8, 9]])

    assert cache.num_entries == 5
    assert cache.entries.tolist() == [0, 2, 3, 4]


def test_the_cache_drops_ended_sentences_when_they_are_a_quarter():
    cache = cache_after(small(2), FIVE_SENTENCES, 2, [[0, 1, 4, 5, 6, 7, 8, 9], [0, 1, 4, 5, 6, 7]])

    assert cache.num_entries == 3
    assert cache.num_entries < SHARE * 5
    assert cache.entries is None
    entries = [*cache.prefixes.values(), *cache.sources.values()]
    assert entries
    for keys_and_values in entries:
        for tensor in keys_and_values:
            assert tensor.size(0) == 3


def test_the_cache_keeps_a_common_prefix_once():
    """Where all beams descend from one hypothesis, its prefix is there once, not once for each beam."""
    beams = 4
    steps = 4 * STEPS
    cache = cache_after(small(1), (5,), beams, [[0] * beams] * steps)

    entries_since_the_last_compaction = beams * STEPS
    assert cache.used < steps + entries_since_the_last_compaction
    assert steps + entries_since_the_last_compaction < steps * beams  # what a cache of every beam's prefix would hold


@pytest.mark.parametrize("recomputing", [False, True])
def test_gradients_flow_through_the_cache(recomputing):
    """Gradients of decoding token by token, as in REINFORCE, equal those of a whole pass."""
    model = small(3, dropout=0.0, attention_dropout=0.0, checkpoint_activations=recomputing).train()
    src = source_sentences(5, 9, 3)
    prev = random_words(3, 2 * STEPS, seed=1)

    def gradients_through(decode):
        model.zero_grad()
        scores = decode(model.encoder(src))
        scores.log_softmax(-1).square().mean().backward()
        return {name: parameter.grad for name, parameter in model.named_parameters()}

    of_a_whole_pass = gradients_through(lambda memory: model.decoder(prev, memory)[0])
    through_the_cache = gradients_through(lambda memory: step_by_step(model, prev, memory))

    for name, gradient in of_a_whole_pass.items():
        torch.testing.assert_close(through_the_cache[name], gradient, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("mixed", [False, True])
def test_hooks_and_replaced_forwards_act_in_a_step_as_in_a_whole_pass(mixed):
    """A step equals the whole pass under hooks and replaced forwards, also in autocast's bfloat16."""
    model = small(2)
    first, second = model.decoder.layers
    src = source_sentences(5, 9, 3)
    prev = random_words(3, 6, seed=1)
    shapes_at_fc1 = []
    forward = second.forward
    first.register_forward_hook(lambda _module, _given, y: 2 * y)
    second.fc1.register_forward_pre_hook(lambda _module, given: shapes_at_fc1.append(tuple(given[0].shape)))
    second.forward = lambda *args, **kwargs: forward(*args, **kwargs) + 1

    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=mixed):
        memory = model.encoder(src)
        whole = model.decoder(prev, memory)[0]
        steps = step_by_step(model, prev, memory)

    tolerance = 0.1 if mixed else FP32  # bfloat16 rounds a logit of 4 by 0.03
    assert whole.dtype == (torch.bfloat16 if mixed else torch.float32)
    torch.testing.assert_close(steps, whole, atol=tolerance, rtol=1e-4)
    assert shapes_at_fc1 == [(3, 6, 16)] + [(3, 1, 16)] * 6


@pytest.mark.parametrize("order", [[0, 2, 3, 3], [0, 1, 2]])
def test_an_order_that_mixes_rows_of_several_sentences_is_refused(order):
    decoding = Beams(small(1), (5, 4), beams=2)
    decoding.step()

    with pytest.raises(ValueError, match="sentences"):
        decoding.model.decoder.reorder_incremental_state_scripting(decoding.state, torch.tensor(order))


@pytest.mark.parametrize("need_attn", [True, False])
def test_a_language_model_has_no_alignment(need_attn):
    """It has no source, although fairseq-generate asks for attention weights."""
    model = noisy_model(LM)
    model.decoder.make_generation_fast_(need_attn=need_attn)
    tokens = text_batch()

    with torch.no_grad():
        of_a_whole_pass = model(tokens)[1]["attn"]
        of_a_step = model(tokens[:, :1], incremental_state={})[1]["attn"]

    assert of_a_whole_pass == [None]
    assert of_a_step == [None]
