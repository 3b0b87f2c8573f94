"""The measures: what is made of a candidate, what is repeated with it, and which numbers that gives."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace

import torch
from fairseq import checkpoint_utils, utils
from fairseq.data import data_utils
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor

from .contender import Clock, Contender
from .settings import Candidate, Settings, Shape


class Trial(ABC):
    """What one measure does with each candidate; to add one, derive from this, name it in bench/measure.py.

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


class Building(Trial):
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


PARTS = ("forward", "backward", "clip", "optimizer")  # clip: the scaling by the sample size, the norm and the clipping


class Training(Trial):
    """Updates of fairseq's Trainer; a repeat is a batch.

    Quantities: seconds of PARTS, of the "rest" and of the whole "step"; target tokens per second; flops per second of
    the model's products.
    """

    name = "train"

    @cached_property
    def warmup(self) -> int:
        return self.settings.warmup

    def enter(self, candidate) -> Watched:
        return Watched(super().enter(candidate), self.warmup + self.settings.repeats)

    def run(self, contender: Watched, repeat: int) -> dict[str, float] | None:
        batch = contender.batch(repeat)
        seconds = contender.step(batch)
        if seconds is None:
            return None
        flops = training_flops(self.shape, self.settings.vocabulary, batch)
        return seconds | {
            "tokens per second": batch["ntokens"] / seconds["step"],
            "flops per second": flops / seconds["step"],
        }

    def facts(self, contender: Watched) -> dict:
        tokens = [contender.batch(repeat)["ntokens"] for repeat in range(self.settings.repeats)]
        return super().facts(contender) | {"tokens": tokens}


class Watched:
    """A contender whose steps are timed in parts, and its batches."""

    def __init__(self, contender: Contender, batches: int):
        self.contender, self.batches = contender, contender.batches(batches)
        clock, trainer = contender.clock, contender.trainer
        self.parameters, self.close = contender.parameters, contender.close
        clock.watch(trainer.criterion, "forward", "forward")
        clock.watch(trainer.optimizer, "backward", "backward")
        clock.watch(trainer.optimizer, "multiply_grads", "clip")
        clock.watch(trainer, "clip_grad_norm", "clip")
        clock.watch(trainer.task, "optimizer_step", "optimizer")
        self._step = clock.watched(contender.step, "step")

    def batch(self, repeat: int) -> dict:
        """That of a repeat, after those of the warm-up; from the start again where the corpus is small."""
        return self.batches[repeat % len(self.batches)]

    def step(self, batch: dict) -> dict[str, float] | None:
        """Seconds by part; None where half precision overflowed and no update was made."""
        done = self._step(batch)
        seconds = self.contender.clock.read()
        if done is None:
            return None
        return seconds | {"rest": seconds["step"] - sum(seconds[part] for part in PARTS)}


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


class Generating(Trial):
    """Quantities: seconds; tokens per second of the best hypotheses. A repeat is a batch of like lengths."""

    name = "generate"

    def conditions(self) -> list[dict]:
        return [
            {"sentences": number, "beam": beam} for number in self.settings.sentences for beam in self.settings.beams
        ]

    def enter(self, candidate: Candidate) -> Translator:
        return Translator(super().enter(candidate))

    def run(self, contender: Translator, repeat: int, sentences: int, beam: int) -> dict[str, float]:
        batch = contender.batches(sentences)[max(repeat, 0)]  # the warm-up has the shortest
        seconds, tokens = contender.translate(batch, beam)
        return {"seconds": seconds, "tokens per second": tokens / seconds}

    def facts(self, contender: Translator, sentences: int, beam: int) -> dict:
        tokens = [round_length(batch) * sentences for batch in contender.batches(sentences)]
        return super().facts(contender) | {"tokens": tokens}


class Translator:
    """The model of a contender as fairseq-generate prepares it; it cannot be trained any more."""

    def __init__(self, contender: Contender):
        self.contender, self.settings = contender, contender.settings
        self.parameters, self.close = contender.parameters, contender.close
        contender.trainer.reinitialize()  # the optimiser's memory
        self.task, self.model = contender.trainer.task, contender.model
        self.task.load_dataset("train")
        self.model.eval()
        self.model.prepare_for_inference_(SimpleNamespace(generation=SimpleNamespace()))
        self.run = contender.clock.watched(self._run, "generate")
        self.found: dict[int, list[dict]] = {}

    def batches(self, sentences: int) -> list[dict]:
        """One for each repeat, of so many sentences as fairseq-generate sorts them, from short to long."""
        if sentences not in self.found:
            self.found[sentences] = self._batches(sentences, self.settings.repeats)
        return self.found[sentences]

    def _batches(self, sentences: int, count: int) -> list[dict]:
        dataset, device = self.task.dataset("train"), self.settings.torch_device
        with data_utils.numpy_seed(self.settings.seed):
            order = dataset.ordered_indices()
        most = len(order) // sentences  # middles of `count` equal stretches of the sorted corpus
        starts = [(2 * i + 1) * most // (2 * count) * sentences for i in range(count)]
        found = [dataset.collater([dataset[i] for i in order[start : start + sentences]]) for start in starts]
        return [utils.move_to_cuda(batch, device) if device.type == "cuda" else batch for batch in found]

    def translate(self, batch: dict, beam: int) -> tuple[float, int]:
        """Seconds, and tokens of the best hypotheses, which all have the batch's mean reference length."""
        length = round_length(batch)
        generator = SequenceGenerator(
            [self.model],
            self.task.target_dictionary,
            beam_size=beam,
            max_len_a=0,
            max_len_b=length - 1,  # and the end of sentence
            min_len=length - 1,
        )
        hypotheses = self.run(generator, batch)
        tokens = sum(len(ranked[0]["tokens"]) for ranked in hypotheses)
        assert tokens == len(batch["id"]) * length, (tokens, len(batch["id"]), length)
        return self.contender.clock.read()["generate"], tokens

    def _run(self, generator: SequenceGenerator, batch: dict) -> list:
        with torch.no_grad():
            return generator.generate([self.model], batch)


def round_length(batch: dict) -> int:
    """Mean target length of a batch with the end of sentence, in whole tokens."""
    return round(batch["ntokens"] / len(batch["id"]))


POSITION = {"train_iterator": {"epoch": 1, "version": 2, "iterations_in_epoch": 1}}  # without it none is resumed


class Checkpointing(Trial):
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
