"""Part 5: 500L-500L of width 512, the deepest model of DeepNet's paper: its memory beside the plan's, and its speed."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator

from . import figure6
from .trainings import MINIATURE, Training, model_flags
from .work import PYTHON, Work

UPDATES = 10
TOKENS = 4000
PLAN = "--arch deepnet_transformer --share-all-embeddings --memory-efficient-fp16 --checkpoint-activations"


def run(work: Work) -> Iterator[dict]:
    """Make ten updates with recomputation; yields the planned memory, then memory, speed and losses."""
    own = [*shlex.split(figure6.MODEL), "--optimizer=adam", f"--max-tokens={TOKENS}"]
    layers = 2 if work.miniature else 500
    model = model_flags("deepnorm", layers)
    if work.miniature:
        model += [*shlex.split(MINIATURE), "--max-tokens=500"]

    out = work.folder / "plan.json"
    dictionary = min(work.corpus.glob("dict.*.txt"))  # both languages share it
    symbols = len(dictionary.read_text(encoding="utf-8").splitlines())
    sizes = [*plan_flags(own), *model, f"--vocab={symbols}"]
    work.run([PYTHON, "-m", "deepnet_fairseq", "plan", *shlex.split(PLAN), *sizes, "--json"], "plan", out=out)
    plan = json.loads(out.read_text())
    yield {"what": "plan", "peak_GiB": round(plan["memory"]["peak"] / 2**30, 2)}

    place = ["--cpu", "--num-workers=0"] if work.miniature else ["--memory-efficient-fp16"]
    flags = [*own, *model, *place, "--checkpoint-activations", "--warmup-updates=4000", "--log-interval=1", "--no-save"]
    training = Training(work, work.corpus, [*flags, "--disable-validation"], UPDATES, facts={"what": "training"})
    yield training.run()


def plan_flags(flags: list[str]) -> list[str]:
    """Return the flags without the schedule of the learning rate, which the plan does not take."""
    kept = []
    words = iter(flags)
    for word in words:
        if word in ("--lr-scheduler", "--warmup-init-lr", "--lr", "--weight-decay", "--clip-norm", "--adam-eps"):
            next(words)
        else:
            kept.append(word)
    return kept
