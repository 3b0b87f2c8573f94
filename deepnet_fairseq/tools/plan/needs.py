"""Compute parameters, operations, time, and peak memory of a training.

`memory` follows an update as fairseq's Trainer runs it. The stages are those of trace.py: the embedding, each layer and
the end of each stack, and the loss. The forward pass adds each stage's activations; the backward pass frees them from
the last stage to the first, while the gradients of parameters arrive; the optimiser then adds its temporaries. Adam's
moments exist from the second update on, and all gradients from the second batch of an update with --update-freq.

Operations are those of matrix products and attention, 2 for each multiplication and addition, as Kaplan et al. 2020
("Scaling Laws for Neural Language Models", table 1) and Narayanan et al. 2021 ("Efficient Large-Scale Language Model
Training on GPU Clusters", appendix) count them: a matrix of n numbers costs 2n a token, attention to S keys 4 S C,
causal or not. The backward pass costs twice the forward pass; recomputed layers are one more forward pass of them.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from .setting import Setting
from .trace import LAYERS, Stage, layers_are_alike, skeleton, trace

# Bytes of CPU memory that Python and autograd need for the modules, tensors and graph nodes around a parameter tensor.
# Measured: resident memory at the peak, less all tensors, of models with 758 to 21,002 of these, recomputed and not.
OBJECT_BYTES_A_PARAMETER = 14_000
# Bytes of a GPU's memory that a CUDA graph takes for each kernel: 36 MiB for the 12,650 of a batch of 100L-100L, and
# 184 MiB for the 61,500 of 500L-500L (PyTorch 2.11 on an H200).
GRAPH_BYTES_A_KERNEL = 3_100
TERA = 1e12


def count(setting: Setting) -> SimpleNamespace:
    """Count the setting's parameters exactly, a shared one once, from a model on torch's meta device.

    The result has total: number of scalars in all parameters; trainable: in those that are trained; tensors: number of
    parameter tensors; largest: number of scalars in the largest one; weight_bytes: of all; gradient_bytes: of those
    that are trained.
    """
    if layers_are_alike(setting):
        model = skeleton(setting)  # with a few layers
    else:
        model = skeleton(setting, max(getattr(setting.cfg, name) for name in setting.layer_fields))  # with all layers

    copies = dict.fromkeys(model.parameters(), 1)  # parameter of the skeleton -> how many like it the model has
    for name, stack in model.stacks().items():
        missing_layers = getattr(setting.cfg, f"{name}_layers") - len(stack.layers)  # 0 if all of them were made
        for parameter in stack.layers[-1].parameters():  # the missing layers are like the last one
            copies[parameter] += missing_layers

    total = trainable = weight_bytes = gradient_bytes = 0
    for parameter, number in copies.items():
        total += number * parameter.numel()
        weight_bytes += number * parameter.nbytes
        if parameter.requires_grad:
            trainable += number * parameter.numel()
            gradient_bytes += number * parameter.nbytes

    return SimpleNamespace(
        total=total,
        trainable=trainable,
        tensors=sum(copies.values()),
        largest=max(parameter.numel() for parameter in copies),
        weight_bytes=weight_bytes,
        gradient_bytes=gradient_bytes,
    )


def flops(setting: Setting, stages: list[Stage] | None = None) -> SimpleNamespace:
    """Return floating-point operations and kernel launches of an update.

    The result has
      forward: operations of the forward pass for one target token; one source token is included if there is a source
      train: the same of forward and backward pass, without recomputation
      recomputed: operations a token that recomputation adds
      step: operations of a whole update on all GPUs, recomputation included
      launches: kernel launches of a whole update on each GPU, recomputation included, without the optimiser's.

    stages: of a batch of the setting, as `trace` returns them; None to trace them.
    """
    stages = stages or trace(setting)
    tokens = setting.max_tokens // setting.length * setting.length  # of a traced batch, which has whole sentences
    computed_twice: list[Stage] = []
    if setting.checkpoint_every:
        computed_twice = [stage for stage in stages if stage.name.endswith(LAYERS)]

    forward = sum(stage.flops for stage in stages) / tokens
    recomputed = sum(stage.flops for stage in computed_twice) / tokens
    launches = sum(stage.launches + stage.launches_back for stage in stages)
    launches += sum(stage.launches for stage in computed_twice)

    train = 3 * forward  # the backward pass costs twice the forward pass
    return SimpleNamespace(
        forward=forward,
        train=train,
        recomputed=recomputed,
        step=(train + recomputed) * setting.tokens_per_update,
        launches=launches * setting.update_freq,
    )


def speed(setting: Setting, rate: float, updates: int | None = None) -> SimpleNamespace:
    """Return the speed of a training in which each GPU does `rate` FLOP/s.

    The time to exchange gradients between GPUs counts only if `rate`, as measured, includes it.

    updates: number of updates of the whole training, None if it is unknown.

    The result has rate and updates as given; step: seconds of an update; tokens_per_second: target tokens of all GPUs;
    hours: of the whole training, None if the number of updates is unknown.
    """
    operations = flops(setting).step  # of an update on all GPUs
    seconds = operations / (rate * setting.gpus)
    hours = None if updates is None else updates * seconds / 3600
    return SimpleNamespace(
        rate=rate, step=seconds, tokens_per_second=setting.tokens_per_update / seconds, updates=updates, hours=hours
    )


def updates_of(setting: Setting, epochs: float, corpus_tokens: int) -> int:
    """Return the number of updates, at least 1, in `epochs` passes over a corpus, as if all batches were full.

    corpus_tokens: target tokens of the corpus.
    """
    return max(1, round(epochs * corpus_tokens / setting.tokens_per_update))


def memory(setting: Setting, parameters: Any = None, stages: list[Stage] | None = None) -> SimpleNamespace:
    """Return the bytes that an update takes, from the second on: on one GPU, or of a process on the CPU.

    The result has
      weights, gradients: of all parameters, and of those that are trained
      optimiser: its state between updates
      buckets: the copy of the gradients that pytorch_ddp sends; with graphs they are sent from where they lie
      activations: what all stages but the loss hold at the end of the forward pass
      recomputed: the most that one group of layers computes again and holds in its backward pass
      loss: what the loss holds, with its temporaries
      step: temporary tensors of the optimiser's step
      graphs: CUDA graphs, and the gradients of a batch, which graphs keep beside the sum over the update's batches
      objects: Python's objects, on the CPU; 0 on a GPU, because they are in the memory of the machine
      peak: the most at a time, less than the sum of the others, which are not all there at the same time
      phase: "forward", "backward" or "optimiser": the part of the update in which that peak is.

    parameters: what `count` returns, None to count them; stages: of a batch of the setting, as `trace` returns them,
    None to trace them.
    """
    parameters = parameters or count(setting)
    stages = stages or trace(setting)
    weights = parameters.weight_bytes
    gradients = parameters.gradient_bytes
    optimiser, temporaries = setting.optimiser_bytes(parameters.trainable, parameters.largest)
    sends_a_copy = setting.gpus > 1 and not setting.active_graphs
    buckets = gradients if sends_a_copy else 0
    objects = OBJECT_BYTES_A_PARAMETER * parameters.tensors if setting.device == "cpu" else 0

    graphs = 0
    if setting.active_graphs:
        kernels = flops(setting, stages).launches // setting.update_freq  # of one batch, whose passes are one graph
        graphs = setting.active_graphs * kernels * GRAPH_BYTES_A_KERNEL + gradients

    always = weights + optimiser + buckets + graphs + objects  # in all phases of an update
    accumulated = gradients if setting.update_freq > 1 else 0  # gradients of earlier batches of the same update
    groups = _grouped(stages, setting)
    peaks = {
        "forward": always + accumulated + _peak_forward(groups),
        "backward": always + _peak_backward(groups, accumulated),
        "optimiser": always + gradients + temporaries,
    }
    phase = max(peaks, key=peaks.__getitem__)

    *body, loss = groups  # the last stage, and so the last group, is the loss
    # this peak of the backward pass leaves .grad out, because the result counts .grad as `gradients`
    loss_backward = loss.kept + loss.stages[0].peak_accumulating
    return SimpleNamespace(
        weights=weights,
        gradients=gradients,
        optimiser=optimiser,
        buckets=buckets,
        activations=sum(group.kept for group in body),
        recomputed=max(group.recomputed for group in body),
        loss=max(loss.peak_forward, loss_backward),
        step=temporaries,
        graphs=graphs,
        objects=objects,
        peak=peaks[phase],
        phase=phase,
    )


class Group:
    """Memory of layers that are recomputed together, or of a single stage that keeps its activations; all in bytes.

    stages: the layers, in forward order, or that one stage. kept: what the forward pass leaves behind for the backward
    pass. peak_forward: the most in the forward pass, beyond what was there before it. recomputed: activations that the
    backward pass computes again, and then holds. peak_recompute: the most while they are computed again, beyond what
    was there before. The last two are 0 for a stage that is not recomputed.
    """

    def __init__(self, stages: list[Stage], setting: Setting):
        self.stages = stages
        is_recomputed = setting.checkpoint_every and stages[0].name.endswith(LAYERS)
        if not is_recomputed:
            self.kept = stages[0].kept
            self.peak_forward = stages[0].peak_forward
            self.recomputed = 0
            self.peak_recompute = 0
            return

        # Only the output of the last layer outlives the forward pass. The peak inside the layers is left out, because
        # that of the backward pass, which computes the layers again, is higher.
        output = stages[-1].output
        self.kept = output
        self.peak_forward = output

        activations = 0  # of the layers that were computed again so far
        peaks = []
        for stage in stages:
            peaks.append(activations + stage.peak_forward)
            activations += stage.kept
        self.recomputed = activations - output  # the output was there already, as `kept`
        self.peak_recompute = max(peaks)


def _grouped(stages: list[Stage], setting: Setting) -> list[Group]:
    """Group the layers of a stack that are recomputed together; every other stage is a group of its own.

    Without recomputation, checkpoint_every 0, each layer is a group of its own too.
    """
    groups: list[list[Stage]] = []
    for stage in stages:
        of_same_stack = bool(groups) and stage.name.endswith(LAYERS) and stage.name == groups[-1][0].name
        if of_same_stack and len(groups[-1]) < setting.checkpoint_every:
            groups[-1].append(stage)
        else:
            groups.append([stage])
    return [Group(group, setting) for group in groups]


def _peak_forward(groups: list[Group]) -> int:
    """Return the most bytes of activations at a time in the forward pass."""
    kept = 0
    peaks = []
    for group in groups:
        peaks.append(kept + group.peak_forward)
        kept += group.kept
    return max(peaks)


def _peak_backward(groups: list[Group], accumulated: int) -> int:
    """Return the most bytes of activations and gradients at a time in the backward pass.

    accumulated: bytes of all parameters' .grad if an earlier batch of the same update has made them; 0 if this batch
    makes them, stage by stage.
    """
    live = sum(group.kept for group in groups)  # activations and their gradients, without .grad
    grad = accumulated  # bytes of .grad that exist
    peak = 0
    for group in reversed(groups):
        # first the layers of the group are computed again, if they are recomputed
        peak = max(peak, live + group.peak_recompute + grad)
        live += group.recomputed
        # then the backward pass goes through them
        for stage in reversed(group.stages):
            if accumulated:
                peak = max(peak, live + stage.peak_accumulating + grad)
            else:
                peak = max(peak, live + stage.peak_backward + grad)
                grad += stage.gradients
            live += stage.change_backward  # mostly a negative number, because activations are freed
    return peak
