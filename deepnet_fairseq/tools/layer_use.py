"""`deepnet layer-use`: what each layer of a checkpoint does on held-out sentences; its table, its record, its summary.

core/layer_use.py measures. The record is one that figures read, study/runs.py: facts of the run, and the numbers.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from fairseq import tasks, utils
from omegaconf import OmegaConf
from torch import nn

from ..core.layer_use import ERRORS, NEAR, StackUse, Use, arrival, half, measure, used, work
from ..errors import UserError
from ..files import whole
from ..plugin.building import from_checkpoint
from ..plugin.datasets import check_folder
from ..text_table import render
from .environment import environment

MAX_TOKENS = 768  # in a batch, padding too: the fewer, the less padding; below, overhead counts
MOST, FEWEST = 200, 20  # sentences by default
BUDGET = 1_000_000  # of sentences through a layer, by default: minutes at width 64
LAYERS = ("encoder_layers", "decoder_layers")  # facts of a run


@dataclass(frozen=True)
class LayerUse:
    """What was found of one checkpoint: facts as of a run; numbers, in bits per target token, as JSON keeps them."""

    facts: dict[str, Any]
    numbers: dict[str, Any]

    def write(self, path: Path) -> None:
        """A recorded run with the part layer_use, whole."""
        found = {"run": self.facts, "environment": environment(0), "layer_use": self.numbers}
        with whole(path) as part:
            part.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")

    def text(self) -> str:
        """A table a stack, and what it comes to."""
        found, depth = self.numbers, "-".join(f"{self.facts[key]}L" for key in LAYERS if key in self.facts)
        lines = [
            f"{depth} {self.facts['method']}: {found['loss']:.3f} bits per target token; {found['sentences']:,} "
            f"sentences of {found['subset']}, {found['tokens']:,} tokens; {found['seconds']:.0f} seconds of processor"
        ]
        for name, stack in found["stacks"].items():
            lines += ["", render(_rows(name, stack)), "", *_summary(name, stack)]
        return "\n".join(lines)


def _numbers(use: Use, stack: StackUse) -> dict[str, Any]:
    """Of one stack, as JSON keeps it: lists by layer, lens from the embedding on, swap of layers l and l+1."""
    skip, skip_error = use.cost(stack.skip)
    swap, swap_error = use.cost(stack.swap)
    lens = use.bits(stack.lens)
    counts = {"half": half(skip), "arrival": arrival(lens)}
    marks = {"used": used(skip, skip_error), "ordered": used(swap, swap_error)}
    distances = {"distance": stack.distance()}
    distances |= {f"distance_{n}": stack.distance(n) for n in stack.distances if n > 1}
    costs = {"skip": skip, "skip_error": skip_error, "swap": swap, "swap_error": swap_error, "lens": lens}
    return counts | marks | {key: [round(value, 6) for value in values] for key, values in (distances | costs).items()}


def _rows(name: str, numbers: dict[str, Any]) -> list[list[str]]:
    """Layer 0 is the embedding."""
    more = [key for key in numbers if key.startswith("distance_")]
    header = [name, "angular distance", *(f"over {key.partition('_')[2]} layers" for key in more)]
    rows = [[*header, "skipped", "+-", "used", "swapped with next", "+-", "lens"]]
    for l in range(len(numbers["lens"])):
        distances = [_cell(numbers[key], l - 1) for key in ("distance", *more)]
        costs = [_cell(numbers[key], l - 1) for key in ("skip", "skip_error", "swap", "swap_error")]
        mark = "*" if l and numbers["used"][l - 1] else ""
        rows.append([str(l), *distances, *costs[:2], mark, *costs[2:], f"{numbers['lens'][l]:.3f}"])
    return rows


def _cell(values: list[float], index: int) -> str:
    return f"{round(values[index], 4) + 0.0:.4f}" if 0 <= index < len(values) else ""  # + 0.0: no -0.0000


def _summary(name: str, numbers: dict[str, Any]) -> list[str]:
    layers = len(numbers["skip"])
    return [
        f"{name}: {sum(numbers['used'])} of {layers} layers are used: skipping one costs more than {ERRORS} paired "
        "standard errors",
        f"half of what skipping costs lies in {numbers['half']} of {layers} layers; exchanging two neighbours costs in "
        f"{sum(numbers['ordered'])} of {layers - 1} places",
        f"the lens stays within {NEAR:.0%} of the final loss from layer {numbers['arrival']} on",
    ]


def layer_use(
    checkpoint: str, data: str, subset: str, sentences: int | None, block: int, say: Callable[[str], None]
) -> LayerUse:
    """Measures the model of a checkpoint on so many sentences of DATA's subset, spread evenly over it.

    Nothing of the checkpoint is run. sentences: None for as many as take minutes; say: is told, in words, what is
    measured, and how far it is. UserError, naming file or flag, for a checkpoint that is none or of other data, for a
    subset that is not there, and for a task that predicts no words.
    """
    if not Path(checkpoint).exists():
        raise UserError(f"{checkpoint}: no such file; give a checkpoint of fairseq-train")
    model, cfg = from_checkpoint(checkpoint)
    depths = {f"{name}_layers": len(stack.layers) for name, stack in model.stacks().items()}
    if block > min(depths.values()):
        raise UserError(f"--block {block}: the model has {min(depths.values())} layers; give no more")
    passes = work(model.stacks())
    wanted = sentences or max(FEWEST, min(MOST, BUDGET // passes))
    samples = list(held_out(_task(model, cfg, checkpoint, data), model, data, subset, wanted))
    count = sum(len(sample["target"]) for sample in samples)
    as_many = "" if sentences else ", as many as take minutes"
    say(f"{count} sentences of {subset}{as_many}; {passes:,} passes of each batch through a layer\n")
    done, start, processor = 0, time.monotonic(), time.process_time()

    def progress(layers: int) -> None:
        nonlocal done
        done += layers
        left = passes * len(samples) - done
        if done:
            say(f"\r{left:,} passes, {(time.monotonic() - start) * left / done:.0f} seconds left ")

    use = measure(model, samples, block, progress)
    path = Path(checkpoint).resolve()
    numbers = {
        "checkpoint": f"{path.parent.name}/{path.name}",
        "subset": subset,
        "sentences": count,
        "tokens": int(use.tokens.sum()),
        "loss": use.bits(use.base),
        "seconds": round(time.process_time() - processor, 1),
        "stacks": {name: _numbers(use, stack) for name, stack in use.stacks.items()},
    }
    return LayerUse({"method": str(cfg.model.method)} | depths | {"seed": cfg.common.seed}, numbers)


def _task(model: Any, cfg: Any, checkpoint: str, data: str) -> Any:
    """The run's task on the folder `data`; UserError if those are not the model's."""
    section: Any = OmegaConf.to_container(cfg.task, enum_to_str=True)
    settings = argparse.Namespace(**(section | {"data": data, "task": section["_name"]}))
    check_folder(section["_name"], data)
    try:
        task = tasks.setup_task(settings)
    except UserError:
        raise
    except Exception as error:  # fairseq's word for a folder without pairs of files is a bare one
        said = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"{data}: {said}; give the binarised data of its own run") from error
    first = next(iter(model.stacks().values()))
    projection: nn.Linear = model.vocabulary_projection()
    for dictionary, rows in (
        (task.source_dictionary, first.embed_tokens.num_embeddings),
        (task.target_dictionary, projection.out_features),
    ):
        if dictionary is None or len(dictionary) != rows:
            have = f"{len(dictionary or ())} symbols, {checkpoint} has {rows}"
            raise UserError(f"{data}: {have}; give the data of its own run")
    return task


def held_out(task: Any, model: Any, data: str, subset: str, sentences: int) -> Iterator[dict]:
    """Samples of at most MAX_TOKENS, of so many sentences of a subset, spread evenly over it; the same each time.

    UserError if there is no such subset, or what it asks for is no word a place.
    """
    try:
        task.load_dataset(subset)
    except FileNotFoundError as error:
        raise UserError(f"--subset {subset}: {data} has none of that name; take one of its own") from error
    dataset = task.dataset(subset)
    dataset.set_epoch(1)
    spread = np.unique(np.linspace(0, len(dataset) - 1, min(sentences, len(dataset))).round().astype(np.int64))
    chosen = np.array(sorted(spread, key=lambda index: (dataset.num_tokens(index), index)))
    longest = utils.resolve_max_positions(task.max_positions(), model.max_positions())
    fitting, _too_long = dataset.filter_indices_by_size(chosen, longest)
    if len(fitting) < 2:
        left = f"{len(fitting)} of the {len(chosen)} sentences are short enough for the model"
        raise UserError(f"--subset {subset}: {left}; a standard error needs 2, take another subset")
    most = max(MAX_TOKENS, max(dataset.num_tokens(index) for index in fitting))
    for indices in dataset.batch_by_size(np.asarray(fitting), max_tokens=most):
        sample = dataset.collater([dataset[int(index)] for index in indices])
        read = list(model.tokens(**sample["net_input"]).values())[-1]
        if "target" not in sample or sample["target"].shape != read.shape:
            raise UserError(f"{data}: its run predicts no words; give a model that does")
        yield sample
