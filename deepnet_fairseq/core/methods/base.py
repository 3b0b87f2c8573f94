"""The base class of methods, with the slots that they fill, and their registry.

A residual branch x -> y of any layer computes

    f = dropout(outer(body(before(norm_in(x)))))
    y = norm_out(residual(shortcut, f))

The body is attention or feed-forward; the shortcut is x. A slot is a place in this equation for a module of the method:
before, outer and residual; inside the body `heads` of an attention, `hidden` of a feed-forward branch, and `inner` in
front of the last matrix; and `bypass`, whose result replaces the shortcut of a layer's last branch. For each slot the
class Method has a method of its name, which is called once for every branch (slots.Site) that has the slot, and returns
the module, or None for the identity (residual: x + f). Three more slots belong to a whole stack, encoder or decoder:
beginning, mixer and ending.

`norm` places the LayerNorm of the branches: "post" in norm_out, "pre" in norm_in (with one more at the end of each
stack), "none" nowhere. Where branches or stacks differ, a method overrides `norm_place` and `closing_norm`.

Shapes: B sentences, T tokens, C width of branches in features, W width of the residual stream, which is C unless the
method overrides `stream_width`. In decoding T counts the hypotheses of a sentence, each with its newest token: a slot
computes on each token by itself and must not look along T. What layers share in one forward pass is kept in
pass_state.pass_state(). docs/adding_a_method.md has a whole example.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor, nn

from ...errors import UserError
from ..archs import depths
from ..slots import BRANCHES, Site

METHODS: dict[str, type[Method]] = {}  # by name; `register` fills it
REGISTRATION_LISTENERS: list[Callable[[], None]] = []  # called whenever a method or a modifier has been registered
Value = bool | int | float | str | None  # types of the value of an option, or of any field of a config
NORM_PLACES = ("post", "pre", "none")  # values of Method.norm


@dataclass(frozen=True)
class Option:
    """Setting of one method or modifier, whose flag is --METHOD-KEY or --MODIFIER-KEY; KEY is its key in `options`.

    default: the value without the flag; other values have its type, or are texts where it is None, and a whole number
    will do for a float; help: text of the flag's help; choices: the texts that are permitted, () for any value of the
    type.
    """

    default: Value
    help: str
    choices: tuple[str, ...] = ()

    @property
    def values(self) -> str:
        """Describe the permitted values for a table of options: "pre / post", "flag", "text" or "number"."""
        if self.choices:
            return " / ".join(self.choices)
        words: dict[type, str] = {bool: "flag", int: "number", float: "number"}
        return words.get(type(self.default), "text")

    @property
    def kind(self) -> str:
        """Describe the permitted values for an error message: "one of pre, post", "a whole number" and so on."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        words: dict[type, str] = {bool: "true or false", int: "a whole number", float: "a number"}
        return words.get(type(self.default), "a text")

    def takes(self, value: Value) -> bool:
        """Tell whether a value is of the option's type, and one of its choices if it has any."""
        if self.choices:
            return value in self.choices
        # to Python a bool is an int, and an int is as good as a float
        if isinstance(self.default, bool):
            return isinstance(value, bool)
        if isinstance(self.default, int):
            return isinstance(value, int) and not isinstance(value, bool)
        if isinstance(self.default, float):
            return isinstance(value, int | float) and not isinstance(value, bool)
        return value is None or isinstance(value, str)

    def check(self, flag: str, value: Value) -> None:
        """Raise a UserError, naming the flag, for a value that the option does not take."""
        if not self.takes(value):
            raise UserError(f"{flag} {value}", f"must be {self.kind}")

    def parse(self, text: str) -> bool | int | float | str:
        """Convert a text to a value of the option's type; whether it is one of the choices is for `check` to tell.

        Raises a ValueError for a text that is no such value. The error's message says what the option is, as "is a
        number", and the caller puts the option's name in front.
        """
        if isinstance(self.default, bool):
            if text.lower() not in ("true", "false"):
                raise ValueError(f"is {self.kind}")
            return text.lower() == "true"
        if not isinstance(self.default, int | float):
            return text
        try:
            return type(self.default)(text)
        except ValueError:
            raise ValueError(f"is {self.kind}") from None


