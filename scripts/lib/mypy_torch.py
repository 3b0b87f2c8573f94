"""mypy on torch: what a Module finds in its tables (`layer.fc1`) is of any type, not Tensor | Module.

torch annotates Module.__getattr__ with that union, under which no submodule can be called nor its members named.
"""

from __future__ import annotations

from mypy.plugin import AttributeContext, Plugin
from mypy.types import AnyType, Type, TypeOfAny, UnionType, get_proper_type


def _any_if_union(context: AttributeContext) -> Type:
    if isinstance(get_proper_type(context.default_attr_type), UnionType):
        return AnyType(TypeOfAny.special_form)
    return context.default_attr_type


class ModuleTables(Plugin):
    """Answers for members that are found by Module.__getattr__; those that are declared keep their type."""

    def get_attribute_hook(self, fullname: str):
        return _any_if_union if fullname.startswith("torch.nn.modules.module.Module.") else None


def plugin(version: str) -> type[Plugin]:
    """Where mypy begins."""
    return ModuleTables
