"""Tests of `deepnet translate`: it translates 200 unusual lines as fairseq-interactive does; users' mistakes.

The model is one that copies its source, so that a line that a program reads or cuts otherwise is translated otherwise.
"""

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
from ..support.exports import PLACE_OF_LINES, export, hide_ctranslate2, printed_by_example, python_example
from ..support.helpers import USER_DIR, run, sentences, teach
from ..support.odd import odd_lines

POSITIONS = 60  # of the model: the most tokens of a line, its end included
SIZE = (  # flags of fairseq-train; a single update makes the checkpoint, whose weights CopyingModel then replaces
    "--arch", "deepnet_transformer_tiny", "--encoder-layers", "2", "--decoder-layers", "2", "--encoder-embed-dim", "32",
    "--decoder-embed-dim", "32", "--dropout", "0", "--max-source-positions", POSITIONS, "--max-target-positions",
    POSITIONS, "--max-update", "1",
)  # fmt: skip
TAGS = ("--encoder-langtok", "tgt", "--decoder-langtok")  # the target language's tag begins source and target
SEARCH = (  # flags with which fairseq-interactive searches as `deepnet translate` does by default, without <unk>
    "--cpu", "--beam", "5", "--max-len-b", POSITIONS - 1, "--unkpen", "1e9", "--buffer-size", "300", "--max-tokens",
    "2000", "--bpe", "sentencepiece",
)  # fmt: skip
LANGUAGES = {"bilingual": ("qaa", "qab"), "multilingual": ("de", "en")}  # kind of model -> source, target
TIES = 2  # lines of 200 that programs may translate otherwise, where two translations have almost one score
EXPORTS = ("ctranslate2", "huggingface")  # values of `deepnet export --to`


class CopyingModel:
    """Model that copies its source, and all that translating with it needs.

    kind: a key of LANGUAGES; plain: usual sentences, which its vocabulary is learnt from together with the odd ones.
    lines: the 200 odd lines to translate; checkpoint: the model's; flags: the data folder, then the flags by which
    fairseq's programs read it; source, target: the languages, which a multilingual model has to be told.
    """

    def __init__(self, kind: str, folder: Path, plain: list[str]):
        self.source, self.target = LANGUAGES[kind]
        self.is_multilingual = kind == "multilingual"
        self.lines = odd_lines(plain)
        self.folder = folder / "made"  # of data, checkpoint and exports
        self.checkpoint = self.folder / "checkpoint_last.pt"

        text = folder / "text" / f"{self.source}-{self.target}"
        self._write_text(text, plain)
        prepare = self._prepare_multilingual if self.is_multilingual else self._prepare_bilingual
        self.flags = prepare(text)
        run("fairseq-train", *self.flags, *TRAIN_FLAGS, *SIZE, "--save-dir", self.folder)
        self._teach_to_copy()

    def _write_text(self, folder: Path, plain: list[str]) -> None:
        """Write each split in both languages, with the same lines: the odd and the plain ones."""
        folder.mkdir(parents=True)
        text = "".join(f"{line}\n" for line in [*self.lines, *plain])
        for split in SPLITS:
            for language in (self.source, self.target):
                (folder / f"{split}.{language}").write_text(text)

    def _prepare_bilingual(self, text: Path) -> tuple:
        """Binarise the text in folder `text`; return the data folder, which is all that fairseq's programs need."""
        self.folder.mkdir()
        prefixes = [str(text / split) for split in SPLITS]
        data = self.folder / "bin"
        main(["prepare", "text", self.source, self.target, *prefixes, str(data), "--vocab", "400"])
        return (data,)

    def _prepare_multilingual(self, text: Path) -> tuple:
        """Binarise the text in folder `text`; return the data folder and the flags of fairseq's multilingual task."""
        words = ("--from", str(text.parent), "--vocab", "400", "--workers", "1")
        main(["prepare", "corpus", "multilingual", str(self.folder), *words])
        data = self.folder / "bin"
        return (
            data, "--task", "translation_multi_simple_epoch", "--lang-dict", data / "langs.txt",
            "--lang-pairs", "de-en,en-de", *TAGS,
        )  # fmt: skip

    def _teach_to_copy(self) -> None:
        """Replace the checkpoint's weights by those of a model that copies random pieces."""
        state = torch.load(self.checkpoint)
        model, _ = from_checkpoint(str(self.checkpoint))
        vocabulary = model.encoder.embed_tokens.num_embeddings
        tags = 2 if self.is_multilingual else 0  # one for each language, the last symbols of the vocabulary

        def to_copy(step):
            """Return the model's inputs and its targets, which are the source, in a step of `teach`."""
            half_padded = sentences(64, vocabulary - tags, seed=step)
            source = half_padded[32:]  # the rows without padding
            if self.is_multilingual:
                source[:, 0] = vocabulary - 1 - step % 2  # the two languages' tags by turns
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
        """Return the model as `deepnet export --to TO` writes it, made by the first call; for "checkpoint" itself."""
        if to == "checkpoint":
            return self.checkpoint
        out = self.folder / to
        if not out.exists():
            export(self.checkpoint, "--to", to, "--out", out)
        return out

    def interactive(self, path: Path, *flags) -> list[str]:
        """Return the lines' translations by fairseq-interactive with the model at `path`."""
        file = self.folder / "lines"
        file.write_text("".join(f"{line}\n" for line in self.lines))
        segmenter = self.folder / ("spm.model" if self.is_multilingual else "bin/spm.model")
        languages = ("-s", self.source, "-t", self.target)
        words = (*self.flags, *languages, *SEARCH, "--sentencepiece-model", segmenter)

        output = run("fairseq-interactive", *words, "--path", path, "--input", file, *flags).stdout

        # batches come in any order; a translation is printed as D-NUMBER TAB SCORE TAB TEXT
        by_number = dict(re.findall(r"^D-(\d+)\t[^\t]+\t(.*)$", output, re.MULTILINE))
        return [by_number[str(number)] for number in range(len(self.lines))]