class Method:
    """One stabilisation method at one depth: the module in each slot, and the gain of each weight's initialisation.

    N, M: encoder and decoder layers, 0 for a stack that the model does not have; options: values of the class's
    `options` by key, which become attributes. Raises a KeyError for an option that the class does not have, and a
    UserError, naming the flag, for a value of another type, a value outside the choices, or one that `check` refuses.

    A subclass sets equation and paper, as tables print them; @register sets its name, and its title if the class has
    none. Everywhere `stack` is "encoder" or "decoder", and `dim` the width C of its branches unless said otherwise.
    """

    name: ClassVar[str]  # as in --method NAME
    title: ClassVar[str]  # in tables and pictures; by default "My method" for "my_method"
    equation: ClassVar[str]
    paper: ClassVar[str]
    norm: str = "post"  # place of the LayerNorms, which norm_place and closing_norm read
    bias: ClassVar[bool] = True  # whether the branches' matrices have biases
    # keys of initialisation.PROFILES that the method is defined for; the first is the default
    init_profiles: ClassVar[tuple[str, ...]] = ("fairseq_head", "xavier_legacy")
    options: ClassVar[dict[str, Option]] = {}
    train_flags: ClassVar[tuple[str, ...]] = ()  # flags that a training must be given, and their values, as words
    # wrong gains in the code of others, which `deepnet verify` recognises: description -> function that returns the
    # gain, called with the method and "encoder" or "decoder"
    mistaken_gains: ClassVar[dict[str, Callable[[Any, str], float]]] = {}
    profiled: ClassVar[bool] = False  # whether factors on shortcuts are measured before the first update, as Admin's

    if TYPE_CHECKING:

        def __getattr__(self, option: str) -> Any:
            """Return the value of an option."""

    def __init__(self, N: int, M: int, **options: Value):
        self.num_encoder_layers = N
        self.num_decoder_layers = M
        defaults = {key: option.default for key, option in self.options.items()}
        for key, value in (defaults | options).items():
            self.options[key].check(self.flag(key), value)
            setattr(self, key, value)
        self.check()

    @classmethod
    def from_config(cls, cfg: Any) -> Method:
        """Make the method with the depth and options that a model config has.

        cfg: a config (Namespace, omegaconf or dataclass) whose depths archs.fill has set, with the option KEY in the
        field METHOD_KEY. Raises a UserError as the constructor does.
        """
        values: dict[str, Any] = {}
        for key, option in cls.options.items():
            # a config that an older release saved has no field of an option that is newer
            value = getattr(cfg, f"{cls.name}_{key}", option.default)
            values[key] = str(value) if option.choices else value  # hydra hands over members of an enumeration
        return cls(*depths(cfg), **values)

    @classmethod
    def flag(cls, key: str) -> str:
        """Return the flag of an option, "--pre-ln-scaled-init" for the key "scaled_init" of pre_ln."""
        return f"--{cls.name}-{key}".replace("_", "-")

    def check(self) -> None:
        """Raise a UserError, naming the flag, for invalid option values."""

    def depth(self, stack: str) -> int:
        """Return the number of layers of `stack`, 0 if the model does not have it."""
        return self.num_encoder_layers if stack == "encoder" else self.num_decoder_layers

    def sublayers(self, stack: str) -> tuple[str, ...]:
        """Return the names of the branches of a layer of `stack`, in forward order, as slots.BRANCHES has them.

        There are three in a decoder that attends to an encoder, else two.
        """
        if stack == "decoder" and self.num_encoder_layers:
            return BRANCHES
        return tuple(name for name in BRANCHES if name != "encoder_attn")

    def branches(self, stack: str) -> int:
        """Count the residual branches of all layers of `stack`."""
        return len(self.sublayers(stack)) * self.depth(stack)

    # the LayerNorms, and the stream

    def norm_place(self, site: Site) -> str:
        """Return the place of the branch's LayerNorm (of W features), "post", "pre" or "none".

        The result must not depend on site.dim and site.num_heads, which norm_places does not know.
        """
        return self.norm

    def norm_places(self, stack: str) -> set[str]:
        """Return the places, "post", "pre" or "none", that LayerNorms have in the branches of `stack`."""
        places = set()
        for layer in range(1, self.depth(stack) + 1):
            for sublayer in self.sublayers(stack):
                site = Site(stack, layer, sublayer, dim=1, num_heads=1)  # norm_place does not read the widths
                places.add(self.norm_place(site))
        return places

    def closing_norm(self, stack: str) -> bool:
        """Tell whether a LayerNorm (of W features) ends the stack, in front of `ending`."""
        return self.norm == "pre"

    def stream_width(self, stack: str, dim: int) -> int:
        """Return W, the width of the residual stream, for branches of width C = `dim`.

        If it is not C, the slot `beginning` or `mixer` must turn the C features of the embedding into W, and `before`
        and `ending` the W of the stream into C.
        """
        return dim

    # the slots of a branch

    def before(self, site: Site) -> nn.Module | None:
        """Module on the branch's input; with norm "pre" it follows the LayerNorm. (B, T, W) -> (B, T, C)."""
        return None

    def hidden(self, site: Site, dim: int) -> nn.Module | None:
        """Module between fc1 and the activation of the feed-forward branch. (B, T, dim) -> same.

        dim: feed-forward width, the output width of fc1.
        """
        return None

    def heads(self, site: Site, dim: int) -> nn.Module | None:
        """Module on queries, keys and values of an attention, split into h heads of d features. (B, T, h, d) -> same.

        It is called as heads(x, role), role "q", "k" or "v", before decoding stores keys and values in its cache. dim:
        d.
        """
        return None

    def inner(self, site: Site, dim: int) -> nn.Module | None:
        """Module in front of the branch's last matrix, out_proj or fc2. (B, T, dim) -> same.

        dim: the input width of that matrix, C or the feed-forward width.
        """
        return None

    def outer(self, site: Site) -> nn.Module | None:
        """Module on the branch's output, before the residual dropout. (B, T, C) -> same."""
        return None

    def residual(self, site: Site) -> nn.Module | None:
        """Module called as residual(x, f) that merges shortcut x (B, T, W) and branch f (B, T, C) -> (B, T, W).

        None is x + f. The module may have the methods of slots.Residual: with `scales` export can turn the model into a
        plain Transformer; `branch_and_sum` tells probes what is summed if the merge is more than a sum.
        """
        return None

    def bypass(self, site: Site) -> nn.Module | None:
        """Module called as bypass(x, entry) that returns the shortcut of a layer's last branch, (B, T, W) each -> same.

        x: the branch's input, which is the shortcut of other branches; entry: the layer's input.
        """
        return None

    # the slots of a stack

    def beginning(self, stack: str, dim: int) -> nn.Module | None:
        """Module on the embeddings, behind their dropout. (B, T, C) -> (B, T, W)."""
        return None

    def mixer(self, stack: str, dim: int) -> nn.Module | None:
        """Module called as mixer(y, history) before the first layer and after each layer; it returns (B, T, W).

        The result is the input of the next layer, and after the last layer that of the LayerNorm and the `ending` at
        the end of the stack. y: output of `beginning` or of a layer, (B, T, W); before the first layer the embedding
        (B, T, C), if `beginning` is None. history: a list, empty at the start of each forward pass, in which the mixer
        may keep what it needs later in the pass.
        """
        return None

    def ending(self, stack: str, dim: int) -> nn.Module | None:
        """Module on the stack's output, behind the last LayerNorm if there is one. (B, T, W) -> (B, T, C)."""
        return None

    # initialisation

    def gain(self, site: Site, role: str) -> float:
        """Factor on the standard deviation that the init profile (initialisation.py) gives to a matrix of the branch.

        role: what the branch uses it for, "q", "k", "v" or "out" in attention, "fc1" or "fc2" in feed-forward.
        """
        return 1.0

    def embedding_gain(self, stack: str) -> float:
        """Factor on the std of the token embedding of `stack`; a matrix that both stacks share takes the encoder's."""
        return 1.0

    def output_gain(self) -> float:
        """Factor on the std of the projection to the vocabulary, if it does not share an embedding's matrix."""
        return 1.0

    def coefficients(self, stack: str) -> dict[str, float]:
        """Return the numbers that follow from the depth by name, as alpha and beta; empty if there are none.

        `deepnet methods NAME` prints them; the method's own `residual` and `gain` may read them.
        """
        return {}

    # the built model

    def constants(self, stack: str) -> dict[str, float] | None:
        """Return by name the numbers that the forward pass computes with and that no parameter or buffer holds.

        These numbers are saved with the model and compared on loading. None, the default, means that
        constants.find_constants looks for them among the attributes of the modules in the slots. A method must override
        this where that would find too few, because no module has the number as an attribute, or too many; {} means that
        there are none.
        """
        return None

    def after_update(self, weights: Mapping[str, Tensor]) -> None:
        """Change weights in place after each step of the optimiser; called under torch.no_grad.

        weights: name of a trained parameter in the model -> its numbers, in half precision those of the float32 copy
        that the optimiser updates. Each must be changed by itself: on several processes with --zero-sharding os a
        process has only some of them.
        """


