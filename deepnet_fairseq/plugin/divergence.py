"""Find the first layer of a forward or backward pass whose output or gradient is not finite.

A training that diverges ends with one line and an exit status of its own. DeepTrainer raises Diverged for a loss or
gradients that are not finite, and Run for weights. Run then calls `headline`, which repeats the update with hooks on
every module (NonFiniteSearch) to name the first layer in that line. See docs/training_flags.md.
"""

from __future__ import annotations

import contextlib
import math
from functools import partial

import torch
from fairseq import utils
from torch import Tensor, nn

from ..core.slots import NORM_NAMES, EmptySlot
from .distributed import agreement

STATUS = 3  # exit status of fairseq-train, and of `deepnet check`, for a training that diverged
# kinds of divergence
LOSS = "loss not finite"
GRADIENTS = "gradients not finite"
FLOOR = "loss scale at its floor"
WEIGHTS = "weights not finite"
# directions of a pass
FORWARD = "forward"
BACKWARD = "backward"
# a layer's own modules of the branch "ffn"; those that a method adds, in the branch's slots, come on top
FFN = ("fc1", "fc2", "activation_dropout")


class Diverged(ArithmeticError):
    """Raised where a loss, gradient or weight is not finite, or the loss scale of --fp16 or --amp cannot fall further.

    Every rank raises it in the same update, because loss and gradients are sums over all ranks, and the ranks tell each
    other about their weights. It is no FloatingPointError: fairseq's train_step would catch that, write crash.pt, which
    is as large as a checkpoint and is read by nothing, and repeat the update under its NanDetector, which prints a
    page.

    kind: LOSS, GRADIENTS, FLOOR or WEIGHTS; update: the one in which the numbers were found, counted from 1, which has
    changed the weights already if the kind is LOSS or WEIGHTS; samples: the update's batches in this process.
    """

    def __init__(self, update: int, kind: str, samples: list):
        super().__init__(kind)
        self.update = update
        self.kind = kind
        self.samples = samples


def addresses(model: nn.Module) -> dict[str, str]:
    """Map each module's path to an address for messages: "encoder.layers.2.fc1" -> "encoder.3.ffn".

    The address is STACK.LAYER.BRANCH, as the Site of a residual branch (core/slots.py) is written, with layers counted
    from 1; or STACK.LAYER for a module that belongs to no single branch of its layer. Outside of layers, and in models
    of other packages, it is the module's path.
    """
    address_of = {module: path for path, module in model.named_modules()}
    for layer in model.modules():
        if not hasattr(layer, "sites"):  # no layer of this package: they have {branch: Site}
            continue
        any_site = layer.sites["ffn"]  # every layer has this branch
        for module in layer.modules():
            address_of[module] = f"{any_site.stack}.{any_site.layer}"

        # a branch's own modules get its address instead of the layer's
        for sublayer, site in layer.sites.items():
            branch_modules = list(layer.slots(sublayer).values())  # those that the method adds to the branch
            own_names = FFN if sublayer == "ffn" else (sublayer,)
            for name in (*own_names, NORM_NAMES[sublayer]):
                branch_modules.append(getattr(layer, name, None))  # None in a layer without that module
            for branch_module in branch_modules:
                if branch_module is None:
                    continue
                for module in branch_module.modules():
                    address_of[module] = str(site)
    return {path: address_of[module] for path, module in model.named_modules()}


