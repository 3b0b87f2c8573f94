"""Compare standard deviations of weights, and factors of shortcuts, with a method's, and explain what does not fit.

A kind of weight is one role in one sort of branch of a stack, as "v" in the decoder's "self_attn": a matrix in each
layer. A deviation is a standard deviation over the elements of a matrix. Measured on n normal numbers it has a relative
standard error of 1/sqrt(2n), on uniform ones a smaller one. So a kind fits if the ratio r of measured to expected
deviation has |log r| <= FLOOR + SIGMAS/sqrt(2n), in each layer alone and pooled over all layers.
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

SIGMAS = 5  # how many standard errors a measured deviation may be off
FLOOR = 0.01  # by what share it may be off besides, because constants are published with two digits
CLOSE = 0.005  # by what share a factor may differ from the formula's; half precision rounds it by 0.05%
SAMPLE = 2**20  # about how many elements of a larger matrix are measured
ROLES = ("q", "k", "v", "out", "fc1", "fc2")  # in forward order
DEPTHS = range(1, 201)  # numbers of layers that are tried for a gain or factor that fits no other explanation
BERT_STD = 0.02  # of BERT's and GPT-2's initial weights


class Measured(NamedTuple):
    """What was measured of one matrix. elements: how many were measured; std: their standard deviation."""

    elements: int
    std: float


def measure(weight: Tensor) -> Measured:
    """Measure a matrix (out, in), of a large one every n-th row, so that about SAMPLE elements are measured."""
    step = max(1, weight.numel() // SAMPLE)
    values = weight.detach()[::step].float()
    return Measured(values.numel(), values.std(unbiased=False).item())


@dataclass
class Kind:
    """A kind of weight, see above: a matrix for each layer, and in the same order what was measured of it.

    stack: "encoder" or "decoder"; sublayer: one of slots.BRANCHES; role: one of ROLES.
    """

    stack: str
    sublayer: str
    role: str
    matrices: list[Matrix] = field(default_factory=list)
    measured: list[Measured] = field(default_factory=list)

    @property
    def elements(self) -> int:
        """Number of elements that were measured, in all layers."""
        return sum(measured.elements for measured in self.measured)

    def tolerance(self, elements: int) -> float:
        """Return how far a ratio of deviations that was measured on so many elements may be from 1."""
        return FLOOR + SIGMAS / math.sqrt(2 * elements)

    def ratio(self, expected: list[float]) -> float:
        """Return measured over expected deviation, pooled: the root mean square over all elements of all layers.

        expected: the deviation of each layer. The ratio is infinite if a layer has a deviation where 0 is expected, and
        1 if 0 is expected and found everywhere.
        """
        if not any(expected):
            return math.inf if any(measured.std for measured in self.measured) else 1.0

        squares = []
        for measured, std in zip(self.measured, expected):
            if std:
                squares.append((measured.std / std) ** 2 * measured.elements)
            elif measured.std:
                squares.append(math.inf)
        return math.sqrt(sum(squares) / self.elements)

    def fits(self, expected: list[float]) -> bool:
        """Return whether the deviations are the expected ones (one for each layer), layer by layer and pooled."""

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
    """Return every kind of weight of a model, the encoder's first, in forward order.

    UserError for a matrix with elements that are not finite.
    """
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


def signs_of_training(model: RecognisedModel) -> str:
    """Return in words what shows that a model has been trained; "" if nothing does, as in a fresh model.

    Its optimiser has made updates, or the gains of a LayerNorm, all 1 at first, differ from each other.
    """
    if model.updates:
        return f"trained, {model.updates} updates"

    spreads = [gain.float().std().item() for gain in model.gains if gain.numel() > 1]
    spread = max(spreads, default=0.0)
    if spread > 1e-6:
        return f"trained: gains of its LayerNorms are spread by {spread:.2g}"
    return ""


@dataclass(frozen=True)
class Draw:
    """A way in which weights may have been drawn. description: in words; std: gives the deviation of a weight."""

    description: str
    std: Callable[[Weight], float]

    def fits(self, kind: Kind) -> bool:
        """Return whether a kind of weight has this draw's deviations; False if these are 0 in every layer."""
        # almost every draw is far off in the first layer already, which saves the time for the others
        first_expected = self.std(kind.matrices[0].weight)
        first_measured = kind.measured[0].std
        if first_measured > 2 * first_expected or 2 * first_measured < first_expected:
            return False

        expected = [self.std(matrix.weight) for matrix in kind.matrices]
        return any(expected) and kind.fits(expected)

    def scaled_by(self, gain: Callable[[Site, str], float], description: str) -> Draw:
        """Return a draw with the given description, whose std is this one's times gain(site, role).

        The std is 0 where the gain is undefined or negative, as 1/(N - l + 1) is in layers l above a method's depth N.
        """

        def std(weight: Weight) -> float:
            try:
                return self.std(weight) * max(gain(weight.site, weight.role), 0.0)
            except (ArithmeticError, ValueError):
                return 0.0

        return Draw(description, std)


def profile_draw(name: str) -> Draw:
    """Return the draw of an initialisation by its key in PROFILES, before any gain."""
    return Draw(f"drawn as {name}", PROFILES[name].weight_std)


