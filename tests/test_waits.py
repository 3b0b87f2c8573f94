"""A training step fetches its numbers from the device together, and they are those of a step that fetches each.

tests/test_dry_gpu.py and tests/test_gpu.py count how often a step waits for the device.
"""

from types import SimpleNamespace

import pytest
import torch
from fairseq.distributed import utils as distributed_utils

from deepnet_fairseq.core.stack import Padding
from deepnet_fairseq.plugin import waits

from .support.diverging import TINY, Training
from .support.helpers import PAD, batch
from .support.single_stacks import EVERY, small

CHUNKED = ("--criterion", "chunked_label_smoothed_cross_entropy", "--report-accuracy", "--ignore-prefix-size", "1")
FLAGS = {
    "adam": ("--clip-norm", "1"),
    "bf16": ("--clip-norm", "1", "--optimizer", "deepnet_adam", "--bf16"),
    "fp16": ("--clip-norm", "1", "--optimizer", "deepnet_adam", "--fp16"),
    "memory-efficient": ("--clip-norm", "1", "--memory-efficient-fp16"),
    "chunked": CHUNKED,
}


@pytest.fixture
def away(monkeypatch):
    """Makes the package take every tensor for one of a GPU, when it is called."""
    return lambda: monkeypatch.setattr(waits, "elsewhere", lambda tensor: True)


@pytest.mark.parametrize("flags", FLAGS)
def test_a_step_logs_the_same_numbers(flags, data, tmp_path, away):
    plain, fetched = (Training(data, tmp_path, *TINY, *FLAGS[flags]) for _ in range(2))
    expected = [plain.trainer.train_step([next(plain.batches)]) for _ in range(2)]
    away()
    assert [fetched.trainer.train_step([next(fetched.batches)]) for _ in range(2)] == expected
    for mine, theirs in zip(fetched.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert expected[1]["loss"] > 0 and waits.LOGGED not in vars(fetched.trainer.task)


def test_a_validation_logs_the_same_numbers(data, tmp_path, away):
    training = Training(data, tmp_path, *TINY, *CHUNKED)
    training.trainer.task.load_dataset("valid")
    samples = list(training.trainer.get_valid_iterator("valid").next_epoch_itr(shuffle=False))
    expected = [training.trainer.valid_step(sample) for sample in samples]
    away()
    assert [training.trainer.valid_step(sample) for sample in samples] == expected


def test_ranks_send_a_step_in_one_message(data, tmp_path, monkeypatch, away):
    """The sums over all ranks, a signal among them; a second message compares the norms."""
    training, sent = Training(data, tmp_path, *TINY, *FLAGS["bf16"]), []
    monkeypatch.setattr(training.trainer, "_sync_stats", lambda: True)
    monkeypatch.setattr(training.trainer, "_grad_norm_buf", torch.zeros(1, dtype=torch.float64))
    monkeypatch.setattr(distributed_utils, "all_reduce", lambda buffer, group: sent.append(buffer))
    samples = [next(training.batches) for _ in range(2)]
    away()
    assert training.trainer.train_step(samples)["loss"] > 0 and training.trainer.told is False
    assert len(sent) == 2 and sum(sample["ntokens"] for sample in samples) in sent[0].tolist()


@pytest.mark.parametrize("places", [(), ("source",), ("left",), ("source", "left")])
@pytest.mark.parametrize("kind", EVERY)
def test_scores_are_the_same_where_the_padding_is_known(kind, places):
    model = small(kind)
    source, target = (tokens.masked_fill(tokens.eq(PAD), 5) for tokens in batch())
    if "source" in places:
        source[1, :4] = PAD
    if "left" in places:
        target[2, :3] = PAD
    read = {"encoder": source, "decoder": target}
    inputs = [read[name] for name in model.stacks()]
    if len(inputs) == 2:
        inputs.insert(1, None)  # src_lengths
    padding = Padding.of(model, model.tokens(*inputs))
    expected = {"encoder": ("source", "source" in places), "decoder": ("left", "left" in places)}
    assert padding == Padding(**dict(expected[name] for name in model.stacks()))
    assert torch.equal(model(*inputs, padding=padding)[0], model(*inputs)[0])


def test_one_copy_keeps_types_and_shapes(away):
    away()
    logged = {"n": torch.tensor(2**40), "of": {"loss": torch.tensor([[1.1]]), "words": 3}}
    (norm,) = waits.fetch([torch.tensor(0.1)], [logged])
    assert norm.dtype == torch.float32 and norm == torch.tensor(0.1)
    assert torch.equal(logged["n"], torch.tensor(2**40)) and torch.equal(logged["of"]["loss"], torch.tensor([[1.1]]))
    assert logged["of"]["words"] == 3


@pytest.mark.parametrize("amp", [False, True])
def test_norms_of_all_ranks_are_compared(amp, monkeypatch):
    """fairseq's words where they differ; an error on every rank where one is no number, but under --amp."""
    others, told = [], []
    monkeypatch.setattr(distributed_utils, "all_reduce", lambda buffer, group: buffer[1:].fill_(others[-1]))
    trainer = SimpleNamespace(
        _grad_norm_buf=torch.ones(3), data_parallel_rank=0, data_parallel_process_group=None,
        cfg=SimpleNamespace(common=SimpleNamespace(amp=amp)),
    )  # fmt: skip
    for other in (1.0, 1.1, float("nan")):
        others.append(other)
        try:
            waits.compare_norms(lambda *_: told.append(others[-1]), trainer, torch.tensor(1.0))
        except FloatingPointError as error:
            told.append(str(error))
    assert told == [1.1] if amp else told == [1.1, "gradients are Nan/Inf"]
