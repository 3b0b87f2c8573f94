"""Tests of translation as a service: threads, forks, pipes, n-best lists, and text in another form than the model's.

The model is a small one from French to German, with which three engines translate: CTranslate2, transformers, fairseq.
"""

from __future__ import annotations

import gc
import itertools
import os
import queue
import signal
import subprocess
import sys
import threading
import unicodedata
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

import deepnet_fairseq
from deepnet_fairseq.cli import main
from deepnet_fairseq.tools import translation
from deepnet_fairseq.tools.translation.incoming import Incoming
from deepnet_fairseq.tools.translation.loading import Models

from ..conftest import TRAIN_FLAGS
from ..support.corpora import SPLITS
from ..support.errors import assert_refused, refusal, refused
from ..support.exports import hide_ctranslate2, printed_by_example
from ..support.helpers import run

# The whole language. Accents and quotes may be written in other forms, which a model should read alike.
LEXICON = {"élève": "kind", "forêt": "wald", "garçon": "junge", "été": "sommer", '"père"': "vater", "don't": "nicht"}
SENTENCES = {"train": 300, "valid": 20, "test": 20}
POSITIONS = 60  # of the model: the most tokens of a line, its end included
SIZE = (  # flags of fairseq-train
    "--arch", "deepnet_transformer_tiny", "--encoder-layers", 2, "--decoder-layers", 2, "--encoder-embed-dim", 32,
    "--decoder-embed-dim", 32, "--dropout", 0, "--max-source-positions", POSITIONS, "--max-target-positions", POSITIONS,
    "--max-update", 30, "--lr", "5e-3",
)  # fmt: skip
# folders of two exports, and a checkpoint through CTranslate2 or, where that is not installed, through fairseq
ENGINES = ("ctranslate2", "huggingface", "checkpoint", "fairseq")


def french_sentences() -> list[list[str]]:
    """Return 300 sentences of one to four words, twelve different ones again and again."""
    words = list(LEXICON)
    sentences = []
    for number in range(SENTENCES["train"]):
        length = 1 + number % 4
        steps = (1, 5, 7, 11)[:length]  # through the lexicon, from sentence to sentence, at each place of a sentence
        sentences.append([words[(number * step) % len(words)] for step in steps])
    return sentences


def write_corpus(folder: Path, french: list[list[str]]) -> None:
    """Write SPLIT.fr and SPLIT.de, word for word, each split from the first sentence on."""
    for split, count in SENTENCES.items():
        for line in french[:count]:
            german = [LEXICON[word] for word in line]
            for language, words in (("fr", line), ("de", german)):
                with open(folder / f"{split}.{language}", "a", encoding="utf-8") as file:
                    file.write(" ".join(words) + "\n")


