"""Admin's profile of a language model: the recursion in one stack, the JSON file, what it fits and what it does not."""

import json
import math

import pytest
import torch

from deepnet_fairseq import archs
from deepnet_fairseq.errors import UserError
from deepnet_fairseq.profiling.omega import apply_omegas, profile_omegas, recording, residuals
from deepnet_fairseq.profiling.profile import read_profile, take_profile

from .support import helpers
from .support.single_stacks import KINDS, batch, scores, small, stack_of

DROPOUTS = {"dropout": 0.1, "attention_dropout": 0.1, "activation_dropout": 0.1}


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


def net_input():
    return {"src_tokens": batch(), "src_lengths": None}


def omega_by_hand(model, seed):
    """By definition: a full pass for each next omega, omega_{i+1}^2 = Var(omega_i x_i) + Var(f_i), omega_1 = 1."""
    sites, omegas, running = [site for site, _ in residuals(model)], {}, 1.0
    for site in sites:
        omegas[site] = running
        apply_omegas(model, [omegas.get(other, 1.0) for other in sites])
        with torch.random.fork_rng([]), torch.no_grad(), recording(model) as found:
            torch.manual_seed(seed)
            model(**net_input())
        running = math.sqrt(omegas[site] ** 2 * found[site].shortcut + found[site].branch)
    return list(omegas.values())


def test_one_pass_gives_what_a_pass_for_each_branch_gives(kind):
    model = small(kind, 3, method="admin", **DROPOUTS).train()
    found = profile_omegas(model, net_input(), seed=5)
    assert list(found.values()) == pytest.approx(omega_by_hand(model, seed=5), rel=1e-5)
    names = [f"{stack_of(kind)}.{layer}.{branch}" for layer in (1, 2, 3) for branch in ("self_attn", "ffn")]
    assert [str(site) for site in found] == names


def test_omegas_rise_from_one(kind):
    values = list(profile_omegas(small(kind, 18, method="admin"), net_input(), seed=1).values())
    assert values[0] == 1.0 and len(values) == 36
    assert all(a < b for a, b in zip(values[1:], values[2:], strict=False))


def test_written_equals_read(kind, tmp_path):
    """Applied, it makes the model the scores of which it was taken of another one."""
    model, path = small(kind, method="admin"), tmp_path / "profile.json"
    profile = take_profile(model, net_input(), 1)
    profile.write(path)
    read = read_profile(str(path))
    assert read == profile
    read.check(model, str(path))
    held = json.loads(path.read_text())
    stack, other = ("encoder", "decoder") if kind == archs.MASKED_LM else ("decoder", "encoder")
    assert (held[f"{stack}_layers"], held[f"{other}_layers"]) == (2, 0)
    assert (held[f"{stack}_width"], held[f"{stack}_ffn_width"], held[f"{other}_width"]) == (16, 32, None)
    before = scores(model, batch())
    apply_omegas(model, list(read.omega.values()))
    assert not torch.allclose(scores(model, batch()), before, atol=1e-3)


def models(kind):
    """Of the three kinds the two others."""
    built = {name: lambda name=name: small(name, method="admin") for name in KINDS if name != kind}
    return built | {archs.MODEL_NAME: lambda: helpers.small(2, method="admin")}


def test_profile_of_another_kind_of_model_is_refused(kind, tmp_path):
    profile = take_profile(small(kind, method="admin"), net_input(), 1)
    for build in models(kind).values():
        with pytest.raises(UserError, match="--admin-profile p.json: .*profile") as refused:
            profile.check(build(), "p.json")
        assert "\n" not in str(refused.value)


def test_profile_of_a_translation_model_is_refused(kind):
    src, prev = helpers.batch()
    inputs = {"src_tokens": src, "src_lengths": None, "prev_output_tokens": prev}
    profile = take_profile(helpers.small(2, method="admin"), inputs, 1)
    with pytest.raises(UserError, match="--admin-profile p.json: .*profile"):
        profile.check(small(kind, method="admin"), "p.json")


@pytest.mark.parametrize(("name", "value"), [("layers", 3), ("embed_dim", 32), ("ffn_embed_dim", 64)])
def test_profile_of_another_size_is_refused(kind, name, value):
    profile = take_profile(small(kind, method="admin"), net_input(), 1)
    with pytest.raises(UserError, match=rf"this model has {value}"):
        profile.check(small(kind, method="admin", **{f"{stack_of(kind)}_{name}": value}), "p.json")


def test_two_columns_need_two_stacks(kind, tmp_path):
    """The authors' file tells the stacks by their order alone: none is written of one stack, and none is read."""
    profile, path = take_profile(small(kind, method="admin"), net_input(), 1), tmp_path / "profile.ratio.init"
    with pytest.raises(UserError, match="--official: .* this model has one; drop the flag"):
        profile.write_official(path)
    assert not list(tmp_path.iterdir())
    path.write_text("".join(f"{i} {omega}\n" for i, omega in enumerate(profile.omega.values(), 1)))
    with pytest.raises(UserError, match="not a whole profile .*twice at 1"):
        read_profile(str(path))


def test_two_columns_of_a_translation_model(kind, tmp_path):
    (tmp_path / "p").write_text("".join(f"{i} 1.5\n" for i in [*range(1, 5), *range(1, 7)]))
    with pytest.raises(UserError, match="its branches are not those of this model"):
        read_profile(str(tmp_path / "p")).check(small(kind, method="admin"), "p")
