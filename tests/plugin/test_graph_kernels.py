"""Tests on a CPU of the kernels inside graphs, which Triton interprets there; test_graphs.py has tests on a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from textwrap import dedent

import pytest

pytestmark = [pytest.mark.peers, pytest.mark.skipif(find_spec("triton") is None, reason="pip install triton")]

# The program prints the largest error of each gradient, of x, weight and bias, relative to the largest of
# float64's.
COMPARE_WITH_FLOAT64 = """
import json
import sys

import torch

from deepnet_fairseq.plugin.graphs.kernels import layer_norm_backward

rows, width, dtype = int(sys.argv[1]), int(sys.argv[2]), getattr(torch, sys.argv[3])
torch.manual_seed(0)
x, gradient = torch.randn(2, rows, width, dtype=dtype)
weight, bias = torch.randn(2, width, dtype=dtype)


def statistics(*tensors):
    _, mean, rstd = torch.ops.aten.native_layer_norm(tensors[0], [width], *tensors[1:], 1e-5)
    return mean, rstd


mean, rstd = statistics(x, weight, bias)
ours = layer_norm_backward(gradient, x, [width], mean.float(), rstd.float(), weight, bias, [True] * 3)

exact = [tensor.double() for tensor in (gradient, x, weight, bias)]
gradient, x, weight, bias = exact
backward = torch.ops.aten.native_layer_norm_backward
expected = backward(gradient, x, [width], *statistics(x, weight, bias), weight, bias, [True] * 3)
errors = [((one.double() - other).abs().max() / other.abs().max()).item() for one, other in zip(ours, expected)]
print(json.dumps(errors))
"""


@pytest.mark.parametrize(("dtype", "half_a_unit"), [("float16", 2**-11), ("bfloat16", 2**-8)])
@pytest.mark.parametrize(
    ("rows", "width"),
    [
        pytest.param(5, 64, id="one tile"),
        pytest.param(37, 24, id="a width that is no power of 2"),
        pytest.param(9_000, 64, id="more tiles than programs"),
    ],
)
def test_gradients_of_a_layer_norm_are_those_of_float64_but_for_rounding(rows, width, dtype, half_a_unit):
    """Each gradient is rounded once, to half a unit of the type's last place; sums over rows are made in float32."""
    words = (sys.executable, "-c", dedent(COMPARE_WITH_FLOAT64), str(rows), str(width), dtype)

    done = subprocess.run(words, capture_output=True, text=True, env=os.environ | {"TRITON_INTERPRET": "1"})

    assert done.returncode == 0, done.stderr[-2000:]
    errors = json.loads(done.stdout)
    assert len(errors) == 3
    for error in errors:
        assert error < 2 * half_a_unit
