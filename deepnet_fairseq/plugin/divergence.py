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
# kinds of divergence
LOSS = "loss not finite"
GRADIENTS = "gradients not finite"
FLOOR = "loss scale at its floor"
WEIGHTS = "weights not finite"
# directions of a pass
FORWARD = "forward"
BACKWARD = "backward"
FFN = ("fc1", "fc2", "activation_dropout")  # a layer's modules, slots apart, that belong to the branch "ffn"


class Diverged(ArithmeticError):
    """Raised where numbers are seen not to be finite, on every rank in the same update: they are sums over all ranks.

    It is no FloatingPointError: fairseq's train_step would catch that, write crash.pt, which is as large as a
    checkpoint and is read by nothing, and repeat the update under its NanDetector, which prints a page.

    update: the one that could not be made, counted from 1; kind: LOSS, GRADIENTS, FLOOR or WEIGHTS; samples: the
    update's batches.
    """

    def __init__(self, update: int, kind: str, samples: list):
        super().__init__(kind)
        self.update = update
        self.kind = kind
        self.samples = samples


def addresses(model: nn.Module) -> dict[str, str]:
    """Map each module's path to an address: "encoder.layers.2.fc1" -> "encoder.3.ffn", a branch's Site as written.

    A module that belongs to no single branch is addressed by its layer ("decoder.7"); outside of layers, and in models
    of other packages, by its path.
    """
    address_of = {module: path for path, module in model.named_modules()}
    for layer in model.modules():
        if not hasattr(layer, "sites"):
            continue
        site = layer.sites["ffn"]
        for module in layer.modules():
            address_of[module] = f"{site.stack}.{site.layer}"

        # a branch's own modules get its address instead of the layer's
        for sublayer, site in layer.sites.items():
            parts = list(layer.slots(sublayer).values())
            own_names = FFN if sublayer == "ffn" else (sublayer,)
            for name in (*own_names, NORM_NAMES[sublayer]):
                parts.append(getattr(layer, name, None))
            for part in parts:
                if part is None:  # an empty slot, or a layer without that module
                    continue
                for module in part.modules():
                    address_of[module] = str(site)
    return {path: address_of[module] for path, module in model.named_modules()}


class Search:
    """Hooks on every module of `model` for as long as the context lasts.

    nonfinite: direction of the pass -> address of the first output (forward) or gradient (backward) that is not finite.
    """

    def __init__(self, model: nn.Module):
        self.model = model
        self.addresses = addresses(model)
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
        """Look at a module's output, and have the gradient of it looked at; a hook of the forward pass."""
        # A tensor in a dictionary was the output of another module before.
        outputs = output if isinstance(output, (tuple, list)) else [output]
        for tensor in outputs:
            if not torch.is_tensor(tensor):
                continue
            self._look(FORWARD, path, tensor)
            if tensor.requires_grad and not tensor.is_leaf:
                tensor.register_hook(partial(self._look, BACKWARD, path))

    @torch.no_grad()
    def _look(self, direction: str, path: str, tensor: Tensor) -> None:
        """Check one tensor; called in the order in which the pass computes them.

        path: of the module whose output it is, or the name of the parameter whose gradient it is.
        """
        if direction not in self.nonfinite and tensor.is_floating_point() and not tensor.isfinite().all():
            owner = path.rpartition(".")[0]  # the module of a parameter
            where = self.addresses.get(path) or self.addresses.get(owner)
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

    losses = 0.0
    alone = getattr(trainer.model, "no_sync", contextlib.nullcontext)  # DistributedDataParallel's wrapper has it
    with Search(trainer.get_model()) as search, alone():
        for sample in samples:
            sample, dummy = trainer._prepare_sample(sample)
            loss, *_ = trainer.task.train_step(
                sample,
                trainer.model,
                trainer.criterion,
                trainer.optimizer,
                update,
                ignore_grad=dummy,
            )
            losses += float(loss.detach())

    for direction in (FORWARD, BACKWARD):
        if direction in search.nonfinite:
            return f"{search.nonfinite[direction]} ({direction})", losses
    return "", losses


def headline(trainer, update: int, kind: str, samples: list) -> str:
    """Describe a divergence in one line, the same in every process. Scripts look for its first words.

    update, kind, samples: as in Diverged. The update is repeated, which names the first layer, unless that fails: then
    the line has no layer.
    """
    try:
        own = repeat(trainer, samples, update - 1)
    except Exception:
        own = ("", 0.0)

    by_rank = agreement.all_gather(own)
    if kind == GRADIENTS and not all(math.isfinite(losses) for _where, losses in by_rank):
        kind = LOSS
    line = f"diverged at update {update}: {kind}"
    for where, _losses in by_rank:
        if where:
            return f"{line}, first at {where}"
    return line


@torch.no_grad()
def all_finite(model: nn.Module) -> bool:
    """Return whether all parameters are finite, with one host-device synchronisation."""
    norms = torch._foreach_norm([p.detach() for p in model.parameters() if p.numel()], math.inf)
    return bool(torch.isfinite(torch.stack([norm.float() for norm in norms])).all())
