"""Export to Hugging Face: a folder that transformers loads by its Auto classes, checked against fairseq's model.

`folded` is a trained model as a plain Transformer of fairseq's (transformer.py), `served` the same with its text
(served.py), `ported` what the model of transformers is built from (hub_models.py).
"""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from ...core.models import EOS, PAD, SPECIALS, UNK
from ...errors import UserError
from ...files import whole
from ..translation.engines import SHORTEST, HuggingFace, Settings, quiet
from .checks import check_text
from .hub_models import AUTO, SPECIAL_TOKENS, Port, port
from .hub_tokenizers import segmenter_of, write_tokenizer, write_translation_tokenizer
from .readme import write_card
from .served import Served
from .transformer import Folded, stock_model

TOLERANCE = 2e-5  # how far logits may differ in float32, as a share of the largest one, or of 1 if that is smaller
SENTENCES = 4  # made-up ones that both models score
TOKENS = 40  # of each sentence


def library():
    """Return the transformers library; raise a UserError if it is missing, or if torchaudio keeps it from loading."""
    try:
        import transformers
    except ImportError as error:
        needed = "pip install 'transformers>=5' safetensors"
        raise UserError("--to huggingface", f"transformers is not installed; {needed}") from error

    try:
        if importlib.util.find_spec("torchaudio") is not None:  # transformers imports it where it is installed
            import torchaudio  # noqa: F401
    except (ImportError, OSError) as error:
        raise UserError(
            "--to huggingface",
            "torchaudio does not load beside this torch, and transformers fails with it; "
            "pip uninstall torchaudio, which no translation needs",
        ) from error
    return transformers


def write_huggingface(
    served: Served, out: Path, subwords: str | None = None, search: Settings | None = None
) -> tuple[str, float]:
    """Write model, tokenizer and model card into the folder `out`, whole or not at all.

    subwords: SentencePiece model that segmented a language model's text, None for the file beside the data; search:
    settings that a translation model will search with, None for Settings(); a language model takes only None. Return
    the name of transformers' model, such as "M2M100", and the largest difference of its logits from fairseq's. Raises a
    UserError if transformers is missing, has no model or tokenizer for this one, or computes something else.
    """
    transformers = library()
    if served.text is None and search is not None:
        raise UserError("--beam, --lenpen", "only for translation models; leave them out")
    if served.text is not None and search is None:
        search = Settings()

    with whole(out) as part:  # a temporary folder, which is moved to `out` at the end
        part.mkdir()
        ported, difference = write_model(served.folded, part, search)
        served = _within_table(served, ported)
        write_card(served, part, ported)
        text = served.text
        if text is None:  # a language model
            with quiet():
                segmenter = segmenter_of(served.data, subwords)
                write_tokenizer(
                    transformers,
                    folder=part,
                    ported=ported,
                    segmenter=segmenter,
                    dictionary=served.dictionaries[0],
                    data=served.data,
                )
        else:
            with quiet():
                write_translation_tokenizer(transformers, part, ported, text)
            text.described.write(part)  # how text becomes symbols, for programs that read the export without fairseq
            check_text(served, part, HuggingFace)
    return ported.name, difference


def _within_table(served: Served, ported: Port) -> Served:
    """Return `served` with no more positions in its text's description than the ported model has.

    A FSMT whose positions come from a table has one limit for encoder and decoder, the smaller one of fairseq's model.
    Beyond it FSMT would go on with sinusoids.
    """
    if served.text is None or not ported.bounded:
        return served
    described = served.text.described
    source, target = described.positions
    positions = (min(source, ported.longest), min(target, ported.longest))
    return replace(served, text=replace(served.text, described=replace(described, positions=positions)))


