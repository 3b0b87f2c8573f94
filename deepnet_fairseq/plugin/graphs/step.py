"""Compute a batch of training by a graph: copy it into a static batch, replay, and return loss and log.

The graph holds model, loss, scaled backward pass and the sum of gradients. Batches that no graph serves are computed by
fairseq as always, and may be mixed with the others in one update.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from fairseq.optim import AMPOptimizer, FP16Optimizer, MemoryEfficientFP16Optimizer
from torch import Tensor, nn

from ...core.models import DeepModel
from ...core.modules import submodules
from ...core.stack import Stack
from . import optimiser_copies, shapes
from .capture import CaptureFailed, Device, Graph
from .gradients import GradientBuffers
from .lint import CaptureLint
from .shapes import Shape
from .static_batch import DIMENSIONS, StaticBatch, shape_of, tensors_of

logger = logging.getLogger(__name__)

Step = tuple[Tensor, Any, dict[str, Any]]  # loss, sample size and log, as a task's train_step returns them
KNOWN = {"id", "nsentences", "ntokens", "net_input", "target"}  # entries of a sample that a graph reads or ignores
LOSS, SIZE = "", "size"  # keys of loss and sample size beside those that the criterion logs
# Memory that the first graph is expected to take for each operator, three times what it took on an H200 (PyTorch 2.11):
# 36 MiB for the 33,700 operators of a batch of 100L-100L. The others are expected to take what the one before took.
BYTES_AN_OPERATOR = 3_500
SPARE = 1 / 20  # share of the device's memory that captures leave free, for validation
LATER = 1 / 4  # share of the number of shapes that each later epoch may add


@dataclass
class Captured:
    """Graph of one shape. outputs: tensors that a replay fills, by the key of the log, LOSS and SIZE."""

    batch: StaticBatch
    graph: Graph
    outputs: dict[str, Tensor]


class GraphedStep:
    """Passes of batches by graphs, one for each of at most `limit` padded shapes.

    padding: number of the padding symbol; compare: measure before the first update whether graphs are faster at all;
    restart: what to do where a capture fails before the first update, which by default ends the training.

    Before the first update the passes run once without effect, to find what no graph can hold and to let libraries make
    their workspaces. Then all graphs are captured, the largest first, because passes without a graph beside them would
    need memory for their activations a second time. `obstacle` says why no batch is computed by a graph any more.
    """

    def __init__(
        self, limit: int, padding: int, device: Device, compare: bool = False,
        restart: Callable[[], None] | None = None,
    ):  # fmt: skip
        self.limit = limit
        self.padding = padding
        self.device = device
        self.compare = compare
        self.restart = restart
        self.obstacle: str | None = None
        self.planned = numpy.empty((0, 0), numpy.int64)  # shapes whose graphs are still to be captured
        self.table = numpy.empty((0, 0), numpy.int64)  # shapes that have a graph
        self.captured: dict[Shape, Captured] = {}
        self.served = 0  # batches with a graph
        self.left = 0  # batches without
        self.began = False
        self.said: set[str] = set()  # lines that are logged once

    @property
    def chosen(self) -> int | str:
        """The number of shapes for a checkpoint: 0 once a comparison or an obstacle has decided against graphs."""
        if self.compare and not self.began:
            return "auto"
        return 0 if self.obstacle is not None else self.limit

    # shapes

    def plan(self, iterator: Any) -> None:
        """Choose shapes for the batches of an epoch; in later epochs a few more, for those that no graph covers."""
        sizes = getattr(iterator.dataset, "sizes", None)
        if sizes is None or len(sizes) != len(iterator.dataset):  # nested data sets have lists of sizes
            if not self.captured:
                self._give_up("the data set does not say how long its sentences are")
            return
        of_epoch = shapes.shapes_of(iterator.frozen_batches, numpy.asarray(sizes))
        if not self.captured:
            self.planned = shapes.choose(of_epoch, self.limit)
            self.of_epoch = of_epoch
            return
        missing = [shape for shape in of_epoch if shapes.covering(tuple(shape), self.table) is None]
        if missing:
            self.planned = shapes.choose(numpy.array(missing), max(1, int(self.limit * LATER)))
            self.of_epoch = of_epoch

    # a batch

    def step(
        self, sample: dict[str, Any], model: nn.Module, criterion: Any, optimizer: Any, update: int, dummy: bool
    ) -> Step | None:
        """Run the passes of a batch as FairseqTask.train_step does; return None if that must do it.

        dummy: the batch counts for nothing, and keeps a process busy that has no more batches of its own.
        """
        self.left += 1
        if self.obstacle is not None or not self._readable(sample):
            return None
        if not self.began:
            if not len(self.planned):
                self._give_up("the batches of the epoch are not known before they come")
                return None
            self._begin(sample, model, criterion, optimizer, update)
        elif self.timed_modules:
            model.set_num_updates(update)
            if self._numbers_of_modules() != self.numbers:
                self._give_up("a module changes with the updates by a number that is no tensor")
        if self.obstacle is not None:
            return None
        if len(self.planned):
            self._capture_planned(sample)
        shape = shapes.covering(shape_of(sample), self.table)
        if shape is None:
            self._say_once("--cuda-graphs: batches that fit into no graph are computed without")
            return None

        captured = self.captured[shape]
        captured.batch.fill(sample)
        self.buffers.attach()
        self._set_scale(dummy)
        captured.graph.replay()
        if hasattr(optimizer, "_needs_sync"):
            optimizer._needs_sync = True  # as fairseq's own backward pass does
        self.served += 1
        self.left -= 1
        return self._results(captured, sample)

    def _readable(self, sample: dict[str, Any]) -> bool:
        """Return whether a graph can read all of a sample; else give up."""
        unknown = [name for name in sample if name not in KNOWN]
        if "target" in sample:
            unknown += [name for name in tensors_of(sample) if name not in DIMENSIONS]
        else:
            unknown += ["no target"]
        if unknown:
            self._give_up(f"batches have {', '.join(unknown)}")
        elif self.began and tensors_of(sample).keys() != self.names:
            self._say_once("--cuda-graphs: batches with other inputs than the first are computed without")
            return False
        return self.obstacle is None

    def _set_scale(self, dummy: bool) -> None:
        """Set the factor on the loss: fairseq's loss scale, 0 for a batch that counts for nothing."""
        if dummy:
            self.scale.zero_()
        elif isinstance(self.optimizer, AMPOptimizer):
            one = torch.ones_like(self.scale)
            self.scale.copy_(self.optimizer.scaler.scale(one))  # the scaler's number is on the device
        elif isinstance(self.optimizer, FP16Optimizer | MemoryEfficientFP16Optimizer) and self.optimizer.scaler:
            self.scale.fill_(self.optimizer.scaler.loss_scale)
        else:
            self.scale.fill_(1.0)

    def _results(self, captured: Captured, sample: dict[str, Any]) -> Step:
        """Return loss, sample size and log of a replay, with the counts of the batch without its padding."""
        found: dict[str, Any] = {}
        for key, tensor in captured.outputs.items():
            if key == SIZE:
                found[key] = tensor.item()  # fairseq computes with it at once
            elif self.reads_norm and tensor.is_cuda:
                # deepnet_adam returns the norm of the gradients on the CPU: the trainer waits for that, and so for this
                # copy, before it looks at the log
                found[key] = tensor.to("cpu", non_blocking=True)
            else:
                found[key] = tensor.clone()
        counts = {"ntokens": sample["ntokens"], "nsentences": len(sample["target"])}
        for key, name in self.counts.items():  # entries of the log that are counts of the batch
            found[key] = counts[name]
        loss = found.pop(LOSS)
        size = found.pop(SIZE)
        return loss, size, found

    # before the first update

    def _begin(self, sample: dict[str, Any], model: nn.Module, criterion: Any, optimizer: Any, update: int) -> None:
        """Make the buffers, run the passes once without effect, and capture the graphs of the first epoch's shapes."""
        self.began = True
        gc.collect()
        self.memory_before = self.device.memory()
        self.model, self.criterion, self.optimizer = model, criterion, optimizer
        self.modules = [*submodules(model), *criterion.modules()]
        if any(has_hooks(module) for module in self.modules):
            self._give_up("a hook wants to be called in each pass")
            return
        # modules that change with time make their buffers at the first call, and fill them in place later
        model.set_num_updates(update)
        self.timed_modules = [
            module
            for module in self.modules
            if hasattr(type(module), "set_num_updates") and not isinstance(module, Stack | DeepModel)
        ]
        self.numbers = self._numbers_of_modules()

        parameters = {}
        for parameter in (*model.parameters(), *criterion.parameters()):
            if parameter.requires_grad:
                parameters[id(parameter)] = parameter
        self.buffers = GradientBuffers(list(parameters.values()))
        self.scale = torch.ones((), device=sample["target"].device)
        self.names = tensors_of(sample).keys()
        self.reads_norm = False
        if hasattr(criterion, "masks_padding"):
            criterion.masks_padding = True  # else it picks the other targets, whose places the CPU would have to know

        rows, lengths = self.planned[:, :1], self.planned[:, 1:]
        self.kernels_in_graphs = self.device.faster_kernels(int((rows * lengths).max()))
        first = self._static(sample, tuple(self.planned[shapes.positions(self.planned).argmax()]))
        self._look_through(first)
        if self.obstacle is None and self.compare:
            self._compare(first, sample)
        if self.obstacle is None:
            self.buffers.attach()
            self.reads_norm = optimiser_copies.attach(optimizer, self.device, self.buffers)
            for module in self.modules:
                if isinstance(module, DeepModel):
                    module.one_mode = True  # graphs keep the modes of their capture, so that none is set apart
            self._capture_planned(sample)

    def _static(self, sample: dict[str, Any], shape: Shape) -> StaticBatch:
        """Return a static batch of a shape; it holds the sample if the shape covers it, else padding alone."""
        batch = StaticBatch(sample, shape, self.padding)
        if shapes.covering(shape_of(sample), numpy.array([shape])):
            batch.fill(sample)
        return batch

    def _look_through(self, batch: StaticBatch) -> None:
        """Run the passes without effect; give up if a graph could not hold them, and note what the loss returns."""
        lint = CaptureLint()

        def passes() -> tuple[tuple[Tensor | None, ...], dict[str, Any]]:
            # the lint is the inner mode: it sees the operators before others take their place
            with self.kernels_in_graphs, lint:
                return self._passes(batch)

        with self._random_numbers_kept():
            gradients, outputs = self.device.warm_up(passes)
        self.operators = lint.calls
        if lint.findings:
            places = "; ".join(dict.fromkeys(lint.findings))
            self._give_up(f"the CPU reads what the GPU computes: {places}")
            return
        self.buffers.used = [n for n, gradient in enumerate(gradients) if gradient is not None]
        self._sort_outputs(batch, outputs)

    def _sort_outputs(self, batch: StaticBatch, outputs: dict[str, Any]) -> None:
        """Note where each number of the log comes from: tensors of the passes, or a count of the batch."""
        self.counts: dict[str, str] = {}
        self.like: dict[str, Tensor] = {}
        for key, value in outputs.items():
            if value is batch.ntokens:
                self.counts[key] = "ntokens"
            elif torch.is_tensor(value):
                self.like[key] = torch.empty_like(value)
            elif key in ("nsentences", "sample_size", SIZE) and value == batch.shape[0]:
                self.counts[key] = "nsentences"
            else:
                self._give_up(f"the loss logs {key}, a number that is no tensor")

    def _compare(self, batch: StaticBatch, sample: dict[str, Any]) -> None:
        """Give up if a replay, times the padding, takes as long as the same passes without a graph."""
        with self._random_numbers_kept():
            plain = min(self.device.seconds(lambda: self._passes(batch)) for _ in range(2))
            captured = self._capture(sample, batch.shape)
            captured.batch.fill(batch.sample)
            replayed = min(self.device.seconds(captured.graph.replay) for _ in range(2))
        self.buffers.zero()
        padding = shapes.padding(self.of_epoch, self.planned)
        line = (
            f"--cuda-graphs auto: the passes of a batch take {1000 * plain:.1f} ms, "
            f"by a graph {1000 * replayed:.1f} ms and with {padding:.1%} padding"
        )
        if replayed * (1 + padding) < plain:
            logger.info(f"{line}: with graphs")
        else:
            self.captured.clear()
            self.table = self.planned[:0]
            self._give_up(f"{line}: graphs are no faster")

    def _random_numbers_kept(self) -> Any:
        """Return a context that puts the state of random numbers back."""
        return torch.random.fork_rng([self.scale.device] if self.scale.is_cuda else [])

    # capture

    def _capture_planned(self, sample: dict[str, Any]) -> None:
        """Capture the graphs of the planned shapes, the largest first, as far as memory suffices; say what was made."""
        start = time.perf_counter()
        memory = self.device.memory()
        cost = BYTES_AN_OPERATOR * self.operators
        order = self.planned[(-shapes.positions(self.planned)).argsort(kind="stable")]
        missing = 0
        for planned in order:
            shape = tuple(int(length) for length in planned)
            if shape in self.captured:
                continue
            if memory.free < cost + SPARE * memory.total:
                missing += 1
                continue
            self._capture(sample, shape)
            after = self.device.memory()
            # activations lie in memory that all graphs share, and torch has reserved for the largest
            cost = (memory.free - after.free) - (after.reserved - memory.reserved)
            memory = after
        self.planned = self.planned[:0]
        taken = self.memory_before.free - memory.free
        logger.info(
            f"--cuda-graphs: {len(self.table)} shapes of batches captured in {time.perf_counter() - start:.1f} s, with "
            f"{taken / 2**30:.1f} GiB; padding makes batches {shapes.padding(self.of_epoch, self.table):.1%} larger"
        )
        if not self.captured:
            self._give_up("memory does not suffice for one graph")
        elif missing:
            logger.info(f"--cuda-graphs: {missing} more do not fit into memory; their batches go into larger shapes")

    def _capture(self, sample: dict[str, Any], shape: Shape) -> Captured:
        """Capture the passes of a shape."""
        outputs = {key: torch.empty_like(like) for key, like in self.like.items()}
        captured = Captured(StaticBatch(sample, shape, self.padding), self.device.graph(), outputs)

        def passes() -> None:
            with self.kernels_in_graphs:
                gradients, computed = self._passes(captured.batch)
            self.buffers.add(gradients)
            for key, output in captured.outputs.items():
                output.copy_(computed[key])

        try:
            captured.graph.capture(passes)
        except CaptureFailed:
            if self.restart is not None and not self.served:
                self.restart()
            raise
        self.captured[shape] = captured
        self.table = numpy.array(list(self.captured), dtype=numpy.int64)
        return captured

    def _passes(self, batch: StaticBatch) -> tuple[tuple[Tensor | None, ...], dict[str, Any]]:
        """Run model, loss and backward pass; return the gradients, and loss, sample size and log by key."""
        half = isinstance(self.optimizer, AMPOptimizer)
        with torch.autocast(self.scale.device.type, torch.float16, enabled=half):
            loss, size, logged = self.criterion(self.model, batch.sample)
        # in float32, as fairseq's product with a Python number is
        scaled = (loss.float() * self.scale).to(loss.dtype)
        gradients = torch.autograd.grad(scaled, self.buffers.parameters, allow_unused=True)
        return gradients, logged | {LOSS: loss.detach(), SIZE: size}

    # fallbacks

    def _numbers_of_modules(self) -> list[tuple]:
        """Return the plain numbers of the modules that change with time, which a graph would keep as they are."""
        numbers = []
        for module in self.timed_modules:
            numbers.append(tuple(value for value in vars(module).values() if type(value) in (bool, int, float)))
        return numbers

    def _give_up(self, why: str) -> None:
        """Go on without graphs, and say why."""
        if self.obstacle is not None:
            return
        self.obstacle = why
        logger.info(f"--cuda-graphs: the training goes on without: {why}")
        if self.began:
            if hasattr(self.criterion, "masks_padding"):
                self.criterion.masks_padding = False
            for module in self.modules:
                if isinstance(module, DeepModel):
                    module.one_mode = False

    def _say_once(self, line: str) -> None:
        """Log a line, at the first batch that it concerns."""
        if line not in self.said:
            self.said.add(line)
            logger.info(line)


def has_hooks(module: nn.Module) -> bool:
    """Return whether somebody else's hook wants to be called in each pass; this package's own need not be.

    DeepTask's hook on the loss hands it copies of a batch's containers, which a graph does not see.
    """
    hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values(), *module._backward_hooks.values()]
    own = __name__.split(".")[0]
    return any(not str(getattr(hook, "__module__", "")).startswith(f"{own}.") for hook in hooks)
