"""Theorems 4.2 and 4.3 of DeepNet: their formulas, the magnitudes of built models, and one step of SGD against them."""

import copy
import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from deepnet_fairseq.methods.deepnorm import DeepNorm
from deepnet_fairseq.theory.bounds import model_bound, stack_bound
from deepnet_fairseq.theory.magnitudes import Branch, branches, largest_gain
from deepnet_fairseq.theory.measured import sgd_step, zipf_batch
from deepnet_fairseq.transformer.slots import Site

from .support.helpers import small

TINY = "deepnet_transformer_tiny"
TINY_WIDTHS = {"encoder_embed_dim": 64, "encoder_ffn_embed_dim": 128}
SAMPLING = 5 / math.sqrt(2 * 64 * 64)  # five standard errors of the std of a 64 x 64 matrix
LR = 1e-4


# the formulas


def hand_made():
    """Pythagorean triples: sqrt(v^2 + w^2) / alpha is 1 and 1/2 in the encoder, 1/2, 1, 1 in the decoder."""
    numbers = {
        ("encoder", "self_attn"): (3, 4, 5, 0.1), ("encoder", "ffn"): (0.6, 0.8, 2, 0.2),
        ("decoder", "self_attn"): (3, 4, 10, 0.2), ("decoder", "encoder_attn"): (5, 12, 13, 0.3),
        ("decoder", "ffn"): (8, 15, 17, 0.1),
    }  # fmt: skip
    sites = {place: Site(place[0], 1, place[1], 1, 1) for place in numbers}
    found = [Branch(sites[place], v, w, alpha) for place, (v, w, alpha, _) in numbers.items()]
    return found, {sites[place]: change for place, (*_, change) in numbers.items()}


def test_bounds_of_a_hand_made_model():
    found, changes = hand_made()
    assert stack_bound(found, changes, "encoder") == pytest.approx(0.1 + 0.1)
    assert stack_bound(found, changes, "decoder") == pytest.approx(0.1 + 0.3 + 0.1)
    assert model_bound(found, changes) == pytest.approx(5 * 12 / 13 * 0.2 + 0.5)


def equal_branches(N, M, encoder, decoder):
    """All branches of an N-M model with v = w; encoder, decoder: (v, alpha)."""
    depths = {"encoder": (N, encoder), "decoder": (M, decoder)}
    return [
        Branch(Site(stack, l, sublayer, 1, 1), v, v, alpha)
        for stack, (depth, (v, alpha)) in depths.items()
        for l in range(1, depth + 1)
        for sublayer in DeepNorm(N, M).sublayers(stack)
    ]


def sgd_changes(found, stack):
    """The paper's: ||theta_i* - theta_i|| = ||theta_i|| / alpha at learning rate 1 in one stack, 0 in the other."""
    return {b.site: math.hypot(b.v, b.w) / b.alpha if b.site.stack == stack else 0.0 for b in found}


@pytest.mark.parametrize(("N", "M"), [(1, 1), (6, 6), (60, 12), (12, 60), (500, 500)])
def test_deepnorm_makes_both_terms_one(N, M):
    """3M (v^2 + w^2) / alpha_d^2 = 1, and (N^4 M / 27)^(1/4) (v^2 + w^2) / alpha_e^2 up to the roundings 0.81, 0.87."""
    numbers = [DeepNorm(N, M).numbers(stack) for stack in ("encoder", "decoder")]
    found = equal_branches(N, M, *((c.beta, c.alpha) for c in numbers))
    assert model_bound(found, sgd_changes(found, "decoder")) == pytest.approx(1)
    rounded = model_bound(found, sgd_changes(found, "encoder"))
    assert rounded == pytest.approx(27**-0.25 * 2 * (0.87 / 0.81) ** 2)
    assert rounded == pytest.approx(1, abs=0.013)


@pytest.mark.parametrize(("N", "M"), [(6, 6), (60, 12), (12, 60)])
def test_post_ln_grows_as_the_product_of_the_depths(N, M):
    """alpha = v = w = 1: M sum_{2N} sqrt2 sqrt2 and sum_{3M} sqrt2 sqrt2."""
    found = equal_branches(N, M, (1, 1), (1, 1))
    assert model_bound(found, sgd_changes(found, "encoder")) == pytest.approx(4 * N * M)
    assert model_bound(found, sgd_changes(found, "decoder")) == pytest.approx(6 * M)


# the magnitudes of built models


def test_magnitudes_of_deepnorm():
    expected = {stack: DeepNorm(6, 3).numbers(stack) for stack in ("encoder", "decoder")}
    found = branches(small(encoder_layers=6, decoder_layers=3, method="deepnorm", **TINY_WIDTHS))
    assert len(found) == 2 * 6 + 3 * 3
    for branch in found:
        numbers = expected[branch.site.stack]
        assert (branch.v, branch.w) == pytest.approx((numbers.beta, numbers.beta), rel=SAMPLING)
        assert branch.alpha == pytest.approx(numbers.alpha)


