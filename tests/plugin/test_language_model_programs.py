"""Tests of language models in fairseq's programs: trained, evaluated, continued, with perplexity by hand."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from fairseq.data import data_utils

from deepnet_fairseq.core import archs
from deepnet_fairseq.core.config import namespace
from deepnet_fairseq.plugin.building import from_checkpoint, own_config

from ..support.helpers import USER_DIR, run
from ..support.logs import hypotheses, losses
from ..support.plain_text import VOCAB, dictionary_of, documents, prepare

TRAIN = (
    "--user-dir", USER_DIR, "--cpu", "--optimizer", "adam", "--lr", "1e-3", "--lr-scheduler", "inverse_sqrt",
    "--warmup-updates", "4", "--warmup-init-lr", "1e-7", "--max-tokens", "600", "--tokens-per-sample", "256",
    "--num-workers", "0", "--log-format", "json", "--log-interval", "1", "--no-epoch-checkpoints", "--max-update", "4",
    "--disable-validation", "--fixed-validation-seed", "1",
)  # fmt: skip
SENTENCES = {"train": 300, "valid": 20, "test": 5}
BY_SENTENCE = ("--sample-break-mode", "eos")
CAUSAL = ("--task", "language_modeling", *BY_SENTENCE)
MASKED = ("--task", "masked_lm", "--criterion", "masked_lm")


class TrainedModel(NamedTuple):
    """What fairseq-train leaves after 4 updates: the checkpoint, and update -> loss in bits a token."""

    checkpoint: Path
    losses: dict[int, float]


@pytest.fixture(scope="module")
def binarised(tmp_path_factory):
    """Provide the folder of binarised sentences of SENTENCES, one a line.

    No empty lines are between documents: fairseq-generate, which continues the beginning of each line, fails on them.
    """
    folder = tmp_path_factory.mktemp("pieces")
    for seed, (split, count) in enumerate(SENTENCES.items()):
        sentences = []
        for document in documents(count, seed):
            sentences += document
        (folder / split).write_text("\n".join(sentences) + "\n", encoding="utf-8")
    return prepare([folder / split for split in SENTENCES], folder / "bin", "--vocab", VOCAB)


def pieces_of_lines(binarised, split) -> list[torch.Tensor]:
    """Return the numbers of the pieces of each line, with eos at its end."""
    return list(data_utils.load_indexed_dataset(str(binarised / split), dictionary_of(binarised)))


def assert_does_not_explode(loss_of_update: dict[int, float]) -> None:
    """Check that no loss of 4 updates is 0.5 bits above the first."""
    assert sorted(loss_of_update) == [1, 2, 3, 4]
    assert max(loss_of_update.values()) < loss_of_update[1] + 0.5


# A causal model


@pytest.fixture(scope="module")
def causal_model(binarised, tmp_path_factory) -> TrainedModel:
    """Provide a causal language model of 24 layers."""
    folder = tmp_path_factory.mktemp("causal")
    flags = (*TRAIN, *CAUSAL, "--arch", "deepnet_lm_tiny_24", "--save-dir", folder)
    output = run("fairseq-train", binarised, *flags).stdout
    return TrainedModel(folder / "checkpoint_last.pt", losses(output))


def test_the_loss_of_a_causal_model_of_24_layers_does_not_explode(causal_model):
    assert_does_not_explode(causal_model.losses)


def test_a_causal_model_is_read_from_its_checkpoint(causal_model):
    model, cfg = from_checkpoint(str(causal_model.checkpoint))

    assert model.NAME == archs.LM
    assert len(model.decoder.layers) == 24
    assert cfg.model.method == "deepnorm"


def test_perplexity_is_that_by_hand(causal_model, binarised):
    """Perplexity is 2 to the mean of -log2 p over all pieces and ends of sentences; eos stands before each sentence."""
    flags = ("--path", causal_model.checkpoint, "--gen-subset", "valid", "--max-tokens", "500")

    output = run("fairseq-eval-lm", binarised, "--user-dir", USER_DIR, "--cpu", *CAUSAL, *flags).stdout

    [(bits, perplexity)] = re.findall(r"Loss \(base 2\): ([\d.]+), Perplexity: ([\d.]+)", output)
    nats = nats_a_piece(causal_model.checkpoint, binarised)
    assert float(bits) == pytest.approx(nats / math.log(2), abs=6e-5)  # four decimals are printed
    assert float(perplexity) == pytest.approx(math.exp(nats), abs=0.006)  # two decimals


def nats_a_piece(checkpoint: Path, binarised: Path) -> float:
    """Compute the mean cross-entropy of the validation set's pieces, in nats, by a pass for each sentence."""
    model, _cfg = from_checkpoint(str(checkpoint))
    eos = dictionary_of(binarised).eos()
    nats = 0.0
    pieces = 0
    for line in pieces_of_lines(binarised, "valid"):
        inputs = torch.cat([line.new_tensor([eos]), line[:-1]])
        with torch.no_grad():
            scores = model(inputs[None])[0][0]
        nats += torch.nn.functional.cross_entropy(scores, line.long(), reduction="sum").item()
        pieces += len(line)
    return nats / pieces


