"""Read the output of fairseq-generate, and align it with references as the metrics need them.

fairseq-generate prints for each sentence lines that begin with a letter and the sentence's number in the test set: S-n
source, T-n reference, H-n translation, with pieces joined by --remove-bpe, D-n the same after --bpe and --tokenizer,
P-n scores. Sentences come in any order. A direction is a pair of languages, "de-en"; a subset is a name of test sets,
"test". A bilingual run has one file, a multilingual one a file for each direction. The corpus' recipe.json says how its
text was processed. The raw references of a corpus are its text before tokenising.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count, takewhile
from pathlib import Path

from sacremoses import MosesDetokenizer

from ...data.lines import STDIN, read_lines
from ...errors import UserError
from ...files import WRONG_VALUES, parse_json, split_paths
from ...languages import parse_pair, possible_pairs
from ...wording import counted
from . import forced, pieces
from .words import base_language

# A line of a sentence: letter, number, what follows. E-0_1 is a step of iterative refinement, and is not used.
OF_SENTENCE = re.compile(r"([A-Z])-(\d{1,18})(?:_\d+)?\t([^\n]*)")
SPEED = re.compile(
    r"Translated (?P<sentences>[\d,]+) .* in (?P<seconds>[\d.]+)s "
    r"\((?P<sentences_per_second>[\d.]+) sentences/s, (?P<tokens_per_second>[\d.]+) tokens/s\)$"
)
TEST_SET = re.compile(r" (?P<subset>\S+) (?P<direction>\S+-\S+) (?P<sentences>\d+) examples$")  # in fairseq's log
# Name, without .txt, that fairseq-generate --results-path gives its file, by --gen-subset; people add the checkpoint's.
RESULTS = re.compile(r"generate-(?P<subset>.+?)(?:[-_]checkpoint.*)?")


@dataclass(frozen=True)
class Output:
    """A file of translations.

    subset ("test"), direction ("de-en"): None if they are unknown. For files in a folder of several find_outputs tells
    them, by the names of file and folder, or else by fairseq's log or the corpus; a subset then is always known.
    """

    file: Path
    subset: str | None = None
    direction: str | None = None


@dataclass(frozen=True)
class Generated:
    """What fairseq-generate printed: translations (D-n) and references (T-n), in the order of the test set.

    path: the file that holds it. references: None if fairseq had none; a word that the model's dictionary lacks reads
    <<unk>> in them, so that no translation matches it. log: lines that belong to no sentence, which are fairseq's log.
    joined: counts of sentences that lost their blanks because their pieces were joined twice.
    """

    path: Path
    translations: list[str]
    references: list[str] | None
    log: list[str]
    joined: pieces.Joined

    @cached_property
    def log_beside(self) -> list[str]:
        """Return the lines of fairseq's log in a file beside the output, see _log_beside."""
        return _log_beside(self.path)

    def logged(self, pattern: re.Pattern) -> list[re.Match]:
        """Return the matches of a pattern in fairseq's log, at most one for each line.

        The log is in the output itself; if nothing matches there, a file beside it is searched.
        """
        return _matches(pattern, self.log) or _matches(pattern, self.log_beside)


def _matches(pattern: re.Pattern, lines: list[str]) -> list[re.Match]:
    """Return the first match of a pattern in each line; lines without a match are left out."""
    found = map(pattern.search, lines)
    return [match for match in found if match]


def read_generated(path: Path) -> Generated:
    """Read an output of fairseq-generate: a file, a pipe, or - for standard input, which is read once.

    Raises a UserError if there are no translations, if a sentence is missing or comes twice, if some translations lack
    references, or if the last line is cut off.
    """
    translations: dict[int, str] = {}  # number of the sentence -> text
    references: dict[int, str] = {}
    log: list[str] = []
    joined = pieces.Joined()
    text_of_h = ""  # translation in the last line H-n, which stands before its D-n
    line = "\n"  # stays if there are no lines; the check below the loop then passes
    for line in read_lines(path, keepends=True):
        match = OF_SENTENCE.match(line)
        if not match:
            log.append(line.removesuffix("\n"))
            continue

        letter = match[1]
        number = int(match[2])
        rest = match[3]  # of T the text, of H and D score, tab, translation
        if letter == "T":
            _put(references, number, rest, what="references", path=path)
        elif letter == "H":
            text_of_h = rest.partition("\t")[2]
        elif letter == "D" and "\t" in rest:  # without the tab the line is damaged, and its sentence is missing
            translation = rest.partition("\t")[2]
            _put(translations, number, translation, what="translations", path=path)
            joined.count(text_of_h, translation)
    if not line.endswith("\n"):
        raise UserError(path, "ends in the middle of a line; generate again")

    ordered_references = _in_order(references, "references", path)
    ordered_translations = _in_order(translations, "translations", path)
    if not translations or (references and len(references) != len(translations)):
        raise UserError(
            path,
            f"{counted(len(translations), 'translation')} for {counted(len(references), 'reference')}; generate again",
        )
    return Generated(
        path=path,
        translations=ordered_translations,
        references=ordered_references or None,
        log=log,
        joined=joined,
    )


