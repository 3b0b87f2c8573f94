"""Load a checkpoint to translate with: through CTranslate2 where its method folds, else as it is."""

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
    """Return a translator of a checkpoint; the arguments are those of translation.load."""
    register()
    from ...plugin.building import from_checkpoint
    from ..export.convert import convert
    from ..export.fold import why_not_foldable
    from ..export.transformer import fold_model
    from .text import check_own, read_text

    PROCESS.use_torch(torch.get_num_threads)  # before torch computes, which would wait for ever behind a fork
    model, cfg = from_checkpoint(path)
    section: Any = OmegaConf.to_container(cfg.task, enum_to_str=True)
    rows = next(iter(model.stacks().values())).embed_tokens.num_embeddings, model.vocabulary_projection().out_features
    positions = cfg.model.max_source_positions, cfg.model.max_target_positions
    data = data or str(section["data"])
    text = read_text(section, data, rows, subwords, cfg.model.method, positions)
    check_own(model.origin, text.dictionaries, data, text.file, subwords)
    direction = text.described.direction(*languages)
    pieces, tags = text.cutter(*direction), text.described.tags(*direction)
    if why_not_foldable(model) is None and importlib.util.find_spec("ctranslate2") is not None:
        folded = fold_model(model, cfg.model)
        with tempfile.TemporaryDirectory() as folder:
            convert(folded, text.dictionaries, Path(folder) / "model")
            engine = CTranslate2(Path(folder) / "model", text.described, pieces, tags, settings)
        return Translator(engine, text.described)
    return Translator(Fairseq(model, text.dictionaries, text.described, pieces, tags, settings), text.described)
