"""Artificial language pair, qaa -> qab (codes that ISO 639-2 reserves for local use).

qaa puts the finite verb second in main clauses and last in subordinate ones, splits separable verbs, marks three
genders, three cases and number on determiner and adjective, glues compounds and says three-and-twenty. qab is
subject-verb-object, has no case but two noun classes, puts adjectives after nouns and tens before units. Names are
invented anew for each sentence and spelled by qab's rules, so the vocabulary is open. Sentence pairs of both, split
without overlap, are the embedded corpus.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from random import Random

from ...errors import UserError
from ...files import whole
from ..lines import Pairs, write_columns
from . import qaa, qab
from .meaning import Speaker, build_lexicon

LANGS = ("qaa", "qab")
MOST = 20_000  # limit of nouns and of verbs, so that drawing them takes less than a minute
SIZES = {"train": 20_000, "valid": 500, "test": 500}


def sentence_pairs(seed: int, nouns: int, verbs: int) -> Iterator[tuple[str, str]]:
    """Yield sentence pairs without end, in which neither a source nor a target comes twice.

    seed: decides the lexicon and the sentences
    nouns, verbs: how many of them the lexicon has
    """
    speaker = Speaker(build_lexicon(seed, nouns, verbs), Random(f"sentences {seed}"))
    earlier: set[str] = set()
    while True:
        sentence = speaker.sentence()
        source = qaa.say(sentence)
        target = qab.say(sentence)
        if source not in earlier and target not in earlier:
            earlier |= {source, target}
            yield source, target


def make_corpus(sizes: dict[str, int], seed: int = 1, nouns: int = 120, verbs: int = 60) -> dict[str, Pairs]:
    """Return "train", "valid" and "test" -> sentence pairs; equal arguments give the same corpus.

    The test and validation sets are drawn before the training text. So they do not depend on its size, and a larger
    training text begins with the pairs of a smaller one.

    sizes: "train", "valid" and "test" -> number of pairs
    seed: decides the lexicon and the sentences
    nouns, verbs: how many of them the lexicon has

    Raises a UserError for fewer than 1 pair, 1 noun or 10 verbs, and for more than MOST nouns or verbs.
    """
    # 10 verbs: of very few, all might take two objects, and a relative clause needs a verb with fewer
    if min(sizes.values()) < 1 or not 1 <= nouns <= MOST or not 10 <= verbs <= MOST:
        raise UserError(
            "the generated corpus", f"needs at least 1 sentence a split, 1 to {MOST:,} nouns and 10 to {MOST:,} verbs"
        )
    pairs = sentence_pairs(seed, nouns, verbs)
    held_out = {split: list(islice(pairs, sizes[split])) for split in ("test", "valid")}
    return {"train": list(islice(pairs, sizes["train"]))} | held_out


def write_corpus(corpus: dict[str, Pairs], dest: Path) -> None:
    """Write SPLIT.qaa and SPLIT.qab into a folder; if it is new, it appears whole or not at all.

    corpus: "train", "valid" and "test" -> sentence pairs
    dest: the folder
    """
    folder = nullcontext(dest) if dest.exists() else whole(dest)  # gives the folder to write to
    with folder as part:
        for split, pairs in corpus.items():
            write_columns([part / f"{split}.{lang}" for lang in LANGS], pairs)
