"""Compare standard deviations of weights, and factors of shortcuts, with a method's, and explain what does not fit.

A kind of weight is one role in one sort of branch of a stack, as "v" in the decoder's "self_attn": a matrix in each
layer. A deviation is a standard deviation over the elements of a matrix. Measured on n normal numbers it has a relative
standard error of 1/sqrt(2n), on uniform ones a smaller one. So a kind fits if the ratio r of measured to expected
deviation has |log r| <= FLOOR + SIGMAS/sqrt(2n), in each layer alone and pooled over all layers.

A profile, a key of initialisation.PROFILES, says how weights are drawn. A method's gain(site, role) multiplies the
profile's deviation of the matrix with that role in the branch `site`. A shortcut's factor is a / b of the merge
a x + b f: for x + c f it is 1 / c. One that is stored in a checkpoint is compared as it stands, as if b were 1.
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
from ...wording import counted
from .sources import Matrix, RecognisedModel

SIGMAS = 5  # how many standard errors a measured deviation may be off
FLOOR = 0.01  # by what share it may be off besides, because constants are published with two digits
CLOSE = 0.005  # by what share a factor may differ from the formula's; half precision rounds it by 0.05%
SAMPLE = 2**20  # about how many elements of a larger matrix are measured, to save time
ROLES = ("q", "k", "v", "out", "fc1", "fc2")  # in forward order
DEPTHS = range(1, 201)  # numbers of layers that are tried for a gain or factor that fits no other explanation
BERT_STD = 0.02  # standard deviation of BERT's and GPT-2's initial weights


class Measured(NamedTuple):
    """What was measured of one matrix. elements: how many were measured; std: their standard deviation."""

    elements: int
    std: float


def measure(weight: Tensor) -> Measured:
    """Measure a matrix (out, in); of a large one every n-th row, so that about SAMPLE elements are measured."""
    step = max(1, weight.numel() // SAMPLE)
    values = weight.detach()[::step].float()
    return Measured(values.numel(), values.std(unbiased=False).item())


@dataclass
class Kind:
    """A kind of weight, see the top of this file.

    stack: "encoder" or "decoder"; sublayer: one of slots.BRANCHES; role: one of ROLES; matrices: one for each layer;
    measured: what was measured of each matrix, in the same order.
    """

    stack: str
    sublayer: str
    role: str
    matrices: list[Matrix] = field(default_factory=list)
    measured: list[Measured] = field(default_factory=list)

    @property
    def elements(self) -> int:
        """Number of elements that were measured, in all layers together."""
        return sum(measured.elements for measured in self.measured)

    def tolerance(self, elements: int) -> float:
        """Return how far a ratio of deviations that was measured on so many elements may be from 1."""
        return FLOOR + SIGMAS / math.sqrt(2 * elements)

    def ratio(self, expected: list[float]) -> float:
        """Return measured over expected deviation, pooled over the layers.

        It is the root mean square of the layers' ratios, each weighted by the number of elements that were measured.
        expected: the deviation of each layer's matrix. A layer where 0 is expected has no ratio: it is left out if its
        deviation is 0, and makes the result infinite if it is not. The result is 1 if all layers are left out.
        """
        squares = []
        elements = 0
        for measured, std in zip(self.measured, expected):
            if std:
                squares.append((measured.std / std) ** 2 * measured.elements)
                elements += measured.elements
            elif measured.std:  # 0 is expected and not found
                return math.inf
        return math.sqrt(sum(squares) / elements) if elements else 1.0

    def fits(self, expected: list[float]) -> bool:
        """Return whether the measured deviations are the expected ones, in each layer alone and pooled.

        expected: the deviation of each layer's matrix. Where it is 0, exactly 0 has to be found.
        """

        def is_near_1(ratio: float, elements: int) -> bool:
            """Return whether a ratio that was measured on so many elements is 1 within its tolerance."""
            return ratio > 0 and abs(math.log(ratio)) <= self.tolerance(elements)

        if not any(expected):
            return self.ratio(expected) == 1

        for measured, std in zip(self.measured, expected):
            layer_fits = is_near_1(measured.std / std, measured.elements) if std else not measured.std
            if not layer_fits:
                return False
        pooled = sum(measured.elements for measured, std in zip(self.measured, expected) if std)
        return is_near_1(self.ratio(expected), pooled)


def kinds(model: RecognisedModel) -> list[Kind]:
    """Measure the matrices of a model's branches; return its kinds of weight, the encoder's first, in forward order.

    UserError for a matrix of which not all measured elements are finite.
    """
    by_key: dict[tuple[str, str, str], Kind] = {}  # (stack, sublayer, role) -> kind
    for matrix in model.matrices:
        site = matrix.weight.site
        key = (site.stack, site.sublayer, matrix.weight.role)
        kind = by_key.setdefault(key, Kind(*key))
        measured = measure(matrix.weight.linear.weight)
        kind.matrices.append(matrix)
        kind.measured.append(measured)
        if not math.isfinite(measured.std):
            raise UserError(matrix.name, "holds values that are not finite; take a checkpoint from before that")

    def forward_order(kind: Kind) -> tuple[bool, int, int]:
        """Return the key to sort by: stack, branch and role, each in the order in which a model computes."""
        return kind.stack == "decoder", BRANCHES.index(kind.sublayer), ROLES.index(kind.role)

    return sorted(by_key.values(), key=forward_order)


def signs_of_training(model: RecognisedModel) -> str:
    """Return in words what shows that a model has been trained; "" if nothing does, as in a fresh model.

    A model has been trained if its optimiser has made updates, or if the gains of a LayerNorm, all 1 at first, differ
    from each other.
    """
    if model.updates:
        return f"trained, {counted(model.updates, 'update')}"

    spreads = [gain.float().std().item() for gain in model.gains if gain.numel() > 1]
    spread = max(spreads, default=0.0)
    if spread > 1e-6:  # more than rounding
        return f"trained: gains of its LayerNorms are spread by {spread:.2g}"
    return ""


@dataclass(frozen=True)
class Draw:
    """A way in which weights may have been drawn.

    description: in words, for the report; std: function that returns the deviation of a weight matrix.
    """

    description: str
    std: Callable[[Weight], float]

    def fits(self, kind: Kind) -> bool:
        """Return whether a kind of weight has this draw's deviations.

        False for a draw with 0 in every layer, because it would explain nothing.
        """
        # to save time, only the first layer is looked at if it is off by more than a factor of 2, as with most draws
        first_expected = self.std(kind.matrices[0].weight)
        first_measured = kind.measured[0].std
        if first_measured > 2 * first_expected or 2 * first_measured < first_expected:
            return False

        expected = [self.std(matrix.weight) for matrix in kind.matrices]
        return any(expected) and kind.fits(expected)

    def scaled_by(self, gain: Callable[[Site, str], float], description: str) -> Draw:
        """Return a draw with the given description, whose std is this one's times gain(site, role).

        The std is 0 where the gain is undefined or negative: a method that is made for N layers and has the gain
        1/(N - l + 1) in layer l has none in layers above N.
        """

        def std(weight: Weight) -> float:
            """Return the scaled deviation of a weight matrix."""
            try:
                return self.std(weight) * max(gain(weight.site, weight.role), 0.0)
            except (ArithmeticError, ValueError):
                return 0.0

        return Draw(description, std)


def profile_draw(name: str) -> Draw:
    """Return the draw of a profile by its name, a key of PROFILES, without any gain."""
    return Draw(f"drawn as {name}", PROFILES[name].weight_std)


def _fused_xavier_std(weight: Weight) -> float:
    """Return Xavier's deviation of a matrix, where q, k and v are drawn together as one matrix (3C, C).

    Xavier's standard deviation is sqrt(2 / (inputs + outputs)) (Glorot and Bengio 2010, equation 12). The common matrix
    has three times the outputs of each part.
    """
    linear = weight.linear
    if weight.role not in ATTENTION_INPUTS:  # neither q, k nor v
        return xavier_std(linear)
    return math.sqrt(2 / (linear.in_features + 3 * linear.out_features))


def _draws_elsewhere() -> list[Draw]:
    """Return the ways in which the code of other projects draws weights, without any gain, likeliest first."""
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
    """Yield mistakes in applying a method's gain, likeliest first, as (description, the mistaken gain(site, role)).

    First comes a gain of 1, as if there were none, then the method's own `mistaken_gains` (description -> function of
    the method and the stack's name), then each of its coefficients, such as alpha, in place of the gain.
    """
    depths = {"encoder": method.num_encoder_layers, "decoder": method.num_decoder_layers}
    stacks = [stack for stack, layers in depths.items() if layers]

    yield f"without the gain of {method.name}", lambda site, role: 1.0
    for description, mistaken in method.mistaken_gains.items():
        by_stack = {stack: mistaken(method, stack) for stack in stacks}
        yield description, _gain_replaced(method, by_stack)
    for stack in stacks:
        for symbol, value in method.coefficients(stack).items():
            in_both_stacks = dict.fromkeys(depths, value)
            gain = _gain_replaced(method, in_both_stacks)
            yield f"{symbol} of the {stack}, {value:.4g}, in the gain's place", gain


def _gain_replaced(method: Method, by_stack: dict[str, float]) -> Callable[[Site, str], float]:
    """Return a gain(site, role) that is by_stack[stack] wherever the method's gain is not 1, and 1 elsewhere.

    by_stack: "encoder" or "decoder" -> number.
    """

    def gain(site: Site, role: str) -> float:
        """Return the gain of the matrix with a role in a branch."""
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

    profile: the one that the model is compared with, which is tried first.
    """
    profiles = dict.fromkeys((profile, *method.init_profiles))  # each once, in this order
    own = [profile_draw(name) for name in profiles]
    elsewhere = _draws_elsewhere()
    mistakes = list(_mistaken_gains(method))

    # a single mistake, in the gain or in the draw, is likelier than both
    for mistake, gain in mistakes:
        for draw in own:
            yield draw.scaled_by(gain, mistake)
    for draw in elsewhere:
        yield draw.scaled_by(method.gain, draw.description)
    for mistake, gain in mistakes:
        for draw in elsewhere:
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
            yield draw.scaled_by(gain, f"the gain of {counted(layers, 'layer')}")


