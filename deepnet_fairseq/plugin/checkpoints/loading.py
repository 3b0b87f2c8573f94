"""Load models, or parts of them, from files: an error names the file, and another vocabulary is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ...core.stack import Encoder, Stack
from ...errors import UserError
from . import vocabulary


@contextmanager
def naming_file(path: str) -> Iterator[None]:
    """Put the file's name in front of the text of a UserError that the context raises, unless the text has the name."""
    try:
        yield
    except UserError as error:
        if str(path) in str(error):
            raise
        raise UserError(path, str(error)) from error


def load_model_ensemble_and_task(original, filenames, arg_overrides=None, task=None, *args, **kwargs):
    """Load an ensemble of models as fairseq's function of this name (`original`) does, one file at a time.

    An error of one of the models then names its file. The arguments are fairseq's. Returns what fairseq's function
    does: (models, the last one's config, task).
    """
    models = []
    cfg = None
    for filename in filenames:
        with naming_file(filename):
            loaded, cfg, task = original([filename], arg_overrides, task, *args, **kwargs)
        models += loaded
    return models, cfg, task


def load_pretrained_component_from_model(original, component, checkpoint, strict=True):
    """Load the encoder or decoder of a checkpoint into `component`, as fairseq's function of this name does.

    original: fairseq's function; component: the encoder or decoder of a model; checkpoint: path of the file. Raises a
    UserError, naming the file, for another vocabulary and for weights that do not fit.

    A stabilisation method has constants that follow from depth and options, such as the factors of shortcuts; they are
    part of the state. With `strict` those of the checkpoint must be the model's; else the model keeps its own.
    """
    if not isinstance(component, Stack):  # another package's
        return original(component, checkpoint, strict)

    # digests of the component's dictionary, to compare with the checkpoint's (vocabulary.py)
    side = "source" if isinstance(component, Encoder) else "target"
    dictionary = getattr(component, "dictionary", None)
    if dictionary is not None:
        present = vocabulary.digests_of({side: dictionary}, data=None)
    else:  # a model of building.from_checkpoint has the digests alone
        present = {side: getattr(component, "digest", None)}
    if present[side] is not None:
        vocabulary.check_vocabulary(vocabulary.read_origin(checkpoint), present, None, f"this {component.name}'s data")

    with naming_file(checkpoint):
        try:
            return original(component, checkpoint, strict)
        except RuntimeError as error:  # torch's, of several lines
            reason = " ".join(str(error).split())
            raise UserError(f"does not fit this {component.name}", f"{reason[:400]}") from error
