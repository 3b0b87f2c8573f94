"""Tests that configs/*.yaml train the same as the experiments of `deepnet reproduce`."""

import re
import shlex
from typing import NamedTuple

import pytest

from deepnet_fairseq.study import experiments
from deepnet_fairseq.tools.reproduce.commands import Setting
from deepnet_fairseq.tools.reproduce.corpus import corpus
from deepnet_fairseq.tools.reproduce.hardware import hardware

from ..support.configs import settings_of_flags, settings_of_yaml
from ..support.experiments import values
from ..support.helpers import ROOT


class Row(NamedTuple):
    """An experiment of `deepnet reproduce`, and the choices that leave one row of it, or rows of several seeds.

    Figure 7 offers no such choices; training_of takes one of its rows.
    """

    experiment: str
    choices: dict[str, list]


CONFIGS = {  # YAML -> the row that it trains
    "iwslt14_de_en": Row("iwslt14_de_en", {"methods": ["deepnorm"], "depths": ["18"]}),
    "table1_wmt17": Row("table1", {"methods": ["deepnorm"], "depths": ["18"]}),
    "figure7_wmt17_large": Row("figure7", {}),
    "opus100": Row("opus100", {"depths": ["36"]}),
    "table3_m2m": Row("table3", {}),
    "admin_wmt14": Row("admin_wmt14", {"methods": ["pre_ln"], "depths": ["18"]}),
    "admin_wmt14_en_fr": Row("admin_wmt14_en_fr", {"methods": ["pre_ln"], "depths": ["6-6"]}),
    "admin_iwslt14": Row("admin_iwslt14", {"methods": ["pre_ln"], "variants": ["warmup"]}),
    "normformer_lm": Row(
        "normformer_clm", {"sizes": ["125m"], "methods": ["normformer+scale_residual"], "rates": ["3e-3"]}
    ),
}
# The comments of some YAML files list what to override for other rows, each below its heading:
# YAML and heading -> the row.
IN_COMMENTS = {
    ("admin_wmt14_en_fr", "60L-12L"): Row("admin_wmt14_en_fr", {"methods": ["pre_ln"], "depths": ["60-12"]}),
    ("admin_iwslt14", "Without warm-up"): Row(
        "admin_iwslt14", {"methods": ["pre_ln"], "variants": ["no_warmup"], "seeds": [1111]}
    ),
    ("normformer_lm", "355M"): Row(
        "normformer_clm", {"sizes": ["355m"], "methods": ["normformer+scale_residual"], "rates": ["3e-3"]}
    ),
}
# Flags that decide which settings there are, and --total-num-update, without which one of them cannot be parsed.
KINDS = {"--arch", "--task", "--criterion", "--optimizer", "--lr-scheduler", "--total-num-update"}
ALWAYS_SET = {"optimization.lr", "model.dropout", "dataset.max_tokens", "optimizer.weight_decay"}


def training_of(row: Row, folder) -> list[str]:
    """Return the arguments of fairseq-train for the row of an experiment, on the paper's GPUs.

    folder: for the data and the run, which are not made.
    """
    experiment = experiments.with_choices(experiments.read_experiment(row.experiment), **row.choices)
    is_of_language_models = "sizes" in row.choices
    data = str(folder) if is_of_language_models else None
    setting = Setting(
        experiment=experiment,
        hardware=hardware(papers_gpus=experiment["gpus"], only_printed=True),
        corpus=corpus(experiment, folder / "out", data=data),
        out=folder / "out",
        planned=False,  # as the YAML files, which know no GPU
    )

    rows = setting.rows()
    # the last three rows of Figure 7 are its panel of sizes, which begins with the width that the YAML file has
    chosen = rows[-3] if row.experiment == "figure7" else rows[0]
    return setting.training(chosen)


def overrides_in_comments(name, heading) -> list[str]:
    """Return the words below the comment "# HEADING:" of a YAML file, as a shell would split them."""
    text = (ROOT / f"configs/{name}.yaml").read_text()
    (lines,) = re.findall(rf"{heading}:\n((?:#   .*\n)+)", text)
    words = shlex.split(lines.replace("#   ", "").replace("\\\n", ""))
    return [word for word in words if not word.startswith("#")]


def default_settings(words, folder) -> dict[str, object]:
    """Return fairseq's default settings for the model, task and optimiser of these arguments of fairseq-train."""
    bare = []
    for flag, value in values(words).items():
        if flag in KINDS:
            bare += [flag, value]
    return settings_of_flags(["", *bare], folder)


class Compared(NamedTuple):
    """Settings of a training as section.key -> value: of a YAML file, of the experiment's row, fairseq's defaults."""

    of_yaml: dict[str, object]
    of_experiment: dict[str, object]
    defaults: dict[str, object]


def name_of_case(case: str | tuple[str, str]) -> str:
    return case if isinstance(case, str) else "-".join(case)


@pytest.fixture(scope="module", params=[*CONFIGS, *IN_COMMENTS], ids=name_of_case)
def compared(request, tmp_path_factory):
    """Provide the Compared settings of every YAML file, and of every row that its comments list."""
    if request.param in CONFIGS:
        name = request.param
        row = CONFIGS[name]
        overrides = []
    else:
        name, heading = request.param
        row = IN_COMMENTS[name, heading]
        overrides = overrides_in_comments(name, heading)
    folder = tmp_path_factory.mktemp("data")
    for file in ("dict.txt", "train.idx"):  # files that mark data for language models
        (folder / file).touch()

    words = training_of(row, folder)
    return Compared(
        of_yaml=settings_of_yaml(name, overrides=overrides),
        of_experiment=settings_of_flags(words, folder),
        defaults=default_settings(words, folder),
    )


def test_every_yaml_is_compared():
    files = {path.stem for path in (ROOT / "configs").glob("*.yaml")}

    assert files == CONFIGS.keys() | {"quickstart"}  # which is of no paper


def test_a_yaml_file_has_the_settings_of_the_experiment_s_row(compared):
    """What the file leaves out is fairseq's default."""
    yaml = compared.of_yaml
    with_defaults = {}
    for key in compared.of_experiment:
        with_defaults[key] = yaml.get(key, compared.defaults.get(key))

    assert yaml.keys() >= ALWAYS_SET
    assert with_defaults == compared.of_experiment


def test_a_yaml_file_sets_nothing_that_the_experiment_does_not_have(compared):
    only_in_yaml = compared.of_yaml.keys() - compared.of_experiment.keys()

    for key in only_in_yaml:
        assert compared.of_yaml[key] in (None, False), key
