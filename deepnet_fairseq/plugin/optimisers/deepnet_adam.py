"""`--optimizer deepnet_adam`: fairseq's adam with its flags, numbers and checkpoints, by torch's fused kernel.

Adam with decoupled weight decay (Kingma and Ba 2015, algorithm 1 in the order of section 2's end; Loshchilov and Hutter
2019, algorithm 2). fairseq's adam computes

    p -= lr sqrt(1 - b2^t) / (1 - b1^t) m / (sqrt(v) + eps)

in update number t for a parameter p with the moments m (exp_avg) and v (exp_avg_sq), by some ten kernels a tensor.
torch's fused kernel takes lists of tensors and divides by sqrt(v / (1 - b2^t)) + eps, which is the same with
eps / sqrt(1 - b2^t) in the place of eps. Python's work for each tensor is kept small, because a model of 1,000 layers
has tens of thousands: torch.optim.AdamW(fused=True), which counts updates in a tensor for each parameter, makes a whole
step of 100L-100L 14% slower.

With --zero-sharding os (ZeRO stage 1, shard.py) each process keeps the state of its own share of the parameters. A
parameter's number is its index in the list of all parameters, by which torch's and fairseq's state dicts name it.
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
MOMENTS = ("exp_avg", "exp_avg_sq")  # their keys in a parameter's state
WEIGHT = "weight"  # key of a float32 weight, beside the moments, in the states that ZeRO's processes gather
# elements whose squares are added up at once; a CPU's float32 norm of 2^24 elements has a relative error of 6e-4
NORM_PIECE = 2**18
# subject and way out of the error about a state that does not fit
OTHER_PARAMETERS = ("the checkpoint's optimiser state", "is of other parameters; add --reset-optimizer")
# (section of fairseq's config, setting in it) -> why deepnet_adam refuses the setting if it is True
REFUSED = {
    ("optimizer", "use_old_adam"): "there is one Adam here; drop the flag",
    ("optimizer", "fp16_adam_stats"): "the moments are kept in float32; drop the flag",
    ("common", "tpu"): "runs on CPU and GPU",
    ("common", "memory_efficient_fp16"): "float32 weights are kept; take --fp16, or --optimizer adam",
    ("common", "memory_efficient_bf16"): "float32 weights are kept; take --bf16, or --optimizer adam",
}


def check_settings(setting: Callable[[str, str], object]) -> None:
    """Raise a UserError for the first flag in REFUSED that is given.

    setting: a function that returns the value of a flag for (section of fairseq's config, key in that section).
    """
    for (section, key), reason in REFUSED.items():
        if setting(section, key) is True:
            raise UserError(f"--{key.replace('_', '-')}", f"not with --optimizer {NAME}: {reason}")


def torch_settings(cfg) -> dict:
    """Return the settings of an optimiser's config as torch's optimisers take them: lr, betas, eps, weight_decay.

    cfg: a config with the fields of FairseqAdamConfig. lr is the first rate of --lr; the schedule replaces it.
    """
    betas = parse_betas(cfg.adam_betas)
    return {"lr": cfg.lr[0], "betas": betas, "eps": cfg.adam_eps, "weight_decay": cfg.weight_decay}


def parse_betas(text: str) -> tuple[float, float]:
    """Parse "(0.9, 0.98)"; raise a UserError for anything that is not two numbers in [0, 1)."""
    try:
        beta1, beta2 = [float(value) for value in ast.literal_eval(str(text))]
    except (ValueError, SyntaxError, TypeError):
        beta1 = 1.0  # which the next condition refuses
        beta2 = 1.0
    if not 0 <= beta1 < 1 or not 0 <= beta2 < 1:
        raise UserError(f"--adam-betas {text}", "give two numbers in [0, 1), as '(0.9, 0.98)'")
    return beta1, beta2


class Adam(torch.optim.Optimizer):
    """Adam over one group of parameters, with the state of fairseq's adam.

    factor: a number, or a tensor of shape (), by which the next step multiplies all gradients. Scaling and clipping
    change this factor and leave the gradients as they are;
    shard: the division of the parameters under ZeRO, of which this process updates its own; None if it updates all;
    gathered: {a parameter's number: its state} of all processes; only on the first process, from consolidate_state_dict
    to the next step, else empty.
    """

    def __init__(self, params, lr: float, betas: tuple[float, float], eps: float, weight_decay: float):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": False})
        self.factor: float | Tensor = 1.0
        self.shard: Shard | None = None
        self.gathered: dict[int, dict] = {}

    @torch.no_grad()
    def step(self, closure=None):
        """Update each parameter that has a gradient; return what the closure returned, None without a closure."""
        loss = closure() if closure is not None else None
        (group,) = self.param_groups
        parameters = group["params"]
        if self.shard is not None:
            parameters = [parameters[number] for number in self.shard.own_numbers]

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
            weights, grads, exp_avgs, exp_avg_sqs = lists[state["step"], p.device]
            weights.append(p)
            grads.append(grad)
            exp_avgs.append(state["exp_avg"])
            exp_avg_sqs.append(state["exp_avg_sq"])

        for (step, device), tensors in lists.items():
            _fused_update(step, device, tensors, group, factor=self.factor)
        self.factor = 1.0
        self.gathered = {}  # out of date now
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Set the gradients to None and their factor to 1, whatever set_to_none is."""
        self.factor = 1.0
        for p in self.param_groups[0]["params"]:
            p.grad = None

    @property
    def is_sharded(self) -> bool:
        """True if other processes keep parts of the state; distributed/zero.py asks any optimiser for this name."""
        return self.shard is not None

    def consolidate_state_dict(self) -> None:
        """Fill `gathered` on the first process; fairseq's trainer calls this on all processes before state_dict.

        In half precision the parameter's float32 weight is put beside its state, under WEIGHT.
        """
        if self.shard is None:
            return
        entries = {}
        for number in self.shard.own_numbers:
            p = self.param_groups[0]["params"][number]
            entry = dict(self.state.get(p, {}))
            is_float32_copy = p is not self.shard.parameters[number]  # else p is the model's own parameter
            if is_float32_copy:
                entry[WEIGHT] = p.data
            if entry:  # empty in float32, for a parameter that was never updated
                entries[number] = entry
        self.gathered = self.shard.gather(entries)

    def broadcast_global_state_dict(self, state_dict: dict) -> dict:
        """Return on every process the state that the first one has read from a checkpoint.

        state_dict: that state on the first process, not read on the others. fairseq's trainer calls this name.
        """
        if self.shard is None:
            return state_dict
        return distributed_utils.broadcast_object(state_dict, src_rank=0, group=self.shard.group)

    def state_dict(self) -> dict:
        """Return {"state": {number: {"step", "exp_avg", "exp_avg_sq"}}, "param_groups"}, as fairseq's adam does.

        Under ZeRO "state" has the parameters of this process's share alone; on the first process it has all of them
        after consolidate_state_dict, until the next step.
        """
        state = super().state_dict()
        for number, entry in self.gathered.items():
            if "step" in entry:  # the parameter was updated before
                state["state"][number] = {name: entry[name] for name in ("step", *MOMENTS)}
        state["state"] = dict(sorted(state["state"].items()))
        return state

    def load_state_dict(self, state_dict: dict) -> None:
        """Load a state of this class, of fairseq's adam or of apex's; raise a UserError if it is another model's.

        state_dict: as `state_dict` returns it. Under ZeRO it has the state of all parameters, of which this process
        keeps its share.
        """
        parameters = self.param_groups[0]["params"] if self.shard is None else self.shard.parameters
        saved_group = state_dict["param_groups"][0]
        step_of_all = saved_group.get("step", 0)  # apex keeps one count for all parameters, others one in each entry

        # the parameters are matched by their order; the saved numbers need not be 0, 1, 2, ...
        saved_numbers = []
        for group in state_dict["param_groups"]:
            saved_numbers += group["params"]
        fits = len(saved_numbers) == len(parameters)
        states = {}  # by the numbers of `parameters`
        try:
            for number, saved_number in enumerate(saved_numbers):
                entry = state_dict["state"].get(saved_number)
                if not entry:  # never updated
                    continue
                states[number] = {"step": int(entry.get("step", step_of_all))}
                for name in MOMENTS:
                    states[number][name] = entry[name]
                    fits = fits and entry[name].shape == parameters[number].shape
        except (KeyError, IndexError):  # another optimiser's, or of more parameters
            fits = False
        if not fits:
            raise UserError(*OTHER_PARAMETERS)

        # the saved settings (lr, betas, ...), with the numbers of this optimiser's parameters
        (group,) = super().state_dict()["param_groups"]
        group |= {key: saved_group[key] for key in self.defaults.keys() & saved_group.keys()}
        if self.shard is not None:
            states = {number: states[number] for number in self.shard.own_numbers if number in states}
        super().load_state_dict({"state": states, "param_groups": [group]})


def _fused_update(
    step: int, device: torch.device, tensors: tuple[list, ...], group: dict, factor: float | Tensor
) -> None:
    """Make update number `step`, counted from 1, of parameters on one device by torch's fused kernel.

    tensors: the lists of weights, of gradients and of both moments, updated in place; group: the optimiser's settings
    lr, betas, eps and weight_decay; factor: a number, or a tensor of shape (), that multiplies the gradients.
    """
    grad_scale = None  # tensor of shape () by which the kernel divides the gradients
    if torch.is_tensor(factor) or factor != 1.0:  # to compare a tensor with 1.0 would wait for the device
        if not torch.is_tensor(factor) or factor.is_cpu:
            # torch.full makes it on the device; to copy a tensor from the CPU would wait for the device
            factor = torch.full((), float(factor), device=device)
        grad_scale = factor.to(device, torch.float32).reciprocal()

    weights, grads, exp_avgs, exp_avg_sqs = tensors
    steps = [torch.full((), float(step), device=device)] * len(weights)  # one for all: the kernel only reads it
    beta1, beta2 = group["betas"]
    torch._fused_adamw_(
        weights,
        grads,
        exp_avgs,
        exp_avg_sqs,
        [],  # the largest squares, for amsgrad alone
        steps,
        lr=group["lr"],
        beta1=beta1,
        beta2=beta2,
        weight_decay=group["weight_decay"],
        eps=group["eps"] / math.sqrt(1 - beta2**step),  # see the head of this file
        amsgrad=False,
        maximize=False,
        grad_scale=grad_scale,
    )


class HalfPrecisionOptimizer(DeepFP16):
    """fairseq's FP16Optimizer for deepnet_adam, which copies gradients and weights in lists instead of one by one.

    Adam updates float32 copies of the model's weights. As in fairseq, fp32_params has one of two layouts. The flat one
    is {index of the device: one tensor for all weights}. The other is a list with a tensor for each parameter, with
    --bf16, --fp16-no-flatten-grads and under ZeRO, where tensors that other processes update are empty. Checkpoints of
    either layout can be loaded.

    own_parameters: the model's parameters that this process updates;
    weights: their float32 weights;
    gradients: their float32 gradients, [] before prepare_gradients;
    saves_flat: whether checkpoints are in the flat layout, which ZeRO does not change.
    The three lists are in the same order, and their tensors have the parameters' shapes; in the flat layout the float32
    tensors are views of the flat one.
    """

    _needs_sync: bool  # fairseq's: whether the model's gradients have changed since they were copied to float32

    def __init__(self, cfg, params, fp32_optimizer, fp32_params, **kwargs):
        """Take the arguments of FP16Optimizer.

        cfg: fairseq's whole config; params: the model's trained parameters; fp32_optimizer: the DeepnetAdam of
        fp32_params; fp32_params: the float32 weights, as build_fp32_params returns them.
        """
        super().__init__(cfg, params, fp32_optimizer, fp32_params, **kwargs)
        self.saves_flat = self.has_flat_params
        self.own_parameters = params
        if self.saves_flat:
            flat = next(iter(fp32_params.values()))
            self.weights = _views(flat, params)
        else:
            self.weights = [p.data for p in fp32_params]
        self.gradients: list[Tensor] = []  # made at the first update, when it is known whether ZeRO shards them
        # FP16Optimizer compares the norm several times; each time it would wait for the device
        fp32_optimizer.reads_norm = True

    @classmethod
    def build_optimizer(cls, cfg, params, **kwargs) -> HalfPrecisionOptimizer:
        """Build the optimiser.

        cfg: fairseq's whole config; params: the model's trained parameters, in half precision; kwargs: FP16Optimizer's.
        """
        flat = not (cfg.common.bf16 or cfg.common.fp16_no_flatten_grads)
        fp32_params = cls.build_fp32_params(cfg.optimizer, params, flat)
        # fairseq takes a list of parameters, or of dicts of parameters
        fp32_optimizer = optim.build_optimizer(cfg.optimizer, [fp32_params] if flat else fp32_params)
        return cls(cfg, params, fp32_optimizer, fp32_params, **kwargs)

    @classmethod
    def build_fp32_params(cls, args, params, flatten=True):
        """Copy the weights to float32, in one of fairseq's two layouts.

        args: fairseq's argument, not read; params: the model's trained parameters, in half precision. Returns {index of
        the device: one flat parameter} if `flatten`, else a list with a parameter for each.
        """
        if not flatten:
            return [nn.Parameter(p.data.float()) for p in params]
        flat = torch.empty(sum(p.numel() for p in params), device=params[0].device)
        _copy(_views(flat, params), [p.data for p in params])
        return {flat.device.index: nn.Parameter(flat)}

    def shard_state(self, group) -> None:
        """Divide the optimiser's state among processes (ZeRO): keep float32 weights and Adam's state of a share alone.

        group: torch's group of the processes that train together. DeepTrainer calls this before the first update.
        """
        shard = Shard(group, self.fp16_params)
        self.optimizer.shard = shard
        self.own_parameters = [self.fp16_params[number] for number in shard.own_numbers]

        # the layout of a list, with empty tensors for the parameters of other processes
        self.fp32_params = [nn.Parameter(p.data.new_empty(0)) for p in self.fp16_params]
        for number in shard.own_numbers:
            self.fp32_params[number] = nn.Parameter(self.fp16_params[number].data.float())
        self.weights = [self.fp32_params[number].data for number in shard.own_numbers]

        self.param_groups[0]["params"] = self.fp32_params
        # every process has the gradients of all parameters in half precision, and so the norm of all
        self.fp32_optimizer.norm_parameters = self.fp16_params

    def prepare_gradients(self) -> None:
        """Make the tensors of the float32 gradients, in the layout of the float32 weights; they have no values yet.

        Each tensor is the `grad` of its float32 weight, which Adam reads.
        """
        updated = [p for p in self.param_groups[0]["params"] if p.numel()]  # ZeRO's other parameters are empty
        for p in updated:
            p.grad = torch.empty_like(p)
        if self.has_flat_params:
            self.gradients = _views(updated[0].grad, self.own_parameters)
        else:
            self.gradients = [p.grad for p in updated]

    def copy_gradients(self) -> None:
        """Copy the model's gradients to the float32 gradients; one that is None counts as 0."""
        sources = []
        targets = []
        to_zero = []
        for p, float32_gradient in zip(self.own_parameters, self.gradients, strict=True):
            grad = p.grad
            if grad is None:
                to_zero.append(float32_gradient)
            else:
                sources.append(grad)
                targets.append(float32_gradient)
        _copy(targets, sources)
        if to_zero:
            torch._foreach_zero_(to_zero)

    def copy_weights(self) -> None:
        """Copy the float32 weights to the model's parameters."""
        _copy([p.data for p in self.own_parameters], self.weights)

    def drop_gradients(self) -> None:
        """Set the model's gradients to None."""
        for p in self.fp16_params:
            p.grad = None

    def _sync_fp16_grads_to_fp32(self) -> None:
        """Copy the gradients to float32 if they have changed since the last copy.

        FP16Optimizer calls this at the beginning of clip_grad_norm and of step.
        """
        if not self.gradients:
            self.prepare_gradients()
        if self._needs_sync:
            self.copy_gradients()
            self._needs_sync = False

    def _sync_fp32_params_to_fp16(self) -> None:
        """Copy the updated weights to the model; under ZeRO to the models of all processes.

        FP16Optimizer calls this at the end of step.
        """
        self.copy_weights()
        if self.optimizer.shard is not None:
            self.optimizer.shard.broadcast_weights()

    def zero_grad(self) -> None:
        """Drop the model's gradients, and begin with the factor that undoes the loss scale.

        The float32 gradients need not be dropped: they are overwritten before the next step.
        """
        self.drop_gradients()
        self._needs_sync = True
        self._multiply_factor = 1.0 if self.scaler is None else 1.0 / float(self.scaler.loss_scale)

    def float32_weights(self) -> list[Tensor]:
        """Return the float32 weights of all parameters, in their order and shapes.

        Under ZeRO the first process has all of them after consolidate_state_dict, until the next step; else [].
        """
        if self.optimizer.shard is None:
            return self.weights
        return [entry[WEIGHT] for _, entry in sorted(self.optimizer.gathered.items())]

    def load_float32_weights(self, weights: list[Tensor]) -> None:
        """Load float32 weights of all parameters, as float32_weights returns them; ZeRO takes this process's share."""
        shard = self.optimizer.shard
        if shard is not None:
            weights = [weights[number] for number in shard.own_numbers]
        _copy(self.weights, weights)

    def state_dict(self) -> dict:
        """Return fairseq's state in the layout that the same training has without ZeRO."""
        state = super().state_dict()
        if self.saves_flat and not self.has_flat_params:  # under ZeRO
            return _flattened_state(state)
        return state

    def load_state_dict(self, state_dict: dict, optimizer_overrides=None) -> None:
        """Load a state of either layout; raise a UserError if it is of other parameters.

        optimizer_overrides: fairseq's, settings that replace those of the state.
        """
        number_of_parameters = sum(len(group["params"]) for group in state_dict["param_groups"])
        saved_flat = number_of_parameters == 1  # the flat tensor
        try:
            if saved_flat and not self.has_flat_params:
                state_dict = _unflattened_state(state_dict, self.fp16_params)
            elif self.has_flat_params and not saved_flat:
                state_dict = _flattened_state(state_dict)
        except (KeyError, RuntimeError) as error:  # another optimiser's, or another total size
            raise UserError(*OTHER_PARAMETERS) from error
        super().load_state_dict(state_dict, optimizer_overrides)


def _copy(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Copy each source to its target, with one operation for all pairs of the same two dtypes."""
    # (dtype of the target, dtype of the source) -> lists of such targets and sources
    by_dtypes: dict[tuple, tuple[list, list]] = defaultdict(lambda: ([], []))
    for target, source in zip(targets, sources, strict=True):
        alike_targets, alike_sources = by_dtypes[target.dtype, source.dtype]
        alike_targets.append(target)
        alike_sources.append(source)
    for alike_targets, alike_sources in by_dtypes.values():
        torch._foreach_copy_(alike_targets, alike_sources)


def _views(flat: Tensor, parameters: list[nn.Parameter]) -> list[Tensor]:
    """Return for each parameter the part of the flat tensor (N,) that belongs to it, as a view in its shape."""
    parts = flat.detach().split([p.numel() for p in parameters])
    return [part.view(p.shape) for part, p in zip(parts, parameters, strict=True)]


def _flattened_state(state: dict) -> dict:
    """Convert a state with an entry for each parameter to one of the flat layout (HalfPrecisionOptimizer).

    state: {"state": {number: {"step", "exp_avg", "exp_avg_sq"}}, "param_groups": ...}. The moments of all entries are
    flattened and joined in one entry. Its step is that of the first entry: all have the same, because a missing
    gradient counts as 0.
    """
    entries = [entry for _number, entry in sorted(state["state"].items())]
    flattened = {}
    if entries:  # none before the first update
        flat_entry = dict(entries[0])
        for name in MOMENTS:
            flat_entry[name] = torch.cat([entry[name].reshape(-1) for entry in entries])
        flattened[0] = flat_entry
    group = state["param_groups"][0] | {"params": [0]}
    return state | {"state": flattened, "param_groups": [group]}


def _unflattened_state(state: dict, parameters: list[nn.Parameter]) -> dict:
    """Convert a state of the flat layout to one with an entry for each parameter, the reverse of _flattened_state.

    parameters: all of them, in the order in which they were flattened, for their shapes.
    """
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
    # The parameters whose gradients `norm` measures, None for those that Adam updates. HalfPrecisionOptimizer sets it
    # under ZeRO, where Adam has the float32 gradients of this process's share alone.
    norm_parameters: list[nn.Parameter] | None = None
    # Whether clip_grad_norm returns the norm on the CPU, for a caller that compares it: the copy waits for the device
    # once, but each comparison of a norm on the device would wait.
    reads_norm = False

    def __init__(self, cfg: FairseqAdamConfig, params):
        """Take the flags of Adam and the parameters to update; raise a UserError for flags that it refuses."""
        FairseqOptimizer.__init__(self, cfg)  # FairseqAdam.__init__ would build its own Adam
        whole_cfg = cfg._get_parent() if hasattr(cfg, "_get_parent") else None  # None for a config made alone
        if whole_cfg is not None:
            check_settings(lambda section, key: whole_cfg.get(section, {}).get(key))
        self._optimizer = Adam(list(params), **self.optimizer_config)

    @property
    def optimizer_config(self) -> dict:
        """Settings of the command line, by torch's names; fairseq lets them replace those of a checkpoint."""
        return torch_settings(self.cfg)

    def shard_state(self, group) -> None:
        """Divide the optimiser's state among processes (ZeRO): keep Adam's state of this process's share alone.

        group: torch's group of the processes that train together. DeepTrainer calls this before the first update.
        """
        self.optimizer.shard = Shard(group, list(self.params))

    @property
    def _multiply_factor(self) -> float | Tensor:
        """Factor by which the next step will multiply the gradients.

        half_precision.gradient_scale reads it, by the name that it has in FP16Optimizer.
        """
        return self.optimizer.factor

    def multiply_grads(self, c: float | Tensor) -> None:
        """Let the next step multiply all gradients by c, a number or a tensor of shape ()."""
        self.optimizer.factor = self.optimizer.factor * c

    def norm(self) -> Tensor:
        """Return the L2 norm () of the gradients as they are, not multiplied by Adam.factor yet."""
        pieces: list[Tensor] = []
        for p in self.norm_parameters or self.params:
            grad = p.grad
            if grad is None:
                continue
            if grad.numel() > NORM_PIECE:
                pieces += grad.reshape(-1).split(NORM_PIECE)
            else:
                pieces.append(grad)
        # the norm of the pieces' norms is the norm of all
        norms = torch._foreach_norm(pieces, 2, torch.float32) if pieces else [torch.zeros(())]
        return torch.linalg.vector_norm(torch.stack(norms))

    def clip_grad_norm(self, max_norm: float, aggregate_norm_fn=None) -> Tensor:
        """Let the next step clip the gradients to the L2 norm max_norm; return their norm () before that.

        max_norm: 0 or less clips nothing; aggregate_norm_fn: a function that is called with this process's norm and
        returns that of all processes, None to use this process's.
        """
        norm = self.norm() * self.optimizer.factor
        if aggregate_norm_fn is not None:
            norm = aggregate_norm_fn(norm)
        if max_norm > 0:
            self.multiply_grads((float(max_norm) / (norm + 1e-6)).clamp_(max=1))  # 1e-6 as in fairseq.utils
        return norm.cpu() if self.reads_norm else norm

    def step(self, closure=None, scale: float = 1.0, groups=None) -> None:
        """Make an update; under ZeRO in float32 each process then sends the weights that it has updated to all.

        The arguments are those of FairseqOptimizer.step.
        """
        super().step(closure, scale, groups)
        # Only HalfPrecisionOptimizer sets norm_parameters, under ZeRO; it sends the weights of half precision itself.
        sent_later = self.norm_parameters is not None
        if self.optimizer.shard is not None and not sent_later:
            self.optimizer.shard.broadcast_weights()

    def zero_grad(self) -> None:
        """Set the gradients to None, in one pass over the parameters; FairseqOptimizer makes two."""
        self.optimizer.zero_grad()


# A checkpoint holds the name of its optimiser's class, and fairseq compares it when it resumes. With fairseq's names a
# training may switch between adam and deepnet_adam.
DeepnetAdam.__name__ = FairseqAdam.__name__
HalfPrecisionOptimizer.__name__ = FP16Optimizer.__name__
