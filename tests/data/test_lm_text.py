"""Tests of `deepnet prepare lm`: fairseq's tasks read the text in pieces, each document by itself.

The text is that of support/plain_text.py: documents of five sentences, a sentence a line, and an empty line after each.
It is cut by SentencePiece or by a small byte-level BPE in the format of GPT-2's.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from fairseq import options, tasks
from fairseq.data import data_utils
from fairseq.data.encoders.gpt2_bpe_utils import get_encoder

from deepnet_fairseq.data import lm_text

from ..support.errors import assert_refused, refusal, refused
from ..support.loopback import serve
from ..support.plain_text import DOCUMENT, MERGES, SIZES, VOCAB, dictionary_of, make_texts, prepare, write_gpt2  # noqa: F401
from ..support.prepared import lines_of

SPECIAL = 4  # symbols that fairseq's dictionary has besides those in its file: <s>, <pad>, </s>, <unk>


@pytest.fixture(scope="module")
def sentencepiece_data(texts, tmp_path_factory):
    """Provide the folder of data in VOCAB pieces of SentencePiece."""
    return prepare(texts, tmp_path_factory.mktemp("spm") / "bin", "--vocab", VOCAB)


@pytest.fixture(scope="module")
def gpt2_data(texts, tmp_path_factory):
    """Provide the folder of data in pieces of a BPE like GPT-2's; its encoder.json and vocab.bpe are beside the folder.

    These pieces are the 256 bytes and what MERGES make of them.
    """
    folder = tmp_path_factory.mktemp("gpt2")
    encoder, merges = write_gpt2(folder)
    flags = ("--bpe", "gpt2", "--encoder-json", encoder, "--vocab-bpe", merges)
    return prepare(texts, folder / "bin", *flags)


def symbols_of(data, split):
    """Return the lines of a split as fairseq reads them: lists of symbols, each with </s> at its end."""
    dictionary = dictionary_of(data)
    binarised = data_utils.load_indexed_dataset(str(data / split), dictionary)
    lines = []
    for numbers in binarised:
        lines.append([dictionary[number] for number in numbers])
    return lines


def test_pieces_of_sentencepiece_give_the_text_back(sentencepiece_data, texts):
    train_text, _, _ = texts
    lines = symbols_of(sentencepiece_data, "train")

    assert {line[-1] for line in lines} == {"</s>"}
    decoded = ["".join(line[:-1]).replace("▁", " ").strip() for line in lines]
    assert decoded == lines_of(train_text)
    assert len(decoded) == SIZES["train"] * (DOCUMENT + 1) / DOCUMENT  # an empty line after each document


@pytest.mark.parametrize(("split", "number"), [("train", 0), ("test", 2)])  # number of the split among the texts
def test_pieces_of_gpt2_give_every_character_back(split, number, gpt2_data, texts):
    """The test set has characters that the training text lacks."""
    bpe = get_encoder(gpt2_data.parent / "encoder.json", gpt2_data.parent / "vocab.bpe")

    decoded = [bpe.decode(map(int, line[:-1])) for line in symbols_of(gpt2_data, split)]

    assert decoded == lines_of(texts[number])


def counts_in_dictionary(data):
    """Return symbol -> its count, in the order of dict.txt, where fillers are called madeupword0000 and so on."""
    counts = {}
    for row in (data / "dict.txt").read_text(encoding="utf-8").splitlines():
        symbol, count = row.rsplit(" ", 1)
        counts[symbol] = int(count)
    return counts


def counts_without_fillers(data):
    """Return symbol -> its count in dict.txt, without fillers."""
    counts = counts_in_dictionary(data)
    return {symbol: count for symbol, count in counts.items() if not symbol.startswith("madeupword")}


@pytest.fixture(params=["sentencepiece_data", "gpt2_data"])
def prepared_data(request):
    """Provide the folder of data in pieces of SentencePiece, then that of data in pieces of GPT-2's BPE."""
    return request.getfixturevalue(request.param)


def test_the_dictionary_lists_every_symbol_with_its_count(prepared_data):
    """Symbols of the vocabulary that the training text lacks have the count 0."""
    occurring = Counter()
    for line in symbols_of(prepared_data, "train"):
        occurring.update(line[:-1])  # without </s>

    vocabulary = lm_text.read_segmenter(prepared_data).symbols
    assert counts_without_fillers(prepared_data) == {symbol: occurring[symbol] for symbol in vocabulary}


