"""Theorems 4.2 and 4.3 of DeepNet: the most that a change of the branches' parameters can change a model's output.

Wang et al. 2022, section 4. With ||theta_i* - theta_i|| the change of branch i, up to a constant,

    4.2  one stack        ||dF|| <= sum_i sqrt(v_i^2 + w_i^2) / alpha_i  ||theta_i* - theta_i||
    4.3  encoder-decoder  ||dF|| <= sum_{cross-attentions} v w / alpha  *  (4.2 of the encoder)  +  (4.2 of the decoder)

Under SGD the change of a branch is at most lr sqrt(v^2 + w^2) / alpha times the gradient at the output, and DeepNorm's
alpha and beta make both terms of 4.3 equal to lr at any depth; Post-LN's grow as N M and M.

v, w and alpha are read off the matrices of a built model. The paper (appendix A) has hidden dimension 1: a branch is
v w x (q and k do not change magnitudes, Lemma 4.1; ReLU, biases and LayerNorm's gains are left out), Xavier init is
v = w = 1. The dictionary used here:

    size of a vector    its RMS, ||x|| / sqrt(d), which a LayerNorm sets to 1
    v, w                RMS gain of value_proj or fc1, and of out_proj or fc2, on an isotropic input, in units of a
                        Xavier draw's: E ||Wx||^2 = ||W||_F^2 for unit x, so it is the RMS of the entries over Xavier's
                        std; a method's gain on a Xavier profile is the expected value
    dv, dw              the largest RMS gain of the change, spectral norm in place of Frobenius' over sqrt(d), in the
                        same units: a gradient is made of the very inputs it will meet, an average would be no bound
    alpha               factor of the shortcut over that of the branch; a vector counts by its RMS

`measure` takes one SGD step on built models, its measured update beside the bounds, over depth; and how fast they grow.
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
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import linear_regression, mean

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ..core import archs
from ..core.initialisation import xavier_std
from ..core.methods import get_method
from ..core.models import EOS, SPECIALS, blueprint, build
from ..core.profile import profile_omegas, residuals
from ..core.slots import LearnedShortcut, Scale, Site
from ..errors import UserError

GROWING = ("encoder_bound", "encoder_update", "bound", "update", "update_of_all")
SENTENCES, LENGTH = 8, 32
Gradients = dict[Tensor, Tensor]
FIRST, LAST = ("v", "fc1"), ("out", "fc2")  # roles of v and of w
Changes = dict[Site, float]  # ||theta_i* - theta_i|| of each branch, sqrt(dv^2 + dw^2)


@dataclass(frozen=True)
class Branch:
    """One theta_i = (v, w) of the theorems, in units of a Xavier draw's gain, and the alpha it is merged with."""

    site: Site
    v: float
    w: float
    alpha: float

    @property
    def magnitude(self) -> float:
        """||theta_i|| = sqrt(v^2 + w^2)."""
        return math.hypot(self.v, self.w)


def matrices(model: nn.Module) -> Iterator[tuple[Site, nn.Linear, nn.Linear]]:
    """Every branch with the matrices of v (value or fc1) and of w (out or fc2), in forward order, the encoder first."""
    for stack in model.stacks().values():
        for layer in stack.layers:
            first = {weight.site: weight.linear for weight in layer.weights() if weight.role in FIRST}
            last = {weight.site: weight.linear for weight in layer.weights() if weight.role in LAST}
            yield from ((site, first[site], last[site]) for site in first)


@torch.no_grad()
def branches(model: nn.Module) -> list[Branch]:
    """v, w and alpha of every branch as the model stands, in the order of `matrices`."""
    found = []
    for site, first, last in matrices(model):
        shortcut, branch = model.stacks()[site.stack].layers[site.layer - 1].residual[site.sublayer].scales()
        v, w = (_rms(linear.weight) / xavier_std(linear) for linear in (first, last))
        found.append(Branch(site, v, w, _rms(shortcut) / _rms(branch)))
    return found


def largest_gain(change: Tensor) -> float:
    """Largest RMS gain of a change (d_out, d_in) of a matrix, over the isotropic gain of a Xavier draw."""
    d_out, d_in = change.shape
    xavier = math.sqrt(2 * d_in / (d_in + d_out))
    return torch.linalg.matrix_norm(change, 2).item() * math.sqrt(d_in / d_out) / xavier


def _rms(values: Scale) -> float:
    return torch.as_tensor(values).double().square().mean().sqrt().item()


def stack_bound(branches: list[Branch], changes: Changes, stack: str) -> float:
    """Theorem 4.2 for the branches of one stack, "encoder" or "decoder": of a language model, of all."""
    return sum(b.magnitude / b.alpha * changes[b.site] for b in branches if b.site.stack == stack)


def model_bound(branches: list[Branch], changes: Changes) -> float:
    """Theorem 4.3 for all branches of an encoder-decoder."""
    encoder, decoder = (stack_bound(branches, changes, stack) for stack in ("encoder", "decoder"))
    memory_factor = sum(b.v * b.w / b.alpha for b in branches if b.site.sublayer == "encoder_attn")
    return memory_factor * encoder + decoder


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


