"""A language model of fairseq's or of ours, asked how likely texts are."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from fairseq import checkpoint_utils, tasks, utils
from fairseq.data import data_utils
from fairseq.tasks.language_modeling import LanguageModelingTask
from omegaconf.errors import OmegaConfBaseException
from torch import Tensor
from tqdm import tqdm

from ..errors import UserError
from .pieces import Continuation

# a config or weights of another model
BROKEN = (RuntimeError, KeyError, TypeError, AttributeError, ValueError, AssertionError, OmegaConfBaseException)


class LanguageModel:
    """model: of fairseq's task language_modeling; start: the symbol that every text follows.

    positions: the longest text that it reads, `start` included; of the last piece it only is asked.
    """

    def __init__(self, model, dictionary, start: int, device: torch.device):
        self.model, self.dictionary, self.start = model.eval().to(device), dictionary, start
        self.positions, self.device = model.max_positions(), device

    def truncates(self, asked: Continuation) -> bool:
        """Does the context lose its beginning, for all is longer than the model takes?"""
        return len(asked.context) + len(asked.choice) > self.positions

    def log_likelihoods(self, asked: Sequence[Continuation], batch_tokens: int) -> list[float]:
        """log p(choice | start, context), nats, summed over the choice's pieces, in float32.

        A context that is too long loses its beginning. The same continuation is computed once; the longest ones come
        first, at most `batch_tokens` with padding at once, or one.
        """
        unique = sorted(set(asked), key=lambda c: len(c.context) + len(c.choice), reverse=True)
        known: dict[Continuation, float] = {}
        with tqdm(total=len(unique), unit=" choices", disable=None) as bar:
            for batch in self._batches(unique, batch_tokens):
                known.update(zip(batch, self._batch(batch), strict=True))
                bar.update(len(batch))
        return [known[one] for one in asked]

    def _batches(self, ordered: list[Continuation], batch_tokens: int) -> Iterator[list[Continuation]]:
        first = 0
        while first < len(ordered):
            rows = max(1, batch_tokens // self._length(ordered[first]))
            yield ordered[first : first + rows]
            first += rows

    def _length(self, one: Continuation) -> int:
        return min(len(one.context) + len(one.choice), self.positions)

    @torch.no_grad()
    def _batch(self, batch: list[Continuation]) -> list[float]:
        inputs, targets = zip(*map(self._row, batch), strict=True)
        pad = self.dictionary.pad()
        inputs, targets = (data_utils.collate_tokens(rows, pad).to(self.device) for rows in (inputs, targets))
        asked = targets.ne(pad)
        scores = self.model(inputs)[0][asked].unsqueeze(0)  # normalised only where it is asked for
        log_p = self.model.get_normalized_probs((scores, None), log_probs=True)[0]
        found = torch.zeros(targets.shape, dtype=torch.float64, device=self.device)
        found[asked] = log_p.gather(1, targets[asked].unsqueeze(1)).squeeze(1).double()
        return found.sum(1).tolist()

    def _row(self, one: Continuation) -> tuple[Tensor, Tensor]:
        """What the model reads, and what it is asked for behind each symbol of it: padding within the context."""
        length = self._length(one)
        text = (one.context + one.choice)[-length:]
        target = torch.tensor(text)
        target[: length - len(one.choice)] = self.dictionary.pad()
        return torch.tensor([self.start, *text[:-1]]), target


def load(path: str, data: str | None, cpu: bool) -> tuple[LanguageModel, Path]:
    """The model of a checkpoint and the folder of its data; data: the folder, by default where it was trained from.

    Begins a text with what training did: <s> after --add-bos-token, else </s>. UserError, naming the file, for what is
    no language model and for data that are not the model's. Nothing but plain data is unpickled.
    """
    if not Path(path).exists():
        raise UserError(f"--path {path}: no such file; give a checkpoint of fairseq-train")
    state = checkpoint_utils.load_checkpoint_to_cpu(path)
    cfg = state["cfg"]
    section = _task_section(path, cfg)
    folder = Path(data or utils.split_paths(section.get("data") or "")[0])
    if not (folder / "dict.txt").is_file():
        raise UserError(f"--data {folder}: holds no dict.txt; give the data that {path} was trained on")
    cfg.task.data = str(folder)
    try:
        task = tasks.setup_task(cfg.task, from_checkpoint=True)
        (model,), _, _ = checkpoint_utils.load_model_ensemble_and_task([path], task=task, state=state)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    except BROKEN as error:
        reason = " ".join(str(error).split("\n\t")[-1].split())[:150]
        raise UserError(f"{path}: does not go with the data in {folder} ({reason}); give --data of its run") from error
    start = task.dictionary.bos() if section.get("add_bos_token") else task.dictionary.eos()
    device = torch.device("cuda" if torch.cuda.is_available() and not cpu else "cpu")
    return LanguageModel(model, task.dictionary, start, device), folder


def _task_section(path: str, cfg) -> Mapping:
    """The config of a task that predicts each token from those before it; else UserError."""
    section = cfg.get("task")
    section = vars(section) if isinstance(section, argparse.Namespace) else section  # of tasks without a dataclass
    if not isinstance(section, Mapping) or not isinstance(section.get("data") or "", str):
        raise UserError(f"{path}: its config has no task section; give a checkpoint of fairseq-train")
    name = section.get("_name") or section.get("task")
    if not issubclass(tasks.TASK_REGISTRY.get(name, object), LanguageModelingTask):
        raise UserError(
            f"{path}: of --task {name}, which gives no likelihood of a text from left to right; give a checkpoint of "
            "--task language_modeling, as deepnet_lm and transformer_lm have"
        )
    if section.get("self_target") or section.get("past_target"):
        raise UserError(f"{path}: trained with --self-target or --past-target; give one that predicts the next token")
    if section.get("output_dictionary_size", -1) >= 0:
        raise UserError(f"{path}: trained with --output-dictionary-size; give one that predicts all symbols")
    return section
