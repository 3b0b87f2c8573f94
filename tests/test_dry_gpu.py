"""What an update asks of a GPU, on one that is not there (tests.support.fake_gpu): types, launches, waits of the CPU.

The numbers below are what is known; whoever lowers one writes it here.
"""

from __future__ import annotations

from itertools import combinations, product

import pytest
import torch

from deepnet_fairseq.core.methods import METHODS, get_method
from deepnet_fairseq.tools.bench.kernels import PREDICTED

from .support.fake_gpu import COMPILER, FakeGPU
from .support.fake_gpu.step import UPDATE, Shape, decode, model, refused, train

SMALL = Shape(rows=8, source=11, target=9)
DEFAULT = ("--fp16", "--optimizer", "deepnet_adam")
COUNTED = torch.__version__.startswith("2.13.")  # of others operators and inductor's kernels are other ones
PAIR = 95  # launches of a layer of each stack, forward and backward
AMP = 169  # by --amp, which casts matrices in each pass
NEW = 2 * PAIR  # of a method that nobody has counted yet
COST = dict.fromkeys(("admin_torch", "deepnorm", "ds_init", "post_ln", "post_ln_init", "t_fixup"), PAIR) | {
    "admin": 130, "branchnorm": 110, "dlcl": 117, "normformer": 117, "pre_ln": 97, "r_fixup": 123, "rezero": 138,
    "sub_ln": 109, "complete_p": 102, "gpas": 170, "hybrid_norm": 121, "keel": 117, "ln_scaling": 107, "mix_ln": 97,
    "peri_ln": 112, "b2t": 99, "mhc": 982, "resi_dual": 132, "siamese_norm": 162, "deepnorm --pro-res --qk-norm": 131,
}  # fmt: skip
WAITS = {  # of which setting -> "phase kind file:function", each wait of the CPU for the GPU
    "": {"clip copy to host plugin/waits.py:fetch"},  # losses and norm
    "amp": {"optimiser item plugin/optimisers/half_precision.py:step_amp", "rest item fairseq/trainer.py:train_step"},
}
DECODING = {"copy to host core/decoding.py:reorder"}  # of a step, as above
AXES = {
    "precision": {
        "float32": (), "fp16": ("--fp16",), "bf16": ("--bf16",), "amp": ("--amp",),
        "memory-efficient fp16": ("--memory-efficient-fp16",), "memory-efficient bf16": ("--memory-efficient-bf16",),
        "fp16 no flat": ("--fp16", "--fp16-no-flatten-grads"),
    },
    "optimiser": {name: ("--optimizer", name) for name in ("deepnet_adam", "adam", "radam")},
    "criterion": {"plain": (), "chunked": ("--criterion", "chunked_label_smoothed_cross_entropy")},
    "recomputation": {
        "none": (), "every layer": ("--checkpoint-activations",), "every 2": ("--checkpoint-every", "2"),
    },
    "update-freq": {"1": (), "2": ("--update-freq", "2")},
}  # fmt: skip
pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler: a GPU that is not there needs one")


@pytest.fixture(scope="module")
def gpu():
    """Calls functions in a process with that GPU."""
    device = FakeGPU()
    yield device
    device.close()


def known(*settings: str) -> set[str]:
    return set().union(*(WAITS.get(name, ()) for name in ("", *settings)))


def test_an_update_by_the_defaults(gpu):
    record = gpu(train, (*model(2, 64), *DEFAULT), SMALL)
    assert record.mismatches == []
    assert dict(record.waits) == dict.fromkeys(known(), 1)


