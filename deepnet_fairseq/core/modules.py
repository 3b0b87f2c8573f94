"""The small modules of stacks and layers, and functions for them: linear maps, dropout, activations, masks, positions.

Names of activations, positions of padded sentences and the calls that reach a dropout are fairseq's.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn

logger = logging.getLogger(__name__)


def gelu_accurate(x: Tensor) -> Tensor:
    """Compute the approximation of GELU by tanh (Hendrycks and Gimpel 2016, section 2), x of any shape."""
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3))))


def relu_squared(x: Tensor) -> Tensor:
    """Compute max(x, 0)^2 (So et al. 2021, Primer)."""
    return F.relu(x).pow(2)


def identity(x: Tensor) -> Tensor:
    """Return x itself."""
    return x


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {  # by fairseq's names
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_fast": gelu_accurate,  # the same function's name in older configs
    "gelu_accurate": gelu_accurate,
    "tanh": torch.tanh,
    "linear": identity,
    "relu_squared": relu_squared,
}


drop: Callable[[Tensor, float], Tensor] = F.dropout  # what Dropout calls; cpu_dropout.py puts a faster function here


class Dropout(nn.Module):
    """Dropout with probability p, which fairseq-generate can leave on in evaluation mode (--retain-dropout).

    module_name: name by which --retain-dropout-modules asks for it, None for one that has no such name.
    """

    def __init__(self, p: float, module_name: str | None = None):
        super().__init__()
        self.p = p
        self.module_name = module_name
        self.apply_during_inference = False

    @property
    def drops(self) -> bool:
        """Tell whether a forward pass now would drop numbers."""
        return (self.training or self.apply_during_inference) and self.p > 0

    def forward(self, x: Tensor) -> Tensor:
        """Set each number of x to zero with probability p and divide the others by 1 - p; x has any shape.

        While dropout is off (see `drops`), x itself is returned.
        """
        return drop(x, self.p) if self.drops else x

    def make_generation_fast_(
        self, name: str, retain_dropout: bool = False, retain_dropout_modules: list[str] | None = None, **_: object
    ) -> None:
        """Leave dropout on if --retain-dropout asks for it; fairseq-generate calls this before decoding.

        name: the module's path in the model, for the log; retain_dropout_modules: names of the modules that are meant,
        None for all.
        """
        if not retain_dropout:
            return
        if retain_dropout_modules is None or self.module_name in retain_dropout_modules:
            logger.info(f"dropout stays on in {name}")
            self.apply_during_inference = True


class _UninitialisedLinear(nn.Linear):
    """An nn.Linear that draws no values when it is made."""

    def reset_parameters(self) -> None:
        """Draw nothing; nn.Linear.__init__ calls this."""


def empty_linear(in_features: int, out_features: int, bias: bool = True) -> nn.Linear:
    """Make an nn.Linear whose values are undefined until initialisation.initialize or a checkpoint fills them.

    Values that nn.Linear draws would be replaced anyway; drawing them would take half of the time in which a deep model
    is built, and use up random numbers. The class of the result is nn.Linear itself, because quantisers look for
    exactly that.
    """
    module: nn.Linear = _UninitialisedLinear(in_features, out_features, bias=bias)
    module.__class__ = nn.Linear
    return module


def autocasts(x: Tensor) -> bool:
    """Tell whether autocast is on for the device of x."""
    return not x.is_meta and torch.is_autocast_enabled(x.device.type)


def without_autocast(x: Tensor) -> AbstractContextManager:
    """Return a context without autocast on the device of x, for a computation that half precision would ruin."""
    return torch.autocast(x.device.type, enabled=False) if autocasts(x) else nullcontext()


def additive_mask(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Turn a bool mask (.., S), True where a query may look at a key, into numbers to add to scores.

    A mask of another dtype is returned as it is. True becomes 0, False the lowest number of the dtype; -inf would make
    NaN of a query that may look nowhere. The numbers have `dtype`, that of the scores, or under autocast the one that
    it computes in, unless `dtype` is float64, which autocast leaves as it is. Rows are stored a multiple of 8 numbers
    apart, as torch's memory-efficient attention kernel for GPUs requires: it would copy any other mask in every layer.
    """
    if mask.dtype != torch.bool:
        return mask
    if autocasts(mask) and dtype != torch.float64:
        dtype = torch.get_autocast_dtype(mask.device.type)

    *rows, length = mask.shape
    stored_length = -(-length // 8) * 8  # rounded up to a multiple of 8
    numbers = torch.zeros(*rows, stored_length, dtype=dtype, device=mask.device)[..., :length]
    return numbers.masked_fill_(~mask, torch.finfo(dtype).min)


to_add = additive_mask  # its name until 0.1; gone with the next release


def token_positions(tokens: Tensor, padding_idx: int) -> Tensor:
    """Number tokens (B, T) as fairseq does: padding_idx + 1 for a row's first token, padding_idx + 2 for the second.

    Padding, on either side, gets padding_idx.
    """
    is_token = tokens.ne(padding_idx).int()
    numbers = is_token.cumsum(1) * is_token  # 1, 2, .. for tokens, 0 for padding
    return numbers.long() + padding_idx


class SinusoidalPositions(nn.Module):
    """Positional embeddings: sines, then cosines, of position times 10000^(-i / (C/2 - 1)), i = 0 to C/2 - 1.

    The layout is tensor2tensor's and fairseq's; Vaswani et al. 2017, section 3.5, interleave them and divide by C/2.
    size: length in tokens of the longest sentence for which the table is made at first; it grows when a longer one
    comes. dim: C; padding_idx: the padding symbol's index. Positions count from padding_idx + 1, see token_positions.
    """

    max_positions = 100_000  # fairseq's value for no limit
    weights: Tensor  # the table (rows, C), one row a position

    def __init__(self, size: int, dim: int, padding_idx: int):
        super().__init__()
        self.dim = dim
        self.padding_idx = padding_idx
        self.register_buffer("weights", self.table(size + padding_idx + 1), persistent=False)

    def table(self, rows: int) -> Tensor:
        """Compute the table (rows, C) of positions 0 to rows - 1; the row of padding_idx is zero."""
        unfilled = torch.empty(rows, self.dim)
        if unfilled.is_meta:  # models.blueprint needs shapes alone
            return unfilled

        half = self.dim // 2
        exponents = torch.arange(half, dtype=torch.float)
        rates = torch.exp(exponents * -(math.log(10000) / (half - 1)))  # 10000^(-i / (C/2 - 1))
        positions = torch.arange(rows, dtype=torch.float).unsqueeze(1)
        angles = positions * rates  # (rows, C/2)

        odd_column = angles.new_zeros(rows, self.dim % 2)  # a last column of zeros if C is odd
        table = torch.cat([angles.sin(), angles.cos(), odd_column], dim=1)
        table[self.padding_idx] = 0
        return table

    def forward(self, tokens: Tensor, last: bool = False) -> Tensor:
        """Return positional embeddings (B, T, C) of tokens (B, T).

        last: return those of the last token alone, (B, 1, C), taking for granted that no row has padding.
        """
        rows = self.padding_idx + 1 + tokens.size(1)  # positions of T tokens end at padding_idx + T, row rows - 1
        if rows > self.weights.size(0):
            self.weights = self.table(rows).to(self.weights)
        if last:
            newest = self.weights[rows - 1]
            return newest.expand(len(tokens), 1, -1)
        positions = token_positions(tokens, self.padding_idx)
        return F.embedding(positions, self.weights)


class LearnedPositions(nn.Embedding):
    """One learned vector for each position, for sentences of up to `size` tokens.

    Longer sentences raise an IndexError on a CPU, and are an error of the device on a GPU. dim: C; padding_idx: the
    padding symbol's index. Positions count from padding_idx + 1, see token_positions. Values are those of nn.Embedding
    until initialisation.initialize draws them.
    """

    def __init__(self, size: int, dim: int, padding_idx: int):
        super().__init__(size + padding_idx + 1, dim, padding_idx)
        self.max_positions = size

    def forward(self, tokens: Tensor, last: bool = False) -> Tensor:
        """Return positional embeddings (B, T, C) of tokens (B, T).

        last: return those of the last position alone, (1, 1, C) for all rows, taking for granted that none has padding.
        """
        assert self.padding_idx is not None
        if last:
            position = self.padding_idx + tokens.size(1)
            return super().forward(tokens.new_full((1, 1), position))
        return super().forward(token_positions(tokens, self.padding_idx))


def submodules(root: nn.Module) -> Iterator[nn.Module]:
    """Yield root and all modules below it, each once, in any order; nn.Module.modules takes five times as long."""
    visited: set[nn.Module] = set()
    waiting: list[nn.Module | None] = [root]
    while waiting:
        module = waiting.pop()
        if module is not None and module not in visited:
            visited.add(module)
            yield module
            waiting += module._modules.values()
