"""On to CTranslate2: its own converter, from a plain `transformer`; then both models score the same sentences."""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from fairseq import tasks

from ..errors import UserError
from ..whole_file import whole
from .transformer import Folded, stock_model

LONGEST = 1024  # CTranslate2 cuts what it reads there
LARGEST = {None: 1e-2, "float32": 1e-2}  # on the log-probability of a token; quantised models are only reported


@dataclass(frozen=True)
class Check:
    """Sentences scored by both; largest and mean difference of a token's log-probability."""

    sentences: int
    largest: float
    mean: float


def write_ctranslate2(folded: Folded, out: Path, data: str, quantization: str | None, sentences: int = 50) -> Check:
    """Writes a CTranslate2 model into the folder `out` and checks it on the data's validation or test sentences.

    data: folder of the binarised data (dictionaries and sentences); quantization: as CTranslate2 names it ("int8",
    "float16", ...), None for float32. UserError if CTranslate2 is missing, cannot take the model, or disagrees.
    """
    try:
        import ctranslate2
    except ImportError as error:
        raise UserError("--to ctranslate2: CTranslate2 is not installed; pip install 'ctranslate2>=4'") from error
    task = _task(folded, data)
    with whole(out) as part:
        _convert(ctranslate2, folded, task, part, quantization)
        check = _compare(folded, ctranslate2.Translator(str(part)), task, sentences)
        if quantization in LARGEST and not check.largest <= LARGEST[quantization]:
            raise UserError(f"--to ctranslate2: its scores differ by {check.largest:.1e}; nothing was written")
    return check


def _convert(ctranslate2, folded: Folded, task, out: Path, quantization: str | None) -> None:
    """Its converter reads a checkpoint file with the arguments as a namespace, and rebuilds fairseq's model from it."""
    args = argparse.Namespace(**(vars(task.cfg) | folded.model | {"task": folded.sections["task"]["_name"]}))
    with tempfile.TemporaryDirectory() as folder:
        legacy = Path(folder) / "transformer.pt"
        torch.save({"args": args, "model": folded.state}, legacy)
        converter = ctranslate2.converters.FairseqConverter(str(legacy), args.data, args.source_lang, args.target_lang)
        try:
            converter.convert(str(out), quantization=quantization)
        except ValueError as error:
            raise UserError(f"--to ctranslate2: {' '.join(str(error).split())}") from error


def _task(folded: Folded, data: str):
    """The run's translation task on the data in `data`; UserError if they are not the model's."""
    section = folded.sections["task"]
    settings = argparse.Namespace(**(section | {"data": data, "task": section["_name"]}))
    try:
        task = tasks.setup_task(settings)
    except (FileNotFoundError, AssertionError) as error:
        raise UserError(f"--data {data}: {error}") from error
    for side, dictionary in (("encoder", task.source_dictionary), ("decoder", task.target_dictionary)):
        rows = folded.state[f"{side}.embed_tokens.weight"].size(0)
        if rows != len(dictionary):
            raise UserError(f"--data {data}: {len(dictionary)} symbols, the {side} has {rows}; give the run's own data")
    return task


def _compare(folded: Folded, translator, task, count: int) -> Check:
    split = next((s for s in ("valid", "test", "train") if _has(task, s)), None)
    if split is None:
        raise UserError(f"--data {task.cfg.data}: no valid, test or train sentences to check the model with")
    dataset = task.dataset(split)
    model = stock_model(folded.model, folded.state)
    differences = []
    longest = min(model.encoder.max_positions(), model.decoder.max_positions(), LONGEST)
    short = [i for i in range(len(dataset)) if max(dataset.src_sizes[i], dataset.tgt_sizes[i]) < longest]
    for index in short[:count]:
        sample = dataset.collater([dataset[index]])
        net_input, target = sample["net_input"], sample["target"]
        with torch.no_grad():
            scores = model(net_input["src_tokens"], net_input["src_lengths"], net_input["prev_output_tokens"])[0]
        ours = scores.float().log_softmax(-1).gather(-1, target.unsqueeze(-1)).flatten()
        words = [
            [d[i] for i in tokens.tolist() if i not in (d.eos(), d.pad())]
            for d, tokens in ((task.source_dictionary, net_input["src_tokens"][0]), (task.target_dictionary, target[0]))
        ]
        theirs = torch.tensor(translator.score_batch([words[0]], [words[1]])[0].log_probs)
        differences.append((ours - theirs).abs())
    if not differences:
        raise UserError(f"--data {task.cfg.data}: no sentence of its {split} split is short enough for the model")
    pooled = torch.cat(differences)
    return Check(len(differences), pooled.max().item(), pooled.mean().item())


def _has(task, split: str) -> bool:
    try:
        task.load_dataset(split)
    except FileNotFoundError:
        return False
    return True
