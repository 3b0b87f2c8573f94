"""RAdam (Liu et al. 2020, arXiv 1908.03265), the optimiser of Admin's recipes, which fairseq lacks: torch's."""

from dataclasses import dataclass, field

import torch
from fairseq.dataclass import FairseqDataclass
from fairseq.optim import FairseqOptimizer, register_optimizer
from omegaconf import II

from .deepnet_adam import settings


@dataclass
class RAdamConfig(FairseqDataclass):
    """The flags of `--optimizer radam`, by the names of adam's."""

    adam_betas: str = field(default="(0.9, 0.999)", metadata={"help": "betas for RAdam"})
    adam_eps: float = field(default=1e-8, metadata={"help": "epsilon for RAdam"})
    weight_decay: float = field(default=0.0, metadata={"help": "decoupled weight decay"})
    lr: list[float] = II("optimization.lr")


@register_optimizer("radam", dataclass=RAdamConfig)
class RAdam(FairseqOptimizer):
    """torch.optim.RAdam under fairseq's names of Adam's flags."""

    def __init__(self, cfg, params):
        super().__init__(cfg)
        self._optimizer = torch.optim.RAdam(params, **self.optimizer_config)

    @property
    def optimizer_config(self) -> dict:
        """What is given now and replaces what a checkpoint holds."""
        return settings(self.cfg) | {"decoupled_weight_decay": True}
