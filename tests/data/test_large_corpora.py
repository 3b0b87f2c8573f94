"""Tests of preparing text that may be larger than the memory: samples, chunks, disk space, kills, pipes.

Files of parallel text are called by their prefix: PREFIX stands for PREFIX.qaa and PREFIX.qab, a sentence a line.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import signal
import sys
from contextlib import redirect_stdout, suppress
from pathlib import Path
from random import Random
from tempfile import gettempdir
from textwrap import dedent
from typing import NamedTuple

import numpy as np
import pytest
import sentencepiece
import torch
from fairseq.data import indexed_dataset

from deepnet_fairseq.data import folder, indexed, learning, lines, parallel_text
from deepnet_fairseq.data.indexed import IndexedWriter
from deepnet_fairseq.data.language import make_corpus, write_corpus
from deepnet_fairseq.data.learning import sentencepiece_model
from deepnet_fairseq.data.lines import in_child, read_lines
from deepnet_fairseq.data.lm_text import PlainSurvey, PlainText, prepare_lm, train_sentencepiece
from deepnet_fairseq.data.multilingual import cut_and_binarise
from deepnet_fairseq.data.parallel_text import prepare_text
from deepnet_fairseq.data.pieces import Cutter
from deepnet_fairseq.data.survey import Survey, characters, survey
from deepnet_fairseq.data.vocabulary import Vocabulary

from ..support.disks import set_free_space
from ..support.errors import refused
from ..support.helpers import ROOT
from ..support.pipes import filled_pipes
from ..support.prepared import files_in
from ..support.programs import import_program

LANGS = ("qaa", "qab")
SENTENCE_PAIRS = {"train": 3000, "valid": 40, "test": 60}
TRAINING_SENTENCES = 2 * SENTENCE_PAIRS["train"]  # of both languages
SAMPLE = 1000  # of these sentences, from which some tests learn the vocabulary
RARE_PAIR = 2321  # training pair that alone has Ø; the sample does not draw it
PIECES = 300  # size of the SentencePiece vocabulary
# SentencePiece's rules of normalisation, CODE<tab>CODE in hexadecimal, that make a blank (U+0020) of all white space
WHITE_SPACE_TO_BLANK = "".join(f"{code:X}\t20\n" for code in range(0x3001) if chr(code).isspace() and code != ord(" "))


@pytest.fixture(scope="module")
def text_prefixes(tmp_path_factory):
    """Provide split -> prefix of its text.

    A pair of the test set has characters that the rest lacks, among them U+2028, which str.splitlines takes for a line
    end.
    """
    place = tmp_path_factory.mktemp("text")
    corpus = make_corpus(SENTENCE_PAIRS)
    corpus["test"][7] = ("Łódź 🙃\u2028ends", "漢字 漢字")
    corpus["train"][RARE_PAIR] = ("Ø once", corpus["train"][RARE_PAIR][1])
    write_corpus(corpus, place)
    return {split: str(place / split) for split in SENTENCE_PAIRS}


@pytest.fixture(scope="module")
def prepared_folder(text_prefixes, tmp_path_factory):
    """Provide the folder that `prepare_text` makes of the text with two processes."""
    dest = tmp_path_factory.mktemp("prepared") / "bin"
    prepare_text(LANGS, text_prefixes, dest, vocab=PIECES, workers=2)
    return dest


@pytest.fixture(scope="module")
def measure():
    """Provide the program results/corpora/measure.py as a module.

    The program measures the memory that preparing corpora takes. Its records and its table in docs/corpora.md are
    tested here too.
    """
    return import_program(ROOT / "results" / "corpora" / "measure.py")


def sentences_of(prefix, lang):
    """Read one side of a text as `prepare_text` reads it: with blanks for what other tools take for line ends."""
    return [lines.one_line(line) for line in read_lines(Path(f"{prefix}.{lang}"))]


def scored_pieces(model):
    """Return (piece, score) of a SentencePiece model, given as bytes, in the order of their numbers."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [(processor.id_to_piece(number), processor.get_score(number)) for number in range(len(processor))]


def pieces_of(folder):
    """Return the pieces of the SentencePiece model in a folder of prepared data."""
    model = (folder / "spm.model").read_bytes()
    return [piece for piece, _ in scored_pieces(model)]


