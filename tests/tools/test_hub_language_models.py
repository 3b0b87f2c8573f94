"""Tests of a language model's export: equal perplexity in fairseq-eval-lm, transformers, lm-evaluation-harness."""

from __future__ import annotations

import math
import re
from contextlib import redirect_stdout
from io import StringIO

import pytest
import torch
import transformers

from deepnet_fairseq import cli
from results.zero_shot import harness_model

from ..support.harness import harness, harness_bits
from ..support.helpers import EOS, USER_DIR, run
from ..support.plain_text import VOCAB, a_texts, prepare  # noqa: F401
from .test_language_model_export import trained

EVAL = ("--cpu", "--gen-subset", "test", "--sample-break-mode", "eos", "--user-dir", USER_DIR)
LONGEST = ("--tokens-per-sample", 160)
METHODS = {"deepnorm": (), "pre_ln": ("--no-scale-embedding",)}


def export(path, prepared, out, *words) -> str:
    """Run `deepnet export --to huggingface` in this process; return its output."""
    with redirect_stdout(StringIO()) as output:
        cli.main(["export", *map(str, (path, "--to", "huggingface", "--data", prepared, "--out", out, *words))])
    return output.getvalue()


def loaded(hub):
    """Load the exported tokenizer and model."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(hub, local_files_only=True)
    return tokenizer, transformers.AutoModelForCausalLM.from_pretrained(hub, local_files_only=True).eval()


@pytest.fixture(scope="module", name="prepared")
def a_prepared(texts, tmp_path_factory):
    """Provide 300 lines in documents, prepared by `deepnet prepare lm` with SentencePiece."""
    return prepare(texts, tmp_path_factory.mktemp("lm") / "bin", "--vocab", VOCAB)


@pytest.fixture(scope="module", name="exported", params=METHODS)
def an_exported(request, prepared, tmp_path_factory):
    """Provide the checkpoint of a model after 20 updates and the folder of its export."""
    folder = tmp_path_factory.mktemp(request.param) / "save"
    flags = ("--method", request.param, *METHODS[request.param], *LONGEST, "--max-update", 20)
    path = trained("causal", prepared, folder, *flags)
    output = export(path, prepared, folder / "hub")
    assert f"wrote {folder / 'hub'}, a OPT; its logits differ by at most " in output
    return path, folder / "hub"


def measured(prepared, path) -> tuple[float, int]:
    """Measure the test text line by line with fairseq-eval-lm; return bits a token and the number of tokens."""
    output = run("fairseq-eval-lm", prepared, *EVAL, "--path", path).stdout
    tokens = int(re.search(r"Evaluated ([\d,]+) tokens", output).group(1).replace(",", ""))
    return float(re.search(r"Loss \(base 2\): (\S+),", output).group(1)), tokens


def test_the_export_finds_fairseqs_perplexity(prepared, exported, texts):
    """The exported tokenizer and model give fairseq's bits a token of text, each line with its </s>."""
    path, hub = exported
    bits, tokens = measured(prepared, path)
    tokenizer, model = loaded(hub)
    rows = [[*tokenizer(line.strip())["input_ids"], EOS] for line in texts[2].read_text().split("\n")[:-1]]
    total = 0.0
    for row in map(torch.tensor, rows):
        with torch.no_grad():
            scores = model(row[None, :-1]).logits[0].double().log_softmax(-1)
        total -= scores.gather(1, row[1:, None]).sum().item() / math.log(2)
    assert sum(len(row) - 1 for row in rows) == tokens and total / tokens == pytest.approx(bits, abs=2e-4)
    assert "pipeline_tag: text-generation" in (hub / "README.md").read_text() and 2 < bits < 8


@pytest.mark.peers
def test_lm_evaluation_harness_finds_fairseqs_perplexity(prepared, exported, texts, tmp_path):
    """lm-evaluation-harness finds fairseq's perplexity for the export, and for the checkpoint in zero_shot.py."""
    pytest.importorskip("lm_eval", reason="pip install 'lm_eval[hf]'")
    path, hub = exported
    bits, tokens = measured(prepared, path)
    (tmp_path / "hub").mkdir()
    as_it_is = harness_model(str(path), tmp_path / "hub", str(prepared))
    as_it_is.tokenizer.add_bos_token = as_it_is.add_bos_token = False  # rolling windows begin with it already
    for model in (harness(hub), as_it_is):
        total = harness_bits(model, texts[2].read_text(encoding="utf-8").split("\n")[:-1], tmp_path)
        assert total == pytest.approx(bits * tokens, rel=1e-4)


def test_it_goes_on_greedily_as_its_logits_say(exported, texts):
    """generate() continues prompts of unequal length greedily as the logits of each alone do.

    The tokenizer begins a prompt with the symbol that begins fairseq's blocks.
    """
    tokenizer, model = loaded(exported[1])
    prompts = [line for line in texts[1].read_text(encoding="utf-8").split("\n") if line][:2]
    prompts[1] = prompts[1].split()[0]
    rows = model.generate(**tokenizer(prompts, return_tensors="pt", padding=True), max_new_tokens=3, do_sample=False)
    for prompt, row in zip(prompts, rows, strict=True):
        alone = tokenizer(prompt)["input_ids"]
        assert alone[0] == EOS == model.generation_config.bos_token_id
        for _ in range(3):
            with torch.no_grad():
                alone.append(int(model(torch.tensor([alone])).logits[0, -1].argmax()))
            if alone[-1] == EOS:
                break
        assert [int(i) for i in row if i != tokenizer.pad_token_id] == alone


def test_a_beginning_of_its_own(prepared, exported, tmp_path):
    """An export of a model trained with --add-bos-token begins with <s> in tokenizer and generate()."""
    state = torch.load(exported[0])
    state["cfg"]["task"] |= {"add_bos_token": True}
    torch.save(state, tmp_path / "bos.pt")
    export(tmp_path / "bos.pt", prepared, tmp_path / "hub")
    tokenizer, model = loaded(tmp_path / "hub")
    assert tokenizer("a")["input_ids"][0] == 0 == model.config.bos_token_id and tokenizer.bos_token == "<s>"
