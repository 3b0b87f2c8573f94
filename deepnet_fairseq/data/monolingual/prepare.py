"""Plain text -> pieces -> fairseq's binarised data for the tasks language_modeling and masked_lm.

Text goes through in lines, not through memory; only SentencePiece's training holds up to 10 million of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from fairseq.data import Dictionary

from ...atomic_output import check_folder, whole
from ...errors import UserError
from ..binarise import binarise_plain
from ..lines import map_lines, read_lines, write_lines
from ..prepare import sentencepiece_model
from .segmenter import Segmenter

TRAINED_ON = 10_000_000  # lines drawn for SentencePiece
LONGEST = 1 << 20  # bytes of a line that it does not pass over; a paragraph may be one
PLACES = (  # of GPT-2's files: where fairseq takes them, and OpenAI
    "https://dl.fbaipublicfiles.com/fairseq/gpt2_bpe",
    "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main",
)
CHECKSUMS = {  # those that OpenAI's tiktoken holds its downloads against
    "encoder.json": "sha256:196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
    "vocab.bpe": "sha256:1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
}


def fetch_gpt2(folder: Path) -> dict[str, Path]:
    """GPT-2's files, name -> path in `folder`, fetched unless they are there; UserError if no address gives them."""
    from ..download import RemoteFile, fetch_all

    files = [
        RemoteFile(name, tuple(f"{place}/{name}" for place in PLACES), checksum=checksum, origin="tiktoken")
        for name, checksum in CHECKSUMS.items()
    ]
    return fetch_all(files, folder)


def prepare_lm(
    texts: dict[str, list[Path]],
    dest: Path,
    segmenter: Callable[[Path], Segmenter],
    dictionary: Path | None = None,
    workers: int = 1,
) -> None:
    """Checks all of the text, then writes `dest` in one move: nothing of it is there before all is.

    texts: "train", "valid" and "test" -> files, one for "train"; fairseq calls several of them valid, valid1, ...
    segmenter: of the part-made folder, where it may leave its files; called once the text is found to be in order
    dictionary: fairseq's, of an earlier model; by default all symbols of the segmenter, by their number in "train"
    `dest` gets dict.txt, {train,valid,test}.{bin,idx}, the pieces in text/, and the segmenter's files with text.json.
    """
    check_folder("DEST", dest)
    paths = {f"{split}{i or ''}": path for split, files in texts.items() for i, path in enumerate(files)}
    counts = {subset: count(path) for subset, path in paths.items()}
    for subset, found in counts.items():
        print(f"| {subset}: {found['lines']:,} lines, {found['words']:,} words, {found['bytes']:,} bytes")
    with whole(dest) as part:
        (part / "text").mkdir(parents=True)
        cutter = segmenter(part)
        seen = Counter()
        for subset, path in paths.items():
            pieces = map_lines(partial(_encoder, cutter.kind, cutter.files), read_lines(path), workers, subset)
            write_lines(part / "text" / subset, _counted(pieces, seen) if subset == "train" else pieces)
        if dictionary is None:
            dictionary = part / "text" / "dict.txt"
            complete_dictionary(seen, cutter.symbols).save(str(dictionary))
        print("| binarising")
        segmented = {split: [part / "text" / name for name in paths if name.startswith(split)] for split in texts}
        made = binarise_plain(segmented, part, workers, dictionary)
        text = {
            subset: found | {name: made["text"][subset][name] for name in ("pieces", "unknown")}
            for subset, found in counts.items()
        }
        cutter.write(part, types=made["types"], text=text)
    print(f"| dictionary: {made['types']:,} types")
    for subset, found in made["text"].items():
        print(f"| {subset}: {found['sentences']:,} lines, {found['pieces']:,} pieces, {found['unknown']:g}% unknown")
    print(f"| wrote {dest}")


def count(path: Path) -> dict[str, int]:
    """Lines, words and bytes (without \\n) of a file; UserError if it cannot be read or holds no text."""
    lines = words = size = 0
    for line in read_lines(path):
        lines, words, size = lines + 1, words + len(line.split()), size + len(line.encode())
    if not words:
        raise UserError(f"{path}: no text in it")
    return {"lines": lines, "words": words, "bytes": size}


def train_sentencepiece(text: Path, vocab: int, folder: Path) -> Segmenter:
    """FOLDER/spm.model of `vocab` pieces; UserError if the text does not go with it."""
    print(f"| training SentencePiece, {vocab:,} pieces")
    lines = (line for line in map(str.strip, read_lines(text)) if line)
    options = {"input_sentence_size": TRAINED_ON, "shuffle_input_sentence": True, "max_sentence_length": LONGEST}
    path = folder / "spm.model"
    path.write_bytes(sentencepiece_model(lines, vocab, character_coverage=1.0, **options))
    return Segmenter("sentencepiece", {"sentencepiece_model": path})


def complete_dictionary(seen: Counter, symbols: Iterable[str]) -> Dictionary:
    """fairseq's, the commonest first; the symbols that the text has not got are in it too: other text may have them."""
    dictionary = Dictionary()
    for symbol in symbols:
        dictionary.add_symbol(symbol, n=seen[symbol])
    dictionary.finalize()
    return dictionary


def _encoder(kind: str, files: dict[str, Path]) -> Callable[[str], str]:
    return Segmenter(kind, files).encode


def _counted(lines: Iterable[str], seen: Counter) -> Iterator[str]:
    for line in lines:
        seen.update(line.split())
        yield line
