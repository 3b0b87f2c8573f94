"""A choice behind its context, in the pieces of the model."""

from __future__ import annotations

from dataclasses import dataclass

from fairseq.data import Dictionary

from ..data.monolingual.segmenter import Segmenter


@dataclass(frozen=True)
class Continuation:
    """A choice behind its context, as numbers of the dictionary's symbols: log p(choice | context) is asked for."""

    context: tuple[int, ...]
    choice: tuple[int, ...]


class Reader:
    """Text -> numbers, as `deepnet prepare-lm` and fairseq-preprocess make them: </s> stands at the end of a line.

    delimiter: goes between context and choice where neither has white space there and the context is not empty.
    """

    def __init__(self, segmenter: Segmenter, dictionary: Dictionary, delimiter: str = " "):
        self.segmenter, self.dictionary, self.delimiter = segmenter, dictionary, delimiter

    def read(self, context: str, choice: str) -> tuple[Continuation, bool]:
        """The pieces of the choice are those of the whole text behind the context's (Brown et al. 2020).

        White space between them belongs to the choice, for pieces begin with it. Where the whole is not cut at the
        boundary ("un" + "do" -> "undo") both are cut apart; that is the second value. The choice is empty if the
        segmenter drops all of it.
        """
        if context and not context[-1].isspace() and not choice[0].isspace():
            choice = self.delimiter + choice
        kept = context.rstrip(" \t")
        choice = context[len(kept) :] + choice
        head, both = self._numbers(kept), self._numbers(kept + choice)
        if both[: len(head)] == head:
            return Continuation(head, both[len(head) :]), False
        return Continuation(head, self._numbers(choice, exactly=True)), True

    def _numbers(self, text: str, exactly: bool = False) -> tuple[int, ...]:
        """exactly: white space at the start of the text counts."""
        first, *rest = text.split("\n")
        lines = [self.segmenter.encode_exactly(first.rstrip()) if exactly else self.segmenter.encode(first)]
        lines += map(self.segmenter.encode, rest)
        symbols = f" {self.dictionary.eos_word} ".join(lines).split()
        return tuple(map(self.dictionary.index, symbols))
