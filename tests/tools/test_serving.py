"""Tests of translation as a service: threads, forks, pipes, n-best lists, and text in another form than the model's."""

from __future__ import annotations

import gc
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

import pytest

import deepnet_fairseq
from deepnet_fairseq.cli import main
from deepnet_fairseq.tools import translation
from deepnet_fairseq.tools.translation.incoming import Incoming
from deepnet_fairseq.tools.translation.loading import Models

from ..conftest import TRAIN_FLAGS
from ..support.corpora import SPLITS
from ..support.errors import assert_refused, refused
from ..support.exports import printed_by_example
from ..support.helpers import run

LEXICON = {"élève": "kind", "forêt": "wald", "garçon": "junge", "été": "sommer", '"père"': "vater", "don't": "nicht"}
SENTENCES = {"train": 300, "valid": 20, "test": 20}
POSITIONS = 60
SIZE = (
    "--arch", "deepnet_transformer_tiny", "--encoder-layers", 2, "--decoder-layers", 2, "--encoder-embed-dim", 32,
    "--decoder-embed-dim", 32, "--dropout", 0, "--max-source-positions", POSITIONS, "--max-target-positions", POSITIONS,
    "--max-update", 30, "--lr", "5e-3",
)  # fmt: skip
# folders of two exports, and a checkpoint through CTranslate2 or, where that is not installed, through fairseq
ENGINES = ("ctranslate2", "huggingface", "checkpoint", "fairseq")


def french_sentences() -> list[list[str]]:
    """Return 300 sentences of one to four words."""
    words = list(LEXICON)
    sentences = []
    for number in range(SENTENCES["train"]):
        length = 1 + number % 4
        sentences.append([words[(number * step) % len(words)] for step in (1, 5, 7, 11)[:length]])
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
    """A small model from French to German, as a checkpoint and exported, and lines of French."""

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
    """Provide the name of each engine, with no model in memory; for "fairseq", CTranslate2 is not installed."""
    find = translation.importlib.util.find_spec

    def find_all_but_ctranslate2(name: str):
        return None if name == "ctranslate2" else find(name)

    if request.param == "fairseq":
        monkeypatch.setattr("importlib.util.find_spec", find_all_but_ctranslate2)
    return request.param


def repr_in_a_fork(work, seconds: int = 60) -> str:
    """Return repr(work()), or its error, of a forked process, which then ends as a server's worker does."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        gc.freeze()  # the tests' objects are not this process's to collect
        try:
            os.write(write, repr(work()).encode())
            sys.stdin = sys.stdout = sys.stderr = None
        except BaseException as error:
            os.write(write, f"{type(error).__name__}: {error}".encode())
        os._exit(0)

    os.close(write)
    signal.signal(signal.SIGALRM, lambda *_: os.kill(child, signal.SIGKILL))
    signal.alarm(seconds)
    with open(read, encoding="utf-8") as answer:
        text = answer.read()
    os.waitpid(child, 0)
    signal.alarm(0)
    return text


# threads and forks


def test_first_requests_of_eight_threads_load_the_model_once(served, engine, monkeypatch):
    """Eight first requests at once are answered as one thread's, and load the model once."""
    loads = []
    load = translation.load
    gate = threading.Barrier(8)

    def counted_load(*args, **options):
        loads.append(args)
        return load(*args, **options)

    def request(line: str) -> list[str]:
        gate.wait()
        return deepnet_fairseq.translate(lines=[line], **served.options(engine))

    monkeypatch.setattr(translation, "load", counted_load)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(request, served.lines[:8]))
    assert len(loads) == 1

    one_thread = deepnet_fairseq.translate(lines=served.lines[:8], **served.options(engine))
    assert answers == [[line] for line in one_thread]
    assert len(loads) == 1