def _log_beside(output: Path) -> list[str]:
    """Return the lines of fairseq's log in a file beside an output; [] if there is no such file.

    The file is named generate.log beside generated.txt, and NAME.log beside any other NAME.txt.
    """
    name = "generate.log" if output.name == "generated.txt" else f"{output.stem}.log"
    path = output.with_name(name)
    if output == STDIN or not path.is_file():  # standard input has no files beside it
        return []
    return path.read_text(encoding="utf-8", errors="replace").split("\n")


def _put(sentences: dict[int, str], number: int, text: str, what: str, path: Path) -> None:
    """Set sentences[number] to a sentence's text; raise a UserError if there is one already.

    what: what the texts are, for the message: "references" or "translations"; path: the output.
    """
    if number in sentences:
        raise UserError(path, f"{what} of sentence {number} are there twice; generate once, with --nbest 1")
    sentences[number] = text


def _in_order(sentences: dict[int, str], what: str, path: Path) -> list[str]:
    """Return the texts in the order of their numbers, from 0; raise a UserError if a number is missing.

    sentences: number -> text. what: "references" or "translations", and path: the output, for the message.
    """
    expected = max(sentences, default=-1) + 1
    lost = expected - len(sentences)
    if lost:
        first = next(number for number in count() if number not in sentences)
        raise UserError(
            path,
            f"{what} are missing ({lost}, the first is sentence {first}); generate again, "
            "without --skip-invalid-size-inputs-valid-test",
        )
    return [sentences[number] for number in sorted(sentences)]


def generation_speed(generated: Generated) -> dict[str, float] | None:
    """Return {"seconds", "sentences_per_second", "tokens_per_second"} of the last run in fairseq's log.

    The result is None if the log is missing or does not have them.
    """
    matches = generated.logged(SPEED)
    if not matches:
        return None
    names = ("seconds", "sentences_per_second", "tokens_per_second")
    return {name: float(matches[-1][name]) for name in names}


