"""Compare an exported folder's translations with those of fairseq's plain model, from text to text.

Both segment the text themselves, so that a difference of tokenizers shows.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...errors import UserError
from ..translation import Fairseq, Settings, Translator
from .served import Served
from .transformer import stock_model

LINES = 16  # of the data that are translated: enough to see whether text is segmented alike
LONGEST = 40  # pieces that a translation may have, to save time
ODD = (  # lines that tokenizers treat in ways of their own: marks and tags, accents and widths, blanks, emoji
    ">>de<< quoted", "a </s> b <unk> <s> <pad> c", "10² ½ ﬁ Å é e\u0301", "می\u200cخواهم", "  two   blanks\t ",
    "👍🏽 ☃ ▁ @@",
)  # fmt: skip


def check_text(served: Served, folder: Path, kind: Any) -> None:
    """Translate lines of the data and ODD ones, greedily, by fairseq and by an exported folder.

    The lines whose translations differ are named on stderr. kind: class of engines.py that loads `folder`. UserError if
    more than half of the lines differ: then the exported tokenizer segments text differently.
    """
    assert served.text is not None
    settings = Settings(beam=1)
    direction = served.direction
    source_positions, _ = served.text.described.positions
    described = replace(served.text.described, positions=(source_positions, LONGEST + 1))
    tags = described.tags(*direction)
    cutter = served.text.cutter(*direction)
    model = stock_model(served.folded.config, served.folded.state)
    fairseq_engine = Fairseq(
        model=model,
        dictionaries=served.dictionaries,
        described=described,
        cutter=cutter,
        tags=tags,
        settings=settings,
    )
    exported_engine = kind.of_folder(folder, described, direction, settings)

    lines = [*served.lines(LINES), *ODD]
    expected = list(Translator(fairseq_engine, described).translate(lines))
    exported = list(Translator(exported_engine, described).translate(lines))
    different = [line for line, ours, theirs in zip(lines, expected, exported, strict=True) if ours != theirs]

    print(f"| {len(lines) - len(different)} of {len(lines)} lines translate alike, from text to text", file=sys.stderr)
    for line in different:
        print(f"| WARNING: otherwise: {line!r}", file=sys.stderr)
    if 2 * len(different) > len(lines):
        name = exported_engine.name
        raise UserError("--to", f"{name} translates {different[0]!r} otherwise than fairseq; nothing was written")
