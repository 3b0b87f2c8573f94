"""Prepare plain text for fairseq's tasks language_modeling and masked_lm: cut it into pieces, then binarise it.

Text is streamed in lines; only SentencePiece's training keeps some of them in memory, see learning.py. The text is cut
by one of fairseq's own encoders (its --bpe), here called a segmenter. text.json in the folder of the data records
which: it holds fairseq's settings, {"bpe": "sentencepiece", "sentencepiece_model": "spm.model"} or {"bpe": "gpt2",
"gpt2_encoder_json": "encoder.json", "gpt2_vocab_bpe": "vocab.bpe"}, where the files are named relative to the folder.

A split is "train", "valid" or "test"; a subset is one text of a split, by fairseq's name: "valid", "valid1", ... Pipes
and standard input can be read only once, so they are copied to temporary files first.
"""

from __future__ import annotations

import argparse
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import NamedTuple

from fairseq.data import Dictionary, encoders
from fairseq.data.encoders.gpt2_bpe_utils import bytes_to_unicode

from ..errors import UserError
from ..files import check_folder, read_json_object
from ..wording import counted
from .binarise import PLAIN, binarise, refuse_pathsep
from .folder import new_folder, prepared_size, say_space
from .learning import sample_limits, sentencepiece_model
from .lines import Letters, as_many, is_blank, map_chunks, read_lines, rereadable, write_lines
from .steps import write_json
from .survey import Survey, survey
from .vocabulary import Vocabulary, sample

NAME = "text.json"
MEND = "take those of GPT-2"  # end of the errors about GPT-2's files
# Options of SentencePiece's training, which a model file records: another value would change the bytes of new models.
INPUT_SENTENCE_SIZE = 10_000_000  # lines that it uses at most
MAX_SENTENCE_LENGTH = 1 << 20  # bytes; it skips longer lines, and its default of 4192 is too short for paragraphs
PLACES = (  # addresses of the folder with GPT-2's files: fairseq's, then OpenAI's
    "https://dl.fbaipublicfiles.com/fairseq/gpt2_bpe",
    "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main",
)
CHECKSUMS = {  # file of GPT-2's BPE -> the checksum by which OpenAI's tiktoken verifies it
    "encoder.json": "sha256:196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
    "vocab.bpe": "sha256:1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
}


def _gpt2_symbols(encoder: Path, merges: Path) -> list[str]:
    """Return the symbols that fairseq's dictionary has for GPT-2's pieces: their numbers, as text, in ascending order.

    The pieces are those of byte-level BPE (Radford et al. 2019). Both files are checked: a UserError is raised for one
    with which fairseq's encoder would fail in the middle of a text.

    encoder: encoder.json, which holds piece -> number
    merges: vocab.bpe, which has a line with its version, and then two pieces a line that are merged into one
    """
    number_of = read_json_object(encoder, MEND)
    numbers = list(number_of.values())
    all_whole = all(type(number) is int and number >= 0 for number in numbers)  # not isinstance: True is an int too
    if not all_whole or len(set(numbers)) < len(numbers):
        raise UserError(encoder, f"must give each piece a whole number of its own; {MEND}")

    # bytes_to_unicode: byte -> the character that stands for it in GPT-2's pieces
    missing = [symbol for symbol in bytes_to_unicode().values() if symbol not in number_of]
    if missing:
        raise UserError(encoder, f"has no number for {len(missing)} of the 256 bytes ({missing[0]!r}); {MEND}")

    for line_number, line in enumerate(read_lines(merges), 1):
        if line_number == 1:  # "#version: 0.2"
            continue
        pair = line.split(" ")
        if len(pair) != 2 or "".join(pair) not in number_of:  # the merged piece must have a number
            raise UserError(f"{merges}, line {line_number}", f"is not two pieces that are one in encoder.json; {MEND}")
    return [str(number) for number in sorted(numbers)]