@pytest.mark.smoke
@pytest.mark.parametrize("method", [*sorted(METHODS), "deepnorm --pro-res --qk-norm"])
def test_every_method(gpu, method):
    """A layer more costs what the last one did; the launches of optimisers depend on depth in steps."""
    flags = (*DEFAULT, "--method", *method.split(), *get_method(method.split()[0]).train_flags)
    records = [gpu(train, (*model(layers, 64), *flags), SMALL) for layers in (4, 5, 6)]
    assert [record.mismatches for record in records] == [[]] * 3
    assert [set(record.waits) - known() for record in records] == [set()] * 3
    four, five, six = (record.launches("forward", "backward") for record in records)
    assert six - five == five - four
    assert not COUNTED or six - five <= COST.get(method, NEW)


@pytest.mark.smoke
def test_a_layer_under_amp(gpu):
    """Whose masks are made in the type of its products, once a stack."""
    flags = ("--amp", "--optimizer", "adam")
    three, two = (gpu(train, (*model(layers, 64), *flags), SMALL).launches("forward", "backward") for layers in (3, 2))
    assert three - two <= AMP


@pytest.mark.smoke
def test_pairs_of_settings(gpu):
    """Each value of an axis with each of another, but for what the command line refuses."""
    failed, waits = {}, set()
    for row in covering(gpu):
        flags = [flag for axis, value in zip(AXES.values(), row, strict=True) for flag in axis[value]]
        try:
            record = gpu(train, (*model(2, 64), *flags), SMALL)
        except (AssertionError, SystemExit) as error:
            failed[row] = str(error)[-500:]
            continue
        if record.mismatches or not set(record.waits) <= known(*row):
            failed[row] = (record.mismatches, set(record.waits) - known(*row))
        waits |= set(record.waits)
    assert failed == {}
    assert set().union(*WAITS.values()) == waits  # none is known that is not there any more


def covering(gpu) -> list[tuple[str, ...]]:
    """Rows of a value for each axis that hold every pair there is; greedy."""
    first, second, *_ = AXES.values()
    accepted = {pair for pair in product(first, second) if not gpu(refused, (*first[pair[0]], *second[pair[1]]))}
    assert {one for one, _ in accepted} == set(first)
    rows = {row: set(combinations(enumerate(row), 2)) for row in product(*AXES.values()) if row[:2] in accepted}
    left, chosen = set().union(*rows.values()), []
    while left:
        chosen.append(max(rows, key=lambda row: len(rows[row] & left)))
        left -= rows[chosen[-1]]
    return chosen


@pytest.mark.smoke
def test_clipping_and_optimiser_at_100_layers(gpu):
    record = gpu(train, (*model(100, 512), *DEFAULT), steps=1)
    assert record.launches(*UPDATE) < 150
    assert not COUNTED or record.launches("forward", "backward") < 100 * PAIR + 200


@pytest.mark.smoke
@pytest.mark.skipif(not COUNTED, reason="another torch")
@pytest.mark.parametrize("candidate", ["ours", "adam", "stock"])
def test_predictions_of_bench_are_those_of_today(gpu, candidate):
    """What `deepnet bench` shows beside a GPU's own numbers, by its own flags."""
    arch = "transformer" if candidate == "stock" else "deepnet_transformer"
    own = () if candidate == "stock" else ("--method", "post_ln")
    flags = ("--fp16", "--optimizer", "deepnet_adam" if candidate == "ours" else "adam", *own)
    record = gpu(train, (*model(18, 512, arch), *flags), Shape())
    counts = [record.launches(phase) for phase in ("forward", "backward", "clip", "optimiser")]
    predicted = PREDICTED[candidate, "18-18"]
    assert (*counts, record.waits.total()) == predicted[:-1]
    assert record.seconds.total() == pytest.approx(predicted.busy, rel=0.05)


@pytest.mark.smoke
def test_steps_of_beam_search(gpu):
    """The first asks how beams share sources, and one in eight drops what no beam looks back at."""
    steps = gpu(decode, {"vocab": 100, "encoder_layers": 2, "decoder_layers": 2}, torch.half)
    assert set(steps[5].waits) == {f"rest {wait}" for wait in DECODING}
    assert not steps[5].copies
