"""Test sets of Table 3 (DeepNet, section 6): those of M2M-100 (Fan et al., 2020), and Flores-101.

A test set has the same sentences in several languages, so that any two of them are a pair to test on. WMT's are
different: from 2019 on their sentences were written in the source language, so that the two directions of a pair have
texts of their own.

Languages have M2M-100's codes. A pair is two of them; a direction is a pair that is translated from its first language
into its second. DEST is the folder that the recipe fills. In FOLDER, which --from names, the user may have test sets of
their own, as FOLDER/PAIR/SUBSET.LANG with PAIR as "de-en". A subset is the text that is tested on together, under one
name, such as "valid", "flores" or "wmt". `with whole(path) as part` lets a folder be filled as `part`, which becomes
`path` at the end. one_line(text) puts blanks in the place of characters that other tools take for line ends.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

from ...errors import UserError
from ...files import whole
from ..archive import stream_lines, unpack
from ..download import RemoteFile, fetch_described, remote_file
from ..lines import map_rows, one_line, read_lines, read_pairs, write_lines
from ..multilingual import PairText, Sentences, file_state
from ..steps import Steps
from .base import Options
from .bilingual import published_segments
from .opus100 import ORIGIN
from .wmt import TFDS

FLORES_101 = remote_file(
    "dl.fbaipublicfiles.com/flores101/dataset/flores101_dataset.tar.gz", origin="two public scripts",
    checksum="sha256:49fa80207b09fcc0eca8253ed13303b3a0ae0f16081af862601c73ac76f2cba6",
)  # fmt: skip
ZERO_SHOT = remote_file(
    "object.pouta.csc.fi/OPUS-100/v1.0/opus-100-corpus-zeroshot-v1.0.tar.gz", size=2_556_791, origin=ORIGIN,
    checksum="sha256:241de5bf4eb382017337f3ffb23cdf319c971585b5f679da9a420f23a5c2ed8f",
)  # fmt: skip
ZERO_SHOT_LANGUAGES = ("ar", "de", "fr", "nl", "ru", "zh")  # any two of these have a test set
FLORES_SPLITS = {"valid": "dev", "flores": "devtest"}  # name of a subset here -> Flores-101's name of it
WMT = {  # language -> sacreBLEU's name of its test set with English; on these Fan et al. compare with WMT's systems
    "de": "wmt19", "et": "wmt18", "fi": "wmt17", "fr": "wmt14", "lt": "wmt19", "lv": "wmt17", "ru": "wmt19",
    "tr": "wmt17", "zh": "wmt19",
}  # fmt: skip
TED = RemoteFile(  # Qi et al., 2018
    "ted_talks.tar.gz", ("http://phontron.com/data/ted_talks.tar.gz",), 352_222_045,
    "sha256:03457b9ebc6d60839f1a48c5a03c940266aff78b81fcda4c6d9e2a5a7fb670ae", TFDS,
)  # fmt: skip
TED_TEST = "all_talks_test.tsv"  # a row for each sentence, a column for each language
TED_MISSING = ("__NULL__", "_ _ NULL _ _")  # either of these stands in a cell without a sentence
TED_CODES = """
ar az be bg bn bs cs da de el en es et fa fi fr gl he hi hr hu hy id it ja ka kk ko lt mk mn mr ms my nl no:nb pl pt ro
ru sk sl sq sr sv ta th tr uk ur vi zh:zh-cn zh_TW:zh-tw
"""
# Language -> its column, from LANGUAGE or LANGUAGE:COLUMN above. The columns of a second French and Portuguese, and of
# languages that M2M-100 lacks, are left out.
TED_COLUMNS = {code.partition(":")[0]: code.rpartition(":")[2] for code in TED_CODES.split()}
CODES = """
af:afr am:amh ar:ara as:asm ast:ast az:azj be:bel bg:bul bn:ben bs:bos ca:cat ceb:ceb ckb:ckb cs:ces cy:cym da:dan
de:deu el:ell en:eng es:spa et:est fa:fas ff:ful fi:fin fr:fra ga:gle gl:glg gu:guj ha:hau he:heb hi:hin hr:hrv hu:hun
hy:hye id:ind ig:ibo is:isl it:ita ja:jpn jv:jav ka:kat kam:kam kea:kea kk:kaz km:khm kn:kan ko:kor ky:kir lb:ltz
lg:lug ln:lin lo:lao lt:lit luo:luo lv:lav mi:mri mk:mkd ml:mal mn:mon mr:mar ms:msa mt:mlt my:mya ne:npi nl:nld no:nob
ns:nso ny:nya oc:oci om:orm or:ory pa:pan pl:pol ps:pus pt:por ro:ron ru:rus sd:snd sk:slk sl:slv sn:sna so:som sr:srp
sv:swe sw:swh ta:tam te:tel tg:tgk th:tha tl:tgl tr:tur uk:ukr umb:umb ur:urd uz:uzb vi:vie wo:wol xh:xho yo:yor
zh:zho_simpl zh_TW:zho_trad zu:zul
"""
FLORES: dict[str, str] = dict(code.split(":") for code in CODES.split())  # language -> its code in Flores-101


@cache
def wmt_archives() -> dict[str, RemoteFile]:
    """Return sacreBLEU's name of a test set, as "wmt19" -> the archive that it downloads for it, with its checksum."""
    from sacrebleu.dataset import DATASETS

    archives = {}
    for name in sorted(set(WMT.values())):
        (url,) = DATASETS[name].data  # each of these test sets has one archive
        (md5,) = DATASETS[name].md5
        file_name = url.rpartition("/")[2]  # WMT uses the same name in several years, so `name` is put before it
        archives[name] = RemoteFile(
            f"{name}-{file_name}", (url,), checksum=f"md5:{md5}", origin=f"sacreBLEU's test set {name}"
        )
    return archives


