"""Tests of language models in fairseq's programs: trained, evaluated, continued, with perplexity by hand."""

from __future__ import annotations

import math
import re

import pytest
import torch
from fairseq.data import data_utils

from deepnet_fairseq.core import archs
from deepnet_fairseq.core.config import namespace
from deepnet_fairseq.plugin.building import from_checkpoint, own_config

from ..support.helpers import USER_DIR, run
from ..support.logs import losses
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


@pytest.fixture(scope="module")
def binarised(tmp_path_factory):
    """Provide the folder of binarised sentences, of one document for each split.

    fairseq's generator fails on a prefix that ends at once, as after an empty line.
    """
    folder = tmp_path_factory.mktemp("pieces")
    for seed, (split, count) in enumerate(SENTENCES.items()):
        sentences = [sentence for document in documents(count, seed) for sentence in document]
        (folder / split).write_text("\n".join(sentences) + "\n", encoding="utf-8")
    return prepare([folder / split for split in SENTENCES], folder / "bin", "--vocab", VOCAB)


def pieces_of_lines(binarised, split) -> list[torch.Tensor]:
    """Return the pieces of each line, with eos."""
    return list(data_utils.load_indexed_dataset(str(binarised / split), dictionary_of(binarised)))


@pytest.fixture(scope="module")
def causal_checkpoint(binarised, tmp_path_factory):
    """Provide a checkpoint of 24 layers after 4 updates whose loss has not exploded."""
    folder = tmp_path_factory.mktemp("causal")
    flags = (*TRAIN, *CAUSAL, "--arch", "deepnet_lm_tiny_24", "--save-dir", folder)
    curve = losses(run("fairseq-train", binarised, *flags).stdout)
    assert sorted(curve) == [1, 2, 3, 4]
    assert max(curve.values()) < curve[1] + 0.5
    return folder / "checkpoint_last.pt"


def test_a_causal_model_is_read_from_its_checkpoint(causal_checkpoint):
    model, cfg = from_checkpoint(str(causal_checkpoint))

    assert model.NAME == archs.LM
    assert len(model.decoder.layers) == 24
    assert cfg.model.method == "deepnorm"


def test_perplexity_is_that_by_hand(causal_checkpoint, binarised):
    """It is 2 to the mean of -log2 p over all pieces and ends of sentences, each sentence after an </s>."""
    flags = ("--path", causal_checkpoint, "--gen-subset", "valid", "--max-tokens", "500")
    output = run("fairseq-eval-lm", binarised, "--user-dir", USER_DIR, "--cpu", *CAUSAL, *flags).stdout
    [(bits, perplexity)] = re.findall(r"Loss \(base 2\): ([\d.]+), Perplexity: ([\d.]+)", output)

    lines = pieces_of_lines(binarised, "valid")
    eos = dictionary_of(binarised).eos()
    model, _cfg = from_checkpoint(str(causal_checkpoint))
    total = 0.0
    for line in lines:
        given = torch.cat([line.new_tensor([eos]), line[:-1]])
        with torch.no_grad():
            scores = model(given[None])[0][0]
        total += torch.nn.functional.cross_entropy(scores, line.long(), reduction="sum").item()

    mean = total / sum(len(line) for line in lines)
    assert float(bits) == pytest.approx(mean / math.log(2), abs=6e-5)
    assert float(perplexity) == pytest.approx(math.exp(mean), abs=0.006)


def test_continuations_begin_with_their_prefix_and_have_scores(causal_checkpoint, binarised):
    flags = ("--path", causal_checkpoint, "--gen-subset", "test", "--prefix-size", "3", "--beam", "2")
    lengths = ("--max-len-a", "0", "--max-len-b", "6", "--batch-size", "4")

    output = run("fairseq-generate", binarised, "--user-dir", USER_DIR, "--cpu", *CAUSAL, *flags, *lengths).stdout

    continuations = {}
    for number, _score, words in re.findall(r"^H-(\d+)\t(-[\d.e-]+)\t(.*)$", output, re.MULTILINE):
        continuations[int(number)] = words.split()
    lines = pieces_of_lines(binarised, "test")
    dictionary = dictionary_of(binarised)
    assert len(continuations) == len(lines)
    for number, line in enumerate(lines):
        assert continuations[number][:3] == [dictionary[piece] for piece in line[:3]]


@pytest.fixture(scope="module")
def masked_run(binarised, tmp_path_factory):
    """Provide the checkpoint of a masked model of 100 layers after 4 updates, and the loss of each."""
    folder = tmp_path_factory.mktemp("masked")
    arch = ("--arch", "deepnet_masked_lm_tiny_100", "--sample-break-mode", "complete")
    output = run("fairseq-train", binarised, *TRAIN, *MASKED, *arch, "--save-dir", folder).stdout
    return folder / "checkpoint_last.pt", losses(output)


@pytest.mark.smoke
def test_a_masked_model_of_100_layers_begins_as_a_random_one(masked_run, binarised):
    """And its loss does not explode."""
    _, curve = masked_run

    symbols = len(dictionary_of(binarised)) + 1  # <mask>
    of_a_random_model = math.log2(symbols) + 0.72  # bits
    assert curve[1] == pytest.approx(of_a_random_model, abs=0.3)
    assert max(curve.values()) < curve[1] + 0.5


@pytest.mark.smoke
def test_a_masked_model_is_read_from_its_checkpoint(masked_run):
    checkpoint, _ = masked_run

    model, _cfg = from_checkpoint(str(checkpoint))

    assert model.NAME == archs.MASKED_LM
    assert len(model.encoder.layers) == 100


@pytest.mark.smoke
def test_validation_of_a_masked_model_continues_its_training(masked_run, binarised):
    checkpoint, curve = masked_run
    flags = ("--user-dir", USER_DIR, "--cpu", *MASKED, "--path", checkpoint, "--max-tokens", "600")

    output = run("fairseq-validate", binarised, *flags).stdout

    bits, perplexity = re.findall(r"\| loss ([\d.]+) \| ppl ([\d.]+)", output)[-1]
    assert float(bits) == pytest.approx(curve[4], abs=0.7)
    assert float(perplexity) == pytest.approx(2 ** float(bits), rel=1e-3)


def test_a_config_of_flags_is_read_with_the_values_of_its_architecture():
    """A Python program may save the flags as they were parsed: with `arch` where fairseq-train writes `_name`."""
    flags = namespace("deepnet_lm_tiny_12", dropout=0.3)

    config = own_config({"cfg": {"model": flags}}, "checkpoint.pt")

    assert config.decoder_layers == 12
    assert config.decoder_embed_dim == archs.PRESETS["deepnet_lm_tiny_12"]["decoder_embed_dim"]
    assert config.dropout == 0.3
