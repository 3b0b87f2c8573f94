"""Tests of the core without fairseq: torch alone builds, trains and decodes, with the same results as in fairseq.

`build` is the core's, `plugin_build` that of the fairseq plug-in, with which `small` and `noisy_model` build models of
width 16; noise on the parameters makes the sentences that a model writes differ. Kinds of models are MODEL_NAME (a
translator), LM (a causal language model) and MASKED_LM.
"""

import json
import re
from itertools import chain
from typing import NamedTuple

import pytest
import torch

from deepnet_fairseq.core import METHODS, Option, beam_search, build
from deepnet_fairseq.core.archs import LM, MASKED_LM, MODEL_NAME
from deepnet_fairseq.core.models import blueprint, parameter_count
from deepnet_fairseq.plugin.building import build as plugin_build

from ..support.decoded import fairseq_hypotheses, source_sentences
from ..support.errors import refused
from ..support.helpers import EOS, PAD, ROOT, VOCAB, run_cold
from ..support.programs import import_program
from ..support.single_stacks import EVERY_KIND as EVERY_KIND
from ..support.single_stacks import batch, inputs, noisy_model, scores, sizes, small

torch_alone = import_program(ROOT / "results" / "torch_alone" / "run.py")

# imports every module of the core and uses every method; its last line of output names what it loaded of fairseq
USE_EVERYTHING = """
import importlib, pkgutil, sys
import torch
import deepnet_fairseq.core as core

for module in pkgutil.walk_packages(core.__path__, "deepnet_fairseq.core."):
    importlib.import_module(module.name)
from deepnet_fairseq.core.probes import PROBES
from deepnet_fairseq.core.probes.session import Session
from deepnet_fairseq.core.profile import profile_omegas

tokens = torch.randint(4, 30, (2, 5))
for arch in ("deepnet_transformer_tiny", "deepnet_lm_tiny", "deepnet_masked_lm_tiny"):
    for method in core.METHODS:
        model = core.build(arch, vocab=30, method=method)
        given = {"src_tokens": tokens, "src_lengths": None}
        if arch == "deepnet_transformer_tiny":
            given["prev_output_tokens"] = tokens
        if core.METHODS[method].profiled:
            profile_omegas(model, given, seed=1)
        session = Session(model, [probe for probe in PROBES.values() if not probe.needs_fixed_batch])
        session.begin()
        model(**given)[0].square().mean().backward()
        session.gradients(1.0)
        assert session.values()
        session.end()
        if arch != "deepnet_masked_lm_tiny":
            assert len(core.beam_search(model, tokens, beams=2, max_length=3)[1]) == 2
loaded_packages = {name.partition(".")[0] for name in sys.modules}
print(sorted(loaded_packages & {"fairseq", "fairseq_cli", "hydra", "omegaconf"}))
"""


def test_every_method_builds_trains_profiles_and_decodes_without_fairseq():
    printed = run_cold("python", "-c", USE_EVERYTHING).stdout

    loaded_of_fairseq = printed.splitlines()[-1]
    assert loaded_of_fairseq == "[]"


@pytest.mark.parametrize("kind", EVERY_KIND)
@pytest.mark.parametrize("method", METHODS)
def test_the_core_builds_the_models_that_the_plug_in_builds(kind, method):
    """Both builders give the same parameters, in the same order, and the same scores."""
    by_plugin = noisy_model(kind, method=method)

    by_core = build(kind, VOCAB, **sizes(kind, 2), method=method).eval()
    by_core.load_state_dict(by_plugin.state_dict())

    assert list(by_core.state_dict()) == list(by_plugin.state_dict())
    assert torch.equal(scores(by_core, *inputs(kind)), scores(by_plugin, *inputs(kind)))


BUILDERS = [build, blueprint, plugin_build]  # of a model with values, of one on the device meta, in fairseq


