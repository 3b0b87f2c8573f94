"""Tests of the embedded corpus and of the preparation of any text."""

import hashlib
import resource

import pytest
import sentencepiece
from fairseq.data import data_utils

from deepnet_fairseq.cli import main
from deepnet_fairseq.data import lines, parallel_text
from deepnet_fairseq.data.binarise import binarise
from deepnet_fairseq.data.language import SIZES as DEFAULT
from deepnet_fairseq.data.language import make_corpus, write_corpus
from deepnet_fairseq.data.parallel_text import prepare_text, read_parallel
from deepnet_fairseq.errors import UserError

from ..support.helpers import run

BLANK = " \u200b\u200e\u2028\ufffd\u2581\x07\u00ad".encode()  # characters without ink
SIZES = {"train": 2000, "valid": 100, "test": 100}


@pytest.fixture(scope="module")
def corpus():
    return make_corpus(SIZES)


def test_splits_do_not_overlap_and_are_seeded_and_extensible(corpus):
    for side in (0, 1):
        lines = [pair[side] for text in corpus.values() for pair in text]
        assert len(set(lines)) == len(lines) == sum(SIZES.values())
    longer = make_corpus(SIZES | {"train": 3000})
    assert longer["train"][:2000] == corpus["train"] and longer["test"] == corpus["test"]
    assert make_corpus(SIZES, seed=2)["test"] != corpus["test"]
    for sizes, nouns in ((SIZES | {"test": 0}, 9), (SIZES, 10**6)):
        with pytest.raises(UserError, match="at least 1 sentence a split, 1 to 20,000 nouns"):
            make_corpus(sizes, nouns=nouns)


def test_the_corpus_is_the_one_that_recorded_runs_were_trained_on(corpus):
    """The embedded corpus equals, word for word, the one that recorded runs were trained on."""
    text = "".join(f"{source}\t{target}\n" for split in corpus.values() for source, target in split)
    assert (
        hashlib.sha256(text.encode()).hexdigest() == "fccc775b5013d50fec3bb65f06ec4a4d096c26136a293c6ea3e2018535d968ca"
    )


def test_command_writes_it(tmp_path):
    run("deepnet", "prepare", "language", tmp_path / "c", "--seed", "2")
    expected = make_corpus(DEFAULT, seed=2)
    assert all(read_parallel(str(tmp_path / "c" / split), "qaa", "qab") == expected[split] for split in DEFAULT)


