"""The project's tools on language models: losses in chunks, checks, theorems, divergence, precision, recomputation."""

from __future__ import annotations

import json

import pytest
import torch
from fairseq.logging import metrics

from deepnet_fairseq import archs
from deepnet_fairseq.building import build
from deepnet_fairseq.cli import main
from deepnet_fairseq.divergence import Diverged, report
from deepnet_fairseq.errors import UserError
from deepnet_fairseq.theory import branches, largest_gain, matrices, stack_bound

from .support.helpers import PAD, VOCAB
from .support.lm_trainings import CAUSAL, FLAGS, KINDS, make_text, train, trainer_of

STACK = {"causal": "decoder", "masked": "encoder"}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return make_text(tmp_path_factory.mktemp("text"))


def steps(text, folder, *flags, count=3):
    """Losses of the first updates, in bits, and the trainer."""
    trainer, batches = trainer_of(text, folder, *flags)
    losses = []
    for _ in range(count):
        with metrics.aggregate("train_inner"):
            losses.append(float(trainer.train_step([next(batches)])["loss"]))
    return losses, trainer


@pytest.mark.parametrize("tied", [True, False])
def test_the_loss_in_chunks_is_cross_entropy(text, tmp_path, tied):
    flags = [flag for flag in CAUSAL if tied or flag != "--share-decoder-input-output-embed"]
    plain, one = steps(text, tmp_path, *flags)
    chunked, other = steps(text, tmp_path, *flags, "--criterion", "chunked_cross_entropy", "--loss-chunk-tokens", "7")
    assert chunked == pytest.approx(plain, rel=1e-5)
    for (name, a), b in zip(one.model.named_parameters(), other.model.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-5), name


def test_a_masked_model_has_no_matrix_to_chunk(text, tmp_path):
    trainer, batches = trainer_of(text, tmp_path, *KINDS["masked"], "--criterion", "chunked_cross_entropy")
    with pytest.raises(UserError, match="--criterion chunked_cross_entropy: the model has no output projection"):
        trainer.criterion(trainer.model, next(batches))