class ServedModel:
    """A small model from French to German.

    lines: the French sentences that it was trained on; data: folder of the binarised text; checkpoint: the model's;
    folders: what it is exported to ("ctranslate2", "huggingface") -> folder of the export.
    """

    def __init__(self, folder: Path):
        french = french_sentences()
        write_corpus(folder, french)
        self.lines = [" ".join(words) for words in french]
        self.data = folder / "bin"
        prefixes = [str(folder / split) for split in SPLITS]
        main(["prepare", "text", "fr", "de", *prefixes, str(self.data), "--vocab", "90"])
        run("fairseq-train", self.data, *TRAIN_FLAGS, *SIZE, "--save-dir", folder / "run")
        self.checkpoint = folder / "run" / "checkpoint_last.pt"

        self.folders = {}
        for to in ("ctranslate2", "huggingface"):
            self.folders[to] = folder / to
            main(["export", str(self.checkpoint), "--to", to, "--out", str(folder / to), "--data", str(self.data)])

    @property
    def ctranslate2(self) -> str:
        return str(self.folders["ctranslate2"])

    def options(self, engine: str) -> dict[str, str]:
        """Return the arguments of `translate`, and of `load`, that choose an engine."""
        if engine in self.folders:
            return {"model": str(self.folders[engine])}
        return {"model": str(self.checkpoint), "data": str(self.data)}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Provide the small model: trained once, exported twice."""
    return ServedModel(tmp_path_factory.mktemp("served"))


@pytest.fixture
def no_model_in_memory(monkeypatch):
    """Forget the models that this process has loaded."""
    monkeypatch.setattr(translation, "MODELS", Models())


@pytest.fixture(params=ENGINES)
def engine(request, monkeypatch, no_model_in_memory):
    """Provide each name of ENGINES, for served.options(engine), with no model in memory.

    For "fairseq", CTranslate2 is not installed.
    """
    if request.param == "fairseq":
        hide_ctranslate2(monkeypatch)
    return request.param


def repr_in_a_fork(work, seconds: int = 60) -> str:
    """Return repr(work()) as a forked process computes it; if it raises an error, the text "TYPE: MESSAGE".

    A process that hangs is killed after `seconds`, and the text is empty.
    """
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        gc.freeze()  # the tests' objects are not this process's to collect
        try:
            os.write(write, repr(work()).encode())
        except BaseException as error:
            os.write(write, f"{type(error).__name__}: {error}".encode())
        os._exit(0)

    os.close(write)
    signal.signal(signal.SIGALRM, lambda *_: os.kill(child, signal.SIGKILL))  # then the pipe ends
    signal.alarm(seconds)
    with open(read, encoding="utf-8") as answer:
        text = answer.read()
    os.waitpid(child, 0)
    signal.alarm(0)
    return text


# threads and forks


def test_first_requests_of_eight_threads_load_the_model_once(served, engine, monkeypatch):
    """Eight first requests at once are answered as those of one thread are afterwards."""
    loads = []  # an entry for each call of translation.load
    load = translation.load
    gate = threading.Barrier(8)  # no thread passes it before all have come

    def counted_load(*args, **options):
        loads.append(args)
        return load(*args, **options)

    def request(line: str) -> list[str]:
        gate.wait()
        return deepnet_fairseq.translate(lines=[line], **served.options(engine))

    monkeypatch.setattr(translation, "load", counted_load)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(request, served.lines[:8]))
    of_one_thread = deepnet_fairseq.translate(lines=served.lines[:8], **served.options(engine))

    assert answers == [[translated] for translated in of_one_thread]
    assert len(loads) == 1


def test_a_forked_process_translates_as_its_parent(served, engine):
    """The parent has translated before the fork, so that the child begins with its loaded model."""

    def translate() -> list[str]:
        return deepnet_fairseq.translate(lines=served.lines[:5], **served.options(engine))

    before = translate()

    in_child = repr_in_a_fork(translate)

    assert in_child == repr(before)
    assert translate() == before  # the fork has not hurt the parent


def test_a_process_forked_from_a_fork_translates_as_its_parents(served, engine):
    """Each of the three processes has translated before it forks the next one."""

    def translate() -> list[str]:
        return deepnet_fairseq.translate(lines=served.lines[:5], **served.options(engine))

    def translate_and_fork() -> str:
        translate()
        return repr_in_a_fork(translate)

    expected = repr(translate())

    in_grandchild = repr_in_a_fork(translate_and_fork)

    assert in_grandchild == repr(expected)  # a repr of the child's answer, which is a repr itself


def test_a_fork_translates_while_its_parent_loads_the_model(served, monkeypatch, no_model_in_memory):
    """A child translates although a thread of its parent was loading the same model, and held its lock, at the fork."""
    load = translation.load
    loading_began = threading.Event()
    loading_may_end = threading.Event()

    def slow_load(*args, **options):
        loading_began.set()
        assert loading_may_end.wait(60)
        return load(*args, **options)

    def translate() -> list[str]:
        return deepnet_fairseq.translate(lines=served.lines[:5], **served.options("ctranslate2"))

    def translate_in_child() -> list[str]:
        translation.load = load  # the child need not wait for the event, which its parent alone can set
        return translate()

    monkeypatch.setattr(translation, "load", slow_load)
    thread = threading.Thread(target=translate)
    thread.start()
    assert loading_began.wait(60)

    answer = repr_in_a_fork(translate_in_child)

    loading_may_end.set()
    thread.join()
    assert answer == repr(translate())


def test_a_translator_loaded_before_a_fork_is_refused_in_the_child(served):
    """CTranslate2's threads do not come along in a fork: the child would wait for them for ever.

    `translate` loads such a model again, but a Translator of the user's own cannot know how it was loaded.
    """
    translator = translation.load(served.ctranslate2)

    def translate() -> list[str]:
        return list(translator.translate(["été"]))

    answer = repr_in_a_fork(translate)

    assert answer.startswith("UserError: ")
    assert "forked" in answer
    assert translate() == deepnet_fairseq.translate(served.ctranslate2, ["été"])  # the parent goes on


def test_a_server_that_has_forked_ends(served):
    """A process that has translated and forked a worker ends, and so does the worker, by Python's own exit.

    The exit frees the model, which waits in the worker for threads that are the parent's.
    """
    program = f"""
