"""Compute parameters, operations, time, and peak memory of a training.

The update is followed as fairseq's Trainer runs it, stage by stage (trace.py): the forward pass adds each stage's
memory; the backward pass frees it from the end, while gradients arrive; the optimiser then adds its temporaries. Adam's
moments exist from the second update on, and the gradients from the second batch of an update with --update-freq.

Operations are those of matrix products and attention, 2 for each multiplication and addition, as Kaplan et al. 2020
("Scaling Laws for Neural Language Models", table 1) and Narayanan et al. 2021 ("Efficient Large-Scale Language Model
Training on GPU Clusters", appendix) count them: a matrix of n numbers costs 2n a token, attention to S keys 4 S C,
causal or not. The backward pass costs twice the forward pass; recomputed layers are one more forward pass of them.
"""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

from .setting import Setting
from .trace import LAYERS, Stage, layers_are_alike, skeleton, trace

# Bytes of CPU memory that Python and autograd need for the modules, tensors and graph nodes around one parameter.
# Measured: resident memory at the peak, less all tensors, of 758 to 21,002 parameters, recomputed and not.
OBJECTS = 14_000
# Bytes of a GPU's memory that a CUDA graph takes for each kernel: 36 MiB for the 12,650 of a batch of 100L-100L, and
# 184 MiB for the 61,500 of 500L-500L (PyTorch 2.11 on an H200).
BYTES_A_KERNEL = 3_100
TERA = 1e12


def count(setting: Setting) -> SimpleNamespace:
    """Count the setting's parameters: exactly, from a skeleton on torch's meta device; a shared one once.

    total; trainable: those that are trained; tensors: number of tensors that hold them; largest: numbers in the largest
    tensor; weight_bytes: of all; gradient_bytes: of those that are trained.
    """
    depths = [getattr(setting.cfg, name) for name in setting.layer_fields]
    model = skeleton(setting) if layers_are_alike(setting) else skeleton(setting, max(depths))
    times = dict.fromkeys(model.parameters(), 1)  # number of parameters like this one
    for name, stack in model.stacks().items():
        for parameter in stack.layers[-1].parameters():
            times[parameter] += getattr(setting.cfg, f"{name}_layers") - len(stack.layers)
    return SimpleNamespace(
        total=sum(n * p.numel() for p, n in times.items()),
        trainable=sum(n * p.numel() for p, n in times.items() if p.requires_grad),
        tensors=sum(times.values()),
        largest=max(p.numel() for p in times),
        weight_bytes=sum(n * p.nbytes for p, n in times.items()),
        gradient_bytes=sum(n * p.nbytes for p, n in times.items() if p.requires_grad),
    )


def flops(setting: Setting, stages: list[Stage] | None = None) -> SimpleNamespace:
    """Return floating-point operations and kernel launches, by the stages of the setting's passes.

    Of a target token and a source token with it: forward; train, forward and backward; recomputed. Of a whole update,
    recomputation included: step, on all GPUs; launches, on each, of the optimiser's kernels none.
    """
    stages, tokens = stages or trace(setting), setting.max_tokens // setting.length * setting.length
    again = [stage for stage in stages if setting.checkpoint_every and stage.name.endswith(LAYERS)]
    forward, recomputed = (sum(stage.flops for stage in each) / tokens for each in (stages, again))
    launches = sum(stage.launches + stage.launches_back for stage in stages) + sum(stage.launches for stage in again)
    return SimpleNamespace(
        forward=forward,
        train=3 * forward,
        recomputed=recomputed,
        step=(3 * forward + recomputed) * setting.batch,
        launches=launches * setting.update_freq,
    )


def speed(setting: Setting, rate: float, updates: int | None = None) -> SimpleNamespace:
    """Return the speed at `rate` FLOP/s on each GPU; the exchange of gradients counts only if `rate` includes it.

    step: seconds of an update; tokens_per_second: target tokens, of all GPUs; updates, hours: of the whole training,
    None without `updates`.
    """
    step = flops(setting).step / (rate * setting.gpus)
    hours = None if updates is None else updates * step / 3600
    return SimpleNamespace(rate=rate, step=step, tokens_per_second=setting.batch / step, updates=updates, hours=hours)


