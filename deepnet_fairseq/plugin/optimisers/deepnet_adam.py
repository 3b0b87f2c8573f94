"""`--optimizer deepnet_adam`: fairseq's adam with its flags, numbers and checkpoints, by torch's fused kernel.

Adam with decoupled weight decay (Kingma and Ba 2015, algorithm 1 in the order of section 2's end; Loshchilov and Hutter
2019, algorithm 2). fairseq's adam computes

    p -= lr sqrt(1 - b2^t) / (1 - b1^t) m / (sqrt(v) + eps)

in update number t for a parameter p with the moments m (exp_avg) and v (exp_avg_sq), by some ten kernels a tensor.
torch's fused kernel takes lists of tensors and divides by sqrt(v / (1 - b2^t)) + eps, which is the same with
eps / sqrt(1 - b2^t) in the place of eps. Python's work for each tensor is kept small, because a
model of 1,000 layers has tens of thousands: torch.optim.AdamW(fused=True), which counts updates in a tensor for each
parameter, makes a whole step of 100L-100L 14% slower.

With --zero-sharding os (ZeRO stage 1, shard.py) each process keeps the state of its own share of the parameters. A
parameter's number is its place in the list of all parameters, by which torch's and fairseq's state dicts name it.
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
WEIGHT = "weight"  # key of a float32 weight, beside the moments, in the entries that ZeRO's processes gather
NORM_PIECE = 2**18  # elements whose squares are added up at once: a CPU's float32 norm of 2^24 elements is off by 6e-4
OTHER_PARAMETERS = "the checkpoint's optimiser state is of other parameters; add --reset-optimizer"
# (section of fairseq's config, setting) that must not be True -> why
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
            raise UserError(f"--{key.replace('_', '-')}", f"not with --optimizer {NAME}: {reason}")


def torch_settings(cfg) -> dict:
    """Return lr, betas, eps and weight decay of an optimiser's config under torch's names.

    cfg: with the fields of FairseqAdamConfig; the rate is that of the first epoch, which the schedule replaces.
    """
    betas = parse_betas(cfg.adam_betas)
    return {"lr": cfg.lr[0], "betas": betas, "eps": cfg.adam_eps, "weight_decay": cfg.weight_decay}


def parse_betas(text: str) -> tuple[float, float]:
    """Parse "(0.9, 0.98)"; raise a UserError for anything that is not two numbers in [0, 1)."""
    try:
        beta1, beta2 = [float(value) for value in ast.literal_eval(str(text))]
    except (ValueError, SyntaxError, TypeError):
        beta1 = 1.0  # refused below
        beta2 = 1.0
    if not 0 <= beta1 < 1 or not 0 <= beta2 < 1:
        raise UserError(f"--adam-betas {text}", "give two numbers in [0, 1), as '(0.9, 0.98)'")
    return beta1, beta2


class Adam(torch.optim.Optimizer):
    """Adam over one group of parameters, with the state of fairseq's adam.

    factor: a number or a tensor () by which the next step multiplies all gradients. Scaling and clipping only change
    this factor, and no gradient. shard: the division of the parameters under ZeRO, of which this process updates its
    own; None if it updates all. gathered: the states of all processes by the parameter's number, on the first process
    from consolidate_state_dict to the next step, else empty.
    """

    def __init__(self, params, lr: float, betas: tuple[float, float], eps: float, weight_decay: float):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": False})
        self.factor: float | Tensor = 1.0
        self.shard: Shard | None = None
        self.gathered: dict[int, dict] = {}

    @torch.no_grad()
    def step(self, closure=None):
        """Update each parameter that has a gradient, and return what the closure returned."""
        loss = closure() if closure is not None else None
        (group,) = self.param_groups
        parameters = group["params"]
        if self.shard is not None:
            parameters = [parameters[number] for number in self.shard.own]

        # (update number, device) -> lists of weights, gradients and both moments, for one call of the kernel each.
        # Update numbers differ between parameters if some had no gradient in earlier updates.
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
    def is_sharded(self) -> bool:
        """True if other processes keep parts of the state."""
        return self.shard is not None

    def consolidate_state_dict(self) -> None:
        """Gather the state of all processes in `gathered`; fairseq's trainer calls this before state_dict."""
        if self.shard is None:
            return
        entries = {}
        for number in self.shard.own:
            p = self.param_groups[0]["params"][number]
            entry = dict(self.state.get(p, {}))
            is_float32_copy = p is not self.shard.parameters[number]  # of a model's parameter in half precision
            if is_float32_copy:
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
        """Return {"state": {number: {"step", "exp_avg", "exp_avg_sq"}}, "param_groups"}, as fairseq's adam does.

        Under ZeRO "state" has the parameters of this process's share, but on the first process, once
        consolidate_state_dict was called, all of them.
        """
        state = super().state_dict()
        for number, entry in self.gathered.items():
            if "step" in entry:  # the parameter was updated before
                state["state"][number] = {name: entry[name] for name in ("step", *MOMENTS)}
        state["state"] = dict(sorted(state["state"].items()))
        return state

    def load_state_dict(self, state_dict: dict) -> None:
        """Load a state of this class, of fairseq's adam or of apex's; raise a UserError if it is another model's.

        Under ZeRO state_dict has the state of all parameters, of which this process keeps its share.
        """
        parameters = self.param_groups[0]["params"] if self.shard is None else self.shard.parameters
        saved_group = state_dict["param_groups"][0]
        step_of_all = saved_group.get("step", 0)  # apex keeps one count for all parameters

        # the parameters are matched by their order; the saved numbers need not be 0, 1, 2, ...
        saved_numbers = []
        for group in state_dict["param_groups"]:
            saved_numbers += group["params"]
        fits = len(saved_numbers) == len(parameters)
        states = {}
        try:
            for number, saved_number in enumerate(saved_numbers):
                entry = state_dict["state"].get(saved_number)
                if not entry:
                    continue
                states[number] = {"step": int(entry.get("step", step_of_all))}
                for name in MOMENTS:
                    states[number][name] = entry[name]
                    fits = fits and entry[name].shape == parameters[number].shape
        except (KeyError, IndexError):  # another optimiser's, or of more parameters
            fits = False
        if not fits:
            raise UserError(OTHER_PARAMETERS)

        (group,) = super().state_dict()["param_groups"]
        group |= {key: saved_group[key] for key in self.defaults.keys() & saved_group.keys()}
        if self.shard is not None:
            states = {number: states[number] for number in self.shard.own if number in states}
        super().load_state_dict({"state": states, "param_groups": [group]})


