"""A folded model (see __init__.py) with its text: all that an exported folder needs to translate without fairseq."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fairseq.data import Dictionary
from fairseq.data.data_utils import load_indexed_dataset

from ...core.models import SPECIALS
from ...data import lm_text
from ...data.digests import folders_of
from ...errors import UserError
from ..translation.text import Text, check_own, open_task, read_text
from .transformer import Folded


@dataclass(frozen=True)
class Served:
    """A model to export with its text.

    text: of a translation model, None for a language model; dictionaries: fairseq's, of source and target, equal for a
    language model; data: the folder of the binarised data.
    """

    folded: Folded
    text: Text | None
    dictionaries: tuple[Dictionary, Dictionary]
    data: str

    @property
    def direction(self) -> tuple[str, str]:
        """Return source and target language; of a multilingual model the first direction that it was trained on."""
        assert self.text is not None
        described = self.text.described
        source, target = described.pairs[0] if described.pairs else described.languages
        return source, target

    def write_text(self, folder: Path) -> None:
        """Write what segments text into an exported folder; for a language model only if it lies with the data."""
        if self.text is not None:
            self.text.write(folder)
        elif (Path(self.data) / lm_text.NAME).is_file():
            lm_text.read_segmenter(Path(self.data)).write(folder)

    def lines(self, count: int) -> list[str]:
        """Return up to `count` lines of source text: of the data's validation set, else of the test or training set.

        They are joined from the pieces of binarised sentences, which hold no tags of languages; <unk> is left out.
        """
        assert self.text is not None
        source, target = self.direction
        cutter = self.text.cutter(target, source)  # which joins pieces of the source language
        index = self._first_index(source)
        if index is None:
            return []

        dictionary = self.dictionaries[0]
        sentences = load_indexed_dataset(str(index).removesuffix(".idx"), dictionary)
        lines = []
        for place in range(min(count, len(sentences))):
            pieces = [dictionary[number] for number in sentences[place].tolist() if number >= SPECIALS]
            lines.append(cutter.join(pieces))
        return lines

    def _first_index(self, language: str) -> Path | None:
        """Return the .idx file of the data's validation set in a language, else of the test or training set.

        None if there is none.
        """
        own_folder = folders_of(self.data)[-1]  # the data may be a list of folders, and lie within a recipe's
        for split in ("valid", "test", "train"):
            paths = sorted(own_folder.glob(f"{split}*.{language}.idx"))
            if paths:
                return paths[0]
        return None


def serve(folded: Folded, data: str | None, subwords: str | None) -> Served:
    """Return a folded model with its text.

    data: folder of the binarised data, None for the one that it was trained on; subwords: as for read_text. UserError
    for data that are not the model's.
    """
    section = folded.sections["task"]
    data = data or section["data"]
    if folded.stock.name == "transformer":
        text = read_text(
            section,
            data,
            vocabulary_sizes=folded.vocabulary_sizes,
            subwords=subwords,
            method=folded.method,
            positions=(folded.config["max_source_positions"], folded.config["max_target_positions"]),
        )
        check_own(folded.origin, text.dictionaries, data, file=text.file, subwords=subwords)
        return Served(folded, text, text.dictionaries, data)

    # a language model
    file = None
    if subwords is not None:
        file = Path(subwords)
        if not file.is_file():
            raise UserError(f"--subwords {subwords}", "no such file")
    task = open_task(section, data, folded.vocabulary_sizes)
    dictionaries = (task.source_dictionary, task.target_dictionary)
    check_own(folded.origin, dictionaries, data, file=file, subwords=subwords)
    return Served(folded, None, dictionaries, data)
