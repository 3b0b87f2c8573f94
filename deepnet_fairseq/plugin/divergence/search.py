"""The first number of a forward and a backward pass that is not finite."""

from __future__ import annotations

import contextlib
import math
from functools import partial

import torch
from fairseq import utils
from torch import Tensor, nn

from ...core.slots import NORM_NAMES

FORWARD, BACKWARD, NORM = "forward", "backward", "norm"
FFN = ("fc1", "fc2", "activation_dropout")


def addresses(model: nn.Module) -> dict[str, str]:
    """Module path -> address: "encoder.layers.2.fc1" -> "encoder.3.ffn", a branch's Site as it is written.

    What belongs to no single branch is addressed by its layer ("decoder.7"), and by its path outside of layers and in
    models that are not ours.
    """
    found = {module: path for path, module in model.named_modules()}
    for layer in [module for module in model.modules() if hasattr(module, "sites")]:
        ffn = layer.sites["ffn"]
        found |= dict.fromkeys(layer.modules(), f"{ffn.stack}.{ffn.layer}")
        for sublayer, site in layer.sites.items():
            names = (*(FFN if sublayer == "ffn" else [sublayer]), NORM_NAMES[sublayer])
            for part in (*layer.slots(sublayer).values(), *(getattr(layer, name, None) for name in names)):
                found |= dict.fromkeys([] if part is None else part.modules(), str(site))
    return {path: found[module] for path, module in model.named_modules()}


class Search:
    """Hooks on every module of `model` for as long as the context lasts.

    found: by direction, where the pass first gave a number that is not finite, None while there is none. Its where is
    an address; module: path of what gave it (forward), or what had given the tensor whose gradient it is (backward), or
    the parameter; value: "nan" or "inf"; share: of the tensor's elements; largest: absolute value of any number before
    it in that pass, which was at `at`.
    """

    def __init__(self, model: nn.Module):
        self.model, self.addresses = model, addresses(model)
        self.found: dict[str, dict | None] = {FORWARD: None, BACKWARD: None}
        self.largest = {FORWARD: (0.0, ""), BACKWARD: (0.0, "")}
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
        # what a dictionary holds was a module's output before
        for tensor in filter(torch.is_tensor, output if isinstance(output, (tuple, list)) else [output]):
            self._look(FORWARD, path, tensor)
            if tensor.requires_grad and not tensor.is_leaf:
                tensor.register_hook(partial(self._look, BACKWARD, path))

    @torch.no_grad()
    def _look(self, direction: str, path: str, tensor: Tensor) -> None:
        """Called in the order in which the pass computes."""
        if self.found[direction] is not None or not tensor.is_floating_point() or not tensor.numel():
            return
        largest = tensor.abs().amax().item()  # of NaN and others NaN
        if math.isfinite(largest):
            self.largest[direction] = max(self.largest[direction], (largest, self._where(path)))
            return
        fraction = (~torch.isfinite(tensor)).float().mean().item()
        self.found[direction] = self.place(direction, path, "nan" if math.isnan(largest) else "inf", fraction)

    def place(self, direction: str, path: str, value: str, fraction: float) -> dict:
        """An entry of `found`; what NORM names is among the gradients."""
        found = {"direction": direction, "where": self._where(path), "module": path, "value": value, "share": fraction}
        return found | dict(zip(("largest", "at"), self.largest[FORWARD if direction == FORWARD else BACKWARD]))

    def _where(self, path: str) -> str:
        return self.addresses.get(path) or self.addresses.get(path.rpartition(".")[0]) or path or "model"


def repeat(trainer, samples: list, update: int) -> dict:
    """The passes of an update (from 0) again, with its random numbers: {"first": of Search.found or None, "loss": ...}.

    "loss": in bits per token over this rank's batches. Each rank by itself, and all of them at the same time: the
    passes of a sharded model speak to the others, so none of them ends early. Gradients are dropped.
    """
    utils.set_torch_seed(trainer.cfg.common.seed + update)
    trainer.model.train()
    trainer.criterion.train()
    drop_gradients(trainer)
    task = trainer.task
    losses, sizes = 0.0, 0.0
    alone = getattr(trainer.model, "no_sync", contextlib.nullcontext)
    with Search(trainer.get_model()) as search, alone():
        for sample in samples:
            sample, dummy = trainer._prepare_sample(sample)
            # the class's, for probes watch the task itself
            step_args = (task, sample, trainer.model, trainer.criterion, trainer.optimizer, update)
            loss, size, _ = type(task).train_step(*step_args, ignore_grad=dummy)
            losses, sizes = losses + float(loss.detach()), sizes + (0.0 if dummy else float(size))
    first = search.found[FORWARD] or search.found[BACKWARD] or _overflowing_norm(trainer.get_model(), search)
    drop_gradients(trainer)
    return {"first": first, "loss": losses / max(sizes, 1.0) / math.log(2)}


def drop_gradients(trainer) -> None:
    """Drops all gradients, also those that a sharded model has not handed to the optimiser yet."""
    trainer.zero_grad()
    for parameter in trainer.get_model().parameters():
        parameter.grad = None


def _overflowing_norm(model: nn.Module, search: Search) -> dict | None:
    """Every gradient is finite, and the root of the sum of their squares is not."""
    norms = {name: local(p.grad).float().norm() for name, p in model.named_parameters() if p.grad is not None}
    if not norms or math.isfinite(torch.stack([norm.to("cpu") for norm in norms.values()]).norm().item()):
        return None
    name = max(norms, key=lambda name: float(norms[name]))
    return search.place(NORM, name, "inf", 0.0)


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a sharded tensor; any other as it is."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


@torch.no_grad()
def broken_parameters(model: nn.Module) -> list[str]:
    """Names of parameters with a number that is not finite, of this rank's parts; one wait for the device."""
    held = {name: part for name, p in model.named_parameters() if (part := local(p.detach())).numel()}
    if not held:
        return []
    norms = torch._foreach_norm(list(held.values()), math.inf)
    finite = torch.isfinite(torch.stack([norm.float() for norm in norms])).tolist()
    return [name for name, well in zip(held, finite, strict=True) if not well]
