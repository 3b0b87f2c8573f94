"""What fairseq-generate printed, and a test set of it as the metrics want it, by what its corpus says of its text.

S- source, T- reference, H- and D- translation, P- scores; sentences in any order. A bilingual run has one file of it, a
multilingual one a file a direction.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from sacremoses import MosesDetokenizer

from ...data.lines import read_lines
from ...errors import UserError
from ...files import WRONG_VALUES, parse

SENTENCE = {
    "translations": re.compile(r"^D-(\d+)\t[^\t\n]*\t(.*)$", re.MULTILINE),
    "references": re.compile(r"^T-(\d+)\t(.*)$", re.MULTILINE),
}
SPEED = re.compile(r"Translated .* in ([\d.]+)s \(([\d.]+) sentences/s, ([\d.]+) tokens/s\)$")
TEST_SET = re.compile(r" (\S+) ([^\s-]+-[^\s-]+) \d+ examples$")
OF_SENTENCE = re.compile(r"[A-Z]-\d+\t")
NAME = re.compile(r"[A-Za-z]{2,3}(_[A-Za-z]+)*-[A-Za-z]{2,3}(_[A-Za-z]+)*\.txt")


@dataclass(frozen=True)
class Output:
    """subset and direction ("test", "de-en") where the file's place tells; direction None: a bilingual run's."""

    file: Path
    subset: str | None = None
    direction: str | None = None


def find_outputs(path: Path) -> list[Output]:
    """path: a file, a run's folder, or a folder of SRC-TGT.txt (subset "test") or SUBSET/SRC-TGT.txt.

    UserError for a folder that holds neither; a file is not looked for yet.
    """
    if not path.is_dir():
        return [Output(path, None, path.stem if NAME.fullmatch(path.name) else None)]
    if (path / "generated.txt").is_file():
        return [Output(path / "generated.txt")]
    if (path / "generated").is_dir():
        return find_outputs(path / "generated")
    files = sorted(file for file in [*path.glob("*.txt"), *path.glob("*/*.txt")] if NAME.fullmatch(file.name))
    if not files:
        raise UserError(
            f"{path}: has neither generated.txt nor files SRC-TGT.txt; name a run, or what fairseq-generate printed"
        )
    return [Output(file, "test" if file.parent == path else file.parent.name, file.stem) for file in files]


@dataclass(frozen=True)
class Generated:
    """Translations and references, one a sentence, in the order of the test set.

    `references` is what the model's dictionary leaves of them: a word that it lacks reads <<unk>>, so that no
    translation matches it; None where fairseq knew no references.
    """

    path: Path
    translations: list[str]
    references: list[str] | None


def read_generated(path: Path) -> Generated:
    """UserError if a sentence is missing or there twice, or if there are translations without their references."""
    text = read_text(path)
    if text and not text.endswith("\n"):
        raise UserError(f"{path}: ends in the middle of a line; generate again")
    found = {what: _sentences(pattern, text, what, path) for what, pattern in SENTENCE.items()}
    translations, references = found["translations"], found["references"]
    if not translations or (references and len(references) != len(translations)):
        raise UserError(f"{path}: {len(translations)} translations for {len(references)} references; generate again")
    return Generated(path, translations, references or None)


def generation_speed(generated: Path) -> dict[str, float] | None:
    """Seconds of translating, sentences and tokens a second, as fairseq printed them; None if it did not."""
    match = _last(SPEED, generated)
    names = ("seconds", "sentences_per_second", "tokens_per_second")
    return match and dict(zip(names, map(float, match.groups()), strict=True))


def read_text(path: Path) -> str:
    """The file as it is: a carriage return ends no line. UserError if there is none, or it is no UTF-8."""
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: is no UTF-8 text ({error.reason} at byte {error.start})") from None


def _sentences(pattern: re.Pattern, text: str, what: str, path: Path) -> list[str]:
    found: dict[int, str] = {}
    for number, sentence in pattern.findall(text):
        if int(number) in found:
            raise UserError(f"{path}: {what} of sentence {number} are there twice; generate once, with --nbest 1")
        found[int(number)] = sentence
    if lost := [number for number in range(max(found, default=-1) + 1) if number not in found]:
        raise UserError(
            f"{path}: {what} are missing ({len(lost)}, the first is sentence {lost[0]}); generate again, "
            "without --skip-invalid-size-inputs-valid-test"
        )
    return [found[number] for number in sorted(found)]


def _last(pattern: re.Pattern, generated: Path) -> re.Match | None:
    """The last match in fairseq's log, which stands in the output itself or in a file beside it."""
    log = generated.with_name("generate.log" if generated.name == "generated.txt" else f"{generated.stem}.log")
    for path in (log, generated):
        if path.is_file():
            lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
            matches = [match for line in lines if not OF_SENTENCE.match(line) and (match := pattern.search(line))]
            if matches:
                return matches[-1]
    return None


