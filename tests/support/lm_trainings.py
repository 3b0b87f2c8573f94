"""Small trainings of language models: a text with learnable structure, flags of fairseq-train, and a training."""

from __future__ import annotations

import random
from pathlib import Path

from fairseq.data import Dictionary

from deepnet_fairseq.core import archs

from .helpers import USER_DIR
from .ranks import train
from .sentiment import write

WORDS = 40
FLAGS = (
    "--user-dir", USER_DIR, "--cpu", "--optimizer", "adam", "--lr", "2e-3", "--lr-scheduler", "inverse_sqrt",
    "--warmup-updates", "10", "--warmup-init-lr", "1e-7", "--max-tokens", "400", "--num-workers", "0",
    "--log-format", "json", "--log-interval", "1", "--no-epoch-checkpoints", "--tokens-per-sample", "32",
    "--sample-break-mode", "eos", "--adam-eps", "1e-6", "--dropout", "0",
)  # fmt: skip
CAUSAL = (
    "--task", "language_modeling", "--arch", "deepnet_lm_tiny", "--decoder-layers", "2", "--decoder-embed-dim", "24",
    "--decoder-ffn-embed-dim", "40", "--decoder-attention-heads", "3", "--share-decoder-input-output-embed",
)  # fmt: skip
MASKED = (
    "--task", "masked_lm", "--criterion", "masked_lm", "--arch", "deepnet_masked_lm_tiny", "--encoder-layers", "2",
    "--encoder-embed-dim", "24", "--encoder-ffn-embed-dim", "40", "--encoder-attention-heads", "3",
)  # fmt: skip
KINDS = {"causal": CAUSAL, "masked": MASKED}
NAMES = {"causal": archs.LM, "masked": archs.MASKED_LM}  # of the models; architectures without sizes have them too
SENTENCES = {"train": 300, "valid": 30}


def make_text(folder: Path) -> Path:
    """Write binarised lines of 5 to 20 words, three quarters of which follow from the word before."""
    symbols = Dictionary()
    for number in range(WORDS):
        symbols.add_symbol(f"w{number}")

    draw = random.Random(0)
    for split, count in SENTENCES.items():
        lines = []
        for _ in range(count):
            lines.append([f"w{number}" for number in _draw_line(draw)])
        write(folder / split, lines, symbols)
    return folder


def _draw_line(draw: random.Random) -> list[int]:
    """Draw the numbers of a line's words."""
    line = [draw.randrange(WORDS)]
    for _ in range(draw.randint(4, 19)):
        follows = draw.random() < 0.75
        line.append((3 * line[-1] + 1) % WORDS if follows else draw.randrange(WORDS))
    return line


def train_language_model(kind: str, data: Path, folder: Path, *flags) -> Path:
    """Train with fairseq-train; return checkpoint_last.pt in the folder.

    kind: a key of KINDS. The architecture is the one with its model's name, whose config fairseq copies (and that of
    any under hydra), so the checkpoint lacks the values that the model has filled in.
    """
    words = (*FLAGS, "--disable-validation", *KINDS[kind], "--arch", NAMES[kind], *flags, "--save-dir", folder)
    train(1, folder.with_suffix(".log"), data, *words)
    return folder / "checkpoint_last.pt"
