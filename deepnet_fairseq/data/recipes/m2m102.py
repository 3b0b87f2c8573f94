"""The corpus of 102 languages (DeepNet, section 6): CCMatrix, CCAligned and Tatoeba of OPUS, a pair at a time.

12 billion sentence pairs in 1,932 directions: more than one machine holds as text, or reads in an epoch. So pairs are
named, and each is downloaded, cleaned, segmented and binarised into shards, and its archives are removed before the
next one comes. What was there stays when pairs are added.

OPUS goes by ISO 639-1, as M2M-100 does; Flores-101 by codes of its own near ISO 639-3.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from functools import cached_property, partial
from hashlib import blake2b
from itertools import chain, combinations
from pathlib import Path

from ...errors import UserError
from ..archive import stream_lines, unpack
from ..download import RemoteFile, at, described, say
from ..lines import align, one_line, read_lines, read_pairs
from ..multilingual import PairText, Sentences, file_state, parse_pair
from ..steps import Steps
from .base import Options
from .multilingual import MultilingualRecipe
from .opus100 import ORIGIN

MINIATURE = ("de-en", "de-fr", "en-fr")
SITE = "https://object.pouta.csc.fi"
VERSIONS = {"CCMatrix": "v1", "CCAligned": "v1", "Tatoeba": "v2023-04-12"}
LONGEST = 1000  # characters a side; sentences beyond are menus and lists
FLORES_101 = at(
    "dl.fbaipublicfiles.com/flores101/dataset/flores101_dataset.tar.gz", origin="two public scripts",
    checksum="sha256:49fa80207b09fcc0eca8253ed13303b3a0ae0f16081af862601c73ac76f2cba6",
)  # fmt: skip
ZERO_SHOT = at(
    "object.pouta.csc.fi/OPUS-100/v1.0/opus-100-corpus-zeroshot-v1.0.tar.gz", size=2_556_791, origin=ORIGIN,
    checksum="sha256:241de5bf4eb382017337f3ffb23cdf319c971585b5f679da9a420f23a5c2ed8f",
)  # fmt: skip
ZERO_SHOT_LANGUAGES = ("ar", "de", "fr", "nl", "ru", "zh")  # every two of them
FLORES_SPLITS = {"valid": "dev", "flores": "devtest"}
CODES = """
af:afr am:amh ar:ara as:asm ast:ast az:azj be:bel bg:bul bn:ben bs:bos ca:cat ceb:ceb ckb:ckb cs:ces cy:cym da:dan
de:deu el:ell en:eng es:spa et:est fa:fas ff:ful fi:fin fr:fra ga:gle gl:glg gu:guj ha:hau he:heb hi:hin hr:hrv hu:hun
hy:hye id:ind ig:ibo is:isl it:ita ja:jpn jv:jav ka:kat kam:kam kea:kea kk:kaz km:khm kn:kan ko:kor ky:kir lb:ltz
lg:lug ln:lin lo:lao lt:lit luo:luo lv:lav mi:mri mk:mkd ml:mal mn:mon mr:mar ms:msa mt:mlt my:mya ne:npi nl:nld no:nob
ns:nso ny:nya oc:oci om:orm or:ory pa:pan pl:pol ps:pus pt:por ro:ron ru:rus sd:snd sk:slk sl:slv sn:sna so:som sr:srp
sv:swe sw:swh ta:tam te:tel tg:tgk th:tha tl:tgl tr:tur uk:ukr umb:umb ur:urd uz:uzb vi:vie wo:wol xh:xho yo:yor
zh:zho_simpl zh_TW:zho_trad zu:zul
"""
FLORES: dict[str, str] = dict(code.split(":") for code in CODES.split())


def archive_of(corpus: str, pair: str) -> RemoteFile:
    """pair: in the order of the alphabet, as OPUS has it. No checksums are published: the first download's is kept."""
    return RemoteFile(f"{corpus}.{pair}.zip", (f"{SITE}/OPUS-{corpus}/{VERSIONS[corpus]}/moses/{pair}.txt.zip",))


