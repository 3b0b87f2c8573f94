"""Prepare plain text for the tasks language_modeling and masked_lm: pieces, then fairseq's binarised data.

Text is streamed in lines; only SentencePiece's training holds some of them, see learning.py. The segmentation, one of
fairseq's own encoders, is recorded beside the data: DATA/text.json holds fairseq's settings, {"bpe":
"sentencepiece", "sentencepiece_model": "spm.model"} or {"bpe": "gpt2", "gpt2_encoder_json": "encoder.json",
"gpt2_vocab_bpe": "vocab.bpe"}, with file names from the folder.
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
from ..files import check_folder, read_object
from .binarise import PLAIN, binarise, check_dest
from .folder import new_folder, prepared_size, say_space
from .learning import sample_size, sentencepiece_model
from .lines import Letters, as_many, is_blank, map_chunks, read_lines, rereadable, write_lines
from .steps import write_json
from .survey import Survey, survey
from .vocabulary import Vocabulary, sample

NAME = "text.json"
MEND = "take those of GPT-2"
TRAINED_ON = 10_000_000  # lines at most that SentencePiece takes of the sample; every model made so far records it
LONGEST = 1 << 20  # bytes of the longest line that it does not skip; a paragraph may be one line
PLACES = (  # addresses of GPT-2's files: fairseq's and OpenAI's
    "https://dl.fbaipublicfiles.com/fairseq/gpt2_bpe",
    "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main",
)
CHECKSUMS = {  # those by which OpenAI's tiktoken verifies its downloads
    "encoder.json": "sha256:196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
    "vocab.bpe": "sha256:1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
}


def _gpt2_symbols(encoder: Path, merges: Path) -> list[str]:
    """Return the symbols of GPT-2's pieces in fairseq's dictionary, which are the pieces' numbers, in their order.

    The pieces are those of byte-level BPE (Radford et al. 2019). encoder: encoder.json, piece -> number; merges:
    vocab.bpe. Raises a UserError for a file that fairseq's encoder would trip over in the middle of a text.
    """
    number_of = read_object(encoder, MEND)
    numbers = list(number_of.values())
    if any(type(number) is not int or number < 0 for number in numbers) or len(set(numbers)) < len(numbers):
        raise UserError(f"{encoder}: must give each piece a whole number of its own; {MEND}")

    missing = [symbol for symbol in bytes_to_unicode().values() if symbol not in number_of]
    if missing:
        raise UserError(f"{encoder}: has no number for {len(missing)} of the 256 bytes ({missing[0]!r}); {MEND}")

    for line_number, line in enumerate(read_lines(merges), 1):
        if line_number == 1:  # a comment with the version
            continue
        pair = line.split(" ")
        if len(pair) != 2 or "".join(pair) not in number_of:
            raise UserError(f"{merges}, line {line_number}: is not two pieces that are one in encoder.json; {MEND}")
    return [str(number) for number in sorted(numbers)]


KINDS = {  # fairseq's --bpe -> its setting -> name of the file in the data's folder
    "sentencepiece": {"sentencepiece_model": "spm.model"},
    "gpt2": {"gpt2_encoder_json": "encoder.json", "gpt2_vocab_bpe": "vocab.bpe"},
}


class Segmenter:
    """Segmentation of text into pieces; raises a UserError, naming the file, if one is missing or broken.

    kind: one of KINDS; files: fairseq's setting -> path; symbols: all pieces, as fairseq's dictionary writes them:
    SentencePiece's (Kudo and Richardson 2018, arXiv 1808.06226) as text, GPT-2's as numbers.
    """

    def __init__(self, kind: str, files: dict[str, Path]):
        self.kind = kind
        self.files = files
        if kind == "gpt2":
            self.symbols = _gpt2_symbols(*files.values())
        else:
            self.symbols = Vocabulary(*files.values()).subwords
        settings = {setting: str(path) for setting, path in files.items()}
        self._bpe = encoders.build_bpe(argparse.Namespace(bpe=kind, **settings))

    def encode(self, line: str) -> str:
        """Return the pieces separated by blanks, "" for a blank line; white space around the line does not count."""
        return "" if is_blank(line) else self._bpe.encode(line.strip())

    def decode(self, pieces: str) -> str:
        """Return the text of pieces that blanks separate."""
        return self._bpe.decode(pieces)

    def write(self, folder: Path, **facts) -> None:
        """Copy the files to `folder`, unless they lie there, and write text.json with `facts` beside the settings."""
        for setting, name in KINDS[self.kind].items():
            source = self.files[setting]
            if source != folder / name:
                shutil.copyfile(source, folder / name)
        write_json(folder / NAME, {"bpe": self.kind} | KINDS[self.kind] | facts)


def read_segmenter(folder: Path) -> Segmenter:
    """Read the segmenter of the data in `folder`; raise a UserError if it holds none."""
    path = folder / NAME
    mend = "make the data with `deepnet prepare lm`, or write their BPE there as docs/language_models.md says"
    content = read_object(path, mend)
    kind = content.get("bpe")
    if not isinstance(kind, str) or kind not in KINDS:
        raise UserError(f'{path}: "bpe" must be one of {", ".join(KINDS)}; {mend}')

    files = {}
    for setting in KINDS[kind]:
        name = content.get(setting)
        if not isinstance(name, str):
            raise UserError(f"{path}: lacks {setting!r}; {mend}")
        files[setting] = folder / name
    return Segmenter(kind, files)


def fetch_gpt2(folder: Path) -> dict[str, Path]:
    """Fetch GPT-2's files unless they exist; return name -> path in `folder`. UserError if no address gives them."""
    from .download import RemoteFile, fetch_all

    files = []
    for name, checksum in CHECKSUMS.items():
        addresses = tuple(f"{place}/{name}" for place in PLACES)
        files.append(RemoteFile(name, addresses, checksum=checksum, origin="tiktoken"))
    return fetch_all(files, folder)


