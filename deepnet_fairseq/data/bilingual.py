"""The steps from the lines of one language pair to binarised data, each recorded under its name.

A text is named by its prefix: P stands for P.SRC and P.TGT. Texts are kept as subset -> prefix, in fairseq's names
("train", "valid", "test", "test1", ...), and go from stage to stage in DEST/text/STAGE.
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

Texts = dict[str, Path]
Lines = Callable[[], Iterable[str]]
MARK = "@@"  # mark at the end of a piece whose word continues


def sides(prefix: Path, langs: tuple[str, str]) -> list[Path]:
    """Return the files P.SRC and P.TGT of a prefix P."""
    return [prefix.with_name(f"{prefix.name}.{lang}") for lang in langs]


class Bilingual:
    """Preparation of a language pair, source and target, in `dest`; each method runs one or several of `steps`."""

    def __init__(self, steps: Steps, dest: Path, langs: tuple[str, str], workers: int):
        self.steps, self.dest, self.langs, self.workers = steps, dest, langs, workers
        self.text = dest / "text"

    def _pairs(self, prefix: Path) -> Iterator[tuple[str, str]]:
        return read_pairs(*sides(prefix, self.langs))

    def _write(self, prefix: Path, pairs: Iterable[tuple[str, str]]) -> int:
        return write_columns(sides(prefix, self.langs), pairs)

    def _each(self, functions: list[Callable[[str], str]], pairs: Iterable[tuple[str, str]], label: str):
        """Apply a function to each side of the pairs, in several processes."""
        return map_rows(lambda pair: tuple(f(line) for f, line in zip(functions, pair)), pairs, self.workers, label)

    def tokenise(self, subset: str, lines: dict[str, Lines], chain: Chain) -> tuple[Path, int]:
        """Tokenise a text; return its prefix and the number of its sentences.

        lines: language -> its raw lines. Raises a UserError if the languages have different numbers of lines.
        """
        prefix = self.text / "tokenised" / subset

        def make() -> dict:
            functions = [line_function(lang, chain) for lang in self.langs]
            source, target = self.langs
            raw = align(lines[source](), lines[target](), (f"{subset}.{source}", f"{subset}.{target}"))
            return {"sentences": self._write(prefix, self._each(functions, raw, subset))}

        settings = {"chain": asdict(chain), "tools": {"sacremoses": version("sacremoses")}}
        counts = self.steps.run(f"tokenise.{subset}", sides(prefix, self.langs), settings, make)
        return prefix, counts["sentences"]

    def references(self, lines: dict[str, Iterable[str]], sentences: int) -> None:
        """Write DEST/reference/test.SRC-TGT.TGT for both directions.

        Raises a UserError unless they have as many lines as the test set has `sentences`.
        """
        folder = self.dest / "reference"

        def make() -> None:
            with whole(folder) as part:
                for source, target in (self.langs, self.langs[::-1]):
                    name = f"test.{source}-{target}.{target}"
                    if (count := write_lines(part / name, lines[target])) != sentences:
                        raise UserError(f"{folder / name}: {count:,} references for {sentences:,} sentences")

        self.steps.run("references", [folder], {}, make)

    def clean(self, stage: str, texts: Texts, limits: Limits) -> tuple[Texts, dict[str, int]]:
        """Drop the pairs outside the limits; return the texts, and the number of pairs left in each."""
        folder = self.text / stage

        def make() -> dict:
            with whole(folder) as part:
                return {
                    name: self._write(part / name, clean(self._pairs(text), limits)) for name, text in texts.items()
                }

        settings = {"limits": str(limits), "tools": {"sacremoses": version("sacremoses")}}
        counts = self.steps.run(stage, [folder], settings, make)
        return {subset: folder / subset for subset in texts}, counts

    def hold_out(self, train: Path, every: int) -> Texts:
        """Split training text: every `every`-th pair of `train` goes to the validation text."""
        texts = {subset: self.text / "split" / subset for subset in ("train", "valid")}

        def make() -> None:
            with whole(self.text / "split") as part:
                for subset in texts:
                    numbered = enumerate(self._pairs(train), 1)
                    chosen = (pair for number, pair in numbered if (number % every == 0) == (subset == "valid"))
                    self._write(part / subset, chosen)

        self.steps.run("split", [self.text / "split"], {"every": every}, make)
        return texts

    def learn(self, train: Path, merges: int) -> Path:
        """Learn subword-nmt's codes on both languages together; return DEST/text/codes, one merge a line.

        There are `merges` of them, fewer if no pair of symbols occurs twice any more; Sennrich et al. 2016 (arXiv
        1508.07909).
        """
        codes = self.text / "codes"

        def make() -> None:
            from subword_nmt import learn_bpe as learning

            learning.tqdm = partial(tqdm, desc="merges", disable=None)  # its progress bar on a terminal only
            learning.max = most_frequent
            lines = chain.from_iterable(map(read_lines, sides(train, self.langs)))
            with whole(codes) as part, open(part, "w", encoding="utf-8", newline="\n") as file:
                learning.learn_bpe(lines, file, merges)

        self.steps.run("learn-bpe", [codes], {"merges": merges}, make)
        return codes

    def apply(self, codes: Path, texts: Texts) -> tuple[Texts, dict[str, int]]:
        """Segment the texts; return them, and language -> number of types of pieces in "train"."""
        segmented, types = {subset: self.text / "pieces" / subset for subset in texts}, {}
        for subset, prefix in texts.items():

            def make(prefix=prefix, subset=subset) -> dict:
                from subword_nmt.apply_bpe import BPE

                with open(codes, encoding="utf-8", newline="\n") as file:
                    segment = BPE(file, separator=MARK).process_line
                self._write(segmented[subset], self._each([segment] * 2, self._pairs(prefix), subset))
                files = zip(self.langs, sides(segmented[subset], self.langs), strict=True)
                return {lang: len(count_pieces(path, self.workers)) for lang, path in files}

            counts = self.steps.run(f"apply-bpe.{subset}", sides(segmented[subset], self.langs), {}, make)
            types |= counts if subset == "train" else {}
        return segmented, types

    def binarise(self, texts: Texts, codes: Path, dictionary: Path | None = None) -> dict:
        """Write DEST/bin, with the codes; see binarise.binarise."""
        dest = self.dest / "bin"

        def make() -> dict:
            with whole(dest) as part:
                part.mkdir(parents=True)
                summary = binarise(self.langs, texts, part, self.workers, dictionary)
                (part / "codes").write_bytes(codes.read_bytes())
                words = read_lines(part / f"dict.{self.langs[0]}.txt")
                summary["words"] = sum(not word.startswith("madeupword") for word in words)  # fairseq pads with those
            return summary

        return self.steps.run("binarise", [dest], {}, make)


def most_frequent(pairs, key=None):
    """Find the maximum for subword-nmt, in half of the time: of counts, or at each merge of a dict, by (count, pair).

    pairs: pair of symbols -> how often it occurs.
    """
    if key is None:
        return max(pairs)
    highest = max(pairs.values())
    return max(pair for pair, count in pairs.items() if count == highest)


class Tokenised:
    """Tokenised text in `folder`; raises a UserError if files are missing.

    texts: subset in fairseq's names -> prefix; names: subset -> the name it has in the folder. Validation and test sets
    may be several, as test.NAME.de; the one without a name comes first, the others by name. codes, dictionary: the
    files `codes` and `dict.txt`, None where they are not.
    """

    def __init__(self, folder: Path, langs: tuple[str, str]):
        self.folder, self.langs = folder, langs
        self.texts: dict[str, Path] = {}
        self.names: dict[str, str] = {}
        for split in ("train", "valid", "test"):
            for number, name in enumerate(self._names(split)):
                subset = f"{split}{number or ''}"
                self.texts[subset], self.names[subset] = folder / name, name
        there = [path if path.is_file() else None for path in (folder / "codes", folder / "dict.txt")]
        self.codes, self.dictionary = there
        if self.dictionary and not self.codes:
            codes = folder / "codes"
            raise UserError(f"{there[1]}: goes with the BPE codes it was made with; put them beside it as {codes}")

    def _names(self, split: str) -> list[str]:
        stems = {
            lang: {path.name.removesuffix(f".{lang}") for path in self.folder.glob(f"{split}*.{lang}")}
            for lang in self.langs
        }
        stems = {lang: {name for name in names if f"{name}.".startswith(f"{split}.")} for lang, names in stems.items()}
        for lang, other in (self.langs, self.langs[::-1]):
            if missing := stems[lang] - stems[other]:
                raise UserError(f"{self.folder / min(missing)}.{other}: no such file; {min(missing)}.{lang} is there")
        names = sorted(stems[self.langs[0]])  # the name without a suffix is the shortest, so the first
        if not names or (split == "train" and names != ["train"]):
            expected = " and ".join(f"{split}.{lang}" for lang in self.langs)
            raise UserError(f"--from {self.folder}: holds no {expected}" + (" alone" if names else ""))
        return names

    def files(self) -> list[Path]:
        """List the files: texts in both languages, and codes and dictionary if present."""
        texts = [path for prefix in self.texts.values() for path in sides(prefix, self.langs)]
        return texts + [path for path in (self.codes, self.dictionary) if path]

    def state(self) -> dict[str, list[int] | None]:
        """Return file -> size and time of change."""
        return {path.name: file_state(path) for path in self.files()}

    def check(self) -> dict[str, int]:
        """Return subset -> number of pairs; UserError for unequal lengths, bad UTF-8, and text already in pieces."""
        counts, marks = dict.fromkeys(self.texts, 0), Counter[str]()
        for _ in read_lines(self.codes) if self.codes else ():  # check that they are UTF-8
            pass
        for subset, prefix in self.texts.items():
            for number, pair in enumerate(read_pairs(*sides(prefix, self.langs)), 1):
                counts[subset] = number
                for lang, line in zip(self.langs, pair, strict=True):
                    marks.update(word for word in line.split() if word in FAIRSEQ_SPECIAL)
                    if f"{MARK} " in line:
                        raise UserError(f"{prefix}.{lang}, line {number}: is in BPE pieces already; give it before")
        if marks:
            print(f"| WARNING: {self.folder}: holds fairseq's own marks as words, so often: {dict(marks)}; escape them")
        return counts
