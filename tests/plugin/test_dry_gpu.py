"""Tests of an update's types, kernel launches and host-device synchronisations on benchmarks.fake_gpu.

The fake GPU computes nothing. It records what an update would ask of a GPU: the kernels that would be launched, and the
waits, wherever the CPU needs a number of the device. It also records mismatches: gradients of another type or device
than their parameter, and optimiser moments that are not float32 on the GPU.
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
from ..support.marks import smoke_but

BATCH = Shape(rows=8, source=11, target=9)
OURS = ("--optimizer", "deepnet_adam")
DEFAULT = ("--fp16", *OURS)
COUNTED = torch.__version__.startswith("2.13.")  # COST was counted with 2.13; other versions have other operators
MODIFIED = "deepnorm --pro-res --qk-norm"  # a method with two modifiers, which any method may have
EVERY_METHOD = [*sorted(METHODS), MODIFIED]
# launches of one more layer in each stack, in a forward and a backward pass, by method
DEEPNORM_COST = 124
COST = dict.fromkeys(("ds_init", "mix_ln", "post_ln", "post_ln_init", "pre_ln"), 119) | {
    "admin": 154, "admin_torch": 124, "attn_res": 1026, "b2t": 123, "branchnorm": 134, "complete_p": 124,
    "deepnorm": DEEPNORM_COST, "dlcl": 139, "gpas": 192, "hybrid_norm": 137, "keel": 139, "ln_scaling": 129,
    "mhc": 1004, "normformer": 139, "peri_ln": 134, "r_fixup": 140, "resi_dual": 158, "rezero": 162,
    "siamese_norm": 184, "sub_ln": 131, "t_fixup": 104, MODIFIED: 152,
}  # fmt: skip
MOST_OF_A_NEW_METHOD = 2 * DEEPNORM_COST  # for a method without an entry in COST
GROWING = {"attn_res"}  # a branch of attn_res reads all earlier ones: COST holds the fifth layer's count
UPDATE_WAITS = 4  # synchronisations of an update in fp16: one in the clipping, three in the log
MOST_OUTSIDE = 30  # launches of an update by graphs outside of them
PASSES = ("input", "forward", "backward")  # parts of an update that must not wait for the device
# Waits are written as "part kind file:function".
WAITS_IN_PASSES = {"chunked": {"forward nonzero plugin/chunked_cross_entropy.py:forward"}}  # by key of OTHER_SETTINGS
DECODING_WAITS = {"rest copy to host core/cache.py:reorder"}  # of a step of beam search: the new order of the beams
PRECISIONS = {
    "float32": (), "fp16": ("--fp16",), "bf16": ("--bf16",), "amp": ("--amp",),
    "memory-efficient fp16": ("--memory-efficient-fp16",), "memory-efficient bf16": ("--memory-efficient-bf16",),
    "fp16 no flat": ("--fp16", "--fp16-no-flatten-grads"),
}  # fmt: skip
OTHER_SETTINGS = {  # all in two encoder and two decoder layers, and each in every precision
    "adam": ("--optimizer", "adam", "--checkpoint-every", "2"),
    "radam": ("--optimizer", "radam"),
    "deepnet_adam": (*OURS, "--checkpoint-activations"),
    "chunked": (*OURS, "--criterion", "chunked_label_smoothed_cross_entropy", "--update-freq", "2"),
}
METHOD_OF_A_FOLDER = """
from deepnet_fairseq.core.methods import Method, register


@register("on_the_fake_gpu")
class OnTheFakeGPU(Method):
    equation = "LN(x + f(x))"
    paper = "a test"