KINDS = {  # fairseq's --bpe -> {fairseq's setting: name of its file in the folder of the data}
    "sentencepiece": {"sentencepiece_model": "spm.model"},
    "gpt2": {"gpt2_encoder_json": "encoder.json", "gpt2_vocab_bpe": "vocab.bpe"},
}


class Segmenter:
    """Cuts text into pieces by one of fairseq's encoders; raises a UserError if one of its files is unusable.

    kind: fairseq's --bpe, one of KINDS
    files: fairseq's setting, as "sentencepiece_model" -> path of the file, in the order of KINDS[kind]
    symbols: all pieces, as fairseq's dictionary has them: those of SentencePiece (Kudo and Richardson 2018, arXiv
        1808.06226) as text, those of GPT-2 as numbers
    """

    def __init__(self, kind: str, files: dict[str, Path]):
        self.kind = kind
        self.files = files
        if kind == "gpt2":
            encoder, merges = files.values()
            self.symbols = _gpt2_symbols(encoder, merges)
        else:
            (model,) = files.values()
            self.symbols = Vocabulary(model).subwords
        settings = {setting: str(path) for setting, path in files.items()}
        self._bpe = encoders.build_bpe(argparse.Namespace(bpe=kind, **settings))

    def encode(self, line: str) -> str:
        """Return the pieces of a line, without the white space around it, separated by blanks; "" for a blank line."""
        return "" if is_blank(line) else self._bpe.encode(line.strip())

    def decode(self, pieces: str) -> str:
        """Return the text of pieces that are separated by blanks."""
        return self._bpe.decode(pieces)

    def write(self, folder: Path, **facts) -> None:
        """Copy the segmenter's files to `folder`, unless they are there already, and write text.json there.

        facts: further entries of text.json besides fairseq's settings; prepare_lm gives "types" and "text"
        """
        for setting, name in KINDS[self.kind].items():
            source = self.files[setting]
            if source != folder / name:
                shutil.copyfile(source, folder / name)
        write_json(folder / NAME, {"bpe": self.kind} | KINDS[self.kind] | facts)


def read_segmenter(folder: Path) -> Segmenter:
    """Return the segmenter that cut the data in `folder`.

    Raises a UserError if the folder has no text.json or one without a segmenter, or if a file of it is unusable.
    """
    path = folder / NAME
    mend = "make the data with `deepnet prepare lm`, or write their BPE there as docs/language_models.md says"
    content = read_json_object(path, mend)
    kind = content.get("bpe")
    if not isinstance(kind, str) or kind not in KINDS:
        raise UserError(path, f'"bpe" must be one of {", ".join(KINDS)}; {mend}')

    files = {}
    for setting in KINDS[kind]:
        name = content.get(setting)
        if not isinstance(name, str):
            raise UserError(path, f"lacks {setting!r}; {mend}")
        files[setting] = folder / name
    return Segmenter(kind, files)


def fetch_gpt2(folder: Path) -> dict[str, Path]:
    """Download encoder.json and vocab.bpe of GPT-2 into `folder`, unless they are there; return name -> path.

    Raises a UserError if no address gives one of them.
    """
    from .download import RemoteFile, fetch_all

    files = []
    for name, checksum in CHECKSUMS.items():
        addresses = tuple(f"{place}/{name}" for place in PLACES)
        files.append(RemoteFile(name, addresses, checksum=checksum, origin="tiktoken"))
    return fetch_all(files, folder)


