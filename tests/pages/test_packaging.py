"""Tests of the package as it is installed: its version, what a command imports, and what a wheel holds and can do.

The wheel is installed in new environments, with links to packages of this one: torch alone, or all that it requires.
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
from typing import NamedTuple

import packaging.requirements
import pytest

from deepnet_fairseq import __version__, cli
from deepnet_fairseq.cli import corpora

from ..support.errors import assert_refused
from ..support.helpers import ROOT, run_cold

PLAN = "plan --arch deepnet_transformer_tiny_6_6"
INSTALL_FAIRSEQ = "pip install --no-build-isolation fairseq-fixed"
# A program that builds a model, trains, saves and loads it, decodes two sentences and prints the number of results.
ALONE = """import torch
from deepnet_fairseq.core import EOS, beam_search, build, load, save
model = build("deepnet_transformer_tiny_6_6", vocab=30, method="deepnorm", dropout=0.0, share_all_embeddings=True)
tokens = torch.randint(4, 30, (2, 6))
model(tokens, None, tokens)[0].sum().backward()
save(model, "model.pt")
print(len(beam_search(load("model.pt"), tokens)))"""


@pytest.fixture
def newest_version():
    """Provide the version of the changelog's newest entry."""
    return re.search(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[1]


def test_the_version_is_that_of_the_changelog_s_newest_entry(newest_version):
    assert __version__ == newest_version


def test_pip_and_the_package_have_the_same_version():
    assert metadata.version("deepnet_fairseq") == __version__


def test_the_command_prints_the_version(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])

    assert ended.value.code == 0
    assert capsys.readouterr().out == f"deepnet_fairseq {__version__}\n"


OF_FAIRSEQ = {"fairseq", "hydra", "omegaconf"}
SLOW = OF_FAIRSEQ | {"torch._dynamo"}  # libraries that are slow to import


@pytest.mark.parametrize(
    "words, unused",  # unused: modules that the command does without
    [
        ("--help", {"torch"}),
        ("--version", {"torch"}),
        ("methods --archs", SLOW),
        ("methods deepnorm", SLOW),
        ("methods", SLOW),
        (PLAN, OF_FAIRSEQ),  # a plan's fake tensors need torch._dynamo
        ("reproduce table1 --no-plan --dry-run", SLOW),
    ],
)
def test_a_command_does_not_import_what_it_does_not_use(words, unused):
    printed = run_cold("python", "-X", "importtime", "-m", "deepnet_fairseq", *words.split()).stdout

    imported = {line.split("|")[-1].strip() for line in printed.splitlines() if line.startswith("import time:")}
    assert "deepnet_fairseq.cli" in imported
    assert imported.isdisjoint(unused)


@pytest.mark.parametrize(
    "module, facts",
    [
        ("fairseq.data", ("fairseq", INSTALL_FAIRSEQ, "docs/install.md")),
        ("sacrebleu.metrics", ("sacrebleu", "pip install")),
    ],
)
def test_a_library_that_is_missing_is_named_with_the_way_to_install_it(module, facts, monkeypatch):
    def fails():
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    monkeypatch.setattr(corpora, "register", fails)  # which `deepnet prepare text` calls first

    for fact in facts:
        assert_refused(fact, "prepare", "text", "qaa", "qab", "train", "valid", "test", "data")


class Installation:
    """Environment with a wheel and, by links, some of this environment's packages and their requirements."""

    def __init__(self, folder: Path, wheel: Path, *wanted: str):
        """Make the environment.

        wanted: names of packages; "" for all that the wheel requires, "[data]" for that and what its extra requires.
        """
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        self.bin = folder / "bin"
        (self.site,) = folder.glob("lib/python*/site-packages")
        install = ["--python", self.bin / "python", "install", "--no-deps", "--no-index", wheel]
        subprocess.run([sys.executable, "-m", "pip", *install], check=True, capture_output=True)
        (installed_wheel,) = metadata.distributions(path=[str(self.site)])
        needed = []
        for entry in wanted:
            if entry == "" or entry.startswith("["):
                needed += required(installed_wheel, extra=entry.strip("[]"))
            else:
                needed.append(entry)
        for package in closure(needed):
            self.link(package)

    def link(self, package: metadata.Distribution) -> None:
        """Link a package's modules, and write fairseq's programs."""
        tops = {file.parts[0] for file in package.files or ()}  # modules, folders, and ".." for programs
        for name in tops - {"..", "__pycache__"}:
            if not name.endswith(".pth") and not (self.site / name).exists():
                (self.site / name).symlink_to(package.locate_file(name))
        if "fairseq_cli" in tops:
            for entry in package.entry_points.select(group="console_scripts"):
                program = self.bin / entry.name
                program.write_text(f"#!{self.bin}/python\nfrom {entry.module} import {entry.attr}\n{entry.attr}()\n")
                program.chmod(0o755)

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
    """Provide the file of a wheel built from the sdist of a copy of the tree."""
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


@pytest.fixture(scope="module")
def with_fairseq(wheel, tmp_path_factory):
    """Provide an environment of the wheel, what it requires, and fairseq."""
    return Installation(tmp_path_factory.mktemp("with-fairseq") / "environment", wheel, "", "fairseq-fixed")


@pytest.fixture(scope="module")
def for_experiments(wheel, tmp_path_factory):
    """Provide an environment of the wheel with its extra for data, and fairseq."""
    return Installation(tmp_path_factory.mktemp("experiments") / "environment", wheel, "[data]", "fairseq-fixed")