def explain(kind: Kind, candidates: list[Draw]) -> str:
    """Return the description of the first candidate whose deviations a kind of weight has, or that there is none.

    candidates: sorted likeliest first, as `explanations` yields them.
    """
    for draw in candidates:
        if draw.fits(kind):
            return draw.description
    return "fits nothing that is known"


def initial_scales(method: Method, site: Site) -> tuple[float, float] | None:
    """Return a and b of the method's merge a x + b f after a branch of a fresh model; None for another form of merge.

    For a vector (C,) it is the mean over the features.
    """
    module = method.residual(site)
    if module is None:  # the plain x + f
        return 1.0, 1.0
    if not knows_scales(module):
        return None
    shortcut, branch = module.scales()
    return _mean(shortcut), _mean(branch)


def _mean(scale: Scale) -> float:
    """Return the mean over features of a scale that is a number or (C,)."""
    return torch.as_tensor(scale).float().mean().item()


def explain_factor(has: float, expected: float, method: Method, model: RecognisedModel, site: Site) -> str:
    """Return in words where a factor of a shortcut that is not the method's may come from.

    has, expected: the model's factor and the method's, a / b of the merge a x + b f, which differ; site: the branch for
    which the factors of other depths are tried.
    """

    def is_near(value: float) -> bool:
        """Return whether the model's factor is `value`, within CLOSE."""
        return value > 0 and abs(has / value - 1) <= CLOSE

    if expected and is_near(1 / expected):
        return f"it stands on the branch, x + {expected:.4g} f, or is inverted"
    for symbol, value in method.coefficients(site.stack).items():  # such as alpha and beta
        if is_near(value) and not math.isclose(value, expected):
            return f"that is {symbol}: the two are swapped"
    if is_near(1):
        return "a plain shortcut"

    # the method's factor at another depth
    for layers in DEPTHS:
        with suppress(ArithmeticError, ValueError):  # a method that does not exist at this depth
            pair = initial_scales(at_depth(method, layers), site)
            if pair is None:
                continue
            a, b = pair
            if b and is_near(a / b):
                return f"that is of {counted(layers, 'layer')}, this model has {model.depths[site.stack]}"
    return "fits nothing that is known"
