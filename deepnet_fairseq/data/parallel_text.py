"""Prepare any parallel text: joint BPE by SentencePiece, then fairseq's binarised data.

The text is read as a stream three times: to check it, to draw the sample from which the pieces are learnt, and to cut
it. Memory does not grow with it.
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
from .binarise import binarise, check_dest
from .folder import new_folder, prepared_size, say_space
from .learning import sample_size, sentencepiece_model
from .like import find_vocabulary
from .lines import (
    REMOVE,
    Letters,
    Pairs,
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

MIN_TRAIN_PAIRS = 100


@dataclass(frozen=True)
class ParallelText:
    """Two files of a sentence a line, which are read again and again, each line through one_line.

    empty: "drop", for pairs with an empty side, or the way out to name in an error; see lines.align.
    """

    source: Path
    target: Path
    empty: str

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Yield the sentence pairs; UserError for bad UTF-8, unequal numbers of lines, or empty lines."""
        return read_pairs(self.source, self.target, self.empty, one_line)

    def side(self, number: int) -> Iterator[str]:
        """Yield the sentences of one side; text that was checked takes half the time where no pair is left out."""
        if self.empty == "drop":
            return (pair[number] for pair in self.pairs())
        return map(one_line, read_lines((self.source, self.target)[number]))

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
    """Read and check everything, then write `dest`, which appears in one move.

    langs: source and target suffix; prefixes: split -> prefix, several for valid and test separated by commas (fairseq
    then calls them valid, valid1, ...); vocab: SentencePiece pieces of the joint vocabulary, learnt from sample_lines
    lines of the training text, both languages together (None: as many as fit, see learning.sample_size); workers:
    processes, by default as many as there are cores; like: a model, as for find_vocabulary, whose pieces and
    dictionaries are taken in place of new ones. `dest` gets the binarised data, spm.model, text_form.json, the
    segmented text under text/, and as raw/test.LANG, raw/valid.LANG and so on the raw text that scores compare with.
    Raises a UserError, before `dest` exists, for unusable text.
    """
    check_pair("SOURCE and TARGET", *langs)
    check_dest(dest)
    if not _is_free(dest):
        raise UserError(f"{dest}: exists already; remove it or name another folder")
    if "," in prefixes["train"]:
        raise UserError(f"{prefixes['train']}: one training prefix only; join the files first")
    workers = workers or os.cpu_count() or 1
    known = find_vocabulary(like, langs) if like is not None else None

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
            model = learn(texts["train"], surveys["train"], vocab, sample_lines, part)
        (part / "spm.model").write_bytes(model)
        form.write(part)

        print("| cutting the text into pieces", flush=True)
        counts = cut(texts, langs, model, surveys, part, workers)

        dictionaries = None
        if known is not None:
            dictionaries = known.write_dictionaries(part)
            for name in texts:
                for lang in langs:
                    known.note_unseen(lang, name, read_lines(part / "text" / f"{name}.{lang}"))

        print("| binarising", flush=True)
        lines = {name: found.rows for name, found in surveys.items()}
        segmented = {name: part / "text" / name for name in texts}
        binarise(langs, segmented, part, workers, dictionaries, counts, lines)
    print(f"| wrote {dest}; train with --source-lang {langs[0]} --target-lang {langs[1]}")


def _is_free(dest: Path) -> bool:
    """Return whether a folder can take this name: nothing has it, or an empty folder."""
    if dest.is_dir():
        return not any(dest.iterdir())
    return not dest.exists()


def open_texts(
    langs: tuple[str, str], prefixes: dict[str, str], drop_empty: bool, copies: ExitStack
) -> dict[str, ParallelText]:
    """Return subset, in fairseq's names -> text; UserError for a missing file. copies: of pipes, until it closes."""
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


def read_parallel(prefix: str, source_lang: str, target_lang: str, drop_empty: bool = False) -> Pairs:
    """Return all pairs of PREFIX.source_lang and PREFIX.target_lang, for text that fits into memory; see ParallelText.

    Raises a UserError for a missing file, bad UTF-8, unequal numbers of lines, or empty lines.
    """
    with ExitStack() as copies:
        prefixes = {"train": prefix, "valid": prefix, "test": prefix}  # open_texts wants all three
        texts = open_texts((source_lang, target_lang), prefixes, drop_empty=drop_empty, copies=copies)
        return list(texts["train"].pairs())