@pytest.mark.parametrize("builder", BUILDERS)
@pytest.mark.parametrize(
    ("arch", "field", "meant"),
    [
        (MODEL_NAME, "encoder_layer", "encoder_layers"),
        (MODEL_NAME, "share_all_embedding", "share_all_embeddings"),
        (LM, "encoder_layers", "decoder_layers"),
    ],
)
def test_a_mistyped_field_is_refused_with_the_one_meant(arch, field, meant, builder):
    with refused() as caught:
        builder(arch, VOCAB, **{field: 2})

    assert caught.value.subject == field
    assert meant in caught.value.way_out


@pytest.mark.parametrize("builder", BUILDERS)
@pytest.mark.parametrize("field", ["post_ln_scale", "zzz"])  # as an option of post_ln, which has none; like no field
def test_a_field_that_does_not_exist_is_refused_with_the_architecture(field, builder):
    with refused() as caught:
        builder(MODEL_NAME, VOCAB, **{field: 2})

    assert caught.value.subject == field
    assert MODEL_NAME in caught.value.way_out


@pytest.mark.parametrize("function", [*BUILDERS, parameter_count])
def test_a_mistyped_architecture_is_refused_with_the_one_meant(function):
    with refused("deepnet_transfomer_tiny_18_18") as caught:
        function("deepnet_transfomer_tiny_18_18", VOCAB)

    assert "deepnet_transformer_tiny_18_18" in str(caught.value)


@pytest.fixture
def strengths_of_late_method(monkeypatch):
    """Register a method, `late`, when the config classes exist already; it has the option `strength`.

    The value is the list of the strengths with which the method is then made.
    """
    strengths = []

    class Late(METHODS["post_ln"]):
        name = "late"
        options = {"strength": Option(1.0, "how much")}

        def check(self):
            strengths.append(self.strength)

    monkeypatch.setitem(METHODS, "late", Late)
    return strengths


def test_an_option_of_a_method_registered_later_is_a_field(strengths_of_late_method):
    build(MODEL_NAME, VOCAB, **sizes(MODEL_NAME, 1), method="late", late_strength=2.0)

    assert set(strengths_of_late_method) == {2.0}


@pytest.mark.usefixtures("strengths_of_late_method")
def test_a_mistyped_option_of_a_method_registered_later_is_refused():
    with refused("late_strenght") as caught:
        build(MODEL_NAME, VOCAB, **sizes(MODEL_NAME, 1), method="late", late_strenght=2.0)

    assert "late_strength" in caught.value.way_out


def assert_found_by_fairseq(hypotheses, theirs, prompt_length):
    """Check hypotheses of beam_search, of all sentences in a row, against those that fairseq_hypotheses returns.

    fairseq's tokens and scores begin with the prompt's and end with EOS's. Our score is the continuation's mean.
    """
    for hypothesis, (their_tokens, (_their_score, *scores_of_tokens)) in zip(hypotheses, theirs, strict=True):
        assert [*hypothesis.tokens.tolist(), EOS] == their_tokens[prompt_length:]
        continuation = scores_of_tokens[prompt_length:]
        assert hypothesis.score == pytest.approx(sum(continuation) / len(continuation), abs=1e-5)


@pytest.mark.parametrize("beams", [1, 4])
def test_beam_search_translates_as_fairseqs_does(beams):
    model = noisy_model(MODEL_NAME)
    sentences = source_sentences(3, 9, 6)

    found = beam_search(model, sentences, beams, max_length=12)

    theirs = fairseq_hypotheses(model, sentences, max_length=12, beam_size=beams)
    assert_found_by_fairseq(chain(*found), theirs, prompt_length=0)


@pytest.mark.parametrize("beams", [1, 4])
def test_beam_search_continues_prompts_as_fairseqs_does(beams):
    model = noisy_model(LM)
    prompts = batch(length=5)[1:]  # without padding

    found = beam_search(model, prompts, beams, max_length=12)

    theirs = fairseq_hypotheses(model, prompts, max_length=5 + 12, beam_size=beams)  # fairseq counts the prompt
    assert_found_by_fairseq(chain(*found), theirs, prompt_length=5)


def without_eos(_projection, _features, scores):
    """Forward hook of a projection to the vocabulary that makes the end of a sentence very unlikely."""
    scores[..., EOS] = -100
    return scores


