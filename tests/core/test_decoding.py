"""Tests of incremental decoding with shared, preallocated caches against decoding without a cache.

A row of the decoder's batch is a beam, a hypothesis that still grows; the beams of a sentence follow one another. The
cache has an entry for each sentence, with keys and values that all its beams share. It makes room for STEPS further
steps when it is full, so that tests decode for more steps than that. `source_sentences(3, 9)` are sentences of 3 and 9
tokens.
"""

import copy
from itertools import chain

import pytest
import torch

from deepnet_fairseq.core.archs import LM, MODEL_NAME
from deepnet_fairseq.core.cache import STEPS
from deepnet_fairseq.core.methods import METHODS

from ..support.decoded import fairseq_hypotheses, source_sentences, step_by_step
from ..support.helpers import EOS, FIRST, PAD, TOLERANCE, VOCAB, small
from ..support.single_stacks import batch as text_batch
from ..support.single_stacks import noisy_model

FP32 = TOLERANCE[torch.float32]


def draw_prompts():
    """Draw prompts (3, 5) of 3, 5 and 1 tokens, padded on the right as fairseq's task pads them."""
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
    """Check that fairseq's generator gives the same hypotheses with and without a cache; return their tokens.

    tokens: source sentences or prompts; options: of fairseq_hypotheses.
    """
    cached = fairseq_hypotheses(model, tokens, max_length, **options)
    uncached = fairseq_hypotheses(without_cache(model), tokens, max_length, **options)

    for (tokens_of_one, scores_of_one), (expected_tokens, expected_scores) in zip(cached, uncached, strict=True):
        assert tokens_of_one == expected_tokens
        assert scores_of_one == pytest.approx(expected_scores, abs=1e-4)
    return [tokens_of_one for tokens_of_one, _ in cached]


def assert_sampling_same_without_cache(model, tokens):
    """Sample three times for each sentence, from the ten likeliest tokens, with and without a cache."""
    samples = assert_same_without_cache(model, tokens, beam_size=3, sampling_topk=10)

    different = {tuple(sample) for sample in samples}
    assert len(different) > 3


def test_sampling_translations_with_a_cache_equals_sampling_without():
    assert_sampling_same_without_cache(noisy_model(MODEL_NAME), source_sentences(3, 9, 6))


def test_sampling_continuations_with_a_cache_equals_sampling_without():
    assert_sampling_same_without_cache(noisy_model(LM), draw_prompts())


# half of the methods translate, the other half continue prompts, with four beams; DeepNorm does both with one and five
TRANSLATED_WITH = [*((method, 4) for method in sorted(METHODS)[::2]), ("deepnorm", 1), ("deepnorm", 5)]
CONTINUED_WITH = [*((method, 4) for method in sorted(METHODS)[1::2]), ("deepnorm", 1), ("deepnorm", 5)]


@pytest.mark.parametrize(("method", "beams"), TRANSLATED_WITH)
def test_translation_with_a_cache_equals_translation_without(method, beams):
    sentences = source_sentences(3, 9, 6, 4, 8, 7)

    hypotheses = assert_same_without_cache(
        noisy_model(MODEL_NAME, method=method), sentences, max_length=3 * STEPS, beam_size=beams
    )

    assert len(hypotheses) == len(sentences) * beams


@pytest.mark.parametrize(("method", "beams"), CONTINUED_WITH)
def test_continuation_with_a_cache_equals_continuation_without(method, beams):
    prompts = draw_prompts()

    hypotheses = assert_same_without_cache(
        noisy_model(LM, method=method), prompts, max_length=2 * STEPS, beam_size=beams
    )

    assert len(hypotheses) == len(prompts) * beams


def test_sentences_that_end_early_do_not_change_the_others():
    """The model here ends each sentence at the length of its source."""
    lengths = [3, 9, 6, 4, 8, 7]
    beams = 5
    model = small(2)
    decoder_class = type(model.decoder)

    class AsLongAsTheSource(decoder_class):
        def forward(self, tokens, encoder_out, **kwargs):
            logits, extra = decoder_class.forward(self, tokens, encoder_out, **kwargs)
            source_lengths = encoder_out["src_lengths"][0][:, 0]
            logits[source_lengths == tokens.size(1), -1, EOS] += 50
            return logits, extra

    model.decoder.__class__ = AsLongAsTheSource

    hypotheses = assert_same_without_cache(model, source_sentences(*lengths), beam_size=beams)

    best = hypotheses[::beams]
    assert [len(tokens) for tokens in best] == lengths