def prepare_lm(
    texts: dict[str, list[Path]],
    dest: Path,
    segmenter: Callable[[Path, PlainText], Segmenter],
    dictionary: Path | None = None,
    workers: int = 1,
) -> None:
    """Check all of the text, then write `dest`, which appears in one move, whole or not at all.

    texts: "train", "valid" and "test" -> files, one for "train"; fairseq calls several of them valid, valid1, ...
    segmenter: of the part-made folder, where it may leave its files, and of the training text, which is in order
    dictionary: fairseq's, of an earlier model; by default all symbols of the segmenter, by their number in "train"
    `dest` gets dict.txt, {train,valid,test}.{bin,idx}, the pieces in text/, and the segmenter's files with text.json.
    """
    check_folder("DEST", dest)
    check_dest(dest)
    with new_folder(dest) as part, ExitStack() as copies:
        paths = _rereadable_subsets(texts, copies)
        text_size = sum(path.stat().st_size for path in paths.values())
        say_space(dest, prepared_size(text_size, pieces=0), str(dest))
        checked = _check(paths, workers)

        cutter = segmenter(part, checked["train"])
        counts: Counter = Counter()
        (part / "text").mkdir()
        for subset, text in checked.items():
            counted = counts if subset == "train" and dictionary is None else None
            lines = _cut(text, cutter, workers=workers, subset=subset, total=counted)
            write_lines(part / "text" / subset, lines)

        if dictionary is None:
            dictionary = part / "text" / "dict.txt"
            _dictionary(counts, cutter.symbols).save(str(dictionary))

        print("| binarising", flush=True)
        made = binarise(
            langs=None,
            texts={subset: part / "text" / subset for subset in paths},
            dest=part,
            workers=workers,
            dictionary=dictionary,
            lines={subset: text.facts.rows for subset, text in checked.items()},
        )

        facts = {}
        for subset, text in checked.items():
            binarised = made["text"][subset][PLAIN]
            facts[subset] = {
                **text.facts.sizes(),
                "pieces": binarised["pieces"],
                "unknown": binarised["unknown"],
            }
        cutter.write(part, types=made["types"], text=facts)

    print(f"| dictionary: {made['types']:,} types")
    for subset, numbers in facts.items():
        told = ", ".join(f"{numbers[what]:,} {what}" for what in ("lines", "words", "bytes", "pieces"))
        print(f"| {subset}: {told}, {numbers['unknown']:g}% unknown")
    print(f"| wrote {dest}")


