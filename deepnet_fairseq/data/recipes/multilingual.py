"""Base class of the multilingual recipes, whose pairs may be added one after another, and the recipe of own text.

Own text in many languages is a folder of pairs, raw, one sentence a line.
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

TEMPERATURE = 5.0  # M2M-100's; the DeepNet paper does not say
LARGE_SAMPLE = 10_000_000  # sentences for 250,000 pieces of 100 languages; SentencePiece takes some 5 GB for them
SUBSETS = ("train", "valid", "test")  # of the user's own text
PAIRS = Path("steps", "pairs.json")  # pairs of a folder, which may be added one after another


class MultilingualRecipe(Recipe):
    """Recipe of many pairs for one model; a subclass lists the pairs and finds their text.

    vocab: pieces of the SentencePiece model that all languages share
    sample: sentences that it is learnt from, unless --vocab-sample tells; None: as many as fit into memory

    See Multilingual for --temperature and --spm.
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
        """Return pairs with test sets but without training text, in the languages of `texts`."""
        return []

    def outline(self, options: Options) -> str:
        if options.spm:
            return f"one SentencePiece vocabulary: {options.spm}"
        pieces = self.vocabulary_size(options)
        temperature = options.temperature or TEMPERATURE
        return f"one SentencePiece vocabulary: {pieces:,} pieces, languages drawn at {temperature:g}"

    def tools(self, options: Options) -> dict[str, str]:
        return versions("sentencepiece", "fairseq-fixed")

    def settings(self, options: Options) -> dict:
        state = {pair: self.text(options, pair).state for pair in self.pairs(options)}
        return super().settings(options) | {"state": state}

    def check(self, options: Options) -> None:
        super().check(options)
        if options.temperature is not None and not options.temperature > 0:
            raise UserError(f"--temperature {options.temperature}: must be above 0; 1 keeps the proportions")
        if options.spm is not None:
            if options.vocab or options.vocab_sample or options.temperature:
                raise UserError("--spm is a vocabulary made already: leave out --vocab, --vocab-sample, --temperature")
            Vocabulary(options.spm)  # raises a UserError before anything is written

        together = self._together(options)
        for pair in together:
            reverse = "-".join(reversed(split_pair(pair)))
            if reverse in together:
                raise UserError(f"{pair} and {reverse}: a pair gives both directions; put all of its text into {pair}")

    def _together(self, options: Options) -> list[str]:
        """Return the pairs requested now or before, sorted."""
        before = read_json(options.dest / PAIRS).get("pairs", [])
        return sorted({*self.pairs(options), *before})

    def make(self, options: Options, steps: Steps, files: dict[str, Path]) -> dict:
        pairs = self._together(options)
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

        total: Counter = Counter()  # subset -> sentence pairs of all training pairs together
        for pair in pairs:
            total.update(counts[pair])
        counted = {**total, "pairs": counts}
        return {"pieces": "sentencepiece", "detokenise": False, "lowercase": False, "counts": counted}


class OwnText(MultilingualRecipe):
    """Recipe of FOLDER/PAIR/SUBSET.LANG, as in FOLDER/deu-eng/train.deu; valid and test may be missing."""

    name = "multilingual"
    title = "any text in FOLDER/PAIR/{train,valid,test}.LANG (--from FOLDER), one vocabulary for all its languages"
    takes = MultilingualRecipe.takes | {"text"}
    vocab = 16_000

    def files(self, options: Options) -> tuple:
        return ()

    def needs(self, options: Options) -> int:
        pieces = len(Vocabulary(options.spm)) if options.spm else self.vocabulary_size(options)
        size = 0
        for pair in self.pairs(options):
            size += sum(path.stat().st_size for path in (options.text / pair).iterdir() if path.is_file())
        return binarised_size(size, pieces)

    def check(self, options: Options) -> None:
        if options.text is None:
            raise UserError("the recipe multilingual needs text: --from FOLDER, with FOLDER/de-en/train.de and so on")
        super().check(options)

    def pairs(self, options: Options) -> tuple[str, ...]:
        """Return the folders that --pairs names, or all; raise a UserError if one is missing, or none is there."""
        pairs = sorted(folder.name for folder in options.text.iterdir() if folder.is_dir() and "-" in folder.name)
        missing = [pair for pair in options.pairs or () if pair not in pairs]
        if missing or not pairs:
            first = missing[0] if missing else "de-en"
            raise UserError(f"{options.text / first}: no such folder; name pairs that are there")
        return tuple(dict.fromkeys(options.pairs or pairs))

    def text(self, options: Options, pair: str) -> PairText:
        langs = split_pair(pair)
        subsets = {}
        state = {}
        for subset in SUBSETS:
            paths = [options.text / pair / f"{subset}.{lang}" for lang in langs]
            if subset == "train" or any(path.exists() for path in paths):
                subsets[subset] = partial(read_pairs, *paths, empty=REMOVE, clean=one_line)
                state |= {path.name: file_state(path) for path in paths}
        return PairText(langs, subsets, state)
