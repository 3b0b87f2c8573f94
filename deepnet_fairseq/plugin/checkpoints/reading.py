"""Checkpoints: only plain data is unpickled, a file that cannot be used says so in one line, views of one memory stay.

torch >= 2.6 loads with its weights_only unpickler, which knows tensors and containers. fairseq also writes the classes
below; each holds data, none runs code when it is rebuilt. That a file holds weights that are finite numbers, and the
config of their model, fairseq finds out later, if at all: weights that are no numbers translate into anything.
"""

from __future__ import annotations

import argparse
import collections
import os
import pickle
import re
import typing
from collections import Counter
from collections.abc import Mapping

import numpy
import omegaconf
import torch
from fairseq import utils
from fairseq.distributed import utils as distributed_utils
from fairseq.trainer import Trainer
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from torch import Tensor

from ...errors import UserError

NUMPY_DTYPES = ("Int64DType", "Int32DType", "Float64DType", "Float32DType", "BoolDType")
HALF = (torch.float16, torch.bfloat16)
SHARDS = "deepnet_shards"  # in a checkpoint whose tensors lie in a file for each process
GATHERS = "45b0f76"  # the last commit that reads those


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


def explain_unreadable(load, path, arg_overrides=None, **kwargs) -> dict:
    """Load a checkpoint of fairseq and check its content.

    UserError for overrides that prune layers of our models, which fairseq would leave out without a word.
    """
    state = explained(load, path, arg_overrides, **kwargs)
    check_content(path, state)
    pruning = [name for name in arg_overrides or () if name.endswith("_layers_to_keep")]
    if pruning and str(state["cfg"]["model"]["_name"]).startswith("deepnet_"):
        raise UserError(
            f"--model-overrides {pruning[0]}: a method's constants hold for the depth that it was trained at; "
            "export the model (deepnet export --to transformer) and prune the export"
        )
    return state


def explained(load, path, *args, **kwargs):
    """Whatever a file makes its readers say becomes one line: what they raise for a damaged one has no end of kinds."""
    _check_ordinary(path)
    try:
        return load(path, *args, **kwargs)
    except UserError:
        raise
    except pickle.UnpicklingError as error:
        raise UserError(_refusal(path, str(error))) from error
    except (KeyError, TypeError, AttributeError, OmegaConfBaseException) as error:  # plain data, laid out otherwise
        raise UserError(f"{path}: not a checkpoint of fairseq ({_short(error)})") from error
    except Exception as error:
        raise UserError(
            f"{path}: truncated, damaged or not a checkpoint ({_short(error)}); take another one of the same folder"
        ) from error


def _check_ordinary(path: str) -> None:
    if os.path.exists(path) and not os.path.isfile(path):  # a pipe would be waited for
        raise UserError(f"{path}: is no ordinary file; give a checkpoint of fairseq-train")
    if any("\ud800" <= char <= "\udfff" for char in str(path)):  # torch takes it for no name at all
        raise UserError(f"{path!r}: its name is not UTF-8; rename it")


def explain_unusable(load, trainer: Trainer, filename: str, *args, **kwargs):
    """The optimiser's and the schedule's state, which fairseq passes on as it is; it starts anew where a folder is."""
    _check_ordinary(filename)
    try:
        return load(trainer, filename, *args, **kwargs)
    except (AssertionError, KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        if isinstance(error, UserError):
            raise
        said = f"{filename}: cannot go on with its training ({_short(error)})"
        raise UserError(f"{said}; give the flags of its run, or --reset-optimizer") from error


def _short(error: Exception) -> str:
    """The first sentence of what was raised; torch adds advice to it."""
    lacks = "it lacks " if isinstance(error, KeyError) else ""
    first = lacks + str(error).split("\n")[0].split(". ")[0]
    return first if first and len(first) < 160 else type(error).__name__


def _refusal(path: str, message: str) -> str:
    name = re.search(r"(?:[Uu]nsupported (?:global: GLOBAL|GLOBAL|class) |but got <class ')([^\s']+)", message)
    if name is None:
        return f"{path}: truncated, damaged or not a checkpoint; take another one of the same folder"
    return f"{path}: refused, it asks to load {name[1]}, which is not plain data; nothing of it was run"


def check_content(path: str, state: dict) -> None:
    """UserError, naming the file, for what no checkpoint of fairseq holds.

    state: what checkpoint_utils.load_checkpoint_to_cpu made of it.
    """
    if SHARDS in state:
        raise UserError(
            f"{path}: lies in shards, which commit {GATHERS} of this package gathers; resume the run there "
            "without --use-sharded-state"
        )
    weights = state.get("model")
    if not isinstance(weights, dict) or not weights or not all(map(torch.is_tensor, weights.values())):
        raise UserError(f"{path}: not a checkpoint of fairseq (it holds no weights under 'model')")
    for name, value in weights.items():
        if value.layout == torch.strided and value.numel() * value.element_size() > value.untyped_storage().nbytes():
            raise UserError(f"{path}: {name} unfolds to {value.numel():,} numbers that the file does not hold")
    if name := not_finite(weights):
        raise UserError(f"{path}: {name} holds values that are not finite; take a checkpoint from before that")
    cfg, args = state.get("cfg"), state.get("args")
    if not (isinstance(cfg, DictConfig) and "model" in cfg) and not isinstance(args, argparse.Namespace):
        raise UserError(f"{path}: holds no config of a model; give a checkpoint of fairseq-train")


def not_finite(weights: Mapping[str, Tensor]) -> str | None:
    """The first of the floating-point tensors with NaN or an infinity in it.

    A sum takes a twentieth of the time of isfinite and is finite if its terms are, unless it grows too large.
    """
    for name, value in weights.items():
        kind = torch.float32 if value.dtype in HALF else None
        if value.is_floating_point() and not value.sum(dtype=kind).isfinite() and not value.isfinite().all():
            return name
    return None


def move_to_cpu(sample):
    """`sample`, nested containers of tensors, with every tensor on the CPU and those in half precision in float32.

    fairseq moves each tensor by itself. Parameters and Adam's state under deepnet_adam are views of a few buffers:
    copied as such they take one transfer, and one entry of the file. Float32 tensors that are on the CPU already are
    themselves.
    """
    used, moved = Counter(), {}

    def count(tensor: Tensor) -> None:
        used[_memory(tensor)] += tensor.numel()

    def move(tensor: Tensor) -> Tensor:
        if tensor.device.type == "cpu" and tensor.dtype not in HALF:
            return tensor
        key = _memory(tensor)
        if key is None or used[key] * tensor.element_size() < tensor.untyped_storage().nbytes() / 2:
            return _plain(tensor)  # most of the memory is no part of the checkpoint
        if key not in moved:
            moved[key] = _plain(tensor.new_empty(0).set_(tensor.untyped_storage()))
        return moved[key].as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())

    utils.apply_to_sample(count, sample)
    return utils.apply_to_sample(move, sample)


def _memory(tensor: Tensor) -> tuple | None:
    """What tensors that share memory have in common."""
    if tensor.layout != torch.strided or not tensor.numel():
        return None
    return tensor.untyped_storage().data_ptr(), tensor.dtype


def _plain(tensor: Tensor) -> Tensor:
    moved = tensor.detach().cpu()  # first, for a float32 copy of a whole buffer may not fit on the GPU
    return moved.float() if tensor.dtype in HALF else moved
