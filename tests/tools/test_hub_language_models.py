"""Tests of a language model's export: equal perplexity in fairseq-eval-lm, transformers, lm-evaluation-harness."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import transformers

from results.zero_shot import harness_model

from ..support.exports import export, reported_difference
from ..support.harness import harness_bits, load_in_harness
from ..support.helpers import EOS, USER_DIR, run
from ..support.lm_trainings import train_language_model
from ..support.plain_text import VOCAB, make_texts, prepare  # noqa: F401

EVAL = ("--cpu", "--gen-subset", "test", "--sample-break-mode", "eos", "--user-dir", USER_DIR)  # one line at a time
# A Post-LN whose embedding is multiplied by sqrt(width), and a Pre-LN without that factor. Only without the factor one
# matrix of transformers' model embeds and predicts.
METHODS = {"deepnorm": (), "pre_ln": ("--no-scale-embedding",)}
BOS = 0  # number of <s>; that of </s>, EOS, begins fairseq's blocks of text unless --add-bos-token is given


def export_to_hub(checkpoint, data, folder) -> str:
    """Export a checkpoint for transformers; return what the command prints."""
    return export(checkpoint, "--to", "huggingface", "--data", data, "--out", folder)


def loaded_by_transformers(hub) -> tuple:
    """Load an exported folder; return its tokenizer and its model."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(hub, local_files_only=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(hub, local_files_only=True).eval()
    return tokenizer, model


@pytest.fixture(scope="module")
def binarised_data(texts, tmp_path_factory):
    """Provide 300 lines in documents, prepared by `deepnet prepare lm` with SentencePiece."""
    return prepare(texts, tmp_path_factory.mktemp("lm") / "bin", "--vocab", VOCAB)


class Exported(NamedTuple):
    """A language model and its export for transformers."""

    checkpoint: Path
    hub: Path  # folder of the export


@pytest.fixture(scope="module", params=METHODS)
def exported(request, binarised_data, tmp_path_factory) -> Exported:
    """Provide a causal 2L model of each of METHODS, after 20 updates.

    The model has positions for 160 tokens, enough for the longest line of the test text.
    """
    folder = tmp_path_factory.mktemp(request.param) / "save"
    flags = ("--method", request.param, *METHODS[request.param], "--tokens-per-sample", 160, "--max-update", 20)
    checkpoint = train_language_model("causal", binarised_data, folder, *flags)

    output = export_to_hub(checkpoint, binarised_data, folder / "hub")

    assert "OPT" in output  # the model of transformers
    assert reported_difference(output) < 1e-4
    return Exported(checkpoint, folder / "hub")


@pytest.fixture
def lines_of_test_text(texts) -> list[str]:
    """Provide the lines of the test text."""
    _, _, test_text = texts
    return test_text.read_text(encoding="utf-8").split("\n")[:-1]


class Measured(NamedTuple):
    """What fairseq-eval-lm finds for the test text, measured line by line."""

    bits: float  # a token
    tokens: int


@pytest.fixture(scope="module")
def measured_by_fairseq(binarised_data, exported) -> Measured:
    output = run("fairseq-eval-lm", binarised_data, *EVAL, "--path", exported.checkpoint).stdout
    bits = re.search(r"Loss \(base 2\): (\S+),", output).group(1)
    tokens = re.search(r"Evaluated ([\d,]+) tokens", output).group(1)
    return Measured(float(bits), int(tokens.replace(",", "")))


def bits_by_transformers(model, row: list[int]) -> float:
    """Return the bits of a row of tokens behind its first one."""
    tokens = torch.tensor(row)
    with torch.no_grad():
        scores = model(tokens[None, :-1]).logits[0].double().log_softmax(-1)
    nats = -scores.gather(1, tokens[1:, None]).sum().item()
    return nats / math.log(2)


def test_transformers_finds_fairseqs_perplexity(measured_by_fairseq, exported, lines_of_test_text):
    """The exported tokenizer and model give fairseq's bits a token of text, each line with its </s>."""
    tokenizer, model = loaded_by_transformers(exported.hub)

    rows = [[*tokenizer(line.strip())["input_ids"], EOS] for line in lines_of_test_text]
    bits = sum(bits_by_transformers(model, row) for row in rows)

    tokens = sum(len(row) - 1 for row in rows)  # without the symbol that begins each line
    assert tokens == measured_by_fairseq.tokens
    assert bits / tokens == pytest.approx(measured_by_fairseq.bits, abs=2e-4)