def test_magnitudes_of_post_ln():
    """fairseq's init over Xavier's at 64, 128: v 1/sqrt2, out 1, fc1 and fc2 sqrt((64 + 128) / 6 fan_in)."""
    for branch in branches(small(3, method="post_ln", **TINY_WIDTHS)):
        expected = (math.sqrt(192 / 6 / 64), math.sqrt(192 / 6 / 128))
        if branch.site.sublayer != "ffn":
            expected = (math.sqrt(0.5), 1)
        assert (branch.v, branch.w) == pytest.approx(expected, rel=SAMPLING)
        assert branch.alpha == 1


def test_alpha_of_learned_and_of_scaled_branches():
    model = small(2, method="admin")
    with torch.no_grad():
        model.encoder.layers[1].residual["ffn"].omega.copy_(torch.tensor([1.0, 7.0]).repeat(8))
    alphas = {str(branch.site): branch.alpha for branch in branches(model)}
    assert alphas.pop("encoder.2.ffn") == pytest.approx(5)  # RMS of 1 and 7
    assert set(alphas.values()) == {1.0}
    branchnorm = small(1, method="branchnorm", branchnorm_updates=50)
    assert [b.alpha for b in branches(branchnorm)] == pytest.approx([50.0] * 5)


def test_largest_gain():
    """On its own input b, a matrix a b^T multiplies the RMS by |a| |b| sqrt(d_in / d_out); a Xavier draw of this shape
    multiplies that of an isotropic input by what 2,000 draws show."""
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(6, generator=generator), torch.randn(24, generator=generator)
    draws = torch.randn(2000, 6, 24, generator=generator) * math.sqrt(2 / 30)
    inputs = torch.randn(2000, 24, 1, generator=generator)
    xavier = ((draws @ inputs).square().mean() / inputs.square().mean()).sqrt().item()
    own = ((torch.outer(a, b) @ b).square().mean() / b.square().mean()).sqrt().item()
    assert largest_gain(torch.outer(a, b)) == pytest.approx(own / xavier, rel=0.02)
    assert largest_gain(torch.diag(torch.tensor([1.0, 3.0, 2.0]))) == pytest.approx(3)


# the step


@pytest.fixture(scope="module")
def stepped():
    """A float64 model, its batch, its state before the step, and what the step gave."""
    model = small(3, method="post_ln", **TINY_WIDTHS).double()
    batch = zipf_batch(model.encoder.dictionary, seed=1)
    state = copy.deepcopy(model.state_dict())
    return model, batch, state, sgd_step(model, batch, LR)


def test_step_is_that_of_an_optimiser(stepped):
    """torch's SGD over the matrices, found by name; the distance by hand."""
    model, batch, _, step = stepped
    matrices = ("v_proj.weight", "out_proj.weight", "fc1.weight", "fc2.weight")
    for names, measured in ((matrices, step.model), (("",), step.all_moved)):
        moved = copy.deepcopy(model)
        chosen = [p for name, p in moved.named_parameters() if name.endswith(names)]
        before, _ = moved(batch.source, None, batch.previous, features_only=True)
        scores, _ = moved(batch.source, None, batch.previous)
        cross_entropy(scores.transpose(1, 2), batch.target).backward()
        torch.optim.SGD(chosen, LR).step()
        after, _ = moved(batch.source, None, batch.previous, features_only=True)
        expected = (torch.linalg.vector_norm(after - before, dim=-1) / 8).mean().item()  # sqrt(64)
        assert measured == pytest.approx(expected, rel=1e-6)


def test_step_leaves_the_model_as_it_was(stepped):
    model, _, state, _ = stepped
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_half_the_learning_rate_is_half_the_update(stepped):
    model, batch, _, step = stepped
    half = sgd_step(model, batch, LR / 2)
    assert (step.encoder / half.encoder, step.model / half.model) == pytest.approx((2, 2), rel=0.03)
    assert {s: 2 * change for s, change in half.changes.items()} == pytest.approx(step.changes)


def test_batch():
    """Zipf's law: the first of 56 symbols has 1 / H_56 = 0.217 of the mass; 256 draws, four standard errors."""
    batch = zipf_batch(small(1).encoder.dictionary, seed=1)
    assert batch.source.shape == batch.target.shape == batch.previous.shape
    assert min(batch.source.min(), batch.target.min()) >= 4
    assert torch.equal(batch.previous[:, 1:], batch.target[:, :-1]) and set(batch.previous[:, 0].tolist()) == {2}
    assert batch.source.eq(4).double().mean().item() == pytest.approx(0.217, abs=0.103)
