"""Prepare any parallel text: joint BPE by SentencePiece, then fairseq's binarised data.

The text is read as a stream, anew for each purpose: to check it and count (the survey), to draw the sample from which
the SentencePiece model is learnt, and to cut it into pieces. Memory does not grow with it.

A split is "train", "valid" or "test"; a subset is one text of a split, by fairseq's name: "valid", "valid1", ... Named
pipes can be read only once, so they are copied to temporary files first.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random

from ..errors import UserError
from ..languages import check_pair
from ..wording import counted
from .binarise import binarise, refuse_pathsep
from .folder import new_folder, prepared_size, say_space
from .learning import sample_limits, sentencepiece_model
from .like import find_vocabulary
from .lines import (
    REMOVE,
    Letters,
    as_many,
    map_chunks,
    one_line,
    read_lines,
    read_pairs,
    rereadable,
    write_columns,
)
from .pieces import Counts, Cutter
from .survey import Survey, survey
from .text_form import TextForm
from .vocabulary import sample

MIN_TRAIN_PAIRS = 100  # with fewer sentence pairs the text is refused


@dataclass(frozen=True)
class ParallelText:
    """Two files with a sentence a line, line i of one translating line i of the other.

    Each reading starts from the beginning. lines.one_line removes white space around each line and line ends within it.

    source, target: the files
    empty: what is done with pairs that have an empty side: "drop" leaves them out; for any other words a UserError is
        raised that ends with these words
    """

    source: Path
    target: Path
    empty: str

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Return an iterator of the sentence pairs; it raises a UserError for a text that cannot be used.

        Such a text has bad UTF-8, unequal numbers of lines, or empty lines that are not dropped.
        """
        return read_pairs(self.source, self.target, self.empty, one_line)

    def side(self, side: int) -> Iterator[str]:
        """Return an iterator of the sentences of one side of text that `pairs` has checked.

        side: 0 for source, 1 for target
        """
        if self.empty == "drop":  # both sides must be read: a pair is dropped if either is empty
            return (pair[side] for pair in self.pairs())
        path = (self.source, self.target)[side]
        return map(one_line, read_lines(path))

    @property
    def size(self) -> int:
        """Bytes of both files."""
        return self.source.stat().st_size + self.target.stat().st_size


def prepare_text(
    langs: tuple[str, str],
    prefixes: dict[str, str],
    dest: Path,
    vocab: int = 10_000,
    drop_empty: bool = False,
    sample_lines: int | None = None,
    workers: int | None = None,
    like: str | None = None,
) -> None:
    """Check parallel text, cut it into pieces and binarise it into the new folder `dest`.

    `dest` appears whole at the end, or not at all. It gets the binarised data, spm.model, text_form.json, the text in
    pieces as text/SUBSET.LANG, and, for scores to compare with, all but the training text uncut as raw/SUBSET.LANG.

    langs: source and target, which are also the endings of the files
    prefixes: "train", "valid" and "test" -> prefix P of the files P.LANG; "valid" and "test" may have several prefixes,
        separated by commas
    vocab: number of pieces of the SentencePiece model, which both languages share
    drop_empty: leave out pairs with an empty side; otherwise a UserError is raised for them
    sample_lines: number of lines of the training text that the model is learnt from, of both languages together; None
        for as many as learning.sample_limits allows
    workers: number of processes; None for as many as there are cores
    like: path of a trained model, see like.find_vocabulary, whose SentencePiece model and dictionaries are used; None
        to make new ones

    Raises a UserError, before `dest` exists, for unusable text.
    """
    check_pair("SOURCE and TARGET", *langs)
    refuse_pathsep(dest)
    if not _is_free(dest):
        raise UserError(dest, "exists already; remove it or name another folder")
    if "," in prefixes["train"]:
        raise UserError(prefixes["train"], "one training prefix only; join the files first")
    workers = workers or os.cpu_count() or 1
    known = find_vocabulary(like, langs) if like is not None else None

    # `part` becomes `dest` at the end; `copies` are of pipes, and removed then
    with new_folder(dest) as part, ExitStack() as copies:
        texts = open_texts(langs, prefixes, drop_empty, copies)
        size = sum(text.size for text in texts.values())
        say_space(dest, prepared_size(size, vocab), str(dest))

        form = TextForm(langs)
        surveys = survey_texts(texts, langs, workers, form)

        if known is not None:
            print(f"| pieces and dictionary of {like}")
            model = known.pieces.read_bytes()
        else:
            model = learn_model(texts["train"], surveys["train"], vocab, sample_lines, part)
        (part / "spm.model").write_bytes(model)
        form.write(part)

        print("| cutting the text into pieces", flush=True)
        counts = write_in_pieces(texts, langs, model, surveys, part, workers)

        dictionaries = None  # binarise makes one from `counts`
        if known is not None:
            dictionaries = known.write_dictionaries(part)
            for subset in texts:
                for lang in langs:
                    known.note_unseen(lang, subset, read_lines(part / "text" / f"{subset}.{lang}"))

        print("| binarising", flush=True)
        lines = {subset: found.rows for subset, found in surveys.items()}
        in_pieces = {subset: part / "text" / subset for subset in texts}
        binarise(langs, in_pieces, part, workers, dictionaries, counts, lines)
    print(f"| wrote {dest}; train with --source-lang {langs[0]} --target-lang {langs[1]}")


