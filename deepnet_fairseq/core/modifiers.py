"""Registry of modifiers, which combine with any method by a flag of their own, --pro-res and --qk-norm.

A modifier wraps a method and adds a module to one of its slots; all else is the method's. They share one file, because
they are a few lines each. h heads of d features.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from ..errors import UserError
from .methods import Method, Option, get_method
from .methods.base import Value, call_listeners
from .slots import ByRole, FullPrecision, Site

MODIFIERS: dict[str, type[Modifier]] = {}


class Modifier:
    """Wrapper around a method; what a subclass does not define comes from `self.method`, the method inside.

    A subclass under @register_modifier overrides slots of Method. equation: the modified branch f, as tables print it;
    help: of its flag; options: as a Method's, with the flags --MODIFIER-KEY.
    """

    modifier: ClassVar[str]
    equation: ClassVar[str]
    paper: ClassVar[str]
    help: ClassVar[str]
    options: ClassVar[dict[str, Option]] = {}

    def __init__(self, method: Method, **options: Value):
        self.method = method
        self.values: dict[str, Any] = {key: option.default for key, option in self.options.items()} | options
        for key, value in self.values.items():
            self.options[key].check(self.flag(key), value)
        self.check()

    def __getattr__(self, name: str) -> Any:
        if name == "method":  # of a copy that is still empty
            raise AttributeError(name)
        return getattr(self.method, name)

    @classmethod
    def flag(cls, *key: str) -> str:
        """Return the flag of the modifier, or of an option."""
        return "--" + "-".join([cls.modifier, *key]).replace("_", "-")

    def check(self) -> None:
        """Raise a UserError, naming the flag, for invalid option values."""


def register_modifier(name: str) -> Callable[[type[Modifier]], type[Modifier]]:
    """Class decorator that offers a Modifier as --NAME, as `register` does a method; ValueError for a name in use."""

    def add(cls: type[Modifier]) -> type[Modifier]:
        if MODIFIERS.setdefault(name, cls) is not cls:
            raise ValueError(f"modifier {name!r} is registered twice")
        cls.modifier = name
        call_listeners(MODIFIERS, name)
        return cls

    return add


def make_method(cfg: Any) -> Method:
    """Make the method of a filled model config, at its depth and with its options, inside its modifiers.

    Raises a UserError, naming the flag, for an invalid value, and for an option of a modifier that is not on.
    """
    method = get_method(cfg.method).from_config(cfg)
    for name, modifier in MODIFIERS.items():
        options = {key: getattr(cfg, f"{name}_{key}", option.default) for key, option in modifier.options.items()}
        if getattr(cfg, name, False):
            method = cast(Method, modifier(method, **options))
            continue
        for key, option in modifier.options.items():
            if options[key] != option.default:
                raise UserError(f"{modifier.flag(key)}: an option of {modifier.flag()}; give that too, or drop it")
    return method


class Rising(FullPrecision):
    """Product a f for f of any shape; a = min(t / (T l), 1) in update t, a buffer in float32 that checkpoints hold.

    One kernel an update serves all layers of a stack: the first module holds the numbers of all, the others follow it.
    """

    def __init__(self, num_updates: int, layer: int, layers: int):
        super().__init__()
        self.num_updates, self.layer, self.layers = num_updates, layer, layers
        self.register_buffer("a", torch.tensor(1 / (num_updates * layer)))
        self.of_layers: Tensor | None = None

    def set_num_updates(self, updates: int) -> None:
        """Set a for the number of updates done; fairseq calls this method of every module before each batch."""
        if self.of_layers is None or self.of_layers.device != self.a.device:
            self.of_layers = torch.empty(self.layers, device=self.a.device)

        # in place, so that the views of the branches that follow see the new numbers
        layers = torch.arange(1.0, self.layers + 1, device=self.a.device)
        torch.reciprocal(layers, out=self.of_layers)
        self.of_layers.mul_((updates + 1) / self.num_updates)
        self.of_layers.clamp_(max=1)
        self._buffers["a"] = self.of_layers[self.layer - 1]

    def follow(self, first: Rising) -> None:
        """Share the numbers of the stack's first branch, already up to date; a move or a cast separates them again."""
        assert first.of_layers is not None
        self._buffers["a"] = first.of_layers[self.layer - 1]

    @property
    def factor(self) -> Tensor:
        """Factor on f; export folds it into the matrix before."""
        return self.a

    def forward(self, f: Tensor) -> Tensor:
        return f * self.a  # in the type of f: a 0-dim tensor does not promote it


@register_modifier("pro_res")
class ProRes(Modifier):
    """Progressive residual warm-up: branches of layer l rise from 0 to full weight within T l updates, in any method.

    Chen et al. 2026, "Progressive Residual Warmup for Language Model Pretraining" (arXiv:2603.05369): a(l, t) =
    min(t / (T l), 1), T = 1000 (500 at 96 and 120 layers), so the last layer counts fully from update T L on. Shown on
    decoder language models alone; here l counts in each stack. t counts from 1, where the authors' code begins at 0 and
    its first update reaches no branch; that code's flag is T L, and its other schedules are left out: "equal" is
    --method branchnorm. A model is saved with its a and translates with it.
    """

    equation = "a f, a = min(t / (T l), 1)"
    paper = "Chen et al. 2026"
    help = "branches of layer l rise from 0 to full weight in the first T l updates"
    options = {"updates": Option(1000, "T, updates a layer")}

    def check(self) -> None:
        if self.values["updates"] < 1:
            raise UserError(f"--pro-res-updates {self.values['updates']}: must be at least 1")

    def outer(self, site: Site) -> nn.Module:
        """Add a Rising behind the method's module, in front of the dropout, whose mask a product does not change."""
        inside = self.method.outer(site)
        rising = Rising(self.values["updates"], site.layer, self.method.depth(site.stack))
        return rising if inside is None else nn.Sequential(inside, rising)


@register_modifier("qk_norm")
class QKNorm(Modifier):
    """Attention of LN(q) and LN(k), by head, so that scores stay within sqrt(d) times the gains, in any method.

    Henry et al. 2020, "Query-Key Normalization for Transformers", as Dehghani et al. 2023 ("Scaling Vision Transformers
    to 22 Billion Parameters", section 2.1) have it: LayerNorms over the d features of a head without bias, one gain for
    all heads, and softmax(q k / sqrt(d)) as ever. Henry et al. divide by the length alone and learn one number in place
    of sqrt(d). Keys are cached as they are here, normalised.
    """

    equation = "attention of LN(q), LN(k) by head"
    paper = "Henry et al. 2020; Dehghani et al. 2023"
    help = "LayerNorm on queries and keys by head"

    def heads(self, site: Site, dim: int) -> nn.Module:
        """Add LayerNorms on q and k behind the method's module."""
        norms = ByRole({role: nn.LayerNorm(dim, bias=False) for role in "qk"})
        inside = self.method.heads(site, dim)
        return norms if inside is None else Both(inside, norms)


class Both(nn.Module):
    """Apply two modules of the slot `heads` one after the other."""

    def __init__(self, first: nn.Module, second: nn.Module):
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: Tensor, role: str) -> Tensor:
        return self.second(self.first(x, role), role)
