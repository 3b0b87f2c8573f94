"""Initialisation of every parameter, and a report on the standard deviations that were drawn.

A profile (--init-profile) says from which distribution the matrices and biases of each role are drawn. A role is what a
branch uses a matrix for: "q", "k", "v" or "out" in attention, "fc1" or "fc2" in feed-forward (slots.Weight). The method
then multiplies the standard deviation of a matrix by a factor of its own, its gain. The profiles are

fairseq_head   fairseq since March 2020 and every release after 0.9: q, k, v, out Xavier-uniform (q, k, v with gain
               1/sqrt2 when keys and values have the query's width), fc1, fc2 and all biases but out's
               U(-1/sqrt(fan_in), 1/sqrt(fan_in)); the bias of out is 0
xavier_legacy  the older fairseq that Admin, T-Fixup, DLCL and DS-Init were defined on: fc1, fc2 Xavier-uniform too,
               all biases 0
xavier_normal, xavier_uniform  Xavier with gain 1 for every role, all biases 0: DeepNorm's, and the variant of it that
               the paper admits
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from .layer import Layer
from .methods import Method
from .modules import LearnedPositions
from .slots import Weight

ATTENTION_INPUTS = ("q", "k", "v")  # roles of the matrices that project what an attention reads


def xavier_std(linear: nn.Linear) -> float:
    """Compute sqrt(2 / (fan_in + fan_out)) (Glorot and Bengio 2010, equation 12)."""
    return math.sqrt(2 / (linear.in_features + linear.out_features))


def torch_std(linear: nn.Linear) -> float:
    """Compute the std of U(-1/sqrt(fan_in), 1/sqrt(fan_in)), torch's default for a Linear."""
    return 1 / math.sqrt(3 * linear.in_features)


def draw_normal(tensor: Tensor, std: float) -> None:
    """Fill `tensor` with draws from N(0, std^2), by torch's generator."""
    nn.init.normal_(tensor, 0.0, std)


def draw_uniform(tensor: Tensor, std: float) -> None:
    """Fill `tensor` with draws from U(-b, b) of the given standard deviation, b = sqrt(3) std."""
    nn.init.uniform_(tensor, -math.sqrt(3) * std, math.sqrt(3) * std)


@dataclass(frozen=True)
class InitProfile:
    """How the matrices and biases of branches are drawn, before a method's gain.

    draw: function that fills a tensor from a distribution with mean 0, called as draw(tensor, std); weight_std,
    bias_std: functions of a Weight that return the std of its matrix and that of its bias. The method's gain applies to
    the matrix alone.
    """

    draw: Callable[[Tensor, float], None]
    weight_std: Callable[[Weight], float]
    bias_std: Callable[[Weight], float]


def _legacy_weight_std(weight: Weight) -> float:
    """Return the std of a matrix under xavier_legacy: Xavier's, for q, k and v with gain 1/sqrt2.

    The gain is that of fairseq's MultiheadAttention.reset_parameters, which has none where keys and values have another
    width than queries.
    """
    has_gain = weight.role in ATTENTION_INPUTS and weight.source_dim == weight.site.dim
    gain = math.sqrt(0.5) if has_gain else 1.0
    return gain * xavier_std(weight.linear)


def _head_weight_std(weight: Weight) -> float:
    """Return the std of a matrix under fairseq_head."""
    if weight.role in ("fc1", "fc2"):
        return torch_std(weight.linear)
    return _legacy_weight_std(weight)


def _head_bias_std(weight: Weight) -> float:
    """Return the std of a bias under fairseq_head."""
    return 0.0 if weight.role == "out" else torch_std(weight.linear)


def _xavier_weight_std(weight: Weight) -> float:
    """Return the std of a matrix under xavier_normal and xavier_uniform."""
    return xavier_std(weight.linear)


def _zero_bias_std(weight: Weight) -> float:
    """Return the std of a bias under all profiles but fairseq_head: all biases are 0."""
    return 0.0


PROFILES = {
    "fairseq_head": InitProfile(draw_uniform, weight_std=_head_weight_std, bias_std=_head_bias_std),
    "xavier_legacy": InitProfile(draw_uniform, weight_std=_legacy_weight_std, bias_std=_zero_bias_std),
    "xavier_normal": InitProfile(draw_normal, weight_std=_xavier_weight_std, bias_std=_zero_bias_std),
    "xavier_uniform": InitProfile(draw_uniform, weight_std=_xavier_weight_std, bias_std=_zero_bias_std),
}


def branch_weights(model: nn.Module) -> Iterator[Weight]:
    """Yield every weight matrix inside a residual branch, in forward order of each stack."""
    for module in model.modules():
        if isinstance(module, Layer):
            yield from module.weights()


def expected_std(method: Method, profile: str, weight: Weight) -> float:
    """Return the std that a profile (a key of PROFILES) and the method's gain give to one weight matrix."""
    return PROFILES[profile].weight_std(weight) * method.gain(weight.site, weight.role)


weight_std = expected_std  # its name until 0.1; gone with the next release


