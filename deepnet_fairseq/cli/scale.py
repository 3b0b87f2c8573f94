"""The command that says what a training costs on many GPUs."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ..errors import UserError

PAIRS, BATCH = 12e9, 256 * 4096
MOST_TOKENS = 16_384  # in a batch; more of them keep a GPU no busier
CHOSEN = ("--zero-sharding", "--ddp-backend", "--update-freq", "--cpu")  # flags of plan, not of scale


def scale(args) -> None:
    """days and GPU-hours of a training on 8, 64, 512 GPUs, on paper, and what is the limit

    Takes the flags of the model and of precision as `deepnet plan` does, --max-tokens (the most of one GPU), --length
    and --vocab. Every mode of sharding is played through, an update at a time: computing, launching, the network,
    loading of batches, saves and failures. What is assumed and where it is from: docs/scaling.md.

      deepnet scale --arch deepnet_transformer_500_500 --share-all-embeddings --vocab 250002 --bf16
    """
    if args.measure:
        _measure(Path(args.measure))
    elif args.check:
        _check(args)
    else:
        found = _report(args)
        print(json.dumps(found.as_dict()) if args.json else found.as_text())


def _report(args):
    from ..plan.flags import parse
    from ..plan.scale.outcome import Scenario, limits, outcomes
    from ..plan.scale.report import Report

    for flag in CHOSEN:
        if any(word.split("=")[0] == flag for word in args.rest):
            raise UserError(f"{flag}: all modes, batches and numbers are tried, on GPUs; drop it")
    setting = parse(["--max-tokens", str(MOST_TOKENS), *args.rest])
    batch, pairs = _positive("--batch", args.batch), _positive("--pairs", args.pairs)
    updates = max(1, round(pairs * setting.length / batch)) if args.updates is None else args.updates
    scenario = Scenario(
        _model(setting),
        _hardware(args),
        _measured(args),
        batch,
        _positive("--updates", updates),
        _efficiencies(args.efficiency),
        _positive("--num-workers", args.num_workers),
    )
    found = {gpus: outcomes(scenario, gpus) for gpus in _gpus(args.gpus)}
    return Report(scenario, pairs, found, limits(scenario))


def _model(setting):
    from ..plan.scale.model import Model

    return Model(setting)


def _hardware(args):
    from ..plan.scale.hardware import GIGA, hardware
    from ..plan.setting import GIB

    def times(value, unit):
        return None if value is None else value * unit

    return hardware(
        args.hardware,
        memory=times(args.gpu_memory, GIB),
        node=args.gpus_per_node,
        intra=times(args.intra_bandwidth, GIGA),
        inter=times(args.inter_bandwidth, GIGA),
        share=args.network_share,
        storage=times(args.storage_bandwidth, GIGA),
        mtbf=args.mtbf,
        restart=times(args.restart, 60),
    )


def _measured(args):
    from ..plan.scale.measured import load
    from ..plan.scale.recorded import RECORDED

    return load(args.measured) if args.measured else RECORDED


def _measure(out: Path) -> None:
    from ..atomic_output import check_file
    from ..plan.scale.measurement import measure

    check_file("--measure", out)
    measure(out.resolve().parent).dump(out)
    print(f"wrote {out}; give it back with --measured {out}")


def _check(args) -> None:
    from ..plan.scale.measurement import one_thread
    from ..plan.scale.time_update import DEPTHS, compare
    from ..text_table import render

    measured = _measured(args)
    with one_thread():
        found = [compare(measured, *size) for size in DEPTHS]
    rows = [["width", "layers", "predicted s", "measured s", "predicted/measured"]]
    for one in found:
        sizes = [one.width, f"{one.depth}-{one.depth}"]
        rows.append([*sizes, f"{one.predicted:.3f}", f"{one.measured:.3f}", f"{one.ratio:.2f}"])
    print(render(rows))


def _positive(flag: str, value):
    if not 1 <= value < float("inf"):
        raise UserError(f"{flag} {value:g}: must be at least 1")
    return value


def _numbers(flag: str, text: str, kind) -> list:
    try:
        return [kind(word) for word in text.split(",")]
    except ValueError:
        raise UserError(f"{flag} {text}: give numbers with commas between") from None


def _gpus(text: str) -> list[int]:
    return [_positive("--gpus", gpus) for gpus in _numbers("--gpus", text, int)]


def _efficiencies(text: str) -> tuple[float, ...]:
    found = sorted(_numbers("--efficiency", text, float))
    if not all(0 < share <= 1 for share in found):
        raise UserError(f"--efficiency {text}: shares of the peak, above 0 and at most 1")
    return tuple(found)


def add(command) -> None:
    """Registers `deepnet scale` and its flags; command: as parser() gives it."""
    sub = command("scale", scale)
    sub.add_argument("--gpus", default="8,64,512", metavar="N,N", help="default %(default)s")
    sub.add_argument("--pairs", type=float, default=PAIRS, help="sentence pairs of the corpus (default 12e9)")
    sub.add_argument("--batch", type=int, default=BATCH, help="target tokens of an update (default 256 x 4096)")
    sub.add_argument("--updates", type=int, help="of the training (default: one pass over the pairs)")
    _add_hardware(sub)
    source = sub.add_mutually_exclusive_group()
    source.add_argument("--measured", metavar="FILE", help="times of a machine (default: as in results/scaling.json)")
    source.add_argument("--measure", metavar="FILE", help="measure them here, on a CPU, and write them")
    sub.add_argument("--check", action="store_true", help="set predicted beside measured updates, on this CPU")
    sub.add_argument("--json", action="store_true", help="one line instead of tables; bytes, seconds")
    sub.set_defaults(passes_flags_on=True)
    sub.formatter_class = argparse.RawDescriptionHelpFormatter
    sub.usage = "deepnet scale [--arch ARCH] [--vocab SIZE] [--gpus N,N] [flags of the model and below]"
    sub.allow_abbrev = False


def _add_hardware(sub) -> None:
    sub.add_argument("--hardware", default="a100", help="v100, a100-40, a100 (80 GB), h100 (default %(default)s)")
    sub.add_argument("--efficiency", default="0.2,0.45", help="share of its peak that is reached (default %(default)s)")
    sub.add_argument("--gpu-memory", type=float, metavar="GIB", help="of a GPU")
    sub.add_argument("--gpus-per-node", type=int, metavar="N")
    sub.add_argument("--intra-bandwidth", type=float, metavar="GB/S", help="a GPU sends inside of a node")
    sub.add_argument("--inter-bandwidth", type=float, metavar="GB/S", help="a GPU sends to other nodes")
    sub.add_argument("--network-share", type=float, metavar="SHARE", help="of these that collectives reach (0.75)")
    sub.add_argument("--storage-bandwidth", type=float, metavar="GB/S", help="of the shared file system (10)")
    sub.add_argument("--mtbf", type=float, metavar="HOURS", help="GPU-hours for a failure (50000)")
    sub.add_argument("--restart", type=float, metavar="MINUTES", help="from a failure to the next update (10)")
    sub.add_argument("--num-workers", type=int, default=1, help="processes that load, a GPU (default %(default)s)")
