"""The fake device: counts what is asked of it by part of the update, names who waits for it, and models its time.

It works only in a process that guard.cpp was loaded into.
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
# an H200, +-30%: bytes a second and, in half precision, matrix products' operations a second that kernels reach;
# seconds that the smallest kernel takes in a stream
BANDWIDTH, FLOPS, LAUNCH = 3.6e12, 4.0e14, 2.2e-6
HOPPER = types.SimpleNamespace(name="H200 that is not there", major=9, minor=0, total_memory=141 * 2**30)
NO_KERNEL = {  # beside views
    "empty", "empty_like", "new_empty", "new_empty_strided", "empty_strided", "_unsafe_view", "resize_", "set_",
    "set_data", "device",
}  # fmt: skip
KERNELS = {  # launches of operators that are several kernels on a GPU in half precision, from ATen's sources
    "native_layer_norm_backward": 2, "_scaled_dot_product_flash_attention_backward": 3,
    "_scaled_dot_product_efficient_attention_backward": 2, "_scaled_dot_product_cudnn_attention_backward": 3,
    "embedding_dense_backward": 10, "nonzero": 4,
}  # fmt: skip
TENSORS, CHUNK, CHUNKS = (110, 64, 48, 36, 30), 65_536, 320  # limits of a launch over lists: MultiTensorApply.cuh
# values read from the device, by the function that reads them, the innermost first; for others True or 3
ANSWERS = {
    "_left_padding_mask": False, "reorder": False, "check_overflow": False, "_maybe_opt_step": 0.0,
    "_FP16OptimizerMixin.clip_grad_norm": False, "_MemoryEfficientFP16OptimizerMixin.clip_grad_norm": False,
}  # fmt: skip
WAITS = {"_local_scalar_dense": "item", "equal": "equal", "nonzero": "nonzero"}  # operators whose result is read


@dataclass
class Record:
    """Requests to the device.

    kernels: part of the update -> operator -> launches; waits: "part kind file:function" -> count of host-device
    synchronisations; copies: the same of copies to the device that do not wait; seconds: part -> modelled time.
    """

    kernels: dict[str, Counter] = field(default_factory=lambda: defaultdict(Counter))
    waits: Counter = field(default_factory=Counter)
    copies: Counter = field(default_factory=Counter)
    seconds: Counter = field(default_factory=Counter)
    mismatches: list[str] = field(default_factory=list)

    def launches(self, *parts: str) -> int:
        """Return the launches of some parts, or of all."""
        return sum(self.kernels[part].total() for part in parts or self.kernels)


class Device(TorchDispatchMode):
    """Stand-in for the device while it is entered: counts into `record`, under `part`, and answers what is read."""

    def __init__(self):
        super().__init__()
        self.record, self.part = Record(), "rest"

    @contextmanager
    def during(self, part: str) -> Iterator[None]:
        """Count under `part` in this block."""
        before, self.part = self.part, part
        try:
            yield
        finally:
            self.part = before

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func._overloadpacket._qualified_op_name.split("::")[-1]
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        fake = name == "lift_fresh" or any(isinstance(one, FakeTensor) for one in given)
        if given and not fake and torch.device(kwargs.get("device") or "cpu").type == "cpu":
            with _disable_current_modes():  # the batch, on the host: there are numbers in it
                return func(*args, **kwargs)
        on_gpu = any(one.is_cuda for one in given)
        if on_gpu and name in WAITS:
            self.waits(WAITS[name])
        if name == "_local_scalar_dense":
            return answer(given[0])
        if name == "equal":
            return True
        if name in ("is_pinned", "_pin_memory"):
            return given[0] if name == "_pin_memory" else True
        if name == "nonzero" and on_gpu:
            made = given[0].new_empty(given[0].numel(), given[0].dim(), dtype=torch.long)
        else:
            made = func(*args, **kwargs)
        results = [leaf for leaf in tree_leaves(made) if isinstance(leaf, Tensor)]
        if name in ("_to_copy", "copy_"):
            self._copied(given[-1], results[0], kwargs.get("non_blocking", name == "copy_" and args[2:] == (True,)))
        if not func.is_view and name not in NO_KERNEL and (on_gpu or any(one.is_cuda for one in results)):
            self._launched(func, name, args, kwargs, made, [one for one in given + results if one.is_cuda])
        return made

    def waits(self, kind: str) -> None:
        """Note that the CPU waits for the device now."""
        self.record.waits[f"{self.part} {kind} {caller()}"] += 1

    def _copied(self, source: Tensor, result: Tensor, non_blocking: bool) -> None:
        if source.is_cuda == result.is_cuda:
            return
        if not non_blocking:
            self.waits("copy to device" if result.is_cuda else "copy to host")
        elif result.is_cuda:
            self.record.copies[f"{self.part} {caller()}"] += 1

    def _launched(self, func, name: str, args, kwargs, made, tensors: list[Tensor]) -> None:
        count = KERNELS.get(name, 1)
        if name.startswith(("_foreach", "_fused_adam")):
            lists = [one for one in args if isinstance(one, (list, tuple)) and one and isinstance(one[0], Tensor)]
            depth = 4 if name.startswith("_fused") else len(lists) + (not name.endswith("_"))
            count = launches_over_lists(lists[0], depth)
        self.record.kernels[self.part][name] += count
        moved = sum(one.numel() * one.element_size() for one in tensors)
        count_flops = flop_registry.get(func._overloadpacket)
        flops = count_flops(*args, **kwargs, out_val=made) if count_flops else 0
        self.record.seconds[self.part] += max(moved / BANDWIDTH, flops / FLOPS, count * LAUNCH)

    def attend(self, q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
        """Call the attention kernel that torch chooses on Hopper; its own choice depends on the build."""
        mask = attn_mask
        if torch.is_autocast_enabled("cuda"):
            dtype = torch.get_autocast_dtype("cuda")
            q, k, v = (one.to(dtype) for one in (q, k, v))
            mask = mask.to(dtype) if mask is not None and mask.is_floating_point() else mask
        half, grad = q.dtype in (torch.half, torch.bfloat16), q.requires_grad
        if mask is not None and mask.dtype is torch.bool:
            mask = torch.zeros(mask.shape, dtype=q.dtype, device=q.device).masked_fill_(~mask, float("-inf"))
        shape = (*q.shape[:3], k.size(2))
        if half and torch.backends.cuda.cudnn_sdp_enabled() and dropout_p * 16 % 1 == 0:
            mask = None if mask is None else mask.expand(shape)
            return aten._scaled_dot_product_cudnn_attention(q, k, v, mask, grad, dropout_p, is_causal, False)[0]
        if half and mask is None:
            return aten._scaled_dot_product_flash_attention(q, k, v, dropout_p, is_causal, False)[0]
        if mask is not None:
            if any(stride % 8 for stride in mask.stride()[:-1]):  # the kernel reads 16 bytes at a time
                mask = F.pad(mask, (0, -mask.size(-1) % 8)).narrow(-1, 0, mask.size(-1))
            mask = mask.expand(shape)
        return aten._scaled_dot_product_efficient_attention(q, k, v, mask, grad, dropout_p, is_causal)[0]


def launches_over_lists(tensors: list[Tensor], depth: int) -> int:
    """Return the launches of an operator over `depth` lists of tensors of these sizes."""
    launches = in_launch = chunks = 0
    for tensor in tensors:
        in_launch += 1
        for left in range(math.ceil(tensor.numel() / CHUNK) - 1, -1, -1):
            chunks += 1
            if chunks == CHUNKS or (not left and in_launch == TENSORS[depth - 1]):
                launches, chunks, in_launch = launches + 1, 0, int(left > 0)
    return launches + (chunks > 0)


def answer(tensor: Tensor) -> float | bool | int:
    """Return the value of a number that is read, or, where it is unknown, one that lets the step go on."""
    if getattr(tensor, "constant", None) is not None:
        return tensor.constant.item()
    for frame in frames():
        for name in (frame.f_code.co_name, frame.f_code.co_qualname):
            if name in ANSWERS:
                return ANSWERS[name]
    return True if tensor.dtype is torch.bool else 3.0 if tensor.dtype.is_floating_point else 3


def frames() -> Iterator[types.FrameType]:
    """Yield the frames of this thread's calls, the innermost first."""
    frame = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def caller() -> str:
    """Return "file:function" of the innermost call in fairseq, torchscale or this package."""
    for frame in frames():
        path = frame.f_code.co_filename
        for root in ("/deepnet_fairseq/", "/fairseq/", "/torchscale/"):
            if root in path and "/benchmarks/" not in path:
                inside = path.rpartition(root)[2]
                return f"{inside if root[1] == 'd' else root[1:] + inside}:{frame.f_code.co_name}"
    return "?"


