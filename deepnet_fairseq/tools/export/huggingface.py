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

import torch
from torch import Tensor

from ...core.models import EOS, PAD, SPECIALS
from ...errors import UserError
from ...files import whole
from .hub_models import AUTO, MARKS, Port, languages, misfit, port
from .hub_tokenizers import find_subwords, write_tokenizer
from .transformer import Folded, stock_model, task_on

TASKS = {  # fairseq's model -> the task whose text is what the tokenizer makes; others add tags of languages
    "transformer": "translation",
    "transformer_lm": "language_modeling",
    "roberta": "masked_lm",
}
TOLERANCE = 1e-4  # on logits, in float32
ROWS, TOKENS = 4, 40  # of the made-up sentences that both models score
SHORTEST, LONGEST = 1, 200  # tokens of a translation but for its end, as fairseq-generate has them


@dataclass(frozen=True)
class Search:
    """Give the defaults of generate(): beams, and the exponent of the length that scores are divided by."""

    beam: int = 5
    lenpen: float = 1.0


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
    folded: Folded, out: Path, data: str, subwords: str | None = None, search: Search | None = None
) -> tuple[str, float]:
    """Write model, tokenizer and card into the folder `out`, whole or not at all; UserError for what does not fit.

    data: folder of the binarised data; subwords: file of what cut the text, by default the one beside the data; search:
    of translations. Return the name of transformers' model, and the largest difference of its logits from fairseq's.
    """
    transformers, kind, wanted = library(), folded.sections["task"]["_name"], TASKS[folded.stock.name]
    if kind != wanted:
        raise misfit(f"is for --task {wanted}, and this run's is {kind}")
    if kind != TASKS["transformer"] and search is not None:
        raise UserError("--beam, --lenpen: only for translation models; leave them out")
    task, found = task_on(folded, data), find_subwords(subwords, data)
    if kind == TASKS["transformer"]:
        search = search or Search()
        for name in ("source_lang", "target_lang"):
            folded.sections["task"][name] = getattr(task.cfg, name)  # which fairseq reads off the data
    dictionaries = task.source_dictionary, task.target_dictionary
    with whole(out) as part:
        part.mkdir()
        ported, _, difference = write_model(folded, part, search)
        with _quietly(transformers):
            write_tokenizer(transformers, part, ported, found, dictionaries, data)
        (part / "README.md").write_text(card(folded, ported, search, Path(data).name), encoding="utf-8")
    return ported.name, difference


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
            longest = ported.longest if search is None else _longest_translation(folded, ported) + 2  # with both eos
            model.generation_config = transformers.GenerationConfig(**_generation(ported, search, longest))
        _save(model, folder)
        model = getattr(transformers, AUTO[ported.head]).from_pretrained(folder, local_files_only=True).eval()
    difference = _largest_difference(folded, model, ported)
    if not difference <= TOLERANCE:
        raise UserError(f"--to huggingface: its logits differ by {difference:.1e}; nothing was written")
    return ported, model, difference


@torch.no_grad()
def _largest_difference(folded: Folded, model, ported: Port) -> float:
    """Compare logits of fairseq's plain model and one of transformers on made-up sentences, of which one is padded."""
    stock, longest = stock_model(folded.model, folded.state), min(TOKENS, ported.longest)
    read, predicted = (folded.state[weight].size(0) for weight in folded.stock.symbols)
    source, target = _made_up(read, longest), _made_up(predicted, max(1, longest - 3))
    source[0, longest - longest // 3 :] = PAD
    mask = source.ne(PAD).long()
    if ported.head == "ForConditionalGeneration":  # without a cache, for a FSMT that fills one sees what is to come
        theirs = model(input_ids=source, attention_mask=mask, decoder_input_ids=target, use_cache=False).logits
        return (stock(source, mask.sum(1), target)[0] - theirs).abs().max().item()
    theirs = model(input_ids=source, attention_mask=mask).logits
    return (stock(source)[0] - theirs)[source.ne(PAD)].abs().max().item()


def _made_up(symbols: int, length: int) -> Tensor:
    """Return tokens (ROWS, length), the same each time."""
    return torch.randint(SPECIALS, symbols, (ROWS, length), generator=torch.Generator().manual_seed(length))


def _longest_translation(folded: Folded, ported: Port) -> int:
    """Return fairseq-generate's default, within the decoder's positions; tokens but for the end."""
    return min(LONGEST, folded.model["max_target_positions"] - 1, *([ported.longest - 2] if ported.bounded else []))


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

{search}

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
BOUNDED = "Positions are a table of {}: a longer text has to be cut, as `truncation=True` does."


def card(folded: Folded, ported: Port, search: Search | None, data: str) -> str:
    """Return the model card, Markdown."""
    langs, fields = languages(folded), folded.model
    pipeline, title, stacks, usage = KINDS[ported.head]
    depths = [fields[f"{stack}_layers"] for stack in ("encoder", "decoder") if f"{stack}_layers" in fields]
    said = [] if search is None else [SEARCHED.format(search.beam, search.lenpen)]
    said += [BOUNDED.format(ported.longest)] if ported.bounded else []
    return CARD.format(
        pipeline=pipeline, languages="" if search is None else f"language: {json.dumps(langs)}\n",
        method=folded.method, title=title.format(*langs), layers="-".join(map(str, depths)), stacks=stacks,
        width=next(fields[name] for name in ("encoder_embed_dim", "decoder_embed_dim") if name in fields), data=data,
        name=ported.name, search=" ".join(said), auto=AUTO[ported.head],
        usage=usage.format(truncation=", truncation=True" if ported.bounded else "") if search else usage,
    )  # fmt: skip
