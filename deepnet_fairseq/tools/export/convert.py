"""Convert a folded model (see __init__.py) by CTranslate2's own converter."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch

from ...errors import UserError
from .transformer import Folded

# name of fairseq's model -> the task of fairseq that the converter sets up to load it. A multilingual model was trained
# by another task, which would add the tags of languages to the dictionaries; but those given here have them already.
TASKS = {"transformer": "translation", "transformer_lm": "language_modeling"}


def convert(folded: Folded, dictionaries, out: Path, quantization: str | None = None) -> None:
    """Convert a folded model by CTranslate2's own converter, which reads a checkpoint of fairseq and its dictionaries.

    Checkpoint and dictionaries are written into a temporary folder for it. dictionaries: a pair of fairseq's
    Dictionary, of source and target; out: folder to write, which must not exist; quantization: type of the weights as
    CTranslate2 names it ("int8", "float16", ...), None for float32. Raises a UserError if CTranslate2 is not installed,
    or cannot take the model.
    """
    try:
        import ctranslate2
    except ImportError as error:
        raise UserError("--to ctranslate2", "CTranslate2 is not installed; pip install 'ctranslate2>=4'") from error

    source_dictionary, target_dictionary = dictionaries
    task_section = folded.sections.get("task", {})  # of the run's config; {} for what fold_model returns
    with tempfile.TemporaryDirectory() as folder:
        # the task translation reads the first two, language_modeling the third
        source_dictionary.save(str(Path(folder) / "dict.src.txt"))
        target_dictionary.save(str(Path(folder) / "dict.tgt.txt"))
        source_dictionary.save(str(Path(folder) / "dict.txt"))

        task = {
            "task": TASKS[folded.stock.name],
            "source_lang": "src",
            "target_lang": "tgt",
            "data": folder,
            # whether a language model's text begins with bos; a translation task has no such setting
            "add_bos_token": task_section.get("add_bos_token", False),
        }
        # settings of task and model in one Namespace, as in checkpoints of old releases, which fairseq still loads
        args = argparse.Namespace(**(task | folded.config))
        checkpoint = Path(folder) / "model.pt"
        torch.save({"args": args, "model": folded.state}, checkpoint)

        try:
            converter = ctranslate2.converters.FairseqConverter(str(checkpoint), folder)
            converter.convert(str(out), quantization=quantization)
        except ValueError as error:  # the converter's, for a model that CTranslate2 does not compute
            message = " ".join(str(error).split())
            raise UserError("--to ctranslate2", message) from error
