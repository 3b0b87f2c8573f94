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
OPENING = re.compile(r'<seg id="[0-9]*">\s*')
CLOSING = re.compile(r"\s*</seg>\s*")


class BilingualRecipe(Recipe):
    """Recipe of one language pair; a subclass gives its lines, their tokenisation and the limits of cleaning.

    Cleaning is done on words, before BPE, or on pieces, after it. `vocab` is the number of merges of a BPE that is
    learnt on both languages together.
    """

    takes = frozenset({"text", "vocab"})
    langs: tuple[str, str]  # source and target
    archives: tuple[RemoteFile, ...]
    miniature_vocab = 500
    chain: Chain  # for training text, and for a separate validation set
    test_chain: Chain
    word_limits: Limits | None = None  # of training pairs, before BPE
    subword_limits: Limits | None = None  # of training pairs, and validation pairs held out of them, after BPE
    every: int | None = None  # each every-th training pair is held out for validation; None: there is a set of its own

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
        if tokenised is None:
            return self.space
        return 5 * sum(path.stat().st_size for path in tokenised.files())

    def tools(self, options: Options) -> dict[str, str]:
        if options.text:  # which is tokenised already
            return versions("subword-nmt", "fairseq-fixed")
        return versions("sacremoses", "subword-nmt", "fairseq-fixed")

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
        counts = self._binarised(options, work, texts, tokenised)
        return {
            "pieces": "subword_nmt",
            "detokenise": True,
            "lowercase": self.chain.lowercase,
            "counts": counts,
            "subsets": tokenised.names if tokenised else {},
        }

    def _tokenise(self, options: Options, work: Bilingual, files: dict[str, Path]) -> Texts:
        """Tokenise the downloaded texts, and write the test set's references as published."""
        subsets = ["train"]
        if not self.every:  # else it is held out of the training text
            subsets.append("valid")
        texts = {}
        for subset in subsets:
            lines = {lang: partial(self.raw, subset, lang, files) for lang in self.langs}
            texts[subset], count = work.tokenise(subset, lines, self.chain)
            self.check_count(options, "training text" if subset == "train" else subset, count)

        def test_lines(lang: str) -> Iterator[str]:
            return segments(self.published(lang, files))

        lines = {lang: partial(test_lines, lang) for lang in self.langs}
        texts["test"], sentences = work.tokenise("test", lines, self.test_chain)
        self.check_count(options, "test", sentences)
        references = {lang: published_segments(self.published(lang, files)) for lang in self.langs}
        work.references(references, sentences)
        return texts

    def _take_tokenised(self, options: Options, steps: Steps, tokenised: Tokenised) -> Texts:
        """Check and count the texts of --from; return them. Their references are unknown, so DEST has none."""
        remove(options.dest / "reference")  # left by an earlier corpus in this folder
        counts = steps.run("given", outputs=[], settings={"files": tokenised.state()}, make=tokenised.check)
        for subset, count in counts.items():
            if tokenised.names[subset] != subset:
                print(f"| {subset} is {tokenised.names[subset]}")
            self.check_count(options, "training text" if subset == "train" else subset, count)
        return tokenised.texts

    def _cleaned(self, options: Options, work: Bilingual, texts: Texts) -> Texts:
        """Drop training pairs outside the limits of words, and hold out a validation set, where the recipe does."""
        if self.word_limits:
            kept, counts = work.clean("clean", {"train": texts["train"]}, self.word_limits)
            texts = texts | kept
            self.check_count(options, "clean", counts["train"])
        if self.every and options.text is None:
            texts = work.hold_out(texts["train"], self.every) | {"test": texts["test"]}
        return texts

    def _binarised(self, options: Options, work: Bilingual, texts: Texts, tokenised: Tokenised | None) -> dict:
        """Segment, clean by pieces and binarise the texts; return "counts" of recipe.json, checked and printed."""
        if tokenised and tokenised.codes:
            codes = tokenised.codes
        else:
            codes = work.learn(texts["train"], self.vocabulary_size(options))
        texts, types = work.apply(codes, texts)

        if self.subword_limits:
            limited = {"train"}
            if self.every and tokenised is None:
                limited.add("valid")  # which was held out of the training text
            chosen = {subset: prefix for subset, prefix in texts.items() if subset in limited}
            kept, _ = work.clean("clean-pieces", chosen, self.subword_limits)
            texts = texts | kept
        summary = work.binarise(texts, codes, dictionary=tokenised.dictionary if tokenised else None)

        counts: dict = {subset: sizes[self.langs[0]]["sentences"] for subset, sizes in summary["text"].items()}
        other_lengths = self.subword_limits and options.vocab  # other pieces, so that the limits keep other pairs
        for subset, count in counts.items():
            if subset == "test" or not other_lengths:
                self.check_count(options, subset, count)

        types["joined"] = summary["words"]
        for lang, number in types.items():
            if options.vocab is None:
                self.check_count(options, f"types {lang}", number, unit="pieces")
            counts[f"types {lang}"] = number

        for subset, of_lang in summary["text"].items():
            unknown = ", ".join(f"{of_lang[lang]['unknown']:g}% of {lang}" for lang in self.langs)
            print(f"| {subset}: unknown are {unknown}")
        return counts | {"text": summary["text"], "dictionary": summary["types"]}


# These functions take the text out of the tags of WIT3's and WMT's files, exactly as fairseq's scripts do.


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
