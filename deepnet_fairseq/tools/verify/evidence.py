"""Compare deviations of weights and factors at the residual merges with a method's, and explain what does not fit.

The standard deviation of n normal numbers is known to 1/sqrt(2n), that of n uniform ones better. A kind of weight (one
role in one sort of branch of a stack) fits if the ratio of measured to expected deviation, pooled over its layers and
in each layer alone, is within FLOOR + SIGMAS/sqrt(2n) of 1.
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
from ...core.slots import BRANCHES, Scale, Site, Weight, knows_scales
from ...errors import UserError
from .sources import Matrix, RecognisedModel

SIGMAS = 5  # standard errors of a measured deviation that are allowed
FLOOR = 0.01  # allowed besides, because constants are published with two digits
CLOSE = 0.005  # of a factor to the formula's; half precision rounds it by 0.05%
SAMPLE = 2**20  # elements of a matrix that are looked at
ROLES = ("q", "k", "v", "out", "fc1", "fc2")
DEPTHS = range(1, 201)  # that are tried for a gain that fits no other explanation
SMALL = 0.02  # std of BERT's and GPT-2's weights


class Measured(NamedTuple):
    """What was measured of one matrix. elements: how many were looked at; std: their standard deviation."""

    elements: int
    std: float


def measure(tensor: Tensor) -> Measured:
    """Measure at most SAMPLE elements, whole rows evenly spaced."""
    step = max(1, tensor.numel() // SAMPLE)
    values = tensor.detach()[::step].float()
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
        """Return measured over expected deviation, as the root mean square over all elements of all layers.

        expected: the deviation of each layer. The ratio is infinite if a layer where 0 is expected has another one, and
        1 if 0 is expected and found everywhere.
        """
        if not any(expected):
            return math.inf if any(m.std for m in self.measured) else 1.0

        squares = []
        for measured, std in zip(self.measured, expected):
            if std:
                squares.append((measured.std / std) ** 2 * measured.elements)
            elif measured.std:
                squares.append(math.inf)
        return math.sqrt(sum(squares) / self.elements)

    def fits(self, expected: list[float]) -> bool:
        """Return whether the deviations are the expected ones, layer by layer and pooled."""

        def near(ratio: float, elements: int) -> bool:
            return ratio > 0 and abs(math.log(ratio)) <= self.tolerance(elements)

        if not any(expected):
            return self.ratio(expected) == 1

        for measured, std in zip(self.measured, expected):
            layer_fits = near(measured.std / std, measured.elements) if std else not measured.std
            if not layer_fits:
                return False
        return near(self.ratio(expected), self.elements)


def kinds(model: RecognisedModel) -> list[Kind]:
    """Return every kind of weight, in forward order; UserError for one with numbers that are not finite."""
    by_key: dict[tuple, Kind] = {}
    for matrix in model.matrices:
        site = matrix.weight.site
        key = (site.stack, site.sublayer, matrix.weight.role)
        kind = by_key.setdefault(key, Kind(*key))
        measured = measure(matrix.weight.linear.weight)
        kind.matrices.append(matrix)
        kind.measured.append(measured)
        if not math.isfinite(measured.std):
            raise UserError(f"{matrix.name} holds values that are not finite; take a checkpoint from before that")

    def forward_order(kind: Kind) -> tuple:
        return kind.stack == "decoder", BRANCHES.index(kind.sublayer), ROLES.index(kind.role)

    return sorted(by_key.values(), key=forward_order)


def trained(model: RecognisedModel) -> str:
    """Return how it shows that a model has been trained, in words; "" for one that nothing tells from a fresh one."""
    if model.updates:
        return f"trained, {model.updates} updates"

    spreads = [gain.float().std().item() for gain in model.gains if gain.numel() > 1]
    spread = max(spreads, default=0.0)
    if spread > 1e-6:
        return f"trained: gains of its LayerNorms are spread by {spread:.2g}"
    return ""


@dataclass(frozen=True)
class Draw:
    """An initialisation. description: in words; std: of each weight."""

    description: str
    std: Callable[[Weight], float]

    def fits(self, kind: Kind) -> bool:
        """Return whether a kind of weight has these deviations, not all of them 0."""
        # almost every draw is far off in the first layer already, which saves the time for the others
        first_expected = self.std(kind.matrices[0].weight)
        first_measured = kind.measured[0].std
        if first_measured > 2 * first_expected or 2 * first_measured < first_expected:
            return False

        expected = [self.std(matrix.weight) for matrix in kind.matrices]
        return any(expected) and kind.fits(expected)

    def times(self, gain: Callable[[Site, str], float], description: str) -> Draw:
        """Return this draw with its std scaled by gain(site, role), and with another description.

        The std is 0 where the gain is undefined or negative, as 1/(N - l + 1) is in layers l above a method's depth N.
        """

        def std(weight: Weight) -> float:
            try:
                return self.std(weight) * max(gain(weight.site, weight.role), 0.0)
            except (ArithmeticError, ValueError):
                return 0.0

        return Draw(description, std)


def profile_base(name: str) -> Draw:
    """Return the draw of a key of PROFILES, before any gain."""
    return Draw(f"drawn as {name}", PROFILES[name].weight_std)


def _fused_xavier_std(weight: Weight) -> float:
    """Return Xavier's deviation where q, k and v are drawn as rows of one (3C, C) matrix."""
    linear = weight.linear
    if weight.role not in ATTENTION_INPUTS:
        return xavier_std(linear)
    return math.sqrt(2 / (linear.in_features + 3 * linear.out_features))


