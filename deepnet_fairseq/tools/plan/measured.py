"""A model in fairseq's Trainer on made-up sentences, to measure what a plan says: its rate here, and its peak.

`deepnet plan --check` sets planned beside measured peaks. Each training runs in a process of its own, for a process's
peak does not come down again: `python -m deepnet_fairseq.tools.plan.measured FLAGS` prints it. On a GPU it is what
torch's allocator handed out at most. On a CPU it is the resident memory, less what is resident after an update of a
1L-1L model (imports, first uses). glibc keeps freed blocks that are larger than 128 KiB, once it has seen one freed,
and cuts others out of them: the default settings hold up to three times the tensors' own memory. So the process runs
with MALLOC_MMAP_THRESHOLD_=131072, which returns such blocks; `--check` shows both numbers.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import fields, replace

import torch
from fairseq.logging import metrics
from torch import Tensor

from ... import register
from ...core.models import SPECIALS
from ...errors import UserError
from ...plugin import config
from ...plugin.building import blank_task
from ...plugin.trainer import build_trainer
from ...plugin.trainer import parse as parse_training
from ...text_table import render
from ..environment import kernel_bytes
from .needs import flops, memory
from .setting import SHARDING_FLAGS, Setting, parse, recomputation

PADDING = 1  # index of fairseq's padding symbol
RUN = {"_name", "probe_dir", "checkpoint_activations", "checkpoint_every"}  # fields that the flags below say
LAYERS = 4  # of each stack, to take the rate of; a layer costs the same at any depth, the optimiser's share included
WARMUP, STEPS = 3, 5
UPDATES = 3  # Adam's moments appear in the first, so the second is the first whole one
VARIABLE, THRESHOLD = "MALLOC_MMAP_THRESHOLD_", "131072"
SIZES = (
    ("deepnet_transformer_tiny_18_18", 4000, 4096),
    ("deepnet_transformer_tiny_100_100", 4000, 2048),
    ("deepnet_transformer_6_6", 10_000, 2048),
    ("deepnet_transformer_18_18", 10_000, 2048),
)
VARIANTS = ((), ("--checkpoint-activations",), ("--checkpoint-every", "4"))


class MeasuredTraining:
    """The training of a setting, one process; `step` makes an update on batches without padding."""

    def __init__(self, setting: Setting):
        self.setting = setting
        self.folder = tempfile.TemporaryDirectory(prefix="deepnet-plan-")
        names = ("dict.xx.txt", "dict.yy.txt") if setting.objective.translates else ("dict.txt",)
        for name, size in zip(names, setting.vocab, strict=False):  # the mask is a symbol that the task adds
            blank_task(size - setting.objective.masks).source_dictionary.save(f"{self.folder.name}/{name}")
        args = parse_training(self._flags())
        for name in {field.name for field in fields(config.config_of(setting.cfg))} - RUN:
            setattr(args, name, getattr(setting.cfg, name))
        self.trainer = build_trainer(args)
        self.trainer.begin_epoch(1)
        self.batches = [self._batch(seed) for seed in range(setting.update_freq)]

    def step(self) -> None:
        """One update; half precision may spend some on finding its loss scale."""
        with metrics.aggregate("train_inner"):
            self.trainer.train_step(self.batches)

    def seconds(self) -> float:
        """Of a step, to its end on the GPU."""
        start = time.perf_counter()
        self.step()
        if self.setting.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    def close(self) -> None:
        """Removes its folder."""
        self.folder.cleanup()

    def _flags(self) -> list[str]:
        setting, objective = self.setting, self.setting.objective
        half = "" if setting.precision == "fp32" else f"--{setting.precision[-4:]} --{setting.precision}"
        words = (
            f"--no-save --disable-validation --task {objective.task} --arch {setting.cfg.arch} --lr 1e-4 "
            f"--lr-scheduler fixed --max-tokens {setting.max_tokens} --optimizer {setting.optimizer} "
            f"--criterion {setting.criterion} {recomputation(setting.checkpoint_every)} {half} "
            f"{SHARDING_FLAGS[setting.sharding]} {'--cpu' * (setting.device == 'cpu')} "
            f"{f'--loss-chunk-tokens {setting.loss_chunk_tokens}' * (setting.loss_chunk_tokens > 0)}"
        )
        return [self.folder.name, "--save-dir", self.folder.name, *objective.flags, *words.split()]

    def _batch(self, seed: int) -> dict:
        """A full sample as the task's data sets give it; ntokens counts all, masked or not."""
        setting, generator = self.setting, torch.Generator().manual_seed(seed)
        sentences = setting.max_tokens // setting.length

        def tokens(vocabulary: int) -> Tensor:
            return torch.randint(SPECIALS, vocabulary, (sentences, setting.length), generator=generator)

        net_input, target = {"src_tokens": tokens(setting.vocab[0])}, tokens(setting.vocab[1])
        if setting.objective.translates:
            net_input["prev_output_tokens"] = tokens(setting.vocab[1])
        if setting.objective.masks:  # padding where nothing is; the first places stand for those that are
            target.flatten()[setting.scored :] = PADDING
        net_input["src_lengths"] = torch.full((sentences,), setting.length)
        sample = {"net_input": net_input, "target": target, "ntokens": target.numel()}
        return sample | {"id": torch.arange(sentences), "nsentences": sentences}


