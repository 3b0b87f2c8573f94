"""Find operations of a training step that no CUDA graph can hold: those on whose result the CPU depends."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# operators that the CPU waits for: it reads a number, or the size of the result
READS = {
    "_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select", "bincount",
    "unique_consecutive", "unique_dim", "_unique", "_unique2",
}  # fmt: skip
COPIES = {"_to_copy", "copy_"}
INDEXING = {"index", "index_put", "index_put_"}


class CaptureLint(TorchDispatchMode):
    """Mode that lists in `findings` each operation that cannot be captured, with the line of code that called it.

    calls: number of operations so far; about a third of them launch a kernel.
    """

    def __init__(self) -> None:
        super().__init__()
        self.findings: list[str] = []
        self.calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        self.calls += 1
        name = func._overloadpacket._qualified_op_name.removeprefix("aten::")
        if waits_for_device(name, args, kwargs, result):
            self.findings.append(f"{name} in {caller()}")
        return result


def waits_for_device(name: str, args: tuple, kwargs: dict, result: Any) -> bool:
    """Return whether the CPU depends on an operator's result, or its tensors lie on two devices."""
    if name in READS:
        return True
    given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    if name in INDEXING and any(index.dtype == torch.bool for index in given[1:]):
        return True  # as many rows as the mask has ones
    if name == "repeat_interleave" and not kwargs.get("output_size"):
        return True
    if name in COPIES:  # _to_copy copies given[0] to the result, copy_ copies given[-1] to given[0]
        return given[0].device.type != result.device.type or given[0].device.type != given[-1].device.type
    of_several = [one for one in given if one.dim()]  # a number on the CPU is a kernel's argument
    return len({one.device.type for one in of_several}) > 1


def caller() -> str:
    """Return "folder/file:line" of the innermost call outside torch and this file."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if "/torch/" not in path and path != __file__:
            return f"{'/'.join(path.split('/')[-2:])}:{frame.f_lineno}"
        frame = frame.f_back
    return "the backward pass"  # whose thread has no Python of ours
