"""The corpus of 102 languages (DeepNet, section 6): CCMatrix, CCAligned and Tatoeba of OPUS, a pair at a time.

12 billion sentence pairs in 1,932 directions: more than one machine holds as text, or reads in an epoch. So pairs are
named, and each is downloaded, cleaned, segmented and binarised into shards, and its archives are removed before the
next one comes. What was there stays when pairs are added.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import combinations
from pathlib import Path

from ...errors import UserError
from ..download import RemoteFile
from ..multilingual.m2m import FLORES_101, VERSIONS, ZERO_SHOT, Archives, Evaluation, archive_of, clean
from ..multilingual.pair_text import PairText, Sentences, parse_pair
from ..multilingual.recipe import MultilingualRecipe
from ..steps import Steps
from .base import Options

MINIATURE = ("de-en", "de-fr", "en-fr")


class M2m102(MultilingualRecipe):
    """--pairs is needed; --from FOLDER adds test sets, FOLDER/PAIR/SUBSET.LANG (those of WMT and TED)."""

    name = "m2m102"
    title = "CCMatrix, CCAligned and Tatoeba, for 102 languages in one model (Table 3 of DeepNet), pair by pair"
    takes = MultilingualRecipe.takes | {"text"}
    vocab = 250_000

    def files(self, options: Options) -> tuple[RemoteFile, ...]:
        return (
            FLORES_101,
            ZERO_SHOT,
            *(archive_of(corpus, pair) for pair in self.pairs(options) for corpus in VERSIONS),
        )

    def downloads(self, options: Options) -> tuple[RemoteFile, ...]:
        """All: --from adds test sets to them."""
        return self.files(options)

    def outline(self, options: Options) -> tuple[str, ...]:
        return (
            "unpack Flores-101 (valid: its dev, flores: its devtest) and the zero-shot test sets of OPUS-100 (opus)",
            *super().outline(options)[:2],
            "clean each pair: no empty, equal, very long or repeated sides, no sentence of the test sets",
            *super().outline(options)[2:],
            "remove the archives of each pair when it is done",
        )

    def fetch(self, options: Options, steps: Steps) -> dict[str, dict]:
        """Nothing yet: the archives of a pair come when it is read."""
        return {}

    def pairs(self, options: Options) -> tuple[str, ...]:
        """As OPUS names them, in the order of the alphabet."""
        if options.pairs is None and not options.miniature:
            raise UserError(
                "the corpus m2m102 has 12 billion sentence pairs, more than one machine holds: name some, as in "
                "--pairs de-en,en-fr; others can be added to the same folder later"
            )
        return tuple("-".join(sorted(parse_pair(pair))) for pair in options.pairs or MINIATURE)

    def evaluation(self, options: Options) -> Evaluation:
        """Its test sets, which are fetched before any pair."""
        return Evaluation(options.dest, options.downloads, options.miniature, options.text)

    def text(self, options: Options, pair: str) -> PairText:
        evaluation, langs = self.evaluation(options), parse_pair(pair)
        archives = Archives(pair, options.downloads, options.miniature)
        subsets = {"train": partial(_train, archives, evaluation)} | evaluation.subsets(langs)
        state = {"corpora": VERSIONS, "miniature": options.miniature} | evaluation.state(langs)
        return PairText(langs, subsets, state, archives.lines, archives.remove)

    def evaluated(self, options: Options, texts: Sequence[PairText]) -> list[PairText]:
        """Every two of the languages that are not trained on together: Flores is for all of them."""
        evaluation, trained = self.evaluation(options), {text.langs for text in texts}
        languages = sorted({lang for langs in trained for lang in langs})
        pairs = []
        for langs in combinations(languages, 2):
            subsets = {name: read for name, read in evaluation.subsets(langs).items() if name != "valid"}
            if subsets and langs not in trained:
                pairs.append(PairText(langs, subsets, evaluation.state(langs)))
        return pairs

    def make(self, options: Options, steps: Steps, files: dict[str, Path]) -> dict:
        fetched = self.evaluation(options).fetch()
        return {"files": fetched} | super().make(options, steps, files)


def _train(archives: Archives, evaluation: Evaluation) -> Sentences:
    held_out = tuple(evaluation.held_out(lang) for lang in parse_pair(archives.pair))
    return clean(archives.read(), held_out, archives.pair)
