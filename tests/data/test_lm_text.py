"""Tests of `deepnet prepare lm`: fairseq's tasks read the text with its documents apart, in pieces.

A mistake ends in one line that names the flag or the file, and leaves no file.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter

import pytest
from fairseq import options, tasks
from fairseq.data import Dictionary, data_utils
from fairseq.data.encoders.gpt2_bpe_utils import get_encoder

from deepnet_fairseq.data import lm_text
from deepnet_fairseq.errors import UserError

from ..support.loopback import serve
from ..support.plain_text import DOCUMENT, MERGES, SIZES, VOCAB, a_texts, prepare, write_gpt2  # noqa: F401


@pytest.fixture(scope="module")
def sentencepieces(texts, tmp_path_factory):
    return prepare(texts, tmp_path_factory.mktemp("spm") / "bin", "--vocab", VOCAB)


@pytest.fixture(scope="module")
def gpt2(texts, tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpt2")
    encoder, merges = write_gpt2(folder)
    flags = ("--bpe", "gpt2", "--encoder-json", encoder, "--vocab-bpe", merges)
    return prepare(texts, folder / "bin", *flags)


def held(data, split):
    """Return the dictionary and the lines of a split, as symbols."""
    dictionary = Dictionary.load(str(data / "dict.txt"))
    lines = data_utils.load_indexed_dataset(str(data / split), dictionary)
    return dictionary, [[dictionary[token] for token in line] for line in lines]


def test_sentencepiece_gives_the_text_back(sentencepieces, texts):
    dictionary, lines = held(sentencepieces, "train")
    assert {line[-1] for line in lines} == {"</s>"}
    plain = ["".join(line[:-1]).replace("▁", " ").strip() for line in lines]
    assert plain == texts[0].read_text(encoding="utf-8").split("\n")[:-1]
    assert len(plain) == SIZES["train"] * (DOCUMENT + 1) / DOCUMENT


@pytest.mark.parametrize("split", ["train", "test"])
def test_gpt2_gives_every_character_back(split, gpt2, texts):
    """GPT-2's pieces give back every character, even those that the training text lacks."""
    dictionary, lines = held(gpt2, split)
    bpe = get_encoder(gpt2 / "encoder.json", gpt2 / "vocab.bpe")
    plain = [bpe.decode(map(int, line[:-1])) for line in lines]
    assert plain == texts[0 if split == "train" else 2].read_text(encoding="utf-8").split("\n")[:-1]


@pytest.mark.parametrize("made", ["sentencepieces", "gpt2"])
def test_dictionary(made, request):
    """The dictionary lists every symbol once, the most frequent first, with its count; its size is a multiple of 8."""
    data = request.getfixturevalue(made)
    dictionary, lines = held(data, "train")
    counts = Counter(symbol for line in lines for symbol in line[:-1])
    rows = [row.rsplit(" ", 1) for row in (data / "dict.txt").read_text(encoding="utf-8").splitlines()]
    real = {symbol: int(count) for symbol, count in rows if not symbol.startswith("madeupword")}
    assert real == {symbol: counts[symbol] for symbol in lm_text.read_segmenter(data).symbols}
    assert [int(count) for _, count in rows] == sorted((int(count) for _, count in rows), reverse=True)
    assert len(dictionary) % 8 == 0 and len(dictionary) - len(rows) == 4
    types = {"sentencepieces": VOCAB - 3, "gpt2": 256 + len(MERGES)}  # SentencePiece counts <unk>, <s> and </s>
    assert len(real) == types[made]


def test_facts(sentencepieces, texts):
    facts, text = json.loads((sentencepieces / "text.json").read_text())["text"], texts[0].read_text(encoding="utf-8")
    counts = {"lines": text.count("\n"), "words": len(text.split()), "bytes": len(text.replace("\n", "").encode())}
    pieces = sum(len(line) - 1 for line in held(sentencepieces, "train")[1])
    assert facts["train"] == counts | {"pieces": pieces, "unknown": 0} and facts["test"]["unknown"] > 0


def task_of(name, data, *flags):
    parser = options.get_training_parser()
    return tasks.setup_task(
        options.parse_args_and_arch(parser, [str(data), "--task", name, "--arch", "transformer_lm", *flags])
    )


@pytest.mark.parametrize(("name", "key"), [("language_modeling", "source"), ("masked_lm", "net_input.src_tokens")])
def test_documents_stay_apart(name, key, sentencepieces):
    """Samples of complete_doc are whole documents, none joined with another, whatever the sample length."""
    task = task_of(name, sentencepieces, "--sample-break-mode", "complete_doc", "--tokens-per-sample", "100000")
    task.load_dataset("train")
    dataset = task.datasets["train"]
    _, lines = held(sentencepieces, "train")
    expected = [sum(map(len, lines[i : i + DOCUMENT])) for i in range(0, len(lines), DOCUMENT + 1)]
    start = {"language_modeling": 0, "masked_lm": 1}[name]  # <s>
    assert [len(dataset[i][key]) - start for i in range(len(dataset))] == expected
    assert len(expected) == SIZES["train"] / DOCUMENT
    if name == "masked_lm":
        assert "<mask>" not in held(sentencepieces, "train")[0] and "<mask>" in task.dictionary


