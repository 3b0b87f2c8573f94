"""Tests of Admin's profile: the omegas, the file, the two ways into training, and the state it restores."""

import math
from dataclasses import replace

import numpy
import pytest
import torch

from deepnet_fairseq.core.profile import apply_omegas, profile_omegas, residuals
from deepnet_fairseq.errors import UserError
from deepnet_fairseq.plugin.admin_profile import measure_profile, read_profile
from deepnet_fairseq.plugin.building import build

from ..support import single_stacks
from ..support.helpers import small
from ..support.observing import net_input, recording
from ..support.single_stacks import EVERY, KINDS

DROPOUTS = {"dropout": 0.1, "attention_dropout": 0.1, "activation_dropout": 0.1}
INPUT = net_input()
INPUTS = {kind: {"src_tokens": single_stacks.batch(), "src_lengths": None} for kind in KINDS} | {EVERY[0]: INPUT}
# The authors' profile of WMT-14 En-De at 100L-100L, by position.
PUBLISHED = {
    "encoder": {1: 1.0, 2: 1.319040, 3: 1.455032, 4: 1.512330, 7: 1.809997, 8: 1.866789, 100: 6.162000, 200: 8.836020},
    "decoder": {1: 1.0, 2: 1.342587, 3: 1.480067, 4: 1.610133, 5: 1.686171, 150: 7.963441, 300: 11.249614},
}


def admin(kind, layers=2, **fields):
    return single_stacks.small(kind, layers, method="admin", **fields)


def profile_of(kind):
    return measure_profile(admin(kind), INPUTS[kind], 1)


def omega_by_hand(model, seed):
    """Compute omegas by definition: a full pass for each one, with those before it set."""
    omegas, sites = {}, [site for site, _ in residuals(model)]
    running = {"encoder": 1.0, "decoder": 1.0}
    for site in sites:
        omegas[site] = running[site.stack]
        apply_omegas(model, [omegas.get(s, 1.0) for s in sites])
        with torch.random.fork_rng([]), torch.no_grad(), recording(model) as variances:
            torch.manual_seed(seed)
            model(**INPUTS[model.NAME])
        shortcut, branch = variances[site]
        running[site.stack] = math.sqrt(omegas[site] ** 2 * shortcut + branch)
    return list(omegas.values())


@pytest.mark.parametrize("kind", EVERY)
def test_one_pass_gives_what_a_pass_for_each_branch_gives(kind):
    model = admin(kind, 3, **DROPOUTS).train()
    omegas = profile_omegas(model, INPUTS[kind], seed=5)
    assert list(omegas.values()) == pytest.approx(omega_by_hand(model, seed=5), rel=1e-5)
    assert [str(site) for site in omegas] == [str(site) for site, _ in residuals(model)]
    assert len(omegas) == (2 * 3 if kind in KINDS else 2 * 3 + 3 * 3)


@pytest.mark.parametrize("training", [True, False])
def test_profiling_sets_omegas_and_nothing_else(training):
    model = small(2, method="admin", dropout=0.3).train(training)
    model.decoder.layers[0].eval()
    before = {name: value.clone() for name, value in model.state_dict().items() if "omega" not in name}
    modes = [module.training for module in model.modules()]
    torchs, numpys = torch.get_rng_state(), numpy.random.get_state()[1]
    first = profile_omegas(model, INPUT, seed=1)
    assert first == {site: pytest.approx(residual.omega.unique().item()) for site, residual in residuals(model)}
    assert first == profile_omegas(model, INPUT, seed=1) != profile_omegas(model, INPUT, seed=2)
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), torchs) and (numpy.random.get_state()[1] == numpys).all()


def test_profile_of_a_half_precision_model_is_that_of_its_weights_in_float32():
    model = small(2, method="admin").to(torch.bfloat16)
    half, full = measure_profile(model, INPUT, 1), measure_profile(small(2, method="admin"), INPUT, 1)
    assert list(half.omega.values()) == pytest.approx(list(full.omega.values()), rel=5e-3)
    assert next(model.parameters()).dtype == torch.bfloat16


@pytest.fixture
def profile():
    return profile_of(EVERY[0])


@pytest.mark.parametrize("kind", KINDS)
def test_profile_of_a_stack_alone(kind, tmp_path):
    """A profile of a single stack is written and read back; other files and other branches are refused."""
    profile, path = profile_of(kind), tmp_path / "profile.json"
    profile.write(path)
    assert read_profile(str(path)) == profile
    profile.check_model(admin(kind), str(path))
    with pytest.raises(UserError, match="its branches are not those of this model"):
        replace(profile, omega={"encoder.1.ffn": 1.0}).check_model(admin(kind), "p")
    path.write_text("1 1.5\n")
    with pytest.raises(UserError, match="not a whole profile"):
        read_profile(str(path))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"encoder_layers": 3}, "encoder layers 2, this model has 3"),
        ({"decoder_embed_dim": 32}, "decoder width 16, this model has 32"),
        ({"encoder_ffn_embed_dim": 64}, "encoder ffn width 32, this model has 64"),
    ],
)
def test_profile_of_another_size_is_refused(profile, fields, words, caplog):
    """A profile of another size is refused; other dropouts give a warning."""
    with pytest.raises(UserError, match=words):
        profile.check_model(small(2, method="admin", **fields), "p.json")
    profile.check_model(small(2, method="admin", dropout=0.3), "p.json")
    assert "taken with --dropout 0.0, this model has 0.3" in caplog.text


@pytest.mark.parametrize("layers", [10, pytest.param(100, marks=pytest.mark.slow)])
def test_published_profile(layers):
    """Omegas of the authors' 100L-100L setting are within 3% of the published ones, on random Zipf tokens.

    An encoder's omega does not depend on later layers; a decoder's depends on the depth of its encoder.
    """
    torch.manual_seed(1)
    depth = {"encoder_layers": layers, "decoder_layers": layers}
    model = build(method="admin", vocab=10_000, share_all_embeddings=True, **depth, **DROPOUTS)
    words = 4 + torch.multinomial(1 / torch.arange(1, 9_997).float(), 2 * 16 * 32, replacement=True).view(2, 16, 32)
    given = {"src_tokens": words[0], "src_lengths": None, "prev_output_tokens": words[1]}
    omegas = profile_omegas(model, given, seed=1)
    for stack, published in PUBLISHED.items() if layers == 100 else [("encoder", PUBLISHED["encoder"])]:
        values = [omega for site, omega in omegas.items() if site.stack == stack]
        for position, omega in published.items():
            assert position > len(values) or values[position - 1] == pytest.approx(omega, rel=0.03), (stack, position)


def test_every_rank_takes_the_profile_of_the_first(group, monkeypatch):
    monkeypatch.setattr(torch.distributed, "broadcast", lambda values, rank: values.fill_(7 + rank))
    assert set(measure_profile(small(2, method="admin"), INPUT, seed=1).omega.values()) == {7.0}
