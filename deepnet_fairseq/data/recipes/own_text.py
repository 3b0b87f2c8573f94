"""Anybody's text in many languages: a folder of pairs, raw, one sentence a line."""

from __future__ import annotations

from functools import partial

from ...errors import UserError
from ..multilingual.pair_text import PairText, file_state, parse_pair, read_pairs
from ..multilingual.recipe import MultilingualRecipe
from .base import Options

SUBSETS = ("train", "valid", "test")


class OwnText(MultilingualRecipe):
    """FOLDER/PAIR/SUBSET.LANG, as in FOLDER/deu-eng/train.deu; valid and test may be missing."""

    name = "multilingual"
    title = "any text in FOLDER/PAIR/{train,valid,test}.LANG (--from FOLDER), one vocabulary for all its languages"
    takes = MultilingualRecipe.takes | {"text"}
    vocab = 16_000

    def files(self, options: Options) -> tuple:
        return ()

    def check(self, options: Options) -> None:
        if options.text is None:
            raise UserError("the recipe multilingual needs text: --from FOLDER, with FOLDER/de-en/train.de and so on")
        super().check(options)

    def pairs(self, options: Options) -> tuple[str, ...]:
        """The folders that --pairs names, or all."""
        found = sorted(folder.name for folder in options.text.iterdir() if folder.is_dir() and "-" in folder.name)
        missing = [pair for pair in options.pairs or () if pair not in found]
        if missing or not found:
            raise UserError(
                f"{options.text / (missing[0] if missing else 'de-en')}: no such folder; name pairs that are there"
            )
        return options.pairs or tuple(found)

    def text(self, options: Options, pair: str) -> PairText:
        langs = parse_pair(pair)
        subsets, state = {}, {}
        for subset in SUBSETS:
            paths = [options.text / pair / f"{subset}.{lang}" for lang in langs]
            if subset == "train" or any(path.exists() for path in paths):
                subsets[subset] = partial(read_pairs, *paths)
                state |= {path.name: file_state(path) for path in paths}
        return PairText(langs, subsets, state)