class Archives:
    """Those of one pair, fetched when they are first read; a corpus that does not have the pair is passed over."""

    def __init__(self, pair: str, options: Options):
        self.pair, self.options = pair, options

    @cached_property
    def paths(self) -> dict[str, Path]:
        """corpus -> archive. UserError if no corpus has the pair."""
        paths = {}
        for corpus in VERSIONS:
            file = archive_of(corpus, self.pair)
            try:
                paths[corpus] = self.options.fetch([file], self.options.downloads)[file.name]
            except UserError as error:
                if ": 404 " not in str(error):
                    raise
                say(f"{corpus} does not have {self.pair}: passed over")
        if not paths:
            raise UserError(f"--pairs {self.pair}: none of {', '.join(VERSIONS)} has it; leave it out")
        return paths

    def read(self) -> Sentences:
        """The sentence pairs of all archives, as they are; UserError where languages have not as many lines."""
        for corpus, path in self.paths.items():
            members = tuple(f"{corpus}.{self.pair}.{lang}" for lang in parse_pair(self.pair))
            source, target = (map(one_line, stream_lines(path, member)) for member in members)
            yield from align(source, target, members, empty="keep")

    def lines(self) -> int:
        """Sentence pairs of all archives together."""
        lang = parse_pair(self.pair)[0]
        members = (stream_lines(path, f"{corpus}.{self.pair}.{lang}") for corpus, path in self.paths.items())
        return sum(1 for _ in chain.from_iterable(members))

    def remove(self) -> None:
        """Deletes what was fetched; the next reading fetches anew."""
        for corpus in VERSIONS:
            (self.options.downloads / archive_of(corpus, self.pair).name).unlink(missing_ok=True)
        self.__dict__.pop("paths", None)


def clean(pairs: Iterable[tuple[str, str]], held_out: tuple[Set[str], Set[str]], name: str) -> Sentences:
    """The pairs that are fit for training; says at the end how many were left out for which reason.

    Left out are pairs with an empty side, equal sides, a side over 1,000 characters, one of the sentences `held_out`
    for evaluation on its side, and pairs that came before. Of each that is kept a hash of 8 bytes is remembered, which
    takes about 80 bytes of memory; that any of 400 million is taken for another has a chance below 1%.

    Of what M2M-100 did (Fan et al., 2020, examples/m2m_100 of fairseq) three filters are not here: too much
    punctuation, characters foreign to the language (needs its histograms), lengths of pieces above 3 to 1.
    """
    counts, hashes = Counter(), set()
    for source, target in pairs:
        if not source or not target:
            fate = "empty"
        elif source == target:
            fate = "equal sides"
        elif len(source) > LONGEST or len(target) > LONGEST:
            fate = "too long"
        elif source in held_out[0] or target in held_out[1]:
            fate = "evaluation"
        elif (known := blake2b(f"{source}\t{target}".encode(), digest_size=8).digest()) in hashes:
            fate = "twice"
        else:
            fate = "kept"
            hashes.add(known)
            yield source, target
        counts[fate] += 1
    print(f"| {name}: " + ", ".join(f"{reason} {count:,}" for reason, count in counts.most_common()), flush=True)


