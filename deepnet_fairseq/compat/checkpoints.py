"""Checkpoints: only plain data is ever unpickled, and a file that cannot be read says so in one line.

torch >= 2.6 loads with its weights_only unpickler, which knows tensors and containers. fairseq also writes the classes
below; each holds data, none runs code when it is rebuilt.
"""

from __future__ import annotations

import argparse
import collections
import functools
import pickle
import re
import struct
import typing
import zipfile

import numpy
import omegaconf
import torch
from fairseq import checkpoint_utils
from fairseq.distributed import utils as distributed_utils

from ..errors import UserError

NUMPY_DTYPES = ("Int64DType", "Int32DType", "Float64DType", "Float32DType", "BoolDType")


def allow_plain_data() -> None:
    """The smallest list with which training, resuming (on several ranks too), generation and validation work."""
    multiarray = numpy._core.multiarray
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
    """fairseq opens every checkpoint through this one function."""
    original = checkpoint_utils.load_checkpoint_to_cpu
    if not hasattr(original, "__wrapped__"):
        checkpoint_utils.load_checkpoint_to_cpu = _explained(original)


def _explained(load):
    @functools.wraps(load)
    def load_checkpoint_to_cpu(path, *args, **kwargs):
        try:
            state = load(path, *args, **kwargs)
        except pickle.UnpicklingError as error:
            raise UserError(_refusal(path, str(error))) from error
        except (RuntimeError, OSError, EOFError, zipfile.BadZipFile, IndexError, ValueError, struct.error) as error:
            reason = str(error).split("\n")[0]
            raise UserError(
                f"{path}: truncated, damaged or not a checkpoint ({reason}); take another one of the same folder"
            ) from error
        except (KeyError, TypeError, AttributeError) as error:  # plain data, but not laid out as fairseq does
            raise UserError(f"{path}: not a checkpoint of fairseq (it lacks {error})") from error
        weights = state.get("model")
        if not isinstance(weights, dict) or not all(isinstance(value, torch.Tensor) for value in weights.values()):
            raise UserError(f"{path}: not a checkpoint of fairseq (it holds no weights under 'model')")
        return state

    return load_checkpoint_to_cpu


def _refusal(path: str, message: str) -> str:
    name = re.search(
        r"(?:Unsupported global: GLOBAL|Trying to load unsupported GLOBAL|Unsupported class) (\S+)", message
    )
    if name is None:
        return f"{path}: truncated, damaged or not a checkpoint; take another one of the same folder"
    return f"{path}: refused, it asks to load {name.group(1)}, which is not plain data; nothing of it was run"
