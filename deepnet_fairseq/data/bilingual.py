"""The steps from the lines of one language pair to binarised data, each recorded under its name (see steps.Steps).

A text is two files, called by their prefix: P stands for P.SRC and P.TGT. Texts are passed on as subset -> prefix,
with fairseq's names of subsets ("train", "valid", "test", "test1", ...), and each stage writes new ones into
DEST/text/STAGE.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from itertools import chain
from pathlib import Path

from tqdm import tqdm

from ..errors import UserError
from ..files import whole
from .binarise import binarise, count_pieces
from .lines import align, map_rows, read_lines, read_pairs, write_columns, write_lines
from .moses import Chain, Limits, clean, line_function
from .steps import Steps, file_state
from .vocabulary import FAIRSEQ_SPECIAL

Texts = dict[str, Path]  # subset -> prefix
Lines = Callable[[], Iterable[str]]  # function that returns the lines of one side of a text, from the start
MARK = "@@"  # subword-nmt's mark at the end of a piece whose word continues


def sides(prefix: Path, langs: tuple[str, str]) -> list[Path]:
    """Return the files P.SRC and P.TGT of a prefix P; langs: SRC and TGT."""
    return [prefix.with_name(f"{prefix.name}.{lang}") for lang in langs]


class Bilingual:
    """Preparation of a language pair's text in the folder `dest`; each public method runs one or several of `steps`.

    langs: source and target
    workers: processes for work on lines
    text: DEST/text
    """

    def __init__(self, steps: Steps, dest: Path, langs: tuple[str, str], workers: int):
        self.steps = steps
        self.dest = dest
        self.langs = langs
        self.workers = workers
        self.text = dest / "text"

    def _pairs(self, prefix: Path) -> Iterator[tuple[str, str]]:
        """Return an iterator of the sentence pairs of a text."""
        return read_pairs(*sides(prefix, self.langs))

    def _write(self, prefix: Path, pairs: Iterable[tuple[str, str]]) -> int:
        """Write sentence pairs as the text `prefix`; return their number."""
        return write_columns(sides(prefix, self.langs), pairs)

    def _each(self, functions: list[Callable[[str], str]], pairs: Iterable[tuple[str, str]], label: str):
        """Return an iterator of the pairs with functions[0] applied to the source, and functions[1] to the target.

        The workers apply them; label: of the progress bar
        """

        def apply(pair: tuple[str, str]) -> tuple[str, ...]:
            return tuple(function(line) for function, line in zip(functions, pair))

        return map_rows(apply, pairs, workers=self.workers, label=label)

    def tokenise(self, subset: str, lines: dict[str, Lines], chain: Chain) -> tuple[Path, int]:
        """Tokenise a text; return its prefix and the number of its sentences.

        lines: language -> function that returns its raw lines; chain: the scripts of Moses that are applied

        Raises a UserError if the languages have different numbers of lines.
        """
        prefix = self.text / "tokenised" / subset

        def make() -> dict:
            functions = [line_function(lang, chain) for lang in self.langs]
            source, target = self.langs
            names = (f"{subset}.{source}", f"{subset}.{target}")
            raw = align(lines[source](), lines[target](), names)
            return {"sentences": self._write(prefix, self._each(functions, raw, subset))}

        settings = {"chain": asdict(chain), "tools": {"sacremoses": version("sacremoses")}}
        counts = self.steps.run(f"tokenise.{subset}", sides(prefix, self.langs), settings=settings, make=make)
        return prefix, counts["sentences"]

    def references(self, lines: dict[str, Iterable[str]], sentences: int) -> None:
        """Write the test set's references for both directions, as DEST/reference/test.SRC-TGT.TGT.

        lines: language -> its lines as published; sentences: number of lines that each must have

        Raises a UserError if one has another number of lines.
        """
        folder = self.dest / "reference"

        def make() -> None:
            with whole(folder) as part:
                for source, target in (self.langs, self.langs[::-1]):
                    name = f"test.{source}-{target}.{target}"
                    count = write_lines(part / name, lines[target])
                    if count != sentences:
                        raise UserError(folder / name, f"{count:,} references for {sentences:,} sentences")

        self.steps.run("references", [folder], settings={}, make=make)

    def clean(self, stage: str, texts: Texts, limits: Limits) -> tuple[Texts, dict[str, int]]:
        """Drop the pairs outside the limits; return the new texts, and subset -> the number of pairs left in it.

        stage: name of the step, and of the new texts' folder in DEST/text
        """
        folder = self.text / stage

        def make() -> dict:
            counts = {}
            with whole(folder) as part:
                for subset, prefix in texts.items():
                    counts[subset] = self._write(part / subset, clean(self._pairs(prefix), limits))
            return counts

        settings = {"limits": str(limits), "tools": {"sacremoses": version("sacremoses")}}
        counts = self.steps.run(stage, [folder], settings=settings, make=make)
        return {subset: folder / subset for subset in texts}, counts

    def hold_out(self, train: Path, every: int) -> Texts:
        """Split training text into "train" and "valid": every `every`-th pair of `train` goes to "valid"."""
        folder = self.text / "split"

        def pairs_of(subset: str) -> Iterator[tuple[str, str]]:
            for number, pair in enumerate(self._pairs(train), 1):
                pair_subset = "valid" if number % every == 0 else "train"
                if pair_subset == subset:
                    yield pair

        def make() -> None:
            with whole(folder) as part:
                for subset in ("train", "valid"):
                    self._write(part / subset, pairs_of(subset))

        self.steps.run("split", [folder], settings={"every": every}, make=make)
        return {subset: folder / subset for subset in ("train", "valid")}

    def learn(self, train: Path, merges: int) -> Path:
        """Learn BPE merges on both languages of `train` together; return the file with them, DEST/text/codes.

        The method is that of Sennrich et al. 2016 (arXiv 1508.07909), by subword-nmt. The file has one merge a line.

        merges: how many; there are fewer if no pair of symbols occurs twice any more
        """
        codes = self.text / "codes"

        def make() -> None:
            from subword_nmt import learn_bpe as learning

            learning.tqdm = partial(tqdm, desc="merges", disable=None)  # shows its progress bar on a terminal only
            learning.max = most_frequent  # replaces the builtin there: the same merges in half of the time
            lines = chain.from_iterable(map(read_lines, sides(train, self.langs)))
            with whole(codes) as part, open(part, "w", encoding="utf-8", newline="\n") as file:
                learning.learn_bpe(lines, file, merges)

        self.steps.run("learn-bpe", [codes], settings={"merges": merges}, make=make)
        return codes

    def apply(self, codes: Path, texts: Texts) -> tuple[Texts, dict[str, int]]:
        """Segment texts by the merges in the file `codes`; return the new texts, and counts of distinct pieces.

        The counts are language -> number of distinct pieces in "train".
        """
        segmented = {}
        types = {}
        for subset, prefix in texts.items():
            segmented[subset], subset_types = self._segment(codes, subset, prefix)
            if subset == "train":
                types |= subset_types
        return segmented, types

    def _segment(self, codes: Path, subset: str, prefix: Path) -> tuple[Path, dict[str, int]]:
        """Segment the text `prefix`; return the new text's prefix, and language -> its number of distinct pieces."""
        segmented = self.text / "pieces" / subset
        files = sides(segmented, self.langs)

        def make() -> dict:
            from subword_nmt.apply_bpe import BPE

            with open(codes, encoding="utf-8", newline="\n") as file:
                segment = BPE(file, separator=MARK).process_line
            self._write(segmented, self._each([segment, segment], self._pairs(prefix), subset))
            return {lang: len(count_pieces(path, self.workers)) for lang, path in zip(self.langs, files, strict=True)}

        types = self.steps.run(f"apply-bpe.{subset}", files, settings={}, make=make)
        return segmented, types

    def binarise(self, texts: Texts, codes: Path, dictionary: Path | None = None) -> dict:
        """Binarise the texts into DEST/bin, with a copy of `codes`.

        dictionary: file of the dictionary of both languages; None to make one of the training text

        Returns what binarise.binarise returns, and "words": the number of entries in the dictionary without fairseq's
        special symbols and its padding.
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


def most_frequent(pairs, key=None):
    """Return the maximum, as `max` does for subword-nmt's learn_bpe, but in half of the time.

    learn_bpe calls it in two ways: with plain counts and no key; and, at each merge, with pairs as a dict, pair of
    symbols -> how often it occurs, and a key by which the most frequent pair wins, and of equally frequent ones the
    greatest. The key is not called, but its rule is followed.
    """
    if key is None:
        return max(pairs)
    highest = max(pairs.values())
    return max(pair for pair, count in pairs.items() if count == highest)


class Tokenised:
    """Tokenised text of a language pair that a user gives in `folder`; raises a UserError if files are missing.

    There may be several validation and test sets: test.de and test.NAME.de. The one without a NAME is fairseq's "test",
    and the others are "test1", "test2", ... in the order of their names; if all have one, the first of them is "test".

    langs: source and target
    texts: subset, by fairseq's name -> prefix
    names: subset, by fairseq's name -> the name it has in the folder, "test.NAME"
    codes, dictionary: the files `codes` (BPE merges) and `dict.txt` in the folder, None where there are none
    """

    def __init__(self, folder: Path, langs: tuple[str, str]):
        self.folder = folder
        self.langs = langs
        self.texts: dict[str, Path] = {}
        self.names: dict[str, str] = {}
        for split in ("train", "valid", "test"):
            for number, name in enumerate(self._names(split)):
                subset = f"{split}{number}" if number else split
                self.texts[subset] = folder / name
                self.names[subset] = name

        codes = folder / "codes"
        dictionary = folder / "dict.txt"
        self.codes = codes if codes.is_file() else None
        self.dictionary = dictionary if dictionary.is_file() else None
        if self.dictionary and not self.codes:
            raise UserError(dictionary, f"goes with the BPE codes it was made with; put them beside it as {codes}")

    def _names(self, split: str) -> list[str]:
        """Return the sorted names that the subsets of a split have in the folder: "test" and "test.NAME" for "test".

        Raises a UserError if a language lacks one, if there are none, and if there are several for training.
        """
        names_of = {}  # language -> the names
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
            raise UserError(f"--from {self.folder}: holds no {expected}" + (" alone" if names else ""))
        return names

    def files(self) -> list[Path]:
        """Return all files: texts in both languages, and codes and dictionary if present."""
        texts = [path for prefix in self.texts.values() for path in sides(prefix, self.langs)]
        return texts + [path for path in (self.codes, self.dictionary) if path]

    def state(self) -> dict[str, list[int] | None]:
        """Return file name -> [size in bytes, time of change in ns]."""
        return {path.name: file_state(path) for path in self.files()}

    def check(self) -> dict[str, int]:
        """Read all texts; return subset -> number of pairs.

        Prints a warning if fairseq's special symbols, as <unk>, occur as words. Raises a UserError for unequal numbers
        of lines, bad UTF-8, and text that is in pieces already.
        """
        if self.codes:
            for _ in read_lines(self.codes):  # raises a UserError if they are not UTF-8
                pass

        counts = dict.fromkeys(self.texts, 0)
        marks = Counter[str]()  # special symbol -> how often it occurs as a word
        for subset, prefix in self.texts.items():
            for number, pair in enumerate(read_pairs(*sides(prefix, self.langs)), 1):
                counts[subset] = number
                for lang, line in zip(self.langs, pair, strict=True):
                    marks.update(word for word in line.split() if word in FAIRSEQ_SPECIAL)
                    if f"{MARK} " in line:
                        raise UserError(f"{prefix}.{lang}, line {number}", "is in BPE pieces already; give it before")

        if marks:
            print(f"| WARNING: {self.folder}: holds fairseq's own marks as words, so often: {dict(marks)}; escape them")
        return counts
