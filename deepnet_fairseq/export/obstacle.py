"""Can a model be written as a plain Post-LN or Pre-LN Transformer? If not, why not."""

from __future__ import annotations

from torch import Tensor, nn

from ..profiling.omega import residuals

PLACES = {  # slot of a layer -> where its module stands
    "before": "on the input of a branch",
    "hidden": "between fc1 and the activation",
    "inner": "in front of the last matrix of a branch",
    "outer": "on the output of a branch",
}


def obstacle(model: nn.Module) -> str | None:
    """The first thing in a DeepModel that a plain Transformer has no place for, in words; None if it folds."""
    for stack in model.stacks().values():
        if stack.layers[0].norm_place == "none":
            return "it has no LayerNorm in its layers"
        if stack.mixer is not None:
            return "its layers read a combination of all outputs before them"
        if stack.ending is not None:
            return f"{_kind(stack.ending)} stands at the end of a stack"
        for layer in stack.layers:
            for slot, place in PLACES.items():
                for module in _modules(layer, slot):
                    return f"{_kind(module)} stands {place}"
            if layer.fc1.bias is None:
                return "its matrices have no biases"
    for site, residual in residuals(model):
        if not hasattr(residual, "scales"):
            return f"{_kind(residual)} merges shortcut and branch"
        shortcut, _ = residual.scales()
        if model.stacks()[site.stack].layers[0].norm_place == "pre" and (isinstance(shortcut, Tensor) or shortcut != 1):
            return "its shortcut is scaled, and no LayerNorm follows to absorb that"
    return None


def _modules(layer: nn.Module, slot: str) -> list[nn.Module]:
    """The method's modules in one slot of a layer."""
    found = getattr(layer, slot)
    if slot == "inner":
        return [m for m in (*(getattr(layer, s).inner for s in layer.sites if s != "ffn"), found) if m is not None]
    if slot == "hidden":
        return [] if found is None else [found]
    return list(found.values())


def _kind(module: nn.Module) -> str:
    if isinstance(module, nn.Sequential):
        return _kind(module[0])
    name = type(module).__name__
    return f"{'an' if name[0] in 'AEIO' else 'a'} {name}"
