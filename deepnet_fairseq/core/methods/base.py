"""The slots of the one equation, and the registry of methods.

    f = dropout(outer(body(before(norm_in(x)))))
    y = norm_out(residual(shortcut, f))

A method fills slots per Site. A slot left None is the identity (residual: x + f). Inside the body are `heads` of an
attention, `hidden` of a feed-forward branch, and `inner` in front of the last matrix. The shortcut is x; `bypass`
changes that of a layer's last branch. `norm` places the LayerNorm: "post" in `norm_out`, "pre" in `norm_in` (and one
more at the end of each stack), "none" nowhere; where branches or stacks differ, `norm_place` and `closing_norm` say so.

Shapes: B sentences, T tokens, C width of branches, W of the residual stream, which is C but where `stream_width` says
otherwise. In decoding T is the hypotheses of a sentence, each with its newest token: a slot sees each token alone and
must not look along T. What layers share in one pass is kept in pass_state.pass_state().
docs/adding_a_method.md has a whole example.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor, nn

from ...errors import UserError
from ..archs import depths
from ..slots import BRANCHES, Site

METHODS: dict[str, type[Method]] = {}
REGISTRATION_LISTENERS: list[Callable[[], None]] = []  # called whenever a method or a modifier has been registered
Value = bool | int | float | str | None  # of an option, and of any field of a config


@dataclass(frozen=True)
class Option:
    """Setting of one method; its flag is --METHOD-KEY. Its type is that of `default`, text for None.

    help: of the flag; choices: the words it may be, () for any value of the type.
    """

    default: Value
    help: str
    choices: tuple[str, ...] = ()

    @property
    def values(self) -> str:
        """Describe the permitted values in words."""
        if self.choices:
            return " / ".join(self.choices)
        words: dict[type, str] = {bool: "flag", type(None): "text"}
        return words.get(type(self.default), "number")

    @property
    def kind(self) -> str:
        """Name what a value is, with its article."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        words: dict[type, str] = {bool: "true or false", int: "a whole number", float: "a number"}
        return words.get(type(self.default), "a text")

    def takes(self, value: Value) -> bool:
        """Tell whether a value is of the option's type, and one of its choices if it has any."""
        if self.choices:
            return value in self.choices
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
            raise UserError(f"{flag} {value}: must be {self.kind}")

    def parse(self, text: str) -> bool | int | float | str:
        """Convert a text to the option's value; raise a ValueError if it is not one."""
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
    `options`, which become attributes. Raises a KeyError for an option that the class does not have; UserError, naming
    the flag, for a value of another type, that is none of its choices, or that `check` refuses.

    A subclass sets equation and paper, as tables print them, and under @register gets its name. title: the method's
    name in tables and pictures for readers; by default "My method" for one that is registered as "my_method".
    """

    name: ClassVar[str]
    title: ClassVar[str]
    equation: ClassVar[str]
    paper: ClassVar[str]
    norm: str = "post"  # place of the LayerNorms, which norm_place and closing_norm read
    bias: ClassVar[bool] = True  # whether the branches' matrices have biases
    init_profiles: ClassVar[tuple[str, ...]] = ("fairseq_head", "xavier_legacy")  # the first is the default
    options: ClassVar[dict[str, Option]] = {}
    train_flags: ClassVar[tuple[str, ...]] = ()  # flags that a first training needs beside --method
    # for `deepnet verify`: description -> gain, by method and stack, of other code than ours
    mistaken_gains: ClassVar[dict[str, Callable[[Any, str], float]]] = {}
    profiled: ClassVar[bool] = False  # whether a profile (an option) sets the shortcuts before the first update

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
        """Make the method with the depth and options of a filled model config; UserError as in __init__."""
        values: dict[str, Any] = {}
        for key, option in cls.options.items():
            value = getattr(cfg, f"{cls.name}_{key}", option.default)
            values[key] = str(value) if option.choices else value  # hydra hands over members of an enumeration
        return cls(*depths(cfg), **values)

    @classmethod
    def flag(cls, key: str) -> str:
        """Return the flag of an option."""
        return f"--{cls.name}-{key}".replace("_", "-")

    def check(self) -> None:
        """Raise a UserError, naming the flag, for invalid option values."""

    def depth(self, stack: str) -> int:
        """Return the number of layers of `stack`."""
        return self.num_encoder_layers if stack == "encoder" else self.num_decoder_layers

    def sublayers(self, stack: str) -> tuple[str, ...]:
        """Return the branches of a layer of `stack`, in forward order: three where a decoder attends to an encoder."""
        if stack == "decoder" and self.num_encoder_layers:
            return BRANCHES
        return tuple(name for name in BRANCHES if name != "encoder_attn")

    def branches(self, stack: str) -> int:
        """Count the residual branches of `stack`."""
        return len(self.sublayers(stack)) * self.depth(stack)

    # the LayerNorms, and the stream

    def norm_place(self, site: Site) -> str:
        """Return the place of the branch's LayerNorm (of W features): "post", "pre" or "none"."""
        return self.norm

    def norm_places(self, stack: str) -> set[str]:
        """Return the places of all branches of `stack`, by norm_place."""
        places = set()
        for layer in range(1, self.depth(stack) + 1):
            for sublayer in self.sublayers(stack):
                site = Site(stack, layer, sublayer, dim=1, num_heads=1)  # the place depends on no width
                places.add(self.norm_place(site))
        return places

    def closing_norm(self, stack: str) -> bool:
        """Tell whether a LayerNorm (of W features) ends the stack, in front of `ending`."""
        return self.norm == "pre"

    def stream_width(self, stack: str, dim: int) -> int:
        """Return W, the width of the stream between layers, for C = `dim`.

        Where it is not C, `beginning` or `mixer` makes W features of the embedding's C, `before` and `ending` C of the
        stream's W.
        """
        return dim

    # the slots of a branch

    def before(self, site: Site) -> nn.Module | None:
        """Module on the branch's input; with norm "pre" it follows the LayerNorm. (B, T, W) -> (B, T, C)."""
        return None

    def hidden(self, site: Site, dim: int) -> nn.Module | None:
        """Module between fc1 and the activation of the feed-forward branch. (B, T, dim) -> same."""
        return None

    def heads(self, site: Site, dim: int) -> nn.Module | None:
        """Module called as heads(x, role) on projections of the attention by head, before any of them is cached.

        x (.., h, d) of `role` "q", "k" or "v", d = `dim` features of each of h heads -> same.
        """
        return None

    def inner(self, site: Site, dim: int) -> nn.Module | None:
        """Module in front of the branch's last matrix, out_proj or fc2. (B, T, dim) -> same."""
        return None

    def outer(self, site: Site) -> nn.Module | None:
        """Module on the branch's output, before the residual dropout. (B, T, C) -> same."""
        return None

    def residual(self, site: Site) -> nn.Module | None:
        """Module called as residual(x, f) that merges shortcut (B, T, W) and branch (B, T, C) -> (B, T, W).

        None is x + f. A module may have the methods of slots.Residual: by `scales` it folds into a plain Transformer,
        by `added` probes know what is summed, where it does more than add.
        """
        return None

    def bypass(self, site: Site) -> nn.Module | None:
        """Module called as bypass(x, entry) that gives the shortcut of a layer's last branch, (B, T, W) each -> same.

        entry: the layer's input.
        """
        return None

    # the slots of a stack

    def beginning(self, stack: str, dim: int) -> nn.Module | None:
        """Module on the embeddings, behind their dropout. (B, T, C) -> (B, T, W)."""
        return None

    def mixer(self, stack: str, dim: int) -> nn.Module | None:
        """Module called as mixer(y, history) before the first layer and after each one.

        y: output of the beginning or of a layer, (B, T, W), or the embedding (B, T, C) where W is made here; history: a
        list local to this forward pass, which the mixer may extend. It returns the input of the next layer or of the
        stack's end, (B, T, W).
        """
        return None

    def ending(self, stack: str, dim: int) -> nn.Module | None:
        """Module on the stack's output, behind the last LayerNorm if there is one. (B, T, W) -> (B, T, C)."""
        return None

    # initialisation

    def gain(self, site: Site, role: str) -> float:
        """Factor on the std that the init profile gives to the weight of this branch in `role`, see slots.Weight."""
        return 1.0

    def embedding_gain(self, stack: str) -> float:
        """Factor on the token embedding of `stack`; one matrix for both stacks takes the encoder's."""
        return 1.0

    def output_gain(self) -> float:
        """Factor on an output projection that is not tied to an embedding."""
        return 1.0

    def coefficients(self, stack: str) -> dict[str, float]:
        """Return the numbers that this depth gives to `stack`, as alpha and beta; empty if there are none.

        `deepnet methods NAME` prints them; the method's own `residual` and `gain` may read them.
        """
        return {}

    # the built model

    def constants(self, stack: str) -> dict[str, float] | None:
        """Return numbers of the forward pass that no parameter holds; saved with the model and compared on loading.

        None, the default, takes those that constants.found sees in the modules of the slots. A method names its own
        where others are meant: one that no module holds, or fewer, {} for none.
        """
        return None

    def after_update(self, weights: Mapping[str, Tensor]) -> None:
        """Change weights in place after each step of the optimiser, without gradients.

        weights: the trained parameters by name, in float32 where half precision keeps such copies. A method changes
        each by itself: on several processes with --zero-sharding os one may have a share of them only.
        """


