"""1,000 layers on a CPU: build, train, save, load, translate."""

import math
import re

import pytest
import torch

from .conftest import TRAIN_FLAGS
from .support.helpers import USER_DIR, run
from .test_commands import losses


@pytest.mark.slow
@pytest.mark.parametrize("precision", [(), ("--bf16",)], ids=["fp32", "bf16"])
def test_500_500(precision, data, tmp_path):
    flags = (*TRAIN_FLAGS, "--arch", "deepnet_transformer_tiny_500_500", "--max-update", "20", "--save-dir", tmp_path)
    trained = losses(run("fairseq-train", data, *flags, *precision).stdout)
    assert sorted(trained) == list(range(1, 21))
    assert all(math.isfinite(loss) for loss in trained.values())
    assert trained[20] < trained[1]

    path = tmp_path / "checkpoint_last.pt"
    state = torch.load(path)["model"]
    assert sum(name.endswith("self_attn.q_proj.weight") for name in state) == 1000
    assert all(torch.isfinite(tensor).all() for tensor in state.values())

    generate = ("--path", path, "--user-dir", USER_DIR, "--cpu", "--beam", "2", "--max-len-a", "0", "--max-len-b", "8")
    printed = run("fairseq-generate", data, *generate, *precision).stdout
    assert len(re.findall(r"^H-\d+\t-\d", printed, re.MULTILINE)) == 20
