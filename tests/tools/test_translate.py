"""Tests of `deepnet translate`: four programs translate two hundred odd lines alike; users' mistakes."""

from __future__ import annotations

import io
import json
import re
import shutil
from pathlib import Path

import pytest
import torch

import deepnet_fairseq
from deepnet_fairseq.cli import main
from deepnet_fairseq.data.language import make_corpus
from deepnet_fairseq.data.lines import is_blank
from deepnet_fairseq.plugin.building import from_checkpoint
from deepnet_fairseq.tools import translation

from ..conftest import TRAIN_FLAGS
from ..support.corpora import SPLITS
from ..support.errors import refusal, refused
from ..support.exports import PLACE_OF_LINES, export, printed_by_example, python_example
from ..support.helpers import USER_DIR, run, sentences, teach
from ..support.odd import odd_lines

POSITIONS = 60
SIZE = (
    "--arch", "deepnet_transformer_tiny", "--encoder-layers", "2", "--decoder-layers", "2", "--encoder-embed-dim", "32",
    "--decoder-embed-dim", "32", "--dropout", "0", "--max-source-positions", POSITIONS, "--max-target-positions",
    POSITIONS, "--max-update", "1",
)  # fmt: skip
TAGS = ("--encoder-langtok", "tgt", "--decoder-langtok")
SEARCH = (
    "--cpu", "--beam", "5", "--max-len-b", POSITIONS - 1, "--unkpen", "1e9", "--buffer-size", "300", "--max-tokens",
    "2000", "--bpe", "sentencepiece",
)  # fmt: skip
LANGUAGES = {"bilingual": ("qaa", "qab"), "multilingual": ("de", "en")}
TIES = 2  # lines of 200 that programs may translate otherwise, where two translations have almost one score


class CopyingModel:
    """Model that copies its source, its data, and the flags for fairseq's programs.

    kind: a key of LANGUAGES; lines: two hundred odd ones. A multilingual model needs to be told its languages.
    """

    def __init__(self, kind: str, folder: Path, plain: list[str]):
        self.source, self.target = LANGUAGES[kind]
        self.is_multilingual = kind == "multilingual"
        self.lines = odd_lines(plain)
        self.folder = folder / "made"
        self.checkpoint = self.folder / "checkpoint_last.pt"

        text = folder / "text" / f"{self.source}-{self.target}"
        self._write_text(text, plain)
        prepare = self._prepare_multilingual if self.is_multilingual else self._prepare_bilingual
        self.flags = prepare(text)
        run("fairseq-train", *self.flags, *TRAIN_FLAGS, *SIZE, "--save-dir", self.folder)
        self._teach_to_copy()

    def _write_text(self, folder: Path, plain: list[str]) -> None:
        folder.mkdir(parents=True)
        text = "".join(f"{line}\n" for line in [*self.lines, *plain])
        for split in SPLITS:
            for language in (self.source, self.target):
                (folder / f"{split}.{language}").write_text(text)

    def _prepare_bilingual(self, text: Path) -> tuple:
        """Binarise the text; return fairseq's flags for it."""
        self.folder.mkdir()
        prefixes = [str(text / split) for split in SPLITS]
        data = self.folder / "bin"
        main(["prepare", "text", self.source, self.target, *prefixes, str(data), "--vocab", "400"])
        return (data,)

    def _prepare_multilingual(self, text: Path) -> tuple:
        """Binarise the text; return fairseq's flags for it."""
        words = ("--from", str(text.parent), "--vocab", "400", "--workers", "1")
        main(["prepare", "corpus", "multilingual", str(self.folder), *words])
        data = self.folder / "bin"
        return (
            data, "--task", "translation_multi_simple_epoch", "--lang-dict", data / "langs.txt",
            "--lang-pairs", "de-en,en-de", *TAGS,
        )  # fmt: skip

    def _teach_to_copy(self) -> None:
        state = torch.load(self.checkpoint)
        model, _ = from_checkpoint(str(self.checkpoint))
        vocabulary = model.encoder.embed_tokens.num_embeddings  # the tags of the two languages are its end
        tags = 2 if self.is_multilingual else 0

        def to_copy(step):
            source = sentences(64, vocabulary - tags, seed=step)[32:]
            if self.is_multilingual:
                source[:, 0] = vocabulary - 1 - step % 2  # a tag begins both sides
            previous = source.roll(1, 1)
            return (source, None, previous), source

        teach(model, 600, to_copy, lr=4e-3)
        torch.save(state | {"model": model.state_dict()}, self.checkpoint)

    @property
    def options(self) -> dict[str, str]:
        """Return the languages as arguments of `translate`, none for a bilingual model."""
        if not self.is_multilingual:
            return {}
        return {"source_lang": self.source, "target_lang": self.target}

    @property
    def language_flags(self) -> list[str]:
        """Return the languages as flags of `deepnet translate`, none for a bilingual model."""
        if not self.is_multilingual:
            return []
        return ["--source-lang", self.source, "--target-lang", self.target]

    def exported(self, to: str) -> Path:
        """Return an export of the model, made by the first call; "checkpoint" is the checkpoint itself."""
        if to == "checkpoint":
            return self.checkpoint
        out = self.folder / to
        if not out.exists():
            export(self.checkpoint, "--to", to, "--out", out)
        return out

    def interactive(self, path: Path, *flags) -> list[str]:
        """Translate the lines by fairseq-interactive."""
        file = self.folder / "lines"
        file.write_text("".join(f"{line}\n" for line in self.lines))
        pieces = self.folder / ("spm.model" if self.is_multilingual else "bin/spm.model")
        words = (*self.flags, "-s", self.source, "-t", self.target, *SEARCH, "--sentencepiece-model", pieces)

        output = run("fairseq-interactive", *words, "--path", path, "--input", file, *flags).stdout

        by_number = dict(re.findall(r"^D-(\d+)\t[^\t]+\t(.*)$", output, re.MULTILINE))
        return [by_number[str(number)] for number in range(len(self.lines))]


