"""`--optimizer deepnet_adam`: fairseq's adam with its flags, numbers and checkpoints, by torch's fused kernel.

Adam with decoupled weight decay (Kingma and Ba 2015, algorithm 1 in the order of section 2's end; Loshchilov and Hutter
2019, algorithm 2). fairseq's adam computes

    p -= lr sqrt(1 - b2^t) / (1 - b1^t) m / (sqrt(v) + eps)

by some ten kernels a tensor. torch's fused kernel takes lists of tensors and divides by sqrt(v / (1 - b2^t)) + eps,
which is the same with eps / sqrt(1 - b2^t) in the place of eps. Python's work for each tensor is kept small, because a
model of 1,000 layers has tens of thousands: torch.optim.AdamW(fused=True), which counts updates in a tensor for each
parameter, makes a whole step of 100L-100L 14% slower.
"""

from __future__ import annotations

import ast
import math
from collections import defaultdict
from collections.abc import Callable

import torch
from fairseq import optim
from fairseq.distributed import utils as distributed_utils
from fairseq.optim import FairseqOptimizer, FP16Optimizer, register_optimizer
from fairseq.optim.adam import FairseqAdam, FairseqAdamConfig
from torch import Tensor, nn

from ...errors import UserError
from .half_precision import DeepFP16
from .shard import Shard

NAME = "deepnet_adam"
MOMENTS = ("exp_avg", "exp_avg_sq")
WEIGHT = "weight"  # float32 weights among the state that ZeRO's processes gather
LARGEST = 2**18  # elements whose squares are added up at once: a CPU's float32 norm of 2^24 elements is off by 6e-4
WRONG = "the checkpoint's optimiser state is of other parameters; add --reset-optimizer"
# (section of fairseq's config, setting): the value it is refused with, and why
REFUSED = {
    ("optimizer", "use_old_adam"): "there is one Adam here; drop the flag",
    ("optimizer", "fp16_adam_stats"): "the moments are kept in float32; drop the flag",
    ("common", "tpu"): "runs on CPU and GPU",
    ("common", "memory_efficient_fp16"): "float32 weights are kept; take --fp16, or --optimizer adam",
    ("common", "memory_efficient_bf16"): "float32 weights are kept; take --bf16, or --optimizer adam",
}


def check_settings(setting: Callable[[str, str], object]) -> None:
    """Raise a UserError for the first flag that deepnet_adam refuses; setting(section, key) returns its value."""
    for (section, key), reason in REFUSED.items():
        if setting(section, key) is True:
            raise UserError(f"--{key.replace('_', '-')}: not with --optimizer {NAME}: {reason}")


def settings(cfg) -> dict:
    """Return lr, betas, eps and weight decay of an optimiser's config under torch's names."""
    return {"lr": cfg.lr[0], "betas": betas(cfg.adam_betas), "eps": cfg.adam_eps, "weight_decay": cfg.weight_decay}


def betas(text: str) -> tuple[float, float]:
    """Parse "(0.9, 0.98)"; raise a UserError for anything that is not two numbers in [0, 1)."""
    try:
        first, second = [float(value) for value in ast.literal_eval(str(text))]
    except (ValueError, SyntaxError, TypeError):
        first = 1.0  # refused below
        second = 1.0
    if not 0 <= first < 1 or not 0 <= second < 1:
        raise UserError(f"--adam-betas {text}: give two numbers in [0, 1), as '(0.9, 0.98)'")
    return first, second