def _update(step: int, device: torch.device, tensors: tuple[list, ...], group: dict, factor: float | Tensor) -> None:
    """Make update number `step` of parameters on one device, by torch's fused kernel.

    tensors: the lists of weights, of gradients and of both moments; group: settings under torch's names; factor: a
    number or a tensor () that multiplies the gradients.
    """
    grad_scale = None  # the kernel divides the gradients by it
    if torch.is_tensor(factor) or factor != 1.0:  # to compare a tensor would wait for the device
        if not torch.is_tensor(factor) or factor.is_cpu:
            factor = torch.full((), float(factor), device=device)  # to copy one from the CPU would wait, too
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

    Adam updates float32 copies of the model's weights. They have fairseq's two layouts: flat, one tensor for all
    weights, or one tensor for each parameter with --bf16, --fp16-no-flatten-grads and under ZeRO, where tensors that
    other processes update are empty. States of either layout load.

    own: the model's parameters that this process updates; weights: their float32 weights; gradients: their float32
    gradients, [] before prepare_gradients. The three lists are in the same order, in the parameters' shapes; where the
    layout is flat, the float32 tensors are views of the flat one. saves_flat: whether checkpoints are in the flat
    layout, which ZeRO does not change.
    """

    _needs_sync: bool

    def __init__(self, cfg, params, fp32_optimizer, fp32_params, **kwargs):
        super().__init__(cfg, params, fp32_optimizer, fp32_params, **kwargs)
        self.saves_flat = self.has_flat_params
        self.own = params
        if self.saves_flat:
            flat = next(iter(fp32_params.values()))
            self.weights = _views(flat, params)
        else:
            self.weights = [p.data for p in fp32_params]
        self.gradients: list[Tensor] = []  # made at the first update, when it is known whether ZeRO shards them
        fp32_optimizer.reads_norm = (
            True  # on the CPU at once: each comparison in FP16Optimizer would wait for the device
        )

    @classmethod
    def build_optimizer(cls, cfg, params, **kwargs) -> HalfPrecisionOptimizer:
        """Build the optimiser of fairseq's whole config for a model's parameters in half precision."""
        flat = not (cfg.common.bf16 or cfg.common.fp16_no_flatten_grads)
        fp32_params = cls.build_fp32_params(cfg.optimizer, params, flat)
        fp32_optimizer = optim.build_optimizer(cfg.optimizer, [fp32_params] if flat else fp32_params)
        return cls(cfg, params, fp32_optimizer, fp32_params, **kwargs)

    @classmethod
    def build_fp32_params(cls, args, params, flatten=True):
        """Copy the weights to float32, in one of fairseq's two layouts.

        Returns {index of the device: one flat parameter} if `flatten`, else a list with a parameter for each.
        """
        if not flatten:
            return [nn.Parameter(p.data.float()) for p in params]
        flat = torch.empty(sum(p.numel() for p in params), device=params[0].device)
        _copy(_views(flat, params), [p.data for p in params])
        return {flat.device.index: nn.Parameter(flat)}

    def shard_state(self, group) -> None:
        """Keep float32 weights and Adam's state of this process's share alone (ZeRO).

        DeepTrainer calls this before the first update, with the group of processes that train together.
        """
        shard = Shard(group, self.fp16_params)
        self.optimizer.shard = shard
        self.own = [self.fp16_params[number] for number in shard.own]

        self.fp32_params = [nn.Parameter(p.data.new_empty(0)) for p in self.fp16_params]  # empty: another process's
        for number in shard.own:
            self.fp32_params[number] = nn.Parameter(self.fp16_params[number].data.float())
        self.weights = [self.fp32_params[number].data for number in shard.own]

        self.param_groups[0]["params"] = self.fp32_params
        self.fp32_optimizer.norm_parameters = self.fp16_params

    def prepare_gradients(self) -> None:
        """Make the tensors of the float32 gradients, in the layout of the weights, without values yet."""
        updated = [p for p in self.param_groups[0]["params"] if p.numel()]  # ZeRO's other parameters are empty
        for p in updated:
            p.grad = torch.empty_like(p)
        if self.has_flat_params:
            self.gradients = _views(updated[0].grad, self.own)
        else:
            self.gradients = [p.grad for p in updated]

    def copy_gradients(self) -> None:
        """Copy the model's gradients to float32; one that is None counts as 0."""
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
        """Copy the float32 weights to the model's parameters."""
        _copy([p.data for p in self.own], self.weights)

    def drop_gradients(self) -> None:
        """Set the model's gradients to None."""
        for p in self.fp16_params:
            p.grad = None

    def _sync_fp16_grads_to_fp32(self) -> None:
        """Copy the gradients to float32 if they have changed since; fairseq calls this before clipping and the step."""
        if not self.gradients:
            self.prepare_gradients()
        if self._needs_sync:
            self.copy_gradients()
            self._needs_sync = False

    def _sync_fp32_params_to_fp16(self) -> None:
        """Copy the updated weights to the model, under ZeRO to that of all processes; fairseq calls this in a step."""
        self.copy_weights()
        if self.optimizer.shard is not None:
            self.optimizer.shard.broadcast_weights()

    def zero_grad(self) -> None:
        """Drop the model's gradients; those in float32 are overwritten before the next step."""
        self.drop_gradients()
        self._needs_sync = True
        self._multiply_factor = 1.0 if self.scaler is None else 1.0 / float(self.scaler.loss_scale)

    def float32_weights(self) -> list[Tensor]:
        """Return the float32 weights of all parameters, in their order and shapes.

        Under ZeRO only the first process has all, after consolidate_state_dict; [] otherwise.
        """
        if self.optimizer.shard is None:
            return self.weights
        return [entry[WEIGHT] for _, entry in sorted(self.optimizer.gathered.items())]

    def load_float32_weights(self, weights: list[Tensor]) -> None:
        """Load float32 weights of all parameters, as float32_weights returned them."""
        shard = self.optimizer.shard
        if shard is not None:
            weights = [weights[number] for number in shard.own]
        _copy(self.weights, weights)

    def state_dict(self) -> dict:
        """Return fairseq's state in the layout that the same training has without ZeRO."""
        state = super().state_dict()
        if self.saves_flat and not self.has_flat_params:  # under ZeRO
            return _merged(state)
        return state

    def load_state_dict(self, state_dict: dict, optimizer_overrides=None) -> None:
        """Load a state of either layout; raise a UserError if it is of other parameters."""
        saved_flat = sum(len(group["params"]) for group in state_dict["param_groups"]) == 1
        try:
            if saved_flat and not self.has_flat_params:
                state_dict = _split(state_dict, self.fp16_params)
            elif self.has_flat_params and not saved_flat:
                state_dict = _merged(state_dict)
        except (KeyError, RuntimeError) as error:  # another optimiser's, or another total size
            raise UserError(OTHER_PARAMETERS) from error
        super().load_state_dict(state_dict, optimizer_overrides)


