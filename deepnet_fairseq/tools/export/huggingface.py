"""On to Hugging Face: a folder that transformers loads by its Auto classes, checked against fairseq's plain model."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core.models import EOS, PAD
from ...errors import UserError
from ...files import whole
from .hub_checks import (
    SHORTEST,
    Perplexity,
    Search,
    Translations,
    compare_perplexity,
    compare_translations,
    largest_difference,
    longest_translation,
)
from .hub_models import AUTO, MARKS, Port, languages, misfit, port
from .hub_tokenizers import find_subwords, has_mark, sentences_held, write_tokenizer
from .transformer import Folded, task_on

TASKS = {  # fairseq's model -> the task whose text is what the tokenizer makes; others add tags of languages
    "transformer": "translation",
    "transformer_lm": "language_modeling",
    "roberta": "masked_lm",
}
TOLERANCE = 1e-4  # on logits, in float32


@dataclass(frozen=True)
class Exported:
    """Which of transformers' models and tokenizers it is, why that is no fast one (or ""), the largest difference of a
    logit, and what --check found, if it was asked for."""

    name: str
    tokenizer: str
    slow: str
    difference: float
    trial: Translations | Perplexity | None


def library():
    """The transformers library; UserError if it is not installed.

    It imports torchaudio where that is found, and most of its models fail with one that was built for another torch, as
    fairseq's requirements bring it: such a one counts as not installed.
    """
    try:
        import transformers
    except ImportError as error:
        needed = "pip install 'transformers>=5' safetensors"
        raise UserError(f"--to huggingface: transformers is not installed; {needed}") from error
    try:
        import torchaudio  # noqa: F401
    except (ImportError, OSError):
        sys.modules["torchaudio"] = None  # type: ignore[assignment]  # Python's own word for that
        transformers.utils.is_torchaudio_available.cache_clear()  # fairseq's imports may have asked
    return transformers


def write_huggingface(
    folded: Folded, out: Path, data: str, subwords: str | None, search: Search | None, scores: dict, texts: list[Path]
) -> Exported:
    """Writes model, tokenizer and card into the folder `out`, whole or not at all; UserError for what does not fit.

    data: folder of the binarised data; subwords: file of what cut the text, by default the one beside the data; search:
    of translations; scores: content of score.json, empty if there is none; texts: what --check compares, lines to
    translate and perhaps their references, or text of which a language model finds the perplexity.
    """
    transformers, kind, wanted = library(), folded.sections["task"]["_name"], TASKS[folded.stock.name]
    if kind != wanted:
        raise misfit(f"is for --task {wanted}, and this run's is {kind}")
    if kind != TASKS["transformer"] and search is not None:
        raise UserError("--beam, --lenpen: only for translation models; leave them out")
    lines = _read_lines(texts, kind)
    task, found = task_on(folded, data), find_subwords(subwords, data)
    if kind == TASKS["transformer"]:
        search = search or Search()
        for name in ("source_lang", "target_lang"):
            folded.sections["task"][name] = getattr(task.cfg, name)  # which fairseq reads off the data
    dictionaries = task.source_dictionary, task.target_dictionary
    with whole(out) as part:
        part.mkdir()
        ported, model, difference = write_model(folded, part, search)
        with _quietly(transformers):
            held = sentences_held(found, task, data)
            tokenizer, slow = write_tokenizer(transformers, part, ported, found, dictionaries, languages(folded), held)
            trial: Translations | Perplexity | None = None
            if lines and search is not None:
                trial = compare_translations(folded, model, ported, tokenizer, task, search, *lines)
            elif lines:
                trial = compare_perplexity(folded, model, ported, tokenizer, found, task, lines[0])
        marked = sum(has_mark(tokenizer, line) for line, _ in held), len(held)
        said = card(folded, ported, search, Path(data).name, scores, slow, trial, marked)
        (part / "README.md").write_text(said, encoding="utf-8")
    return Exported(ported.name, type(tokenizer).__name__, slow, difference, trial)


def _read_lines(texts: list[Path], kind: str) -> list[list[str]]:
    """Of each file; UserError for one that is missing or empty, and for other files than a model of that kind reads."""
    most = {"translation": 2, "language_modeling": 1}.get(kind, 0)
    if len(texts) > most:
        raise UserError(
            f"--check: {len(texts)} files, and for --task {kind} it takes at most {most}; leave the rest out"
        )
    found = []
    for text in texts:
        try:
            lines = text.read_bytes().decode().split("\n")  # a carriage return ends no line
        except FileNotFoundError as error:
            raise UserError(f"--check {text}: no such file") from error
        except UnicodeDecodeError as error:
            raise UserError(f"--check {text}: is not UTF-8; convert it") from error
        lines = lines[:-1] if lines[-1] == "" else lines
        if not lines:
            raise UserError(f"--check {text}: is empty; give a sentence a line")
        found.append(lines)
    if len({len(lines) for lines in found}) > 1:
        raise UserError("--check: {} lines and {} references; give as many".format(*map(len, found)))
    return found


def write_model(folded: Folded, folder: Path, search: Search | None) -> tuple[Port, Any, float]:
    """Config, weights (safetensors) and generation_config into a folder; also the model, loaded again as people will.

    And the largest difference of its logits from those of fairseq's model on made-up tokens. UserError if the model
    does not fit, or disagrees. search: of a translation model, None for the others.
    """
    transformers, ported = library(), port(folded)
    with _quietly(transformers):
        config = getattr(transformers, f"{ported.name}Config")(**ported.config)
        model = getattr(transformers, f"{ported.name}{ported.head}")(config)
        model.load_state_dict(ported.state)
        if model.can_generate():
            longest = ported.longest if search is None else longest_translation(folded, ported) + 2  # with both eos
            model.generation_config = transformers.GenerationConfig(**_generation(ported, search, longest))
        _save(model, folder)
        model = getattr(transformers, AUTO[ported.head]).from_pretrained(folder, local_files_only=True).eval()
    difference = largest_difference(folded, model, ported)
    if not difference <= TOLERANCE:
        raise UserError(f"--to huggingface: its logits differ by {difference:.1e}; nothing was written")
    return ported, model, difference


def _save(model, folder: Path) -> None:
    from safetensors import SafetensorError

    try:
        model.save_pretrained(folder)
    except SafetensorError as error:  # its word for a full disk
        raise UserError(f"{folder}: could not be written ({error})") from error


def _generation(ported: Port, search: Search | None, longest: int) -> dict:
    """As fairseq searches: no padding, no empty translation, and an end once there are as many finished ones as beams.

    Both take twice as many candidates as beams, count as finished those among the best `beam` of them that end, and
    divide a score by length ** penalty, the eos counted. early_stopping, which is not the default there, is that end;
    without it generate() goes on while a running beam, were it to end at once, would beat the worst finished one.
    """
    marks = {name: ported.config[name] for name in MARKS} | {"suppress_tokens": [PAD]}
    if search is None:
        return marks | {"max_length": longest}
    beams = {"length_penalty": search.lenpen, "early_stopping": True} if search.beam > 1 else {}  # one has no others
    return (
        marks
        | beams
        | {
            "decoder_start_token_id": EOS,
            "forced_eos_token_id": EOS,
            "num_beams": search.beam,
            "min_length": SHORTEST + 1,  # counted with the eos they begin with
            "max_length": longest,
        }
    )


@contextmanager
def _quietly(transformers) -> Iterator[None]:
    """Without bars and advice for developers."""
    logging = transformers.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


CARD = """---
library_name: transformers
pipeline_tag: {pipeline}
{languages}tags: [deepnet_fairseq, {method}]
---

