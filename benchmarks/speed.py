"""Speed of training and translating: our model beside stock fairseq's and torchscale's, on the same batches."""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from fairseq import utils
from fairseq.data import data_utils
from fairseq.sequence_generator import SequenceGenerator
from fairseq.trainer import Trainer

from .models import batches, chosen, size, trainer_of, update, watch
from .timing import Cell, Clock, Column, table, take_turns

TOKENS = "tokens/s"
PARTS = ("forward", "backward", "clip", "optimizer")
TRAIN = [Column(TOKENS, ""), *(Column(part) for part in ("step", *PARTS, "rest")), Column("parameters", "")]
GENERATE = [Column(TOKENS, ""), Column("seconds")]


def speed(args: argparse.Namespace) -> None:
    """Print a table of training and a table of translating for each depth and width."""
    models = chosen(args.candidates, args.variant)
    flags = [f"--max-tokens={args.max_tokens}", f"--benchmark-vocabulary={args.vocabulary}"]
    flags += ["--cpu"] if args.device == "cpu" else []
    flags += [f"--{args.precision}"] if args.precision != "fp32" else []
    shapes = [(depth, width) for depth in args.depths.split(",") for width in args.widths.split(",")]
    sizes = {shape: size(*shape) for shape in shapes}
    measures: list[tuple[str, list[str], list[Column], Callable]] = [
        ("train", ["depth", "width"], TRAIN, train),
        ("generate", ["depth", "width", "sentences", "beam"], GENERATE, generate),
    ]
    for name, heads, columns, measure in measures:
        if name not in args.only.split(","):
            continue
        cells = []
        for shape in shapes:
            cells += measure(shape, {key: [*flags, *sizes[shape], *own] for key, own in models.items()}, args)
        print(f"\n### {name}\n\n{table(heads, columns, cells)}", flush=True)


@contextmanager
def built(models: dict[str, list[str]]) -> Iterator[dict[str, Trainer]]:
    """Provide the Trainers of all models, which lie in memory at a time; free it afterwards."""
    trainers = {name: trainer_of(flags) for name, flags in models.items()}
    gc.collect()
    gc.freeze()  # objects that exist now are not garbage; each search through fairseq and torch takes 0.2 s
    try:
        yield trainers
    finally:
        gc.unfreeze()
        trainers.clear()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def train(shape: tuple[str, str], models: dict[str, list[str]], args: argparse.Namespace) -> list[Cell]:
    """Measure updates of fairseq's Trainer; a repeat is a batch."""
    cells = {name: Cell(name, shape) for name in models}
    with built(models) as trainers:
        first = next(iter(trainers.values()))
        on_gpu = args.device == "cuda"  # which chooses kernels by shape, so that every batch is seen once before
        given = batches(first, args.repeats + (0 if on_gpu else args.warmup))
        runs = {}
        for name, trainer in trainers.items():
            trainer.begin_epoch(1)
            clock = Clock(args.device, args.clock)
            watch(trainer, clock.watched)
            runs[name] = partial(_update, clock.watched(partial(update, trainer), "step"), clock, given)
            cells[name].facts["parameters"] = sum(parameter.numel() for parameter in trainer.model.parameters())
        take_turns(cells, runs, range(-(args.repeats if on_gpu else args.warmup), args.repeats))
    return list(cells.values())


def _update(step: Callable, clock: Clock, given: list[dict], repeat: int) -> dict[str, float] | None:
    """Return seconds of the parts of an update and its speed; None where half precision overflowed."""
    batch = given[repeat % len(given)]
    done = step(batch)
    seconds = clock.read()
    if done is None:
        return None
    times = {part: seconds.get(part, 0.0) for part in ("step", *PARTS)}
    return times | {
        "rest": times["step"] - sum(times[part] for part in PARTS),
        TOKENS: batch["ntokens"] / times["step"],
    }


def generate(shape: tuple[str, str], models: dict[str, list[str]], args: argparse.Namespace) -> list[Cell]:
    """Measure fairseq's SequenceGenerator with random weights; a repeat is a batch of sentences of like lengths."""
    all_cells = []
    with built(models) as trainers:
        for trainer in trainers.values():
            trainer.task.load_dataset("train")
            trainer.model.eval()
            trainer.model.make_generation_fast_(need_attn=False)
        for sentences in args.sentences:
            given = sorted_batches(next(iter(trainers.values())).task, sentences, args.repeats, args.device)
            for beam in args.beams:
                cells = {name: Cell(name, (*shape, str(sentences), str(beam))) for name in models}
                runs = {name: partial(_translate, trainer, given, beam, args) for name, trainer in trainers.items()}
                take_turns(cells, runs, range(-1, args.repeats))
                all_cells += list(cells.values())
    return all_cells


def sorted_batches(task, sentences: int, count: int, device: str) -> list[dict]:
    """Return `count` batches of as many sentences, sorted by length as fairseq-generate sorts them."""
    dataset = task.dataset("train")
    with data_utils.numpy_seed(1):
        order = dataset.ordered_indices()
    most = len(order) // sentences  # batches lie in the middle of `count` equal stretches of the sorted corpus
    starts = [(2 * number + 1) * most // (2 * count) * sentences for number in range(count)]
    collated = [dataset.collater([dataset[index] for index in order[start : start + sentences]]) for start in starts]
    return [utils.move_to_cuda(batch) if device == "cuda" else batch for batch in collated]


def _translate(trainer: Trainer, given: list[dict], beam: int, args: argparse.Namespace, repeat: int) -> dict:
    """Return seconds and tokens of the best hypotheses, which all have the batch's mean reference length."""
    batch = given[max(repeat, 0)]
    length = round(batch["ntokens"] / len(batch["id"]))
    most = {"max_len_a": 0, "max_len_b": length - 1, "min_len": length - 1}  # the end of sentence is one token more
    model, clock = trainer.model, Clock(args.device, args.clock)
    generator = SequenceGenerator([model], trainer.task.target_dictionary, beam_size=beam, **most)
    with torch.no_grad():
        hypotheses = clock.watched(generator.generate, "seconds")([model], batch)
    tokens = sum(len(ranked[0]["tokens"]) for ranked in hypotheses)
    assert tokens == len(batch["id"]) * length, (tokens, len(batch["id"]), length)
    seconds = clock.read()
    return seconds | {TOKENS: tokens / seconds["seconds"]}
