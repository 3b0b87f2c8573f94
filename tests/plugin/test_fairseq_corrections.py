"""Tests of the plug-in's corrections to fairseq, and of the messages that it hides or shows."""

import argparse
import warnings

import numpy
import pytest
import torch
from fairseq.data import data_utils
from fairseq.data.token_block_dataset import TokenBlockDataset

from deepnet_fairseq import plugin
from deepnet_fairseq.errors import UserError, user_error_line

from ..support.helpers import EOS, PAD


@pytest.mark.parametrize("count", [1, 20, 6750])
def test_no_sentence_is_lost_in_batches(count):
    sizes = numpy.sort(numpy.random.default_rng(0).integers(5, 40, count))
    length = {"num_tokens_fn": lambda i: sizes[i], "num_tokens_vec": sizes}
    batches = data_utils.batch_by_size(numpy.arange(count), **length, max_tokens=1000, required_batch_size_multiple=8)
    assert numpy.concatenate(batches).tolist() == list(range(count))
    assert all(len(batch) * sizes[batch[-1]] <= 1000 for batch in batches)


def test_denormals_are_flushed():
    assert (torch.tensor([1e-40]) * 1.0).item() == 0.0


def test_plain_data_loads(tmp_path):
    plain = {"args": argparse.Namespace(lr=[0.1]), "counts": numpy.array([1, 2]), "best": numpy.float64(3.0)}
    torch.save(plain, tmp_path / "plain.pt")
    assert str(torch.load(tmp_path / "plain.pt")) == str(plain)


def test_the_line_for_a_user():
    """The line for a user names the file from fairseq's wrapper and the reason from our error, in either chaining."""
    try:
        try:
            raise UserError("holds 3 encoder layers")
        except UserError:
            raise Exception("Cannot load model parameters from checkpoint a/b.pt; please ensure ...")  # noqa: B904
    except Exception as error:
        assert user_error_line(error) == "a/b.pt: holds 3 encoder layers"
    assert user_error_line(ValueError("a bug")) is None


def test_only_known_messages_are_silenced(recwarn):
    plugin.silence()
    warnings.warn("'pin_memory' argument is set as true but no accelerator is found, then", stacklevel=1)
    warnings.warn("something new", stacklevel=1)
    assert [str(w.message) for w in recwarn if w.category is UserWarning] == ["something new"]


def test_an_empty_line_of_a_language_models_text():
    lines = [torch.tensor([5, 6, EOS]), torch.tensor([EOS]), torch.tensor([7, EOS])]
    blocks = TokenBlockDataset(lines, [3, 1, 2], 4, PAD, EOS, break_mode="eos", include_targets=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plugin.silence()
        source, target, _ = blocks[1]
    assert (source.tolist(), target.tolist()) == ([EOS], [EOS])