@pytest.fixture(scope="module", params=LANGUAGES)
def model(request, tmp_path_factory):
    """Provide a model that copies, trained once."""
    pairs = make_corpus({"train": 150, "valid": 1, "test": 1}, nouns=20, verbs=10)["train"]
    plain = [source for source, _ in pairs]
    return CopyingModel(request.param, tmp_path_factory.mktemp(request.param), plain)


@pytest.fixture(scope="module")
def by_fairseq(model) -> list[str]:
    """Provide the lines as fairseq-interactive translates them with this package's model."""
    return model.interactive(model.checkpoint, "--user-dir", USER_DIR)


@pytest.fixture(scope="module")
def ctranslate2_folder(model) -> Path:
    return model.exported("ctranslate2")


# the same translations


def test_the_lines_are_two_hundred_different_ones(model, by_fairseq):
    assert len(by_fairseq) == 200
    assert len(set(model.lines)) == 200
    assert not any(map(is_blank, model.lines))
    assert len(set(by_fairseq)) > 100


def assert_alike(lines: list[str], expected: list[str], translated: list[str]) -> None:
    """Check that all lines but TIES are translated alike."""
    different = []
    for line, one, other in zip(lines, expected, translated, strict=True):
        if one != other:
            different.append((line, one, other))
    assert len(different) <= TIES, different


def test_stock_fairseq_translates_odd_lines_alike(model, by_fairseq):
    assert_alike(model.lines, by_fairseq, model.interactive(model.exported("transformer")))


@pytest.mark.parametrize("to", ["ctranslate2", "huggingface", "checkpoint"])
def test_deepnet_translate_translates_odd_lines_as_fairseq_does(model, by_fairseq, to):
    translated = translation.translate(model.exported(to), model.lines, **model.options)

    assert_alike(model.lines, by_fairseq, translated)


def test_our_own_search_translates_odd_lines_as_fairseqs_does(model, by_fairseq, monkeypatch):
    """A checkpoint is translated by our own search where CTranslate2 is not installed."""
    find = translation.importlib.util.find_spec

    def find_all_but_ctranslate2(name: str):
        return None if name == "ctranslate2" else find(name)

    languages = (model.source, model.target) if model.is_multilingual else (None, None)
    monkeypatch.setattr("importlib.util.find_spec", find_all_but_ctranslate2)
    translator = translation.load(str(model.checkpoint), None, *languages)

    assert isinstance(translator.engine, translation.Fairseq)
    assert_alike(model.lines, by_fairseq, list(translator.translate(model.lines)))


@pytest.mark.parametrize("to", ["ctranslate2", "huggingface"])
def test_the_example_in_an_exports_readme_translates(model, by_fairseq, to):
    """It needs neither fairseq nor this package."""
    places = (0, 50, 120)

    lines = [model.lines[place] for place in places]
    printed = printed_by_example(model.exported(to), lines, forbidden=("fairseq", "deepnet_fairseq"))

    assert printed == repr([by_fairseq[place] for place in places])


