"""Tests of a method of a `--user-dir`: its options are flags and fields of configs, as those of the package's methods.

The method's title, and its colour and marker in pictures, are tested here, too. test_user_dir_constants.py has the
tests of its constants.
"""

import dataclasses
import json
import pickle
import re

import pytest
import torch
from fairseq.models import MODEL_DATACLASS_REGISTRY
from hydra.core.config_store import ConfigStore

import deepnet_fairseq
from deepnet_fairseq.core import archs, load, save
from deepnet_fairseq.core import models as core_models
from deepnet_fairseq.core.methods import METHODS, Method, Option, register
from deepnet_fairseq.core.methods.deepnorm import DeepNorm
from deepnet_fairseq.core.modifiers import MODIFIERS, Modifier, register_modifier
from deepnet_fairseq.plugin import flags
from deepnet_fairseq.plugin.building import build
from deepnet_fairseq.study.plots import style_of
from deepnet_fairseq.tools.plan import setting

from ..conftest import TRAIN_FLAGS
from ..support.errors import refused
from ..support.helpers import SMALL, USER_DIR, VOCAB, run, run_cold, small
from ..support.lives import TINY
from ..support.own_methods import ScaledBranch, method_with, registered, registered_modifier

# A package with the method own_scale: its option c is the factor, and its option by says whether layers divide it.
PACKAGE = '''
"""y = LN(x + c f), c / l in layer l."""

import torch
from torch import nn

import deepnet_fairseq

deepnet_fairseq.register()

from deepnet_fairseq.core.methods import Method, Option, register
from deepnet_fairseq.errors import UserError


class ConstantBranch(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c

    def forward(self, x, f):
        return torch.add(x, f, alpha=self.c)


@register("own_scale")
class OwnScale(Method):
    equation = "LN(x + c f(x) / l)"
    paper = "a test"
    options = {"c": Option(0.5, "factor of the first layer"), "by": Option("layer", "what", ("layer", "nothing"))}

    def check(self):
        if self.c <= 0:
            raise UserError(f"{self.flag('c')} {self.c}: must be above 0")

    def residual(self, site):
        return ConstantBranch(self.c / site.layer if self.by == "layer" else self.c)
'''
POSITIONS = ("--max-source-positions", "200", "--max-target-positions", "200")
# flags with which fairseq-generate searches as `deepnet translate` does; 199: of 200 positions one is for eos
SEARCH = ("--cpu", "--beam", "5", "--unkpen", "1e9", "--max-len-b", "199", "--remove-bpe", "sentencepiece")
TEST_LINES = 20  # in the fixture `data`


# A package with one method, trained by fairseq-train


@pytest.fixture(scope="module")
def own_package(tmp_path_factory):
    """Provide the folder of PACKAGE."""
    folder = tmp_path_factory.mktemp("user_dir") / "own_methods"
    folder.mkdir()
    (folder / "__init__.py").write_text(PACKAGE)
    return folder


@pytest.fixture(scope="module")
def training_command(own_package, data):
    """Provide the command that trains a model of own_scale, without its save folder and the method's options."""
    common = [own_package if flag == USER_DIR else flag for flag in TRAIN_FLAGS]
    return ("fairseq-train", data, *common, *TINY, *POSITIONS, "--max-update", "2", "--method", "own_scale")


@pytest.fixture(scope="module")
def trained_checkpoint(training_command, tmp_path_factory):
    """Provide a checkpoint of own_scale after two updates with --own-scale-c 0.3."""
    folder = tmp_path_factory.mktemp("run")
    run_cold(*training_command, "--own-scale-c", "0.3", "--save-dir", folder)
    return folder / "checkpoint_last.pt"


def test_a_checkpoint_holds_the_options_of_its_method(trained_checkpoint):
    settings = torch.load(trained_checkpoint)["cfg"]["model"]

    assert settings["own_scale_c"] == 0.3
    assert settings["own_scale_by"] == "layer"


def test_deepnet_and_fairseq_translate_alike_with_the_user_dir(trained_checkpoint, own_package, data):
    """fairseq-generate prints D-NUMBER, a score and the translation, in another order than that of the lines."""
    user_dir = ("--user-dir", own_package)

    generated = run("fairseq-generate", data, *user_dir, "--path", trained_checkpoint, *SEARCH).stdout
    translated = run("deepnet", "translate", trained_checkpoint, data.parent / "text" / "test.qaa", *user_dir).stdout

    by_line_number = dict(re.findall(r"^D-(\d+)\t[^\t]+\t(.*)$", generated, re.MULTILINE))
    expected = [by_line_number[str(number)] for number in range(TEST_LINES)]
    assert translated.split("\n")[:TEST_LINES] == expected
    assert len(set(expected)) > 1  # translations differ from line to line