def updates_of(setting: Setting, epochs: float, corpus_tokens: int) -> int:
    """Return the updates in `epochs` of a corpus of `corpus_tokens` target tokens; batches count as full."""
    return max(1, round(epochs * corpus_tokens / setting.batch))


def memory(setting: Setting, parameters: Any = None, stages: list[Stage] | None = None) -> SimpleNamespace:
    """Return the bytes that an update takes, from the second on: on one GPU, or of a process on the CPU.

    optimiser: its state between updates; buckets: the copy of the gradients that pytorch_ddp sends; activations: memory
    of all stages but the loss at the end of the forward pass; recomputed: the most that one of them adds in its
    backward pass; loss: memory of the loss, with its temporaries; step: temporaries of the optimiser's update; graphs:
    CUDA graphs, and the gradients of a batch beside their sum; objects: Python's, on the CPU; peak: the most at a time,
    which occurs in `phase` "forward", "backward" or "optimiser".
    """
    parameters, stages = parameters or count(setting), stages or trace(setting)
    weights, gradients = parameters.weight_bytes, parameters.gradient_bytes
    optimiser, step = setting.optimiser(parameters.trainable, parameters.largest)
    buckets = gradients if setting.gpus > 1 else 0
    objects = OBJECTS * parameters.tensors if setting.device == "cpu" else 0
    graphs = 0
    if setting.graphs:
        kernels = flops(setting, stages).launches // setting.update_freq
        graphs = setting.graphs * kernels * BYTES_A_KERNEL + gradients
    base = weights + optimiser + buckets + graphs + objects
    waiting = gradients if setting.update_freq > 1 else 0
    passes = _passes(stages, setting)
    *body, loss = passes
    before = itertools.accumulate((each.saved for each in passes), initial=0)
    phases = {
        "forward": base + waiting + max(saved + each.rise for saved, each in zip(before, passes, strict=False)),
        "backward": base + _backward(passes, waiting),
        "optimiser": base + gradients + step,
    }
    phase = max(phases, key=phases.__getitem__)
    return SimpleNamespace(
        weights=weights,
        gradients=gradients,
        optimiser=optimiser,
        buckets=buckets,
        activations=sum(each.saved for each in body),
        recomputed=max(each.redone for each in body),
        loss=max(loss.rise, loss.saved + loss.stages[0].accumulated),
        step=step,
        graphs=graphs,
        objects=objects,
        peak=phases[phase],
        phase=phase,
    )


class Pass:
    """Memory of a pass over stages that keep their activations, or are recomputed together; in bytes.

    saved: memory that they leave in the forward pass; rise: the most in it; redone: activations that the backward pass
    first computes again and then holds; redoing: the most while it does.
    """

    def __init__(self, stages: list[Stage], setting: Setting):
        self.stages = stages
        self.saved, self.rise = stages[0].forward, stages[0].forward_rise
        self.redone = self.redoing = 0
        if setting.checkpoint_every and stages[0].name.endswith(LAYERS):
            self.saved = self.rise = stages[-1].output
            before = list(itertools.accumulate((stage.forward for stage in stages), initial=0))
            self.redone = before[-1] - stages[-1].output
            self.redoing = max(map(sum, zip(before, (stage.forward_rise for stage in stages), strict=False)))


def _passes(stages: list[Stage], setting: Setting) -> list[Pass]:
    """Group layers that are recomputed together; other stages stand alone."""
    groups: list[list[Stage]] = []
    for stage in stages:
        last = groups[-1] if groups else [stage]
        if stage.name.endswith(LAYERS) and stage.name == last[0].name and len(last) < setting.checkpoint_every:
            last.append(stage)
        else:
            groups.append([stage])
    return [Pass(group, setting) for group in groups]


def _backward(passes: list[Pass], waiting: int) -> int:
    """Return the most bytes at a time in the backward pass; waiting: bytes of gradients that exist from its start."""
    live, arrived, most = sum(each.saved for each in passes), 0, 0
    for each in reversed(passes):
        most = max(most, live + each.redoing + max(waiting, arrived))
        live += each.redone
        for stage in reversed(each.stages):
            if waiting:
                most = max(most, live + stage.accumulated + waiting)
            else:
                most = max(most, live + stage.rise + arrived)
                arrived += stage.gradients
            live += stage.backward
    return most
