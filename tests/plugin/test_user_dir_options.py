"""Tests that a method of a `--user-dir` is equal to ours: options are flags, titles are shown, constants compared."""

import contextlib
import dataclasses
import pickle
import re
from itertools import count

import pytest
import torch
from fairseq.models import MODEL_DATACLASS_REGISTRY
from hydra.core.config_store import ConfigStore
from torch import nn

import deepnet_fairseq
from deepnet_fairseq.core import load, save
from deepnet_fairseq.core import models as core_models
from deepnet_fairseq.core.methods import METHODS, Method, Option, register
from deepnet_fairseq.core.methods.base import REGISTRATION_LISTENERS
from deepnet_fairseq.core.methods.deepnorm import DeepNorm
from deepnet_fairseq.core.modifiers import MODIFIERS, Modifier, register_modifier
from deepnet_fairseq.core.slots import Residual
from deepnet_fairseq.errors import UserError
from deepnet_fairseq.plugin import flags
from deepnet_fairseq.plugin.building import build
from deepnet_fairseq.study.plots import style_of
from deepnet_fairseq.tools.plan import setting

from ..conftest import TRAIN_FLAGS
from ..support.helpers import SMALL, USER_DIR, VOCAB, batch, logits, run, run_cold, small
from ..support.lives import TINY

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
SEARCH = ("--cpu", "--beam", "5", "--unkpen", "1e9", "--max-len-b", "199", "--remove-bpe", "sentencepiece")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Provide a package outside ours that registers own_scale, whose options decide its constants."""
    place = tmp_path_factory.mktemp("strangers") / "own_methods"
    place.mkdir()
    (place / "__init__.py").write_text(PACKAGE)
    return place


@pytest.fixture(scope="module")
def command(folder, data):
    """Provide the command that trains a model of own_scale, without its folder and the method's options."""
    words = [folder if flag == USER_DIR else flag for flag in TRAIN_FLAGS]
    return ("fairseq-train", data, *words, *TINY, *POSITIONS, "--max-update", "2", "--method", "own_scale")


@pytest.fixture(scope="module")
def checkpoint(command, tmp_path_factory):
    """Provide a checkpoint of own_scale after two updates with --own-scale-c 0.3."""
    save_dir = tmp_path_factory.mktemp("run")
    run_cold(*command, "--own-scale-c", "0.3", "--save-dir", save_dir)
    return save_dir / "checkpoint_last.pt"


# Options


def test_a_checkpoint_keeps_the_value_of_a_flag(checkpoint):
    model = torch.load(checkpoint)["cfg"]["model"]
    assert (model["own_scale_c"], model["own_scale_by"]) == (0.3, "layer")


def test_a_checkpoint_translates_with_its_folder(checkpoint, folder, data):
    """`deepnet translate --user-dir` and fairseq-generate give the same text."""
    generated = run("fairseq-generate", data, "--user-dir", folder, "--path", checkpoint, *SEARCH).stdout
    by_number = dict(re.findall(r"^D-(\d+)\t[^\t]+\t(.*)$", generated, re.MULTILINE))
    lines = data.parent / "text" / "test.qaa"
    ours = run("deepnet", "translate", checkpoint, lines, "--user-dir", folder).stdout
    wanted = [by_number[str(number)] for number in range(20)]
    assert ours.split("\n")[:20] == wanted and len(set(wanted)) > 1


def test_a_checkpoint_of_an_unknown_method_asks_for_its_folder(checkpoint, folder, data):
    text = data.parent / "text" / "test.qaa"
    own = ("--user-dir", USER_DIR)
    for words in (
        ("deepnet", "translate", checkpoint, text),
        ("fairseq-generate", data, *own, "--path", checkpoint, "--cpu"),
    ):
        last = run(*words, check=False).stdout.strip().split("\n")[-1]
        assert f"{checkpoint}: --method own_scale" in last and "--user-dir" in last


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--own-scale-c", "much"), "--own-scale-c"),
        (("--own-scale-c", "-1"), "--own-scale-c"),
        (("--own-scale-by", "size"), "--own-scale-by"),
        (("--method", "post_ln", "--own-scale-c", "0.3"), "--own-scale-c"),
    ],
)
def test_a_wrong_value_is_refused_by_its_flag(command, words, named, tmp_path):
    ended = run(*command, *words, "--save-dir", tmp_path, check=False)
    assert ended.returncode == 2
    assert named in ended.stderr.strip().split("\n")[-1] and "Traceback" not in ended.stderr


def test_a_training_does_not_resume_with_another_constant(command, checkpoint):
    ended = run(*command, "--own-scale-c", "0.4", "--save-dir", checkpoint.parent, check=False)
    assert ended.returncode == 1 and f"{checkpoint}: encoder.residual_c" in ended.stdout


