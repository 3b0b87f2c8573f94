"""Compute a batch of training by a graph: copy it into a static batch, replay the graph, and return loss and log.

The passes of a batch are the forward pass of the model, the loss, and the backward pass of the scaled loss. A graph
holds the passes of a batch of one shape, and the addition of its gradients to the buffers. A shape covers a batch that
is no larger in any dimension (shapes.py). Batches that no graph's shape covers are computed by fairseq as always, and
may be mixed with the others in one update.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy
import torch
from fairseq.optim import AMPOptimizer, FP16Optimizer, MemoryEfficientFP16Optimizer
from torch import Tensor, distributed, nn

from ...core.models import DeepModel
from ...core.modules import submodules
from ...core.stack import Stack
from ...wording import counted
from ..distributed import agreement
from . import shapes
from .capture import CaptureFailed, Device, Graph, Memory
from .gradients import GradientBuffers
from .lint import CaptureLint
from .optimiser_copies import OptimiserCopies, capture_copies
from .shapes import Shape
from .static_batch import DIMENSIONS, StaticBatch, shape_of, tensors_of

logger = logging.getLogger(__name__)

Step = tuple[Tensor, Any, dict[str, Any]]  # loss, sample size and log, as a task's train_step returns them
KNOWN = {"id", "nsentences", "ntokens", "net_input", "target"}  # entries of a sample that a graph reads or ignores
# Keys of the loss and of the sample size in dicts that have the entries of the criterion's log too. They differ from
# those of the log, such as "loss" and "sample_size".
LOSS, SIZE = "", "size"
# Memory that the first graph is expected to take for each operator of the passes: three times what it took on an H200
# (PyTorch 2.11), 36 MiB for the 33,700 operators of a batch of 100L-100L. Each later graph is expected to take what the
# one before took.
BYTES_AN_OPERATOR = 3_500
SPARE_MEMORY = 1 / 20  # share of the device's memory that captures leave free, for validation
MORE_SHAPES = 1 / 4  # new shapes that each later epoch may add, as a share of GraphedStep.limit


class Processes(NamedTuple):
    """The processes that train together, each with batches of its own.

    The entries are two of torch's process groups: one over which gradients are added up, on the training's device, and
    one of gloo, over which decisions are exchanged on the CPU.
    """

    of_gradients: Any
    of_decisions: Any


@dataclass
class Captured:
    """Graph of one shape, and the tensors that it reads and fills.

    batch: what a replay reads; outputs: what it fills, the tensors in the criterion's log by their keys, and LOSS and
    SIZE if they are tensors. Counts of the batch, such as "ntokens", are not among them (GraphedStep.counts).
    """

    batch: StaticBatch
    graph: Graph
    outputs: dict[str, Tensor]


class GraphedStep:
    """Computes the passes of a training's batches by graphs, one for each of at most `limit` padded shapes.

    The trainer calls `plan` at the beginning of an epoch and `prepare` before the first update, the task `step` for
    each batch. `prepare` runs the passes once without effect, to find operations that cannot be captured and to let
    libraries make their workspaces. Then it captures the graphs of all planned shapes, the largest first. A graph is
    not captured as late as its first batch comes, because the batches computed without a graph until then would need
    memory for their activations beside that of the graphs.

    With several processes all of them call `prepare`, and at its end they use graphs, or none does. Each adds its own
    batches' gradients to its buffers, and the trainer calls `average_gradients` after an update's last batch.
    """

    # set by _look_through
    model: nn.Module
    optimizer: Any
    timed_modules: list[Any]  # modules of model and criterion that change with the number of updates
    module_numbers: list[tuple]  # what _numbers_of_modules returned for timed_modules before the first capture
    buffers: GradientBuffers
    scale: Tensor  # (), by which the graphs multiply the loss
    tensor_names: Any  # of the first sample's tensors
    # whether the CPU waits for each update's norm of the gradients before it looks at the update's log
    norm_comes_first: bool
    kernels_in_graphs: Any  # context in which passes run and are captured, Device.faster_kernels
    optimiser_copies: OptimiserCopies | None  # graphs of the optimiser's copies, None for an optimiser without
    memory_before: Memory  # before anything was made for graphs
    # set by _try_passes
    operators: int  # in the passes of a batch, as CaptureLint counts them
    output_like: dict[str, Tensor]  # keys of Captured.outputs -> tensor of the same dtype and shape
    counts: dict[str, str]  # keys of the log that are counts of the batch -> "ntokens" or "nsentences"

    def __init__(
        self,
        limit: int,
        pad_index: int,
        device: Device,
        compare: bool = False,
        restart: Callable[[], None] | None = None,
        processes: Processes | None = None,
    ):
        """Take the settings; nothing is captured yet.

        limit: largest number of shapes in the first epoch; pad_index: index of the padding symbol; compare: measure
        before the first update whether graphs are faster at all, and go on without if they are not; restart: called if
        a capture fails before the first update; None, or a restart that returns, lets CaptureFailed end the training;
        processes: those that train together, None for a training of one process.
        """
        self.limit = limit
        self.pad_index = pad_index
        self.device = device
        self.compare = compare
        self.restart = restart
        self.processes = processes
        # the loss, and the modules of model and loss; set by _look_through
        self.criterion: Any = None
        self.modules: list[nn.Module] = []
        self.obstacle: str | None = None  # why no batch is computed by a graph any more; None while graphs are in use
        # arrays of shapes, (N, 2 or 3) once there are any
        self.pending_shapes = numpy.empty((0, 0), numpy.int64)  # shapes whose graphs are still to be captured
        self.captured_shapes = numpy.empty((0, 0), numpy.int64)  # shapes that have a graph, the keys of `captured`
        self.epoch_shapes = numpy.empty((0, 0), numpy.int64)  # of the batches for which shapes were chosen last
        self.captured: dict[Shape, Captured] = {}
        self.served = 0  # batches computed by a graph
        self.unserved = 0  # batches left to fairseq
        self.prepared = False  # whether `prepare` was called
        self.logged_once: set[str] = set()

    @property
    def for_checkpoint(self) -> int | str:
        """The setting that a resumed training goes on with: the number of shapes, "auto", or 0.

        "auto" while the comparison is still to come; 0, for no graphs, once it or an obstacle has decided against them.
        """
        if self.compare and not self.prepared:
            return "auto"
        return 0 if self.obstacle is not None else self.limit

    # shapes

    def plan(self, iterator: Any) -> None:
        """Choose the shapes to capture for the batches of an epoch, and put them into pending_shapes.

        Once graphs are captured, a later epoch gets a few more shapes for the batches that none of them covers.
        iterator: fairseq's EpochBatchIterator.
        """
        sizes = getattr(iterator.dataset, "sizes", None)
        has_size_per_sentence = sizes is not None and len(sizes) == len(iterator.dataset)
        if not has_size_per_sentence:  # as of fairseq's nested data sets, which have a list of sizes for each part
            if not self.captured:
                self._give_up("the data set does not say how long its sentences are")
            return  # graphs that are captured go on without more shapes
        epoch_shapes = shapes.shapes_of(iterator.frozen_batches, numpy.asarray(sizes))
        if not self.captured:
            self.pending_shapes = shapes.choose(epoch_shapes, self.limit)
            self.epoch_shapes = epoch_shapes
            return
        uncovered = [shape for shape in epoch_shapes if shapes.covering(tuple(shape), self.captured_shapes) is None]
        if uncovered:
            self.pending_shapes = shapes.choose(numpy.array(uncovered), max(1, int(self.limit * MORE_SHAPES)))
            self.epoch_shapes = epoch_shapes

    # a batch

    def step(self, sample: dict[str, Any], update: int, dummy: bool) -> Step | None:
        """Compute a batch by a graph in the place of FairseqTask.train_step; return None if fairseq must compute it.

        Adds the gradients of the scaled loss to the parameters' `grad`, and returns loss, sample size and log. sample:
        fairseq's, on the device; update: updates made so far; dummy: the batch counts for nothing, and keeps a process
        busy that has no more batches of its own.
        """
        self.unserved += 1  # taken back at the end, once the batch is computed
        if self.obstacle is not None or not self._can_read(sample):
            return None

        if self.timed_modules:
            # a graph reads tensors that change in place, but computes with a Python number as it was at the capture
            self.model.set_num_updates(update)
            if self._numbers_of_modules() != self.module_numbers:
                self._give_up("a module changes with the updates by a number that is no tensor")
        if self.obstacle is not None:  # found just now
            return None

        if len(self.pending_shapes):  # those that a later epoch has added
            self._capture_planned(sample)
        shape = shapes.covering(shape_of(sample), self.captured_shapes)
        if shape is None:
            self._log_once("--cuda-graphs: batches that fit into no graph are computed without")
            return None

        captured = self.captured[shape]
        captured.batch.fill(sample)
        self.buffers.attach()
        self._set_scale(dummy)
        captured.graph.replay()
        if hasattr(self.optimizer, "_needs_sync"):
            self.optimizer._needs_sync = True  # as FP16Optimizer.backward does: the float32 gradients are out of date
        self.served += 1
        self.unserved -= 1
        return self._results(captured, sample)

    def _can_read(self, sample: dict[str, Any]) -> bool:
        """Return whether a graph can read all entries of a sample.

        If no graph ever can, because of an entry or tensor that StaticBatch does not know, the training goes on without
        graphs. The answer is False too for a sample that only has other tensors than the first one, which fairseq then
        computes.
        """
        unknown = [name for name in sample if name not in KNOWN]
        if "target" in sample:
            unknown += [name for name in tensors_of(sample) if name not in DIMENSIONS]
        else:
            unknown += ["no target"]  # words of the message below
        if unknown:
            self._give_up(f"batches have {', '.join(unknown)}")
            return False
        if self.prepared and tensors_of(sample).keys() != self.tensor_names:
            self._log_once("--cuda-graphs: batches with other inputs than the first are computed without")
            return False
        return True

    def _set_scale(self, dummy: bool) -> None:
        """Set `scale`, by which the graph multiplies the loss.

        The factor is fairseq's loss scale; 0 for a dummy batch; 1 in float32 and with --bf16, without a loss scale.
        """
        if dummy:
            self.scale.zero_()
        elif isinstance(self.optimizer, AMPOptimizer):
            # GradScaler.scale multiplies on the device; get_scale would copy the scale to the CPU, and wait for it
            one = torch.ones_like(self.scale)
            self.scale.copy_(self.optimizer.scaler.scale(one))
        elif isinstance(self.optimizer, FP16Optimizer | MemoryEfficientFP16Optimizer) and self.optimizer.scaler:
            self.scale.fill_(self.optimizer.scaler.loss_scale)
        else:
            self.scale.fill_(1.0)

    def _results(self, captured: Captured, sample: dict[str, Any]) -> Step:
        """Return loss, sample size and log after the graph `captured` was replayed with a sample.

        Counts are those of the sample, without the padding that it got in the graph.
        """
        log: dict[str, Any] = {}  # LOSS and SIZE are taken out of it at the end
        for key, tensor in captured.outputs.items():
            if key == SIZE:
                log[key] = tensor.item()  # fairseq computes with it on the CPU at once
            elif self.norm_comes_first and tensor.is_cuda:
                # the copy need not be waited for here: before the trainer looks at the log, it waits for the norm of
                # the gradients, which deepnet_adam copies to the CPU later
                log[key] = tensor.to("cpu", non_blocking=True)
            else:
                log[key] = tensor.clone()  # the next replay overwrites the tensor

        counts_of_sample = {"ntokens": sample["ntokens"], "nsentences": len(sample["target"])}
        for key, count in self.counts.items():
            log[key] = counts_of_sample[count]
        loss = log.pop(LOSS)
        size = log.pop(SIZE)
        return loss, size, log

    # gradients of several processes

    def average_gradients(self) -> None:
        """Average the parameters' gradients over the processes, after the last batch of an update.

        All processes must call this. It takes one collective for each dtype of the parameters, whatever their number.
        Gradients are divided before they are added up, as DDP does it: in half precision the sum of all may overflow.
        """
        if self.processes is None:
            return
        group = self.processes.of_gradients
        self.buffers.attach()
        for flat in self.buffers.flat:
            flat.div_(distributed.get_world_size(group))
            distributed.all_reduce(flat, group=group)

    # before the first update

    def prepare(self, sample: dict[str, Any], model: nn.Module, criterion: Any, optimizer: Any, update: int) -> None:
        """Capture the graphs of the first epoch's shapes, or find out why there can be none, and set `obstacle`.

        The trainer calls this before the first update; with several processes on all of them, which then all go on with
        graphs of the same shapes, or all without. sample: a batch of fairseq's, on the device; model, criterion: those
        that are trained, not their wrappers for several processes; update: updates made so far, in earlier runs.
        Raises CaptureFailed if a capture fails, on all processes if it fails on one.
        """
        failure = None
        try:
            if self.obstacle is None and self._can_read(sample):
                self._look_through(sample, model, criterion, optimizer, update)
        except CaptureFailed as error:
            failure = error
        except torch.OutOfMemoryError:
            self._give_up("memory does not suffice for the passes of the largest batch")

        self.prepared = True
        if self.processes is not None:
            self._agree(failure, self.processes)
        elif failure is not None:
            if self.restart is not None:
                self.restart()
            raise failure
        if self.obstacle is None:
            self._begin()

    def _agree(self, failure: CaptureFailed | None, processes: Processes) -> None:
        """Learn what the other processes have found, and go on as all of them can.

        Raises CaptureFailed on all if one has failed to capture; calls _give_up on all if one has found an obstacle;
        else leaves each process those graphs that all have. failure: of this process. The processes exchange this over
        the CPU, because a GPU cannot be used any more after a failed capture.
        """
        failed_here = None if failure is None else str(failure)
        findings = agreement.all_gather((failed_here, self.obstacle, len(self.captured)), processes.of_decisions)
        for failed, _obstacle, _captured in findings:
            if failed is not None:
                raise CaptureFailed(failed) from failure
        for number, (_failed, obstacle, _captured) in enumerate(findings):
            if obstacle is not None:
                self._give_up(f"on process {number} of {len(findings)}: {obstacle}")

        # the same planned shapes were captured in the same order, the largest first
        fewest = min(captured for _failed, _obstacle, captured in findings)
        for shape in list(self.captured)[fewest:]:
            del self.captured[shape]
        self.captured_shapes = self.captured_shapes[:fewest]

    def _begin(self) -> None:
        """Let the optimiser change from fairseq's way to that of the graphs."""
        self.buffers.attach()
        if self.optimiser_copies is not None:
            self.optimiser_copies.use()
        # several processes add up their logs before they compute the norm
        self.norm_comes_first = self.optimiser_copies is not None and self.processes is None

    def _look_through(
        self, sample: dict[str, Any], model: nn.Module, criterion: Any, optimizer: Any, update: int
    ) -> None:
        """Make the buffers, run the passes once without effect, and capture the graphs of the first epoch's shapes.

        Calls _give_up and returns where something forbids graphs. The arguments are those of `prepare`.
        """
        if not len(self.pending_shapes):
            self._give_up("the batches of the epoch are not known before they come")
            return
        gc.collect()  # so that tensors in cycles of references do not count as memory in use
        self.memory_before = self.device.memory()
        self.model = model
        self.criterion = criterion
        self.optimizer = optimizer
        self.modules = [*submodules(model), *criterion.modules()]
        self._adapt_modules(with_graphs=True)
        if any(has_foreign_hooks(module) for module in self.modules):
            self._give_up("a hook wants to be called in each pass")
            return

        # some modules change with the number of updates: at this call they make their buffers, which later calls change
        # in place
        model.set_num_updates(update)
        self.timed_modules = [
            module
            for module in self.modules
            # stacks and models only hand the number on to the modules in them
            if hasattr(type(module), "set_num_updates") and not isinstance(module, Stack | DeepModel)
        ]
        self.module_numbers = self._numbers_of_modules()

        parameters = {}  # id -> parameter: each once, in order
        for parameter in (*model.parameters(), *criterion.parameters()):
            if parameter.requires_grad:
                parameters[id(parameter)] = parameter
        self.buffers = GradientBuffers(list(parameters.values()))
        self.scale = torch.ones((), device=sample["target"].device)
        self.tensor_names = tensors_of(sample).keys()

        rows = self.pending_shapes[:, :1]
        lengths = self.pending_shapes[:, 1:]
        self.kernels_in_graphs = self.device.faster_kernels(int((rows * lengths).max()))
        # the passes are tried with the largest shape, for which they need the most memory
        largest_shape = self.pending_shapes[shapes.positions(self.pending_shapes).argmax()]
        largest = self._static_batch(sample, tuple(largest_shape))
        self._try_passes(largest)
        if self.obstacle is None and self.compare:
            self._compare(largest, sample)
        if self.obstacle is not None:
            return

        self.buffers.attach()  # the graph of the optimiser's copies reads the gradients in the buffers
        self.optimiser_copies = capture_copies(optimizer, self.device, self.buffers)
        self._capture_planned(sample)

    def _static_batch(self, sample: dict[str, Any], shape: Shape) -> StaticBatch:
        """Return a static batch of a shape, to try the passes with.

        The batch holds the sample if the shape covers it, else nothing but padding.
        """
        batch = StaticBatch(sample, shape, self.pad_index)
        if shapes.covering(shape_of(sample), numpy.array([shape])):
            batch.fill(sample)
        return batch

    def _try_passes(self, batch: StaticBatch) -> None:
        """Run the passes once, without adding their gradients; call _give_up if they cannot be captured.

        Sets operators, buffers.used, output_like and counts by what the passes do and return.
        """
        lint = CaptureLint()

        def passes() -> tuple[tuple[Tensor | None, ...], dict[str, Any]]:
            """Run the passes under the lint; see _passes."""
            # the lint is the inner context: it sees an operator before kernels_in_graphs replaces it
            with self.kernels_in_graphs, lint:
                return self._passes(batch)

        with self._random_state_restored():
            before = self._random_state()
            gradients, outputs = self.device.warm_up(passes)
            draws = any(not torch.equal(*states) for states in zip(before, self._random_state(), strict=True))
        recomputes = any(getattr(module, "recomputed_layers", 0) for module in self.modules)  # stacks have this
        if recomputes and draws:
            self._give_up("--checkpoint-activations draws random numbers a second time; set all dropouts to 0")
            return
        self.operators = lint.calls
        if lint.findings:
            places = "; ".join(dict.fromkeys(lint.findings))  # each once
            self._give_up(f"the CPU reads what the GPU computes: {places}")
            return
        self.buffers.used = [index for index, gradient in enumerate(gradients) if gradient is not None]
        self._sort_outputs(batch, outputs)

    def _sort_outputs(self, batch: StaticBatch, outputs: dict[str, Any]) -> None:
        """Set output_like by the tensors, and `counts` by the counts of the batch, in what _passes has returned.

        outputs: the criterion's log with LOSS and SIZE, for `batch`. Any other value is a reason to give up graphs,
        because a replay would return it for every batch as it is now.
        """
        self.counts = {}
        self.output_like = {}
        for key, value in outputs.items():
            if value is batch.ntokens:
                self.counts[key] = "ntokens"
            elif torch.is_tensor(value):
                self.output_like[key] = torch.empty_like(value)
            elif key in ("nsentences", "sample_size", SIZE) and value == batch.shape[0]:
                # a Python number: the batch's sentences, which are the sample size with --sentence-avg
                self.counts[key] = "nsentences"
            else:
                self._give_up(f"the loss logs {key}, a number that is no tensor")

    def _compare(self, batch: StaticBatch, sample: dict[str, Any]) -> None:
        """Capture a graph of the batch's shape, and call _give_up if it is no faster than the passes without a graph.

        A graph computes padded batches, on average 1 + `padding` times as large as those that fairseq would compute, so
        its time is multiplied by that. Each time is the shorter one of two. batch: of a planned shape; sample: the
        batch at hand, see _capture.
        """
        with self._random_state_restored():
            plain = min(self.device.seconds(lambda: self._passes(batch)) for _ in range(2))
            captured = self._capture(sample, batch.shape)
            captured.batch.fill(batch.sample)
            replayed = min(self.device.seconds(captured.graph.replay) for _ in range(2))
        self.buffers.zero()  # the replays have added gradients
        padding = shapes.padding_share(self.epoch_shapes, self.pending_shapes)
        line = (
            f"--cuda-graphs auto: the passes of a batch take {1000 * plain:.1f} ms, "
            f"by a graph {1000 * replayed:.1f} ms and with {padding:.1%} padding"
        )
        if replayed * (1 + padding) < plain:
            logger.info(f"{line}: with graphs")
        else:
            self._give_up(f"{line}: graphs are no faster")

    def _random_state_restored(self) -> Any:
        """Return a context at whose end torch's random generators are put back into their state at its beginning."""
        return torch.random.fork_rng([self.scale.device] if self.scale.is_cuda else [])

    def _random_state(self) -> list[Tensor]:
        """Return the state of torch's random generators, of the CPU's and of the GPU's if there is one."""
        states = [torch.get_rng_state()]
        if self.scale.is_cuda:
            states.append(torch.cuda.get_rng_state(self.scale.device))
        return states

    # capture

    def _capture_planned(self, sample: dict[str, Any]) -> None:
        """Capture the graphs of pending_shapes, the largest first, as far as memory suffices; log what was made.

        sample: any of the training, see _capture.
        """
        start = time.perf_counter()
        memory = self.device.memory()
        cost = BYTES_AN_OPERATOR * self.operators  # bytes that the next graph is expected to take
        largest_first = self.pending_shapes[(-shapes.positions(self.pending_shapes)).argsort(kind="stable")]
        left_out = 0

        for planned in largest_first:
            shape = tuple(int(length) for length in planned)
            if shape in self.captured:  # by _compare
                continue
            if memory.free < cost + SPARE_MEMORY * memory.total:
                left_out += 1
                continue
            self._capture(sample, shape)
            after = self.device.memory()
            # What torch has reserved is not counted as the cost of the next graph: it is for activations, in memory
            # that all graphs share, and the first graph, the largest, has reserved enough for the others.
            cost = (memory.free - after.free) - (after.reserved - memory.reserved)
            memory = after
        self.pending_shapes = self.pending_shapes[:0]

        taken = self.memory_before.free - memory.free
        seconds = time.perf_counter() - start
        padding = shapes.padding_share(self.epoch_shapes, self.captured_shapes)
        logger.info(
            f"--cuda-graphs: {counted(len(self.captured_shapes), 'shape')} of batches captured in {seconds:.1f} s, "
            f"with {taken / 2**30:.1f} GiB; padding makes batches {padding:.1%} larger"
        )
        if not self.captured:
            self._give_up("memory does not suffice for one graph")
        elif left_out:
            more = counted(left_out, "more shape")
            logger.info(f"--cuda-graphs: no memory is left for {more}; their batches are padded to larger ones")

    def _capture(self, sample: dict[str, Any], shape: Shape) -> Captured:
        """Capture the passes of a batch of some shape; keep the graph in `captured`, and return it.

        sample: any of the training, for the names and dtypes of its tensors. Raises CaptureFailed.
        """
        outputs = {key: torch.empty_like(like) for key, like in self.output_like.items()}
        captured = Captured(StaticBatch(sample, shape, self.pad_index), self.device.graph(), outputs)

        def passes() -> None:
            """Run the passes, add their gradients to the buffers, and copy their outputs to fixed addresses."""
            with self.kernels_in_graphs:
                gradients, computed = self._passes(captured.batch)
            self.buffers.add(gradients)
            for key, output in captured.outputs.items():
                output.copy_(computed[key])

        captured.graph.capture(passes)
        self.captured[shape] = captured
        self.captured_shapes = numpy.array(list(self.captured), dtype=numpy.int64)
        return captured

    def _passes(self, batch: StaticBatch) -> tuple[tuple[Tensor | None, ...], dict[str, Any]]:
        """Run model, loss and backward pass of a batch.

        Returns the gradients in the order of buffers.parameters, None for a parameter that the loss does not depend on,
        and the criterion's log with two more entries: LOSS, the unscaled loss, and SIZE, the sample size. The gradients
        are those of the loss times `scale`.
        """
        amp = isinstance(self.optimizer, AMPOptimizer)
        with torch.autocast(self.scale.device.type, torch.float16, enabled=amp):
            loss, size, logged = self.criterion(self.model, batch.sample)
        # multiplied in float32, as torch multiplies fairseq's loss in half precision by a Python number
        scaled = (loss.float() * self.scale).to(loss.dtype)
        gradients = torch.autograd.grad(scaled, self.buffers.parameters, allow_unused=True)
        return gradients, logged | {LOSS: loss.detach(), SIZE: size}

    # fallbacks

    def _numbers_of_modules(self) -> list[tuple]:
        """Return for each of the timed_modules the values of its attributes that are Python numbers or booleans.

        A graph computes with such a number as it was at the capture, whatever it is later.
        """
        numbers = []
        for module in self.timed_modules:
            numbers.append(tuple(value for value in vars(module).values() if type(value) in (bool, int, float)))
        return numbers

    def _give_up(self, why: str) -> None:
        """Compute no more batches by graphs: set `obstacle` to `why`, and log it.

        This also frees the memory of the graphs, and sets the modules back. Only the first call does anything.
        """
        if self.obstacle is not None:
            return
        self.obstacle = why
        logger.info(f"--cuda-graphs: the training goes on without: {why}")
        self.free()
        self._adapt_modules(with_graphs=False)

    def _adapt_modules(self, with_graphs: bool) -> None:
        """Set what model and criterion do in another way with graphs, or set it back."""
        if hasattr(self.criterion, "masks_padding"):
            # makes the chunked losses compute the loss of all positions and set that of padding to 0; else they select
            # the other positions by a mask, and the CPU waits for their number
            self.criterion.masks_padding = with_graphs
        for module in self.modules:
            if isinstance(module, Stack):
                # if True, --checkpoint-activations reads the state of a random generator, which a capture forbids
                module.recomputes_random_numbers = not with_graphs
            elif isinstance(module, DeepModel):
                # spares model.train() the walk through all modules at each batch
                module.one_mode = with_graphs

    def free(self) -> None:
        """Drop the graphs, and so let torch have their memory."""
        self.captured.clear()
        self.captured_shapes = self.captured_shapes[:0]

    def _log_once(self, line: str) -> None:
        """Log a line, unless this object has logged it before."""
        if line not in self.logged_once:
            self.logged_once.add(line)
            logger.info(line)


def has_foreign_hooks(module: nn.Module) -> bool:
    """Return whether a module has a forward or backward hook from outside of this package.

    A replay runs no Python and so calls no hook. The package's own hook, which DeepTask sets, need not be called: it
    keeps the loss's Python from changing a batch's dicts, and that Python does not run in a replay either.
    """
    hooks = [
        *module._forward_hooks.values(), *module._forward_pre_hooks.values(),
        *module._backward_hooks.values(), *module._backward_pre_hooks.values(),
    ]  # fmt: skip
    package = __name__.split(".")[0]
    return any(not str(getattr(hook, "__module__", "")).startswith(f"{package}.") for hook in hooks)
