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
from .lines import Letters, map_chunks, write_columns, write_lines
from .steps import Steps, read_json, remove
from .survey import Survey, survey
from .vocabulary import Vocabulary, sample, sampling_probabilities

LEAST = 10_000  # sentence pairs a shard; a pair with fewer lies in fewer shards, which fairseq allows
CHARACTER_COVERAGE = 0.9999  # of some 6,000 in 76 languages of Tatoeba it keeps those seen thrice

Sentences = Iterator[tuple[str, str]]


@dataclass(frozen=True)
class PairText:
    """Text of a language pair, read as a stream.

    langs: the two languages
    subsets: "train", "valid", ... -> a function that reads the pairs from the start
    state: changes with the text (sizes and times of its files, checksums), for the record of a step
    bound: returns a quick upper bound of the training pairs, where reading them takes long
    finish: called when all of the text is binarised
    one_way: a test set from the first language into the second alone, beside one of the same name the other way
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
        if self.one_way:
            return (self.name,)
        return (self.name, "-".join(reversed(self.langs)))

    @property
    def step(self) -> str:
        """Name of the step that binarises it."""
        if self.one_way:  # a text of both ways may have the same name
            return ".".join(["pair", self.name, *self.subsets])
        return f"pair.{self.name}"


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
        first_number, _ = rows[0]
        sources = vocabulary.encode([source for _, (source, _) in rows])
        targets = vocabulary.encode([target for _, (_, target) in rows])

        parts = []
        for shard in range(shards):
            start = (shard - first_number) % shards  # place of the first row whose number is `shard` modulo `shards`
            parts.append([_joined(sources[start::shards], dtype), _joined(targets[start::shards], dtype)])
        return parts

    with ExitStack() as files:
        writers = []  # of source and target, for each shard
        for source_prefix, target_prefix in prefixes:
            source_writer = _writer(source_prefix, dtype, files)
            target_writer = _writer(target_prefix, dtype, files)
            writers.append((source_writer, target_writer))

        label = f"binarising {prefixes[0][0].name.rpartition('.')[0]}"
        for parts in map_chunks(encode, enumerate(pairs), workers, label=label, total=total):
            for sides, shard_writers in zip(parts, writers, strict=True):
                for (ids, sizes), writer in zip(sides, shard_writers, strict=True):
                    writer.add(ids, sizes)

        count = sum(source_writer.sentences for source_writer, _ in writers)
        if count < shards:
            raise UserError(f"{prefixes[0][0].name}: {count} sentence pairs, too few for {shards} shards")
    return count


def _joined(sentences: list[np.ndarray], dtype: type) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of all sentences' pieces in one array, and the length of each sentence."""
    sizes = np.array([len(ids) for ids in sentences], np.int32)
    no_pieces = np.array([], dtype)  # np.concatenate refuses an empty list
    return np.concatenate([no_pieces, *sentences]).astype(dtype), sizes


def _writer(prefix: Path, dtype: type, files: ExitStack) -> IndexedWriter:
    """Open a writer of PREFIX.bin and PREFIX.idx; they get their names when `files` closes, the index last."""
    index = files.enter_context(whole(Path(f"{prefix}.idx")))
    data = files.enter_context(whole(Path(f"{prefix}.bin")))
    return files.enter_context(IndexedWriter(data, index, dtype))


def _languages(texts: Sequence[PairText]) -> list[str]:
    """Return the languages of all pairs, each once, in alphabetical order."""
    return sorted({lang for text in texts for lang in text.langs})


def _training_lines(texts: Sequence[PairText], lang: str) -> Iterator[str]:
    """Yield the training sentences in one language, of all pairs that have it."""
    for text in texts:
        if lang in text.langs:
            side = text.langs.index(lang)
            yield from (pair[side] for pair in text.subsets["train"]())


