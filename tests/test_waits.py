"""What a training step asks of its device: once, and nothing in the forward pass of a batch that says what it is."""

from types import SimpleNamespace

import pytest
import torch
from fairseq.distributed import utils as distributed_utils
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from deepnet_fairseq.core.stack import Padding
from deepnet_fairseq.plugin import waits

from .support.diverging import TINY, Training
from .support.helpers import PAD, batch
from .support.single_stacks import EVERY, small

aten = torch.ops.aten
READS = aten._local_scalar_dense, aten.equal, aten.nonzero, aten.masked_select, aten.is_nonzero
BY_MASK = aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_  # which look for its places
FLAGS = {
    "adam": ("--clip-norm", "1"),
    "deepnet_adam": ("--clip-norm", "1", "--optimizer", "deepnet_adam"),
    "bf16": ("--clip-norm", "1", "--optimizer", "deepnet_adam", "--bf16"),
    "fp16": ("--clip-norm", "1", "--optimizer", "deepnet_adam", "--fp16"),
    "fp16 adam": ("--clip-norm", "1", "--fp16"),
    "memory-efficient": ("--clip-norm", "1", "--memory-efficient-fp16"),
    "chunked": (
        "--criterion",
        "chunked_label_smoothed_cross_entropy",
        "--report-accuracy",
        "--ignore-prefix-size",
        "1",
    ),
}


class Device(TorchDispatchMode):
    """Plays a GPU: what comes of `tensors` lies there until it is fetched; waits: what was read of it, by name."""

    def __init__(self, tensors=()):
        super().__init__()
        self.storages, self.waits = {}, []
        self.take(tensors)

    def take(self, tensors):
        """To be told what lies on the device; it is kept, for memory that is used again would count."""
        for tensor in filter(torch.is_tensor, tree_leaves(tensors)):
            self.storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()

    def holds(self, tensor):
        return torch.is_tensor(tensor) and tensor.untyped_storage().data_ptr() in self.storages

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        leaves, packet = tree_leaves((args, kwargs or {})), function.overloadpacket
        there = any(map(self.holds, leaves))
        masked = packet in BY_MASK and any(getattr(one, "dtype", None) == torch.bool for one in leaves)
        if there and (packet in READS or masked):
            self.waits.append(packet.__name__)
        result = function(*args, **(kwargs or {}))
        if there:
            self.take((result, [one for one in args if isinstance(one, list)]))  # _foreach_ functions give nothing back
        return result

    def fetch(self, tensor):
        """In place of Tensor.cpu."""
        if not self.holds(tensor):
            return tensor
        self.waits.append("copy")
        with torch._C._DisableTorchDispatch():
            return tensor.clone()


def played(training, monkeypatch) -> Device:
    """The device of a training on a CPU: its weights, its optimiser and its batches, once they are prepared."""
    trainer = training.trainer
    device = Device([*training.model.parameters(), *training.model.buffers(), trainer.optimizer.optimizer.param_groups])

    def prepare(sample, *args, **kwargs):
        sample, dummy = type(trainer)._prepare_sample(trainer, sample, *args, **kwargs)
        device.take(sample)
        return sample, dummy

    monkeypatch.setattr(trainer, "_prepare_sample", prepare)
    monkeypatch.setattr(waits, "elsewhere", device.holds)
    monkeypatch.setattr(torch.Tensor, "cpu", lambda tensor: device.fetch(tensor))
    return device