def call_listeners(registry: dict[str, Any], name: str) -> None:
    """Call the listeners for the new entry `name` of a registry, which is taken out again if one of them raises."""
    try:
        for listener in REGISTRATION_LISTENERS:
            listener()
    except (TypeError, ValueError):
        del registry[name]
        raise


def register(name: str) -> Callable[[type[Method]], type[Method]]:
    """Class decorator that offers a Method as `--method NAME`, and its options as flags and fields of configs.

    Raises a ValueError if another class has the name, or another field of a config an option's.
    """

    def add(cls: type[Method]) -> type[Method]:
        if METHODS.setdefault(name, cls) is not cls:
            raise ValueError(f"method {name!r} is registered twice")
        cls.name = name
        if "title" not in vars(cls):  # one of a base class is another method's
            cls.title = name.replace("_", " ").capitalize()
        call_listeners(METHODS, name)
        return cls

    return add


def get_method(name: str) -> type[Method]:
    """Return the class registered under `name`; raise a UserError if there is none."""
    if name not in METHODS:
        known = ", ".join(sorted(METHODS))
        way = f"name the folder that registers it by --user-dir (in Python import it), or choose one of {known}"
        raise UserError(f"--method {' '.join(name.split())}: unknown; {way}")
    return METHODS[name]
