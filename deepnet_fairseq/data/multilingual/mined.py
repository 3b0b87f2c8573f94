"""Pairs mined from the web, cleaned as they stream by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Set
from hashlib import blake2b

from .pair_text import Sentences

LONGEST = 1000  # characters a side; sentences beyond are menus and lists


def clean(pairs: Iterable[tuple[str, str]], held_out: tuple[Set[str], Set[str]], name: str) -> Sentences:
    """The pairs that are fit for training; says at the end how many were left out for which reason.

    Left out are pairs with an empty side, equal sides, a side over 1,000 characters, one of the sentences `held_out`
    for evaluation on its side, and pairs that came before. Of each that is kept a hash of 8 bytes is remembered, which
    takes about 80 bytes of memory; that any of 400 million is taken for another has a chance below 1%.

    Of what M2M-100 did (Fan et al., 2020, examples/m2m_100 of fairseq) three filters are not here: too much
    punctuation, characters foreign to the language (needs its histograms), lengths of pieces above 3 to 1.
    """
    counts, seen = Counter(), set()
    for source, target in pairs:
        if not source or not target:
            counts["empty"] += 1
        elif source == target:
            counts["equal sides"] += 1
        elif len(source) > LONGEST or len(target) > LONGEST:
            counts["too long"] += 1
        elif source in held_out[0] or target in held_out[1]:
            counts["evaluation"] += 1
        elif (known := blake2b(f"{source}\t{target}".encode(), digest_size=8).digest()) in seen:
            counts["twice"] += 1
        else:
            seen.add(known)
            counts["kept"] += 1
            yield source, target
    print(f"| {name}: " + ", ".join(f"{reason} {count:,}" for reason, count in counts.most_common()), flush=True)
