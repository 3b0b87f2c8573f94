"""The project's tools on language models: losses in chunks, checks, theorems, divergence, precision, recomputation."""

from __future__ import annotations

import pytest
import torch
from fairseq.logging import metrics

from deepnet_fairseq import archs
from deepnet_fairseq.cli import main

from .support.diverging import Training
from .support.lm_trainings import CAUSAL, FLAGS, KINDS, make_text

STACK = {"causal": "decoder", "masked": "encoder"}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return make_text(tmp_path_factory.mktemp("text"))


def steps(text, folder, *flags, count=3):
    """Losses of the first updates, in bits, and the trainer."""
    training = Training(text, folder, *flags, common=FLAGS)
    losses = []
    for _ in range(count):
        with metrics.aggregate("train_inner"):
            losses.append(float(training.trainer.train_step([next(training.batches)])["loss"]))
    return losses, training.trainer


@pytest.mark.parametrize("tied", [True, False])
def test_the_loss_in_chunks_is_cross_entropy(text, tmp_path, tied):
    flags = [flag for flag in CAUSAL if tied or flag != "--share-decoder-input-output-embed"]
    plain, one = steps(text, tmp_path, *flags)
    chunked, other = steps(text, tmp_path, *flags, "--criterion", "chunked_cross_entropy", "--loss-chunk-tokens", "7")
    assert chunked == pytest.approx(plain, rel=1e-5)
    for (name, a), b in zip(one.model.named_parameters(), other.model.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-5), name


@pytest.mark.parametrize("kind", KINDS)
def test_other_optimisers_and_precisions(text, tmp_path, kind):
    """The losses of Adam in float32, which fall; within what bfloat16 rounds."""
    flags = (*KINDS[kind], "--lr", "1e-2", "--warmup-updates", "1")
    flat = (*flags, "--optimizer", "deepnet_adam")
    expected, _ = steps(text, tmp_path, *flags, count=10)
    assert expected[-1] < expected[0] - 0.2
    assert steps(text, tmp_path, *flat, count=10)[0] == pytest.approx(expected, rel=1e-4)
    found, trainer = steps(text, tmp_path, *flat, "--bf16", "--store-ema", "--ema-decay", "0.9", count=10)
    assert found == pytest.approx(expected, rel=2e-2) and trainer.ema is not None


@pytest.mark.parametrize("kind", KINDS)
def test_a_divergence_is_found_in_its_layer(text, tmp_path, kind):
    training = Training(text, tmp_path, *KINDS[kind], common=FLAGS)
    with torch.no_grad():
        next(reversed(training.model.stacks()[STACK[kind]].layers)).fc1.bias.fill_(float("inf"))
    event = training.event()
    assert event["first"]["where"].startswith(f"{STACK[kind]}.2.ffn")
    assert event["model"][f"{STACK[kind]}_layers"] == 2
    assert not any("source and" in words for words in event["advice"])


@pytest.mark.parametrize("kind", KINDS)
def test_check_speaks_of_the_one_stack(text, kind, capsys):
    main(["check", "--updates", "10", str(text), *FLAGS, *KINDS[kind]])
    printed = capsys.readouterr().out
    absent = ({"encoder", "decoder"} - {STACK[kind]}).pop()
    assert printed.splitlines()[0].startswith("2L deepnorm") and "verdict: stable" in printed
    assert f"grad {STACK[kind]}" in printed and absent not in printed and "nan" not in printed


REFUSED = {
    ("theory", "--arch", "deepnet_lm"): "--arch deepnet_lm: the table is of encoder-decoders",
    ("bench", "--ours=--arch=deepnet_lm"): "the benchmark is of deepnet_transformer",
    ("check", "{text}", "--task", "language_modeling", "--arch", "transformer_lm", *FLAGS): " and ".join(archs.STACKS),
}


@pytest.mark.parametrize("words", REFUSED, ids=lambda words: words[0])
def test_models_that_a_tool_is_not_for(words, text):
    with pytest.raises(SystemExit) as ended:
        main([word.format(text=text) for word in words])
    assert REFUSED[words] in ended.value.code and "\n" not in ended.value.code
