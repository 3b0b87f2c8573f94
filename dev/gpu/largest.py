"""Part 5: 500L-500L of width 512, the deepest model of DeepNet's paper: its memory beside the plan's, and its speed.

The part yields rows: dictionaries of what it measured. Its Work has its folder and time, and says whether it is a
miniature, with a tiny model on a CPU. The plan is what `deepnet plan` predicts.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator

from . import figure6
from .trainings import MINIATURE, Training, model_flags
from .work import PYTHON, Work

UPDATES = 10
TOKENS = 4000  # of a batch
# flags of `deepnet plan` beside those of the model; fairseq-train has them in COMMON and in `flags` below
PLAN = "--arch deepnet_transformer --share-all-embeddings --memory-efficient-fp16 --checkpoint-activations"


def run(work: Work) -> Iterator[dict]:
    """Make ten updates with recomputation of activations, twice; yield rows of the planned memory and of the training.

    The first training has dropout; the second, "graphs", has none and runs by CUDA graphs, which recompute activations
    only without dropout. "peak_GiB" is the memory in all rows; those of trainings have the losses and the seconds of an
    update, too.
    """
    yield from measured(work, "training", [])
    # batches get few shapes, because a graph of 1,000 layers takes memory; "auto" means no graphs on a CPU
    without_dropout = ["--dropout=0", "--cuda-graphs=auto" if work.miniature else "--cuda-graphs=4"]
    yield from measured(work, "graphs", without_dropout)


def measured(work: Work, name: str, more: list[str]) -> Iterator[dict]:
    """Yield a row of the memory that is planned for a training of ten updates, then one of the training.

    name: of the training in its row; more: its further flags, which `deepnet plan` takes too.
    """
    # adam in place of Figure 6's deepnet_adam, which keeps float32 weights and refuses --memory-efficient-fp16
    settings = [*shlex.split(figure6.MODEL), "--optimizer=adam", f"--max-tokens={TOKENS}", *more]
    layers = 2 if work.miniature else 500
    model = model_flags("deepnorm", layers)  # method and depth
    if work.miniature:
        model += [*shlex.split(MINIATURE), "--max-tokens=500"]

    out = work.folder / f"plan-{name}.json"
    dictionary = min(work.corpus.glob("dict.*.txt"))  # both languages share it
    symbols = len(dictionary.read_text(encoding="utf-8").splitlines())
    sizes = [*plan_flags(settings), *model, f"--vocab={symbols}"]
    command = [PYTHON, "-m", "deepnet_fairseq", "plan", *shlex.split(PLAN), *sizes, "--json"]
    work.run(command, f"plan-{name}", out=out)
    plan = json.loads(out.read_text())
    yield {"what": "plan", "of": name, "peak_GiB": round(plan["memory"]["peak"] / 2**30, 2)}

    place = ["--cpu", "--num-workers=0"] if work.miniature else ["--memory-efficient-fp16"]
    flags = [*settings, *model, *place, "--checkpoint-activations", "--warmup-updates=4000", "--log-interval=1"]
    flags += ["--no-save", "--disable-validation"]
    training = Training(work, work.corpus, flags, UPDATES, name=name, facts={"what": name})
    yield training.run()


def plan_flags(flags: list[str]) -> list[str]:
    """Return flags of fairseq-train without those of the optimisation that `deepnet plan` does not take."""
    kept = []
    words = iter(flags)
    for word in words:
        if word in ("--lr-scheduler", "--warmup-init-lr", "--lr", "--weight-decay", "--clip-norm", "--adam-eps"):
            next(words)  # skip the flag's value, too
        else:
            kept.append(word)
    return kept
