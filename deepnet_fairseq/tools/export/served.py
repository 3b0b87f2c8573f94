"""A folded model (see __init__.py) with its text: all that an exported folder needs to translate without fairseq.

The text of a model is what turns text into its numbers and back: fairseq's dictionaries, what segments lines into
pieces, and tags, the symbols of languages with which a multilingual model's source or translation begins.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

from fairseq.data import Dictionary
from fairseq.data.data_utils import load_indexed_dataset

from ...core.models import SPECIALS
from ...data import lm_text
from ...data.digests import folders_of
from ...errors import UserError
from ...threads import torch_threads, width_of
from ..translation.text import Text, check_own, open_task, read_text
from .transformer import Folded


@dataclass(frozen=True)
class Served:
    """A model to export with its text.

    folded: the model as one of fairseq's; text: of a translation model, None for a language model, of which the
    dictionaries say enough; dictionaries: fairseq's, of source and target, equal for a language model; data: the folder
    of the binarised data, or fairseq's list of folders with os.pathsep between them.
    """

    folded: Folded
    text: Text | None
    dictionaries: tuple[Dictionary, Dictionary]
    data: str

    @property
    def direction(self) -> tuple[str, str]:
        """Source and target language of a translation model; of a multilingual one its first direction."""
        assert self.text is not None
        described = self.text.described
        source, target = described.pairs[0] if described.pairs else described.languages
        return source, target

    def choose_threads(self) -> int:
        """Return the number of threads to compare the model and its export with, and set torch's to it.

        It follows from the model's width, unless the environment or the program has set it (TorchThreads.use).
        """
        return torch_threads.use(width_of(SimpleNamespace(**self.folded.config)))

    def write_text(self, folder: Path) -> None:
        """Write what segments text into an exported folder.

        For a translation model that is translation.json with the file of its pieces; for a language model text.json
        with its files, if `deepnet prepare lm` has left them with the data, else nothing.
        """
        if self.text is not None:
            self.text.write(folder)
        elif (Path(self.data) / lm_text.NAME).is_file():
            lm_text.read_segmenter(Path(self.data)).write(folder)

    def lines(self, count: int) -> list[str]:
        """Return up to `count` lines of source text: of the data's validation set, else of the test or training set.

        The lines are joined from the pieces of binarised sentences, which hold no tags of languages; <unk> is left out.
        The list is empty if the data have none of these sets. Call it for translation models only.
        """
        assert self.text is not None
        source, target = self.direction
        # a cutter segments its first language and joins pieces of its second, which is to be the source here
        cutter = self.text.cutter(target, source)
        index = self._first_index(source)
        if index is None:
            return []

        dictionary = self.dictionaries[0]
        sentences = load_indexed_dataset(str(index).removesuffix(".idx"), dictionary)
        lines = []
        for place in range(min(count, len(sentences))):
            numbers = sentences[place].tolist()
            pieces = [dictionary[number] for number in numbers if number >= SPECIALS]  # without eos and unk
            lines.append(cutter.join(pieces))
        return lines

    def _first_index(self, language: str) -> Path | None:
        """Return fairseq's .idx file of the data's validation set in a language, else of the test or training set.

        Return None if the data have none of them.
        """
        own_folder = folders_of(self.data)[-1]  # the first folder of the data; the others are those above it
        for split in ("valid", "test", "train"):
            paths = sorted(own_folder.glob(f"{split}*.{language}.idx"))  # as valid.de-en.de.idx, of each language pair
            if paths:
                return paths[0]
        return None


def serve(folded: Folded, data: str | None, subwords: str | None) -> Served:
    """Return a folded model with its text.

    data: folder of the binarised data, None for the one that it was trained on; subwords: the user's --subwords, a file
    that segments text, "none" for text of a translation model that comes segmented, None for the file beside the data.
    Raises a UserError for data or a file that are not the model's.
    """
    section = folded.sections["task"]  # fairseq's settings of the training's task
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

    # a language model; its file only has to be the one of the training, and is read where the tokenizer is written
    file = None
    if subwords is not None:
        file = Path(subwords)
        if not file.is_file():
            raise UserError(f"--subwords {subwords}", "no such file")
    task = open_task(section, data, folded.vocabulary_sizes)
    dictionaries = (task.source_dictionary, task.target_dictionary)
    check_own(folded.origin, dictionaries, data, file=file, subwords=subwords)
    return Served(folded, None, dictionaries, data)