@torch.no_grad()
def initialize(model: nn.Module, method: Method, profile: str) -> None:
    """Draw all values of a freshly built DeepModel from torch's global generator; DeepModel.create calls this once.

    method: the one that `model` was made with; profile: a key of PROFILES. C is the width in features.

    - Matrices and biases of branches follow the profile and the method.
    - Modules in a method's slots keep the values they were constructed with.
    - LayerNorms have weight 1 and bias 0.
    - Embeddings are N(0, 1/C) times the method's gain, with a zero padding row; learned positions have no gain.
    - The projection to the vocabulary is N(0, 1/C) times the method's gain, unless it shares an embedding's matrix.
    - Further matrices between the stacks and this projection (DeepModel.head_linears) are N(0, 1/C), with bias 0.

    Raises a ValueError that names any parameter covered by none of these rules.
    """
    visited: set[Tensor] = set()  # parameters that have their values
    init_profile = PROFILES[profile]

    # the order of the blocks is that of the random draws: another order gives other models from the same seed
    for weight in branch_weights(model):
        init_profile.draw(weight.linear.weight, expected_std(method, profile, weight))
        if weight.linear.bias is not None:
            init_profile.draw(weight.linear.bias, init_profile.bias_std(weight))
        visited |= set(weight.linear.parameters())

    # modules in slots
    stacks = model.stacks()
    for stack in stacks.values():
        for _address, slot in stack.slots():
            visited |= set(slot.parameters())

    # LayerNorms outside the slots, and learned positions
    for module in model.modules():
        if isinstance(module, nn.LayerNorm) and module.weight not in visited:
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
            visited |= {module.weight, module.bias}
        elif isinstance(module, LearnedPositions):
            _draw_embedding(module, gain=1.0, visited=visited)

    # embeddings and projections; the encoder comes first, so that a matrix that both stacks share gets its gain
    for name, stack in stacks.items():
        _draw_embedding(stack.embed_tokens, gain=method.embedding_gain(name), visited=visited)
    _draw_projection(model.vocabulary_projection(), gain=method.output_gain(), visited=visited)
    for linear in model.head_linears():
        _draw_projection(linear, gain=1.0, visited=visited)

    unknown = [name for name, parameter in model.named_parameters() if parameter not in visited]
    if unknown:
        raise ValueError(f"no initialisation is defined for {', '.join(unknown)}")


def _draw_embedding(module: nn.Embedding, gain: float, visited: set[Tensor]) -> None:
    """Draw an embedding matrix from N(0, gain^2 / C), set its padding row to 0, and add it to `visited`.

    A matrix in `visited`, which an embedding that shares it has drawn already, is left as it is.
    """
    if module.weight in visited:
        return
    nn.init.normal_(module.weight, mean=0.0, std=gain * module.embedding_dim**-0.5)
    nn.init.zeros_(module.weight[module.padding_idx])
    visited.add(module.weight)


def _draw_projection(linear: nn.Linear, gain: float, visited: set[Tensor]) -> None:
    """Draw a Linear's matrix from N(0, gain^2 / C), set its bias to 0, and add both to `visited`.

    A matrix in `visited`, which an embedding that shares it has drawn already, is left as it is; a bias is not shared.
    """
    if linear.weight not in visited:
        nn.init.normal_(linear.weight, mean=0.0, std=gain * linear.in_features**-0.5)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)
    visited |= set(linear.parameters(recurse=False))


@dataclass
class RoleReport:
    """What was drawn for the matrices of one role in one kind of branch, over all layers of a stack.

    stack, sublayer, role: as in slots.Site and slots.Weight; expected, measured: for each layer the std that profile
    and method give to the matrix, and the std of its numbers; largest_bias: largest absolute value in the biases of all
    layers, 0 without biases.
    """

    stack: str
    sublayer: str
    role: str
    expected: list[float] = field(default_factory=list)
    measured: list[float] = field(default_factory=list)
    largest_bias: float = 0.0

    @property
    def ratio(self) -> float:
        """Return the root mean square over layers of measured / expected std, which is 1 up to sampling noise.

        Layers whose matrix should be 0 have no ratio and are left out; the result is 1 if all are.
        """
        squares = []
        for measured, expected in zip(self.measured, self.expected, strict=True):
            if expected > 0:
                squares.append((measured / expected) ** 2)
        if not squares:
            return 1.0
        return math.sqrt(sum(squares) / len(squares))


Row = RoleReport  # its name until 0.1; gone with the next release


@torch.no_grad()
def init_report(model: nn.Module, method: Method, profile: str) -> list[RoleReport]:
    """Return one RoleReport per stack, kind of branch and role, in forward order.

    model: a DeepModel that `initialize` has just filled with this method and profile, a key of PROFILES.
    """
    reports: dict[tuple[str, str, str], RoleReport] = {}
    for weight in branch_weights(model):
        linear = weight.linear
        key = (weight.site.stack, weight.site.sublayer, weight.role)
        report = reports.setdefault(key, RoleReport(*key))

        report.expected.append(expected_std(method, profile, weight))
        report.measured.append(linear.weight.float().std().item())
        if linear.bias is not None:
            report.largest_bias = max(report.largest_bias, linear.bias.abs().max().item())
    return list(reports.values())


def report_table(reports: list[RoleReport]) -> list[list[str]]:
    """Return a table of reports, a list of rows of cells, the header first; one row for each report."""
    header = ["stack", "branch", "role", "layers", "expected std", "measured std", "ratio", "largest |bias|"]
    table = [header]
    for report in reports:
        cells = [
            report.stack,
            report.sublayer,
            report.role,
            str(len(report.expected)),
            _range(report.expected),
            _range(report.measured),
            f"{report.ratio:.4f}",
            f"{report.largest_bias:.3g}",
        ]
        table.append(cells)
    return table


def _range(values: list[float]) -> str:
    """Format values as one number if all are the same up to rounding, else as "smallest .. largest"."""
    low = min(values)
    high = max(values)
    if math.isclose(low, high, rel_tol=1e-6):
        return f"{low:.6f}"
    return f"{low:.6f} .. {high:.6f}"
