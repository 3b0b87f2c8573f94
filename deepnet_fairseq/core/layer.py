"""The one equation, in the layers of encoders and decoders.

    y = after(residual(x, dropout(outer(W_out . inner(body(before(x)))))))

The method fills the slots when the layer is built (core/methods/base.py); nothing here knows which method it is.
B sentences, T target and S source tokens, C width of branches, W of the stream between them, most often the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from .attention import Attention
from .methods import Method
from .modules import ACTIVATIONS, Dropout, Linear, branch_off, project
from .slots import NORM_NAMES, Residual, Site, Weight

POSITIONS = {"encoder": ("max_source_positions", "max_positions"), "decoder": ("max_target_positions",)}


@dataclass(frozen=True)
class StackShape:
    """The shape of one stack: widths in features, dropouts as probabilities.

    memory_dim: width of what cross-attention reads, None in a stack without; max_positions: longest sentence in tokens.
    """

    stack: str
    num_layers: int
    dim: int
    ffn_dim: int
    num_heads: int
    memory_dim: int | None
    activation_fn: str
    dropout: float
    attention_dropout: float
    activation_dropout: float
    max_positions: int

    @classmethod
    def from_config(cls, cfg: Any, stack: str) -> StackShape:
        """The shape of `stack` ("encoder" or "decoder") in a filled config of any of the models."""
        names = ("layers", "embed_dim", "ffn_embed_dim", "attention_heads")
        layers, dim, ffn_dim, heads = (getattr(cfg, f"{stack}_{name}") for name in names)
        memory_dim = getattr(cfg, "encoder_embed_dim", None) if stack == "decoder" else None
        dropouts = cfg.dropout, cfg.attention_dropout, cfg.activation_dropout
        max_positions = next(getattr(cfg, name) for name in POSITIONS[stack] if hasattr(cfg, name))
        activation = str(cfg.activation_fn)
        return cls(stack, layers, dim, ffn_dim, heads, memory_dim, activation, *dropouts, max_positions)


class Slots(nn.ModuleDict):
    """One slot of a layer: sublayer -> module, without those the method leaves empty."""

    def __init__(self, modules: dict[str, nn.Module | None]):
        super().__init__({name: module for name, module in modules.items() if module is not None})

    def forward(self, sublayer: str, x: Tensor) -> Tensor:
        """x (B, T, ..) through the module of that branch; x itself if there is none."""
        return self[sublayer](x) if sublayer in self else x


class Layer(nn.Module):
    """Slots and feed-forward branch, shared by the layers of all stacks. index: l of the papers, from 1.

    Parameters outside the slots have the names of fairseq's Transformer layers. sites: sublayer -> Site.
    """

    def __init__(self, shape: StackShape, method: Method, index: int):
        super().__init__()
        self.sites = {s: Site(shape.stack, index, s, shape.dim, shape.num_heads) for s in method.sublayers(shape.stack)}
        self.norm_place = {sublayer: method.norm_place(site) for sublayer, site in self.sites.items()}
        stream_dim = method.stream_width(shape.stack, shape.dim)
        for sublayer in self.sites:  # fairseq's order, for optimisers number parameters by it
            if sublayer == "ffn":
                self.fc1 = Linear(shape.dim, shape.ffn_dim, bias=method.bias)
                self.fc2 = Linear(shape.ffn_dim, shape.dim, bias=method.bias)
            else:
                setattr(self, sublayer, self._attention(sublayer, shape, method))
            if self.norm_place[sublayer] != "none":
                setattr(self, NORM_NAMES[sublayer], nn.LayerNorm(stream_dim))
        self.before = Slots({name: method.before(site) for name, site in self.sites.items()})
        self.hidden = method.hidden(self.sites["ffn"], shape.ffn_dim)
        self.inner = method.inner(self.sites["ffn"], shape.ffn_dim)
        self.bypass = method.bypass(self.sites["ffn"])
        self.outer = Slots({name: method.outer(site) for name, site in self.sites.items()})
        self.residual = Slots({name: method.residual(site) or Residual() for name, site in self.sites.items()})
        self.activation_fn = ACTIVATIONS[shape.activation_fn]
        name = f"Transformer{shape.stack.capitalize()}LayerBase"  # as --retain-dropout-modules calls it
        self.activation_dropout = Dropout(shape.activation_dropout, module_name=name)
        self.dropout = Dropout(shape.dropout, module_name=name)

    def matrices(self, sublayer: str) -> dict[str, nn.Linear]:
        """The weight matrices of a branch by role, the last one at the end."""
        return {"fc1": self.fc1, "fc2": self.fc2} if sublayer == "ffn" else getattr(self, sublayer).weights()

    def weights(self) -> Iterator[Weight]:
        """Every weight matrix of the layer, in forward order of its branches."""
        for sublayer, site in self.sites.items():
            source_dim = site.dim if sublayer == "ffn" else getattr(self, sublayer).k_proj.in_features
            yield from (Weight(site, role, linear, source_dim) for role, linear in self.matrices(sublayer).items())

    def slots(self, sublayer: str) -> dict[str, nn.Module]:
        """The modules that the method has put into the slots of a branch, by the names of core/methods/base.py."""
        is_ffn = sublayer == "ffn"
        filled = {
            "before": self.before._modules.get(sublayer),
            "hidden": self.hidden if is_ffn else None,
            "heads": None if is_ffn else getattr(self, sublayer).heads,
            "inner": self.inner if is_ffn else getattr(self, sublayer).inner,
            "outer": self.outer._modules.get(sublayer),
            "bypass": self.bypass if is_ffn else None,
            "residual": self.residual[sublayer],
        }
        return {name: module for name, module in filled.items() if module is not None}

    def _attention(self, sublayer: str, shape: StackShape, method: Method) -> Attention:
        source_dim = (None if sublayer == "self_attn" else shape.memory_dim) or shape.dim
        site = self.sites[sublayer]
        slots = method.inner(site, shape.dim), method.heads(site, shape.dim // shape.num_heads)
        return Attention(shape.dim, shape.num_heads, shape.attention_dropout, source_dim, *slots, method.bias)

    def enter(self, sublayer: str, x: Tensor, *linears: nn.Linear, relu: bool = False) -> tuple[Tensor, Tensor]:
        """Shortcut x (B, T, W) -> what linears make of the branch's input, side by side, maybe relu of it; and x."""
        inside = getattr(self, NORM_NAMES[sublayer])(x) if self.norm_place[sublayer] == "pre" else x
        inside = self.before(sublayer, inside)
        if inside is x and x.is_cuda:  # on a CPU torch's own is faster
            own = getattr(self.residual[sublayer], "own_gradient", False)  # a stranger's need not be a slots.Residual
            shared = sublayer == "ffn" and self.bypass is not None  # by x and entry
            return branch_off(x, *linears, own=own and not shared, relu=relu)
        y = linears[0](inside) if len(linears) == 1 else project(inside, *linears)
        return (F.relu(y) if relu else y), x

    def leave(self, sublayer: str, x: Tensor, f: Tensor) -> Tensor:
        """Shortcut x (B, T, W) and output f of the branch (B, T, C) -> output of the sublayer (B, T, W)."""
        f = self.dropout(self.outer(sublayer, f))
        x = self.residual[sublayer](x, f)
        return getattr(self, NORM_NAMES[sublayer])(x) if self.norm_place[sublayer] == "post" else x

    def feed_forward(self, x: Tensor, entry: Tensor) -> Tensor:
        """The whole last sublayer, shortcut and LayerNorm included: x (B, T, W) -> same; entry: the layer's input."""
        at_once = self.hidden is None and self.activation_fn is F.relu
        h, x = self.enter("ffn", x, self.fc1, relu=at_once)
        if self.hidden is not None:
            h = self.hidden(h)
        h = self.activation_dropout(h if at_once else self.activation_fn(h))
        if self.inner is not None:
            h = self.inner(h)
        return self.leave("ffn", x if self.bypass is None else self.bypass(x, entry), self.fc2(h))


