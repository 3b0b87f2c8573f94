"""Read the output of fairseq-generate, and align it with references as the metrics need them.

Lines are S- source, T- reference, H- and D- translation, P- scores; sentences come in any order. A bilingual run has
one file, a multilingual one a file for each direction. The corpus' recipe.json says how its text was processed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from sacremoses import MosesDetokenizer

from ...data.lines import read_lines
from ...errors import UserError
from ...files import WRONG_VALUES, parse
from ...languages import parse_pair, readings
from .words import base_language

SENTENCE = {
    "translations": re.compile(r"^D-(\d+)\t[^\t\n]*\t(.*)$", re.MULTILINE),
    "references": re.compile(r"^T-(\d+)\t(.*)$", re.MULTILINE),
}
SPEED = re.compile(
    r"Translated (?P<sentences>[\d,]+) .* in (?P<seconds>[\d.]+)s "
    r"\((?P<sentences_per_second>[\d.]+) sentences/s, (?P<tokens_per_second>[\d.]+) tokens/s\)$"
)
TEST_SET = re.compile(r" (\S+) (\S+-\S+) (\d+) examples$")
OF_SENTENCE = re.compile(r"[A-Z]-\d+\t")
MARKS = ("▁", "@@")  # marks of pieces of words


@dataclass(frozen=True)
class Output:
    """File of translations, with test set and direction ("test", "de-en") if its place in a folder tells them."""

    file: Path
    subset: str | None = None
    direction: str | None = None


def find_outputs(path: Path, known: Collection[str] = ()) -> list[Output]:
    """List the outputs at `path`: a file, a run's folder, or a folder of SRC-TGT.txt or SUBSET/SRC-TGT.txt.

    A file directly in the folder is of the subset "test". known: codes of languages in use. Raises a UserError for a
    folder without outputs, and for a .txt file in it whose name is no direction; a single file need not exist yet.
    """
    if not path.is_dir():
        return [Output(path)]
    if (path / "generated.txt").is_file():
        return [Output(path / "generated.txt")]
    if (path / "generated").is_dir():
        return find_outputs(path / "generated", known)
    outputs = []
    for file in sorted([*path.glob("*.txt"), *path.glob("*/*.txt")]):
        parse_pair(f"{file}: the name", file.stem, known)
        outputs.append(Output(file, "test" if file.parent == path else file.parent.name, file.stem))
    if not outputs:
        raise UserError(
            f"{path}: has neither generated.txt nor files SRC-TGT.txt; name a run, or what fairseq-generate printed"
        )
    return outputs


@dataclass(frozen=True)
class Generated:
    """Translations and references, one a sentence, in the order of the test set.

    In `references` a word that the model's dictionary lacks reads <<unk>>, so that no translation matches it; None if
    fairseq had no references.
    """

    path: Path
    translations: list[str]
    references: list[str] | None


def read_generated(path: Path) -> Generated:
    """Read an output of fairseq-generate.

    Raises a UserError if a sentence is missing or comes twice, or if some translations lack references.
    """
    text = read_text(path)
    if text and not text.endswith("\n"):
        raise UserError(f"{path}: ends in the middle of a line; generate again")
    sentences = {what: _sentences(pattern, text, what, path) for what, pattern in SENTENCE.items()}
    translations, references = sentences["translations"], sentences["references"]
    if not translations or (references and len(references) != len(translations)):
        raise UserError(f"{path}: {len(translations)} translations for {len(references)} references; generate again")
    return Generated(path, translations, references or None)


def _check_pieces(generated: Generated) -> None:
    """Raise a UserError if most translations hold pieces of words; in a few lines such a mark may be text."""
    for mark in MARKS:
        count = sum(mark in line for line in generated.translations)
        if 2 * count > len(generated.translations):
            raise UserError(
                f"{generated.path}: {count:,} of {len(generated.translations):,} translations hold pieces of words "
                f"({mark}); generate again with --remove-bpe, of SentencePiece --remove-bpe sentencepiece"
            )


def generation_speed(generated: Path) -> dict[str, float] | None:
    """Return seconds of translating, sentences and tokens a second from fairseq's log; None if it has none."""
    matches = _logged(SPEED, generated)
    names = ("seconds", "sentences_per_second", "tokens_per_second")
    return {name: float(matches[-1][name]) for name in names} if matches else None