@dataclass(frozen=True)
class Corpus:
    """The folder DEST over the binarised data, and what DEST/recipe.json holds; the defaults where there is none.

    detokenise: the binarised text is in Moses tokens; lowercase: and in lower case.
    """

    folder: Path | None = None
    binarised: Path | None = None
    segmentation: str | None = None
    detokenise: bool = False
    lowercase: bool = False

    @property
    def in_words(self) -> bool:
        """Whether the text without its pieces is split into words, so that BLEU on it is "tokenised BLEU"."""
        return self.detokenise or self.segmentation == "subword_nmt"

    def reference(self, subset: str, direction: str) -> Path | None:
        """The file of raw references, or None if the corpus has none for this test set."""
        if not self.folder:
            return None
        path = self.folder / "reference" / f"{subset}.{direction}.{direction.split('-')[1]}"
        return path if path.is_file() else None

    def with_references(self, subset: str) -> set[str]:
        """The directions that have raw references in this subset."""
        return _directions(self.folder and self.folder / "reference", f"{subset}.*-*.*")

    def pairs(self) -> set[str]:
        """The directions of pairs.txt; empty for a bilingual corpus."""
        for folder in (self.binarised, self.binarised.parent) if self.binarised else ():  # a shard lies one deeper
            if (folder / "pairs.txt").is_file():
                return set((folder / "pairs.txt").read_text(encoding="utf-8").split())
        return set()

    def directions(self, subset: str) -> set[str]:
        """What a whole translation of `subset` holds: the pairs with a test set of their own."""
        return self.pairs() & (self.with_references(subset) or self.pairs())


def _directions(folder: Path | None, pattern: str) -> set[str]:
    return {path.name.split(".")[1] for path in folder.glob(pattern)} if folder else set()


def read_corpus(data: str | Path | None) -> Corpus:
    """What lies over the binarised data; a Corpus of defaults without data or recipe.json.

    data: as fairseq takes it, DEST/bin, a shard in it, or several joined with colons. UserError if there is no such
    folder, or recipe.json is damaged.
    """
    if data is None:
        return Corpus()
    binarised = Path(os.path.abspath(str(data).split(":")[0]))
    if not binarised.is_dir():
        raise UserError(f"--data {data}: no such folder; name the binarised data that was translated")
    for folder in (binarised.parent, binarised.parent.parent):
        if (path := folder / "recipe.json").is_file():
            try:
                recipe = parse(path.read_text(encoding="utf-8"))
                said = recipe["pieces"], bool(recipe["detokenise"]), bool(recipe["lowercase"])
            except WRONG_VALUES as error:
                raise UserError(f"{path}: is damaged ({error!r}); prepare the corpus again") from None
            return Corpus(folder, binarised, *said)
    return Corpus(binarised=binarised)


@dataclass(frozen=True)
class AlignedText:
    """All lists have one entry a sentence, in the order of the test set.

    hypotheses, references: as text is published, for sacreBLEU; generated: as fairseq-generate printed them.
    direction: as "de-en", None where nothing tells. raw: the references are the corpus's, not the detokenised T- lines,
    in which a word that the model's dictionary lacks is spoilt.
    """

    generated: Generated
    corpus: Corpus
    direction: str | None
    hypotheses: list[str]
    references: list[str]
    raw: bool


def align_with_references(output: Output, corpus: Corpus) -> AlignedText:
    """UserError if sentences are missing, doubled, or not as many as the raw references."""
    generated = read_generated(output.file)
    subset, direction = _test_set(output, corpus)
    raw = direction and corpus.reference(subset, direction)
    if not raw and generated.references is None:
        raise UserError(f"{output.file}: has no references (lines T-n); give --data, where the raw ones are")
    references, hypotheses = list(read_lines(raw)) if raw else generated.references, generated.translations
    if len(references) != len(hypotheses):
        raise UserError(f"{output.file}: {len(hypotheses)} translations for {len(references)} lines of {raw}")
    if corpus.detokenise:
        target = target_of(output.file, direction)
        hypotheses = _detokenise(hypotheses, target)
        references = references if raw else _detokenise(references, target)
    return AlignedText(generated, corpus, direction, hypotheses, references, bool(raw))


def _test_set(output: Output, corpus: Corpus) -> tuple[str, str | None]:
    """Subset and direction: from the file's name, else from fairseq's log, else the only one of the corpus."""
    if output.direction:
        return output.subset or "test", output.direction
    if logged := _last(TEST_SET, output.file):
        return logged[1], logged[2]
    known = _directions(corpus.binarised, "test.*-*.*.idx") or corpus.with_references("test")
    return "test", known.pop() if len(known) == 1 else None


def target_of(path: Path, direction: str | None) -> str:
    """The target language; UserError, naming the file, where nothing tells."""
    if direction is None:
        raise UserError(f"{path}: which languages? Keep fairseq-generate's log beside it, or name the file SRC-TGT.txt")
    return direction.split("-")[1]


def _detokenise(sentences: list[str], language: str) -> list[str]:
    """Undoes Moses tokens and their escapes (&apos; and the like)."""
    moses = MosesDetokenizer(lang=language.split("_")[0])
    return [moses.detokenize(sentence.split(), unescape=True) for sentence in sentences]
