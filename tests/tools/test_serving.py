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
from deepnet_fairseq.errors import UserError
from deepnet_fairseq.tools import translation
from deepnet_fairseq.tools.translation.incoming import Incoming
from deepnet_fairseq.tools.translation.loading import Models

from ..conftest import TRAIN_FLAGS
from ..support.helpers import run

WORDS = {"élève": "kind", "forêt": "wald", "garçon": "junge", "été": "sommer", '"père"': "vater", "don't": "nicht"}
POSITIONS = 60
SMALL = (
    "--arch", "deepnet_transformer_tiny", "--encoder-layers", 2, "--decoder-layers", 2, "--encoder-embed-dim", 32,
    "--decoder-embed-dim", 32, "--dropout", 0, "--max-source-positions", POSITIONS, "--max-target-positions", POSITIONS,
    "--max-update", 30, "--lr", "5e-3",
)  # fmt: skip
KINDS = ("ctranslate2", "huggingface", "checkpoint", "fairseq")


class Served:
    """A small model, as a checkpoint and exported, and lines of its language."""

    def __init__(self, folder: Path):
        names = list(WORDS)
        rows = [[names[(place * step) % len(names)] for step in (1, 5, 7, 11)[: 1 + place % 4]] for place in range(300)]
        self.lines = [" ".join(row) for row in rows]
        for split, count in {"train": 300, "valid": 20, "test": 20}.items():
            for lang, words in (("fr", rows), ("de", [[WORDS[word] for word in row] for row in rows])):
                text = "".join(f"{' '.join(row)}\n" for row in words[:count])
                (folder / f"{split}.{lang}").write_text(text, encoding="utf-8")
        self.data = folder / "bin"
        prefixes = [str(folder / split) for split in ("train", "valid", "test")]
        main(["prepare", "text", "fr", "de", *prefixes, str(self.data), "--vocab", "90"])
        run("fairseq-train", self.data, *TRAIN_FLAGS, *SMALL, "--save-dir", folder / "run")
        self.checkpoint = folder / "run" / "checkpoint_last.pt"
        self.folders = {}
        for to in ("ctranslate2", "huggingface"):
            self.folders[to] = folder / to
            main(["export", str(self.checkpoint), "--to", to, "--out", str(folder / to), "--data", str(self.data)])

    def options(self, kind: str) -> dict:
        """Return the arguments of `translate` for a kind of model."""
        if kind in self.folders:
            return {"model": self.folders[kind]}
        return {"model": self.checkpoint, "data": str(self.data)}


def rename(options: dict) -> dict:
    """Return the arguments of `load`, which takes a word for the model."""
    return options | {"model": str(options["model"])}


@pytest.fixture(scope="module", name="served")
def a_served_model(tmp_path_factory):
    return Served(tmp_path_factory.mktemp("served"))


@pytest.fixture(params=KINDS, name="kind")
def a_kind(request, monkeypatch):
    """Provide each engine, with no model in memory."""
    monkeypatch.setattr(translation, "MODELS", Models())
    if request.param == "fairseq":
        find = translation.importlib.util.find_spec
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "ctranslate2" else find(name))
    return request.param


def in_a_fork(work, seconds: float = 60) -> str:
    """Return what work() returns in a forked process, which then ends as a server's worker does."""
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
    signal.alarm(int(seconds))
    with open(read, encoding="utf-8") as answer:
        text = answer.read()
    os.waitpid(child, 0)
    signal.alarm(0)
    return text


def test_first_requests_of_eight_threads_load_once(served, kind, monkeypatch):
    """Eight first requests at once are answered as one thread's, and load the model once."""
    loads, load, gate = [], translation.load, threading.Barrier(8)
    monkeypatch.setattr(translation, "load", lambda *args, **more: (loads.append(1), load(*args, **more))[1])

    def request(line: str) -> list[str]:
        gate.wait()
        return deepnet_fairseq.translate(lines=[line], **served.options(kind))

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(request, served.lines[:8]))
    assert len(loads) == 1
    assert [answer for [answer] in answers] == deepnet_fairseq.translate(lines=served.lines[:8], **served.options(kind))
    assert len(loads) == 1


