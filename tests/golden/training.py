"""Trainings of the golden checkpoints: their flags, and the losses and translations that tests compare.

Commit 45b0f76 wrote checkpoints/, after 4 updates each, and data/; the function that did so is in this file's history.
tests/plugin/test_earlier_checkpoints.py compares with expected.json what later versions make of them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from ..support import ranks
from ..support.helpers import USER_DIR, run

GOLDEN = Path(__file__).parent
DATA = GOLDEN / "data"
CHECKPOINTS = GOLDEN / "checkpoints"
COMMON = (  # a 2L-2L model of width 8, which logs the loss of each update
    "--user-dir", USER_DIR, "--cpu", "--lr", "2e-3", "--lr-scheduler", "inverse_sqrt", "--warmup-updates", "10",
    "--warmup-init-lr", "1e-7", "--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1",
    "--max-tokens", "600", "--num-workers", "0", "--log-format", "json", "--log-interval", "1",
    "--no-epoch-checkpoints", "--disable-validation", "--arch", "deepnet_transformer_tiny", "--encoder-layers", "2",
    "--decoder-layers", "2", "--encoder-embed-dim", "8", "--encoder-ffn-embed-dim", "16",
    "--encoder-attention-heads", "2", "--dropout", "0", "--adam-eps", "1e-6",
)  # fmt: skip
ADAM = ("--optimizer", "adam")
DEEPNET_ADAM = ("--optimizer", "deepnet_adam")
FP16 = ("--fp16", "--fp16-init-scale", "64")
BILINGUAL = (DATA / "pair", "--share-all-embeddings")
MULTILINGUAL_TASK = (
    DATA / "many", "--task", "translation_multi_simple_epoch", "--lang-dict", DATA / "many" / "langs.txt",
    "--encoder-langtok", "tgt", "--lang-pairs", "de-en,en-de", "--sampling-method", "temperature",
    "--sampling-temperature", "5",
)  # fmt: skip
MANY = (*MULTILINGUAL_TASK, "--share-all-embeddings")


class Kind(NamedTuple):
    """Training of a golden checkpoint: number of processes, and data and flags of fairseq-train beside COMMON."""

    processes: int
    flags: tuple


KINDS = {  # folder in checkpoints/ -> its training
    "fp32": Kind(1, (*BILINGUAL, *ADAM)),
    "fp16": Kind(1, (*BILINGUAL, *ADAM, *FP16)),
    "deepnet_adam": Kind(1, (*BILINGUAL, *DEEPNET_ADAM, *FP16)),
    "zero": Kind(2, (*BILINGUAL, *DEEPNET_ADAM, "--zero-sharding", "os")),
    "admin": Kind(1, (*BILINGUAL, *ADAM, "--method", "admin", "--admin-profile", "auto")),
    "ema": Kind(1, (*BILINGUAL, *ADAM, "--store-ema", "--ema-decay", "0.9")),
    "multilingual": Kind(1, (*MANY, *ADAM)),
    # the checkpoint was also trained with --watch-interval 2 and --compile-layers, which are gone
    "flags_that_went": Kind(1, (*BILINGUAL, *ADAM)),
    "fully_sharded": Kind(2, (*BILINGUAL, *ADAM, "--ddp-backend", "fully_sharded", "--use-sharded-state")),
}
RESUMED = 8  # updates at which a training that resumes from a golden checkpoint, of 4 updates, ends


def train(kind: str, folder: Path, updates: int) -> list[float]:
    """Train in a folder, from its checkpoint if it has one; return the loss of each update of this call.

    kind: a key of KINDS; updates: number at which the training ends.
    """
    training = KINDS[kind]
    log = folder / f"log{updates}"
    rows = ranks.train(
        training.processes, log, *training.flags, *COMMON, "--max-update", updates, "--save-dir", folder
    )  # fmt: skip
    return [float(row["loss"]) for row in rows]


def translate(kind: str, folder: Path) -> dict[str, str]:
    """Translate the test set with the last checkpoint of a folder; return by sentence "SCORE tab TRANSLATION"."""
    data = (DATA / "pair",)
    if kind == "multilingual":
        data = (*MULTILINGUAL_TASK, "-s", "de", "-t", "en")
    model = ("--path", folder / "checkpoint_last.pt", "--user-dir", USER_DIR, "--cpu")
    search = ("--beam", "2", "--max-len-b", "5", "--gen-subset", "test")

    output = run("fairseq-generate", *data, *model, *search).stdout

    hypotheses = re.findall(r"^H-(\d+)\t(.*)$", output, re.MULTILINE)
    return dict(sorted(hypotheses))
