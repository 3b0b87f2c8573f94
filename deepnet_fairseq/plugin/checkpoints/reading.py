"""Read checkpoints: only plain data is unpickled, and a file that cannot be used is refused in one line.

torch stores a checksum for every tensor and never checks it; this module verifies them before a file is read. A file is
whole if all checksums agree, else damaged. A resume takes the last checkpoint, or else the newest that is whole.

torch >= 2.6 loads with its weights_only unpickler, which knows tensors and containers. fairseq also writes the classes
of allow_plain_data; each holds data, none runs code when it is rebuilt. This module also checks that weights are finite
and that the model's config is there: fairseq notices later, if at all, and translations by weights that are NaN are
arbitrary.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import functools
import logging
import os
import pickle
import re
import struct
import typing
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy
import omegaconf
import torch
from fairseq.distributed import utils as distributed_utils
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from torch import Tensor

from ...errors import UserError
from ..settings import check_plain
from . import atomic, vocabulary

log = logging.getLogger(__name__)
DEFAULT = "checkpoint_last.pt"  # of --restore-file
# Pattern of the names of checkpoints other than checkpoint_last: of the one before it, of an epoch, of an update
# (checkpoint_EPOCH_UPDATES.pt), and of the best by validation, which alone match group 1. {} stands for
# --checkpoint-suffix.
RESUMABLE = r"checkpoint(?:_previous|\d+|_\d+_\d+|(_best|\.best_.+)){}\.pt"
# errors that zipfile and torch's reader raise at a damaged file
UNREADABLE = (OSError, EOFError, zipfile.BadZipFile, zlib.error, struct.error, ValueError, RuntimeError, IndexError)
FOLDER = 0x10  # bit in a zip member's attributes that marks a folder: torch reads such a member as empty
# classes of numpy.dtypes that pickled arrays name
NUMPY_DTYPES = ("Int64DType", "Int32DType", "Float64DType", "Float32DType", "BoolDType")
HALF = (torch.float16, torch.bfloat16)


def allow_plain_data() -> None:
    """Allow torch to unpickle the classes that training, resuming (on several ranks too) and generation need."""
    multiarray = numpy._core.multiarray  # type: ignore[attr-defined]  # its functions are those that pickles name
    # an entry is a class, or a pair (function, the name by which pickles refer to it)
    torch.serialization.add_safe_globals(
        [
            argparse.Namespace,  # every checkpoint of the command line: its arguments
            # checkpoints of a run with --eval-bleu: counts of n-grams among the meters, which are numpy arrays; their
            # functions by the names of numpy 2 and of numpy 1
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


def load_checkpoint_to_cpu(original, path, arg_overrides=None, **kwargs) -> dict:
    """Load a checkpoint as fairseq's function of this name (`original`) does, and check it.

    arg_overrides: settings of the model that replace those of the file, from --model-overrides, {name: value}; kwargs:
    other arguments of fairseq's function. Raises a UserError, naming the file, if it is damaged or no checkpoint of
    fairseq; also for overrides that prune layers of this package's models, because fairseq would ignore them silently.
    The "task_state" of the result has the file's origin, by which the task compares vocabularies (vocabulary.py).
    """
    # "cfg", "args" and "task_state" as they are in the file, before fairseq converts them and applies the overrides;
    # empty for a path that is no local file
    raw_parts: dict = {}

    def load(*args, **kwargs):
        """Check the file, note its raw parts, and load it by fairseq's function."""
        if os.path.isfile(path):
            check_whole(path)  # torch does not look at its checksums
            raw = torch.load(path, map_location="cpu", mmap=zipfile.is_zipfile(path), weights_only=True)
            for name in ("cfg", "args", "task_state"):
                raw_parts[name] = raw.get(name)
            for name in ("cfg", "args"):  # checked before fairseq converts them, which runs eval() on their texts
                check_plain(path, raw_parts[name])
        return original(*args, **kwargs)

    state = load_or_explain(load, path, arg_overrides, **kwargs)
    check_content(path, state)
    vocabulary.attach_origin(path, raw_parts or state, state)
    # fairseq's settings encoder_layers_to_keep and decoder_layers_to_keep
    pruning = [name for name in arg_overrides or () if name.endswith("_layers_to_keep")]
    if pruning and str(state["cfg"]["model"]["_name"]).startswith("deepnet_"):
        raise UserError(
            f"--model-overrides {pruning[0]}",
            "a method's constants hold for the depth that it was trained at; "
            "export the model (deepnet export --to transformer) and prune the export",
        )
    return state