import os, sys, deepnet_fairseq
deepnet_fairseq.translate({served.ctranslate2!r}, ["été"])
child = os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = subprocess.run([sys.executable, "-c", program], timeout=60)

    assert done.returncode == 0


# models kept in memory


class CountedModels:
    """Three models at most in memory, each named by a letter, and the names of those that were loaded, in order."""

    def __init__(self):
        self.models = Models(most=3)
        self.loads: list[str] = []

    def get(self, name: str) -> str:
        def load() -> str:
            self.loads.append(name)
            return f"model {name}"

        return self.models.get(name, load)


def test_models_used_by_turns_are_loaded_once():
    counted = CountedModels()

    models = [counted.get(name) for name in "ababacab"]

    assert models == [f"model {name}" for name in "ababacab"]
    assert counted.loads == ["a", "b", "c"]


def test_the_model_that_was_not_used_for_longest_gives_way():
    """Of three models in memory c gives way to d, for a and b were used after it."""
    counted = CountedModels()
    for name in "abcabd":
        counted.get(name)

    for name in "abdc":
        counted.get(name)

    assert counted.loads == ["a", "b", "c", "d", "c"]  # c alone had to be loaded again


def test_a_model_that_failed_to_load_is_loaded_again():
    """A second request for the key calls its function, and is not given the first one's error."""
    models = Models(most=3)
    with refused("/missing"):
        models.get("key", lambda: translation.load("/missing"))

    model = models.get("key", lambda: "a model")

    assert model == "a model"


# n-best lists


@pytest.fixture
def six_lines_and_an_empty_one(served) -> list[str]:
    return [*served.lines[:6], ""]


@pytest.fixture
def three_best(served, engine, six_lines_and_an_empty_one):
    """Provide for each of the six lines, and the empty one, a list of its three best translations with their scores."""
    return deepnet_fairseq.translate(lines=six_lines_and_an_empty_one, nbest=3, **served.options(engine))


def test_the_best_of_several_is_the_only_one_without_nbest(served, engine, six_lines_and_an_empty_one, three_best):
    alone = deepnet_fairseq.translate(lines=six_lines_and_an_empty_one, **served.options(engine))

    assert [translations[0].text for translations in three_best] == alone


def test_nbest_translations_come_best_first(three_best):
    *of_lines, _of_empty_line = three_best

    for translations in of_lines:
        scores = [translation.score for translation in translations]
        assert len(scores) == 3
        assert scores == sorted(scores, reverse=True)


def test_an_empty_line_has_one_empty_translation_with_the_score_0(three_best):
    assert three_best[-1] == [("", 0.0)]


def test_every_engine_gives_the_same_nbest_texts_and_scores(served, six_lines_and_an_empty_one, three_best):
    """The reference is transformers' search; scores agree to the precision of float32."""
    lines = six_lines_and_an_empty_one

    reference = deepnet_fairseq.translate(lines=lines, nbest=3, **served.options("huggingface"))

    assert len(three_best) == len(reference)
    for ours, theirs in zip(three_best, reference, strict=True):
        assert [one.text for one in ours] == [one.text for one in theirs]
        assert [one.score for one in ours] == pytest.approx([one.score for one in theirs], abs=2e-5)


def test_a_score_is_divided_by_the_length_to_the_power_lenpen(served):
    """With lenpen 0 a score is the sum of the tokens' log-probabilities, and so `length` times that with lenpen 1."""
    options = served.options("checkpoint") | {"lines": ["été"], "nbest": 1, "beam": 1}

    [[total]] = deepnet_fairseq.translate(lenpen=0.0, **options)
    [[per_token]] = deepnet_fairseq.translate(lenpen=1.0, **options)

    cutter = translation.load(str(served.checkpoint), str(served.data)).engine.cutter
    length = len(cutter.cut(per_token.text)) + 1  # pieces of the translation, and its end
    assert total.text == per_token.text
    assert total.score / per_token.score == pytest.approx(length, rel=1e-4)


