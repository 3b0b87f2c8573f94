"""Compare translations of text by an exported folder and by fairseq's plain model; both begin with the text itself."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...errors import UserError
from ..translation import Fairseq, Settings, Translator
from .served import Served
from .transformer import stock_model

LINES, LONGEST = 16, 40  # of the data, and pieces of a translation: enough to see that text is cut alike
ODD = (  # what tokenizers treat in ways of their own
    ">>de<< quoted", "a </s> b <unk> <s> <pad> c", "10² ½ ﬁ Å é e\u0301", "می\u200cخواهم", "  two   blanks\t ",
    "👍🏽 ☃ ▁ @@",
)  # fmt: skip


def check_text(served: Served, folder: Path, kind: Any) -> None:
    """Translate lines of the data and odd ones, greedily, by fairseq and by an engine; say which differ on stderr.

    kind: class of the engine. UserError if less than half are alike: then the folder does not cut as the run did.
    """
    assert served.text is not None
    settings, direction = Settings(beam=1), served.direction
    described = replace(served.text.described, positions=(served.text.described.positions[0], LONGEST + 1))
    tags, pieces = described.tags(*direction), served.text.cutter(*direction)
    model = stock_model(served.folded.model, served.folded.state)
    ours = Fairseq(model, served.dictionaries, described, pieces, tags, settings)
    theirs = kind.of_folder(folder, described, direction, settings)
    lines = [*served.lines(LINES), *ODD]
    translations = [list(Translator(engine, described).translate(lines)) for engine in (ours, theirs)]
    different = [line for line, one, other in zip(lines, *translations, strict=True) if one != other]
    print(f"| {len(lines) - len(different)} of {len(lines)} lines translate alike, from text to text", file=sys.stderr)
    for line in different:
        print(f"| WARNING: otherwise: {line!r}", file=sys.stderr)
    if 2 * len(different) > len(lines):
        raise UserError(f"--to: {theirs.name} translates {different[0]!r} otherwise than fairseq; nothing was written")
