"""Base class of the multilingual recipes, and the recipe of the user's own text in many languages.

A corpus consists of language pairs, as "de-en", each of which stands for both directions. DEST is the folder that a
recipe fills; further calls for the same DEST may add pairs to those that are there. A pair's text is a
multilingual.PairText: its subsets ("train", "valid", "test", ...), each with a function that reads it, and its state,
which changes with the text. options.text is the folder of --from. one_line(text) puts blanks in the place of characters
that other tools take for line ends.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ...errors import UserError
from ..folder import binarised_size
from ..lines import REMOVE, one_line, read_pairs
from ..multilingual import Multilingual, PairText, file_state, split_pair
from ..steps import Steps, read_json, write_json
from ..vocabulary import Vocabulary
from .base import Options, Recipe, versions

TEMPERATURE = 5.0  # that of M2M-100 (Fan et al., 2020); the DeepNet paper does not say
# Sentences from which 250,000 pieces of 100 languages are learnt; SentencePiece takes some 5 GB of memory for them.
LARGE_SAMPLE = 10_000_000
SUBSETS = ("train", "valid", "test")  # of the user's own text
PAIRS = Path("steps", "pairs.json")  # file in DEST that holds {"pairs": [all that were requested so far]}


class MultilingualRecipe(Recipe):
    """Recipe of many language pairs for one model. A subclass lists the pairs and finds their text.

    vocab: number of pieces of the SentencePiece model that all languages share
    sample: number of sentences that this model is learnt from, unless --vocab-sample gives another; None for as many as
        learning.sample_limits allows
    """

    takes = frozenset({"pairs", "vocab", "vocab_sample", "shards", "temperature", "spm"})
    miniature_vocab = 1200
    sample: int | None = None

    @abstractmethod
    def pairs(self, options: Options) -> tuple[str, ...]:
        """Return the requested pairs; raise a UserError for one that this corpus lacks."""

    @abstractmethod
    def text(self, options: Options, pair: str) -> PairText:
        """Return the text of one pair; raise a UserError if it is missing."""

    def evaluated(self, options: Options, texts: Sequence[PairText]) -> list[PairText]:
        """Return test sets of language pairs that are not trained on, in the languages that are: none by default.

        texts: of the pairs that are trained on
        """
        return []

    def outline(self, options: Options) -> str:
        """Return one line for the plan: the SentencePiece model, given by --spm or to be trained."""
        if options.spm:
            return f"one SentencePiece vocabulary: {options.spm}"
        pieces = self.vocabulary_size(options)
        temperature = options.temperature or TEMPERATURE
        return f"one SentencePiece vocabulary: {pieces:,} pieces, languages drawn at {temperature:g}"

    def tools(self, options: Options) -> dict[str, str]:
        return versions("sentencepiece", "fairseq-fixed")

    def settings(self, options: Options) -> dict:
        """Add "state": pair -> PairText.state, so that build() runs the steps of DEST when the text changes."""
        states = {pair: self.text(options, pair).state for pair in self.pairs(options)}
        return super().settings(options) | {"state": states}

    def check(self, options: Options) -> None:
        """Raise a UserError for unusable options, and for a pair that is there, or requested, in both orders."""
        super().check(options)
        if options.temperature is not None and not options.temperature > 0:  # written with `not` because of nan
            raise UserError(f"--temperature {options.temperature}", "must be above 0; 1 keeps the proportions")
        if options.spm is not None:
            if options.vocab or options.vocab_sample or options.temperature:
                raise UserError(
                    "--spm is a vocabulary made already", "leave out --vocab, --vocab-sample, --temperature"
                )
            Vocabulary(options.spm)  # raises a UserError for an unusable file, before anything is written

        pairs = self._all_pairs(options)
        for pair in pairs:
            reverse = "-".join(reversed(split_pair(pair)))
            if reverse in pairs:
                raise UserError(
                    f"{pair} and {reverse}", f"a pair gives both directions; put all of its text into {pair}"
                )

    def _all_pairs(self, options: Options) -> list[str]:
        """Return the pairs that are requested now, and those that earlier calls put into this DEST, sorted."""
        before = read_json(options.dest / PAIRS).get("pairs", [])
        return sorted({*self.pairs(options), *before})

    def make(self, options: Options, steps: Steps, files: dict[str, Path]) -> dict:
        """Prepare all pairs, those of earlier calls too; return the entries of recipe.json, as Recipe.make has them.

        "counts" holds subset -> number of sentence pairs, of all language pairs that are trained on together; and under
        "pairs", language pair -> subset -> number. `steps` is not used: Multilingual has Steps of its own.
        """
        pairs = self._all_pairs(options)
        write_json(options.dest / PAIRS, {"pairs": pairs})

        texts = [self.text(options, pair) for pair in pairs]
        work = Multilingual(
            options.dest,
            shards=options.shards or 1,
            vocab=self.vocabulary_size(options),
            temperature=options.temperature or TEMPERATURE,
            spm=options.spm,
            workers=options.workers,
            vocab_sample=options.vocab_sample,
            usual_sample=self.sample,
        )
        counts = work.run(texts, self.evaluated(options, texts))

        total: Counter = Counter()  # subset -> number of sentence pairs; `counts` has pairs that are not trained on too
        for pair in pairs:
            total.update(counts[pair])
        all_counts = {**total, "pairs": counts}
        return {"pieces": "sentencepiece", "detokenise": False, "lowercase": False, "counts": all_counts}


class OwnText(MultilingualRecipe):
    """Recipe of the user's own raw text, with a sentence a line.

    Its files are FOLDER/PAIR/SUBSET.LANG with the FOLDER of --from, as FOLDER/deu-eng/train.deu. The subsets valid and
    test may be missing.
    """

    name = "multilingual"
    title = "any text in FOLDER/PAIR/{train,valid,test}.LANG (--from FOLDER), one vocabulary for all its languages"
    takes = MultilingualRecipe.takes | {"text"}
    vocab = 16_000

    def files(self, options: Options) -> tuple:
        return ()

    def needs(self, options: Options) -> int:
        """Return an estimate of the bytes of the binarised data, from the bytes of all text of the requested pairs."""
        pieces = len(Vocabulary(options.spm)) if options.spm else self.vocabulary_size(options)
        text_size = 0  # bytes
        for pair in self.pairs(options):
            text_size += sum(path.stat().st_size for path in (options.text / pair).iterdir() if path.is_file())
        return binarised_size(text_size, pieces)

    def check(self, options: Options) -> None:
        if options.text is None:
            raise UserError("the recipe multilingual needs text", "--from FOLDER, with FOLDER/de-en/train.de and so on")
        super().check(options)

    def pairs(self, options: Options) -> tuple[str, ...]:
        """Return the pairs that --pairs names, each once; without it, all that have a folder in FOLDER.

        Raises a UserError if a named pair has no folder, or if no pair has one.
        """
        present = sorted(folder.name for folder in options.text.iterdir() if folder.is_dir() and "-" in folder.name)
        missing = [pair for pair in options.pairs or () if pair not in present]
        if missing or not present:
            first = missing[0] if missing else "de-en"  # "de-en" is an example
            raise UserError(options.text / first, "no such folder; name pairs that are there")
        return tuple(dict.fromkeys(options.pairs or present))

    def text(self, options: Options, pair: str) -> PairText:
        """Return the text of a pair from its folder, for the subsets that it has.

        Raises a UserError if it lacks a file of "train", or if another subset has a file for one language alone.
        """
        langs = split_pair(pair)
        subsets = {}
        state = {}  # file name -> [size in bytes, time of change in ns]
        for subset in SUBSETS:
            paths = [options.text / pair / f"{subset}.{lang}" for lang in langs]
            if subset == "train" or any(path.exists() for path in paths):
                # a pair with an empty side makes `read_pairs` raise an error that ends with REMOVE
                subsets[subset] = partial(read_pairs, *paths, empty=REMOVE, clean=one_line)
                state |= {path.name: file_state(path) for path in paths}
        return PairText(langs, subsets, state)