def call_listeners(registry: dict[str, Any], name: str) -> None:
    """Call REGISTRATION_LISTENERS after an entry was added to a registry; if one of them raises, remove the entry.

    A listener makes flags and config fields of the new entry's options, and raises a TypeError or ValueError (a
    UserError is one) where that fails. registry: METHODS or modifiers.MODIFIERS; name: of the new entry.
    """
    try:
        for listener in REGISTRATION_LISTENERS:
            listener()
    except (TypeError, ValueError):
        del registry[name]
        raise


def option_of(cls: type, key: str) -> str:
    """Return "class NAME, option 'KEY'", the subject of an error about an option of a method or modifier."""
    return f"class {cls.__name__}, option {key!r}"


def check_new(registry: Mapping[str, type], name: str, cls: Any) -> None:
    """Raise a UserError if another class has the name, or if an option has a wrong default or key.

    A default is wrong if it is none of the values that the option takes, a key if NAME_KEY is no name of Python's.
    registry: METHODS or modifiers.MODIFIERS; cls: the method or modifier that is about to be added under `name`.
    """
    first = registry.get(name, cls)
    if first is not cls:
        raise UserError(repr(name), f"registered twice, in {_file_of(first)} and {_file_of(cls)}; rename one of them")
    for key, option in cls.options.items():
        if not f"{name}_{key}".isidentifier():
            raise UserError(option_of(cls, key), f"{name}_{key} is no name of Python's; use letters, digits and _")
        if not option.takes(option.default):
            raise UserError(option_of(cls, key), f"the default {option.default!r} must be {option.kind}")


