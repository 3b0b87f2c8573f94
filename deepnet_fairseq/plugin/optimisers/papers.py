"""RAdam (Admin's optimiser), T-Fixup's learning rate and GPAS's clipping, which papers' recipes need and fairseq lacks.

`--optimizer radam`: Liu et al. 2020, arXiv 1908.03265.
`--lr-scheduler t_fixup`: lr(t) = lr sqrt(P / (P + t)) with the --decay-period P, at its peak from the first update on
(Huang et al. 2020). fairseq's inverse_sqrt cannot do this, because it divides by the number of warm-up updates.
clip_apart: `--gpas-clip` (Chen et al. 2025, core/methods/gpas.py).
"""

from dataclasses import dataclass, field

import torch
from fairseq.dataclass import FairseqDataclass
from fairseq.optim import FairseqOptimizer, register_optimizer
from fairseq.optim.lr_scheduler import FairseqLRScheduler, register_lr_scheduler
from omegaconf import II

from ...core.models import DeepModel
from ...errors import UserError
from .deepnet_adam import MOMENTS, torch_settings
from .half_precision import gradient_scale

HALF = (torch.float16, torch.bfloat16)


@dataclass
class RAdamConfig(FairseqDataclass):
    """The flags of `--optimizer radam`, which have the names of adam's flags."""

    adam_betas: str = field(default="(0.9, 0.999)", metadata={"help": "betas for RAdam"})
    adam_eps: float = field(default=1e-8, metadata={"help": "epsilon for RAdam"})
    weight_decay: float = field(default=0.0, metadata={"help": "decoupled weight decay"})
    lr: list[float] = II("optimization.lr")


class PatientRAdam(torch.optim.RAdam):
    """torch's RAdam, but without steps while the variance of the adaptive learning rate is not tractable.

    The variance is not tractable while rho_t, the length of the moving average of squared gradients, is at most 5 (Liu
    et al. 2020, algorithm 2): with beta2 = 0.98 in the first 5 updates. In these torch steps by the momentum alone,
    without the second moment. Admin's authors make no step in them, but apply weight decay and update the moments, and
    so does this class. Parameters in half precision are updated in float32, one after the other, and their moments are
    float32.
    """

    # what fairseq requires of an optimiser for --fp16 and --memory-efficient-fp16
    supports_flat_params = True
    supports_memory_efficient_fp16 = True
    disable_mem_eff_fp16_loading_hack = True

    @torch.no_grad()
    def step(self, closure=None):
        """Update each parameter that has a gradient; return what the closure returned, None without a closure."""
        loss = closure() if closure is not None else None
        groups = self.param_groups  # replaced by _update, restored below
        try:
            for group in groups:
                early = self._is_too_early(group)
                full_params = [param for param in group["params"] if param.dtype not in HALF]
                half_params = [param for param in group["params"] if param.dtype in HALF]
                self._update(group, full_params, early)
                for param in half_params:
                    if param.grad is not None:
                        self._update_in_float32(group, param, early)
        finally:
            self.param_groups = groups
        return loss

    def _update(self, group: dict, params: list, early: bool) -> None:
        """Update some parameters of a group by torch's step, which takes them from self.param_groups.

        group: the settings, under torch's names; params: parameters of the group, or float32 copies of them; early:
        update the moments as always, but change the parameters by weight decay alone (see the class).
        """
        if early:
            for param in params:
                if param.grad is not None:
                    param.mul_(1 - group["lr"] * group["weight_decay"])
        lr = 0.0 if early else group["lr"]  # with 0 torch's step updates the moments alone
        self.param_groups = [group | {"params": params, "lr": lr}]
        super().step()

    def _update_in_float32(self, group: dict, param: torch.nn.Parameter, early: bool) -> None:
        """Update a parameter in half precision by updating a float32 copy of it.

        The copy has the parameter's state (moments, step) meanwhile. The arguments are those of _update.
        """
        float32_copy = torch.nn.Parameter(param.float())
        float32_copy.grad = param.grad.float()
        self.state[float32_copy] = self.state.pop(param, {})
        self._update(group, [float32_copy], early)
        self.state[param] = self.state.pop(float32_copy)
        param.copy_(float32_copy)

    def load_state_dict(self, state_dict: dict) -> None:
        """Load a state as torch does, but keep the moments in float32.

        torch casts them to the dtype of their parameter, which may be half precision.
        """
        super().load_state_dict(state_dict)
        # the n-th parameter of the saved groups is the n-th of these
        indices = [index for group in state_dict["param_groups"] for index in group["params"]]
        params = [param for group in self.param_groups for param in group["params"]]
        for index, param in zip(indices, params, strict=True):
            saved = state_dict["state"].get(index)
            if saved and param.dtype in HALF:
                self.state[param] |= {name: saved[name].to(param.device, copy=True) for name in MOMENTS}

    def _is_too_early(self, group) -> bool:
        """Return whether rho_t is at most 5 in a group's next update, t.

        rho_t = rho_inf - 2 t beta2^t / (1 - beta2^t), rho_inf = 2 / (1 - beta2) - 1 (Liu et al. 2020, algorithm 2).
        """
        # t follows from the state of the first parameter that has one; without any it is 1
        update = 1
        for param in group["params"]:
            state = self.state.get(param)
            if state:
                update = 1 + int(state["step"])
                break

        beta2 = group["betas"][1]
        rho_inf = 2 / (1 - beta2) - 1
        return rho_inf - 2 * update * beta2**update / (1 - beta2**update) <= 5


