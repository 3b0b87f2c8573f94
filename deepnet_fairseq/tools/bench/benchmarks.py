"""The measures: what is made of a candidate, what is repeated with it, and which numbers that gives."""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace

import torch
from fairseq import checkpoint_utils, utils
from fairseq.data import data_utils
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from . import kernels
from .contender import Clock, Contender
from .memory import limited, measure_memory, side_by_side
from .settings import Candidate, Settings, Shape
from .turns import UNAVAILABLE, Cell, interleave, note_ending

Cells = dict[str, Cell]  # by candidate


class Benchmark(ABC):
    """What one measure does with each candidate; to add one, derive from this, name it in BENCHMARKS.

    name: of the measure; warmup: repeats before the first that counts; alone: is memory held in a run only?
    """

    name: str
    warmup = 1
    alone = False

    def __init__(self, shape: Shape, settings: Settings):
        self.shape, self.settings = shape, settings

    def conditions(self) -> list[dict]:
        """Each has cells of its own, as {"beam": 5}."""
        return [{}]

    def enter(self, candidate: Candidate) -> Contender:
        """Builds the candidate's model; whoever asks for it closes it."""
        return Contender(candidate, self.shape, self.settings)

    @abstractmethod
    def run(self, contender: Contender, repeat: int, **condition) -> dict[str, float] | None:
        """Numbers by quantity; None for a repeat that does not count. Warm-up has the repeats below 0."""

    def facts(self, contender: Contender, **condition) -> dict:
        """What is the same in all repeats; "tokens" are compared between candidates."""
        return {"parameters": contender.parameters()}

    def measure_candidates(self, candidates: list[Candidate]) -> list[Cell]:
        """Cells of all conditions and candidates."""
        rows = [(c, empty_cells(self.name, self.shape, candidates, c)) for c in self.conditions()]
        able = [candidate for candidate in candidates if not candidate.unavailable]
        half, whole = (self.settings.repeats + 1) // 2, self.settings.repeats
        if self.alone or side_by_side(len(able), self.shape, self.settings):
            rounds = [(able, range(whole))]
        else:  # where memory is short, one by one, there and back
            rounds = [([candidate], range(half)) for candidate in able]
            rounds += [([candidate], range(half, whole)) for candidate in reversed(able) if half < whole]
        for group, repeats in rounds:
            with self._entered(group, rows) as alive:
                for condition, cells in rows:
                    self._repeat(alive, condition, cells, repeats)
        for _, cells in rows:
            check_work(cells)
        return [cell for _, cells in rows for cell in cells.values()]

    @contextmanager
    def _entered(self, group: list[Candidate], rows: list[tuple[dict, Cells]]) -> Iterator[dict]:
        """Name -> contender of those that could be made; why others could not is in all their cells."""
        alive = {}
        try:
            for candidate in group:
                mine = [cells[candidate.name] for _, cells in rows]
                if all(cell.reason for cell in mine):
                    continue
                made = Cell(self.name, candidate.name, self.shape.depth, self.shape.width)
                with note_ending(made, self.settings.seconds):
                    alive[candidate.name] = self.enter(candidate)
                for cell in mine if made.reason else ():
                    cell.end(made.state, made.reason)
            yield alive
        finally:
            for contender in alive.values():
                contender.close()

    def _repeat(self, alive: dict, condition: dict, cells: Cells, repeats: range) -> None:
        """Warm-up, then the repeats that count."""
        runs = {
            name: lambda repeat, contender=contender: self.run(contender, repeat, **condition)
            for name, contender in alive.items()
            if not cells[name].reason
        }
        warm_ups = {name: lambda repeat, run=run: run(repeat) and None for name, run in runs.items()}
        interleave(cells, warm_ups, range(-self.warmup, 0), self.settings.seconds)
        interleave(cells, runs, repeats, self.settings.seconds)
        for name in runs:
            if cells[name].repeats:
                cells[name].facts = self.facts(alive[name], **condition)


class BuildBenchmark(Benchmark):
    """Quantities: seconds of the parts of a contender's making."""

    name = "build"
    alone = True

    def enter(self, candidate: Candidate) -> SimpleNamespace:
        """Nothing yet: it is built anew in each repeat."""
        return SimpleNamespace(candidate=candidate, close=lambda: None)

    def run(self, contender: SimpleNamespace, repeat: int) -> dict[str, float]:
        built = Contender(contender.candidate, self.shape, self.settings)
        size = built.parameters()
        contender.parameters = lambda: size
        built.close()
        return built.seconds


