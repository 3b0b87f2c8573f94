"""Text continued token by token with caches is what the plain path computes: every method, any beam, any padding."""

import copy

import pytest
import torch
from fairseq.search import Sampling
from fairseq.sequence_generator import SequenceGenerator

from deepnet_fairseq import archs
from deepnet_fairseq.methods import METHODS
from deepnet_fairseq.transformer.decoding import ROOM

from .support.helpers import PAD, TOLERANCE
from .support.single_stacks import awake, batch, scores
from .test_lm_methods import fields  # noqa: F401
from .test_methods import every_slot  # noqa: F401

FP32 = TOLERANCE[torch.float32]


def step_by_step(model, tokens, state=None, first=0):
    """Scores (B, T - first, V) of the tokens from `first` on, one after another."""
    state = {} if state is None else state
    with torch.no_grad():
        steps = [model(tokens[:, : t + 1], incremental_state=state)[0] for t in range(first, tokens.size(1))]
    return torch.cat(steps, 1)


def test_incremental_equals_full(fields):  # noqa: F811
    model, tokens = awake(archs.LM, 3, **fields), batch()
    real = tokens.ne(PAD)
    assert torch.allclose(step_by_step(model, tokens)[real], scores(model, tokens)[real], atol=FP32)


def test_incremental_with_reordered_rows(fields):  # noqa: F811
    """Steps, a reorder that drops and repeats rows, more steps = the reordered rows as a whole."""
    model, tokens, state = awake(archs.LM, **fields), batch()[1:], {}
    order = torch.tensor([1, 1, 0])
    step_by_step(model, tokens[:, :3], state)
    model.decoder.reorder_incremental_state_scripting(state, order)
    found = step_by_step(model, tokens[order][:, :6], state, first=3)
    assert torch.allclose(found, scores(model, tokens[order][:, :6])[:, 3:], atol=FP32)


def plainly(model):
    """A copy without a cache: every step reads the whole prefix again."""
    plain = copy.deepcopy(model)
    forward = plain.decoder.forward
    plain.decoder.forward = lambda *args, incremental_state=None, **kwargs: forward(*args, **kwargs)
    return plain


def continued(model, prefixes, **options):
    """What fairseq's generator makes of prefixes (B, T): tokens and scores of every hypothesis."""
    torch.manual_seed(2)
    sample = {"net_input": {"src_tokens": prefixes, "src_lengths": prefixes.ne(PAD).sum(1)}}
    search = SequenceGenerator([model], model.decoder.dictionary, max_len_a=0, max_len_b=2 * ROOM, **options)
    found = search.generate([model], sample, prefix_tokens=prefixes)
    return [(h["tokens"].tolist(), h["positional_scores"].tolist()) for hypotheses in found for h in hypotheses]


def prefixes():
    """Of 3, 5 and 1 tokens, as the task pads them: the generator is free where the prefix is padding."""
    tokens = batch(length=5)
    tokens[0, 3:] = tokens[2, 1:] = PAD
    return tokens


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("method", sorted(METHODS))
def test_beam_search_finds_what_the_plain_path_finds(method, beam):
    """Past the first room of the cache, so that what no beam needs is dropped on the way."""
    model, given = awake(archs.LM, method=method), prefixes()
    cached, plain = (continued(m, given, beam_size=beam) for m in (model, plainly(model)))
    assert len(cached) == 3 * beam and [tokens for tokens, _ in cached] == [tokens for tokens, _ in plain]
    for (_, one), (_, other) in zip(cached, plain, strict=True):
        assert one == pytest.approx(other, abs=1e-4)
    for number, (tokens, positional) in enumerate(cached):
        row = given[number // beam]
        assert tokens[: int(row.ne(PAD).sum())] == row[row.ne(PAD)].tolist()
        assert_likelihoods(model, tokens, positional)


def assert_likelihoods(model, tokens, positional):
    """The generator's scores are the model's log-probabilities of the text behind its first symbol."""
    text = torch.tensor([[model.decoder.dictionary.eos(), *tokens]])
    log_probs = scores(model, text[:, :-1]).log_softmax(-1)
    assert log_probs.gather(-1, text[:, 1:, None]).flatten().tolist() == pytest.approx(positional, abs=1e-4)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_sampling_draws_what_the_plain_path_draws(method):
    model = awake(archs.LM, method=method)
    options = {"beam_size": 3, "search_strategy": Sampling(model.decoder.dictionary, sampling_topk=8)}
    cached, plain = (continued(m, prefixes(), **options) for m in (model, plainly(model)))
    assert [tokens for tokens, _ in cached] == [tokens for tokens, _ in plain]
    assert len({tuple(tokens) for tokens, _ in cached}) > 6  # they are drawn, not all the likeliest


def test_no_attention_weights_where_there_is_no_source():
    """fairseq-generate asks for them after beam search; there are none, whatever it says before."""
    model = awake(archs.LM)
    for need_attn in (True, False):
        model.decoder.make_generation_fast_(need_attn=need_attn)
        with torch.no_grad():
            assert model(batch())[1]["attn"] == [None]
            assert model(batch(), incremental_state={})[1]["attn"] == [None]
