"""Streams wider than branches, by a stranger's file, ResiDual; LayerNorms whose place differs by layer."""

import importlib.util
import math

import pytest
import torch
import torch.nn.functional as F

from deepnet_fairseq.core.archs import LM
from deepnet_fairseq.core.methods import METHODS, Method, register
from deepnet_fairseq.errors import UserError

from .support import observing, stranger
from .support.helpers import ROOT
from .support.single_stacks import awake, batch, small

FILE = ROOT / "tests" / "support" / "resi_dual.py"
EDITS = [
    """sed -i 's/^REASONS = {/&"resi_dual": "more than one branch reads", /' tests/test_fold.py""",
    r"""sed -i 's/^TRAININGS += \[/&(LM, "--method resi_dual --checkpoint-activations"),/' tests/test_plan.py""",
    """sed -i 's/learning = {"admin", /&"resi_dual", /' tests/test_learned_scale.py""",
]


@pytest.fixture(scope="module", autouse=True)
def methods():
    """Registered on the fly."""

    class Mixed(Method):
        equation, paper = "Post-LN, then Pre-LN", "none"
        norm = "pre"

        def norm_place(self, site):
            return "post" if site.layer == 1 else "pre"

    register("mixed")(Mixed)
    specification = importlib.util.spec_from_file_location("resi_dual", FILE)
    specification.loader.exec_module(importlib.util.module_from_spec(specification))
    yield
    del METHODS["mixed"], METHODS["resi_dual"]


def branch(layer, sublayer, x):
    """Causal self-attention of two heads, or feed-forward, of x (B, T, C)."""
    if sublayer == "ffn":
        return layer.fc2(F.relu(layer.fc1(x)))
    own = layer.self_attn
    q, k, v = (part(x).unflatten(-1, (2, -1)).transpose(1, 2) for part in (own.q_proj, own.k_proj, own.v_proj))
    scores = q @ k.transpose(2, 3) / math.sqrt(q.size(-1)) + torch.full((x.size(1),) * 2, -torch.inf).triu(1)
    return own.out_proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


def test_two_streams_are_the_paper_s():
    """x_k+1 = LN(x_k + f_k), d_k+1 = d_k + f_k, out = x + LN(d): after every layer, and what the probe has of it."""
    model, tokens = awake(LM, method="resi_dual"), batch()[1:]
    decoder, states, dependency = model.decoder, [], {}
    with torch.no_grad():
        x = d = decoder.embed(tokens, decoder.positions(tokens))[0]
        states.append(torch.cat([x, d], -1))
        for layer in decoder.layers:
            for sublayer, site in layer.sites.items():
                f = branch(layer, sublayer, x)
                dependency[str(site)] = (f.var() / (x + f).var()).item()
                x, d = layer.residual[sublayer].norm(x + f), d + f
            states.append(torch.cat([x, d], -1))
        features, extra = decoder(tokens, features_only=True, return_all_hiddens=True)
    assert torch.allclose(features, x + decoder.ending.norm(d), atol=1e-5)
    for state, expected in zip(extra["inner_states"], states, strict=True):
        assert torch.allclose(state.transpose(0, 1), expected, atol=1e-5)
    held = {"src_tokens": tokens, "src_lengths": None}
    found = observing.observe(model, [tokens], "branch_dependency", loss=lambda m, t: m(t)[0].sum(), held=held)
    assert found["branch_dependency"] == pytest.approx(dependency, rel=1e-3)


def test_places_that_differ_from_layer_to_layer():
    """A Post-LN's first layer and a Pre-LN's second one with its end, bit for bit; no flag calls it so."""
    model, tokens = awake(LM, method="mixed"), batch()
    parts = {}
    for name in ("post_ln", "pre_ln"):
        parts[name] = small(LM, method=name).decoder
        parts[name].load_state_dict(model.decoder.state_dict(), strict=False)
    with torch.no_grad():
        x = model.decoder.embed(tokens, model.decoder.positions(tokens))[0]
        x = parts["pre_ln"].layers[1](parts["post_ln"].layers[0](x, None), None)
        assert torch.equal(parts["pre_ln"].finish(x), model.decoder(tokens, features_only=True)[0])
    with pytest.raises(UserError, match="--decoder-normalize-before: --method mixed computes Post-LN, then Pre-LN"):
        small(LM, method="mixed", decoder_normalize_before=True)


@pytest.mark.smoke
def test_a_wide_stream_keeps_what_every_method_keeps(tmp_path):
    """All tests that go by the registry, but for the pages that do not name it; through fairseq's programs too."""
    folder = stranger.extended(tmp_path, "deepnet_fairseq/core/methods/resi_dual.py", FILE.read_text(), EDITS)
    names = "(resi_dual or refused_by_name) and not documented"
    assert stranger.passed(folder, names, "-m", "not slow and not gpu and not peers") >= 20