class Evaluation:
    """The test sets: in DEST/evaluation once `fetch` was called, which is before any pair, and those of --from."""

    def __init__(self, options: Options):
        self.options, self.folder, self.root = options, options.text, options.dest / "evaluation"

    def fetch(self) -> dict[str, dict]:
        """Downloads and unpacks; name -> {"sha256", "size", "url"}."""
        files = (FLORES_101, ZERO_SHOT)
        folders = [self.root / name for name in ("flores101", "opus100")]

        def make() -> dict:
            found = described(files, self.options.downloads, self.options.fetch)
            for name, folder in zip(found, folders, strict=True):
                unpack(self.options.downloads / name, folder, lambda name: re.search("/dev/|/devtest/|zero-shot", name))
            return found

        return Steps(self.options.dest).run("evaluation", folders, {"files": [file.checksum for file in files]}, make)

    def subsets(self, langs: tuple[str, str]) -> dict[str, Callable[[], Sentences]]:
        """valid and flores where Flores-101 has both languages, opus where OPUS-100 has the pair, and FOLDER's."""
        return {name: partial(read_pairs, *paths, clean=one_line) for name, paths in self._paths(langs).items()}

    def state(self, langs: tuple[str, str]) -> dict:
        """What changes when the test sets of a pair do, as PairText.state."""
        paths = self._paths(langs)
        own = [path for name in self._own_subsets("-".join(langs)) for path in paths[name]]
        return {"subsets": sorted(paths), "given": {str(path): file_state(path) for path in own}}

    def held_out(self, lang: str) -> frozenset[str]:
        """All sentences of a language in all the sets."""
        files = [
            path for folder in (self.root / "opus100", self.folder) if folder for path in folder.rglob(f"*.{lang}")
        ]
        for split in FLORES_SPLITS.values():
            files += self.root.rglob(f"{FLORES.get(lang)}.{split}")
        return frozenset(one_line(line) for path in files for line in read_lines(path))

    def _paths(self, langs: tuple[str, str]) -> dict[str, list[Path]]:
        pair, paths = "-".join(langs), {}
        if all(lang in FLORES for lang in langs):
            for name, split in FLORES_SPLITS.items():
                folder = self.root / "flores101" / "flores101_dataset" / split
                paths[name] = [folder / f"{FLORES[lang]}.{split}" for lang in langs]
        if all(lang in ZERO_SHOT_LANGUAGES for lang in langs):
            folder = self.root / "opus100" / "opus-100-corpus" / "v1.0" / "zero-shot" / pair
            paths["opus"] = [folder / f"opus.{pair}-test.{lang}" for lang in langs]
        for name in self._own_subsets(pair):
            paths[name] = [self.folder / pair / f"{name}.{lang}" for lang in langs]
        return paths

    def _own_subsets(self, pair: str) -> list[str]:
        """The subsets of FOLDER."""
        folder = self.folder / pair if self.folder else None
        return sorted({path.stem for path in folder.iterdir()}) if folder and folder.is_dir() else []


class M2m102(MultilingualRecipe):
    """--pairs is needed; --from FOLDER adds test sets, FOLDER/PAIR/SUBSET.LANG (those of WMT and TED)."""

    name = "m2m102"
    title = "CCMatrix, CCAligned and Tatoeba, for 102 languages in one model (Table 3 of DeepNet), pair by pair"
    takes = MultilingualRecipe.takes | {"text"}
    vocab = 250_000

    def files(self, options: Options) -> tuple[RemoteFile, ...]:
        archives = (archive_of(corpus, pair) for pair in self.pairs(options) for corpus in VERSIONS)
        return FLORES_101, ZERO_SHOT, *archives

    def outline(self, options: Options) -> tuple[str, ...]:
        fetch = "unpack Flores-101 (valid: its dev, flores: its devtest) and the zero-shot test sets of OPUS-100 (opus)"
        filters = "clean each pair: no empty, equal, very long or repeated sides, no sentence of the test sets"
        count, vocabulary, *later = super().outline(options)
        return fetch, count, vocabulary, filters, *later, "remove the archives of each pair when it is done"

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

    def text(self, options: Options, pair: str) -> PairText:
        evaluation, archives, langs = Evaluation(options), Archives(pair, options), parse_pair(pair)

        def train() -> Sentences:
            return clean(archives.read(), tuple(map(evaluation.held_out, langs)), pair)

        subsets = {"train": train} | evaluation.subsets(langs)
        state = {"corpora": VERSIONS, "miniature": options.miniature} | evaluation.state(langs)
        return PairText(langs, subsets, state, archives.lines, archives.remove)

    def evaluated(self, options: Options, texts: Sequence[PairText]) -> list[PairText]:
        """Every two of the languages that are not trained on together: Flores is for all of them."""
        evaluation, trained = Evaluation(options), {text.langs for text in texts}
        languages = sorted({lang for langs in trained for lang in langs})
        pairs = []
        for langs in combinations(languages, 2):
            subsets = {name: read for name, read in evaluation.subsets(langs).items() if name != "valid"}
            if subsets and langs not in trained:
                pairs.append(PairText(langs, subsets, evaluation.state(langs)))
        return pairs

    def make(self, options: Options, steps: Steps, files: dict[str, Path]) -> dict:
        return {"files": Evaluation(options).fetch()} | super().make(options, steps, files)