def _is_free(dest: Path) -> bool:
    """Return whether a new folder can be called `dest`: only an empty folder may have this name."""
    if dest.is_dir():
        return not any(dest.iterdir())
    return not dest.exists()


def open_texts(
    langs: tuple[str, str], prefixes: dict[str, str], drop_empty: bool, copies: ExitStack
) -> dict[str, ParallelText]:
    """Return subset -> text; raise a UserError for a missing file.

    langs: source and target
    prefixes: "train", "valid" and "test" -> prefix P of the files P.LANG, or several, separated by commas
    drop_empty: whether pairs with an empty side are left out when the text is read
    copies: when it closes, it removes the temporary copies of pipes
    """
    empty = "drop" if drop_empty else f"{REMOVE}, or pass --drop-empty"
    source_lang, target_lang = langs

    texts = {}
    for split in ("train", "valid", "test"):
        for number, prefix in enumerate(prefixes[split].split(",")):
            subset = split if number == 0 else f"{split}{number}"
            source = copies.enter_context(rereadable(Path(f"{prefix}.{source_lang}")))
            target = copies.enter_context(rereadable(Path(f"{prefix}.{target_lang}")))
            texts[subset] = ParallelText(source, target, empty)
    return texts


def survey_texts(
    texts: dict[str, ParallelText], langs: tuple[str, str], workers: int, form: TextForm
) -> dict[str, Survey]:
    """Read all texts once, and print the number of their sentence pairs; return subset -> its Survey.

    texts: subset -> text
    langs: source and target
    workers: number of processes
    form: counts the characters of the training text, which is added to it

    Raises a UserError for a text that cannot be used.
    """
    surveys = {}
    for subset, text in texts.items():
        pairs = text.pairs()
        if subset == "train":
            pairs = _added_to(form, pairs)
        surveys[subset] = survey(Survey(langs), pairs, workers, label=subset, size=text.size)

    for subset, text in texts.items():
        if not surveys[subset].rows:
            raise UserError(text.source, "no sentence in it")
        print(f"| {subset}: {counted(surveys[subset].rows, 'sentence pair')}")

    # The counts are those of all texts together: é may be one character in one of them, and two in another.
    letters = Letters(langs)
    for found in surveys.values():
        letters.merge(found.letters)
    letters.warn()
    return surveys


