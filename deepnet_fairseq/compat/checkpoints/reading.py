"""Checkpoints: only plain data is ever unpickled, and a file that cannot be read says so in one line.

torch >= 2.6 loads with its weights_only unpickler, which knows tensors and containers. fairseq also writes the classes
below; each holds data, none runs code when it is rebuilt.
"""

from __future__ import annotations

import argparse
import collections
import os
import pickle
import re
import typing

import numpy
import omegaconf
import torch
from fairseq import checkpoint_utils
from fairseq.distributed import utils as distributed_utils
from fairseq.trainer import Trainer
from omegaconf.errors import OmegaConfBaseException

from ...errors import UserError
from ..wrapping import wrap
from . import content

NUMPY_DTYPES = ("Int64DType", "Int32DType", "Float64DType", "Float32DType", "BoolDType")


def allow_plain_data() -> None:
    """The smallest list with which training, resuming (on several ranks too), generation and validation work."""
    multiarray = numpy._core.multiarray  # type: ignore[attr-defined]  # where the pickles' functions live
    torch.serialization.add_safe_globals(
        [
            argparse.Namespace,  # every checkpoint of the command line: its arguments
            # checkpoints of a run with --eval-bleu: BLEU counts among the meters, by numpy 2's and numpy 1's names
            (multiarray._reconstruct, "numpy._core.multiarray._reconstruct"),
            (multiarray._reconstruct, "numpy.core.multiarray._reconstruct"),
            (multiarray.scalar, "numpy._core.multiarray.scalar"),
            (multiarray.scalar, "numpy.core.multiarray.scalar"),
            numpy.ndarray,
            numpy.dtype,
            *(getattr(numpy.dtypes, name) for name in NUMPY_DTYPES),
            # resuming on several ranks: rank 0 broadcasts the state it has read
            omegaconf.DictConfig,
            omegaconf.ListConfig,
            omegaconf.base.ContainerMetadata,
            omegaconf.base.Metadata,
            omegaconf.nodes.AnyNode,
            typing.Any,
            dict,
            list,
            int,
            collections.defaultdict,
            distributed_utils._TensorPlaceholder,
        ]
    )


def explain_unreadable_files() -> None:
    """UserError, naming the file, where fairseq ends with a page of calls.

    It opens every checkpoint through checkpoint_utils.load_checkpoint_to_cpu, and takes up a training through
    Trainer.load_checkpoint.
    """
    wrap(checkpoint_utils, "load_checkpoint_to_cpu", _explained)
    wrap(Trainer, "load_checkpoint", _resumed)


def _explained(load, path, *args, **kwargs) -> dict:
    """Whatever a file makes its readers say becomes one line: what they raise for a damaged one has no end of kinds."""
    _check_ordinary(path)
    try:
        state = load(path, *args, **kwargs)
    except UserError:
        raise
    except pickle.UnpicklingError as error:
        raise UserError(_refusal(path, str(error))) from error
    except (KeyError, TypeError, AttributeError, OmegaConfBaseException) as error:  # plain data, laid out otherwise
        lacks = f"it lacks {error}" if isinstance(error, KeyError) else _short(error)
        raise UserError(f"{path}: not a checkpoint of fairseq ({lacks})") from error
    except Exception as error:
        raise UserError(
            f"{path}: truncated, damaged or not a checkpoint ({_short(error)}); take another one of the same folder"
        ) from error
    content.check(path, state)
    return state


def _check_ordinary(path: str) -> None:
    if os.path.exists(path) and not os.path.isfile(path):  # a pipe would be waited for
        raise UserError(f"{path}: is no ordinary file; give a checkpoint of fairseq-train")


def _resumed(load, trainer: Trainer, filename: str, *args, **kwargs):
    """The optimiser's and the schedule's state, which fairseq passes on as it is; it starts anew where a folder is."""
    _check_ordinary(filename)
    try:
        return load(trainer, filename, *args, **kwargs)
    except (AssertionError, KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        if isinstance(error, UserError):
            raise
        reason = f"it lacks {error}" if isinstance(error, KeyError) else _short(error)
        raise UserError(
            f"{filename}: cannot go on with its training ({reason}); give the flags of its run, or --reset-optimizer"
        ) from error


def _short(error: Exception) -> str:
    """The first sentence of what was raised; torch adds advice to it."""
    first = str(error).split("\n")[0].split(". ")[0]
    return first if first and len(first) < 160 else type(error).__name__


def _refusal(path: str, message: str) -> str:
    name = re.search(
        r"(?:Unsupported global: GLOBAL|Trying to load unsupported GLOBAL|Unsupported class) (\S+)", message
    ) or re.search(r"but got <class '(.+?)'>", message)
    if name is None:
        return f"{path}: truncated, damaged or not a checkpoint; take another one of the same folder"
    return f"{path}: refused, it asks to load {name.group(1)}, which is not plain data; nothing of it was run"