def test_a_forked_process_translates_as_its_parent(served, engine):
    """A child of a process that has translated gives the same answers, and so does a child of that child."""

    def translate() -> list[str]:
        return deepnet_fairseq.translate(lines=served.lines[:5], **served.options(engine))

    def translate_and_fork() -> str:
        translate()
        return repr_in_a_fork(translate)

    expected = repr(translate())

    assert repr_in_a_fork(translate) == expected
    assert repr_in_a_fork(translate_and_fork) == repr(expected)
    assert repr(translate()) == expected


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
        translation.load = load
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
    """A Translator of one's own says in a line that it has to be loaded again, where it would wait for ever."""
    translator = translation.load(served.ctranslate2)

    def translate() -> list[str]:
        return list(translator.translate(["été"]))

    answer = repr_in_a_fork(translate)

    assert answer.startswith("UserError: ")
    assert "forked" in answer
    assert translate() == deepnet_fairseq.translate(served.ctranslate2, ["été"])


def test_a_server_that_has_forked_ends(served):
    """A process that has forked workers ends, and so do they, through Python's own exit."""
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
    """Three models at most in memory, and the names of those that were loaded."""

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

    for name in "ababacab":
        assert counted.get(name) == f"model {name}"

    assert counted.loads == ["a", "b", "c"]


def test_the_model_that_was_not_used_for_longest_gives_way():
    counted = CountedModels()
    for name in "ababacabd":
        counted.get(name)
    for name in "abd":
        counted.get(name)
    assert counted.loads == ["a", "b", "c", "d"]

    assert counted.get("c") == "model c"

    assert counted.loads == ["a", "b", "c", "d", "c"]


def test_a_model_that_failed_to_load_is_loaded_again():
    models = Models(most=3)

    with refused("/missing"):
        models.get("e", lambda: translation.load("/missing"))

    assert models.get("e", lambda: "model e") == "model e"


# n-best lists


@pytest.fixture
def nbest(served, engine):
    """Provide the three best translations of six lines and an empty one."""
    return deepnet_fairseq.translate(lines=[*served.lines[:6], ""], nbest=3, **served.options(engine))


def test_the_best_of_several_is_the_only_one_without_nbest(served, engine, nbest):
    alone = deepnet_fairseq.translate(lines=[*served.lines[:6], ""], **served.options(engine))

    assert [several[0].text for several in nbest] == alone


def test_nbest_translations_come_best_first_and_an_empty_line_has_one(nbest):
    *of_lines, of_empty_line = nbest

    assert of_empty_line == [("", 0.0)]
    for several in of_lines:
        assert len(several) == 3
        scores = [one.score for one in several]
        assert scores == sorted(scores, reverse=True)


def test_every_engine_gives_the_same_nbest_texts_and_scores(served, nbest):
    reference = deepnet_fairseq.translate(lines=[*served.lines[:6], ""], nbest=3, **served.options("huggingface"))

    assert len(nbest) == len(reference)
    for ours, theirs in zip(nbest, reference, strict=True):
        assert [one.text for one in ours] == [one.text for one in theirs]
        assert [one.score for one in ours] == pytest.approx([one.score for one in theirs], abs=2e-5)


def test_scores_are_log_probabilities_over_the_length(served):
    """A score is the sum that fairseq's model gives the translation, over its length with the end ** lenpen."""
    options = served.options("checkpoint") | {"lines": ["été"], "nbest": 1, "beam": 1}
    total = deepnet_fairseq.translate(lenpen=0.0, **options)[0][0]
    per_token = deepnet_fairseq.translate(lenpen=1.0, **options)[0][0]
    assert total.text == per_token.text

    cutter = translation.load(str(served.checkpoint), str(served.data)).engine.cutter
    length = len(cutter.cut(per_token.text)) + 1  # with the end of the sentence
    assert total.score / per_token.score == pytest.approx(length, rel=1e-4)


def test_the_command_prints_line_score_and_text_with_tabs(served, tmp_path, capsys):
    file = tmp_path / "lines"
    file.write_text("été\n\nforêt\n", encoding="utf-8")

    main(["translate", served.ctranslate2, str(file), "--nbest", "2", "--beam", "3"])

    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows] == ["1", "1", "2", "3", "3"]
    assert rows[2][1:] == ["0.0000", ""]
    expected = deepnet_fairseq.translate(served.ctranslate2, ["été"], nbest=2, beam=3)[0]
    for row, one in zip(rows[:2], expected, strict=True):
        assert float(row[1]) == round(one.score, 4)
        assert row[2] == one.text


