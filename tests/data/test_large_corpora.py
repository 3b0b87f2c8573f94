"""Tests that preparing text takes memory that does not grow with it: samples, chunks, disk, kills, pipes."""

from __future__ import annotations

import io
import os
import re
import shutil
import signal
import sys
from contextlib import suppress
from itertools import chain
from pathlib import Path
from random import Random
from textwrap import dedent

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
PIECES = 300
# SentencePiece's rules of normalisation that make a blank of every white space
BLANKS = "".join(f"{code:X}\t20\n" for code in range(0x3001) if chr(code).isspace() and code != ord(" "))


@pytest.fixture(scope="module")
def text_prefixes(tmp_path_factory):
    """Provide split -> prefix of text; the test has characters that the rest lacks, and one training line has Ø."""
    place = tmp_path_factory.mktemp("text")
    corpus = make_corpus(SENTENCE_PAIRS)
    corpus["test"][7] = ("Łódź 🙃\u2028ends", "漢字 漢字")
    corpus["train"][2321] = ("Ø once", corpus["train"][2321][1])
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
    """Provide results/corpora/measure.py, which measures what docs/corpora.md tells."""
    return import_program(ROOT / "results" / "corpora" / "measure.py")


def sentences_of(prefix, lang):
    """Read one side of a text as `prepare_text` reads it: without what other tools take for line ends."""
    return [lines.one_line(line) for line in read_lines(Path(f"{prefix}.{lang}"))]


