"""Copies of binarised data with another vocabulary, and checkpoints of trainings that have made no update."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import torch

from deepnet_fairseq.data import digests
from deepnet_fairseq.plugin.trainer import DeepTrainer, build_trainer, parse_training_flags

from .helpers import USER_DIR

# Flags of fairseq-train that every training here has, without those of task and model.
FLAGS = (
    "--user-dir", USER_DIR, "--cpu", "--optimizer", "adam", "--max-tokens", "600", "--no-epoch-checkpoints",
)  # fmt: skip
# What fairseq-train adds to a checkpoint (its extra_state), at the beginning of epoch 1.
BEGINNING = {"train_iterator": {"epoch": 1, "iterations_in_epoch": 0, "version": 2}, "val_loss": None}
Change = Callable[[list[str]], list[str]]  # lines of a dictionary, "SYMBOL COUNT" -> changed lines


def renamed(lines: list[str]) -> list[str]:
    """Give every symbol another name."""
    return [f"other-{line}" for line in lines]


def reordered(lines: list[str]) -> list[str]:
    """Keep the symbols, but in reverse order."""
    return lines[::-1]


def longer(lines: list[str]) -> list[str]:
    """Add eight symbols at the end."""
    return [*lines, *(f"new{number} 1" for number in range(8))]


def recounted(lines: list[str]) -> list[str]:
    """Keep the symbols and their order, but change their counts, which decide nothing."""
    symbols = [line.rsplit(" ", 1)[0] for line in lines]
    return [f"{symbol} {count}" for count, symbol in enumerate(symbols)]


def copy_data(data: Path, folder: Path, change: Change | None = None, pieces: bytes | None = None) -> Path:
    """Copy binarised data to `folder`, which must not exist yet; return `folder`.

    change: of every dictionary; pieces: content of spm.model. None keeps what is in `data`.
    """
    shutil.copytree(data, folder)
    if change is not None:
        for path in folder.glob("dict*.txt"):
            lines = change(path.read_text(encoding="utf-8").splitlines())
            path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    if pieces is not None:
        (folder / "spm.model").write_bytes(pieces)
    return folder


def copy_source_side(data: Path, folder: Path) -> Path:
    """Write data of a language model: the qaa side of qaa-qab data, under the names of such data; return `folder`."""
    folder.mkdir()
    shutil.copyfile(data / "dict.qaa.txt", folder / "dict.txt")
    shutil.copyfile(data / "spm.model", folder / "spm.model")
    for path in data.glob("*.qaa-qab.qaa.*"):
        shutil.copyfile(path, folder / path.name.replace(".qaa-qab.qaa", ""))
    return folder


def trainer_of(data: Path, *flags, save_dir: Path) -> DeepTrainer:
    """Build the trainer of a training that is about to start; flags: of task and model."""
    words = (data, *FLAGS, *flags, "--save-dir", save_dir)
    return build_trainer(parse_training_flags([str(word) for word in words]))


def save_start(path: Path, data: Path, *flags) -> DeepTrainer:
    """Write the checkpoint of a training without updates to `path`; return the trainer. flags: of task and model."""
    path.parent.mkdir(parents=True, exist_ok=True)
    trainer = trainer_of(data, *flags, save_dir=path.parent)
    trainer.consolidate_optimizer()
    trainer.save_checkpoint(str(path), dict(BEGINNING))
    return trainer


def without_digests(path: Path, other: Path, **task) -> Path:
    """Copy a checkpoint to the file `other`, without the digests of its vocabulary, as old ones are; return `other`.

    task: settings of the checkpoint's task that differ in the copy
    """
    state = torch.load(path)
    del state["task_state"][digests.KEY]
    section = state["cfg"]["task"]
    settings = section if isinstance(section, dict) else vars(section)
    settings.update(task)
    torch.save(state, other)
    return other