def test_the_command_prints_line_score_and_text_with_tabs(served, tmp_path, capsys):
    """Of three lines the first and the third have two translations, the second, an empty one, has one."""
    file = tmp_path / "lines"
    file.write_text("été\n\nforêt\n", encoding="utf-8")

    main(["translate", served.ctranslate2, str(file), "--nbest", "2", "--beam", "3"])

    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    [[best, second]] = deepnet_fairseq.translate(served.ctranslate2, ["été"], nbest=2, beam=3)
    assert [number for number, _score, _text in rows] == ["1", "1", "2", "3", "3"]
    assert rows[0] == ["1", f"{best.score:.4f}", best.text]
    assert rows[1] == ["1", f"{second.score:.4f}", second.text]
    assert rows[2] == ["2", "0.0000", ""]


@pytest.mark.parametrize("count", ["0", "4"])
def test_nbest_is_refused_unless_it_is_from_1_to_the_number_of_beams(count, served, tmp_path):
    file = tmp_path / "lines"
    file.write_text("été\n", encoding="utf-8")

    line = refusal("translate", served.ctranslate2, file, "--nbest", count, "--beam", 3)

    assert f"--nbest {count}: " in line
    assert "--beam 3" in line


def test_more_translations_than_beams_are_refused_in_python(served):
    """The default is 5 beams."""
    with refused("--nbest 6"):
        deepnet_fairseq.translate(served.ctranslate2, ["été"], nbest=6)


# text in another form


def with_accents(lines: list[str]) -> list[str]:
    """Return those of the lines that have an accent."""
    return [line for line in lines if not line.isascii()]


def decomposed(line: str) -> str:
    """Write accents as characters of their own."""
    return unicodedata.normalize("NFD", line)


def typographic(line: str) -> str:
    """Write curly quotes, no-break spaces, and letters k and e of full width."""
    return line.translate(str.maketrans({"'": "’", '"': "“", " ": "\u00a0", "k": "ｋ", "e": "ｅ"}))


def between_invisible_marks(line: str) -> str:
    """Write a left-to-right mark before the line and a byte-order mark behind it."""
    return f"\u200e{line}\ufeff"


def in_other_forms(lines: list[str]) -> list[str]:
    """Return all lines decomposed, then all typographic, then all between invisible marks."""
    others = []
    for in_form in (decomposed, typographic, between_invisible_marks):
        others += [in_form(line) for line in lines]
    return others


def test_other_forms_of_text_are_translated_alike_without_a_warning(served, engine):
    """Other forms are read as the training text's characters. Unseen characters would cause a warning."""
    lines = with_accents(served.lines[:30])

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        expected = deepnet_fairseq.translate(lines=lines, **served.options(engine))
        translated = deepnet_fairseq.translate(lines=in_other_forms(lines), **served.options(engine))

    assert translated == 3 * expected  # once for each form


def test_other_forms_of_text_are_cut_into_the_same_pieces(served, engine):
    lines = with_accents(served.lines[:30])
    translator = translation.load(**served.options(engine))

    pieces = [translator.cut(line, number=1) for line in lines]
    pieces_of_others = [translator.cut(line, number=1) for line in in_other_forms(lines)]

    assert pieces_of_others == 3 * pieces  # once for each form


@pytest.mark.parametrize("to", ["ctranslate2", pytest.param("huggingface", marks=pytest.mark.smoke)])
def test_the_example_in_an_exports_readme_reads_other_forms(served, to):
    """The Python example in an export's README translates decomposed text and curly quotes as the training text's."""
    lines = with_accents(served.lines[:20])[:3]
    in_other_form = [decomposed(line).replace("'", "’").replace('"', "“") for line in lines]

    printed = printed_by_example(served.folders[to], in_other_form)

    assert printed == repr(deepnet_fairseq.translate(served.ctranslate2, lines))


def test_python_users_are_warned_of_an_unseen_character_once(served, engine):
    """ж is in no training text. The first call with it warns of it by name, later ones do not."""
    with pytest.warns(UserWarning, match="ж"):
        deepnet_fairseq.translate(lines=["été жж", "été"], **served.options(engine))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        deepnet_fairseq.translate(lines=["жж été"], **served.options(engine))


def test_a_translator_counts_unseen_characters_and_their_lines(served, engine):
    """ж and 語 are in no training text."""
    translator = translation.load(**served.options(engine))
    unseen = translation.Unseen()

    list(translator.translate(["été жж", "été", "", "ж語"], unseen=unseen))

    assert unseen.lines == 2
    assert unseen.characters == {"ж": 3, "語": 1}


