"""Tests that methods in a folder outside the package pass every test of the registry, and that commands take them."""

import json
import os
import re
import shutil
import subprocess
import sys
from textwrap import dedent

import pytest

from ..conftest import TRAIN_FLAGS
from ..support.helpers import ROOT, USER_DIR, run, run_cold
from ..support.lives import TINY

HEAD = """
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


        @register("value_residual")
        class ValueResidual(Method):
            equation = "x + f(LN(x)), values mixed with the first layer's"
            paper = "a test"
            norm = "pre"

            def heads(self, site, dim):
                if site.sublayer == "self_attn":
                    return Keep() if site.layer == 1 else FirstValues()


        class Keep(nn.Module):
            """Notes the values of the first layer."""

            def forward(self, x, role):
                return pass_state().setdefault("first_values", x) if role == "v" else x
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


def written(folder, methods):
    for name, text in methods.items():
        text = dedent(text).strip()
        docstring, rest = text.split("\n", 1) if text.startswith('"""') else ("", text)
        (folder / f"{name}.py").write_text(f"{docstring}\n{HEAD}\n{rest}\n")
    return folder


@pytest.fixture(scope="module")
def strangers(tmp_path_factory):
    return written(tmp_path_factory.mktemp("strangers"), METHODS)


def outcome(folder, *words):
    """Run tests in a process of their own, with the methods in a folder among those of the package."""
    options = ["-n", "0", "-p", "no:cacheprovider", "--methods-from", str(folder)]
    command = [sys.executable, "-m", "pytest", *options, *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})


def test_files_of_strangers_pass_the_tests_of_the_registry(strangers):
    """Tests with a method's name in theirs pass in the whole suite, and those that go through all methods at once.

    `deepnet verify` takes 1.1 x, which the first branch of earlier_layers reads, for its shortcut, and reports 1/1.1.
    """
    named = " or ".join([*METHODS, "tables_of_methods", "default_profiles", "refused_by_name"])
    ended = outcome(strangers, "tests", "-k", f"({named}) and not (earlier_layers and right_model)")
    assert ended.returncode == 0, ended.stdout[-2000:]
    assert int(re.search(r"(\d+) passed", ended.stdout)[1]) >= 18 * len(METHODS), ended.stdout[-500:]


def test_a_slot_that_looks_along_time_fails_by_name(tmp_path):
    ended = outcome(
        written(tmp_path, {"along_time": ALONG_TIME}),
        "tests/core/test_methods.py",
        "-k",
        "along_time and see_each_token",
    )
    assert ended.returncode == 1 and ".1.ffn.outer looks along time" in ended.stdout


def test_a_plan_counts_widths_that_depend_on_the_depth(strangers):
    """`deepnet plan` counts a weight for each earlier branch, of 60 and of 90, and a share a layer but the first.

    The method with shares is a Pre-LN, which has two LayerNorms more.
    """
    flags = ("--user-dir", strangers, "--arch", "deepnet_transformer_tiny_30_30", "--vocab", "20", "--cpu", "--json")
    plans = [
        run("deepnet", "plan", *flags, "--method", name) for name in ("post_ln", "earlier_layers", "value_residual")
    ]
    plain, *ours = (json.loads(done.stdout)["parameters"]["total"] for done in plans)
    assert [total - plain for total in ours] == [60 * 61 / 2 + 90 * 91 / 2, 2 * 29 + 2 * 2 * 64]
    assert "\nvalue_residual " in run_cold("deepnet", "methods", "--user-dir", strangers).stdout


def test_commands_take_a_package_of_methods(strangers, data, tmp_path):
    """A package that calls register() serves fairseq-train, which takes one folder, and the commands after it."""
    package = shutil.copytree(strangers, tmp_path / "package")
    imports = f"deepnet_fairseq.register()\n\nfrom . import {', '.join(METHODS)}"
    (package / "__init__.py").write_text(f"import deepnet_fairseq\n\n{imports}\n")
    flags = [package if flag == USER_DIR else flag for flag in TRAIN_FLAGS]
    train = ("fairseq-train", data, *flags, *TINY, "--method", "stochastic_depth")
    assert "1L-1L stochastic_depth, " in run("deepnet", "check", "--updates", "11", *train).stdout
    run_cold(*train, "--max-update", "2", "--save-dir", tmp_path)
    own, last, plain = ("--user-dir", package), tmp_path / "checkpoint_last.pt", tmp_path / "plain.pt"
    run("deepnet", "average", last, last, *own, "--out", tmp_path / "mean.pt")
    audit = run("deepnet", "verify", tmp_path / "mean.pt", *own, "--method", "stochastic_depth")
    assert "nothing that is left to judge contradicts --method stochastic_depth" in audit.stdout
    export = ("deepnet", "export", tmp_path / "mean.pt", "--to", "transformer", "--out", plain)
    assert "--method stochastic_depth: unknown" in run(*export, check=False).stdout
    assert f"wrote {plain}" in run(*export, *own).stdout


def test_a_folder_that_cannot_be_imported_is_refused(tmp_path):
    for name, reason in (("README", "no folder with Python files"), ("own.py", "own.py, line 1: invalid syntax")):
        (tmp_path / name).write_text("def")
        ended = run_cold("deepnet", "methods", "--user-dir", tmp_path, check=False)
        assert ended.returncode == 1 and ended.stderr.strip().endswith(reason)
