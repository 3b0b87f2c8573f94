"""Base class of the recipes of one language pair: Moses' tokens, joint BPE, one dictionary for both languages.

The text comes from published archives, which are tokenised here, or from a folder of tokenised text that the user gives
by --from (options.text). A text of both languages is called by its prefix P, which stands for the files P.SRC and
P.TGT; Texts map subset ("train", "valid", "test", ...) -> prefix. bilingual.Bilingual runs the steps: each makes new
texts, unless they are there already.
"""

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

# Tags in the files of WIT3 (IWSLT) and WMT
HEADERS = ("<url>", "<talkid>", "<keywords>")  # each is in a line about the talk, which is no text to train on
TITLES = re.compile("</?(?:title|description)>")  # tags around the title and the description, which are such text
SEGMENT = "<seg id"  # in each line with a sentence of a test set
OPENING = re.compile(r'<seg id="[0-9]*">\s*')
CLOSING = re.compile(r"\s*</seg>\s*")


class BilingualRecipe(Recipe):
    """Recipe of one language pair. A subclass gives the fields below, and reads the lines of the archives.

    Cleaning drops sentence pairs that are too short, too long, or of unlike length. It is done before BPE, where Limits
    count words, or after it, where they count pieces.

    vocab: number of merges of a BPE that is learnt on both languages together
    langs: source and target
    archives: the files to download
    chain, test_chain: scripts of Moses that process training and validation text, and test sets
    word_limits: limits by which training pairs are cleaned before BPE; None for no such cleaning
    subword_limits: limits by which training pairs, and validation pairs held out of them, are cleaned after BPE; None
        for no such cleaning
    valid_every: one of so many training pairs is held out for validation; None if there is a separate validation set
    """

    takes = frozenset({"text", "vocab"})
    langs: tuple[str, str]
    archives: tuple[RemoteFile, ...]
    miniature_vocab = 500
    chain: Chain
    test_chain: Chain
    word_limits: Limits | None = None
    subword_limits: Limits | None = None
    valid_every: int | None = None

    @abstractmethod
    def raw_lines(self, subset: str, lang: str, files: dict[str, Path]) -> Iterator[str]:
        """Yield the lines, not tokenised yet, of one side of the training or validation text.

        subset: "train"; also "valid" if `valid_every` is None
        lang: language of the side
        files: file name -> path of the downloaded file
        """

    @abstractmethod
    def test_lines(self, lang: str, files: dict[str, Path]) -> Iterator[str]:
        """Yield the lines of one side of the test set as published, in XML or SGML; parameters as for raw_lines."""

    def files(self, options: Options) -> tuple[RemoteFile, ...]:
        """Return the files to download; none if --from gives the text."""
        return () if options.text else self.archives

    def tokenised(self, options: Options) -> Tokenised | None:
        """Return the tokenised text of --from, None without --from."""
        return Tokenised(options.text, self.langs) if options.text else None

    def needs(self, options: Options) -> int:
        """Return the bytes on disk that downloads and all steps need; for text of --from 5 times its bytes.

        The text is written once by each step, in pieces, cleaned, binarised, ...: together about 5 times.
        """
        tokenised = self.tokenised(options)
        if tokenised is None:
            return self.space
        return 5 * sum(path.stat().st_size for path in tokenised.files())

    def tools(self, options: Options) -> dict[str, str]:
        if options.text:  # it is tokenised already
            return versions("subword-nmt", "fairseq-fixed")
        return versions("sacremoses", "subword-nmt", "fairseq-fixed")

    def check(self, options: Options) -> None:
        """Raise a UserError for unusable options; also for --vocab where the folder of --from has BPE merges."""
        super().check(options)
        tokenised = self.tokenised(options)
        if tokenised and tokenised.codes and options.vocab is not None:
            raise UserError(f"--vocab {options.vocab}", f"{tokenised.codes} holds the merges; leave one of them out")

    def settings(self, options: Options) -> dict:
        """Add "given", the sizes and times of the files of --from; None without --from."""
        tokenised = self.tokenised(options)
        return super().settings(options) | {"given": tokenised.state() if tokenised else None}

    def outline(self, options: Options) -> str:
        """Return one line for the plan: scripts of Moses, validation set, number of BPE merges, limits of cleaning.

        For text of --from it names the folder in the place of the first two, and the file of BPE merges if that exists.
        """
        tokenised = self.tokenised(options)
        if tokenised is not None:
            steps = [f"tokenised text of {options.text}"]
        else:
            steps = [str(self.chain)]
            if self.valid_every:
                steps.append(f"one training pair in {self.valid_every} for validation")

        if tokenised is not None and tokenised.codes:
            steps.append(f"BPE merges of {tokenised.codes}")
        else:
            steps.append(f"{self.vocabulary_size(options):,} BPE merges on both languages together")

        if self.word_limits:
            steps.append(f"pairs of {self.word_limits}")
        if self.subword_limits:
            steps.append(f"pairs of {self.subword_limits}, where words are BPE pieces")
        return "; ".join(steps)

    def make(self, options: Options, steps: Steps, files: dict[str, Path]) -> dict:
        """Run all steps; return the entries of recipe.json, as Recipe.make describes them.

        "subsets" is added: subset, by fairseq's name -> the name that it has in the folder of --from, {} without it.
        """
        work = Bilingual(steps, options.dest, self.langs, options.workers)
        tokenised = self.tokenised(options)
        if tokenised is not None:
            texts = self._check_tokenised(options, steps, tokenised)
        else:
            texts = self._tokenise(options, work, files)
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
        """Tokenise the downloaded texts, and write the test set's references; return the tokenised texts.

        files: file name -> path of the downloaded file
        """
        subsets = ["train"]
        if not self.valid_every:  # otherwise "valid" is held out of the training text later
            subsets.append("valid")
        texts = {}
        for subset in subsets:
            lines = {lang: partial(self.raw_lines, subset, lang, files) for lang in self.langs}
            texts[subset], count = work.tokenise(subset, lines, self.chain)
            # "train" is the key of the count that is left after cleaning and holding out
            self.check_count(options, "training text" if subset == "train" else subset, count)

        def test_sentences(lang: str) -> Iterator[str]:
            return segments_to_tokenise(self.test_lines(lang, files))

        lines = {lang: partial(test_sentences, lang) for lang in self.langs}
        texts["test"], sentences = work.tokenise("test", lines, self.test_chain)
        self.check_count(options, "test", sentences)

        # references are the sentences of the test set as they were published, without tokenisation
        references = {lang: published_segments(self.test_lines(lang, files)) for lang in self.langs}
        work.write_references(references, sentences)
        return texts

    def _check_tokenised(self, options: Options, steps: Steps, tokenised: Tokenised) -> Texts:
        """Check the texts of --from, print their numbers of sentence pairs, and return them.

        DEST gets no references, because nobody knows how the text was before it was tokenised.
        """
        remove(options.dest / "reference")  # which an earlier corpus may have left in DEST
        # calls tokenised.check, unless it has checked the same files before
        counts = steps.run("given", outputs=[], settings={"files": tokenised.state()}, make=tokenised.check)
        for subset, count in counts.items():
            name_in_folder = tokenised.names[subset]
            if name_in_folder != subset:  # as "test.news", which is "test1" for fairseq
                print(f"| {subset} is made of {name_in_folder}")
            self.check_count(options, "training text" if subset == "train" else subset, count)
        return tokenised.texts

    def _clean_and_hold_out(self, options: Options, work: Bilingual, texts: Texts) -> Texts:
        """Clean the training text by words, and hold validation pairs out of it; return all texts, these among them.

        Each is done only where the recipe has word_limits or valid_every. A folder of --from has its own "valid".
        """
        if self.word_limits:
            cleaned, counts = work.clean_texts("clean", {"train": texts["train"]}, self.word_limits)
            texts = texts | cleaned
            self.check_count(options, "clean", counts["train"])
        if self.valid_every and options.text is None:
            train_and_valid = work.hold_out(texts["train"], self.valid_every)
            texts = train_and_valid | {"test": texts["test"]}
        return texts

    def _binarise(self, options: Options, work: Bilingual, texts: Texts, tokenised: Tokenised | None) -> dict:
        """Segment the texts by BPE, clean them by pieces, and binarise them; print and check their counts.

        With another vocabulary than the recipe's (--vocab) those that depend on it are neither printed nor checked.

        tokenised: the text of --from, which may bring its own BPE merges (codes) and dictionary; None without --from

        Returns the counts for recipe.json:
        SUBSET: number of its sentence pairs
        "types LANG": number of distinct pieces of a language in "train"
        "types joined": number of entries in the dictionary, without fairseq's special symbols and padding
        "text": subset -> language -> counts, as binarise.binarise returns them
        "dictionary": size of the dictionary with special symbols and padding
        """
        if tokenised and tokenised.codes:
            codes = tokenised.codes
        else:
            codes = work.learn_bpe(texts["train"], self.vocabulary_size(options))
        texts, distinct_pieces = work.apply_bpe(codes, texts)

        if self.subword_limits:
            to_clean = {"train": texts["train"]}
            if self.valid_every and tokenised is None:  # "valid" was held out of the training text
                to_clean["valid"] = texts["valid"]
            cleaned, _ = work.clean_texts("clean-pieces", to_clean, self.subword_limits)
            texts = texts | cleaned
        summary = work.binarise_texts(texts, codes, dictionary=tokenised.dictionary if tokenised else None)

        # numbers of sentence pairs: with another vocabulary than the recipe's, subword_limits keep others than expected
        source = self.langs[0]
        counts: dict = {subset: by_lang[source]["sentences"] for subset, by_lang in summary["text"].items()}
        cleaned_otherwise = self.subword_limits and options.vocab
        for subset, count in counts.items():
            if subset == "test" or not cleaned_otherwise:
                self.check_count(options, subset, count)

        # numbers of distinct pieces: one is expected for the recipe's own vocabulary only
        distinct_pieces["joined"] = summary["words"]
        for lang, number in distinct_pieces.items():
            if options.vocab is None:
                self.check_count(options, f"types {lang}", number, unit="pieces")
            counts[f"types {lang}"] = number

        for subset, by_lang in summary["text"].items():
            unknown = ", ".join(f"{by_lang[lang]['unknown']:g}% of {lang}" for lang in self.langs)
            print(f"| {subset}: pieces that the dictionary lacks: {unknown}")
        return counts | {"text": summary["text"], "dictionary": summary["types"]}


# These functions take the text out of the tags of WIT3's and WMT's files, exactly as fairseq's scripts do.


def training_lines(lines: Iterable[str]) -> Iterator[str]:
    """Yield the sentences, titles and descriptions of the talks in a file train.tags.* of WIT3, without tags.

    lines: of the file; those with an address, a number or keywords of a talk are left out
    """
    for line in lines:
        if not any(tag in line for tag in HEADERS):
            yield TITLES.sub("", line)


def segments_to_tokenise(lines: Iterable[str]) -> Iterator[str]:
    """Yield the sentences of a test set as fairseq's scripts give them to the tokeniser: ’ is replaced by '.

    lines: of the file in XML or SGML
    """
    for line in lines:
        if SEGMENT in line:
            yield CLOSING.sub("", OPENING.sub("", line)).replace("’", "'")


def published_segments(lines: Iterable[str]) -> Iterator[str]:
    """Yield the sentences of a test set as published, for references, but with single blanks for all white space.

    Entities such as &amp; stay, as in sacreBLEU's copies of the test sets.

    lines: of the file in XML or SGML
    """
    for line in lines:
        if SEGMENT in line:
            yield " ".join(CLOSING.sub("", OPENING.sub("", line)).split())