def test_a_forked_process_translates_as_its_parent(served, kind):
    """A child of a process that has translated gives the same answers, and so does a child of that child."""

    def work() -> list[str]:
        return deepnet_fairseq.translate(lines=served.lines[:5], **served.options(kind))

    wanted = repr(work())
    assert in_a_fork(work) == wanted
    assert in_a_fork(lambda: (work(), in_a_fork(work))[1]) == repr(wanted)
    assert repr(work()) == wanted


def test_a_fork_while_another_thread_loads_or_holds_a_lock(served, monkeypatch):
    """A child translates although a thread of its parent was loading the same model when it was forked."""
    monkeypatch.setattr(translation, "MODELS", Models())
    load, begun, ended = translation.load, threading.Event(), threading.Event()

    def slow(*args, **more):
        begun.set()
        assert ended.wait(60)
        return load(*args, **more)

    def work() -> list[str]:
        return deepnet_fairseq.translate(lines=served.lines[:5], **served.options("ctranslate2"))

    def in_child() -> list[str]:
        translation.load = load
        return work()

    monkeypatch.setattr(translation, "load", slow)
    thread = threading.Thread(target=work)
    thread.start()
    assert begun.wait(60)
    answer = in_a_fork(in_child)
    ended.set()
    thread.join()
    assert answer == repr(work())


def test_a_model_that_a_fork_left_behind_is_refused(served):
    """A Translator of one's own says in a line that it has to be loaded again, where it would wait for ever."""
    translator = translation.load(str(served.folders["ctranslate2"]))
    assert in_a_fork(lambda: list(translator.translate(["été"]))).startswith("UserError: this model was loaded before")
    assert list(translator.translate(["été"])) == deepnet_fairseq.translate(served.folders["ctranslate2"], ["été"])


def test_a_server_that_forks_ends(served):
    """A process that has forked workers ends, and so do they, through Python's own exit."""
    program = f"""
import os, sys, deepnet_fairseq
deepnet_fairseq.translate({str(served.folders["ctranslate2"])!r}, ["été"])
child = os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0


def test_models_by_turns_are_loaded_once_and_few_are_kept():
    """Models used by turns stay; the one that was not used for longest gives way, and an error is not kept."""
    models, loads = Models(most=3), []

    def get(name: str) -> str:
        return models.get(name, lambda: (loads.append(name), f"model {name}")[1])

    for name in "ababacabd":
        assert get(name) == f"model {name}"
    assert loads == ["a", "b", "c", "d"]
    get("c")
    assert loads == ["a", "b", "c", "d", "c"]
    with pytest.raises(UserError):
        models.get("e", lambda: translation.load("/missing"))
    assert models.get("e", lambda: "model e") == "model e"


def test_nbest_scores_agree(served, kind):
    """Every engine gives the same texts and scores, the best first, which is the only one without nbest."""
    lines = [*served.lines[:6], ""]
    found = deepnet_fairseq.translate(lines=lines, nbest=3, **served.options(kind))
    others = deepnet_fairseq.translate(lines=lines, nbest=3, **served.options("huggingface"))
    assert [several[0].text for several in found] == deepnet_fairseq.translate(lines=lines, **served.options(kind))
    assert found[-1] == [("", 0.0)] and all(len(several) == 3 for several in found[:-1])
    for ours, theirs in zip(found, others, strict=True):
        assert [one.score for one in ours] == sorted((one.score for one in ours), reverse=True)
        assert [one.text for one in ours] == [one.text for one in theirs]
        assert [one.score for one in ours] == pytest.approx([one.score for one in theirs], abs=2e-5)


def test_scores_are_log_probabilities_over_the_length(served):
    """A score is the sum that fairseq's model gives the translation, over its length with the end ** lenpen."""
    options = served.options("checkpoint")
    by_penalty = {
        lenpen: deepnet_fairseq.translate(lines=["été"], nbest=1, beam=1, lenpen=lenpen, **options)[0][0]
        for lenpen in (0.0, 1.0)
    }
    tokens = translation.load(str(served.checkpoint), str(served.data)).engine.cutter.cut(by_penalty[1.0].text)
    assert by_penalty[0.0].text == by_penalty[1.0].text
    assert by_penalty[0.0].score / by_penalty[1.0].score == pytest.approx(len(tokens) + 1, rel=1e-4)