@pytest.fixture(scope="module", params=LANGUAGES)
def model(request, tmp_path_factory):
    """Provide a model of each kind of LANGUAGES that copies its source."""
    pairs = make_corpus({"train": 150, "valid": 1, "test": 1}, nouns=20, verbs=10)["train"]
    plain = [source for source, _ in pairs]
    return CopyingModel(request.param, tmp_path_factory.mktemp(request.param), plain)


@pytest.fixture(scope="module")
def by_fairseq(model) -> list[str]:
    """Provide the lines as fairseq-interactive translates them with this package's model."""
    return model.interactive(model.checkpoint, "--user-dir", USER_DIR)


@pytest.fixture(scope="module")
def ctranslate2_folder(model) -> Path:
    """Provide the model as exported for CTranslate2, which translates fastest."""
    return model.exported("ctranslate2")


# the same translations


def test_the_lines_and_most_of_their_translations_differ(model, by_fairseq):
    """Otherwise equal translations, as the tests below find them, would say little."""
    assert len(set(model.lines)) == 200  # 50 frames of support/odd.py around 4 sentences each
    assert not any(map(is_blank, model.lines))
    assert len(by_fairseq) == 200
    assert len(set(by_fairseq)) > 100  # lines with other characters, all <unk> to the model, may have one translation


def assert_alike(lines: list[str], expected: list[str], translated: list[str]) -> None:
    """Check that all lines but TIES are translated alike."""
    different = []
    for line, one, other in zip(lines, expected, translated, strict=True):
        if one != other:
            different.append((line, one, other))
    assert len(different) <= TIES, different


def test_stock_fairseq_translates_odd_lines_alike(model, by_fairseq):
    """`deepnet export --to transformer` writes a checkpoint that fairseq reads without this package."""
    stock_checkpoint = model.exported("transformer")

    translated = model.interactive(stock_checkpoint)

    assert_alike(model.lines, by_fairseq, translated)


@pytest.mark.parametrize("to", [*EXPORTS, "checkpoint"])
def test_deepnet_translate_translates_odd_lines_as_fairseq_does(model, by_fairseq, to):
    translated = translation.translate(model.exported(to), model.lines, **model.options)

    assert_alike(model.lines, by_fairseq, translated)


def test_our_own_search_translates_odd_lines_as_fairseqs_does(model, by_fairseq, monkeypatch):
    """A checkpoint is translated by our own search, the engine Fairseq, where CTranslate2 is not installed."""
    hide_ctranslate2(monkeypatch)
    languages = {"source": model.source, "target": model.target} if model.is_multilingual else {}
    translator = translation.load(str(model.checkpoint), **languages)

    translated = list(translator.translate(model.lines))

    assert isinstance(translator.engine, translation.Fairseq)
    assert_alike(model.lines, by_fairseq, translated)


@pytest.mark.parametrize("to", EXPORTS)
def test_the_example_in_an_exports_readme_translates(model, by_fairseq, to):
    """The example needs neither fairseq nor this package."""
    places = (0, 50, 120)  # frames ">>{}<<", "{} </s>", and "é {}" with a combining accent
    lines = [model.lines[place] for place in places]
    expected = [by_fairseq[place] for place in places]

    printed = printed_by_example(model.exported(to), lines, forbidden=("fairseq", "deepnet_fairseq"))

    assert printed == repr(expected)