@pytest.fixture
def endless_translator():
    """Provide a translator that never ends a sentence by itself, whose decoder has 6 learned positions."""
    model = build(
        "deepnet_transformer_tiny_6_6", vocab=VOCAB, share_all_embeddings=True, decoder_learned_pos=True,
        max_target_positions=6,
    ).eval()  # fmt: skip
    model.decoder.output_projection.register_forward_hook(without_eos)
    return model


def test_beam_search_ends_where_the_decoders_positions_end(endless_translator):
    """The decoder reads EOS and 5 tokens in its 6 positions; the end that follows needs none."""
    (hypotheses,) = beam_search(endless_translator, source_sentences(2), beams=2)

    assert [len(hypothesis.tokens) for hypothesis in hypotheses] == [5, 5]


def test_beam_search_of_no_sentences_gives_no_results(endless_translator):
    no_sentences = source_sentences(2)[:0]

    assert beam_search(endless_translator, no_sentences) == []


@pytest.mark.parametrize("argument", ["beams", "max_length"])
def test_beam_search_refuses_zero_beams_and_a_length_of_zero(argument, endless_translator):
    with refused(f"{argument}=0"):
        beam_search(endless_translator, source_sentences(2), **{argument: 0})


@pytest.fixture
def prompt():
    """Provide one prompt of 8 tokens without padding, (1, 8)."""
    return batch(rows=2, length=8, seed=1)[1:]


every_kind_of_positions = pytest.mark.parametrize("learned", [False, True])


@every_kind_of_positions
def test_a_prompt_that_fills_the_positions_has_an_empty_continuation(learned, prompt):
    """EOS precedes the prompt: 6 positions hold EOS and 5 tokens."""
    model = small(LM, decoder_learned_pos=learned, max_target_positions=6)

    ((hypothesis,),) = beam_search(model, prompt[:, :5], beams=1)

    assert len(hypothesis.tokens) == 0


@every_kind_of_positions
def test_a_prompt_that_leaves_no_position_for_eos_is_refused(learned, prompt):
    """The refusal names the number of positions."""
    model = small(LM, decoder_learned_pos=learned, max_target_positions=6)

    with refused("6 tokens") as caught:
        beam_search(model, prompt[:, :6], beams=1)

    assert re.search(r"\b6\b", caught.value.way_out)


# Decoding with a cache: each call gives the whole prefix, one token longer than the call before


@pytest.mark.parametrize("length", [3, 2])
def test_a_first_step_of_several_tokens_is_refused(length, prompt):
    model = small(LM)

    with pytest.raises(ValueError, match=rf"\b{length}\b"):
        model(prompt[:, :length], incremental_state={})


def test_a_first_step_that_was_refused_leaves_the_state_usable(prompt):
    model = small(LM)
    state = {}
    with pytest.raises(ValueError, match="incremental_state"):
        model(prompt[:, :3], incremental_state=state)

    first_step = model(prompt[:, :1], incremental_state=state)[0]

    assert torch.equal(first_step, model(prompt[:, :1], incremental_state={})[0])


def test_a_later_step_of_several_tokens_is_refused(prompt):
    model = small(LM)
    state = {}
    model(prompt[:, :1], incremental_state=state)

    with pytest.raises(ValueError, match=r"\b1\b.*\b4\b"):  # tokens in the state, tokens of the step
        model(prompt[:, :4], incremental_state=state)


PROMPT_LENGTHS = (4, 1, 7, 0, 4, 2)  # two equal lengths, and an empty prompt
PADDED_LENGTH = 9


def padded_prompts(prompts, padded_on):
    """Return the prompts in rows of 9 tokens, with padding on the left, on the right or on both sides."""
    rows = torch.full((len(prompts), PADDED_LENGTH), PAD)
    for row, prompt in zip(rows, prompts, strict=True):
        if padded_on == "left":
            first = PADDED_LENGTH - len(prompt)
        elif padded_on == "right":
            first = 0
        else:
            first = 1
        row[first : first + len(prompt)] = prompt
    return rows


