"""Tests of `deepnet translate`: four programs translate two hundred odd lines alike; users' mistakes."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import sys

import pytest
import torch

import deepnet_fairseq
from deepnet_fairseq.cli import main
from deepnet_fairseq.data.lines import is_blank
from deepnet_fairseq.errors import UserError
from deepnet_fairseq.plugin.building import from_checkpoint
from deepnet_fairseq.tools import translation

from ..conftest import SPLITS, TRAIN_FLAGS
from ..support.helpers import USER_DIR, run, sentences, teach
from ..support.odd import odd_lines

POSITIONS = 60
SMALL = (
    "--arch", "deepnet_transformer_tiny", "--encoder-layers", "2", "--decoder-layers", "2", "--encoder-embed-dim", "32",
    "--decoder-embed-dim", "32", "--dropout", "0", "--max-source-positions", POSITIONS, "--max-target-positions",
    POSITIONS, "--max-update", "1",
)  # fmt: skip
TAGS = ("--encoder-langtok", "tgt", "--decoder-langtok")
SEARCH = ("--cpu", "--beam", "5", "--max-len-b", POSITIONS - 1, "--unkpen", "1e9", "--buffer-size", "300",
          "--max-tokens", "2000", "--bpe", "sentencepiece")  # fmt: skip
LANGS = {"pair": ("qaa", "qab"), "many": ("de", "en")}


class Case:
    """Model that copies its source, its data, and the flags for fairseq's programs."""

    def __init__(self, kind: str, folder, plain: list[str]):
        self.source, self.target = LANGS[kind]
        self.lines, self.folder, text = odd_lines(plain), folder / "made", folder / "text" / "-".join(LANGS[kind])
        text.mkdir(parents=True)
        data = self.folder / "bin"
        for split in SPLITS:
            for lang in LANGS[kind]:
                (text / f"{split}.{lang}").write_text("".join(f"{line}\n" for line in [*self.lines, *plain]))
        if kind == "pair":
            self.folder.mkdir()
            prefixes = [text / split for split in SPLITS]
            main(["prepare", "text", *LANGS[kind], *map(str, prefixes), str(data), "--vocab", "400"])
            self.flags: tuple = (data,)
        else:
            words = ("--from", text.parent, "--vocab", "400", "--workers", "1")
            main(["prepare", "corpus", "multilingual", str(self.folder), *map(str, words)])
            self.flags = (
                data, "--task", "translation_multi_simple_epoch", "--lang-dict", data / "langs.txt",
                "--lang-pairs", "de-en,en-de", *TAGS,
            )  # fmt: skip
        self.path, self.languages = self.folder / "checkpoint_last.pt", () if kind == "pair" else LANGS[kind]
        run("fairseq-train", *self.flags, *TRAIN_FLAGS, *SMALL, "--save-dir", self.folder)
        state, (model, _) = torch.load(self.path), from_checkpoint(str(self.path))
        vocab = model.encoder.embed_tokens.num_embeddings

        def to_copy(step):
            source = sentences(64, vocab - len(self.languages), seed=step)[32:]
            source[:, 0] = vocab - 1 - step % 2 if self.languages else source[:, 0]  # a tag begins both sides
            return (source, None, source.roll(1, 1)), source

        teach(model, 600, to_copy, lr=4e-3)
        torch.save(state | {"model": model.state_dict()}, self.path)

    def language_flags(self) -> list[str]:
        flags = zip(("--source-lang", "--target-lang"), self.languages, strict=False)
        return [word for pair in flags for word in pair]

    def options(self) -> dict[str, str]:
        return dict(zip(("source_lang", "target_lang"), self.languages, strict=False))

    def interactive(self, path, *flags) -> list[str]:
        """Translate by fairseq-interactive."""
        file = self.folder / "lines"
        file.write_text("".join(f"{line}\n" for line in self.lines))
        model = ("--sentencepiece-model", self.folder / ("spm.model" if self.languages else "bin/spm.model"))
        output = run(
            "fairseq-interactive", *self.flags, "-s", self.source, "-t", self.target, *SEARCH, *model, "--path", path,
            "--input", file, *flags,
        ).stdout  # fmt: skip
        by_number = dict(re.findall(r"^D-(\d+)\t[^\t]+\t(.*)$", output, re.MULTILINE))
        return [by_number[str(number)] for number in range(len(self.lines))]


@pytest.fixture(scope="module", params=LANGS)
def case(request, tmp_path_factory):
    from deepnet_fairseq.data.language import make_corpus

    plain = [pair[0] for pair in make_corpus({"train": 150, "valid": 1, "test": 1}, nouns=20, verbs=10)["train"]]
    return Case(request.param, tmp_path_factory.mktemp(request.param), plain)


def export(case, to: str):
    """Export the model once; pytest captures the output."""
    out = case.folder / to
    if not out.exists():
        main(["export", str(case.path), "--to", to, "--out", str(out)])
    return out


