"""Mistakes in a YAML's model section, which fairseq-hydra-train answers with a page of calls or a wrong error."""

from __future__ import annotations

import functools

from fairseq import models
from fairseq.dataclass import utils as dataclass_utils
from omegaconf.errors import ConfigKeyError, ValidationError

from ..config import CONFIGS
from ..errors import UserError
from .command_line import unknown_arch

NAMES = {kind: name for name, kind in CONFIGS.items()}


def explain_mistakes() -> None:
    """Unknown keys and values of the wrong type by name; unknown architectures with the nearest one: UserError.

    Wraps dataclass.utils.merge_with_parent and models.build_model.
    """
    if not hasattr(dataclass_utils.merge_with_parent, "__wrapped__"):
        dataclass_utils.merge_with_parent = _named(dataclass_utils.merge_with_parent)
        models.build_model = _known(models.build_model)


def _named(merge):
    @functools.wraps(merge)
    def merge_with_parent(dc, cfg, *args, **kwargs):
        name = NAMES.get(dc) if isinstance(dc, type) else None
        try:
            return merge(dc, cfg, *args, **kwargs)
        except ConfigKeyError as error:
            if name is None:
                raise
            raise UserError(f"model.{error.key}: {name} has no such setting; drop it") from error
        except ValidationError as error:
            if name is None:
                raise
            raise UserError(f"model.{error.full_key}: {str(error.msg).splitlines()[0]}") from error

    return merge_with_parent


def _known(build):
    @functools.wraps(build)
    def build_model(cfg, task, *args, **kwargs):
        name = getattr(cfg, "_name", None) or getattr(cfg, "arch", None)
        if name and name not in models.ARCH_MODEL_REGISTRY and name not in models.MODEL_REGISTRY:
            raise UserError(unknown_arch(f"model._name {name}"))
        return build(cfg, task, *args, **kwargs)

    return build_model
