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
DEEP = " --max-tokens 1600" + "".join(f" --{stack}-layers 9" for stack in ("encoder", "decoder"))
LARGE = "--vocab 3000"


def planned(model: str, flags: str = ""):
    """Return a small setting: 3 layers of width 32 a stack (2 in an encoder with decoder), 8 sentences of 20 tokens."""
    words = [f"--arch={model}", "--vocab=60", "--max-tokens=160", "--length=20", "--cpu"]
    for stack in archs.STACKS[model]:
        layers = 2 if (model, stack) == (MT, "encoder") else 3
        words += [f"--{stack}-layers={layers}", f"--{stack}-embed-dim=32", f"--{stack}-ffn-embed-dim=64"]
        words.append(f"--{stack}-attention-heads=2")
    if model != MT:  # models of one stack
        flags = flags.replace(f" --{({'encoder', 'decoder'} - set(archs.STACKS[model])).pop()}-layers 9", "")
    elif "--vocab" not in flags or "," not in flags:
        words.append("--share-all-embeddings")
    return parse_setting([*words, *flags.split()])


def built(setting):
    with torch.device("meta"):
        return MODELS[setting.model].build_model(setting.cfg, blank_task(*setting.vocab))


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
def test_count_is_the_built_models(model, flags):
    """The planned number of parameters, in total and trained, is the built model's."""
    setting = planned(model, flags)
    own, counted = built(setting), count(setting)
    assert counted.total == sum(p.numel() for p in own.parameters())
    assert counted.trainable == sum(p.numel() for p in own.parameters() if p.requires_grad)
    assert counted.gradient_bytes == sum(p.nbytes for p in own.parameters() if p.requires_grad)


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
def test_published_sizes(flags):
    assert count(parse_setting(flags.split())).total == pytest.approx(PUBLISHED[flags], rel=0.005)


@pytest.mark.parametrize("flags", ["", "--checkpoint-every 2"])
@pytest.mark.parametrize("model", [MT, LM, MASKED])
def test_flops_are_torchs(model, flags):
    """Planned FLOPs equal those of torch.utils.flop_counter: forward, backward and recomputed."""
    setting = planned(model, flags)
    run = PlannedTraining(setting)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:  # it ignores the CPU's kernel
        loss = run.trainer.criterion(run.trainer.model.train(), run.batches[0])[0]
        forward = counter.get_total_flops()
        loss.backward()
    run.close()
    plan = flops(setting)
    assert forward == pytest.approx(plan.forward * 160, rel=1e-9)
    assert counter.get_total_flops() == pytest.approx(plan.step, rel=0.01)


USUAL = {"deepnorm", "dlcl", "resi_dual"}  # the default suite runs these only, because an update takes a second
TRAININGS = [
    pytest.param(MT, f"--method {method}", marks=() if method in USUAL else pytest.mark.smoke)
    for method in sorted(METHODS)
]
TRAININGS += [
    (MT, "--activation-fn gelu --activation-dropout 0.1 --attention-dropout 0.1 --checkpoint-activations"),
    (MT, "--pro-res --qk-norm"),
    (MT, "--method dlcl --checkpoint-every 3 --update-freq 2"),
    (MT, f"{LARGE} --criterion {LABEL_SMOOTHED}"),
    (MT, "--method rezero --bf16 --update-freq 2"),
    (MT, "--length 400 --optimizer deepnet_adam"),
    (LM, f"{LARGE} --criterion {CROSS_ENTROPY}"),
    (LM, "--method mhc --checkpoint-every 3"),
    (MASKED, f"{LARGE} --checkpoint-every 3 --update-freq 2"),
    (MASKED, "--method normformer --bf16 --mask-prob 0.5"),
]


@pytest.mark.parametrize(("model", "flags"), TRAININGS)
def test_peak_is_what_torch_hands_out(model, flags):
    """The planned peak is the memory that torch allocates in fairseq's Trainer beyond weights and optimiser state.

    A plan between two updates leaves no tensor without storage.
    """
    setting = planned(model, f"{DEEP} {flags}")
    run = PlannedTraining(setting)
    for _ in range(2):
        run.step()
    plan = memory(setting)
    before = plan.weights + plan.optimiser + plan.objects
    run.trainer.zero_grad()
    measured = allocated(run.step)
    run.close()
    assert plan.peak - before == pytest.approx(measured, rel=0.04)


def allocated(function) -> int:
    """Return the most bytes that torch's CPU allocator held for the function, beyond those held before."""
    gc.collect()  # cycles of earlier tests, freed while the function runs, would count as less memory
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        function()
    events = [event for event in watched.profiler.kineto_results.events() if event.name() == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most


@pytest.mark.parametrize("method", ["post_ln", "dlcl"])
def test_deep_models_are_the_line_through_shallow_ones(method, monkeypatch):
    """The trace of a deep model, extrapolated from shallow ones, equals a whole one; dlcl's grows quadratically."""
    setting = planned(MT, f"--method {method} --encoder-layers 10 --decoder-layers 10")
    extrapolated = trace(setting)
    for name in ("TRACED_IF_ALIKE", "TRACED_IF_GROWING"):
        monkeypatch.setattr(f"deepnet_fairseq.tools.plan.trace.{name}", 10)
    whole = trace(replace(setting, mask_prob=0.2))  # another setting, so that the cached trace is not returned
    assert len(whole) == len(extrapolated) == 2 + 20 + 2 + 1
    for mine, traced in zip(extrapolated, whole, strict=True):
        for name, number in vars(traced).items():
            expected = number if isinstance(number, str) else pytest.approx(number, rel=0.01, abs=1024)
            assert getattr(mine, name) == expected, mine


def test_half_precision_and_optimisers():
    """Bytes a parameter are 16 in fp32, 20 in half precision with float32 weights, and 12 without master copy.

    ZeRO on 4 GPUs keeps a quarter of all that is float32.
    """
    setting = replace(planned(MT), device="cuda")

    def bytes_each(precision="fp32", **changes):
        plan = memory(replace(setting, precision=precision, **changes))
        return (plan.weights + plan.gradients + plan.optimiser) / count(setting).total

    fused = {"optimizer": "deepnet_adam"}
    assert bytes_each() == bytes_each(**fused) == 16
    for half in ("fp16", "bf16"):
        assert bytes_each(half) == bytes_each(half, **fused) == 20
        assert bytes_each(f"memory-efficient-{half}") == 12
        assert bytes_each(half, gpus=4, zero=True, **fused) == pytest.approx(4 + 16 / 4, abs=0.01)


def test_cuda_graphs_take_memory_of_their_own():
    """A graph's kernels and one more set of gradients; nothing where the training goes on without graphs."""
    flags = ["--arch", "deepnet_transformer_18_18", "--fp16", "--optimizer", "deepnet_adam", "--vocab", "1000"]
    plain, some, more = (memory(parse_setting([*flags, "--cuda-graphs", number])) for number in ("0", "8", "16"))
    assert plain.graphs == 0 < some.graphs - some.gradients
    assert more.graphs - more.gradients == 2 * (some.graphs - some.gradients)
    assert some.peak == plain.peak + some.graphs
    recomputed = parse_setting([*flags, "--cuda-graphs", "8", "--checkpoint-activations"])
    assert memory(recomputed).graphs == 0