def _bases() -> list[Draw]:
    """Return draws before any gain that others' code makes, likeliest first."""
    fused = "q, k, v drawn as one (3C, C) matrix, sqrt(2/(4C)) for sqrt(2/(2C)), which is fairseq's gain 1/sqrt(2) too"
    return [
        Draw(fused, _fused_xavier_std),
        profile_base("xavier_normal"),
        profile_base("xavier_legacy"),
        profile_base("fairseq_head"),
        Draw("torch's default for a Linear", lambda w: torch_std(w.linear)),
        Draw(f"N(0, {SMALL:g}), as BERT's and GPT-2's", lambda w: SMALL),
    ]


def _gains(method: Method) -> Iterator[tuple[str, Callable[[Site, str], float]]]:
    """Yield the description and the gain(site, role) of mistakes that are made with the method, likeliest first."""
    depths = {"encoder": method.num_encoder_layers, "decoder": method.num_decoder_layers}
    stacks = [stack for stack, layers in depths.items() if layers]

    yield f"without the gain of {method.name}", lambda site, role: 1.0
    for description, mistaken in method.mistaken_gains.items():
        by_stack = {stack: mistaken(method, stack) for stack in stacks}
        yield description, _in_place(method, by_stack)
    for stack in stacks:
        for symbol, value in method.coefficients(stack).items():
            gain = _in_place(method, dict.fromkeys(depths, value))
            yield f"{symbol} of the {stack}, {value:.4g}, in the gain's place", gain


def _in_place(method: Method, by_stack: dict[str, float]) -> Callable[[Site, str], float]:
    """Return the gain that is the stack's number wherever the method has a gain, and 1 elsewhere."""

    def gain(site: Site, role: str) -> float:
        return 1.0 if method.gain(site, role) == 1 else by_stack[site.stack]

    return gain


def at_depth(method: Method, layers: int) -> Method:
    """Return the method with its options where each stack has so many layers."""
    encoder_layers = layers if method.num_encoder_layers else 0
    decoder_layers = layers if method.num_decoder_layers else 0
    options = {key: getattr(method, key) for key in method.options}
    return METHODS[method.name](encoder_layers, decoder_layers, **options)


def explanations(model: RecognisedModel, method: Method, profile: str) -> Iterator[Draw]:
    """Yield what weights that do not fit may be, likeliest first; profile: the method's that fits best."""
    own = [profile_base(name) for name in dict.fromkeys((profile, *method.init_profiles))]
    others = _bases()
    gains = list(_gains(method))

    # one mistake, in the gain or in the draw, before both
    for words, gain in gains:
        for base in own:
            yield base.times(gain, words)
    for base in others:
        yield base.times(method.gain, base.description)
    for words, gain in gains:
        for base in others:
            yield base.times(gain, f"{base.description}, and {words}")

    # then other methods, and other depths
    for name, kind in METHODS.items():
        other = kind(*model.depths.values())
        for profile_name in kind.init_profiles:
            yield profile_base(profile_name).times(other.gain, f"the initialisation of --method {name}")
    for layers in DEPTHS:
        try:
            gain = at_depth(method, layers).gain
        except (ArithmeticError, ValueError):  # a method that does not exist at this depth
            continue
        for base in own:
            yield base.times(gain, f"the gain of {layers} layers")


def explain(kind: Kind, candidates: list[Draw]) -> str:
    """Return the likeliest of the candidates that a kind of weight fits, in words; candidates: likeliest first."""
    for draw in candidates:
        if draw.fits(kind):
            return draw.description
    return "fits nothing that is known"


def scales(method: Method, site: Site) -> tuple[float, float] | None:
    """Return the factors a, b of shortcut and branch at the start; None where the merge is no a x + b f of numbers."""
    module = method.residual(site)
    if module is None:
        return 1.0, 1.0
    if not knows_scales(module):
        return None
    shortcut, branch = module.scales()
    return _mean(shortcut), _mean(branch)


def _mean(scale: Scale) -> float:
    """Return the mean over features of a scale that is a number or (C,)."""
    return torch.as_tensor(scale).float().mean().item()


def explain_factor(has: float, wanted: float, method: Method, model: RecognisedModel, site: Site) -> str:
    """Say what the factor of a shortcut may be instead of the method's.

    has, wanted: the model's factor and the method's; site: the branch for which the factors of other depths are tried.
    """

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
            factors = scales(at_depth(method, layers), site)
            if factors is None:
                continue
            a, b = factors
            if b and near(a / b):
                return f"that is {layers} layers', this model has {model.depths[site.stack]}"
    return "fits nothing that is known"
