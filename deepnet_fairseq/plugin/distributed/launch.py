"""Start the processes of a training, or join those of torchrun and srun, and explain the loss of one in one line.

fairseq lets each of torchrun's processes train by itself unless the world size is given too, starts no processes on
CPUs, and waits half an hour for a machine that is cut off.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import inspect
import os
import re
import signal
import sys
import threading
import time
from datetime import timedelta
from typing import NoReturn

import torch
from fairseq.distributed import ModuleProxyWrapper
from fairseq.distributed import utils as distributed_utils
from torch import multiprocessing
from torch.distributed import distributed_c10d
from torch.distributed.algorithms.ddp_comm_hooks import DDPCommHookType, register_ddp_comm_hook
from torch.distributed.elastic.utils.distributed import get_free_port
from torch.nn.parallel import DistributedDataParallel

from ...errors import UserError, causes, user_error_line
from ...wording import counted

LAUNCHED = "TORCHELASTIC_RUN_ID"  # environment variable that torchrun sets for its processes
TORCHRUN = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK")  # variables that say where a process belongs
# words in errors of gloo, NCCL and torch's store where another process is gone or cannot be reached
LOST = re.compile(
    r"gloo|NCCL|Connection (closed|reset|refused)|Broken pipe|time[d ]*out|heartbeat|not all ranks|\b(TCP)?store\b",
    re.I,
)
# signals that are passed on to the processes that are started here, which then save
FORWARDED = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


def flush_denormals() -> None:
    """Flush numbers below 1.2e-38 to 0 on a CPU.

    The gradients of a deep Post-LN model underflow into denormals, which x86 handles in microcode: the backward pass
    of a 1,000-layer model takes 15.7 s with them and 1.9 s without.
    """
    torch.set_flush_denormal(True)


def call_main(original, cfg, main, prepare, **kwargs):
    """Run a fairseq program's `main(cfg, **kwargs)` in as many processes as its config asks for; return None.

    A training of one process runs `main` in this process; so does each process that torchrun has started, or srun with
    several tasks a machine. Otherwise this process starts one process for each rank of this machine, each of which runs
    `main`.

    original: fairseq's call_main, which runs `main` in this process; cfg: fairseq's whole config; prepare: called as
    prepare(main) first in each process that is started here, to make the changes to fairseq that register() has made
    in this one. Raises a UserError if a process is lost or cannot be reached.
    """
    section = cfg.distributed_training
    on_cpu = cfg.common.cpu or not torch.cuda.is_available()

    if section.distributed_init_method is None and all(name in os.environ for name in TORCHRUN):
        _join_torchrun(section, on_cpu)
    if on_cpu:
        section.distributed_backend = "gloo"  # NCCL, fairseq's default, needs GPUs
    _set_timeout_of_collectives(section.heartbeat_timeout)
    if section.distributed_init_method is None and _started_by_srun():
        distributed_utils.infer_init_method(section)  # sets address, world size and rank by SLURM's variables

    if section.distributed_world_size > 1 and not section.distributed_no_spawn:
        return _spawn(cfg, main, prepare, kwargs, on_cpu)
    with _leaving_group(), _lost_process_as_user_error(cfg):
        return original(cfg, main, **kwargs)


def use_default_group() -> None:
    """Let fairseq use gloo's default process group in place of a second group of all processes.

    fairseq makes the second group because NCCL needs it. While it is made, gloo waits forever for a process that is
    killed after it has sent its address and before it is connected.
    """
    if torch.distributed.is_initialized() and torch.distributed.get_backend() == "gloo":
        distributed_utils.get_global_group._global_group = torch.distributed.group.WORLD


def _join_torchrun(section, on_cpu: bool) -> None:
    """Set rank, world size and device in the config from torchrun's environment variables.

    section: the config's section distributed_training.
    """
    section.distributed_world_size = int(os.environ["WORLD_SIZE"])
    section.distributed_rank = int(os.environ["RANK"])
    if section.distributed_world_size > 1:  # a single process needs no process group
        section.distributed_init_method = "env://"
        section.distributed_no_spawn = True
    if not on_cpu:
        # other launchers that set TORCHRUN's variables may leave LOCAL_RANK out, and RANK counts all machines' GPUs
        local_rank = int(os.environ.get("LOCAL_RANK", section.distributed_rank))
        section.device_id = local_rank % torch.cuda.device_count()


def processes_here(cfg) -> int:
    """Return how many processes of a training run on this machine: exactly under torchrun, else an upper bound.

    torchrun sets LOCAL_WORLD_SIZE; without it the bound is the world size. cfg: fairseq's whole config.
    """
    return int(os.environ.get("LOCAL_WORLD_SIZE") or cfg.distributed_training.distributed_world_size)


def _started_by_srun() -> bool:
    """Return whether srun has started several tasks, which fairseq tells apart by SLURM's variables."""
    return "SLURM_STEP_NODELIST" in os.environ and int(os.environ.get("SLURM_NTASKS", 1)) > 1


