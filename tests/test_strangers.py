"""Tests that methods in a folder outside the package pass every test of the registry."""

import json
import os
import subprocess
import sys
from textwrap import dedent

import pytest

from .support.helpers import ROOT, run_cold

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
                return FirstValues() if site.sublayer == "self_attn" and site.layer > 1 else Keep(site)


        class Keep(nn.Module):
            """Notes the values of the first layer."""

            def __init__(self, site):
                super().__init__()
                self.notes = site.sublayer == "self_attn"

            def forward(self, x, role):
                return pass_state().setdefault("first_values", x) if self.notes and role == "v" else x
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
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-n",
        "0",
        "-p",
        "no:cacheprovider",
        "--methods-from",
        str(folder),
        *words,
    ]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})


def test_files_of_strangers_pass_the_tests_of_the_registry(strangers):
    names = " or ".join(METHODS)
    ended = outcome(strangers, "tests/test_methods.py", "-k", names)
    assert ended.returncode == 0, ended.stdout[-2000:]
    ended = outcome(strangers, "tests/test_docs.py", "-k", "table_of_methods or default_profiles")
    assert ended.returncode == 0, ended.stdout[-2000:]


def test_a_slot_that_looks_along_time_fails_by_name(tmp_path):
    ended = outcome(
        written(tmp_path, {"along_time": ALONG_TIME}), "tests/test_methods.py", "-k", "along_time and see_each_token"
    )
    assert ended.returncode == 1 and ".1.ffn.outer looks along time" in ended.stdout


def test_commands_know_the_methods_of_a_folder(strangers):
    """`deepnet plan` counts a user's method as it is built, also where widths depend on the depth."""
    for name in ("earlier_layers", "value_residual"):
        words = ("--user-dir", strangers, "--arch", "deepnet_transformer_tiny_30_30", "--method", name, "--vocab", "20")
        printed = run_cold("deepnet", "plan", *words, "--share-all-embeddings", "--cpu", "--json").stdout
        counted = f"""
            import sys, json
            from deepnet_fairseq.user_dir import import_user_dir
            import_user_dir({str(strangers)!r})
            from deepnet_fairseq.core.models import blueprint
            model = blueprint("deepnet_transformer_tiny_30_30", 20, method={name!r}, share_all_embeddings=True)
            print(sum(parameter.numel() for parameter in model.parameters()))
        """
        built = int(run_cold("python", "-c", dedent(counted)).stdout)
        assert json.loads(printed)["parameters"]["total"] == built, name
    assert "\nvalue_residual " in run_cold("deepnet", "methods", "--user-dir", strangers).stdout


def test_a_folder_without_python_files_is_refused(tmp_path):
    ended = run_cold("deepnet", "methods", "--user-dir", tmp_path, check=False)
    assert ended.returncode == 1 and ended.stderr.strip().endswith("no folder with Python files")
