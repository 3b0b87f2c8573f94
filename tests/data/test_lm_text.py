"""Tests of `deepnet prepare lm`: fairseq's tasks read the text with its documents apart, in pieces.

A mistake ends in one line that names the flag or the file, and leaves no file.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter

import pytest
from fairseq import options, tasks
from fairseq.data import data_utils
from fairseq.data.encoders.gpt2_bpe_utils import get_encoder

from deepnet_fairseq.data import lm_text

from ..support.errors import assert_refused, refused
from ..support.loopback import serve
from ..support.plain_text import DOCUMENT, MERGES, SIZES, VOCAB, a_texts, dictionary_of, prepare, write_gpt2  # noqa: F401

SPECIAL = 4  # symbols of fairseq that a dictionary's file does not list
KINDS = ("sentencepiece_data", "gpt2_data")


@pytest.fixture(scope="module")
def sentencepiece_data(texts, tmp_path_factory):
    return prepare(texts, tmp_path_factory.mktemp("spm") / "bin", "--vocab", VOCAB)


@pytest.fixture(scope="module")
def gpt2_data(texts, tmp_path_factory):
    """Provide data in pieces of GPT-2's BPE, with encoder.json and vocab.bpe beside the folder."""
    folder = tmp_path_factory.mktemp("gpt2")
    encoder, merges = write_gpt2(folder)
    flags = ("--bpe", "gpt2", "--encoder-json", encoder, "--vocab-bpe", merges)
    return prepare(texts, folder / "bin", *flags)


def symbols_of(data, split):
    """Return the lines of a split as lists of symbols, each with </s> at its end."""
    dictionary = dictionary_of(data)
    binarised = data_utils.load_indexed_dataset(str(data / split), dictionary)
    return [[dictionary[number] for number in line] for line in binarised]


def text_lines(path):
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def test_pieces_of_sentencepiece_give_the_text_back(sentencepiece_data, texts):
    lines = symbols_of(sentencepiece_data, "train")

    assert {line[-1] for line in lines} == {"</s>"}
    decoded = ["".join(line[:-1]).replace("▁", " ").strip() for line in lines]
    assert decoded == text_lines(texts[0])
    assert len(decoded) == SIZES["train"] * (DOCUMENT + 1) / DOCUMENT  # an empty line after each document


@pytest.mark.parametrize(("split", "place"), [("train", 0), ("test", 2)])
def test_pieces_of_gpt2_give_every_character_back(split, place, gpt2_data, texts):
    """They do so even for those that the training text lacks."""
    bpe = get_encoder(gpt2_data.parent / "encoder.json", gpt2_data.parent / "vocab.bpe")

    decoded = [bpe.decode(map(int, line[:-1])) for line in symbols_of(gpt2_data, split)]

    assert decoded == text_lines(texts[place])


def rows_of_dictionary(data):
    """Return (symbol, count) in the order of the file."""
    rows = [row.rsplit(" ", 1) for row in (data / "dict.txt").read_text(encoding="utf-8").splitlines()]
    return [(symbol, int(count)) for symbol, count in rows]


@pytest.fixture(params=KINDS)
def prepared_data(request):
    return request.getfixturevalue(request.param)


def test_the_dictionary_lists_every_symbol_with_its_count(prepared_data):
    occurring = Counter()
    for line in symbols_of(prepared_data, "train"):
        occurring.update(line[:-1])

    listed = {symbol: n for symbol, n in rows_of_dictionary(prepared_data) if not symbol.startswith("madeupword")}

    expected = {symbol: occurring[symbol] for symbol in lm_text.read_segmenter(prepared_data).symbols}
    assert listed == expected


def test_the_dictionary_lists_the_most_frequent_symbol_first(prepared_data):
    counts = [count for _, count in rows_of_dictionary(prepared_data)]

    assert counts == sorted(counts, reverse=True)