def _copy(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Copy each source to its target, with one operation for all that have the same two dtypes."""
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
    """Return a state as fairseq saves it where all weights are one flat float32 tensor (see HalfPrecisionOptimizer).

    It has one entry, whose moments are those of all entries, flattened and joined. state: {"state": {number: entry},
    "param_groups": ...}, with an entry for each parameter. The step is the first parameter's: all have the same,
    because a missing gradient counts as 0.
    """
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
    """Return the state with an entry for each parameter, the reverse of _merged."""
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
    """Adam under fairseq's interface; in half precision it is the fp32_optimizer of a HalfPrecisionOptimizer."""

    half_precision = HalfPrecisionOptimizer  # half_precision.build_optimizer reads this name
    # The parameters whose gradients make up the norm, None for those that are updated. HalfPrecisionOptimizer sets it
    # under ZeRO, where Adam has the float32 gradients of this process's share alone; it then broadcasts weights itself.
    norm_parameters: list[nn.Parameter] | None = None
    # True to return norms on the CPU. That waits for the device once, where each of FP16Optimizer's comparisons of a
    # norm on the device would wait.
    reads_norm = False

    def __init__(self, cfg: FairseqAdamConfig, params):
        FairseqOptimizer.__init__(self, cfg)  # FairseqAdam.__init__ would build its own Adam
        whole_cfg = cfg._get_parent() if hasattr(cfg, "_get_parent") else None
        if whole_cfg is not None:
            check_settings(lambda section, key: whole_cfg.get(section, {}).get(key))
        self._optimizer = Adam(list(params), **self.optimizer_config)

    @property
    def optimizer_config(self) -> dict:
        """Settings of the command line, which replace those of a checkpoint."""
        return torch_settings(self.cfg)

    def shard_state(self, group) -> None:
        """Keep Adam's state of this process's share alone (ZeRO).

        DeepTrainer calls this before the first update, with the group of processes that train together.
        """
        self.optimizer.shard = Shard(group, list(self.params))

    @property
    def _multiply_factor(self) -> float | Tensor:
        """Factor by which the step will multiply the gradients; gradient_scale reads it by FP16Optimizer's name."""
        return self.optimizer.factor

    def multiply_grads(self, c: float | Tensor) -> None:
        """Multiply all gradients by c; the next step does it, when it reads them."""
        self.optimizer.factor = self.optimizer.factor * c

    def norm(self) -> Tensor:
        """Return the L2 norm of the gradients as they are, without Adam.factor, ()."""
        pieces: list[Tensor] = []
        for p in self.norm_parameters or self.params:
            grad = p.grad
            if grad is None:
                continue
            if grad.numel() > NORM_PIECE:
                pieces += grad.reshape(-1).split(NORM_PIECE)
            else:
                pieces.append(grad)
        norms = torch._foreach_norm(pieces, 2, torch.float32) if pieces else [torch.zeros(())]
        return torch.linalg.vector_norm(torch.stack(norms))

    def clip_grad_norm(self, max_norm: float, aggregate_norm_fn=None) -> Tensor:
        """Clip the gradients to the L2 norm max_norm, in the next step, and return their norm before that, ().

        max_norm: 0 or less clips nothing; aggregate_norm_fn: called with this process's norm, returns that of all
        processes.
        """
        norm = self.norm() * self.optimizer.factor
        if aggregate_norm_fn is not None:
            norm = aggregate_norm_fn(norm)
        if max_norm > 0:
            self.multiply_grads((float(max_norm) / (norm + 1e-6)).clamp_(max=1))  # 1e-6 as in fairseq.utils
        return norm.cpu() if self.reads_norm else norm

    def step(self, closure=None, scale: float = 1.0, groups=None) -> None:
        """Make an update; under ZeRO each process sends the weights that it has updated to all."""
        super().step(closure, scale, groups)
        in_half_precision = self.norm_parameters is not None
        if self.optimizer.shard is not None and not in_half_precision:
            self.optimizer.shard.broadcast_weights()

    def zero_grad(self) -> None:
        """Drop the gradients, in one walk over the parameters; FairseqOptimizer makes two."""
        self.optimizer.zero_grad()


# A checkpoint names its optimiser, and fairseq compares the name when it resumes: runs may switch between the two.
DeepnetAdam.__name__ = FairseqAdam.__name__
HalfPrecisionOptimizer.__name__ = FP16Optimizer.__name__
