"""Half-precision training with deepnet_adam: fairseq's loss scaling over flat float32 weights."""

from __future__ import annotations

from fairseq import optim
from fairseq.optim.fp16_optimizer import FP16Optimizer


class FlatFP16Optimizer(FP16Optimizer):
    """fairseq's FP16Optimizer but for its copies, gradient by gradient and weight by weight: FlatAdam makes them.

    Gradients of the scaled loss stay in the parameters, FlatAdam collects them in float32, and the scale is part of the
    factor it multiplies them with. Under --bf16 there is no scale. The state is laid out as fairseq's: one flat entry,
    or an entry a parameter with --fp16-no-flatten-grads and --bf16.
    """

    @classmethod
    def build_optimizer(cls, cfg, params, **kwargs) -> FlatFP16Optimizer:
        """cfg: fairseq's whole config; params: the parameters of a model in half precision."""
        fp32_optimizer = optim.build_optimizer(cfg.optimizer, params)
        adam = fp32_optimizer.optimizer
        adam.absent_is_zero = True
        adam.merge = not (cfg.common.bf16 or cfg.common.fp16_no_flatten_grads)
        return cls(cfg, params, fp32_optimizer, [part.flat.weights for part in adam.parts], **kwargs)

    def share(self, group) -> None:
        """FlatAdam.share; float32 weights of others' shares go."""
        self.optimizer.share(group)
        self.fp32_params = [part.flat.weights for part in self.optimizer.parts]

    def _sync_fp16_grads_to_fp32(self) -> None:
        """Nothing to do: FlatAdam collects them."""

    def _sync_fp32_params_to_fp16(self) -> None:
        """Nothing to do: FlatAdam has done it."""

    def zero_grad(self) -> None:
        """Drops the gradients; the next ones are those of a loss times the loss scale."""
        self.fp32_optimizer.zero_grad()
        self._multiply_factor = 1.0 if self.scaler is None else 1.0 / float(self.scaler.loss_scale)


# as with DeepnetAdam: what a checkpoint says of its optimiser
FlatFP16Optimizer.__name__ = FP16Optimizer.__name__