@pytest.mark.parametrize("to", ["ctranslate2", "huggingface"])
def test_the_example_in_an_exports_readme_is_short(model, to):
    folder = model.exported(to)
    fences = re.findall("^```", (folder / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    example = python_example(folder)

    assert 3 <= len(fences) <= 4
    assert len(example.splitlines()) <= 15
    assert PLACE_OF_LINES in example


def test_lines_of_stdin_keep_their_order_and_blank_ones_stay_blank(model, ctranslate2_folder, monkeypatch, capsys):
    """The last line needs no newline."""
    given = [model.lines[0], "", "\u200b", *model.lines[1:30]]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("\n".join(given).encode())))

    main(["translate", str(ctranslate2_folder), "--max-tokens", "50", *model.language_flags])

    *lines, after_last = capsys.readouterr().out.split("\n")
    assert after_last == ""
    assert len(lines) == len(given)
    assert lines[1:3] == ["", ""]
    expected = translation.translate(ctranslate2_folder, model.lines[:30], **model.options)
    assert [line for line in lines if line] == expected


def test_products_in_eight_bits_change_few_translations(model, ctranslate2_folder):
    lines = model.lines[:40]

    exact = deepnet_fairseq.translate(ctranslate2_folder, lines, int8=False, **model.options)
    int8 = deepnet_fairseq.translate(ctranslate2_folder, lines, int8=True, **model.options)

    assert len(exact) == 40
    same = [one for one, other in zip(exact, int8, strict=True) if one == other]
    assert len(same) > 10


# mistakes


@pytest.fixture
def file(model, tmp_path):
    """Provide a file of one line."""
    (tmp_path / "lines").write_text(model.lines[0])
    return tmp_path / "lines"


def refused_translation(capsys, *words) -> str:
    """Return the line with which `deepnet translate WORDS` ends before it prints a translation."""
    capsys.readouterr()
    line = refusal("translate", *words)
    assert capsys.readouterr().out == ""
    return line


@pytest.mark.parametrize("to", ["ctranslate2", "huggingface", "checkpoint"])
def test_a_line_that_is_too_long_is_named_before_any_translation(model, to, file, capsys):
    too_long = " ".join([model.lines[9]] * 40)
    file.write_text(f"{model.lines[0]}\n{too_long}\n")

    line = refused_translation(capsys, model.exported(to), file, *model.language_flags)

    assert "line 2: " in line
    assert f"{POSITIONS};" in line


def test_a_line_that_is_not_utf_8_is_named_before_any_translation(model, ctranslate2_folder, file, capsys):
    file.write_bytes(model.lines[0].encode() + b"\n\xff\n")

    line = refused_translation(capsys, ctranslate2_folder, file, *model.language_flags)

    assert f"{file}, line 2: " in line
    assert "UTF-8" in line


@pytest.mark.parametrize("flag", ["--beam 0", "--threads 0", "--data {folder}"])
def test_a_wrong_flag_is_named(flag, model, ctranslate2_folder, file, tmp_path, capsys):
    """Among them the data of an exported folder, which has what cuts its text."""
    flag = flag.format(folder=tmp_path)

    line = refused_translation(capsys, ctranslate2_folder, file, *model.language_flags, *flag.split())

    assert f"error: {flag}: " in line


def test_a_language_that_the_model_does_not_have_is_named(ctranslate2_folder, file, capsys):
    line = refused_translation(capsys, ctranslate2_folder, file, "--target-lang", "xx")

    assert re.search("--(source|target)-lang", line)


def test_8_bits_are_refused_without_ctranslate2(model, file, capsys):
    line = refused_translation(capsys, model.exported("huggingface"), file, *model.language_flags, "--int8")

    assert "--int8: " in line
    assert "CTranslate2" in line


def test_a_missing_file_is_named(model, ctranslate2_folder, tmp_path, capsys):
    line = refused_translation(capsys, ctranslate2_folder, tmp_path / "missing", *model.language_flags)

    assert f"{tmp_path / 'missing'}: " in line


def test_a_missing_model_is_named(file, tmp_path, capsys):
    line = refused_translation(capsys, tmp_path / "missing", file)

    assert f"{tmp_path / 'missing'}: " in line
    assert "checkpoint" in line


def test_a_folder_that_is_no_export_is_named(file, tmp_path, capsys):
    line = refused_translation(capsys, tmp_path, file)

    assert f"{tmp_path}: " in line
    assert translation.NAME in line


def test_a_damaged_description_of_an_export_is_named(ctranslate2_folder, file, tmp_path, capsys):
    broken = tmp_path / "broken"
    shutil.copytree(ctranslate2_folder, broken)
    (broken / translation.NAME).write_text(json.dumps({"pieces": "sentencepiece"}))

    line = refused_translation(capsys, broken, file)

    assert f"{broken / translation.NAME}: " in line


def test_a_line_in_place_of_a_list_is_refused_in_python(ctranslate2_folder):
    with refused("lines"):
        deepnet_fairseq.translate(ctranslate2_folder, "one line")
