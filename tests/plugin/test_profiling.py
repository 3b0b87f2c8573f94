"""Tests of Admin's profile: the omegas, the file, the two ways into training, and the state it restores."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy
import pytest
import torch

from deepnet_fairseq.core.profile import apply_omegas, profile_omegas, residuals
from deepnet_fairseq.plugin.admin_profile import measure_profile, read_profile
from deepnet_fairseq.plugin.building import build

from ..support import single_stacks
from ..support.errors import refused
from ..support.helpers import small
from ..support.observing import net_input, recording
from ..support.single_stacks import EVERY, KINDS

DROPOUTS = {"dropout": 0.1, "attention_dropout": 0.1, "activation_dropout": 0.1}
TRANSLATION = EVERY[0]
TRANSLATION_INPUT = net_input()
OF_ONE_STACK = {"src_tokens": single_stacks.batch(), "src_lengths": None}
# The authors' profile of WMT-14 En-De at 100L-100L, by position.
PUBLISHED = {
    "encoder": {1: 1.0, 2: 1.319040, 3: 1.455032, 4: 1.512330, 7: 1.809997, 8: 1.866789, 100: 6.162000, 200: 8.836020},
    "decoder": {1: 1.0, 2: 1.342587, 3: 1.480067, 4: 1.610133, 5: 1.686171, 150: 7.963441, 300: 11.249614},
}


def input_of(kind):
    return TRANSLATION_INPUT if kind == TRANSLATION else OF_ONE_STACK


def admin_model(kind, layers=2, **fields):
    return single_stacks.small(kind, layers, method="admin", **fields)


def profile_of(kind):
    return measure_profile(admin_model(kind), input_of(kind), seed=1)


def omegas_by_definition(model, seed):
    """Compute omegas by a full pass for each one, with those before it set."""
    sites = [site for site, _ in residuals(model)]
    omegas = dict.fromkeys(sites, 1.0)
    following = {"encoder": 1.0, "decoder": 1.0}
    for site in sites:
        omega = following[site.stack]
        omegas[site] = omega
        apply_omegas(model, list(omegas.values()))
        with torch.random.fork_rng([]), torch.no_grad(), recording(model) as variances:
            torch.manual_seed(seed)
            model(**input_of(model.NAME))
        shortcut, branch = variances[site]
        following[site.stack] = math.sqrt(omega**2 * shortcut + branch)
    return list(omegas.values())


@pytest.mark.parametrize("kind", EVERY)
def test_one_pass_gives_what_a_pass_for_each_branch_gives(kind):
    model = admin_model(kind, 3, **DROPOUTS).train()

    omegas = profile_omegas(model, input_of(kind), seed=5)

    assert list(omegas.values()) == pytest.approx(omegas_by_definition(model, seed=5), rel=1e-5)


@pytest.mark.parametrize("kind", EVERY)
def test_each_branch_has_an_omega_in_forward_order(kind):
    model = admin_model(kind, 3, **DROPOUTS).train()
    branches = 3 * 2 if kind in KINDS else 3 * 2 + 3 * 3  # 2 in each layer, 3 in a decoder's that attends to an encoder

    omegas = profile_omegas(model, input_of(kind), seed=5)

    assert len(omegas) == branches
    assert [str(site) for site in omegas] == [str(site) for site, _ in residuals(model)]


@pytest.fixture(params=[True, False], ids=["training", "evaluating"])
def model_with_a_layer_in_evaluation_mode(request):
    """Provide an Admin model in training or evaluation mode, whose first decoder layer is in evaluation mode."""
    model = small(2, method="admin", dropout=0.3).train(request.param)
    model.decoder.layers[0].eval()
    return model


def test_profiling_sets_the_omegas_it_returns(model_with_a_layer_in_evaluation_mode):
    model = model_with_a_layer_in_evaluation_mode

    omegas = profile_omegas(model, TRANSLATION_INPUT, seed=1)

    in_model = {site: residual.omega.unique().item() for site, residual in residuals(model)}
    assert omegas == pytest.approx(in_model)


def test_profiling_draws_dropout_from_its_seed(model_with_a_layer_in_evaluation_mode):
    model = model_with_a_layer_in_evaluation_mode

    first = profile_omegas(model, TRANSLATION_INPUT, seed=1)
    again = profile_omegas(model, TRANSLATION_INPUT, seed=1)
    other = profile_omegas(model, TRANSLATION_INPUT, seed=2)

    assert again == first
    assert other != first


def test_profiling_changes_nothing_but_the_omegas(model_with_a_layer_in_evaluation_mode):
    model = model_with_a_layer_in_evaluation_mode
    state = {name: value.clone() for name, value in model.state_dict().items() if "omega" not in name}
    modes = [module.training for module in model.modules()]
    random_state_of_torch = torch.get_rng_state()
    random_state_of_numpy = numpy.random.get_state()[1]

    profile_omegas(model, TRANSLATION_INPUT, seed=1)

    for name, value in state.items():
        assert torch.equal(model.state_dict()[name], value), name
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), random_state_of_torch)
    assert (numpy.random.get_state()[1] == random_state_of_numpy).all()


def test_a_bfloat16_model_has_the_profile_of_its_float32_weights():
    model = small(2, method="admin").to(torch.bfloat16)

    half = measure_profile(model, TRANSLATION_INPUT, seed=1)

    full = measure_profile(small(2, method="admin"), TRANSLATION_INPUT, seed=1)
    assert list(half.omega.values()) == pytest.approx(list(full.omega.values()), rel=5e-3)
    assert next(model.parameters()).dtype == torch.bfloat16


@pytest.mark.parametrize("kind", KINDS)
def test_a_profile_of_a_stack_alone_is_read_as_written(kind, tmp_path):
    profile = profile_of(kind)
    path = tmp_path / "profile.json"

    profile.write(path)

    assert read_profile(str(path)) == profile


@pytest.mark.parametrize("kind", KINDS)
def test_a_profile_fits_the_model_it_was_taken_of(kind):
    profile_of(kind).check_model(admin_model(kind), "profile.json")


@pytest.mark.parametrize("kind", KINDS)
def test_a_profile_of_other_branches_is_refused(kind):
    profile = replace(profile_of(kind), omega={"encoder.1.ffn": 1.0})

    with refused("--admin-profile profile.json"):
        profile.check_model(admin_model(kind), "profile.json")


def test_a_file_that_is_no_profile_is_refused(tmp_path):
    path = tmp_path / "profile.json"
    path.write_text("1 1.5\n")

    with refused(f"--admin-profile {path}"):
        read_profile(str(path))


@pytest.mark.parametrize(
    ("field", "name", "profiled", "wanted"),
    [
        ("encoder_layers", "encoder layers", 2, 3),
        ("decoder_embed_dim", "decoder width", 16, 32),
        ("encoder_ffn_embed_dim", "encoder ffn width", 32, 64),
    ],
)
def test_a_profile_of_another_size_is_refused_with_both_sizes(field, name, profiled, wanted):
    profile = profile_of(TRANSLATION)

    with refused("--admin-profile p.json") as caught:
        profile.check_model(small(2, method="admin", **{field: wanted}), "p.json")

    assert f"{name} {profiled}," in caught.value.way_out
    assert f" {wanted};" in caught.value.way_out


def test_a_profile_taken_with_another_dropout_is_warned_of(caplog):
    profile = profile_of(TRANSLATION)

    profile.check_model(small(2, method="admin", dropout=0.3), "p.json")

    assert "--admin-profile p.json" in caplog.text
    assert "--dropout 0.0" in caplog.text
    assert "0.3" in caplog.text


@pytest.mark.parametrize("layers", [10, pytest.param(100, marks=pytest.mark.slow)])
def test_omegas_are_those_that_the_authors_published(layers):
    """Omegas of the authors' 100L-100L setting are within 3% of the published ones, on random Zipf tokens.

    An encoder's omega does not depend on later layers; a decoder's depends on the depth of its encoder.
    """
    torch.manual_seed(1)
    depth = {"encoder_layers": layers, "decoder_layers": layers}
    model = build(method="admin", vocab=10_000, share_all_embeddings=True, **depth, **DROPOUTS)
    frequencies = 1 / torch.arange(1, 9_997).float()
    source, previous = 4 + torch.multinomial(frequencies, 2 * 16 * 32, replacement=True).view(2, 16, 32)

    omegas = profile_omegas(model, {"src_tokens": source, "src_lengths": None, "prev_output_tokens": previous}, seed=1)

    compared = PUBLISHED if layers == 100 else {"encoder": PUBLISHED["encoder"]}
    for stack, published in compared.items():
        measured = [omega for site, omega in omegas.items() if site.stack == stack]
        within = {position: omega for position, omega in published.items() if position <= len(measured)}
        assert len(within) >= 6
        for position, omega in within.items():
            assert measured[position - 1] == pytest.approx(omega, rel=0.03), (stack, position)


def test_every_rank_takes_the_profile_of_the_first(group, monkeypatch):
    """As if rank 0 had measured 7 everywhere."""
    monkeypatch.setattr(torch.distributed, "broadcast", lambda values, rank: values.fill_(7 + rank))

    profile = measure_profile(small(2, method="admin"), TRANSLATION_INPUT, seed=1)

    assert set(profile.omega.values()) == {7.0}
