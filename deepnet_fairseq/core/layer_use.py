"""What each layer of a trained model does: how far it turns its input, and what the loss says without it.

Angular distance (Gromov et al. 2024, "The Unreasonable Ineffectiveness of the Deeper Layers", section 3), skipped and
exchanged layers (Veit et al. 2016, "Residual Networks Behave Like Ensembles of Relatively Shallow Networks", section
4), logit lens (nostalgebraist 2020; Belrose et al. 2023). docs/probes.md has the definitions.

Models know nothing of it: hooks see what goes into a stack, and its layers are run again in another order, each time
only those behind the change. B sentences, T tokens, W features of the stream, S sentences of all batches together.
"""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .models import DeepModel
from .probes.model_update import token_masks
from .profile import in_mode
from .stack import Stack

ERRORS = 2  # standard errors that a cost must exceed to count
NEAR = 0.05  # of the final loss; a lens that stays within it has arrived


@dataclass(frozen=True)
class Entrance:
    """What a stack works on in one batch.

    y: what its mixer reads first, or its first layer where there is no mixer, (B, T, ..); inputs: what each layer reads
    beside the stream; mask: where there are tokens, (B, T) bool.
    """

    y: Tensor
    inputs: tuple[Any, ...]
    mask: Tensor


def entrances(model: DeepModel, net_input: dict) -> dict[str, Entrance]:
    """Of each stack, by its name; found by hooks in one forward pass."""
    seen: dict[nn.Module, tuple] = {}

    def see(module: nn.Module, inputs: tuple) -> None:
        seen.setdefault(module, inputs)  # a mixer is called again behind each layer

    with ExitStack() as hooks:
        for stack in model.stacks().values():
            for module in (stack.mixer, stack.layers[0]):
                if module is not None:
                    hooks.enter_context(module.register_forward_pre_hook(see))
        model(**net_input)
    masks, found = token_masks(model, **net_input), {}
    for name, stack in model.stacks().items():
        first = stack.layers[0] if stack.mixer is None else stack.mixer
        # a fourth input is a list for alignments
        found[name] = Entrance(seen[first][0], seen[stack.layers[0]][1:4], masks[name])
    return found


class Batch:
    """One batch and its losses; sample: fairseq's, whose target (B, T) has padding where nothing is predicted."""

    def __init__(self, model: DeepModel, sample: dict):
        self.model, self.stacks = model, model.stacks()
        self.entrances = entrances(model, sample["net_input"])
        target, last = sample["target"], list(self.stacks.values())[-1]
        self.asked = target.ne(last.padding_idx)
        self.target, self.rows = target[self.asked], self.asked.nonzero()[:, 0]
        self.tokens = self.asked.sum(1)  # (B,)

    def begin(self, name: str) -> tuple[Tensor, list[Any]]:
        """What the first layer of a stack reads, (B, T, W), and the mixer's history so far."""
        history: list[Any] = []
        return self.stacks[name].mix(self.entrances[name].y, history), history

    def behind(self, name: str) -> int:
        """Layers that read what a stack gives: a decoder's, behind its encoder."""
        return len(self.stacks["decoder"].layers) if name == "encoder" and "decoder" in self.stacks else 0

    def loss(self, name: str, x: Tensor) -> Tensor:
        """Nats of each sentence, (B,), float64, where x (B, T, W) is at the end of that stack's layers."""
        features = self.stacks[name].finish(x)
        if self.behind(name):
            decoder, (own, _memory, mask) = self.stacks["decoder"], self.entrances["decoder"].inputs
            y, history = self.begin("decoder")
            features = decoder.finish(decoder.run(decoder.layers, (own, features, mask), y, history))
        scores = self.model.vocabulary_projection()(features[self.asked])
        nats = F.cross_entropy(scores.float(), self.target, reduction="none").double()
        return nats.new_zeros(len(self.tokens)).index_add_(0, self.rows, nats)


@dataclass
class StackUse:
    """One stack of N layers. skip (N, S), swap (N-1, S), lens (N+1, S): nats of each sentence, float64.

    skip: without layer l; swap: layers l and l+1 exchanged; lens: read off behind layer l, from 0, the embedding.
    distances: n -> angular distance between what layer l reads and what layer l+n-1 gives, l = 1 to N-n+1, its sum over
    tokens; places: how many tokens those are.
    """

    skip: Tensor
    swap: Tensor
    lens: Tensor
    distances: dict[int, Tensor]
    places: int

    def distance(self, n: int = 1) -> list[float]:
        """Mean angular distance over a block of n layers, 0 to 1."""
        return (self.distances[n] / self.places).tolist()


@dataclass
class Use:
    """What `measure` found. stacks: by name; tokens (S,): target tokens of each sentence."""

    stacks: dict[str, StackUse]
    tokens: Tensor

    @property
    def base(self) -> Tensor:
        """Nats of each sentence, (S,), as the model is."""
        return list(self.stacks.values())[-1].lens[-1]

    def bits(self, nats: Tensor) -> list[float]:
        """Bits per target token over all sentences, of nats (.., S)."""
        return (nats.sum(-1) / self.tokens.sum() / math.log(2)).tolist()

    def cost(self, nats: Tensor) -> tuple[list[float], list[float]]:
        """How much more than the model's own loss, bits per token, and its standard error; nats (.., S).

        Sentences are the units, each paired with itself: the cost is a ratio of sums over them, sum d / sum n, of which
        the error is that of the mean of d - cost n (Cochran 1977, chapter 6). There must be two.
        """
        count = len(self.tokens)
        differences = (nats - self.base) / math.log(2)
        cost = differences.sum(-1) / self.tokens.sum()
        left = differences - cost.unsqueeze(-1) * self.tokens
        spread = left.square().sum(-1) * count / (count - 1)
        return cost.tolist(), (spread.sqrt() / self.tokens.sum()).tolist()


