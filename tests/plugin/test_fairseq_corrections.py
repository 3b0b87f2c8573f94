"""Tests of the plug-in's corrections to fairseq, and of the messages that it hides or shows."""

from __future__ import annotations

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


@pytest.mark.parametrize(
    "count",
    [
        1,
        20,
        6750,  # sentences of IWSLT-14's test set
    ],
)
def test_no_sentence_is_lost_in_batches(count):
    """fairseq alone leaves out a last batch that does not fill up a multiple of --required-batch-size-multiple."""
    max_tokens = 1000
    sizes = numpy.sort(numpy.random.default_rng(0).integers(5, 40, count))  # tokens of each sentence, shortest first

    batches = data_utils.batch_by_size(
        numpy.arange(count),
        num_tokens_fn=lambda sentence: sizes[sentence],
        num_tokens_vec=sizes,
        max_tokens=max_tokens,
        required_batch_size_multiple=8,
    )

    assert numpy.concatenate(batches).tolist() == list(range(count))
    for batch in batches:
        longest = sizes[batch[-1]]
        assert len(batch) * longest <= max_tokens


def test_denormal_numbers_are_flushed_to_zero():
    """Numbers below 1.2e-38, the smallest normal one of float32, slow a CPU down."""
    denormal = torch.tensor([1e-40])

    assert (denormal * 1.0).item() == 0.0


def test_checkpoints_with_plain_data_of_numpy_and_argparse_load(tmp_path):
    """fairseq's checkpoints hold data of numpy and argparse, which torch.load refuses by default."""
    plain = {"args": argparse.Namespace(lr=[0.1]), "counts": numpy.array([1, 2]), "best": numpy.float64(3.0)}
    torch.save(plain, tmp_path / "plain.pt")

    assert str(torch.load(tmp_path / "plain.pt")) == str(plain)


def test_the_line_for_a_user_has_fairseqs_file_and_our_reason():
    """fairseq raises an Exception that names the file and no reason, while it handles our error."""
    try:
        try:
            raise UserError("holds 3 encoder layers")
        except UserError:
            raise Exception("Cannot load model parameters from checkpoint a/b.pt; please ensure ...")  # noqa: B904
    except Exception as error:
        line = user_error_line(error)

    assert line == "a/b.pt: holds 3 encoder layers"


def test_a_bug_has_no_line_for_a_user():
    assert user_error_line(ValueError("a bug")) is None


def test_only_known_warnings_are_silenced(recwarn):
    plugin.silence()

    warnings.warn("'pin_memory' argument is set as true but no accelerator is found, then", stacklevel=1)  # torch's
    warnings.warn("something new", stacklevel=1)

    assert [str(shown.message) for shown in recwarn if shown.category is UserWarning] == ["something new"]


def test_an_empty_line_of_a_language_models_text_warns_of_nothing():
    """fairseq computes 1 - 2 in unsigned numbers at a line of one token, its end, and numpy warns of an overflow."""
    lines = [torch.tensor([5, 6, EOS]), torch.tensor([EOS]), torch.tensor([7, EOS])]
    sizes = [3, 1, 2]
    blocks = TokenBlockDataset(lines, sizes, block_size=4, pad=PAD, eos=EOS, break_mode="eos", include_targets=True)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plugin.silence()
        source, target, _past_target = blocks[1]  # the empty line

    assert source.tolist() == [EOS]
    assert target.tolist() == [EOS]
