"""Find the first layer of a forward or backward pass whose output or gradient is not finite.

A training that diverges ends in one line and a status of its own: DeepTrainer notices numbers that are not finite and
raises Diverged, and `headline` repeats the update under Search. docs/training_flags.md.
"""

from __future__ import annotations

import contextlib
import math
from functools import partial

import torch
from fairseq import utils
from torch import Tensor, nn

from ..core.slots import NORM_NAMES
from .distributed import agreement

STATUS = 3  # of fairseq-train, as of `deepnet check`: diverged
LOSS, GRADIENTS = "loss not finite", "gradients not finite"
FLOOR, WEIGHTS = "loss scale at its floor", "weights not finite"
FORWARD, BACKWARD = "forward", "backward"
FFN = ("fc1", "fc2", "activation_dropout")


class Diverged(ArithmeticError):
    """Raised where numbers are seen not to be finite, on every rank in the same update: they are sums over all ranks.

    It is no FloatingPointError: fairseq's train_step would catch that, write crash.pt, which is as large as a
    checkpoint and is read by nothing, and repeat the update under its NanDetector, which prints a page.

    update: the one that could not be made, counted from 1; kind: LOSS, GRADIENTS, FLOOR or WEIGHTS; samples: the
    update's batches.
    """

    def __init__(self, update: int, kind: str, samples: list):
        super().__init__(kind)
        self.update, self.kind, self.samples = update, kind, samples


def addresses(model: nn.Module) -> dict[str, str]:
    """Map each module's path to an address: "encoder.layers.2.fc1" -> "encoder.3.ffn", a branch's Site as written.

    A module that belongs to no single branch is addressed by its layer ("decoder.7"); outside of layers, and in models
    of other packages, by its path.
    """
    by_module = {module: path for path, module in model.named_modules()}
    for layer in [module for module in model.modules() if hasattr(module, "sites")]:
        ffn = layer.sites["ffn"]
        by_module |= dict.fromkeys(layer.modules(), f"{ffn.stack}.{ffn.layer}")
        for sublayer, site in layer.sites.items():
            names = (*(FFN if sublayer == "ffn" else [sublayer]), NORM_NAMES[sublayer])
            for part in (*layer.slots(sublayer).values(), *(getattr(layer, name, None) for name in names)):
                by_module |= dict.fromkeys([] if part is None else part.modules(), str(site))
    return {path: by_module[module] for path, module in model.named_modules()}


class Search:
    """Hooks on every module of `model` for as long as the context lasts.

    nonfinite: direction of the pass -> address of the first output (forward) or gradient (backward) that is not finite.
    """

    def __init__(self, model: nn.Module):
        self.model, self.addresses = model, addresses(model)
        self.nonfinite: dict[str, str] = {}
        self._handles = []

    def __enter__(self) -> Search:
        for path, module in self.model.named_modules():
            self._handles.append(module.register_forward_hook(partial(self._visit, path)))
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad:
                self._handles.append(parameter.register_hook(partial(self._look, BACKWARD, name)))
        return self

    def __exit__(self, *_) -> None:
        for handle in self._handles:
            handle.remove()

    def _visit(self, path: str, module, inputs, output) -> None:
        # A tensor in a dictionary was the output of another module before.
        for tensor in filter(torch.is_tensor, output if isinstance(output, (tuple, list)) else [output]):
            self._look(FORWARD, path, tensor)
            if tensor.requires_grad and not tensor.is_leaf:
                tensor.register_hook(partial(self._look, BACKWARD, path))

    @torch.no_grad()
    def _look(self, direction: str, path: str, tensor: Tensor) -> None:
        """Check one tensor; called in the order in which the pass computes them."""
        if direction not in self.nonfinite and tensor.is_floating_point() and not tensor.isfinite().all():
            where = self.addresses.get(path) or self.addresses.get(path.rpartition(".")[0])
            self.nonfinite[direction] = where or path or "model"


def repeat(trainer, samples: list, update: int) -> tuple[str, float]:
    """Repeat the passes of an update (counted from 0) with its random numbers.

    Return the address of the first number that is not finite, "" if there is none, and the sum of this process's
    losses. Each process repeats its own batches, without the others.
    """
    trainer.task.probes = None  # the probes have seen the update
    utils.set_torch_seed(trainer.cfg.common.seed + update)
    trainer.model.train()
    trainer.criterion.train()
    trainer.zero_grad()
    task, losses = trainer.task, 0.0
    alone = getattr(trainer.model, "no_sync", contextlib.nullcontext)
    with Search(trainer.get_model()) as search, alone():
        for sample in samples:
            sample, dummy = trainer._prepare_sample(sample)
            step = (sample, trainer.model, trainer.criterion, trainer.optimizer, update)
            loss, *_ = task.train_step(*step, ignore_grad=dummy)
            losses += float(loss.detach())
    where = next((f"{search.nonfinite[way]} ({way})" for way in (FORWARD, BACKWARD) if way in search.nonfinite), "")
    return where, losses


def headline(trainer, update: int, kind: str, samples: list) -> str:
    """Describe a divergence in one line, the same in every process. Scripts look for its first words.

    The update is repeated, which names the first layer, unless that fails: then the line has no layer.
    """
    try:
        mine = repeat(trainer, samples, update - 1)
    except Exception:
        mine = ("", 0.0)
    by_rank = agreement.all_gather(mine)
    if kind == GRADIENTS and not all(math.isfinite(loss) for _, loss in by_rank):
        kind = LOSS
    where = next((place for place, _ in by_rank if place), "")
    return f"diverged at update {update}: {kind}" + (f", first at {where}" if where else "")


@torch.no_grad()
def all_finite(model: nn.Module) -> bool:
    """Return whether all parameters are finite, with one host-device synchronisation."""
    norms = torch._foreach_norm([p.detach() for p in model.parameters() if p.numel()], math.inf)
    return bool(torch.isfinite(torch.stack([norm.float() for norm in norms])).all())
