"""Layers of encoders and decoders, whose residual branches all compute one equation.

    f = dropout(outer(body(before(norm_in(x)))))
    y = norm_out(residual(shortcut, f))

`Layer.branch` computes it, for every branch, in training and in decoding. x is the residual stream; the body is
attention or feed-forward; the shortcut is x, unless the slot `bypass` of a layer's last branch changes it. The branch's
LayerNorm is norm_in (Pre-LN) or norm_out (Post-LN), and the other is the identity; some methods have neither.

before, outer, residual and bypass are slots, as are some places inside the body. The method puts a module into each or
leaves it empty when the layer is built (methods/base.py): DeepNorm's alpha is in the module that it puts into
`residual`, a ConstantShortcut of slots.py. An empty slot is the identity, but an empty residual is x + f. Nothing here
depends on which method it is.

Shapes: B sentences, T target and S source tokens, C width of branches in features, W width of the residual stream,
which is C for most methods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from .attention import Attention
from .methods import Method
from .modules import ACTIVATIONS, Dropout, empty_linear
from .slots import EMPTY, NORM_NAMES, EmptySlot, Residual, Site, Weight, or_empty

if TYPE_CHECKING:
    from .cache import DecoderCache

# stack -> config fields that may hold its longest sentence in tokens; a model with this stack has one of them
POSITIONS = {"encoder": ("max_source_positions", "max_positions"), "decoder": ("max_target_positions",)}


@dataclass(frozen=True)
class StackShape:
    """The shape of one stack: widths in features, dropouts as probabilities.

    stack: "encoder" or "decoder"; dim: C; ffn_dim: feed-forward width; memory_dim: width of the encoder's output, which
    cross-attention reads, None in an encoder and in a model without an encoder; activation_fn: a key of ACTIVATIONS;
    max_positions: longest sentence in tokens.
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
        """Read the shape of `stack` ("encoder" or "decoder") from the config of a model, after archs.fill."""

        def of_stack(name: str) -> int:
            """Return the value of the field `name` of this stack, "encoder_layers" for "layers"."""
            return getattr(cfg, f"{stack}_{name}")

        memory_dim = None
        if stack == "decoder":
            memory_dim = getattr(cfg, "encoder_embed_dim", None)
        positions_field = next(name for name in POSITIONS[stack] if hasattr(cfg, name))
        return cls(
            stack=stack,
            num_layers=of_stack("layers"),
            dim=of_stack("embed_dim"),
            ffn_dim=of_stack("ffn_embed_dim"),
            num_heads=of_stack("attention_heads"),
            memory_dim=memory_dim,
            activation_fn=str(cfg.activation_fn),
            dropout=cfg.dropout,
            attention_dropout=cfg.attention_dropout,
            activation_dropout=cfg.activation_dropout,
            max_positions=getattr(cfg, positions_field),
        )


