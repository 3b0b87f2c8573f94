"""Translation with random weights through fairseq's SequenceGenerator: every sentence runs the same number of steps."""

from __future__ import annotations

import torch
from fairseq import utils
from fairseq.data import data_utils
from fairseq.sequence_generator import SequenceGenerator

from .clock import Clock
from .contender import Contender


class Translator:
    """The model of a contender as fairseq-generate prepares it; it cannot be trained any more."""

    def __init__(self, contender: Contender):
        self.settings, self.task, self.model = contender.settings, contender.trainer.task, contender.model
        self.model.eval()
        self.model.make_generation_fast_(beamable_mm_beam_size=None, need_attn=False)
        self.clock = Clock(self.settings.torch_device, self.settings.clock)
        self.run = self.clock.watched(self._run, "generate")

    def translate(self, batch: dict, beam: int) -> tuple[float, int]:
        """Seconds, and tokens of the best hypotheses: the mean length of the batch's references, for each sentence."""
        sentences, length = len(batch["id"]), round(batch["ntokens"] / len(batch["id"]))
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
        assert tokens == sentences * length, (tokens, sentences, length)
        return self.clock.read()["generate"], tokens

    def _run(self, generator: SequenceGenerator, batch: dict) -> list:
        with torch.no_grad():
            return generator.generate([self.model], batch)


def batches_to_translate(contender: Contender, sentences: int, count: int) -> list[dict]:
    """`count` batches of so many sentences of like length, as fairseq-generate sorts them."""
    task = contender.trainer.task
    task.load_dataset("train")
    dataset = task.dataset("train")
    with data_utils.numpy_seed(contender.settings.seed):
        order = dataset.ordered_indices()
    starts = range(0, len(order) - sentences + 1, sentences)
    # spread over all lengths: middles of `count` equal stretches of the sorted corpus
    chosen = [starts[(2 * i + 1) * len(starts) // (2 * count)] for i in range(count)]
    found = [dataset.collater([dataset[i] for i in order[start : start + sentences]]) for start in chosen]
    device = contender.settings.torch_device
    return [utils.move_to_cuda(batch, device) if device.type == "cuda" else batch for batch in found]
