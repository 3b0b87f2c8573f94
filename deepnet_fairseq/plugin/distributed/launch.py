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

LAUNCHED = "TORCHELASTIC_RUN_ID"  # set for torchrun's processes
TORCHRUN = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK")
LOST = re.compile(
    r"gloo|NCCL|Connection (closed|reset|refused)|Broken pipe|time[d ]*out|heartbeat|not all ranks|\b(TCP)?store\b",
    re.I,
)
FORWARDED = (signal.SIGTERM, signal.SIGUSR1)  # passed to the processes started here, which save


def flush_denormals() -> None:
    """Flush numbers below 1.2e-38 to 0 on a CPU.

    The gradients of a deep Post-LN model underflow into denormals, which x86 handles in microcode: the backward pass
    of a 1,000-layer model takes 15.7 s with them and 1.9 s without.
    """
    torch.set_flush_denormal(True)


def call_main(original, cfg, main, prepare, **kwargs):
    """Run `main` in this process, one of torchrun's or srun's, or start this machine's processes and run it in each.

    original: fairseq's call_main, which runs it in this process; cfg: fairseq's whole config; kwargs: of `main`;
    prepare: called with `main` in each process that is started here, before anything else. Raises a UserError if a
    process is lost or cannot be reached.
    """
    place = cfg.distributed_training
    on_cpu = cfg.common.cpu or not torch.cuda.is_available()

    if place.distributed_init_method is None and all(name in os.environ for name in TORCHRUN):
        _join(place, on_cpu)
    if on_cpu:
        place.distributed_backend = "gloo"
    _wait_at_most(place.heartbeat_timeout)
    if place.distributed_init_method is None and _slurm():
        distributed_utils.infer_init_method(place)  # from torchrun's environment variables

    if place.distributed_world_size > 1 and not place.distributed_no_spawn:
        return _spawn(cfg, main, prepare, kwargs, on_cpu)
    with _explain_in_a_line(cfg):
        return original(cfg, main, **kwargs)


def use_default_group() -> None:
    """Let fairseq use gloo's default process group in place of a second group of all processes.

    fairseq makes the second group because NCCL needs it. While it is made, gloo waits forever for a process that is
    killed after it has sent its address and before it is connected.
    """
    if torch.distributed.is_initialized() and torch.distributed.get_backend() == "gloo":
        distributed_utils.get_global_group._global_group = torch.distributed.group.WORLD


def _join(place, on_cpu: bool) -> None:
    """Set rank, world size and device from torchrun's environment variables."""
    place.distributed_world_size = int(os.environ["WORLD_SIZE"])
    place.distributed_rank = int(os.environ["RANK"])
    if place.distributed_world_size > 1:
        place.distributed_init_method = "env://"
        place.distributed_no_spawn = True
    if not on_cpu:
        local_rank = int(os.environ.get("LOCAL_RANK", place.distributed_rank))
        place.device_id = local_rank % torch.cuda.device_count()


def processes_here(cfg) -> int:
    """Return how many processes of a training run on this machine, as far as its launcher tells; at most, otherwise."""
    return int(os.environ.get("LOCAL_WORLD_SIZE") or cfg.distributed_training.distributed_world_size)


def _slurm() -> bool:
    """Return whether srun has started several tasks, which fairseq tells apart by SLURM's variables."""
    return "SLURM_STEP_NODELIST" in os.environ and int(os.environ.get("SLURM_NTASKS", 1)) > 1


def _spawn(cfg, main, prepare, kwargs: dict, on_cpu: bool) -> None:
    """Start a training's processes on this machine and wait for them.

    With --distributed-init-method they are the ranks from --distributed-rank on, else all of the training. Ends with
    the status or message of the process that failed first.
    """
    place = cfg.distributed_training
    first_rank = place.distributed_rank or 0
    processes = place.distributed_world_size
    if place.distributed_init_method is not None:
        room_here = place.distributed_num_procs if on_cpu else torch.cuda.device_count()
        processes = min(processes - first_rank, room_here)
    elif not on_cpu and processes > torch.cuda.device_count():
        raise UserError(f"--distributed-world-size {processes}: this machine has {torch.cuda.device_count()} GPUs")
    else:
        port = get_free_port() if place.distributed_port <= 0 else place.distributed_port
        place.distributed_init_method = f"tcp://localhost:{port}"
    place.distributed_rank = None  # each process its own

    mistakes = multiprocessing.get_context("spawn").SimpleQueue()
    arguments = (main, prepare, cfg, kwargs | {"start_rank": first_rank}, os.getpid(), mistakes)
    context = multiprocessing.spawn(_process, arguments, processes, join=False)
    pass_on = functools.partial(_pass_on, context.processes)
    handlers_before = {kind: signal.signal(kind, pass_on) for kind in FORWARDED}
    try:
        while not context.join():
            pass
    except multiprocessing.ProcessExitedException as error:
        if not mistakes.empty():
            mistake = mistakes.get()
            if isinstance(mistake, int):
                sys.exit(mistake)
            raise UserError(mistake) from None
        if error.signal_name:
            ended = f"process {error.error_index} of {processes} was ended by {error.signal_name}"
            raise UserError(f"{ended}; {_again(cfg)}") from None
        sys.exit(error.exit_code if error.exit_code > 0 else 1)
    finally:
        for kind, handler in handlers_before.items():
            signal.signal(kind, handler)


