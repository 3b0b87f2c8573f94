"""Load models, or parts of them, from files: an error names the file, and another vocabulary is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ...core.stack import Encoder, Stack
from ...errors import UserError
from . import vocabulary


@contextmanager
def naming(path: str) -> Iterator[None]:
    """Put the file's name in front of a UserError that lacks it."""
    try:
        yield
    except UserError as error:
        if str(path) in str(error):
            raise
        raise UserError(f"{path}: {error}") from error


def load_model_ensemble_and_task(original, filenames, arg_overrides=None, task=None, *args, **kwargs):
    """Load models as fairseq does, but one by one, so that what is wrong with a model names its file."""
    models, cfg = [], None
    for filename in filenames:
        with naming(filename):
            loaded, cfg, task = original([filename], arg_overrides, task, *args, **kwargs)
        models += loaded
    return models, cfg, task


def load_pretrained_component_from_model(original, component, checkpoint, strict=True):
    """Load encoder or decoder of a checkpoint into a model's; a UserError, naming the file, for one that does not fit.

    Its constants, which follow from depth and options, must be the model's; with strict=False the model keeps its own.
    """
    if not isinstance(component, Stack):
        return original(component, checkpoint, strict)
    side = "source" if isinstance(component, Encoder) else "target"
    dictionary = getattr(component, "dictionary", None)
    if dictionary is not None:
        present = vocabulary.digests_of({side: dictionary}, data=None)
    else:
        present = {side: getattr(component, "digest", None)}
    if present[side] is not None:
        vocabulary.check_vocabulary(vocabulary.read_origin(checkpoint), present, None, f"this {component.name}'s data")
    with naming(checkpoint):
        try:
            return original(component, checkpoint, strict)
        except RuntimeError as error:  # torch's, of several lines
            reason = " ".join(str(error).split())
            raise UserError(f"does not fit this {component.name}: {reason[:400]}") from error
