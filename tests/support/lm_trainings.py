"""Small trainings of language models: a text with learnable structure, flags of fairseq-train, and a training."""

from __future__ import annotations

import random
from pathlib import Path

from fairseq.data import Dictionary

from deepnet_fairseq.core import archs

from .helpers import USER_DIR
from .ranks import train
from .sentiment import write_binarised

WORDS = 40  # different words of the text
# Flags of fairseq-train for a short training of a language model, without those of task and model.
FLAGS = (
    "--user-dir", USER_DIR, "--cpu", "--optimizer", "adam", "--lr", "2e-3", "--lr-scheduler", "inverse_sqrt",
    "--warmup-updates", "10", "--warmup-init-lr", "1e-7", "--max-tokens", "400", "--num-workers", "0",
    "--log-format", "json", "--log-interval", "1", "--no-epoch-checkpoints", "--tokens-per-sample", "32",
    "--sample-break-mode", "eos", "--adam-eps", "1e-6", "--dropout", "0",
)  # fmt: skip
# Flags of task and model: two layers of width 24.
CAUSAL = (
    "--task", "language_modeling", "--arch", "deepnet_lm_tiny", "--decoder-layers", "2", "--decoder-embed-dim", "24",
    "--decoder-ffn-embed-dim", "40", "--decoder-attention-heads", "3", "--share-decoder-input-output-embed",
)  # fmt: skip
MASKED = (
    "--task", "masked_lm", "--criterion", "masked_lm", "--arch", "deepnet_masked_lm_tiny", "--encoder-layers", "2",
    "--encoder-embed-dim", "24", "--encoder-ffn-embed-dim", "40", "--encoder-attention-heads", "3",
)  # fmt: skip
KINDS = {"causal": CAUSAL, "masked": MASKED}
MODEL_NAMES = {"causal": archs.LM, "masked": archs.MASKED_LM}  # each is an architecture too, one without sizes
SENTENCES = {"train": 300, "valid": 30}  # of the text


def make_text(folder: Path) -> Path:
    """Write a binarised text of lines of 5 to 20 words, most of which can be predicted; return `folder`.

    Three quarters of the words follow from the word before: word number n is followed by number 3n + 1 (mod WORDS).
    """
    symbols = Dictionary()
    for number in range(WORDS):
        symbols.add_symbol(f"w{number}")

    draw = random.Random(0)
    for split, count in SENTENCES.items():
        lines = [_draw_line(draw) for _ in range(count)]
        write_binarised(folder / split, lines, symbols)
    return folder


def _draw_line(draw: random.Random) -> list[str]:
    """Draw the words of a line."""
    numbers = [draw.randrange(WORDS)]
    for _ in range(draw.randint(4, 19)):
        number = (3 * numbers[-1] + 1) % WORDS
        if draw.random() >= 0.75:
            number = draw.randrange(WORDS)
        numbers.append(number)
    return [f"w{number}" for number in numbers]


def train_language_model(kind: str, data: Path, folder: Path, *flags) -> Path:
    """Train a language model of one of KINDS with fairseq-train; return checkpoint_last.pt in `folder`.

    The architecture is the one without sizes. For it fairseq gives the model a copy of the config, as hydra does for
    any. The checkpoint's config then lacks the values that the model has filled in, and its readers must do without.
    """
    words = (*FLAGS, "--disable-validation", *KINDS[kind], "--arch", MODEL_NAMES[kind], *flags, "--save-dir", folder)
    train(1, folder.with_suffix(".log"), data, *words)
    return folder / "checkpoint_last.pt"
