"""Prepare parallel text of many language pairs, with one vocabulary, for one multilingual model.

The text of a language pair is read as a stream, because a corpus may be larger than the memory. A pair stands for both
of its directions. Its training data may be cut into shards, of which fairseq reads one an epoch.
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

LEAST = (
    10_000  # sentence pairs of a language pair in a shard; one that has too few is in fewer shards, as fairseq allows
)
# SentencePiece's --character_coverage. Of some 6,000 characters in 76 languages of Tatoeba it keeps those seen thrice.
CHARACTER_COVERAGE = 0.9999

Sentences = Iterator[tuple[str, str]]  # sentence pairs


@dataclass(frozen=True)
class PairText:
    """Text of a language pair, read as a stream.

    langs: the two languages
    subsets: "train", "valid", ... -> function that reads the sentence pairs from the start
    state: entries for a step's settings that change with the text (sizes and times of its files, checksums)
    bound: function that returns an upper bound of the training pairs, where counting takes long; None to count them
    finish: function that is called when all of the text is binarised
    one_way: whether this is text from the first language into the second alone; there may be another the other way
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
        if self.one_way:  # a text for both directions may have the same `name`
            return ".".join(["pair", self.name, *self.subsets])
        return f"pair.{self.name}"


def split_pair(pair: str) -> tuple[str, str]:
    """Return ("de", "en") for "de-en"; raise a UserError for a pair that fairseq's multilingual task would misread."""
    langs = parse_pair("pair", pair)
    if pair.count("-") > 1:
        raise UserError(f"pair {pair}", "fairseq's multilingual task splits it at each hyphen; write _ within a code")
    return langs


def file_state(path: Path) -> list[int]:
    """Return [size in bytes, time of change in ns]; raise a UserError if there is no such file."""
    if not path.is_file():
        raise UserError(path, "no such file")
    return steps.file_state(path)


def cut_and_binarise(
    pairs: Iterable[tuple[str, str]],
    vocabulary: Vocabulary,
    prefixes: Sequence[tuple[Path, Path]],
    workers: int = 1,
    total: int | None = None,
) -> int:
    """Cut sentence pairs into pieces and write the files of fairseq-preprocess; return the number of sentence pairs.

    Other than with fairseq-preprocess, no text in pieces is written in between.

    prefixes: paths of source and target without .bin and .idx, for each shard; sentence pair i goes to shard i modulo
        their number
    workers: processes
    total: sentence pairs, for the progress bar, None if unknown

    Raises a UserError for fewer sentence pairs than shards.
    """
    from fairseq.data import indexed_dataset  # imported here, because a recipe's plan does without it

    dtype = indexed_dataset.best_fitting_int_dtype(len(vocabulary))
    shards = len(prefixes)

    def encode(rows: list[tuple[int, tuple[str, str]]]) -> list[list[tuple[np.ndarray, np.ndarray]]]:
        """Return for each shard [source, target], each of them as _joined returns its sentences in these rows.

        rows: (number of the sentence pair, sentence pair), numbered one after another
        """
        first_number, _ = rows[0]
        sources = vocabulary.encode([source for _, (source, _) in rows])
        targets = vocabulary.encode([target for _, (_, target) in rows])

        parts = []
        for shard in range(shards):
            start = (shard - first_number) % shards  # index of the first row whose number is `shard` modulo `shards`
            parts.append([_joined(sources[start::shards], dtype), _joined(targets[start::shards], dtype)])
        return parts

    with ExitStack() as files:
        writers = []  # (of source, of target) for each shard
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
            raise UserError(prefixes[0][0].name, f"{count} sentence pairs, too few for {shards} shards")
    return count


