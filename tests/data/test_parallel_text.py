"""Tests of the embedded corpus and of the preparation of any text."""

import hashlib
from itertools import chain
from pathlib import Path

import pytest
import sentencepiece
from fairseq.data import data_utils

from deepnet_fairseq.cli import main
from deepnet_fairseq.data import lines, parallel_text
from deepnet_fairseq.data.binarise import binarise
from deepnet_fairseq.data.language import SIZES as DEFAULT_SIZES
from deepnet_fairseq.data.language import make_corpus, write_corpus
from deepnet_fairseq.data.parallel_text import prepare_text

from ..support.disks import files_limited_to
from ..support.errors import refused
from ..support.helpers import run
from ..support.prepared import files_in

LANGS = ("qaa", "qab")
SIZES = {"train": 2000, "valid": 100, "test": 100}
PIECES = 300
WITHOUT_INK = " \u200b\u200e\u2028\ufffd\u2581\x07\u00ad".encode()
# SHA-256 of the embedded corpus that recorded runs were trained on, as "SOURCE<tab>TARGET" lines of all splits
RECORDED_CORPUS = "fccc775b5013d50fec3bb65f06ec4a4d096c26136a293c6ea3e2018535d968ca"


@pytest.fixture(scope="module")
def embedded_corpus():
    """Provide split -> sentence pairs."""
    return make_corpus(SIZES)


@pytest.mark.parametrize("side", (0, 1))
def test_the_embedded_corpus_holds_no_sentence_twice(side, embedded_corpus):
    pairs = chain.from_iterable(embedded_corpus.values())
    sentences = [pair[side] for pair in pairs]

    assert len(sentences) == sum(SIZES.values())
    assert len(set(sentences)) == len(sentences)


def test_more_training_text_leaves_the_rest_of_the_embedded_corpus(embedded_corpus):
    longer = make_corpus(SIZES | {"train": 3000})

    assert longer["train"][:2000] == embedded_corpus["train"]
    assert longer["test"] == embedded_corpus["test"]


def test_another_seed_gives_another_embedded_corpus(embedded_corpus):
    assert make_corpus(SIZES, seed=2)["test"] != embedded_corpus["test"]


@pytest.mark.parametrize(("sizes", "nouns"), [(SIZES | {"test": 0}, 9), (SIZES, 10**6)])
def test_an_embedded_corpus_without_sentences_or_of_too_many_nouns_is_refused(sizes, nouns):
    with refused("corpus", "20,000 nouns"):
        make_corpus(sizes, nouns=nouns)


def test_the_embedded_corpus_is_the_one_that_recorded_runs_were_trained_on(embedded_corpus):
    pairs = chain.from_iterable(embedded_corpus.values())
    text = "".join(f"{source}\t{target}\n" for source, target in pairs)

    assert hashlib.sha256(text.encode()).hexdigest() == RECORDED_CORPUS


def read_text_pairs(prefix) -> list[tuple[str, str]]:
    """Read the sentence pairs of PREFIX.qaa and PREFIX.qab."""
    source_lang, target_lang = LANGS
    return list(lines.read_pairs(Path(f"{prefix}.{source_lang}"), Path(f"{prefix}.{target_lang}")))


def test_the_command_writes_the_embedded_corpus(tmp_path):
    run("deepnet", "prepare", "language", tmp_path / "c", "--seed", "2")

    expected = make_corpus(DEFAULT_SIZES, seed=2)
    for split in DEFAULT_SIZES:
        assert read_text_pairs(tmp_path / "c" / split) == expected[split]


