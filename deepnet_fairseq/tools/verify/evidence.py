"""Compare deviations of weights and factors at the residual merges with a method's, and explain what does not fit.

The standard deviation of n normal numbers is known to 1/sqrt(2n), that of n uniform ones better. A kind of weight (one
role in one sort of branch of a stack) fits if pooled over its layers and in each layer alone it is within SIGMAS of it,
and FLOOR, which the published constants' two digits ask for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from ...core.initialisation import ATTENTION_INPUTS, PROFILES, torch_std, xavier_std
from ...core.methods import METHODS, Method
from ...core.slots import BRANCHES, Site, Weight, knows_scales
from ...errors import UserError
from .sources import Matrix, RecognisedModel

SIGMAS, FLOOR = 5, 0.01
CLOSE = 0.005  # of a factor to the formula's; half precision rounds it by 0.05%
SAMPLE = 2**20  # elements of a matrix that are looked at
ROLES = ("q", "k", "v", "out", "fc1", "fc2")
DEPTHS = range(1, 201)  # that are tried for a gain that fits no other explanation
SMALL = 0.02  # std of BERT's and GPT-2's weights


class Measured(NamedTuple):
    """One matrix: elements that were looked at, and their standard deviation."""

    elements: int
    std: float


def measure(tensor: Tensor) -> Measured:
    """Measure at most SAMPLE elements, whole rows evenly spaced."""
    values = tensor.detach()[:: max(1, tensor.numel() // SAMPLE)].float()
    return Measured(values.numel(), values.std(unbiased=False).item())


@dataclass
class Kind:
    """Matrices of one role in one sort of branch of a stack, and what was measured of each."""

    stack: str
    sublayer: str
    role: str
    matrices: list[Matrix] = field(default_factory=list)
    measured: list[Measured] = field(default_factory=list)

    @property
    def elements(self) -> int:
        """Number of elements that were measured, in all layers."""
        return sum(m.elements for m in self.measured)

    def tolerance(self, elements: int) -> float:
        """Return how far the ratio of deviations of so many elements may be from 1."""
        return FLOOR + SIGMAS / math.sqrt(2 * elements)

    def ratio(self, expected: list[float]) -> float:
        """Return measured over expected, pooled over layers; infinite where only 0 is expected and more is there."""
        if not any(expected):
            return math.inf if any(m.std for m in self.measured) else 1.0
        pairs = [(m, e) for m, e in zip(self.measured, expected) if e or m.std]
        return math.sqrt(sum((m.std / e) ** 2 * m.elements if e else math.inf for m, e in pairs) / self.elements)

    def fits(self, expected: list[float]) -> bool:
        """Return whether the deviations are these, pooled and layer by layer."""

        def near(ratio: float, elements: int) -> bool:
            return ratio > 0 and abs(math.log(ratio)) <= self.tolerance(elements)

        if not any(expected):
            return self.ratio(expected) == 1
        layers = zip(self.measured, expected)
        each = all(near(m.std / e, m.elements) if e else not m.std for m, e in layers)
        return each and near(self.ratio(expected), self.elements)


def kinds(model: RecognisedModel) -> list[Kind]:
    """Return every kind of weight, in forward order; UserError for one with numbers that are not finite."""
    by_key: dict[tuple, Kind] = {}
    for matrix in model.matrices:
        site = matrix.weight.site
        key = site.stack, site.sublayer, matrix.weight.role
        kind = by_key.setdefault(key, Kind(*key))
        kind.matrices.append(matrix)
        kind.measured.append(measure(matrix.weight.linear.weight))
        if not math.isfinite(kind.measured[-1].std):
            raise UserError(f"{matrix.name} holds values that are not finite; take a checkpoint from before that")

    def forward(key: tuple[str, str, str]) -> tuple:
        return key[0] == "decoder", BRANCHES.index(key[1]), ROLES.index(key[2])

    return [by_key[key] for key in sorted(by_key, key=forward)]


def trained(model: RecognisedModel) -> str:
    """Return how it shows that a model has been trained; "" for one that nothing tells from a fresh one."""
    if model.updates:
        return f"trained, {model.updates} updates"
    spread = max((gain.float().std().item() for gain in model.gains if gain.numel() > 1), default=0.0)
    return f"trained: gains of its LayerNorms are spread by {spread:.2g}" if spread > 1e-6 else ""


@dataclass(frozen=True)
class Draw:
    """An initialisation. description: in words; std: of each weight."""

    description: str
    std: Callable[[Weight], float]

    def fits(self, kind: Kind) -> bool:
        """Return whether the kind has these deviations."""
        first = self.std(kind.matrices[0].weight)  # most are far off already
        if kind.measured[0].std > 2 * first or 2 * kind.measured[0].std < first:
            return False
        expected = [self.std(matrix.weight) for matrix in kind.matrices]
        return any(expected) and kind.fits(expected)

    def times(self, gain: Callable[[Site, str], float], description: str) -> Draw:
        """Return this draw with a gain; 0 where a method of another depth has none, as 1/(N - l + 1) above N layers."""

        def std(weight: Weight) -> float:
            try:
                return self.std(weight) * max(gain(weight.site, weight.role), 0.0)
            except (ArithmeticError, ValueError):
                return 0.0

        return Draw(description, std)


def profile_base(name: str) -> Draw:
    """Return the draw of a key of PROFILES, before any gain."""
    return Draw(f"drawn as {name}", PROFILES[name].weight_std)


def _as_one(weight: Weight) -> float:
    """Return Xavier's deviation where q, k and v are rows of one (3C, C) matrix."""
    linear = weight.linear
    if weight.role not in ATTENTION_INPUTS:
        return xavier_std(linear)
    return math.sqrt(2 / (linear.in_features + 3 * linear.out_features))


