"""Tests that configs/*.yaml train the same as the experiments of `deepnet reproduce`."""

import re
import shlex

import pytest

from deepnet_fairseq.study import experiments
from deepnet_fairseq.tools.reproduce.commands import Setting
from deepnet_fairseq.tools.reproduce.corpus import corpus
from deepnet_fairseq.tools.reproduce.hardware import hardware

from ..support.configs import settings_of_flags, settings_of_yaml
from ..support.experiments import values
from ..support.helpers import ROOT

CONFIGS = {  # YAML -> experiment, and the choices that leave its row
    "iwslt14_de_en": ("iwslt14_de_en", {"methods": ["deepnorm"], "depths": ["18"]}),
    "table1_wmt17": ("table1", {"methods": ["deepnorm"], "depths": ["18"]}),
    "figure7_wmt17_large": ("figure7", {}),
    "opus100": ("opus100", {"depths": ["36"]}),
    "table3_m2m": ("table3", {}),
    "admin_wmt14": ("admin_wmt14", {"methods": ["pre_ln"], "depths": ["18"]}),
    "admin_wmt14_en_fr": ("admin_wmt14_en_fr", {"methods": ["pre_ln"], "depths": ["6-6"]}),
    "admin_iwslt14": ("admin_iwslt14", {"methods": ["pre_ln"], "variants": ["warmup"]}),
    "normformer_lm": (
        "normformer_clm",
        {"sizes": ["125m"], "methods": ["normformer+scale_residual"], "rates": ["3e-3"]},
    ),
}
IN_COMMENTS = {  # YAML and the row whose overrides its comments list -> choices that leave that row
    ("admin_wmt14_en_fr", "60L-12L"): {"methods": ["pre_ln"], "depths": ["60-12"]},
    ("admin_iwslt14", "Without warm-up"): {"methods": ["pre_ln"], "variants": ["no_warmup"], "seeds": [1111]},
    ("normformer_lm", "355M"): {"sizes": ["355m"], "methods": ["normformer+scale_residual"], "rates": ["3e-3"]},
}
KINDS = {"--arch", "--task", "--criterion", "--optimizer", "--lr-scheduler", "--total-num-update"}  # and their needs


ALWAYS_SET = {"optimization.lr", "model.dropout", "dataset.max_tokens", "optimizer.weight_decay"}


def trainings_of(name, choices, folder) -> list[list[str]]:
    """Return the arguments of fairseq-train for each row of an experiment, on the paper's GPUs."""
    experiment = experiments.with_choices(experiments.read_experiment(name), **choices)
    data = str(folder) if "sizes" in choices else None
    setting = Setting(
        experiment=experiment,
        hardware=hardware(papers_gpus=experiment["gpus"], only_printed=True),
        corpus=corpus(experiment, folder / "out", data=data),
        out=folder / "out",
        planned=False,  # as the YAML files, which know no GPU
    )
    return [setting.training(row) for row in setting.rows()]


def overrides_in_comments(name, row) -> list[str]:
    """Return the words below the comment "# ROW:", as a shell would split them."""
    text = (ROOT / f"configs/{name}.yaml").read_text()
    (lines,) = re.findall(rf"{row}:\n((?:#   .*\n)+)", text)
    words = shlex.split(lines.replace("#   ", "").replace("\\\n", ""))
    return [word for word in words if word[0] != "#"]


def default_settings(words, folder) -> dict[str, object]:
    """Return fairseq's default settings for the model, task and optimiser of these arguments of fairseq-train."""
    bare = []
    for flag, value in values(words).items():
        if flag in KINDS:
            bare += [flag, value]
    return settings_of_flags(["", *bare], folder)


@pytest.fixture(params=[*((name, "") for name in CONFIGS), *IN_COMMENTS], ids="-".join)
def yaml_and_training(request, tmp_path):
    """Provide the settings of a YAML file, those of the experiment's row, and fairseq's defaults for both."""
    name, row = request.param
    experiment, choices = CONFIGS[name]
    choices = IN_COMMENTS.get((name, row), choices)
    overrides = overrides_in_comments(name, row) if row else []
    for file in ("dict.txt", "train.idx"):  # files that mark data for language models
        (tmp_path / file).touch()
    rows = trainings_of(experiment, choices, tmp_path)
    chosen = rows[-3] if experiment == "figure7" else rows[0]  # the panel of sizes begins with the base width
    yaml = settings_of_yaml(name, overrides=overrides)
    return yaml, settings_of_flags(chosen, tmp_path), default_settings(chosen, tmp_path)


def test_every_yaml_is_compared():
    files = {path.stem for path in (ROOT / "configs").glob("*.yaml")}

    assert files == CONFIGS.keys() | {"quickstart"}


def test_yaml_and_experiment_train_the_same(yaml_and_training):
    """A YAML file has every setting of the experiment's row; settings it leaves out are fairseq's defaults in both."""
    yaml, training, default = yaml_and_training

    assert yaml.keys() >= ALWAYS_SET
    assert {key: yaml.get(key, default.get(key)) for key in training} == training
    more = yaml.keys() - training.keys()
    assert not {key for key in more if yaml[key] not in (None, False)}
