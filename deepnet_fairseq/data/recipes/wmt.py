"""WMT English-German: Europarl v7, Common Crawl and News Commentary v12; tested on newstest2014."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from ..archive import stream_lines
from ..download import at
from ..moses import Chain, Limits
from .bilingual import BilingualRecipe

TFDS = "TensorFlow Datasets' list of checksums"
EUROPARL = at(
    "www.statmt.org/wmt13/training-parallel-europarl-v7.tgz", http=True, size=657_632_379, origin=TFDS,
    checksum="sha256:0224c7c710c8a063dfd893b0cc0830202d61f4c75c17eb8e31836103d27d96e7",
)  # fmt: skip
COMMON_CRAWL = at(
    "www.statmt.org/wmt13/training-parallel-commoncrawl.tgz", http=True, size=918_311_367, origin=TFDS,
    checksum="sha256:c7a74e2ea01ac6c920123108627e35278d4ccb5701e15428ffa34de86fa3a9e5",
)  # fmt: skip
NEWS_COMMENTARY = at(
    "data.statmt.org/wmt17/translation-task/training-parallel-nc-v12.tgz", http=True, size=168_591_139, origin=TFDS,
    checksum="sha256:2b45f30ef1d550d302fd17dd3a5cbe19134ccc4c2cf50c2dae534aee600101a2",
)  # fmt: skip
NEWSTEST2013 = at("data.statmt.org/wmt17/translation-task/dev.tgz", http=True)
NEWSTEST2014 = at(
    "www.statmt.org/wmt14/test-full.tgz", http=True, checksum="md5:a8cd784e006feb32ac6f3d9ec7eb389a",
    origin="sacreBLEU's test set wmt14/full",
)  # fmt: skip
TRAINING = {  # archive -> its member without the language, in the order of fairseq's script
    EUROPARL: "training/europarl-v7.de-en",
    COMMON_CRAWL: "commoncrawl.de-en",
    NEWS_COMMENTARY: "training/news-commentary-v12.de-en",
}


class Wmt17(BilingualRecipe):
    """What fairseq's prepare-wmt14en2de.sh makes without --icml17, and calls wmt17_en_de."""

    name = "wmt17_en_de"
    title = "WMT English-German of fairseq's wmt17_en_de, the runs of Table 1"
    langs = ("en", "de")
    archives = (*TRAINING, NEWSTEST2014)
    space = 9_000_000_000
    vocab = 40_000
    chain, test_chain = Chain(normalise=True, aggressive=True), Chain(aggressive=True)
    subword_limits = Limits(1.5, 1, 250)
    every = 100
    expected = {"training text": 4_590_101, "test": 3_003}

    def raw(self, subset: str, lang: str, files: dict[str, Path]) -> Iterator[str]:
        members = [(files[file.name], f"{member}.{lang}") for file, member in TRAINING.items()]
        return chain.from_iterable(stream_lines(*member) for member in members)

    def published(self, lang: str, files: dict[str, Path]) -> Iterator[str]:
        kind = "src" if lang == self.langs[0] else "ref"
        return stream_lines(files[NEWSTEST2014.name], f"test-full/newstest2014-deen-{kind}.{lang}.sgm")


class Wmt14(Wmt17):
    """The variant of the authors of Admin: the same text, cleaned before BPE, and newstest2013 to validate."""

    name = "wmt14_en_de"
    title = "WMT English-German of the Admin authors"
    archives = (*TRAINING, NEWSTEST2013, NEWSTEST2014)
    space = 8_000_000_000
    vocab = 32_764
    subword_limits = every = None
    word_limits = Limits(9, 1, 80)  # 9 is clean-corpus-n.perl's own
    expected = {"training text": 4_590_101, "valid": 3_000, "test": 3_003}

    def raw(self, subset: str, lang: str, files: dict[str, Path]) -> Iterator[str]:
        if subset == "valid":
            return stream_lines(files[NEWSTEST2013.name], f"dev/newstest2013.{lang}")
        return super().raw(subset, lang, files)