@dataclass(frozen=True)
class Corpus:
    """A prepared corpus: its folder DEST, with binarised data in DEST/bin, and what DEST/recipe.json says of its text.

    folder: DEST, None without recipe.json; binarised: the folder of the binarised data, None if the user named none.
    detokenise: whether its text is in Moses' tokens, so that scores need it detokenised; lowercase: whether its text is
    in lower case.
    """

    folder: Path | None = None
    binarised: Path | None = None
    detokenise: bool = False
    lowercase: bool = False

    @cached_property
    def languages(self) -> set[str]:
        """Return the languages of its dictionaries, dict.LANG.txt; they tell where to split the name of a direction.

        The set is empty without binarised data. A code may have a hyphen itself, as zh-Hans in "en-zh-Hans".
        """
        if not self.binarised:
            return set()
        files = self.binarised.glob("dict.*.txt")
        return {file.name.removeprefix("dict.").removesuffix(".txt") for file in files}

    def target(self, direction: str) -> str:
        """Return TGT, the target language of a direction "SRC-TGT"."""
        return parse_pair("direction", direction, self.languages)[1]

    def reference(self, subset: str, direction: str) -> Path | None:
        """Return the file of raw references of a test set, the text before tokenising; None if there is none.

        `deepnet prepare corpus` and `deepnet prepare text` keep it.
        """
        target = self.target(direction)
        candidates = []
        if self.folder:  # of `deepnet prepare corpus`
            candidates.append(self.folder / "reference" / f"{subset}.{direction}.{target}")
        if self.binarised:  # of `deepnet prepare text`
            candidates.append(self.binarised / "raw" / f"{subset}.{target}")

        for path in candidates:
            if path.is_file():
                return path
        return None

    def has_direction(self, name: str) -> bool:
        """Tell whether `name` is a direction "SRC-TGT" of two languages of this corpus.

        If the corpus' languages are unknown, any two language codes will do.
        """
        pairs = possible_pairs(name, self.languages, words=False)  # `name` split at each of its hyphens
        return any(not self.languages or self.languages.issuperset(pair) for pair in pairs)

    def only_direction(self, subset: str) -> str | None:
        """Return the direction of the corpus in `subset` if there is just one, else None.

        Directions are known by the binarised data, or else by the raw references.
        """
        known = _directions(self.binarised, f"{subset}.*-*.*.idx") or self.directions_with_references(subset)
        return known.pop() if len(known) == 1 else None

    def directions_with_references(self, subset: str) -> set[str]:
        """Return the directions that have raw references in this subset."""
        folder = self.folder / "reference" if self.folder else None
        return _directions(folder, f"{subset}.*-*.*")

    def pairs(self) -> set[str]:
        """Return the directions that pairs.txt lists, those of a multilingual corpus; empty for a bilingual one."""
        if not self.binarised:
            return set()
        for folder in (self.binarised, self.binarised.parent):  # a shard is one level deeper
            file = folder / "pairs.txt"
            if file.is_file():
                return set(file.read_text(encoding="utf-8").split())
        return set()

    def required_directions(self, subset: str) -> set[str]:
        """Return the directions that a complete translation of `subset` has: those of pairs.txt with raw references.

        If there are no raw references at all, they are all directions of pairs.txt.
        """
        pairs = self.pairs()
        with_references = self.directions_with_references(subset)
        return pairs & with_references if with_references else pairs


def _directions(folder: Path | None, pattern: str) -> set[str]:
    """Return the directions SRC-TGT in the names of files SUBSET.SRC-TGT.ENDING of a folder; none without a folder.

    pattern: which files, as glob takes it.
    """
    if not folder:
        return set()
    return {path.name.split(".")[1] for path in folder.glob(pattern)}


def read_corpus(data: str | Path | None) -> Corpus:
    """Return the Corpus of binarised data, which knows nothing if `data` is None.

    data: as fairseq takes it: DEST/bin, a folder of one shard in it, or several such folders joined with colons, of
    which only the first is read. Without DEST/recipe.json the text counts as neither tokenised nor in lower case.
    Raises a UserError if there is no such folder, or recipe.json is damaged.
    """
    if data is None:
        return Corpus()
    binarised = Path(os.path.abspath(split_paths(str(data))[0]))
    if not binarised.is_dir():
        raise UserError(f"--data {data}", "no such folder; name the binarised data that was translated")

    for folder in (binarised.parent, binarised.parent.parent):  # a shard is one level deeper
        path = folder / "recipe.json"
        if not path.is_file():
            continue
        try:
            recipe = parse_json(path.read_text(encoding="utf-8"))
            detokenise = bool(recipe["detokenise"])
            lowercase = bool(recipe["lowercase"])
        except WRONG_VALUES as error:
            raise UserError(path, f"is damaged ({error!r}); prepare the corpus again") from None
        return Corpus(folder=folder, binarised=binarised, detokenise=detokenise, lowercase=lowercase)
    return Corpus(binarised=binarised)