@pytest.mark.parametrize("count", ["0", "4"])
def test_more_translations_than_beams_are_refused(count, served, tmp_path):
    file = tmp_path / "lines"
    file.write_text("été\n", encoding="utf-8")

    with pytest.raises(SystemExit, match=f"--nbest {count}: .*--beam 3"):
        main(["translate", served.ctranslate2, str(file), "--nbest", count, "--beam", "3"])


def test_more_translations_than_beams_are_refused_in_python(served):
    with refused("--nbest 9"):
        deepnet_fairseq.translate(served.ctranslate2, ["été"], nbest=9)


# text in another form


def accented(lines: list[str]) -> list[str]:
    return [line for line in lines if not line.isascii()]


def other_forms(lines: list[str]) -> list[str]:
    """Return the lines with decomposed accents, then with typographic signs, then between invisible marks."""
    typographic = str.maketrans({"'": "’", '"': "“", " ": "\u00a0", "k": "ｋ", "e": "ｅ"})
    decomposed = [unicodedata.normalize("NFD", line) for line in lines]
    typed = [line.translate(typographic) for line in lines]
    marked = [f"\u200e{line}\ufeff" for line in lines]
    return decomposed + typed + marked


def test_other_forms_of_text_are_translated_alike_without_a_warning(served, engine):
    """Decomposed accents, curly quotes, other spaces and widths are read as the training text's."""
    lines = accented(served.lines[:30])

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        expected = deepnet_fairseq.translate(lines=lines, **served.options(engine))
        translated = deepnet_fairseq.translate(lines=other_forms(lines), **served.options(engine))

    assert translated == 3 * expected


def test_other_forms_of_text_are_cut_alike(served, engine):
    lines = accented(served.lines[:30])
    translator = translation.load(**served.options(engine))

    pieces = [translator.cut(line, 1) for line in lines]
    pieces_of_others = [translator.cut(line, 1) for line in other_forms(lines)]

    assert pieces_of_others == 3 * pieces


@pytest.mark.parametrize("to", ["ctranslate2", pytest.param("huggingface", marks=pytest.mark.smoke)])
def test_the_example_in_an_exports_readme_reads_other_forms(served, to):
    """The Python example in an export's README translates decomposed text and curly quotes as the training text's."""
    lines = accented(served.lines[:20])[:3]
    typed = [unicodedata.normalize("NFD", line).replace("'", "’").replace('"', "“") for line in lines]

    printed = printed_by_example(served.folders[to], typed)

    assert printed == repr(deepnet_fairseq.translate(served.ctranslate2, lines))


def test_python_users_are_warned_of_an_unseen_character_once(served, engine):
    """Lines with characters that the model has never seen are named to Python's users, each character once."""
    with pytest.warns(UserWarning, match="ж"):
        deepnet_fairseq.translate(lines=["été жж", "été"], **served.options(engine))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        deepnet_fairseq.translate(lines=["жж été"], **served.options(engine))


def test_a_translator_counts_unseen_characters_and_their_lines(served, engine):
    translator = translation.load(**served.options(engine))
    unseen = translation.Unseen()

    list(translator.translate(["été жж", "été", "", "ж語"], unseen=unseen))

    assert unseen.lines == 2
    assert unseen.characters == {"ж": 3, "語": 1}


def test_the_command_counts_lines_with_unseen_characters(served, tmp_path, capsys):
    """The command says on stderr how many lines have unseen characters; the translations stay whole."""
    file = tmp_path / "lines"
    file.write_text("été ж\nforêt\n語\n", encoding="utf-8")

    main(["translate", served.ctranslate2, str(file)])

    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 3
    assert "2 of 3" in captured.err
    assert "U+0436" in captured.err  # ж


# pipes


def start_translate(served, **options) -> subprocess.Popen:
    """Start `deepnet translate FOLDER`, whose standard input and output are pipes."""
    command = [sys.executable, "-m", "deepnet_fairseq", "translate", served.ctranslate2]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options)


def test_a_line_is_answered_before_the_next_is_written(served):
    """A program that waits for each translation gets it; a last line without an end is translated too."""
    process = start_translate(served, text=True, bufsize=1)
    answers: queue.Queue = queue.Queue()

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


