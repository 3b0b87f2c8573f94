"""Speed of training and translating: our model beside stock fairseq's and torchscale's, on the same batches."""

from __future__ import annotations

import argparse
import gc
import itertools
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
    if args.device == "cpu":
        flags.append("--cpu")
    if args.precision != "fp32":
        flags.append(f"--{args.precision}")

    shapes = list(itertools.product(args.depths.split(","), args.widths.split(",")))
    sizes = {shape: size(*shape) for shape in shapes}  # before the first measurement, so that mistakes show at once

    measures: list[tuple[str, list[str], list[Column], Callable]] = [
        ("train", ["depth", "width"], TRAIN, train),
        ("generate", ["depth", "width", "sentences", "beam"], GENERATE, generate),
    ]
    for name, heads, columns, measure in measures:
        if name not in args.only.split(","):
            continue
        cells = []
        for shape in shapes:
            flags_by_model = {model: [*flags, *sizes[shape], *own] for model, own in models.items()}
            cells += measure(shape, flags_by_model, args)
        print(f"\n### {name}\n\n{table(heads, columns, cells)}", flush=True)


@contextmanager
def built(models: dict[str, list[str]]) -> Iterator[dict[str, Trainer]]:
    """Provide the Trainers of all models, in memory together; free it afterwards. models: flags by name."""
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
    """Measure updates of fairseq's Trainer; a repeat is a batch.

    shape: depth and width, the cells' condition; models: flags by name; args: the command's.
    """
    cells = {name: Cell(name, shape) for name in models}
    if args.device == "cuda":  # it chooses kernels by shape: the warm-up sees the batches that are measured
        warmup = args.repeats
        number = args.repeats
    else:  # the warm-up has batches of its own
        warmup = args.warmup
        number = args.repeats + args.warmup

    with built(models) as trainers:
        first = next(iter(trainers.values()))
        given = batches(first, number)
        runs = {}
        for name, trainer in trainers.items():
            trainer.begin_epoch(1)
            clock = Clock(args.device, args.clock)
            watch(trainer, clock.watched)
            step = clock.watched(partial(update, trainer), "step")
            runs[name] = partial(_update, step, clock, given)
            cells[name].facts["parameters"] = sum(parameter.numel() for parameter in trainer.model.parameters())
        take_turns(cells, runs, range(-warmup, args.repeats))
    return list(cells.values())


def _update(step: Callable, clock: Clock, given: list[dict], repeat: int) -> dict[str, float] | None:
    """Return seconds of the parts of an update and its speed; None where half precision overflowed.

    step: makes an update of a batch, watched by `clock` as its parts are; given: the batches; repeat: the number of
    the update, below 0 in the warm-up.
    """
    batch = given[repeat % len(given)]
    done = step(batch)
    seconds = clock.read()
    if done is None:
        return None
    numbers = {part: seconds.get(part, 0.0) for part in ("step", *PARTS)}
    in_parts = sum(numbers[part] for part in PARTS)
    numbers["rest"] = numbers["step"] - in_parts
    numbers[TOKENS] = batch["ntokens"] / numbers["step"]
    return numbers


def generate(shape: tuple[str, str], models: dict[str, list[str]], args: argparse.Namespace) -> list[Cell]:
    """Measure fairseq's SequenceGenerator with random weights; a repeat is a batch of sentences of like lengths.

    shape, models, args: as of `train`.
    """
    all_cells = []
    with built(models) as trainers:
        for trainer in trainers.values():
            trainer.task.load_dataset("train")
            trainer.model.eval()
            trainer.model.make_generation_fast_(need_attn=False)

        first = next(iter(trainers.values()))
        for sentences in args.sentences:
            given = sorted_batches(first.task, sentences, args.repeats, args.device)
            for beam in args.beams:
                cells = {name: Cell(name, (*shape, str(sentences), str(beam))) for name in models}
                runs = {name: partial(_translate, trainer, given, beam, args) for name, trainer in trainers.items()}
                take_turns(cells, runs, range(-1, args.repeats))
                all_cells += list(cells.values())
    return all_cells


def sorted_batches(task, sentences: int, count: int, device: str) -> list[dict]:
    """Return `count` batches of `sentences` sentences, evenly spread over the corpus in fairseq-generate's order.

    It sorts by length.
    """
    dataset = task.dataset("train")
    with data_utils.numpy_seed(1):
        order = dataset.ordered_indices()

    found = []
    number_of_batches = len(order) // sentences  # of the whole corpus
    for number in range(count):
        # the sorted corpus in `count` equal stretches: the batch in the middle of each
        place = (2 * number + 1) * number_of_batches // (2 * count)
        start = place * sentences
        batch = dataset.collater([dataset[index] for index in order[start : start + sentences]])
        found.append(utils.move_to_cuda(batch) if device == "cuda" else batch)
    return found


def _translate(trainer: Trainer, given: list[dict], beam: int, args: argparse.Namespace, repeat: int) -> dict:
    """Return seconds and tokens per second of translating a batch.

    The best hypotheses are counted, which all have the batch's mean reference length. given: the batches; repeat: the
    number of the batch, below 0 in the warm-up.
    """
    batch = given[max(repeat, 0)]
    sentences = len(batch["id"])
    length = round(batch["ntokens"] / sentences)
    limits = {"max_len_a": 0, "max_len_b": length - 1, "min_len": length - 1}  # the end of sentence is one token more
    model = trainer.model
    generator = SequenceGenerator([model], trainer.task.target_dictionary, beam_size=beam, **limits)

    clock = Clock(args.device, args.clock)
    translate = clock.watched(generator.generate, "seconds")
    with torch.no_grad():
        hypotheses = translate([model], batch)
    tokens = sum(len(ranked[0]["tokens"]) for ranked in hypotheses)
    assert tokens == sentences * length, (tokens, sentences, length)
    seconds = clock.read()
    return seconds | {TOKENS: tokens / seconds["seconds"]}