def test_continuations_begin_with_their_prefix_and_have_scores(causal_model, binarised):
    prefix = ("--gen-subset", "test", "--prefix-size", "3")  # the first three pieces of each line are given
    search = ("--beam", "2", "--max-len-a", "0", "--max-len-b", "6", "--batch-size", "4")
    flags = ("--user-dir", USER_DIR, "--cpu", *CAUSAL, "--path", causal_model.checkpoint)

    output = run("fairseq-generate", binarised, *flags, *prefix, *search).stdout

    continuations = hypotheses(output)
    lines = pieces_of_lines(binarised, "test")
    dictionary = dictionary_of(binarised)
    assert len(continuations) == SENTENCES["test"]
    for number, line in enumerate(lines):
        score, pieces = continuations[number]
        assert score < 0  # the mean of log2 p
        assert pieces.split()[:3] == [dictionary[piece] for piece in line[:3]]


# A masked model


@pytest.fixture(scope="module")
def masked_model(binarised, tmp_path_factory) -> TrainedModel:
    """Provide a masked language model of 100 layers."""
    folder = tmp_path_factory.mktemp("masked")
    arch = ("--arch", "deepnet_masked_lm_tiny_100", "--sample-break-mode", "complete")
    output = run("fairseq-train", binarised, *TRAIN, *MASKED, *arch, "--save-dir", folder).stdout
    return TrainedModel(folder / "checkpoint_last.pt", losses(output))


@pytest.mark.smoke
def test_the_first_loss_of_100_masked_layers_is_that_of_random_scores(masked_model, binarised):
    """Scores of mean 0 and variance 1 over V symbols have an expected cross-entropy of log V + 1/2, in nats."""
    symbols = len(dictionary_of(binarised)) + 1  # <mask>

    bits_of_random_scores = (math.log(symbols) + 0.5) / math.log(2)

    assert masked_model.losses[1] == pytest.approx(bits_of_random_scores, abs=0.3)


@pytest.mark.smoke
def test_the_loss_of_a_masked_model_of_100_layers_does_not_explode(masked_model):
    assert_does_not_explode(masked_model.losses)


@pytest.mark.smoke
def test_a_masked_model_is_read_from_its_checkpoint(masked_model):
    model, _cfg = from_checkpoint(str(masked_model.checkpoint))

    assert model.NAME == archs.MASKED_LM
    assert len(model.encoder.layers) == 100


@pytest.mark.smoke
def test_the_validation_loss_of_a_masked_model_is_near_its_last_training_loss(masked_model, binarised):
    flags = ("--user-dir", USER_DIR, "--cpu", *MASKED, "--path", masked_model.checkpoint, "--max-tokens", "600")

    output = run("fairseq-validate", binarised, *flags).stdout

    bits, perplexity = re.findall(r"\| loss ([\d.]+) \| ppl ([\d.]+)", output)[-1]
    assert float(bits) == pytest.approx(masked_model.losses[4], abs=0.7)  # the validation is of other sentences
    assert float(perplexity) == pytest.approx(2 ** float(bits), rel=1e-3)


def test_a_config_of_flags_is_read_with_the_values_of_its_architecture():
    """A Python program may save the flags as they were parsed: with `arch` where fairseq-train writes `_name`."""
    flags = namespace("deepnet_lm_tiny_12", dropout=0.3)

    config = own_config({"cfg": {"model": flags}}, "checkpoint.pt")

    assert config.decoder_layers == 12
    assert config.decoder_embed_dim == archs.PRESETS["deepnet_lm_tiny_12"]["decoder_embed_dim"]
    assert config.dropout == 0.3
