"""Tests of a language model's export: equal perplexity in fairseq-eval-lm, transformers, lm-evaluation-harness."""

from __future__ import annotations

import math
import re

import pytest
import torch
import transformers

from results.zero_shot import harness_model

from ..support.exports import export, reported_difference
from ..support.harness import harness, harness_bits
from ..support.helpers import EOS, USER_DIR, run
from ..support.lm_trainings import train_language_model
from ..support.plain_text import VOCAB, a_texts, prepare  # noqa: F401

EVAL = ("--cpu", "--gen-subset", "test", "--sample-break-mode", "eos", "--user-dir", USER_DIR)
METHODS = {"deepnorm": (), "pre_ln": ("--no-scale-embedding",)}
BOS = 0


def export_to_hub(checkpoint, data, folder) -> str:
    """Export a checkpoint for transformers; return what the command prints."""
    return export(checkpoint, "--to", "huggingface", "--data", data, "--out", folder)


def loaded_by_transformers(hub):
    """Return the exported tokenizer and model."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(hub, local_files_only=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(hub, local_files_only=True).eval()
    return tokenizer, model


@pytest.fixture(scope="module")
def binarised_data(texts, tmp_path_factory):
    """Provide 300 lines in documents, prepared by `deepnet prepare lm` with SentencePiece."""
    return prepare(texts, tmp_path_factory.mktemp("lm") / "bin", "--vocab", VOCAB)


@pytest.fixture(scope="module", params=METHODS)
def checkpoint_and_hub(request, binarised_data, tmp_path_factory):
    """Provide the checkpoint of a model after 20 updates and the folder of its export."""
    folder = tmp_path_factory.mktemp(request.param) / "save"
    flags = ("--method", request.param, *METHODS[request.param], "--tokens-per-sample", 160, "--max-update", 20)
    checkpoint = train_language_model("causal", binarised_data, folder, *flags)

    output = export_to_hub(checkpoint, binarised_data, folder / "hub")

    assert f"{folder / 'hub'}, a OPT" in output
    assert reported_difference(output) < 1e-4
    return checkpoint, folder / "hub"


@pytest.fixture
def hub(checkpoint_and_hub):
    return checkpoint_and_hub[1]


@pytest.fixture
def lines_of_test_text(texts) -> list[str]:
    """Provide the lines of the test text."""
    return texts[2].read_text(encoding="utf-8").split("\n")[:-1]


@pytest.fixture(scope="module")
def measured_by_fairseq(binarised_data, checkpoint_and_hub) -> tuple[float, int]:
    """Provide bits a token of the test text, measured line by line with fairseq-eval-lm, and the number of tokens."""
    checkpoint, _ = checkpoint_and_hub
    output = run("fairseq-eval-lm", binarised_data, *EVAL, "--path", checkpoint).stdout
    bits = float(re.search(r"Loss \(base 2\): (\S+),", output).group(1))
    tokens = int(re.search(r"Evaluated ([\d,]+) tokens", output).group(1).replace(",", ""))
    return bits, tokens


def bits_by_transformers(model, row: list[int]) -> float:
    """Return the bits of a row of tokens behind its first one."""
    tokens = torch.tensor(row)
    with torch.no_grad():
        scores = model(tokens[None, :-1]).logits[0].double().log_softmax(-1)
    nats = -scores.gather(1, tokens[1:, None]).sum().item()
    return nats / math.log(2)


def test_transformers_finds_fairseqs_perplexity(measured_by_fairseq, hub, lines_of_test_text):
    """The exported tokenizer and model give fairseq's bits a token of text, each line with its </s>."""
    bits, tokens = measured_by_fairseq
    tokenizer, model = loaded_by_transformers(hub)

    rows = [[*tokenizer(line.strip())["input_ids"], EOS] for line in lines_of_test_text]
    total = sum(bits_by_transformers(model, row) for row in rows)

    assert sum(len(row) - 1 for row in rows) == tokens
    assert total / tokens == pytest.approx(bits, abs=2e-4)
    assert 2 < bits < 8


def test_an_exports_readme_names_the_pipeline(hub):
    assert "pipeline_tag: text-generation" in (hub / "README.md").read_text()


@pytest.mark.peers
def test_lm_evaluation_harness_finds_an_exports_perplexity(measured_by_fairseq, hub, lines_of_test_text, tmp_path):
    pytest.importorskip("lm_eval", reason="pip install 'lm_eval[hf]'")
    bits, tokens = measured_by_fairseq

    total = harness_bits(harness(hub), lines_of_test_text, tmp_path)

    assert total == pytest.approx(bits * tokens, rel=1e-4)


@pytest.mark.peers
def test_lm_evaluation_harness_finds_a_checkpoints_perplexity(
    binarised_data, checkpoint_and_hub, measured_by_fairseq, lines_of_test_text, tmp_path
):
    """By the model that results/zero_shot.py makes of a checkpoint."""
    pytest.importorskip("lm_eval", reason="pip install 'lm_eval[hf]'")
    checkpoint, _ = checkpoint_and_hub
    bits, tokens = measured_by_fairseq
    (tmp_path / "hub").mkdir()
    model = harness_model(str(checkpoint), tmp_path / "hub", str(binarised_data))
    model.add_bos_token = False  # rolling windows begin with it already
    model.tokenizer.add_bos_token = False

    total = harness_bits(model, lines_of_test_text, tmp_path)

    assert total == pytest.approx(bits * tokens, rel=1e-4)


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


def test_generate_continues_prompts_as_the_logits_say(hub, texts):
    """generate() continues prompts of unequal length greedily as the logits of each alone do.

    The tokenizer begins a prompt with the symbol that begins fairseq's blocks.
    """
    tokenizer, model = loaded_by_transformers(hub)
    long_prompt, other = [line for line in texts[1].read_text(encoding="utf-8").split("\n") if line][:2]
    prompts = [long_prompt, other.split()[0]]

    together = tokenizer(prompts, return_tensors="pt", padding=True)
    rows = model.generate(**together, max_new_tokens=3, do_sample=False)

    assert model.generation_config.bos_token_id == EOS
    for prompt, row in zip(prompts, rows.tolist(), strict=True):
        tokens = tokenizer(prompt)["input_ids"]
        assert tokens[0] == EOS
        without_padding = [token for token in row if token != tokenizer.pad_token_id]
        assert without_padding == continued_greedily(model, tokens, count=3)


def test_a_model_trained_with_add_bos_token_begins_with_s(binarised_data, checkpoint_and_hub, tmp_path):
    """An export of a model trained with --add-bos-token begins with <s> in tokenizer and generate()."""
    state = torch.load(checkpoint_and_hub[0])
    state["cfg"]["task"] |= {"add_bos_token": True}
    torch.save(state, tmp_path / "bos.pt")

    export_to_hub(tmp_path / "bos.pt", binarised_data, tmp_path / "hub")

    tokenizer, model = loaded_by_transformers(tmp_path / "hub")
    assert tokenizer("a")["input_ids"][0] == BOS
    assert tokenizer.bos_token == "<s>"
    assert model.config.bos_token_id == BOS
