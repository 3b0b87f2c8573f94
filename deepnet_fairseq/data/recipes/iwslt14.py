"""IWSLT-14 German-English, as fairseq's examples/translation/prepare-iwslt14.sh ("the script") makes it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

from ..archive import stream_lines
from ..download import remote_file
from ..moses import Chain, Limits
from .bilingual import BilingualRecipe, training_lines

ARCHIVE = "de-en.tgz"
TEST_SETS = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")


class Iwslt14(BilingualRecipe):
    """Recipe of TED talks. Its test set is the published sets in TEST_SETS, one after another, as in the script."""

    name = "iwslt14_de_en"
    title = "IWSLT-14 German-English, the runs of Figure 6"
    langs = ("de", "en")
    archives = (  # wit3.fbk.eu no longer has it
        remote_file("dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz", http=True, size=19_982_877,
           checksum="md5:10936dfdf616504ddbd844e91b94ef4a", origin="a public script that calls fairseq's"),
    )  # fmt: skip
    space = 300_000_000
    vocab = 10_000
    # The script cleans before it lower-cases; here lines are lower-cased first, which gives the same text.
    chain = test_chain = Chain(lowercase=True)
    word_limits = Limits(1.5, 1, 175)
    valid_every = 23  # of so many training pairs one is held out for validation
    expected = {
        "training text": 174_443, "clean": 167_522, "train": 160_239, "valid": 7_283, "test": 6_750,
        "types de": 8_842, "types en": 6_628, "types joined": 10_144,
    }  # fmt: skip

    def raw_lines(self, subset: str, lang: str, files: dict[str, Path]) -> Iterator[str]:
        """Return the lines of the training text, without tags; subset: always "train", as `valid_every` is set."""
        return training_lines(stream_lines(files[ARCHIVE], f"de-en/train.tags.de-en.{lang}"))

    def test_lines(self, lang: str, files: dict[str, Path]) -> Iterator[str]:
        """Return the lines of the XML files of all sets in TEST_SETS."""
        members = (f"de-en/IWSLT14.{name}.de-en.{lang}.xml" for name in TEST_SETS)
        return itertools.chain.from_iterable(stream_lines(files[ARCHIVE], member) for member in members)