def test_the_dictionary_lists_the_most_frequent_symbol_first(prepared_data):
    counts = list(counts_in_dictionary(prepared_data).values())

    assert counts == sorted(counts, reverse=True)


def test_the_size_of_the_dictionary_is_a_multiple_of_eight(prepared_data):
    dictionary = dictionary_of(prepared_data)

    assert len(dictionary) % 8 == 0
    assert len(dictionary) == SPECIAL + len(counts_in_dictionary(prepared_data))


@pytest.mark.parametrize(
    ("kind", "pieces"),
    [
        ("sentencepiece_data", VOCAB - 3),  # SentencePiece counts <unk>, <s> and </s> too
        ("gpt2_data", 256 + len(MERGES)),  # a piece for each byte, and for each merge
    ],
)
def test_the_dictionary_has_as_many_symbols_as_the_vocabulary_has_pieces(kind, pieces, request):
    data = request.getfixturevalue(kind)

    assert len(counts_without_fillers(data)) == pieces


def test_text_json_counts_the_training_text(sentencepiece_data, texts):
    train_text, _, _ = texts
    counted = json.loads((sentencepiece_data / "text.json").read_text())["text"]

    text = train_text.read_text(encoding="utf-8")
    assert counted["train"] == {
        "lines": text.count("\n"),
        "words": len(text.split()),
        "bytes": len(text.replace("\n", "").encode()),
        "pieces": sum(len(line) - 1 for line in symbols_of(sentencepiece_data, "train")),  # without </s>
        "unknown": 0,
    }


def test_text_json_counts_unknown_pieces(sentencepiece_data):
    counted = json.loads((sentencepiece_data / "text.json").read_text())["text"]

    assert counted["test"]["unknown"] > 0  # the test set has characters that the training text lacks


def task_of(name, data, *flags):
    """Return fairseq's task of a name for a training on the data; flags: further flags of fairseq-train."""
    parser = options.get_training_parser()
    words = [str(data), "--task", name, "--arch", "transformer_lm", *flags]
    return tasks.setup_task(options.parse_args_and_arch(parser, words))


@pytest.mark.parametrize(
    ("name", "key", "extra"),  # task, its samples' key of the tokens, and the tokens that it adds
    [("language_modeling", "source", 0), ("masked_lm", "net_input.src_tokens", 1)],  # masked_lm puts <s> in front
)
def test_samples_of_whole_documents_hold_one_document_each(name, key, extra, sentencepiece_data):
    """A sample has room for all documents. fairseq finds the end of each by the empty line."""
    flags = ("--sample-break-mode", "complete_doc", "--tokens-per-sample", "100000")
    task = task_of(name, sentencepiece_data, *flags)
    task.load_dataset("train")
    samples = task.datasets["train"]

    lines = symbols_of(sentencepiece_data, "train")
    lengths_of_documents = []  # in symbols
    for start in range(0, len(lines), DOCUMENT + 1):
        document = lines[start : start + DOCUMENT]
        lengths_of_documents.append(sum(map(len, document)))

    assert len(samples) == SIZES["train"] / DOCUMENT
    lengths_of_samples = [len(samples[number][key]) - extra for number in range(len(samples))]
    assert lengths_of_samples == lengths_of_documents


def test_the_mask_is_added_by_the_task_and_not_by_the_data(sentencepiece_data):
    assert "<mask>" not in dictionary_of(sentencepiece_data)
    assert "<mask>" in task_of("masked_lm", sentencepiece_data).dictionary


def test_other_text_is_prepared_with_an_earlier_vocabulary(sentencepiece_data, texts, tmp_path):
    """The other text trains on the validation text of the first, and tests on the training text of the first.

    The data of the same text must have the same bytes.
    """
    train_text, valid_text, test_text = texts
    flags = ("--spm", sentencepiece_data / "spm.model", "--dict", sentencepiece_data / "dict.txt")

    other = prepare([valid_text, test_text, train_text], tmp_path / "bin", *flags)

    assert (other / "dict.txt").read_text() == (sentencepiece_data / "dict.txt").read_text()
    assert (other / "train.bin").read_bytes() == (sentencepiece_data / "valid.bin").read_bytes()
    assert (other / "test.bin").read_bytes() == (sentencepiece_data / "train.bin").read_bytes()


