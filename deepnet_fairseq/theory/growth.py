"""One SGD step on built models, its measured update beside the bounds, over depth; and how fast they grow.

The loss is the mean cross-entropy over a batch of random tokens with Zipf's frequencies; no data are needed. The
parameters of the theorems move: the value and output matrices of every attention, fc1 and fc2. Then, to compare, all:
LayerNorm's gains and biases, which no theorem counts and no alpha divides, add up over the layers. No dropout. All is
computed in float64, so that a step can be small enough to be linear and still be seen.

The constants that the theorems leave open, seen at the tiny width, 6 to 100 layers: the model's update is below the
bound of 4.3, under DeepNorm by a factor of 0.38 at any depth, under Post-LN by one that falls from 0.3 to 0.02: the
change of the memory does not add up over the decoder's layers as the theorem allows. The encoder's update is 0.4 of the
bound of 4.2 under DeepNorm; under Post-LN around 1, to 2 on fairseq's own init and once to 5 on Xavier's, less at
greater width.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from statistics import linear_regression, mean

import torch
from fairseq.data import Dictionary
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from .. import archs
from ..building import build
from ..errors import UserError
from ..methods import get_method
from ..profiling.omega import apply_omegas, profile_omegas, residuals
from ..transformer.slots import LearnedShortcut
from .bounds import Branch, Changes, branches, largest_gain, matrices, model_bound, stack_bound

GROWING = ("encoder_bound", "encoder_update", "bound", "update", "update_of_all")
SENTENCES, LENGTH = 8, 32
Gradients = dict[Tensor, Tensor]


@dataclass(frozen=True)
class Batch:
    """Token indices, each (B, T); `previous` is `target` moved on by one behind an eos."""

    source: Tensor
    previous: Tensor
    target: Tensor


@dataclass(frozen=True)
class Step:
    """What one step of SGD changes.

    changes: ||theta_i* - theta_i|| of each branch; encoder, model: ||dF|| of the encoder's output and of the decoder's
    features, RMS over the width, averaged over tokens; all_moved: the latter if every parameter moves.
    """

    changes: Changes
    encoder: float
    model: float
    all_moved: float


def zipf_batch(dictionary: Dictionary, seed: int) -> Batch:
    """Independent symbols, the r-th of the dictionary with probability proportional to 1/r; 8 sentences of 32."""
    generator = torch.Generator().manual_seed(seed)
    frequencies = 1 / torch.arange(1, len(dictionary) - dictionary.nspecial + 1).double()
    drawn = torch.multinomial(frequencies, 2 * SENTENCES * LENGTH, replacement=True, generator=generator)
    source, target = (drawn + dictionary.nspecial).view(2, SENTENCES, LENGTH)
    previous = target.roll(1, dims=1)
    previous[:, 0] = dictionary.eos()
    return Batch(source, previous, target)


def sgd_step(model: nn.Module, batch: Batch, lr: float) -> Step:
    """The effect of theta* = theta - lr dL/dtheta on a float64 encoder-decoder in evaluation mode, left as it was.

    L: mean cross-entropy per target token, in nats.
    """
    memory, features = _outputs(model, batch)
    loss = cross_entropy(model.decoder.output_layer(features).flatten(0, 1), batch.target.flatten())
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    gradients: Gradients = dict(zip(parameters, torch.autograd.grad(loss, parameters), strict=True))
    pairs = {site: (first.weight, last.weight) for site, first, last in matrices(model)}
    changes = {site: lr * math.hypot(*(largest_gain(gradients[w]) for w in pair)) for site, pair in pairs.items()}
    of_theorem = {weight: gradients[weight] for pair in pairs.values() for weight in pair}
    moved_memory, moved_features = _outputs_after(model, batch, of_theorem, lr)
    _, all_moved = _outputs_after(model, batch, gradients, lr)
    moved = distance(memory, moved_memory), distance(features, moved_features), distance(features, all_moved)
    return Step(changes, *moved)


@torch.no_grad()
def _outputs_after(model: nn.Module, batch: Batch, gradients: Gradients, lr: float) -> tuple[Tensor, Tensor]:
    before = {parameter: parameter.clone() for parameter in gradients}
    try:
        for parameter, gradient in gradients.items():
            parameter.sub_(gradient, alpha=lr)
        return _outputs(model, batch)
    finally:
        for parameter, value in before.items():
            parameter.copy_(value)


def _outputs(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Output of the encoder (S, B, C), features of the decoder (B, T, C)."""
    memory = model.encoder(batch.source)
    features, _ = model.decoder(batch.previous, memory, features_only=True)
    return memory["encoder_out"][0], features


def distance(x: Tensor, y: Tensor) -> float:
    """||x - y|| / sqrt(C) of two tensors (.., C), averaged over tokens."""
    return (x - y).square().mean(-1).sqrt().mean().item()


