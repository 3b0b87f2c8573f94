"""List every change that registering this package makes to other libraries, and make them (`apply`).

Most entries replace a function of another library by one of ours, its handler, which is called as
handler(original, *arguments) and may call the original. Changes to a training step are not listed here: they are
methods of DeepTrainer (trainer.py), which takes the place of fairseq's Trainer. tests/plugin/test_patches.py checks
that nothing else changes in other libraries.
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

from .. import user_dir
from ..core import attention
from ..errors import UserError
from . import calm_root_logger, chunked_cross_entropy, command_line, datasets, models, run, signals, task  # noqa: F401
from .checkpoints import atomic, loading, reading
from .distributed import launch
from .optimisers import deepnet_adam, papers  # noqa: F401  # importing them registers them with fairseq
from .trainer import DeepTrainer

Handler = Callable[..., Any]


def import_user_module(original: Callable[..., None], args: Any) -> None:
    """Import the --user-dir in `args`, if any, as fairseq does; then put our functions into fairseq's programs.

    A program may have been imported only after register(), which could then not change it. An error in the folder's
    files becomes a UserError.
    """
    try:
        original(args)
    except Exception as error:
        refusal = user_dir.import_error(args.user_dir, error)
        if refusal is error:
            raise
        raise refusal from error
    attach_to_programs()


def call_main(original: Callable[..., None], cfg: Any, main: Callable[..., None], **others: Any) -> None:
    """Run a fairseq program's `main`, with our Trainer and functions, in this process or in those that it starts.

    cfg: fairseq's whole config; others: keyword arguments of `main`. When fairseq-train ends, by an error too, its
    run's folder and signal handlers are freed.
    """
    program = attach(main.__globals__)
    try:
        launch.call_main(original, cfg, main, prepare_process, **others)
    finally:
        if program is not None:  # fairseq-train
            program.end()


def prepare_process(main: Callable[..., None]) -> None:
    """Make all changes in a process that was started to run `main`, as register() has made them in the first one."""
    apply()
    attach(main.__globals__)


# (module or class, name of its function) -> handler; each with its reason, mostly a fault of the original
PATCHES: dict[tuple[Any, str], Handler] = {
    # argparse prints a page for a wrong flag; fairseq takes --bf16 as a request for a TPU
    (options, "parse_args_and_arch"): command_line.parse_or_explain,
    # the first call of fairseq-train's main: from here on its Trainer is ours, in whatever way it was started
    (utils, "import_user_module"): import_user_module,
    # every task gets DeepTask in front; fairseq ignores a YAML's section of a task without a dataclass
    (tasks, "setup_task"): task.set_up_with_mixin,
    # fairseq reads truncated data silently
    (indexed_dataset, "make_dataset"): datasets.open_checked,
    # fairseq drops the last sentences of a data set: --required-batch-size-multiple, fairseq/data/data_utils.py
    (data_utils, "batch_by_size"): datasets.keep_last_batch,
    # torch ends a data-loading process at any SIGTERM, and with it the training, before it has saved
    (signal_handling, "_set_worker_signal_handlers"): signals.spare_worker,
    # fairseq starts no processes on CPUs, and makes each of torchrun's processes a training of its own
    (distributed_utils, "call_main"): call_main,
    # a full disk ends a run, and weights that are not finite replace good ones
    (checkpoint_utils, "save_checkpoint"): run.save_checkpoint,
    # a checkpoint_last.pt is lost if the run is killed while it is copied
    (PathManager, "copy"): atomic.copy,
    # fairseq resumes from checkpoint_last.pt alone, whole or not
    (checkpoint_utils, "load_checkpoint"): run.load_checkpoint,
    # readers of damaged files raise any error; fairseq runs settings of the file with eval()
    (checkpoint_utils, "load_checkpoint_to_cpu"): reading.load_checkpoint_to_cpu,
    # errors of a model, or a part of one, about a checkpoint's weights name no file
    (checkpoint_utils, "load_model_ensemble_and_task"): loading.load_model_ensemble_and_task,
    (checkpoint_utils, "load_pretrained_component_from_model"): loading.load_pretrained_component_from_model,
}

# name of a function in fairseq-train's own file -> handler; they are replaced among the globals of its `main`
PROGRAM: dict[str, Handler] = {
    # our function answers signals, divergence and --stop-stuck; fairseq's makes one more update each time a training
    # that is over is started
    "train": run.train,
    # our function answers signals after each update
    "validate_and_save": run.validate_and_save,
}

# hydra prints a CompactHydraException in one line, and any other exception with advice to its own developers; it looks
# for this class by an `except`, which takes a tuple of classes too
ONE_LINE = (hydra._internal.utils.CompactHydraException, UserError)

# function that changes a global setting -> why; in the order in which `apply` calls them
SETTERS: dict[Callable[[], None], str] = {
    launch.end_with_launcher: "no process outlives its torchrun or srun",
    calm_root_logger: "importing fairseq sets the root logger to DEBUG",
    attention.leave_cudnn_out: "cuDNN's attention would make a plan for each new shape",
    launch.flush_denormals: "a deep Post-LN model's gradients underflow",
    reading.allow_plain_data: "torch.load refuses classes that fairseq writes",
    command_line.explain_uncaught: "a mistake of a user ends fairseq's programs in a traceback (sys.excepthook)",
}


def apply() -> None:
    """Make the changes listed above, and two below that replace no function; a second call changes nothing."""
    for setter in SETTERS:
        setter()
    hydra._internal.utils.CompactHydraException = ONE_LINE
    for (owner, name), handler in PATCHES.items():
        replace(owner, name, handler)
    attach_to_programs()
    if not hasattr(numpy, "compat"):  # fairseq takes numpy.compat.long, which numpy 2 no longer has
        vars(numpy)["compat"] = types.SimpleNamespace(long=int)

    # tell fairseq, which notes the paths of imported --user-dirs in `memo`, that this package is imported already: by
    # its own path, and by the one beside fairseq's package, where fairseq looks for a --user-dir that it does not find
    package = Path(__file__).parents[1]
    imported = vars(utils.import_user_module).setdefault("memo", set())
    imported |= {str(package), os.path.join(os.path.dirname(fairseq.__file__), "..", package.name)}


def attach_to_programs() -> None:
    """Call `attach` for fairseq-train and fairseq-interactive, imported or run by `python -m fairseq_cli.NAME`."""
    for module_name in ("fairseq_cli.train", "fairseq_cli.interactive", "__main__"):
        module = sys.modules.get(module_name)
        if module is not None:
            attach(vars(module))


def attach(namespace: dict[str, Any]) -> run.Program | None:
    """Put our Trainer and functions into fairseq-train, or our function that reads input into fairseq-interactive.

    namespace: globals of a program's `main`, in which main looks its functions up; those of any other program stay as
    they are. Return the Program of fairseq-train, None for another program. A second call changes nothing.
    """
    if "buffered_read" in namespace:  # fairseq-interactive ends in a traceback at a byte that is not UTF-8
        namespace["buffered_read"] = handled(namespace["buffered_read"], command_line.read_input)
    if "validate_and_save" not in namespace or "Trainer" not in namespace:  # not fairseq-train
        return None

    for name, handler in PROGRAM.items():
        namespace[name] = handled(namespace[name], handler)
    if getattr(namespace["Trainer"], "func", None) is not DeepTrainer:
        namespace["Trainer"] = functools.partial(DeepTrainer, program=run.Program(namespace))
    partial = namespace["Trainer"]  # made now or by an earlier call
    return partial.keywords["program"]


def replace(owner: Any, name: str, handler: Handler) -> None:
    """Let owner.name(...) call handler(original, ...); a static method stays static, a class method becomes static.

    owner: a module or class. The original of a class method is bound to its class, and so needs no `cls`.
    """
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