class EncoderLayer(Layer):
    """A layer of an encoder: self-attention and feed-forward."""

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """x (B, S, W) -> same; mask (B, 1, 1, S) is added to scores, None without padding."""
        return self.feed_forward(self.look_around(x, mask), x)

    def look_around(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """The whole sublayer of self-attention: x (B, S, W) -> same."""
        packed, x = self.enter("self_attn", x, *self.self_attn.own())
        packed = self.self_attn.by_head(packed, "qkv")
        return self.leave("self_attn", x, self.self_attn((packed,), mask))


class CausalLayer(Layer):
    """A layer of a decoder alone: causal self-attention and feed-forward."""

    def forward(self, x: Tensor, self_mask: Tensor | None) -> Tensor:
        """x (B, T, W) -> same; self_mask as in DecoderLayer."""
        return self.feed_forward(self.look_back(x, self_mask), x)

    def look_back(self, x: Tensor, self_mask: Tensor | None) -> Tensor:
        """The whole sublayer of self-attention: x (B, T, W) -> same."""
        packed, x = self.enter("self_attn", x, *self.self_attn.own())
        packed = self.self_attn.by_head(packed, "qkv")
        return self.leave("self_attn", x, self.self_attn((packed,), self_mask, causal=self_mask is None))


class DecoderLayer(CausalLayer):
    """A layer of a decoder with an encoder: causal self-attention, attention to the encoder's output, feed-forward."""

    def forward(  # type: ignore[override]  # a layer of another stack: what it reads is the stack's affair
        self,
        x: Tensor,
        self_mask: Tensor | None,
        memory: Tensor,
        memory_mask: Tensor | None,
        alignment: list | None = None,
    ) -> Tensor:
        """x (B, T, W), memory (B, S, C') -> (B, T, W).

        self_mask (B, 1, T, T) replaces the plain causal mask where a batch is padded on the left; memory_mask
        (B, 1, 1, S); alignment: a list that takes the cross-attention (B, T, S), if somebody asks.
        """
        entry, x = x, self.look_back(x, self_mask)
        q, x = self.enter("encoder_attn", x, self.encoder_attn.q_proj)
        packed = self.encoder_attn.by_head(q, "q"), self.encoder_attn.project_source(memory).flatten(2)
        if alignment is not None:
            alignment.append(self.encoder_attn.alignment(packed, memory_mask))
        x = self.leave("encoder_attn", x, self.encoder_attn(packed, memory_mask))
        del q, packed  # what autograd keeps is a copy
        return self.feed_forward(x, entry)