def _fused_xavier_std(weight: Weight) -> float:
    """Return Xavier's deviation, for q, k and v that of the one (3C, C) matrix as which they are drawn together."""
    linear = weight.linear
    if weight.role not in ATTENTION_INPUTS:
        return xavier_std(linear)
    # Glorot and Bengio 2010, equation 12, with three times the outputs
    return math.sqrt(2 / (linear.in_features + 3 * linear.out_features))


def _draws_elsewhere() -> list[Draw]:
    """Return the draws, before any gain, that other projects' code makes, likeliest first."""
    fused = "q, k, v drawn as one (3C, C) matrix, sqrt(2/(4C)) for sqrt(2/(2C)), which is fairseq's gain 1/sqrt(2) too"
    return [
        Draw(fused, _fused_xavier_std),
        profile_draw("xavier_normal"),
        profile_draw("xavier_legacy"),
        profile_draw("fairseq_head"),
        Draw("torch's default for a Linear", lambda weight: torch_std(weight.linear)),
        Draw(f"N(0, {BERT_STD:g}), as BERT's and GPT-2's", lambda weight: BERT_STD),
    ]


def _mistaken_gains(method: Method) -> Iterator[tuple[str, Callable[[Site, str], float]]]:
    """Yield mistakes that are made with a method's gain, likeliest first: a description and the gain(site, role).

    They are no gain at all, the method's own `mistaken_gains`, and any of its coefficients in place of the gain.
    """
    depths = {"encoder": method.num_encoder_layers, "decoder": method.num_decoder_layers}
    stacks = [stack for stack, layers in depths.items() if layers]

    yield f"without the gain of {method.name}", lambda site, role: 1.0
    for description, mistaken in method.mistaken_gains.items():
        by_stack = {stack: mistaken(method, stack) for stack in stacks}
        yield description, _gain_replaced(method, by_stack)
    for stack in stacks:
        for symbol, value in method.coefficients(stack).items():
            gain = _gain_replaced(method, dict.fromkeys(depths, value))
            yield f"{symbol} of the {stack}, {value:.4g}, in the gain's place", gain


def _gain_replaced(method: Method, by_stack: dict[str, float]) -> Callable[[Site, str], float]:
    """Return a gain(site, role) that is by_stack[stack] wherever the method's gain is not 1, and 1 elsewhere."""

    def gain(site: Site, role: str) -> float:
        return 1.0 if method.gain(site, role) == 1 else by_stack[site.stack]

    return gain


def at_depth(method: Method, layers: int) -> Method:
    """Return the method, with the same options, for a model with `layers` layers in each stack that it has."""
    encoder_layers = layers if method.num_encoder_layers else 0
    decoder_layers = layers if method.num_decoder_layers else 0
    options = {key: getattr(method, key) for key in method.options}
    return METHODS[method.name](encoder_layers, decoder_layers, **options)


def explanations(model: RecognisedModel, method: Method, profile: str) -> Iterator[Draw]:
    """Yield ways in which weights that do not fit may have been drawn, likeliest first.

    profile: the initialisation that the model is compared with, a key of PROFILES; it is tried first.
    """
    own = [profile_draw(name) for name in dict.fromkeys((profile, *method.init_profiles))]  # each once
    others = _draws_elsewhere()
    mistakes = list(_mistaken_gains(method))

    # a single mistake, in the gain or in the draw, is likelier than both
    for mistake, gain in mistakes:
        for draw in own:
            yield draw.scaled_by(gain, mistake)
    for draw in others:
        yield draw.scaled_by(method.gain, draw.description)
    for mistake, gain in mistakes:
        for draw in others:
            yield draw.scaled_by(gain, f"{draw.description}, and {mistake}")

    # then other methods, and other depths
    for name, method_class in METHODS.items():
        other = method_class(*model.depths.values())
        for profile_name in method_class.init_profiles:
            yield profile_draw(profile_name).scaled_by(other.gain, f"the initialisation of --method {name}")
    for layers in DEPTHS:
        try:
            gain = at_depth(method, layers).gain
        except (ArithmeticError, ValueError):  # a method that does not exist at this depth
            continue
        for draw in own:
            yield draw.scaled_by(gain, f"the gain of {layers} layers")


def explain(kind: Kind, candidates: list[Draw]) -> str:
    """Return in words the first of the candidates, which are sorted likeliest first, that a kind of weight fits."""
    for draw in candidates:
        if draw.fits(kind):
            return draw.description
    return "fits nothing that is known"


def initial_scales(method: Method, site: Site) -> tuple[float, float] | None:
    """Return a and b of the method's merge a x + b f in a fresh model; None if its merge is of another form.

    Of a vector (C,) the mean over the features is returned.
    """
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
    """Return in words where a factor of a shortcut that is not the method's may come from.

    A factor is a / b of the merge a x + b f, so that x + c f has 1 / c; a stored one is taken for a. has, wanted: the
    model's factor and the method's, which differ; site: the branch for which the factors of other depths are tried.
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
        with suppress(ArithmeticError, ValueError):  # a method that does not exist at this depth
            pair = initial_scales(at_depth(method, layers), site)
            if pair is None:
                continue
            a, b = pair
            if b and near(a / b):
                return f"that is {layers} layers', this model has {model.depths[site.stack]}"
    return "fits nothing that is known"
