"""What --cuda-graphs and --compile-layers refuse, in a line that names the flag."""

import argparse
import re

import pytest

from deepnet_fairseq.config import namespace
from deepnet_fairseq.errors import UserError
from deepnet_fairseq.graphs import attach

from .conftest import TRAIN_FLAGS
from .support.helpers import batch, run, small


def test_training_on_the_cpu_is_refused_in_one_line(data, tmp_path):
    arch = ("--arch", "deepnet_transformer_tiny", "--encoder-layers", "1", "--decoder-layers", "1", "--cuda-graphs")
    done = run("fairseq-train", data, *TRAIN_FLAGS, *arch, "--max-update", "1", "--save-dir", tmp_path, check=False)
    assert done.returncode != 0
    assert re.search(r"error: --cuda-graphs: .* drop the flag, or --cpu$", done.stdout.strip())
    assert "Traceback" not in done.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("field", ["cuda_graphs", "compile_layers"])
def test_only_training_is_refused_on_the_cpu(field):
    """A checkpoint of a training on a GPU translates on the CPU: its task begins no epoch."""
    model, epochs = small(1), []
    task = argparse.Namespace(begin_epoch=lambda *_: epochs.append(1))
    attach(model, task, namespace("deepnet_transformer_tiny", **{field: True}))
    src, prev = batch()
    model(src, None, prev)
    with pytest.raises(UserError, match=f"--{field.replace('_', '-')}: .*--cpu"):
        task.begin_epoch(1, model)
    assert not epochs
    attach(model, argparse.Namespace(), namespace("deepnet_transformer_tiny", **{field: True}))  # no task to train by


@pytest.mark.parametrize(
    "fields, flag",
    [
        ({"cuda_graphs_limit": 0}, "--cuda-graphs-limit 0"),
        ({"cuda_graphs": True, "checkpoint_activations": True}, "--checkpoint-activations"),
    ],
)
def test_refusals_name_the_flag(fields, flag):
    with pytest.raises(UserError, match=flag):
        small(1, **fields)