def test_the_commands_take_the_flag(folder, command):
    own = ("--user-dir", folder, "--method", "own_scale")
    assert "own_scale" in run("deepnet", "plan", *own, "--own-scale-c", "0.3", "--cpu").stdout
    assert "--own-scale-c" in run("deepnet", "methods", "own_scale", "--user-dir", folder).stdout
    assert "own_scale" in run("deepnet", "check", "--updates", "11", *command, "--own-scale-c", "0.3").stdout


NAMES = count()


@contextlib.contextmanager
def registered(method: type[Method]):
    """Register a method under a name of its own while the context lasts, and yield the name."""
    name = f"stranger{next(NAMES)}"
    register(name)(method)
    try:
        yield name
    finally:
        del METHODS[name]
        for listener in REGISTRATION_LISTENERS:
            listener()


def method_of(module: type[nn.Module], *values, **members) -> type[Method]:
    """Return a method with module(*values) as every residual."""
    own = {"equation": "y", "paper": "a test", "residual": lambda self, site: module(*values)}
    return type("Own", (Method,), own | members)


class Factor(Residual):
    """Merge x + c f."""

    def __init__(self, c=0.5):
        super().__init__()
        self.c = c

    def forward(self, x, f):
        return x + self.c * f


def test_an_option_is_a_field_of_every_config(tmp_path):
    """An option of a method that is registered late is a field for both builds, a saved model, and `deepnet plan`."""
    deepnet_fairseq.register()
    options = {"c": Option(0.5, "c"), "by": Option("x", "", ("x", "y"))}
    own = method_of(Factor, options=options, residual=lambda self, site: Factor(self.c))
    with registered(own) as name:
        chosen = {"method": name, f"{name}_c": 0.3, "encoder_layers": 1, "decoder_layers": 1}
        assert build(vocab=VOCAB, **SMALL, **chosen).encoder.constants == {"residual_c": 0.3}
        model = core_models.build("deepnet_transformer_tiny", VOCAB, **chosen)
        save(model, tmp_path / "model.pt")
        assert load(tmp_path / "model.pt").method.c == 0.3

        cfg = setting.parse_setting(["--method", name, f"--{name}-c", "0.3"]).cfg
        assert getattr(cfg, f"{name}_c") == 0.3

        for model_name, kind in flags.CONFIGS.items():
            assert kind is MODEL_DATACLASS_REGISTRY[model_name] is pickle.loads(pickle.dumps(kind))
            assert ConfigStore.instance().load(f"model/{model_name}.yaml").node[f"{name}_c"] == 0.5

        for wrong in ("0.3", True, None):  # YAML reads 3e-1 as a text
            with pytest.raises(UserError, match=f"--{name}-c"):
                core_models.build(vocab=VOCAB, **chosen | {f"{name}_c": wrong})

    with pytest.raises(UserError, match=f"--method {name}: .*--user-dir"):
        load(tmp_path / "model.pt")


def test_a_modifier_is_a_flag_too():
    deepnet_fairseq.register()
    modifier = type("Own", (Modifier,), {"help": "", "options": {"rate": Option(0.5, "rate")}})
    register_modifier("own_modifier")(modifier)
    try:
        fields = {field.name for field in dataclasses.fields(flags.CONFIGS["deepnet_lm"])}
        assert {"own_modifier", "own_modifier_rate"} <= fields
        with pytest.raises(UserError, match="--own-modifier-rate"):
            small(own_modifier=True, own_modifier_rate="0.5")
    finally:
        del MODIFIERS["own_modifier"]
        for listener in REGISTRATION_LISTENERS:
            listener()


def test_an_option_may_not_have_the_name_of_another_field():
    with registered(method_of(Factor)):
        taken = type("Taken", (Method,), {"equation": "y", "paper": "", "options": {"layers": Option(6, "")}})
        with pytest.raises(ValueError, match="encoder_layers"):
            register("encoder")(taken)
        assert "encoder" not in METHODS


# Titles


def test_titles():
    """A method's title is its own, or follows from its name; one of a base class is not taken over."""
    assert METHODS["post_ln"].title == "Post-LN"
    with registered(method_of(Factor)) as name:
        assert METHODS[name].title == style_of(name).label == name.capitalize()
    with registered(method_of(Factor, title="My LN")) as name:
        assert style_of(name).label == "My LN"
    with registered(type("Own", (DeepNorm,), {})) as name:
        assert METHODS[name].title != DeepNorm.title


def test_pictures_tell_strangers_apart():
    with registered(method_of(Factor)) as first, registered(method_of(Factor)) as second:
        looks = [(style.colour, style.marker) for style in map(style_of, [*METHODS])]
        assert len(set(looks)) == len(METHODS) and {first, second} <= METHODS.keys()