def test_an_earlier_vocabulary(sentencepieces, texts, tmp_path):
    """Other text is prepared with an earlier vocabulary through --spm and --dict."""
    flags = ("--spm", sentencepieces / "spm.model", "--dict", sentencepieces / "dict.txt")
    data = prepare([texts[1], texts[2], texts[0]], tmp_path / "bin", *flags)
    assert (data / "dict.txt").read_text() == (sentencepieces / "dict.txt").read_text()
    assert (data / "train.bin").read_bytes() == (sentencepieces / "valid.bin").read_bytes()
    assert (data / "test.bin").read_bytes() == (sentencepieces / "train.bin").read_bytes()


def test_fetched_from_where_they_lie(tmp_path, monkeypatch):
    """GPT-2's files are fetched once from where they are published."""
    bodies = {path.name: path.read_bytes() for path in write_gpt2(tmp_path / "made")}
    with serve({f"/{name}": body for name, body in bodies.items()}) as server:
        monkeypatch.setattr(lm_text, "PLACES", (server.url(),))
        sums = {name: f"sha256:{hashlib.sha256(body).hexdigest()}" for name, body in bodies.items()}
        monkeypatch.setattr(lm_text, "CHECKSUMS", sums)
        for _ in range(2):
            paths = lm_text.fetch_gpt2(tmp_path / "fetched")
        assert {name: path.read_bytes() for name, path in paths.items()} == bodies
        assert server.ranges("/vocab.bpe") == [None]


def broken_gpt2(change):
    """Return flags that name a GPT-2 BPE with one file changed by change(encoder, merges)."""

    def flags(folder):
        paths = write_gpt2(folder / "broken")
        change(*paths)
        return ("--bpe", "gpt2", "--encoder-json", paths[0], "--vocab-bpe", paths[1])

    return flags


MISTAKES = {
    "too many pieces": (lambda _: ("--vocab", 30_000), r"--vocab 30000: this text supports at most \d+"),
    "pieces of GPT-2": (lambda _: ("--bpe", "gpt2", "--vocab", 9), r"--vocab: only with --bpe sentencepiece"),
    "no such model": (lambda folder: ("--spm", folder / "nowhere"), r"nowhere: no such file"),
    "no dictionary": (lambda folder: ("--dict", folder / "nowhere"), r"--dict .*nowhere: no such file"),
    "no JSON": (broken_gpt2(lambda encoder, _: encoder.write_text("{")), r"encoder.json: is no JSON"),
    "bytes": (broken_gpt2(lambda encoder, _: encoder.write_text('{"a": 0}')), r"encoder.json: has no number for 255"),
    "merge": (broken_gpt2(lambda _, merges: merges.write_text("#version\nq q\n")), r"vocab.bpe, line 2: is not two"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_leave_nothing(mistake, texts, tmp_path):
    flags, message = MISTAKES[mistake]
    with pytest.raises(SystemExit, match=f"^deepnet: error: .*{message}"):
        prepare(texts, tmp_path / "bin", *flags(tmp_path))
    assert not list(tmp_path.glob("bin*"))


def test_text_and_place_are_checked_first(texts, tmp_path):
    for body, message in (
        (" \n\u200b\n".encode(), "changed: no text in it"),
        (b"x\n\xe9", "changed, line 2: not UTF-8"),
    ):
        (tmp_path / "changed").write_bytes(body)
        with pytest.raises(SystemExit, match=message):
            prepare([texts[0], tmp_path / "changed", texts[2]], tmp_path / "bin")
        assert not list(tmp_path.glob("bin*"))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "mine").write_text("keep")
    with pytest.raises(SystemExit, match="is there and not empty"):
        prepare(texts, tmp_path / "bin", "--vocab", VOCAB)
    assert [path.name for path in (tmp_path / "bin").iterdir()] == ["mine"]


SETTINGS = {
    "{}": r'text.json: "bpe" must be one of sentencepiece, gpt2',
    '{"bpe": "gpt2", "gpt2_encoder_json": "encoder.json"}': r"text.json: lacks 'gpt2_vocab_bpe'",
    "[]": r"text.json: must hold one JSON object",
}


def test_settings_that_are_none(tmp_path):
    with pytest.raises(UserError, match=r"text.json: no such file; make the data with `deepnet prepare lm`"):
        lm_text.read_segmenter(tmp_path)
    for text, message in SETTINGS.items():
        (tmp_path / "text.json").write_text(text)
        with pytest.raises(UserError, match=message):
            lm_text.read_segmenter(tmp_path)
