"""Part 7: several GPUs of one machine, by torchrun with NCCL, beside one GPU that makes the same updates."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from deepnet_fairseq import register

from . import figure6
from .resumed import kill_after_save
from .trainings import Training
from .work import Work

DEPTHS = (18, 100)
UPDATES, SAVE = 30, 10


def run(work: Work) -> Iterator[dict]:
    """Train DeepNorm on one GPU, on all of them, on all with ZeRO, and killed and resumed; yields what each gave.

    Every training makes the same updates from the same batches, without dropout. The difference of the weights to those
    of one GPU is relative to the largest weight of each tensor.
    """
    register()  # which lets torch read fairseq's checkpoints without running code
    processes = 2 if work.miniature else torch.cuda.device_count()
    depths = (2,) if work.miniature else DEPTHS
    for number, layers in enumerate(depths):
        one = training(work, f"one_{layers}", layers, [f"--update-freq={processes}"], processes=1)
        yield one.run()

        several = {"ddp": [], "zero": ["--zero-sharding=os"]}
        if work.miniature:
            del several["ddp"]  # the killed training is one
        for name, flags in several.items():
            many = training(work, f"{name}_{layers}", layers, flags, processes)
            yield many.run() | {"largest_difference": weights_differ(one.checkpoint, many.checkpoint)}

        saves = [f"--save-interval-updates={SAVE}", "--keep-interval-updates=1"]
        again = training(work, f"killed_{layers}", layers, saves, processes)
        kill_after_save(work, again, first=SAVE)
        yield again.run() | {"largest_difference": weights_differ(one.checkpoint, again.checkpoint)}
        work.share((number + 1) / len(depths))


def training(work: Work, name: str, layers: int, flags: list[str], processes: int) -> Training:
    """Return a training of DeepNorm on so many processes, of which torchrun starts several."""
    updates = 60 if work.miniature else UPDATES  # enough to be killed in between
    words = [*figure6.flags(work, "deepnorm", layers), "--dropout=0", "--warmup-updates=100", "--disable-validation"]
    words += ["--log-interval=2", "--cuda-graphs=0"]
    facts = {"what": name.partition("_")[0], "layers": layers, "processes": processes}
    made = Training(work, work.corpus, [*words, *flags], updates, name=name, facts=facts)
    if processes > 1:
        made.by_torchrun(processes)
    return made


def weights_differ(one: Path, other: Path) -> float:
    """Return the largest difference of two checkpoints' weights, relative to the largest weight of the tensor."""
    weights = torch.load(one, map_location="cpu", weights_only=True)["model"]
    other_weights = torch.load(other, map_location="cpu", weights_only=True)["model"]
    largest = 0.0
    for name, weight in weights.items():
        if not weight.is_floating_point():
            continue
        difference = (weight.float() - other_weights[name].float()).abs().max()
        scale = weight.float().abs().max().clamp(min=1e-12)  # a tensor of zeros has none
        largest = max(largest, float(difference / scale))
    return largest
