"""Byte-pair encoding by subword-nmt, learnt on both languages together."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import chain
from pathlib import Path

from tqdm import tqdm

from ..atomic_output import whole
from ..errors import UserError
from .lines import read_lines, write_lines
from .processes import map_lines

MARK = "@@"  # at the end of a piece that its word goes on after


def learn(texts: list[Path], merges: int, dest: Path) -> None:
    """`merges` merge operations, fewer if no pair of symbols occurs twice any more, from the words of all texts.

    dest: subword-nmt's codes, a merge a line; Sennrich et al. 2016 (arXiv 1508.07909).
    """
    from subword_nmt import learn_bpe

    learn_bpe.tqdm = partial(tqdm, desc="merges", disable=None)  # its bar on a terminal only
    lines = chain.from_iterable(read_lines(text) for text in texts)
    dest.parent.mkdir(parents=True, exist_ok=True)
    with whole(dest) as part, open(part, "w", encoding="utf-8", newline="\n") as file:
        learn_bpe.learn_bpe(lines, file, merges)


def apply(codes: Path, text: Path, dest: Path, workers: int) -> dict[str, int]:
    """Writes `text` in pieces; their numbers: "sentences", "pieces", "types"."""
    pieces, types = 0, set()

    def counted(lines):
        nonlocal pieces
        for line in lines:
            words = line.split()
            pieces += len(words)
            types.update(words)
            yield line

    lines = map_lines(partial(line_function, codes), read_lines(text), workers, text.name)
    return {"sentences": write_lines(dest, counted(lines)), "pieces": pieces, "types": len(types)}


def line_function(codes: Path) -> Callable[[str], str]:
    """line of words -> line of pieces, by the codes in a file."""
    from subword_nmt.apply_bpe import BPE

    with open(codes, encoding="utf-8", newline="\n") as file:
        return BPE(file, separator=MARK).process_line


def check_codes(path: Path) -> None:
    """UserError if these are no codes of subword-nmt."""
    for number, line in enumerate(read_lines(path), 1):
        if len(line.strip("\r ").split(" ")) != 2:
            raise UserError(f"{path}, line {number}: is no merge operation; give the codes that subword-nmt learnt")
