"""List every change to other libraries while this package is registered, and make it.

An entry is a function of another library and the handler that is called in its place: handler(original, *arguments). A
training step is no entry: trainer.py has it, in a subclass of fairseq's Trainer. tests/plugin/test_patches.py checks that
nothing else changes in other libraries.
"""

from __future__ import annotations

import functools
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fairseq
import hydra._internal.utils
import numpy
from fairseq import checkpoint_utils, options, tasks, utils
from fairseq.data import data_utils, indexed_dataset
from fairseq.distributed import utils as distributed_utils
from fairseq.file_io import PathManager
from torch.utils.data._utils import signal_handling

from ..core import attention
from ..errors import UserError
from . import calm_root_logger, chunked_cross_entropy, command_line, datasets, models, run, signals, task  # noqa: F401
from .checkpoints import atomic, loading, reading
from .distributed import launch
from .optimisers import deepnet_adam, papers  # noqa: F401  # importing them registers them with fairseq
from .trainer import DeepTrainer

Handler = Callable[..., Any]


def import_user_module(original: Callable[..., None], *args: Any) -> None:
    """Import --user-dir as fairseq does, and attach to fairseq-train, which may have been imported after register()."""
    original(*args)
    attach_to_programs()


def call_main(original: Callable[..., None], cfg: Any, main: Callable[..., None], **others: Any) -> None:
    """Run a program's `main` with our Trainer and functions, here or in the processes that it is to have."""
    program = attach(main.__globals__)
    try:
        launch.call_main(original, cfg, main, prepare_process, **others)
    finally:
        if program is not None:
            program.end()


def prepare_process(main: Callable[..., None]) -> None:
    """Do for `main`, in a process that was started for it, what registering has done in the first one."""
    apply()
    attach(main.__globals__)


PATCHES: dict[tuple[Any, str], Handler] = {  # (module or class, function): the handler called in its place
    # argparse prints a page for a wrong flag; fairseq takes --bf16 as a request for a TPU
    (options, "parse_args_and_arch"): command_line.parse_or_explain,
    # the first call of fairseq-train's main: from here on its Trainer is ours, in whatever way it was started
    (utils, "import_user_module"): import_user_module,
    # every task gets DeepTask in front; fairseq ignores a YAML's section of a task without a dataclass
    (tasks, "setup_task"): task.set_up,
    # fairseq reads truncated data silently
    (indexed_dataset, "make_dataset"): datasets.open_checked,
    # it drops the last sentences of a data set: --required-batch-size-multiple, fairseq/data/data_utils.py
    (data_utils, "batch_by_size"): datasets.keep_last_batch,
    # torch ends a data-loading process at any SIGTERM, and with it the training, before it has saved
    (signal_handling, "_set_worker_signal_handlers"): signals.spare_worker,
    # it starts no processes on CPUs, and makes each of torchrun's processes a training of its own
    (distributed_utils, "call_main"): call_main,
    # a full disk ends a run, and weights that are not finite replace good ones
    (checkpoint_utils, "save_checkpoint"): run.save_checkpoint,
    # a checkpoint_last.pt is lost if the run is killed while it is copied
    (PathManager, "copy"): atomic.copy,
    # it resumes from checkpoint_last.pt alone, whole or not
    (checkpoint_utils, "load_checkpoint"): run.load_checkpoint,
    # readers of damaged files raise any error; fairseq runs settings of the file with eval()
    (checkpoint_utils, "load_checkpoint_to_cpu"): reading.load_checkpoint_to_cpu,
    # what a model or a part of one has against a checkpoint names no file: they get the weights alone
    (checkpoint_utils, "load_model_ensemble_and_task"): loading.load_model_ensemble_and_task,
    (checkpoint_utils, "load_pretrained_component_from_model"): loading.load_pretrained_component_from_model,
}

PROGRAM: dict[str, Handler] = {  # the same for fairseq-train's own functions, in the namespace where its main runs
    # signals, divergence, --stop-stuck; a training that is over makes one more update each time it is started
    "train": run.train,
    # signals are answered after each update
    "validate_and_save": run.validate_and_save,
}

# hydra prints the exceptions of this kind in one line, all others with advice to its own developers
ONE_LINE = (hydra._internal.utils.CompactHydraException, UserError)

CALLED: dict[Callable[[], None], str] = {  # plugin.silence() comes before, and before fairseq
    launch.end_with_launcher: "no process outlives its torchrun or srun",
    calm_root_logger: "importing fairseq sets the root logger to DEBUG",
    attention.leave_cudnn_out: "it would make a plan for each new shape",
    launch.flush_denormals: "a deep Post-LN model's gradients underflow",
    reading.allow_plain_data: "torch.load refuses classes that fairseq writes",
    command_line.explain_uncaught: "sys.excepthook, in fairseq's programs",
}


def apply() -> None:
    """Make the changes listed above; a second call changes nothing."""
    for call in CALLED:
        call()
    hydra._internal.utils.CompactHydraException = ONE_LINE
    for (owner, name), handler in PATCHES.items():
        replace(owner, name, handler)
    attach_to_programs()
    if not hasattr(numpy, "compat"):  # fairseq takes numpy.compat.long, which numpy 2 no longer has
        vars(numpy)["compat"] = types.SimpleNamespace(long=int)
    package = Path(__file__).parents[1]  # --user-dir is then done already, by either path that fairseq makes of it
    imported = vars(utils.import_user_module).setdefault("memo", set())
    imported |= {str(package), os.path.join(os.path.dirname(fairseq.__file__), "..", package.name)}


def attach_to_programs() -> None:
    """Attach to fairseq-train and fairseq-interactive, imported or run by `python -m fairseq_cli.NAME`."""
    for module in map(sys.modules.get, ("fairseq_cli.train", "fairseq_cli.interactive", "__main__")):
        attach(vars(module) if module is not None else {})


def attach(namespace: dict) -> run.Program | None:
    """Give fairseq-train, whose main looks names up in `namespace`, our Trainer and functions; leave others alone.

    Return fairseq-train as a Program, None if `namespace` is of another. A process that multiprocessing has started
    runs main in a namespace that belongs to no module.
    """
    if "buffered_read" in namespace:  # fairseq-interactive ends in a traceback at a byte that is not UTF-8
        namespace["buffered_read"] = handled(namespace["buffered_read"], command_line.read_input)
    if "validate_and_save" not in namespace or "Trainer" not in namespace:
        return None

    for name, handler in PROGRAM.items():
        namespace[name] = handled(namespace[name], handler)
    if getattr(namespace["Trainer"], "func", None) is not DeepTrainer:
        namespace["Trainer"] = functools.partial(DeepTrainer, program=run.Program(namespace))
    return namespace["Trainer"].keywords["program"]


def replace(owner: Any, name: str, handler: Handler) -> None:
    """Let owner.name(...) call handler(original, ...); a static method stays one, and a class method becomes one."""
    static = isinstance(vars(owner).get(name), staticmethod | classmethod)
    function = handled(getattr(owner, name), handler)
    setattr(owner, name, staticmethod(function) if static else function)


def handled(original: Callable[..., Any], handler: Handler) -> Callable[..., Any]:
    """Return a function that calls handler(original, ...); `original` itself if it does so already."""
    # compared by name: the package may be imported twice, under two paths
    if getattr(original, "handler", None) == handler.__qualname__:
        return original

    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        return handler(original, *args, **kwargs)

    vars(function)["handler"] = handler.__qualname__
    return function