def _rereadable_subsets(texts: dict[str, list[Path]], copies: ExitStack) -> dict[str, Path]:
    """Return subset, in fairseq's names -> a file that can be read again. copies: of pipes, until it closes."""
    paths = {}
    for split, files in texts.items():
        for number, path in enumerate(files):
            subset = split if number == 0 else f"{split}{number}"
            paths[subset] = copies.enter_context(rereadable(path))
    return paths


class PlainSurvey(Survey):
    """Facts about text in one language. words: between white space; sentences: lines that are not blank."""

    words = 0
    sentences = 0

    def add(self, rows: list[tuple[str, ...]]) -> None:
        """Count in some lines of text, each a row."""
        super().add(rows)
        for (line,) in rows:
            if not is_blank(line):
                self.words += len(line.split())
                self.sentences += 1

    def merge(self, other: PlainSurvey) -> None:
        """Add what was counted in another part of the text."""
        super().merge(other)
        self.words += other.words
        self.sentences += other.sentences

    def sizes(self) -> dict[str, int]:
        """Return what text.json tells: lines, words, and bytes without line ends."""
        return {"lines": self.rows, "words": self.words, "bytes": self.size - self.rows}


class PlainText(NamedTuple):
    """File of text that was read and found in order, with what was counted in it."""

    path: Path
    facts: PlainSurvey


def _check(paths: dict[str, Path], workers: int) -> dict[str, PlainText]:
    """Read all files; raise a UserError if one cannot be read or holds no text."""
    checked = {}
    letters = Letters(["text"])  # of all files together: a form of accents may differ between them
    for subset, path in paths.items():
        rows = ((line,) for line in read_lines(path))
        facts = survey(PlainSurvey(["text"]), rows, workers, label=subset, size=path.stat().st_size)
        if not facts.words:
            raise UserError(f"{path}: no text in it")
        checked[subset] = PlainText(path, facts)
        letters.merge(facts.letters)
    letters.warn()
    return checked


def _cut(text: PlainText, cutter: Segmenter, workers: int, subset: str, total: Counter | None) -> Iterator[str]:
    """Yield the lines in pieces, chunk by chunk, and add the count of each piece to `total`, unless that is None.

    Raises a UserError for a text that has changed since it was checked.
    """

    def encode(lines: list[str]) -> tuple[str, Counter]:
        pieces = "\n".join(map(cutter.encode, lines))
        if total is None:
            return pieces, Counter()
        return pieces, Counter(pieces.split())

    expected = text.facts.rows
    lines = as_many(read_lines(text.path), expected, text.path)
    for pieces, counts in map_chunks(encode, lines, workers, label=f"cutting {subset}", total=expected):
        if total is not None:
            total.update(counts)
        yield pieces


def train_sentencepiece(text: PlainText, vocab: int, folder: Path, sample_lines: int | None = None) -> Segmenter:
    """Train FOLDER/spm.model with `vocab` pieces on an even sample of the lines that are not blank.

    sample_lines: their number, by default as many as fit; see learning.sample_size. Raises a UserError if the text does
    not allow that number of pieces.
    """
    total = text.facts.sentences
    wanted, room = sample_size(total, sample_lines)
    drawn = f"{total:,} lines" if wanted == total else f"{wanted:,} of {total:,} lines, drawn evenly"
    print(f"| training SentencePiece, {vocab:,} pieces, on {drawn}", flush=True)

    lines = (line.strip() for line in read_lines(text.path) if not is_blank(line))
    model = sentencepiece_model(
        sample(lines, count=total, wanted=wanted, rng=Random("vocabulary")),
        vocab,
        room=room,
        whole_text=(total, text.facts.characters),
        folder=folder,
        character_coverage=1.0,
        input_sentence_size=TRAINED_ON,
        shuffle_input_sentence=True,
        max_sentence_length=LONGEST,
    )
    path = folder / "spm.model"
    path.write_bytes(model)
    return Segmenter("sentencepiece", {"sentencepiece_model": path})


def _dictionary(counts: Counter, symbols: Iterable[str]) -> Dictionary:
    """Make fairseq's dictionary, the commonest first, with all symbols: other text may have those that this lacks.

    counts: symbol -> its count in the training text; symbols: all of the segmenter.
    """
    dictionary = Dictionary()
    for symbol in symbols:
        dictionary.add_symbol(symbol, n=counts[symbol])
    dictionary.finalize()
    return dictionary


read = read_segmenter  # its name until 0.1; gone with the next release
