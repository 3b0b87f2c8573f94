"""Checkpoints of language models to export: one run of each kind, and what it would be under other flags."""

from __future__ import annotations

from itertools import chain

import pytest
import torch
from fairseq.data import Dictionary, indexed_dataset

from deepnet_fairseq import archs
from deepnet_fairseq.building import blank_task, from_checkpoint
from deepnet_fairseq.config import namespace
from deepnet_fairseq.models import DeepLanguageModel

from .chains import LONGEST, chains, teach
from .helpers import PAD, USER_DIR, VOCAB
from .ranks import train
from .single_stacks import disturb

SENTENCES = {"train": 300, "valid": 100, "test": 60}
WIDTHS = {"layers": 2, "embed-dim": 32, "ffn-embed-dim": 64, "attention-heads": 2}
TASKS = {archs.LM: "language_modeling", archs.MASKED_LM: "masked_lm"}
TRAIN = (
    "--user-dir", USER_DIR, "--cpu", "--optimizer", "adam", "--lr", "1e-3", "--max-tokens", "400", "--num-workers", "0",
    "--no-epoch-checkpoints", "--disable-validation", "--dropout", "0", "--tokens-per-sample", str(LONGEST),
)  # fmt: skip


def write_data(folder):
    """Chains, binarised; their symbols have the numbers they are made with."""
    folder.mkdir()
    dictionary = Dictionary()
    for number in range(len(dictionary), VOCAB):
        dictionary.add_symbol(f"w{number}")
    dictionary.save(str(folder / "dict.txt"))
    for seed, (split, count) in enumerate(SENTENCES.items()):
        builder = indexed_dataset.make_builder(str(folder / f"{split}.bin"), "mmap", VOCAB)
        for row in chains(count, 1000 + seed):
            builder.add_item(row[row.ne(PAD)][1:])
        builder.finalize(str(folder / f"{split}.idx"))
    return folder


@pytest.fixture(scope="module", name="data")
def a_data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("chains") / "bin")


def trained(kind, data, folder, *flags):
    """checkpoint_last.pt of fairseq-train after some updates. fairseq copies the config of an architecture that has its
    model's name (and any under hydra), so the checkpoint does not know what the model has filled in."""
    widths = [(f"--{archs.STACKS[kind][0]}-{name}", number) for name, number in WIDTHS.items()]
    words = ("--task", TASKS[kind], "--arch", kind, *chain(*widths), *flags, "--save-dir", folder)
    train(1, folder.with_suffix(".log"), data, *TRAIN, *words)
    return folder / "checkpoint_last.pt"


@pytest.fixture(scope="module", name="ran")
def a_ran(data, tmp_path_factory):
    """A DeepNorm run of 6 updates, with checkpoints of updates 2, 4 and 6."""
    folder = tmp_path_factory.mktemp("lm") / "save"
    return trained(archs.LM, data, folder, "--max-update", 6, "--save-interval-updates", 2)


@pytest.fixture(scope="module", name="checkpoint")
def a_checkpoint(ran):
    """The last one, its model then taught the chains."""
    state, (model, _) = torch.load(ran), from_checkpoint(str(ran))
    teach(model, vocab=VOCAB)
    torch.save(state | {"model": model.state_dict()}, ran.with_name("taught.pt"))
    return ran.with_name("taught.pt")


@pytest.fixture(scope="module", name="masked")
def a_masked(data, tmp_path_factory):
    path = tmp_path_factory.mktemp("masked") / "save"
    return trained(archs.MASKED_LM, data, path, "--criterion", "masked_lm", "--max-update", 2)


def variant(ran, path, task=(), predicted=VOCAB, **fields):
    """As the run with other flags would have begun."""
    state = torch.load(ran)
    cfg = state["cfg"]["model"] | fields
    state["cfg"] |= {"model": cfg, "task": state["cfg"]["task"] | dict(task)}
    flags = {name: value for name, value in cfg.items() if name != "_name"}
    model = DeepLanguageModel.build_model(namespace(cfg["_name"], **flags), blank_task(VOCAB, predicted))
    torch.save(state | {"model": disturb(model).state_dict()}, path)
    return path