class Stream(nullcontext):
    """torch.cuda's Stream and Event: nothing waits."""

    def __init__(self, *_, **__):
        super().__init__(self)

    def record_event(self, *_):
        return self

    def record(self, *_): ...

    wait_stream = wait_event = wait = synchronize = record


def be_there(device: Device) -> None:
    """Replace torch.cuda, and functions of torch that do not know fake tensors, for the rest of this process."""
    FakeTensorMode.avoid_device_init = True
    nn.Module._apply = _apply
    torch.onnx.operators.shape_as_tensor = lambda x: tuple(x.shape)
    F.scaled_dot_product_attention = device.attend
    Tensor.record_stream = lambda *_: None
    constants = {
        "is_available": True, "is_initialized": True, "device_count": 1, "current_device": 0, "_exchange_device": 0,
        "_maybe_exchange_device": 0, "get_device_capability": (9, 0), "_get_device_properties": HOPPER,
        "get_device_name": HOPPER.name, "max_memory_allocated": 0, "memory_allocated": 0, "current_stream": Stream(),
        "default_stream": Stream(),
    }  # fmt: skip
    nothing = ("_lazy_init", "empty_cache", "manual_seed", "manual_seed_all", "set_rng_state", "set_device")
    for key, value in (constants | dict.fromkeys((*nothing, "reset_peak_memory_stats"))).items():
        setattr(torch.cuda, key, lambda *_, value=value, **__: value)
    torch.cuda.get_rng_state = lambda *_: torch.zeros(16, dtype=torch.uint8)
    torch.cuda.synchronize = lambda *_: device.waits("synchronize")
    torch.cuda.Stream = torch.cuda.Event = Stream
    torch.cuda.stream = lambda stream: nullcontext()
    for key, dtype in (("DoubleTensor", torch.double), ("FloatTensor", torch.float)):
        setattr(torch.cuda, key, lambda size, dtype=dtype: torch.zeros(size, dtype=dtype, device=GPU))


def _apply(self, fn, recurse=True):
    """nn.Module._apply for fake parameters, which keep their device when their data gets another."""
    for child in self.children() if recurse else ():
        child._apply(fn)
    for parameter in filter(None.__ne__, self._parameters.values()):
        with torch.no_grad():
            new = fn(parameter)
        if new is not parameter:
            parameter.data = new
            if isinstance(parameter, FakeTensor):
                parameter.fake_device, parameter.constant = new.fake_device, None
    self._buffers.update({key: fn(one) for key, one in self._buffers.items() if one is not None})
    return self
