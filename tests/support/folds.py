"""Folded models: models as after a training, and fairseq's own models of the same function."""

from __future__ import annotations

import torch

from deepnet_fairseq.core.methods import METHODS
from deepnet_fairseq.core.models import blueprint
from deepnet_fairseq.core.profile import residuals
from deepnet_fairseq.plugin.flags import namespace
from deepnet_fairseq.tools.export.fold import why_not_foldable
from deepnet_fairseq.tools.export.transformer import fold_model

from .single_stacks import disturb, sizes, small

FOLDABLE = [name for name in sorted(METHODS) if why_not_foldable(blueprint(method=name, vocab=10)) is None]


def as_if_trained(kind: str, layers: int, **fields):
    """Build a model as after a training: noise on all parameters, omegas of 0.5 to 9, BranchNorm half way."""
    model = disturb(small(kind, layers, **fields), 0.05)
    model.set_num_updates(2000)
    generator = torch.Generator().manual_seed(2)
    for site, residual in residuals(model):
        if not hasattr(residual, "omega"):
            continue
        if residual.omega.requires_grad:
            residual.omega.data.copy_(0.5 + 8.5 * torch.rand(site.dim, generator=generator))
        else:
            residual.omega.data.fill_(1.0)
    return model


def folded(model, layers: int, **fields):
    """Fold a model of these layers and fields; fold_model takes over its tensors."""
    cfg = namespace(model.NAME, **(sizes(model.NAME, layers) | fields))
    return fold_model(model, cfg)
