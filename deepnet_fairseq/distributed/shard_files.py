"""A checkpoint in a file for each rank (--use-sharded-state), and a small one by the usual name that names them.

The named files are complete before the checkpoint that names them takes its name: killed at any moment, a run has the
new checkpoint or the old one. They are torch's, of tensors and plain data.
"""

from __future__ import annotations

import re
import shutil
import zipfile
from pathlib import Path

import torch
from torch import distributed

from ..checkpoints import atomic, whole
from ..errors import UserError
from . import optimiser_state, rows

KEY = "deepnet_shards"  # of the small file: {"folder", "files"}
FOLDER, FILE = re.compile(r"shards_\d+"), re.compile(r"\d+_of_\d+\.pt")


def write(save_dir: str, trainer, found: dict) -> dict:
    """This rank's file; a call of all ranks. Returns what the small file says of all of them; SaveError on all."""
    folder = Path(save_dir) / f"shards_{trainer.get_num_updates()}"
    rank, world = trainer.data_parallel_rank, trainer.data_parallel_world_size
    files = [f"{number}_of_{world}.pt" for number in range(world)]
    failure = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        atomic.save(found, folder / files[rank])
    except OSError as error:
        failure = error.strerror
    except atomic.SaveError as error:
        failure = error.reason
    failures = [None] * world
    distributed.all_gather_object(failures, failure, group=trainer.data_parallel_process_group)
    if any(failures):
        rank, failure = next((rank, failure) for rank, failure in enumerate(failures) if failure)
        raise atomic.SaveError(folder / files[rank], OSError(failure))
    atomic.sync(folder.parent)
    return {"folder": folder.name, "files": files}


def read(path: str, state: dict) -> dict:
    """The checkpoint `state` of file `path` with what its shards hold; UserError if one is missing or damaged."""
    name, files = state[KEY]["folder"], state[KEY]["files"]
    if not FOLDER.fullmatch(name) or not all(FILE.fullmatch(file) for file in files):
        raise UserError(f"{path}: names shards in a place where none is written; take another checkpoint")
    del state[KEY]
    parts = [_part(path, Path(path).resolve().parent / name / file) for file in files]
    shapes, joined = parts[0]["shapes"], {}
    state["model"] = parts[0]["model"]
    for name, shape in shapes.items():
        memory = parts[0]["model"][name].data_ptr()  # of tied parameters the same
        if memory not in joined:
            joined[memory] = rows.join([part["model"][name] for part in parts], shape)
        state["model"][name] = joined[memory]
    if "optimiser" in parts[0]:
        states = [part["optimiser"] for part in parts]
        state["last_optimizer_state"] = optimiser_state.join(states, parts[0]["trained"])
    return state


def _part(path: str, file: Path) -> dict:
    try:
        return torch.load(file, map_location="cpu", mmap=True, weights_only=True)
    except FileNotFoundError:
        raise UserError(f"{path}: its part {file} is missing; take another checkpoint") from None
    except Exception as error:
        raise UserError(
            f"{path}: its part {file} is damaged ({str(error).splitlines()[0]}); take another one"
        ) from error


def damage(path: Path) -> str | None:
    """What is wrong with the shards of the checkpoint at `path`, which is whole, in a few words."""
    folders, files = _named(path)
    for file in (path.parent / folder / file for folder in folders for file in files):
        if found := whole.damage(file):
            return f"its part {file.parent.name}/{file.name}: {found}"
    return None


def remove_unused(save_dir: str) -> None:
    """Folders of shards that no checkpoint names."""
    folders = {path for path in Path(save_dir).glob("shards_*") if FOLDER.fullmatch(path.name)}
    for path in Path(save_dir).glob("*.pt") if folders else ():
        folders -= {path.parent / folder for folder in _named(path)[0]}
    for folder in folders:
        shutil.rmtree(folder)


def _named(path: Path) -> tuple[set[str], set[str]]:
    """Folders and files that a checkpoint names, by its text alone."""
    try:
        with zipfile.ZipFile(path) as archive:
            text = archive.read(next(name for name in archive.namelist() if name.endswith("/data.pkl")))
    except (*whole.UNREADABLE, StopIteration):
        return set(), set()
    if KEY.encode() not in text:
        return set(), set()
    return tuple({found.decode() for found in re.findall(kind.pattern.encode(), text)} for kind in (FOLDER, FILE))