def test_a_full_disk(tmp_path):
    """A full disk, imitated by a limit on file sizes, ends the command in one line and leaves no file."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(
            SystemExit, match=r"train\.qa[ab]: could not be written \(File too large\); free some space"
        ):
            main(["prepare", "language", str(tmp_path / "c")])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.iterdir())


def test_text_stays_as_it_is_and_mixed_letters_are_told(tmp_path, capsys):
    """Text passes through SentencePiece unchanged but for white space; mixed forms of letters give a warning."""
    line = "10² ½ ﬁ می\u200cخواهم é e\u0301 Ａ"
    model = sentencepiece.SentencePieceProcessor(model_proto=parallel_text.sentencepiece_model([line] * 9, 40))
    assert model.decode(model.encode(line)) == line and model.decode(model.encode("1\u00a0\t0")) == "1 0"
    rows = [("\u00e9", "\u00e9 \u095c"), ("e\u0301", "\u0921\u093c"), ("e\u0301", "\u212b")]
    lines.note_letters(["vi", "hi"], rows)
    out = capsys.readouterr().out
    assert (
        out.count("\n") == 2
        and "WARNING: hi (nukta and dots): 1 lines" in out
        and "vi: 1 lines have composed letters" in out
        and ", 2 decomposed ones" in out
    )


@pytest.fixture
def text(tmp_path, corpus):
    write_corpus(corpus, tmp_path)
    return {split: str(tmp_path / split) for split in SIZES}


SPOILED = {
    "unequal": (lambda lines: lines[:50] + lines[51:], r"lines"),
    "bad UTF-8": (lambda lines: [*lines[:6], b"caf\xe9", *lines[7:]], r"line 7: not UTF-8"),
    "empty line": (lambda lines: [*lines[:9], BLANK, *lines[10:]], r"line 10: empty; .*--drop-empty"),
}


def spoil(path, change):
    path.write_bytes(b"\n".join(change(path.read_bytes().split(b"\n"))))


@pytest.mark.parametrize("kind", SPOILED)
def test_spoiled_text_is_refused_before_anything_is_written(kind, text, tmp_path):
    change, message = SPOILED[kind]
    spoil(tmp_path / "test.qab", change)
    with pytest.raises(UserError, match=message) as caught:
        prepare_text(("qaa", "qab"), text, tmp_path / "bin", vocab=300)
    assert f"{tmp_path}/test.qab" in str(caught.value) and not list(tmp_path.glob("bin*"))


def test_missing_file_and_too_small_a_corpus(text, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis").write_text("keep")
    for lang in ("qaa", "qab"):
        (tmp_path / f"few.{lang}").write_text("a b\n" * 50)
    for message, prefixes, dest, vocab in (
        (r"nowhere\.qaa: no such file", {"valid": str(tmp_path / "nowhere")}, "bin", 300),
        (r"--vocab 30000: this text supports at most \d+", {}, "bin", 30_000),
        ("--vocab 0: must be 1 or more", {}, "bin", 0),
        ("takes a name with : for several folders", {}, "a:b", 300),
        (r"--vocab 20: below this text's \d+ characters", {}, "bin", 20),
        ("exists already", {}, "mine", 300),
        ("test: one training prefix only", {"train": f"{text['train']},{text['test']}"}, "bin", 300),
        ("50 training pairs: too few", {"train": str(tmp_path / "few")}, "bin", 300),
    ):
        with pytest.raises(UserError, match=message):
            prepare_text(("qaa", "qab"), text | prefixes, tmp_path / dest, vocab)
    assert (tmp_path / "mine" / "thesis").read_text() == "keep" and not list(tmp_path.glob("bin*"))


def test_drop_empty_and_several_test_sets(text, tmp_path, monkeypatch):
    files = {}
    monkeypatch.setattr(parallel_text, "binarise", lambda langs, texts, *_: files.update(texts))
    spoil(tmp_path / "train.qaa", lambda lines: [BLANK, *lines[1:]])
    prefixes = text | {"test": f"{text['test']},{text['valid']}"}
    prepare_text(("qaa", "qab"), prefixes, tmp_path / "bin", vocab=300, drop_empty=True)
    assert list(files) == [path.name for path in files.values()] == ["train", "valid", "test", "test1"]
    lengths = {path.name: len(path.read_text().splitlines()) for path in (tmp_path / "bin" / "text").iterdir()}
    assert lengths["train.qaa"] == SIZES["train"] - 1 and lengths["test1.qab"] == SIZES["valid"]
    for name in ("valid", "test1"):
        assert read_parallel(str(tmp_path / "bin" / "raw" / name), "qaa", "qab") == read_parallel(
            text["valid"], "qaa", "qab"
        )


def test_pieces_outside_a_given_dictionary_are_counted(data, tmp_path, monkeypatch):
    """Pieces that a given dictionary lacks are counted, equally with one process and with three.

    The piece <unk> is in every dictionary.
    """
    monkeypatch.setattr(lines, "CHUNK", 3)
    (tmp_path / "text").write_text("a b\n<unk> x\n\n\u2028 a\rb c\n" + "a\n" * 20)
    (tmp_path / "dict").write_text("a 1\nb 1\n")
    counts, made = [], []
    for workers in (1, 3):
        dest = tmp_path / str(workers)
        dest.mkdir()
        counts.append(binarise(None, {"valid": tmp_path / "text"}, dest, workers, tmp_path / "dict"))
        made.append({path.name: path.read_bytes() for path in dest.iterdir()})
    assert counts[0] == counts[1] and made[0] == made[1]
    assert counts[0]["text"]["valid"]["text"] == {"sentences": 24, "pieces": 27, "unknown": 3.92}
    ids = [row.tolist() for row in data_utils.load_indexed_dataset(str(tmp_path / "3" / "valid"))]
    assert ids[:4] == [[4, 5, 2], [3, 3, 2], [2], [4, 5, 3, 2]]


def test_the_same_bytes_as_fairseq_preprocess(data, tmp_path):
    prefixes = [f"--{split}pref={data / 'text' / split}" for split in SIZES]
    run("fairseq-preprocess", "-s", "qaa", "-t", "qab", "--joined-dictionary", *prefixes, "--destdir", tmp_path)
    made = [path for path in tmp_path.iterdir() if path.suffix != ".log"]
    assert len(made) == 2 + 2 * 2 * 3 and all(path.read_bytes() == (data / path.name).read_bytes() for path in made)