@register_optimizer("radam", dataclass=RAdamConfig)
class RAdam(FairseqOptimizer):
    """PatientRAdam under fairseq's interface, with the flags of adam."""

    def __init__(self, cfg, params):
        super().__init__(cfg)
        self._optimizer = PatientRAdam(params, **self.optimizer_config)

    @property
    def optimizer_config(self) -> dict:
        """Settings of the command line, by torch's names; fairseq lets them replace those of a checkpoint."""
        return torch_settings(self.cfg) | {"decoupled_weight_decay": True}


@dataclass
class TFixupScheduleConfig(FairseqDataclass):
    """The flags of `--lr-scheduler t_fixup`."""

    decay_period: int = field(default=4000, metadata={"help": "P, updates until the rate has fallen to lr / sqrt(2)"})
    lr: list[float] = II("optimization.lr")


@register_lr_scheduler("t_fixup", dataclass=TFixupScheduleConfig)
class TFixupSchedule(FairseqLRScheduler):
    """Inverse square root decay without warm-up: lr(t) = lr sqrt(P / (P + t)) after t = 0, 1, 2, ... updates."""

    def __init__(self, cfg, optimizer):
        """Set the first rate; raise a UserError for several rates in --lr, or for --decay-period below 1.

        cfg: a TFixupScheduleConfig; optimizer: the FairseqOptimizer whose rate it sets.
        """
        super().__init__(cfg, optimizer)
        if len(cfg.lr) != 1:
            raise UserError(f"--lr {','.join(map(str, cfg.lr))}", "--lr-scheduler t_fixup takes one rate")
        if cfg.decay_period < 1:
            raise UserError(f"--decay-period {cfg.decay_period}", "must be at least 1")
        self.step_update(0)

    def step(self, epoch, val_loss=None):
        """Return the rate at the end of an epoch; the rate stays, because it depends on updates alone.

        epoch, val_loss: as fairseq's schedules take them.
        """
        super().step(epoch, val_loss)
        return self.optimizer.get_lr()

    def step_update(self, num_updates):
        """Set and return the rate after num_updates updates."""
        period = self.cfg.decay_period
        self.optimizer.set_lr(self.cfg.lr[0] * (period / (period + num_updates)) ** 0.5)
        return self.optimizer.get_lr()


def clip_apart(trainer) -> None:
    """Clip the gradients of the modules that have an attribute `gradient_clip`, apart from those of other parameters.

    gradient_clip, the same number in all of them, is the largest L2 norm that the gradients of all such modules may
    have together; 0 for no limit. Their parameters are scalars, of shape (), as GPAS's g. trainer: a DeepTrainer, whose
    `limited` keeps the list of the modules.
    """
    limited = trainer.limited
    if limited is None:  # the first update: walk through all layers
        limited = []
        model = trainer.get_model()
        if isinstance(model, DeepModel):
            for stack in model.stacks().values():
                # slots: the modules that the stabilisation method has put into the layers
                limited += [module for _address, module in stack.slots() if getattr(module, "gradient_clip", 0.0)]
        trainer.limited = limited

    parameters: dict[torch.nn.Parameter, None] = {}  # each once: the modules of a layer share theirs
    for module in limited:
        parameters |= dict.fromkeys(module.parameters())
    grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if grads:
        # The limit is for gradients of the mean loss. An optimiser may have to multiply `grads` for that, to undo the
        # loss scale and to divide by the number of tokens; gradient_scale is the factor.
        norm = torch.linalg.vector_norm(torch.stack(grads)) * gradient_scale(trainer.optimizer)
        torch._foreach_mul_(grads, (limited[0].gradient_clip / norm).clamp(max=1))
