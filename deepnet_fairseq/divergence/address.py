"""Where in a model a module is, in the papers' terms."""

from __future__ import annotations

from torch import nn

from ..transformer.slots import SUBLAYERS

SLOTS = ("before", "outer", "residual")  # of a layer, by sublayer
FFN = ("fc1", "fc2", "hidden", "inner", "activation_dropout")


def addresses(model: nn.Module) -> dict[str, str]:
    """Module path -> address: "encoder.layers.2.fc1" -> "encoder.3.ffn", a branch's Site as it is written.

    What belongs to no single branch is addressed by its layer ("decoder.7"), and by its path outside of layers and in
    models that are not ours.
    """
    sites = {path: module.sites for path, module in model.named_modules() if hasattr(module, "sites")}
    return {path: _address(path, sites) for path, _ in model.named_modules()}


def _address(path: str, sites: dict[str, dict]) -> str:
    layer = ".".join(path.split(".")[:3])
    if layer not in sites:
        return path
    branches = sites[layer]
    sublayer = _sublayer(path.split(".")[3:])
    if sublayer in branches:
        return str(branches[sublayer])
    any_site = next(iter(branches.values()))
    return f"{any_site.stack}.{any_site.layer}"


def _sublayer(words: list[str]) -> str | None:
    """The branch of a module from its path inside the layer; None for what several share."""
    if not words:
        return None
    first = words[0]
    if first in SLOTS:
        return words[1] if len(words) > 1 else None
    return "ffn" if first in FFN else SUBLAYERS.get(first, first)