def zipf_batch(symbols: int, seed: int) -> dict:
    """A sample as fairseq's tasks give it, 8 sentences of 32 tokens a side.

    Independent symbols of so many, the r-th behind SPECIALS with probability proportional to 1/r.
    """
    generator = torch.Generator().manual_seed(seed)
    frequencies = 1 / torch.arange(1, symbols - SPECIALS + 1).double()
    drawn = torch.multinomial(frequencies, 2 * SENTENCES * LENGTH, replacement=True, generator=generator)
    source, target = (drawn + SPECIALS).view(2, SENTENCES, LENGTH)
    previous = target.roll(1, dims=1)
    previous[:, 0] = EOS
    net_input = {"src_tokens": source, "src_lengths": None, "prev_output_tokens": previous}
    return {"net_input": net_input, "target": target}


def sgd_step(model: nn.Module, batch: dict, lr: float) -> Step:
    """The effect of theta* = theta - lr dL/dtheta on a float64 encoder-decoder in evaluation mode, left as it was.

    L: mean cross-entropy per target token, in nats.
    """
    memory, features = _outputs(model, batch)
    loss = cross_entropy(model.decoder.output_layer(features).flatten(0, 1), batch["target"].flatten())
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
def _outputs_after(model: nn.Module, batch: dict, gradients: Gradients, lr: float) -> tuple[Tensor, Tensor]:
    before = {parameter: parameter.clone() for parameter in gradients}
    try:
        for parameter, gradient in gradients.items():
            parameter.sub_(gradient, alpha=lr)
        return _outputs(model, batch)
    finally:
        for parameter, value in before.items():
            parameter.copy_(value)


def _outputs(model: nn.Module, batch: dict) -> tuple[Tensor, Tensor]:
    """Output of the encoder (S, B, C), features of the decoder (B, T, C)."""
    memory = model.encoder(batch["net_input"]["src_tokens"])
    features, _ = model.decoder(batch["net_input"]["prev_output_tokens"], memory, features_only=True)
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


def check(arch: str, methods: list[str], depth: int) -> None:
    """UserError for an architecture that is unknown or of a single stack, and for a method not of the theorems.

    depth: layers of each stack, at the most.
    """
    if arch not in archs.PRESETS:
        raise UserError(f"--arch {arch}: no such architecture; `deepnet archs` lists them")
    if len(archs.STACKS[archs.MODELS[arch]]) == 1:
        raise UserError(
            f"--arch {arch}: the table is of encoder-decoders, whose encoder's columns hold Theorem 4.2, that of a "
            f"stack alone; take a {archs.MODEL_NAME}"
        )
    for name in methods:
        method = get_method(name)(depth, depth)
        shallow = blueprint(method=name, encoder_layers=1, decoder_layers=1, vocab=SPECIALS)
        slots = [address for stack in shallow.stacks().values() for address, _ in stack.slots()]
        more = not all(address.endswith("residual") for address in slots)
        if more or method.norm_places("encoder") | method.norm_places("decoder") != {"post"}:
            speak = "the theorems speak of LN(alpha x + f(x)) only"
            raise UserError(f"--method {name}: computes {method.equation}; {speak}")


def measure_updates(
    method: str, depth: int, arch: str, lr: float, init_profile: str | None = None, seed: int = 1
) -> Row:
    """Builds `arch` at depth N-N under `method`, in float64, and takes one SGD step; `seed` draws weights and tokens.

    lr: small enough for the step to be linear; arch and method: as `check` allows them.
    """
    torch.manual_seed(seed)
    depths = {"encoder_layers": depth, "decoder_layers": depth}
    model = build(arch, method=method, init_profile=init_profile, **depths).double().eval()
    batch = zipf_batch(model.encoder.embed_tokens.num_embeddings, seed)
    if all(isinstance(residual, LearnedShortcut) for _, residual in residuals(model)):  # Admin: unset until profiled
        profile_omegas(model, batch["net_input"], seed)
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


def _means(found: list[Branch], stack: str) -> tuple[float, float]:
    of_stack = [branch for branch in found if branch.site.stack == stack]
    return mean(branch.alpha for branch in of_stack), mean(branch.magnitude for branch in of_stack)


def slopes(rows: list[Row]) -> dict[str, float]:
    """For each of GROWING the p of its growth as depth^p, a least-squares fit; empty for a single depth."""
    depths = [math.log(row.depth) for row in rows]
    if len(set(depths)) < 2:
        return {}
    return {name: linear_regression(depths, [math.log(getattr(r, name)) for r in rows]).slope for name in GROWING}


def as_table(rows: list[Row]) -> list[list[str]]:
    """Header, a line for each row, and one of slopes behind the rows of each method."""
    header = ["method", "N-N", "enc alpha", "|v,w|", "dec alpha", "|v,w|"]
    header += ["bound 4.2", "encoder", "ratio", "bound 4.3", "model", "ratio", "all moved"]
    lines = [header]
    for method in dict.fromkeys(row.method for row in rows):
        of_method = [row for row in rows if row.method == method]
        for r in of_method:
            numbers = [r.encoder_alpha, r.encoder_magnitude, r.decoder_alpha, r.decoder_magnitude]
            numbers += [r.encoder_bound, r.encoder_update, r.encoder_update / r.encoder_bound]
            numbers += [r.bound, r.update, r.update / r.bound, r.update_of_all]
            cells = (f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in numbers)
            lines.append([method, f"{r.depth}-{r.depth}", *cells])
        if found := slopes(of_method):
            encoder_bound, encoder, bound, model, moved = (f"{found[name]:.2f}" for name in GROWING)
            lines.append([method, "slope", "", "", "", "", encoder_bound, encoder, "", bound, model, "", moved])
    return lines
