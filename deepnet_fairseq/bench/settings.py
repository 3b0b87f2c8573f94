"""What is measured, apart from by whom: sizes, batches, precision, device."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..archs import WIDTHS, Width
from ..errors import UserError
from .task import NAME, SENTENCES, sentences


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
        layers = [f"--{stack}-layers={number}" for stack, number in (("encoder", self.N), ("decoder", self.M))]
        widths = [
            f"--{stack}-{name.replace('_', '-')}={number}"
            for stack in ("encoder", "decoder")
            for name, number in vars(self.size).items()
        ]
        return layers + widths


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
    CLOCKS; sentences: of the batches to translate; common: further fairseq-train flags.
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
    common: tuple[str, ...] = ()

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
        longest = max(len(line) for side in self.drawn() for line in side)
        if self.max_tokens < longest:
            raise UserError(f"--max-tokens {self.max_tokens}: one sentence has {longest}; give at least so many")

    def drawn(self) -> tuple[list, list]:
        """Lines of source and target that all candidates get, (length + 1,) each, as task.sentences makes them."""
        return sentences(SENTENCES, self.vocabulary, self.lengths, self.seed)

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
            *self.common,
        ]
