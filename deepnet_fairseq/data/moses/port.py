"""Moses' tools in Python: sacremoses, and what it lacks.

Where it differs from the Perl originals: docs/corpora.md, "sacremoses and the Perl originals".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path

from ..cleaning import Limits, clean
from ..lines import read_pairs, write_columns
from ..processes import map_lines
from .base import Chain, Moses


class Port(Moses):
    """sacremoses, with the switch `perl_parity` of its punctuation normaliser."""

    def versions(self) -> dict[str, str]:
        return {"sacremoses": version("sacremoses")}

    def process(self, lines: Iterable[str], lang: str, chain: Chain, workers: int, label: str) -> Iterator[str]:
        return map_lines(partial(line_function, lang, chain), lines, workers, label)

    def clean(self, langs: tuple[str, str], source: Path, dest: Path, limits: Limits) -> None:
        sources, targets = ([prefix.with_name(f"{prefix.name}.{lang}") for lang in langs] for prefix in (source, dest))
        write_columns(targets, clean(read_pairs(*sources), limits))


def line_function(lang: str, chain: Chain) -> Callable[[str], str]:
    """line -> line, for one process: its objects are slow to make."""
    import regex
    from sacremoses import MosesPunctNormalizer, MosesTokenizer

    functions = []
    if chain.normalise:
        functions.append(MosesPunctNormalizer(lang, perl_parity=True).normalize)
        functions.append(partial(regex.compile(r"\p{C}").sub, " "))
    functions.append(
        partial(MosesTokenizer(lang).tokenize, aggressive_dash_splits=chain.aggressive, return_str=True, escape=True)
    )
    if chain.lowercase:
        functions.append(lowercase)

    def function(line: str) -> str:
        for each in functions:
            line = each(line)
        return line

    return function


def lowercase(line: str) -> str:
    """Perl's lc, which knows no final sigma."""
    return "".join(map(str.lower, line)) if "Σ" in line else line.lower()
