"""Tests of Admin's profile: the omegas, the file, the two ways into training, and the state it restores."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy
import pytest
import torch

from deepnet_fairseq.core.profile import apply_omegas, depths_and_widths, profile_omegas, residuals
from deepnet_fairseq.plugin.admin_profile import Profile, measure_profile, read_profile
from deepnet_fairseq.plugin.building import build

from ..support import single_stacks
from ..support.errors import refused
from ..support.helpers import FIRST, small
from ..support.observing import net_input, recording
from ..support.single_stacks import EVERY_KIND, SINGLE_STACKS

DROPOUTS = {"dropout": 0.1, "attention_dropout": 0.1, "activation_dropout": 0.1}
TRANSLATION = EVERY_KIND[0]
TRANSLATION_INPUT = net_input()
INPUT_OF_ONE_STACK = {"src_tokens": single_stacks.batch(), "src_lengths": None}
# Branches of 3 layers a stack: 3 in each layer of a decoder that attends to an encoder, 2 in each other layer.
BRANCHES = {TRANSLATION: 3 * 2 + 3 * 3, **dict.fromkeys(SINGLE_STACKS, 3 * 2)}
# The authors' profile of WMT-14 En-De at 100L-100L: omegas by the position of the branch in its stack, from 1.
PUBLISHED = {
    "encoder": {1: 1.0, 2: 1.319040, 3: 1.455032, 4: 1.512330, 7: 1.809997, 8: 1.866789, 100: 6.162000, 200: 8.836020},
    "decoder": {1: 1.0, 2: 1.342587, 3: 1.480067, 4: 1.610133, 5: 1.686171, 150: 7.963441, 300: 11.249614},
}


def input_of(kind: str) -> dict:
    """Return the keyword arguments with which a model of this kind is called."""
    return TRANSLATION_INPUT if kind == TRANSLATION else INPUT_OF_ONE_STACK


def admin_model(kind: str, layers=2, **fields):
    """Build a small model of one of EVERY_KIND with the method Admin, whose omegas are 1."""
    return single_stacks.small(kind, layers, method="admin", **fields)


def profile_of(kind: str) -> Profile:
    """Measure the profile of a small model of 2 layers a stack, without dropout."""
    return measure_profile(admin_model(kind), input_of(kind), seed=1)


def omegas_by_definition(model, seed: int) -> list[float]:
    """Compute omegas by a full pass for each one, with those before it set, in forward order.

    A stack's first omega is 1; behind shortcut x and branch f the next one is sqrt(omega^2 Var(x) + Var(f)).
    """
    sites = [site for site, _residual in residuals(model)]
    omegas = dict.fromkeys(sites, 1.0)
    next_omega = {"encoder": 1.0, "decoder": 1.0}
    for site in sites:
        omega = next_omega[site.stack]
        omegas[site] = omega
        apply_omegas(model, list(omegas.values()))
        with torch.random.fork_rng([]), torch.no_grad(), recording(model) as variances:
            torch.manual_seed(seed)
            model(**input_of(model.NAME))
        shortcut, branch = variances[site]
        next_omega[site.stack] = math.sqrt(omega**2 * shortcut + branch)
    return list(omegas.values())


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_one_pass_gives_what_a_pass_for_each_branch_gives(kind):
    model = admin_model(kind, 3, **DROPOUTS).train()

    omegas = profile_omegas(model, input_of(kind), seed=5)

    assert list(omegas.values()) == pytest.approx(omegas_by_definition(model, seed=5), rel=1e-5)


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_each_branch_has_an_omega_in_forward_order(kind):
    model = admin_model(kind, 3, **DROPOUTS).train()

    omegas = profile_omegas(model, input_of(kind), seed=5)

    assert len(omegas) == BRANCHES[kind]
    assert list(omegas) == [site for site, _residual in residuals(model)]


@pytest.fixture(params=[True, False], ids=["training", "evaluating"])
def model_with_a_layer_in_evaluation_mode(request):
    """Provide an Admin model with dropout in training or evaluation mode; one layer is in evaluation mode."""
    model = small(2, method="admin", dropout=0.3).train(request.param)
    model.decoder.layers[0].eval()
    return model


def test_profiling_sets_the_omegas_it_returns(model_with_a_layer_in_evaluation_mode):
    model = model_with_a_layer_in_evaluation_mode

    omegas = profile_omegas(model, TRANSLATION_INPUT, seed=1)

    in_model = {site: residual.omega.unique().item() for site, residual in residuals(model)}  # equal elements
    assert omegas == pytest.approx(in_model)


def test_the_seed_of_profiling_decides_the_dropout(model_with_a_layer_in_evaluation_mode):
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
    assert list(half.omega.values()) == pytest.approx(list(full.omega.values()), rel=5e-3)  # bfloat16 has 8 bits: 4e-3
    assert next(model.parameters()).dtype == torch.bfloat16  # as before


@pytest.mark.parametrize("kind", SINGLE_STACKS)
def test_a_profile_of_a_stack_alone_is_read_as_written(kind, tmp_path):
    profile = profile_of(kind)
    path = tmp_path / "profile.json"

    profile.write(path)

    assert read_profile(str(path)) == profile


@pytest.mark.parametrize("kind", SINGLE_STACKS)
def test_a_profile_fits_the_model_it_was_taken_of(kind):
    profile_of(kind).check_model(admin_model(kind), "profile.json")


@pytest.mark.parametrize("kind", SINGLE_STACKS)
def test_a_profile_of_other_branches_is_refused(kind):
    """The model has two layers, and this profile one branch."""
    profile = replace(profile_of(kind), omega={"encoder.1.ffn": 1.0})

    with refused("--admin-profile profile.json"):
        profile.check_model(admin_model(kind), "profile.json")


def test_a_file_that_is_no_profile_is_refused(tmp_path):
    path = tmp_path / "profile.json"
    path.write_text("1 1.5\n")  # is no JSON

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
    """field: name in the config; name: the words of the error for it.

    profiled: value of the field in the models of profile_of; wanted: value in the model to train
    """
    profile = profile_of(TRANSLATION)
    model = small(2, method="admin", **{field: wanted})

    with refused("--admin-profile p.json") as caught:
        profile.check_model(model, "p.json")

    assert f"{name} {profiled}" in caught.value.way_out
    assert f" {wanted};" in caught.value.way_out


def test_a_profile_taken_with_another_dropout_is_warned_of(caplog):
    profile = profile_of(TRANSLATION)

    profile.check_model(small(2, method="admin", dropout=0.3), "p.json")

    assert "--admin-profile p.json" in caplog.text
    assert "--dropout 0.0" in caplog.text
    assert "0.3" in caplog.text


ZIPF_VOCABULARY = 10_000


def zipf_batch() -> dict:
    """Draw 16 sentences of 32 words by Zipf's law, without padding: the keyword arguments of a translator's call."""
    words = ZIPF_VOCABULARY - FIRST  # without special symbols
    frequencies = 1 / torch.arange(1, words + 1).float()
    tokens = FIRST + torch.multinomial(frequencies, 2 * 16 * 32, replacement=True).view(2, 16, 32)
    return {"src_tokens": tokens[0], "src_lengths": None, "prev_output_tokens": tokens[1]}


@pytest.mark.parametrize(
    "layers, stacks, positions",
    [
        # an encoder's omega does not depend on later layers; a decoder's depends on the depth of its encoder
        pytest.param(10, ["encoder"], 6, id="10"),
        pytest.param(100, ["encoder", "decoder"], 7, id="100", marks=pytest.mark.slow),
    ],
)
def test_omegas_are_those_that_the_authors_published(layers, stacks, positions):
    """Omegas of the authors' 100L-100L setting, on random words, are within 3% of the published ones.

    positions: the smallest number of PUBLISHED omegas within that depth in any of the stacks
    """
    torch.manual_seed(1)
    depth = {"encoder_layers": layers, "decoder_layers": layers}
    model = build(method="admin", vocab=ZIPF_VOCABULARY, share_all_embeddings=True, **depth, **DROPOUTS)

    omegas = profile_omegas(model, zipf_batch(), seed=1)

    for stack in stacks:
        measured = [omega for site, omega in omegas.items() if site.stack == stack]
        published = {place: omega for place, omega in PUBLISHED[stack].items() if place <= len(measured)}
        assert len(published) >= positions
        for place, omega in published.items():
            assert measured[place - 1] == pytest.approx(omega, rel=0.03), (stack, place)


def test_every_rank_takes_the_profile_of_the_first(group, monkeypatch):
    """The broadcast behaves as if rank 0 had measured 7 everywhere."""
    monkeypatch.setattr(torch.distributed, "broadcast", lambda values, source: values.fill_(7 + source))

    profile = measure_profile(small(2, method="admin"), TRANSLATION_INPUT, seed=1)

    assert set(profile.omega.values()) == {7.0}


def test_depths_and_widths_of_one_layer_are_those_of_its_stack():
    model = small(1)

    sizes = depths_and_widths(model)

    assert sizes["encoder_layers"] == 1
    assert sizes["encoder_width"] == model.encoder.embed_tokens.embedding_dim
    assert sizes["decoder_ffn_width"] == model.decoder.layers[0].fc1.out_features
