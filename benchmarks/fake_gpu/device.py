"""The fake device: counts what is asked of it by part of the update, names who waits for it, and models its time.

This works only in a process that guard.cpp was loaded into. Tensors are torch's fake ones: they have a shape, a type
and a device, and no numbers. A part is a stage of the update, such as forward, backward or optimizer. Operators are
ATen's.
"""

from __future__ import annotations

import math
import sys
import types
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

aten = torch.ops.aten
GPU = torch.device("cuda:0")
# an H200, +-30%
BANDWIDTH = 3.6e12  # bytes a second that kernels reach
FLOPS = 4.0e14  # operations a second that matrix products reach in half precision
LAUNCH = 2.2e-6  # seconds that the smallest kernel takes in a stream
# what torch.cuda.get_device_properties returns
HOPPER = types.SimpleNamespace(name="H200 that is not there", major=9, minor=0, total_memory=141 * 2**30)
NO_KERNEL = {  # operators that start no kernel, beside views
    "empty", "empty_like", "new_empty", "new_empty_strided", "empty_strided", "_unsafe_view", "resize_", "set_",
    "set_data", "device",
}  # fmt: skip
KERNELS = {  # launches of operators that are several kernels on a GPU in half precision, from ATen's sources
    "native_layer_norm_backward": 2, "_scaled_dot_product_flash_attention_backward": 3,
    "_scaled_dot_product_efficient_attention_backward": 2, "_scaled_dot_product_cudnn_attention_backward": 3,
    "embedding_dense_backward": 10, "nonzero": 4,
}  # fmt: skip
# limits of a launch of an operator over lists of tensors, from ATen's MultiTensorApply.cuh
TENSORS = (110, 64, 48, 36, 30)  # most tensors of a list, by the number of lists, from 1
CHUNK = 65_536  # elements of a tensor that one block handles
CHUNKS = 320  # most chunks
# Numbers that the CPU reads from the device, which fake tensors do not have: function that reads them -> what it gets.
# The innermost function that stands here decides. Other functions get True or 3.
ANSWERS = {
    "_left_padding_mask": False, "reorder": False, "check_overflow": False, "_maybe_opt_step": 0.0,
    "_FP16OptimizerMixin.clip_grad_norm": False, "_MemoryEfficientFP16OptimizerMixin.clip_grad_norm": False,
}  # fmt: skip
# operators for whose result the CPU waits -> why, in the record
WAITS = {"_local_scalar_dense": "item", "equal": "equal", "nonzero": "nonzero"}


@dataclass
class Record:
    """What was asked of the device."""

    # {part: {operator: launches of kernels}}
    kernels: dict[str, Counter] = field(default_factory=lambda: defaultdict(Counter))
    waits: Counter = field(default_factory=Counter)  # {"PART KIND FILE:FUNCTION": host-device synchronisations}
    copies: Counter = field(default_factory=Counter)  # {"PART FILE:FUNCTION": copies to the device without a wait}
    seconds: Counter = field(default_factory=Counter)  # {part: modelled time}
    mismatches: list[str] = field(default_factory=list)  # wrong types and devices, which step.py finds, a line each

    def launches(self, *parts: str) -> int:
        """Return the launches of kernels in these parts together; in all parts if none is given."""
        wanted = parts or self.kernels
        return sum(self.kernels[part].total() for part in wanted)