def assert_asks_for_the_user_dir(done, checkpoint) -> None:
    """Check that a program fails with a last line that names the checkpoint, its method and --user-dir."""
    assert done.returncode != 0
    assert "Traceback" not in done.stdout
    last_line = done.stdout.strip().split("\n")[-1]
    assert f"{checkpoint}: --method own_scale" in last_line
    assert "--user-dir" in last_line


def test_translating_without_the_user_dir_asks_for_it(trained_checkpoint, data):
    done = run("deepnet", "translate", trained_checkpoint, data.parent / "text" / "test.qaa", check=False)

    assert_asks_for_the_user_dir(done, trained_checkpoint)


def test_generating_with_another_user_dir_asks_for_the_right_one(trained_checkpoint, data):
    user_dir = ("--user-dir", USER_DIR)

    done = run("fairseq-generate", data, *user_dir, "--path", trained_checkpoint, "--cpu", check=False)

    assert_asks_for_the_user_dir(done, trained_checkpoint)


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        pytest.param(("--own-scale-c", "much"), "--own-scale-c", id="no number"),
        pytest.param(("--own-scale-c", "-1"), "--own-scale-c", id="refused by the method"),
        pytest.param(("--own-scale-by", "size"), "--own-scale-by", id="none of the choices"),
        pytest.param(("--method", "post_ln", "--own-scale-c", "0.3"), "--own-scale-c", id="of another method"),
    ],
)
def test_a_training_refuses_a_wrong_option_by_its_flag(training_command, words, flag, tmp_path):
    done = run(*training_command, *words, "--save-dir", tmp_path, check=False)

    assert done.returncode == 2
    assert flag in done.stderr.strip().split("\n")[-1]
    assert "Traceback" not in done.stderr


def test_a_training_does_not_resume_with_another_option(training_command, trained_checkpoint):
    """The factor is a constant of the model: residual_c."""
    command = (*training_command, "--own-scale-c", "0.4", "--save-dir", trained_checkpoint.parent)

    done = run(*command, check=False)

    assert done.returncode == 1
    assert f"{trained_checkpoint}: encoder.residual_c" in done.stdout


def test_deepnet_plan_takes_the_option(own_package):
    """An unknown flag would end the program with an error."""
    words = ("--user-dir", own_package, "--method", "own_scale", "--own-scale-c", "0.3", "--cpu")

    done = run("deepnet", "plan", *words)

    assert "own_scale" in done.stdout


def test_deepnet_methods_lists_the_flag_of_the_option(own_package):
    done = run("deepnet", "methods", "own_scale", "--user-dir", own_package)

    assert "--own-scale-c" in done.stdout


def test_the_card_of_an_own_method_trains_with_its_user_dir(own_package):
    done = run("deepnet", "methods", "own_scale", "--user-dir", own_package, "--json")

    assert f"--user-dir {own_package} --method own_scale" in json.loads(done.stdout)["to train"]


def test_deepnet_check_takes_the_option(training_command):
    """An unknown flag would end the program with an error."""
    words = ("--updates", "11", *training_command, "--own-scale-c", "0.3")

    done = run("deepnet", "check", *words)

    assert "own_scale" in done.stdout


# Options of a method that is registered after the package has registered its models' configs with fairseq


@pytest.fixture
def example():
    """Provide the name of a method that has just been registered: x + c f, with the options c (default 0.5) and by."""
    deepnet_fairseq.register()
    options = {"c": Option(0.5, "factor of the branch"), "by": Option("x", "", ("x", "y"))}
    method = method_with(options=options, residual=lambda self, site: ScaledBranch(self.c))
    with registered(method) as name:
        yield name


def shallow(name: str, c: object) -> dict:
    """Return the config fields of a model of the method `name`, with one layer a stack and the option c."""
    return {"method": name, f"{name}_c": c, "encoder_layers": 1, "decoder_layers": 1}


def test_fairseqs_build_computes_with_an_option(example):
    model = build(vocab=VOCAB, **SMALL, **shallow(example, c=0.3))

    assert model.encoder.constants == {"residual_c": 0.3}


def test_a_saved_model_loads_with_its_option(example, tmp_path):
    save(core_models.build("deepnet_transformer_tiny", VOCAB, **shallow(example, c=0.3)), tmp_path / "model.pt")

    assert load(tmp_path / "model.pt").method.c == 0.3


def test_a_saved_model_of_a_method_that_is_not_registered_is_refused(tmp_path):
    with registered(method_with()) as name:
        fields = {"method": name, "encoder_layers": 1, "decoder_layers": 1}
        save(core_models.build("deepnet_transformer_tiny", VOCAB, **fields), tmp_path / "model.pt")

    with refused(tmp_path / "model.pt") as caught:
        load(tmp_path / "model.pt")

    assert f"--method {name}" in caught.value.way_out
    assert "--user-dir" in caught.value.way_out


