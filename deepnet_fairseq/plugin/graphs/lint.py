"""Find the operations of a training step that cannot be captured in a CUDA graph: those on whose result the CPU waits.

Such operations are tensor.item(), and an index by a mask, whose result has as many rows as the mask has ones.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# aten's operators that wait for the GPU: the CPU reads the number that they return, or the size of their result
WAITS = {
    "_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select", "bincount",
    "unique_consecutive", "unique_dim", "_unique", "_unique2",
}  # fmt: skip
COPIES = {"_to_copy", "copy_"}  # these may wait if they copy from one device to another
INDEXING = {"index", "index_put", "index_put_"}  # these wait if an index is a mask (a tensor of bool)


class CaptureLint(TorchDispatchMode):
    """Mode that runs each operation as usual, and lists in `findings` those that cannot be captured.

    findings: texts "operator in folder/file:line", with the line of code that called the operator;
    calls: number of operations so far, about a third of which launch a kernel.
    """

    def __init__(self) -> None:
        super().__init__()
        self.findings: list[str] = []
        self.calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        """Return the result of an operator, and note the operator; torch calls this for each one."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        self.calls += 1
        name = func._overloadpacket._qualified_op_name.removeprefix("aten::")
        if waits_for_device(name, args, kwargs, result):
            self.findings.append(f"{name} in {caller()}")
        return result


def waits_for_device(name: str, args: tuple, kwargs: dict, result: Any) -> bool:
    """Return whether the CPU waits for an operator's result, or may wait because its tensors lie on two devices.

    name: of aten's operator, without "aten::"; args, kwargs, result: of its call.
    """
    if name in WAITS:
        return True
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    if name in INDEXING and any(index.dtype == torch.bool for index in tensors[1:]):  # tensors[0] is what is indexed
        return True  # the result has as many rows as the mask has ones
    if name == "repeat_interleave" and not kwargs.get("output_size"):
        return True  # the result has as many rows as the sum of the repeats
    if name in COPIES:  # _to_copy copies tensors[0] to the result, copy_ copies tensors[-1] to tensors[0]
        first = tensors[0].device.type
        return first != result.device.type or first != tensors[-1].device.type
    # a tensor of shape () on the CPU does not count: it is passed to the kernel as a number
    devices = {tensor.device.type for tensor in tensors if tensor.dim()}
    return len(devices) > 1


def caller() -> str:
    """Return "folder/file:line" of the innermost line of Python that runs now, outside of torch and of this file."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if "/torch/" not in path and path != __file__:
            return f"{'/'.join(path.split('/')[-2:])}:{frame.f_lineno}"
        frame = frame.f_back
    return "the backward pass"  # autograd runs it in a thread of its own, on whose stack no Python code of ours is
