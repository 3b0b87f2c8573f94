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

# Methods that a plain Transformer can compute, so that fold_model turns them into one.
FOLDABLE = [name for name in sorted(METHODS) if why_not_foldable(blueprint(method=name, vocab=10)) is None]


def as_if_trained(kind: str, layers: int, **fields):
    """Build a model of width 16 as a training may leave it, so that no part of it is neutral.

    All parameters have noise. Admin's omegas, the factors of its shortcuts, are 0.5 to 9 where they are trained, and
    else 1. 2,000 updates are done: half of the default 4,000 over which BranchNorm's factors rise.

    kind: one of archs.STACKS; layers: of each stack; fields: config fields that differ
    """
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
    """Fold a model that `as_if_trained` or `small` has built with these layers and fields; return fold_model's result.

    fold_model changes the weights of `model`, and the result takes them over.
    """
    cfg = namespace(model.NAME, **(sizes(model.NAME, layers) | fields))
    return fold_model(model, cfg)
