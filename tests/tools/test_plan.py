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
from deepnet_fairseq.tools.plan.needs import count, flops, memory
from deepnet_fairseq.tools.plan.setting import parse_setting
from deepnet_fairseq.tools.plan.trace import trace

from ..support.planned import PlannedTraining

MT, LM, MASKED = archs.MODEL_NAME, archs.LM, archs.MASKED_LM
LARGE = "--vocab 3000"


def small_setting(model: str, flags: str = "", layers: int | None = None, max_tokens: int = 160):
    """Return a setting of width 32 and batches of sentences of 20 tokens; flags: words that override it.

    layers: of each stack; None for 3, and 2 in an encoder with a decoder.
    """
    words = [f"--arch={model}", "--vocab=60", f"--max-tokens={max_tokens}", "--length=20", "--cpu"]
    for stack in archs.STACKS[model]:
        of_stack = layers
        if of_stack is None:
            of_stack = 2 if (model, stack) == (MT, "encoder") else 3
        words.append(f"--{stack}-layers={of_stack}")
        words.append(f"--{stack}-embed-dim=32")
        words.append(f"--{stack}-ffn-embed-dim=64")
        words.append(f"--{stack}-attention-heads=2")

    has_two_vocabularies = "," in flags
    if model == MT and not has_two_vocabularies:
        words.append("--share-all-embeddings")
    return parse_setting([*words, *flags.split()])


def build_without_memory(setting):
    with torch.device("meta"):
        return MODELS[setting.model].build_model(setting.cfg, blank_task(*setting.vocab))


# parameters

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
    """In total and trained."""
    setting = small_setting(model, flags)
    parameters = list(build_without_memory(setting).parameters())
    trained = [parameter for parameter in parameters if parameter.requires_grad]

    counted = count(setting)

    assert counted.total == sum(parameter.numel() for parameter in parameters)
    assert counted.trainable == sum(parameter.numel() for parameter in trained)
    assert counted.gradient_bytes == sum(parameter.nbytes for parameter in trained)