def test_the_size_of_the_dictionary_is_a_multiple_of_eight(prepared_data):
    dictionary = dictionary_of(prepared_data)

    assert len(dictionary) % 8 == 0
    assert len(dictionary) == SPECIAL + len(rows_of_dictionary(prepared_data))


@pytest.mark.parametrize(
    ("kind", "types"),
    [
        ("sentencepiece_data", VOCAB - 3),  # SentencePiece counts <unk>, <s> and </s>
        ("gpt2_data", 256 + len(MERGES)),  # bytes and merges
    ],
)
def test_the_dictionary_has_as_many_symbols_as_the_vocabulary_has_pieces(kind, types, request):
    rows = rows_of_dictionary(request.getfixturevalue(kind))

    assert len([symbol for symbol, _ in rows if not symbol.startswith("madeupword")]) == types


def test_text_json_counts_the_training_text(sentencepiece_data, texts):
    counted = json.loads((sentencepiece_data / "text.json").read_text())["text"]

    text = texts[0].read_text(encoding="utf-8")
    assert counted["train"] == {
        "lines": text.count("\n"),
        "words": len(text.split()),
        "bytes": len(text.replace("\n", "").encode()),
        "pieces": sum(len(line) - 1 for line in symbols_of(sentencepiece_data, "train")),
        "unknown": 0,
    }


def test_text_json_counts_unknown_pieces(sentencepiece_data):
    counted = json.loads((sentencepiece_data / "text.json").read_text())["text"]

    assert counted["test"]["unknown"] > 0  # it has characters that the training text lacks


def task_of(name, data, *flags):
    parser = options.get_training_parser()
    words = [str(data), "--task", name, "--arch", "transformer_lm", *flags]
    return tasks.setup_task(options.parse_args_and_arch(parser, words))


@pytest.mark.parametrize(
    ("name", "key", "extra"),
    [("language_modeling", "source", 0), ("masked_lm", "net_input.src_tokens", 1)],  # masked_lm puts <s> in front
)
def test_samples_of_whole_documents_hold_one_document_each(name, key, extra, sentencepiece_data):
    """However long a sample may be."""
    flags = ("--sample-break-mode", "complete_doc", "--tokens-per-sample", "100000")
    task = task_of(name, sentencepiece_data, *flags)
    task.load_dataset("train")
    samples = task.datasets["train"]

    lines = symbols_of(sentencepiece_data, "train")
    documents = [lines[start : start + DOCUMENT] for start in range(0, len(lines), DOCUMENT + 1)]
    assert len(documents) == SIZES["train"] / DOCUMENT
    lengths = [len(samples[number][key]) - extra for number in range(len(samples))]
    assert lengths == [sum(map(len, document)) for document in documents]


def test_the_mask_is_added_by_the_task_and_not_by_the_data(sentencepiece_data):
    assert "<mask>" not in dictionary_of(sentencepiece_data)
    assert "<mask>" in task_of("masked_lm", sentencepiece_data).dictionary


def test_other_text_is_prepared_with_an_earlier_vocabulary(sentencepiece_data, texts, tmp_path):
    flags = ("--spm", sentencepiece_data / "spm.model", "--dict", sentencepiece_data / "dict.txt")
    exchanged = [texts[1], texts[2], texts[0]]

    again = prepare(exchanged, tmp_path / "bin", *flags)

    assert (again / "dict.txt").read_text() == (sentencepiece_data / "dict.txt").read_text()
    assert (again / "train.bin").read_bytes() == (sentencepiece_data / "valid.bin").read_bytes()
    assert (again / "test.bin").read_bytes() == (sentencepiece_data / "train.bin").read_bytes()