def wmt_set(direction: tuple[str, str]) -> str:
    """Return sacreBLEU's name of the test set of a direction from or into English, as "wmt19"."""
    return next(WMT[lang] for lang in direction if lang != "en")


def wmt_directions(languages: list[str]) -> list[tuple[str, str]]:
    """Return the directions among these languages that have a test set of WMT; all are from or into English."""
    if "en" not in languages:
        return []

    directions = []
    for lang in languages:
        if lang in WMT:
            directions += [("en", lang), (lang, "en")]
    return directions


class Evaluation:
    """The published test sets, in DEST/evaluation, and the user's own ones, in FOLDER.

    `fetch` must be called before a subset is read. A pair is given with its languages in alphabetical order, because
    folders and files of the test sets are named so.

    options: of `deepnet prepare corpus`
    folder: FOLDER, None without --from
    root: DEST/evaluation
    """

    def __init__(self, options: Options):
        self.options = options
        self.folder = options.text
        self.root = options.dest / "evaluation"

    @property
    def has_ted(self) -> bool:
        """Whether TED's talks are used. Their archive can no longer be downloaded, so they are optional.

        They are used if the user has put a copy of the archive into the downloads, or if DEST has them from an earlier
        call. In a miniature the archive is generated.
        """
        copy = self.options.downloads / TED.name
        return self.options.miniature or copy.exists() or (self.root / "ted").is_dir()

    def files(self) -> tuple[RemoteFile, ...]:
        """Return the archives to download; TED's talks are among them only if they are used (see has_ted)."""
        files = [FLORES_101, ZERO_SHOT, *wmt_archives().values()]
        if self.has_ted:
            files.append(TED)
        return tuple(files)

    def fetch(self) -> dict[str, dict]:
        """Download the archives and unpack the test sets into DEST/evaluation, unless that is done already.

        Returns file name of an archive -> {"sha256", "size" in bytes, "url"}.
        """
        files = self.files()
        downloads = self.options.downloads
        folders = [self.root / name for name in ("flores101", "opus100", "wmt")]
        if self.has_ted:
            folders.append(self.root / "ted")

        def wanted(member: str) -> bool:
            """Return whether a file in Flores-101's or OPUS-100's archive is one of the test sets; member: its path."""
            return re.search("/dev/|/devtest/|zero-shot", member) is not None

        def make() -> dict:
            """Do the work; Steps.run calls this unless it is done."""
            records = fetch_described(files, downloads, self.options.fetch)
            unpack(downloads / FLORES_101.name, self.root / "flores101", wanted)
            unpack(downloads / ZERO_SHOT.name, self.root / "opus100", wanted)
            with whole(self.root / "wmt") as part:
                for direction in wmt_directions(["en", *WMT]):
                    write_wmt(direction, downloads, part / "-".join(direction))
            if self.has_ted:
                with whole(self.root / "ted") as part:
                    write_ted(downloads / TED.name, part, self.options.workers)
            return records

        settings = {"files": [file.checksum for file in files]}
        return Steps(self.options.dest).run("evaluation", folders, settings=settings, make=make)

    def subsets(self, langs: tuple[str, str]) -> dict[str, Callable[[], Sentences]]:
        """Return subset -> function that returns an iterator of its sentence pairs, for a pair of languages.

        The subsets are "valid" (Flores-101's dev set), "flores" (its devtest set), "opus" (OPUS-100), "ted", as far as
        they have both languages, and those in FOLDER. One in FOLDER replaces a published one of the same name.
        """
        subsets: dict[str, Callable[[], Sentences]] = {}
        for name, paths in self._paths(langs).items():
            # a line of TED's talks is empty where a talk was not translated, and its pair is dropped; other test sets
            # are read as they are
            empty = "drop" if name == "ted" else "keep"
            read = partial(read_pairs, *paths, empty=empty, clean=one_line)

            if name == "ted" and paths[0].exists():  # before `fetch` there is no file to read
                first_pair = next(read(), None)
                if first_pair is None:  # no talk exists in both languages
                    continue
            subsets[name] = read
        return subsets

    def one_way(self, languages: list[str]) -> list[PairText]:
        """Return WMT's test sets in these languages, one for each direction, as the subset "wmt" of a PairText.

        A pair for which the user has a "wmt" in FOLDER is left out: `subsets` returns that one instead.
        """
        texts = []
        for langs in wmt_directions(languages):
            pair = "-".join(sorted(langs))  # a pair's folder in FOLDER is named in alphabetical order
            if "wmt" in self._own_subsets(pair):
                continue
            paths = [self.root / "wmt" / "-".join(langs) / f"test.{lang}" for lang in langs]
            subsets = {"wmt": partial(read_pairs, *paths, clean=one_line)}
            texts.append(PairText(langs, subsets, state={"set": wmt_set(langs)}, one_way=True))
        return texts

    def state(self, langs: tuple[str, str]) -> dict:
        """Return what changes when the test sets of a pair change, for PairText.state.

        "subsets" has their names; "given" has, for the user's own, path -> [size in bytes, time of change in ns]. The
        published ones do not change.
        """
        paths = self._paths(langs)
        given = {}
        for name in self._own_subsets("-".join(langs)):
            given |= {str(path): file_state(path) for path in paths[name]}
        return {"subsets": sorted(paths), "given": given}

    def held_out(self, lang: str) -> frozenset[str]:
        """Return all sentences in a language of all test and validation sets, which must not be trained on.

        The sets of all pairs count, the user's own included.
        """
        folders = [self.root / name for name in ("opus100", "wmt", "ted")]
        if self.folder:
            folders.append(self.folder)
        files = []
        for folder in folders:
            files += folder.rglob(f"*.{lang}")
        if lang in FLORES:  # its files are named CODE.SPLIT, not NAME.LANG as the others
            for split in FLORES_SPLITS.values():
                files += self.root.rglob(f"{FLORES[lang]}.{split}")

        sentences = set()
        for path in files:
            sentences.update(map(one_line, read_lines(path)))
        return frozenset(sentences)

    def _paths(self, langs: tuple[str, str]) -> dict[str, list[Path]]:
        """Return subset -> its two files, in the order of `langs`, for the subsets that this pair of languages has.

        Published ones are in DEST/evaluation, the user's own in FOLDER; a later entry replaces one of the same name.
        """
        pair = "-".join(langs)
        paths = {}
        if all(lang in FLORES for lang in langs):
            for name, split in FLORES_SPLITS.items():
                folder = self.root / "flores101" / "flores101_dataset" / split
                paths[name] = [folder / f"{FLORES[lang]}.{split}" for lang in langs]
        if all(lang in ZERO_SHOT_LANGUAGES for lang in langs):
            folder = self.root / "opus100" / "opus-100-corpus" / "v1.0" / "zero-shot" / pair
            paths["opus"] = [folder / f"opus.{pair}-test.{lang}" for lang in langs]
        if self.has_ted and all(lang in TED_COLUMNS for lang in langs):
            paths["ted"] = [self.root / "ted" / f"test.{lang}" for lang in langs]
        for name in self._own_subsets(pair):
            paths[name] = [self.folder / pair / f"{name}.{lang}" for lang in langs]
        return paths

    def _own_subsets(self, pair: str) -> list[str]:
        """Return the names of the subsets in FOLDER/PAIR, sorted; none without FOLDER. pair: PAIR, as "de-en"."""
        if not self.folder or not (self.folder / pair).is_dir():
            return []
        return sorted({path.stem for path in (self.folder / pair).iterdir()})