def test_nbest_of_the_command_and_its_limits(served, tmp_path, capsys):
    """The command prints line, score and text with tabs; more translations than beams are refused."""
    file = tmp_path / "lines"
    file.write_text("été\n\nforêt\n", encoding="utf-8")
    main(["translate", str(served.folders["ctranslate2"]), str(file), "--nbest", "2", "--beam", "3"])
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows] == ["1", "1", "2", "3", "3"] and rows[2][1:] == ["0.0000", ""]
    wanted = deepnet_fairseq.translate(served.folders["ctranslate2"], ["été"], nbest=2, beam=3)[0]
    assert [(float(row[1]), row[2]) for row in rows[:2]] == [(round(one.score, 4), one.text) for one in wanted]
    for count in ("0", "4"):
        with pytest.raises(SystemExit, match=f"--nbest {count}: .*--beam 3"):
            main(["translate", str(served.folders["ctranslate2"]), str(file), "--nbest", count, "--beam", "3"])
    with pytest.raises(UserError, match="--nbest 9"):
        deepnet_fairseq.translate(served.folders["ctranslate2"], ["été"], nbest=9)


def test_other_forms_of_text_are_read_alike(served, kind):
    """Decomposed accents, curly quotes, other spaces and widths are read as the training text's, without a warning."""
    lines = [line for line in served.lines[:30] if not line.isascii()]
    typed = str.maketrans({"'": "’", '"': "“", " ": "\u00a0", "k": "ｋ", "e": "ｅ"})
    others = [unicodedata.normalize("NFD", line) for line in lines]
    others += [line.translate(typed) for line in lines] + [f"\u200e{line}\ufeff" for line in lines]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wanted = deepnet_fairseq.translate(lines=lines, **served.options(kind))
        assert deepnet_fairseq.translate(lines=others, **served.options(kind)) == 3 * wanted
    cut = translation.load(**rename(served.options(kind))).cut
    assert [cut(line, 1) for line in others] == 3 * [cut(line, 1) for line in lines]


def test_unseen_characters_are_said_once(served, kind):
    """Lines with characters that the model has never seen are named to Python's users, each character once."""
    with pytest.warns(UserWarning, match="ж"):
        deepnet_fairseq.translate(lines=["été жж", "été"], **served.options(kind))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        deepnet_fairseq.translate(lines=["жж été"], **served.options(kind))
    translator, unseen = translation.load(**rename(served.options(kind))), translation.Unseen()
    list(translator.translate(["été жж", "été", "", "ж語"], unseen=unseen))
    assert unseen.lines == 2 and unseen.characters == {"ж": 3, "語": 1}


def test_the_command_counts_lines_with_unseen_characters(served, tmp_path, capsys):
    """The command says on stderr how many lines have unseen characters; the translations stay whole."""
    file = tmp_path / "lines"
    file.write_text("été ж\nforêt\n語\n", encoding="utf-8")
    main(["translate", str(served.folders["ctranslate2"]), str(file)])
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 3
    assert "2 of 3 lines" in captured.err and "U+0436" in captured.err


