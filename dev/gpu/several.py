"""Part 7: several GPUs of one machine, by torchrun with NCCL, beside one GPU that makes the same updates.

The part yields rows: dictionaries of what it measured. Its Work has its folder and time, and says whether it is a
miniature, with a tiny model on a CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from deepnet_fairseq import register

from . import figure6
from .resumed import kill_after_save
from .trainings import Training
from .work import Work

DEPTHS = (18, 100)  # layers of the encoder, and as many of the decoder
UPDATES, SAVE = 30, 10  # updates of a training, and from one save to the next


def run(work: Work) -> Iterator[dict]:
    """Train DeepNorm on one GPU, and on all in five ways; yield a row of each.

    The five ways are: by torch's DistributedDataParallel; by it with ZeRO; both by CUDA graphs; killed and resumed. The
    miniature, on two processes of a CPU, has ZeRO and the killed training alone.

    This is done at each depth. A row is what Training.run returns. Every training makes the same updates from the same
    batches, without dropout: one GPU computes in turn what the others compute at once (--update-freq). So the rows of
    all but the first have the "largest_difference" of their weights from those of one GPU, see weights_differ.
    """
    register()  # which lets torch read fairseq's checkpoints without running code
    processes = 2 if work.miniature else torch.cuda.device_count()
    depths = (2,) if work.miniature else DEPTHS
    for number, layers in enumerate(depths):
        one = training(work, f"one_{layers}", layers, [f"--update-freq={processes}"], processes=1)
        yield one.run()

        flags_by_name = {"ddp": [], "zero": ["--zero-sharding=os"]}
        if work.miniature:
            del flags_by_name["ddp"]  # the killed training below is one of that kind, too
        else:  # a CPU has no graphs
            flags_by_name["graphs"] = ["--cuda-graphs=16"]
            flags_by_name["zero-graphs"] = ["--zero-sharding=os", "--cuda-graphs=16"]
        for name, flags in flags_by_name.items():
            many = training(work, f"{name}_{layers}", layers, flags, processes)
            yield many.run() | {"largest_difference": weights_differ(one.checkpoint, many.checkpoint)}

        saves = [f"--save-interval-updates={SAVE}", "--keep-interval-updates=1"]
        again = training(work, f"killed_{layers}", layers, saves, processes)
        kill_after_save(again, first=SAVE)
        yield again.run() | {"largest_difference": weights_differ(one.checkpoint, again.checkpoint)}
        work.share((number + 1) / len(depths))


def training(work: Work, name: str, layers: int, flags: list[str], processes: int) -> Training:
    """Return a training of DeepNorm on so many GPUs, each with a process; torchrun starts them where they are several.

    name: KIND_LAYERS, of its folder; its row has the KIND as "what". layers: of the encoder, and as many of the
    decoder; flags: beside those of every training of this part.
    """
    # in miniature updates are fast, and the training must not end before it is killed
    updates = 60 if work.miniature else UPDATES
    words = [*figure6.flags(work, "deepnorm", layers), "--dropout=0", "--warmup-updates=100", "--disable-validation"]
    words += ["--log-interval=2", "--cuda-graphs=0"]
    kind = name.partition("_")[0]
    facts = {"what": kind, "layers": layers, "processes": processes}
    made = Training(work, work.corpus, [*words, *flags], updates, name=name, facts=facts)
    if processes > 1:
        made.by_torchrun(processes)
    return made


def weights_differ(one: Path, other: Path) -> float:
    """Return the largest difference of two checkpoints' weights, each relative to the largest weight of its tensor.

    one, other: files of checkpoints of the same model; the tensors of `one` give the scale.
    """
    weights = torch.load(one, map_location="cpu", weights_only=True)["model"]
    other_weights = torch.load(other, map_location="cpu", weights_only=True)["model"]
    largest = 0.0
    for name, weight in weights.items():
        if not weight.is_floating_point():  # a buffer of whole numbers is no weight
            continue
        difference = (weight.float() - other_weights[name].float()).abs().max()
        scale = weight.float().abs().max().clamp(min=1e-12)  # not 0 for a tensor of zeros
        largest = max(largest, float(difference / scale))
    return largest