def _spawn(cfg, main, prepare, kwargs: dict, on_cpu: bool) -> None:
    """Start a training's processes on this machine and wait for them.

    Without --distributed-init-method they are all ranks of the training. With it the training may have several
    machines, and they are the ranks from --distributed-rank on: one for each GPU, or --distributed-num-procs on CPUs.
    Where a process fails, this one exits with the status of the first one that failed, or raises a UserError with its
    message; also a UserError if a signal has ended a process. kwargs: further arguments of main; the other arguments
    are those of call_main.
    """
    section = cfg.distributed_training
    first_rank = section.distributed_rank or 0
    processes = section.distributed_world_size
    if section.distributed_init_method is not None:
        most_here = section.distributed_num_procs if on_cpu else torch.cuda.device_count()
        processes = min(processes - first_rank, most_here)
    else:
        if not on_cpu and processes > torch.cuda.device_count():
            raise UserError(
                f"--distributed-world-size {processes}", f"this machine has {counted(torch.cuda.device_count(), 'GPU')}"
            )
        port = get_free_port() if section.distributed_port <= 0 else section.distributed_port
        section.distributed_init_method = f"tcp://localhost:{port}"
    section.distributed_rank = None  # fairseq's distributed_main sets it in each process: start_rank plus its number

    # of the processes that fail: each puts its exit status (int) or the message of its UserError (str)
    failures = multiprocessing.get_context("spawn").SimpleQueue()
    arguments = (main, prepare, cfg, kwargs | {"start_rank": first_rank}, os.getpid(), failures)
    context = multiprocessing.spawn(_process, arguments, processes, join=False)
    pass_on = functools.partial(_pass_on, context.processes)
    handlers_before = {kind: signal.signal(kind, pass_on) for kind in FORWARDED}
    try:
        # join returns whenever a process ends, True once all have; if one has failed it ends the others and raises
        while not context.join():
            pass
    except multiprocessing.ProcessExitedException as error:
        if not failures.empty():
            failure = failures.get()
            if isinstance(failure, int):
                sys.exit(failure)
            raise UserError(failure) from None
        if error.signal_name:
            lost = f"process {error.error_index} of {processes}"
            raise UserError(lost, f"was ended by {error.signal_name}; {_advice_to_resume(cfg)}") from None
        sys.exit(error.exit_code if error.exit_code > 0 else 1)  # after a failure the status is never 0
    finally:
        for kind, handler in handlers_before.items():
            signal.signal(kind, handler)


@functools.cache
def end_with_launcher() -> None:
    """End this process when its launcher ends, if torchrun or srun has started it; called by register().

    The function is cached, so that a second call starts no second thread.
    """
    if LAUNCHED in os.environ or _started_by_srun():
        end_with(os.getppid())


def end_with(parent: int) -> None:
    """Kill this process within a second of the end of `parent`, or now if `parent` is gone.

    torchrun's processes are sessions of their own, so a SIGKILL to its process group does not reach them.
    PR_SET_PDEATHSIG is no alternative: it follows the parent's thread, not its process.
    """
    threading.Thread(target=_watch, args=(parent,), name="launcher", daemon=True).start()


def _watch(parent: int) -> None:
    """Kill this process once `parent` is no longer its parent."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)


def _process(number: int, main, prepare, cfg, kwargs: dict, parent: int, failures) -> None:
    """Run `main` in a process that _spawn has started: a new interpreter, in which nothing has run before this.

    number: of the process among those of this machine, from 0; prepare: called as prepare(main) first, to make the
    changes to fairseq that register() has made in the parent; cfg: fairseq's whole config; kwargs: further arguments
    of main, and start_rank, the rank of process 0; parent: process id of the parent; failures: queue for the exit
    status (int) or the message (str) with which the parent is to end if this process fails.
    """
    prepare(main)
    end_with(parent)
    _set_timeout_of_collectives(cfg.distributed_training.heartbeat_timeout)
    multiprocessing.set_start_method("fork", force=True)  # for data-loading processes; "spawn" was for this one
    with _leaving_group():
        # the parent is told of a failure in here, because gloo may abort the process when it leaves the group
        try:
            with _lost_process_as_user_error(cfg):
                distributed_utils.distributed_main(number, main, cfg, kwargs)
        except SystemExit as ended:
            if isinstance(ended.code, int) and ended.code:
                failures.put(ended.code)
            raise
        except Exception as error:
            line = user_error_line(error)
            if line is None:
                raise
            failures.put(line)
            sys.exit(1)
    _end_at_once()  # at the interpreter's shutdown gloo's threads may abort


def _end_at_once() -> NoReturn:
    """End a process that has succeeded, without the interpreter's shutdown, in which threads of gloo may abort."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _pass_on(processes, kind: int, frame) -> None:
    """Send the signal `kind`, which this process has got, to the processes that it has started: a signal handler."""
    for process in processes:
        if process.is_alive():
            os.kill(process.pid, kind)


