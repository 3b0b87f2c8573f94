"""Tests that methods in a folder outside the package pass the tests of the registry, and that commands take them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from ..conftest import TRAIN_FLAGS
from ..support.errors import assert_one_line
from ..support.helpers import ROOT, USER_DIR, run, run_cold
from ..support.lives import TINY

# Each text is a module with one method; write_methods puts IMPORTS below its docstring.
IMPORTS = """
import torch
from torch import nn
from torch.nn import functional as F
from deepnet_fairseq.core.methods import Method, register
from deepnet_fairseq.core.pass_state import pass_state
from deepnet_fairseq.core.slots import Residual
"""
METHODS = {
    "value_residual": '''
        """Every self-attention adds a learned share of the first layer's values to its own (state of one pass)."""


        class FirstValues(nn.Module):
            def __init__(self):
                super().__init__()
                self.share = nn.Parameter(torch.tensor(0.5))

            def forward(self, x, role):
                if role != "v":
                    return x
                return x + self.share * (pass_state().setdefault("first_values", x) - x)


        class Keep(nn.Module):
            """Notes the values of the first layer."""

            def forward(self, x, role):
                return pass_state().setdefault("first_values", x) if role == "v" else x


        @register("value_residual")
        class ValueResidual(Method):
            equation = "x + f(LN(x)), values mixed with the first layer's"
            paper = "a test"
            norm = "pre"

            def heads(self, site, dim):
                if site.sublayer == "self_attn":
                    return Keep() if site.layer == 1 else FirstValues()
    ''',
    "earlier_layers": '''
        """Each branch reads a learned sum over the shortcuts of all branches before it, a weight each."""


        class Sum(nn.Module):
            def __init__(self, count):
                super().__init__()
                self.weights = nn.Parameter(torch.full((count,), 0.1))

            def forward(self, x):
                seen = pass_state().setdefault("seen", [])
                seen.append(x)
                return x + sum(weight * one for weight, one in zip(self.weights, seen, strict=True))


        @register("earlier_layers")
        class EarlierLayers(Method):
            equation = "LN(x + f(x + sum_k w_k x_k))"
            paper = "a test"

            def before(self, site):
                branches = self.sublayers(site.stack)
                return Sum((site.layer - 1) * len(branches) + branches.index(site.sublayer) + 1)
    ''',
    "tanh_norm": '''
        """tanh in place of the LayerNorm in front of each branch (Zhu et al. 2025, DyT)."""


        class DyT(nn.Module):
            def __init__(self, dim):
                super().__init__()
                self.a, self.gain = nn.Parameter(torch.tensor(0.5)), nn.Parameter(torch.ones(dim))
                self.bias = nn.Parameter(torch.zeros(dim))

            def forward(self, x):
                return self.gain * torch.tanh(self.a * x) + self.bias


        @register("tanh_norm")
        class TanhNorm(Method):
            equation = "x + f(tanh(a x))"
            paper = "a test"
            norm = "none"

            def before(self, site):
                return DyT(site.dim)

            def ending(self, stack, dim):
                return DyT(dim)
    ''',
    "stochastic_depth": '''
        """A branch is left out of a sentence with probability 0.2 in training (Huang et al. 2016)."""


        class Dropped(Residual):
            def forward(self, x, f):
                if not self.training:
                    return x + f
                kept = torch.rand(len(f), *[1] * (f.dim() - 1), device=f.device) >= 0.2
                return x + f * (kept / 0.8).to(f.dtype)

            def scales(self):
                return 1.0, 1.0


        @register("stochastic_depth")
        class StochasticDepth(Method):
            equation = "LN(x + b f(x)), b Bernoulli"
            paper = "a test"

            def residual(self, site):
                return Dropped()
    ''',
    "normalised_update": '''
        """x moves a learned share of the way to the branch, and back onto the sphere (after Loshchilov et al. 2024)."""


        class Step(Residual):
            def __init__(self, dim):
                super().__init__()
                self.share = nn.Parameter(torch.full((dim,), 0.3))

            def forward(self, x, f):
                start, goal = (F.normalize(one, dim=-1) for one in (x, f))
                return F.normalize(start + self.share * (goal - start), dim=-1) * x.size(-1) ** 0.5


        @register("normalised_update")
        class NormalisedUpdate(Method):
            equation = "n(x + a (n(f(x)) - x))"
            paper = "a test"
            norm = "none"

            def residual(self, site):
                return Step(site.dim)
    ''',
}
# A method that is wrong: its slot mixes tokens.
ALONG_TIME = """
    class Backwards(nn.Module):
        def forward(self, x):
            return x.cumsum(1)


    @register("along_time")
    class AlongTime(Method):
        equation = "a slot that mixes tokens"
        paper = "a test"

        def outer(self, site):
            return Backwards() if site.sublayer == "ffn" else None
"""

# tests that go through all registered methods at once, and have no method's name in theirs
TESTS_OF_THE_WHOLE_REGISTRY = (
    "test_tables_of_methods",
    "test_default_profiles_are_the_documented_ones",
    "test_a_method_that_does_not_fold_is_refused_by_name",
)
TESTS_OF_A_METHOD = 18  # in the default suite, at least: tests with the name of a method in theirs


def write_methods(folder: Path, methods: dict[str, str]) -> Path:
    """Write a file for each method into a folder; return the folder. methods: name -> text, as in METHODS."""
    for name, indented in methods.items():
        text = dedent(indented).strip()
        docstring, code = "", text
        if text.startswith('"""'):
            docstring, code = text.split("\n", 1)
        (folder / f"{name}.py").write_text(f"{docstring}\n{IMPORTS}\n{code}\n")
    return folder


@pytest.fixture(scope="module")
def user_dir(tmp_path_factory):
    """Provide a folder with a file for each of METHODS."""
    return write_methods(tmp_path_factory.mktemp("user_dir"), METHODS)


def pytest_with_methods_from(folder: Path, *words: str) -> subprocess.CompletedProcess:
    """Run tests in a process of their own, with the methods in a folder beside those of the package."""
    options = ["-vv", "-n", "0", "-p", "no:cacheprovider", "--methods-from", str(folder)]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


# The tests of the registry


@pytest.mark.smoke
def test_methods_of_a_folder_pass_the_tests_of_the_registry(user_dir):
    """All tests of the default suite are run that have a method's name in theirs, or go through all methods at once.

    One test is left out, correct_model of earlier_layers: the first branch of that method reads 1.1 x, which `deepnet
    verify` takes for its shortcut, so that it reports a wrong factor of 1/1.1.
    """
    names = " or ".join([*METHODS, *TESTS_OF_THE_WHOLE_REGISTRY])

    done = pytest_with_methods_from(user_dir, "tests", "-k", f"({names}) and not (earlier_layers and correct_model)")

    assert done.returncode == 0, done.stdout[-2000:]
    for test in TESTS_OF_THE_WHOLE_REGISTRY:
        assert f"::{test}" in done.stdout
    passed = int(re.search(r"(\d+) passed", done.stdout)[1])
    assert passed >= TESTS_OF_A_METHOD * len(METHODS), done.stdout[-500:]


@pytest.mark.smoke
def test_a_slot_that_looks_along_time_fails_a_test_that_names_it(tmp_path):
    folder = write_methods(tmp_path, {"along_time": ALONG_TIME})

    done = pytest_with_methods_from(folder, "tests/core/test_methods.py", "-k", "along_time and see_each_token")

    assert done.returncode == 1
    assert ".1.ffn.outer" in done.stdout  # the slot `outer` of the first layer's ffn


# The commands


def planned_parameters(user_dir: Path, method: str) -> int:
    """Return the parameters of a 30L-30L model of width 64 as `deepnet plan` counts them."""
    flags = ("--user-dir", user_dir, "--arch", "deepnet_transformer_tiny_30_30", "--vocab", "20", "--cpu", "--json")
    plan = json.loads(run("deepnet", "plan", *flags, "--method", method).stdout)
    return plan["parameters"]["total"]


@pytest.fixture(scope="module")
def post_ln_parameters(user_dir):
    """Provide the parameters of the model of planned_parameters with the method post_ln, which adds none."""
    return planned_parameters(user_dir, "post_ln")


def test_a_plan_counts_widths_that_depend_on_the_depth(user_dir, post_ln_parameters):
    """Branch k of a stack has k weights in earlier_layers."""
    encoder_weights = 60 * 61 // 2  # 1 + 2 + .. + 60: two branches in each of 30 layers
    decoder_weights = 90 * 91 // 2  # 1 + 2 + .. + 90: three branches in each of 30 layers

    added = planned_parameters(user_dir, "earlier_layers") - post_ln_parameters

    assert added == encoder_weights + decoder_weights


def test_a_plan_counts_parameters_that_some_layers_lack(user_dir, post_ln_parameters):
    """value_residual has a share in each layer but the first, and as a Pre-LN it ends each stack with a LayerNorm."""
    shares = 2 * 29  # in two stacks
    closing_norms = 2 * 2 * 64  # each with a gain and a bias

    added = planned_parameters(user_dir, "value_residual") - post_ln_parameters

    assert added == shares + closing_norms


def test_deepnet_methods_lists_the_methods_of_a_folder(user_dir):
    listed = run_cold("deepnet", "methods", "--user-dir", user_dir).stdout

    first_words = [line.split(" ")[0] for line in listed.splitlines()]
    assert set(METHODS) <= set(first_words)


@pytest.fixture(scope="module")
def package(user_dir, tmp_path_factory):
    """Provide a package of the methods that calls deepnet_fairseq.register().

    --user-dir of fairseq-train takes a single folder, and so cannot name deepnet_fairseq as well.
    """
    folder = shutil.copytree(user_dir, tmp_path_factory.mktemp("packaged") / "package")
    imports = f"from . import {', '.join(METHODS)}"
    (folder / "__init__.py").write_text(f"import deepnet_fairseq\n\ndeepnet_fairseq.register()\n\n{imports}\n")
    return folder


@pytest.fixture(scope="module")
def training_command(package, data):
    """Provide the command that trains a small model of stochastic_depth, without its length and its --save-dir."""
    common = [package if flag == USER_DIR else flag for flag in TRAIN_FLAGS]
    return ("fairseq-train", data, *common, *TINY, "--method", "stochastic_depth")


@pytest.fixture(scope="module")
def averaged_checkpoint(package, training_command, tmp_path_factory):
    """Provide what `deepnet average` makes of a checkpoint of stochastic_depth after two updates."""
    folder = tmp_path_factory.mktemp("run")
    run_cold(*training_command, "--max-update", "2", "--save-dir", folder)

    last = folder / "checkpoint_last.pt"
    run("deepnet", "average", last, last, "--user-dir", package, "--out", folder / "mean.pt")
    return folder / "mean.pt"


def test_deepnet_check_trains_a_method_of_a_package(training_command):
    done = run("deepnet", "check", "--updates", "11", *training_command)

    assert "1L-1L stochastic_depth" in done.stdout  # the model, in the first line


def test_deepnet_verify_audits_a_method_of_a_package(averaged_checkpoint, package):
    """Status 0 says that nothing in the checkpoint contradicts the method."""
    words = ("--user-dir", package, "--method", "stochastic_depth")

    done = run("deepnet", "verify", averaged_checkpoint, *words, check=False)

    assert done.returncode == 0, done.stdout
    assert "--method stochastic_depth" in done.stdout


def test_deepnet_export_without_the_package_of_the_method_is_refused(averaged_checkpoint, tmp_path):
    exported = tmp_path / "plain.pt"

    done = run("deepnet", "export", averaged_checkpoint, "--to", "transformer", "--out", exported, check=False)

    assert done.returncode != 0
    assert "--method stochastic_depth" in done.stdout.strip().split("\n")[-1]
    assert "Traceback" not in done.stdout
    assert not exported.exists()


def test_deepnet_export_writes_a_model_of_a_package(averaged_checkpoint, package, tmp_path):
    exported = tmp_path / "plain.pt"
    words = ("--to", "transformer", "--out", exported, "--user-dir", package)

    done = run("deepnet", "export", averaged_checkpoint, *words)

    assert exported.exists()
    assert str(exported) in done.stdout


@pytest.mark.parametrize(
    ("file", "text", "place"),
    [
        pytest.param("README", "", "", id="no Python file"),
        pytest.param("own.py", "def", "own.py, line 1", id="a syntax error"),
        pytest.param("own.py", "\nimport no_such_library", "own.py, line 2: ModuleNotFoundError", id="no library"),
        pytest.param("own.py", "{}['key']", "own.py, line 1: KeyError", id="another error"),
    ],
)
def test_a_folder_that_cannot_be_imported_is_refused(file, text, place, tmp_path):
    """file: the only file in the folder; place: the place in that file which the error line names."""
    (tmp_path / file).write_text(text)

    done = run_cold("deepnet", "methods", "--user-dir", tmp_path, check=False)

    assert done.returncode == 1
    assert_one_line(done, f"--user-dir {tmp_path}", place)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        pytest.param("def", "own.py, line 1: SyntaxError", id="a syntax error", marks=pytest.mark.smoke),
        pytest.param("import no_such_library", "own.py, line 1: ModuleNotFoundError", id="no library"),
    ],
)
def test_a_training_refuses_a_folder_that_cannot_be_imported(text, place, data, tmp_path):
    """The folder's __init__.py registers the package, and imports a file that fails."""
    (tmp_path / "__init__.py").write_text("import deepnet_fairseq\n\ndeepnet_fairseq.register()\n\nfrom . import own\n")
    (tmp_path / "own.py").write_text(text)

    done = run_cold("fairseq-train", data, "--user-dir", tmp_path, "--arch", "deepnet_transformer_tiny", check=False)

    assert_one_line(done, f"--user-dir {tmp_path}", place)