def write_wmt(langs: tuple[str, str], downloads: Path, folder: Path) -> None:
    """Write WMT's test set of a direction into `folder`, as test.LANG: source and reference, as sacreBLEU has them.

    langs: the direction
    downloads: folder of the archives

    Raises a UserError for a broken archive.
    """
    from sacrebleu.dataset import DATASETS

    name = wmt_set(langs)
    archive = downloads / wmt_archives()[name].name
    members = DATASETS[name].langpairs["-".join(langs)]  # paths of source and reference in the archive
    for lang, member in zip(langs, members, strict=True):
        sentences = published_segments(stream_lines(archive, member))  # out of the tags of SGML
        write_lines(folder / f"test.{lang}", sentences)


def write_ted(archive: Path, folder: Path, workers: int) -> None:
    """Write the test set of TED's talks into `folder`, as test.LANG for each language in TED_COLUMNS.

    The published text is in Moses' tokens; it is detokenised. A missing sentence becomes an empty line.

    archive: ted_talks.tar.gz
    workers: number of processes

    Raises a UserError for an archive without one of the languages.
    """
    from sacremoses import MosesDetokenizer

    # a table: a row for each sentence, a column for each language
    rows = [line.split("\t") for line in stream_lines(archive, TED_TEST)]
    header = rows.pop(0) if rows else []
    for lang, column in TED_COLUMNS.items():
        if column not in header:
            raise UserError(archive, f"{TED_TEST} has no column {column}; get the archive from a better place")
        position = header.index(column)
        tokens = [_ted_tokens(row[position]) for row in rows]
        detokenise = MosesDetokenizer(lang).detokenize  # takes a list of tokens
        write_lines(folder / f"test.{lang}", map_rows(detokenise, tokens, workers, label=f"ted {lang}"))


def _ted_tokens(cell: str) -> list[str]:
    """Return the Moses tokens of the sentence in a cell of the table TED_TEST; none where it is missing."""
    if any(mark in cell for mark in TED_MISSING):
        return []
    return cell.split()
