"""The slots of the one equation, and the registry of methods.

    y = after(residual(x, dropout(outer(W_out . inner(body(before(x)))))))

A method fills slots per Site. A slot left None is the identity (residual: x + f). `norm` places the LayerNorm:
"post" in the slot `after`, "pre" in the slot `before` (and one more at the end of each stack), "none" nowhere.
"""

from __future__ import annotations

from typing import ClassVar

from torch import nn

from ..errors import UserError
from ..site import Site

METHODS: dict[str, type[Method]] = {}


class Method:
    """One stabilisation method at one depth: what stands in each slot, and the gain of each weight's init."""

    name: ClassVar[str]
    equation: ClassVar[str]
    paper: ClassVar[str]
    norm: ClassVar[str] = "post"
    init_profiles: ClassVar[tuple[str, ...]] = ("fairseq_head", "xavier_legacy")  # the first is the default

    def __init__(self, num_encoder_layers: int, num_decoder_layers: int):
        self.num_encoder_layers = num_encoder_layers
        self.num_decoder_layers = num_decoder_layers

    def before(self, site: Site) -> nn.Module | None:
        """Module on the branch's input; with norm "pre" it follows the LayerNorm. (B, T, C) -> same."""
        return None

    def inner(self, site: Site, dim: int) -> nn.Module | None:
        """Module in front of the branch's last matrix (out_proj or fc2); `dim` is its input width."""
        return None

    def outer(self, site: Site) -> nn.Module | None:
        """Module on the branch's output, before the residual dropout. (B, T, C) -> same."""
        return None

    def residual(self, site: Site) -> nn.Module | None:
        """Module called as residual(x, f) that merges shortcut and branch; None is x + f."""
        return None

    def gain(self, site: Site, role: str) -> float:
        """Factor on the std that the init profile gives to the weight `role` of this branch."""
        return 1.0

    def constants(self, stack: str) -> dict[str, float]:
        """Numbers the forward pass depends on but no parameter holds; saved with the model and checked on loading."""
        return {}


def register(name: str):
    """Class decorator: offers a Method as `--method NAME`."""

    def add(cls: type[Method]) -> type[Method]:
        if METHODS.setdefault(name, cls) is not cls:
            raise ValueError(f"method {name!r} is registered twice")
        cls.name = name
        return cls

    return add


def get_method(name: str) -> type[Method]:
    """The class registered under `name`; UserError if there is none."""
    if name not in METHODS:
        raise UserError(f"--method {name}: unknown; choose one of {', '.join(sorted(METHODS))}")
    return METHODS[name]