def test_a_full_disk_ends_the_command_in_one_line_and_leaves_no_file(tmp_path):
    with files_limited_to(100_000), pytest.raises(SystemExit, match=r"^deepnet: error: .*/train\.qa[ab]: .*$"):
        main(["prepare", "language", str(tmp_path / "c")])

    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("typed", "decoded"),
    [("10² ½ ﬁ می\u200cخواهم é e\u0301 Ａ", "10² ½ ﬁ می\u200cخواهم é e\u0301 Ａ"), ("1\u00a0\t0", "1 0")],
    ids=["characters", "white space"],
)
def test_sentencepiece_changes_nothing_but_white_space(typed, decoded):
    learnt_from = ["10² ½ ﬁ می\u200cخواهم é e\u0301 Ａ"] * 9
    model = sentencepiece.SentencePieceProcessor(model_proto=parallel_text.sentencepiece_model(learnt_from, 40))

    assert model.decode(model.encode(typed)) == decoded


def test_letters_in_composed_and_decomposed_form_give_a_warning_by_language(capsys):
    rows = [("\u00e9", "\u00e9 \u095c"), ("e\u0301", "\u0921\u093c"), ("e\u0301", "\u212b")]
    letters = lines.Letters(["vi", "hi"])

    letters.add(rows)
    letters.warn()

    warnings = sorted(capsys.readouterr().out.splitlines())
    assert len(warnings) == 2
    assert all("WARNING: " in warning for warning in warnings)
    of_hindi, of_vietnamese = warnings
    assert "hi (nukta and dots): 1 " in of_hindi
    assert "vi: 1 " in of_vietnamese  # line of composed letters
    assert ", 2 " in of_vietnamese  # lines of decomposed ones


@pytest.fixture
def text_prefixes(tmp_path, embedded_corpus):
    """Provide split -> prefix of a text that a test may change."""
    write_corpus(embedded_corpus, tmp_path)
    return {split: str(tmp_path / split) for split in SIZES}


def replace_line(path, number, *replacements):
    """Put other lines of bytes in the place of a line, whose number counts from 1."""
    content = path.read_bytes().split(b"\n")
    content[number - 1 : number] = replacements
    path.write_bytes(b"\n".join(content))


SPOILED = {  # what is wrong -> line, what comes in its place, what the refusal is about, what else it names
    "unequal sides": (51, [], "test.qab", ["100", "99"]),
    "bad UTF-8": (7, [b"caf\xe9"], "test.qab, line 7", []),
    "an empty line": (10, [WITHOUT_INK], "test.qab, line 10", ["--drop-empty"]),
}


@pytest.mark.parametrize("kind", SPOILED)
def test_spoiled_text_is_refused_before_anything_is_written(kind, text_prefixes, tmp_path):
    number, replacements, subject, facts = SPOILED[kind]
    replace_line(tmp_path / "test.qab", number, *replacements)

    with refused(tmp_path / subject) as caught:
        prepare_text(LANGS, text_prefixes, tmp_path / "bin", vocab=PIECES)

    for fact in facts:
        assert fact in str(caught.value)
    assert not list(tmp_path.glob("bin*"))


def test_a_missing_file_is_refused(text_prefixes, tmp_path):
    with refused(tmp_path / "nowhere.qaa"):
        prepare_text(LANGS, text_prefixes | {"valid": str(tmp_path / "nowhere")}, tmp_path / "bin", PIECES)

    assert not list(tmp_path.glob("bin*"))


@pytest.mark.parametrize(
    ("pieces", "limit"),
    [(30_000, r"at most \d+"), (0, "1"), (20, r"\d+ characters")],
    ids=["too many", "none", "too few"],
)
def test_a_vocabulary_that_cannot_be_is_refused_with_its_limit(pieces, limit, text_prefixes, tmp_path):
    with refused(f"--vocab {pieces}") as caught:
        prepare_text(LANGS, text_prefixes, tmp_path / "bin", pieces)

    assert caught.match(limit)
    assert not list(tmp_path.glob("bin*"))


def test_a_folder_whose_name_fairseq_would_split_is_refused(text_prefixes, tmp_path):
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
    both = f"{text_prefixes['train']},{text_prefixes['test']}"

    with refused(both):
        prepare_text(LANGS, text_prefixes | {"train": both}, tmp_path / "bin", PIECES)


