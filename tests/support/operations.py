"""Operations of ATen that a GPU would be given: recorded as they are called."""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode

# Operators that start no kernel: they make a view or memory without content.
WITHOUT_KERNEL = {
    "view", "_unsafe_view", "t", "transpose", "permute", "expand", "slice", "select", "unsqueeze", "squeeze", "alias",
    "detach", "split", "unbind", "as_strided", "empty", "empty_like", "new_empty", "new_empty_strided", "empty_strided",
    "_reshape_alias", "split_with_sizes", "resize_",
}  # fmt: skip


class Operations(TorchDispatchMode):
    """Recorder, while it is entered, of the operators that start a kernel: their `names` in order, and how many."""

    def __init__(self):
        super().__init__()
        self.names: list[str] = []

    def __len__(self):
        return len(self.names)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name not in WITHOUT_KERNEL:
            self.names.append(name)
        return func(*args, **(kwargs or {}))
