"""Tests of the core without fairseq: torch alone builds, trains and decodes, with the results it has in fairseq."""

import json
import re

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
from ..support.single_stacks import EVERY, batch, inputs, noisy_model, scores, sizes, small

torch_alone = import_program(ROOT / "results" / "torch_alone" / "run.py")

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
print({name.partition(".")[0] for name in sys.modules} & {"fairseq", "hydra", "omegaconf", "fairseq_cli"})
"""


def test_every_method_builds_trains_profiles_and_decodes_without_fairseq():
    printed = run_cold("python", "-c", USE_EVERYTHING).stdout

    imported = printed.split("\n")[-2]
    assert imported == "set()"


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize("method", METHODS)
def test_the_core_builds_the_models_that_fairseq_builds(kind, method):
    """They have the same parameters, in the same order, and the same scores."""
    in_fairseq = noisy_model(kind, method=method)

    alone = build(kind, VOCAB, **sizes(kind, 2), method=method).eval()
    alone.load_state_dict(in_fairseq.state_dict())

    assert list(alone.state_dict()) == list(in_fairseq.state_dict())
    assert torch.equal(scores(alone, *inputs(kind)), scores(in_fairseq, *inputs(kind)))


@pytest.mark.parametrize("maker", [build, blueprint, plugin_build])
@pytest.mark.parametrize(
    ("arch", "field", "meant"),
    [
        (MODEL_NAME, "encoder_layer", "encoder_layers"),
        (MODEL_NAME, "share_all_embedding", "share_all_embeddings"),
        (LM, "encoder_layers", "decoder_layers"),
    ],
)
def test_a_mistyped_field_is_refused_with_the_one_meant(arch, field, meant, maker):
    with refused() as caught:
        maker(arch, VOCAB, **{field: 2})

    assert caught.value.subject == field
    assert meant in caught.value.way_out


@pytest.mark.parametrize("maker", [build, blueprint, plugin_build])
@pytest.mark.parametrize("field", ["post_ln_scale", "zzz"])
def test_a_field_that_does_not_exist_is_refused(field, maker):
    with refused() as caught:
        maker(MODEL_NAME, VOCAB, **{field: 2})

    assert caught.value.subject == field
    assert MODEL_NAME in caught.value.way_out


@pytest.mark.parametrize("maker", [build, blueprint, plugin_build, parameter_count])
def test_a_mistyped_architecture_is_refused_with_the_one_meant(maker):
    with refused("deepnet_transfomer_tiny_18_18") as caught:
        maker("deepnet_transfomer_tiny_18_18", VOCAB)

    assert "deepnet_transformer_tiny_18_18" in str(caught.value)


@pytest.fixture
def late_method(monkeypatch):
    """Register a method with the option `strength` after the config classes were made; return the strengths it gets."""
    strengths = []

    class Late(METHODS["post_ln"]):
        name = "late"
        options = {"strength": Option(1.0, "how much")}

        def check(self):
            strengths.append(self.strength)

    monkeypatch.setitem(METHODS, "late", Late)
    return strengths


def test_an_option_of_a_method_registered_later_is_a_field(late_method):
    build(MODEL_NAME, VOCAB, **sizes(MODEL_NAME, 1), method="late", late_strength=2.0)

    assert set(late_method) == {2.0}


def test_a_mistyped_option_of_a_method_registered_later_is_refused(late_method):
    with refused("late_strenght") as caught:
        build(MODEL_NAME, VOCAB, **sizes(MODEL_NAME, 1), method="late", late_strenght=2.0)

    assert "late_strength" in caught.value.way_out


@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize("kind", [MODEL_NAME, LM])
def test_beam_search_finds_what_fairseqs_finds(kind, beams):
    model = noisy_model(kind)
    if kind == MODEL_NAME:
        given = source_sentences(3, 9, 6)
        prompt_length = 0
    else:
        given = batch(length=5)[1:]
        prompt_length = given.size(1)

    theirs = fairseq_hypotheses(model, given, max_length=prompt_length + 12, beam_size=beams)
    ours = []
    for of_sentence in beam_search(model, given, beams, max_length=12):
        ours.extend(of_sentence)

    for hypothesis, (tokens, (_, *positional_scores)) in zip(ours, theirs, strict=True):
        assert PAD not in hypothesis.tokens
        assert [*hypothesis.tokens.tolist(), EOS] == tokens[prompt_length:]
        continuation = positional_scores[prompt_length:]
        mean = sum(continuation) / len(continuation)
        assert hypothesis.score == pytest.approx(mean, abs=1e-5)


def endless_translator(max_target_positions):
    """Build a translator that never ends a sentence by itself."""
    model = build(
        "deepnet_transformer_tiny_6_6",
        vocab=VOCAB,
        method="deepnorm",
        share_all_embeddings=True,
        decoder_learned_pos=True,
        max_target_positions=max_target_positions,
    ).eval()
    with torch.no_grad():
        model.decoder.output_projection.weight[EOS] = -9
    return model


def test_beam_search_ends_within_the_positions():
    """Beam search stops within the position table as fairseq's does: 6 positions hold 5 tokens and the end."""
    model = endless_translator(max_target_positions=6)

    (hypotheses,) = beam_search(model, source_sentences(2), beams=2)

    assert [len(hypothesis.tokens) for hypothesis in hypotheses] == [5, 5]