def survey_texts(
    texts: dict[str, ParallelText], langs: tuple[str, str], workers: int, form: TextForm
) -> dict[str, Survey]:
    """Read all texts, and print what is found; return subset -> facts. UserError for a text that cannot be used.

    form: takes in the training text.
    """
    surveys = {}
    for name, text in texts.items():
        pairs = text.pairs()
        if name == "train":
            pairs = _taken_in(pairs, form)
        surveys[name] = survey(Survey(langs), pairs, workers, label=name, size=text.size)

    for name, text in texts.items():
        if not surveys[name].rows:
            raise UserError(f"{text.source}: no sentence in it")
        print(f"| {name}: {surveys[name].rows:,} sentence pairs")

    letters = Letters(langs)  # of all texts together: a form of accents may differ between them
    for found in surveys.values():
        letters.merge(found.letters)
    letters.warn()
    return surveys


def _taken_in(pairs: Iterable[tuple[str, str]], form: TextForm) -> Iterator[tuple[str, str]]:
    """Yield all pairs, after `form` has seen them."""
    for pair in pairs:
        form.add(pair)
        yield pair


def learn(text: ParallelText, facts: Survey, vocab: int, sample_lines: int | None, folder: Path) -> bytes:
    """Return a SentencePiece model of both languages, learnt from an even sample of the pairs: sources, then targets.

    facts: of the text, as `check` returns them; vocab: pieces; sample_lines: lines of the sample, both sides together
    (None: as many as fit, see learning.sample_size); folder: place for a copy of the sample. Raises a UserError for
    fewer than MIN_TRAIN_PAIRS pairs, and for a text that does not allow so many pieces.
    """
    if facts.rows < MIN_TRAIN_PAIRS:
        raise UserError(f"{facts.rows} training pairs: too few to train on; give at least {MIN_TRAIN_PAIRS}")

    lines = 2 * facts.rows
    wanted, room = sample_size(lines, sample_lines)
    chosen = max(1, wanted // 2)  # pairs
    drawn = f"{lines:,} sentences" if chosen == facts.rows else f"{2 * chosen:,} of {lines:,} sentences, drawn evenly"
    print(f"| training a joint BPE of {vocab:,} pieces on {drawn}", flush=True)

    def sentences() -> Iterator[str]:
        for side in (0, 1):
            # the same seed for both sides: a sentence and its translation are drawn together
            yield from sample(text.side(side), count=facts.rows, wanted=chosen, rng=Random("vocabulary"))

    return sentencepiece_model(
        sentences(),
        vocab,
        room=room,
        whole_text=(lines, facts.characters),
        folder=folder,
        character_coverage=1.0,
    )


def cut(
    texts: dict[str, ParallelText],
    langs: tuple[str, str],
    model: bytes,
    surveys: dict[str, Survey],
    folder: Path,
    workers: int,
) -> Counter:
    """Write all texts in pieces to FOLDER/text, and those to score against as they are to FOLDER/raw.

    model: SentencePiece's; surveys: subset -> facts, as `check` returns them. Returns piece -> its count in the
    training text. Raises a UserError for a text that changed after it was checked.
    """
    cutter = Cutter(model)
    total = Counts(len(cutter.pieces))

    def cut_sides(rows: list[tuple[str, str]]) -> list[tuple[str, Counts]]:
        sources, targets = zip(*rows, strict=True)
        return [cutter.cut(list(sources)), cutter.cut(list(targets))]

    for name, text in texts.items():
        expected = surveys[name].rows
        pairs = as_many(text.pairs(), expected, text.source)
        chunks = map_chunks(cut_sides, pairs, workers, label=f"cutting {name}", total=expected)
        training = total if name == "train" else None
        write_columns([folder / "text" / f"{name}.{lang}" for lang in langs], _count(chunks, training))
        if name != "train":
            write_columns([folder / "raw" / f"{name}.{lang}" for lang in langs], text.pairs())
    return cutter.total(total)


def _count(chunks: Iterable[list[tuple[str, Counts]]], total: Counts | None) -> Iterator[tuple[str, ...]]:
    """Yield the lines in pieces of both sides, chunk by chunk, and add their pieces' counts to `total`, unless None."""
    for sides in chunks:
        if total is not None:
            for _, counts in sides:
                total.add(counts)
        yield tuple(lines for lines, _ in sides)
