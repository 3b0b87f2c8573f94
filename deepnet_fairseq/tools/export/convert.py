"""Convert a folded model by CTranslate2's own converter."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch

from ...errors import UserError
from .transformer import Folded

# fairseq's model -> the task that the converter is told, also for a multilingual run, because the dictionaries hold the
# tags of languages already
TASKS = {"transformer": "translation", "transformer_lm": "language_modeling"}


def convert(folded: Folded, dictionaries, out: Path, quantization: str | None = None) -> None:
    """Convert a folded model by CTranslate2's own converter, which reads a checkpoint of fairseq and its dictionaries.

    dictionaries: fairseq's, of source and target; out: folder to write; quantization: as CTranslate2 names it, None for
    float32. UserError if CTranslate2 is not installed, or cannot take the model.
    """
    try:
        import ctranslate2
    except ImportError as error:
        raise UserError("--to ctranslate2", "CTranslate2 is not installed; pip install 'ctranslate2>=4'") from error

    source_dictionary, target_dictionary = dictionaries
    with tempfile.TemporaryDirectory() as folder:
        source_dictionary.save(str(Path(folder) / "dict.src.txt"))
        target_dictionary.save(str(Path(folder) / "dict.tgt.txt"))
        source_dictionary.save(str(Path(folder) / "dict.txt"))  # that of a language model

        task = {
            "task": TASKS[folded.stock.name],
            "source_lang": "src",
            "target_lang": "tgt",
            "data": folder,
            "add_bos_token": folded.sections.get("task", {}).get("add_bos_token", False),  # of a language model
        }
        args = argparse.Namespace(**(task | folded.config))
        checkpoint = Path(folder) / "model.pt"
        # fairseq loads it as one of its old releases, with all settings in `args`
        torch.save({"args": args, "model": folded.state}, checkpoint)

        try:
            converter = ctranslate2.converters.FairseqConverter(str(checkpoint), folder)
            converter.convert(str(out), quantization=quantization)
        except ValueError as error:
            message = " ".join(str(error).split())
            raise UserError("--to ctranslate2", message) from error