def test_the_measured_bits_are_of_the_size_of_a_guess(measured_by_fairseq):
    """A guess among 150 pieces costs log2(150) = 7.2 bits, and 20 updates teach hardly more."""
    assert 2 < measured_by_fairseq.bits < 8


def test_an_exports_readme_names_the_pipeline(exported):
    assert "pipeline_tag: text-generation" in (exported.hub / "README.md").read_text()


@pytest.mark.peers
def test_lm_evaluation_harness_finds_an_exports_perplexity(measured_by_fairseq, exported, lines_of_test_text, tmp_path):
    pytest.importorskip("lm_eval", reason="pip install 'lm_eval[hf]'")

    bits = harness_bits(load_in_harness(exported.hub), lines_of_test_text, tmp_path)

    assert bits == pytest.approx(measured_by_fairseq.bits * measured_by_fairseq.tokens, rel=1e-4)


@pytest.mark.peers
def test_lm_evaluation_harness_finds_a_checkpoints_perplexity(
    binarised_data, exported, measured_by_fairseq, lines_of_test_text, tmp_path
):
    """The harness measures the model that results/zero_shot.py makes of a checkpoint."""
    pytest.importorskip("lm_eval", reason="pip install 'lm_eval[hf]'")
    (tmp_path / "hub").mkdir()
    model = harness_model(str(exported.checkpoint), tmp_path / "hub", str(binarised_data))
    model.add_bos_token = False  # rolling windows begin with this symbol already
    model.tokenizer.add_bos_token = False

    bits = harness_bits(model, lines_of_test_text, tmp_path)

    assert bits == pytest.approx(measured_by_fairseq.bits * measured_by_fairseq.tokens, rel=1e-4)


def continued_greedily(model, tokens: list[int], count: int) -> list[int]:
    """Continue tokens by the most probable one, at most `count` times and not behind an end."""
    tokens = list(tokens)
    for _ in range(count):
        with torch.no_grad():
            logits = model(torch.tensor([tokens])).logits
        tokens.append(int(logits[0, -1].argmax()))
        if tokens[-1] == EOS:
            break
    return tokens


def test_generate_continues_prompts_as_the_logits_say(exported, texts):
    """generate() continues prompts of unequal length, padded, greedily as the logits of each alone do."""
    tokenizer, model = loaded_by_transformers(exported.hub)
    validation_text = texts[1]
    lines = [line for line in validation_text.read_text(encoding="utf-8").split("\n") if line]
    first_word_of_second_line = lines[1].split()[0]
    prompts = [lines[0], first_word_of_second_line]

    together = tokenizer(prompts, return_tensors="pt", padding=True)
    rows = model.generate(**together, max_new_tokens=3, do_sample=False)

    for prompt, row in zip(prompts, rows.tolist(), strict=True):
        tokens = tokenizer(prompt)["input_ids"]
        without_padding = [token for token in row if token != tokenizer.pad_token_id]
        assert without_padding == continued_greedily(model, tokens, count=3)


def test_a_prompt_begins_with_the_symbol_that_begins_fairseqs_blocks(exported):
    """Without --add-bos-token the symbol is </s>, in the tokenizer and in generate() without a prompt."""
    tokenizer, model = loaded_by_transformers(exported.hub)

    assert tokenizer("a")["input_ids"][0] == EOS
    assert model.generation_config.bos_token_id == EOS


def test_a_model_trained_with_add_bos_token_begins_with_s(binarised_data, exported, tmp_path):
    """An export of a model trained with --add-bos-token begins with <s> in tokenizer and generate()."""
    state = torch.load(exported.checkpoint)
    state["cfg"]["task"] |= {"add_bos_token": True}
    torch.save(state, tmp_path / "bos.pt")

    export_to_hub(tmp_path / "bos.pt", binarised_data, tmp_path / "hub")

    tokenizer, model = loaded_by_transformers(tmp_path / "hub")
    assert tokenizer("a")["input_ids"][0] == BOS
    assert tokenizer.bos_token == "<s>"
    assert model.config.bos_token_id == BOS
