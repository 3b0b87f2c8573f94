"""The process in which memory.py measures one candidate: reads an order from the standard input, writes FILE."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import torch

from ...errors import UserError
from ..candidate import Candidate
from ..capacity import kilobytes, limited
from ..cell import FAILED, Cell
from ..contender import Contender
from ..interleave import recorded
from ..settings import Settings, Shape

STEPS = 3  # the second is the first with the optimiser's state
CHOSEN_FROM = 20  # batches, of which the one with most positions is trained on


def main(path: Path) -> None:
    """Trains the candidate on the standard input for some steps and writes its cell to `path`, both as JSON.

    The order holds "candidate", "shape" and "settings", the fields of each.
    """
    order = json.load(sys.stdin)
    candidate, shape, settings = (
        kind(**_with_tuples(order[name]))
        for name, kind in (("candidate", Candidate), ("shape", Shape), ("settings", Settings))
    )
    candidate.register()
    cell = Cell("memory", candidate.name, shape.depth, shape.width)
    with limited(settings.torch_device):
        try:
            with recorded(cell, settings.seconds):
                _train(cell, candidate, shape, settings)
        except UserError as error:
            cell.end(FAILED, str(error))
    path.write_text(json.dumps(asdict(cell)), encoding="utf-8")


def _train(cell: Cell, candidate: Candidate, shape: Shape, settings: Settings) -> None:
    Contender(candidate, Shape(1, 1, "tiny"), settings).close()  # what is imported at the first use
    baseline = _peak()
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
    peak = _peak()
    numbers = {"peak RSS": peak, "baseline RSS": baseline, "bytes": peak - baseline}
    if settings.torch_device.type == "cuda":
        numbers["bytes"] = torch.cuda.max_memory_allocated()
        numbers["reserved"] = torch.cuda.max_memory_reserved()
    cell.add(0, numbers)


def _peak() -> int:
    """Bytes this process has had resident at most. Not getrusage's, which starts from what its parent had."""
    return kilobytes("/proc/self/status", "VmHWM") * 1024


def _with_tuples(fields: dict) -> dict:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
