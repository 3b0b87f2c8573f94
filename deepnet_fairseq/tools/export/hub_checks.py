"""What an exported model is held against: fairseq's plain model on the same tokens, its search, its perplexity."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import sacrebleu
import torch
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor

from ...core.models import EOS, PAD
from ...core.models import SPECIALS as FIRST
from ...errors import UserError
from .hub_models import Port
from .hub_tokenizers import Subwords
from .transformer import Folded, stock_model

BATCH = 20  # sentences translated, or scored, at once
ROWS, TOKENS = 4, 40  # of what both models score
SHORTEST, LONGEST = 1, 200  # tokens of a translation but for its end, as fairseq-generate has them
ALIKE, BLEU_APART = 0.95, 0.1  # what is asked of translations


@dataclass(frozen=True)
class Search:
    """What generate() does by itself: beams, and the exponent of the length that scores are divided by."""

    beam: int = 5
    lenpen: float = 1.0


@dataclass(frozen=True)
class Translations:
    """Sentences translated by fairseq's search and by generate(): how many, how many alike, and why others are not.

    rounded: how many more are alike in float64; cut: how many of the others ended at the longest that is searched,
    where generate() has the forced eos for nothing and fairseq counts its log-probability; apart: lines of the rest,
    from 1; bleu: of fairseq's search and of generate(), with the signature, if there were references.
    """

    sentences: int
    equal: int
    rounded: int
    cut: int
    apart: tuple[int, ...]
    bleu: tuple[float, float, str] | None = None

    def __str__(self) -> str:
        said = f"{self.equal} of {self.sentences} translations are those of fairseq's search"
        if self.rounded:
            said += f", {self.rounded} more in float64 (rounding)"
        if self.cut:
            said += f", {self.cut} cut at the longest, where it counts the end otherwise"
        if self.apart:
            said += f", not those of lines {', '.join(map(str, self.apart))}"
        if self.bleu is not None:
            said += "; BLEU {1:.2f} for its {0:.2f} ({2})".format(*self.bleu)
        if not self.good:
            said += f"; fewer than {ALIKE:.0%} are alike, or BLEU is more than {BLEU_APART} apart"
        return said

    @property
    def good(self) -> bool:
        """Are enough of them alike?"""
        near = self.bleu is None or abs(self.bleu[0] - self.bleu[1]) <= BLEU_APART
        return near and self.equal >= ALIKE * self.sentences


@dataclass(frozen=True)
class Perplexity:
    """Of text, a line at a time with its </s>, by fairseq's plain model and by that of transformers."""

    tokens: int
    ours: float
    theirs: float

    def __str__(self) -> str:
        return f"perplexity of {self.tokens:,} tokens {self.theirs:.4f}, fairseq's {self.ours:.4f}"


@torch.no_grad()
def largest_difference(folded: Folded, model, ported: Port) -> float:
    """Of logits of fairseq's plain model and one of transformers, on made-up sentences, of which one is padded."""
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
    """(ROWS, length), the same each time."""
    return torch.randint(FIRST, symbols, (ROWS, length), generator=torch.Generator().manual_seed(length))


def longest_translation(folded: Folded, ported: Port) -> int:
    """Tokens but for its end: fairseq-generate's default, within the decoder's positions."""
    return min(LONGEST, folded.model["max_target_positions"] - 1, *([ported.longest - 2] if ported.bounded else []))


def compare_translations(
    folded: Folded,
    model,
    ported: Port,
    tokenizer,
    task,
    search: Search,
    lines: list[str],
    references: list[str] | None = None,
) -> Translations:
    """Plain text, cut by the tokenizer, translated by generate() and by fairseq's beam search.

    UserError, naming the line, for one that is longer than the model has positions.
    """
    stock = stock_model(folded.model, folded.state)
    longest = longest_translation(folded, ported)
    beam = SequenceGenerator(
        [stock], task.target_dictionary, beam_size=search.beam, max_len_a=0, max_len_b=longest,
        len_penalty=search.lenpen,
    )  # fmt: skip

    def translate(batch: list[str]) -> list[tuple[list[int], list[int]]]:
        inputs = tokenizer(batch, return_tensors="pt", padding=True)
        theirs = model.generate(**inputs)
        net_input = {"src_tokens": inputs["input_ids"], "src_lengths": inputs["attention_mask"].sum(1)}
        ours = beam.generate([stock], {"net_input": net_input})
        return [(_bare(one[0]["tokens"]), _bare(two)) for one, two in zip(ours, theirs, strict=True)]

    _fitting(tokenizer, lines, ported)
    found = [pair for batch in _batches(lines) for pair in translate(batch)]
    different = [number for number, (ours, theirs) in enumerate(found) if ours != theirs]
    stock.double()
    model.double()
    again = [translate([lines[number]])[0] for number in different]
    model.float()
    unlike = [(number, pair) for number, pair in zip(different, again, strict=True) if pair[0] != pair[1]]
    apart = tuple(number + 1 for number, pair in unlike if {len(side) for side in pair} != {longest})
    rounded, cut = len(different) - len(unlike), len(unlike) - len(apart)
    bleu = None
    if references is not None:
        metric = sacrebleu.BLEU()
        said = [tokenizer.batch_decode(side, skip_special_tokens=True) for side in zip(*found, strict=True)]
        scores = [metric.corpus_score(side, [references]).score for side in said]
        bleu = scores[0], scores[1], str(metric.get_signature())
    return Translations(len(lines), len(lines) - len(different), rounded, cut, apart, bleu)


@torch.no_grad()
def compare_perplexity(
    folded: Folded, model, ported: Port, tokenizer, subwords: Subwords, task, lines: list[str]
) -> Perplexity:
    """Perplexity of plain text: cut and scored by fairseq, and by tokenizer and model of transformers."""
    stock, encoder, dictionary = stock_model(folded.model, folded.state), subwords.encoder(), task.source_dictionary
    begin = tokenizer.bos_token_id
    _fitting(tokenizer, lines, ported)
    totals, tokens = [0.0, 0.0], 0
    for batch in _batches(lines):
        cut = [[begin, *dictionary.encode_line(encoder.encode(line.strip()), add_if_not_exist=False)] for line in batch]
        ours, theirs = _padded(cut), _padded([[*tokenizer(line.strip())["input_ids"], EOS] for line in batch])
        logits = stock(ours[:, :-1])[0], model(theirs[:, :-1], attention_mask=theirs[:, :-1].ne(PAD).long()).logits
        for number, (scores, given) in enumerate(zip(logits, (ours, theirs), strict=True)):
            losses = torch.nn.functional.cross_entropy(
                scores.double().flatten(0, 1), given[:, 1:].flatten(), ignore_index=PAD, reduction="sum"
            )
            totals[number] += losses.item()
        tokens += int(ours[:, 1:].ne(PAD).sum())
    return Perplexity(tokens, math.exp(totals[0] / tokens), math.exp(totals[1] / tokens))


def _padded(rows: list[list[int]]) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=PAD)


def _fitting(tokenizer, lines: list[str], ported: Port) -> None:
    for number, line in enumerate(lines, 1):
        length = len(tokenizer(line)["input_ids"])
        if length > ported.longest:
            raise UserError(f"--check: line {number} has {length} tokens of {ported.longest}; leave it out")


def _batches(lines: list[str]) -> Iterator[list[str]]:
    return (lines[first : first + BATCH] for first in range(0, len(lines), BATCH))


def _bare(tokens: Tensor) -> list[int]:
    """A translation without the marks of its ends."""
    return [token for token in tokens.tolist() if token not in (EOS, PAD)]