def test_beam_search_of_no_sentences_gives_no_results():
    no_sentences = source_sentences(2)[:0]

    assert beam_search(endless_translator(max_target_positions=6), no_sentences) == []


@pytest.mark.parametrize("argument", ["beams", "max_length"])
def test_beam_search_refuses_a_zero(argument):
    with refused(f"{argument}=0"):
        beam_search(endless_translator(max_target_positions=6), source_sentences(2), **{argument: 0})


@pytest.mark.parametrize("learned", [False, True])
def test_a_prompt_longer_than_the_positions_is_refused(learned):
    """A prompt that fills all positions is refused: EOS precedes it, so 6 positions hold a prompt of 5."""
    model = small(LM, decoder_learned_pos=learned, max_target_positions=6)
    prompts = batch(2, 8, seed=1)[1:, :6]

    (hypotheses,) = beam_search(model, prompts[:, :5], beams=1)
    with refused("6 tokens") as caught:
        beam_search(model, prompts, beams=1)

    assert [len(one.tokens) for one in hypotheses] == [0]
    assert "6 positions" in caught.value.way_out


@pytest.fixture
def prompts_of_eight_tokens():
    return batch(2, 8, seed=1)[1:]


@pytest.mark.parametrize("length", [3, 2])
def test_a_first_step_of_several_tokens_is_refused(length, prompts_of_eight_tokens):
    model = small(LM)

    with pytest.raises(ValueError, match=f"prev_output_tokens {length}"):
        model(prompts_of_eight_tokens[:, :length], incremental_state={})


def test_a_first_step_that_was_refused_leaves_the_state_usable(prompts_of_eight_tokens):
    model = small(LM)
    state = {}

    with pytest.raises(ValueError, match="prev_output_tokens"):
        model(prompts_of_eight_tokens[:, :3], incremental_state=state)
    model(prompts_of_eight_tokens[:, :1], incremental_state=state)


def test_a_later_step_of_several_tokens_is_refused(prompts_of_eight_tokens):
    model = small(LM)
    state = {}
    model(prompts_of_eight_tokens[:, :1], incremental_state=state)

    with pytest.raises(ValueError, match=r"\b1\b.*prev_output_tokens 4"):
        model(prompts_of_eight_tokens[:, :4], incremental_state=state)


PROMPT_LENGTHS = (4, 1, 7, 0, 4, 2)
PADDED_LENGTH = 9


def padded_prompts(prompts, padded_on):
    """Return the prompts in rows of 9 tokens, with padding on the left, on the right or on both sides."""
    rows = torch.full((len(prompts), PADDED_LENGTH), PAD)
    for row, prompt in zip(rows, prompts, strict=True):
        first = {"left": PADDED_LENGTH - len(prompt), "right": 0, "both": 1}[padded_on]
        row[first : first + len(prompt)] = prompt
    return rows