def prepare_lm(
    texts: dict[str, list[Path]],
    dest: Path,
    make_segmenter: Callable[[Path, PlainText], Segmenter],
    dictionary: Path | None = None,
    workers: int = 1,
) -> None:
    """Check text for language models, cut it into pieces and binarise it into the new folder `dest`.

    `dest` appears whole at the end, or not at all. It gets dict.txt, SUBSET.bin and SUBSET.idx, the text in pieces as
    text/SUBSET, the segmenter's files, and text.json. Besides fairseq's settings this has "types", the size of the
    dictionary, and "text": subset -> {"lines", "words", "bytes", "pieces": their numbers, "unknown": how many per cent
    became <unk>, as binarise counts it}.

    texts: "train", "valid" and "test" -> files; "train" has one, the others may have several, which become the subsets
        "valid", "valid1", ...
    make_segmenter: function that returns the segmenter; it is called when all text has been checked, with the folder
        that becomes `dest`, where it may write its files, and with the training text
    dictionary: file of an earlier model's dictionary; None to make one of all symbols of the segmenter, sorted by how
        often they occur in the training text
    workers: number of processes
    """
    check_folder("DEST", dest)
    refuse_pathsep(dest)
    with new_folder(dest) as part, ExitStack() as copies:
        paths = _rereadable_subsets(texts, copies)
        text_size = sum(path.stat().st_size for path in paths.values())
        # the size of the vocabulary is not known yet; 0 stands for any whose numbers have 2 bytes
        say_space(dest, prepared_size(text_size, pieces=0), str(dest))
        checked = _survey_all(paths, workers)

        segmenter = make_segmenter(part, checked["train"])
        counts: Counter = Counter()  # symbol -> its count in the training text, for a new dictionary
        (part / "text").mkdir()
        for subset, text in checked.items():
            wanted_counts = counts if subset == "train" and dictionary is None else None
            chunks = _cut(text, segmenter, workers=workers, subset=subset, counts=wanted_counts)
            write_lines(part / "text" / subset, chunks)

        if dictionary is None:
            dictionary = part / "text" / "dict.txt"
            _new_dictionary(counts, segmenter.symbols).save(str(dictionary))

        print("| binarising", flush=True)
        binarised = binarise(
            langs=None,
            texts={subset: part / "text" / subset for subset in paths},
            dest=part,
            workers=workers,
            dictionary=dictionary,
            lines={subset: text.found.rows for subset, text in checked.items()},
        )

        sizes = {}  # entry "text" of text.json
        for subset, text in checked.items():
            of_pieces = binarised["text"][subset][PLAIN]
            sizes[subset] = {
                **text.found.sizes(),
                "pieces": of_pieces["pieces"],
                "unknown": of_pieces["unknown"],
            }
        segmenter.write(part, types=binarised["types"], text=sizes)

    print(f"| dictionary: {binarised['types']:,} types")
    for subset, numbers in sizes.items():
        told = ", ".join(f"{numbers[what]:,} {what}" for what in ("lines", "words", "bytes", "pieces"))
        print(f"| {subset}: {told}, {numbers['unknown']:g}% unknown")
    print(f"| wrote {dest}")


def _rereadable_subsets(texts: dict[str, list[Path]], copies: ExitStack) -> dict[str, Path]:
    """Return subset -> a file that can be read more than once: the given one, or a temporary copy of a pipe.

    texts: split -> files
    copies: when it closes, it removes the temporary copies
    """
    paths = {}
    for split, files in texts.items():
        for number, path in enumerate(files):
            subset = split if number == 0 else f"{split}{number}"
            paths[subset] = copies.enter_context(rereadable(path))
    return paths


class PlainSurvey(Survey):
    """Survey of plain text: what Survey counts, and further counts of lines that are not blank (lines.is_blank).

    words: stretches of text between white space in these lines
    sentences: number of these lines
    """

    words = 0
    sentences = 0

    def add(self, rows: list[tuple[str, ...]]) -> None:
        """Count some lines of text, each in a tuple of its own."""
        super().add(rows)
        for (line,) in rows:
            if not is_blank(line):
                self.words += len(line.split())
                self.sentences += 1

    def merge(self, other: PlainSurvey) -> None:
        """Add the counts of another part of the text."""
        super().merge(other)
        self.words += other.words
        self.sentences += other.sentences

    def sizes(self) -> dict[str, int]:
        """Return {"lines", "words", "bytes"}, as text.json holds them; line ends, a byte each, are not counted."""
        return {"lines": self.rows, "words": self.words, "bytes": self.size - self.rows}


