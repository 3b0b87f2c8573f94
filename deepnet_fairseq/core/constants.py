"""Find the constants of a method: numbers that it computes with and that no parameter or buffer holds.

A method may name its constants itself (Method.constants). Those of the other methods are found here: they are the
numbers that are attributes of the modules in slots, the places in layers and stacks for modules of a method
(methods/base.py). A model is saved with its constants, and a checkpoint with other constants is refused. A number in
the code of a function, as 0.5 in `x + 0.5 * f`, cannot be found.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from .modules import Dropout

Constants = Mapping[str, float | list[float]]  # name -> one number for a whole stack, or a list in forward order
# attributes that are no constants of a method: `training` is a module's mode, an eps keeps a division from failing
IGNORED = ("training", "eps")
NORM_PLACES = ("none", "pre", "post")  # what Method.norm_place returns; a checkpoint holds the index of each


def find_constants(
    slots: Iterable[tuple[str, nn.Module]], norm_places: Iterable[str]
) -> dict[str, float | list[float]]:
    """Return the constants of a stack by name: the numbers in its slots, and the places of its LayerNorms.

    The name of a number in a slot is made of the slot's name and the attribute's: "residual_c" for an attribute c of
    the modules in the slot `residual`. The value is one number if all numbers of that name are the same, else their
    list in forward order.

    slots: pairs of address ("decoder.3.ffn.residual") and module, as Stack.slots yields them; norm_places: what
    Method.norm_place gives for each branch ("pre", "post" or "none"), in forward order. These places become the
    constant "norm_place" unless all are the same, for then the names of a model's parameters show them.
    """
    values: dict[str, list[float]] = {}  # name -> numbers of all slots
    for address, slot in slots:
        slot_name = address.rpartition(".")[2]
        for path, module in slot.named_modules():
            # path: "" for the slot's module itself, "0.norm" for one inside; the index in a container, 0, is left out
            inside = [part for part in path.split(".") if part and not part.isdecimal()]
            for attribute, numbers in _number_attributes(module):
                constant = "_".join([slot_name, *inside, attribute])
                values.setdefault(constant, []).extend(numbers)

    places = [float(NORM_PLACES.index(place)) for place in norm_places]
    if len(set(places)) > 1:
        values["norm_place"] = places

    constants: dict[str, float | list[float]] = {}
    for name, numbers in values.items():
        same_everywhere = len(set(numbers)) == 1
        constants[name] = numbers[0] if same_everywhere else numbers
    return constants


def _number_attributes(module: nn.Module) -> Iterator[tuple[str, list[float]]]:
    """Yield name and numbers of each attribute of a module, or of its class, that is a number or a tuple of numbers.

    A bool counts as a number, and a list as a tuple. A dropout is left out, because its probability is a setting of the
    training. A module that changes from update to update is left out too: its attributes are those of a schedule, and
    what it computes with is a buffer.
    """
    if isinstance(module, _DropoutNd | Dropout) or hasattr(module, "set_num_updates"):
        return

    # attributes of the classes first, base classes before derived ones, then the module's own: later ones replace
    # earlier ones of the same name, as Python looks them up; those of torch's classes are switches of torch
    attributes: dict[str, Any] = {}
    for base_class in reversed(type(module).__mro__):
        if base_class is not object and not base_class.__module__.startswith("torch."):
            attributes.update(vars(base_class))
    attributes.update(vars(module))

    # names of attributes by which torch's own modules are built, as "in_features" of nn.Linear
    named_by_torch = getattr(module, "__constants__", ())
    for name, value in attributes.items():
        if name.startswith("_") or name in IGNORED:  # the first are private, of Python or of torch
            continue
        is_size_or_switch = name in named_by_torch and not isinstance(value, float)
        if is_size_or_switch:  # which the shapes and names of parameters show
            continue
        numbers = value if isinstance(value, tuple | list) else [value]
        if numbers and all(isinstance(number, int | float) for number in numbers):
            yield name, [float(number) for number in numbers]
