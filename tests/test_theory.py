"""Theorems 4.2 and 4.3 of DeepNet: formulas, magnitudes of built models, one step of SGD, growth over depth."""

import copy
import math
from functools import lru_cache
from statistics import linear_regression, mean

import pytest
import torch
from torch.nn.functional import cross_entropy

from deepnet_fairseq.cli import main
from deepnet_fairseq.core.methods import METHODS
from deepnet_fairseq.core.methods.deepnorm import DeepNorm
from deepnet_fairseq.core.slots import Site
from deepnet_fairseq.errors import UserError
from deepnet_fairseq.tools.theory import (
    Branch,
    branches,
    check,
    largest_gain,
    measure_updates,
    model_bound,
    sgd_step,
    stack_bound,
    zipf_batch,
)

from .support.helpers import small

TINY = "deepnet_transformer_tiny"
TINY_WIDTHS = {"encoder_embed_dim": 64, "encoder_ffn_embed_dim": 128}
LR = 1e-4
DEPTHS, SEEDS = (6, 18, 50), (1, 2)


# the formulas


def test_bounds_of_a_hand_made_model():
    """Pythagorean triples: sqrt(v^2 + w^2) / alpha is 1 in the encoder, 1/2 in the decoder."""
    ffn, cross = Site("encoder", 1, "ffn", 1, 1), Site("decoder", 1, "encoder_attn", 1, 1)
    found, changes = [Branch(ffn, 3, 4, 5), Branch(cross, 5, 12, 26)], {ffn: 0.1, cross: 0.3}
    assert stack_bound(found, changes, "encoder") == pytest.approx(0.1)
    assert model_bound(found, changes) == pytest.approx(5 * 12 / 26 * 0.1 + 0.15)


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
    numbers = [DeepNorm(N, M).coefficients(stack) for stack in ("encoder", "decoder")]
    found = equal_branches(N, M, *((c["beta"], c["alpha"]) for c in numbers))
    assert model_bound(found, sgd_changes(found, "decoder")) == pytest.approx(1)
    rounded = model_bound(found, sgd_changes(found, "encoder"))
    assert rounded == pytest.approx(27**-0.25 * 2 * (0.87 / 0.81) ** 2)
    assert rounded == pytest.approx(1, abs=0.013)


# the magnitudes of built models


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
    batch = zipf_batch(model.encoder.embed_tokens.num_embeddings, seed=1)
    state = copy.deepcopy(model.state_dict())
    return model, batch, state, sgd_step(model, batch, LR)


def test_step_is_that_of_an_optimiser(stepped):
    """torch's SGD over the matrices, found by name; the distance by hand; the model is as it was."""
    model, batch, state, step = stepped
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    matrices = ("v_proj.weight", "out_proj.weight", "fc1.weight", "fc2.weight")
    for names, measured in ((matrices, step.model), (("",), step.all_moved)):
        moved = copy.deepcopy(model)
        chosen = [p for name, p in moved.named_parameters() if name.endswith(names)]
        before, _ = moved(**batch["net_input"], features_only=True)
        scores, _ = moved(**batch["net_input"])
        cross_entropy(scores.transpose(1, 2), batch["target"]).backward()
        torch.optim.SGD(chosen, LR).step()
        after, _ = moved(**batch["net_input"], features_only=True)
        expected = (torch.linalg.vector_norm(after - before, dim=-1) / 8).mean().item()  # sqrt(64)
        assert measured == pytest.approx(expected, rel=1e-6)


def test_half_the_learning_rate_is_half_the_update(stepped):
    model, batch, _, step = stepped
    half = sgd_step(model, batch, LR / 2)
    assert (step.encoder / half.encoder, step.model / half.model) == pytest.approx((2, 2), rel=0.03)
    assert {s: 2 * change for s, change in half.changes.items()} == pytest.approx(step.changes)


def test_batch():
    """Zipf's law: the first of 56 symbols has 1 / H_56 = 0.217 of the mass; 256 draws, four standard errors."""
    batch = zipf_batch(small(1).encoder.embed_tokens.num_embeddings, seed=1)
    source, _, previous = batch["net_input"].values()
    target = batch["target"]
    assert source.shape == target.shape and min(source.min(), target.min()) >= 4
    assert torch.equal(previous[:, 1:], target[:, :-1]) and set(previous[:, 0].tolist()) == {2}
    assert source.eq(4).double().mean().item() == pytest.approx(0.217, abs=0.103)


# over depth


