"""Compare the translations by an exported folder with those by fairseq's plain Transformer, from text to text.

Both models get untokenised lines and segment them with their own tokenizers, so that a difference of tokenizers shows.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...errors import UserError
from ..translation import Fairseq, Settings, Translator
from .served import Served
from .transformer import stock_model

DATA_LINES = 16  # lines of the data that are translated: enough to see whether text is segmented alike
LONGEST = 40  # pieces that a translation may have, to save time
ODD_LINES = (  # tokenizers treat them in different ways: special tokens and tags, accents and widths, blanks, emoji
    ">>de<< quoted", "a </s> b <unk> <s> <pad> c", "10² ½ ﬁ Å é e\u0301", "می\u200cخواهم", "  two   blanks\t ",
    "👍🏽 ☃ ▁ @@",
)  # fmt: skip


def check_text(served: Served, folder: Path, engine_class: Any) -> None:
    """Translate lines by fairseq and by an exported folder, and print to stderr which translations differ.

    The lines are some of the data's and ODD_LINES; the search is greedy.

    served: the folded translation model with its text; folder: what was exported of it; engine_class: class of
    translation/engines.py that loads such a folder. Raises a UserError if more than half of the lines differ: then the
    exported tokenizer segments text differently. Fewer differences are only printed.
    """
    assert served.text is not None
    settings = Settings(beam=1, threads=served.choose_threads())
    direction = served.direction  # (source language, target language)

    # both engines read the limit of a translation's length from the description; the end of sentence takes a position
    source_positions, target_positions = served.text.described.positions
    shorter = (source_positions, min(target_positions, LONGEST + 1))
    described = replace(served.text.described, positions=shorter)

    tags = described.tags(*direction)  # of languages, in front of source and translation of a multilingual model
    cutter = served.text.cutter(*direction)  # segments source lines and joins the pieces of translations
    model = stock_model(served.folded.config, served.folded.state)
    fairseq_engine = Fairseq(
        model=model,
        dictionaries=served.dictionaries,
        described=described,
        cutter=cutter,
        tags=tags,
        settings=settings,
    )
    exported_engine = engine_class.of_folder(folder, described, direction, settings)

    by_fairseq = Translator(fairseq_engine, described)
    by_export = Translator(exported_engine, described)
    lines = []
    for line in (*served.lines(DATA_LINES), *ODD_LINES):
        with suppress(UserError):  # longer than the model, or its export, has positions for
            by_fairseq.cut(line, number=1)  # any number: it is only for the message
            by_export.cut(line, number=1)
            lines.append(line)
    expected = list(by_fairseq.translate(lines))
    exported = list(by_export.translate(lines))
    different = [line for line, ours, theirs in zip(lines, expected, exported, strict=True) if ours != theirs]

    alike = len(lines) - len(different)
    print(f"| {alike} of {len(lines)} lines translate as in fairseq, from text to text", file=sys.stderr)
    for line in different:
        print(f"| WARNING: the export translates this line otherwise than fairseq: {line!r}", file=sys.stderr)
    if 2 * len(different) > len(lines):
        name = exported_engine.name
        raise UserError("--to", f"{name} translates {different[0]!r} otherwise than fairseq; nothing was written")
