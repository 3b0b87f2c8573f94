"""What fits into memory, and peaks of trainings: each in a process of its own, for a peak does not come down again."""

from __future__ import annotations

import multiprocessing
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

import torch

from ... import register
from ...errors import UserError
from ..environment import kernel_bytes
from .contender import Contender
from .settings import Candidate, Settings, Shape, register_torchscale
from .turns import FAILED, NO_MEMORY, NO_TIME, Cell, note_ending

STATE = {"fp32": 16, "bf16": 20, "fp16": 20}  # bytes a parameter: weights, gradients, Adam's moments, fp32 copies
ACTIVATIONS = 100  # bytes per channel, layer and token that stock fairseq keeps in fp32 (500L-500L: 84)
SHARE = 0.7  # of the free memory that may be planned with


def side_by_side(candidates: int, shape: Shape, settings: Settings) -> bool:
    """Do so many fit at a time? Each has its training state, one at a time its activations."""
    state = candidates * parameters(shape, settings.vocabulary) * STATE[settings.precision]
    activations = settings.max_tokens * (shape.N + 2 * shape.M) * shape.size.embed_dim * ACTIVATIONS
    return state + activations < SHARE * free_memory(settings.torch_device)


def parameters(shape: Shape, vocabulary: int) -> int:
    """Numbers in the matrices of an encoder-decoder with one embedding; biases and LayerNorms are left out."""
    d, ffn = shape.size.embed_dim, shape.size.ffn_embed_dim
    return shape.N * (4 * d * d + 2 * d * ffn) + shape.M * (8 * d * d + 2 * d * ffn) + vocabulary * d


def free_memory(device: torch.device) -> int:
    """Bytes that nobody uses: of the GPU, or of this machine as the kernel counts them."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info()[0]
    return kernel_bytes("MemAvailable", "/proc/meminfo")


@contextmanager
def limited(device: torch.device) -> Iterator[None]:
    """On a CPU, an allocation beyond the memory that is free now fails, and the kernel kills nobody."""
    if device.type == "cuda":
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_DATA)
    most = kernel_bytes("VmData") + free_memory(device)
    resource.setrlimit(resource.RLIMIT_DATA, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


STEPS = 3  # the second is the first with the optimiser's state
CHOSEN_FROM = 20  # batches, of which the one with most positions is trained on
SPAWN = multiprocessing.get_context("spawn")


def measure_memory(candidate: Candidate, shape: Shape, settings: Settings, cell: Cell) -> None:
    """Fills the cell with what a fresh process measures there, or with how that process ended."""
    receiver, sender = SPAWN.Pipe(duplex=False)
    process = SPAWN.Process(target=_alone, args=(sender, candidate, shape, settings, cell))
    process.start()
    sender.close()
    try:
        if not receiver.poll(settings.seconds):
            cell.end(NO_TIME, f"more than {settings.seconds:.0f} s")
            return
        vars(cell).update(receiver.recv())
    except EOFError:
        process.join()
        killed = process.exitcode == -signal.SIGKILL
        cell.end(*(NO_MEMORY, "killed by the system") if killed else (FAILED, f"status {process.exitcode}"))
    finally:
        process.kill()
        process.join()


def _alone(sender: Connection, candidate: Candidate, shape: Shape, settings: Settings, cell: Cell) -> None:
    """In a process of its own: trains the candidate for some steps and sends the fields of its cell."""
    register()
    register_torchscale()
    with limited(settings.torch_device):
        try:
            with note_ending(cell, settings.seconds):
                _train(cell, candidate, shape, settings)
        except UserError as error:
            cell.end(FAILED, str(error))
    sender.send(vars(cell))


def _train(cell: Cell, candidate: Candidate, shape: Shape, settings: Settings) -> None:
    Contender(candidate, Shape(1, 1, "tiny"), settings).close()  # what is imported at the first use
    baseline = kernel_bytes("VmHWM")
    contender = Contender(candidate, shape, settings)
    cell.facts["parameters"] = contender.parameters()
    batches = contender.batches(CHOSEN_FROM)
    largest = max(batches, key=lambda batch: batch["net_input"]["src_tokens"].numel() + batch["target"].numel())
    cell.facts["tokens"] = [largest["ntokens"]]
    made = 0
    for _ in range(10 * STEPS):
        made += contender.step(largest) is not None  # half precision first finds its scale
        if made == STEPS:
            break
    peak = kernel_bytes("VmHWM")
    numbers = {"peak RSS": peak, "baseline RSS": baseline, "bytes": peak - baseline}
    if settings.torch_device.type == "cuda":
        numbers["bytes"] = torch.cuda.max_memory_allocated()
        numbers["reserved"] = torch.cuda.max_memory_reserved()
    cell.add(0, numbers)