class Device(TorchDispatchMode):
    """Stand-in for the device. In a `with` block of it, every operator comes to it before it is run.

    record: counts what is asked of the device, under the part that `part` names. Numbers that the CPU reads are made
    up, see `answer`.
    """

    def __init__(self):
        super().__init__()
        self.record = Record()
        self.part = "rest"  # outside of any part

    @contextmanager
    def during(self, part: str) -> Iterator[None]:
        """Count under `part` in a `with` block, and afterwards under the part before it."""
        outer_part = self.part
        self.part = part
        try:
            yield
        finally:
            self.part = outer_part

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Run an operator, `func`, on fake tensors, note what it asks of the device, and return its result.

        torch calls this for every operator, with its arguments `args` and `kwargs`; `types` says nothing here.
        """
        kwargs = kwargs or {}
        name = func._overloadpacket._qualified_op_name.split("::")[-1]  # "aten::add" -> "add"
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]

        # the batch is made on the host of real tensors: compute that as usual, and stand in for nothing
        # (lift_fresh makes a fake tensor of a real one, a constant in the code)
        fake = name == "lift_fresh" or any(isinstance(tensor, FakeTensor) for tensor in given)
        stays_on_host = torch.device(kwargs.get("device") or "cpu").type == "cpu"
        if given and not fake and stays_on_host:
            with _disable_current_modes():
                return func(*args, **kwargs)

        # operators whose result depends on numbers, which fake tensors do not have, or on a driver, which is not there
        on_gpu = any(tensor.is_cuda for tensor in given)
        if on_gpu and name in WAITS:
            self.waits(WAITS[name])
        if name == "_local_scalar_dense":
            return answer(given[0])
        if name in ("equal", "is_pinned"):
            return True
        if name == "_pin_memory":
            return given[0]
        if name == "nonzero" and on_gpu:  # as if no number were zero
            made = given[0].new_empty(given[0].numel(), given[0].dim(), dtype=torch.long)
        else:
            made = func(*args, **kwargs)

        # what the operator asks of the device
        results = [leaf for leaf in tree_leaves(made) if isinstance(leaf, Tensor)]
        if name in ("_to_copy", "copy_"):
            by_position = name == "copy_" and args[2:] == (True,)  # copy_(self, source, non_blocking)
            self._copied(given[-1], results[0], kwargs.get("non_blocking", by_position))
        on_gpu = on_gpu or any(tensor.is_cuda for tensor in results)
        if on_gpu and not func.is_view and name not in NO_KERNEL:
            tensors = [tensor for tensor in given + results if tensor.is_cuda]
            self._launched(func, name, args, kwargs, made, tensors)
        return made

    def waits(self, kind: str) -> None:
        """Note that the CPU waits for the device now, and in which function. kind: why, such as a value of WAITS."""
        self.record.waits[f"{self.part} {kind} {caller()}"] += 1

    def _copied(self, source: Tensor, result: Tensor, non_blocking: bool) -> None:
        """Note a copy, for which the CPU waits unless it is `non_blocking`.

        Nothing is noted of a copy that stays on the host or on the device, nor of one to the host without a wait.
        """
        if source.is_cuda == result.is_cuda:
            return
        if not non_blocking:
            self.waits("copy to device" if result.is_cuda else "copy to host")
        elif result.is_cuda:
            self.record.copies[f"{self.part} {caller()}"] += 1

    def _launched(self, func, name: str, args, kwargs, made, tensors: list[Tensor]) -> None:
        """Note the launches of kernels by an operator, and their modelled time.

        func, name: of the operator; args, kwargs: its arguments; made: what it returned; tensors: those on the device
        that it reads and writes.
        """
        count = KERNELS.get(name, 1)
        if name.startswith(("_foreach", "_fused_adam")):  # operators over lists of tensors
            lists = [arg for arg in args if isinstance(arg, (list, tuple)) and arg and isinstance(arg[0], Tensor)]
            if name.startswith("_fused"):
                number_of_lists = 4  # parameters, gradients and two moments
            elif name.endswith("_"):  # in place
                number_of_lists = len(lists)
            else:
                number_of_lists = len(lists) + 1  # and that of the results
            count = launches_over_lists(lists[0], number_of_lists)
        self.record.kernels[self.part][name] += count

        # the slowest of memory, arithmetic and launches decides
        moved = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        count_flops = flop_registry.get(func._overloadpacket)
        flops = count_flops(*args, **kwargs, out_val=made) if count_flops else 0
        self.record.seconds[self.part] += max(moved / BANDWIDTH, flops / FLOPS, count * LAUNCH)

    def attend(self, q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
        """Stand in for F.scaled_dot_product_attention, with its arguments: call the kernel that torch takes on Hopper.

        In half precision that is cuDNN's, if its switch is on and the dropout is a number of sixteenths; else flash
        attention's, if there is no mask; and in all other cases the memory-efficient one. torch's own choice depends on
        its build, which is one for CPUs here. `scale` and `enable_gqa` change no launch and are ignored.
        """
        # as torch does: autocast, and a mask of numbers in place of one of bools
        mask = attn_mask
        if torch.is_autocast_enabled("cuda"):
            dtype = torch.get_autocast_dtype("cuda")
            q = q.to(dtype)
            k = k.to(dtype)
            v = v.to(dtype)
            if mask is not None and mask.is_floating_point():
                mask = mask.to(dtype)
        half = q.dtype in (torch.half, torch.bfloat16)
        grad = q.requires_grad
        if mask is not None and mask.dtype is torch.bool:
            mask = torch.zeros(mask.shape, dtype=q.dtype, device=q.device).masked_fill_(~mask, float("-inf"))
        shape = (*q.shape[:3], k.size(2))  # of the scores

        if half and torch.backends.cuda.cudnn_sdp_enabled() and dropout_p * 16 % 1 == 0:
            if mask is not None:
                mask = mask.expand(shape)
            return aten._scaled_dot_product_cudnn_attention(q, k, v, mask, grad, dropout_p, is_causal, False)[0]
        if half and mask is None:
            return aten._scaled_dot_product_flash_attention(q, k, v, dropout_p, is_causal, False)[0]

        if mask is not None:
            # as torch does for the kernel's aligned reads: pad the rows of the mask to a multiple of 8 numbers, and cut
            # them off again
            if any(stride % 8 for stride in mask.stride()[:-1]):
                mask = F.pad(mask, (0, -mask.size(-1) % 8)).narrow(-1, 0, mask.size(-1))
            mask = mask.expand(shape)
        return aten._scaled_dot_product_efficient_attention(q, k, v, mask, grad, dropout_p, is_causal)[0]


def launches_over_lists(tensors: list[Tensor], number_of_lists: int) -> int:
    """Return the launches of an operator over so many lists, each of tensors of these sizes, as ATen divides them.

    A tensor is cut into chunks of CHUNK elements. A launch takes chunks in order, until it has CHUNKS of them or has
    finished with as many tensors as TENSORS allows. A tensor that does not fit goes on in the next launch.
    """
    launches = 0
    tensors_in_launch = chunks_in_launch = 0
    for tensor in tensors:
        tensors_in_launch += 1
        chunks = math.ceil(tensor.numel() / CHUNK)
        for chunk in range(1, chunks + 1):
            chunks_in_launch += 1
            last = chunk == chunks
            full_of_tensors = last and tensors_in_launch == TENSORS[number_of_lists - 1]
            if full_of_tensors or chunks_in_launch == CHUNKS:
                launches += 1
                chunks_in_launch = 0
                tensors_in_launch = 0 if last else 1  # the rest of this tensor goes to the next launch
    if chunks_in_launch > 0:
        launches += 1
    return launches


def answer(tensor: Tensor) -> float | bool | int:
    """Return the number that the CPU reads from a tensor of one element: by its value, by ANSWERS, or True or 3.

    Made-up numbers let the step go on as an ordinary one. A fake tensor that was made of a constant has its value.
    """
    if getattr(tensor, "constant", None) is not None:
        return tensor.constant.item()
    for frame in frames():
        for name in (frame.f_code.co_name, frame.f_code.co_qualname):
            if name in ANSWERS:
                return ANSWERS[name]
    if tensor.dtype is torch.bool:
        return True
    return 3.0 if tensor.dtype.is_floating_point else 3


def frames() -> Iterator[types.FrameType]:
    """Yield the frames of this thread's calls, the innermost first."""
    frame = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def caller() -> str:
    """Return "file:function" of the innermost call in deepnet_fairseq, fairseq or torchscale, "?" if there is none.

    The file is named from its package on, one of deepnet_fairseq by its path within the package.
    """
    for frame in frames():
        path = frame.f_code.co_filename
        if "/benchmarks/" in path:  # this file and those that call the model
            continue
        for package in ("deepnet_fairseq", "fairseq", "torchscale"):
            _, found, file = path.rpartition(f"/{package}/")
            if found:
                if package != "deepnet_fairseq":
                    file = f"{package}/{file}"
                return f"{file}:{frame.f_code.co_name}"
    return "?"


