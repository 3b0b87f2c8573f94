"""Tests of `deepnet plan` against built models, torch's counter and torch's allocator."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from deepnet_fairseq.core import archs
from deepnet_fairseq.core.methods import METHODS
from deepnet_fairseq.plugin.building import blank_task
from deepnet_fairseq.plugin.chunked_loss import CROSS_ENTROPY, LABEL_SMOOTHED
from deepnet_fairseq.plugin.models import MODELS
from deepnet_fairseq.tools.plan.fit import choose
from deepnet_fairseq.tools.plan.needs import count, flops, memory
from deepnet_fairseq.tools.plan.setting import GIB, Setting, parse_setting
from deepnet_fairseq.tools.plan.trace import Meter, trace

from ..support.planned import PlannedTraining

MT = archs.MODEL_NAME
LM = archs.LM
MASKED = archs.MASKED_LM
LARGE_VOCABULARY = "--vocab 3000"  # with so many symbols the logits are the peak of memory


def small_setting(model: str, flags: str = "", layers: int | None = None, max_tokens: int = 160) -> Setting:
    """Return a setting of width 32, with a vocabulary of 60 symbols and sentences of 20 tokens, on the CPU.

    flags: words that override this; layers: of each stack, None for 3, but 2 in an encoder that has a decoder.
    """
    words = [f"--arch={model}", "--vocab=60", f"--max-tokens={max_tokens}", "--length=20", "--cpu"]
    for stack in archs.STACKS[model]:
        has_decoder = model == MT and stack == "encoder"
        default_layers = 2 if has_decoder else 3
        words.append(f"--{stack}-layers={default_layers if layers is None else layers}")
        words.append(f"--{stack}-embed-dim=32")
        words.append(f"--{stack}-ffn-embed-dim=64")
        words.append(f"--{stack}-attention-heads=2")

    has_two_vocabularies = "," in flags
    if model == MT and not has_two_vocabularies:
        words.append("--share-all-embeddings")
    return parse_setting([*words, *flags.split()])


def build_without_memory(setting: Setting):
    """Build the model of a setting, whose parameters have shapes but no storage."""
    with torch.device("meta"):
        return MODELS[setting.model].build_model(setting.cfg, blank_task(*setting.vocab))


# parameters

# model, flags; every method, and whatever else adds or shares parameters
COUNTED = [(MT, f"--method {method}") for method in sorted(METHODS)]
COUNTED += [(model, flags) for model in (LM, MASKED) for flags in ("", "--layernorm-embedding", "--method dlcl")]
COUNTED += [
    (MT, "--method admin --admin-train none"),
    (MT, "--method dlcl --dlcl-normalize-embedding --dlcl-window 2 --encoder-layers 7"),
    (MT, "--method normformer --normformer-scale-residual --normformer-head-scale-scope all"),
    (MT, "--method rezero --rezero-per-sublayer --encoder-layers 1 --decoder-layers 7 --decoder-learned-pos"),
    (MT, "--vocab 60,75 --share-decoder-input-output-embed --encoder-learned-pos"),
    (MT, "--vocab 60,75 --decoder-embed-dim 48 --decoder-attention-heads 3 --layernorm-embedding"),
    (LM, "--share-decoder-input-output-embed --decoder-learned-pos --qk-norm"),
    (MASKED, "--untie-weights-roberta --encoder-learned-pos"),
]


@pytest.mark.parametrize(("model", "flags"), COUNTED)
def test_the_planned_number_of_parameters_is_the_built_models(model, flags):
    """The total and the trained parameters, which get gradients, are both counted."""
    setting = small_setting(model, flags)
    parameters = list(build_without_memory(setting).parameters())
    trained = [parameter for parameter in parameters if parameter.requires_grad]

    counted = count(setting)

    assert counted.total == sum(parameter.numel() for parameter in parameters)
    assert counted.trainable == sum(parameter.numel() for parameter in trained)
    assert counted.gradient_bytes == sum(parameter.nbytes for parameter in trained)


PUBLISHED = {  # flags -> number of parameters
    # DeepNet (Wang et al. 2022), tables 2 and 3; with one vocabulary of 250,002 symbols, which the paper does not state
    "--arch deepnet_transformer_100_100 --share-all-embeddings --vocab 250002": 863e6,
    "--arch deepnet_transformer_500_500 --share-all-embeddings --vocab 250002": 3.8e9,
    "--arch deepnet_transformer_large_100_100 --share-all-embeddings --vocab 250002": 3.2e9,
    # NormFormer (Shleifer et al. 2021), table 1
    "--arch normformer_lm_125m --vocab 51200": 124.5e6,
    "--arch normformer_lm_355m --vocab 51200": 355.0e6,
    "--arch normformer_lm_355m --vocab 51200 --method pre_ln": 354.7e6,
    "--arch normformer_lm_1.3b --vocab 51200 --method pre_ln": 1313.5e6,
    "--arch normformer_lm_2.7b --vocab 51200": 2649.5e6,
}


@pytest.mark.parametrize("flags", PUBLISHED)
def test_planned_numbers_of_parameters_are_the_published_ones(flags):
    counted = count(parse_setting(flags.split()))

    assert counted.total == pytest.approx(PUBLISHED[flags], rel=0.005)


# operations


@pytest.mark.parametrize("flags", ["", "--checkpoint-every 2"], ids=["kept", "recomputed"])
@pytest.mark.parametrize("model", [MT, LM, MASKED])
def test_planned_flops_are_those_that_torch_counts(model, flags):
    """Planned FLOPs equal those of torch.utils.flop_counter: forward, backward and recomputed."""
    setting = small_setting(model, flags)
    training = PlannedTraining(setting)
    fairseq_model = training.trainer.model.train()
    # by torch's plain attention: the counter does not know the CPU's kernel
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        loss, *_ = training.trainer.criterion(fairseq_model, training.batches[0])
        forward = counter.get_total_flops()
        loss.backward()
        forward_and_backward = counter.get_total_flops()
    training.close()

    plan = flops(setting)

    assert forward == pytest.approx(plan.forward * setting.max_tokens, rel=1e-9)  # planned for one token
    # the plan takes the backward pass for twice the forward pass
    assert forward_and_backward == pytest.approx(plan.step, rel=0.01)


# memory


USUAL = {"deepnorm", "dlcl"}  # the default suite runs these only, because an update takes a second
TRAININGS = [  # model, flags
    pytest.param(MT, f"--method {method}", marks=() if method in USUAL else pytest.mark.smoke)
    for method in sorted(METHODS)
]
TRAININGS += [
    (MT, "--activation-fn gelu --activation-dropout 0.1 --attention-dropout 0.1 --checkpoint-activations"),
    (LM, f"{LARGE_VOCABULARY} --criterion {CROSS_ENTROPY}"),
    (MASKED, f"{LARGE_VOCABULARY} --checkpoint-every 3 --update-freq 2"),
]
TRAININGS += [
    pytest.param(model, flags, marks=pytest.mark.smoke)
    for model, flags in [
        (MT, "--pro-res --qk-norm"),
        (MT, f"{LARGE_VOCABULARY} --criterion {LABEL_SMOOTHED}"),
        (MT, "--method dlcl --checkpoint-every 3 --update-freq 2"),
        (MT, "--method rezero --bf16 --update-freq 2"),
        (MT, "--length 400 --optimizer deepnet_adam"),
        (LM, "--method mhc --checkpoint-every 3"),
        (MASKED, "--method normformer --bf16 --mask-prob 0.5"),
    ]
]


def largest_allocation(function) -> int:
    """Return the most bytes that torch's CPU allocator held for the function, beyond those held before."""
    gc.collect()  # cycles of earlier tests, freed while the function runs, would count as less memory
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        function()

    events = [event for event in watched.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = 0
    most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


@pytest.mark.parametrize(("model", "flags"), TRAININGS)
def test_the_planned_peak_is_the_memory_that_torch_allocates(model, flags):
    """An update of fairseq's Trainer allocates the peak, less weights and optimiser state, within 4%."""
    setting = small_setting(model, flags, layers=9, max_tokens=1600)
    training = PlannedTraining(setting)
    for _ in range(2):  # Adam's moments exist from the second update on
        training.step()
    plan = memory(setting)  # planned between updates: a plan that left tensors without storage in the model would fail
    training.trainer.zero_grad()

    measured = largest_allocation(training.step)

    training.close()
    there_before = plan.weights + plan.optimiser + plan.objects
    assert plan.peak - there_before == pytest.approx(measured, rel=0.04)


@pytest.mark.parametrize("method", ["post_ln", "dlcl"])
def test_the_plan_of_a_deep_model_is_the_line_through_shallow_ones(method, monkeypatch):
    """A trace of few layers, extrapolated to 10, equals the trace of all 10.

    Post-LN's layers are alike, so that three stand for all; under DLCL a layer's cost grows with its place.
    """
    layers = 10
    setting = small_setting(MT, f"--method {method}", layers=layers)
    extrapolated = trace(setting)
    for name in ("TRACED_IF_ALIKE", "TRACED_IF_GROWING"):  # how many layers are traced
        monkeypatch.setattr(f"deepnet_fairseq.tools.plan.trace.{name}", layers)
    uncached_setting = replace(setting, mask_prob=0.2)  # a field without effect here; trace() caches by the setting

    whole = trace(uncached_setting)

    assert len(extrapolated) == len(whole)
    assert len(whole) == 2 * (1 + layers + 1) + 1  # embedding, layers and end of two stacks, and the loss
    for ours, traced in zip(extrapolated, whole, strict=True):
        for name, value in vars(traced).items():  # a stage's name, and its bytes, operations and kernels
            expected = value if isinstance(value, str) else pytest.approx(value, rel=0.01, abs=1024)
            assert getattr(ours, name) == expected, ours


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("criterion", ["label_smoothed_cross_entropy", LABEL_SMOOTHED])
def test_the_batch_that_is_chosen_has_the_memory_of_a_batch_of_its_size(criterion, device):
    """The memory of a size is extrapolated from two small batches; only a loss in chunks is traced for each size."""
    flags = f"--vocab 40000 --fp16 --criterion {criterion}"
    setting = replace(small_setting(MT, flags, max_tokens=8000), device=device, gpu_memory=80 * GIB)

    option, _parameters, operations = choose(setting, batch=True, recompute=True, adam=True)

    assert option.setting.max_tokens == 8000
    assert option.memory == memory(option.setting)
    assert operations == flops(option.setting).step


def bytes_a_parameter(**changes) -> float:
    """Return the planned bytes of a parameter on a GPU: its weight, its gradient and the optimiser's state.

    changes: fields of the setting that differ from float32 on one GPU.
    """
    setting = replace(small_setting(MT), device="cuda", **changes)
    plan = memory(setting)
    return (plan.weights + plan.gradients + plan.optimiser) / count(setting).total


def test_the_results_of_an_operator_that_is_not_torchs_own_are_counted():
    """A user's method may call such an operator. It runs without the meter, which sees its result alone."""
    library = torch.library.Library("tests_of_the_plan", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x.new_empty(2 * len(x)), "Meta")
    numbers = torch.empty(4, device="meta")

    with Meter([numbers]) as meter:
        doubled = torch.ops.tests_of_the_plan.twice(numbers)

    assert meter.live == doubled.nbytes == 32
    assert meter.launches == 1


# bytes of a parameter
FLOAT32 = 4
HALF = 2
MOMENTS = 2 * FLOAT32  # Adam's two


@pytest.mark.parametrize("optimizer", ["adam", "deepnet_adam"])
def test_a_parameter_takes_16_bytes_in_float32(optimizer):
    weight_and_gradient = 2 * FLOAT32

    assert bytes_a_parameter(precision="fp32", optimizer=optimizer) == weight_and_gradient + MOMENTS


@pytest.mark.parametrize("optimizer", ["adam", "deepnet_adam"])
@pytest.mark.parametrize("half", ["fp16", "bf16"])
def test_a_parameter_takes_20_bytes_in_half_precision(half, optimizer):
    """fairseq keeps weight and gradient in float32 beside those in half precision."""
    weight_and_gradient = 2 * HALF + 2 * FLOAT32

    assert bytes_a_parameter(precision=half, optimizer=optimizer) == weight_and_gradient + MOMENTS


@pytest.mark.parametrize("half", ["fp16", "bf16"])
def test_a_parameter_takes_12_bytes_in_half_precision_without_a_float32_copy(half):
    weight_and_gradient = 2 * HALF

    assert bytes_a_parameter(precision=f"memory-efficient-{half}") == weight_and_gradient + MOMENTS


@pytest.mark.parametrize("half", ["fp16", "bf16"])
def test_zero_on_four_gpus_keeps_a_quarter_of_what_is_float32(half):
    of_each_gpu = bytes_a_parameter(precision=half, gpus=4, zero=True, optimizer="deepnet_adam")

    in_half_precision = 2 * HALF  # weight and gradient
    in_float32 = 2 * FLOAT32 + MOMENTS  # weight, gradient and moments
    assert of_each_gpu == pytest.approx(in_half_precision + in_float32 / 4, abs=0.01)  # shares are rounded up


def memory_with_graphs(shapes: int, *more: str):
    """Return the planned memory of a training with --cuda-graphs, one for each of so many shapes of a batch."""
    flags = "--arch deepnet_transformer_18_18 --fp16 --optimizer deepnet_adam --vocab 1000"
    return memory(parse_setting([*flags.split(), "--cuda-graphs", str(shapes), *more]))


def test_cuda_graphs_take_memory_by_shape_and_one_set_of_gradients():
    """Each graph takes memory for its kernels; all of them share one more set of gradients."""
    without = memory_with_graphs(0)
    eight = memory_with_graphs(8)
    sixteen = memory_with_graphs(16)

    kernels_of_eight = eight.graphs - eight.gradients
    kernels_of_sixteen = sixteen.graphs - sixteen.gradients
    assert without.graphs == 0
    assert kernels_of_eight > 0
    assert kernels_of_sixteen == 2 * kernels_of_eight
    assert eight.peak == without.peak + eight.graphs


def test_cuda_graphs_take_nothing_where_layers_with_dropout_are_recomputed():
    """A training that recomputes layers with dropout goes on without graphs."""
    assert memory_with_graphs(8, "--checkpoint-activations", "--dropout=0.1").graphs == 0


def test_graphs_of_layers_that_are_recomputed_have_more_kernels():
    """With recomputation a graph has the kernels of the forward pass twice, which are more than a fifth of all."""
    kept = memory_with_graphs(8, "--dropout=0")
    recomputed = memory_with_graphs(8, "--dropout=0", "--checkpoint-activations")

    kernels_kept = kept.graphs - kept.gradients
    kernels_recomputed = recomputed.graphs - recomputed.gradients
    assert 1.2 * kernels_kept < kernels_recomputed < 2 * kernels_kept


def test_graphs_on_several_gpus_take_the_memory_of_those_on_one_and_send_no_copy():
    one = memory_with_graphs(8)
    four = memory_with_graphs(8, "--gpus=4")

    assert memory_with_graphs(0, "--gpus=4").buckets == one.gradients
    assert four.buckets == 0
    assert four.peak == one.peak
