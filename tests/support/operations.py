"""Operations of ATen that a GPU would be given: recorded as they are called."""

from torch.utils._python_dispatch import TorchDispatchMode

NOTHING_TO_DO = """view _unsafe_view t transpose permute expand slice select unsqueeze squeeze alias detach split unbind
    as_strided empty empty_like new_empty new_empty_strided empty_strided _reshape_alias split_with_sizes resize_"""


class Operations(TorchDispatchMode):
    """Recorder of the names of the operations, in order."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __len__(self):
        return len(self.names)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name not in NOTHING_TO_DO.split():
            self.names.append(name)
        return func(*args, **(kwargs or {}))