def load_or_explain(load, path, *args, **kwargs):
    """Return load(path, *args, **kwargs); turn any error that it raises into a UserError that names the file.

    load: a function that reads a checkpoint, such as torch.load.
    """
    _check_ordinary(path)
    try:
        return load(path, *args, **kwargs)
    except UserError:
        raise
    except FileNotFoundError as error:
        raise UserError(path, "no such file; name a checkpoint of fairseq-train") from error
    except pickle.UnpicklingError as error:
        raise UserError(_refusal(path, str(error))) from error
    except (KeyError, TypeError, AttributeError, OmegaConfBaseException) as error:  # it was read, but lacks something
        raise UserError(path, f"not a checkpoint of fairseq ({_short(error)})") from error
    except Exception as error:  # readers of damaged files raise errors of every kind
        raise UserError(
            path, f"truncated, damaged or not a checkpoint ({_short(error)}); take another one of the same folder"
        ) from error


def _check_ordinary(path: str) -> None:
    """Raise a UserError for a path that names something other than a file, or that torch cannot open."""
    if os.path.exists(path) and not os.path.isfile(path):  # such as a pipe, which blocks whoever opens it
        raise UserError(path, "is no ordinary file; give a checkpoint of fairseq-train")
    # Python has surrogates in the place of bytes that are not UTF-8; torch cannot open a file of such a name
    if any("\ud800" <= char <= "\udfff" for char in str(path)):
        raise UserError(f"{path!r}", "its name is not UTF-8; rename it")