class TrainBenchmark(Benchmark):
    """Updates of fairseq's Trainer; a repeat is a batch, which a GPU has seen once before: it chooses kernels by shape.

    Quantities: seconds of PARTS, of the "rest" and of the whole "step"; target tokens per second; flops per second of
    the model's products.
    """

    name = "train"

    @cached_property
    def warmup(self) -> int:
        on_gpu = self.settings.torch_device.type == "cuda"
        return max(self.settings.warmup, self.settings.repeats * on_gpu)

    def enter(self, candidate) -> Contender:
        contender = super().enter(candidate)
        seen = self.warmup if self.settings.torch_device.type == "cpu" else 0
        self.batches = contender.batches(seen + self.settings.repeats)  # the same for all
        contender.watch_parts()
        return contender

    def run(self, contender: Contender, repeat: int) -> dict[str, float] | None:
        batch = self._batch(repeat)
        seconds = contender.timed_step(batch)
        if seconds is None:
            return None
        work = {"tokens": batch["ntokens"], "flops": training_flops(self.shape, self.settings.vocabulary, batch)}
        return seconds | {f"{name} per second": number / seconds["step"] for name, number in work.items()}

    def facts(self, contender: Contender) -> dict:
        tokens = [self._batch(repeat)["ntokens"] for repeat in range(self.settings.repeats)]
        return super().facts(contender) | {"tokens": tokens}

    def _batch(self, repeat: int) -> dict:
        """That of a repeat, after those of the warm-up; from the start again where the corpus is small."""
        return self.batches[repeat % len(self.batches)]


class KernelsBenchmark(TrainBenchmark):
    """Quantities of one update: what kernels.counted gives."""

    name = kernels.NAME

    def run(self, contender: Contender, repeat: int) -> dict[str, float] | None:
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
            done = contender.timed_step(self._batch(repeat))  # which waits for the GPU when it is over
        return None if done is None else kernels.counted(profiler.events())


REPEATS = 10
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def matmul_rate(settings: Settings) -> float:
    """Floating-point operations a second of one large product in the run's precision: the fastest of REPEATS."""
    device = settings.torch_device
    size = 8192 if device.type == "cuda" else 1024
    factors = [torch.randn(size, size, device=device).to(TYPES[settings.precision]) for _ in range(2)]
    clock = Clock(device, settings.clock)
    multiply = clock.watched(torch.mm, "product")
    seconds = []
    for _ in range(REPEATS):
        multiply(*factors)
        seconds.append(clock.read()["product"])
    return 2 * size**3 / min(seconds)


def training_flops(shape: Shape, vocabulary: int, batch: dict) -> float:
    """Floating-point operations in the matrix products of one update, without padding and recomputation.

    That is the work that any implementation does. Each weight is used twice a token forward (a product and a sum) and
    four times backward; so are the products of attention, over all pairs of positions, half of them in the decoder's
    causal self-attention.
    """
    net_input, pad = batch["net_input"], 1
    S = _lengths(net_input["src_tokens"], pad)
    T = _lengths(net_input["prev_output_tokens"], pad)
    d, ffn = shape.size.embed_dim, shape.size.ffn_embed_dim
    encoder = S * (4 * d * d + 2 * d * ffn) + 2 * S * S * d
    decoder = T * (6 * d * d + 2 * d * ffn) + T * T * d + S * 2 * d * d + 2 * S * T * d
    forward = shape.N * encoder + shape.M * decoder + T * d * vocabulary
    return 6 * forward.sum().item()


def _lengths(tokens: Tensor, pad: int) -> Tensor:
    """(B,) tokens of each sentence, in float64: their products overflow no integer."""
    return tokens.ne(pad).sum(dim=1).double().cpu()


class GenerateBenchmark(Benchmark):
    """Quantities: seconds; tokens per second of the best hypotheses. A repeat is a batch of like lengths."""

    name = "generate"

    def conditions(self) -> list[dict]:
        return [
            {"sentences": number, "beam": beam} for number in self.settings.sentences for beam in self.settings.beams
        ]

    def enter(self, candidate: Candidate) -> Translator:
        return Translator(candidate, self.shape, self.settings)

    def run(self, contender: Translator, repeat: int, sentences: int, beam: int) -> dict[str, float]:
        batch = contender.sorted_batches(sentences)[max(repeat, 0)]  # the warm-up has the shortest
        seconds, tokens = contender.translate(batch, beam)
        return {"seconds": seconds, "tokens per second": tokens / seconds}

    def facts(self, contender: Translator, sentences: int, beam: int) -> dict:
        tokens = [round_length(batch) * sentences for batch in contender.sorted_batches(sentences)]
        return super().facts(contender) | {"tokens": tokens}


