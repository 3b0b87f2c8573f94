"""Tests of the installed package: its version, two names of its command, its annotations, and no other files.

The wheel is tried in environments of links to this one's packages, with torch alone and with its requirements.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import packaging.requirements
import pytest

from deepnet_fairseq import __version__, cli
from deepnet_fairseq.cli import corpora

from ..support.errors import assert_refused
from ..support.helpers import ROOT, run_cold

PLAN = "plan --arch deepnet_transformer_tiny_6_6"
WAY = "pip install --no-build-isolation fairseq-fixed (docs/install.md)"
ALONE = """import torch
from deepnet_fairseq.core import EOS, beam_search, build, load, save
model = build("deepnet_transformer_tiny_6_6", vocab=30, method="deepnorm", dropout=0.0, share_all_embeddings=True)
tokens = torch.randint(4, 30, (2, 6))
model(tokens, None, tokens)[0].sum().backward()
save(model, "model.pt")
print(len(beam_search(load("model.pt"), tokens)))"""


def test_version_is_the_packages(capsys):
    """The version is the same in the package, in pip's metadata and in the changelog's newest entry."""
    with pytest.raises(SystemExit) as end:
        cli.main(["--version"])
    newest = re.search(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE).group(1)
    assert (end.value.code, capsys.readouterr().out) == (0, f"deepnet_fairseq {newest}\n")
    assert __version__ == newest == metadata.version("deepnet_fairseq")


@pytest.mark.parametrize("words", ["--help", "--version", "methods --archs", "methods deepnorm", "methods", PLAN])
def test_commands_import_what_they_use(words):
    """`python -m deepnet_fairseq` shows help without importing torch, and models and plans without fairseq."""
    printed = run_cold("python", "-X", "importtime", "-m", "deepnet_fairseq", *words.split()).stdout
    loaded = {line.split("|")[-1].strip() for line in printed.splitlines() if line.startswith("import time:")}
    assert "deepnet_fairseq.cli" in loaded
    slow = {"fairseq", "hydra", "omegaconf"} | ({"torch._dynamo"} if words != PLAN else set())  # fake tensors
    assert loaded.isdisjoint({"torch"} if words[0] == "-" else slow)


MISSING = {"fairseq.data": f"needs fairseq; {WAY}", "sacrebleu.metrics": "needs sacrebleu; pip install it"}


@pytest.mark.parametrize("module", MISSING)
def test_what_is_not_installed_is_named_with_the_way_to_it(module, monkeypatch):
    def register():
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    monkeypatch.setattr(corpora, "register", register)
    assert_refused(MISSING[module], "prepare", "text", "qaa", "qab", "train", "valid", "test", "data")


class Installation:
    """Environment with a wheel and, by links, some of this environment's packages and their requirements."""

    def __init__(self, folder: Path, wheel: Path, *wanted: str):
        """Make the environment. wanted: packages, or "" for the wheel's own requirements, "[data]" for an extra's."""
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        self.bin, (self.site,) = folder / "bin", folder.glob("lib/python*/site-packages")
        install = ["--python", self.bin / "python", "install", "--no-deps", "--no-index", wheel]
        subprocess.run([sys.executable, "-m", "pip", *install], check=True, capture_output=True)
        (ours,) = metadata.distributions(path=[str(self.site)])
        needed = []
        for entry in wanted:
            own = entry == "" or entry.startswith("[")
            needed += required(ours, entry.strip("[]")) if own else [entry]
        for package in closure(needed):
            self.link(package)

    def link(self, package: metadata.Distribution) -> None:
        """Link a package's modules, and fairseq's programs."""
        for name in {file.parts[0] for file in package.files or ()} - {"..", "__pycache__"}:
            if not name.endswith(".pth") and not (self.site / name).exists():
                (self.site / name).symlink_to(package.locate_file(name))
        if "fairseq_cli" in {file.parts[0] for file in package.files or ()}:
            for entry in package.entry_points.select(group="console_scripts"):
                text = f"#!{self.bin}/python\nfrom {entry.module} import {entry.attr}\n{entry.attr}()\n"
                (self.bin / entry.name).write_text(text)
                (self.bin / entry.name).chmod(0o755)

    def run(self, command: str, folder: Path, check=True) -> subprocess.CompletedProcess:
        """Run a command by bash, with this environment's programs on PATH."""
        environment = os.environ | {"PATH": f"{self.bin}:/usr/bin:/bin", "OMP_NUM_THREADS": "1", "PYTHONPATH": ""}
        done = subprocess.run(
            ["bash", "-euc", command], cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=600,
        )  # fmt: skip
        assert not check or done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done


def required(package: metadata.Distribution, extra: str = "") -> list[str]:
    """Return the names that a package requires, with those of an extra."""
    wanted = [packaging.requirements.Requirement(text) for text in package.requires or ()]
    return [entry.name for entry in wanted if entry.marker is None or entry.marker.evaluate({"extra": extra})]