class Adam(torch.optim.Optimizer):
    """Adam over one group of parameters, with the state of fairseq's adam.

    factor: multiplies all gradients in the next step, a number or a tensor (), so that scaling and clipping touch no
    gradient. shard: the division of the parameters under ZeRO, of which this process updates its own; None if it
    updates all.
    """

    def __init__(self, params, lr: float, betas: tuple[float, float], eps: float, weight_decay: float):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": False})
        self.factor: float | Tensor = 1.0
        self.shard: Shard | None = None
        self.gathered: dict[int, dict] = {}  # entries of all processes, on the first one, while a checkpoint is saved

    @torch.no_grad()
    def step(self, closure=None):
        """Update each parameter that has a gradient, and return what the closure returned."""
        loss = closure() if closure is not None else None
        (group,) = self.param_groups
        parameters = group["params"] if self.shard is None else [group["params"][n] for n in self.shard.own]

        # update number and device -> weights, gradients and both moments of the parameters that have these
        lists: dict[tuple, tuple[list, ...]] = defaultdict(lambda: ([], [], [], []))
        for p in parameters:
            grad = p.grad
            if grad is None:
                continue
            state = self.state[p]
            if not state:
                state |= {"step": 0, "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
            state["step"] += 1
            weights, grads, means, squares = lists[state["step"], p.device]
            weights.append(p)
            grads.append(grad)
            means.append(state["exp_avg"])
            squares.append(state["exp_avg_sq"])

        for (step, device), tensors in lists.items():
            _update(step, device, tensors, group, factor=self.factor)
        self.factor = 1.0
        self.gathered = {}
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients and their factor."""
        self.factor = 1.0
        for p in self.param_groups[0]["params"]:
            p.grad = None

    @property
    def is_shared(self) -> bool:
        """True if other processes keep parts of the state."""
        return self.shard is not None

    def consolidate_state_dict(self) -> None:
        """Gather the state of all processes on the first one; fairseq's trainer calls this before state_dict."""
        if self.shard is None:
            return
        entries = {}
        for number in self.shard.own:
            p = self.param_groups[0]["params"][number]
            entry = dict(self.state.get(p, {}))
            if p is not self.shard.parameters[number]:  # the float32 copy of a parameter in half precision
                entry[WEIGHT] = p.data
            if entry:
                entries[number] = entry
        self.gathered = self.shard.gather(entries)

    def broadcast_global_state_dict(self, state_dict: dict) -> dict:
        """Broadcast the state that the first process has read; fairseq's trainer calls this name."""
        if self.shard is None:
            return state_dict
        return distributed_utils.broadcast_object(state_dict, src_rank=0, group=self.shard.group)

    def state_dict(self) -> dict:
        """Return {"state": {number: {"step", "exp_avg", "exp_avg_sq"}}, "param_groups"}.

        Under ZeRO the state is that of this process's share, and after consolidate_state_dict, on the first process,
        that of all.
        """
        state = super().state_dict()
        for number, entry in self.gathered.items():
            if "step" in entry:
                state["state"][number] = {name: entry[name] for name in ("step", *MOMENTS)}
        state["state"] = dict(sorted(state["state"].items()))
        return state

    def load_state_dict(self, state_dict: dict) -> None:
        """Load the state of this class or of fairseq's adam; raise a UserError if it is another model's.

        Under ZeRO it is the state of all parameters, of which this process keeps its share.
        """
        parameters = self.param_groups[0]["params"] if self.shard is None else self.shard.parameters
        saved_group = state_dict["param_groups"][0]
        step_of_all = saved_group.get("step", 0)  # apex keeps one count for all parameters

        numbers = []
        for group in state_dict["param_groups"]:
            numbers += group["params"]
        fits = len(numbers) == len(parameters)
        states = {}
        try:
            for n, number in enumerate(numbers):
                entry = state_dict["state"].get(number)
                if not entry:
                    continue
                states[n] = {"step": int(entry.get("step", step_of_all))}
                for name in MOMENTS:
                    states[n][name] = entry[name]
                    fits = fits and entry[name].shape == parameters[n].shape
        except (KeyError, IndexError):  # another optimiser's, or of more parameters
            fits = False
        if not fits:
            raise UserError(WRONG)

        (group,) = super().state_dict()["param_groups"]
        group |= {key: saved_group[key] for key in self.defaults.keys() & saved_group.keys()}
        if self.shard is not None:
            states = {n: states[n] for n in self.shard.own if n in states}
        super().load_state_dict({"state": states, "param_groups": [group]})


def _update(step: int, device: torch.device, tensors: tuple[list, ...], group: dict, factor: float | Tensor) -> None:
    """Make update number `step` of parameters on one device.

    tensors: the lists of weights, of gradients and of both moments; factor: multiplies the gradients.
    """
    grad_scale = None  # the kernel divides the gradients by it
    if torch.is_tensor(factor) or factor != 1.0:  # a tensor is not compared: that would wait for the device
        if not torch.is_tensor(factor) or factor.is_cpu:
            factor = torch.full((), float(factor), device=device)  # copying one from the CPU would wait, too
        grad_scale = factor.to(device, torch.float32).reciprocal()

    weights, grads, means, squares = tensors
    steps = [torch.full((), float(step), device=device)] * len(weights)  # one for all: the kernel only reads it
    beta1, beta2 = group["betas"]
    torch._fused_adamw_(
        weights,
        grads,
        means,
        squares,
        [],  # the largest squares, for amsgrad alone
        steps,
        lr=group["lr"],
        beta1=beta1,
        beta2=beta2,
        weight_decay=group["weight_decay"],
        eps=group["eps"] / math.sqrt(1 - beta2**step),
        amsgrad=False,
        maximize=False,
        grad_scale=grad_scale,
    )


class HalfPrecisionOptimizer(DeepFP16):
    """fairseq's FP16Optimizer, which copies gradients and weights in lists instead of one by one.

    The layout is fairseq's: one float32 tensor for all weights, or one for each parameter with --bf16,
    --fp16-no-flatten-grads and, with the weights of its share alone, under ZeRO. States of either layout load.
    """

    _needs_sync: bool

    def __init__(self, cfg, params, fp32_optimizer, fp32_params, **kwargs):
        super().__init__(cfg, params, fp32_optimizer, fp32_params, **kwargs)
        self.saves_flat = self.has_flat_params  # layout of checkpoints, which ZeRO does not change
        # the parameters that this process updates; below, their float32 weights and gradients in the same order
        self.own = params
        if self.saves_flat:
            flat = next(iter(fp32_params.values()))
            self.weights = _views(flat, params)
        else:
            self.weights = [p.data for p in fp32_params]
        self.gradients: list[Tensor] = []  # made at the first update, because ZeRO keeps those of its share alone
        fp32_optimizer.reads_norm = True

    @classmethod
    def build_optimizer(cls, cfg, params, **kwargs) -> HalfPrecisionOptimizer:
        """Build the optimiser of fairseq's whole config for a model's parameters in half precision."""
        flat = not (cfg.common.bf16 or cfg.common.fp16_no_flatten_grads)
        fp32_params = cls.build_fp32_params(cfg.optimizer, params, flat)
        fp32_optimizer = optim.build_optimizer(cfg.optimizer, [fp32_params] if flat else fp32_params)
        return cls(cfg, params, fp32_optimizer, fp32_params, **kwargs)

    @classmethod
    def build_fp32_params(cls, args, params, flatten=True):
        """Copy the weights to float32, in fairseq's layouts.

        Returns a list with a parameter for each, or, flattened, {index of the device: one parameter for all}.
        """
        if not flatten:
            return [nn.Parameter(p.data.float()) for p in params]
        flat = torch.empty(sum(p.numel() for p in params), device=params[0].device)
        _copy(_views(flat, params), [p.data for p in params])
        return {flat.device.index: nn.Parameter(flat)}

    def shard(self, group) -> None:
        """Keep float32 weights and Adam's state of this process's share alone (ZeRO); before the first update."""
        shard = Shard(group, self.fp16_params)
        self.optimizer.shard = shard
        self.own = [self.fp16_params[number] for number in shard.own]

        self.fp32_params = [nn.Parameter(p.data.new_empty(0)) for p in self.fp16_params]  # empty: another process's
        for number in shard.own:
            self.fp32_params[number] = nn.Parameter(self.fp16_params[number].data.float())
        self.weights = [self.fp32_params[number].data for number in shard.own]

        self.param_groups[0]["params"] = self.fp32_params
        self.fp32_optimizer.measured = self.fp16_params

    def prepare_gradients(self) -> None:
        """Make the float32 gradients: of all parameters in one tensor, or of each."""
        updated = [p for p in self.param_groups[0]["params"] if p.numel()]  # ZeRO's other parameters are empty
        for p in updated:
            p.grad = torch.empty_like(p)
        if self.has_flat_params:
            self.gradients = _views(updated[0].grad, self.own)
        else:
            self.gradients = [p.grad for p in updated]

    def copy_gradients(self) -> None:
        """Copy the gradients to float32; one that is missing counts as 0."""
        present = []
        targets = []
        missing = []
        for p, gradient in zip(self.own, self.gradients, strict=True):
            grad = p.grad
            if grad is None:
                missing.append(gradient)
            else:
                present.append(grad)
                targets.append(gradient)
        _copy(targets, present)
        if missing:
            torch._foreach_zero_(missing)

    def copy_weights(self) -> None:
        """Copy the float32 weights to the model's."""
        _copy([p.data for p in self.own], self.weights)

    def drop_gradients(self) -> None:
        """Drop the gradients in half precision."""
        for p in self.fp16_params:
            p.grad = None

    def _sync_fp16_grads_to_fp32(self) -> None:
        if not self.gradients:
            self.prepare_gradients()
        if self._needs_sync:
            self.copy_gradients()
            self._needs_sync = False

    def _sync_fp32_params_to_fp16(self) -> None:
        self.copy_weights()
        if self.optimizer.shard is not None:
            self.optimizer.shard.publish()

    def zero_grad(self) -> None:
        """Drop the gradients in half precision; those in float32 are overwritten."""
        self.drop_gradients()
        self._needs_sync = True
        self._multiply_factor = 1.0 if self.scaler is None else 1.0 / float(self.scaler.loss_scale)

    def float32_weights(self) -> list[Tensor]:
        """Return the float32 weights of all parameters in their shapes; [] if other processes have some of them."""
        if self.optimizer.shard is None:
            return self.weights
        return [entry[WEIGHT] for _, entry in sorted(self.optimizer.gathered.items())]

    def load_float32_weights(self, weights: list[Tensor]) -> None:
        """Load the weights that float32_weights returned."""
        shard = self.optimizer.shard
        if shard is not None:
            weights = [weights[number] for number in shard.own]
        _copy(self.weights, weights)

    def state_dict(self) -> dict:
        state = super().state_dict()
        if self.saves_flat and not self.has_flat_params:  # under ZeRO
            return _merged(state)
        return state

    def load_state_dict(self, state_dict: dict, optimizer_overrides=None) -> None:
        saved_flat = sum(len(group["params"]) for group in state_dict["param_groups"]) == 1
        try:
            if saved_flat and not self.has_flat_params:
                state_dict = _split(state_dict, self.fp16_params)
            elif self.has_flat_params and not saved_flat:
                state_dict = _merged(state_dict)
        except (KeyError, RuntimeError) as error:  # another optimiser's, or another total size
            raise UserError(WRONG) from error
        super().load_state_dict(state_dict, optimizer_overrides)


def _copy(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Copy tensor by tensor, those of the same two types in one operation."""
    by_types: dict[tuple, tuple[list, list]] = defaultdict(lambda: ([], []))
    for target, source in zip(targets, sources, strict=True):
        alike_targets, alike_sources = by_types[target.dtype, source.dtype]
        alike_targets.append(target)
        alike_sources.append(source)
    for alike_targets, alike_sources in by_types.values():
        torch._foreach_copy_(alike_targets, alike_sources)


def _views(flat: Tensor, parameters: list[nn.Parameter]) -> list[Tensor]:
    """Return the parts of a flat tensor that belong to each parameter, in its shape."""
    parts = flat.detach().split([p.numel() for p in parameters])
    return [part.view(p.shape) for part, p in zip(parts, parameters, strict=True)]


def _merged(state: dict) -> dict:
    """Return a state with one entry for all parameters, whose moments are flattened and joined."""
    entries = [entry for _number, entry in sorted(state["state"].items())]
    merged = {}
    if entries:  # none before the first update
        entry = dict(entries[0])
        for name in MOMENTS:
            entry[name] = torch.cat([entry_of_one[name].reshape(-1) for entry_of_one in entries])
        merged[0] = entry
    group = state["param_groups"][0] | {"params": [0]}
    return state | {"state": merged, "param_groups": [group]}


def _split(state: dict, parameters: list[nn.Parameter]) -> dict:
    """Return a state with an entry for each parameter, given one whose only entry is flat."""
    numbers = list(range(len(parameters)))
    entries: dict[int, dict] = {}
    for flat_entry in state["state"].values():  # none before the first update
        entries = {number: dict(flat_entry) for number in numbers}
        for name in MOMENTS:
            views = _views(flat_entry[name], parameters)
            for number, view in zip(numbers, views, strict=True):
                entries[number][name] = view
    group = state["param_groups"][0] | {"params": numbers}
    return state | {"state": entries, "param_groups": [group]}


@register_optimizer(NAME, dataclass=FairseqAdamConfig)
class DeepnetAdam(FairseqAdam):
    """Adam under fairseq's interface.

    measured: parameters whose gradients make up the norm, None for those that are updated; reads_norm: True to return
    norms on the CPU, which waits for the device once, where each of fairseq's comparisons would wait.
    """

    half_precision = HalfPrecisionOptimizer
    measured: list[nn.Parameter] | None = None
    reads_norm = False

    def __init__(self, cfg: FairseqAdamConfig, params):
        FairseqOptimizer.__init__(self, cfg)  # FairseqAdam's builds its own Adam
        whole = cfg._get_parent() if hasattr(cfg, "_get_parent") else None
        if whole is not None:
            check_settings(lambda section, key: whole.get(section, {}).get(key))
        self._optimizer = Adam(list(params), **self.optimizer_config)

    @property
    def optimizer_config(self) -> dict:
        """Settings of the command line, which replace those of a checkpoint."""
        return settings(self.cfg)

    def shard(self, group) -> None:
        """Keep Adam's state of this process's share alone (ZeRO); before the first update."""
        self.optimizer.shard = Shard(group, list(self.params))

    @property
    def _multiply_factor(self) -> float | Tensor:
        """Factor that turns the gradients at hand into those of the step; the name is fairseq's."""
        return self.optimizer.factor

    def multiply_grads(self, c: float | Tensor) -> None:
        """Multiply all gradients by c, which takes effect when the step reads them."""
        self.optimizer.factor = self.optimizer.factor * c

    def norm(self) -> Tensor:
        """Return the L2 norm of the gradients at hand, ()."""
        pieces: list[Tensor] = []
        for p in self.measured or self.params:
            grad = p.grad
            if grad is None:
                continue
            if grad.numel() > LARGEST:
                pieces += grad.reshape(-1).split(LARGEST)
            else:
                pieces.append(grad)
        norms = torch._foreach_norm(pieces, 2, torch.float32) if pieces else [torch.zeros(())]
        return torch.linalg.vector_norm(torch.stack(norms))

    def clip_grad_norm(self, max_norm: float, aggregate_norm_fn=None) -> Tensor:
        """Clip the gradients in the next step, and return the L2 norm of all of them before that, ().

        max_norm: 0 or less clips nothing; aggregate_norm_fn: called with this process's norm, returns that of all.
        """
        norm = self.norm() * self.optimizer.factor
        if aggregate_norm_fn is not None:
            norm = aggregate_norm_fn(norm)
        if max_norm > 0:
            self.multiply_grads((float(max_norm) / (norm + 1e-6)).clamp_(max=1))
        return norm.cpu() if self.reads_norm else norm

    def step(self, closure=None, scale: float = 1.0, groups=None) -> None:
        """Make an update; under ZeRO each process sends the weights that it has updated to all."""
        super().step(closure, scale, groups)
        if self.optimizer.shard is not None and self.measured is None:
            self.optimizer.shard.publish()

    def zero_grad(self) -> None:
        """Drop the gradients, once; fairseq's does it twice."""
        self.optimizer.zero_grad()


# A checkpoint names its optimiser, and fairseq compares the name when it resumes: runs may switch between the two.
DeepnetAdam.__name__ = FairseqAdam.__name__
HalfPrecisionOptimizer.__name__ = FP16Optimizer.__name__