def test_the_vocabulary_is_the_one_that_sentencepiece_alone_learns(text_prefixes, prepared_folder, tmp_path):
    rules = tmp_path / "rules"
    rules.write_text(WHITE_SPACE_TO_BLANK)
    both_sides = sentences_of(text_prefixes["train"], "qaa") + sentences_of(text_prefixes["train"], "qab")
    expected = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(both_sides), model_writer=expected, model_type="bpe", vocab_size=PIECES, minloglevel=2,
        character_coverage=1.0, normalization_rule_tsv=str(rules),
    )  # fmt: skip

    model = (prepared_folder / "spm.model").read_bytes()

    assert scored_pieces(model) == scored_pieces(expected.getvalue())


def test_the_sentencepiece_model_holds_no_path_of_this_machine(prepared_folder):
    """SentencePiece writes into the model where its rules of normalisation are, here in a folder of temporary files."""
    model = (prepared_folder / "spm.model").read_bytes()

    assert b"white_space.tsv" in model
    assert gettempdir().encode() not in model
    assert str(prepared_folder.parent).encode() not in model


@pytest.mark.parametrize("split", SENTENCE_PAIRS)
@pytest.mark.parametrize("lang", LANGS)
def test_text_is_cut_as_sentencepiece_alone_cuts_it(split, lang, text_prefixes, prepared_folder):
    processor = sentencepiece.SentencePieceProcessor(model_file=str(prepared_folder / "spm.model"))
    cut = processor.encode(sentences_of(text_prefixes[split], lang), out_type=str)

    expected = [" ".join(pieces) for pieces in cut]
    assert list(read_lines(prepared_folder / "text" / f"{split}.{lang}")) == expected


@pytest.mark.parametrize(
    ("workers", "chunk"),
    [
        (1, lines.CHUNK),  # the package's own, 2,000 lines
        (3, 333),  # which 3,000 is no multiple of
    ],
)
def test_workers_and_chunks_change_no_byte_of_the_data(
    workers, chunk, text_prefixes, prepared_folder, tmp_path, monkeypatch
):
    monkeypatch.setattr(lines, "CHUNK", chunk)

    prepare_text(LANGS, text_prefixes, tmp_path / "other", vocab=PIECES, workers=workers)

    assert files_in(tmp_path / "other") == files_in(prepared_folder)


@pytest.fixture(scope="module")
def folder_by_a_sample(text_prefixes, tmp_path_factory):
    """Provide a prepared folder whose vocabulary is learnt from 1,000 of the 6,000 training sentences."""
    dest = tmp_path_factory.mktemp("sampled") / "bin"
    prepare_text(LANGS, text_prefixes, dest, vocab=PIECES, sample_lines=SAMPLE)
    return dest


def test_a_sample_for_the_vocabulary_is_the_same_each_time(text_prefixes, folder_by_a_sample, tmp_path, capsys):
    prepare_text(LANGS, text_prefixes, tmp_path / "again", vocab=PIECES, sample_lines=SAMPLE)

    assert files_in(tmp_path / "again") == files_in(folder_by_a_sample)
    printed = capsys.readouterr().out
    assert f"{SAMPLE:,}" in printed
    assert f"{TRAINING_SENTENCES:,}" in printed


def test_every_character_of_the_training_text_has_a_piece_despite_a_sample(folder_by_a_sample):
    pieces = pieces_of(folder_by_a_sample)

    assert "Ø" in pieces  # of RARE_PAIR, which the sample lacks
    assert "Ł" not in pieces  # of the test set alone


def test_a_sample_of_all_sentences_gives_other_pieces(text_prefixes, folder_by_a_sample, tmp_path):
    prepare_text(LANGS, text_prefixes, tmp_path / "whole", vocab=PIECES, sample_lines=TRAINING_SENTENCES)

    assert set(pieces_of(tmp_path / "whole")) != set(pieces_of(folder_by_a_sample))


def test_a_sample_of_no_sentence_is_refused(text_prefixes, tmp_path):
    with refused("--vocab-sample 0"):
        prepare_text(LANGS, text_prefixes, tmp_path / "none", vocab=PIECES, sample_lines=0)

    assert not (tmp_path / "none").exists()