@pytest.mark.parametrize("to", ["ctranslate2", pytest.param("huggingface", marks=pytest.mark.smoke)])
def test_an_exports_readme_reads_other_forms(served, to):
    """The Python example in an export's README translates decomposed text and curly quotes as the training text's."""
    lines = [line for line in served.lines[:20] if not line.isascii()][:3]
    typed = [unicodedata.normalize("NFD", line).replace("'", "’").replace('"', "“") for line in lines]
    wanted = deepnet_fairseq.translate(served.folders["ctranslate2"], lines)
    code = (served.folders[to] / "README.md").read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    given = code.replace('["..."]', repr(typed))
    done = subprocess.run([sys.executable, "-c", given], cwd=served.folders[to], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == repr(wanted)


def test_a_line_is_answered_before_the_next_is_written(served):
    """A program that waits for each translation gets it; a last line without an end is translated too."""
    command = [sys.executable, "-m", "deepnet_fairseq", "translate", str(served.folders["ctranslate2"])]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
    answers: queue.Queue = queue.Queue()
    threading.Thread(target=lambda: [answers.put(line) for line in process.stdout], daemon=True).start()
    wanted = deepnet_fairseq.translate(served.folders["ctranslate2"], served.lines[:3])
    for line, translated in zip(served.lines[:2], wanted, strict=False):
        process.stdin.write(f"{line}\n")
        assert answers.get(timeout=60) == f"{translated}\n"
    process.stdin.write(served.lines[2])
    process.stdin.close()
    assert answers.get(timeout=60) == f"{wanted[2]}\n"
    assert process.wait(60) == 0


def test_much_text_in_a_pipe_comes_in_chunks(tmp_path):
    """Lines that wait in a pipe are read together, and none is lost, whatever the blocks that they come in."""
    text = "".join(f"line {number} {'x' * (number % 97)}\n" for number in range(5000)).encode() + b"the last"
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
    assert [line for chunk in found for line in chunk] == text.decode().split("\n")
    assert len(found) < 20 and max(map(len, found)) <= 1000


def test_a_pipe_has_no_more_until_a_line_is_whole():
    read, write = os.pipe()
    with open(read, "rb", buffering=0) as pipe:
        incoming = Incoming(pipe)
        assert not incoming.has_more()
        os.write(write, b"a\nb")
        assert incoming.readline() == b"a\n" and not incoming.has_more()
        os.write(write, b"c\n\n")
        assert incoming.has_more() and incoming.readline() == b"bc\n" and incoming.readline() == b"\n"
        os.write(write, b"d")
        os.close(write)
        assert incoming.has_more() and incoming.readline() == b"d" and not incoming.has_more()
        assert incoming.readline() == b"" == incoming.readline()


def test_pipes_are_read_as_files(served, tmp_path, capsys):
    """A named pipe, a pipe of the shell, /dev/stdin and - are translated as the file; a folder is no file."""
    file, folder = tmp_path / "lines", str(served.folders["ctranslate2"])
    file.write_text("".join(f"{line}\n" for line in served.lines[:30]), encoding="utf-8")
    main(["translate", folder, str(file)])
    wanted = capsys.readouterr().out
    assert len(wanted.splitlines()) == 30

    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    writer = subprocess.Popen(["dd", f"if={file}", f"of={fifo}", "status=none"])
    main(["translate", folder, str(fifo)])
    assert writer.wait(60) == 0 and capsys.readouterr().out == wanted

    command = f"{sys.executable} -m deepnet_fairseq translate {folder}"
    for words in (f"{command} <(cat {file})", f"cat {file} | {command} /dev/stdin", f"cat {file} | {command} -"):
        assert subprocess.run(["bash", "-c", words], capture_output=True, text=True, timeout=60).stdout == wanted
    with pytest.raises(SystemExit, match="is a folder"):
        main(["translate", folder, str(tmp_path)])


def test_a_line_of_a_pipe_that_is_too_long_is_named(served):
    """Lines before it are translated; its number is that in the text, not that in its chunk."""
    command = [sys.executable, "-m", "deepnet_fairseq", "translate", str(served.folders["ctranslate2"])]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdin.write("été\n".encode())
    process.stdin.flush()
    assert process.stdout.readline()
    out, errors = process.communicate(("été " * 100 + "\n").encode(), timeout=60)
    assert process.returncode == 1 and out == b"" and "line 2: " in errors.decode()
