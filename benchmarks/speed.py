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

from deepnet_fairseq.errors import UserError

from .models import batches, chosen, size, trainer_of, update, watch
from .timing import Cell, Clock, Column, table, take_turns

# A candidate is a model by its name, with its flags of fairseq-train (models.py). A repeat is one measurement of it;
# its numbers have the names of the columns.

TOKENS = "tokens/s"
PARTS = ("forward", "backward", "clip", "optimizer")  # of an update; "rest" is what it does beside them
TRAIN = [Column(TOKENS, ""), *(Column(part) for part in ("step", *PARTS, "rest")), Column("parameters", "")]
GENERATE = [Column(TOKENS, ""), Column("seconds")]


def speed(args: argparse.Namespace) -> None:
    """Print a table of training and one of translating, or the one that --only names.

    A row is a candidate at a depth and width; in translating, also with a number of sentences and a beam. args: the
    flags of `python -m benchmarks speed`. UserError for an unknown table, candidate or size.
    """
    models = chosen(args.candidates, args.variant)
    flags = [f"--max-tokens={args.max_tokens}", f"--benchmark-vocabulary={args.vocabulary}"]
    if args.device == "cpu":
        flags.append("--cpu")
    if args.precision != "fp32":
        flags.append(f"--{args.precision}")

    shapes = list(itertools.product(args.depths.split(","), args.widths.split(",")))  # pairs (depth, width)
    sizes = {shape: size(*shape) for shape in shapes}  # before the first measurement, so that mistakes show at once

    # of each table: its name, the heads of its condition, the columns, and the function that returns its cells
    tables: list[tuple[str, list[str], list[Column], Callable]] = [
        ("train", ["depth", "width"], TRAIN, train),
        ("generate", ["depth", "width", "sentences", "beam"], GENERATE, generate),
    ]
    names = [name for name, *_ in tables]
    wanted = args.only.split(",")
    unknown = [name for name in wanted if name not in names]
    if unknown:
        raise UserError(f"--only {','.join(unknown)}", f"unknown; choose of {', '.join(names)}")

    for name, heads, columns, measure in tables:
        if name not in wanted:
            continue
        cells = []
        for shape in shapes:
            flags_by_model = {model: [*flags, *sizes[shape], *own] for model, own in models.items()}
            cells += measure(shape, flags_by_model, args)
        print(f"\n### {name}\n\n{table(heads, columns, cells)}", flush=True)


@contextmanager
def built(models: dict[str, list[str]]) -> Iterator[dict[str, Trainer]]:
    """Provide the Trainers of all candidates by name in a `with` block, and free their memory behind it.

    models: {name of a candidate: all of its flags}.
    """
    trainers = {name: trainer_of(flags) for name, flags in models.items()}
    gc.collect()
    gc.freeze()  # objects that exist now are not garbage; each search through fairseq and torch takes 0.2 s
    try:
        yield trainers
    finally:
        gc.unfreeze()
        trainers.clear()  # the block's variable still refers to the dictionary
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def train(shape: tuple[str, str], models: dict[str, list[str]], args: argparse.Namespace) -> list[Cell]:
    """Measure updates of fairseq's Trainer, the candidates in turn; each repeat has its own batch. Return their cells.

    shape: depth and width, the condition of the cells; models: {name of a candidate: all of its flags}; args: the
    command's flags.
    """
    cells = {name: Cell(name, shape) for name in models}
    if args.device == "cuda":  # a GPU chooses kernels by shape: the warm-up sees the batches that are measured
        warmup = args.repeats
        number = args.repeats
    else:  # the warm-up has batches of its own
        warmup = args.warmup
        number = args.repeats + args.warmup

    with built(models) as trainers:
        any_trainer = next(iter(trainers.values()))  # all have the same batches
        given = batches(any_trainer, number)
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
    """Make one update; return its numbers by column of TRAIN, None where half precision overflowed.

    The numbers are the seconds of the whole "step", of PARTS and of the "rest", and the target tokens per second. step:
    makes an update of a batch, timed by `clock` as its parts are; given: the batches; repeat: number of the repeat,
    below 0 in the warm-up.
    """
    batch = given[repeat % len(given)]
    done = step(batch)
    seconds = clock.read()
    if done is None:
        return None
    # 0 for a part whose function was not called, as forward by a CUDA graph
    numbers = {part: seconds.get(part, 0.0) for part in ("step", *PARTS)}
    in_parts = sum(numbers[part] for part in PARTS)
    numbers["rest"] = numbers["step"] - in_parts
    numbers[TOKENS] = batch["ntokens"] / numbers["step"]
    return numbers


def generate(shape: tuple[str, str], models: dict[str, list[str]], args: argparse.Namespace) -> list[Cell]:
    """Measure beam search by fairseq's SequenceGenerator with random weights, the candidates in turn; return the cells.

    Each repeat has its own batch, of sentences about equally long. shape, models, args: as of `train`.
    """
    all_cells = []
    with built(models) as trainers:
        for trainer in trainers.values():
            trainer.task.load_dataset("train")
            trainer.model.eval()
            trainer.model.make_generation_fast_(need_attn=False)

        any_trainer = next(iter(trainers.values()))  # all have the same sentences
        for sentences in args.sentences:
            given = sorted_batches(any_trainer.task, sentences, args.repeats, args.device)
            for beam in args.beams:
                cells = {name: Cell(name, (*shape, str(sentences), str(beam))) for name in models}
                runs = {name: partial(_translate, trainer, given, beam, args) for name, trainer in trainers.items()}
                take_turns(cells, runs, range(-1, args.repeats))  # with one repeat as warm-up
                all_cells += list(cells.values())
    return all_cells


def sorted_batches(task, sentences: int, count: int, device: str) -> list[dict]:
    """Return `count` batches of so many `sentences`, evenly spread over the corpus that is sorted by length.

    That is the order in which fairseq-generate translates. task: fairseq's, with the dataset "train"; device: cuda or
    cpu, where the batches lie.
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
    """Translate one batch; return "seconds" and the tokens per second of the best hypotheses.

    Every hypothesis gets the mean length of the batch's references, so that all candidates make as many steps, whatever
    their random weights. trainer: has the candidate's model; given: the batches; beam: hypotheses of a sentence; args:
    the command's flags; repeat: number of the batch, below 0 in the warm-up, which has the first.
    """
    batch = given[max(repeat, 0)]
    sentences = len(batch["id"])
    length = round(batch["ntokens"] / sentences)
    # fairseq counts these lengths without the end of the sentence, which is a token of `length`
    limits = {"max_len_a": 0, "max_len_b": length - 1, "min_len": length - 1}
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
