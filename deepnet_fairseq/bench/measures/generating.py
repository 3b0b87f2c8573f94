"""Translation with random weights through fairseq's SequenceGenerator: every sentence runs the same number of steps."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from fairseq import utils
from fairseq.data import data_utils
from fairseq.sequence_generator import SequenceGenerator

from ..candidate import Candidate
from ..contender import Contender
from .trial import Trial


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