@dataclass(frozen=True)
class Row:
    """One method at one depth N-N.

    alpha and magnitude, sqrt(v^2 + w^2), are means over a stack's branches; bounds (Theorem 4.2 for the encoder, 4.3
    for the model) and measured updates are divided by the learning rate; update_of_all is the model's when parameters
    that the theorems do not speak of move too.
    """

    method: str
    depth: int
    encoder_alpha: float
    encoder_magnitude: float
    decoder_alpha: float
    decoder_magnitude: float
    encoder_bound: float
    encoder_update: float
    bound: float
    update: float
    update_of_all: float


def check_method(name: str) -> None:
    """UserError for a method that is unknown, or that the theorems do not speak of."""
    method = get_method(name)
    if method.norm != "post":
        raise UserError(f"--method {name}: computes {method.equation}; the theorems speak of LN(alpha x + f(x)) only")


def check_arch(name: str) -> None:
    """UserError for an architecture that is unknown, or of a single stack."""
    if name not in archs.PRESETS:
        raise UserError(f"--arch {name}: no such architecture; `deepnet archs` lists them")
    if len(archs.STACKS[archs.MODELS[name]]) == 1:
        raise UserError(
            f"--arch {name}: the table is of encoder-decoders, whose encoder's columns hold Theorem 4.2, that of a "
            f"stack alone; take a {archs.MODEL_NAME}"
        )


def measure(method: str, depth: int, arch: str, lr: float, init_profile: str | None = None, seed: int = 1) -> Row:
    """Builds `arch` at depth N-N under `method`, in float64, and takes one SGD step; `seed` draws weights and tokens.

    lr: small enough for the step to be linear. UserError for a method that the theorems do not speak of; check_arch is
    for an architecture's name.
    """
    check_method(method)
    torch.manual_seed(seed)
    depths = {"encoder_layers": depth, "decoder_layers": depth}
    model = build(arch, method=method, init_profile=init_profile, **depths).double().eval()
    batch = zipf_batch(model.encoder.dictionary, seed)
    _set_omegas(model, batch, seed)
    found, step = branches(model), sgd_step(model, batch, lr)
    return Row(
        method,
        depth,
        *_means(found, "encoder"),
        *_means(found, "decoder"),
        stack_bound(found, step.changes, "encoder") / lr,
        step.encoder / lr,
        model_bound(found, step.changes) / lr,
        step.model / lr,
        step.all_moved / lr,
    )


def _set_omegas(model: nn.Module, batch: Batch, seed: int) -> None:
    """Admin's shortcuts are unset until its profile of a first batch, here the one the step is taken on."""
    if all(isinstance(residual, LearnedShortcut) for _, residual in residuals(model)):
        net_input = {"src_tokens": batch.source, "src_lengths": None, "prev_output_tokens": batch.previous}
        apply_omegas(model, list(profile_omegas(model, net_input, seed).values()))


def _means(found: list[Branch], stack: str) -> tuple[float, float]:
    of_stack = [branch for branch in found if branch.site.stack == stack]
    return mean(branch.alpha for branch in of_stack), mean(branch.magnitude for branch in of_stack)


def slopes(rows: list[Row]) -> dict[str, float]:
    """For each of GROWING the p of its growth as depth^p, a least-squares fit; empty for a single depth."""
    depths = [math.log(row.depth) for row in rows]
    if len(set(depths)) < 2:
        return {}
    return {name: linear_regression(depths, [math.log(getattr(r, name)) for r in rows]).slope for name in GROWING}


def as_dict(row: Row) -> dict:
    """The row and what it is read for: how much of each bound the step uses."""
    return asdict(row) | {
        "encoder_update_over_bound": row.encoder_update / row.encoder_bound,
        "update_over_bound": row.update / row.bound,
    }


def as_table(rows: list[Row]) -> list[list[str]]:
    """Header, a line for each row, and one of slopes behind the rows of each method."""
    header = ["method", "N-N", "enc alpha", "|v,w|", "dec alpha", "|v,w|"]
    header += ["bound 4.2", "encoder", "ratio", "bound 4.3", "model", "ratio", "all moved"]
    lines = [header]
    for method in dict.fromkeys(row.method for row in rows):
        of_method = [row for row in rows if row.method == method]
        lines += [_cells(row) for row in of_method]
        if found := slopes(of_method):
            encoder_bound, encoder, bound, model, moved = (f"{found[name]:.2f}" for name in GROWING)
            lines.append([method, "slope", "", "", "", "", encoder_bound, encoder, "", bound, model, "", moved])
    return lines


def _cells(row: Row) -> list[str]:
    numbers = [row.encoder_alpha, row.encoder_magnitude, row.decoder_alpha, row.decoder_magnitude]
    encoder = [row.encoder_bound, row.encoder_update, row.encoder_update / row.encoder_bound]
    model = [row.bound, row.update, row.update / row.bound, row.update_of_all]
    return [row.method, f"{row.depth}-{row.depth}", *map(_short, numbers + encoder + model)]


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