def assert_same_hypotheses(actual, expected):
    """Check that two searches have equal hypotheses; scores differ by rounding, as batch sizes differ."""
    for ours, alone in zip(actual, expected, strict=True):
        for one, other in zip(ours, alone, strict=True):
            assert one.tokens.tolist() == other.tokens.tolist()
            assert one.score == pytest.approx(other.score, abs=1e-5)


@pytest.mark.parametrize("padded_on", ["left", "right", "both"])
@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("fields", [{"method": "deepnorm"}, {"method": "pre_ln", "decoder_learned_pos": True}])
def test_prompts_of_unequal_length_continue_as_each_alone(fields, beams, padded_on):
    """So they do in another order, repeated, and with an empty one among them."""
    model = noisy_model(LM, **fields)
    words = batch(6, PADDED_LENGTH, seed=3)
    prompts = [row[:length] for row, length in zip(words, PROMPT_LENGTHS, strict=True)]
    padded = padded_prompts(prompts, padded_on)
    order = [5, 0, 3, 3, 1]

    alone = [beam_search(model, prompt[None], beams, max_length=8)[0] for prompt in prompts]
    together = beam_search(model, padded, beams, max_length=8)
    reordered = beam_search(model, padded[order], beams, max_length=8)

    different = {tuple(hypotheses[0].tokens.tolist()) for hypotheses in alone}
    assert len(different) > 3
    assert_same_hypotheses(together, alone)
    assert_same_hypotheses(reordered, [alone[number] for number in order])


def test_torchscript_is_refused():
    with refused("torch.jit.script") as caught:
        torch.jit.script(build(LM, VOCAB, **sizes(LM, 1)))

    assert "torch.compile" in caught.value.way_out


def test_a_masked_language_model_is_not_searched():
    with refused("beam_search") as caught:
        beam_search(small(MASKED_LM), source_sentences(2))

    assert MASKED_LM in str(caught.value)


UPDATES = 600  # of README's example
LEARNT_LOSS = 0.1  # at most, after all updates


def run_example(updates):
    """Run README's example with another number of updates; seed 0."""
    torch.manual_seed(0)
    lines = torch_alone.example()
    assert f"range({UPDATES})" in lines
    exec(lines.replace(f"range({UPDATES})", f"range({updates})"), {})


def printed_losses_and_pairs(printed):
    """Return the losses that the example has printed, and (source, output) of the three sentences it has reversed."""
    *updates, first, second, third = printed.splitlines()
    losses = []
    for line in updates:
        (loss,) = re.fullmatch(r"update \d00: loss (\d\.\d{3})", line).groups()
        losses.append(float(loss))
    pairs = []
    for line in (first, second, third):
        source, output = line.split(" reversed: ")
        pairs.append((json.loads(source), json.loads(output)))
    return losses, pairs


def test_readmes_example_is_short():
    lines = [line for line in torch_alone.example().split("\n") if line]

    assert len(lines) <= 24


@pytest.mark.parametrize("updates", [2, pytest.param(UPDATES, marks=pytest.mark.smoke)])
def test_readmes_example_runs_as_printed(updates, capsys):
    """After all 600 updates the model reverses new sentences."""
    run_example(updates)

    losses, pairs = printed_losses_and_pairs(capsys.readouterr().out)
    assert len(losses) == updates // 100
    for source, _ in pairs:
        assert len(source) == 6
    if updates == UPDATES:
        assert losses[-1] < LEARNT_LOSS
        for source, output in pairs:
            assert output == source[::-1]


def assert_learnt(record):
    """Check a record of README's example: the loss is low, and all of 32 new sentences come out reversed."""
    assert record["of"] == 32
    assert record["right"] == 32
    assert record["final_loss"] < LEARNT_LOSS


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
        assert record["cpu_seconds"] <= 75
