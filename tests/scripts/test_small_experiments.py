"""Tests of small experiments on the quickstart's corpus, by the trainings that their dry runs list.

scripts/inverted_gain.sh compares DeepNorm with the mistakes of examples/inverted_gain, for 400 updates, and
scripts/later_methods.sh compares all methods.
"""

import re

import pytest

from deepnet_fairseq.core.methods import METHODS

from ..support.experiments import needs_venv, trainings, values

FlagsByMethod = dict[str, dict[str, str]]  # method -> flags of its training, without --method and --save-dir


@pytest.fixture(scope="module")
def trainings_by_model_and_seed(tmp_path_factory) -> dict[tuple[str, str], FlagsByMethod]:
    """Provide (model, seed) -> the trainings of each method, from a dry run of the inverted gain, which writes nothing.

    A model is named by its kind and layers, as lm-24 for a language model. The flags have the data too.
    """
    out = tmp_path_factory.mktemp("dry run") / "out"
    groups: dict[tuple[str, str], FlagsByMethod] = {}
    for data, *words in trainings("inverted_gain", OUT=out):
        flags = values(words)
        save_dir = flags.pop("--save-dir")  # .../MODEL-VARIANT-seedSEED
        model, seed = re.fullmatch(r".*/(\w+-\d+).*-seed(\d)", save_dir).groups()
        method = flags.pop("--method")
        groups.setdefault((model, seed), {})[method] = flags | {"data": data}
    assert not out.exists()
    return groups


@needs_venv
def test_trainings_of_an_inverted_gain_differ_in_the_method_alone(trainings_by_model_and_seed):
    """All trainings of one model and seed have the same data and other flags. There are 4 models and 3 seeds."""
    models = {model for model, _seed in trainings_by_model_and_seed}
    seeds = {seed for _model, seed in trainings_by_model_and_seed}

    assert len(models) == 4
    assert seeds == {"1", "2", "3"}
    for flags_by_method in trainings_by_model_and_seed.values():
        for flags in flags_by_method.values():
            assert flags == flags_by_method["deepnorm"]


@needs_venv
def test_wrong_alphas_are_trained_as_language_models_of_24_layers_alone(trainings_by_model_and_seed):
    """Every model has DeepNorm and the inverted gain; a language model of 24 layers has two wrong alphas, too."""
    assert "lm-24" in {model for model, _seed in trainings_by_model_and_seed}
    for (model, _seed), flags_by_method in trainings_by_model_and_seed.items():
        assert len(flags_by_method) == (2 + 2 if model == "lm-24" else 2)


@needs_venv
def test_trainings_of_an_inverted_gain_have_the_model_and_seed_of_their_name(trainings_by_model_and_seed):
    for (model, seed), flags_by_method in trainings_by_model_and_seed.items():
        flags = flags_by_method["deepnorm"]
        assert flags["--seed"] == seed
        assert model.endswith("-" + flags["--decoder-layers"])


@needs_venv
def test_trainings_of_an_inverted_gain_use_the_example_s_methods(trainings_by_model_and_seed):
    """Each training has 400 updates at the quickstart's rate, 1e-3."""
    for flags_by_method in trainings_by_model_and_seed.values():
        flags = flags_by_method["deepnorm"]
        assert flags["--user-dir"] == "examples/inverted_gain"
        assert flags["--lr"] == "1e-3"
        assert flags["--max-update"] == "400"


@needs_venv
def test_later_methods_has_trainings_of_every_method_at_6_and_18_layers(tmp_path):
    rows = [values(words) for words in trainings("later_methods", OUT=tmp_path / "out")]

    trained = {(flags["--method"], flags["--encoder-layers"]) for flags in rows}
    for method in METHODS:
        assert {(method, "6"), (method, "18")} <= trained


@needs_venv
def test_later_methods_takes_a_method_with_its_options(tmp_path):
    """METHODS has the form METHOD+OPTION+OPTION=VALUE. The run's folder is named after all of it."""
    word = "normformer+normformer-scale-residual+normformer-head-scale=none"

    (words,) = trainings("later_methods", METHODS=word, DEPTHS=2, UPDATES=7, OUT=tmp_path / "out")

    flags = values(words)
    assert flags["--normformer-scale-residual"] == ""
    assert flags["--normformer-head-scale"] == "none"
    assert flags["--max-update"] == "7"
    assert flags["--save-dir"].endswith("normformer-normformer-scale-residual-normformer-head-scale-none-2-seed1")
