"""Plugin of mypy for torch: a Module's attributes from its tables (`layer.fc1`) have type Any.

torch annotates Module.__getattr__ with Tensor | Module, which permits neither calls of submodules nor access to their
members.
"""

from __future__ import annotations

from mypy.plugin import AttributeContext, Plugin
from mypy.types import AnyType, Type, TypeOfAny, UnionType, get_proper_type


def _any_if_union(context: AttributeContext) -> Type:
    """Return Any for an attribute whose type is a union, as Tensor | Module of Module.__getattr__ is, else its type.

    context: mypy's, with the type that it found.
    """
    if isinstance(get_proper_type(context.default_attr_type), UnionType):
        return AnyType(TypeOfAny.special_form)
    return context.default_attr_type


class ModuleTables(Plugin):
    """Plugin that types members found by Module.__getattr__; members that Module declares keep a type without union."""

    def get_attribute_hook(self, fullname: str):
        """Return the function that gives an attribute its type; None leaves the type to mypy.

        fullname: the class in which mypy found the attribute, or its __getattr__, and the attribute's name. mypy calls
        this for every attribute.
        """
        if fullname.startswith("torch.nn.modules.module.Module."):
            return _any_if_union
        return None


def plugin(version: str) -> type[Plugin]:
    """Return the plugin class; mypy's entry point."""
    return ModuleTables
