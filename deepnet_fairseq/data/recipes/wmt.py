"""Recipes of WMT's English-German and English-French text, both tested on newstest2014.

"The script" is fairseq's examples/translation/prepare-wmt14en2de.sh. "The Admin authors" are Liu et al. (2020), whose
scripts make the other two corpora.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

from ..archive import stream_lines
from ..download import RemoteFile, remote_file
from ..moses import Chain, Limits
from .bilingual import BilingualRecipe

TFDS = "TensorFlow Datasets' list of checksums"


def _statmt(path: str, checksum: str, size: int | None = None, origin: str = TFDS) -> RemoteFile:
    """Return the file at `path` of WMT's site, to be tried at www.statmt.org and statmt.org, by https and then http.

    checksum, size, origin: as in RemoteFile
    """
    return remote_file(
        f"www.statmt.org/{path}", f"statmt.org/{path}", http=True, size=size, checksum=checksum, origin=origin
    )


EUROPARL = _statmt(
    "wmt13/training-parallel-europarl-v7.tgz",
    "sha256:0224c7c710c8a063dfd893b0cc0830202d61f4c75c17eb8e31836103d27d96e7", 657_632_379,
)  # fmt: skip
COMMON_CRAWL = _statmt(
    "wmt13/training-parallel-commoncrawl.tgz",
    "sha256:c7a74e2ea01ac6c920123108627e35278d4ccb5701e15428ffa34de86fa3a9e5", 918_311_367,
)  # fmt: skip
NEWS_COMMENTARY = remote_file(
    "data.statmt.org/wmt17/translation-task/training-parallel-nc-v12.tgz", http=True, size=168_591_139, origin=TFDS,
    checksum="sha256:2b45f30ef1d550d302fd17dd3a5cbe19134ccc4c2cf50c2dae534aee600101a2",
)  # fmt: skip
NEWS_COMMENTARY_9 = _statmt(
    "wmt14/training-parallel-nc-v9.tgz",
    "sha256:cb8953f292298e6877ae433c98912b927cb0766b303f4540512ddd286c748485", 80_418_416,
)  # fmt: skip
UNITED_NATIONS = _statmt(
    "wmt13/training-parallel-un.tgz",
    "sha256:29141b5c1eba149a94f7a59d3b1a834b2e47fe0f8758d68dcd77a3d3f497ee47", 2_365_634_246,
)  # fmt: skip
GIGA_FREN = _statmt(
    "wmt10/training-giga-fren.tar",
    "sha256:3ff8319f6919393520559bfbc7ad6a747ec81b3abc7be9993b338d4b017b4d9a", 2_595_102_720,
)  # fmt: skip
NEWSTEST2013 = remote_file("data.statmt.org/wmt17/translation-task/dev.tgz", http=True)
NEWSTEST2014 = _statmt(
    "wmt14/test-full.tgz", "md5:a8cd784e006feb32ac6f3d9ec7eb389a", origin="sacreBLEU's test set wmt14/full"
)
# archive of training text -> path of a side in it, {} being its language; in the order in which the script joins them
GERMAN = {
    EUROPARL: "training/europarl-v7.de-en.{}",
    COMMON_CRAWL: "commoncrawl.de-en.{}",
    NEWS_COMMENTARY: "training/news-commentary-v12.de-en.{}",
}
FRENCH = {
    EUROPARL: "training/europarl-v7.fr-en.{}",
    COMMON_CRAWL: "commoncrawl.fr-en.{}",
    UNITED_NATIONS: "un/undoc.2000.fr-en.{}",
    NEWS_COMMENTARY_9: "training/news-commentary-v9.fr-en.{}",
    GIGA_FREN: "giga-fren.release2.fixed.{}.gz",
}


class Wmt17(BilingualRecipe):
    """Recipe of what the script makes without its flag --icml17, and calls wmt17_en_de."""

    name = "wmt17_en_de"
    title = "WMT English-German of fairseq's wmt17_en_de, the runs of Table 1"
    langs = ("en", "de")
    training = GERMAN  # archives of the training text, as above
    archives = (*GERMAN, NEWSTEST2014)
    space = 9_000_000_000
    vocab = 40_000
    chain = Chain(normalise=True, aggressive=True)
    test_chain = Chain(aggressive=True)
    subword_limits = Limits(1.5, 1, 250)
    valid_every = 100
    # From a public log of the script, with Perl's tokenizer. In that run German was the source and English the target,
    # which changes no count, because cleaning and BPE treat both sides alike.
    expected = {"training text": 4_590_101, "train": 3_961_179, "valid": 40_058, "test": 3_003}

    def raw_lines(self, subset: str, lang: str, files: dict[str, Path]) -> Iterator[str]:
        """Return the lines of all training corpora, one after another; subset: "train", as `valid_every` is set."""
        texts = [stream_lines(files[file.name], member.format(lang)) for file, member in self.training.items()]
        return itertools.chain.from_iterable(texts)

    def test_lines(self, lang: str, files: dict[str, Path]) -> Iterator[str]:
        """Return the lines of newstest2014 in SGML, sources from its file "src", references from "ref"."""
        source, target = self.langs  # English and the other; file names have the pair with English last, as "deen"
        kind = "src" if lang == source else "ref"
        return stream_lines(files[NEWSTEST2014.name], f"test-full/newstest2014-{target}{source}-{kind}.{lang}.sgm")


class Wmt14(Wmt17):
    """Recipe of the Admin authors: the text of Wmt17, but cleaned before BPE, and validated on newstest2013."""

    name = "wmt14_en_de"
    title = "WMT English-German of the Admin authors"
    archives = (*GERMAN, NEWSTEST2013, NEWSTEST2014)
    space = 8_000_000_000
    vocab = 32_764
    subword_limits = None
    valid_every = None  # newstest2013 is the validation set
    word_limits = Limits(9, 1, 80)  # a ratio of 9 is clean-corpus-n.perl's default
    expected = {"training text": 4_590_101, "valid": 3_000, "test": 3_003}

    def raw_lines(self, subset: str, lang: str, files: dict[str, Path]) -> Iterator[str]:
        """Return the lines of newstest2013 for "valid", and those of Wmt17 for "train"."""
        if subset == "valid":
            return stream_lines(files[NEWSTEST2013.name], f"dev/newstest2013.{lang}")
        return super().raw_lines(subset, lang, files)


class Wmt14French(Wmt17):
    """Recipe of the Admin authors' wmt14en-fr.sh: five corpora of 40.8 million pairs, treated as Wmt17 treats its text.

    40.8 million is the only published count of training text (facebookresearch/fairseq-lua#59). It is too coarse to
    check the text by, so `expected` has the test set only.
    """

    name = "wmt14_en_fr"
    title = "WMT English-French of the Admin authors"
    langs = ("en", "fr")
    training = FRENCH
    archives = (*FRENCH, NEWSTEST2014)
    space = 72_000_000_000  # as many bytes for each sentence pair as wmt17_en_de
    valid_every = 1333  # as in fairseq's prepare-wmt14en2fr.sh
    expected = {"test": 3_003}
