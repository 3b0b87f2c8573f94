"""The steps from the lines of one language pair to binarised data.

A text of both languages is two files, called by their prefix: P stands for P.SRC and P.TGT. Texts are passed on as
subset -> prefix, with fairseq's names of subsets ("train", "valid", "test", "test1", ...), and each stage writes new
ones into DEST/text/STAGE, where DEST is the folder of the corpus.

steps.run(NAME, outputs, settings, make) calls make(), which writes the files or folders `outputs`, and returns what it
returns; if the step of this NAME was done before with the same settings, after the same steps, it only returns what
make() returned then. `with whole(path) as part` lets a file or folder be written as `part`, which becomes `path` at
the end.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from pathlib import Path

from tqdm import tqdm

from ..errors import UserError
from ..files import whole
from ..wording import counted
from .binarise import binarise, count_pieces
from .lines import align, map_rows, read_lines, read_pairs, write_columns, write_lines
from .moses import Chain, Limits, clean, line_function
from .steps import Steps, file_state
from .vocabulary import FAIRSEQ_SPECIAL

Texts = dict[str, Path]  # subset -> prefix
Lines = Callable[[], Iterable[str]]  # function that returns the lines of one language of a text, from the start
MARK = "@@"  # subword-nmt's mark at the end of a piece whose word continues


def sides(prefix: Path, langs: tuple[str, str]) -> list[Path]:
    """Return the files P.SRC and P.TGT of a text; prefix: P; langs: SRC and TGT."""
    return [prefix.with_name(f"{prefix.name}.{lang}") for lang in langs]


class Bilingual:
    """Preparation of a language pair's text. Each public method runs a step, or several, unless they are done already.

    steps: runs the steps and records them in DEST/steps
    dest: DEST
    langs: source and target
    workers: number of processes for work on lines
    text: DEST/text
    """

    def __init__(self, steps: Steps, dest: Path, langs: tuple[str, str], workers: int):
        self.steps = steps
        self.dest = dest
        self.langs = langs
        self.workers = workers
        self.text = dest / "text"

    def _read(self, prefix: Path) -> Iterator[tuple[str, str]]:
        """Return an iterator of the sentence pairs of a text."""
        return read_pairs(*sides(prefix, self.langs))

    def _write(self, prefix: Path, pairs: Iterable[tuple[str, str]]) -> int:
        """Write sentence pairs as the text `prefix`; return their number."""
        return write_columns(sides(prefix, self.langs), pairs)

    def _map_sides(
        self, functions: list[Callable[[str], str]], pairs: Iterable[tuple[str, str]], label: str
    ) -> Iterator[tuple[str, str]]:
        """Return an iterator of (functions[0](source), functions[1](target)) for all pairs, computed by the workers.

        label: of the progress bar
        """

        def apply(pair: tuple[str, str]) -> tuple[str, ...]:
            return tuple(function(line) for function, line in zip(functions, pair))

        return map_rows(apply, pairs, workers=self.workers, label=label)

    def tokenise(self, subset: str, lines: dict[str, Lines], chain: Chain) -> tuple[Path, int]:
        """Tokenise a text; return (prefix of the new text, number of its sentence pairs).

        subset: name of the text
        lines: language -> function that returns its raw lines
        chain: the scripts of Moses that process each line

        Raises a UserError if the languages have different numbers of lines.
        """
        prefix = self.text / "tokenised" / subset

        def make() -> dict:
            functions = [line_function(lang, chain) for lang in self.langs]
            source, target = self.langs
            names = (f"{subset}.{source}", f"{subset}.{target}")  # for errors
            raw = align(lines[source](), lines[target](), names)
            tokenised = self._map_sides(functions, raw, subset)
            return {"sentences": self._write(prefix, tokenised)}

        settings = {"chain": asdict(chain), "tools": {"sacremoses": version("sacremoses")}}
        counts = self.steps.run(f"tokenise.{subset}", sides(prefix, self.langs), settings=settings, make=make)
        return prefix, counts["sentences"]

    def write_references(self, lines: dict[str, Iterable[str]], sentences: int) -> None:
        """Write the test set's references for both directions: DEST/reference/test.SRC-TGT.TGT and test.TGT-SRC.SRC.

        lines: language -> its lines as published
        sentences: number of sentence pairs in the tokenised test set, which each language must have as lines

        Raises a UserError if one has another number of lines.
        """
        folder = self.dest / "reference"

        def make() -> None:
            with whole(folder) as part:
                for source, target in (self.langs, self.langs[::-1]):
                    name = f"test.{source}-{target}.{target}"
                    count = write_lines(part / name, lines[target])
                    if count != sentences:
                        raise UserError(
                            folder / name, f"{counted(count, 'reference')} for {counted(sentences, 'sentence')}"
                        )

        self.steps.run("references", [folder], settings={}, make=make)

    def clean_texts(self, stage: str, texts: Texts, limits: Limits) -> tuple[Texts, dict[str, int]]:
        """Drop the sentence pairs outside the limits; return (the new texts, subset -> number of pairs left in it).

        stage: name of the step, and of the new texts' folder in DEST/text
        """
        folder = self.text / stage

        def make() -> dict:
            counts = {}
            with whole(folder) as part:
                for subset, prefix in texts.items():
                    counts[subset] = self._write(part / subset, clean(self._read(prefix), limits))
            return counts

        # Cleaning does not use sacremoses. Its version stays here so that records of earlier releases count.
        settings = {"limits": str(limits), "tools": {"sacremoses": version("sacremoses")}}
        counts = self.steps.run(stage, [folder], settings=settings, make=make)
        return {subset: folder / subset for subset in texts}, counts

    def hold_out(self, train: Path, every: int) -> Texts:
        """Split training text into "train" and "valid"; return these two texts.

        train: prefix of the training text
        every: of so many pairs the last one goes to "valid", and the others to "train"
        """
        folder = self.text / "split"

        def pairs_of(subset: str) -> Iterator[tuple[str, str]]:
            """Yield the pairs of one subset; the whole text is read for each, so that no pair is kept in memory."""
            for number, pair in enumerate(self._read(train), 1):
                pair_subset = "valid" if number % every == 0 else "train"
                if pair_subset == subset:
                    yield pair

        def make() -> None:
            with whole(folder) as part:
                for subset in ("train", "valid"):
                    self._write(part / subset, pairs_of(subset))

        self.steps.run("split", [folder], settings={"every": every}, make=make)
        return {subset: folder / subset for subset in ("train", "valid")}

    def learn_bpe(self, train: Path, merges: int) -> Path:
        """Learn BPE merges on both languages of `train` together; return the file with them, DEST/text/codes.

        The method is that of Sennrich et al. 2016 (arXiv 1508.07909), by subword-nmt. The first line of the file tells
        the version of its format, and each further one is a merge.

        train: prefix of the training text
        merges: how many; there are fewer if no pair of symbols occurs twice any more
        """
        codes = self.text / "codes"

        def make() -> None:
            from subword_nmt import learn_bpe as learning

            # subword-nmt's functions look these two names up in their module first
            learning.tqdm = partial(tqdm, desc="merges", disable=None)  # a progress bar on a terminal only
            learning.max = most_frequent  # for Python's own max: the same merges in half of the time
            lines = itertools.chain.from_iterable(map(read_lines, sides(train, self.langs)))
            with whole(codes) as part, open(part, "w", encoding="utf-8", newline="\n") as file:
                learning.learn_bpe(lines, file, merges)

        self.steps.run("learn-bpe", [codes], settings={"merges": merges}, make=make)
        return codes

    def apply_bpe(self, codes: Path, texts: Texts) -> tuple[Texts, dict[str, int]]:
        """Cut the words of texts into pieces by the BPE merges in the file `codes`.

        Returns (the new texts, language -> number of distinct pieces in "train").
        """
        segmented = {}
        types_in_train = {}
        for subset, prefix in texts.items():
            segmented[subset], types = self._segment(codes, subset, prefix)
            if subset == "train":
                types_in_train |= types
        return segmented, types_in_train

    def _segment(self, codes: Path, subset: str, prefix: Path) -> tuple[Path, dict[str, int]]:
        """Cut one text into pieces; return (the new text's prefix, language -> its number of distinct pieces).

        codes: file of the BPE merges
        subset: name of the text
        prefix: of the text
        """
        segmented = self.text / "pieces" / subset
        files = sides(segmented, self.langs)

        def make() -> dict:
            from subword_nmt.apply_bpe import BPE

            with open(codes, encoding="utf-8", newline="\n") as file:
                segment = BPE(file, separator=MARK).process_line
            self._write(segmented, self._map_sides([segment, segment], self._read(prefix), subset))
            return {lang: len(count_pieces(path, self.workers)) for lang, path in zip(self.langs, files, strict=True)}

        types = self.steps.run(f"apply-bpe.{subset}", files, settings={}, make=make)
        return segmented, types

    def binarise_texts(self, texts: Texts, codes: Path, dictionary: Path | None = None) -> dict:
        """Binarise texts in pieces into DEST/bin, with a copy of the file `codes`, which cut them.

        dictionary: file of the dictionary of both languages; None to make one of the training text

        Returns what binarise.binarise returns, and "words": the number of entries in the dictionary without fairseq's
        special symbols and without padding ("madeupword0000", ...).
        """
        dest = self.dest / "bin"

        def make() -> dict:
            with whole(dest) as part:
                part.mkdir(parents=True)
                summary = binarise(self.langs, texts, dest=part, workers=self.workers, dictionary=dictionary)
                (part / "codes").write_bytes(codes.read_bytes())
                entries = read_lines(part / f"dict.{self.langs[0]}.txt")  # which has no special symbols
                summary["words"] = sum(1 for entry in entries if not entry.startswith("madeupword"))
            return summary

        return self.steps.run("binarise", [dest], settings={}, make=make)


def most_frequent(counts, key=None):
    """Return the maximum of `counts`; learn_bpe of subword-nmt calls this in the place of Python's max.

    learn_bpe calls max once with an iterable of numbers, without a key. At each merge it calls max with a dict, pair of
    symbols -> how often it occurs, and with the key (its count, the pair): it wants the most frequent pair, and of
    equally frequent ones the greatest. For these calls the same pair is found without calling the key for each pair,
    which takes half of the time.
    """
    if key is None:
        return max(counts)
    highest = max(counts.values())
    return max(pair for pair, count in counts.items() if count == highest)


class Tokenised:
    """Tokenised text of a language pair that a user gives in a folder; raises a UserError if files are missing.

    The folder has train.LANG, and for "valid" and "test" one or several sets, as test.LANG and test.NAME.LANG. fairseq
    calls them "test", "test1", "test2", ...; these names are given in the order of theirs, "test" before "test.NAME".

    folder: the folder
    langs: source and target
    texts: subset, by fairseq's name -> prefix
    names: subset, by fairseq's name -> the name that it has in the folder, as "test" or "test.NAME"
    codes: the file `codes` in the folder, with BPE merges, or None
    dictionary: the file `dict.txt` in the folder, of both languages, or None; it needs `codes`
    """

    def __init__(self, folder: Path, langs: tuple[str, str]):
        self.folder = folder
        self.langs = langs
        self.texts: dict[str, Path] = {}
        self.names: dict[str, str] = {}
        for split in ("train", "valid", "test"):
            for number, name in enumerate(self._names(split)):
                subset = split if number == 0 else f"{split}{number}"
                self.texts[subset] = folder / name
                self.names[subset] = name

        codes = folder / "codes"
        dictionary = folder / "dict.txt"
        self.codes = codes if codes.is_file() else None
        self.dictionary = dictionary if dictionary.is_file() else None
        if self.dictionary and not self.codes:
            raise UserError(dictionary, f"goes with the BPE codes it was made with; put them beside it as {codes}")

    def _names(self, split: str) -> list[str]:
        """Return the names of the sets of a split in the folder, as "test" and "test.NAME", sorted.

        split: "train", "valid" or "test"

        Raises a UserError if a set has one language only, if the split has no set, or if the split "train" has another
        set than "train".
        """
        names_of = {}  # language -> names of the sets that have a file for it
        for lang in self.langs:
            found = {path.name.removesuffix(f".{lang}") for path in self.folder.glob(f"{split}*.{lang}")}
            # train.de and train.NAME.de belong to "train"; trained.de does not
            names_of[lang] = {name for name in found if name == split or name.startswith(f"{split}.")}

        for lang, other in (self.langs, self.langs[::-1]):
            missing = names_of[lang] - names_of[other]
            if missing:
                raise UserError(
                    f"{self.folder / min(missing)}.{other}", f"no such file; {min(missing)}.{lang} is there"
                )

        names = sorted(names_of[self.langs[0]])  # "test" comes before "test.NAME"
        if not names or (split == "train" and names != ["train"]):
            expected = " and ".join(f"{split}.{lang}" for lang in self.langs)
            alone = " alone" if names else ""  # there are some, but besides "train" or in its place "train.NAME"
            raise UserError(f"--from {self.folder}", f"holds no {expected}{alone}")
        return names

    def files(self) -> list[Path]:
        """Return the paths of all files: texts in both languages, and codes and dictionary if present."""
        texts = [path for prefix in self.texts.values() for path in sides(prefix, self.langs)]
        return texts + [path for path in (self.codes, self.dictionary) if path]

    def state(self) -> dict[str, list[int] | None]:
        """Return file name -> [size in bytes, time of change in ns]."""
        return {path.name: file_state(path) for path in self.files()}

    def check(self) -> dict[str, int]:
        """Read all texts; return subset -> number of sentence pairs.

        Prints a warning if fairseq's special symbols, as <unk>, occur as words. Raises a UserError for unequal numbers
        of lines, bad UTF-8, and text that is in pieces already.
        """
        if self.codes:
            for _ in read_lines(self.codes):  # raises a UserError if they are not UTF-8
                pass

        counts = dict.fromkeys(self.texts, 0)
        special = Counter[str]()  # special symbol -> how often it occurs as a word
        for subset, prefix in self.texts.items():
            for number, pair in enumerate(read_pairs(*sides(prefix, self.langs)), 1):
                counts[subset] = number
                for lang, line in zip(self.langs, pair, strict=True):
                    special.update(word for word in line.split() if word in FAIRSEQ_SPECIAL)
                    if f"{MARK} " in line:
                        raise UserError(f"{prefix}.{lang}, line {number}", "is in BPE pieces already; give it before")

        if special:
            marks = dict(special)
            print(
                f"| WARNING: {self.folder}: holds words that are fairseq's own marks, with counts {marks}; escape them"
            )
        return counts
