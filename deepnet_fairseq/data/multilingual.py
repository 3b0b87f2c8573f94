"""Prepare parallel text of many language pairs, with one vocabulary, for one multilingual model.

The text of a language pair is read as a stream, because a corpus may be larger than the memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from random import Random

import numpy as np

from ..errors import UserError
from ..files import whole
from ..languages import parse_pair
from . import steps
from .indexed import IndexedWriter
from .learning import sample_size, sentencepiece_model
from .lines import map_chunks, write_columns, write_lines
from .steps import Steps, read_json, remove
from .survey import Survey, survey
from .vocabulary import Vocabulary, sample, sampling_probabilities

LEAST = 10_000  # sentence pairs a shard; a pair with fewer lies in fewer shards, which fairseq allows
CHARACTER_COVERAGE = 0.9999  # of some 6,000 in 76 languages of Tatoeba it keeps those seen thrice

Sentences = Iterator[tuple[str, str]]


@dataclass(frozen=True)
class PairText:
    """Text of a language pair, read as a stream.

    langs: the two languages; subsets: "train", "valid", ... -> a function that reads the pairs from the start; state:
    changes with the text (sizes and times of its files, checksums), for the record of a step; bound: a quick upper
    bound of the training pairs, where reading them takes long; finish: called when all of it is binarised; one_way: a
    test set from the first language into the second alone, beside one of the same name the other way.
    """

    langs: tuple[str, str]
    subsets: dict[str, Callable[[], Sentences]]
    state: dict
    bound: Callable[[], int] | None = None
    finish: Callable[[], None] = lambda: None
    one_way: bool = False

    @property
    def name(self) -> str:
        """Name of the pair, "de-en"."""
        return "-".join(self.langs)

    @property
    def directions(self) -> tuple[str, ...]:
        """Names of the directions, ("de-en", "en-de")."""
        return (self.name,) if self.one_way else (self.name, "-".join(reversed(self.langs)))

    @property
    def step(self) -> str:
        """Name of the step that binarises it."""
        return f"pair.{self.name}" + (f".{'.'.join(self.subsets)}" if self.one_way else "")


def split_pair(pair: str) -> tuple[str, str]:
    """Return ("de", "en") of "de-en"; raise UserError for anything that fairseq's multilingual task misreads."""
    langs = parse_pair("pair", pair)
    if pair.count("-") > 1:
        raise UserError(f"pair {pair}: fairseq's multilingual task splits it at each hyphen; write _ within a code")
    return langs


def file_state(path: Path) -> list[int]:
    """Return size in bytes and time of change in ns; raise a UserError if there is no such file."""
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    return steps.file_state(path)


def binarise(
    pairs: Iterable[tuple[str, str]],
    vocabulary: Vocabulary,
    prefixes: Sequence[tuple[Path, Path]],
    workers: int = 1,
    total: int | None = None,
) -> int:
    """Write the files of fairseq-preprocess without segmented text in between; return the number of sentences.

    prefixes: the paths of source and target without .bin and .idx, one pair of them a shard; sentence i goes to shard i
    modulo their number. total: sentences, if known. Raises a UserError for fewer sentences than shards.
    """
    from fairseq.data import indexed_dataset  # imported here, because a recipe's plan does without it

    dtype = indexed_dataset.best_fitting_int_dtype(len(vocabulary))
    shards = len(prefixes)

    def encode(rows: list[tuple[int, tuple[str, str]]]) -> list[list[tuple[np.ndarray, np.ndarray]]]:
        """Return for each shard and side the numbers of the pieces, and how many each sentence has."""
        first = rows[0][0]
        sides = [vocabulary.encode(list(lines)) for lines in zip(*(pair for _, pair in rows), strict=True)]
        starts = [(shard - first) % shards for shard in range(shards)]
        return [[_joined(ids[start::shards], dtype) for ids in sides] for start in starts]

    count = 0
    with ExitStack() as files:
        written = [[_writer(prefix, dtype, files) for prefix in shard] for shard in prefixes]
        label = f"binarising {prefixes[0][0].name.rpartition('.')[0]}"
        for parts in map_chunks(encode, enumerate(pairs), workers, label, total):
            for shard, sides in enumerate(parts):
                for side, (ids, sizes) in enumerate(sides):
                    written[shard][side].add(ids, sizes)
        count = sum(shard[0].sentences for shard in written)
        if count < shards:
            raise UserError(f"{prefixes[0][0].name}: {count} sentence pairs, too few for {shards} shards")
    return count