class Decoding:
    """Beam search of sentences of these lengths, step by step; a test chooses which rows continue.

    prev: prefixes (rows, steps so far); memory: the encoder's output, repeated for each row; state: fairseq's
    incremental_state, which holds the cache.
    """

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
        """Return scores (rows, 1, V) and alignment (rows, 1, S) of the last token; the alignment may be None."""
        logits, extra = self.model.decoder(self.prev, self.memory, incremental_state=self.state)
        return logits, extra["attn"][0]

    @torch.no_grad()
    def step_without_cache(self):
        """Return scores and alignment of the last token from a pass over the whole prefix."""
        logits, extra = self.model.decoder(self.prev, self.memory)
        return logits[:, -1:], extra["attn"][0][:, -1:]

    def reorder(self, order, words):
        """Let row i continue row order[i] of the last step by words[i]; words (len(order), 1)."""
        order = torch.tensor(order)
        self.memory = self.model.encoder.reorder_encoder_out(self.memory, order)
        self.model.decoder.reorder_incremental_state_scripting(self.state, order)
        self.prev = torch.cat([self.prev[order], words], 1)

    @property
    def cache(self):
        return self.state[self.model.decoder.CACHE]["cache"]


def cache_after(model, lengths, beams, orders):
    """Return the cache after as many steps as there are orders; after each, rows continue in its order."""
    any_word = FIRST
    decoding = Decoding(model, lengths, beams)
    for order in orders:
        decoding.step()
        decoding.reorder(order, torch.full((len(order), 1), any_word))
    return decoding.cache


ORDERS = {  # rows that continue after each step; of five sentences with two beams each, rows 0 and 1 are the first's
    "sentences end": [[0, 0, 4, 5, 7, 6, 8, 9], [1, 0, 2, 3, 7, 6], [3, 2, 4, 5], [2, 2]],
    "the last sentence ends": [[0, 1, 2, 2, 4, 5, 6, 7], [0, 1, 3, 2]],
    "sentences change places": [[8, 9, 1, 0, 2, 3, 6, 7, 5, 4], [2, 3, 0, 1, 8, 8]],
    "a sentence continues in the place of others too": [
        [0, 1, 8, 9, 5, 4, 6, 7], [7, 6, 1, 1, 0, 0], [4, 4, 0, 0],
    ],
}  # fmt: skip


@pytest.mark.parametrize("orders", ORDERS.values(), ids=ORDERS)
def test_a_cached_step_equals_a_whole_pass_whatever_the_order_of_rows(orders):
    """Scores and alignments are equal after each order, and when the cache has grown."""
    model = small(2)
    model.decoder.make_generation_fast_(need_attn=True)
    decoding = Decoding(model, lengths=(5, 9, 3, 6, 4), beams=2)

    for number in range(STEPS + 4):
        logits, alignment = decoding.step()
        expected_logits, expected_alignment = decoding.step_without_cache()
        assert torch.allclose(logits, expected_logits, atol=FP32)
        assert torch.allclose(alignment, expected_alignment, atol=FP32)

        same_order = list(range(len(decoding.prev)))
        order = orders[number] if number < len(orders) else same_order
        decoding.reorder(order, random_words(len(order), 1, seed=number))


FIVE_SENTENCES = (5, 4, 6, 3, 7)  # lengths; with two beams, rows 2 and 3 are those of sentence 1
WITHOUT_SENTENCE_1 = [0, 1, 4, 5, 6, 7, 8, 9]
WITHOUT_THE_LAST = [0, 1, 2, 3, 4, 5]  # of the four sentences that are left


def test_the_cache_keeps_the_entry_of_one_ended_sentence_of_five():
    """Four fifths of the entries are in use, more than SHARE of core/cache.py."""
    cache = cache_after(small(2), FIVE_SENTENCES, beams=2, orders=[WITHOUT_SENTENCE_1])

    assert cache.num_entries == 5
    assert cache.entries.tolist() == [0, 2, 3, 4]  # of the sentences that are left


