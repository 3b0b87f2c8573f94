"""Types, kernel launches and host-device synchronisations of an update, counted on benchmarks.fake_gpu.

The numbers below are today's; whoever lowers one writes it here.
"""

from __future__ import annotations

import pytest
import torch

from benchmarks.fake_gpu import FakeGPU, obstacle
from benchmarks.fake_gpu.step import Shape, decode, train
from deepnet_fairseq.core.methods import METHODS, get_method

SMALL = Shape(rows=8, source=11, target=9)
DEFAULT = ("--fp16", "--optimizer", "deepnet_adam")
TINY = ("--arch", "deepnet_transformer_tiny")
COUNTED = torch.__version__.startswith("2.13.")  # other versions have other operators
PAIR = 95  # launches of a layer of each stack, forward and backward
NEW = 2 * PAIR  # most launches of a method that nobody has counted yet
COST = dict.fromkeys(("admin_torch", "deepnorm", "ds_init", "post_ln", "post_ln_init", "t_fixup"), PAIR) | {
    "admin": 130, "branchnorm": 110, "dlcl": 117, "normformer": 117, "pre_ln": 97, "r_fixup": 123, "rezero": 138,
    "sub_ln": 109, "complete_p": 102, "gpas": 170, "hybrid_norm": 121, "keel": 117, "ln_scaling": 107, "mix_ln": 97,
    "peri_ln": 112, "b2t": 99, "mhc": 982, "resi_dual": 132, "siamese_norm": 162, "deepnorm --pro-res --qk-norm": 131,
}  # fmt: skip
WAITS = {  # setting -> synchronisations, "part kind file:function"
    "": {"clip copy to host plugin/waits.py:fetch"},  # losses and norm
    "amp": {"optimizer item plugin/optimisers/half_precision.py:step_amp", "rest item fairseq/trainer.py:train_step"},
}
DECODING = {"rest copy to host core/decoding.py:reorder"}  # of a step, as above
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
    """A process with that GPU."""
    device = FakeGPU()
    yield device
    device.close()


def layers(number: int) -> tuple[str, ...]:
    return (*TINY, f"--encoder-layers={number}", f"--decoder-layers={number}")


def known(*settings: str) -> set[str]:
    return set().union(*(WAITS.get(name, ()) for name in ("", *settings)))


def test_an_update_by_the_defaults(gpu):
    record = gpu(train, (*layers(2), *DEFAULT), SMALL)
    assert record.mismatches == []
    assert dict(record.waits) == dict.fromkeys(known(), 1)


@pytest.mark.smoke
@pytest.mark.parametrize("method", [*sorted(METHODS), "deepnorm --pro-res --qk-norm"])
def test_every_method(gpu, method):
    """Each further layer has as many launches as the one before, and at most COST."""
    flags = (*DEFAULT, "--method", *method.split(), *get_method(method.split()[0]).train_flags)
    records = [gpu(train, (*layers(number), *flags), SMALL) for number in (4, 5, 6)]
    assert [record.mismatches for record in records] == [[]] * 3
    assert [set(record.waits) - known() for record in records] == [set()] * 3
    four, five, six = (record.launches("forward", "backward") for record in records)
    assert six - five == five - four
    assert not COUNTED or six - five <= COST.get(method, NEW)


@pytest.mark.smoke
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("other", OTHERS)
def test_an_update_by_other_settings(gpu, precision, other):
    try:
        record = gpu(train, (*layers(2), *PRECISIONS[precision], *OTHERS[other]), SMALL)
    except SystemExit:
        pytest.skip("refused by the command line")
    assert record.mismatches == [] and set(record.waits) <= known(precision)


@pytest.mark.smoke
def test_steps_of_beam_search(gpu):
    """The first step asks how beams share sources; one in eight drops cached positions that no beam needs."""
    steps = gpu(decode, {"vocab": 100, "encoder_layers": 2, "decoder_layers": 2}, torch.half)
    assert set(steps[5].waits) == DECODING
    assert not steps[5].copies