def read_text(path: Path) -> str:
    """Read a file unchanged: a carriage return ends no line. UserError if it is missing or not UTF-8."""
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: is no UTF-8 text ({error.reason} at byte {error.start})") from None


def _sentences(pattern: re.Pattern, text: str, what: str, path: Path) -> list[str]:
    sentences: dict[int, str] = {}
    for number, sentence in pattern.findall(text):
        if int(number) in sentences:
            raise UserError(f"{path}: {what} of sentence {number} are there twice; generate once, with --nbest 1")
        sentences[int(number)] = sentence
    if lost := [number for number in range(max(sentences, default=-1) + 1) if number not in sentences]:
        raise UserError(
            f"{path}: {what} are missing ({len(lost)}, the first is sentence {lost[0]}); generate again, "
            "without --skip-invalid-size-inputs-valid-test"
        )
    return [sentences[number] for number in sorted(sentences)]


def _logged(pattern: re.Pattern, generated: Path) -> list[re.Match]:
    """Return the matches in fairseq's log, which is in the output itself or in a file beside it."""
    log = generated.with_name("generate.log" if generated.name == "generated.txt" else f"{generated.stem}.log")
    for path in (generated, log):
        if path.is_file():
            lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
            if matches := [m for line in lines if not OF_SENTENCE.match(line) and (m := pattern.search(line))]:
                return matches
    return []


@dataclass(frozen=True)
class Corpus:
    """Folder DEST above the binarised data, with the facts of DEST/recipe.json, or defaults if there is none.

    detokenise: the binarised text is in Moses tokens; lowercase: and in lower case.
    """

    folder: Path | None = None
    binarised: Path | None = None
    detokenise: bool = False
    lowercase: bool = False

    @cached_property
    def languages(self) -> set[str]:
        """Return the language codes of its dictionaries, by which names of directions are read."""
        return {path.name[5:-4] for path in self.binarised.glob("dict.*.txt")} if self.binarised else set()

    def target(self, direction: str) -> str:
        """Return the target language of "SRC-TGT"."""
        return parse_pair("direction", direction, self.languages)[1]

    def reference(self, subset: str, direction: str) -> Path | None:
        """Return the raw references of a test set, by a recipe or by `deepnet prepare text`; None if there are none."""
        target = self.target(direction)
        recipes = self.folder and self.folder / "reference" / f"{subset}.{direction}.{target}"
        texts = self.binarised and self.binarised / "raw" / f"{subset}.{target}"
        return next((path for path in (recipes, texts) if path and path.is_file()), None)

    def with_references(self, subset: str) -> set[str]:
        """Return the directions that have raw references in this subset."""
        return _directions(self.folder and self.folder / "reference", f"{subset}.*-*.*")

    def pairs(self) -> set[str]:
        """Return the directions of pairs.txt; empty for a bilingual corpus."""
        for folder in (self.binarised, self.binarised.parent) if self.binarised else ():  # a shard is one level deeper
            if (folder / "pairs.txt").is_file():
                return set((folder / "pairs.txt").read_text(encoding="utf-8").split())
        return set()

    def directions(self, subset: str) -> set[str]:
        """Return the directions of a complete translation of `subset`: the pairs with a test set of their own."""
        return self.pairs() & (self.with_references(subset) or self.pairs())


def _directions(folder: Path | None, pattern: str) -> set[str]:
    return {path.name.split(".")[1] for path in folder.glob(pattern)} if folder else set()


