"""Tests of the embedded corpus, of `deepnet prepare text` on a user's parallel text, and of its binarising.

The embedded corpus is text in the artificial languages qaa and qab.
"""

from __future__ import annotations

import hashlib
import re
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import pytest
import sentencepiece
from fairseq.data import data_utils

from deepnet_fairseq.data import lines, parallel_text
from deepnet_fairseq.data.binarise import binarise
from deepnet_fairseq.data.language import SIZES as DEFAULT_SIZES
from deepnet_fairseq.data.language import make_corpus, write_corpus
from deepnet_fairseq.data.parallel_text import prepare_text

from ..support.disks import files_limited_to
from ..support.errors import assert_refused, refused
from ..support.helpers import run
from ..support.prepared import files_in

LANGS = ("qaa", "qab")
SIZES = {"train": 2000, "valid": 100, "test": 100}  # sentence pairs
PIECES = 300  # size of the SentencePiece vocabulary
# Line that shows nothing, of separators, control and format characters, and two that SentencePiece drops
INVISIBLE = " \u200b\u200e\u2028\ufffd\u2581\x07\u00ad".encode()
# SHA-256 of the embedded corpus that recorded runs were trained on, as "SOURCE<tab>TARGET" lines of all splits
RECORDED_CORPUS = "fccc775b5013d50fec3bb65f06ec4a4d096c26136a293c6ea3e2018535d968ca"


@pytest.fixture(scope="module")
def embedded_corpus():
    """Provide split -> sentence pairs of the embedded corpus in SIZES."""
    return make_corpus(SIZES)


@pytest.mark.parametrize("side", (0, 1), ids=LANGS)
def test_the_embedded_corpus_holds_no_sentence_twice(side, embedded_corpus):
    pairs = chain.from_iterable(embedded_corpus.values())
    sentences = [pair[side] for pair in pairs]

    assert len(sentences) == sum(SIZES.values())
    assert len(set(sentences)) == len(sentences)


def test_a_larger_embedded_corpus_begins_with_the_smaller_one(embedded_corpus):
    """Validation and test sets stay the same."""
    larger = make_corpus(SIZES | {"train": 3000})

    assert larger["train"][:2000] == embedded_corpus["train"]
    assert larger["valid"] == embedded_corpus["valid"]
    assert larger["test"] == embedded_corpus["test"]


def test_another_seed_gives_another_embedded_corpus(embedded_corpus):
    assert make_corpus(SIZES, seed=2)["test"] != embedded_corpus["test"]


def test_an_embedded_corpus_without_test_sentences_is_refused():
    with refused("corpus"):
        make_corpus(SIZES | {"test": 0})


def test_an_embedded_corpus_of_too_many_nouns_is_refused_with_the_limit():
    with refused("corpus") as caught:
        make_corpus(SIZES, nouns=20_001)

    assert "20,000" in caught.value.way_out


def test_the_embedded_corpus_is_the_one_that_recorded_runs_were_trained_on(embedded_corpus):
    pairs = chain.from_iterable(embedded_corpus.values())
    text = "".join(f"{source}\t{target}\n" for source, target in pairs)

    assert hashlib.sha256(text.encode()).hexdigest() == RECORDED_CORPUS


def read_text_pairs(prefix) -> list[tuple[str, str]]:
    """Read the sentence pairs of PREFIX.qaa and PREFIX.qab."""
    return list(lines.read_pairs(Path(f"{prefix}.qaa"), Path(f"{prefix}.qab")))


def test_the_command_writes_the_embedded_corpus(tmp_path):
    run("deepnet", "prepare", "language", tmp_path / "c", "--seed", "2")

    expected = make_corpus(DEFAULT_SIZES, seed=2)
    for split in DEFAULT_SIZES:
        assert read_text_pairs(tmp_path / "c" / split) == expected[split]


def test_a_full_disk_ends_the_command_in_one_line_and_leaves_no_file(tmp_path):
    """The training text alone has more than 100,000 bytes."""
    with files_limited_to(100_000):
        assert_refused("train.qa", "prepare", "language", tmp_path / "c")

    assert not list(tmp_path.iterdir())


# Characters that SentencePiece's own rules of normalisation (NFKC) would replace: ² by 2, ﬁ by fi, Ａ by A, ...
NOT_NFKC = "10² ½ ﬁ می\u200cخواهم é e\u0301 Ａ"


@pytest.mark.parametrize(
    ("typed", "decoded"), [(NOT_NFKC, NOT_NFKC), ("1\u00a0\t0", "1 0")], ids=["characters", "white space"]
)
def test_sentencepiece_changes_nothing_but_white_space(typed, decoded):
    model = parallel_text.sentencepiece_model([NOT_NFKC] * 9, vocab=40)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)

    assert processor.decode(processor.encode(typed)) == decoded