def test_four_programs_translate_two_hundred_odd_lines_alike(case, capfd):
    """Lines of text are translated alike by fairseq-interactive, stock fairseq, CTranslate2, transformers and us."""
    ours = case.interactive(case.path, "--user-dir", USER_DIR)
    others = {"plain fairseq": case.interactive(export(case, "transformer"))}
    options = case.options()
    for to in ("ctranslate2", "huggingface"):
        others[to] = translation.translate(export(case, to), case.lines, **options)
    others["checkpoint"] = translation.translate(case.path, case.lines, **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("importlib.util.find_spec", lambda name, find=translation.importlib.util.find_spec: (
            None if name == "ctranslate2" else find(name)))  # fmt: skip
        own = translation.load(str(case.path), None, *(case.languages or (None, None)))
    assert isinstance(own.engine, translation.Fairseq)
    others["our own"] = list(own.translate(case.lines))
    different = {name: [pair for pair in zip(case.lines, ours, lines, strict=True) if pair[1] != pair[2]]
                 for name, lines in others.items()}  # fmt: skip
    assert len(ours) == len(set(case.lines)) == 200 and not any(map(is_blank, case.lines))
    assert all(len(rows) <= 2 for rows in different.values()), different
    assert len(set(ours)) > 100


def test_the_folders_readme_translates(case, capfd):
    """The Python example in an export's README translates without fairseq and this package."""
    wanted = [case.interactive(case.path, "--user-dir", USER_DIR)[place] for place in (0, 50, 120)]
    lines = [case.lines[place] for place in (0, 50, 120)]
    for to in ("ctranslate2", "huggingface"):
        folder = export(case, to)
        readme = (folder / "README.md").read_text(encoding="utf-8")
        assert 3 <= len(re.findall("^```", readme, re.MULTILINE)) <= 4
        code = re.search(r"```python\n(.*?)```", readme, re.DOTALL).group(1)
        assert len(code.splitlines()) <= 15 and '["..."]' in code
        forbid = "import sys\nfor name in ('fairseq', 'deepnet_fairseq'): sys.modules[name] = None\n"
        given = code.replace('["..."]', repr(lines))
        done = subprocess.run([sys.executable, "-c", forbid + given], cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == repr(wanted)


def test_stdin_blank_lines_and_order(case, monkeypatch, capsys):
    """Lines from stdin keep their order, blank ones stay blank, and the last needs no newline."""
    folder, given = export(case, "ctranslate2"), [case.lines[0], "", "\u200b", *case.lines[1:30]]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("\n".join(given).encode())))
    main(["translate", str(folder), "--max-tokens", "50", *case.language_flags()])
    lines = capsys.readouterr().out.split("\n")
    assert len(lines) == len(given) + 1 and lines[1] == lines[2] == lines[-1] == ""
    wanted = translation.translate(folder, case.lines[:30], **case.options())
    assert [line for line in lines if line] == wanted


def refused(words, message: str, capsys) -> None:
    """Check that a command ends in one line and prints no translation."""
    with pytest.raises(SystemExit, match=f"^deepnet: error: [^\n]*{message}[^\n]*$"):
        main(["translate", *map(str, words)])
    assert capsys.readouterr().out == ""


def test_what_users_give_wrong(case, tmp_path, capsys):
    """Mistakes are named before any translation: the line that is too long or not UTF-8, or the flag."""
    folder, file = export(case, "ctranslate2"), tmp_path / "lines"
    languages = case.language_flags()
    long = " ".join([case.lines[9]] * 40)
    file.write_text(f"{case.lines[0]}\n{long}\n")
    for model in (folder, export(case, "huggingface"), case.path):
        capsys.readouterr()
        refused([model, file, *languages], rf"line 2: is \d+ tokens long.* positions for {POSITIONS}; split", capsys)
    file.write_bytes(case.lines[0].encode() + b"\n\xff\n")
    refused([folder, file, *languages], "lines, line 2: not UTF-8", capsys)
    file.write_text(case.lines[0])
    for words, message in {
        ("--beam", "0"): "--beam 0: must be at least 1", ("--threads", "0"): "--threads 0: must be at least 1",
        ("--data", tmp_path): "--data .*only with a checkpoint", ("--target-lang", "xx"): "--(source|target)-lang",
    }.items():  # fmt: skip
        refused([folder, file, *(languages if "--target-lang" not in words else ()), *words], message, capsys)
    refused([folder, tmp_path / "missing", *languages], "missing: no such file", capsys)
    refused([tmp_path / "missing", file], "missing: no such file or folder; give a checkpoint", capsys)
    refused([tmp_path, file], "lacks translation.json; export", capsys)
    refused([export(case, "huggingface"), file, *languages, "--int8"], "--int8: only with CTranslate2", capsys)
    shutil.copytree(folder, tmp_path / "broken")
    (tmp_path / "broken" / translation.NAME).write_text(json.dumps({"pieces": "sentencepiece"}))
    refused([tmp_path / "broken", file], "translation.json: is not as", capsys)
    with pytest.raises(UserError, match="give a list"):
        deepnet_fairseq.translate(folder, "one line")


def test_products_in_8_bits_change_little(case):
    folder, lines = export(case, "ctranslate2"), case.lines[:40]
    exact, int8 = (deepnet_fairseq.translate(folder, lines, int8=on, **case.options()) for on in (False, True))
    assert len(exact) == len(int8) == 40 and sum(map(str.__eq__, exact, int8)) > 10
