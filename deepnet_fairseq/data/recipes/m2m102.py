"""Corpus of 102 languages (DeepNet, section 6): CCMatrix, CCAligned, OPUS-100 and Tatoeba, a pair at a time.

It has 12 billion sentence pairs in 1,932 directions, more than one machine holds as text, or reads in an epoch. So the
user names pairs; each is downloaded, cleaned, segmented and binarised into shards, and its archives are removed before
the next one comes. Pairs that are prepared stay when others are added.

Languages have M2M-100's codes, mostly those of ISO 639-1; OPUS has the same, except those in OTHER_CODES.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence, Set
from functools import cached_property
from hashlib import blake2b
from itertools import chain, combinations
from pathlib import Path

from ...errors import UserError
from ..archive import stream_lines
from ..download import RemoteFile, say
from ..lines import align, is_blank, one_line
from ..multilingual import PairText, Sentences, split_pair
from ..steps import Steps
from . import opus100
from .base import Options
from .evaluation import Evaluation
from .multilingual import LARGE_SAMPLE, MultilingualRecipe

MINIATURE = ("de-en", "de-fr", "en-fr")
SITE = "https://object.pouta.csc.fi"
VERSIONS = {"CCMatrix": "v1", "CCAligned": "v1", "Tatoeba": "v2023-04-12"}
OTHER_CODES = {  # codes in the names of OPUS' files, by mtdata's list of them
    "CCAligned": {"ceb": "cx", "ckb": "cb", "zh": "zh_CN"},
    "Tatoeba": {"fa": "pes", "ms": "zsm", "no": "nb", "sw": "swh", "zh": "cmn"},
}
LONGEST = 1000  # characters a side; sentences beyond are menus and lists


def archives_of(pair: str) -> dict[str, tuple[RemoteFile, list[str]]]:
    """Return corpus -> its archive of a pair, and the archive's members, source and target.

    OPUS orders pairs alphabetically by its own codes, and publishes no checksums: the first download's is kept.
    OPUS-100, "OPUS (Zhang et al., 2020)" in the paper, has some pairs with English.
    """
    archives = {}
    for corpus, version in VERSIONS.items():
        codes = [OTHER_CODES.get(corpus, {}).get(lang, lang) for lang in split_pair(pair)]
        name = "-".join(sorted(codes))
        file = RemoteFile(f"{corpus}.{name}.zip", (f"{SITE}/OPUS-{corpus}/{version}/moses/{name}.txt.zip",))
        archives[corpus] = (file, [f"{corpus}.{name}.{code}" for code in codes])
    if pair in opus100.ARCHIVES:
        archives["OPUS-100"] = (opus100.archive_of(pair), opus100.members(pair, "train"))
    return archives


class Archives:
    """Archives of one pair, fetched when they are first read; a corpus that lacks the pair is skipped."""

    def __init__(self, pair: str, options: Options):
        self.pair = pair
        self.options = options

    @cached_property
    def members(self) -> list[tuple[Path, list[str]]]:
        """Fetch the archives; return each one's path and its members, source and target.

        Raises a UserError if no corpus has the pair.
        """
        fetched = []
        for corpus, (file, members) in archives_of(self.pair).items():
            try:
                paths = self.options.fetch([file], self.options.downloads)
            except UserError as error:
                if ": 404 " not in str(error):
                    raise
                say(f"{corpus} does not have {self.pair}: passed over")
            else:
                fetched.append((paths[file.name], members))
        if not fetched:
            raise UserError(f"--pairs {self.pair}: none of {', '.join(VERSIONS)} has it; leave it out")
        return fetched

    def read(self) -> Sentences:
        """Yield the sentence pairs of all archives, unchanged; UserError for unequal numbers of lines."""
        for path, (source, target) in self.members:
            sources = map(one_line, stream_lines(path, source))
            targets = map(one_line, stream_lines(path, target))
            yield from align(sources, targets, (source, target), empty="keep")

    def remove(self) -> None:
        """Delete the fetched archives; the next reading fetches them anew."""
        for file, _ in archives_of(self.pair).values():
            (self.options.downloads / file.name).unlink(missing_ok=True)
        self.__dict__.pop("members", None)  # of the cached property


def clean(pairs: Iterable[tuple[str, str]], held_out: tuple[Set[str], Set[str]], name: str) -> Sentences:
    """Yield the pairs that are fit for training; print at the end how many were left out for which reason.

    Left out are pairs with an empty side, equal sides, a side over 1,000 characters, one of the sentences `held_out`
    for evaluation on its side, and repeated pairs. To find those, a hash of 8 bytes is kept of each pair, which takes
    about 80 bytes of memory; the probability of a collision among 400 million is below 1%.

    held_out: sentences of the source's language, and of the target's; name: of the pair, for the printed line.

    Three of M2M-100's filters (Fan et al., 2020, examples/m2m_100 of fairseq) are missing: too much punctuation,
    characters foreign to the language (needs its histograms), lengths of pieces above 3 to 1.
    """
    counts = Counter()
    hashes = set()
    for source, target in pairs:
        if is_blank(source) or is_blank(target):
            fate = "empty"
        elif source == target:
            fate = "equal sides"
        elif len(source) > LONGEST or len(target) > LONGEST:
            fate = "too long"
        elif source in held_out[0] or target in held_out[1]:
            fate = "evaluation"
        else:
            pair_hash = blake2b(f"{source}\t{target}".encode(), digest_size=8).digest()
            if pair_hash in hashes:
                fate = "twice"
            else:
                fate = "kept"
                hashes.add(pair_hash)
                yield source, target
        counts[fate] += 1

    listed = ", ".join(f"{fate} {count:,}" for fate, count in counts.most_common())
    print(f"| {name}: {listed}", flush=True)


class M2m102(MultilingualRecipe):
    """Recipe of 102 languages; --pairs is required, --from FOLDER adds test sets, FOLDER/PAIR/SUBSET.LANG."""

    name = "m2m102"
    title = "CCMatrix, CCAligned, OPUS-100 and Tatoeba, for 102 languages in one model (Table 3 of DeepNet)"
    takes = MultilingualRecipe.takes | {"text"}
    vocab = 250_000
    sample = LARGE_SAMPLE

    def files(self, options: Options) -> tuple[RemoteFile, ...]:
        files = list(Evaluation(options).files())
        for pair in self.pairs(options):
            files += [file for file, _ in archives_of(pair).values()]
        return tuple(files)

    def fetch(self, options: Options, steps: Steps) -> dict[str, dict]:
        """Fetch nothing yet: the archives of a pair are fetched when it is read."""
        return {}

    def pairs(self, options: Options) -> tuple[str, ...]:
        """Return the pairs by OPUS' names, each in alphabetical order; raise a UserError if none are requested."""
        if options.pairs is None and not options.miniature:
            raise UserError("m2m102 has 12 billion sentence pairs; name some languages' as --pairs de-en,en-fr")
        return opus100.alphabetical(options.pairs or MINIATURE)

    def text(self, options: Options, pair: str) -> PairText:
        evaluation = Evaluation(options)
        archives = Archives(pair, options)
        langs = split_pair(pair)

        def train() -> Sentences:
            held_out = tuple(map(evaluation.held_out, langs))
            return clean(archives.read(), held_out, pair)

        def bound() -> int:
            return sum(1 for _ in archives.read())

        subsets = {"train": train} | evaluation.subsets(langs)
        urls = [file.urls[0] for file, _ in archives_of(pair).values()]
        state = {"archives": urls, "miniature": options.miniature} | evaluation.state(langs)
        return PairText(langs, subsets, state, bound=bound, finish=archives.remove)

    def evaluated(self, options: Options, texts: Sequence[PairText]) -> list[PairText]:
        """Return the test sets of all pairs of languages that are not trained on together, and WMT's, one way each."""
        evaluation = Evaluation(options)
        trained = {text.langs for text in texts}
        languages = sorted(set(chain.from_iterable(trained)))

        pairs = []
        for langs in combinations(languages, 2):
            subsets = evaluation.subsets(langs)
            subsets.pop("valid", None)  # nothing is validated on without training
            if subsets and langs not in trained:
                pairs.append(PairText(langs, subsets, evaluation.state(langs)))
        return pairs + evaluation.one_way(languages)

    def make(self, options: Options, steps: Steps, files: dict[str, Path]) -> dict:
        fetched = Evaluation(options).fetch()
        return {"files": fetched} | super().make(options, steps, files)
