"""What stacks and layers are made of: linear maps, dropout, activations, positions; and a fast walk through them.

Linear maps wait for their initialisation; several of one input are one product, their parameters separate, in the model
and in checkpoints. Dropout is drawn four numbers at a time on a CPU: torch draws a double for each, a fifth of a
narrow layer's time. Names of activations, positions of padded sentences and the words that a dropout is told are
fairseq's.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

logger = logging.getLogger(__name__)


def gelu(x: Tensor) -> Tensor:
    """x Phi(x) of x of any shape, computed in float32 (Hendrycks and Gimpel 2016)."""
    return F.gelu(x.float()).type_as(x)


def gelu_accurate(x: Tensor) -> Tensor:
    """Hendrycks and Gimpel's approximation of `gelu` by tanh."""
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3))))


def relu_squared(x: Tensor) -> Tensor:
    """max(x, 0)^2 (So et al. 2021, Primer)."""
    return F.relu(x).pow(2)


def linear(x: Tensor) -> Tensor:
    """x itself."""
    return x


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": gelu,
    "gelu_fast": gelu_accurate,  # its name in older configs
    "gelu_accurate": gelu_accurate,
    "tanh": torch.tanh,
    "linear": linear,
    "relu_squared": relu_squared,
}
SMALL = 2**14  # numbers that a CPU copies sooner than Python has looked where they lie
RESOLUTION = 2**16  # probabilities are multiples of 1 / RESOLUTION on a CPU; what is kept is scaled by the exact one


class Dropout(nn.Module):
    """Dropout with probability p, from torch's random generator, of 16 random bits a number on a CPU.

    There p is rounded to a multiple of 2^-16; what is kept is scaled to that, so the mean is exact. module_name: how
    fairseq's --retain-dropout-modules calls it.
    """

    def __init__(self, p: float, module_name: str | None = None):
        super().__init__()
        self.p, self.module_name = p, module_name
        self.apply_during_inference = False

    @property
    def drops(self) -> bool:
        """Does it do anything now?"""
        return self.p > 0 and (self.training or self.apply_during_inference)

    def forward(self, x: Tensor) -> Tensor:
        """x of any shape -> same, each number zero with probability p and else x / (1 - p)."""
        if not self.drops:
            return x
        return x * noise(x, self.p) if x.is_cpu else F.dropout(x, self.p)

    def make_generation_fast_(
        self, name: str, retain_dropout: bool = False, retain_dropout_modules: list[str] | None = None, **_: Any
    ) -> None:
        """fairseq-generate's call before decoding: --retain-dropout, for all modules or those that it names."""
        if retain_dropout and (retain_dropout_modules is None or self.module_name in retain_dropout_modules):
            logger.info(f"dropout stays in {name}")
            self.apply_during_inference = True