def scored_pieces(model):
    """Return (piece, score) of a SentencePiece model, given as bytes, in the order of their numbers."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [(processor.id_to_piece(number), processor.get_score(number)) for number in range(len(processor))]


def test_the_vocabulary_is_the_one_that_sentencepiece_alone_learns(text_prefixes, prepared_folder, tmp_path):
    expected = io.BytesIO()
    (tmp_path / "rules").write_text(BLANKS)
    both_sides = sentences_of(text_prefixes["train"], "qaa") + sentences_of(text_prefixes["train"], "qab")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(both_sides), model_writer=expected, model_type="bpe", vocab_size=PIECES, minloglevel=2,
        character_coverage=1.0, normalization_rule_tsv=str(tmp_path / "rules"),
    )  # fmt: skip

    model = (prepared_folder / "spm.model").read_bytes()

    assert scored_pieces(model) == scored_pieces(expected.getvalue())


def test_the_vocabulary_names_no_place_of_the_machine(prepared_folder):
    model = (prepared_folder / "spm.model").read_bytes()

    assert str(prepared_folder.parent).encode() not in model


@pytest.mark.parametrize("split", SENTENCE_PAIRS)
@pytest.mark.parametrize("lang", LANGS)
def test_text_is_cut_as_sentencepiece_alone_cuts_it(split, lang, text_prefixes, prepared_folder):
    processor = sentencepiece.SentencePieceProcessor(model_file=str(prepared_folder / "spm.model"))
    cut = processor.encode(sentences_of(text_prefixes[split], lang), out_type=str)

    expected = [" ".join(pieces) for pieces in cut]
    assert list(read_lines(prepared_folder / "text" / f"{split}.{lang}")) == expected


@pytest.mark.parametrize(("workers", "chunk"), [(1, lines.CHUNK), (3, 333)])
def test_workers_and_chunks_change_no_byte(workers, chunk, text_prefixes, prepared_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "CHUNK", chunk)
    prepare_text(LANGS, text_prefixes, tmp_path / "other", vocab=PIECES, workers=workers)

    assert files_in(tmp_path / "other") == files_in(prepared_folder)


@pytest.fixture(scope="module")
def folder_by_a_sample(text_prefixes, tmp_path_factory):
    """Provide a prepared folder whose vocabulary comes from 1,000 of the 6,000 sentences."""
    dest = tmp_path_factory.mktemp("sampled") / "bin"
    prepare_text(LANGS, text_prefixes, dest, vocab=PIECES, sample_lines=1000)
    return dest


def test_a_sample_for_the_vocabulary_is_the_same_each_time(text_prefixes, folder_by_a_sample, tmp_path, capsys):
    prepare_text(LANGS, text_prefixes, tmp_path / "again", vocab=PIECES, sample_lines=1000)

    assert files_in(tmp_path / "again") == files_in(folder_by_a_sample)
    assert "1,000 of 6,000" in capsys.readouterr().out


def test_a_sample_leaves_no_character_of_the_training_text_without_a_piece(folder_by_a_sample):
    pieces = dict(scored_pieces((folder_by_a_sample / "spm.model").read_bytes()))

    assert "Ø" in pieces  # of a single training line
    assert "Ł" not in pieces  # of the test alone


def test_a_sample_of_all_sentences_gives_other_pieces(text_prefixes, folder_by_a_sample, tmp_path):
    prepare_text(LANGS, text_prefixes, tmp_path / "whole", vocab=PIECES, sample_lines=6000)

    of_sample = dict(scored_pieces((folder_by_a_sample / "spm.model").read_bytes()))
    of_whole = dict(scored_pieces((tmp_path / "whole" / "spm.model").read_bytes()))
    assert of_whole != of_sample


def test_a_sample_of_no_sentence_is_refused(text_prefixes, tmp_path):
    with refused("--vocab-sample 0"):
        prepare_text(LANGS, text_prefixes, tmp_path / "none", vocab=PIECES, sample_lines=0)

    assert not (tmp_path / "none").exists()


@pytest.fixture
def surveyed_numbers(tmp_path):
    """Provide a text of the numbers below 20,000, a blank line after each, as (path, its survey)."""
    path = tmp_path / "text"
    path.write_text("".join(f"{number}\n\n" for number in range(20_000)))
    rows = ((line,) for line in read_lines(path))
    return path, survey(PlainSurvey(["text"]), rows, 1, "text")


def test_a_survey_counts_lines_words_and_bytes(surveyed_numbers):
    _, facts = surveyed_numbers

    digits = sum(len(str(number)) for number in range(20_000))
    assert facts.sizes() == {"lines": 40_000, "words": 20_000, "bytes": digits}


def test_a_sample_is_drawn_evenly_and_without_blank_lines(surveyed_numbers, tmp_path, monkeypatch):
    """Every tenth of the text gives about a tenth of the sample, in the text's order."""
    drawn = []

    def record(sentences, *_, **__):
        drawn.extend(sentences)
        return b""

    monkeypatch.setattr("deepnet_fairseq.data.lm_text.sentencepiece_model", record)
    monkeypatch.setattr("deepnet_fairseq.data.lm_text.Segmenter", lambda *_: None)
    path, facts = surveyed_numbers
    train_sentencepiece(PlainText(path, facts), 99, tmp_path, sample_lines=2000)

    numbers = [int(line) for line in drawn]
    assert len(numbers) == 2000
    assert numbers == sorted(set(numbers))
    of_each_tenth = np.bincount([number // 2000 for number in numbers])
    assert len(of_each_tenth) == 10
    assert of_each_tenth.min() > 150
    assert of_each_tenth.max() < 250


# bytes that a line takes in SentencePiece's memory
CHINESE_LINE = learning.PER_LINE + 2 * 150 + learning.PER_CHARACTER * 50


@pytest.fixture(scope="module")
def lines_with_and_without_blanks():
    """Provide 4,000 lines of 50 words each, and 4,000 lines of 50 of 60 Chinese characters each without a blank."""
    random = Random(1)
    chinese = ["".join(chr(0x4E00 + random.randrange(60)) for _ in range(50)) for _ in range(4000)]
    words = [" ".join(random.choice(("ab", "cd", "ef")) for _ in range(50)) for _ in range(4000)]
    return words, chinese


def test_lines_without_blanks_are_known_to_take_more_memory(lines_with_and_without_blanks):
    """SentencePiece keeps every character of a line without blanks."""
    words, chinese = lines_with_and_without_blanks

    of_words = sum(learning.PER_LINE + 2 * len(line) for line in words)
    assert learning.estimated_memory(words) == pytest.approx(of_words, rel=0.01)
    assert learning.estimated_memory(chinese) == pytest.approx(4000 * CHINESE_LINE, rel=0.2)


def test_lines_with_blanks_all_fit(lines_with_and_without_blanks, capsys):
    words, _ = lines_with_and_without_blanks
    sentencepiece_model(words, 12, memory_limit=1000 * CHINESE_LINE)

    assert capsys.readouterr().out == ""


def test_lines_that_do_not_fit_into_memory_are_left_out(lines_with_and_without_blanks, capsys):
    """The sample is smaller, and every character of the whole text has a piece all the same."""
    _, chinese = lines_with_and_without_blanks
    occurring = characters("".join(chinese) + "é\0\u2581\u2585\u3000")
    model = sentencepiece_model(chinese, 100, memory_limit=1000 * CHINESE_LINE, whole_text=(4000, occurring))

    used = re.search(r"\| ([\d,]+) of these", capsys.readouterr().out)
    assert 600 < int(used[1].replace(",", "")) < 1200
    wanted = {chr(0x4E00 + number) for number in range(60)} | {"é"}
    assert wanted <= dict(scored_pieces(model)).keys()


@pytest.fixture
def surveys_apart_and_together():
    """Provide surveys of three pairs: of each alone, merged, and of all at once; and the pairs."""
    rows = [("é a", "漢 x"), ("e\u0301", ""), ("", "🙃")]
    together = Survey(LANGS)
    together.add(rows)
    apart = Survey(LANGS)
    for row in rows:
        part = Survey(LANGS)
        part.add([row])
        apart.merge(part)
    return apart, together, rows


def test_surveys_of_parts_add_up_to_that_of_the_whole(surveys_apart_and_together):
    apart, together, _ = surveys_apart_and_together

    assert apart.size == together.size
    assert apart.characters == together.characters
    assert apart.letters.counts == together.letters.counts


def test_a_survey_counts_bytes_pairs_and_forms_of_letters(surveys_apart_and_together):
    found, _, rows = surveys_apart_and_together

    sentences = list(chain.from_iterable(rows))
    assert found.size == sum(len(f"{sentence}\n".encode()) for sentence in sentences)
    assert found.rows == 3
    assert found.characters - {"\n"} == set("".join(sentences))
    assert found.letters.counts[0] == [1, 1]  # lines of the first language with composed and with decomposed letters


def test_counts_of_pieces_are_those_of_the_text():
    cutter = Cutter(sentencepiece_model(["ab cd"] * 9 + ["ac db"] * 9, 12))
    text, counts = cutter.cut(["ab cd", "", "ab xé cd", "db"])

    cut_lines = text.split("\n")
    assert cut_lines[1] == ""
    assert "xé" in cut_lines[2]
    pieces = text.split()
    assert cutter.total(counts) == {piece: pieces.count(piece) for piece in pieces}


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
def test_binarised_data_are_written_as_fairseq_writes_them(dtype, tmp_path, monkeypatch):
    sentences = [np.arange(length) for length in (5, 1, 0, 7, 300, 2, 2)]
    theirs = indexed_dataset.MMapIndexedDatasetBuilder(str(tmp_path / "theirs.bin"), dtype)
    for sentence in sentences:
        theirs.add_item(torch.from_numpy(sentence))
    theirs.finalize(str(tmp_path / "theirs.idx"))

    monkeypatch.setattr(indexed, "BLOCK", 3)
    with IndexedWriter(tmp_path / "ours.bin", tmp_path / "ours.idx", dtype) as ours:
        for some in (sentences[:3], [], sentences[3:]):
            numbers = np.concatenate([np.array([], int), *some])
            lengths = np.array([len(sentence) for sentence in some])
            ours.add(numbers, lengths)

    assert ours.sentences == 7
    assert ours.pieces == 317
    for end in ("bin", "idx"):
        assert (tmp_path / f"ours.{end}").read_bytes() == (tmp_path / f"theirs.{end}").read_bytes()


def test_shards_are_the_same_by_one_process_and_by_several(text_prefixes, tmp_path, monkeypatch):
    sources = sentences_of(text_prefixes["train"], "qaa")
    targets = sentences_of(text_prefixes["train"], "qab")
    pairs = list(zip(sources, targets, strict=True))[:1000]
    (tmp_path / "spm.model").write_bytes(sentencepiece_model(sources, PIECES))
    vocabulary = Vocabulary(tmp_path / "spm.model")

    made = []
    for workers, chunk in ((1, 2000), (3, 77)):
        monkeypatch.setattr(lines, "CHUNK", chunk)
        place = tmp_path / str(workers)
        place.mkdir()
        prefixes = [(place / f"{shard}.a", place / f"{shard}.b") for shard in range(3)]
        assert cut_and_binarise(iter(pairs), vocabulary, prefixes, workers, 1000) == 1000
        made.append(files_in(place))

    assert made[0] == made[1]
    assert len(made[0]) == 3 * 2 * 2  # shards, sides, .bin and .idx


def test_the_disk_that_is_needed_is_told_before(text_prefixes, tmp_path, capsys):
    prepare_text(LANGS, text_prefixes, tmp_path / "bin", vocab=PIECES)

    told = re.search(r"(\d+\.?\d*)MB", capsys.readouterr().out)
    megabytes = sum(map(len, files_in(tmp_path / "bin").values())) / 1e6
    assert megabytes / 2 < float(told[1]) < 2 * megabytes


@pytest.fixture
def disk_of_the_size_of_the_text(text_prefixes, monkeypatch):
    """Let the disk have as many bytes free as the text has, which do not suffice for its data."""
    size = 0
    for prefix in text_prefixes.values():
        size += sum(Path(f"{prefix}.{lang}").stat().st_size for lang in LANGS)
    set_free_space(monkeypatch, size)


@pytest.mark.usefixtures("disk_of_the_size_of_the_text")
def test_parallel_text_that_the_disk_does_not_take_is_refused(text_prefixes, tmp_path):
    with refused(tmp_path / "deep" / "new"):
        prepare_text(LANGS, text_prefixes, tmp_path / "deep" / "new", vocab=PIECES)

    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("disk_of_the_size_of_the_text")
def test_plain_text_that_the_disk_does_not_take_is_refused(text_prefixes, tmp_path):
    """It is refused before a vocabulary is learnt."""
    files = {split: [Path(f"{prefix}.qaa")] for split, prefix in text_prefixes.items()}
    with refused(tmp_path / "lm"):
        prepare_lm(files, tmp_path / "lm", lambda *_: pytest.fail("goes on"))

    assert list(tmp_path.iterdir()) == []


def end_while_binarising(signal_number, text_prefixes, dest):
    """Prepare text in a fork of this process, which gets a signal while it binarises.

    Return its exit status, negative for a signal that ended it; that of SystemExit if it leaves by itself.
    """
    child = os.fork()
    if child == 0:
        status = 0
        try:
            parallel_text.binarise = lambda *_: os.kill(os.getpid(), signal_number)
            prepare_text(LANGS, text_prefixes, dest, vocab=PIECES, workers=2)
        except SystemExit as end:
            status = end.code
        finally:
            os._exit(status)
    _, wait_status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(wait_status)


def test_a_run_that_a_scheduler_ends_leaves_nothing(text_prefixes, tmp_path):
    status = end_while_binarising(signal.SIGTERM, text_prefixes, tmp_path / "deep" / "bin")

    assert status == 128 + signal.SIGTERM  # as shells give it
    assert not (tmp_path / "deep").exists()


def test_what_a_killed_run_left_is_removed_by_the_next(text_prefixes, prepared_folder, tmp_path, capsys):
    dest = tmp_path / "bin"
    assert end_while_binarising(signal.SIGKILL, text_prefixes, dest) == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    assert left.is_dir()
    assert left != dest

    prepare_text(LANGS, text_prefixes, dest, vocab=PIECES)

    assert str(left) in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == [dest]
    assert files_in(dest) == files_in(prepared_folder)


def test_the_folder_of_another_run_at_work_is_left_alone(tmp_path, capfd):
    """Both runs can end; the name belongs to the one that ends first."""
    dest = tmp_path / "bin"
    begun, at_work = os.pipe()
    ended, go_on = os.pipe()
    child = os.fork()
    if child == 0:
        with suppress(OSError), folder.new_folder(dest) as part:
            (part / "half").write_text("half")
            os.write(at_work, b".")
            os.read(ended, 1)
        os._exit(0)

    os.read(begun, 1)
    with folder.new_folder(dest) as part:
        (of_child,) = tmp_path.glob(f"bin.{child}.part")
        assert (of_child / "half").exists()
        (part / "whole").write_text("whole")
    os.write(go_on, b".")
    os.waitpid(child, 0)  # which finds the name taken

    assert f"bin.{child}.part" in capfd.readouterr().err
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


def test_text_that_changes_while_it_is_read_is_refused(text_prefixes, tmp_path, monkeypatch):
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
    exchanged = {"train": text_prefixes["train"], "valid": text_prefixes["test"], "test": text_prefixes["valid"]}
    prepare_text(LANGS, exchanged, tmp_path / "second", like=str(prepared_folder))

    first = files_in(prepared_folder)
    second = files_in(tmp_path / "second")
    assert first["spm.model"] == second["spm.model"]
    assert first["dict.qab.txt"] == second["dict.qab.txt"]
    for name in ("qaa.bin", "qaa.idx", "qab.bin", "qab.idx"):
        assert first[f"test.qaa-qab.{name}"] == second[f"valid.qaa-qab.{name}"]


def test_a_child_process_gives_back_its_result():
    own_process = os.getpid()

    result = in_child(lambda one, two: [one, two, os.getpid() != own_process], 1, 2)

    assert result == [1, 2, True]


def test_an_error_of_a_child_process_is_raised_here():
    with pytest.raises(ZeroDivisionError):
        in_child(lambda: 1 // 0)


def test_a_child_process_that_is_killed_is_an_error_of_one_line():
    with refused() as caught:
        in_child(lambda: os.kill(os.getpid(), signal.SIGKILL))

    assert "--vocab-sample" in str(caught.value)  # the way to need less memory


def test_memory_of_a_program_is_that_of_all_its_processes(measure):
    """The measurement counts a child's memory, and counts what parent and child share once."""
    code = """
        import os, time
        shared = b"x" * 100_000_000
        more = b"y" * (0 if os.fork() else 50_000_000)
        time.sleep(1)
    """
    peak = measure.watch([sys.executable, "-c", dedent(code)])

    assert peak.status == 0
    assert 140e6 < peak.pss < 190e6  # bytes; shared ones once
    assert peak.rss > 240e6  # shared ones by each process


def test_the_table_of_memory_on_the_page_is_that_of_the_records(measure):
    table = measure.table(measure.read_records())

    assert table in measure.PAGE.read_text(encoding="utf-8")


def test_every_recorded_corpus_took_less_than_1_5_gb(measure):
    recorded = [record for record in measure.read_records() if record["which"] == "after"]

    assert {record["case"] for record in recorded} == measure.CASES.keys()
    assert max(record["bytes"] for record in recorded) < 1.5e9


@pytest.mark.slow
def test_two_million_pairs_take_less_than_1_5_gb(measure, tmp_path):
    """Two million pairs are prepared in less than 1.5 GB, all processes together, and all are there."""
    pairs = 2_000_000
    text = measure.write_corpus(tmp_path, pairs)
    words = measure.CASES["text"].words(text, tmp_path / "made")
    peak = measure.watch([sys.executable, "-m", "deepnet_fairseq", "prepare", *words], cwd=ROOT)

    assert peak.status == 0
    assert peak.pss < 1.5e9
    for lang in ("de", "en"):
        binarised = indexed_dataset.MMapIndexedDataset(str(tmp_path / "made" / f"train.de-en.{lang}"))
        assert len(binarised) == pairs