@pytest.mark.parametrize("to", EXPORTS)
def test_the_example_in_an_exports_readme_is_short(model, to):
    """The README has two blocks of code at most. The Python block has 15 lines at most, and a place for the text."""
    folder = model.exported(to)

    fences = re.findall("^```", (folder / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    example = python_example(folder)

    assert 3 <= len(fences) <= 4
    assert len(example.splitlines()) <= 15
    assert PLACE_OF_LINES in example


def test_lines_of_stdin_keep_their_order_and_blank_ones_stay_blank(model, ctranslate2_folder, monkeypatch, capsys):
    """A line of a zero-width space alone is blank too, and the last line needs no newline.

    With 50 tokens a batch the lines are translated in several batches, sorted by their lengths.
    """
    given = [model.lines[0], "", "\u200b", *model.lines[1:30]]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("\n".join(given).encode())))

    main(["translate", str(ctranslate2_folder), "--max-tokens", "50", *model.language_flags])

    *printed, after_last_newline = capsys.readouterr().out.split("\n")
    expected = translation.translate(ctranslate2_folder, model.lines[:30], **model.options)
    assert printed == [expected[0], "", "", *expected[1:]]
    assert after_last_newline == ""


def test_products_in_eight_bits_leave_many_translations_as_they_are(model, ctranslate2_folder):
    """The scores of a small model lie close together, so some translations change; wrong products would change all."""
    lines = model.lines[:40]

    exact = deepnet_fairseq.translate(ctranslate2_folder, lines, int8=False, **model.options)
    int8 = deepnet_fairseq.translate(ctranslate2_folder, lines, int8=True, **model.options)

    same = [one for one, other in zip(exact, int8, strict=True) if one == other]
    assert len(exact) == 40
    assert len(same) > 10


# lines that are too long


@pytest.fixture
def lines_too_long(model) -> list[str]:
    """Provide four lines, of which the second and the last have more tokens than the model has positions."""
    too_long = " ".join([model.lines[9]] * 40)  # several tokens, 40 times
    return [model.lines[0], too_long, model.lines[1], too_long]


def assert_names_lines_2_and_4(line: str) -> None:
    """Check that an error or a warning names lines 2 and 4, and the number of tokens that fit."""
    assert "lines 2, 4: " in line
    assert re.search(rf"\b{POSITIONS}\b", line)


@pytest.mark.parametrize("to", [*EXPORTS, "checkpoint"])
def test_a_file_is_translated_but_for_lines_that_are_too_long(model, to, lines_too_long, tmp_path, capsys):
    """Lines that are too long are empty in the output. A warning at the start and the error at the end name them."""
    file = tmp_path / "lines"
    file.write_text("".join(f"{line}\n" for line in lines_too_long))

    error = refusal("translate", model.exported(to), file, *model.language_flags)

    printed = capsys.readouterr()
    first, third = translation.translate(model.exported(to), model.lines[:2], **model.options)
    assert printed.out.split("\n") == [first, "", third, "", ""]
    (warning,) = [line for line in printed.err.splitlines() if "WARNING" in line]
    assert_names_lines_2_and_4(warning)
    assert_names_lines_2_and_4(error)


