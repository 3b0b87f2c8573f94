"""Read the flag `--cuda-graphs`, and find the settings under which a training goes on without graphs."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Any

from fairseq.tasks import FairseqTask

from ...core.modules import submodules
from ...errors import UserError
from .capture import CudaDevice, Device
from .step import GraphedStep

logger = logging.getLogger(__name__)

AUTO = "auto"
AUTO_SHAPES = 32  # 12% padding on IWSLT-14's batches of 4,096 tokens; 16 shapes have 25%, 64 have 8%
KEY = "deepnet_cuda_graphs"  # in a checkpoint's extra_state


def parse(flag: str | None) -> int | str | None:
    """Return the number of shapes, AUTO, or None without the flag; UserError for anything else."""
    if flag is None or flag == AUTO:
        return flag
    if not flag.isdecimal():
        raise UserError(f"--cuda-graphs {flag}: give a number of shapes, as {AUTO_SHAPES}, or auto, or 0")
    return int(flag)


def kept(flag: str | None, began_with: int | str) -> int | str:
    """Return what a resumed training does: what it began with, so that its numbers go on; a flag of 0 ends it.

    began_with: of the checkpoint, 0 for one without the entry.
    """
    wanted = parse(flag)
    if wanted is None or wanted == began_with:
        return began_with
    if wanted == 0:
        logger.info(f"--cuda-graphs 0: the training began with {began_with}; its numbers differ a little from here on")
        return 0
    if began_with != AUTO:
        logger.info(f"--cuda-graphs {flag}: the training goes on with {began_with}, as it began")
        return began_with
    return wanted


def graphed_step(trainer: Any, wanted: int | str) -> GraphedStep | None:
    """Return the step by graphs of a trainer; None, with a line of the log, where its settings allow none.

    wanted: number of shapes, 0 for none, or AUTO. UserError for a number of shapes on a CPU.
    """
    if wanted == 0:
        return None
    device = device_of(trainer)
    if device is None:
        if wanted != AUTO:
            raise UserError(f"--cuda-graphs {wanted}: needs a GPU, and this training runs on a CPU; drop the flag")
        logger.info("--cuda-graphs auto: without graphs, on a CPU")
        return None
    reason = why_not(trainer)
    if reason is not None:
        logger.info(f"--cuda-graphs: the training goes on without: {reason}")
        return None
    limit = AUTO_SHAPES if wanted == AUTO else int(wanted)
    compare = wanted == AUTO
    padding = trainer.task.target_dictionary.pad()
    return GraphedStep(limit, padding, device, compare, restart=restart_without if compare else None)


def device_of(trainer: Any) -> Device | None:
    """Return the device of a training on a GPU, None on a CPU."""
    return CudaDevice() if trainer.cuda else None


def restart_without() -> None:
    """Start fairseq-train again with --cuda-graphs 0, in this process's place; do nothing in another program.

    A failed capture leaves CUDA unusable in the process, and no update was made yet.
    """
    if Path(sys.argv[0]).name != "fairseq-train" and "fairseq_cli.train" not in sys.orig_argv:
        return
    logger.warning("--cuda-graphs auto: a capture failed; the training starts again without graphs")
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:], "--cuda-graphs", "0"])


def why_not(trainer: Any) -> str | None:
    """Return the setting of a trainer that no graph can serve, None if there is none."""
    if trainer.data_parallel_world_size > 1:
        return "several processes add up their gradients between the passes"
    if trainer.cfg.optimization.use_bmuf:
        return "--use-bmuf keeps gradients of its own"
    if any(getattr(module, "recomputed_layers", 0) for module in submodules(trainer.get_model())):
        return "--checkpoint-activations sets random numbers back within a pass"
    if trainer.task.own_train_step() is not FairseqTask.train_step:
        return f"--task {trainer.cfg.task._name} has a training step of its own"
    return None