def test_gpt2_s_files_are_fetched_once_from_where_they_are_published(tmp_path, monkeypatch):
    published = {path.name: path.read_bytes() for path in write_gpt2(tmp_path / "published")}
    sums = {name: f"sha256:{hashlib.sha256(content).hexdigest()}" for name, content in published.items()}
    monkeypatch.setattr(lm_text, "CHECKSUMS", sums)

    with serve({f"/{name}": content for name, content in published.items()}) as server:
        monkeypatch.setattr(lm_text, "PLACES", (server.url(),))
        lm_text.fetch_gpt2(tmp_path / "fetched")
        paths = lm_text.fetch_gpt2(tmp_path / "fetched")

        assert {name: path.read_bytes() for name, path in paths.items()} == published
        assert server.ranges("/vocab.bpe") == [None]


def with_broken_gpt2(name, content):
    """Return a function that makes a GPT-2 BPE with one broken file, and gives the flags that name it."""

    def flags(folder):
        encoder, merges = write_gpt2(folder / "broken")
        (folder / "broken" / name).write_text(content)
        return ("--bpe", "gpt2", "--encoder-json", encoder, "--vocab-bpe", merges)

    return flags


MISTAKES = {  # what is wrong -> folder -> flags, what the line names, as a regular expression
    "too many pieces": (lambda _: ("--vocab", 30_000), "--vocab 30000: "),
    "a number of GPT-2's pieces": (lambda _: ("--bpe", "gpt2", "--vocab", 9), "--vocab: "),
    "no such model": (lambda folder: ("--spm", folder / "nowhere"), "nowhere: "),
    "no such dictionary": (lambda folder: ("--dict", folder / "nowhere"), "--dict .*nowhere: "),
    "an encoder that is no JSON": (with_broken_gpt2("encoder.json", "{"), r"encoder\.json: .*JSON"),
    "an encoder without bytes": (with_broken_gpt2("encoder.json", '{"a": 0}'), r"encoder\.json: .*\b255\b"),
    "a merge of unknown pieces": (with_broken_gpt2("vocab.bpe", "#version\nq q\n"), r"vocab\.bpe, line 2: "),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_and_leaves_nothing(mistake, texts, tmp_path):
    flags_in, named = MISTAKES[mistake]

    with pytest.raises(SystemExit, match=f"^deepnet: error: .*{named}.*$"):
        prepare(texts, tmp_path / "bin", *flags_in(tmp_path))

    assert not list(tmp_path.glob("bin*"))


@pytest.mark.parametrize(
    ("content", "subject"),
    [(" \n\u200b\n".encode(), "changed: "), (b"x\n\xe9", "changed, line 2: ")],
    ids=["no text", "not UTF-8"],
)
def test_text_that_cannot_be_used_is_refused_before_anything_is_made(content, subject, texts, tmp_path):
    (tmp_path / "changed").write_bytes(content)

    assert_refused(subject, "prepare", "lm", texts[0], tmp_path / "changed", texts[2], tmp_path / "bin")

    assert not list(tmp_path.glob("bin*"))


def test_a_folder_with_other_files_is_refused_and_left_alone(texts, tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "mine").write_text("keep")

    assert_refused(tmp_path / "bin", "prepare", "lm", *texts, tmp_path / "bin", "--vocab", VOCAB)

    assert [path.name for path in (tmp_path / "bin").iterdir()] == ["mine"]


def test_data_without_text_json_are_refused(tmp_path):
    with refused(tmp_path / "text.json"):
        lm_text.read_segmenter(tmp_path)


SETTINGS = {  # wrong content of text.json -> what the refusal names
    "{}": '"bpe"',
    '{"bpe": "gpt2", "gpt2_encoder_json": "encoder.json"}': "'gpt2_vocab_bpe'",
    "[]": "JSON object",
}


@pytest.mark.parametrize("content", SETTINGS)
def test_a_text_json_of_other_content_is_refused(content, tmp_path):
    (tmp_path / "text.json").write_text(content)

    with refused(tmp_path / "text.json") as caught:
        lm_text.read_segmenter(tmp_path)

    assert SETTINGS[content] in caught.value.way_out
