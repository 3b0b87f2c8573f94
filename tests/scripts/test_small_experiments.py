"""Tests of small experiments on the quickstart's corpus: an inverted gain, and the methods' first updates."""

import importlib.util
import re

import pytest

from deepnet_fairseq.core.methods import METHODS

from ..support.experiments import needs_venv, trainings, values
from ..support.helpers import ROOT

STRANGER = ROOT / "examples" / "inverted_gain"


@pytest.fixture(scope="module")
def wrong():
    """Provide the user-defined methods by name; they leave the registry again."""
    spec = importlib.util.spec_from_file_location("inverted_gain", STRANGER / "__init__.py")
    before = set(METHODS)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    return {name: METHODS.pop(name) for name in METHODS.keys() - before}


@needs_venv
def test_trainings_differ_in_the_method_alone(tmp_path):
    """Trainings of a model and seed differ in the method alone; wrong alphas run at 24 layers alone."""
    groups: dict[tuple, dict[str, dict]] = {}
    for words in trainings("inverted_gain", OUT=tmp_path / "out"):
        options = values(words)
        model, _, seed = re.fullmatch(r".*/(\w+-\d+)(.*)-seed(\d)", options.pop("--save-dir")).groups()
        method = options.pop("--method")
        groups.setdefault((model, seed), {})[method] = options | {"data": words[0]}
    assert len(groups) == 12 and not (tmp_path / "out").exists()
    for (model, seed), variants in groups.items():
        flags = variants["deepnorm"]
        assert len(variants) == (4 if model == "lm-24" else 2) and all(one == flags for one in variants.values())
        assert (flags["--seed"], flags["--max-update"], flags["--lr"]) == (seed, "400", "1e-3")
        assert flags["--user-dir"] == "examples/inverted_gain" and model.endswith("-" + flags["--decoder-layers"])


@needs_venv
def test_every_method_is_trained_and_flags_are_passed_on(tmp_path):
    commands = [values(words) for words in trainings("later_methods", OUT=tmp_path / "out")]
    assert {(flags["--method"], flags["--encoder-layers"]) for flags in commands} >= {
        (name, depth) for name in METHODS for depth in ("6", "18")
    }
    word = "normformer+normformer-scale-residual+normformer-head-scale=none"
    (flags,) = map(values, trainings("later_methods", METHODS=word, DEPTHS=2, UPDATES=7, OUT=tmp_path / "out"))
    want = {"--normformer-scale-residual": "", "--normformer-head-scale": "none", "--max-update": "7"}
    assert want.items() <= flags.items() and flags["--save-dir"].endswith(f"{word.translate({43: 45, 61: 45})}-2-seed1")