COMPOSED = "\u00e9"  # é as one character
DECOMPOSED = "e\u0301"  # e and its accent
NUKTA_AS_ONE = "\u095c"  # letter of Hindi with a dot below, which NFC writes as two characters
NUKTA_AS_TWO = "\u0921\u093c"
ANGSTROM = "\u212b"  # which NFC replaces by Å, one character by another


def test_letters_in_composed_and_decomposed_form_give_a_warning_by_language(capsys):
    letters = lines.Letters(["vi", "hi"])
    letters.add([(COMPOSED, f"{COMPOSED} {NUKTA_AS_ONE}"), (DECOMPOSED, NUKTA_AS_TWO), (DECOMPOSED, ANGSTROM)])

    letters.warn()

    of_hindi, of_vietnamese = sorted(capsys.readouterr().out.splitlines())
    assert "WARNING: hi" in of_hindi
    assert "WARNING: vi" in of_vietnamese
    # Numbers of lines with composed and with decomposed letters. Those of Hindi are letters with a nukta; of other
    # letters Hindi has composed ones alone.
    assert re.findall(r"\d+", of_hindi) == ["1", "1"]
    assert re.findall(r"\d+", of_vietnamese) == ["1", "2"]


@pytest.fixture
def text_prefixes(tmp_path, embedded_corpus):
    """Provide split -> prefix of the embedded corpus as files in tmp_path, which the test may change."""
    write_corpus(embedded_corpus, tmp_path)
    return {split: str(tmp_path / split) for split in SIZES}


def replace_line(path, number, *replacements):
    """Put other lines of bytes in the place of a line, whose number counts from 1."""
    content = path.read_bytes().split(b"\n")
    content[number - 1 : number] = replacements
    path.write_bytes(b"\n".join(content))


class Spoilt(NamedTuple):
    """Change of test.qab that makes it unusable.

    number: of the changed line, from 1. replacements: lines in its place. subject: what the refusal is about. facts:
    what it names besides
    """

    number: int
    replacements: list[bytes]
    subject: str
    facts: tuple[str, ...] = ()


SPOILT = {
    "unequal sides": Spoilt(51, [], "test.qab", ("100", "99")),  # numbers of lines
    "bad UTF-8": Spoilt(7, [b"caf\xe9"], "test.qab, line 7"),  # é in Latin-1
    "an empty line": Spoilt(10, [INVISIBLE], "test.qab, line 10", ("--drop-empty",)),
}


@pytest.mark.parametrize("kind", SPOILT)
def test_spoilt_text_is_refused_before_anything_is_written(kind, text_prefixes, tmp_path):
    spoilt = SPOILT[kind]
    replace_line(tmp_path / "test.qab", spoilt.number, *spoilt.replacements)

    with refused(tmp_path / spoilt.subject) as caught:
        prepare_text(LANGS, text_prefixes, tmp_path / "bin", vocab=PIECES)

    for fact in spoilt.facts:
        assert fact in str(caught.value)
    assert not list(tmp_path.glob("bin*"))


def test_a_missing_file_is_refused(text_prefixes, tmp_path):
    prefixes = text_prefixes | {"valid": str(tmp_path / "nowhere")}

    with refused(tmp_path / "nowhere.qaa"):
        prepare_text(LANGS, prefixes, tmp_path / "bin", PIECES)

    assert not list(tmp_path.glob("bin*"))


def number_in(text):
    """Return the first number in a text."""
    return int(re.search(r"\d+", text)[0])


def test_a_vocabulary_of_too_many_pieces_is_refused_with_the_largest(text_prefixes, tmp_path):
    """A text has only so many pairs of pieces to merge."""
    with refused("--vocab 30000") as caught:
        prepare_text(LANGS, text_prefixes, tmp_path / "bin", vocab=30_000)

    assert PIECES < number_in(caught.value.way_out) < 30_000
    assert not list(tmp_path.glob("bin*"))


@pytest.mark.parametrize(
    ("pieces", "smallest"),
    [
        (0, 1),
        (20, 21),  # or more: each character of the text is a piece
    ],
)
def test_a_vocabulary_of_too_few_pieces_is_refused_with_a_limit(pieces, smallest, text_prefixes, tmp_path):
    with refused(f"--vocab {pieces}") as caught:
        prepare_text(LANGS, text_prefixes, tmp_path / "bin", vocab=pieces)

    assert number_in(caught.value.way_out) >= smallest
    assert not list(tmp_path.glob("bin*"))


def test_a_folder_whose_name_fairseq_would_split_is_refused(text_prefixes, tmp_path):
    """fairseq takes a colon for the end of one folder of data and the beginning of another."""
    with refused(tmp_path / "a:b"):
        prepare_text(LANGS, text_prefixes, tmp_path / "a:b", PIECES)

    assert not (tmp_path / "a:b").exists()