def test_too_few_training_pairs_are_refused(text_prefixes, tmp_path):
    for lang in LANGS:
        (tmp_path / f"few.{lang}").write_text("a b\n" * 50)

    with refused("50 training pairs"):
        prepare_text(LANGS, text_prefixes | {"train": str(tmp_path / "few")}, tmp_path / "bin", PIECES)

    assert not list(tmp_path.glob("bin*"))


def test_drop_empty_leaves_out_a_pair_with_an_empty_side(text_prefixes, tmp_path):
    replace_line(tmp_path / "train.qaa", 1, WITHOUT_INK)

    prepare_text(LANGS, text_prefixes, tmp_path / "bin", vocab=PIECES, drop_empty=True)

    for lang in LANGS:
        prepared = (tmp_path / "bin" / "text" / f"train.{lang}").read_text().splitlines()
        assert len(prepared) == SIZES["train"] - 1


def test_several_test_sets_are_numbered(text_prefixes, tmp_path, monkeypatch):
    binarised = {}
    monkeypatch.setattr(parallel_text, "binarise", lambda langs, texts, *_: binarised.update(texts))
    two_tests = f"{text_prefixes['test']},{text_prefixes['valid']}"

    prepare_text(LANGS, text_prefixes | {"test": two_tests}, tmp_path / "bin", vocab=PIECES)

    names = ["train", "valid", "test", "test1"]
    assert list(binarised) == names
    assert [path.name for path in binarised.values()] == names
    assert len((tmp_path / "bin" / "text" / "test1.qab").read_text().splitlines()) == SIZES["valid"]
    for name in ("valid", "test1"):
        raw = read_text_pairs(tmp_path / "bin" / "raw" / name)
        assert raw == read_text_pairs(text_prefixes["valid"])


@pytest.fixture(params=(1, 3))
def binarised_with_dictionary(request, tmp_path, monkeypatch):
    """Provide (folder, counts) of text binarised by one or three processes with a dictionary of a and b alone."""
    monkeypatch.setattr(lines, "CHUNK", 3)
    (tmp_path / "text").write_text("a b\n<unk> x\n\n\u2028 a\rb c\n" + "a\n" * 20)
    (tmp_path / "dict").write_text("a 1\nb 1\n")
    dest = tmp_path / "binarised"
    dest.mkdir()
    counts = binarise(None, {"valid": tmp_path / "text"}, dest, request.param, tmp_path / "dict")
    return dest, counts


def test_pieces_outside_a_given_dictionary_are_counted(binarised_with_dictionary):
    """The piece <unk> is in every dictionary; the percentage is of pieces and the ends of the 24 sentences."""
    _, counts = binarised_with_dictionary

    expected = {"sentences": 24, "pieces": 27, "unknown": 3.92}  # 2 of 51
    assert counts["text"]["valid"]["text"] == expected


def test_pieces_outside_a_given_dictionary_have_the_number_of_unk(binarised_with_dictionary):
    """The numbers: 2 ends a sentence, 3 is <unk>, 4 is a and 5 is b."""
    dest, _ = binarised_with_dictionary

    numbers = [row.tolist() for row in data_utils.load_indexed_dataset(str(dest / "valid"))]
    assert numbers[:4] == [[4, 5, 2], [3, 3, 2], [2], [4, 5, 3, 2]]
    assert numbers[4:] == [[4, 2]] * 20


def test_the_data_have_the_bytes_of_fairseq_preprocess(data, tmp_path):
    prefixes = [f"--{split}pref={data / 'text' / split}" for split in SIZES]
    run("fairseq-preprocess", "-s", "qaa", "-t", "qab", "--joined-dictionary", *prefixes, "--destdir", tmp_path)

    expected = {name: content for name, content in files_in(tmp_path).items() if not name.endswith(".log")}
    assert len(expected) == 2 + 2 * 2 * 3  # dictionaries; .bin and .idx of two sides of three splits
    for name, content in expected.items():
        assert (data / name).read_bytes() == content