@pytest.mark.parametrize("padded_on", ["left", "right", "both"])
@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("fields", [{"method": "deepnorm"}, {"method": "pre_ln", "decoder_learned_pos": True}])
def test_prompts_of_unequal_length_continue_as_each_alone(fields, beams, padded_on):
    """Prompts come in any order, the empty one twice. Scores differ by rounding, because batch sizes differ."""
    model = noisy_model(LM, **fields)
    words = batch(len(PROMPT_LENGTHS), PADDED_LENGTH, seed=3)
    prompts = [row[:length] for row, length in zip(words, PROMPT_LENGTHS, strict=True)]
    order = [5, 0, 3, 3, 1, 2, 4]

    alone = [beam_search(model, prompt[None], beams, max_length=8)[0] for prompt in prompts]
    together = beam_search(model, padded_prompts(prompts, padded_on)[order], beams, max_length=8)

    different = {tuple(hypotheses[0].tokens.tolist()) for hypotheses in alone}
    assert len(different) > 3
    for number, hypotheses in zip(order, together, strict=True):
        for one, expected in zip(hypotheses, alone[number], strict=True):
            assert one.tokens.tolist() == expected.tokens.tolist()
            assert one.score == pytest.approx(expected.score, abs=1e-5)


def test_torchscript_is_refused_in_favour_of_torch_compile():
    with refused("torch.jit.script") as caught:
        torch.jit.script(build(LM, VOCAB, **sizes(LM, 1)))

    assert "torch.compile" in caught.value.way_out


def test_a_masked_language_model_is_not_searched():
    with refused("beam_search") as caught:
        beam_search(small(MASKED_LM), source_sentences(2))

    assert MASKED_LM in str(caught.value)


# README's example of the core trains a small translator to reverse sentences of 6 tokens

UPDATES = 600  # of the example
LOW_LOSS = 0.1  # largest loss, in nats, that counts as learnt after all updates
ABOUT_A_MINUTE = 75  # seconds; README says so of the example


def run_example(updates):
    """Run README's example with another number of updates; seed 0."""
    torch.manual_seed(0)
    lines = torch_alone.example()
    assert f"range({UPDATES})" in lines
    exec(lines.replace(f"range({UPDATES})", f"range({updates})"), {})


class Printed(NamedTuple):
    """What README's example has printed."""

    losses: list[float]  # of every hundredth update
    reversals: list[tuple[list[int], list[int]]]  # of three new sentences: (source, output)


def read_printed(text):
    *updates, first, second, third = text.splitlines()
    losses = []
    for line in updates:
        (loss,) = re.fullmatch(r"update \d00: loss (\d\.\d{3})", line).groups()
        losses.append(float(loss))
    reversals = []
    for line in (first, second, third):
        source, output = line.split(" reversed: ")
        reversals.append((json.loads(source), json.loads(output)))
    return Printed(losses, reversals)


def test_readmes_example_has_at_most_24_lines():
    lines = [line for line in torch_alone.example().split("\n") if line]

    assert len(lines) <= 24


def test_readmes_example_runs(capsys):
    run_example(updates=2)

    printed = read_printed(capsys.readouterr().out)
    assert printed.losses == []
    assert [len(source) for source, _ in printed.reversals] == [6, 6, 6]


@pytest.mark.smoke
def test_readmes_example_learns_to_reverse_new_sentences(capsys):
    run_example(UPDATES)

    printed = read_printed(capsys.readouterr().out)
    assert len(printed.losses) == UPDATES // 100
    assert printed.losses[-1] < LOW_LOSS
    for source, output in printed.reversals:
        assert output == source[::-1]


def assert_learnt(record):
    """Check a record of README's example: the loss is low, and all of 32 new sentences come out reversed."""
    assert record["of"] == 32
    assert record["right"] == 32
    assert record["final_loss"] < LOW_LOSS


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_readmes_example_learns_on_every_seed(seed):
    assert_learnt(torch_alone.run(seed))


def test_readmes_example_is_recorded_on_five_seeds_that_learn():
    lines = (ROOT / "results" / "torch_alone" / "records.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]

    assert [record["seed"] for record in records] == [0, 1, 2, 3, 4]
    for record in records:
        assert_learnt(record)
        assert record["cpu_seconds"] <= ABOUT_A_MINUTE