def _bases() -> list[Draw]:
    """Return the bases that are not the method's, likeliest first."""
    one = "q, k, v drawn as one (3C, C) matrix, sqrt(2/(4C)) for sqrt(2/(2C)), which is fairseq's gain 1/sqrt(2) too"
    return [
        Draw(one, _as_one),
        *map(profile_base, ("xavier_normal", "xavier_legacy", "fairseq_head")),
        Draw("torch's default for a Linear", lambda w: torch_std(w.linear)),
        Draw(f"N(0, {SMALL:g}), as BERT's and GPT-2's", lambda w: SMALL),
    ]


def _gains(method: Method) -> Iterator[tuple[str, Callable[[Site, str], float]]]:
    """Yield mistaken gains of the method, likeliest first."""
    stacks = {"encoder": method.num_encoder_layers, "decoder": method.num_decoder_layers}
    yield f"without the gain of {method.name}", lambda site, role: 1.0
    for description, mistaken in method.mistaken_gains.items():
        of_stacks = {stack: mistaken(method, stack) for stack, layers in stacks.items() if layers}
        yield description, _in_place(method, of_stacks)
    for stack, layers in stacks.items():
        for symbol, value in method.coefficients(stack).items() if layers else ():
            gain = _in_place(method, dict.fromkeys(stacks, value))
            yield f"{symbol} of the {stack}, {value:.4g}, in the gain's place", gain


def _in_place(method: Method, numbers: dict[str, float]) -> Callable[[Site, str], float]:
    """Return the gain that is a stack's number where the method has a gain."""
    return lambda site, role: 1.0 if method.gain(site, role) == 1 else numbers[site.stack]


def at_depth(method: Method, layers: int) -> Method:
    """Return the method with its options where each stack has so many layers."""
    depths = (layers if depth else 0 for depth in (method.num_encoder_layers, method.num_decoder_layers))
    return METHODS[method.name](*depths, **{key: getattr(method, key) for key in method.options})


def explanations(model: RecognisedModel, method: Method, profile: str) -> Iterator[Draw]:
    """Yield what weights that do not fit may be, likeliest first; profile: the method's that fits best."""
    own = [profile_base(name) for name in dict.fromkeys((profile, *method.init_profiles))]
    others, gains = _bases(), list(_gains(method))
    for words, gain in gains:
        yield from (base.times(gain, words) for base in own)
    yield from (base.times(method.gain, base.description) for base in others)
    for words, gain in gains:
        yield from (base.times(gain, f"{base.description}, and {words}") for base in others)
    for name, other in METHODS.items():
        theirs = other(*model.depths.values())
        bases = map(profile_base, other.init_profiles)
        yield from (base.times(theirs.gain, f"the initialisation of --method {name}") for base in bases)
    for layers in DEPTHS:
        yield from (base.times(at_depth(method, layers).gain, f"the gain of {layers} layers") for base in own)


def explain(kind: Kind, candidates: list[Draw]) -> str:
    """Return the likeliest of the candidates that a kind of weight fits, in words."""
    return next((draw.description for draw in candidates if draw.fits(kind)), "fits nothing that is known")


def scales(method: Method, site: Site) -> tuple[float, float] | None:
    """Return the factors of shortcut and branch at the start; None where the merge is no a x + b f of numbers."""
    module = method.residual(site)
    if module is None:
        return 1.0, 1.0
    if not knows_scales(module):
        return None
    a, b = (torch.as_tensor(scale).float().mean().item() for scale in module.scales())
    return a, b


def explain_factor(has: float, wanted: float, method: Method, model: RecognisedModel, site: Site) -> str:
    """Say what the factor of a shortcut may be instead of the method's."""

    def near(value: float) -> bool:
        return value > 0 and abs(has / value - 1) <= CLOSE

    if wanted and near(1 / wanted):
        return f"it stands on the branch, x + {wanted:.4g} f, or is inverted"
    for symbol, value in method.coefficients(site.stack).items():
        if near(value) and not math.isclose(value, wanted):
            return f"that is {symbol}: the two are swapped"
    if near(1):
        return "a plain shortcut"

    for layers in DEPTHS:
        with suppress(ArithmeticError, ValueError):  # as in Draw.times
            a, b = scales(at_depth(method, layers), site) or (0, 1)
            if b and near(a / b):
                return f"that is {layers} layers', this model has {model.depths[site.stack]}"
    return "fits nothing that is known"
