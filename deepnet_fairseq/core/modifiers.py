"""Modifiers, which change any method by a flag of their own, --pro-res and --qk-norm, and their registry.

A modifier wraps a method and adds a module to one of its slots, the places in a layer for modules of a method
(methods/base.py); all else is the method's. The modifiers share one file, because each is a few lines.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from ..errors import UserError
from .methods import Method, Option, get_method
from .methods.base import Value, call_listeners, check_new
from .slots import ByRole, FullPrecision, Site

MODIFIERS: dict[str, type[Modifier]] = {}  # by name; `register_modifier` fills it


class Modifier:
    """Wrapper around a method, used in its place; attributes that a subclass does not define are the method's.

    A subclass under @register_modifier overrides slots of Method, and asks self.method, the method inside, for the
    module that would be there. options: values of the class's `options` by key, kept in `values`, because attributes of
    these names may be the method's. Raises a UserError, naming the flag, for a value that an option does not take or
    that `check` refuses, and a KeyError for an option that the class does not have.
    """

    modifier: ClassVar[str]  # name; the flag is --NAME
    equation: ClassVar[str]  # of the modified branch f, as tables print it
    paper: ClassVar[str]
    help: ClassVar[str]  # of the flag
    options: ClassVar[dict[str, Option]] = {}  # with the flags --NAME-KEY

    def __init__(self, method: Method, **options: Value):
        self.method = method
        self.values: dict[str, Any] = {key: option.default for key, option in self.options.items()} | options
        for key, value in self.values.items():
            self.options[key].check(self.flag(key), value)
        self.check()

    def __getattr__(self, name: str) -> Any:
        # copy and pickle look up names before __init__ has set `method`; the line below would then call this for ever
        if name == "method":
            raise AttributeError(name)
        return getattr(self.method, name)

    @classmethod
    def flag(cls, *key: str) -> str:
        """Return the flag of the modifier, or that of the option `key`."""
        return "--" + "-".join([cls.modifier, *key]).replace("_", "-")

    def check(self) -> None:
        """Raise a UserError, naming the flag, for invalid option values."""


def register_modifier(name: str) -> Callable[[type[Modifier]], type[Modifier]]:
    """Class decorator that offers a Modifier as --NAME, and its options as flags and fields of configs.

    Raises a UserError if another class has the name, if a config or fairseq has a field or flag of the name or of an
    option's, if an option does not take its default, or if its key can be no part of a field's name.
    """

    def add(cls: type[Modifier]) -> type[Modifier]:
        check_new(MODIFIERS, name, cls)
        MODIFIERS[name] = cls
        cls.modifier = name
        call_listeners(MODIFIERS, name)
        return cls

    return add


def make_method(cfg: Any) -> Method:
    """Make the method of a model config, with its depth and options, wrapped in the modifiers that are on.

    cfg: a config (Namespace, omegaconf or dataclass) whose method and depths archs.fill has set. Raises a UserError,
    naming the flag, for an invalid value, and for an option of a modifier that is not on.
    """
    method = get_method(cfg.method).from_config(cfg)
    # a config that was made before a modifier was registered has no fields of it; the modifier is then off
    for name, modifier in MODIFIERS.items():
        options = {}
        for key, option in modifier.options.items():
            options[key] = getattr(cfg, f"{name}_{key}", option.default)

        is_on = getattr(cfg, name, False)
        if is_on:
            method = cast(Method, modifier(method, **options))
            continue
        for key, option in modifier.options.items():
            if options[key] != option.default:
                raise UserError(modifier.flag(key), f"an option of {modifier.flag()}; give that too, or drop it")
    return method


class Rising(FullPrecision):
    """Product a f for f of any shape; a = min(t / (T l), 1) in update t, counted from 1.

    a is a buffer () in float32 that checkpoints hold. num_updates: T; layer: l, from 1; layers: number of layers of the
    stack.

    One module of a stack computes the a of all layers at once, in a few kernels for each update: the first that
    Stack.set_num_updates comes to, in whatever layer. In the others a is an element of that tensor (`follow`).
    """

    def __init__(self, num_updates: int, layer: int, layers: int):
        super().__init__()
        self.num_updates = num_updates
        self.layer = layer
        self.layers = layers
        self.register_buffer("a", torch.tensor(1 / (num_updates * layer)))
        self.a_of_layers: Tensor | None = None  # (layers,), in the module that computes it

    def set_num_updates(self, updates: int) -> None:
        """Compute the a of all layers for update t = updates + 1, and set a to that of the module's own layer.

        updates: how many are done. Stack.set_num_updates calls this before each batch, for one module of the stack.
        """
        # at the first call, and after the model was moved
        if self.a_of_layers is None or self.a_of_layers.device != self.a.device:
            self.a_of_layers = torch.empty(self.layers, device=self.a.device)

        # t / (T l) for each layer l; in place, because the replay of a CUDA graph reads the numbers where they were
        layers = torch.arange(1.0, self.layers + 1, device=self.a.device)
        torch.reciprocal(layers, out=self.a_of_layers)
        self.a_of_layers.mul_((updates + 1) / self.num_updates)
        self.a_of_layers.clamp_(max=1)
        self._buffers["a"] = self.a_of_layers[self.layer - 1]

    def follow(self, first: Rising) -> None:
        """Take a from the tensor of `first`, the Rising of the same stack whose set_num_updates was just called.

        Moving the model ends the sharing; Stack.set_num_updates calls this before each batch and so begins it again.
        """
        assert first.a_of_layers is not None
        self._buffers["a"] = first.a_of_layers[self.layer - 1]

    @property
    def factor(self) -> Tensor:
        """Factor on f, by which `deepnet export` multiplies the branch's last matrix."""
        return self.a

    def forward(self, f: Tensor) -> Tensor:
        return f * self.a  # in the dtype of f, which a tensor without dimensions does not change


