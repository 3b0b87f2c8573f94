"""Tests of the core without fairseq: torch alone builds, trains and decodes, with the results it has in fairseq."""

import importlib.util
import json
import re

import pytest
import torch

from deepnet_fairseq.core import METHODS, Option, beam_search, build
from deepnet_fairseq.core.archs import LM, MASKED_LM, MODEL_NAME
from deepnet_fairseq.core.models import blueprint, parameter_count
from deepnet_fairseq.errors import UserError
from deepnet_fairseq.plugin.building import build as plugin_build

from ..support.helpers import EOS, PAD, ROOT, VOCAB, run_cold
from ..support.single_stacks import EVERY, awake, batch, inputs, scores, sizes, small
from .test_decoding import generated, sources

_spec = importlib.util.spec_from_file_location("torch_alone", ROOT / "results" / "torch_alone" / "run.py")
torch_alone = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(torch_alone)

ALONE = """
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


def test_torch_is_all_it_needs():
    """Every method in every kind of model builds, trains, profiles and decodes without importing fairseq."""
    assert run_cold("python", "-c", ALONE).stdout.split("\n")[-2] == "set()"


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize("method", METHODS)
def test_what_it_builds_is_what_fairseq_builds(kind, method):
    """The core builds the models that fairseq builds: same names, same order, same scores."""
    inside = awake(kind, method=method)
    alone = build(kind, VOCAB, **sizes(kind, 2), method=method).eval()
    alone.load_state_dict(inside.state_dict())
    assert list(alone.state_dict()) == list(inside.state_dict())
    assert torch.equal(scores(alone, *inputs(kind)), scores(inside, *inputs(kind)))


MISTYPED = {
    "encoder_layer": (MODEL_NAME, "did you mean encoder_layers?"),
    "share_all_embedding": (MODEL_NAME, "did you mean share_all_embeddings?"),
    "encoder_layers": (LM, "did you mean decoder_layers?"),
    "post_ln_scale": (MODEL_NAME, "no such field"),
    "zzz": (MODEL_NAME, "drop it"),
}


@pytest.mark.parametrize("maker", [build, blueprint, plugin_build])
@pytest.mark.parametrize("field", MISTYPED)
def test_a_mistyped_field_is_refused(field, maker):
    arch, words = MISTYPED[field]
    with pytest.raises(UserError, match=re.escape(words)) as caught:
        maker(arch, VOCAB, **{field: 2})
    assert str(caught.value).startswith(f"{field}: ") and "\n" not in str(caught.value)


@pytest.mark.parametrize("maker", [build, blueprint, plugin_build, parameter_count])
def test_a_mistyped_architecture_is_refused(maker):
    with pytest.raises(UserError, match="did you mean deepnet_transformer_tiny_18_18[?]") as caught:
        maker("deepnet_transfomer_tiny_18_18", VOCAB)
    assert "\n" not in str(caught.value)


def test_an_option_of_a_method_registered_later_is_a_field(monkeypatch):
    """An option of a method that is registered later becomes a field, although the config classes are older."""
    seen = []
    late = type("Late", (METHODS["post_ln"],), {"name": "late", "options": {"strength": Option(1.0, "how much")},
                                                "check": lambda self: seen.append(self.strength)})  # fmt: skip
    monkeypatch.setitem(METHODS, "late", late)
    with pytest.raises(UserError, match="late_strenght.*did you mean late_strength[?]"):
        build(MODEL_NAME, VOCAB, **sizes(MODEL_NAME, 1), method="late", late_strenght=2.0)
    build(MODEL_NAME, VOCAB, **sizes(MODEL_NAME, 1), method="late", late_strength=2.0)
    assert set(seen) == {2.0}


@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize("kind", [MODEL_NAME, LM])
def test_its_beam_search_finds_what_fairseq_s_finds(kind, beams):
    model = awake(kind)
    given = sources(3, 9, 6) if kind == MODEL_NAME else batch(length=5)[1:]
    begun = 0 if kind == MODEL_NAME else given.size(1)
    theirs = generated(model, given, longest=begun + 12, beam_size=beams)
    ours = [hypothesis for hypotheses in beam_search(model, given, beams, 12) for hypothesis in hypotheses]
    assert [[*hypothesis.tokens.tolist(), EOS] for hypothesis in ours] == [tokens[begun:] for tokens, _ in theirs]
    for hypothesis, (_, (_, *steps)) in zip(ours, theirs, strict=True):
        assert hypothesis.score == pytest.approx(sum(steps[begun:]) / len(steps[begun:]), abs=1e-5)
    assert PAD not in torch.cat([hypothesis.tokens for hypothesis in ours])


def test_its_beam_search_ends_within_the_positions():
    """Beam search stops within the position table as fairseq's does: 6 positions hold 5 tokens and the end.

    No sentences give no results; a beam or a length of 0 is an error.
    """
    model = build("deepnet_transformer_tiny_6_6", vocab=VOCAB, method="deepnorm", share_all_embeddings=True,
                  decoder_learned_pos=True, max_target_positions=6).eval()  # fmt: skip
    with torch.no_grad():
        model.decoder.output_projection.weight[EOS] = -9  # so that it never ends by itself
    hypotheses = beam_search(model, sources(2), beams=2)
    assert {len(hypothesis.tokens) for one in hypotheses for hypothesis in one} == {5}
    assert beam_search(model, sources(2)[:0]) == []
    for wrong in ({"beams": 0}, {"max_length": 0}):
        with pytest.raises(UserError, match="must be at least 1"):
            beam_search(model, sources(2), **wrong)


@pytest.mark.parametrize("learned", [False, True])
def test_a_prompt_longer_than_the_positions_is_refused(learned):
    """A prompt that fills all positions is refused: EOS precedes it, so 6 positions hold a prompt of 5."""
    model = small(LM, decoder_learned_pos=learned, max_target_positions=6)
    prompts = batch(2, 8, seed=1)[1:, :6]
    assert [len(one.tokens) for one in beam_search(model, prompts[:, :5], 1)[0]] == [0]
    with pytest.raises(UserError, match="a prompt of 6 tokens: EOS and it must fit into 6 positions"):
        beam_search(model, prompts, 1)


def test_several_tokens_at_once_are_refused_by_a_cache():
    model, tokens, state = small(LM), batch(2, 8, seed=1)[1:], {}
    for first in (3, 2):
        with pytest.raises(ValueError, match=f"prev_output_tokens {first}: give the whole prefix, one token longer"):
            model(tokens[:, :first], incremental_state=state)
    model(tokens[:, :1], incremental_state=state)
    with pytest.raises(ValueError, match="holds 1 tokens of each row and prev_output_tokens 4"):
        model(tokens[:, :4], incremental_state=state)


def alike(actual, expected):
    """Check that two searches have equal hypotheses; scores differ by rounding, as batch sizes differ."""
    for ours, alone in zip(actual, expected, strict=True):
        assert [one.tokens.tolist() for one in ours] == [one.tokens.tolist() for one in alone]
        assert [one.score for one in ours] == pytest.approx([one.score for one in alone], abs=1e-5)


@pytest.mark.parametrize("padded_on", ["left", "right", "both"])
@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("fields", [{"method": "deepnorm"}, {"method": "pre_ln", "decoder_learned_pos": True}])
def test_prompts_of_unequal_length_continue_as_each_alone(fields, beams, padded_on):
    """Prompts of unequal length continue as each alone, in any order, repeated, and with an empty one among them."""
    model, width = awake(LM, **fields), 9
    lengths = (4, 1, 7, 0, 4, 2)
    prompts = [row[:length] for row, length in zip(batch(6, width, seed=3), lengths, strict=True)]
    padded = torch.full((6, width), PAD)
    for row, prompt in zip(padded, prompts, strict=True):
        first = {"left": width - len(prompt), "right": 0, "both": 1}[padded_on]
        row[first : first + len(prompt)] = prompt
    expected = [beam_search(model, prompt[None], beams, 8)[0] for prompt in prompts]
    assert len({tuple(hypotheses[0].tokens.tolist()) for hypotheses in expected}) > 3
    alike(beam_search(model, padded, beams, 8), expected)
    order = torch.tensor([5, 0, 3, 3, 1])
    alike(beam_search(model, padded[order], beams, 8), [expected[i] for i in order])


def test_scripting_is_refused():
    with pytest.raises(UserError, match="^torch.jit.script: not supported; use torch.compile, or .*") as caught:
        torch.jit.script(build(LM, VOCAB, **sizes(LM, 1)))
    assert "\n" not in str(caught.value)


def test_a_masked_language_model_is_not_searched():
    with pytest.raises(UserError, match="deepnet_masked_lm has no decoder; give a translation or causal"):
        beam_search(small(MASKED_LM), sources(2))


@pytest.mark.parametrize("updates", [2, 600])
def test_the_lines_in_the_readme_train_and_decode(updates, capsys):
    """README's example runs as printed; after all 600 updates the model reverses new sentences."""
    torch.manual_seed(0)
    lines = torch_alone.example()
    assert "range(600)" in lines and len([line for line in lines.split("\n") if line]) <= 24
    exec(lines.replace("range(600)", f"range({updates})"), {})
    *losses, first, second, third = capsys.readouterr().out.splitlines()
    assert len(losses) == updates // 100 and all(re.match(r"update \d00: loss \d\.\d{3}$", line) for line in losses)
    pairs = [[json.loads(part) for part in line.split(" reversed: ")] for line in (first, second, third)]
    assert all(len(source) == 6 for source, _ in pairs)
    assert updates == 2 or (float(losses[-1].split()[-1]) < 0.1 and all(output == one[::-1] for one, output in pairs))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_the_lines_in_the_readme_learn_on_every_seed(seed):
    assert learnt(torch_alone.run(seed))


def learnt(record):
    return record["right"] == record["of"] == 32 and record["final_loss"] < 0.1


def test_the_record_beside_those_lines_is_of_five_seeds_that_learn():
    lines = (ROOT / "results" / "torch_alone" / "records.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert [one["seed"] for one in records] == list(range(5)) and all(map(learnt, records))
    assert max(one["cpu_seconds"] for one in records) <= 75
