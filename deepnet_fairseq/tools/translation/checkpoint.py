"""Load a checkpoint to translate with: through CTranslate2 where its method folds, else as it is.

A method folds if its factors can be multiplied into the weights, so that a plain Transformer computes the same.
"""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from ... import register
from .engines import CTranslate2, Fairseq, Settings
from .loading import PROCESS
from .translator import Translator


def load_checkpoint(
    path: str, data: str | None, subwords: str | None, languages: tuple[str | None, str | None], settings: Settings
) -> Translator:
    """Return a Translator of a checkpoint.

    It computes with CTranslate2 if that is installed and the model's method folds, else with the package's own model.
    languages: source and target, None for those of the data; other arguments: as for translation.load.
    """
    register()
    from ...plugin.building import from_checkpoint
    from ..export.convert import convert
    from ..export.fold import why_not_foldable
    from ..export.transformer import fold_model
    from .text import check_own, read_text

    # Before torch computes: in a child of a process that used torch it would wait for ever with more than one thread.
    PROCESS.use_torch(torch.get_num_threads)
    model, cfg = from_checkpoint(path)
    task_settings: Any = OmegaConf.to_container(cfg.task, enum_to_str=True)
    data = data or str(task_settings["data"])

    # what text the model reads and writes; the data must be those that it was trained on
    first_stack = next(iter(model.stacks().values()))  # the encoder of a translation model
    symbols_read = first_stack.embed_tokens.num_embeddings
    symbols_predicted = model.vocabulary_projection().out_features
    text = read_text(
        task_settings,
        data,
        vocabulary_sizes=(symbols_read, symbols_predicted),
        subwords=subwords,
        method=cfg.model.method,
        positions=(cfg.model.max_source_positions, cfg.model.max_target_positions),
    )
    check_own(model.origin, text.dictionaries, data, file=text.file, subwords=subwords)

    # the engine, which is given how to segment text in this direction, and the languages' tags
    described = text.described
    direction = described.direction(*languages)
    cutter = text.cutter(*direction)
    tags = described.tags(*direction)
    if why_not_foldable(model) is None and importlib.util.find_spec("ctranslate2") is not None:
        folded = fold_model(model, cfg.model)
        with tempfile.TemporaryDirectory() as folder:
            converted = Path(folder) / "model"
            convert(folded, text.dictionaries, converted)
            engine: Any = CTranslate2(converted, described, cutter=cutter, tags=tags, settings=settings)
    else:
        engine = Fairseq(model, text.dictionaries, described=described, cutter=cutter, tags=tags, settings=settings)
    return Translator(engine, described)