@functools.cache
def end_with_launcher() -> None:
    """Make a process that torchrun or srun started end with its launcher; called by register()."""
    if LAUNCHED in os.environ or _slurm():
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


def _process(number: int, main, prepare, cfg, kwargs: dict, parent: int, mistakes) -> None:
    """Run `main` in a spawned process, which so far has only unpickled these functions.

    number: of the process among those of this machine; parent: id of the process that started it; mistakes: queue for
    the status (int) or message (str) of an error that the parent is to end with.
    """
    prepare(main)
    end_with(parent)
    _wait_at_most(cfg.distributed_training.heartbeat_timeout)
    multiprocessing.set_start_method("fork", force=True)  # for data-loading processes, as everywhere else
    try:
        with _explain_in_a_line(cfg):
            try:
                distributed_utils.distributed_main(number, main, cfg, kwargs)
            except SystemExit as ended:  # gloo may abort when the group is left, and hide the status
                if isinstance(ended.code, int) and ended.code:
                    mistakes.put(ended.code)
                raise
    except Exception as error:
        line = user_error_line(error)
        if line is None:
            raise
        mistakes.put(line)
        sys.exit(1)
    _end_at_once()


def _end_at_once() -> NoReturn:
    """End a process that has succeeded, without the interpreter's shutdown, in which threads of gloo may abort."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _pass_on(processes, kind: int, frame) -> None:
    """Send a signal that this process got to the processes that it has started; a signal handler."""
    for process in processes:
        if process.is_alive():
            os.kill(process.pid, kind)


def _wait_at_most(seconds: int) -> None:
    """Set the timeout of collectives to --heartbeat-timeout; 0 or less keeps torch's."""
    if seconds > 0:
        distributed_c10d.default_pg_timeout = timedelta(seconds=seconds)
        distributed_c10d.default_pg_nccl_timeout = timedelta(seconds=seconds)


@contextlib.contextmanager
def _explain_in_a_line(cfg):
    """Turn errors of the network, from the first barrier on, into a UserError; then leave the process group."""
    try:
        yield
    except Exception as error:
        place = cfg.distributed_training
        network_error = _first_network_error(error)
        if not network_error or place.distributed_world_size == 1 or user_error_line(error):
            raise
        raise UserError(
            f"process {place.distributed_rank} of {place.distributed_world_size}: another one is gone or cannot be "
            f"reached ({network_error[:150]}); {_again(cfg)}"
        ) from error
    finally:
        _leave()


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


def _leave() -> None:
    """Destroy the process group, whose threads may otherwise abort the process at its end.

    After an error NCCL may wait for ranks that are gone; then the process just ends.
    """
    groups = torch.distributed
    if groups.is_initialized() and (sys.exc_info()[1] is None or groups.get_backend() == "gloo"):
        groups.destroy_process_group()
        vars(distributed_utils.get_global_group).pop("_global_group", None)  # fairseq's own note of it


def _again(cfg) -> str:
    """Say what to do after a process was lost."""
    return f"start the training again, and it resumes from {cfg.checkpoint.save_dir}"


def parallel(place, module, group, device):
    """Wrap `module` in torch's DistributedDataParallel by fairseq's flags; fairseq's own wrapping fails on a CPU.

    place: the config's section for distributed training; group: of processes, among which gradients are averaged.
    Unused parameters are looked for if the flag says so or the module has idle parameters.
    """
    buffers_argument = "forward_sync_buffers"  # its name since torch 2.13
    if buffers_argument not in inspect.signature(DistributedDataParallel).parameters:
        buffers_argument = "broadcast_buffers"
    device_id = None if device.type == "cpu" else place.device_id
    wrapped = DistributedDataParallel(
        module.to(device),
        device_ids=None if device_id is None else [device_id],
        output_device=device_id,
        bucket_cap_mb=place.bucket_cap_mb,
        process_group=group,
        find_unused_parameters=place.find_unused_parameters or getattr(module, "has_idle_parameters", False),
        gradient_as_bucket_view=place.gradient_as_bucket_view,
        **{buffers_argument: place.broadcast_buffers},
    )
    if place.ddp_comm_hook == "fp16":
        register_ddp_comm_hook(DDPCommHookType.FP16_COMPRESS, wrapped)
    return ModuleProxyWrapper(wrapped)