def test_flags_of_a_plan_set_an_option(example):
    plan = setting.parse_setting(["--method", example, f"--{example}-c", "0.3"])

    assert getattr(plan.cfg, f"{example}_c") == 0.3


@pytest.mark.parametrize("model", archs.STACKS)
def test_an_option_is_a_field_of_fairseqs_config(model, example):
    """The config class is made anew with the option, can be pickled, and is the one that fairseq and hydra have."""
    config_class = flags.CONFIGS[model]

    assert MODEL_DATACLASS_REGISTRY[model] is config_class
    assert pickle.loads(pickle.dumps(config_class)) is config_class
    assert ConfigStore.instance().load(f"model/{model}.yaml").node[f"{example}_c"] == 0.5


def test_every_model_of_the_package_has_a_config_of_fairseqs():
    deepnet_fairseq.register()

    assert flags.CONFIGS.keys() == archs.STACKS.keys()


@pytest.mark.parametrize("wrong", ["0.3", True, None])  # "0.3" is a text, and YAML reads 3e-1 as a text, too
def test_an_option_of_another_type_is_refused_by_its_flag(wrong, example):
    with refused(f"--{example}-c"):
        core_models.build(vocab=VOCAB, **shallow(example, c=wrong))


class OwnModifier(Modifier):
    """A modifier that changes nothing, with an option."""

    help = ""
    options = {"rate": Option(0.5, "rate")}


def test_a_modifier_and_its_option_are_fields_of_a_config():
    deepnet_fairseq.register()

    with registered_modifier(OwnModifier, "own_modifier"):
        fields = {field.name for field in dataclasses.fields(flags.CONFIGS["deepnet_lm"])}

    assert "own_modifier" in fields
    assert "own_modifier_rate" in fields


def test_a_modifiers_option_of_another_type_is_refused_by_its_flag():
    deepnet_fairseq.register()

    with registered_modifier(OwnModifier, "own_modifier"), refused("--own-modifier-rate"):
        small(own_modifier=True, own_modifier_rate="0.5")


def test_an_option_may_not_have_the_name_of_another_field():
    """The option `layers` of a method `encoder` would be the field encoder_layers, which the config has already."""

    class TakenName(Method):
        equation = "y"
        paper = ""
        options = {"layers": Option(6, "")}

    with refused("encoder_layers"):
        register("encoder")(TakenName)

    assert "encoder" not in METHODS


@pytest.mark.parametrize(
    ("name", "key"),
    [
        pytest.param("max", "tokens", id="of fairseq-train"),
        pytest.param("weight", "decay", id="of an optimiser"),
        pytest.param("lr", "scheduler", id="of the schedule's name"),
        pytest.param("sampling", "temperature", id="of a task without a dataclass"),
        pytest.param("probe", "interval", id="of the package's trainings"),
    ],
)
def test_an_option_may_not_have_the_flag_of_another_setting(name, key):
    """A value of the flag would set the option and the other setting."""
    deepnet_fairseq.register()
    method = method_with(options={key: Option(0.5, "")})

    with refused("OwnMethod", repr(key)) as caught:
        register(name)(method)

    assert method.flag(key) in caught.value.way_out
    assert name not in METHODS


def test_a_modifier_may_not_have_the_flag_of_another_setting():
    deepnet_fairseq.register()
    modifier = type("TakenName", (OwnModifier,), {})

    with refused("TakenName"):
        register_modifier("max_tokens")(modifier)

    assert "max_tokens" not in MODIFIERS


# Titles and looks


def test_post_ln_has_a_title_of_its_own():
    assert METHODS["post_ln"].title == "Post-LN"


def test_the_title_of_a_method_without_one_is_its_name():
    with registered(method_with()) as name:
        assert METHODS[name].title == name.capitalize()
        assert style_of(name).label == name.capitalize()


def test_the_title_that_a_method_gives_itself_is_shown_in_pictures():
    with registered(method_with(title="My LN")) as name:
        assert style_of(name).label == "My LN"


def test_a_method_does_not_take_over_the_title_of_its_base_class():
    class OwnDeepNorm(DeepNorm):
        pass

    with registered(OwnDeepNorm) as name:
        assert METHODS[name].title == name.capitalize()
        assert METHODS[name].title != DeepNorm.title


def test_every_method_has_a_colour_and_marker_of_its_own_in_pictures():
    """The methods are those of the package, and two more."""
    with registered(method_with()) as first, registered(method_with()) as second:
        styles = [style_of(name) for name in METHODS]

    looks = [(style.colour, style.marker) for style in styles]
    assert first != second
    assert len(set(looks)) == len(looks)
    assert len(looks) == len(METHODS) + 2
