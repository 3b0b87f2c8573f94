"""Prepare parallel text of many language pairs, with one vocabulary, for one multilingual model.

The text of a language pair, as "de-en", is read as a stream, because a corpus may be larger than the memory. A language
pair stands for both of its directions, "de-en" and "en-de". Its training data may be divided into shards, of which
fairseq reads one an epoch. A subset is "train", "valid" or a test set.

DEST is the folder that is filled. Steps(DEST).run(NAME, outputs, settings, make) calls make(), which writes the files
`outputs`, and returns what it returns; if the step of this NAME was done before with the same settings, it only returns
what make() returned then. `with whole(path) as part` lets a file be written as `part`, which becomes `path` at the end.
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
from ..wording import counted
from . import steps
from .indexed import IndexedWriter
from .learning import sample_limits, sentencepiece_model
from .lines import Letters, map_chunks, write_columns, write_lines
from .steps import Steps, read_json, remove
from .survey import Survey, survey
from .vocabulary import Vocabulary, sample, sampling_probabilities

# Sentence pairs of a language pair in a shard, at least, by their number or its bound (PairText.bound). A language pair
# with too few is in fewer shards, as fairseq allows.
LEAST_IN_SHARD = 10_000
# SentencePiece's --character_coverage. Of some 6,000 characters in 76 languages of Tatoeba it keeps those seen thrice.
CHARACTER_COVERAGE = 0.9999

Sentences = Iterator[tuple[str, str]]  # sentence pairs


@dataclass(frozen=True)
class PairText:
    """Text of a language pair, read as a stream.

    langs: the two languages
    subsets: "train", "valid", ... -> function that returns an iterator of its sentence pairs, from the start
    state: anything JSON can hold that changes with the text, such as sizes and times of its files, or checksums; steps
        that depend on the text have it in their settings
    bound: function that returns an upper bound of the number of training pairs; None if they can be counted quickly
    finish: function that is called when all of the text is binarised
    one_way: whether the text is for the direction from the first language into the second alone, as WMT's test sets;
        another PairText may have the text for the other direction
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
        """Name of the step that binarises the text, "pair.de-en"; "pair.de-en.wmt" for the subset "wmt" of one way."""
        if self.one_way:  # there may be a text for both directions too, with the same `name`
            return ".".join(["pair", self.name, *self.subsets])
        return f"pair.{self.name}"


def split_pair(pair: str) -> tuple[str, str]:
    """Return ("de", "en") for "de-en".

    Raises a UserError for a text that is no pair, or a pair that fairseq's multilingual task would misread.
    """
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
    """Cut sentence pairs into pieces and write them binarised; return the number of sentence pairs.

    The files are those that fairseq-preprocess makes of text in pieces, but such text is not written in between.

    vocabulary: cuts a sentence into the numbers of its pieces
    prefixes: (path of source, path of target) for each shard, without .bin and .idx; sentence pair i goes to shard i
        modulo the number of shards
    workers: number of processes
    total: number of sentence pairs, for the progress bar; None if unknown

    Raises a UserError for fewer sentence pairs than shards.
    """
    from fairseq.data import indexed_dataset  # imported here, because a recipe's plan does without it

    dtype = indexed_dataset.best_fitting_int_dtype(len(vocabulary))
    shards = len(prefixes)

    def encode(rows: list[tuple[int, tuple[str, str]]]) -> list[list[tuple[np.ndarray, np.ndarray]]]:
        """Return for each shard [source, target], where each of the two is what _joined returns.

        rows: (number of the sentence pair, sentence pair), with consecutive numbers
        """
        first_number, _ = rows[0]
        sources = vocabulary.encode([source for _, (source, _) in rows])
        targets = vocabulary.encode([target for _, (_, target) in rows])

        of_shards = []
        for shard in range(shards):
            start = (shard - first_number) % shards  # index of the first row whose number is `shard` modulo `shards`
            of_shards.append([_joined(sources[start::shards], dtype), _joined(targets[start::shards], dtype)])
        return of_shards

    with ExitStack() as files:
        writers = []  # (of source, of target) for each shard
        for source_prefix, target_prefix in prefixes:
            source_writer = _writer(source_prefix, dtype, files)
            target_writer = _writer(target_prefix, dtype, files)
            writers.append((source_writer, target_writer))

        label = f"binarising {prefixes[0][0].name.rpartition('.')[0]}"
        # map_chunks yields the results of `encode` for some thousand sentence pairs at a time
        for of_shards in map_chunks(encode, enumerate(pairs), workers, label=label, total=total):
            for sides, shard_writers in zip(of_shards, writers, strict=True):
                for (ids, sizes), writer in zip(sides, shard_writers, strict=True):
                    writer.add(ids, sizes)

        count = sum(source_writer.sentences for source_writer, _ in writers)
        if count < shards:
            raise UserError(prefixes[0][0].name, f"{counted(count, 'sentence pair')}, too few for {shards} shards")
    return count