@torch.no_grad()
def measure(
    model: DeepModel, samples: Iterable[dict], block: int = 1, progress: Callable[[int], None] | None = None
) -> Use:
    """Runs a model on all samples of fairseq's, as `Batch` reads them, as often as it has layers; leaves it as it was.

    block: a further number of layers to take the angular distance over; progress: is told how many layers have been
    run, `work` for each sample in all. In evaluation mode; no random number is drawn.
    """
    found: dict[str, list[StackUse]] = {name: [] for name in model.stacks()}
    tokens = []
    with in_mode(model, training=False):
        for sample in samples:
            batch = Batch(model, sample)
            tokens.append(batch.tokens)
            for name in found:
                found[name].append(_walk(batch, name, sorted({1, block}), progress or (lambda layers: None)))
    return Use({name: _joined(parts) for name, parts in found.items()}, torch.cat(tokens))


def _walk(batch: Batch, name: str, blocks: Sequence[int], progress: Callable[[int], None]) -> StackUse:
    """Once through a stack; from each layer the rest runs without it, and with the next one before it."""
    stack, entrance = batch.stacks[name], batch.entrances[name]
    layers, inputs = list(stack.layers), entrance.inputs
    x, history = batch.begin(name)
    runs: dict[str, list[Tensor]] = {"skip": [], "swap": [], "lens": []}
    distances: dict[int, list[Tensor]] = {n: [] for n in blocks}
    read: deque[Tensor] = deque(maxlen=blocks[-1])

    def end(kind: str, x: Tensor, ran: int) -> None:
        runs[kind].append(batch.loss(name, x))
        progress(ran + batch.behind(name))

    end("lens", x, 0)
    for l, layer in enumerate(layers):
        without: list[Callable[..., Tensor]] = [stay, *layers[l + 1 :]]
        for kind, order in ("skip", without), ("swap", [*reversed(layers[l : l + 2]), *layers[l + 2 :]]):
            if kind == "skip" or layer is not layers[-1]:
                end(kind, stack.run(order, inputs, x, copy.deepcopy(history)), len(order))
        read.append(x)
        y = layer(x, *inputs)
        for n in blocks:
            if len(read) >= n:
                distances[n].append(angular_distance(read[-n], y)[entrance.mask].sum())
        x = stack.mix(y, history)
        end("lens", x, 1)
    stacked = {n: torch.stack(sums) if sums else x.new_zeros(0) for n, sums in distances.items()}
    sentences = len(batch.tokens)
    parts = {kind: torch.stack(runs[kind]) if runs[kind] else runs["lens"][0].new_zeros(0, sentences) for kind in runs}
    return StackUse(**parts, distances=stacked, places=int(entrance.mask.sum()))


def _joined(parts: list[StackUse]) -> StackUse:
    """Several batches as one."""
    runs = {kind: torch.cat([getattr(part, kind) for part in parts], 1) for kind in ("skip", "swap", "lens")}
    distances = {n: sum((part.distances[n] for part in parts[1:]), parts[0].distances[n]) for n in parts[0].distances}
    return StackUse(**runs, distances=distances, places=sum(part.places for part in parts))


def stay(x: Tensor, *_inputs: Any) -> Tensor:
    """A skipped layer."""
    return x


def angular_distance(x: Tensor, y: Tensor) -> Tensor:
    """arccos(cos(x, y)) / pi of vectors (.., C) -> (..), float64, 0 to 1; 0 exactly where they are equal.

    By Kahan's formula, for arccos loses half of the digits near 1.
    """
    x, y = (F.normalize(vector.double(), dim=-1) for vector in (x, y))
    return 2 / math.pi * torch.atan2((x - y).norm(dim=-1), (x + y).norm(dim=-1))


def work(stacks: dict[str, Stack]) -> int:
    """Passes of a batch through a layer that `measure` needs, n of each stack's own and those of a decoder behind."""
    layers, total = {name: len(stack.layers) for name, stack in stacks.items()}, 0
    for name, n in layers.items():
        behind = layers.get("decoder", 0) if name == "encoder" else 0
        total += n * n + 2 * n - 1 + 3 * n * behind
    return total


# what it comes to


def used(costs: Sequence[float], errors: Sequence[float]) -> list[bool]:
    """By layer: does it cost more than ERRORS standard errors to do without?"""
    return [cost > ERRORS * error for cost, error in zip(costs, errors, strict=True)]


def half(costs: Sequence[float]) -> int:
    """Fewest layers that have half of all costs between them; those below 0 count as 0."""
    falling = sorted((max(cost, 0.0) for cost in costs), reverse=True)
    total, so_far = sum(falling), 0.0
    for count, cost in enumerate(falling, 1):
        so_far += cost
        if so_far >= total / 2:
            return count if total else 0
    return 0


def arrival(lens: Sequence[float]) -> int:
    """The first layer, 0 the embedding, from which on the lens stays within NEAR of the final loss."""
    depth = len(lens) - 1
    while depth and lens[depth - 1] <= (1 + NEAR) * lens[-1]:
        depth -= 1
    return depth