def _added_to(form: TextForm, pairs: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield the sentence pairs unchanged, and add each to `form` on the way."""
    for pair in pairs:
        form.add(pair)
        yield pair


def learn_model(text: ParallelText, found: Survey, vocab: int, sample_lines: int | None, folder: Path) -> bytes:
    """Learn a SentencePiece model of both languages from a random sample of the training pairs; return its bytes.

    text: the training text
    found: its survey
    vocab: number of pieces
    sample_lines: number of lines in the sample, of both languages together; None for as many as sample_limits allows
    folder: place for a temporary copy of the sample

    Raises a UserError for fewer than MIN_TRAIN_PAIRS pairs, and for a text that does not allow so many pieces.
    """
    if found.rows < MIN_TRAIN_PAIRS:
        raise UserError(counted(found.rows, "training pair"), f"too few to train on; give at least {MIN_TRAIN_PAIRS}")

    lines = 2 * found.rows  # of both languages together
    wanted_lines, memory_limit = sample_limits(lines, sample_lines)
    wanted_pairs = max(1, wanted_lines // 2)
    if wanted_pairs == found.rows:
        drawn = f"{lines:,} sentences"
    else:
        drawn = f"{2 * wanted_pairs:,} of {lines:,} sentences, drawn evenly"
    print(f"| training a joint BPE of {vocab:,} pieces on {drawn}", flush=True)

    def sentences() -> Iterator[str]:
        """Yield the sources in the sample, then their translations: with the same seed the same pairs are drawn."""
        for side in (0, 1):
            yield from sample(text.side(side), count=found.rows, wanted=wanted_pairs, rng=Random("vocabulary"))

    return sentencepiece_model(
        sentences(),
        vocab,
        memory_limit=memory_limit,
        whole_text=(lines, found.characters),
        folder=folder,
        character_coverage=1.0,
    )


def write_in_pieces(
    texts: dict[str, ParallelText],
    langs: tuple[str, str],
    model: bytes,
    surveys: dict[str, Survey],
    folder: Path,
    workers: int,
) -> Counter:
    """Write texts in pieces, and validation and test sets uncut too; return piece -> its count in "train".

    The files are text/SUBSET.LANG and raw/SUBSET.LANG in `folder`.

    texts: subset -> text
    langs: source and target
    model: bytes of the SentencePiece model
    surveys: subset -> survey of the text
    workers: number of processes

    Raises a UserError for a text whose number of pairs has changed since its survey.
    """
    cutter = Cutter(model)
    training_counts = Counts(len(cutter.pieces))

    def cut_sides(pairs: list[tuple[str, str]]) -> list[tuple[str, Counts]]:
        """Return, first for the sources and then for the targets, (lines in pieces as one text, counts of pieces)."""
        sources, targets = zip(*pairs, strict=True)
        return [cutter.cut(list(sources)), cutter.cut(list(targets))]

    for subset, text in texts.items():
        expected = surveys[subset].rows
        pairs = as_many(text.pairs(), expected, text.source)
        # `cut_sides` of some thousand pairs at a time
        chunks = map_chunks(cut_sides, pairs, workers, label=f"cutting {subset}", total=expected)
        total = training_counts if subset == "train" else None
        write_columns([folder / "text" / f"{subset}.{lang}" for lang in langs], _counted(chunks, total))
        if subset != "train":
            write_columns([folder / "raw" / f"{subset}.{lang}" for lang in langs], text.pairs())
    return cutter.total(training_counts)


def _counted(chunks: Iterable[list[tuple[str, Counts]]], total: Counts | None) -> Iterator[tuple[str, ...]]:
    """Yield (sources in pieces, targets in pieces) for each chunk of the text, and add the counts of pieces to `total`.

    chunks: [of the sources, of the targets], for some thousand pairs each; either is (lines in pieces, with "\\n"
        between them; counts of pieces)
    total: None to add up nothing
    """
    for sides in chunks:
        if total is not None:
            for _, counts in sides:
                total.add(counts)
        yield tuple(lines for lines, _ in sides)