class PlainText(NamedTuple):
    """File of text that has been checked, and what was found in it."""

    path: Path
    found: PlainSurvey


def _survey_all(paths: dict[str, Path], workers: int) -> dict[str, PlainText]:
    """Read the file of each subset once, to check it; return subset -> file and survey.

    paths: subset -> file
    workers: number of processes

    Raises a UserError for a file that cannot be read or holds no text.
    """
    checked = {}
    letters = Letters(["text"])  # all files count together: é may be one character in one of them, and two in another
    for subset, path in paths.items():
        rows = ((line,) for line in read_lines(path))
        found = survey(PlainSurvey(["text"]), rows, workers, label=subset, size=path.stat().st_size)
        if not found.words:
            raise UserError(path, "no text in it")
        checked[subset] = PlainText(path, found)
        letters.merge(found.letters)
    letters.warn()
    return checked


def _cut(text: PlainText, segmenter: Segmenter, workers: int, subset: str, counts: Counter | None) -> Iterator[str]:
    """Yield the text in pieces, some thousand lines at a time as one string with "\\n" between them.

    workers: number of processes
    subset: name of the text, for the progress bar
    counts: the count of each piece is added to it; None to count nothing

    Raises a UserError for a text whose number of lines has changed since it was checked.
    """

    def encode(lines: list[str]) -> tuple[str, Counter]:
        """Return (the lines in pieces, as one string; piece -> its count, empty if nothing is to be counted)."""
        in_pieces = "\n".join(map(segmenter.encode, lines))
        if counts is None:
            return in_pieces, Counter()
        return in_pieces, Counter(in_pieces.split())

    expected = text.found.rows
    lines = as_many(read_lines(text.path), expected, text.path)
    for in_pieces, chunk_counts in map_chunks(encode, lines, workers, label=f"cutting {subset}", total=expected):
        if counts is not None:
            counts.update(chunk_counts)
        yield in_pieces


def train_sentencepiece(text: PlainText, vocab: int, folder: Path, sample_lines: int | None = None) -> Segmenter:
    """Train a SentencePiece model on a random sample of the text's lines that are not blank; return its segmenter.

    vocab: number of pieces of the model
    folder: where the model is written, as spm.model
    sample_lines: number of lines in the sample; None for as many as learning.sample_limits allows

    Raises a UserError if the text does not allow that number of pieces.
    """
    total = text.found.sentences
    wanted, memory_limit = sample_limits(total, sample_lines)
    drawn = counted(total, "line") if wanted == total else f"{wanted:,} of {total:,} lines, drawn evenly"
    print(f"| training SentencePiece, {vocab:,} pieces, on {drawn}", flush=True)

    lines = (line.strip() for line in read_lines(text.path) if not is_blank(line))
    model = sentencepiece_model(
        sample(lines, count=total, wanted=wanted, rng=Random("vocabulary")),
        vocab,
        memory_limit=memory_limit,
        whole_text=(total, text.found.characters),
        folder=folder,
        character_coverage=1.0,
        input_sentence_size=INPUT_SENTENCE_SIZE,
        shuffle_input_sentence=True,
        max_sentence_length=MAX_SENTENCE_LENGTH,
    )
    path = folder / "spm.model"
    path.write_bytes(model)
    return Segmenter("sentencepiece", {"sentencepiece_model": path})


def _new_dictionary(counts: Counter, symbols: Iterable[str]) -> Dictionary:
    """Return a new dictionary of all symbols of the segmenter, the most frequent first.

    Symbols that the training text lacks are among them, because other text may have them.

    counts: symbol -> its count in the training text
    symbols: all of the segmenter
    """
    dictionary = Dictionary()
    for symbol in symbols:
        dictionary.add_symbol(symbol, n=counts[symbol])
    dictionary.finalize()
    return dictionary


read = read_segmenter  # the name that read_segmenter had until 0.1; it goes with the next release
