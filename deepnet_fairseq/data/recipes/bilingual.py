"""Base class of the recipes of one language pair: Moses tokens, joint BPE, one dictionary for both languages."""

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

# In the files of WIT3 (IWSLT) and WMT
HEADERS = ("<url>", "<talkid>", "<keywords>")  # tags of lines without text to train on
TITLES = re.compile("</?(?:title|description)>")  # tags of lines with such text
SEGMENT = "<seg id"  # in each line with a sentence of a test set
OPENING = re.compile(r'<seg id="[0-9]*">\s*')
CLOSING = re.compile(r"\s*</seg>\s*")


class BilingualRecipe(Recipe):
    """Recipe of one language pair; a subclass gives its lines, their tokenisation and the limits of cleaning.

    Cleaning drops sentence pairs that are too short, too long, or of unlike length. It is done before BPE, by words,
    or after it, by pieces. `vocab` is the number of merges of a BPE that is learnt on both languages together.

    langs: source and target
    archives: the downloads
    chain, test_chain: tools of Moses that are applied to training and validation text, and to test sets
    word_limits: of training pairs, before BPE; None if they are not cleaned then
    subword_limits: of training pairs, and of validation pairs that are held out of them, after BPE; None as above
    every: each every-th training pair is held out for validation; None if there is a separate validation set
    """

    takes = frozenset({"text", "vocab"})
    langs: tuple[str, str]
    archives: tuple[RemoteFile, ...]
    miniature_vocab = 500
    chain: Chain
    test_chain: Chain
    word_limits: Limits | None = None
    subword_limits: Limits | None = None
    every: int | None = None

    @abstractmethod
    def raw(self, subset: str, lang: str, files: dict[str, Path]) -> Iterator[str]:
        """Yield the lines to tokenise of a language of the subset "train", or of "valid" if `every` is None.

        files: name -> downloaded file
        """

    @abstractmethod
    def published(self, lang: str, files: dict[str, Path]) -> Iterator[str]:
        """Yield the lines of a language of the test set as published, in XML or SGML; files: as for `raw`."""

    def files(self, options: Options) -> tuple[RemoteFile, ...]:
        return () if options.text else self.archives

    def tokenised(self, options: Options) -> Tokenised | None:
        """Return the tokenised text of --from, None without --from."""
        return Tokenised(options.text, self.langs) if options.text else None

    def needs(self, options: Options) -> int:
        tokenised = self.tokenised(options)
        if tokenised is None:
            return self.space
        # in pieces, cleaned, binarised, ...: about 5 times the bytes of the text
        return 5 * sum(path.stat().st_size for path in tokenised.files())

    def tools(self, options: Options) -> dict[str, str]:
        if options.text:  # it is tokenised already
            return versions("subword-nmt", "fairseq-fixed")
        return versions("sacremoses", "subword-nmt", "fairseq-fixed")

    def check(self, options: Options) -> None:
        super().check(options)
        tokenised = self.tokenised(options)
        if tokenised and tokenised.codes and options.vocab is not None:
            raise UserError(f"--vocab {options.vocab}", f"{tokenised.codes} holds the merges; leave one of them out")

    def settings(self, options: Options) -> dict:
        tokenised = self.tokenised(options)
        return super().settings(options) | {"given": tokenised.state() if tokenised else None}

    def outline(self, options: Options) -> str:
        steps = [str(self.chain)]
        if self.every:
            steps.append(f"one training pair in {self.every} for validation")
        steps.append(f"{self.vocabulary_size(options):,} BPE merges on both languages together")
        steps.append(f"pairs of {self.word_limits or self.subword_limits}")
        return "; ".join(steps)

    def make(self, options: Options, steps: Steps, files: dict[str, Path]) -> dict:
        work = Bilingual(steps, options.dest, self.langs, options.workers)
        tokenised = self.tokenised(options)
        texts = self._check_tokenised(options, steps, tokenised) if tokenised else self._tokenise(options, work, files)
        texts = self._clean_and_hold_out(options, work, texts)
        counts = self._binarise(options, work, texts, tokenised)
        return {
            "pieces": "subword_nmt",
            "detokenise": True,
            "lowercase": self.chain.lowercase,
            "counts": counts,
            "subsets": tokenised.names if tokenised else {},
        }

    def _tokenise(self, options: Options, work: Bilingual, files: dict[str, Path]) -> Texts:
        """Tokenise the downloaded texts, and write the test set's references as published; return the tokenised texts.

        files: name -> downloaded file
        """
        subsets = ["train"]
        if not self.every:  # otherwise "valid" is held out of the training text later
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

    def _check_tokenised(self, options: Options, steps: Steps, tokenised: Tokenised) -> Texts:
        """Check and count the texts of --from; return them.

        DEST gets no references, because nobody knows how the text was before it was tokenised.
        """
        remove(options.dest / "reference")  # which an earlier corpus may have left in DEST
        counts = steps.run("given", outputs=[], settings={"files": tokenised.state()}, make=tokenised.check)
        for subset, count in counts.items():
            if tokenised.names[subset] != subset:
                print(f"| {subset} is {tokenised.names[subset]}")
            self.check_count(options, "training text" if subset == "train" else subset, count)
        return tokenised.texts

    def _clean_and_hold_out(self, options: Options, work: Bilingual, texts: Texts) -> Texts:
        """Return the texts without training pairs outside word_limits, and with "valid" held out of "train".

        Each is done only where the recipe says so; from text of --from nothing is held out.
        """
        if self.word_limits:
            kept, counts = work.clean("clean", {"train": texts["train"]}, self.word_limits)
            texts = texts | kept
            self.check_count(options, "clean", counts["train"])
        if self.every and options.text is None:
            texts = work.hold_out(texts["train"], self.every) | {"test": texts["test"]}
        return texts

    def _binarise(self, options: Options, work: Bilingual, texts: Texts, tokenised: Tokenised | None) -> dict:
        """Segment the texts by BPE, clean them by pieces, and binarise them; print and check all counts.

        tokenised: the text of --from, which may bring its own BPE merges and dictionary

        Returns "counts" of recipe.json: {subset: sentence pairs, "types LANG": distinct pieces of LANG in "train",
        "types joined": words of the dictionary, "text" and "dictionary": "text" and "types" of binarise.binarise}.
        """
        if tokenised and tokenised.codes:
            codes = tokenised.codes
        else:
            codes = work.learn(texts["train"], self.vocabulary_size(options))
        texts, types = work.apply(codes, texts)

        if self.subword_limits:
            limited = {"train"}
            if self.every and tokenised is None:
                limited.add("valid")  # it was held out of the training text
            chosen = {subset: prefix for subset, prefix in texts.items() if subset in limited}
            kept, _ = work.clean("clean-pieces", chosen, self.subword_limits)
            texts = texts | kept
        summary = work.binarise(texts, codes, dictionary=tokenised.dictionary if tokenised else None)

        # The expected counts hold for the recipe's own pieces: with --vocab, subword_limits keep other pairs.
        source = self.langs[0]
        counts: dict = {subset: by_lang[source]["sentences"] for subset, by_lang in summary["text"].items()}
        other_pairs = self.subword_limits and options.vocab
        for subset, count in counts.items():
            if subset == "test" or not other_pairs:
                self.check_count(options, subset, count)

        types["joined"] = summary["words"]
        for lang, number in types.items():
            if options.vocab is None:
                self.check_count(options, f"types {lang}", number, unit="pieces")
            counts[f"types {lang}"] = number

        for subset, by_lang in summary["text"].items():
            unknown = ", ".join(f"{by_lang[lang]['unknown']:g}% of {lang}" for lang in self.langs)
            print(f"| {subset}: unknown are {unknown}")
        return counts | {"text": summary["text"], "dictionary": summary["types"]}


# These functions take the text out of the tags of WIT3's and WMT's files, exactly as fairseq's scripts do.


def training_lines(lines: Iterable[str]) -> Iterator[str]:
    """Yield the sentences, titles and descriptions of the talks in a file train.tags.* of WIT3."""
    for line in lines:
        if not any(tag in line for tag in HEADERS):
            yield TITLES.sub("", line)


def segments(lines: Iterable[str]) -> Iterator[str]:
    """Yield the sentences of a test set in XML or SGML for tokenising, with ' in the place of ’."""
    for line in lines:
        if SEGMENT in line:
            yield CLOSING.sub("", OPENING.sub("", line)).replace("’", "'")


def published_segments(lines: Iterable[str]) -> Iterator[str]:
    """Yield the sentences of a test set in XML or SGML as published, for references, with single blanks.

    Entities such as &amp; stay, as in sacreBLEU's copies of the test sets.
    """
    for line in lines:
        if SEGMENT in line:
            yield " ".join(CLOSING.sub("", OPENING.sub("", line)).split())
