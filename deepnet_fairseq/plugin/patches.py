"""Everything that is different in fairseq while this plug-in is there: one list, read from top to bottom.

An entry is a function of fairseq and its handlers, each around the ones before it: the first is next to fairseq's own,
the last is called first. A handler takes what it is around and that function's arguments; it stands where its subject
is and knows of no other handler. Where fairseq copied a name (`from x import y`), the entry is the copy that is called.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hydra._internal.utils
import numpy
from fairseq import checkpoint_utils, models, options, tasks, utils
from fairseq.data import bucket_pad_length_dataset, data_utils, indexed_dataset
from fairseq.data.iterators import EpochBatchIterator
from fairseq.distributed import utils as distributed_utils
from fairseq.file_io import PathManager
from fairseq.models import distributed_fairseq_model
from fairseq.optim import AMPOptimizer, FairseqOptimizer, FP16Optimizer, MemoryEfficientFP16Optimizer, fp16_optimizer
from fairseq.tasks import FairseqTask
from fairseq.trainer import Trainer
from torch.utils.data._utils import signal_handling

from ..core import attention
from ..errors import UserError
from . import calm_root_logger, command_line, datasets, settings, waits
from .checkpoints import epoch_weights, exact_resume, reading, saving, train_loop
from .distributed import launch, zero
from .divergence import stuck, watched_trainer
from .optimisers import after_update, half_precision, moving_average, papers

Handlers = dict[Callable[..., Any], str]  # handler: why
# optimisers for half precision
HALF = (fp16_optimizer._FP16OptimizerMixin, fp16_optimizer._MemoryEfficientFP16OptimizerMixin, AMPOptimizer)


def import_user_module(original, *args, **kwargs) -> None:
    """Patches the program too: where this package was imported before it, it is not there until now."""
    original(*args, **kwargs)
    around_program()


PATCHES: dict[tuple[Any, str], Handlers] = {  # (module or class, function): its handlers
    # the command line: a mistake in one line, before anything is made
    (options, "parse_args_and_arch"): {command_line.parse_or_explain: "wrong flags, and right ones that cannot go on"},
    (tasks, "setup_task"): {
        settings.setup_by_flags: "YAML for tasks that fairseq knows by flags alone",
    },
    (utils, "import_user_module"): {import_user_module: "by fairseq-train's main: now the program is there"},
    # data
    (indexed_dataset, "make_dataset"): {datasets.open_checked: "binarised files that are truncated or another's"},
    (FairseqTask, "filter_indices_by_size"): {datasets.check_lengths: "sentences that are too long"},
    (data_utils, "batch_by_size"): {datasets.keep_last_batch: "fairseq drops the last sentences"},
    (FairseqTask, "get_batch_iterator"): {exact_resume.batches_as_before: "a resumed run gets the batches it would"},
    (EpochBatchIterator, "state_dict"): {datasets.note_processes: "how many read the batches that are counted"},
    (EpochBatchIterator, "load_state_dict"): {datasets.resume_on_processes: "as many sentences on more or fewer"},
    (signal_handling, "_set_worker_signal_handlers"): {train_loop.spare_worker: "a job's signal is for the training"},
    # processes; `models.DistributedFairseqModel` is the name that Trainer looks up
    (distributed_utils, "call_main"): {launch.call_main: "torchrun, CPUs, and one line when a process is lost"},
    (distributed_utils, "distributed_init"): {launch.meet_once: "gloo waits for ever for one who dies at a meeting"},
    (distributed_fairseq_model, "DistributedDataParallel"): {launch.parallel_on_any_device: "CPUs take no device ids"},
    (models, "DistributedFairseqModel"): {
        launch.without_heartbeat: "fairseq's kills the whole process group without a word",
    },
    # updates
    (Trainer, "__init__"): {stuck.begin: "since when it has learnt nothing"},
    (Trainer, "_build_optimizer"): {
        zero.build_optimizer: "--zero-sharding os without fairscale",
        half_precision.build_on_cpu: "--fp16 and --amp without a GPU",
    },
    (Trainer, "_build_ema"): {moving_average.build: "a few operations instead of some for every tensor"},
    (FP16Optimizer, "build_optimizer"): {
        half_precision.build_own: "an optimiser brings its own",
        half_precision.explain_refusal: "what an optimiser cannot do, in one line",
    },
    (MemoryEfficientFP16Optimizer, "build_optimizer"): {half_precision.explain_refusal: "the same"},
    (AMPOptimizer, "__init__"): {half_precision.begin_amp: "--amp-scale-window"},
    (Trainer, "train_step"): {
        datasets.put_empty_first: "an empty last batch made all of an update's batches count for nothing",
        half_precision.step_on_cpu: "--fp16 and --amp without a GPU",
        waits.note_step: "what an update's batches log",
        watched_trainer.watch_step: "a loss that is not finite",
    },
    (Trainer, "_prepare_sample"): {waits.know_batch: "the host looks for padding, not the forward pass on the device"},
    (FairseqTask, "train_step"): {
        datasets.count_as_nothing: "an empty batch, whatever its loss counts",
        waits.note_logged: "losses come to the host with the norm",
    },
    (FairseqTask, "optimizer_step"): {after_update.step: "Method.after_update"},
    (Trainer, "_aggregate_logging_outputs"): {
        waits.sums_on_host: "the sums of all ranks by one copy",
        train_loop.tell_others: "a signal is answered by all ranks after the same update",
    },
    (Trainer, "clip_grad_norm"): {
        waits.clip_on_host: "the norm and all that is logged come to the host by one copy",
        papers.clip_apart: "gradients that a method limits apart",
    },
    (FairseqOptimizer, "clip_grad_norm"): {waits.clip_by_number: "the norm is on the host, the gradients are not"},
    (FairseqOptimizer, "multiply_grads"): {waits.multiply_by_number: "a number is not copied to the device"},
    (Trainer, "_check_grad_norms"): {waits.compare_norms: "one question to the device in place of three"},
    (Trainer, "_reduce_and_log_stats"): {waits.log_on_host: "a validation's numbers by one copy"},
    (Trainer, "valid_step"): {
        stuck.count_targets: "for --stop-stuck, how often each word is a target",
        train_loop.validate_unless_stopped: "a signal is answered between two batches",
    },
    # saving
    (checkpoint_utils, "save_checkpoint"): {
        epoch_weights.end_of_epoch: "--epoch-weights: what an average reads in place of whole checkpoints",
        watched_trainer.save_if_finite: "weights that no one can train on replace nothing",
        saving.save_or_warn: "a full disk is no end of the run",
    },
    (Trainer, "consolidate_optimizer"): {
        zero.consolidate_unless_alone: "after an error the other ranks are gone",
        watched_trainer.end_diverged: "before fairseq writes crash.pt and trains on under NanDetector",
    },
    (Trainer, "save_checkpoint"): {
        zero.write_unless_alone: "after an error the other ranks' parts are not there",
        exact_resume.save_forgotten: "what fairseq keeps in the process only",
        stuck.keep_count: "since when it has learnt nothing",
        saving.lose_no_error: "a crash.pt that cannot be written hid the crash",
    },
    **{(kind, "state_dict"): {exact_resume.state_with_weights: "float32 weights, the loss scale"} for kind in HALF},
    (checkpoint_utils, "torch_persistent_save"): {
        saving.write_whole: "a file is whole or absent",
        epoch_weights.write_too: "--epoch-weights",
    },
    (PathManager, "copy"): {saving.copy_whole: "checkpoint_last.pt, killed while it is copied, was lost"},
    # loading
    (checkpoint_utils, "load_checkpoint"): {train_loop.resume_from_whole: "of the newest that is whole; what was left"},
    (checkpoint_utils, "load_checkpoint_to_cpu"): {
        train_loop.read_verified: "torch does not look at its checksums",
        reading.explain_unreadable: "whatever a damaged file makes its readers raise, in one line",
    },
    (Trainer, "load_checkpoint"): {
        exact_resume.load_forgotten: "what fairseq kept in the process only",
        stuck.resume_count: "since when it has learnt nothing",
        reading.explain_unusable: "an optimiser's state that is another's, in one line",
    },
    **{(kind, "load_state_dict"): {exact_resume.load_with_weights: "as they were saved"} for kind in HALF},
}

PROGRAM: dict[str, Handlers] = {  # fairseq-train's own, in the module that runs: fairseq_cli.train or __main__
    "add_defaults": {
        saving.begin: "main's first step with a config: the folder is this training's",
        zero.check_config: "--ddp-backend fully_sharded, before anything is made",
    },
    "train": {
        train_loop.explain_lost_loader: "a process that loads data was killed",
        train_loop.train_until_over: "signals; a run that was over makes no update more; a failed last save",
        watched_trainer.train_or_end: "a divergence: a line and a status",
        stuck.end_stuck: "--stop-stuck: a line and a status",
    },
    "get_valid_stats": {stuck.compare: "--stop-stuck: a validation loss with that of guessing"},
    "validate_and_save": {
        stuck.stop_if_stuck: "--stop-stuck",
        train_loop.save_if_stopped: "a signal is answered after each update",
    },
}

ASSIGNED: dict[tuple[Any, str], Any] = {
    (AMPOptimizer, "step"): half_precision.step_amp,  # fairseq's unscales the gradients twice
    (utils, "move_to_cpu"): reading.move_to_cpu,  # views of one memory stay
    (data_utils, "get_buckets"): datasets.get_buckets,  # --num-batch-buckets needs a name that numpy 2 lacks
    (bucket_pad_length_dataset, "get_buckets"): datasets.get_buckets,  # its copy
    (numpy, "compat"): getattr(numpy, "compat", types.SimpleNamespace(long=int)),  # the same, in collating buckets
    # of what it catches, hydra prints this kind in one line
    (hydra._internal.utils, "CompactHydraException"): (hydra._internal.utils.CompactHydraException, UserError),
}


def know_this_package() -> None:
    """fairseq's list of the --user-dir that it has imported has this one, whoever imported it."""
    vars(utils.import_user_module).setdefault("memo", set()).add(str(Path(__file__).parents[1]))


