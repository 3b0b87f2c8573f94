"""Tests of language models in fairseq's programs: trained, evaluated, continued, with perplexity by hand."""

import math
import re

import pytest
import torch
from fairseq.data import Dictionary, data_utils

from deepnet_fairseq.core import archs
from deepnet_fairseq.plugin.building import from_checkpoint

from ..support.helpers import USER_DIR, run
from ..support.logs import losses
from ..support.plain_text import VOCAB, documents, prepare

TRAIN = (
    "--user-dir", USER_DIR, "--cpu", "--optimizer", "adam", "--lr", "1e-3", "--lr-scheduler", "inverse_sqrt",
    "--warmup-updates", "4", "--warmup-init-lr", "1e-7", "--max-tokens", "600", "--tokens-per-sample", "256",
    "--num-workers", "0", "--log-format", "json", "--log-interval", "1", "--no-epoch-checkpoints", "--max-update", "4",
    "--disable-validation", "--fixed-validation-seed", "1",
)  # fmt: skip
SENTENCES = {"train": 300, "valid": 20, "test": 5}
CAUSAL = ("--task", "language_modeling", "--sample-break-mode", "eos")
READ = ("--user-dir", USER_DIR, "--cpu", "--task", "language_modeling")


@pytest.fixture(scope="module")
def bin_folder(tmp_path_factory):
    """Provide sentences of one document.

    fairseq's generator fails on a prefix that ends at once, as after an empty line.
    """
    folder = tmp_path_factory.mktemp("pieces")
    paths = [folder / split for split in SENTENCES]
    for seed, path in enumerate(paths):
        sentences = [line for text in documents(SENTENCES[path.name], seed) for line in text]
        path.write_text("\n".join(sentences) + "\n", encoding="utf-8")
    return prepare(paths, folder / "bin", "--vocab", VOCAB)


@pytest.fixture(scope="module")
def causal(bin_folder, tmp_path_factory):
    """Provide a checkpoint of 24 layers after 4 updates whose loss has not exploded."""
    folder = tmp_path_factory.mktemp("causal")
    train = ("fairseq-train", bin_folder, *TRAIN, *CAUSAL, "--arch", "deepnet_lm_tiny_24", "--save-dir", folder)
    curve = losses(run(*train).stdout)
    assert sorted(curve) == [1, 2, 3, 4] and max(curve.values()) < curve[1] + 0.5
    return folder / "checkpoint_last.pt"


def lines_of(data, split):
    dictionary = Dictionary.load(str(data / "dict.txt"))
    return dictionary, list(data_utils.load_indexed_dataset(str(data / split), dictionary))


def test_perplexity(causal, bin_folder):
    """Perplexity is 2 to the mean of -log2 p over all pieces and ends of sentences, each sentence after an </s>."""
    given = ("--path", causal, "--gen-subset", "valid", "--sample-break-mode", "eos", "--max-tokens", "500")
    output = run("fairseq-eval-lm", bin_folder, *READ, *given).stdout
    ((bits, perplexity),) = re.findall(r"Loss \(base 2\): ([\d.]+), Perplexity: ([\d.]+)", output)
    dictionary, lines = lines_of(bin_folder, "valid")
    model, cfg = from_checkpoint(str(causal))
    assert (model.NAME, len(model.decoder.layers), cfg.model.method) == (archs.LM, 24, "deepnorm")
    total = 0.0
    with torch.no_grad():
        for line in lines:
            read = torch.cat([line.new_tensor([dictionary.eos()]), line[:-1]])[None]
            total += torch.nn.functional.cross_entropy(model(read)[0][0], line.long(), reduction="sum").item()
    mean = total / sum(map(len, lines))
    assert float(bits) == pytest.approx(mean / math.log(2), abs=6e-5)
    assert float(perplexity) == pytest.approx(math.exp(mean), abs=0.006)


def test_generation(causal, bin_folder):
    """Continuations begin with the three pieces of their prefix, and have scores."""
    given = ("--path", causal, "--gen-subset", "test", "--prefix-size", "3", "--beam", "2", "--max-len-b", "6")
    given += ("--max-len-a", "0", "--sample-break-mode", "eos", "--batch-size", "4")
    output = run("fairseq-generate", bin_folder, *READ, *given).stdout
    pieces = {int(number): words.split() for number, words in re.findall(r"^H-(\d+)\t-[\d.e-]+\t(.*)$", output, re.M)}
    dictionary, lines = lines_of(bin_folder, "test")
    assert len(pieces) == len(lines)
    for number, line in enumerate(lines):
        assert pieces[number][:3] == [dictionary[piece] for piece in line[:3]]


@pytest.mark.smoke
def test_masked_training_and_its_validation(bin_folder, tmp_path):
    task = ("--task", "masked_lm", "--criterion", "masked_lm")
    train = ("fairseq-train", bin_folder, *TRAIN, *task, "--save-dir", tmp_path)
    curve = losses(run(*train, "--arch", "deepnet_masked_lm_tiny_100", "--sample-break-mode", "complete").stdout)
    first = math.log2(len(lines_of(bin_folder, "train")[0]) + 1) + 0.72  # bits of a random model
    assert curve[1] == pytest.approx(first, abs=0.3) and max(curve.values()) < curve[1] + 0.5
    model, _cfg = from_checkpoint(str(tmp_path / "checkpoint_last.pt"))
    assert (model.NAME, len(model.encoder.layers)) == (archs.MASKED_LM, 100)
    read = ("--user-dir", USER_DIR, "--cpu", "--task", "masked_lm", "--path", tmp_path / "checkpoint_last.pt")
    output = run("fairseq-validate", bin_folder, *read, "--criterion", "masked_lm", "--max-tokens", "600").stdout
    (bits, perplexity) = re.findall(r"\| loss ([\d.]+) \| ppl ([\d.]+)", output)[-1]
    assert abs(float(bits) - curve[4]) < 0.7 and float(perplexity) == pytest.approx(2 ** float(bits), rel=1e-3)
