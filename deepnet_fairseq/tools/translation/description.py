"""The file translation.json of an exported folder: what text its model reads and writes, and in which pieces.

A checkpoint's text is described in the same way, without the file (text.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ...data.steps import write_json
from ...data.text_form import Form, text_pieces
from ...errors import UserError
from ...files import WRONG_VALUES, read_object
from .pieces import KINDS

NAME = "translation.json"
MEND = "export the checkpoint again with `deepnet export`"


@dataclass(frozen=True)
class Description:
    """Description of a translation model's text. The names of the fields are keys of the file.

    method: that it was trained with; languages: source and target, or all of a multilingual model; pieces: a key of
    pieces.KINDS; positions: how many tokens the encoder and the decoder have positions for, the end of sentence among
    them; chain: fields of data.moses.Chain for Moses' tokens, None for other pieces; form: of the training text in the
    source language, None in a folder that does not say it.

    The others are of a multilingual model. symbols: language -> its tag, a symbol of the dictionaries; None for a model
    of two languages, whose remaining fields are the defaults; pairs: (source, target) of each direction that it was
    trained on; source_tag: whose language's tag begins the source, "src" or "tgt", "" for none; target_tag: whether
    decoding starts with the target language's tag.
    """

    method: str
    languages: tuple[str, ...]
    pieces: str
    positions: tuple[int, int]
    chain: dict[str, bool] | None = None
    form: Form | None = None
    symbols: dict[str, str] | None = None
    pairs: tuple[tuple[str, str], ...] = ()
    source_tag: str = ""
    target_tag: bool = False

    def direction(self, source: str | None, target: str | None) -> tuple[str, str]:
        """Return source and target language to translate between; None may stand for those of a model of two.

        UserError, naming the flag, for a language that is not the model's, or that a multilingual one needs.
        """
        if not self.symbols:
            for flag, given, own in zip(("source", "target"), (source, target), self.languages, strict=True):
                if given not in (None, own):
                    raise UserError(f"--{flag}-lang {given}", f"this model's is {own}; leave the flag out")
            return self.languages[0], self.languages[1]

        for flag, given in (("source", source), ("target", target)):
            if given not in self.symbols:
                shown = f"--{flag}-lang {given}" if given else f"--{flag}-lang"
                problem = "give it" if given is None else "is none of them"
                known = ", ".join(self.symbols)
                raise UserError(shown, f"{problem}; the languages are {known}")
        return str(source), str(target)

    def tags(self, source: str, target: str) -> tuple[list[str], list[str]]:
        """Return the tags in front of a source sentence, and those in front of its translation: none or one each."""
        symbols = self.symbols or {}
        source_tags = []
        if self.source_tag == "src":
            source_tags = [symbols.get(source, "")]
        elif self.source_tag == "tgt":
            source_tags = [symbols.get(target, "")]
        target_tags = [symbols[target]] if self.target_tag else []
        return source_tags, target_tags

    def cutter(self, file: Path | None, source: str, target: str):
        """Return an object of pieces.py that segments the source language and joins pieces of the target language.

        file: that it segments by, None if it needs none.
        """
        return KINDS[self.pieces](file, source, target, self.chain)

    def write(self, folder: Path) -> None:
        """Write the file into an exported folder."""
        write_json(folder / NAME, asdict(self))


def derive_form(described: Description, symbols: Iterable[str]) -> Form:
    """Return the form of the training text in the source language, as the symbols of its dictionary show it.

    It is for data and folders that do not record the form.
    """
    chain = described.chain or {}
    pieces = text_pieces(symbols, other_than=(described.symbols or {}).values())
    form = Form.of_pieces(pieces, escaped=described.pieces == "subword_nmt")
    if chain.get("normalise"):  # Moses replaces quotes and the like itself, so that the dictionary does not tell
        return replace(form, replace={})
    return form


def read_description(folder: Path) -> Description:
    """Read translation.json of an exported folder; UserError if it is missing, or not as `deepnet export` writes it."""
    if not (folder / NAME).exists():
        raise UserError(folder, f"is no exported model, it lacks {NAME}; {MEND}")

    content = read_object(folder / NAME, MEND)
    try:
        described = Description(**content)
        source_positions, target_positions = map(int, described.positions)
        languages = tuple(map(str, described.languages))
        form = Form(**content["form"]) if content.get("form") is not None else None
        if described.pieces not in KINDS or len(languages) < 2 or not isinstance(described.symbols or {}, dict):
            raise ValueError("pieces, languages or symbols")
    except WRONG_VALUES as error:
        raise UserError(folder / NAME, f"is not as `deepnet export` writes it ({error}); {MEND}") from error
    return replace(described, positions=(source_positions, target_positions), languages=languages, form=form)