@lru_cache
def row(method, depth, seed=1, init_profile=None):
    return measure_updates(method, depth, TINY, LR, init_profile, seed)


# the theorems against the step


def speaks_of(method):
    """Is it of the form that the theorems are about?"""
    try:
        return check(TINY, [method], 6) is None
    except UserError:
        return False


@pytest.mark.parametrize("method", filter(speaks_of, sorted(METHODS)))
def test_measured_update_is_within_the_bounds(method):
    """The constant of 4.3 is below 1. That of 4.2 is 0.4 where alpha is large, but at this width Post-LN's products of
    2N random Jacobians scatter it around 1: up to 1.8 over these seeds, 5 on a Xavier base; less at greater width."""
    for depth in (6, 18):
        found = row(method, depth)
        assert method != "admin" or found.decoder_alpha > found.encoder_alpha > 1.3  # which is profiled first
        assert 0.05 * found.bound < found.update <= found.bound
        assert 0.2 * found.encoder_bound < found.encoder_update <= 2 * found.encoder_bound


def growth(method, name):
    """Exponent of the growth with depth, averaged over seeds."""
    logs = [math.log(depth) for depth in DEPTHS]
    return mean(
        linear_regression(logs, [math.log(getattr(row(method, depth, seed), name)) for depth in DEPTHS]).slope
        for seed in SEEDS
    )


def test_deepnorm_is_flat():
    """Theorem and step alike, at the same fraction of the bound; the encoder's own update falls, to make up for what
    the decoder's M cross-attentions multiply it with. With every parameter moving the update grows here too: 3M gains
    and biases of LayerNorms that no alpha divides."""
    assert growth("deepnorm", "bound") == pytest.approx(0, abs=0.2)
    assert growth("deepnorm", "update") == pytest.approx(0, abs=0.2)
    assert growth("deepnorm", "encoder_update") < 0 and growth("deepnorm", "update_of_all") > 0.4
    for seed in SEEDS:
        for depth in DEPTHS:
            found = row("deepnorm", depth, seed)
            assert found.update / found.bound == pytest.approx(0.38, abs=0.08)


def test_post_ln_grows():
    """The bound about as N^2 at these depths (N M in the theorem), the step about as N: a LayerNorm behind each merge
    keeps only the last few of the memory's changes, so that the decoder moves as far as the encoder at any depth."""
    assert growth("post_ln", "bound") > 1.3
    assert growth("post_ln", "encoder_bound") > 0.5
    assert growth("post_ln", "encoder_update") > 0.5
    assert growth("post_ln", "update") > 0.4
    for depth in DEPTHS:
        for seed in SEEDS:
            found = row("post_ln", depth, seed)
            assert found.update > 30 * row("deepnorm", depth, seed).update
            assert depth == 6 or 0.7 < found.update / found.encoder_update < 2


# the command


def test_table(capsys):
    """A row a method and depth, with its numbers, and the slope of each method."""
    main(["theory", "--depths", "2,4", "--method", "deepnorm,post_ln", "--seed", "7"])
    cells = [line.split() for line in capsys.readouterr().out.splitlines()[2:8]]
    assert [line[:2] for line in cells] == [[m, d] for m in ("deepnorm", "post_ln") for d in ("2-2", "4-4", "slope")]
    found = row("deepnorm", 4, seed=7)
    alphas = [DeepNorm(4, 4).coefficients(stack)["alpha"] for stack in ("encoder", "decoder")]
    expected = [*alphas, found.bound, found.update, found.update / found.bound]
    assert [float(cells[1][place]) for place in (2, 4, 9, 10, 11)] == pytest.approx(expected, rel=5e-3)
    slope = math.log(row("post_ln", 4, seed=7).update / row("post_ln", 2, seed=7).update) / math.log(2)
    assert float(cells[5][5]) == pytest.approx(slope, abs=5e-3)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--method", "deepnrom"), "--method deepnrom: unknown"),
        (("--method", "deepnorm,pre_ln"), r"--method pre_ln: computes x \+ f\(LN\(x\)\)"),
        (("--depths", "6,0"), "--depths 6,0"),
        (("--depths", "6;18"), "--depths 6;18"),
        (("--arch", "nothing"), "--arch nothing"),
        (("--lr", "nan"), "--lr nan"),
        (("--init-profile", "fairseq_head"), "--init-profile fairseq_head: --method deepnorm"),
    ],
)
def test_mistakes_are_refused(words, message):
    with pytest.raises(SystemExit, match=message) as error:
        main(["theory", *words])
    assert "\n" not in str(error.value)