def test_gpt2_s_files_are_fetched_once_from_where_they_are_published(tmp_path, monkeypatch):
    published = {path.name: path.read_bytes() for path in write_gpt2(tmp_path / "published")}
    sums = {name: f"sha256:{hashlib.sha256(content).hexdigest()}" for name, content in published.items()}
    monkeypatch.setattr(lm_text, "CHECKSUMS", sums)

    with serve({f"/{name}": content for name, content in published.items()}) as server:
        monkeypatch.setattr(lm_text, "PLACES", (server.url(),))
        lm_text.fetch_gpt2(tmp_path / "fetched")
        paths = lm_text.fetch_gpt2(tmp_path / "fetched")

        assert {name: path.read_bytes() for name, path in paths.items()} == published
        assert server.ranges("/encoder.json") == [None]  # one request, without a Range header
        assert server.ranges("/vocab.bpe") == [None]


def with_broken_gpt2(name, content):
    """Return a function that writes the files of a GPT-2 BPE with one of them broken, and returns the flags for them.

    name: of the broken file; content: of it
    """

    def flags_in(folder):
        encoder, merges = write_gpt2(folder / "broken")
        (folder / "broken" / name).write_text(content)
        return ("--bpe", "gpt2", "--encoder-json", encoder, "--vocab-bpe", merges)

    return flags_in


class Mistake(NamedTuple):
    """Flags that are refused: a function that returns them for the test's folder, and what the refusal names."""

    flags_in: Callable[[Path], tuple]
    named: tuple[str, ...]


MISTAKES = {
    "too many pieces": Mistake(lambda _: ("--vocab", 30_000), ("--vocab 30000: ",)),
    "a number of GPT-2's pieces": Mistake(lambda _: ("--bpe", "gpt2", "--vocab", 9), ("--vocab: ",)),
    "no such model": Mistake(lambda folder: ("--spm", folder / "nowhere"), ("nowhere: ",)),
    "no such dictionary": Mistake(lambda folder: ("--dict", folder / "nowhere"), ("--dict", "nowhere: ")),
    "an encoder that is no JSON": Mistake(with_broken_gpt2("encoder.json", "{"), ("encoder.json: ", "JSON")),
    # the encoder has one of the 256 bytes
    "an encoder without bytes": Mistake(with_broken_gpt2("encoder.json", '{"a": 0}'), ("encoder.json: ", " 255 ")),
    "a merge of unknown pieces": Mistake(with_broken_gpt2("vocab.bpe", "#version\nq q\n"), ("vocab.bpe, line 2: ",)),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_and_leaves_no_file(mistake, texts, tmp_path):
    flags_in, named = MISTAKES[mistake]

    line = refusal("prepare", "lm", *texts, tmp_path / "bin", "--workers", "1", *flags_in(tmp_path))

    for fact in named:
        assert fact in line
    assert not list(tmp_path.glob("bin*"))


@pytest.mark.parametrize(
    ("content", "subject"),
    [(" \n\u200b\n".encode(), "changed: "), (b"x\n\xe9", "changed, line 2: ")],
    ids=["no visible character", "not UTF-8"],
)
def test_text_that_cannot_be_used_is_refused_before_anything_is_made(content, subject, texts, tmp_path):
    train_text, _, test_text = texts
    (tmp_path / "changed").write_bytes(content)

    assert_refused(subject, "prepare", "lm", train_text, tmp_path / "changed", test_text, tmp_path / "bin")

    assert not list(tmp_path.glob("bin*"))


def test_a_folder_with_other_files_is_refused_and_left_alone(texts, tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "mine").write_text("keep")

    assert_refused(tmp_path / "bin", "prepare", "lm", *texts, tmp_path / "bin", "--vocab", VOCAB)

    assert [path.name for path in (tmp_path / "bin").iterdir()] == ["mine"]


def test_data_without_text_json_are_refused(tmp_path):
    with refused(tmp_path / "text.json"):
        lm_text.read_segmenter(tmp_path)


WRONG_CONTENT = {  # of text.json -> what the refusal names: the key that is missing, or JSON if it is no object
    "{}": '"bpe"',
    '{"bpe": "gpt2", "gpt2_encoder_json": "encoder.json"}': "'gpt2_vocab_bpe'",
    "[]": "JSON",
}


@pytest.mark.parametrize("content", WRONG_CONTENT)
def test_a_text_json_of_other_content_is_refused(content, tmp_path):
    (tmp_path / "text.json").write_text(content)

    with refused(tmp_path / "text.json") as caught:
        lm_text.read_segmenter(tmp_path)

    assert WRONG_CONTENT[content] in caught.value.way_out
