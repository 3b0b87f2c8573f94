"""On to CTranslate2: its own converter, from fairseq's plain model; then both models score the same sentences."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ...errors import UserError
from ...files import whole
from .transformer import Folded, stock_model, task_on

LONGEST = 1024  # CTranslate2 cuts what it reads there
SENTENCES = 50  # scored at most
TOKENS = 4096  # the same, and the sentence that passes it
LARGEST = 1e-2  # on the log-probability of a token, in float32; quantised models are only reported


@dataclass(frozen=True)
class Check:
    """Sentences scored by both; largest and mean difference of a token's log-probability, in nats."""

    sentences: int
    largest: float
    mean: float


def write_ctranslate2(folded: Folded, out: Path, data: str, quantization: str | None) -> Check:
    """Writes a CTranslate2 model into the folder `out` and checks it on the data's validation or test sentences.

    data: folder of the binarised data (dictionaries and sentences); quantization: as CTranslate2 names it ("int8",
    "float16", ...), None for float32. UserError if CTranslate2 is missing, cannot take the model, or disagrees.
    """
    if folded.stock.name not in SCORERS:
        raise UserError(f"--to ctranslate2: CTranslate2 reads no fairseq {folded.stock.name}; give --to transformer")
    try:
        import ctranslate2
    except ImportError as error:
        raise UserError("--to ctranslate2: CTranslate2 is not installed; pip install 'ctranslate2>=4'") from error
    task = task_on(folded, data)
    with whole(out) as part:
        _convert(ctranslate2, folded, task, part, quantization)
        check = _compare(folded, SCORERS[folded.stock.name](ctranslate2, part, task), task)
        if quantization in (None, "float32") and not check.largest <= LARGEST:
            raise UserError(f"--to ctranslate2: its scores differ by {check.largest:.1e}; nothing was written")
    return check


def _convert(ctranslate2, folded: Folded, task, out: Path, quantization: str | None) -> None:
    """Its converter reads a checkpoint file with the arguments as a namespace, and rebuilds fairseq's model from it."""
    of_task = vars(task.cfg or task.args) | {"task": folded.sections["task"]["_name"]}
    args = argparse.Namespace(**(of_task | folded.model))
    with tempfile.TemporaryDirectory() as folder:
        legacy = Path(folder) / "model.pt"
        torch.save({"args": args, "model": folded.state}, legacy)
        converter = ctranslate2.converters.FairseqConverter(str(legacy), args.data)
        try:
            converter.convert(str(out), quantization=quantization)
        except ValueError as error:
            raise UserError(f"--to ctranslate2: {' '.join(str(error).split())}") from error


Scorer = Callable[[dict], Tensor]  # sample of fairseq, one sentence -> log-probabilities of its targets (T,), nats


def _translation_scorer(ctranslate2, folder: Path, task) -> Scorer:
    translator = ctranslate2.Translator(str(folder))

    def scores(sample: dict) -> Tensor:
        source = words(task.source_dictionary, sample["net_input"]["src_tokens"][0])
        target = words(task.target_dictionary, sample["target"][0])
        return torch.tensor(translator.score_batch([source], [target])[0].log_probs)

    def words(dictionary, tokens: Tensor) -> list[str]:
        return [dictionary[i] for i in tokens.tolist() if i not in (dictionary.eos(), dictionary.pad())]

    return scores


def _language_model_scorer(ctranslate2, folder: Path, task) -> Scorer:
    generator = ctranslate2.Generator(str(folder))

    def scores(sample: dict) -> Tensor:
        found = generator.forward_batch(sample["net_input"]["src_tokens"].tolist(), return_log_probs=True)
        return torch.from_numpy(np.array(found))[0].gather(-1, sample["target"][0].unsqueeze(-1)).squeeze(-1)

    return scores


SCORERS = {"transformer": _translation_scorer, "transformer_lm": _language_model_scorer}


def _compare(folded: Folded, scorer: Scorer, task) -> Check:
    folder = (task.cfg or task.args).data  # fairseq's older tasks have the second
    for split in ("valid", "test", "train"):
        with suppress(FileNotFoundError):
            task.load_dataset(split)
            break
    else:
        raise UserError(f"--data {folder}: no valid, test or train sentences to check the model with")
    model = stock_model(folded.model, folded.state)
    differences, tokens = [], 0
    for sample in islice(_fitting(task.dataset(split), model), SENTENCES):
        with torch.no_grad():
            scores = model(**sample["net_input"])[0]
        ours = scores.float().log_softmax(-1).gather(-1, sample["target"].unsqueeze(-1)).flatten()
        differences.append((ours - scorer(sample)).abs())
        tokens += len(ours)
        if tokens > TOKENS:
            break
    if not differences:
        raise UserError(f"--data {folder}: no sentence of its {split} split is short enough for the model")
    pooled = torch.cat(differences)
    return Check(len(differences), pooled.max().item(), pooled.mean().item())


def _fitting(dataset, model) -> Iterator[dict]:
    """Samples of one sentence each that neither model has to cut."""
    longest = min(*np.atleast_1d(model.max_positions()), LONGEST)
    for index in range(len(dataset)):
        if np.max(dataset.size(index)) <= longest:
            sample = dataset.collater([dataset[index]])
            if sample["net_input"]["src_tokens"].size(1) <= longest:  # a bos is not counted in its size
                yield sample
