"""Streams wider than branches, by a stranger's file, hyper-connections; LayerNorms whose place differs by layer."""

import importlib.util

import pytest
import torch

from deepnet_fairseq.core.archs import LM
from deepnet_fairseq.core.methods import METHODS, Method, register
from deepnet_fairseq.errors import UserError

from .support import observing
from .support.helpers import PAD, ROOT
from .support.single_stacks import awake, batch, small

FILE = ROOT / "tests" / "support" / "hyper_connections.py"  # which test_docs.py puts through all tests of methods


@pytest.fixture(scope="module", autouse=True)
def methods():
    """Registered on the fly."""

    class Mixed(Method):
        equation, paper = "Post-LN, then Pre-LN", "none"
        norm = "pre"

        def norm_place(self, site):
            return "post" if site.layer == 1 else "pre"

    register("mixed")(Mixed)
    specification = importlib.util.spec_from_file_location("hyper_connections", FILE)
    specification.loader.exec_module(importlib.util.module_from_spec(specification))
    yield
    del METHODS["mixed"], METHODS["hyper_connections"]


def test_two_streams_are_the_paper_s():
    """X' = X + w f(LN(r X)), at the end LN(v X): after every layer, and what the probe has of it."""
    model, tokens = awake(LM, method="hyper_connections"), batch()[1:]
    decoder, dependency = model.decoder, {}

    def read(module, one, two):
        return module.norm(module.r[0] * one + module.r[1] * two)

    with torch.no_grad():
        one = two = decoder.embed(tokens, decoder.positions(tokens))[0]
        states = [torch.cat([one, two], -1)]
        for layer in decoder.layers:
            for sublayer, site in layer.sites.items():
                inside, own = read(layer.before[sublayer], one, two), layer.self_attn
                attention = sublayer == "self_attn"
                f = own(inside, causal=True) if attention else layer.fc2(layer.fc1(inside).relu())
                written = [weight * f for weight in layer.residual[sublayer].w]
                one, two = one + written[0], two + written[1]
                dependency[str(site)] = (torch.cat(written, -1).var() / torch.cat([one, two], -1).var()).item()
            states.append(torch.cat([one, two], -1))
        features, extra = decoder(tokens, features_only=True, return_all_hiddens=True)
    assert torch.allclose(features, read(decoder.ending, one, two), atol=1e-5)
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
        found, kept = model.decoder(tokens, features_only=True)[0], tokens.ne(PAD)
        assert torch.allclose(parts["pre_ln"].finish(x)[kept], found[kept], atol=1e-5)
    with pytest.raises(UserError, match="--decoder-normalize-before: --method mixed computes Post-LN, then Pre-LN"):
        small(LM, method="mixed", decoder_normalize_before=True)
