"""What a rank has of a tensor and of an optimiser's state, and checkpoints in a file for each rank.

An optimiser's state is that of fairseq's checkpoints: an entry a parameter, or one flat entry for all, as fairseq's
optimisers for half precision write it. The optimiser treats each number by itself: tensors of an entry have their
parameter's shape. In half precision the float32 weights are beside the entries.

With --use-sharded-state a small checkpoint by the usual name names the ranks' files. They are complete before the
checkpoint that names them takes its name: killed at any moment, a run has the new checkpoint or the old one. They are
torch's, of tensors and plain data.
"""

from __future__ import annotations

import itertools
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from ...errors import UserError
from ..checkpoints import atomic, integrity
from ..checkpoints.exact_resume import WEIGHTS
from ..optimisers.flat_adam import Entry, entries, is_flat, is_part, with_entries
from . import agreement

KEY = integrity.SHARDS  # of the small file
FOLDER, FILE = re.compile(r"shards_\d+(_\d+)?"), re.compile(r"\d+_of_\d+\.pt")


def cut_rows(tensor: Tensor, rank: int, world: int) -> Tensor:
    """A rank's part of `tensor`, a view, as torch.chunk deals rows out: the last ranks get fewer, or none.

    A scalar is one row: () on the first rank, (0,) on the others.
    """
    parts = tensor.reshape(tensor.shape or (1,)).chunk(world)
    part = parts[rank] if rank < len(parts) else parts[0][:0]
    return part if tensor.dim() or rank else part.view(())


def local_shape(shape: Sequence[int], rank: int, world: int) -> torch.Size:
    """Shape of a rank's part."""
    return cut_rows(torch.empty(shape, device="meta"), rank, world).shape


def join_rows(parts: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
    """The whole, of that shape, of what every rank has a part of; parts: by rank."""
    return torch.cat([part.reshape(-1) for part in parts]).view(tuple(shape))


def changed(state: dict, shapes: list[torch.Size], change: Callable[[int, str, Tensor], Tensor]) -> dict:
    """A state with change(number of the parameter, key, tensor) in place of each tensor of a parameter's shape.

    shapes: of the tensors in `state`; the key of float32 weights is WEIGHTS.
    """
    found: list[Entry] = [
        {key: change(number, key, value) if is_part(key, value) else value for key, value in entry.items()}
        for number, entry in enumerate(entries(state, shapes))
    ]
    weights = {key: [change(n, key, w) for n, w in enumerate(state[key])] for key in {WEIGHTS} & state.keys()}
    return with_entries(state, found, is_flat(state, shapes)) | weights


def join_state(states: list[dict], shapes: list[torch.Size]) -> dict:
    """The whole state from those of all ranks; shapes: of the whole parameters."""
    world = len(states)
    local = [[local_shape(shape, rank, world) for shape in shapes] for rank in range(world)]
    found = [entries(state, of_rank) for state, of_rank in zip(states, local, strict=True)]

    def join(number: int, key: str, _) -> Tensor:
        weights = [state[key][number] for state in states] if key == WEIGHTS else []
        return join_rows(weights or [of_rank[number][key] for of_rank in found], shapes[number])

    return changed(states[0], local[0], join)


def cut_state(state: dict, shapes: list[torch.Size], rank: int, world: int) -> dict:
    """A rank's part of a whole state."""
    return changed(state, shapes, lambda number, key, value: cut_rows(value, rank, world))


def write(save_dir: str, trainer, found: dict) -> dict:
    """This rank's file, of what it found; a call of all ranks. Returns what the small file says of all of them.

    SaveError on every rank if one could not write.
    """
    folder = agreement.from_first(lambda: _new_folder(Path(save_dir), trainer.get_num_updates()))
    folder = Path(save_dir) / folder
    rank, world = trainer.data_parallel_rank, trainer.data_parallel_world_size
    files = [f"{number}_of_{world}.pt" for number in range(world)]
    failure = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        atomic.save(found, folder / files[rank])
    except (OSError, atomic.SaveError) as error:
        failure = error.strerror if isinstance(error, OSError) else error.reason
    failures = agreement.gathered(failure)
    if any(failures):
        rank, failure = next((rank, failure) for rank, failure in enumerate(failures) if failure)
        raise atomic.SaveError(folder / files[rank], OSError(failure))
    atomic.sync(folder.parent)
    return {"folder": folder.name, "files": files}


def read(path: str, state: dict) -> dict:
    """The checkpoint `state` of file `path` with what its shards hold; UserError if they are elsewhere."""
    name, files = state[KEY]["folder"], state[KEY]["files"]
    if not FOLDER.fullmatch(name) or not all(FILE.fullmatch(file) for file in files):
        raise UserError(f"{path}: names shards in a place where none is written; take another checkpoint")
    del state[KEY]
    folder = Path(path).resolve().parent / name  # whose files are verified with the checkpoint
    parts = [torch.load(folder / file, map_location="cpu", mmap=True, weights_only=True) for file in files]
    state["model"], joined = parts[0]["model"], {}
    for name, shape in parts[0]["shapes"].items():
        memory = parts[0]["model"][name].data_ptr()  # of tied parameters the same
        if memory not in joined:
            joined[memory] = join_rows([part["model"][name] for part in parts], shape)
        state["model"][name] = joined[memory]
    if "optimiser" in parts[0]:
        state["last_optimizer_state"] = join_state([part["optimiser"] for part in parts], parts[0]["trained"])
    return state


def remove_unused(save_dir: str) -> None:
    """Folders of shards that no checkpoint names; none of them while there is a checkpoint that cannot be read."""
    found = (path for path in Path(save_dir).resolve().glob("shards_*") if FOLDER.fullmatch(path.name))
    folders = {path for path in found if not path.is_symlink()}
    for path in Path(save_dir).glob("*.pt") if folders else ():
        try:
            folders -= {file.parent for file in integrity.shards_of(path)}
        except integrity.BROKEN:
            return
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def _new_folder(save_dir: Path, updates: int) -> str:
    """A name that no earlier save has: the files of one are never replaced, for other checkpoints may name them."""
    names = itertools.chain([f"shards_{updates}"], (f"shards_{updates}_{number}" for number in itertools.count(1)))
    return next(name for name in names if not (save_dir / name).exists())
