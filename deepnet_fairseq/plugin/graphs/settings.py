"""Read the flag `--cuda-graphs`, and find the settings under which a training goes on without graphs.

The flag is a number N of padded shapes, each of which gets a graph; 0 for no graphs; or auto.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Any

from fairseq.tasks import FairseqTask

from ...errors import UserError
from ..distributed import agreement
from .capture import CudaDevice, Device
from .step import GraphedStep, Processes

logger = logging.getLogger(__name__)

AUTO = "auto"  # time a batch with and without a graph before the first update, and use graphs if they are faster
# Number of shapes with AUTO. On IWSLT-14's batches of 4,096 tokens 32 shapes make batches 12% larger by padding, 16
# shapes 25%, 64 shapes 8%.
AUTO_SHAPES = 32
# values of --ddp-backend that average gradients, as GraphedStep.average_gradients does in their place
AVERAGING = ("c10d", "pytorch_ddp", "no_c10d", "legacy_ddp")
KEY = "deepnet_cuda_graphs"  # in a checkpoint's extra_state: GraphedStep.for_checkpoint, 0 without graphs


def parse_cuda_graphs(flag: str | None) -> int | str | None:
    """Return the flag's number of shapes (0: no graphs) or AUTO, None without the flag.

    Raises a UserError for anything else.
    """
    if flag is None or flag == AUTO:
        return flag
    if not flag.isdecimal():
        raise UserError(f"--cuda-graphs {flag}", f"give a number of shapes, as {AUTO_SHAPES}, or auto, or 0")
    return int(flag)


def after_resume(flag: str | None, began_with: int | str) -> int | str:
    """Return the setting of a resumed training: a number of shapes, 0 for no graphs, or AUTO.

    A training keeps the setting it began with, so that it computes the same numbers as without the interruption. The
    flag has an effect in two cases: 0 ends the graphs, and a number replaces an AUTO that has decided nothing yet.

    flag: --cuda-graphs of the resumed run, None if it is not given; began_with: the entry KEY of the checkpoint, 0 for
    one without the entry.
    """
    wanted = parse_cuda_graphs(flag)
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
    """Make the object that computes a trainer's batches by graphs; None for a training without graphs.

    wanted: number of shapes, 0 for no graphs, or AUTO. Logs why there are none although they are wanted; raises a
    UserError for a number of shapes on a CPU.
    """
    if wanted == 0:
        return None
    device = device_of(trainer)
    if device is None:
        if wanted != AUTO:
            raise UserError(f"--cuda-graphs {wanted}", "needs a GPU, and this training runs on a CPU; drop the flag")
        logger.info("--cuda-graphs auto: without graphs, on a CPU")
        return None
    reason = why_settings_forbid_graphs(trainer)
    if reason is not None:
        logger.info(f"--cuda-graphs: the training goes on without: {reason}")
        return None

    pad_index = trainer.task.target_dictionary.pad()
    processes = None
    if trainer.data_parallel_world_size > 1:
        processes = Processes(of_gradients=trainer.data_parallel_process_group, of_decisions=agreement.cpu_group())
    if wanted != AUTO:
        return GraphedStep(int(wanted), pad_index, device, processes=processes)
    # a process that others wait for cannot be replaced
    restart = restart_without_graphs if processes is None else None
    return GraphedStep(AUTO_SHAPES, pad_index, device, compare=True, restart=restart, processes=processes)


def device_of(trainer: Any) -> Device | None:
    """Return an object that captures and replays on a trainer's GPU; None for a training on a CPU."""
    return CudaDevice() if trainer.cuda else None


def restart_without_graphs() -> None:
    """Replace this process by the same fairseq-train command with --cuda-graphs 0; return in any other program.

    GraphedStep calls this after a failed capture, which leaves CUDA unusable in the process. Nothing is lost, because
    no update was made yet.
    """
    is_fairseq_train = Path(sys.argv[0]).name == "fairseq-train" or "fairseq_cli.train" in sys.orig_argv
    if not is_fairseq_train:
        return
    logger.warning("--cuda-graphs auto: a capture failed; the training starts again without graphs")
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:], "--cuda-graphs", "0"])


def why_settings_forbid_graphs(trainer: Any) -> str | None:
    """Return the reason, for the log, why a trainer's settings cannot go with graphs; None if they can."""
    section = trainer.cfg.distributed_training
    if trainer.data_parallel_world_size > 1:
        if section.ddp_backend not in AVERAGING:
            return f"--ddp-backend {section.ddp_backend} does more than to average gradients"
        if section.ddp_comm_hook != "none":
            return f"--ddp-comm-hook {section.ddp_comm_hook} changes how gradients are averaged"
        if section.broadcast_buffers:
            return "--broadcast-buffers sends buffers in each forward pass"
    if trainer.cfg.optimization.use_bmuf:
        return "--use-bmuf keeps gradients of its own"
    if trainer.task.own_train_step() is not FairseqTask.train_step:  # the step that GraphedStep.step replaces
        return f"--task {trainer.cfg.task._name} has a training step of its own"
    return None