def test_lines_that_wait_in_a_pipe_are_read_together(tmp_path):
    """They come in large chunks, and none is lost, whatever the blocks that they are written in."""
    lines = [f"line {number} {'x' * (number % 97)}" for number in range(5000)]
    lines.append("the last")
    text = "\n".join(lines).encode()
    read, write = os.pipe()

    def feed() -> None:
        with open(write, "wb", buffering=0) as pipe:
            for first in range(0, len(text), 50_021):
                pipe.write(text[first : first + 50_021])

    thread = threading.Thread(target=feed)
    thread.start()
    with open(read, "rb", buffering=0) as pipe:
        found = list(translation.chunks(pipe, "a pipe", 1000))
    thread.join()

    assert [line for chunk in found for line in chunk] == lines
    assert len(found) < 20
    assert max(map(len, found)) <= 1000


@pytest.fixture
def pipe():
    """Provide the descriptor to write to, and the lines that come in at the other end."""
    read, write = os.pipe()
    with open(read, "rb", buffering=0) as stream:
        yield write, Incoming(stream)


def test_a_pipe_has_no_more_until_a_line_is_whole(pipe):
    write, incoming = pipe
    assert not incoming.has_more()

    os.write(write, b"a\nb")
    assert incoming.readline() == b"a\n"
    assert not incoming.has_more()

    os.write(write, b"c\n")
    assert incoming.has_more()
    assert incoming.readline() == b"bc\n"


def test_an_empty_line_of_a_pipe_is_a_line(pipe):
    write, incoming = pipe

    os.write(write, b"c\n\n")

    assert incoming.has_more()
    assert incoming.readline() == b"c\n"
    assert incoming.readline() == b"\n"


def test_the_last_line_of_a_pipe_needs_no_end(pipe):
    write, incoming = pipe

    os.write(write, b"d")
    os.close(write)

    assert incoming.has_more()
    assert incoming.readline() == b"d"
    assert not incoming.has_more()
    assert incoming.readline() == b""
    assert incoming.readline() == b""


@pytest.fixture
def file_of_lines(served, tmp_path):
    """Provide a file of 30 lines of French."""
    file = tmp_path / "lines"
    file.write_text("".join(f"{line}\n" for line in served.lines[:30]), encoding="utf-8")
    return file


@pytest.fixture
def printed_for_file(served, file_of_lines, capsys):
    """Provide what the command prints for that file."""
    main(["translate", served.ctranslate2, str(file_of_lines)])
    printed = capsys.readouterr().out
    assert len(printed.splitlines()) == 30
    return printed


def test_a_named_pipe_is_translated_as_the_file(served, file_of_lines, printed_for_file, tmp_path, capsys):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    writer = subprocess.Popen(["dd", f"if={file_of_lines}", f"of={fifo}", "status=none"])

    main(["translate", served.ctranslate2, str(fifo)])

    assert writer.wait(60) == 0
    assert capsys.readouterr().out == printed_for_file


@pytest.mark.parametrize("line", ["{translate} <(cat {file})", "cat {file} | {translate} /dev/stdin",
                                  "cat {file} | {translate} -"])  # fmt: skip
def test_a_pipe_of_the_shell_is_translated_as_the_file(line, served, file_of_lines, printed_for_file):
    command = f"{sys.executable} -m deepnet_fairseq translate {served.ctranslate2}"
    words = ["bash", "-c", line.format(translate=command, file=file_of_lines)]

    done = subprocess.run(words, capture_output=True, text=True, timeout=60)

    assert done.stdout == printed_for_file


def test_a_folder_is_no_file_to_translate(served, tmp_path):
    assert_refused(f"error: {tmp_path}: ", "translate", served.ctranslate2, tmp_path)


def test_a_line_of_a_pipe_that_is_too_long_is_named(served):
    """Lines before it are translated; its number is that in the text, not that in its chunk."""
    process = start_translate(served, stderr=subprocess.PIPE)
    process.stdin.write("été\n".encode())
    process.stdin.flush()
    assert process.stdout.readline()

    output, errors = process.communicate(("été " * 100 + "\n").encode(), timeout=60)

    assert process.returncode == 1
    assert output == b""
    assert "line 2: " in errors.decode()