def read_corpus(data: str | Path | None) -> Corpus:
    """Read the Corpus above the binarised data; defaults without data or recipe.json.

    data: as fairseq takes it, DEST/bin, a shard in it, or several joined with colons. Raises a UserError if there is no
    such folder, or recipe.json is damaged.
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
                settings = bool(recipe["detokenise"]), bool(recipe["lowercase"])
            except WRONG_VALUES as error:
                raise UserError(f"{path}: is damaged ({error!r}); prepare the corpus again") from None
            return Corpus(folder, binarised, *settings)
    return Corpus(binarised=binarised)


@dataclass(frozen=True)
class AlignedText:
    """Translations beside references, lists with one entry a sentence, in the order of the test set.

    hypotheses, references: detokenised, for sacreBLEU; generated: as fairseq-generate printed them. target: the
    language, None if unknown. raw: the references are the corpus's, not the detokenised T- lines, in which a word that
    the model's dictionary lacks is spoilt.
    """

    generated: Generated
    corpus: Corpus
    target: str | None
    hypotheses: list[str]
    references: list[str]
    raw: bool


def align_with_references(output: Output, corpus: Corpus) -> AlignedText:
    """Read an output beside its references: those of the corpus, or else those that fairseq-generate printed.

    Raises a UserError if sentences are missing or doubled, if their number differs from the log's or the references',
    and if they are pieces of words.
    """
    generated = read_generated(output.file)
    subset, direction = _test_set(output, corpus)
    _check_count(generated, direction)
    _check_pieces(generated)
    raw = direction and corpus.reference(subset, direction)
    if not raw and generated.references is None:
        raise UserError(f"{output.file}: has no references (lines T-n); give --data, where the raw ones are")
    references, hypotheses = list(read_lines(raw)) if raw else generated.references, generated.translations
    if len(references) != len(hypotheses):
        raise UserError(f"{output.file}: {len(hypotheses)} translations for {len(references)} lines of {raw}")
    target = direction and corpus.target(direction)
    if corpus.detokenise:
        hypotheses = _detokenise(hypotheses, need_target(output.file, target))
        references = references if raw else _detokenise(references, need_target(output.file, target))
    return AlignedText(generated, corpus, target, hypotheses, references, bool(raw))


def _test_set(output: Output, corpus: Corpus) -> tuple[str, str | None]:
    """Find subset and direction: by the file's place, fairseq's log, the file's name, or the corpus' only one."""
    if output.subset:
        return output.subset, output.direction
    if logged := _logged(TEST_SET, output.file):
        return logged[-1][1], logged[-1][2]
    if readings(output.file.stem, corpus.languages, words=False):
        return "test", output.file.stem
    known = _directions(corpus.binarised, "test.*-*.*.idx") or corpus.with_references("test")
    return "test", known.pop() if len(known) == 1 else None


def _check_count(generated: Generated, direction: str | None) -> None:
    """Raise a UserError unless the output holds as many sentences as its log says.

    The log has the size of the test set, and the sentences of each process if several translated shards of it.
    """
    count = len(generated.translations)
    sizes = [int(m[3]) for m in _logged(TEST_SET, generated.path) if m[2] == direction]
    translated = [int(m["sentences"].replace(",", "")) for m in _logged(SPEED, generated.path)]
    if (sizes and sizes[-1] != count) or (translated and translated[-1] > count):
        logged = sizes[-1] if sizes else translated[-1]
        raise UserError(f"{generated.path}: {count:,} translations, and its log says {logged:,}; generate again")


def need_target(path: Path, target: str | None) -> str:
    """Return the target language; raise a UserError, naming the file, if it is unknown."""
    if target is None:
        raise UserError(f"{path}: which languages? Keep fairseq-generate's log beside it, or name the file SRC-TGT.txt")
    return target


def _detokenise(sentences: list[str], language: str) -> list[str]:
    """Undo Moses tokens and their escapes (&apos; and the like)."""
    moses = MosesDetokenizer(lang=base_language(language))
    return [moses.detokenize(sentence.split(), unescape=True) for sentence in sentences]
