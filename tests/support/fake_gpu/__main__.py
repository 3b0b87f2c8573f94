"""python -m tests.support.fake_gpu [--layers 18] [--width 512] [FLAGS of fairseq-train, --fp16 among them]

A table of what an update asks of a GPU: launches by phase, waits of the CPU, milliseconds by the model; ours with
deepnet_adam, fairseq's transformer with adam, torchscale's where it is installed. Then who waits for what.
"""

from __future__ import annotations

import argparse
import importlib.util

from deepnet_fairseq.text_table import render

from . import FakeGPU
from .step import TORCHSCALE, UPDATE, Shape, model, train

HEAD = ["", "forward", "backward", "clip, optimiser", "all", "waits", "ms"]


def main() -> None:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--layers", type=int, default=18)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--ours", default="--optimizer deepnet_adam", help="flags of our model alone")
    args, flags = parser.parse_known_args()
    candidates = {"ours": ("deepnet_transformer", args.ours.split())}
    candidates["fairseq"] = ("transformer", ["--optimizer", "adam"])
    if importlib.util.find_spec("torchscale"):
        candidates["torchscale"] = (TORCHSCALE, ["--optimizer", "adam"])
    gpu, rows, waits = FakeGPU(), [HEAD], []
    for name, (arch, own) in candidates.items():
        record = gpu(train, [*model(args.layers, args.width, arch), *own, *flags], Shape())
        counts = [record.launches(*phases) for phases in (["forward"], ["backward"], UPDATE, [])]
        time = 1000 * record.seconds.total()
        rows.append([name, *map(str, counts), str(record.waits.total()), f"{time:.1f}"])
        waits += [f"{name}: {count} x {wait}" for wait, count in sorted(record.waits.items())]
        waits += [f"{name}: mismatch {line}" for line in record.mismatches]
    gpu.close()
    print(render(rows), *waits, sep="\n")


if __name__ == "__main__":
    main()