class Layer(nn.Module):
    """Base of the layers of all stacks: it has the modules of all branches, and computes the equation of a branch.

    A subclass defines `forward`. shape: of the stack; method: the one that fills the slots; index: number of the layer
    in its stack, from 1, the l of the papers. Parameters outside the slots have the names of fairseq's Transformer
    layers.

    sites: branch ("self_attn", "encoder_attn", "ffn") -> slots.Site, in forward order; norm_place: branch -> place of
    its LayerNorm, "pre", "post" or "none".
    """

    def __init__(self, shape: StackShape, method: Method, index: int):
        super().__init__()
        self.sites = {}
        for sublayer in method.sublayers(shape.stack):
            self.sites[sublayer] = Site(shape.stack, index, sublayer, shape.dim, shape.num_heads)
        self.norm_place = {sublayer: method.norm_place(site) for sublayer, site in self.sites.items()}

        # the plain Transformer; its modules are made in fairseq's order, by which optimisers number parameters
        stream_dim = method.stream_width(shape.stack, shape.dim)
        for sublayer in self.sites:
            if sublayer == "ffn":
                self.fc1 = empty_linear(shape.dim, shape.ffn_dim, method.bias)
                self.fc2 = empty_linear(shape.ffn_dim, shape.dim, method.bias)
            else:
                setattr(self, sublayer, self._attention(sublayer, shape, method))
            if self.norm_place[sublayer] != "none":
                setattr(self, NORM_NAMES[sublayer], nn.LayerNorm(stream_dim))

        # the slots: before, outer and residual of every branch, the others of the feed-forward branch; the slots inside
        # an attention are attributes of its own module
        self.before = nn.ModuleDict({name: or_empty(method.before(site)) for name, site in self.sites.items()})
        self.hidden = or_empty(method.hidden(self.sites["ffn"], shape.ffn_dim))
        self.inner = or_empty(method.inner(self.sites["ffn"], shape.ffn_dim))
        self.bypass = method.bypass(self.sites["ffn"])  # stays None if empty: the identity takes no second argument
        self.outer = nn.ModuleDict({name: or_empty(method.outer(site)) for name, site in self.sites.items()})
        self.residual = nn.ModuleDict()
        for name, site in self.sites.items():
            merge = method.residual(site)
            self.residual[name] = Residual() if merge is None else merge

        self.activation_fn = ACTIVATIONS[shape.activation_fn]
        module_name = f"Transformer{shape.stack.capitalize()}LayerBase"  # fairseq's class, for --retain-dropout-modules
        self.activation_dropout = Dropout(shape.activation_dropout, module_name=module_name)
        self.dropout = Dropout(shape.dropout, module_name=module_name)

    def matrices(self, sublayer: str) -> dict[str, nn.Linear]:
        """Return role -> module of each weight matrix of a branch, the branch's last matrix last.

        sublayer: name of the branch; roles: "q", "k", "v", "out" in attention, "fc1", "fc2" in feed-forward.
        """
        if sublayer == "ffn":
            return {"fc1": self.fc1, "fc2": self.fc2}
        return getattr(self, sublayer).weights()

    def weights(self) -> Iterator[Weight]:
        """Yield every weight matrix of the layer's branches, in their forward order."""
        for sublayer, site in self.sites.items():
            source_dim = site.dim
            if sublayer != "ffn":
                source_dim = getattr(self, sublayer).k_proj.in_features
            for role, linear in self.matrices(sublayer).items():
                yield Weight(site, role, linear, source_dim)

    def slots(self, sublayer: str) -> dict[str, nn.Module]:
        """Return name of a slot -> module, for the slots of a branch that the method has filled.

        sublayer: name of the branch. The slot `residual` is always among them, as x + f where the method left it empty.
        """
        if sublayer == "ffn":
            own_slots = {"hidden": self.hidden, "inner": self.inner, "bypass": self.bypass}
        else:
            attention = getattr(self, sublayer)
            own_slots = {"heads": attention.heads, "inner": attention.inner}
        slots = {"before": self.before[sublayer], **own_slots, "outer": self.outer[sublayer]}
        slots["residual"] = self.residual[sublayer]

        filled = {}
        for name, module in slots.items():
            if module is not None and not isinstance(module, EmptySlot):
                filled[name] = module
        return filled

    def _attention(self, sublayer: str, shape: StackShape, method: Method) -> Attention:
        """Make the attention of a branch, with the method's modules in its slots."""
        source_dim = shape.dim  # width of what keys and values are computed from
        if sublayer == "encoder_attn":
            assert shape.memory_dim is not None  # only a decoder behind an encoder has cross-attention
            source_dim = shape.memory_dim
        site = self.sites[sublayer]
        return Attention(
            shape.dim,
            shape.num_heads,
            shape.attention_dropout,
            source_dim,
            inner=method.inner(site, shape.dim),
            heads=method.heads(site, shape.dim // shape.num_heads),
            bias=method.bias,
        )

    def branch(self, name: str, x: Tensor, body: Callable[[Tensor], Tensor], entry: Tensor | None = None) -> Tensor:
        """Compute the equation of a branch (at the top of this file), x (B, T, W) -> y (B, T, W).

        name: of the branch, a key of `sites`; body: its attention or feed-forward, (B, T, C) -> same, with the slots
        heads, hidden and inner inside it; entry (B, T, W): the layer's input, for the slot `bypass`, given to a layer's
        last branch alone.
        """
        norm_in = self.norm(name, "pre")
        norm_out = self.norm(name, "post")
        before = self.before[name]
        outer = self.outer[name]
        residual = self.residual[name]

        shortcut = x
        if entry is not None and self.bypass is not None:
            shortcut = self.bypass(x, entry)

        f = self.dropout(outer(body(before(norm_in(x)))))
        return norm_out(residual(shortcut, f))

    def norm(self, branch: str, place: str) -> nn.Module:
        """Return the LayerNorm of a branch if it stands at `place`, "pre" or "post", else the identity."""
        return getattr(self, NORM_NAMES[branch]) if self.norm_place[branch] == place else EMPTY

    def feed_forward(self, x: Tensor) -> Tensor:
        """Compute fc2(inner(dropout(activation(hidden(fc1(x)))))), the body of the last branch, x (B, T, C) -> same."""
        h = self.activation_fn(self.hidden(self.fc1(x)))
        return self.fc2(self.inner(self.activation_dropout(h)))


class EncoderLayer(Layer):
    """A layer of an encoder: self-attention and feed-forward."""

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Map x (B, S, W) to the same shape; mask (B, 1, 1, S) is added to attention scores, None adds nothing."""
        y = self.branch("self_attn", x, lambda h: self.self_attn(h, mask=mask))
        return self.branch("ffn", y, self.feed_forward, entry=x)


class CausalLayer(Layer):
    """A layer of a decoder without an encoder: causal self-attention and feed-forward."""

    def forward(self, x: Tensor, mask: Tensor | None, cache: DecoderCache | None = None) -> Tensor:
        """Map x (B, T, W) to the same shape.

        mask, broadcastable to (B, 1, T, T), is added to attention scores; None stands for a plain causal mask if there
        is no cache, and for no mask if there is one. cache: the keys and values of earlier steps of beam search, None
        in training. With a cache x and mask are what DecoderCache.advance returned, and T counts the beams of a
        sentence, each with its newest token.
        """
        y = self.branch("self_attn", x, lambda h: self.look_back(h, mask, cache))
        return self.branch("ffn", y, self.feed_forward, entry=x)

    def look_back(self, x: Tensor, mask: Tensor | None, cache: DecoderCache | None) -> Tensor:
        """Compute self-attention, in which each token sees what the mask permits, x (B, T, C) -> same.

        mask, cache: as in forward.
        """
        is_plain_causal = mask is None and cache is None
        return self.self_attn(x, mask=mask, causal=is_plain_causal, cache=cache)


class DecoderLayer(CausalLayer):
    """A layer of a decoder with an encoder: causal self-attention, attention to the encoder's output, feed-forward."""

    def forward(  # type: ignore[override]  # a layer of another stack has other inputs
        self,
        x: Tensor,
        mask: Tensor | None,
        memory: Tensor,
        memory_mask: Tensor | None,
        cache: DecoderCache | None = None,
        alignment: list[Tensor] | None = None,
    ) -> Tensor:
        """Map x (B, T, W) to the same shape, reading the encoder's output memory (B, S, C'), C' the encoder's width.

        mask, cache: as in CausalLayer.forward; memory_mask (B, 1, 1, S): added to the scores of cross-attention, None
        adds nothing; alignment: a list to which the weights of the cross-attention, (B, h, T, S) for h heads, are
        appended; None to compute none.
        """
        y = self.branch("self_attn", x, lambda h: self.look_back(h, mask, cache))
        y = self.branch(
            "encoder_attn",
            y,
            lambda h: self.encoder_attn(h, memory, memory_mask, cache=cache, alignment=alignment),
        )
        return self.branch("ffn", y, self.feed_forward, entry=x)