WAYS = {
    "flat": ("--optimizer", "deepnet_adam"),
    "half": ("--bf16", "--optimizer", "deepnet_adam", "--store-ema", "--ema-decay", "0.9"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_other_optimisers_and_precisions(text, tmp_path, kind, way):
    """The losses of Adam in float32, which fall; within what bfloat16 rounds."""
    expected, _ = steps(text, tmp_path, *KINDS[kind], "--lr", "1e-2", "--warmup-updates", "1", count=10)
    found, trainer = steps(text, tmp_path, *KINDS[kind], "--lr", "1e-2", "--warmup-updates", "1", *WAYS[way], count=10)
    assert found == pytest.approx(expected, rel=1e-4 if way == "flat" else 2e-2)
    assert expected[-1] < expected[0] - 0.2
    assert (trainer.ema is not None) == (way == "half")


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_for_gpus_says_so(text, tmp_path, kind):
    with pytest.raises(UserError, match="--compile-layers: for a GPU, and this training runs on the CPU"):
        trainer_of(text, tmp_path, *KINDS[kind], "--compile-layers")


# without LayerNorm, at a rate that ends in infinities from update 2 on
WILD = ("--method", "t_fixup", "--lr", "3e12", "--warmup-updates", "40", "--warmup-init-lr", "1e-4")


@pytest.mark.parametrize("kind", KINDS)
def test_a_divergence_is_found_in_its_layer(text, tmp_path, kind):
    trainer, batches = trainer_of(text, tmp_path, *KINDS[kind])
    with torch.no_grad():
        next(reversed(trainer.model.stacks()[STACK[kind]].layers)).fc1.bias.fill_(float("inf"))
    with pytest.raises(Diverged) as caught:
        trainer.train_step([next(batches)])
    event = report.event(trainer, caught.value.stop, 1)
    assert event["first"]["where"].startswith(f"{STACK[kind]}.2.ffn")
    assert event["model"][f"{STACK[kind]}_layers"] == 2
    assert not any("source and" in words for words in event["advice"])


def test_a_wild_run_is_set_back(text, tmp_path):
    flags = ("--save-interval-updates", "1", "--max-update", "5", "--rollbacks", "3", "--rollback-lr-factor", "1e-15")
    train(text, tmp_path, *CAUSAL, *WILD, *flags, "--disable-validation")
    events = json.loads((tmp_path / report.JSON).read_text())["events"]
    assert events[0]["rollback"]["factor"] == 1e-15
    last = torch.load(tmp_path / "checkpoint_last.pt", weights_only=True)
    assert last["optimizer_history"][-1]["num_updates"] == 5
    assert all(torch.isfinite(value).all() for value in last["model"].values() if value.is_floating_point())


@pytest.mark.parametrize("kind", KINDS)
def test_check_speaks_of_the_one_stack(text, kind, capsys):
    main(["check", "--updates", "10", str(text), *FLAGS, *KINDS[kind]])
    printed = capsys.readouterr().out
    absent = ({"encoder", "decoder"} - {STACK[kind]}).pop()
    assert printed.splitlines()[0].startswith("2L deepnorm") and "verdict: stable" in printed
    assert f"grad {STACK[kind]}" in printed and absent not in printed and "nan" not in printed


def test_check_names_the_models_it_is_for(text, capsys):
    words = ["--task", "language_modeling", "--arch", "transformer_lm", *FLAGS]
    with pytest.raises(SystemExit) as ended:
        main(["check", str(text), *words])
    assert f"for {' and '.join(archs.STACKS)}" in str(ended.value.code)


def bound_and_update(method: str, layers: int, lr: float = 1e-4) -> tuple[float, float]:
    """Theorem 4.2's bound of a causal model and what a step of SGD does to its features, both over lr."""
    torch.manual_seed(0)
    model = build("deepnet_lm_tiny", VOCAB, method=method, decoder_layers=layers).double().eval()
    tokens = torch.randint(4, VOCAB, (4, 16), generator=torch.Generator().manual_seed(1))
    features, _ = model(tokens, features_only=True)
    scores = model.decoder.output_layer(features)
    loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), tokens.roll(-1, 1).flatten(), ignore_index=PAD)
    pairs = {site: (first.weight, last.weight) for site, first, last in matrices(model)}
    weights = [weight for pair in pairs.values() for weight in pair]
    gradients = dict(zip(weights, torch.autograd.grad(loss, weights), strict=True))
    changes = {site: sum(largest_gain(gradients[w]) ** 2 for w in pair) ** 0.5 for site, pair in pairs.items()}
    with torch.no_grad():
        for weight, gradient in gradients.items():
            weight.sub_(gradient, alpha=lr)
        moved, _ = model(tokens, features_only=True)
    update = (moved - features).square().mean(-1).sqrt().mean().item() / lr
    return stack_bound(branches(model), changes, "decoder"), update


def test_theorem_4_2_of_a_stack_alone():
    """DeepNorm's bound does not grow with depth, Post-LN's does; the update stays below DeepNorm's."""
    shallow, deep = (bound_and_update("deepnorm", layers) for layers in (6, 48))
    assert deep[0] < 1.5 * shallow[0]
    assert all(update < bound for bound, update in (shallow, deep))
    post_ln = [bound_and_update("post_ln", layers)[0] for layers in (6, 48)]
    assert post_ln[1] > 3 * post_ln[0]


ENCODER_DECODERS_ONLY = {
    ("theory", "--arch", "deepnet_lm"): "--arch deepnet_lm: the table is of encoder-decoders",
    ("bench", "--ours=--arch=deepnet_lm"): "the benchmark is of deepnet_transformer",
}


@pytest.mark.parametrize("words", ENCODER_DECODERS_ONLY)
def test_what_is_for_encoder_decoders_says_so(words):
    with pytest.raises(SystemExit) as ended:
        main([*words])
    message = str(ended.value.code)
    assert ENCODER_DECODERS_ONLY[words] in message and "\n" not in message
