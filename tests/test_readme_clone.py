"""The clone that the README is tried in: its files, its environment, its programs made small; and the record."""

from __future__ import annotations

import re
import shlex
import subprocess

import pytest
from fairseq import options

from .readme import __main__ as record
from .readme import clone, smaller
from .readme.shell import Shell, reader_environment
from .support.helpers import ROOT

PAGE = """# One
```bash
true
false |
  cat   # said
```
<!-- not run: needs eight GPUs -->
```bash
exit 9
```
```bash
echo not asked for
```
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return clone.make_clone(tmp_path_factory.mktemp("a reader") / "deepnet fairseq")


def test_clone_is_what_git_knows(root):
    there = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and ".venv" not in path.parts}
    known = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    texts = {f"corpus/{split}.{side}" for split in ("train", "valid", "test") for side in ("de", "en")}
    assert there - texts == {name for name in known if name and (ROOT / name).exists()}


def test_clone_is_set_up_and_runs_its_own_package(root):
    """Only once it is activated, as the page must say."""
    shell = Shell(root, reader_environment())
    assert shell.run("deepnet --help").status == 127
    done = shell.run("scripts/setup.sh")
    assert (done.status, done.output) == (0, "")
    found = "from importlib.util import find_spec; print(find_spec('deepnet_fairseq').origin, find_spec('torch').name)"
    printed = shell.run(f'source .venv/bin/activate; python -c "{found}"').output
    assert printed == f"{root}/deepnet_fairseq/__init__.py torch\n"
    assert shell.run("command -v fairseq-train").output == f"{root}/.venv/bin/fairseq-train\n"


ARCHS = {
    "deepnet_transformer_100_100": "translation",
    "deepnet_lm_24": "language_modeling",
    "deepnet_masked_lm_12": "masked_lm",
    "normformer_lm_125m": "language_modeling",
}


@pytest.mark.parametrize("arch", ARCHS)
def test_training_is_made_small(arch, tmp_path):
    """The parser takes all of it, and the last of two values."""
    flags = ["--max-update=900", "--max-tokens", "4096", "--fp16", "--distributed-world-size", "8"]
    made = smaller.train([str(tmp_path), "--arch", arch, "--task", ARCHS[arch], *flags])
    parsed = options.parse_args_and_arch.__wrapped__(options.get_training_parser(), made)
    assert (parsed.max_update, parsed.distributed_world_size, parsed.cpu, parsed.fp16) == (6, 2, True, False)
    sizes = {
        value
        for name, value in vars(parsed).items()
        if re.fullmatch("(en|de)coder_((ffn_)?embed_dim|attention_heads|layers)", name)
    }
    assert sizes == {16, 32, 2}


def test_words_that_are_made_small():
    assert smaller.given(["--a-b", "1", "x", "--a_b=2", "a-b", "3"], a_b="9") == [
        "--a-b",
        "9",
        "x",
        "--a_b=9",
        "a-b",
        "3",
    ]
    assert smaller.torchrun(["--nproc-per-node=8", "--no-python", "p"]) == ["--nproc-per-node=2", "--no-python", "p"]
    assert smaller.stacks(["fairseq-generate", "data"]) == []
    assert "tests/test_links.py" in smaller.pytest(["-n", "2"]) and "tests/test_links.py" not in smaller.pytest(
        ["-k", "x"]
    )
    assert smaller.deepnet(["methods"]) == ["methods"] and smaller.pip(["list"]) == ["list"]


def test_small_programs_and_back(tmp_path):
    """A real clone's programs, which get their own words again."""
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name in ("python3", *smaller.PROGRAMS):
        (programs / name).write_text('#!/bin/sh\necho "$@"\n')
        (programs / name).chmod(0o755)
    real = {path.name: path.read_text() for path in programs.iterdir()}
    with clone.small_programs(tmp_path):
        text = (programs / "fairseq-train").read_text()
        assert shlex.split(text.splitlines()[1])[4:7] == [
            str(clone.STAND_IN), "fairseq-train", str(tmp_path / ".venv/real/fairseq-train"),
        ]  # fmt: skip
    assert {path.name: path.read_text() for path in programs.iterdir()} == real


def test_record_of_a_clone(tmp_path, monkeypatch, capsys):
    (tmp_path / "README.md").write_text(PAGE)
    out = tmp_path / "table.md"
    monkeypatch.setattr("sys.argv", ["readme", str(tmp_path), "--blocks", "1-2", "--out", str(out)])
    assert record.main() == 1
    table = re.sub(r"\d\.\d s", "T", out.read_text())
    assert table.splitlines()[4:] == [
        "| 1 One | `true` | printed | 0 | T |",
        "| 1 One | `false \\| cat` | printed | 1 | T |",
        "| 2 One | | not run: needs eight GPUs | | |",
    ]
    assert capsys.readouterr().out == out.read_text()
