"""The training that is disturbed: a 2L-2L model of width 32 that saves and validates every third update."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from deepnet_fairseq.data.corpus import make_corpus, write_corpus
from deepnet_fairseq.data.prepare import prepare_text

from ..support.helpers import USER_DIR

SPLITS = {"train": 100, "valid": 10, "test": 10}
FLAGS = (
    "--user-dir", USER_DIR, "--cpu", "--arch", "deepnet_transformer", "--encoder-layers", "2", "--decoder-layers", "2",
    "--encoder-embed-dim", "32", "--encoder-ffn-embed-dim", "64", "--encoder-attention-heads", "2", "--dropout", "0.1",
    "--share-all-embeddings", "--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1",
    "--lr", "2e-3", "--lr-scheduler", "inverse_sqrt", "--warmup-updates", "10", "--warmup-init-lr", "1e-7",
    "--clip-norm", "1.0", "--max-tokens", "300", "--num-workers", "0", "--log-format", "json", "--log-interval", "1",
    "--save-interval-updates", "3", "--keep-interval-updates", "2", "--no-epoch-checkpoints",
)  # fmt: skip


@dataclass(frozen=True)
class Training:
    """What is trained on how many processes; all but the folder of its checkpoints."""

    name: str
    data: Path
    processes: int
    updates: int
    more: tuple[str, ...]

    def flags(self, folder: Path) -> list[str]:
        """What follows `fairseq-train`."""
        return [str(self.data), *FLAGS, "--max-update", str(self.updates), "--save-dir", str(folder), *self.more]


def make_data(folder: Path) -> Path:
    """A folder of binarised qaa-qab text, some 15 batches an epoch."""
    write_corpus(make_corpus(SPLITS, nouns=20, verbs=10), folder / "text")
    prefixes = {split: str(folder / "text" / split) for split in SPLITS}
    prepare_text(("qaa", "qab"), prefixes, folder / "bin", vocab=150)
    return folder / "bin"