class Stream(nullcontext):
    """Stand-in for torch.cuda's Stream and Event, on which nothing is computed and nothing waits."""

    def __init__(self, *_, **__):
        super().__init__(self)  # a block `with stream as s` gets the stream

    def record_event(self, *_):
        """Return an event, which is a stand-in, too."""
        return self

    def record(self, *_):
        """Do nothing; so do the methods that wait."""

    wait_stream = wait_event = wait = synchronize = record


def be_there(device: Device) -> None:
    """Make torch.cuda tell of one GPU, and replace what fails on fake tensors, for the rest of this process.

    device: counts the waits of torch.cuda.synchronize, and chooses attention's kernels.
    """
    # functions of torch that do not know fake tensors, or would start a driver
    FakeTensorMode.avoid_device_init = True
    nn.Module._apply = _apply
    torch.onnx.operators.shape_as_tensor = lambda x: tuple(x.shape)
    F.scaled_dot_product_attention = device.attend
    Tensor.record_stream = lambda *_: None

    # functions of torch.cuda -> what they return, whatever they are given
    constants = {
        "is_available": True, "is_initialized": True, "device_count": 1, "current_device": 0, "_exchange_device": 0,
        "_maybe_exchange_device": 0, "get_device_capability": (9, 0), "_get_device_properties": HOPPER,
        "get_device_name": HOPPER.name, "max_memory_allocated": 0, "memory_allocated": 0, "current_stream": Stream(),
        "default_stream": Stream(),
    }  # fmt: skip
    for name in (
        "_lazy_init", "empty_cache", "manual_seed", "manual_seed_all", "set_rng_state", "set_device",
        "reset_peak_memory_stats",
    ):  # fmt: skip
        constants[name] = None
    for name, value in constants.items():
        setattr(torch.cuda, name, lambda *_, value=value, **__: value)

    # functions of torch.cuda that return something new, or are counted
    torch.cuda.get_rng_state = lambda *_: torch.zeros(16, dtype=torch.uint8)
    torch.cuda.synchronize = lambda *_: device.waits("synchronize")
    torch.cuda.Stream = torch.cuda.Event = Stream
    torch.cuda.stream = lambda stream: nullcontext()
    torch.cuda.DoubleTensor = lambda size: torch.zeros(size, dtype=torch.double, device=GPU)
    torch.cuda.FloatTensor = lambda size: torch.zeros(size, dtype=torch.float, device=GPU)


def _apply(self, fn, recurse=True):
    """Stand in for nn.Module._apply, by which .to() and .half() change parameters and buffers.

    fn: function of a tensor; recurse: whether to change submodules, too. torch's own sets parameter.data, after which a
    fake parameter still claims its old device.
    """
    if recurse:
        for child in self.children():
            child._apply(fn)
    for parameter in self._parameters.values():
        if parameter is None:
            continue
        with torch.no_grad():
            new = fn(parameter)
        if new is not parameter:
            parameter.data = new
            if isinstance(parameter, FakeTensor):
                parameter.fake_device = new.fake_device
                parameter.constant = None
    for name, buffer in list(self._buffers.items()):
        if buffer is not None:
            self._buffers[name] = fn(buffer)
    return self
