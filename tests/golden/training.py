"""Trainings of the golden checkpoints: their flags, and the losses and translations that tests compare.

Commit 45b0f76 wrote checkpoints/ and data/; the function that did so is in this file's history.
"""

from __future__ import annotations

import re
from pathlib import Path

from ..support import ranks
from ..support.helpers import USER_DIR, run

GOLDEN = Path(__file__).parent
DATA = GOLDEN / "data"
CHECKPOINTS = GOLDEN / "checkpoints"
COMMON = (
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
KINDS = {  # name -> processes, flags
    "fp32": (1, (*BILINGUAL, *ADAM)),
    "fp16": (1, (*BILINGUAL, *ADAM, *FP16)),
    "deepnet_adam": (1, (*BILINGUAL, *DEEPNET_ADAM, *FP16)),
    "zero": (2, (*BILINGUAL, *DEEPNET_ADAM, "--zero-sharding", "os")),
    "admin": (1, (*BILINGUAL, *ADAM, "--method", "admin", "--admin-profile", "auto")),
    "ema": (1, (*BILINGUAL, *ADAM, "--store-ema", "--ema-decay", "0.9")),
    "multilingual": (1, (*MANY, *ADAM)),
    "flags_that_went": (1, (*BILINGUAL, *ADAM)),  # --watch-interval 2 and --compile-layers of its checkpoint are gone
    "fully_sharded": (2, (*BILINGUAL, *ADAM, "--ddp-backend", "fully_sharded", "--use-sharded-state")),
}
RESUMED = 8  # updates at which a training that resumes from a golden checkpoint, of 4 updates, ends


def train(kind: str, folder: Path, updates: int) -> list[float]:
    """Train in a folder, from its checkpoint if it has one; return the loss of each update of this call."""
    world, flags = KINDS[kind]
    log = folder / f"log{updates}"
    rows = ranks.train(world, log, *flags, *COMMON, "--max-update", updates, "--save-dir", folder)
    return [float(row["loss"]) for row in rows]


def translate(kind: str, folder: Path) -> dict[str, str]:
    """Translate the test set; return the best hypothesis of each sentence, preceded by its score."""
    data = (DATA / "pair",)
    if kind == "multilingual":
        data = (*MULTILINGUAL_TASK, "-s", "de", "-t", "en")
    model = ("--path", folder / "checkpoint_last.pt", "--user-dir", USER_DIR, "--cpu")
    search = ("--beam", "2", "--max-len-b", "5", "--gen-subset", "test")

    output = run("fairseq-generate", *data, *model, *search).stdout

    hypotheses = re.findall(r"^H-(\d+)\t(.*)$", output, re.MULTILINE)
    return dict(sorted(hypotheses))
