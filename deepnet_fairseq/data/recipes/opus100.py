"""OPUS-100 v1.0 (Zhang et al., 2020): 99 pairs with English, up to a million sentence pairs each.

The corpus has one archive for each language pair, and calls its splits train, dev and test. one_line(text) puts blanks
in the place of characters that other tools take for line ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from ...errors import UserError
from ..archive import stream_lines
from ..download import RemoteFile, remote_file
from ..lines import align, one_line
from ..multilingual import PairText, Sentences, split_pair
from .base import Options
from .multilingual import LARGE_SAMPLE, MultilingualRecipe

SITE = "object.pouta.csc.fi/OPUS-100/v1.0"
MINIATURE = ("an-en", "de-en", "en-fr", "en-ru")  # its language pairs, unless --pairs names others
SPLITS = {"train": "train", "valid": "dev", "test": "test"}  # fairseq's name of a subset -> the corpus' name
BINARISED = 4  # bytes of binarised data for each byte of an archive, about
ORIGIN = "the datasets library, datasets/opus100/dataset_infos.json"  # who published the checksums


class Archive(NamedTuple):
    """Facts about the archive of one language pair.

    size: bytes
    sha256: in hexadecimal
    train, dev, test: number of sentence pairs in each split, 0 if the pair lacks it
    """

    size: int
    sha256: str
    train: int
    dev: int
    test: int


def _read_archives() -> dict[str, Archive]:
    """Return language pair, as "de-en" -> facts about its archive, from the table opus100.tsv beside this file."""
    archives = {}
    table = Path(__file__).with_suffix(".tsv").read_text(encoding="utf-8")
    for row in table.splitlines()[1:]:  # after the header
        pair, size, sha256, train, dev, test = row.split("\t")
        archives[pair] = Archive(int(size), sha256, train=int(train), dev=int(dev), test=int(test))
    return archives


ARCHIVES = _read_archives()


class Opus100(MultilingualRecipe):
    """Recipe of OPUS-100, for all its language pairs or those in --pairs.

    The vocabulary of 250,000 pieces follows from the numbers of parameters in Table 2 of DeepNet.
    """

    name = "opus100"
    title = "OPUS-100 v1.0, 99 pairs with English, for 100 languages in one model (Table 2, Figure 8 of DeepNet)"
    vocab = 250_000
    sample = LARGE_SAMPLE
    expected = {  # for the plan; the archives have checksums, so that nothing needs to be counted
        "train, all pairs": sum(archive.train for archive in ARCHIVES.values()),
        "dev, all pairs": sum(archive.dev for archive in ARCHIVES.values()),
        "test, all pairs": sum(archive.test for archive in ARCHIVES.values()),
    }

    def files(self, options: Options) -> tuple[RemoteFile, ...]:
        return tuple(archive_of(pair) for pair in self.pairs(options))

    def needs(self, options: Options) -> int:
        """Return the bytes on disk of the archives and the binarised data; text is read from the archives directly."""
        archive_bytes = sum(ARCHIVES[pair].size for pair in self.pairs(options))
        return (1 + BINARISED) * archive_bytes

    def pairs(self, options: Options) -> tuple[str, ...]:
        """Return the pairs that --pairs names; without it, all pairs of the corpus, or those of its miniature.

        The languages of each are in alphabetical order, as the corpus names them. Raises a UserError for a pair that
        the corpus lacks.
        """
        if options.pairs is None:
            return MINIATURE if options.miniature else tuple(ARCHIVES)

        pairs = alphabetical(options.pairs)
        for pair in pairs:
            if pair not in ARCHIVES:
                raise UserError(f"--pairs {pair}", f"OPUS-100 has no such pair; it has {', '.join(ARCHIVES)}")
        return pairs

    def text(self, options: Options, pair: str) -> PairText:
        """Return the text of a pair, which is read from its archive in the folder of downloads."""
        archive = ARCHIVES[pair]
        path = options.downloads / archive_of(pair).name
        subsets = {}
        for subset, split in SPLITS.items():
            sentence_pairs = getattr(archive, split)
            if sentence_pairs:  # small languages lack dev and test
                subsets[subset] = partial(_read, path, pair, split)
        state = {"sha256": archive.sha256, "miniature": options.miniature}  # tells whether the text is another one
        return PairText(split_pair(pair), subsets, state)


def alphabetical(pairs: Iterable[str]) -> tuple[str, ...]:
    """Return pairs with the languages of each in alphabetical order, as OPUS names them, each pair once."""
    return tuple(dict.fromkeys("-".join(sorted(split_pair(pair))) for pair in pairs))


def archive_of(pair: str) -> RemoteFile:
    """Return the file to download for a pair in ARCHIVES."""
    archive = ARCHIVES[pair]
    return remote_file(
        f"{SITE}/opus-100-corpus-{pair}-v1.0.tar.gz",
        size=archive.size,
        checksum=f"sha256:{archive.sha256}",
        origin=ORIGIN,
    )


def members(pair: str, split: str) -> list[str]:
    """Return the paths of source and target text of a split, "train", "dev" or "test", in the archive of a pair."""
    return [f"opus-100-corpus/v1.0/supervised/{pair}/opus.{pair}-{split}.{lang}" for lang in split_pair(pair)]


def _read(archive: Path, pair: str, split: str) -> Sentences:
    """Return an iterator of the sentence pairs of one split, "train", "dev" or "test".

    Pairs with an empty side are left out of training text alone: test sets stay as published, for comparable scores.

    archive: path of the archive
    pair: of languages, as "de-en"

    The iterator raises a UserError if the archive is unusable.
    """
    source, target = members(pair, split)
    sources = map(one_line, stream_lines(archive, source))
    targets = map(one_line, stream_lines(archive, target))
    empty = "drop" if split == "train" else "keep"
    return align(sources, targets, (source, target), empty=empty)