"""
pytestmark = pytest.mark.skipif(obstacle() is not None, reason=str(obstacle()))


@pytest.fixture(scope="module")
def gpu(request):
    """Provide a process with the fake GPU: gpu(function, *arguments) calls a function there.

    The process knows the methods of --methods-from.
    """
    device = FakeGPU(user_dir=request.config.getoption("--methods-from"))
    yield device
    device.close()


def tiny_model(layers: int) -> tuple[str, ...]:
    """Return the flags of a model with that many layers in each stack."""
    return ("--arch", "deepnet_transformer_tiny", f"--encoder-layers={layers}", f"--decoder-layers={layers}")


def flags_of_training(method: str) -> tuple[str, ...]:
    """Return the flags of a training by one of EVERY_METHOD, which may have flags after its name."""
    name, *modifiers = method.split()
    return (*DEFAULT, "--method", name, *modifiers, *get_method(name).train_flags)


def waits_in_passes(record) -> set[str]:
    """Return the synchronisations of the passes in a record of an update."""
    return {wait for wait in record.waits if wait.split()[0] in PASSES}


@pytest.fixture(scope="module")
def default_update(gpu):
    """Provide the record of an update by the default settings."""
    return gpu(train, (*tiny_model(2), *DEFAULT), BATCH)


def test_an_update_by_the_defaults_waits_for_the_device_only_at_its_end(default_update):
    assert default_update.mismatches == []
    assert waits_in_passes(default_update) == set()
    assert default_update.waits.total() == UPDATE_WAITS


def test_the_plan_counts_the_launches_of_an_update(default_update):
    """`deepnet plan` estimates the launches by a formula, from flags alone."""
    planned = flops(parse_setting([*tiny_model(2), *DEFAULT, "--vocab", "100"])).launches

    assert planned == pytest.approx(default_update.launches("forward", "backward"), rel=0.1)


@pytest.mark.skipif(not COUNTED, reason="other versions of torch have other operators")
@pytest.mark.parametrize("method", ["deepnorm", "post_ln", "admin"])
def test_the_plan_counts_the_launches_of_a_further_layer(method):
    """The plan counts attention with a mask, as in a training. An operator more or less is no mistake."""
    of_four, of_five = (
        flops(parse_setting([*tiny_model(layers), *DEFAULT, "--method", method, "--vocab", "100"])).launches
        for layers in (4, 5)
    )

    assert of_five - of_four == pytest.approx(COST[method], abs=1)


@pytest.mark.parametrize("method", smoke_but(("deepnorm",), EVERY_METHOD))
def test_an_update_by_graphs_has_few_launches_and_one_wait(gpu, method):
    """An update by --cuda-graphs is graphs and at most 30 launches; it waits once, for the norm of the gradients."""
    in_graphs, outside, waits, obstacle_to_graphs = gpu(
        fake_graphs.update, (*tiny_model(2), *flags_of_training(method)), BATCH
    )

    assert obstacle_to_graphs is None
    assert in_graphs > 100  # one layer of each stack alone has more than 100 in COST
    assert outside <= MOST_OUTSIDE
    assert waits.total() == 1
    (wait,) = waits
    assert "clip_grad_norm" in wait


@pytest.mark.smoke
@pytest.mark.parametrize("method", EVERY_METHOD)
def test_every_further_layer_costs_the_same_launches(gpu, method):
    """Every further layer costs as many launches as the one before, at most COST, and no synchronisation.

    In the methods of GROWING a further layer costs more than the one before.
    """
    launches = {}  # of models with so many layers in each stack
    for layers in (3, 4, 5):
        record = gpu(train, (*tiny_model(layers), *flags_of_training(method)), BATCH)
        assert record.mismatches == []
        assert waits_in_passes(record) == set()
        launches[layers] = record.launches("forward", "backward")

    cost_of_fourth = launches[4] - launches[3]
    cost_of_fifth = launches[5] - launches[4]
    if method not in GROWING:
        assert cost_of_fifth == cost_of_fourth
    if COUNTED:
        assert cost_of_fifth <= COST.get(method, MOST_OF_A_NEW_METHOD)


@pytest.mark.smoke
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("other", OTHER_SETTINGS)
def test_the_passes_of_other_settings_do_not_wait_for_the_device(gpu, precision, other):
    try:
        record = gpu(train, (*tiny_model(2), *PRECISIONS[precision], *OTHER_SETTINGS[other]), BATCH)
    except SystemExit:  # as --memory-efficient-fp16 with deepnet_adam
        pytest.skip("refused by the command line")

    assert record.mismatches == []
    assert waits_in_passes(record) == WAITS_IN_PASSES.get(other, set())


def test_the_process_knows_the_methods_of_a_folder(tmp_path):
    folder = tmp_path / "methods_on_the_fake_gpu"
    folder.mkdir()
    (folder / "__init__.py").write_text(METHOD_OF_A_FOLDER)
    device = FakeGPU(user_dir=folder)

    flags = device(flags_of_training, "on_the_fake_gpu")
    device.close()

    assert flags[-1] == "on_the_fake_gpu"


@pytest.mark.smoke
def test_a_step_of_beam_search_waits_once_and_copies_nothing(gpu):
    """The sixth step stands for most. The first shares sources, and one in eight drops positions: they wait more."""
    steps = gpu(decode, {"vocab": 100, "encoder_layers": 2, "decoder_layers": 2}, torch.half)

    sixth = steps[5]
    assert set(sixth.waits) == DECODING_WAITS
    assert not sixth.copies