def test_a_pipe_is_translated_but_for_lines_that_are_too_long(
    model, ctranslate2_folder, lines_too_long, monkeypatch, capsys
):
    """The line between those that are too long is read and translated."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("\n".join(lines_too_long).encode())))

    error = refusal("translate", ctranslate2_folder, *model.language_flags)

    printed = capsys.readouterr()
    first, third = translation.translate(ctranslate2_folder, model.lines[:2], **model.options)
    assert printed.out.split("\n") == [first, "", third, "", ""]
    assert_names_lines_2_and_4(error)


def test_a_line_that_is_too_long_has_an_empty_line_among_several_translations(
    model, ctranslate2_folder, lines_too_long, tmp_path, capsys
):
    """Lines of --nbest begin with the number of the line that they translate."""
    file = tmp_path / "lines"
    file.write_text("".join(f"{line}\n" for line in lines_too_long))

    refusal("translate", ctranslate2_folder, file, "--nbest", "2", *model.language_flags)

    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [number for number, _score, _text in rows] == ["1", "1", "2", "3", "3", "4"]
    assert [text for number, _score, text in rows if number in ("2", "4")] == ["", ""]


def test_a_line_that_is_too_long_is_refused_in_python(model, ctranslate2_folder, lines_too_long):
    with refused("line 2"):
        deepnet_fairseq.translate(ctranslate2_folder, lines_too_long, **model.options)


def test_many_lines_that_are_too_long_are_counted_and_the_first_ones_named():
    too_long = translation.TooLong()
    for number in range(10, 1010):
        too_long.add(number)

    assert too_long.lines == 1000
    assert too_long.numbers == list(range(10, 18))
    assert "992 more" in str(too_long)


# mistakes


@pytest.fixture
def file_of_a_line(model, tmp_path):
    """Provide a file of one line that can be translated."""
    file = tmp_path / "lines"
    file.write_text(model.lines[0])
    return file


def refused_translation(capsys, *words) -> str:
    """Return the error line with which `deepnet translate WORDS` ends before it prints a translation."""
    capsys.readouterr()
    line = refusal("translate", *words)
    assert capsys.readouterr().out == ""
    return line


def test_a_line_that_is_not_utf_8_is_named_before_any_translation(model, ctranslate2_folder, tmp_path, capsys):
    file = tmp_path / "lines"
    file.write_bytes(model.lines[0].encode() + b"\n\xff\n")

    line = refused_translation(capsys, ctranslate2_folder, file, *model.language_flags)

    assert f"{file}, line 2: " in line
    assert "UTF-8" in line


@pytest.mark.parametrize("flag", ["--beam 0", "--threads 0"])
def test_a_number_of_0_is_refused_by_its_flag(flag, model, ctranslate2_folder, file_of_a_line, capsys):
    line = refused_translation(capsys, ctranslate2_folder, file_of_a_line, *model.language_flags, *flag.split())

    assert f"error: {flag}: " in line


def test_data_are_refused_for_an_export(model, ctranslate2_folder, file_of_a_line, tmp_path, capsys):
    """--data says where a checkpoint's vocabulary is; an exported folder has its own."""
    data = ("--data", tmp_path)

    line = refused_translation(capsys, ctranslate2_folder, file_of_a_line, *model.language_flags, *data)

    assert f"error: --data {tmp_path}: " in line


def test_a_language_that_the_model_does_not_have_is_named(model, ctranslate2_folder, file_of_a_line, capsys):
    languages = ("--source-lang", model.source, "--target-lang", "xx")

    line = refused_translation(capsys, ctranslate2_folder, file_of_a_line, *languages)

    assert "--target-lang xx: " in line


def test_8_bits_are_refused_without_ctranslate2(model, file_of_a_line, capsys):
    words = (model.exported("huggingface"), file_of_a_line, *model.language_flags)

    line = refused_translation(capsys, *words, "--int8")

    assert "--int8: " in line
    assert "CTranslate2" in line


def test_a_missing_file_is_named(model, ctranslate2_folder, tmp_path, capsys):
    missing = tmp_path / "missing"

    line = refused_translation(capsys, ctranslate2_folder, missing, *model.language_flags)

    assert f"{missing}: " in line


def test_a_missing_model_is_named(file_of_a_line, tmp_path, capsys):
    missing = tmp_path / "missing"

    line = refused_translation(capsys, missing, file_of_a_line)

    assert f"{missing}: " in line


@pytest.mark.parametrize("to", ["ctranslate2", "checkpoint"])
def test_a_text_in_the_place_of_the_model_is_named_with_the_right_order(model, to, file_of_a_line, monkeypatch, capsys):
    """The refusal comes before a model is loaded."""
    monkeypatch.setattr(translation, "load", None)  # a call of it would fail
    path = model.exported(to)

    line = refused_translation(capsys, file_of_a_line, path, *model.language_flags)

    assert f"error: {file_of_a_line}: " in line
    assert f"deepnet translate {path} {file_of_a_line}" in line


def test_a_folder_that_is_no_export_is_named_with_the_file_that_it_lacks(file_of_a_line, tmp_path, capsys):
    """translation.NAME is the file in which an export describes its text."""
    line = refused_translation(capsys, tmp_path, file_of_a_line)

    assert f"{tmp_path}: " in line
    assert translation.NAME in line


def test_a_damaged_description_of_an_export_is_named(ctranslate2_folder, file_of_a_line, tmp_path, capsys):
    """The description has one of its keys alone."""
    broken = tmp_path / "broken"
    shutil.copytree(ctranslate2_folder, broken)
    description = broken / translation.NAME
    description.write_text(json.dumps({"pieces": "sentencepiece"}))

    line = refused_translation(capsys, broken, file_of_a_line)

    assert f"{description}: " in line


def test_a_line_in_place_of_a_list_is_refused_in_python(ctranslate2_folder):
    with refused("lines"):
        deepnet_fairseq.translate(ctranslate2_folder, "one line")