@dataclass(frozen=True)
class Multilingual:
    """Preparation of DEST/bin, or DEST/bin/shard00, shard01, ... of which fairseq reads one an epoch.

    Names are those that its task translation_multi_simple_epoch looks for. Dictionaries and held-out subsets lie in the
    first shard only: fairseq takes both from there.

    dest: the folder DEST
    shards: their number
    vocab: pieces of the SentencePiece model DEST/spm.model, which is trained on languages drawn at `temperature`
    spm: a model that is copied to DEST/spm.model in place of a trained one
    workers: processes
    vocab_sample: sentences that the model is trained on, by default `usual_sample`, or if that is None as many as fit
        (see learning.sample_size)
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
        for shard in range(self.shards):
            self.data(shard).mkdir(parents=True, exist_ok=True)
        (self.dest / "reference").mkdir(parents=True, exist_ok=True)

        counted = {}
        if not self.spm:  # training draws from all pairs by their sizes
            counted = {text.name: self.count(text) for text in texts}
        vocabulary = self.vocabulary(texts, counted)

        counts = {}
        for text in texts:  # one pair after another, because a pair may remove its archives when it is done
            train_pairs = self.count(text) if self.spm else counted[text.name]
            counts[text.name] = self.pair(text, train_pairs, vocabulary)
            text.finish()
        for text in evaluated:  # of a pair there may be a text of both ways and one of one way
            earlier = counts.get(text.name, {})
            counts[text.name] = earlier | self.pair(text, train=0, vocabulary=vocabulary)

        self.write_lists(texts, vocabulary)
        return counts

    def vocabulary(self, texts: Sequence[PairText], counted: dict[str, int]) -> Vocabulary:
        """Return the SentencePiece model, trained unless given or present; raise a UserError if the given file is none.

        counted: pair -> training pairs, if no model is given. Pairs added later change nothing: the step's record names
        those that the model was trained on.
        """
        path = self.dest / "spm.model"
        trained_on = read_json(self.dest / "steps" / "vocabulary.json").get("result", {}).get("pairs")
        if trained_on is not None:
            texts = [text for text in texts if text.name in trained_on]

        def copy() -> dict:
            with whole(path) as part:
                part.write_bytes(self.spm.read_bytes())
            return {}

        def train() -> dict:
            with whole(path) as part:
                sentences = chain.from_iterable(self.draw(texts, counted).values())
                _, room = self.sample_size(counted)
                model = sentencepiece_model(
                    sentences,
                    self.vocab,
                    room=room,
                    folder=self.dest,
                    character_coverage=CHARACTER_COVERAGE,
                )
                part.write_bytes(model)
            return {"pairs": [text.name for text in texts]}

        if self.spm:
            make = copy
            settings = {"model": Vocabulary(self.spm).digest}
        else:
            make = train
            states = {text.name: text.state for text in texts}
            settings = {"vocab": self.vocab, "temperature": self.temperature, "text": states}
            if self.vocab_sample is not None:  # without, a vocabulary of an earlier release stays
                settings["vocab_sample"] = self.vocab_sample
        Steps(self.dest).run("vocabulary", [path], settings, make)
        return Vocabulary(path)

    def draw(self, texts: Sequence[PairText], counted: dict[str, int]) -> dict[str, Iterator[str]]:
        """Return language -> lines, its share of the sample by temperature. counted: pair -> training pairs."""
        languages = _languages(texts)
        sizes = {}
        for lang in languages:
            sizes[lang] = sum(counted[text.name] for text in texts if lang in text.langs)

        total, _ = self.sample_size(counted)
        probabilities = sampling_probabilities(sizes, self.temperature)
        wanted = {lang: round(total * probability) for lang, probability in probabilities.items()}
        print(
            f"| {self.vocab:,} pieces from {total:,} sentences in {len(languages)} languages, "
            f"{min(wanted.values()):,} to {max(wanted.values()):,} of each"
        )

        drawn = {}
        for lang in languages:
            lines = _training_lines(texts, lang)
            rng = Random(f"vocabulary {lang}")
            drawn[lang] = sample(lines, count=sizes[lang], wanted=wanted[lang], rng=rng)
        return drawn

    def sample_size(self, counted: dict[str, int]) -> tuple[int, int | None]:
        """Return the number of sentences for the vocabulary, and their bytes at most; see learning.sample_size.

        counted: pair -> training pairs.
        """
        asked = self.usual_sample if self.vocab_sample is None else self.vocab_sample
        return sample_size(2 * sum(counted.values()), asked)

    def data(self, shard: int = 0) -> Path:
        """Return the folder of a shard, by its number from 0."""
        if self.shards == 1:
            return self.dest / "bin"
        return self.dest / "bin" / f"shard{shard:02d}"

    def write_lists(self, texts: Sequence[PairText], vocabulary: Vocabulary) -> None:
        """Write dict.LANG.txt, langs.txt (for --lang-dict) and pairs.txt (all directions, for --lang-pairs)."""
        languages = _languages(texts)
        directions = list(chain.from_iterable(text.directions for text in texts))
        for language in languages:
            write_lines(self.data() / f"dict.{language}.txt", vocabulary.dictionary(len(languages)))
        for folder in {self.dest / "bin", self.data()}:  # one folder, unless there are shards
            write_lines(folder / "langs.txt", languages)
            write_lines(folder / "pairs.txt", directions)

    def count(self, text: PairText) -> int:
        """Count the training pairs, or return their bound; reading them also finds mistakes in the text."""

        def make() -> dict:
            if text.bound is not None:
                return {"train": text.bound()}

            names = [f"{text.name}, {lang}" for lang in text.langs]
            letters = Letters(names)  # of all subsets together: a form of accents may differ between them
            rows = {}
            for subset, read in text.subsets.items():
                found = survey(Survey(names), read(), self.workers, label=f"{text.name} {subset}")
                letters.merge(found.letters)
                rows[subset] = found.rows
            letters.warn()
            return rows

        counts = Steps(self.dest).run(f"count.{text.name}", [], {"text": text.state}, make)
        for subset, count in counts.items():
            if not count:
                raise UserError(f"{text.name}: no sentence pair in {subset}; leave it out, or give it some")
        return counts["train"]

    def pair(self, text: PairText, train: int, vocabulary: Vocabulary) -> dict[str, int]:
        """Binarise the text of one pair; return subset -> sentence pairs. train: the number of training pairs, or 0."""
        read = dict(text.subsets)
        if "train" in read:  # fairseq requires a valid set of every pair it trains on: a training pair stands in
            read.setdefault("valid", lambda: islice(text.subsets["train"](), 1))

        shards = max(1, min(self.shards, train // LEAST))
        prefixes = {}  # subset -> for each shard, source and target, which both directions share
        for subset in read:
            subset_shards = shards if subset == "train" else 1
            prefixes[subset] = [self._prefixes(text, subset, shard) for shard in range(subset_shards)]

        # the raw text of either side is the reference of one direction, that into its language
        sides = []
        endings = []
        for direction, target in zip(text.directions, reversed(text.langs), strict=not text.one_way):
            sides.append(text.langs.index(target))
            endings.append(f"{direction}.{target}")
        references = {}
        for subset in read:
            if subset not in ("train", "valid"):
                references[subset] = [self.dest / "reference" / f"{subset}.{ending}" for ending in endings]

        def make() -> dict:
            counts = {}
            for subset, shard_prefixes in prefixes.items():
                total = train if subset == "train" else None
                counts[subset] = binarise(read[subset](), vocabulary, shard_prefixes, self.workers, total=total)
            for subset, paths in references.items():
                write_columns(paths, (tuple(row[side] for side in sides) for row in read[subset]()))
            numbers = ", ".join(f"{subset} {count:,}" for subset, count in counts.items())
            print(f"| {text.name}: {numbers}", flush=True)
            return counts

        outputs = []
        for source_prefix, target_prefix in chain.from_iterable(prefixes.values()):
            for prefix in (source_prefix, target_prefix):
                outputs += [Path(f"{prefix}.bin"), Path(f"{prefix}.idx")]
        outputs += chain.from_iterable(references.values())
        settings = {"text": text.state, "vocabulary": vocabulary.digest, "shards": shards}
        return Steps(self.dest).run(text.step, outputs, settings, make)

    def _prefixes(self, text: PairText, subset: str, shard: int) -> tuple[Path, Path]:
        """Return the paths of a subset's source and target in one shard, without .bin and .idx."""
        source, target = text.langs
        prefix = f"{subset}.{text.name}"
        return self.data(shard) / f"{prefix}.{source}", self.data(shard) / f"{prefix}.{target}"