def test_the_cache_drops_the_entries_of_two_ended_sentences_of_five():
    """Three fifths of the entries are in use, less than SHARE of core/cache.py."""
    cache = cache_after(small(2), FIVE_SENTENCES, beams=2, orders=[WITHOUT_SENTENCE_1, WITHOUT_THE_LAST])

    assert cache.num_entries == 3
    assert cache.entries is None  # sentence i is in entry i
    keys_and_values = [*chain(*cache.prefixes.values()), *chain(*cache.sources.values())]
    assert len(keys_and_values) == 2 * 2 * 2  # of two layers' self- and cross-attention
    for tensor in keys_and_values:
        assert tensor.size(0) == 3


def test_the_cache_keeps_a_common_prefix_once():
    """All beams descend from one hypothesis here. The cache holds their prefix once, not once for each beam."""
    beams = 4
    steps = 4 * STEPS
    all_continue_the_first = [0] * beams

    cache = cache_after(small(1), (5,), beams, orders=[all_continue_the_first] * steps)

    one_prefix = steps
    since_the_last_compaction = beams * STEPS  # at most
    assert cache.used < one_prefix + since_the_last_compaction
    assert one_prefix + since_the_last_compaction < beams * steps  # what the prefixes of all beams would take


@pytest.mark.parametrize("checkpoint_activations", [False, True])
def test_gradients_through_the_cache_equal_those_of_a_whole_pass(checkpoint_activations):
    """Training on decoded tokens, as by REINFORCE, needs gradients through the cache."""
    model = small(3, attention_dropout=0.0, checkpoint_activations=checkpoint_activations).train()
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


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, FP32), (torch.bfloat16, 0.1)],  # bfloat16's numbers from 4 on are 0.03 apart
)
def test_hooks_and_replaced_forwards_act_in_a_step_as_in_a_whole_pass(dtype, tolerance):
    """A hook doubles the first layer's output. A replaced forward adds 1 to the second's. bfloat16 is autocast's."""
    model = small(2)
    first, second = model.decoder.layers
    sentences = 3
    length = 6
    src = source_sentences(5, 9, 3)
    prev = random_words(sentences, length, seed=1)
    shapes_at_fc1 = []
    forward = second.forward
    first.register_forward_hook(lambda _module, _given, y: 2 * y)
    second.fc1.register_forward_pre_hook(lambda _module, given: shapes_at_fc1.append(tuple(given[0].shape)))
    second.forward = lambda *args, **kwargs: forward(*args, **kwargs) + 1

    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        memory = model.encoder(src)
        whole = model.decoder(prev, memory)[0]
        steps = step_by_step(model, prev, memory)

    assert whole.dtype == dtype
    torch.testing.assert_close(steps, whole, atol=tolerance, rtol=1e-4)
    in_the_whole_pass = (sentences, length, 16)
    in_a_step = (sentences, 1, 16)
    assert shapes_at_fc1 == [in_the_whole_pass] + [in_a_step] * length


@pytest.mark.parametrize("order", [[0, 2, 3, 3], [0, 1, 2]], ids=["of two sentences", "of one beam alone"])
def test_an_order_that_separates_the_beams_of_a_sentence_is_refused(order):
    """Rows 0 and 1 are the beams of the first sentence, rows 2 and 3 those of the second."""
    decoding = Decoding(small(1), lengths=(5, 4), beams=2)
    decoding.step()

    with pytest.raises(ValueError, match="sentences"):
        decoding.model.decoder.reorder_incremental_state_scripting(decoding.state, torch.tensor(order))


@pytest.mark.parametrize("need_attn", [True, False])
def test_a_language_model_has_no_alignment(need_attn):
    """A language model has no source. fairseq-generate asks for attention weights all the same."""
    model = noisy_model(LM)
    model.decoder.make_generation_fast_(need_attn=need_attn)
    tokens = text_batch()

    with torch.no_grad():
        of_a_whole_pass = model(tokens)[1]["attn"]
        of_a_step = model(tokens[:, :1], incremental_state={})[1]["attn"]

    assert of_a_whole_pass == [None]
    assert of_a_step == [None]
