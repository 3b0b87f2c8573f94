"""Tests that preparing text takes memory that does not grow with it: samples, chunks, disk, kills, pipes."""

from __future__ import annotations

import importlib.util
import io
import os
import re
import shutil
import signal
import sys
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from textwrap import dedent

import numpy as np
import pytest
import sentencepiece
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
from deepnet_fairseq.errors import UserError

from ..support.helpers import ROOT

LANGS = ("qaa", "qab")
SIZES = {"train": 3000, "valid": 40, "test": 60}
BLANKS = "".join(f"{code:X}\t20\n" for code in range(0x3001) if chr(code).isspace() and code != ord(" "))


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Provide split -> prefix of text in which the test has characters that the rest lacks."""
    place = tmp_path_factory.mktemp("text")
    corpus = make_corpus(SIZES)
    corpus["test"][7] = ("Łódź 🙃\u2028ends", "漢字 漢字")
    corpus["train"][2321] = ("Ø once", corpus["train"][2321][1])
    write_corpus(corpus, place)
    return {split: str(place / split) for split in SIZES}


@pytest.fixture(scope="module")
def measuring():
    """Provide results/corpora/measure.py, which measures what docs/corpora.md tells."""
    path = ROOT / "results" / "corpora" / "measure.py"
    spec = importlib.util.spec_from_file_location("measure", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def content(made):
    return {str(path.relative_to(made)): path.read_bytes() for path in made.rglob("*") if path.is_file()}


def column(prefix, lang):
    return [lines.one_line(line) for line in read_lines(Path(f"{prefix}.{lang}"))]


def pieces_of(model):
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [(processor.id_to_piece(number), processor.get_score(number)) for number in range(len(processor))]


def test_a_small_corpus_is_used_whole_and_cut_by_sentencepiece(text, tmp_path):
    """Vocabulary and text in pieces equal those that SentencePiece alone makes of all lines."""
    prepare_text(LANGS, text, tmp_path / "bin", vocab=300, workers=2)
    plain = io.BytesIO()
    (tmp_path / "rules").write_text(BLANKS)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(column(text["train"], "qaa") + column(text["train"], "qab")),
        model_writer=plain, model_type="bpe", vocab_size=300, minloglevel=2, character_coverage=1.0,
        normalization_rule_tsv=str(tmp_path / "rules"),
    )  # fmt: skip
    made = (tmp_path / "bin" / "spm.model").read_bytes()
    assert pieces_of(made) == pieces_of(plain.getvalue())
    assert str(tmp_path).encode() not in made  # the model names no place of the machine
    processor = sentencepiece.SentencePieceProcessor(model_proto=made)
    for split in SIZES:
        for lang in LANGS:
            cut = [" ".join(line) for line in processor.encode(column(text[split], lang), out_type=str)]
            assert list(read_lines(tmp_path / "bin" / "text" / f"{split}.{lang}")) == cut


def test_workers_and_chunks_change_no_byte(text, tmp_path, monkeypatch):
    prepare_text(LANGS, text, tmp_path / "one", vocab=300, workers=1)
    monkeypatch.setattr(lines, "CHUNK", 333)
    prepare_text(LANGS, text, tmp_path / "three", vocab=300, workers=3)
    assert content(tmp_path / "one") == content(tmp_path / "three")


def test_a_sample_for_the_vocabulary(text, tmp_path, capsys):
    """A sample is told, is the same each time, and leaves no character of the whole text without a piece."""
    for name in ("first", "second"):
        prepare_text(LANGS, text, tmp_path / name, vocab=300, sample_lines=1000)
        assert "1,000 of 6,000 sentences" in capsys.readouterr().out
    assert content(tmp_path / "first") == content(tmp_path / "second")
    model = (tmp_path / "first" / "spm.model").read_bytes()
    pieces = dict(pieces_of(model))
    assert "Ø" in pieces and "Ł" not in pieces  # of a single training line, and of a test alone
    prepare_text(LANGS, text, tmp_path / "whole", vocab=300, sample_lines=6000)
    assert dict(pieces_of((tmp_path / "whole" / "spm.model").read_bytes())) != pieces
    with pytest.raises(UserError, match="--vocab-sample 0"):
        prepare_text(LANGS, text, tmp_path / "none", vocab=300, sample_lines=0)
    assert not (tmp_path / "none").exists()


def test_a_sample_is_even(tmp_path, monkeypatch):
    """Every tenth of a text gives about a tenth of the sample; blank lines of language models' text do not count."""
    drawn = []
    monkeypatch.setattr(
        "deepnet_fairseq.data.lm_text.sentencepiece_model", lambda lines, *_, **__: drawn.extend(lines) or b""
    )
    monkeypatch.setattr("deepnet_fairseq.data.lm_text.Segmenter", lambda *_: None)
    path = tmp_path / "text"
    path.write_text("".join(f"{number}\n\n" for number in range(20_000)))
    facts = survey(PlainSurvey(["text"]), ((line,) for line in read_lines(path)), 1, "text")
    assert facts.sizes() == {"lines": 40_000, "words": 20_000, "bytes": len("".join(map(str, range(20_000))))}
    train_sentencepiece(PlainText(path, facts), 99, tmp_path, sample_lines=2000)
    numbers = [int(line) for line in drawn]
    assert len(numbers) == 2000 and numbers == sorted(set(numbers))
    shares = np.bincount([number // 2000 for number in numbers])
    assert len(shares) == 10 and shares.min() > 150 and shares.max() < 250


def test_lines_that_do_not_fit_are_left_out(capsys):
    """Text without blanks, of which SentencePiece keeps every character of every line, gives a smaller sample."""
    rng = Random(1)
    chinese = ["".join(chr(0x4E00 + rng.randrange(60)) for _ in range(50)) for _ in range(4000)]
    words = [" ".join(rng.choice(("ab", "cd", "ef")) for _ in range(50)) for _ in range(4000)]
    assert learning.memory(words) == pytest.approx(sum(learning.LINE + 2 * len(line) for line in words), rel=0.01)
    each = learning.LINE + 2 * 150 + learning.CHARACTER * 50
    assert learning.memory(chinese) == pytest.approx(4000 * each, rel=0.2)
    sentencepiece_model(words, 12, room=1000 * each)
    assert capsys.readouterr().out == ""
    occurring = characters("".join(chinese) + "é\0\u2581\u2585\u3000")
    model = sentencepiece_model(chinese, 100, room=1000 * each, whole_text=(4000, occurring))
    used = re.search(r"\| ([\d,]+) of these lines", capsys.readouterr().out)
    assert 600 < int(used[1].replace(",", "")) < 1200
    assert {chr(0x4E00 + number) for number in range(60)} | {"é"} <= dict(pieces_of(model)).keys()


def test_surveys_add_up():
    rows = [("é a", "漢 x"), ("e\u0301", ""), ("", "🙃")]
    apart, together = Survey(LANGS), Survey(LANGS)
    together.add(rows)
    for row in rows:
        part = Survey(LANGS)
        part.add([row])
        apart.merge(part)
    assert apart.size == sum(len(line.encode()) + 1 for row in rows for line in row) and apart.rows == 3
    assert apart.characters - {"\n"} == set("".join(map("".join, rows)))
    assert (apart.size, apart.characters, apart.letters.counts) == (
        together.size, together.characters, together.letters.counts,
    )  # fmt: skip
    assert apart.letters.counts[0] == [1, 1]


def test_counts_of_pieces_are_those_of_the_text():
    model = sentencepiece_model(["ab cd"] * 9 + ["ac db"] * 9, 12)
    cutter = Cutter(model)
    text, counts = cutter.cut(["ab cd", "", "ab xé cd", "db"])
    assert text.split("\n")[1] == "" and "xé" in text.split("\n")[2]
    words = text.split()
    assert cutter.total(counts) == {word: words.count(word) for word in words}


def test_indexed_writer_equals_fairseqs(tmp_path, monkeypatch):
    monkeypatch.setattr(indexed, "BLOCK", 3)
    sentences = [np.arange(length) for length in (5, 1, 0, 7, 300, 2, 2)]
    for dtype in (np.uint16, np.uint32):
        theirs = indexed_dataset.MMapIndexedDatasetBuilder(str(tmp_path / "theirs.bin"), dtype)
        for sentence in sentences:
            theirs.add_item(indexed_dataset.torch.from_numpy(sentence))
        theirs.finalize(str(tmp_path / "theirs.idx"))
        with IndexedWriter(tmp_path / "ours.bin", tmp_path / "ours.idx", dtype) as ours:
            for some in (sentences[:3], [], sentences[3:]):
                ours.add(np.concatenate([np.array([], int), *some]), np.array([len(sentence) for sentence in some]))
        assert ours.sentences == 7 and ours.pieces == 317
        for end in ("bin", "idx"):
            assert (tmp_path / f"ours.{end}").read_bytes() == (tmp_path / f"theirs.{end}").read_bytes()


def test_shards_by_several_processes(text, tmp_path, monkeypatch):
    (tmp_path / "spm.model").write_bytes(sentencepiece_model(column(text["train"], "qaa"), 300))
    vocabulary = Vocabulary(tmp_path / "spm.model")
    pairs = list(zip(column(text["train"], "qaa"), column(text["train"], "qab"), strict=True))[:1000]
    for workers, chunk in ((1, 2000), (3, 77)):
        monkeypatch.setattr(lines, "CHUNK", chunk)
        place = tmp_path / str(workers)
        place.mkdir()
        prefixes = [(place / f"{shard}.a", place / f"{shard}.b") for shard in range(3)]
        assert cut_and_binarise(iter(pairs), vocabulary, prefixes, workers, 1000) == 1000
    assert content(tmp_path / "1") == content(tmp_path / "3") and len(content(tmp_path / "1")) == 12


def test_disk_is_told_and_a_full_one_refused(text, tmp_path, capsys, monkeypatch):
    size = sum(Path(f"{prefix}.{lang}").stat().st_size for prefix in text.values() for lang in LANGS)
    prepare_text(LANGS, text, tmp_path / "bin", vocab=300)
    told = re.search(r"bin: needs about (\d+\.?\d*)MB of disk", capsys.readouterr().out)
    made = sum(map(len, content(tmp_path / "bin").values()))
    assert made / 2 < float(told[1]) * 1e6 < 2 * made
    usage = shutil.disk_usage(tmp_path)._replace(free=size)
    monkeypatch.setattr(folder.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(UserError, match=r"new: needs .* free some or name another place"):
        prepare_text(LANGS, text, tmp_path / "deep" / "new", vocab=300)
    with pytest.raises(UserError, match=r"lm: needs "):
        files = {split: [Path(f"{text[split]}.qaa")] for split in SIZES}
        prepare_lm(files, tmp_path / "lm", lambda *_: pytest.fail("goes on"))
    assert [path.name for path in tmp_path.iterdir()] == ["bin"]


def ended_by(kind, text, dest, log):
    """Prepare text in a fork of this process, which gets a signal while it binarises; return its wait status."""
    if not (child := os.fork()):
        try:
            parallel_text.binarise = lambda *_: os.kill(os.getpid(), kind)
            prepare_text(LANGS, text, dest, vocab=300, workers=2)
        except SystemExit as end:
            log.write_text(str(end.code))
        finally:
            os._exit(0)
    return os.waitpid(child, 0)[1]


def test_a_run_that_is_killed_leaves_nothing(text, tmp_path, capsys):
    """A run that a scheduler ends leaves nothing; SIGKILL leaves a folder, which the next start removes and names."""
    dest, log = tmp_path / "deep" / "bin", tmp_path / "log"
    ended_by(signal.SIGTERM, text, dest, log)
    assert log.read_text() == str(128 + signal.SIGTERM) and not (tmp_path / "deep").exists()
    assert ended_by(signal.SIGKILL, text, dest, log) == signal.SIGKILL
    (left,) = dest.parent.iterdir()
    assert not dest.exists() and left.is_dir()
    prepare_text(LANGS, text, dest, vocab=300)
    assert f"removed {left}" in capsys.readouterr().out
    assert [path.name for path in dest.parent.iterdir()] == ["bin"]
    prepare_text(LANGS, text, tmp_path / "undisturbed", vocab=300)
    assert content(dest) == content(tmp_path / "undisturbed")


def test_another_run_at_work_keeps_its_folder(tmp_path, capfd):
    """A folder that another run is filling stays, under its own name, and both runs can end."""
    dest = tmp_path / "bin"
    begun, at_work = os.pipe()
    ended, go_on = os.pipe()
    if not (child := os.fork()):
        with suppress(OSError), folder.new_folder(dest) as part:
            (part / "half").write_text("half")
            os.write(at_work, b".")
            os.read(ended, 1)
        os._exit(0)
    os.read(begun, 1)
    with folder.new_folder(dest) as part:
        (other,) = tmp_path.glob(f"bin.{child}.part")
        assert (other / "half").exists()
        (part / "whole").write_text("whole")
    assert f"bin.{child}.part: another run" in capfd.readouterr().err
    os.write(go_on, b".")
    os.waitpid(child, 0)  # which finds the name taken
    assert os.listdir(tmp_path) == ["bin"] and os.listdir(dest) == ["whole"]


@contextmanager
def pipes(paths):
    """Give paths of pipes through which the files come, once each."""
    threads = []
    for path, pipe in paths.items():
        os.mkfifo(pipe)
        threads.append(threading.Thread(target=lambda path=path, pipe=pipe: pipe.write_bytes(path.read_bytes())))
        threads[-1].start()
    yield
    for thread in threads:
        thread.join()


def test_pipes_are_read_once(text, tmp_path):
    prepare_text(LANGS, text, tmp_path / "files", vocab=300)
    with pipes({Path(f"{text['train']}.{lang}"): tmp_path / f"pipe.{lang}" for lang in LANGS}):
        prepare_text(LANGS, text | {"train": str(tmp_path / "pipe")}, tmp_path / "piped", vocab=300)
    assert content(tmp_path / "files") == content(tmp_path / "piped")


def test_text_that_changes_while_it_is_read(text, tmp_path, monkeypatch):
    for lang in LANGS:
        shutil.copy(f"{text['train']}.{lang}", tmp_path / f"train.{lang}")

    def changing(*args):
        for lang in LANGS:
            with open(tmp_path / f"train.{lang}", "a") as file:
                file.write("one more\n")
        return sentencepiece_model(column(text["train"], "qaa"), 300)

    monkeypatch.setattr(parallel_text, "learn_model", changing)
    with pytest.raises(UserError, match=r"train\.qaa: changed from 3,000 lines to 3,001"):
        prepare_text(LANGS, text | {"train": str(tmp_path / "train")}, tmp_path / "bin", vocab=300)
    assert not list(tmp_path.glob("bin*"))


def test_pieces_and_dictionary_of_an_earlier_corpus(text, tmp_path):
    prepare_text(LANGS, text, tmp_path / "first", vocab=300)
    others = {"train": text["train"], "valid": text["test"], "test": text["valid"]}
    prepare_text(LANGS, others, tmp_path / "second", like=str(tmp_path / "first"))
    first, second = content(tmp_path / "first"), content(tmp_path / "second")
    assert first["spm.model"] == second["spm.model"] and first["dict.qab.txt"] == second["dict.qab.txt"]
    for lang in LANGS:
        for end in ("bin", "idx"):
            assert first[f"test.qaa-qab.{lang}.{end}"] == second[f"valid.qaa-qab.{lang}.{end}"]


def test_a_child_gives_back_its_result_or_its_error():
    assert in_child(lambda one, two: [one, two, os.getpid() != parent], 1, 2) == [1, 2, True]
    with pytest.raises(ZeroDivisionError):
        in_child(lambda: 1 // 0)
    with pytest.raises(UserError, match="a process was killed"):
        in_child(lambda: os.kill(os.getpid(), signal.SIGKILL))


parent = os.getpid()


def test_memory_of_a_program_is_that_of_its_processes(measuring):
    """The measurement counts a child's memory, and counts what parent and child share once."""
    code = """
        import os, time
        shared = b"x" * 100_000_000
        more = b"y" * (0 if os.fork() else 50_000_000)
        time.sleep(1)
    """
    peak = measuring.watch([sys.executable, "-c", dedent(code)])
    assert peak.status == 0 and 140e6 < peak.pss < 190e6 and peak.rss > 240e6


def test_the_table_on_the_page_is_that_of_the_records(measuring):
    records = measuring.read_records()
    assert measuring.table(records) in measuring.PAGE.read_text(encoding="utf-8")
    after = [record for record in records if record["which"] == "after"]
    assert {record["case"] for record in after} == measuring.CASES.keys()
    assert max(record["bytes"] for record in after) < 1.5e9


@pytest.mark.slow
def test_two_million_pairs_take_less_than_1_5_gb(measuring, tmp_path):
    """Two million pairs are prepared in less than 1.5 GB, all processes together, and all are there."""
    pairs = 2_000_000
    text = measuring.write_corpus(tmp_path, pairs)
    words = measuring.CASES["text"].words(text, tmp_path / "made")
    peak = measuring.watch([sys.executable, "-m", "deepnet_fairseq", "prepare", *words], cwd=ROOT)
    assert peak.status == 0 and peak.pss < 1.5e9
    for lang in ("de", "en"):
        made = indexed_dataset.MMapIndexedDataset(str(tmp_path / "made" / f"train.de-en.{lang}"))
        assert len(made) == pairs