def closure(names: Iterable[str]) -> list[metadata.Distribution]:
    """Return the installed packages of these names, and all that they require."""
    packages: dict[str, metadata.Distribution] = {}
    waiting = list(names)
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name not in packages:
            try:
                packages[name] = metadata.distribution(name)
            except metadata.PackageNotFoundError:  # requirement of a torch build for another machine
                continue
            waiting += required(packages[name])
    return list(packages.values())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Provide a wheel built from the sdist of a copy of the tree."""
    folder = tmp_path_factory.mktemp("built")
    tree = folder / "tree"
    shutil.copytree(ROOT / "deepnet_fairseq", tree / "deepnet_fairseq", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    build = f"from setuptools import build_meta; build_meta.build_sdist({str(folder)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=tree, check=True, capture_output=True)
    (sdist,) = folder.glob("*.tar.gz")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", folder, sdist]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.mark.smoke
def test_wheel_holds_the_package_and_nothing_else(wheel):
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    there = (path for path in (ROOT / "deepnet_fairseq").rglob("*") if path.is_file() and path.suffix != ".pyc")
    assert held == {path.relative_to(ROOT).as_posix() for path in there}
    assert "deepnet_fairseq/py.typed" in held


@pytest.mark.smoke
def test_wheel_and_fairseq_train(wheel, tmp_path):
    """The wheel suffices for `deepnet quickstart`, and for fairseq-train with `deepnet path`."""
    installed = Installation(tmp_path / "environment", wheel, "", "fairseq-fixed")
    assert installed.run("deepnet path", tmp_path).stdout == f"{(installed.site / 'deepnet_fairseq').resolve()}\n"
    printed = installed.run("deepnet quickstart --methods deepnorm --depth 2 --updates 25", tmp_path).stdout
    assert re.search(r"^deepnorm +2L-2L +1e-3 +\d+\.\d+ +\d+\.\d \(too short\) +\d+ s ", printed, re.MULTILINE), printed
    run = tmp_path / "quickstart/2L-2L-25-updates-seed1/deepnorm-lr1e-3"
    command = "deepnet compare quickstart/data --methods deepnorm --depths 2 --lrs 1e-3 --seeds 1 --updates=25"
    assert (run / "command").read_text().startswith(command)
    assert json.loads((run / "environment.json").read_text())["commit"] is None
    flags = "--arch deepnet_transformer_tiny_6_6 --optimizer adam --max-tokens 4000 --max-update 1 --no-save --cpu"
    done = installed.run(f'fairseq-train quickstart/data --user-dir "$(deepnet path)" {flags}', tmp_path)
    assert "num_updates" in done.stdout + done.stderr


@pytest.mark.smoke
def test_wheel_and_reproduce(wheel, tmp_path):
    """The wheel has the experiments, and makes a row of a table in an empty folder; methods of a checkout are named."""
    installed = Installation(tmp_path / "environment", wheel, "[data]", "fairseq-fixed")
    folder = tmp_path / "empty"
    folder.mkdir()
    row = "--methods deepnorm --depths 2 --jobs 1 -- --max-update 20 --save-interval-updates 10"
    printed = installed.run(f"deepnet reproduce table1 --smoke {row}", folder).stdout
    score = json.loads((folder / "runs-smoke/table1/deepnorm-2-seed1/score.json").read_text())
    assert f"{score['bleu']:.2f}" in printed and (folder / "runs-smoke/table1.md").exists()

    done = installed.run("deepnet reproduce inverted_gain_lm --dry-run=commands", folder, check=False)
    assert done.returncode == 1 and "examples/inverted_gain" in done.stderr.splitlines()[-1]


@pytest.mark.smoke
def test_wheel_and_torch_alone(wheel, tmp_path):
    """The wheel on torch alone builds, trains and decodes a model; a command that needs more names it in one line."""
    installed = Installation(tmp_path / "environment", wheel, "torch")
    assert not (installed.site / "fairseq").exists() and not (installed.site / "numpy").exists()
    (tmp_path / "alone.py").write_text(ALONE)
    assert installed.run("python alone.py", tmp_path).stdout == "2\n"
    assert "encoder alpha  1.417938 " in installed.run("deepnet methods deepnorm", tmp_path).stdout
    assert re.search("fits into 80 GiB.* as it is", installed.run(f"deepnet {PLAN}", tmp_path).stdout)
    done = installed.run("deepnet check data --max-tokens 4096", tmp_path, check=False)
    message = done.stderr.splitlines()[-1]  # torch warns before it that numpy is missing
    assert (done.returncode, message) == (1, f"deepnet: error: needs fairseq; {WAY}")
