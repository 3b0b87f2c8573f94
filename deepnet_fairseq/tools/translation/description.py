"""The file translation.json of an exported folder: what text its model reads and writes, and in which pieces.

A checkpoint's text is described in the same way, without the file (text.py). A multilingual model is one of fairseq's
task translation_multi_simple_epoch; the tag of a language is a symbol that tells such a model which language a sentence
is in, or is to be translated to. Any other model has one source and one target language.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ...data.steps import write_json
from ...data.text_form import Form, text_pieces
from ...errors import UserError
from ...files import WRONG_VALUES, read_json_object
from .pieces import KINDS

NAME = "translation.json"
MEND = "export the checkpoint again with `deepnet export`"


@dataclass(frozen=True)
class Description:
    """Description of a translation model's text. The names of the fields are keys of the file.

    method: that it was trained with, as "deepnorm"; languages: source and target, or all of a multilingual model;
    pieces: how text is segmented, a key of pieces.KINDS; positions: how many tokens the encoder and the decoder have
    positions for, the end of sentence among them; chain: fields of data.moses.Chain, the scripts that made Moses'
    tokens, None for other pieces; form: in which of several ways that read alike the training text of the source
    language is written (data/text_form.py), None in a folder that does not say it.

    The others are of a multilingual model, and have their defaults for any other. symbols: language -> its tag; pairs:
    (source, target) of each direction that it was trained on; source_tag: which language's tag begins a source
    sentence: "src" for that of the source, "tgt" for that of the target, "" for none; target_tag: whether a translation
    begins with the tag of the target language.
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
        """Return source and target language to translate between, after a check of those that a user has given.

        source, target: the values of --source-lang and --target-lang, None without the flag. A multilingual model needs
        both; for any other they can be left out. UserError, naming the flag, for a language that is missing or that the
        model does not have.
        """
        if not self.symbols:  # a model of two languages
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
        """Return (source tags, target tags) of a direction, each a list of one tag or none.

        The first begin the source sentence, the second the translation. source, target: languages.
        """
        symbols = self.symbols or {}
        source_tags = []
        if self.source_tag == "src":
            source_tags = [symbols.get(source, "")]
        elif self.source_tag == "tgt":
            source_tags = [symbols.get(target, "")]
        target_tags = [symbols[target]] if self.target_tag else []
        return source_tags, target_tags

    def cutter(self, file: Path | None, source: str, target: str) -> Any:
        """Return an object of pieces.py that segments the source language and joins pieces of the target language.

        file: by which it segments, as a SentencePiece model; None if it needs none. source, target: languages.
        """
        return KINDS[self.pieces](file, source, target, self.chain)

    def write(self, folder: Path) -> None:
        """Write the file into an exported folder."""
        write_json(folder / NAME, asdict(self))


def derive_form(described: Description, symbols: Iterable[str]) -> Form:
    """Return the form of the training text in the source language, as the symbols of its dictionary show it.

    It is for data and folders that do not record the form. symbols: of the dictionary, with those of languages.
    """
    language_tags = (described.symbols or {}).values()
    pieces = text_pieces(symbols, other_than=language_tags)
    moses = described.pieces == "subword_nmt"  # whose tokeniser writes some characters as entities, &quot;
    form = Form.of_pieces(pieces, escaped=moses)

    # Where Moses' normalize-punctuation.perl comes first, it replaces quotes and the like itself, and the dictionary
    # does not tell which of them the text had: the form then replaces no characters.
    chain = described.chain or {}
    if chain.get("normalise"):
        return Form(unicode=form.unicode, replace={}, join=form.join)
    return form


def read_description(folder: Path) -> Description:
    """Read translation.json of an exported folder; UserError if it is missing, or not as `deepnet export` writes it."""
    if not (folder / NAME).exists():
        raise UserError(folder, f"is no exported model, it lacks {NAME}; {MEND}")

    content = read_json_object(folder / NAME, MEND)
    try:
        described = Description(**content)
        # JSON has lists for tuples, and an object for the form
        source_positions, target_positions = map(int, described.positions)
        languages = tuple(map(str, described.languages))
        form = Form(**content["form"]) if content.get("form") is not None else None
        if described.pieces not in KINDS or len(languages) < 2 or not isinstance(described.symbols or {}, dict):
            raise ValueError("pieces, languages or symbols")
    except WRONG_VALUES as error:  # keys that are missing or unknown, values of another type
        raise UserError(folder / NAME, f"is not as `deepnet export` writes it ({error}); {MEND}") from error
    return replace(described, positions=(source_positions, target_positions), languages=languages, form=form)