CALLED: Handlers = {  # plugin.silence() comes before, and before fairseq
    launch.end_with_launcher: "no process outlives its torchrun or srun",
    calm_root_logger: "importing fairseq sets the root logger to DEBUG",
    attention.leave_cudnn_out: "it would make a plan for each new shape",
    launch.flush_denormals: "a deep Post-LN model's gradients underflow",
    reading.allow_plain_data: "torch.load refuses classes that fairseq writes",
    settings.read_without_running: "eval of settings, in 18 modules",
    command_line.explain_uncaught: "sys.excepthook, in fairseq's programs",
    know_this_package: "--user-dir in a process that has imported it has nothing to do",
}


def apply() -> None:
    """Idempotent, also for a package that is imported under two names."""
    for call in CALLED:
        call()
    for (owner, name), value in ASSIGNED.items():
        setattr(owner, name, value)
    for (owner, name), handlers in PATCHES.items():
        for handler in handlers:
            wrap(owner, name, handler)
    around_program()


def around_program() -> None:
    """Patches fairseq-train's own functions, if it is there; other programs do not have them. Idempotent."""
    for module in (sys.modules.get("fairseq_cli.train"), sys.modules.get("__main__")):
        if hasattr(module, "validate_and_save"):
            for name, handlers in PROGRAM.items():
                for handler in handlers:
                    wrap(module, name, handler)


def wrap(owner: Any, name: str, handler: Callable[..., Any]) -> None:
    """owner.name(...) becomes handler(original, ...), once; for a method `self` comes second.

    A static method stays one, and a class method becomes one, of `owner`.
    """
    static = isinstance(getattr(owner, "__dict__", {}).get(name), (staticmethod, classmethod))
    original = getattr(owner, name)
    before, mark = getattr(original, "handlers", ()), f"{handler.__module__.partition('.')[2]}.{handler.__qualname__}"
    if mark in before:
        return

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return handler(original, *args, **kwargs)

    vars(wrapped)["handlers"] = (*before, mark)
    setattr(owner, name, staticmethod(wrapped) if static else wrapped)