@contextlib.contextmanager
def explaining_unusable(filename: str) -> Iterator[None]:
    """Turn errors of a context that resumes from the checkpoint `filename` into a UserError that names the file.

    These are the errors that fairseq raises where the state of an optimiser or a schedule does not fit the flags.
    """
    _check_ordinary(filename)
    try:
        yield
    except (AssertionError, KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        if isinstance(error, UserError):  # a ValueError that says what is wrong already
            raise
        problem = f"cannot go on with its training ({_short(error)})"
        raise UserError(filename, f"{problem}; give the flags of its run, or --reset-optimizer") from error


def _short(error: Exception) -> str:
    """Return the first sentence of an error's message; the name of its type if that is empty or long.

    torch gives advice to programmers in the sentences after it.
    """
    sentence = str(error).split("\n")[0].split(". ")[0]
    if isinstance(error, KeyError):  # its message is the key alone
        sentence = f"it lacks {sentence}"
    return sentence if sentence and len(sentence) < 160 else type(error).__name__


def _refusal(path: str, message: str) -> str:
    """Return the error message for a file that torch's unpickler refuses.

    message: of torch's UnpicklingError. If the file refers to a class or function that is not allowed, it says one of
    "Unsupported global: GLOBAL NAME", "unsupported GLOBAL NAME", "Unsupported class NAME", "but got <class 'NAME'>".
    """
    name = re.search(r"(?:[Uu]nsupported (?:global: GLOBAL|GLOBAL|class) |but got <class ')([^\s']+)", message)
    if name is None:
        return f"{path}: truncated, damaged or not a checkpoint; take another one of the same folder"
    return f"{path}: refused, it asks to load {name[1]}, which is not plain data; nothing of it was run"


def check_content(path: str, state: dict) -> None:
    """Raise a UserError, naming the file, if its content is not that of a usable checkpoint of fairseq.

    state: the content as fairseq's load_checkpoint_to_cpu returns it, a dict with the weights under "model" and the
    settings under "cfg", or under "args" in a checkpoint of an old release.
    """
    if "deepnet_shards" in state:  # of an old version of this package, by which each process wrote a file
        problem = f"{path}: lies in shards, which commit 45b0f76 of this package gathers"
        raise UserError(f"{problem}; resume the run there without --use-sharded-state")
    weights = state.get("model")
    if not isinstance(weights, dict) or not weights or not all(map(torch.is_tensor, weights.values())):
        raise UserError(path, "not a checkpoint of fairseq (it holds no weights under 'model')")
    for name, value in weights.items():
        # a small file can hold a huge tensor of stride 0, whose elements share memory; sparse ones have no storage
        if value.layout == torch.strided and value.numel() * value.element_size() > value.untyped_storage().nbytes():
            raise UserError(path, f"{name} unfolds to {value.numel():,} numbers that the file does not hold")
    broken = first_not_finite(weights)
    if broken:
        raise UserError(path, f"{broken} holds values that are not finite; take a checkpoint from before that")

    cfg = state.get("cfg")
    has_model_section = isinstance(cfg, DictConfig) and "model" in cfg
    if not has_model_section and not isinstance(state.get("args"), argparse.Namespace):
        raise UserError(path, "holds no config of a model; give a checkpoint of fairseq-train")


def first_not_finite(weights: Mapping[str, Tensor]) -> str | None:
    """Return the name of the first floating-point tensor that holds a NaN or an infinity; None if none does.

    The sum is computed first, because it takes a twentieth of the time of isfinite: if it is finite, so are all of its
    terms. If it is not, it may have overflowed, and all terms are looked at.
    """
    for name, value in weights.items():
        if not value.is_floating_point():
            continue
        dtype = torch.float32 if value.dtype in HALF else None  # of the sum, which overflows easily in half precision
        if not value.sum(dtype=dtype).isfinite() and not value.isfinite().all():
            return name
    return None


def check_whole(path: str | Path) -> None:
    """Raise a UserError if a file is a damaged zip archive; other files are not checked.

    torch writes zip archives since version 1.6, and its older format has no checksums.
    """
    with open(path, "rb") as file:
        is_zip = file.read(2) == b"PK"  # with which zip archives begin
    defect = damage(path) if is_zip else None
    if defect:
        raise UserError(path, f"truncated or damaged ({defect}); take another checkpoint of the same folder")


def damage(path: str | Path) -> str | None:
    """Return in a few words what is wrong with the checkpoint at `path`; None if it is whole.

    Reads the whole file, and remembers the answer until the file changes.
    """
    path = Path(path)
    try:
        stat = path.stat()
    except OSError as error:  # there is no such file, or it may not be read
        return error.strerror
    return _damage_of_version(path, (stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns))


@functools.lru_cache(maxsize=64)
def _damage_of_version(path: Path, version: tuple) -> str | None:
    """Return what `damage` returns, from a cache of the last 64 answers.

    version: inode, size and times of the file. It is not read, but is part of the cache's key, so that a file that has
    changed is read again.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return _damage_of_archive(path, archive)
    except UNREADABLE as error:
        return str(error).split("\n")[0] or type(error).__name__


def _damage_of_archive(path: Path, archive: zipfile.ZipFile) -> str | None:
    """Return what is wrong with torch's zip archive at `path`, in a few words, or None.

    zipfile and torch must read the same table of contents, and every member must be stored as torch stores it and have
    the checksum that the table gives.
    """
    members = archive.infolist()
    names = {info.filename.partition("/")[2] for info in members}  # without the folder in which torch puts them all
    if len(names) < len(members) or names != set(torch._C.PyTorchFileReader(str(path)).get_all_records()):
        return "its table of contents is broken"
    for info in members:
        # torch compresses no member, and with mmap it takes the bytes in the file for those of a tensor
        is_compressed = info.compress_type or info.compress_size != info.file_size
        if is_compressed or info.external_attr & FOLDER:
            return f"{info.filename.partition('/')[2]} is not stored as torch does"
    broken = archive.testzip()
    if broken:
        return f"the checksum of {broken.partition('/')[2]} is another"
    return None


def with_suffix(path: str, suffix: str | None) -> str:
    """Return a checkpoint's path with the suffix before its ".pt", as fairseq names it.

    suffix: --checkpoint-suffix; None or "" without it.
    """
    return path.replace(".pt", f"{suffix or ''}.pt")


def other_than_last(folder: Path, suffix: str) -> Path | None:
    """Return the newest whole checkpoint if checkpoint_last is damaged or missing; None if checkpoint_last is whole.

    None too if the folder has no checkpoint at all. suffix: --checkpoint-suffix, "" without. Logs which files are
    passed over and why. Raises a UserError if there are checkpoints but none is whole.
    """
    last = folder / f"{atomic.LAST}{suffix}.pt"
    is_missing = not last.is_file()
    defect_of_last = None if is_missing else damage(last)
    if not is_missing and defect_of_last is None:
        return None
    others = all_but_last(folder, suffix)
    if is_missing and not others:  # a new training
        return None

    problem = f"{last}: missing" if is_missing else f"{last}: truncated or damaged ({defect_of_last})"
    for path in others:
        defect = damage(path)
        if not defect:
            log.warning(f"{problem}; resuming from {path}")
            return path
        log.warning(f"{path}: truncated or damaged too ({defect})")
    raise UserError(
        f"{problem}, and {folder} holds no other checkpoint that is whole; nothing was changed",
        "put one there, name one by --restore-file, or start over with another --save-dir",
    )


def all_but_last(folder: Path, suffix: str) -> list[Path]:
    """List the folder's checkpoints except checkpoint_last, newest first; the best by validation come after the others.

    suffix: --checkpoint-suffix, "" without; files with another suffix are left out.
    """
    pattern = re.compile(RESUMABLE.format(re.escape(suffix)))

    # (whether it is not one of the best, number of updates, file): sorted in descending order
    found: list[tuple[bool, int, Path]] = []
    for path in folder.glob("checkpoint*"):
        match = pattern.fullmatch(path.name)
        if match and not _of_other_suffix(path, suffix):
            is_best = match[1] is not None
            found.append((not is_best, updates(path), path))
    found.sort(key=lambda entry: entry[:2], reverse=True)
    return [path for _not_best, _updates, path in found]


def _of_other_suffix(path: Path, suffix: str) -> bool:
    """Return whether a file was saved with another --checkpoint-suffix, which its name ends in.

    The name alone does not tell: without a suffix RESUMABLE matches checkpoint.best_5.2-b.pt too, whose suffix may be
    "-b". suffix: the one that is looked for, "" for none.
    """
    saved_suffix = suffix_of(path)
    return saved_suffix not in ("", suffix) and path.name.endswith(f"{saved_suffix}.pt")


def updates(path: Path) -> int:
    """Return after how many updates a checkpoint was saved, -1 if it cannot be read. Reads little of the file."""
    try:
        return _load_mapped(path)["optimizer_history"][-1]["num_updates"]
    except Exception:  # a damaged file makes torch raise errors of any kind
        return -1


def suffix_of(path: Path) -> str:
    """Return the --checkpoint-suffix of the training that saved a checkpoint; "" for none, or if it cannot be read.

    Reads little of the file.
    """
    try:
        return _load_mapped(path)["cfg"]["checkpoint"]["checkpoint_suffix"] or ""
    except Exception:  # a damaged file makes torch raise errors of any kind
        return ""


def _load_mapped(path: Path) -> dict:
    """Load a checkpoint with its tensors mapped into memory, which are not read from the disk before they are used."""
    return torch.load(path, map_location="cpu", mmap=True, weights_only=True)