PUBLISHED = {  # DeepNet, tables 2 and 3, with one vocabulary of 250,002 (not stated); Shleifer et al. 2021, table 1
    "--arch deepnet_transformer_100_100 --share-all-embeddings --vocab 250002": 863e6,
    "--arch deepnet_transformer_500_500 --share-all-embeddings --vocab 250002": 3.8e9,
    "--arch deepnet_transformer_large_100_100 --share-all-embeddings --vocab 250002": 3.2e9,
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


@pytest.mark.parametrize("flags", ["", "--checkpoint-every 2"])
@pytest.mark.parametrize("model", [MT, LM, MASKED])
def test_planned_flops_are_those_that_torch_counts(model, flags):
    """Planned FLOPs equal those of torch.utils.flop_counter: forward, backward and recomputed."""
    setting = small_setting(model, flags)
    training = PlannedTraining(setting)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:  # it ignores the CPU's kernel
        loss, *_ = training.trainer.criterion(training.trainer.model.train(), training.batches[0])
        forward = counter.get_total_flops()
        loss.backward()
    training.close()

    plan = flops(setting)

    assert forward == pytest.approx(plan.forward * setting.max_tokens, rel=1e-9)  # planned for one token
    assert counter.get_total_flops() == pytest.approx(plan.step, rel=0.01)


# memory


USUAL = {"deepnorm", "dlcl", "resi_dual"}  # the default suite runs these only, because an update takes a second
TRAININGS = [
    pytest.param(MT, f"--method {method}", marks=() if method in USUAL else pytest.mark.smoke)
    for method in sorted(METHODS)
]
TRAININGS += [
    (MT, "--activation-fn gelu --activation-dropout 0.1 --attention-dropout 0.1 --checkpoint-activations"),
    (MT, "--pro-res --qk-norm"),
    (MT, f"{LARGE} --criterion {LABEL_SMOOTHED}"),
    (LM, f"{LARGE} --criterion {CROSS_ENTROPY}"),
    (MASKED, f"{LARGE} --checkpoint-every 3 --update-freq 2"),
]
TRAININGS += [
    pytest.param(model, flags, marks=pytest.mark.smoke)
    for model, flags in [
        (MT, "--method dlcl --checkpoint-every 3 --update-freq 2"),
        (MT, "--method rezero --bf16 --update-freq 2"),
        (MT, "--length 400 --optimizer deepnet_adam"),
        (LM, "--method mhc --checkpoint-every 3"),
        (MASKED, "--method normformer --bf16 --mask-prob 0.5"),
    ]
]


@pytest.mark.parametrize(("model", "flags"), TRAININGS)
def test_the_planned_peak_is_the_memory_that_torch_allocates(model, flags):
    """In an update of fairseq's Trainer, beyond weights and optimiser state.

    A plan between two updates leaves no tensor without storage.
    """
    setting = small_setting(model, flags, layers=9, max_tokens=1600)
    training = PlannedTraining(setting)
    for _ in range(2):
        training.step()
    plan = memory(setting)
    training.trainer.zero_grad()

    measured = largest_allocation(training.step)

    training.close()
    before = plan.weights + plan.optimiser + plan.objects
    assert plan.peak - before == pytest.approx(measured, rel=0.04)


def largest_allocation(function) -> int:
    """Return the most bytes that torch's CPU allocator held for the function, beyond those held before."""
    gc.collect()  # cycles of earlier tests, freed while the function runs, would count as less memory
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        function()

    events = [event for event in watched.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


@pytest.mark.parametrize("method", ["post_ln", "dlcl"])
def test_the_plan_of_a_deep_model_is_the_line_through_shallow_ones(method, monkeypatch):
    """The trace of a deep model, extrapolated from shallow ones, equals a whole one; dlcl's grows quadratically."""
    setting = small_setting(MT, f"--method {method}", layers=10)
    extrapolated = trace(setting)
    for name in ("TRACED_IF_ALIKE", "TRACED_IF_GROWING"):
        monkeypatch.setattr(f"deepnet_fairseq.tools.plan.trace.{name}", 10)
    other_setting = replace(setting, mask_prob=0.2)  # so that the cached trace is not returned

    whole = trace(other_setting)

    assert len(extrapolated) == len(whole)
    assert len(whole) == 2 + 2 * 10 + 2 + 1  # layers, and what stands before, between and behind them
    for ours, traced in zip(extrapolated, whole, strict=True):
        for name, value in vars(traced).items():
            expected = value if isinstance(value, str) else pytest.approx(value, rel=0.01, abs=1024)
            assert getattr(ours, name) == expected, ours


def bytes_a_parameter(**changes) -> float:
    """Return the planned bytes of weights, gradients and optimiser a parameter, on a GPU; changes: of the setting."""
    setting = replace(small_setting(MT), device="cuda", **changes)
    plan = memory(setting)
    return (plan.weights + plan.gradients + plan.optimiser) / count(setting).total


@pytest.mark.parametrize("optimizer", ["adam", "deepnet_adam"])
@pytest.mark.parametrize(("precision", "expected"), [("fp32", 16), ("fp16", 20), ("bf16", 20)])
def test_bytes_a_parameter_are_16_in_fp32_and_20_in_half_precision(precision, expected, optimizer):
    """In half precision there are float32 weights beside."""
    assert bytes_a_parameter(precision=precision, optimizer=optimizer) == expected


@pytest.mark.parametrize("half", ["fp16", "bf16"])
def test_bytes_a_parameter_are_12_without_a_float32_copy(half):
    assert bytes_a_parameter(precision=f"memory-efficient-{half}") == 12


@pytest.mark.parametrize("half", ["fp16", "bf16"])
def test_zero_on_four_gpus_keeps_a_quarter_of_what_is_float32(half):
    of_each = bytes_a_parameter(precision=half, gpus=4, zero=True, optimizer="deepnet_adam")

    in_half_precision = 4  # weight and gradient
    assert of_each == pytest.approx(in_half_precision + 16 / 4, abs=0.01)


GRAPHS = "--arch deepnet_transformer_18_18 --fp16 --optimizer deepnet_adam --vocab 1000 --cuda-graphs"


def memory_with_graphs(shapes: int, *more: str):
    return memory(parse_setting([*GRAPHS.split(), str(shapes), *more]))


def test_cuda_graphs_take_a_set_of_gradients_and_memory_by_shape():
    """A graph's kernels and one more set of gradients."""
    without = memory_with_graphs(0)
    eight = memory_with_graphs(8)
    sixteen = memory_with_graphs(16)

    assert without.graphs == 0
    assert eight.graphs > eight.gradients
    assert sixteen.graphs - sixteen.gradients == 2 * (eight.graphs - eight.gradients)
    assert eight.peak == without.peak + eight.graphs


def test_cuda_graphs_take_nothing_where_layers_are_recomputed():
    """The training goes on without graphs there."""
    assert memory_with_graphs(8, "--checkpoint-activations").graphs == 0
