"""RAdam (Admin's optimiser), T-Fixup's learning rate and GPAS's clipping, which papers' recipes need and fairseq lacks.

`--optimizer radam`: Liu et al. 2020, arXiv 1908.03265. `--lr-scheduler t_fixup`: lr(t) = lr sqrt(P / (P + t)), at its
peak from the first update (Huang et al. 2020); fairseq's inverse_sqrt divides by the length of its warm-up.
"""

from dataclasses import dataclass, field

import torch
from fairseq.dataclass import FairseqDataclass
from fairseq.optim import FairseqOptimizer, register_optimizer
from fairseq.optim.lr_scheduler import FairseqLRScheduler, register_lr_scheduler
from omegaconf import II

from ...core.models import DeepModel
from ...errors import UserError
from .deepnet_adam import MOMENTS, settings
from .half_precision import gradient_scale

HALF = (torch.float16, torch.bfloat16)


@dataclass
class RAdamConfig(FairseqDataclass):
    """The flags of `--optimizer radam`, by the names of adam's."""

    adam_betas: str = field(default="(0.9, 0.999)", metadata={"help": "betas for RAdam"})
    adam_eps: float = field(default=1e-8, metadata={"help": "epsilon for RAdam"})
    weight_decay: float = field(default=0.0, metadata={"help": "decoupled weight decay"})
    lr: list[float] = II("optimization.lr")


class PatientRAdam(torch.optim.RAdam):
    """RAdam of torch, but without a step, weight decay apart, until the variance of its rate is tractable.

    It waits while the length of the moving average rho_t <= 5: for the first 5 updates at beta2 0.98. There torch steps
    with the bare momentum; Admin's authors do not. Parameters in half precision are updated in float32, one after the
    other, and their moments are float32.
    """

    # what fairseq requires of an optimiser for --fp16 and --memory-efficient-fp16
    supports_flat_params = True
    supports_memory_efficient_fp16 = True
    disable_mem_eff_fp16_loading_hack = True

    @torch.no_grad()
    def step(self, closure=None):
        loss = closure() if closure is not None else None
        groups = self.param_groups  # _update puts a part of one group in their place, for torch's step
        try:
            for group in groups:
                early = self._too_early(group)
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
        """Update some parameters of a group; early: their moments and by weight decay alone."""
        if early:
            for param in params:
                if param.grad is not None:
                    param.mul_(1 - group["lr"] * group["weight_decay"])
        lr = 0.0 if early else group["lr"]  # 0 updates the moments alone
        self.param_groups = [group | {"params": params, "lr": lr}]
        super().step()

    def _update_in_float32(self, group: dict, param: torch.nn.Parameter, early: bool) -> None:
        """Update a parameter in half precision by a copy in float32, to which its state belongs meanwhile."""
        wide = torch.nn.Parameter(param.float())
        wide.grad = param.grad.float()
        self.state[wide] = self.state.pop(param, {})
        self._update(group, [wide], early)
        self.state[param] = self.state.pop(wide)
        param.copy_(wide)

    def load_state_dict(self, state_dict: dict) -> None:
        """Load a state without torch's cast of the moments to the type of parameters in half precision."""
        super().load_state_dict(state_dict)
        indices = [index for group in state_dict["param_groups"] for index in group["params"]]
        params = [param for group in self.param_groups for param in group["params"]]
        for index, param in zip(indices, params, strict=True):
            saved = state_dict["state"].get(index)
            if saved and param.dtype in HALF:
                self.state[param] |= {name: saved[name].to(param.device, copy=True) for name in MOMENTS}

    def _too_early(self, group) -> bool:
        """Return whether rho_t of the next update is at most 5, where the variance of its rate is not tractable."""
        update = 1
        for param in group["params"]:
            state = self.state.get(param)
            if state:
                update = 1 + int(state["step"])
                break

        beta2 = group["betas"][1]
        longest = 2 / (1 - beta2) - 1  # rho_infinity
        return longest - 2 * update * beta2**update / (1 - beta2**update) <= 5


@register_optimizer("radam", dataclass=RAdamConfig)
class RAdam(FairseqOptimizer):
    """PatientRAdam under fairseq's names of Adam's flags."""

    def __init__(self, cfg, params):
        super().__init__(cfg)
        self._optimizer = PatientRAdam(params, **self.optimizer_config)

    @property
    def optimizer_config(self) -> dict:
        """Settings of the command line, which replace those of a checkpoint."""
        return settings(self.cfg) | {"decoupled_weight_decay": True}


@dataclass
class TFixupScheduleConfig(FairseqDataclass):
    """The flags of `--lr-scheduler t_fixup`."""

    decay_period: int = field(default=4000, metadata={"help": "P, updates until the rate has fallen to lr / sqrt(2)"})
    lr: list[float] = II("optimization.lr")


@register_lr_scheduler("t_fixup", dataclass=TFixupScheduleConfig)
class TFixupSchedule(FairseqLRScheduler):
    """Inverse square root decay without warm-up; t counts updates from 0.

    Raises a UserError, naming the flag, for several rates in --lr and for --decay-period below 1.
    """

    def __init__(self, cfg, optimizer):
        super().__init__(cfg, optimizer)
        if len(cfg.lr) != 1:
            raise UserError(f"--lr {','.join(map(str, cfg.lr))}: --lr-scheduler t_fixup takes one rate")
        if cfg.decay_period < 1:
            raise UserError(f"--decay-period {cfg.decay_period}: must be at least 1")
        self.step_update(0)

    def step(self, epoch, val_loss=None):
        super().step(epoch, val_loss)
        return self.optimizer.get_lr()

    def step_update(self, num_updates):
        period = self.cfg.decay_period
        self.optimizer.set_lr(self.cfg.lr[0] * (period / (period + num_updates)) ** 0.5)
        return self.optimizer.get_lr()


def clip_apart(trainer) -> None:
    """Clip the gradients of modules with a `gradient_clip` to that L2 norm over all of them, apart from the others."""
    limited = trainer.limited
    if limited is None:  # a walk through all layers, once
        limited = []
        model = trainer.get_model()
        if isinstance(model, DeepModel):
            for stack in model.stacks().values():
                limited += [slot for _address, slot in stack.slots() if getattr(slot, "gradient_clip", 0.0)]
        trainer.limited = limited

    parameters: dict[torch.nn.Parameter, None] = {}  # each once
    for slot in limited:
        parameters |= dict.fromkeys(slot.parameters())
    grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if grads:
        norm = torch.linalg.vector_norm(torch.stack(grads)) * gradient_scale(trainer.optimizer)
        torch._foreach_mul_(grads, (limited[0].gradient_clip / norm).clamp(max=1))
