"""Tests of small experiments on the quickstart's corpus: an inverted gain, and the methods' first updates."""

import re

import pytest

from deepnet_fairseq.core.methods import METHODS

from ..support.experiments import needs_venv, trainings, values

Rows = dict[str, dict[str, str]]  # method -> flags of its training, without the method and the folder


@pytest.fixture(scope="module")
def trainings_by_model_and_seed(tmp_path_factory) -> dict[tuple[str, str], Rows]:
    """Provide (model, seed) -> the trainings of each method, from a dry run of the inverted gain."""
    out = tmp_path_factory.mktemp("dry run") / "out"
    groups: dict[tuple[str, str], Rows] = {}
    for words in trainings("inverted_gain", OUT=out):
        flags = values(words)
        model, _, seed = re.fullmatch(r".*/(\w+-\d+)(.*)-seed(\d)", flags.pop("--save-dir")).groups()
        method = flags.pop("--method")
        groups.setdefault((model, seed), {})[method] = flags | {"data": words[0]}
    assert not out.exists()
    return groups


@needs_venv
def test_trainings_of_an_inverted_gain_differ_in_the_method_alone(trainings_by_model_and_seed):
    assert len(trainings_by_model_and_seed) == 12
    for rows in trainings_by_model_and_seed.values():
        for flags in rows.values():
            assert flags == rows["deepnorm"]


@needs_venv
def test_wrong_alphas_are_trained_as_language_models_of_24_layers_alone(trainings_by_model_and_seed):
    for (model, _), rows in trainings_by_model_and_seed.items():
        assert len(rows) == (4 if model == "lm-24" else 2)


@needs_venv
def test_trainings_of_an_inverted_gain_have_the_model_and_seed_of_their_name(trainings_by_model_and_seed):
    for (model, seed), rows in trainings_by_model_and_seed.items():
        flags = rows["deepnorm"]
        assert flags["--seed"] == seed
        assert model.endswith("-" + flags["--decoder-layers"])
        assert flags["--max-update"] == "400"
        assert flags["--lr"] == "1e-3"
        assert flags["--user-dir"] == "examples/inverted_gain"


@needs_venv
def test_later_methods_has_trainings_of_every_method_at_6_and_18_layers(tmp_path):
    """As its dry run lists them."""
    rows = [values(words) for words in trainings("later_methods", OUT=tmp_path / "out")]

    trained = {(flags["--method"], flags["--encoder-layers"]) for flags in rows}
    for method in METHODS:
        assert {(method, "6"), (method, "18")} <= trained


@needs_venv
def test_later_methods_takes_a_method_with_its_options(tmp_path):
    word = "normformer+normformer-scale-residual+normformer-head-scale=none"

    (words,) = trainings("later_methods", METHODS=word, DEPTHS=2, UPDATES=7, OUT=tmp_path / "out")

    flags = values(words)
    assert flags["--normformer-scale-residual"] == ""
    assert flags["--normformer-head-scale"] == "none"
    assert flags["--max-update"] == "7"
    assert flags["--save-dir"].endswith("normformer-normformer-scale-residual-normformer-head-scale-none-2-seed1")