def _joined(sentences: list[np.ndarray], dtype: type) -> tuple[np.ndarray, np.ndarray]:
    sizes = np.array([len(ids) for ids in sentences], np.int32)
    return np.concatenate([np.array([], dtype), *sentences]).astype(dtype), sizes


def _writer(prefix: Path, dtype: type, files: ExitStack) -> IndexedWriter:
    """Open a writer of PREFIX.bin and PREFIX.idx; they get their names when `files` closes, the index last."""
    index = files.enter_context(whole(Path(f"{prefix}.idx")))
    data = files.enter_context(whole(Path(f"{prefix}.bin")))
    return files.enter_context(IndexedWriter(data, index, dtype))


def _side(texts: Sequence[PairText], lang: str) -> Iterator[str]:
    for text in texts:
        if lang in text.langs:
            side = text.langs.index(lang)
            yield from (pair[side] for pair in text.subsets["train"]())


@dataclass(frozen=True)
class Multilingual:
    """Preparation of DEST/bin, or DEST/bin/shard00, shard01, ... of which fairseq reads one an epoch.

    Names are those that its task translation_multi_simple_epoch looks for. Dictionaries and held-out subsets lie in the
    first shard only: fairseq takes both from there. DEST/spm.model is a copy of the file `spm`, or `vocab` pieces
    trained on languages drawn at `temperature`: on `vocab_sample` sentences, or `usual_sample`, or as many as fit (see
    learning.sample_size). workers: processes.
    """

    dest: Path
    shards: int
    vocab: int
    temperature: float
    spm: Path | None = None
    workers: int = 1
    vocab_sample: int | None = None
    usual_sample: int | None = None

    def run(self, texts: Sequence[PairText], evaluated: Sequence[PairText] = ()) -> dict[str, dict[str, int]]:
        """Prepare all pairs; return pair -> subset -> sentence pairs.

        Each pair has steps of its own, so that one added later leaves the others' valid. Folders of another number of
        shards are removed. texts: pairs to train on; evaluated: pairs without training text, in languages of others.
        """
        Steps(self.dest).run("layout", [], {"shards": self.shards}, lambda: remove(self.dest / "bin"))
        for folder in (*map(self.data, range(self.shards)), self.dest / "reference"):
            folder.mkdir(parents=True, exist_ok=True)
        counted = {} if self.spm else {text.name: self.count(text) for text in texts}
        vocabulary = self.vocabulary(texts, counted)
        counts = {}
        for text in texts:  # one pair after another, because a pair may remove its archives when it is done
            counts[text.name] = self.pair(text, counted.get(text.name) or self.count(text), vocabulary)
            text.finish()
        for text in evaluated:
            counts[text.name] = counts.get(text.name, {}) | self.pair(text, 0, vocabulary)
        self.write_lists(texts, vocabulary)
        return counts

    def vocabulary(self, texts: Sequence[PairText], counted: dict[str, int]) -> Vocabulary:
        """Return the SentencePiece model, trained unless given or present; raise a UserError if the given file is none.

        counted: pair -> training pairs, if no model is given. Pairs added later change nothing.
        """
        path = self.dest / "spm.model"
        first = read_json(self.dest / "steps" / "vocabulary.json").get("result", {}).get("pairs")
        texts = [text for text in texts if first is None or text.name in first]

        def make() -> dict:
            with whole(path) as part:
                if self.spm:
                    part.write_bytes(self.spm.read_bytes())
                    return {}
                sentences = chain.from_iterable(self.draw(texts, counted).values())
                _, room = self.sample_size(counted)
                options = {"folder": self.dest, "character_coverage": CHARACTER_COVERAGE}
                part.write_bytes(sentencepiece_model(sentences, self.vocab, room, **options))
            return {"pairs": [text.name for text in texts]}

        states = {text.name: text.state for text in texts}
        trained = {"vocab": self.vocab, "temperature": self.temperature, "text": states}
        if self.vocab_sample is not None:  # without, a vocabulary of an earlier release stays
            trained["vocab_sample"] = self.vocab_sample
        settings = {"model": Vocabulary(self.spm).digest} if self.spm else trained
        Steps(self.dest).run("vocabulary", [path], settings, make)
        return Vocabulary(path)

    def draw(self, texts: Sequence[PairText], counted: dict[str, int]) -> dict[str, Iterator[str]]:
        """Return language -> lines, its share of the sample by temperature."""
        languages = sorted({lang for text in texts for lang in text.langs})
        sizes = {lang: sum(counted[text.name] for text in texts if lang in text.langs) for lang in languages}
        total, _ = self.sample_size(counted)
        probabilities = sampling_probabilities(sizes, self.temperature)
        wanted = {lang: round(total * probability) for lang, probability in probabilities.items()}
        print(
            f"| {self.vocab:,} pieces from {total:,} sentences in {len(languages)} languages, "
            f"{min(wanted.values()):,} to {max(wanted.values()):,} of each"
        )
        return {
            lang: sample(_side(texts, lang), sizes[lang], wanted[lang], Random(f"vocabulary {lang}"))
            for lang in languages
        }

    def sample_size(self, counted: dict[str, int]) -> tuple[int, int | None]:
        """Return the number of sentences for the vocabulary, and their bytes at most; see learning.sample_size."""
        asked = self.usual_sample if self.vocab_sample is None else self.vocab_sample
        return sample_size(2 * sum(counted.values()), asked)

    def data(self, shard: int = 0) -> Path:
        """Return the folder of a shard, by its number from 0."""
        return self.dest / "bin" if self.shards == 1 else self.dest / "bin" / f"shard{shard:02d}"

    def write_lists(self, texts: Sequence[PairText], vocabulary: Vocabulary) -> None:
        """Write dict.LANG.txt, langs.txt (for --lang-dict) and pairs.txt (all directions, for --lang-pairs)."""
        languages = sorted({lang for text in texts for lang in text.langs})
        for language in languages:
            write_lines(self.data() / f"dict.{language}.txt", vocabulary.dictionary(len(languages)))
        for folder in {self.dest / "bin", self.data()}:
            write_lines(folder / "langs.txt", languages)
            write_lines(folder / "pairs.txt", (pair for text in texts for pair in text.directions))

    def count(self, text: PairText) -> int:
        """Count the training pairs, or return their bound; reading them also finds mistakes in the text."""

        def make() -> dict:
            if text.bound is not None:
                return {"train": text.bound()}
            names = [f"{text.name}, {lang}" for lang in text.langs]
            together, rows = Survey(names), {}
            for subset, read in text.subsets.items():
                found = survey(Survey(names), read(), self.workers, f"{text.name} {subset}")
                together.letters.merge(found.letters)
                rows[subset] = found.rows
            together.letters.warn()
            return rows

        counts = Steps(self.dest).run(f"count.{text.name}", [], {"text": text.state}, make)
        if empty := [subset for subset, count in counts.items() if not count]:
            raise UserError(f"{text.name}: no sentence pair in {empty[0]}; leave it out, or give it some")
        return counts["train"]

    def pair(self, text: PairText, train: int, vocabulary: Vocabulary) -> dict[str, int]:
        """Binarise the text of one pair; return subset -> sentence pairs."""
        shards = max(1, min(self.shards, train // LEAST))
        read = dict(text.subsets)
        if "train" in read:  # fairseq requires a valid set of every pair it trains on: a training pair stands in
            read.setdefault("valid", lambda: islice(text.subsets["train"](), 1))
        prefixes = {  # source and target, which both directions share, a pair of them a shard
            name: [
                tuple(self.data(shard) / f"{name}.{text.name}.{lang}" for lang in text.langs)
                for shard in range(shards if name == "train" else 1)
            ]
            for name in read
        }
        targets = zip(text.directions, reversed(text.langs), strict=not text.one_way)
        raw = [(text.langs.index(lang), f"{direction}.{lang}") for direction, lang in targets]
        references = {  # the raw text of either side is the reference of one direction
            name: [self.dest / "reference" / f"{name}.{ending}" for _, ending in raw]
            for name in read
            if name not in ("train", "valid")
        }

        def make() -> dict:
            counts = {}
            for name, to in prefixes.items():
                total = train if name == "train" else None
                counts[name] = binarise(read[name](), vocabulary, to, self.workers, total)
            for name, paths in references.items():
                write_columns(paths, (tuple(row[side] for side, _ in raw) for row in read[name]()))
            print(f"| {text.name}: " + ", ".join(f"{name} {count:,}" for name, count in counts.items()), flush=True)
            return counts

        sides = chain.from_iterable(chain.from_iterable(prefixes.values()))
        outputs = [Path(f"{side}.{end}") for side in sides for end in ("bin", "idx")]
        settings = {"text": text.state, "vocabulary": vocabulary.digest, "shards": shards}
        return Steps(self.dest).run(text.step, [*outputs, *chain(*references.values())], settings, make)
