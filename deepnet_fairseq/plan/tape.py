"""What one forward pass leaves in memory for the backward pass, and its floating-point operations.

A Value stands for a tensor. Every operation says which of its Values autograd keeps for its derivative; a Value that
several operations keep is held once, as its storage is. The rules are those of torch's derivatives.yaml:
    linear            its input (projections that are packed into one pack their weights again)
    layer norm        its input, mean and 1/std of every row in float32
    relu, tanh        their output;  gelu and the like: their input
    dropout           its mask: one byte a number on a GPU, on a CPU the mask in the type of the input
    add               nothing
    attention         queries, keys and values, and
        in one kernel     its output and the logarithm of the softmax's sum (row and head, float32)
        in products       the weights, with a dropout of their own three times (a CPU, see products.py)
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field

from ..transformer.attention import LONGEST

FLOAT32 = 4
KEEPS_OUTPUT = ("relu", "tanh")
KEEPS_NOTHING = ("linear",)
WIDENS = ("gelu",)  # fairseq computes it in float32


@dataclass(eq=False)
class Value:
    """A tensor of `rows` tokens, each of `width` numbers of `itemsize` bytes."""

    rows: int
    width: int
    itemsize: int

    @property
    def bytes(self) -> int:
        """Of its storage."""
        return self.rows * self.width * self.itemsize


@dataclass(frozen=True)
class Device:
    """What torch does otherwise on a CPU than on a GPU.

    mask_itemsize: bytes of a number of dropout's mask, None where it has the type of what is dropped; longest: keys up
    to which attention is made of products; fused_dropout: has the one kernel a dropout of its own?
    """

    name: str
    mask_itemsize: int | None
    longest: int
    fused_dropout: bool

    def attention_in_one(self, length: int, dropout: float) -> bool:
        """Is attention to so many keys one kernel?"""
        return length > self.longest and (not dropout or self.fused_dropout)


DEVICES = {"cpu": Device("cpu", None, LONGEST, False), "cuda": Device("cuda", 1, 0, True)}


@dataclass
class Segment:
    """A stretch of the forward pass between two places where activations may be thrown away.

    held: what it keeps from its forward to its backward pass; outlasting: the same, of a recomputed stretch that is one
    with those around it; redone: what its backward pass computes again first;
    working: bytes of the gradients and copies at the worst moment of its backward pass; forward_working: the same of
    its forward pass; gradients: bytes of its parameters' gradients; flops: of its forward pass; attention: those of
    them that grow with the length of sentences; layers: how many it is of.
    """

    name: str
    recomputed: bool = False
    held: dict[Value, None] = field(default_factory=dict)
    outlasting: dict[Value, None] = field(default_factory=dict)
    redone: dict[Value, None] = field(default_factory=dict)
    working: int = 0
    forward_working: int = 0
    gradients: int = 0
    flops: float = 0.0
    attention: float = 0.0
    layers: int = 1

    @property
    def held_bytes(self) -> int:
        """Bytes it keeps from its forward to its backward pass."""
        return sum(value.bytes for value in (*self.held, *self.outlasting))

    @property
    def redone_bytes(self) -> int:
        """Bytes its backward pass computes again first."""
        return sum(value.bytes for value in self.redone)


def joined(segments: list[Segment]) -> Segment:
    """Segments that are recomputed together: what the later ones held is recomputed with the rest."""
    first, *later = segments
    redone = dict(first.redone)
    for segment in later:
        redone |= segment.held | segment.redone
    return Segment(
        first.name,
        True,
        first.held,
        {value: None for segment in segments for value in segment.outlasting},
        redone,
        working=max(segment.working for segment in segments),
        gradients=sum(segment.gradients for segment in segments),
        flops=sum(segment.flops for segment in segments),
        attention=sum(segment.attention for segment in segments),
        layers=sum(segment.layers for segment in segments),
    )


class Tape:
    """Segments of one forward pass, in its order. itemsize: bytes of the model's numbers."""

    def __init__(self, device: Device, itemsize: int):
        self.device, self.itemsize = device, itemsize
        self.segments: list[Segment] = []
        self._held: set[Value] = set()

    @contextmanager
    def segment(self, name: str, *inputs: Value, recomputed: bool = False):
        """What happens inside belongs to a new segment; with `recomputed` only its inputs outlive its forward pass."""
        self.segments.append(Segment(name))
        if recomputed:
            self.keep(*inputs)
            self.segments[-1].recomputed = True
        yield self.segments[-1]

    def value(self, rows: int, width: int, itemsize: int | None = None) -> Value:
        """A new tensor, in the model's precision unless itemsize says otherwise."""
        return Value(rows, width, itemsize or self.itemsize)

    def keep(self, *values: Value) -> None:
        """Autograd keeps these; one that is held already is not held twice."""
        segment = self.segments[-1]
        for value in values:
            if segment.recomputed and value not in self._held:
                segment.redone[value] = None
            elif value not in self._held:
                self._held.add(value)
                segment.held[value] = None

    def outlast(self, value: Value) -> None:
        """A later stretch holds it, whether it is recomputed here or not."""
        if value not in self._held:
            self._held.add(value)
            self.segments[-1].outlasting[value] = None

    def work(self, *values: Value) -> None:
        """The gradients of these are alive at one moment of the backward pass."""
        self.segments[-1].working = max(self.segments[-1].working, sum(value.bytes for value in values))

    def linear(self, x: Value, width: int) -> Value:
        """x W^T of a weight with `width` rows: 2 operations a multiplication and addition."""
        y = self.value(x.rows, width)
        self.keep(x)
        self.segments[-1].flops += 2 * x.rows * x.width * width
        self.work(x, y)
        return y

    def norm(self, x: Value) -> Value:
        """LayerNorm, with mean and 1/std of every row in float32."""
        self.keep(x, self.value(x.rows, 2, FLOAT32))
        return self.like(x)

    def activation(self, name: str, x: Value) -> Value:
        """An activation function by fairseq's name for it."""
        y = self.like(x)
        if name in KEEPS_OUTPUT:
            self.keep(y)
        elif name not in KEEPS_NOTHING:
            self.keep(self.widened(x) if name in WIDENS else x)
        self.work(x, y)
        return y

    def dropout(self, x: Value, p: float) -> Value:
        """Dropout, or x itself where p is 0."""
        if p == 0:
            return x
        self.keep(self.value(x.rows, x.width, self.device.mask_itemsize or x.itemsize))
        return self.like(x)

    def attention(self, q: Value, keys_values: Value, dim: int, heads: int, length: int, dropout: float) -> Value:
        """Attention of `heads` heads over `dim` channels, without its projections -> (rows of q, dim).

        q: what holds the queries, keys_values: what holds keys and values (one Value where all are packed); length:
        keys a query sees, causal or not; dropout: of the weights.
        """
        y, weights = self.value(q.rows, dim), self.value(q.rows, heads * length)
        flops = 4 * q.rows * length * dim
        self.segments[-1].flops += flops
        self.segments[-1].attention += flops
        if self.device.attention_in_one(length, dropout):
            self.keep(q, keys_values, y, self.value(q.rows, heads, FLOAT32))
        else:
            copies = [self.like(packed) for packed in {q: None, keys_values: None}]  # by head
            self.keep(weights, *copies, *((self.like(weights), self.like(weights)) if dropout else ()))
            self.work(weights, y)
        self.work(*{q: None, keys_values: None}, y)
        return y

    def like(self, x: Value, itemsize: int | None = None) -> Value:
        """A new tensor of x's shape, and of its precision unless itemsize says otherwise."""
        return Value(x.rows, x.width, itemsize or x.itemsize)

    def widened(self, x: Value) -> Value:
        """x in float32: itself where it is."""
        return x if x.itemsize == FLOAT32 else self.like(x, FLOAT32)