class Translator(Contender):
    """A model as fairseq-generate prepares it; it cannot be trained any more."""

    def __init__(self, candidate: Candidate, shape: Shape, settings: Settings):
        super().__init__(candidate, shape, settings)
        self.trainer.reinitialize()  # the optimiser's memory
        self.task = self.trainer.task
        self.task.load_dataset("train")
        self.model.eval()
        self.model.make_generation_fast_(need_attn=False)  # without ours' memory, for other models will train here

    def sorted_batches(self, sentences: int) -> list[dict]:
        """One for each repeat, of so many sentences as fairseq-generate sorts them, from short to long."""
        dataset, device, count = self.task.dataset("train"), self.settings.torch_device, self.settings.repeats
        with data_utils.numpy_seed(self.settings.seed):
            order = dataset.ordered_indices()
        most = len(order) // sentences  # middles of `count` equal stretches of the sorted corpus
        starts = [(2 * i + 1) * most // (2 * count) * sentences for i in range(count)]
        found = [dataset.collater([dataset[i] for i in order[start : start + sentences]]) for start in starts]
        return [utils.move_to_cuda(batch, device) if device.type == "cuda" else batch for batch in found]

    def translate(self, batch: dict, beam: int) -> tuple[float, int]:
        """Seconds, and tokens of the best hypotheses, which all have the batch's mean reference length."""
        length = round_length(batch)
        most = {"max_len_a": 0, "max_len_b": length - 1, "min_len": length - 1}  # and the end of sentence
        generator = SequenceGenerator([self.model], self.task.target_dictionary, beam_size=beam, **most)
        with torch.no_grad():
            hypotheses = self.clock.watched(generator.generate, "generate")([self.model], batch)
        tokens = sum(len(ranked[0]["tokens"]) for ranked in hypotheses)
        assert tokens == len(batch["id"]) * length, (tokens, len(batch["id"]), length)
        return self.clock.read()["generate"], tokens


def round_length(batch: dict) -> int:
    """Mean target length of a batch with the end of sentence, in whole tokens."""
    return round(batch["ntokens"] / len(batch["id"]))


POSITION = {"train_iterator": {"epoch": 1, "version": 2, "iterations_in_epoch": 1}}  # without it none is resumed


class CheckpointBenchmark(Benchmark):
    """Saving, resuming and loading of a trained model.

    Quantities: seconds to save; to resume, into a model that is built; to load for translation, which builds it; bytes
    of the file. The file is in the page cache when it is read.
    """

    name = "checkpoint"
    warmup = 0

    def enter(self, candidate) -> Contender:
        contender = super().enter(candidate)
        for batch in contender.batches(10):
            if contender.step(batch):  # now the optimiser has a state
                break
        return contender

    def run(self, contender: Contender, repeat: int) -> dict[str, float]:
        path = Path(contender.folder.name) / "checkpoint.pt"
        clock, trainer = contender.clock, contender.trainer
        trainer.consolidate_optimizer()
        clock.watched(trainer.save_checkpoint, "save")(str(path), POSITION)
        size = os.path.getsize(path)
        clock.watched(trainer.load_checkpoint, "resume")(str(path))
        clock.watched(checkpoint_utils.load_model_ensemble, "load")([str(path)], task=trainer.task)
        path.unlink()
        return clock.read() | {"bytes": size}


BENCHMARKS = (BuildBenchmark, TrainBenchmark, KernelsBenchmark, GenerateBenchmark, CheckpointBenchmark)


def run_benchmarks(
    shape: Shape, candidates: list[Candidate], settings: Settings, only: tuple[str, ...]
) -> Iterator[Cell]:
    """Cells of `only`, names of measures, as they are done: build, train, generate, checkpoint, memory."""
    for kind in BENCHMARKS:
        if kind.name in only:
            progress(kind.name, shape)
            with limited(settings.torch_device):
                yield from kind(shape, settings).measure_candidates(candidates)
    for on in (False, True) if "memory" in only else ():
        condition = {"checkpointing": on}
        progress("memory", shape, **condition)
        cells = empty_cells("memory", shape, candidates, condition)
        for candidate in candidates:
            if not candidate.unavailable:
                changed = replace(settings, checkpoint_activations=on)
                measure_memory(candidate, shape, changed, cells[candidate.name])
        check_work(cells)
        yield from cells.values()


def progress(measure: str, shape: Shape, **condition) -> None:
    """Says on stderr what is measured now."""
    words = (shape.depth, shape.width, measure, *(f"{name} {value}" for name, value in condition.items()))
    print("bench:", *words, file=sys.stderr, flush=True)


def empty_cells(measure: str, shape: Shape, candidates: list[Candidate], condition: dict) -> Cells:
    """An empty cell for each candidate; one that cannot run here says why."""
    cells = {c.name: Cell(measure, c.name, shape.depth, shape.width, condition) for c in candidates}
    for candidate in candidates:
        if candidate.unavailable:
            cells[candidate.name].end(UNAVAILABLE, candidate.unavailable)
    return cells


def check_work(cells: Cells) -> None:
    """All that were measured had the same tokens."""
    tokens = {name: cell.facts["tokens"] for name, cell in cells.items() if "tokens" in cell.facts}
    assert len({tuple(row) for row in tokens.values()}) <= 1, tokens