# {title}, {layers} layers

A Transformer of {layers} {stacks} layers, width {width}, trained with `{method}` by deepnet_fairseq on `{data}`, its
factors folded into the weights of a plain {name}.

{scores}

```python
from transformers import {auto}, AutoTokenizer

tokenizer, model = AutoTokenizer.from_pretrained(FOLDER), {auto}.from_pretrained(FOLDER)
{usage}
```
"""
TRANSLATE = """inputs = tokenizer(["..."], return_tensors="pt", padding=True{truncation})
print(tokenizer.batch_decode(model.generate(**inputs), skip_special_tokens=True))"""
GO_ON = """inputs = tokenizer(["..."], return_tensors="pt", padding=True)
print(tokenizer.batch_decode(model.generate(**inputs, max_new_tokens=50), skip_special_tokens=True))"""
FILL = """inputs = tokenizer(["...<mask>..."], return_tensors="pt", padding=True, truncation=True)
print(tokenizer.batch_decode(model(**inputs).logits.argmax(-1)))"""
KINDS = {  # head -> of its card: pipeline, title, stacks, use
    "ForConditionalGeneration": ("translation", "{} to {}", "encoder-decoder", TRANSLATE),
    "ForCausalLM": ("text-generation", "A language model", "decoder", GO_ON),
    "ForMaskedLM": ("fill-mask", "A masked language model", "encoder", FILL),
}
SEARCHED = "`generate` searches with beam {}, length penalty {}, and ends as fairseq does."
MARKED = (
    "{} of {} sentences of its data hold a mark such as `<unk>` as text: the tokenizer reads the mark, where fairseq "
    "cut it into pieces."
)
BOUNDED = "Positions are a table of {}: a longer text has to be cut, as `truncation=True` does."


def card(
    folded: Folded,
    ported: Port,
    search: Search | None,
    data: str,
    scores: dict,
    slow: str,
    trial: Translations | Perplexity | None,
    marked: tuple[int, int] = (0, 0),
) -> str:
    """The model card, Markdown; scores: content of score.json, or nothing; slow: why the tokenizer is no fast one.

    marked: how many of how many of the data's own sentences hold a mark as text.
    """
    langs, fields = languages(folded), folded.model
    pipeline, title, stacks, usage = KINDS[ported.head]
    depths = [fields[f"{stack}_layers"] for stack in ("encoder", "decoder") if f"{stack}_layers" in fields]
    said = []
    if scores:
        bleu = f"BLEU {scores['bleu']} (`{scores.get('signature')}`)" if "bleu" in scores else f"Scores: `{scores}`"
        said.append(f"{bleu}, as the run that it is of was scored before the export.")
    elif search is not None:
        said.append("Its BLEU was not measured.")
    if trial is not None:
        said.append(f"At the export: {trial}.")
    if search is not None:
        said.append(SEARCHED.format(search.beam, search.lenpen))
    if ported.bounded:
        said.append(BOUNDED.format(ported.longest))
    if slow:
        said.append(f"The tokenizer is no fast one: {slow}.")
    if marked[0]:
        said.append(MARKED.format(*marked))
    return CARD.format(
        pipeline=pipeline, languages="" if search is None else f"language: {json.dumps(langs)}\n",
        method=folded.method, title=title.format(*langs), layers="-".join(map(str, depths)), stacks=stacks,
        width=next(fields[name] for name in ("encoder_embed_dim", "decoder_embed_dim") if name in fields), data=data,
        name=ported.name, scores=" ".join(said), auto=AUTO[ported.head],
        usage=usage.format(truncation=", truncation=True" if ported.bounded else "") if search else usage,
    )  # fmt: skip