def find_outputs(path: Path, corpus: Corpus) -> list[Output]:
    """List the outputs of fairseq-generate at `path`, which may be one of these:

    - a file or pipe, which is the output; it need not exist yet
    - the folder of a run, with the output generated.txt or a folder `generated`
    - a folder with files SRC-TGT.txt, whose subset is "test", and SUBSET/SRC-TGT.txt
    - a folder with what fairseq-generate --results-path writes, generate-SUBSET.txt or SRC-TGT/generate-SUBSET.txt;
      then no other file counts

    Raises a UserError for a folder without outputs, for a .txt file whose name is no direction of the corpus, and for
    two outputs of one test set.
    """
    if not path.is_dir():
        return [Output(path)]
    if (path / "generated.txt").is_file():
        return [Output(path / "generated.txt")]
    if (path / "generated").is_dir():
        return find_outputs(path / "generated", corpus)

    files = sorted([*path.glob("*.txt"), *path.glob("*/*.txt")])
    results = [file for file in files if RESULTS.fullmatch(file.stem)]  # generate-SUBSET.txt of fairseq-generate
    if not files:
        raise UserError(
            path, "has neither generated.txt nor files SRC-TGT.txt; name a run, or what fairseq-generate printed"
        )
    if len(results) == 1 and results[0].parent == path:  # the only test set of a run: it needs no direction
        return [Output(results[0])]

    outputs: dict[tuple, Output] = {}  # (subset, direction) -> output
    for file in results or files:
        output = _output_of_results(file, corpus) if results else _output_of_direction(file, path, corpus)
        test_set = (output.subset, output.direction)
        if test_set in outputs:
            other = outputs[test_set].file
            raise UserError(file, f"is of the same test set as {other}; score one of them, or compare the two")
        outputs[test_set] = output
    return list(outputs.values())


def _output_of_direction(file: Path, folder: Path, corpus: Corpus) -> Output:
    """Return the output in a file SRC-TGT.txt or SUBSET/SRC-TGT.txt of `folder`.

    Raises a UserError if SRC-TGT is no direction of the corpus.
    """
    pair = parse_pair(f"{file}: the name", file.stem, corpus.languages)
    if corpus.languages and not corpus.languages.issuperset(pair):
        raise UserError(
            file,
            f"{' and '.join(pair)} are not both languages of {corpus.binarised} "
            f"({', '.join(sorted(corpus.languages))}); name the file SRC-TGT.txt, or put it elsewhere",
        )
    subset = "test" if file.parent == folder else file.parent.name
    return Output(file, subset, direction=file.stem)


def _output_of_results(file: Path, corpus: Corpus) -> Output:
    """Return the output in a file generate-SUBSET.txt.

    The direction is the name of the file's folder, if that is a direction; else the one in fairseq's log; else the
    corpus' only one; else None.
    """
    subset = RESULTS.fullmatch(file.stem)["subset"]
    if corpus.has_direction(file.parent.name):
        return Output(file, subset, direction=file.parent.name)

    # fairseq logs the test set before it prints sentences, so that the rest of a large file need not be read
    before_sentences = takewhile(lambda line: not OF_SENTENCE.match(line), read_lines(file))
    logged = _matches(TEST_SET, [*before_sentences, *_log_beside(file)])
    direction = logged[-1]["direction"] if logged else corpus.only_direction(subset)  # of the log's last run
    return Output(file, subset, direction)


@dataclass(frozen=True)
class AlignedText:
    """Translations beside references, lists with one entry a sentence, in the order of the test set.

    hypotheses, references: translations and references as sacreBLEU needs them, detokenised if the corpus is in tokens.
    generated: both as fairseq-generate printed them, but with pieces of bytes joined. target: the target language, None
    if unknown. raw: whether the references are the corpus' raw text; otherwise they are the lines T-n, in which <<unk>>
    stands for a word that the model's dictionary lacks. notes: what makes a score of them doubtful, a sentence each.
    """

    generated: Generated
    corpus: Corpus
    target: str | None
    hypotheses: list[str]
    references: list[str]
    raw: bool
    notes: list[str]