def _joined(sentences: list[np.ndarray], dtype: type) -> tuple[np.ndarray, np.ndarray]:
    """Return (the numbers of all sentences' pieces in one array, [pieces]; the length of each sentence, [sentences]).

    sentences: numbers of the pieces of each, [pieces of the sentence]
    dtype: NumPy type of the returned numbers
    """
    sizes = np.array([len(ids) for ids in sentences], np.int32)
    no_pieces = np.array([], dtype)  # np.concatenate refuses an empty list
    return np.concatenate([no_pieces, *sentences]).astype(dtype), sizes


def _writer(prefix: Path, dtype: type, files: ExitStack) -> IndexedWriter:
    """Return a writer of PREFIX.bin and PREFIX.idx, which get these names when `files` closes.

    An ExitStack closes what it entered last first: the writer is closed, then the data gets its name, then the index.

    dtype: NumPy type of the pieces' numbers
    """
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
    """Preparation of binarised data in DEST/bin, or in DEST/bin/shard00, shard01, ... if there are several shards.

    Files have the names that fairseq's task translation_multi_simple_epoch looks for. Dictionaries and held-out subsets
    are in the first shard only, because fairseq takes both from there.

    dest: the folder DEST
    shards: number of shards
    vocab: number of pieces of the SentencePiece model DEST/spm.model, which is trained on a sample of all languages
    temperature: T of vocabulary.sampling_probabilities, which give each language's share in that sample
    spm: file of a SentencePiece model that is copied to DEST/spm.model; None to train one
    workers: number of processes
    vocab_sample: number of sentences in the sample, as the user asks for; None to take usual_sample
    usual_sample: number of sentences in the sample otherwise; None for as many as learning.sample_limits allows
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
        """Prepare all language pairs; return pair, as "de-en" -> subset -> number of its sentence pairs.

        Each step has a Steps object of its own. In one object a step would depend on those before it, and adding a pair
        would make the steps of later ones run again.

        texts: of the pairs to train on
        evaluated: further texts, without training text, in languages of `texts`
        """
        # removes data in another number of shards, which an earlier call may have left
        Steps(self.dest).run("layout", [], {"shards": self.shards}, lambda: remove(self.dest / "bin"))
        for shard in range(self.shards):
            self.shard_folder(shard).mkdir(parents=True, exist_ok=True)
        (self.dest / "reference").mkdir(parents=True, exist_ok=True)

        train_sizes = {}  # language pair -> number of its training pairs
        if not self.spm:  # all sizes are needed first, for the sample from which a new model is trained
            train_sizes = {text.name: self.count_pairs(text) for text in texts}
        vocabulary = self.vocabulary(texts, train_sizes)

        counts = {}
        for text in texts:  # each is finished before the next is read: text.finish may remove downloaded archives
            train_size = self.count_pairs(text) if self.spm else train_sizes[text.name]
            counts[text.name] = self.binarise_pair(text, train_size, vocabulary)
            text.finish()
        for text in evaluated:  # a pair may have several texts: one for both directions, and one for a single direction
            earlier = counts.get(text.name, {})
            counts[text.name] = earlier | self.binarise_pair(text, train_size=0, vocabulary=vocabulary)

        self.write_lists(texts, vocabulary)
        return counts

    def vocabulary(self, texts: Sequence[PairText], train_sizes: dict[str, int]) -> Vocabulary:
        """Copy or train DEST/spm.model, unless that is done; return its vocabulary.

        A model is not trained anew when language pairs are added later. So only the pairs that it was trained on, which
        the record of the step names, are among the settings of the step. If it has to be trained again, because it is
        lost or `vocab` is another one, it is trained on these pairs too.

        texts: of the pairs to train on
        train_sizes: pair -> number of its training pairs; {} if `spm` is given

        Raises a UserError if `spm` is no model.
        """
        path = self.dest / "spm.model"
        record = read_json(self.dest / "steps" / "vocabulary.json")  # {} if no model has been made yet
        trained_on = record.get("result", {}).get("pairs")  # None also for a model that --spm gave
        if trained_on is not None:
            texts = [text for text in texts if text.name in trained_on]
        if not self.spm:  # the sample is drawn from these texts, and its size depends on theirs
            train_sizes = {text.name: train_sizes[text.name] for text in texts}

        def copy() -> dict:
            with whole(path) as part:
                part.write_bytes(self.spm.read_bytes())
            return {}

        def train() -> dict:
            """Train the model; return the pairs that it is trained on, for the record of the step."""
            with whole(path) as part:
                sentences = chain.from_iterable(self.draw(texts, train_sizes).values())
                _, memory_limit = self.sample_limits(train_sizes)
                model = sentencepiece_model(
                    sentences,
                    self.vocab,
                    memory_limit=memory_limit,
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
        """Return language -> iterator of its sentences in the sample for the SentencePiece model; print their numbers.

        texts: of the pairs that the sample is drawn from
        train_sizes: pair -> number of its training pairs
        """
        languages = _languages(texts)
        sizes = {}  # language -> number of training sentences in it
        for lang in languages:
            sizes[lang] = sum(train_sizes[text.name] for text in texts if lang in text.langs)

        total, _ = self.sample_limits(train_sizes)
        probabilities = sampling_probabilities(sizes, self.temperature)
        wanted = {lang: round(total * probability) for lang, probability in probabilities.items()}
        print(
            f"| {self.vocab:,} pieces from {total:,} sentences in {len(languages)} languages, "
            f"{min(wanted.values()):,} to {max(wanted.values()):,} of each"
        )

        drawn = {}
        for lang in languages:
            lines = _training_lines(texts, lang)
            rng = Random(f"vocabulary {lang}")  # a seed for each language, so that no sample depends on another
            drawn[lang] = sample(lines, count=sizes[lang], wanted=wanted[lang], rng=rng)
        return drawn

    def sample_limits(self, train_sizes: dict[str, int]) -> tuple[int, int | None]:
        """Return (number of sentences in the sample, bytes of memory that they may take, None for any number).

        train_sizes: language pair -> number of its training pairs
        """
        asked = self.usual_sample if self.vocab_sample is None else self.vocab_sample
        sentences = 2 * sum(train_sizes.values())  # in both languages of each pair
        return sample_limits(sentences, asked)

    def shard_folder(self, shard: int = 0) -> Path:
        """Return the folder with the binarised data of a shard, by its number from 0."""
        if self.shards == 1:
            return self.dest / "bin"
        return self.dest / "bin" / f"shard{shard:02d}"

    def write_lists(self, texts: Sequence[PairText], vocabulary: Vocabulary) -> None:
        """Write the dictionaries dict.LANG.txt, and the lists langs.txt and pairs.txt.

        langs.txt has the languages, for fairseq's --lang-dict. pairs.txt has the directions, one a line, for
        --lang-pairs. fairseq reads the dictionaries from the first shard; users look for the lists in DEST/bin too.

        texts: of the pairs to train on
        """
        languages = _languages(texts)
        directions = list(chain.from_iterable(text.directions for text in texts))
        for language in languages:
            write_lines(self.shard_folder() / f"dict.{language}.txt", vocabulary.dictionary(len(languages)))
        for folder in {self.dest / "bin", self.shard_folder()}:  # the same folder if there is one shard
            write_lines(folder / "langs.txt", languages)
            write_lines(folder / "pairs.txt", directions)

    def count_pairs(self, text: PairText) -> int:
        """Read all text of a language pair and count it, in a step; return the number of training pairs.

        The reading also finds mistakes: a UserError is raised for bad UTF-8, or for a subset without text, and a
        warning is printed if accents are written in two ways. Where `text` has a bound, an upper bound of the number of
        training pairs is computed and returned, and nothing else is read.
        """

        def make() -> dict:
            """Return subset -> number of its sentence pairs."""
            if text.bound is not None:
                return {"train": text.bound()}

            names = [f"{text.name}, {lang}" for lang in text.langs]  # for warnings
            letters = Letters(names)  # of all subsets together: é may be one character in one and two in another
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
        """Binarise the text of one language pair, and write the references of its test sets, in a step.

        train_size: number of training pairs, or an upper bound of it; 0 without training text

        Returns subset -> number of its sentence pairs.
        """
        read = dict(text.subsets)  # subset -> function that reads its sentence pairs
        if "train" in read:  # fairseq requires a "valid" of every pair it trains on; without one, a training pair is it
            read.setdefault("valid", lambda: islice(text.subsets["train"](), 1))

        # the binarised files
        train_shards = max(1, min(self.shards, train_size // LEAST_IN_SHARD))
        prefixes = {}  # subset -> (path of source, of target) for each of its shards; both directions share these files
        for subset in read:
            subset_shards = train_shards if subset == "train" else 1
            prefixes[subset] = [self._prefixes(text, subset, shard) for shard in range(subset_shards)]

        # The references of test sets, as they are: for "de-en" the English text, which is side 1, and for "en-de" the
        # German text, which is side 0. A text of one way has the first direction only.
        target_sides = []
        endings = []
        for target_side, direction in zip((1, 0), text.directions, strict=not text.one_way):
            target_sides.append(target_side)
            endings.append(f"{direction}.{text.langs[target_side]}")
        references = {}  # test set -> its files, in the order of `target_sides`
        for subset in read:
            if subset not in ("train", "valid"):
                references[subset] = [self.dest / "reference" / f"{subset}.{ending}" for ending in endings]

        def make() -> dict:
            """Write all files; return subset -> number of its sentence pairs."""
            counts = {}
            for subset, shard_prefixes in prefixes.items():
                total = train_size if subset == "train" else None
                counts[subset] = cut_and_binarise(read[subset](), vocabulary, shard_prefixes, self.workers, total=total)
            for subset, paths in references.items():
                target_lines = (tuple(pair[side] for side in target_sides) for pair in read[subset]())
                write_columns(paths, target_lines)
            numbers = ", ".join(f"{subset} {count:,}" for subset, count in counts.items())
            print(f"| {text.name}: {numbers}", flush=True)
            return counts

        outputs = []  # all files that make() writes
        for source_prefix, target_prefix in chain.from_iterable(prefixes.values()):
            for prefix in (source_prefix, target_prefix):
                outputs += [Path(f"{prefix}.bin"), Path(f"{prefix}.idx")]
        outputs += chain.from_iterable(references.values())
        settings = {"text": text.state, "vocabulary": vocabulary.digest, "shards": train_shards}
        return Steps(self.dest).run(text.step, outputs, settings, make)

    def _prefixes(self, text: PairText, subset: str, shard: int) -> tuple[Path, Path]:
        """Return (path of source, path of target) of a subset in one shard, without .bin and .idx."""
        source, target = text.langs
        prefix = f"{subset}.{text.name}"
        return self.shard_folder(shard) / f"{prefix}.{source}", self.shard_folder(shard) / f"{prefix}.{target}"