def _set_timeout_of_collectives(seconds: int) -> None:
    """Set the timeout of collectives in this process to --heartbeat-timeout; 0 or less keeps torch's own."""
    if seconds > 0:
        distributed_c10d.default_pg_timeout = timedelta(seconds=seconds)
        distributed_c10d.default_pg_nccl_timeout = timedelta(seconds=seconds)


@contextlib.contextmanager
def _lost_process_as_user_error(cfg):
    """Raise a UserError in place of an error in the context that tells of the loss of another process.

    An error of the network among its causes tells of that. Other errors, those of a training of one process, and those
    that user_error_line explains are raised as they are. cfg: fairseq's whole config.
    """
    try:
        yield
    except Exception as error:
        section = cfg.distributed_training
        network_error = _first_network_error(error)
        if not network_error or section.distributed_world_size == 1 or user_error_line(error):
            raise
        raise UserError(
            f"process {section.distributed_rank} of {section.distributed_world_size}",
            f"another one is gone or cannot be reached ({network_error[:150]}); {_advice_to_resume(cfg)}",
        ) from error


@contextlib.contextmanager
def _leaving_group():
    """Leave the process group at the end of the context, with or without an error, if that is safe."""
    try:
        yield
    finally:
        _leave_group_if_safe()


def _first_network_error(error: BaseException) -> str:
    """Return the first line of the first error of the network among an error and its causes; "" if there is none."""
    for cause in causes(error):
        if not isinstance(cause, RuntimeError):
            continue
        message = str(cause).strip() or type(cause).__name__
        line = message.splitlines()[0]
        if isinstance(cause, torch.distributed.DistError) or LOST.search(line):
            return line
    return ""


def _leave_group_if_safe() -> None:
    """Destroy the process group, whose threads may otherwise abort the process at its end.

    A group of NCCL is left alone while an error is handled: to destroy it may wait for ranks that are gone.
    """
    if not torch.distributed.is_initialized():
        return
    handles_error = sys.exc_info()[1] is not None
    if not handles_error or torch.distributed.get_backend() == "gloo":
        torch.distributed.destroy_process_group()
        vars(distributed_utils.get_global_group).pop("_global_group", None)  # where fairseq keeps the group


def _advice_to_resume(cfg) -> str:
    """Return what to do after a process was lost, the end of a message."""
    return f"start the training again, and it resumes from {cfg.checkpoint.save_dir}"


def wrap_in_ddp(section, module, group, device):
    """Wrap `module` in torch's DistributedDataParallel (DDP) on `device`; fairseq's own function fails on a CPU.

    section: the config's section distributed_training, whose flags for DDP hold; group: the processes among which
    gradients are averaged. DDP looks for parameters without a gradient if --find-unused-parameters is given, or if the
    module's has_idle_parameters is True (plugin/models.py). Return DDP in fairseq's ModuleProxyWrapper, which looks up
    attributes that DDP does not have in `module`.
    """
    # DDP's argument for --broadcast-buffers has this name since torch 2.13
    buffers_argument = "forward_sync_buffers"
    if buffers_argument not in inspect.signature(DistributedDataParallel).parameters:
        buffers_argument = "broadcast_buffers"
    device_id = None if device.type == "cpu" else section.device_id  # on a CPU DDP takes no ids
    wrapped = DistributedDataParallel(
        module.to(device),
        device_ids=None if device_id is None else [device_id],
        output_device=device_id,
        bucket_cap_mb=section.bucket_cap_mb,
        process_group=group,
        find_unused_parameters=section.find_unused_parameters or getattr(module, "has_idle_parameters", False),
        gradient_as_bucket_view=section.gradient_as_bucket_view,
        **{buffers_argument: section.broadcast_buffers},
    )
    if section.ddp_comm_hook == "fp16":
        register_ddp_comm_hook(DDPCommHookType.FP16_COMPRESS, wrapped)
    return ModuleProxyWrapper(wrapped)
