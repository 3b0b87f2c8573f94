"""What is measured, sizes, batches, precision, device; and who: candidates, by the flags of fairseq-train."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

import torch

from ...core import archs
from ...core.archs import WIDTHS, Width
from ...errors import UserError
from .synthetic_task import NAME, sentences


@dataclass(frozen=True)
class Shape:
    """Layers of encoder and decoder, and their width, a name of archs.WIDTHS."""

    N: int
    M: int
    width: str

    @property
    def depth(self) -> str:
        """As `--depths` has it: "18-18"."""
        return f"{self.N}-{self.M}"

    @property
    def size(self) -> Width:
        return WIDTHS[self.width]

    def flags(self) -> list[str]:
        """fairseq-train's flags for the depth and width of both stacks."""
        flags = []
        for stack, layers in (("encoder", self.N), ("decoder", self.M)):
            flags.append(f"--{stack}-layers={layers}")
            flags += [f"--{stack}-{name.replace('_', '-')}={number}" for name, number in vars(self.size).items()]
        return flags


def shapes(depths: str, widths: str) -> list[Shape]:
    """Of comma-separated lists as "6-6,18-18" and "tiny,base", the widths of a depth together; UserError."""
    for width in widths.split(","):
        if width not in WIDTHS:
            raise UserError(f"--widths {width}: no such width; there are {', '.join(WIDTHS)}")
    found = []
    for depth in depths.split(","):
        parts = depth.split("-")
        if len(parts) != 2 or not all(part.isdecimal() and int(part) for part in parts):
            raise UserError(f"--depths {depth}: no depth; give ENCODER-DECODER layers, as 18-18")
        found += [Shape(int(parts[0]), int(parts[1]), width) for width in widths.split(",")]
    return found


@dataclass(frozen=True)
class Settings:
    """What all candidates share.

    max_tokens: of a batch, as fairseq counts them; vocabulary: types of the one dictionary; lengths: a file, or None
    for some like IWSLT-14's; warmup, repeats: steps; seconds: limit for one candidate in one cell; clock: a key of
    CLOCKS; sentences: of the batches to translate.
    """

    device: str = "cpu"
    precision: str = "fp32"
    max_tokens: int = 4096
    vocabulary: int = 10_000
    dropout: float = 0.1
    lengths: str | None = None
    seed: int = 1
    warmup: int = 2
    repeats: int = 5
    seconds: float = 600
    clock: str = "wall"
    sentences: tuple[int, ...] = (1, 32)
    beams: tuple[int, ...] = (1, 5)
    checkpoint_activations: bool = False

    def check(self) -> None:
        """UserError naming the flag for the first setting that nothing can be measured with."""
        if self.device == "cuda" and not torch.cuda.is_available():
            raise UserError("--device cuda: torch sees no GPU here")
        for flag, least, values in (
            ("--repeats", 1, (self.repeats,)),
            ("--warmup", 0, (self.warmup,)),
            ("--seconds", 1, (self.seconds,)),
            ("--sentences", 1, self.sentences),
            ("--beams", 1, self.beams),
            ("--vocabulary", 100, (self.vocabulary,)),
        ):
            if min(values) < least:
                raise UserError(f"{flag} {min(values)}: must be at least {least}")
        longest = max(len(line) for side in sentences(self.vocabulary, self.lengths, self.seed) for line in side)
        if self.max_tokens < longest:
            raise UserError(f"--max-tokens {self.max_tokens}: one sentence has {longest}; give at least so many")

    @property
    def torch_device(self) -> torch.device:
        return torch.device(self.device)

    def flags(self) -> list[str]:
        """DATA and flags of fairseq-train that all candidates get; the folder is of no account."""
        return [
            ".",
            *(f"--task={NAME}", f"--bench-vocabulary={self.vocabulary}", f"--bench-seed={self.seed}"),
            *([f"--bench-lengths={self.lengths}"] if self.lengths else []),
            *("--criterion=label_smoothed_cross_entropy", "--label-smoothing=0.1", f"--dropout={self.dropout}"),
            *("--share-all-embeddings", f"--max-tokens={self.max_tokens}", f"--seed={self.seed}"),
            *("--adam-betas=(0.9, 0.98)", "--lr=5e-4", "--lr-scheduler=inverse_sqrt", "--warmup-updates=4000"),
            *("--warmup-init-lr=1e-7", "--clip-norm=1.0", "--num-workers=0", "--required-batch-size-multiple=8"),
            *(["--cpu"] if self.device == "cpu" else []),
            *([f"--{self.precision}"] if self.precision != "fp32" else []),
            *(["--checkpoint-activations"] if self.checkpoint_activations else []),
        ]


STOCK = "stock"


@dataclass(frozen=True)
class Candidate:
    """One that is measured.

    flags: of fairseq-train, that make it; unavailable: why it cannot run here, if so.
    """

    name: str
    flags: tuple[str, ...]
    unavailable: str = ""


def _ours(name: str, method: str, optimizer: str, flags: str) -> Candidate:
    if any(word.split("=")[0] in ("--arch", "-a") for word in shlex.split(flags)):
        raise UserError(f"{flags}: the benchmark is of {archs.MODEL_NAME} beside fairseq's transformer; drop --arch")
    words = (f"--arch={archs.MODEL_NAME}", f"--method={method}", f"--optimizer={optimizer}", *shlex.split(flags))
    return Candidate(name, words)


def candidates(
    names: str = "ours,stock,torchscale",
    method: str = "post_ln",
    optimizer: str = "deepnet_adam",
    ours: str = "",
    variants: tuple[str, ...] = (),
) -> list[Candidate]:
    """Those that a comma-separated list names, of ours, stock and torchscale, then our variants.

    method, optimizer and ours (flags in one string): of our model; each of variants, "NAME=FLAGS", is our model again
    with FLAGS besides. UserError for a name that is none.
    """
    known = {
        "ours": lambda: _ours("ours", method, optimizer, ours),
        STOCK: lambda: Candidate(STOCK, ("--arch=transformer", "--optimizer=adam")),
        "torchscale": lambda: _torchscale(method),
    }
    found = []
    for name in names.split(","):
        if name not in known:
            raise UserError(f"--candidates {name}: no candidate; there are {', '.join(known)}")
        found.append(known[name]())
    for variant in variants:
        name, equals, flags = variant.partition("=")
        if not equals or not name or name.startswith("-") or name in known:
            raise UserError(f'--variant {variant}: give NAME=FLAGS, a new name, as rows="--checkpoint-every 4"')
        found.append(_ours(name, method, optimizer, f"{ours} {flags}"))
    return found


def _torchscale(method: str) -> Candidate:
    flags = ("--arch=deepnet_bench_torchscale", "--optimizer=adam", *(["--deepnorm"] if method == "deepnorm" else []))
    return Candidate("torchscale", flags, register_torchscale())


def register_torchscale() -> str:
    """Makes its model known to fairseq; why that cannot be, if so."""
    try:
        from . import torchscale  # noqa: F401
    except ImportError as error:
        return f"{error}; pip install 'deepnet_fairseq[bench]'"
    return ""