def _joined(sentences: list[np.ndarray], dtype: type) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of all sentences' pieces in one array, [pieces], and each sentence's length, [sentences]."""
    sizes = np.array([len(ids) for ids in sentences], np.int32)
    no_pieces = np.array([], dtype)  # np.concatenate refuses an empty list
    return np.concatenate([no_pieces, *sentences]).astype(dtype), sizes


def _writer(prefix: Path, dtype: type, files: ExitStack) -> IndexedWriter:
    """Return a writer of PREFIX.bin and PREFIX.idx, which get these names when `files` closes, the index last."""
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
    """Preparation of DEST/bin, or of DEST/bin/shard00, shard01, ... of which fairseq reads one an epoch.

    Files have the names that fairseq's task translation_multi_simple_epoch looks for. Dictionaries and held-out subsets
    are in the first shard only, because fairseq takes both from there.

    dest: the folder DEST
    shards: how many there are
    vocab: pieces of the SentencePiece model DEST/spm.model, which is trained on a sample of all languages
    temperature: of the languages' shares in that sample, see vocabulary.sampling_probabilities
    spm: a model that is copied to DEST/spm.model, None to train one
    workers: processes
    vocab_sample: sentences of the sample, None for `usual_sample`
    usual_sample: the same, None for as many as fit into memory (see learning.sample_size)
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
        """Prepare all pairs; return pair, as "de-en" -> subset -> number of its sentence pairs.

        Each pair has its own Steps object, so that adding a pair leaves what is done for the others valid.

        texts: of the pairs to train on
        evaluated: texts without training text, in languages of `texts`
        """
        # data in another number of shards, from an earlier call, are removed
        Steps(self.dest).run("layout", [], {"shards": self.shards}, lambda: remove(self.dest / "bin"))
        for shard in range(self.shards):
            self.shard_folder(shard).mkdir(parents=True, exist_ok=True)
        (self.dest / "reference").mkdir(parents=True, exist_ok=True)

        train_sizes = {}  # pair -> training pairs
        if not self.spm:  # the sample for a new model is drawn from all pairs by their sizes
            train_sizes = {text.name: self.count_pairs(text) for text in texts}
        vocabulary = self.vocabulary(texts, train_sizes)

        counts = {}
        for text in texts:  # one pair after another, because a pair may remove its archives when it is done
            train_size = self.count_pairs(text) if self.spm else train_sizes[text.name]
            counts[text.name] = self.binarise_pair(text, train_size, vocabulary)
            text.finish()
        for text in evaluated:  # there may be one text for both directions of a pair, and one for one direction
            earlier = counts.get(text.name, {})
            counts[text.name] = earlier | self.binarise_pair(text, train_size=0, vocabulary=vocabulary)

        self.write_lists(texts, vocabulary)
        return counts

    def vocabulary(self, texts: Sequence[PairText], train_sizes: dict[str, int]) -> Vocabulary:
        """Copy or train DEST/spm.model, unless that is done; return its vocabulary.

        texts: of the pairs to train on; train_sizes: pair -> training pairs, {} if `spm` is given

        A model is not trained anew when pairs are added: the record of the step names those that it was trained on, and
        only these count. Raises a UserError if `spm` is no model.
        """
        path = self.dest / "spm.model"
        trained_on = read_json(self.dest / "steps" / "vocabulary.json").get("result", {}).get("pairs")
        if trained_on is not None:
            texts = [text for text in texts if text.name in trained_on]
        if not self.spm:  # the sample's size follows from the pairs that it is drawn from
            train_sizes = {text.name: train_sizes[text.name] for text in texts}

        def copy() -> dict:
            with whole(path) as part:
                part.write_bytes(self.spm.read_bytes())
            return {}

        def train() -> dict:
            with whole(path) as part:
                sentences = chain.from_iterable(self.draw(texts, train_sizes).values())
                _, room = self.sample_size(train_sizes)
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
            if self.vocab_sample is not None:  # so that without it a vocabulary of an earlier release stays valid
                settings["vocab_sample"] = self.vocab_sample
        Steps(self.dest).run("vocabulary", [path], settings, make)
        return Vocabulary(path)

    def draw(self, texts: Sequence[PairText], train_sizes: dict[str, int]) -> dict[str, Iterator[str]]:
        """Draw the sample for the SentencePiece model; return language -> its sentences, and print their numbers.

        train_sizes: pair -> training pairs
        """
        languages = _languages(texts)
        sizes = {}  # language -> training sentences in it
        for lang in languages:
            sizes[lang] = sum(train_sizes[text.name] for text in texts if lang in text.langs)

        total, _ = self.sample_size(train_sizes)
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

    def sample_size(self, train_sizes: dict[str, int]) -> tuple[int, int | None]:
        """Return the number of sentences of the sample, and the memory that they may take, as learning.sample_size.

        train_sizes: pair -> training pairs
        """
        asked = self.usual_sample if self.vocab_sample is None else self.vocab_sample
        sentences = 2 * sum(train_sizes.values())
        return sample_size(sentences, asked)

    def shard_folder(self, shard: int = 0) -> Path:
        """Return the folder of binarised data of a shard, by its number from 0."""
        if self.shards == 1:
            return self.dest / "bin"
        return self.dest / "bin" / f"shard{shard:02d}"

    def write_lists(self, texts: Sequence[PairText], vocabulary: Vocabulary) -> None:
        """Write dict.LANG.txt, langs.txt (for fairseq's --lang-dict) and pairs.txt (for --lang-pairs).

        texts: of the pairs to train on. pairs.txt has all of their directions, one a line.
        """
        languages = _languages(texts)
        directions = list(chain.from_iterable(text.directions for text in texts))
        for language in languages:
            write_lines(self.shard_folder() / f"dict.{language}.txt", vocabulary.dictionary(len(languages)))
        for folder in {self.dest / "bin", self.shard_folder()}:  # one folder, unless there are shards
            write_lines(folder / "langs.txt", languages)
            write_lines(folder / "pairs.txt", directions)

    def count_pairs(self, text: PairText) -> int:
        """Count the sentence pairs of each subset in a step; return the number, or upper bound, of training pairs.

        The reading also finds mistakes in the text: a UserError is raised for bad UTF-8, or for a subset without text.
        Where `text` has a bound, only that is computed.
        """

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
                raise UserError(text.name, f"no sentence pair in {subset}; leave it out, or give it some")
        return counts["train"]

    def binarise_pair(self, text: PairText, train_size: int, vocabulary: Vocabulary) -> dict[str, int]:
        """Binarise the text of one pair in a step, and write references; return subset -> number of sentence pairs.

        train_size: number of training pairs, or an upper bound of it; 0 without training text
        """
        read = dict(text.subsets)  # subset -> function that reads it
        if "train" in read:  # fairseq requires a valid set of every pair it trains on: a training pair stands in
            read.setdefault("valid", lambda: islice(text.subsets["train"](), 1))

        train_shards = max(1, min(self.shards, train_size // LEAST))
        prefixes = {}  # subset -> (source, target) for each of its shards; both directions share these files
        for subset in read:
            subset_shards = train_shards if subset == "train" else 1
            prefixes[subset] = [self._prefixes(text, subset, shard) for shard in range(subset_shards)]

        # The raw text of a side is the reference of the direction into its language. A text of one way has only one of
        # the directions, the one into its second language.
        sides = []
        endings = []
        for direction, target in zip(text.directions, reversed(text.langs), strict=not text.one_way):
            sides.append(text.langs.index(target))
            endings.append(f"{direction}.{target}")
        references = {}  # test set -> files, in the order of `sides`
        for subset in read:
            if subset not in ("train", "valid"):
                references[subset] = [self.dest / "reference" / f"{subset}.{ending}" for ending in endings]

        def make() -> dict:
            counts = {}
            for subset, shard_prefixes in prefixes.items():
                total = train_size if subset == "train" else None
                counts[subset] = cut_and_binarise(read[subset](), vocabulary, shard_prefixes, self.workers, total=total)
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
        settings = {"text": text.state, "vocabulary": vocabulary.digest, "shards": train_shards}
        return Steps(self.dest).run(text.step, outputs, settings, make)

    def _prefixes(self, text: PairText, subset: str, shard: int) -> tuple[Path, Path]:
        """Return the paths of a subset's source and target in one shard, without .bin and .idx."""
        source, target = text.langs
        prefix = f"{subset}.{text.name}"
        return self.shard_folder(shard) / f"{prefix}.{source}", self.shard_folder(shard) / f"{prefix}.{target}"