@pytest.fixture(scope="module")
def on_torch_alone(wheel, tmp_path_factory):
    """Provide an environment of the wheel and torch, without fairseq and numpy."""
    installed = Installation(tmp_path_factory.mktemp("torch-alone") / "environment", wheel, "torch")
    assert not (installed.site / "fairseq").exists()
    assert not (installed.site / "numpy").exists()
    return installed


@pytest.mark.smoke
def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    files = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}

    expected = set()
    for path in (ROOT / "deepnet_fairseq").rglob("*"):
        if path.is_file() and path.suffix != ".pyc":
            expected.add(path.relative_to(ROOT).as_posix())
    assert files == expected
    assert "deepnet_fairseq/py.typed" in files  # says that the package has annotations


@pytest.mark.smoke
def test_deepnet_path_prints_the_folder_of_the_installed_package(with_fairseq, tmp_path):
    printed = with_fairseq.run("deepnet path", tmp_path).stdout

    assert printed == f"{(with_fairseq.site / 'deepnet_fairseq').resolve()}\n"


class Quickstart(NamedTuple):
    """The folder in which `deepnet quickstart` has run from the wheel, and what it printed."""

    folder: Path
    printed: str


@pytest.fixture(scope="module")
def quickstart(with_fairseq, tmp_path_factory):
    folder = tmp_path_factory.mktemp("quickstart")
    done = with_fairseq.run("deepnet quickstart --methods deepnorm --depth 2 --updates 25", folder)
    return Quickstart(folder, done.stdout)


@pytest.mark.smoke
def test_the_wheel_suffices_for_the_quickstart(quickstart):
    # method, depth, learning rate, loss, BLEU, which 25 updates are too few for, and seconds
    row = r"^deepnorm +2L-2L +1e-3 +\d+\.\d+ +\d+\.\d \(too short\) +\d+ s "

    assert re.search(row, quickstart.printed, re.MULTILINE), quickstart.printed


@pytest.mark.smoke
def test_a_quickstart_of_the_wheel_records_its_command_and_no_commit(quickstart):
    """The commit is that of the package's checkout, which a wheel does not have."""
    run = quickstart.folder / "quickstart/2L-2L-25-updates-seed1/deepnorm-lr1e-3"

    command = "deepnet compare quickstart/data --methods deepnorm --depths 2 --lrs 1e-3 --seeds 1 --updates=25"
    assert (run / "command").read_text().startswith(command)
    assert json.loads((run / "environment.json").read_text())["commit"] is None


@pytest.mark.smoke
def test_fairseq_train_takes_the_wheel_by_its_path(quickstart, with_fairseq):
    flags = "--arch deepnet_transformer_tiny_6_6 --optimizer adam --max-tokens 4000 --max-update 1 --no-save --cpu"

    done = with_fairseq.run(f'fairseq-train quickstart/data --user-dir "$(deepnet path)" {flags}', quickstart.folder)

    assert "num_updates" in done.stdout + done.stderr


@pytest.mark.smoke
def test_the_wheel_makes_a_row_of_a_table_in_an_empty_folder(for_experiments, tmp_path):
    row = "--methods deepnorm --depths 2 --jobs 1 -- --max-update 20 --save-interval-updates 10"

    printed = for_experiments.run(f"deepnet reproduce table1 --smoke {row}", tmp_path).stdout

    score = json.loads((tmp_path / "runs-smoke/table1/deepnorm-2-seed1/score.json").read_text())
    assert f"{score['bleu']:.2f}" in printed
    assert (tmp_path / "runs-smoke/table1.md").exists()


@pytest.mark.smoke
def test_methods_that_only_a_checkout_has_are_named(for_experiments, tmp_path):
    done = for_experiments.run("deepnet reproduce inverted_gain_lm --dry-run=commands", tmp_path, check=False)

    assert done.returncode == 1
    assert "examples/inverted_gain" in done.stderr.splitlines()[-1]


@pytest.mark.smoke
def test_torch_alone_builds_trains_and_decodes_a_model(on_torch_alone, tmp_path):
    (tmp_path / "alone.py").write_text(ALONE)

    printed = on_torch_alone.run("python alone.py", tmp_path).stdout

    assert printed == "2\n"  # sentences


@pytest.mark.smoke
def test_torch_alone_lists_coefficients(on_torch_alone, tmp_path):
    printed = on_torch_alone.run("deepnet methods deepnorm", tmp_path).stdout

    alpha = 0.81 * (6**4 * 6) ** (1 / 16)  # of DeepNet's Figure 2, at 6L-6L
    assert re.search(rf"encoder alpha +{re.escape(f'{alpha:.6f}')} ", printed)


@pytest.mark.smoke
def test_torch_alone_plans_a_training(on_torch_alone, tmp_path):
    printed = on_torch_alone.run(f"deepnet {PLAN}", tmp_path).stdout

    assert re.search(r"80 GiB.* as it is", printed)  # of a GPU, on which the training fits as it is


@pytest.mark.smoke
def test_a_command_that_torch_alone_cannot_run_names_fairseq_in_one_line(on_torch_alone, tmp_path):
    done = on_torch_alone.run("deepnet check data --max-tokens 4096", tmp_path, check=False)

    assert done.returncode == 1
    refusal = done.stderr.splitlines()[-1]  # torch warns before it that numpy is missing
    assert refusal.startswith("deepnet: error: ")
    assert INSTALL_FAIRSEQ in refusal
    assert "Traceback" not in done.stderr