class NonFiniteSearch:
    """Context in which hooks check all outputs and gradients of a model's modules, and all gradients of its weights.

    Numbers that a layer computes outside its modules, as an attention, are found in the output of the next module.

    nonfinite: {FORWARD or BACKWARD: address of the first output, or gradient, in that pass that is not finite}; {} if
    all are finite.
    """

    def __init__(self, model: nn.Module):
        self.model = model
        self.addresses = addresses(model)
        self.nonfinite: dict[str, str] = {}
        self._handles = []

    def __enter__(self) -> NonFiniteSearch:
        for path, module in self.model.named_modules():
            if isinstance(module, EmptySlot):  # the same one is in all layers; it returns what it is given
                continue
            self._handles.append(module.register_forward_hook(partial(self._check_output, path)))
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad:
                self._handles.append(parameter.register_hook(partial(self._check, BACKWARD, name)))
        return self

    def __exit__(self, *_) -> None:
        for handle in self._handles:
            handle.remove()

    def _check_output(self, path: str, module, inputs, output) -> None:
        """Check a module's output, and register a check of its gradient; a forward hook of the module at `path`."""
        # dictionaries are left out: a tensor in one is the output of another module, too
        outputs = output if isinstance(output, (tuple, list)) else [output]
        for tensor in outputs:
            if not torch.is_tensor(tensor):
                continue
            self._check(FORWARD, path, tensor)
            if tensor.requires_grad and not tensor.is_leaf:
                tensor.register_hook(partial(self._check, BACKWARD, path))

    @torch.no_grad()
    def _check(self, direction: str, path: str, tensor: Tensor) -> None:
        """Check one output or gradient; hooks call this in the order in which the pass computes the tensors.

        path: of the module whose output it is, or which the gradient belongs to; for a parameter's gradient its name.
        """
        if direction not in self.nonfinite and tensor.is_floating_point() and not tensor.isfinite().all():
            owner = path.rpartition(".")[0]  # if `path` is a parameter's name: the path of its module
            where = self.addresses.get(path) or self.addresses.get(owner)
            self.nonfinite[direction] = where or path or "model"  # the model's own path is ""


def repeat_update(trainer, samples: list, update: int) -> tuple[str, float]:
    """Repeat the passes of an update with its random numbers and the present weights, in this process alone.

    samples: the update's batches in this process; update: its number, counted from 0, as fairseq seeds it. Return a
    pair: where the first number is not finite, as "encoder.3.ffn (forward)", "" if all are finite; and the sum of the
    batches' losses.
    """
    trainer.task.probes = None  # the probes have observed the update already
    trainer.task.graphs = None  # a replay calls no hooks
    if trainer.graphs is not None:
        trainer.graphs.free()  # the passes without graphs need memory of their own
    utils.set_torch_seed(trainer.cfg.common.seed + update)
    trainer.model.train()
    trainer.criterion.train()
    trainer.zero_grad()

    losses = 0.0
    # other processes take no part; without DistributedDataParallel's wrapper there is no no_sync, and no need of it
    without_sync = getattr(trainer.model, "no_sync", contextlib.nullcontext)
    with NonFiniteSearch(trainer.get_model()) as search, without_sync():
        for sample in samples:
            sample, is_dummy = trainer._prepare_sample(sample)  # fairseq's: moves it to the device
            loss, *_ = trainer.task.train_step(
                sample,
                trainer.model,
                trainer.criterion,
                trainer.optimizer,
                update,
                ignore_grad=is_dummy,
            )
            losses += float(loss.detach())

    for direction in (FORWARD, BACKWARD):
        if direction in search.nonfinite:
            return f"{search.nonfinite[direction]} ({direction})", losses
    return "", losses


def headline(trainer, update: int, kind: str, samples: list) -> str:
    """Describe a divergence in one line, the same in every process. Scripts look for its first words.

    update, kind, samples: as in Diverged. All processes must call this together. The update is repeated to name the
    first layer whose numbers are not finite; if that fails, the line names none.
    """
    try:
        own_result = repeat_update(trainer, samples, update - 1)
    except Exception:  # whatever it is, the divergence is what the user must hear of
        own_result = ("", 0.0)

    by_rank = agreement.all_gather(own_result)  # of each rank: (where, sum of losses)
    if kind == GRADIENTS and not all(math.isfinite(losses) for _where, losses in by_rank):
        kind = LOSS  # gradients are checked before the loss, but here the loss is the cause
    line = f"diverged at update {update}: {kind}"
    for where, _losses in by_rank:
        if where:
            return f"{line}, first at {where}"
    return line


@torch.no_grad()
def all_finite(model: nn.Module) -> bool:
    """Return whether all parameters are finite, with one host-device synchronisation for all of them."""
    norms = torch._foreach_norm([p.detach() for p in model.parameters() if p.numel()], math.inf)
    return bool(torch.isfinite(torch.stack([norm.float() for norm in norms])).all())