def measured_rate(setting: Setting) -> float:
    """Floating-point operations a second of a training update, on one device of the setting's kind.

    The median of 5 updates through fairseq's Trainer, with the setting's widths, method, batch, precision and loss, and
    4 layers a stack. UserError without such a device.
    """
    if setting.device == "cuda" and not torch.cuda.is_available():
        raise UserError("--measure: there is no GPU here; give --flops, or plan for this CPU with --cpu")
    small = shallow(setting)
    return flops(small).step / statistics.median(_train(small, WARMUP + STEPS)[WARMUP:])


def _train(setting: Setting, updates: int) -> list[float]:
    """Seconds of each update of a training."""
    run = MeasuredTraining(setting)
    seconds = [run.seconds() for _ in range(updates)]
    run.close()
    return seconds


def shallow(setting: Setting, layers: int = LAYERS, **changes) -> Setting:
    """The same on one device, with at most so many layers a stack; changes: of its other fields."""
    values = vars(setting.cfg)
    cfg = config.namespace(**(values | {name: min(layers, values[name]) for name in setting.layer_fields}))
    return replace(setting, cfg=cfg, update_freq=1, gpus=1, sharding="none", **changes)


def cases() -> list[list[str]]:
    """Flags of `deepnet plan` for the sizes that are checked, with and without recomputation, on this machine."""
    place = [] if torch.cuda.is_available() else ["--cpu"]
    return [
        ["--arch", arch, "--vocab", str(vocab), "--max-tokens", str(tokens), "--share-all-embeddings", *variant, *place]
        for arch, vocab, tokens in SIZES
        for variant in VARIANTS
    ]


def check(flags: list[str]) -> tuple[int, int]:
    """Bytes of the plan for `flags`, and of the peak of three updates with blocks returned."""
    return memory(parse(flags)).peak, measured_peak(flags, {VARIABLE: THRESHOLD})


def check_table(flag_sets: list[list[str]]) -> str:
    """Planned and measured peaks of trainings of these flags, in MiB; measured as glibc does by itself, too."""
    rows = [["training, MiB", "planned", "measured", "planned/measured", "glibc by default"]]
    for flags in flag_sets:
        planned, measured = check(flags)
        words = " ".join(word for word in flags if word != "--share-all-embeddings")
        mib = [f"{number / 2**20:,.0f}" for number in (planned, measured, measured_peak(flags, {}))]
        rows.append([words, *mib[:2], f"{planned / measured:.3f}", mib[2]])
    return render(rows)


def measured_peak(flags: list[str], environment: dict[str, str]) -> int:
    """Peak bytes of a training with these flags of `deepnet plan`, in a fresh process with `environment` besides.

    UserError with its last line where that training fails.
    """
    surroundings = {key: value for key, value in os.environ.items() if key != VARIABLE}
    done = subprocess.run(
        [sys.executable, "-m", __name__, *flags], env=surroundings | environment, capture_output=True, text=True
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        raise UserError(f"--check: the training of {' '.join(flags)} failed: {last}")
    return json.loads(done.stdout.splitlines()[-1])["peak"]


def main(flags: list[str]) -> None:
    """Prints {"peak", "baseline"} of a training with these flags of `deepnet plan`, in bytes.

    baseline: held once an update of a model of one layer a stack has been made; peak: the most beyond it.
    """
    register()
    setting = parse(flags)
    _train(shallow(setting, 1, vocab=(100, 100), max_tokens=setting.length), 2)
    gc.collect()
    on_gpu = setting.device == "cuda"
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        baseline = torch.cuda.memory_allocated()
    else:
        ctypes.CDLL(None).malloc_trim(0)
        baseline = kernel_bytes("VmRSS")
    _train(setting, UPDATES)
    peak = torch.cuda.max_memory_allocated() if on_gpu else kernel_bytes("VmHWM")
    print(json.dumps({"peak": peak - baseline, "baseline": baseline}))


if __name__ == "__main__":
    main(sys.argv[1:])
