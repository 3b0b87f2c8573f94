"""Tests of an update's types, kernel launches and host-device synchronisations on benchmarks.fake_gpu.

The expected counts are today's; a change that lowers one updates it here.
"""

from __future__ import annotations

import pytest
import torch

from benchmarks.fake_gpu import FakeGPU, obstacle
from benchmarks.fake_gpu.step import Shape, decode, train
from deepnet_fairseq.core.methods import METHODS, get_method
from deepnet_fairseq.tools.plan.needs import flops
from deepnet_fairseq.tools.plan.setting import parse_setting

from ..support import fake_graphs

SMALL = Shape(rows=8, source=11, target=9)
DEFAULT = ("--fp16", "--optimizer", "deepnet_adam")
TINY = ("--arch", "deepnet_transformer_tiny")
COUNTED = torch.__version__.startswith("2.13.")  # other versions of torch have other operators
PAIR = 124  # launches of a layer in each stack, forward and backward
NEW = 2 * PAIR  # upper limit for a method without an entry in COST
COST = dict.fromkeys(("ds_init", "mix_ln", "post_ln", "post_ln_init", "pre_ln"), 119) | {
    "admin": 154, "admin_torch": 124, "attn_res": 1026, "b2t": 123, "branchnorm": 134, "complete_p": 124,
    "deepnorm": PAIR, "dlcl": 139, "gpas": 192, "hybrid_norm": 137, "keel": 139, "ln_scaling": 129, "mhc": 1004,
    "normformer": 139, "peri_ln": 134, "r_fixup": 140, "resi_dual": 158, "rezero": 162, "siamese_norm": 184,
    "sub_ln": 131, "t_fixup": 104, "deepnorm --pro-res --qk-norm": 152,
}  # fmt: skip
GROWING = {"attn_res"}  # each branch reads all earlier ones: COST holds the fifth layer's count
WAITS = 4  # synchronisations of an update in fp16: one in the clipping, three in the log
ASKS = {"chunked": {"forward nonzero plugin/chunked_cross_entropy.py:forward"}}  # setting -> "part kind file:function"
DECODING = {"rest copy to host core/cache.py:reorder"}  # synchronisations of a decoding step, in the same form
PRECISIONS = {
    "float32": (), "fp16": ("--fp16",), "bf16": ("--bf16",), "amp": ("--amp",),
    "memory-efficient fp16": ("--memory-efficient-fp16",), "memory-efficient bf16": ("--memory-efficient-bf16",),
    "fp16 no flat": ("--fp16", "--fp16-no-flatten-grads"),
}  # fmt: skip
OTHERS = {
    "adam": ("--optimizer", "adam", "--checkpoint-every", "2"),
    "radam": ("--optimizer", "radam"),
    "deepnet_adam": ("--optimizer", "deepnet_adam", "--checkpoint-activations"),
    "chunked": (*DEFAULT[1:], "--criterion", "chunked_label_smoothed_cross_entropy", "--update-freq", "2"),
}
pytestmark = pytest.mark.skipif(obstacle() is not None, reason=str(obstacle()))


@pytest.fixture(scope="module")
def gpu():
    """Provide a process with the fake GPU."""
    device = FakeGPU()
    yield device
    device.close()


def layers(number: int) -> tuple[str, ...]:
    return (*TINY, f"--encoder-layers={number}", f"--decoder-layers={number}")


def in_passes(record) -> set[str]:
    """Return the synchronisations of the forward and backward passes."""
    return {wait for wait in record.waits if wait.split()[0] in ("input", "forward", "backward")}


def test_an_update_by_the_defaults(gpu):
    record = gpu(train, (*layers(2), *DEFAULT), SMALL)
    assert record.mismatches == []
    assert in_passes(record) == set() and record.waits.total() == WAITS
    planned = flops(parse_setting([*layers(2), *DEFAULT, "--vocab", "100"])).launches
    assert planned == pytest.approx(record.launches("forward", "backward"), rel=0.1)


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(name, marks=() if name == "deepnorm" else pytest.mark.smoke)
        for name in [*sorted(METHODS), "deepnorm --pro-res --qk-norm"]
    ],
)
def test_updates_by_graphs(gpu, method):
    """An update is graphs and at most 30 launches; it waits once, for the norm, and a graph can hold its passes."""
    flags = (*DEFAULT, "--method", *method.split(), *get_method(method.split()[0]).train_flags)
    inside, outside, waits, obstacle = gpu(fake_graphs.update, (*layers(2), *flags), SMALL)
    assert obstacle is None and inside > 100 and outside <= 30
    assert waits.total() == 1 and "clip_grad_norm" in next(iter(waits))


@pytest.mark.smoke
@pytest.mark.parametrize("method", [*sorted(METHODS), "deepnorm --pro-res --qk-norm"])
def test_every_method(gpu, method):
    """Every further layer costs as many launches as the one before, at most COST, and no synchronisation."""
    flags = (*DEFAULT, "--method", *method.split(), *get_method(method.split()[0]).train_flags)
    records = [gpu(train, (*layers(number), *flags), SMALL) for number in (3, 4, 5)]
    assert [record.mismatches for record in records] == [[]] * 3
    assert [in_passes(record) for record in records] == [set()] * 3
    three, four, five = (record.launches("forward", "backward") for record in records)
    assert five - four == four - three or method in GROWING
    assert not COUNTED or five - four <= COST.get(method, NEW)


@pytest.mark.smoke
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("other", OTHERS)
def test_an_update_by_other_settings(gpu, precision, other):
    try:
        record = gpu(train, (*layers(2), *PRECISIONS[precision], *OTHERS[other]), SMALL)
    except SystemExit:
        pytest.skip("refused by the command line")
    assert record.mismatches == [] and in_passes(record) == ASKS.get(other, set())


@pytest.mark.smoke
def test_steps_of_beam_search(gpu):
    """Beam search synchronises at its first step to share sources, and at one step in eight to drop positions."""
    steps = gpu(decode, {"vocab": 100, "encoder_layers": 2, "decoder_layers": 2}, torch.half)
    assert set(steps[5].waits) == DECODING
    assert not steps[5].copies
