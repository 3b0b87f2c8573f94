"""Base class of the bilingual recipes: Moses tokens, joint BPE, a joined dictionary."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

from ...errors import UserError
from ..bilingual import Bilingual, Texts, Tokenised
from ..download import RemoteFile
from ..moses import Chain, Limits
from ..steps import Steps, remove
from .base import Options, Recipe, versions

HEADERS = ("<url>", "<talkid>", "<keywords>")
TITLES = re.compile("</?(?:title|description)>")
SEGMENT = "<seg id"
OPENING, CLOSING = re.compile(r'<seg id="[0-9]*">\s*'), re.compile(r"\s*</seg>\s*")


class BilingualRecipe(Recipe):
    """Recipe of one language pair; a subclass gives its lines, their tokenisation and the limits of cleaning.

    Cleaning is done on words, before BPE, or on pieces, after it; vocab: merges of a BPE on both languages together.
    """

    takes = frozenset({"text", "vocab"})
    langs: tuple[str, str]  # source and target
    archives: tuple[RemoteFile, ...]
    miniature_vocab = 500
    chain: Chain  # for training text, and for a separate validation set
    test_chain: Chain
    word_limits: Limits | None = None  # of training pairs, before BPE
    subword_limits: Limits | None = None  # of training pairs, and validation pairs held out of them, after BPE
    every: int | None = None  # of how many training pairs the last is held out for validation

    @abstractmethod
    def raw(self, subset: str, lang: str, files: dict[str, Path]) -> Iterator[str]:
        """Yield the lines to tokenise: of "train", and of "valid" where nothing is held out.

        files: name -> downloaded file.
        """

    @abstractmethod
    def published(self, lang: str, files: dict[str, Path]) -> Iterator[str]:
        """Yield the lines of the test set's XML or SGML, as published."""

    def files(self, options: Options) -> tuple[RemoteFile, ...]:
        return () if options.text else self.archives

    def tokenised(self, options: Options) -> Tokenised | None:
        """Return the text of --from, if given."""
        return Tokenised(options.text, self.langs) if options.text else None

    def needs(self, options: Options) -> int:
        tokenised = self.tokenised(options)
        return 5 * sum(path.stat().st_size for path in tokenised.files()) if tokenised else self.space

    def tools(self, options: Options) -> dict[str, str]:
        return versions(*(() if options.text else ("sacremoses",)), "subword-nmt", "fairseq-fixed")

    def check(self, options: Options) -> None:
        super().check(options)
        tokenised = self.tokenised(options)
        if tokenised and tokenised.codes and options.vocab is not None:
            raise UserError(f"--vocab {options.vocab}: {tokenised.codes} holds the merges; leave one of them out")

    def settings(self, options: Options) -> dict:
        tokenised = self.tokenised(options)
        return super().settings(options) | {"given": tokenised.state() if tokenised else None}

    def outline(self, options: Options) -> str:
        held_out = f"one training pair in {self.every} for validation; " if self.every else ""
        text = f"{self.chain}; {held_out}{self.vocabulary_size(options):,} BPE merges on both languages together"
        return f"{text}; pairs of {self.word_limits or self.subword_limits}"

    def make(self, options: Options, steps: Steps, files: dict[str, Path]) -> dict:
        work = Bilingual(steps, options.dest, self.langs, options.workers)
        tokenised = self.tokenised(options)
        texts = self._take_tokenised(options, steps, tokenised) if tokenised else self._tokenise(options, work, files)
        texts = self._cleaned(options, work, texts)
        return {
            "pieces": "subword_nmt", "detokenise": True, "lowercase": self.chain.lowercase,
            "counts": self._binarised(options, work, texts, tokenised), "subsets": tokenised.names if tokenised else {},
        }  # fmt: skip

    def _tokenise(self, options: Options, work: Bilingual, files: dict[str, Path]) -> Texts:
        texts = {}
        for subset in ("train", "test") if self.every else ("train", "valid", "test"):
            if subset == "test":
                lines = {lang: lambda lang=lang: segments(self.published(lang, files)) for lang in self.langs}
            else:
                lines = {lang: partial(self.raw, subset, lang, files) for lang in self.langs}
            texts[subset], count = work.tokenise(subset, lines, self.test_chain if subset == "test" else self.chain)
            self.check_count(options, "training text" if subset == "train" else subset, count)
        work.references({lang: published_segments(self.published(lang, files)) for lang in self.langs}, count)
        return texts

    def _take_tokenised(self, options: Options, steps: Steps, tokenised: Tokenised) -> Texts:
        remove(options.dest / "reference")  # left by an earlier corpus in this folder
        for subset, count in steps.run("given", [], {"files": tokenised.state()}, tokenised.check).items():
            if tokenised.names[subset] != subset:
                print(f"| {subset} is {tokenised.names[subset]}")
            self.check_count(options, "training text" if subset == "train" else subset, count)
        return tokenised.texts

    def _cleaned(self, options: Options, work: Bilingual, texts: Texts) -> Texts:
        """Drop pairs outside the limits of length, and hold out a validation set."""
        if self.word_limits:
            kept, counts = work.clean("clean", {"train": texts["train"]}, self.word_limits)
            texts = texts | kept
            self.check_count(options, "clean", counts["train"])
        if self.every and options.text is None:
            texts = work.hold_out(texts["train"], self.every) | {"test": texts["test"]}
        return texts

    def _binarised(self, options: Options, work: Bilingual, texts: Texts, tokenised: Tokenised | None) -> dict:
        codes = (tokenised and tokenised.codes) or work.learn(texts["train"], self.vocabulary_size(options))
        texts, types = work.apply(codes, texts)
        if self.subword_limits:
            held_out = {"train", "valid"} if tokenised is None and self.every else {"train"}
            chosen = {subset: prefix for subset, prefix in texts.items() if subset in held_out}
            texts = texts | work.clean("clean-pieces", chosen, self.subword_limits)[0]
        summary = work.binarise(texts, codes, tokenised and tokenised.dictionary)
        counts: dict = {subset: sizes[self.langs[0]]["sentences"] for subset, sizes in summary["text"].items()}
        for subset, count in counts.items():
            if subset == "test" or not (self.subword_limits and options.vocab):  # other pieces, other lengths
                self.check_count(options, subset, count)
        types |= {"joined": summary["words"]}
        for lang, number in types.items() if options.vocab is None else ():
            self.check_count(options, f"types {lang}", number, "pieces")
        counts |= {f"types {lang}": number for lang, number in types.items()}
        for subset, of_lang in summary["text"].items():
            unknown = ", ".join(f"{of_lang[lang]['unknown']:g}% of {lang}" for lang in self.langs)
            print(f"| {subset}: unknown are {unknown}")
        return counts | {"text": summary["text"], "dictionary": summary["types"]}


# The text within the tags of WIT3's and WMT's files, exactly as fairseq's scripts extract it.


def training_lines(lines: Iterable[str]) -> Iterator[str]:
    """Yield sentences, titles and descriptions of the talks in a train.tags file (WIT3)."""
    for line in lines:
        if not any(tag in line for tag in HEADERS):
            yield TITLES.sub("", line)


def segments(lines: Iterable[str]) -> Iterator[str]:
    """Yield the sentences of an XML or SGML file for tokenising, with typewriter apostrophes."""
    for line in lines:
        if SEGMENT in line:
            yield CLOSING.sub("", OPENING.sub("", line)).replace("’", "'")


def published_segments(lines: Iterable[str]) -> Iterator[str]:
    """Yield the sentences as published, for references: entities stay, as in sacreBLEU's copies of the test sets."""
    for line in lines:
        if SEGMENT in line:
            yield " ".join(CLOSING.sub("", OPENING.sub("", line)).split())
