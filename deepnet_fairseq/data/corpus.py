"""The embedded corpus: sentences of the artificial language pair, split without overlap."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from random import Random

from ..errors import UserError
from .language import LANGS, qaa, qab
from .language.meaning import Speaker, build_lexicon
from .lines import Pairs, write_columns

SIZES = {"train": 20_000, "valid": 500, "test": 500}


def sentence_pairs(seed: int, nouns: int, verbs: int) -> Iterator[tuple[str, str]]:
    """Endless distinct pairs: neither a source nor a target sentence comes twice."""
    speaker = Speaker(build_lexicon(seed, nouns, verbs), Random(f"sentences {seed}"))
    seen: set[str] = set()
    while True:
        sentence = speaker.sentence()
        source, target = qaa.say(sentence), qab.say(sentence)
        if source not in seen and target not in seen:
            seen |= {source, target}
            yield source, target


def make_corpus(sizes: dict[str, int], seed: int = 1, nouns: int = 120, verbs: int = 60) -> dict[str, Pairs]:
    """split -> pairs; the same numbers always give the same corpus, and a longer train split extends a shorter one.

    sizes: split -> sentence pairs. UserError for fewer than 1 of these, 1 noun or 10 verbs.
    """
    if min(sizes.values()) < 1 or nouns < 1 or verbs < 10:
        raise UserError("the corpus needs at least 1 sentence a split, 1 noun and 10 verbs")
    pairs = sentence_pairs(seed, nouns, verbs)
    held_out = {split: list(islice(pairs, sizes[split])) for split in ("test", "valid")}
    return {"train": list(islice(pairs, sizes["train"]))} | held_out


def write_corpus(corpus: dict[str, Pairs], dest: Path) -> None:
    """DEST/SPLIT.qaa and DEST/SPLIT.qab."""
    for split, pairs in corpus.items():
        write_columns([dest / f"{split}.{lang}" for lang in LANGS], pairs)
