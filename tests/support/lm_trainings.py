"""Small trainings of language models: a text with learnable structure, and flags of fairseq-train."""

from __future__ import annotations

import random
from pathlib import Path

from fairseq.data import Dictionary

from .helpers import USER_DIR
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


def make_text(folder: Path) -> Path:
    """Write binarised lines of 5 to 20 words, three quarters of which follow from the word before."""
    symbols, draw = Dictionary(), random.Random(0)
    for number in range(WORDS):
        symbols.add_symbol(f"w{number}")
    for split, size in (("train", 300), ("valid", 30)):
        lines = []
        for _ in range(size):
            line = [draw.randrange(WORDS)]
            for _ in range(draw.randint(4, 19)):
                line.append((3 * line[-1] + 1) % WORDS if draw.random() < 0.75 else draw.randrange(WORDS))
            lines.append([f"w{number}" for number in line])
        write(folder / split, lines, symbols)
    return folder