NUMBERS = 20_000  # lines of the text in the next fixture that are not blank


@pytest.fixture
def file_of_numbers(tmp_path):
    """Provide a text of the numbers 0 to 19,999, one a line, with a blank line after each."""
    path = tmp_path / "text"
    path.write_text("".join(f"{number}\n\n" for number in range(NUMBERS)))
    return path


@pytest.fixture
def survey_of_numbers(file_of_numbers):
    """Provide the survey of the text of numbers."""
    rows = ((line,) for line in read_lines(file_of_numbers))
    return survey(PlainSurvey(["text"]), rows, workers=1, label="text")


def test_a_survey_counts_lines_words_and_bytes(survey_of_numbers):
    digits = sum(len(str(number)) for number in range(NUMBERS))

    # blank lines are lines too; a word is a number, a byte a digit
    assert survey_of_numbers.sizes() == {"lines": 2 * NUMBERS, "words": NUMBERS, "bytes": digits}


def test_a_sample_is_drawn_evenly_and_without_blank_lines(file_of_numbers, survey_of_numbers, tmp_path, monkeypatch):
    """Every tenth of the text gives about a tenth of a sample of 2,000 lines, in the text's order."""
    drawn = []

    def record_sentences(sentences, *_, **__):
        drawn.extend(sentences)
        return b"no model"

    monkeypatch.setattr("deepnet_fairseq.data.lm_text.sentencepiece_model", record_sentences)
    monkeypatch.setattr("deepnet_fairseq.data.lm_text.Segmenter", lambda *_: None)  # would read the model

    text = PlainText(file_of_numbers, survey_of_numbers)
    train_sentencepiece(text, vocab=PIECES, folder=tmp_path, sample_lines=2000)

    numbers = [int(line) for line in drawn]  # fails for a blank line
    assert len(numbers) == 2000
    assert numbers == sorted(set(numbers))
    of_each_tenth = np.bincount([10 * number // NUMBERS for number in numbers])
    assert len(of_each_tenth) == 10
    # 200 are expected; the standard deviation of the hypergeometric distribution is about 13
    assert of_each_tenth.min() > 150
    assert of_each_tenth.max() < 250


LINES = 4000
CHINESE_CHARACTERS = 60  # distinct ones, from U+4E00 on
# Bytes of SentencePiece's memory for a line of 50 Chinese characters without a blank: it has 3 bytes a character in
# UTF-8, of which SentencePiece has 2 copies, and is one distinct word of 50 characters.
CHINESE_LINE = learning.PER_LINE + 2 * (3 * 50) + learning.PER_CHARACTER * 50
ROOM = 1000 * CHINESE_LINE  # memory for 1,000 of the 4,000 lines


@pytest.fixture(scope="module")
def lines_of_words():
    """Provide 4,000 lines of 50 words each; there are three distinct words."""
    random = Random(1)
    return [" ".join(random.choices(("ab", "cd", "ef"), k=50)) for _ in range(LINES)]


@pytest.fixture(scope="module")
def chinese_lines():
    """Provide 4,000 lines of 50 random Chinese characters each, without a blank."""
    random = Random(1)
    alphabet = [chr(0x4E00 + number) for number in range(CHINESE_CHARACTERS)]
    return ["".join(random.choices(alphabet, k=50)) for _ in range(LINES)]


def test_memory_of_lines_with_blanks_is_estimated_by_their_lengths(lines_of_words):
    """The three distinct words take less than 1% of the memory."""
    expected = sum(learning.PER_LINE + 2 * len(line) for line in lines_of_words)

    assert learning.estimated_memory(lines_of_words) == pytest.approx(expected, rel=0.01)


def test_memory_of_lines_without_blanks_includes_every_character(chinese_lines):
    """The estimate looks at one word in 16, here about 250 lines; its standard deviation is 6%."""
    assert learning.estimated_memory(chinese_lines) == pytest.approx(LINES * CHINESE_LINE, rel=0.2)


def test_lines_with_blanks_all_fit_into_memory(lines_of_words, capsys):
    """Memory for 1,000 lines without blanks is enough for all 4,000 lines with blanks."""
    sentencepiece_model(lines_of_words, vocab=12, memory_limit=ROOM)

    assert capsys.readouterr().out == ""  # lines that are left out would be told of


class Learnt(NamedTuple):
    """SentencePiece model, as bytes, and what was printed while it was learnt."""

    model: bytes
    printed: str


@pytest.fixture(scope="module")
def learnt_in_little_memory(chinese_lines):
    """Provide the Learnt of 4,000 Chinese lines in memory for 1,000.

    The lines are of a text with five further characters: é, and four that can be no pieces. These are NUL,
    SentencePiece's own two marks, and white space.
    """
    of_text = characters("".join(chinese_lines)) | {"é", "\0", "\u2581", "\u2585", "\u3000"}
    printed = io.StringIO()
    with redirect_stdout(printed):
        model = sentencepiece_model(chinese_lines, vocab=100, memory_limit=ROOM, whole_text=(LINES, of_text))
    return Learnt(model, printed.getvalue())


def test_lines_that_do_not_fit_into_memory_are_left_out(learnt_in_little_memory):
    """The number of lines that are used is printed."""
    used = re.search(r"\d[\d,]*", learnt_in_little_memory.printed)[0]

    # 1,000 by an estimate that looks at about 62 of 1,000 words; its standard deviation is 12%
    assert 600 < int(used.replace(",", "")) < 1200


def test_every_character_has_a_piece_although_lines_are_left_out(learnt_in_little_memory):
    pieces = {piece for piece, _ in scored_pieces(learnt_in_little_memory.model)}

    assert {chr(0x4E00 + number) for number in range(CHINESE_CHARACTERS)} <= pieces
    assert "é" in pieces
    assert "\u3000" not in pieces


# Sentence pairs with composed é and decomposed é (e and U+0301) in qaa, empty sides, and characters of 3 and 4 bytes
ROWS = [("é a", "漢 x"), ("e\u0301", ""), ("", "🙃")]


def survey_of_pairs(rows):
    """Return the survey of sentence pairs."""
    found = Survey(LANGS)
    found.add(rows)
    return found


def test_surveys_of_parts_add_up_to_that_of_the_whole():
    whole = survey_of_pairs(ROWS)

    merged = Survey(LANGS)
    for row in ROWS:
        merged.merge(survey_of_pairs([row]))

    assert merged.rows == whole.rows
    assert merged.size == whole.size
    assert merged.characters == whole.characters
    assert merged.letters.counts == whole.letters.counts


def test_a_survey_counts_pairs_bytes_characters_and_forms_of_letters():
    found = survey_of_pairs(ROWS)

    text = "é a\n漢 x\ne\u0301\n\n\n🙃\n"  # all sides, a line each
    assert found.rows == 3
    assert found.size == len(text.encode())
    assert found.characters == set(text)
    of_qaa = found.letters.counts[0]  # [lines with composed letters, lines with decomposed ones]
    assert of_qaa == [1, 1]


def test_counts_of_pieces_are_those_of_the_cut_text():
    cutter = Cutter(sentencepiece_model(["ab cd"] * 9 + ["ac db"] * 9, vocab=12))

    text, counts = cutter.cut(["ab cd", "", "ab xé cd", "db"])

    cut_lines = text.split("\n")
    assert len(cut_lines) == 4
    assert cut_lines[1] == ""
    assert "xé" in cut_lines[2].split()  # both are unknown: SentencePiece leaves them together
    pieces = text.split()
    assert cutter.total(counts) == {piece: pieces.count(piece) for piece in pieces}


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
def test_binarised_data_are_written_as_fairseq_writes_them(dtype, tmp_path, monkeypatch):
    lengths = (5, 1, 0, 7, 300, 2, 2)
    sentences = [np.arange(length) for length in lengths]
    of_fairseq = indexed_dataset.MMapIndexedDatasetBuilder(str(tmp_path / "theirs.bin"), dtype)
    for sentence in sentences:
        of_fairseq.add_item(torch.from_numpy(sentence))
    of_fairseq.finalize(str(tmp_path / "theirs.idx"))

    monkeypatch.setattr(indexed, "BLOCK", 3)  # so that the lengths of 7 sentences take several blocks
    with IndexedWriter(tmp_path / "ours.bin", tmp_path / "ours.idx", dtype) as ours:
        for some in (sentences[:3], [], sentences[3:]):
            numbers = np.concatenate([np.array([], int), *some])  # NumPy joins no empty list
            ours.add(numbers, np.array([len(sentence) for sentence in some]))

    assert ours.sentences == len(lengths)
    assert ours.pieces == sum(lengths)
    for ending in ("bin", "idx"):
        assert (tmp_path / f"ours.{ending}").read_bytes() == (tmp_path / f"theirs.{ending}").read_bytes()


def test_shards_are_the_same_by_one_process_and_by_several(text_prefixes, tmp_path, monkeypatch):
    sources = sentences_of(text_prefixes["train"], "qaa")[:1000]
    targets = sentences_of(text_prefixes["train"], "qab")[:1000]
    pairs = list(zip(sources, targets, strict=True))
    (tmp_path / "spm.model").write_bytes(sentencepiece_model(sources, PIECES))
    vocabulary = Vocabulary(tmp_path / "spm.model")

    def files_of_shards(workers, chunk):
        """Binarise the pairs into three shards, in chunks of so many pairs; return name -> bytes."""
        monkeypatch.setattr(lines, "CHUNK", chunk)
        place = tmp_path / f"by {workers}"
        place.mkdir()
        prefixes = [(place / f"{shard}.source", place / f"{shard}.target") for shard in range(3)]
        assert cut_and_binarise(iter(pairs), vocabulary, prefixes, workers, total=1000) == 1000
        return files_in(place)

    by_one = files_of_shards(workers=1, chunk=2000)  # all pairs in one chunk
    by_several = files_of_shards(workers=3, chunk=77)  # neither 3 shards nor 1,000 pairs divide it evenly

    assert len(by_one) == 3 * 2 * 2  # shards, sides, .bin and .idx
    assert by_several == by_one


def test_the_disk_space_that_is_announced_is_about_what_the_data_take(text_prefixes, tmp_path, capsys):
    prepare_text(LANGS, text_prefixes, tmp_path / "bin", vocab=PIECES)

    announced = re.search(r"(\d+\.?\d*)MB", capsys.readouterr().out)[1]
    megabytes = sum(map(len, files_in(tmp_path / "bin").values())) / 1e6
    assert megabytes / 2 < float(announced) < 2 * megabytes


@pytest.fixture
def disk_of_the_size_of_the_text(text_prefixes, monkeypatch):
    """Let the disk have as many bytes free as the text has, which do not suffice for its data."""
    size = 0
    for prefix in text_prefixes.values():
        for lang in LANGS:
            size += Path(f"{prefix}.{lang}").stat().st_size
    set_free_space(monkeypatch, size)


@pytest.mark.usefixtures("disk_of_the_size_of_the_text")
def test_parallel_text_that_the_disk_has_no_space_for_is_refused(text_prefixes, tmp_path):
    with refused(tmp_path / "deep" / "new"):
        prepare_text(LANGS, text_prefixes, tmp_path / "deep" / "new", vocab=PIECES)

    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("disk_of_the_size_of_the_text")
def test_plain_text_that_the_disk_has_no_space_for_is_refused(text_prefixes, tmp_path):
    """The text is refused before a vocabulary is learnt."""
    files = {split: [Path(f"{prefix}.qaa")] for split, prefix in text_prefixes.items()}

    def learn_vocabulary(*_):
        pytest.fail("a vocabulary is learnt")

    with refused(tmp_path / "lm"):
        prepare_lm(files, tmp_path / "lm", learn_vocabulary)

    assert list(tmp_path.iterdir()) == []


def end_while_binarising(signal_number, text_prefixes, dest):
    """Prepare text in a fork of this process, which gets a signal while it binarises.

    Return the exit status of the fork: minus the signal's number if the signal ended the fork, that of SystemExit if it
    left by itself.
    """
    child = os.fork()
    if child == 0:
        status = 0
        try:
            parallel_text.binarise = lambda *_: os.kill(os.getpid(), signal_number)  # in the fork alone
            prepare_text(LANGS, text_prefixes, dest, vocab=PIECES, workers=2)
        except SystemExit as end:
            status = end.code
        finally:
            os._exit(status)
    _, wait_status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(wait_status)


def test_a_run_that_is_terminated_leaves_no_file(text_prefixes, tmp_path):
    """Schedulers send SIGTERM."""
    status = end_while_binarising(signal.SIGTERM, text_prefixes, tmp_path / "deep" / "bin")

    assert status == 128 + signal.SIGTERM  # as shells give it
    assert not (tmp_path / "deep").exists()


def test_what_a_killed_run_left_is_removed_by_the_next(text_prefixes, prepared_folder, tmp_path, capsys):
    dest = tmp_path / "bin"
    status = end_while_binarising(signal.SIGKILL, text_prefixes, dest)
    assert status == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    assert left.is_dir()
    assert left != dest

    prepare_text(LANGS, text_prefixes, dest, vocab=PIECES)

    assert str(left) in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == [dest]
    assert files_in(dest) == files_in(prepared_folder)


def test_a_folder_that_is_only_called_like_a_leftover_stays(tmp_path):
    """A leftover of a killed run is called NAME.PROCESS.part, with the number of the process."""
    notes = tmp_path / "bin.old.part" / "notes"
    notes.parent.mkdir()
    notes.write_text("of the user")

    with folder.new_folder(tmp_path / "bin"):
        pass

    assert files_in(notes.parent) == {"notes": b"of the user"}


def test_two_runs_at_work_on_one_folder_leave_each_other_alone(tmp_path, capfd):
    """Each run fills a temporary folder. That of the run that ends first gets the name bin.

    A child is in the midst of filling its folder while this process fills its own and ends.
    """
    dest = tmp_path / "bin"
    child_is_filling, tell_filling = os.pipe()
    child_may_end, let_child_end = os.pipe()
    child = os.fork()
    if child == 0:
        with suppress(OSError), folder.new_folder(dest) as part:  # OSError: the name is taken at the end
            (part / "half").write_text("half")
            os.write(tell_filling, b".")
            os.read(child_may_end, 1)  # waits
        os._exit(0)

    os.read(child_is_filling, 1)  # waits
    with folder.new_folder(dest) as part:
        (of_child,) = tmp_path.glob(f"bin.{child}.part")
        assert (of_child / "half").exists()
        (part / "whole").write_text("whole")
    os.write(let_child_end, b".")
    os.waitpid(child, 0)

    assert of_child.name in capfd.readouterr().err  # the second run tells of the first
    assert os.listdir(tmp_path) == ["bin"]
    assert os.listdir(dest) == ["whole"]


def test_text_from_pipes_gives_the_data_that_files_give(text_prefixes, prepared_folder, tmp_path):
    """A pipe can be read once only."""
    with filled_pipes() as make_pipe:
        for lang in LANGS:
            content = Path(f"{text_prefixes['train']}.{lang}").read_bytes()
            make_pipe(tmp_path / f"pipe.{lang}", content)
        prepare_text(LANGS, text_prefixes | {"train": str(tmp_path / "pipe")}, tmp_path / "piped", vocab=PIECES)

    assert files_in(tmp_path / "piped") == files_in(prepared_folder)


def test_text_that_changes_between_two_readings_is_refused(text_prefixes, tmp_path, monkeypatch):
    """Each side gets one line more after the text was counted, while the vocabulary is learnt."""
    for lang in LANGS:
        shutil.copy(f"{text_prefixes['train']}.{lang}", tmp_path / f"train.{lang}")

    def lengthen_text_and_learn(*_):
        for lang in LANGS:
            with open(tmp_path / f"train.{lang}", "a") as file:
                file.write("one more\n")
        return sentencepiece_model(sentences_of(text_prefixes["train"], "qaa"), PIECES)

    monkeypatch.setattr(parallel_text, "learn_model", lengthen_text_and_learn)
    with refused(tmp_path / "train.qaa") as caught:
        prepare_text(LANGS, text_prefixes | {"train": str(tmp_path / "train")}, tmp_path / "bin", vocab=PIECES)

    assert "3,000" in caught.value.way_out
    assert "3,001" in caught.value.way_out
    assert not list(tmp_path.glob("bin*"))


def test_a_corpus_like_an_earlier_one_has_its_pieces_and_numbers(text_prefixes, prepared_folder, tmp_path):
    """The second corpus validates on the test set of the first, so that the data of both must have the same bytes."""
    exchanged = {"train": text_prefixes["train"], "valid": text_prefixes["test"], "test": text_prefixes["valid"]}

    prepare_text(LANGS, exchanged, tmp_path / "second", like=str(prepared_folder))

    first = files_in(prepared_folder)
    second = files_in(tmp_path / "second")
    assert second["spm.model"] == first["spm.model"]
    assert second["dict.qab.txt"] == first["dict.qab.txt"]
    for ending in ("qaa.bin", "qaa.idx", "qab.bin", "qab.idx"):
        assert second[f"valid.qaa-qab.{ending}"] == first[f"test.qaa-qab.{ending}"]


def test_a_function_in_a_child_process_gives_back_its_result():
    own_process = os.getpid()

    result = in_child(lambda one, two: [one, two, os.getpid() != own_process], 1, 2)

    assert result == [1, 2, True]


def test_an_error_of_a_child_process_is_raised_here():
    with pytest.raises(ZeroDivisionError):
        in_child(lambda: 1 // 0)


def test_a_child_process_that_is_killed_is_an_error_of_one_line():
    """Memory has probably run out for such a child. --vocab-sample is the flag that needs less."""
    with refused("--vocab-sample"):
        in_child(lambda: os.kill(os.getpid(), signal.SIGKILL))


def test_measured_memory_is_that_of_all_processes_of_a_program(measure, tmp_path, monkeypatch):
    """A parent and its forked child share 100 MB, and the child has 50 MB more.

    PSS counts what they share once: 150 MB, and some MB of Python. RSS counts it for each of them: 250 MB and more.
    """
    code = """
        import os, pathlib, time
        shared = b"x" * 100_000_000
        more = b"y" * (0 if os.fork() else 50_000_000)
        pathlib.Path(f"{os.getpid()}.ready").touch()
        while not pathlib.Path("measured").exists():
            shared[::4096], more[::4096]  # in use: the kernel may take idle pages away
            time.sleep(0.01)
    """
    ready = []  # how many processes were ready at the end of each sample

    def end_sample(_seconds: float) -> None:
        """Stand in for the sleep after a sample, and end the program once both were ready before a sample began."""
        if 2 in ready:
            (tmp_path / "measured").touch()
        ready.append(len(list(tmp_path.glob("*.ready"))))
        sleep(0.05)

    sleep = measure.time.sleep
    monkeypatch.setattr(measure.time, "sleep", end_sample)

    peak = measure.watch([sys.executable, "-c", dedent(code)], cwd=tmp_path)

    assert peak.status == 0
    # wide bounds: the kernel may take idle pages away, and a sample during the fork counts the shared ones twice; the
    # parent alone has 50 MB of PSS, the child alone 100
    assert 110e6 < peak.pss < 210e6
    assert peak.rss > 210e6


def test_the_table_of_memory_on_the_page_is_that_of_the_records(measure):
    table = measure.table(measure.read_records())

    assert table in measure.PAGE.read_text(encoding="utf-8")


def test_every_recorded_corpus_took_less_than_1_5_gb(measure):
    """This is claimed of the release that reads text as a stream, which the records call "after"."""
    records = [record for record in measure.read_records() if record["which"] == "after"]

    assert {record["case"] for record in records} == measure.CASES.keys()
    assert max(record["bytes"] for record in records) < 1.5e9


@pytest.mark.slow
def test_two_million_pairs_are_prepared_in_less_than_1_5_gb(measure, tmp_path):
    """The memory is that of all processes together. The data have all pairs in the end."""
    pairs = 2_000_000
    text = measure.write_corpus(tmp_path, pairs)
    words = measure.CASES["text"].words(text, tmp_path / "made")

    peak = measure.watch([sys.executable, "-m", "deepnet_fairseq", "prepare", *words], cwd=ROOT)

    assert peak.status == 0
    assert peak.pss < 1.5e9
    for lang in ("de", "en"):
        binarised = indexed_dataset.MMapIndexedDataset(str(tmp_path / "made" / f"train.de-en.{lang}"))
        assert len(binarised) == pairs