def test_a_folder_that_exists_is_refused_and_left_alone(text_prefixes, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis").write_text("keep")

    with refused(tmp_path / "mine"):
        prepare_text(LANGS, text_prefixes, tmp_path / "mine", PIECES)

    assert files_in(tmp_path / "mine") == {"thesis": b"keep"}


def test_several_training_texts_are_refused(text_prefixes, tmp_path):
    both = f"{text_prefixes['train']},{text_prefixes['test']}"  # as test sets may be given

    with refused(both):
        prepare_text(LANGS, text_prefixes | {"train": both}, tmp_path / "bin", PIECES)


def test_too_few_training_pairs_are_refused(text_prefixes, tmp_path):
    for lang in LANGS:
        (tmp_path / f"few.{lang}").write_text("a b\n" * 50)

    with refused("50 training pairs"):
        prepare_text(LANGS, text_prefixes | {"train": str(tmp_path / "few")}, tmp_path / "bin", PIECES)

    assert not list(tmp_path.glob("bin*"))


def test_drop_empty_leaves_out_a_pair_with_an_empty_side(text_prefixes, tmp_path):
    replace_line(tmp_path / "train.qaa", 1, INVISIBLE)

    prepare_text(LANGS, text_prefixes, tmp_path / "bin", vocab=PIECES, drop_empty=True)

    for lang in LANGS:
        prepared = (tmp_path / "bin" / "text" / f"train.{lang}").read_text().splitlines()
        assert len(prepared) == SIZES["train"] - 1


def test_several_test_sets_are_numbered(text_prefixes, tmp_path, monkeypatch):
    """The second test set, test1, has the text of the validation set here."""
    binarised = {}  # subset -> prefix of the text in pieces that would be binarised
    monkeypatch.setattr(parallel_text, "binarise", lambda langs, texts, *_: binarised.update(texts))
    two_tests = f"{text_prefixes['test']},{text_prefixes['valid']}"

    prepare_text(LANGS, text_prefixes | {"test": two_tests}, tmp_path / "bin", vocab=PIECES)

    assert list(binarised) == ["train", "valid", "test", "test1"]
    assert [prefix.name for prefix in binarised.values()] == ["train", "valid", "test", "test1"]
    in_pieces = (tmp_path / "bin" / "text" / "test1.qab").read_text().splitlines()
    assert len(in_pieces) == SIZES["valid"]
    assert read_text_pairs(tmp_path / "bin" / "raw" / "test1") == read_text_pairs(text_prefixes["valid"])


class Binarised(NamedTuple):
    """Folder of binarised data, and the counts that binarise returns of them."""

    folder: Path
    counts: dict


@pytest.fixture(params=(1, 3), ids=("one process", "three processes"))
def binarised_with_dictionary(request, tmp_path, monkeypatch):
    """Provide the Binarised of 24 sentences in pieces, with a dictionary of a and b alone.

    The sentences are "a b", "<unk> x", "", "a b c" with odd white space, and 20 times "a".
    """
    monkeypatch.setattr(lines, "CHUNK", 3)
    (tmp_path / "text").write_text("a b\n<unk> x\n\n\u2028 a\rb c\n" + "a\n" * 20)
    (tmp_path / "dict").write_text("a 1\nb 1\n")
    dest = tmp_path / "binarised"
    dest.mkdir()
    counts = binarise(None, {"valid": tmp_path / "text"}, dest, workers=request.param, dictionary=tmp_path / "dict")
    return Binarised(dest, counts)


def test_pieces_outside_a_given_dictionary_are_counted(binarised_with_dictionary):
    """The pieces x and c are outside of the dictionary. <unk> is in every dictionary.

    The percentage is of the numbers in the data: one for each piece, and one for the end of each sentence.
    """
    pieces = 2 + 2 + 0 + 3 + 20
    unknown = round(100 * 2 / (pieces + 24), 2)

    counts = binarised_with_dictionary.counts["text"]["valid"]["text"]

    assert counts == {"sentences": 24, "pieces": pieces, "unknown": unknown}


def test_pieces_outside_a_given_dictionary_have_the_number_of_unk(binarised_with_dictionary):
    binarised = data_utils.load_indexed_dataset(str(binarised_with_dictionary.folder / "valid"))
    sentences = [numbers.tolist() for numbers in binarised]

    # 2 is </s>, at the end of each sentence, 3 is <unk>, 4 is a and 5 is b
    assert sentences[:4] == [[4, 5, 2], [3, 3, 2], [2], [4, 5, 3, 2]]
    assert sentences[4:] == [[4, 2]] * 20


def test_the_data_have_the_bytes_of_fairseq_preprocess(data, tmp_path):
    prefixes = [f"--{split}pref={data / 'text' / split}" for split in SIZES]
    run("fairseq-preprocess", "-s", "qaa", "-t", "qab", "--joined-dictionary", *prefixes, "--destdir", tmp_path)

    expected = {name: content for name, content in files_in(tmp_path).items() if not name.endswith(".log")}
    assert len(expected) == 2 + 2 * 2 * 3  # dictionaries; .bin and .idx of two sides of three splits
    for name, content in expected.items():
        assert (data / name).read_bytes() == content