@register_modifier("pro_res")
class ProRes(Modifier):
    """Progressive residual warm-up: branches of layer l rise from 0 to full weight within T l updates, in any method.

    Chen et al. 2026, "Progressive Residual Warmup for Language Model Pretraining" (arXiv:2603.05369): a branch of layer
    l is multiplied by a(l, t) = min(t / (T l), 1) in update t, T = 1000 (500 at 96 and 120 layers). The last of L
    layers counts fully from update T L on. Shown on decoder language models alone; here l counts in each stack.
    t counts from 1; in the authors' code from 0, so that its first update reaches no branch. That code's flag is T L.
    Its other schedules are left out; the one it calls "equal" is --method branchnorm. A model is saved with its a and
    translates with it.
    """

    equation = "a f, a = min(t / (T l), 1)"
    paper = "Chen et al. 2026"
    help = "branches of layer l rise from 0 to full weight in the first T l updates"
    options = {"updates": Option(1000, "T; layer l has full weight after T l updates")}

    def check(self) -> None:
        if self.values["updates"] < 1:
            raise UserError(f"--pro-res-updates {self.values['updates']}", "must be at least 1")

    def outer(self, site: Site) -> nn.Module:
        """Return the method's own module on the branch's output, followed by a Rising.

        The slot is in front of the branch's dropout; behind that would be the same: a product and dropout commute.
        """
        of_method = self.method.outer(site)
        rising = Rising(self.values["updates"], site.layer, self.method.depth(site.stack))
        return rising if of_method is None else nn.Sequential(of_method, rising)


@register_modifier("qk_norm")
class QKNorm(Modifier):
    """Attention of LN(q) and LN(k), by head, so that scores stay within sqrt(d) times the gains, in any method.

    Henry et al. 2020, "Query-Key Normalization for Transformers", as Dehghani et al. 2023 ("Scaling Vision Transformers
    to 22 Billion Parameters", section 2.1) have it: LayerNorms over the d features of a head without bias, one gain for
    all heads, and softmax(q k / sqrt(d)) as ever. Henry et al. divide q and k by their lengths instead, and learn one
    number in place of 1 / sqrt(d). The decoder's cache holds normalised keys.
    """

    equation = "attention of LN(q), LN(k) by head"
    paper = "Henry et al. 2020; Dehghani et al. 2023"
    help = "LayerNorm on queries and keys by head"

    def heads(self, site: Site, dim: int) -> nn.Module:
        """Return the method's own module on queries, keys and values, followed by LayerNorms on q and k.

        dim: d, features of a head.
        """
        norms = ByRole({role: nn.LayerNorm(dim, bias=False) for role in "qk"})
        of_method = self.method.heads(site, dim)
        return norms if of_method is None else Both(of_method, norms)


class Both(nn.Module):
    """Module for the slot `heads` that applies two others in turn.

    All three are called as module(x, role) with x (.., h, d), h heads of d features, and role "q", "k" or "v".
    """

    def __init__(self, first: nn.Module, second: nn.Module):
        super().__init__()
        self.first = first
        self.second = second

    def forward(self, x: Tensor, role: str) -> Tensor:
        return self.second(self.first(x, role), role)
