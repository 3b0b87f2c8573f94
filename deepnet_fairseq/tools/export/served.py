"""A folded model with its text: all that a folder needs to translate without fairseq."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from fairseq.data import Dictionary
from fairseq.data.data_utils import load_indexed_dataset

from ...core.models import SPECIALS
from ...data import lm_text
from ...errors import UserError
from ..translation.text import Text, check_own, open_task, read_text
from .transformer import Folded


@dataclass(frozen=True)
class Served:
    """A model to export.

    text: of a translation model, None for a language model; dictionaries: fairseq's, of source and target; data: the
    folder of the binarised data.
    """

    folded: Folded
    text: Text | None
    dictionaries: tuple[Dictionary, Dictionary]
    data: str

    @property
    def direction(self) -> tuple[str, str]:
        """Source and target, of a multilingual model the first direction that it was trained on."""
        assert self.text is not None
        described = self.text.described
        source, target = described.pairs[0] if described.pairs else described.languages
        return source, target

    def write_text(self, folder: Path) -> None:
        """Write what cuts text into an exported folder, as far as a language model's data hold it."""
        if self.text is not None:
            self.text.write(folder)
        elif (Path(self.data) / lm_text.NAME).is_file():
            lm_text.read(Path(self.data)).write(folder)

    def lines(self, count: int) -> list[str]:
        """Return up to `count` lines of the source language, of the data's validation, else test or training text."""
        assert self.text is not None
        source, cutter = self.direction[0], self.text.cutter(*self.direction)
        paths = (
            path
            for split in ("valid", "test", "train")
            for path in sorted(Path(self.data).glob(f"{split}*.{source}.idx"))
        )
        path = next(paths, None)
        rows = load_indexed_dataset(str(path).removesuffix(".idx"), self.dictionaries[0]) if path else []
        numbers = (rows[place].tolist() for place in range(len(rows)))
        return [cutter.join([self.dictionaries[0][i] for i in row if i >= SPECIALS]) for row in islice(numbers, count)]


def serve(folded: Folded, data: str | None, subwords: str | None) -> Served:
    """Return a folded model with its text; arguments as for read_text. UserError for data that are not the model's."""
    section, method = folded.sections["task"], folded.method
    data = data or section["data"]
    if folded.stock.name == "transformer":
        positions = (folded.model["max_source_positions"], folded.model["max_target_positions"])
        text = read_text(section, data, folded.rows, subwords, method, positions)
        check_own(folded.origin, text.dictionaries, data, text.file, subwords)
        return Served(folded, text, text.dictionaries, data)
    if subwords is not None and not Path(subwords).is_file():
        raise UserError(f"--subwords {subwords}: no such file")
    task = open_task(section, data, folded.rows)
    dictionaries = task.source_dictionary, task.target_dictionary
    check_own(folded.origin, dictionaries, data, Path(subwords) if subwords is not None else None, subwords)
    return Served(folded, None, dictionaries, data)