# Constants


class OfItsClass(Residual):
    """Merge x + c f, c an attribute of the class."""

    c = 0.5

    def forward(self, x, f):
        return x + self.c * f


class Several(Residual):
    """Merge a x + b f."""

    def __init__(self, *factors):
        super().__init__()
        self.factors = factors

    def forward(self, x, f):
        return self.factors[0] * x + self.factors[1] * f


def in_layer(factor):
    """Return a method with factor(l) in layer l."""
    return method_of(Factor, residual=lambda self, site: Factor(factor(site.layer)))


def pre_first(self, site):
    return "pre" if site.layer == 1 else "post"


def post_first(self, site):
    return "post" if site.layer == 1 else "pre"


CHANGES = {  # what is changed: a method before, another after, the constant that tells
    "an attribute": (method_of(Factor), method_of(Factor, 0.501), "residual_c"),
    "an attribute of a class": (method_of(OfItsClass), method_of(type("C", (OfItsClass,), {"c": 2})), "residual_c"),
    "one of a tuple": (method_of(Several, 1, 0.5), method_of(Several, 1, 0.6), "residual_factors"),
    "the number of one layer": (in_layer(lambda l: l**-0.5), in_layer(lambda l: l**-0.6), "residual_c"),
    "one for all layers to one a layer": (method_of(Factor), in_layer(lambda l: 0.5 / l), "residual_c"),
    "inside another module": (
        method_of(Factor, outer=lambda self, site: nn.Sequential(nn.LeakyReLU(0.1))),
        method_of(Factor, outer=lambda self, site: nn.Sequential(nn.LeakyReLU(0.2))),
        "outer_negative_slope",
    ),
    "the place of a LayerNorm": (
        method_of(Factor, norm_place=pre_first),
        method_of(Factor, norm_place=post_first),
        "norm_place",
    ),
    "one number more": (method_of(Factor, 0.5), method_of(Factor, before=lambda self, site: nn.ELU()), "before_alpha"),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_constant_is_refused_by_name(change):
    """A checkpoint of a method that was changed since is refused, as is a stack of one alone."""
    before, after, constant = CHANGES[change]
    with registered(before) as name:
        source = small(method=name)
        state, of_encoder = source.state_dict(), source.encoder.state_dict()
        small(method=name).load_state_dict({key: value.half() for key, value in state.items()})
        assert f"encoder.{constant}" in state or change == "one number more"
    with registered(after) as name:
        with pytest.raises(UserError, match=rf"coder\.{constant}"):
            small(method=name).load_state_dict(state)
        with pytest.raises((UserError, RuntimeError), match=constant):
            small(method=name).encoder.load_state_dict(of_encoder)


def test_checkpoints_without_constants_load():
    """A checkpoint from before constants were found loads, and so does a Post-LN's; the other way it is refused."""
    with registered(method_of(Factor)) as name:
        source, model, plain = small(method=name), small(method=name), small(method="post_ln")
        old = {key: value for key, value in source.state_dict().items() if key in plain.state_dict()}
        assert source.state_dict().keys() - old.keys() == {"encoder.residual_c", "decoder.residual_c"}
        model.load_state_dict(old)
        model.encoder.load_state_dict(source.encoder.state_dict())
        src, prev = batch()
        assert torch.equal(logits(model, src, prev), logits(source, src, prev))
        model.load_state_dict(plain.state_dict())
        with pytest.raises(UserError, match="residual_c"):
            plain.load_state_dict(source.state_dict())


class Scheduled(Residual):
    """Merge x + a f, a a buffer that rises."""

    def __init__(self, updates):
        super().__init__()
        self.updates = updates
        self.register_buffer("a", torch.tensor(0.0))

    def forward(self, x, f):
        return x + self.a * f

    def set_num_updates(self, updates):
        self.a.fill_(updates / self.updates)


def test_what_may_change_is_no_constant():
    """The rate of a dropout, a schedule, and what a method leaves out by naming its constants may change."""
    for before, after in (
        (method_of(Scheduled, 100), method_of(Scheduled, 200)),
        *((method_of(Factor, c, constants=lambda self, stack: {}),) * 2 for c in (0.5, 0.6)),
        tuple(method_of(Residual, outer=lambda self, site, p=p: nn.Dropout(p)) for p in (0.1, 0.2)),
    ):
        with registered(before) as name:
            state = small(method=name).state_dict()
        with registered(after) as name:
            small(method=name).load_state_dict(state)


def test_fairseqs_names_are_kept():
    """Post-LN and Pre-LN save what fairseq's `transformer` does, and no constant."""
    for name in ("post_ln", "pre_ln"):
        assert all(key.count(".") > 1 for key in small(method=name).state_dict())