def test_an_unseen_piece_of_known_characters_is_counted_as_a_piece():
    """With subword-nmt a piece may be missing from the vocabulary although its characters are in other pieces."""
    unseen = translation.Unseen()

    unseen.add(["ab@@", "жa", "▁"], known=frozenset("ab@"))
    unseen.add(["ab@@"], known=frozenset("ab@"))

    assert unseen.lines == 2
    assert unseen.pieces == {"ab@@": 2}
    assert unseen.characters == {"ж": 1}
    in_characters, in_pieces = str(unseen).split("; ")
    assert "U+0436" in in_characters  # ж
    assert "'ab@@'" in in_pieces
    assert "ab@@" not in in_characters


def test_the_command_counts_lines_with_unseen_characters(served, tmp_path, capsys):
    """The command counts the lines on stderr, and names the characters. Each line is translated all the same."""
    file = tmp_path / "lines"
    file.write_text("été ж\nforêt\n語\n", encoding="utf-8")

    main(["translate", served.ctranslate2, str(file)])

    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 3
    assert "2 of 3" in captured.err
    assert "U+0436" in captured.err  # ж


# pipes


def start_translate(served, **options) -> subprocess.Popen:
    """Start `deepnet translate FOLDER`, whose standard input and output are pipes; options: more ones of Popen."""
    command = [sys.executable, "-m", "deepnet_fairseq", "translate", served.ctranslate2]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options)


def test_a_line_is_answered_before_the_next_is_written(served):
    """A program that waits for each translation gets it; a last line without a newline is translated, too."""
    process = start_translate(served, text=True, bufsize=1)  # bufsize 1: each line is sent at once
    answers: queue.Queue = queue.Queue()  # lines of the process's output, as they come

    def read_answers() -> None:
        for line in process.stdout:
            answers.put(line)

    threading.Thread(target=read_answers, daemon=True).start()
    first, second, last = deepnet_fairseq.translate(served.ctranslate2, served.lines[:3])

    for line, translated in zip(served.lines[:2], (first, second), strict=True):
        process.stdin.write(f"{line}\n")
        assert answers.get(timeout=60) == f"{translated}\n"

    process.stdin.write(served.lines[2])
    process.stdin.close()
    assert answers.get(timeout=60) == f"{last}\n"
    assert process.wait(60) == 0


def test_an_unseen_character_in_a_pipe_is_told_at_once_and_counted_at_the_end(served):
    """A stream may have no end, so the first warning comes while it is open."""
    process = start_translate(served, stderr=subprocess.PIPE, text=True, bufsize=1)
    told: queue.Queue = queue.Queue()  # warnings, as they come

    def read_warnings() -> None:
        for line in process.stderr:
            if "WARNING" in line:
                told.put(line)

    threading.Thread(target=read_warnings, daemon=True).start()

    process.stdin.write("été ж\n")
    first = told.get(timeout=60)
    process.stdin.write("語\n")
    process.stdin.close()
    last = told.get(timeout=60)

    assert "1 of 1" in first
    assert "2 of 2" in last
    assert process.wait(60) == 0


def test_lines_that_wait_in_a_pipe_are_read_together():
    """5,001 lines come in less than 20 chunks of at most 1,000 lines, and none is lost.

    The lines are written in blocks that end within lines.
    """
    lines = [f"line {number} {'x' * (number % 97)}" for number in range(5000)]
    lines.append("the last")
    text = "\n".join(lines).encode()
    block = 50_021  # bytes, a prime
    read, write = os.pipe()

    def feed() -> None:
        with open(write, "wb", buffering=0) as pipe:
            for first in range(0, len(text), block):
                pipe.write(text[first : first + block])

    thread = threading.Thread(target=feed)
    thread.start()
    with open(read, "rb", buffering=0) as pipe:
        chunks = list(translation.chunks(pipe, "a pipe", most=1000))
    thread.join()

    assert list(itertools.chain.from_iterable(chunks)) == lines
    assert len(chunks) < 20
    assert max(len(chunk) for chunk in chunks) <= 1000


class Pipe(NamedTuple):
    """Both ends of a pipe: the descriptor to write to, and the lines that come in at the other end."""

    write: int
    incoming: Incoming