def _file_of(cls: type) -> str:
    """Return the file of a class, or the name of its module if that has no file."""
    return getattr(sys.modules.get(cls.__module__), "__file__", None) or cls.__module__


def _check_attributes(cls: type[Method]) -> None:
    """Raise a UserError if an option would take the place of an attribute or method of its class.

    The option `norm` may, as that of dlcl does, if its choices are places of LayerNorms.
    """
    of_every_method = {*Method.__annotations__, "num_encoder_layers", "num_decoder_layers"}
    for key, option in cls.options.items():
        if key == "norm" and option.choices and set(option.choices) <= set(NORM_PLACES):
            continue
        if hasattr(cls, key) or key in of_every_method:
            raise UserError(option_of(cls, key), f"{cls.__name__}.{key} exists already; rename the option")


def register(name: str) -> Callable[[type[Method]], type[Method]]:
    """Class decorator that offers a Method as `--method NAME`, and its options as flags and fields of configs.

    Raises a UserError if another class has the name; if an option has a default that it does not take, a key that is an
    attribute of the class or can be no part of a field's name; or if its flag or field is another's already.
    """

    def add(cls: type[Method]) -> type[Method]:
        check_new(METHODS, name, cls)
        _check_attributes(cls)
        METHODS[name] = cls
        cls.name = name
        if "title" not in vars(cls):  # a title that the class inherits is another method's
            cls.title = name.replace("_", " ").capitalize()
        call_listeners(METHODS, name)
        return cls

    return add


def get_method(name: str) -> type[Method]:
    """Return the class registered under `name`.

    Raises a UserError if there is none; its message has the nearest name, or all names if none is near.
    """
    if name not in METHODS:
        near = difflib.get_close_matches(name, sorted(METHODS), n=1)
        way_out = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(sorted(METHODS))}."
        if all(is_of_package(method) for method in METHODS.values()):  # no --user-dir has registered any
            way_out += " One of your own is found by --user-dir, the folder that registers it (in Python import it)"
        shown_name = " ".join(name.split())  # on one line, whatever was given
        raise UserError(f"--method {shown_name}", f"unknown; {way_out.removesuffix('.')}")
    return METHODS[name]


def is_of_package(method: type[Method]) -> bool:
    """Tell whether a class of methods is this package's, and not one that a user has registered."""
    return method.__module__.split(".")[0] == __name__.split(".")[0]