def write_model(folded: Folded, folder: Path, search: Settings | None) -> tuple[Port, float]:
    """Write config, weights (safetensors) and generation_config into a folder, load them again and compare the logits.

    search: settings of a translation model's search, None for other models. Return what was written, and the largest
    difference of its logits from those of fairseq's model on made-up tokens. Raises a UserError if transformers has no
    model for it, or computes other logits.
    """
    transformers = library()
    ported = port(folded)
    with quiet():
        config_class = getattr(transformers, f"{ported.name}Config")
        model_class = getattr(transformers, f"{ported.name}{ported.head}")
        model = model_class(config_class(**ported.config))
        model.load_state_dict(ported.state)
        generation = _generation(folded, ported, search)
        model.generation_config = transformers.GenerationConfig(**generation)
        _save(model, folder)
        auto_class = getattr(transformers, AUTO[ported.head])
        model = auto_class.from_pretrained(folder, local_files_only=True).eval()  # the same name, to free the other one

    difference, largest_logit = _largest_difference(folded, model, ported)
    if not difference <= TOLERANCE * max(1, largest_logit):  # a NaN fails as well
        raise UserError("--to huggingface", f"its logits differ by {difference:.1e}; nothing was written")
    return ported, difference


@torch.no_grad()
def _largest_difference(folded: Folded, model, ported: Port) -> tuple[float, float]:
    """Compare the logits of fairseq's plain model with those of transformers' `model` on made-up sentences.

    Return the largest difference at tokens that are not padding, and the largest magnitude of fairseq's logits there.
    One source sentence is padded on the right, so that a wrong mask shows.
    """
    stock = stock_model(folded.config, folded.state)
    longest = min(TOKENS, ported.longest)
    read, predicted = folded.vocabulary_sizes
    source = _made_up(read, longest)
    target = _made_up(predicted, max(1, longest - 3))  # of another length than the source
    source[0, longest - longest // 3 :] = PAD  # the last third of the first sentence
    mask = source.ne(PAD).long()

    if ported.head == "ForConditionalGeneration":  # a translation model
        # use_cache=False: a FSMT that fills a cache has no causal mask
        theirs = model(input_ids=source, attention_mask=mask, decoder_input_ids=target, use_cache=False).logits
        ours = stock(source, mask.sum(1), target)[0]
    else:
        theirs = model(input_ids=source, attention_mask=mask).logits[source.ne(PAD)]
        ours = stock(source)[0][source.ne(PAD)]
    return (ours - theirs).abs().max().item(), ours.abs().max().item()


def _made_up(symbols: int, length: int) -> Tensor:
    """Return random tokens (SENTENCES, length), the same each time.

    symbols: size of the vocabulary, whose special tokens are left out.
    """
    generator = torch.Generator().manual_seed(length)
    return torch.randint(SPECIALS, symbols, (SENTENCES, length), generator=generator)


def _save(model, folder: Path) -> None:
    """Save a model of transformers into a folder; raise a UserError if the disk is full."""
    from safetensors import SafetensorError

    try:
        model.save_pretrained(folder)
    except SafetensorError as error:  # what it raises for a full disk
        raise UserError(folder, f"could not be written ({error})") from error


def _generation(folded: Folded, ported: Port, search: Settings | None) -> dict:
    """Return arguments of GenerationConfig, by name, with which generate() searches as fairseq does.

    generate() then produces no padding; of a translation model also no unknown symbol and no empty translation. search:
    settings of a translation model's search, None for a language model.

    Both libraries take twice as many candidates as beams at each step, count as finished those among the best `beam`
    of them that end, and divide a score by length ** penalty, the eos counted. fairseq stops when `beam` translations
    are finished. generate() does so only with early_stopping, which is not its default; without, it goes on while a
    running beam, were it to end at once, would beat the worst finished one.

    The longest translation takes all positions of the decoder, of which the first is for the eos in front of it. Its
    own eos is one token more, which takes no position.
    """
    settings = {name: ported.config[name] for name in SPECIAL_TOKENS}
    if search is None:
        return settings | {"suppress_tokens": [PAD], "max_length": ported.longest}

    positions = folded.config["max_target_positions"]
    if ported.bounded:  # the table of positions may be cut to the encoder's, and generate() must stay within it
        positions = min(positions, ported.longest)
    if search.beam > 1:  # a single beam is compared with no other
        settings |= {"length_penalty": search.lenpen, "early_stopping": True}
    return settings | {
        "suppress_tokens": [PAD, UNK],
        "decoder_start_token_id": EOS,
        "forced_eos_token_id": EOS,
        "num_beams": search.beam,
        "min_length": SHORTEST + 1,  # generate() counts the eos in front
        "max_length": positions + 1,  # generate() counts both eos
    }
