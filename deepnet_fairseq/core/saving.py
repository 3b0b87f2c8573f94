"""Save a model that `build` made, its arguments and its weights, to one file, and load it."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import nn

from .. import files
from ..errors import UserError
from .models import DeepModel, blueprint, build

VERSION = "deepnet_fairseq core model 1"  # the value of the entry "format"
# types of the values of fields; torch.load with weights_only=True would not load a value of a subclass
PLAIN_TYPES = (bool, int, float, str, type(None))
WAY_OUT = "give a file that deepnet_fairseq.core.save wrote"


def save(model: DeepModel, path: str | os.PathLike[str]) -> None:
    """Write a model that `build` made to the file `path`, which appears whole or not at all.

    torch.load(path, weights_only=True) gives a dictionary: "format" is VERSION, "arch", "vocab" and "fields" are the
    arguments of `build`, "model" is the state dict. Raises a UserError, naming the file, if it cannot be written, or if
    `load` could not make the model again: because `build` has not made it, because the value of a field is of none of
    the PLAIN_TYPES, or because names or shapes in its state dict have changed since.
    """
    path = Path(path)
    files.check_file("save", path)  # raises the UserError if it cannot be written

    # check that `load` can make the model again
    built = model.built_from
    if built is None:
        raise UserError(f"save {path}", "not a model of deepnet_fairseq.core.build; save its state_dict() yourself")
    for name, value in built.fields.items():
        if type(value) not in PLAIN_TYPES:
            raise UserError(f"save {path}", f"{name} is a {type(value).__name__}; build it with a plain number or text")
    shapes_after_load = _shapes(blueprint(built.arch, built.vocab, **built.fields))
    if _shapes(model) != shapes_after_load:
        raise UserError(f"save {path}", "its modules have changed since build; save its state_dict() yourself")

    content = {"format": VERSION, "arch": built.arch, "vocab": built.vocab, "fields": dict(built.fields)}
    files.save_tensors(content | {"model": model.state_dict()}, path)


def load(path: str | os.PathLike[str]) -> DeepModel:
    """Make the model in a file of `save` again, in evaluation mode, on the CPU, in the dtype it was saved in.

    No code in the file is run, and torch's random generator stays as it is. Raises a UserError, naming the file, if
    there is none, if it is damaged or another program's, or if its method is not registered.
    """
    path = Path(path)
    if not path.is_file():
        problem = "is no ordinary file" if path.exists() else "no such file"
        raise UserError(path, f"{problem}; {WAY_OUT}")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except PermissionError as error:
        raise UserError(path, f"may not be read ({error.strerror}); {WAY_OUT}") from error
    except Exception as error:  # a damaged file makes its readers raise anything
        raise UserError(path, f"damaged or another program's; {WAY_OUT}") from error
    if not isinstance(content, dict) or content.get("format") != VERSION:
        raise UserError(path, f"another program's or another version's; {WAY_OUT}")

    try:
        weights = content["model"]
        with torch.random.fork_rng(devices=[]):  # build draws values, on the CPU
            model = build(content["arch"], content["vocab"], **content["fields"])
        first_stack = next(iter(model.stacks()))  # its name
        saved_dtype = weights[f"{first_stack}.embed_tokens.weight"].dtype
        model.to(saved_dtype)
        model.load_state_dict(weights)
    except UserError as error:  # an unknown method, for example; only the file's name is missing
        raise UserError(path, str(error)) from error
    except (*files.WRONG_VALUES, RuntimeError) as error:  # entries that are missing or of another type
        raise UserError(path, f"damaged; {WAY_OUT}") from error
    return model.eval()


def _shapes(model: nn.Module) -> dict[str, torch.Size]:
    """Return name -> shape of each entry of a model's state dict."""
    return {name: value.shape for name, value in model.state_dict().items()}