def noise(x: Tensor, p: float) -> Tensor:
    """Shaped like x: 0 with probability p, else 1 / (1 - p)."""
    dropped = round(p * RESOLUTION)
    scale = RESOLUTION / (RESOLUTION - dropped)
    words = torch.empty((x.numel() + 3) // 4, dtype=torch.int64, device="cpu").random_(-(2**63), None)
    numbers = words.view(torch.int16)[: x.numel()].view(x.shape).to(torch.float32)  # -2^15 to 2^15 - 1
    kept = numbers.add_(RESOLUTION // 2 - dropped + 1).mul_(scale).clamp_(0, scale)
    return kept.to(x.dtype)


class Linear(nn.Linear):
    """nn.Linear whose values are undefined until initialisation.initialize or a checkpoint fills them."""

    def reset_parameters(self) -> None:
        """Left to core/initialisation.py, which visits every parameter and raises on one it does not know."""


def line_up(*linears: nn.Linear) -> None:
    """Says of parameters of linears that `project` reads together: each is best laid behind the one before, in memory.

    As their attribute `behind`. plugin/optimisers/flat.py goes by it when it lays them anew.
    """
    for first, second in pairwise(linears):
        for name, parameter in second.named_parameters():
            vars(parameter)["behind"] = getattr(first, name)


def lined_up(tensors: Sequence[Tensor]) -> bool:
    """Do the numbers of one tensor lie directly behind those of the one before it, in one memory?"""
    end, memory = tensors[0].storage_offset(), tensors[0].untyped_storage()._cdata
    for tensor in tensors:
        if tensor.storage_offset() != end or tensor.untyped_storage()._cdata != memory or not tensor.is_contiguous():
            return False
        end += tensor.numel()
    return True


def stacked(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors of equal shape (D, ..) one below the other, (n D, ..); a view of their memory where they lie so.

    A copy where it is small, where autograd is to see each, and in compiled code, which knows nothing of memory.
    """
    first = tensors[0]
    if len(tensors) == 1:
        return first
    small = first.is_cpu and first.numel() < SMALL
    if small or torch.is_grad_enabled() or torch.compiler.is_compiling() or not lined_up(tensors):
        return torch.cat(tuple(tensors))
    rows, *rest = first.shape
    return first.as_strided((len(tensors) * rows, *rest), first.stride())


def pack(*linears: nn.Linear) -> tuple[Tensor, Tensor | None]:
    """Weights (C', C) and biases (C',) of n projections, one below the other: (n C', C), and (n C',) or None."""
    bias = None if linears[0].bias is None else stacked([linear.bias for linear in linears])
    return stacked([linear.weight for linear in linears]), bias


def watched(*modules: nn.Module) -> bool:
    """Do hooks wait for a call of one of them?"""
    return any(module._forward_hooks or module._forward_pre_hooks for module in modules)


def project(x: Tensor, *linears: nn.Linear) -> Tensor:
    """x (B, T, C) -> the outputs of n linears of equal shape side by side, (B, T, n C').

    Their forward hooks are called; RuntimeError for one that wants to change what it sees.
    """
    if _plain(x):
        y = F.linear(x, *pack(*linears))
    else:
        y = _Project.apply(x, len(linears), None, False, *_parameters(linears))
    if watched(*linears):
        for linear, part in zip(linears, y.chunk(len(linears), -1), strict=True):
            _tell(linear, x, part)
    return y


def branch_off(x: Tensor, *linears: nn.Linear, own: bool, relu: bool = False) -> tuple[Tensor, Tensor]:
    """x (B, T, C), the stream -> what a branch begins with, as `project`, of which relu may be taken, and x again.

    For the shortcut: the gradients of both are added up by the product that gives the one, not after it, where the
    other is a tensor that nobody else holds (`own`); and relu is a part of the product on a GPU. Linears with hooks, or
    with a forward pass of their own, are called.
    """
    if _plain(x) or torch.compiler.is_compiling() or not all(_bare(linear) for linear in linears):
        y = linears[0](x) if len(linears) == 1 else project(x, *linears)
        return (F.relu(y) if relu else y), x
    return _Project.apply(x, len(linears), own, relu, *_parameters(linears))


def _bare(linear: nn.Linear) -> bool:
    """Is a call of it a product by its weight, and nothing else?"""
    hooks = linear._forward_hooks, linear._forward_pre_hooks, linear._backward_hooks, linear._backward_pre_hooks
    return type(linear).forward is nn.Linear.forward and not any(hooks)


def _plain(x: Tensor) -> bool:
    """Is the product of x left to torch: without gradients, and where autocast has a word in it?"""
    return not torch.is_grad_enabled() or autocasts(x)


def autocasts(x: Tensor) -> bool:
    """Is autocast on for the device of x?"""
    return not x.is_meta and torch.is_autocast_enabled(x.device.type)


def without_autocast(x: Tensor) -> AbstractContextManager:
    """For what computes with float32 numbers: autocast on the device of x would round them to half precision."""
    return torch.autocast(x.device.type, enabled=False) if autocasts(x) else nullcontext()


def _parameters(linears: Sequence[nn.Linear]) -> list[Tensor]:
    biases = [linear.bias for linear in linears if linear.bias is not None]
    return [*(linear.weight for linear in linears), *biases]


def _tell(module: nn.Module, x: Tensor, y: Tensor) -> None:
    """Calls a module's hooks as if it had made y from x. RuntimeError for one that wants to change either."""
    pre, after = module._forward_pre_hooks_with_kwargs, module._forward_hooks_with_kwargs
    changes = [hook(module, (x,), *([{}] if key in pre else [])) for key, hook in module._forward_pre_hooks.items()]
    changes += [hook(module, (x,), *([{}] if key in after else []), y) for key, hook in module._forward_hooks.items()]
    if any(change is not None for change in changes):
        raise RuntimeError("a hook may watch a packed projection, not change it")


class _Project(torch.autograd.Function):
    """F.linear by the packed weight, which the backward pass packs again: in a deep model copies would add up.

    own: as in branch_off; None gives y alone.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, count: int, own: bool | None, relu: bool, *parameters: Tensor) -> Any:
        weight, biases = stacked(parameters[:count]), parameters[count:]
        bias = stacked(biases) if biases else None
        if relu and x.is_cuda and bias is not None:
            y = torch._addmm_activation(bias, x.flatten(0, -2), weight.t()).view(*x.shape[:-1], -1)
        else:
            y = F.linear(x, weight, bias)
            y = y.relu_() if relu else y
        ctx.save_for_backward(x, y if relu else None, *parameters[:count])
        ctx.biased, ctx.own = bool(biases), own
        return y if own is None else (y, x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, of_shortcut: Tensor | None = None) -> tuple[Tensor | None, ...]:
        x, y, *weights = ctx.saved_tensors
        if y is not None:
            grad = torch.ops.aten.threshold_backward(grad, y, 0)
        rows, of_x = grad.flatten(0, -2), None
        if of_shortcut is not None:
            free = ctx.own and of_shortcut.is_contiguous() and not torch.is_grad_enabled()
            total = of_shortcut if free else of_shortcut.clone(memory_format=torch.contiguous_format)
            of_x = total.flatten(0, -2).addmm_(rows, stacked(weights)).view(x.shape)
        elif ctx.needs_input_grad[0]:
            of_x = F.linear(grad, stacked(weights).t())
        of_weights = (rows.t() @ x.flatten(0, -2)).chunk(len(weights))
        of_biases = rows.sum(0).chunk(len(weights)) if ctx.biased else ()
        return of_x, None, None, None, *of_weights, *of_biases


def token_positions(tokens: Tensor, padding_idx: int) -> Tensor:
    """tokens (B, T) -> (B, T): padding_idx + 1 at the first token, one more at each; padding_idx at padding."""
    is_token = tokens.ne(padding_idx).int()
    return (is_token.cumsum(1) * is_token).long() + padding_idx


class SinusoidalPositions(nn.Module):
    """sin and cos of position times 10000^(-i / (C/2 - 1)), i = 0 to C/2 - 1: the sines in front, the cosines behind.

    As in tensor2tensor and fairseq; Vaswani et al. 2017, section 3.5, interleave them and divide by C/2. A table of
    `size` positions, which grows when a longer sentence comes.
    """

    max_positions = 100_000  # fairseq's word for no limit
    weights: Tensor  # (rows, C)

    def __init__(self, size: int, dim: int, padding_idx: int):
        super().__init__()
        self.dim, self.padding_idx = dim, padding_idx
        self.register_buffer("weights", self.table(size + padding_idx + 1), persistent=False)

    def table(self, rows: int) -> Tensor:
        """(rows, C), the row of padding_idx zero."""
        table, half = torch.empty(rows, self.dim), self.dim // 2
        if table.is_meta:  # shapes alone, as models.blueprint wants them
            return table
        rates = torch.exp(torch.arange(half, dtype=torch.float) * -(math.log(10000) / (half - 1)))
        angles = torch.arange(rows, dtype=torch.float).unsqueeze(1) * rates
        table = torch.cat([angles.sin(), angles.cos(), angles.new_zeros(rows, self.dim % 2)], dim=1)
        table[self.padding_idx] = 0
        return table

    def forward(self, tokens: Tensor, last: bool = False) -> Tensor:
        """tokens (B, T) -> (B, T, C); if `last`, that of position T for each sentence, (B, 1, C)."""
        rows = self.padding_idx + 1 + tokens.size(1)
        if rows > self.weights.size(0):
            self.weights = self.table(rows).to(self.weights)
        if last:
            return self.weights[rows - 1].expand(len(tokens), 1, -1)
        return F.embedding(token_positions(tokens, self.padding_idx), self.weights)


class LearnedPositions(nn.Embedding):
    """A vector a position, for sentences of up to max_positions tokens; IndexError beyond. Values are drawn later."""

    def __init__(self, size: int, dim: int, padding_idx: int):
        super().__init__(size + padding_idx + 1, dim, padding_idx)
        self.max_positions = size

    def forward(self, tokens: Tensor, last: bool = False) -> Tensor:
        """As SinusoidalPositions.forward; (1, 1, C) if `last`."""
        assert self.padding_idx is not None
        if last:
            return super().forward(tokens.new_full((1, 1), self.padding_idx + tokens.size(1)))
        return super().forward(token_positions(tokens, self.padding_idx))


def submodules(root: nn.Module) -> Iterator[nn.Module]:
    """root and all below it, each module once; nn.Module.modules takes five times as long."""
    visited: set[nn.Module] = set()
    waiting: list[nn.Module | None] = [root]
    while waiting:
        module = waiting.pop()
        if module is not None and module not in visited:
            visited.add(module)
            yield module
            waiting += module._modules.values()
