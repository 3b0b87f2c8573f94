"""Corpus of 102 languages (DeepNet, section 6): CCMatrix, CCAligned, OPUS-100 and Tatoeba, a pair at a time.

It has 12 billion sentence pairs in 1,932 directions, more than one machine holds as text, or reads in an epoch. So the
user names language pairs; each is downloaded, cleaned, segmented and binarised into shards, and its archives are
removed before the next one comes. Pairs that are prepared stay when others are added.

OPUS (opus.nlpl.eu) publishes these corpora: an archive for each corpus and language pair, with a text of each side.
Languages have M2M-100's codes, mostly those of ISO 639-1; OPUS has the same, except those in OTHER_CODES.

one_line(text) puts blanks in the place of characters that other tools take for line ends.
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

MINIATURE = ("de-en", "de-fr", "en-fr")  # its language pairs, unless --pairs names others
SITE = "https://object.pouta.csc.fi"
VERSIONS = {"CCMatrix": "v1", "CCAligned": "v1", "Tatoeba": "v2023-04-12"}  # OPUS' corpus -> its release
OTHER_CODES = {  # corpus -> {our code: OPUS' code in its file names}, from the list of OPUS' files in mtdata
    "CCAligned": {"ceb": "cx", "ckb": "cb", "zh": "zh_CN"},
    "Tatoeba": {"fa": "pes", "ms": "zsm", "no": "nb", "sw": "swh", "zh": "cmn"},
}
LONGEST = 1000  # characters of a sentence; longer ones in mined text are menus and lists


def archives_of(pair: str) -> dict[str, tuple[RemoteFile, list[str]]]:
    """Return corpus -> (archive to download, [path of the source text in it, path of the target text in it]).

    pair: of languages, as "de-en"

    OPUS publishes no checksums, so fetch_all records those of the first download. OPUS-100 ("OPUS (Zhang et al., 2020)"
    in the paper), whose archives have checksums, is returned only for the pairs with English that it has.
    """
    archives = {}
    for corpus, version in VERSIONS.items():
        other_codes = OTHER_CODES.get(corpus, {})  # CCMatrix has our codes
        codes = [other_codes.get(lang, lang) for lang in split_pair(pair)]
        name = "-".join(sorted(codes))  # OPUS names a pair by its codes in alphabetical order
        file = RemoteFile(f"{corpus}.{name}.zip", (f"{SITE}/OPUS-{corpus}/{version}/moses/{name}.txt.zip",))
        archives[corpus] = (file, [f"{corpus}.{name}.{code}" for code in codes])
    if pair in opus100.ARCHIVES:
        archives["OPUS-100"] = (opus100.archive_of(pair), opus100.members(pair, "train"))
    return archives


class Archives:
    """Archives of one language pair, which are downloaded when they are first read.

    pair: as "de-en"
    options: of `deepnet prepare corpus`
    """

    def __init__(self, pair: str, options: Options):
        self.pair = pair
        self.options = options

    @cached_property
    def members(self) -> list[tuple[Path, list[str]]]:
        """Return for each archive (its path, [path of the source text in it, path of the target text in it]).

        The first access downloads them. A corpus without this pair is left out; a UserError is raised if none has it.
        """
        fetched = []
        for corpus, (file, members) in archives_of(self.pair).items():
            try:
                paths = self.options.fetch([file], self.options.downloads)
            except UserError as error:
                # fetch_all's message has "URL: STATUS REASON"; status 404 tells that the corpus does not have the pair
                if ": 404 " not in str(error):
                    raise
                say(f"{corpus} does not have {self.pair}: passed over")
            else:
                fetched.append((paths[file.name], members))
        if not fetched:
            raise UserError(f"--pairs {self.pair}", f"none of {', '.join(VERSIONS)} has it; leave it out")
        return fetched

    def read(self) -> Sentences:
        """Yield the sentence pairs of all archives, uncleaned; raise a UserError for unequal numbers of lines."""
        for path, (source, target) in self.members:
            sources = map(one_line, stream_lines(path, source))
            targets = map(one_line, stream_lines(path, target))
            yield from align(sources, targets, (source, target), empty="keep")  # filter_pairs drops empty ones

    def remove(self) -> None:
        """Delete the downloaded archives; the next reading downloads them again."""
        for file, _ in archives_of(self.pair).values():
            (self.options.downloads / file.name).unlink(missing_ok=True)
        self.__dict__.pop("members", None)  # there cached_property keeps the value: the next access downloads again


def filter_pairs(pairs: Iterable[tuple[str, str]], held_out: tuple[Set[str], Set[str]], name: str) -> Sentences:
    """Yield the sentence pairs that are fit for training; print at the end how many were left out for which reason.

    Left out are pairs with an empty side, equal sides, a side over LONGEST characters, a sentence of a test set on
    either side, and pairs that came before. To find the latter, a hash of 8 bytes is kept of each pair, which takes
    about 80 bytes of memory as a Python object; the probability of a collision among 400 million pairs is below 1%.

    pairs: (source sentence, target sentence)
    held_out: sentences of all test sets in the source language, and in the target language
    name: of the language pair, for the printed line

    Three of M2M-100's filters (Fan et al., 2020, examples/m2m_100 of fairseq) are missing: too much punctuation,
    characters foreign to the language (needs its histograms), lengths of pieces above 3 to 1.
    """
    counts = Counter()  # fate of a pair, "kept" or why it is left out -> number of such pairs
    hashes = set()  # of the pairs that were kept
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
    """Recipe of the corpus of 102 languages.

    --pairs is required, except for a miniature. --from FOLDER gives no training text here, but further test sets:
    FOLDER/PAIR/SUBSET.LANG (see evaluation.py).
    """

    name = "m2m102"
    title = "CCMatrix, CCAligned, OPUS-100 and Tatoeba, for 102 languages in one model (Table 3 of DeepNet)"
    takes = MultilingualRecipe.takes | {"text"}
    vocab = 250_000
    sample = LARGE_SAMPLE

    def files(self, options: Options) -> tuple[RemoteFile, ...]:
        """Return the archives of the test sets and of all requested pairs; fetch() and make() tell when they come."""
        files = list(Evaluation(options).files())
        for pair in self.pairs(options):
            files += [file for file, _ in archives_of(pair).values()]
        return tuple(files)

    def fetch(self, options: Options, steps: Steps) -> dict[str, dict]:
        """Download nothing, return {}: make() fetches the test sets, and Archives those of a pair when it is read."""
        return {}

    def pairs(self, options: Options) -> tuple[str, ...]:
        """Return the pairs that --pairs names, the languages of each in alphabetical order.

        Without --pairs those of a miniature are returned; for the corpus a UserError is raised.
        """
        if options.pairs is None and not options.miniature:
            raise UserError("m2m102", "has 12 billion sentence pairs; name some languages' as --pairs de-en,en-fr")
        return opus100.alphabetical(options.pairs or MINIATURE)

    def text(self, options: Options, pair: str) -> PairText:
        """Return the text of a pair: training text from its archives, and the test sets that have both languages.

        The archives are downloaded when the training text is read or counted, and removed when it is binarised.
        """
        evaluation = Evaluation(options)
        archives = Archives(pair, options)
        langs = split_pair(pair)

        def read_training_pairs() -> Sentences:
            held_out = tuple(map(evaluation.held_out, langs))
            return filter_pairs(archives.read(), held_out, pair)

        def count_uncleaned() -> int:
            """Count the pairs without the slow filter_pairs; they are at least as many as those that it keeps."""
            return sum(1 for _ in archives.read())

        subsets = {"train": read_training_pairs} | evaluation.subsets(langs)
        urls = [file.urls[0] for file, _ in archives_of(pair).values()]
        state = {"archives": urls, "miniature": options.miniature} | evaluation.state(langs)
        return PairText(langs, subsets, state, bound=count_uncleaned, finish=archives.remove)

    def evaluated(self, options: Options, texts: Sequence[PairText]) -> list[PairText]:
        """Return test sets of all pairs of the trained languages that are not trained on, and WMT's test sets.

        WMT's are returned for all directions among the trained languages, because each has a text of its own. The other
        test sets of the trained pairs are in `texts` already.

        texts: of the pairs that are trained on
        """
        evaluation = Evaluation(options)
        trained = {text.langs for text in texts}
        languages = sorted(set(chain.from_iterable(trained)))

        untrained = []
        for langs in combinations(languages, 2):
            subsets = evaluation.subsets(langs)
            subsets.pop("valid", None)  # fairseq validates on training pairs alone
            if subsets and langs not in trained:
                untrained.append(PairText(langs, subsets, evaluation.state(langs)))
        return untrained + evaluation.one_way(languages)

    def make(self, options: Options, steps: Steps, files: dict[str, Path]) -> dict:
        """Download the test sets, then do as other multilingual recipes; add "files", the test sets' archives."""
        fetched = Evaluation(options).fetch()
        return {"files": fetched} | super().make(options, steps, files)