@pytest.mark.parametrize("flags", FLAGS)
def test_a_step_waits_once(flags, data, tmp_path, monkeypatch):
    """For losses and norm together; numbers and weights are those of a step that nobody plays with."""
    plain, watched = (Training(data, tmp_path, *TINY, *FLAGS[flags]) for _ in range(2))
    device = played(watched, monkeypatch)
    for _ in range(2):
        with device:
            found = watched.trainer.train_step([next(watched.batches)])
        assert device.waits == ["copy"]
        device.waits.clear()
        assert found == plain.trainer.train_step([next(plain.batches)])
        assert waits.LOGGED not in vars(watched.trainer.task)
    for mine, expected in zip(watched.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(mine, expected)
    assert found["loss"] > 0


def test_a_step_of_several_gpus_waits_three_times(data, tmp_path, monkeypatch):
    """For the sums over all, for the norm, and for whether it is one norm; a signal is among the sums."""
    training = Training(data, tmp_path, *TINY, *FLAGS["bf16"])
    device = played(training, monkeypatch)
    monkeypatch.setattr(training.trainer, "_sync_stats", lambda: True)
    monkeypatch.setattr(training.trainer, "_grad_norm_buf", torch.zeros(1, dtype=torch.float64))
    sent = []
    monkeypatch.setattr(
        distributed_utils, "all_reduce", lambda buffer, group: device.take(buffer) or sent.append(buffer)
    )
    samples = [next(training.batches) for _ in range(2)]
    with device:
        found = training.trainer.train_step(samples)
    assert device.waits == ["copy"] * 3 and training.trainer.told is False
    assert len(sent) == 2 and sum(sample["ntokens"] for sample in samples) in sent[0].tolist()
    assert found["loss"] > 0


def test_a_validation_waits_once_a_batch(data, tmp_path, monkeypatch):
    training = Training(data, tmp_path, *TINY, *FLAGS["chunked"])
    training.trainer.task.load_dataset("valid")
    samples = list(training.trainer.get_valid_iterator("valid").next_epoch_itr(shuffle=False))
    expected = [training.trainer.valid_step(sample) for sample in samples]
    with played(training, monkeypatch) as device:
        found = [training.trainer.valid_step(sample) for sample in samples]
    assert found == expected and device.waits.count("copy") == len(samples)


@pytest.mark.parametrize("places", [(), ("source",), ("left",), ("source", "left")])
@pytest.mark.parametrize("kind", EVERY)
def test_known_padding(kind, places):
    """The same scores, and no question; of what is not known each stack asks once."""
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
    found = {}
    for known in (None, padding):
        with Device(inputs) as device, torch.no_grad():
            found[known] = model(*inputs, padding=known)[0]
        assert len(device.waits) == (0 if known else len(model.stacks()))
    assert torch.equal(found[None], found[padding])


def test_a_masked_model_looks_for_its_places_once():
    """Forward and backward, where a mask would look anew; the scores are those that the mask takes of all."""
    model, tokens = small("deepnet_masked_lm"), batch()[1]
    mask = tokens.eq(tokens[1, 1])
    with Device([tokens, mask, *model.parameters()]) as device:
        scores = model(tokens, masked_tokens=mask, padding=Padding(source=True))[0]
        scores.sum().backward()
    assert device.waits == ["nonzero"] and torch.allclose(scores, model(tokens)[0][mask], atol=1e-6)


def test_one_copy_keeps_types_and_shapes(monkeypatch):
    monkeypatch.setattr(waits, "elsewhere", lambda tensor: True)
    logged = {"n": torch.tensor(2**40), "of": {"loss": torch.tensor([[1.1]]), "words": 3}}
    (norm,) = waits.fetch([torch.tensor(0.1)], [logged])
    assert norm.dtype == torch.float32 and norm == torch.tensor(0.1)
    assert torch.equal(logged["n"], torch.tensor(2**40)) and torch.equal(logged["of"]["loss"], torch.tensor([[1.1]]))
    assert logged["of"]["words"] == 3


@pytest.mark.parametrize(("device", "given"), [("cpu", torch.Tensor), ("meta", float)])
def test_a_factor_is_no_copy_on_another_device(device, given):
    found, optimizer = [], SimpleNamespace(params=[torch.empty(1, device=device)])
    waits.multiply_by_number(lambda _, c: found.append(c), optimizer, torch.tensor(0.5))
    assert found == [0.5] and isinstance(found[0], given)


def test_norms_of_all_ranks(monkeypatch):
    """fairseq's words where they differ, ours where one is no number, on every rank; nothing without other GPUs."""
    others, common, told = [1.0], SimpleNamespace(amp=False), []
    monkeypatch.setattr(distributed_utils, "all_reduce", lambda buffer, group: buffer[1:].fill_(others[-1]))
    trainer = SimpleNamespace(
        _grad_norm_buf=torch.ones(3), data_parallel_rank=0, data_parallel_process_group=None,
        cfg=SimpleNamespace(common=common),
    )  # fmt: skip

    def compare():
        waits.compare_norms(lambda *_: told.append(others[-1]), trainer, torch.tensor(1.0))

    for other in (1.0, 1.1):
        others.append(other)
        compare()
    assert told == [1.1]
    others.append(float("nan"))
    with pytest.raises(FloatingPointError, match="gradients are Nan/Inf"):
        compare()
    common.amp = True  # skips the update
    compare()
    trainer._grad_norm_buf = None
    compare()
    assert told == [1.1]