@pytest.fixture
def pipe():
    """Provide an empty pipe."""
    read, write = os.pipe()
    with open(read, "rb", buffering=0) as stream:
        yield Pipe(write, Incoming(stream))


def test_an_empty_pipe_has_no_more_lines(pipe):
    assert not pipe.incoming.has_more()


def test_a_line_of_a_pipe_that_has_only_begun_is_none_yet(pipe):
    os.write(pipe.write, b"a\nb")

    assert pipe.incoming.readline() == b"a\n"
    assert not pipe.incoming.has_more()


def test_a_line_that_comes_through_a_pipe_in_two_parts_is_one_line(pipe):
    os.write(pipe.write, b"b")
    assert not pipe.incoming.has_more()

    os.write(pipe.write, b"c\n")

    assert pipe.incoming.has_more()
    assert pipe.incoming.readline() == b"bc\n"


def test_an_empty_line_of_a_pipe_is_a_line(pipe):
    os.write(pipe.write, b"c\n\n")

    assert pipe.incoming.readline() == b"c\n"
    assert pipe.incoming.has_more()
    assert pipe.incoming.readline() == b"\n"


def test_the_last_line_of_a_pipe_needs_no_newline(pipe):
    os.write(pipe.write, b"d")
    os.close(pipe.write)

    assert pipe.incoming.has_more()
    assert pipe.incoming.readline() == b"d"


def test_reading_at_the_end_of_a_pipe_gives_nothing(pipe):
    """The answer b"" is no empty line, which would be a newline."""
    os.close(pipe.write)

    assert not pipe.incoming.has_more()
    assert pipe.incoming.readline() == b""
    assert pipe.incoming.readline() == b""  # again


@pytest.fixture
def file_of_lines(served, tmp_path):
    """Provide a file of 30 lines of French."""
    file = tmp_path / "lines"
    file.write_text("".join(f"{line}\n" for line in served.lines[:30]), encoding="utf-8")
    return file


@pytest.fixture
def printed_for_file(served, file_of_lines, capsys):
    """Provide what `deepnet translate` prints for file_of_lines."""
    main(["translate", served.ctranslate2, str(file_of_lines)])
    printed = capsys.readouterr().out
    assert len(printed.splitlines()) == 30
    return printed


def test_a_named_pipe_is_translated_as_the_file(served, file_of_lines, printed_for_file, tmp_path, capsys):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    copy_to_fifo = ["dd", f"if={file_of_lines}", f"of={fifo}", "status=none"]
    writer = subprocess.Popen(copy_to_fifo)

    main(["translate", served.ctranslate2, str(fifo)])

    assert writer.wait(60) == 0
    assert capsys.readouterr().out == printed_for_file


@pytest.mark.parametrize("line", ["{translate} <(cat {file})", "cat {file} | {translate} /dev/stdin",
                                  "cat {file} | {translate} -"])  # fmt: skip
def test_a_pipe_of_the_shell_is_translated_as_the_file(line, served, file_of_lines, printed_for_file):
    """line: of bash; in the first one the argument FILE is a pipe, in the others standard input is one."""
    translate = f"{sys.executable} -m deepnet_fairseq translate {served.ctranslate2}"
    words = ["bash", "-c", line.format(translate=translate, file=file_of_lines)]

    done = subprocess.run(words, capture_output=True, text=True, timeout=60)

    assert done.stdout == printed_for_file


def test_a_folder_is_no_file_to_translate(served, tmp_path):
    assert_refused(f"error: {tmp_path}: ", "translate", served.ctranslate2, tmp_path)


def test_a_line_of_a_pipe_that_is_too_long_is_named_and_answered_by_an_empty_one(served):
    """The line is named by its number in the text, 2; in its chunk it is the first. Lines around it are translated."""
    too_long = "été " * 100  # 100 words of at least a token each: the model has 60 positions
    process = start_translate(served, stderr=subprocess.PIPE)
    process.stdin.write("été\n".encode())
    process.stdin.flush()
    first = process.stdout.readline()

    output, errors = process.communicate(f"{too_long}\nforêt\n".encode(), timeout=60)

    assert process.returncode == 1
    expected = deepnet_fairseq.translate(served.ctranslate2, ["été", "forêt"])
    assert [first.decode(), output.decode()] == [f"{expected[0]}\n", f"\n{expected[1]}\n"]
    assert "line 2: " in errors.decode()
