"""Convert a folded model by CTranslate2's own converter."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch

from ...errors import UserError
from .transformer import Folded

TASKS = {"transformer": "translation", "transformer_lm": "language_modeling"}


def convert(folded: Folded, dictionaries, out: Path, quantization: str | None = None) -> None:
    """Convert a folded model by CTranslate2's own converter, which reads a file of fairseq's and its dictionaries.

    The task is a plain one, whatever the run's was: dictionaries hold the tags of languages already.
    """
    try:
        import ctranslate2
    except ImportError as error:
        raise UserError("--to ctranslate2: CTranslate2 is not installed; pip install 'ctranslate2>=4'") from error
    with tempfile.TemporaryDirectory() as folder:
        names = ("dict.src.txt", "dict.tgt.txt", "dict.txt")  # a language model has the last
        for dictionary, name in zip((*dictionaries, dictionaries[0]), names, strict=True):
            dictionary.save(str(Path(folder) / name))
        task = {"task": TASKS[folded.stock.name], "source_lang": "src", "target_lang": "tgt", "data": folder}
        task["add_bos_token"] = folded.sections.get("task", {}).get("add_bos_token", False)  # a language model's
        args = argparse.Namespace(**(task | folded.model))
        legacy = Path(folder) / "model.pt"
        torch.save({"args": args, "model": folded.state}, legacy)
        try:
            ctranslate2.converters.FairseqConverter(str(legacy), folder).convert(str(out), quantization=quantization)
        except ValueError as error:
            raise UserError(f"--to ctranslate2: {' '.join(str(error).split())}") from error
