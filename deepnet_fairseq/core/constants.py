"""Find the numbers that a method computes with and that no parameter or buffer holds, by looking at its modules.

They are the constants of every method that does not name its own (Method.constants): a model is saved with them, and a
checkpoint with others is refused. What stands in the code of a function, as 0.5 in `x + 0.5 * f`, cannot be seen here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from .modules import Dropout

Constants = Mapping[str, float | list[float]]  # by name; a list has one number for each place in the stack
NO_FORMULA = ("training", "eps")  # attributes of many modules; an eps only keeps a division from failing
PLACES = ("none", "pre", "post")  # of a LayerNorm, by the number that stands for it


def found(slots: Iterable[tuple[str, nn.Module]], norm_places: Iterable[str]) -> dict[str, float | list[float]]:
    """Return the numbers in a stack's slots, "residual_c" of an attribute c, and the places of its LayerNorms.

    A number is one for the whole stack, or a list in forward order where it differs between branches.
    slots: addresses, "decoder.3.ffn.residual", and modules, as Stack.slots yields them; norm_places: of all branches,
    by Method.norm_place. Places that are the same in all branches are left out: what is trained shows them.
    """
    values: dict[str, list[float]] = {}
    for address, slot in slots:
        slot_name = address.rpartition(".")[2]
        for path, module in slot.named_modules():
            inside = [part for part in path.split(".") if part and not part.isdecimal()]  # without places in containers
            for attribute, numbers in _numbers(module):
                constant = "_".join([slot_name, *inside, attribute])
                values.setdefault(constant, []).extend(numbers)

    places = [float(PLACES.index(place)) for place in norm_places]
    if len(set(places)) > 1:
        values["norm_place"] = places

    constants: dict[str, float | list[float]] = {}
    for name, numbers in values.items():
        same_everywhere = len(set(numbers)) == 1
        constants[name] = numbers[0] if same_everywhere else numbers
    return constants


def _numbers(module: nn.Module) -> Iterator[tuple[str, list[float]]]:
    """Yield name and numbers of each attribute of a module, or of its class, that is a number or a tuple of numbers.

    Not of a dropout, which computes in training alone, nor of a module that changes from update to update: its numbers
    are those of a schedule, and what it computes with is a buffer. Sizes of torch's modules are seen in their weights.
    """
    if isinstance(module, _DropoutNd | Dropout) or hasattr(module, "set_num_updates"):
        return

    attributes: dict[str, Any] = {}
    for kind in reversed(type(module).__mro__):
        if kind is not object and not kind.__module__.startswith("torch."):
            attributes.update(vars(kind))
    attributes.update(vars(module))

    of_torch = getattr(module, "__constants__", ())
    for name, value in attributes.items():
        if name.startswith("_") or name in NO_FORMULA:
            continue
        if name in of_torch and not isinstance(value, float):
            continue
        numbers = value if isinstance(value, tuple | list) else [value]
        if numbers and all(isinstance(number, int | float) for number in numbers):
            yield name, [float(number) for number in numbers]