def align_with_references(output: Output, corpus: Corpus) -> AlignedText:
    """Read an output and its references: the corpus' raw text, or else what fairseq-generate printed.

    Pieces of bytes, as <0xE7>, are joined, unless a raw reference holds such text itself. Raises a UserError if there
    are no references, if sentences are missing or doubled, if their number differs from the log's or the references',
    if they are pieces of words or were joined twice, if they are the references themselves (--score-reference), and if
    they are tokens of an unknown language.
    """
    generated = read_generated(output.file)
    forced.refuse_forced_references(output.file, generated.logged)
    subset, direction = _test_set(output, generated, corpus)
    _check_count(generated, direction)
    pieces.refuse_joined_pieces(output.file, generated.translations, generated.joined)

    # references
    file = corpus.reference(subset, direction) if direction else None
    if not file and generated.references is None:
        raise UserError(output.file, "has no references (lines T-n); give --data, where the raw ones are")
    raw = list(read_lines(file)) if file else None
    if raw is not None and len(raw) != len(generated.translations):
        raise UserError(
            output.file,
            f"{counted(len(generated.translations), 'translation')} for {counted(len(raw), 'line')} of {file}",
        )

    # what makes scores doubtful
    notes = []
    raw_has_bytes = bool(raw) and pieces.count_with_bytes(raw) > 0  # the text itself has "<0xE7>", which has to stay
    count = 0 if raw_has_bytes else pieces.count_with_bytes(generated.translations)
    if count:
        notes.append(f"{output.file}: pieces of bytes, as <0xE7>, are joined here in {counted(count, 'translation')}")
        generated = _with_bytes_joined(generated)
    notes += forced.notes(
        output.file,
        logged=generated.logged,
        translations=generated.translations,
        references=generated.references or raw,
    )
    notes += pieces.notes(output.file, generated.translations)

    # text for sacreBLEU
    hypotheses = generated.translations
    references = generated.references if raw is None else raw
    target = corpus.target(direction) if direction else None
    if corpus.detokenise:
        language = known_target(output.file, target)
        hypotheses = _detokenise(hypotheses, language)
        if raw is None:  # raw text has no tokens
            references = _detokenise(references, language)
    return AlignedText(
        generated=generated,
        corpus=corpus,
        target=target,
        hypotheses=hypotheses,
        references=references,
        raw=raw is not None,
        notes=notes,
    )


def _with_bytes_joined(generated: Generated) -> Generated:
    """Return a copy in which the pieces of bytes of translations and references are joined to characters."""
    translations = [pieces.join_bytes(line) for line in generated.translations]
    references = generated.references
    if references is not None:
        references = [pieces.join_bytes(line) for line in references]
    return replace(generated, translations=translations, references=references)


def _test_set(output: Output, generated: Generated, corpus: Corpus) -> tuple[str, str | None]:
    """Return (subset, direction) of an output; the subset is "test" and the direction None if nothing tells it.

    What tells them, the first that does: the file's name and folder (`output`); fairseq's log; the file's name, if it
    is SRC-TGT.txt. Failing these, the subset may be in a name generate-SUBSET.txt, and the direction may be the only
    one of the corpus.
    """
    if output.subset and output.direction:
        return output.subset, output.direction
    logged = generated.logged(TEST_SET)
    if logged:
        return logged[-1]["subset"], logged[-1]["direction"]  # of the log's last run
    if corpus.has_direction(output.file.stem):
        return "test", output.file.stem

    subset = "test"
    results = RESULTS.fullmatch(output.file.stem)
    if output.subset:
        subset = output.subset
    elif results:
        subset = results["subset"]
    return subset, corpus.only_direction(subset)


def _check_count(generated: Generated, direction: str | None) -> None:
    """Raise a UserError if the output has not as many sentences as its log says.

    The log gives the size of the test set, and the number of sentences that a process translated. If several processes
    shared the test set, the latter is smaller than the whole, and so only a lower bound. direction: that of the output,
    whose test set alone counts; a log may hold several.
    """
    sentences = len(generated.translations)
    logged_sets = generated.logged(TEST_SET)
    sizes = [int(match["sentences"]) for match in logged_sets if match["direction"] == direction]
    translated = [int(match["sentences"].replace(",", "")) for match in generated.logged(SPEED)]

    differs = bool(sizes) and sizes[-1] != sentences
    too_few = bool(translated) and translated[-1] > sentences
    if differs or too_few:
        logged = sizes[-1] if sizes else translated[-1]
        raise UserError(
            generated.path, f"{counted(sentences, 'translation')}, and its log says {logged:,}; generate again"
        )


def known_target(path: Path, target: str | None) -> str:
    """Return `target`, a language; raise a UserError, naming the output `path`, if it is None."""
    if target is None:
        raise UserError(path, "which languages? Keep fairseq-generate's log beside it, or name the file SRC-TGT.txt")
    return target


def _detokenise(sentences: list[str], language: str) -> list[str]:
    """Join Moses' tokens to text by its rules for `language`, and undo its escapes (&apos; and the like)."""
    moses = MosesDetokenizer(lang=base_language(language))
    return [moses.detokenize(sentence.split(), unescape=True) for sentence in sentences]
