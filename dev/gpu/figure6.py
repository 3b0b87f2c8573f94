"""Part 4: DeepNet's Figure 6 at its size. The flags of scripts/iwslt14_de_en.sh, on text of IWSLT-14's size."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator

from .records import CUT, rows
from .trainings import MINIATURE, Training, model_flags, translate
from .work import Work

UPDATES, WARMUP = 8000, 4000  # the paper's
FEWEST = 2000  # updates below which a training would say nothing about a method
# Predicted seconds of an update on one H100 with --cuda-graphs, from 28 ms at 18L-18L and 121 at 100L-100L on an H200
SECONDS_AN_UPDATE = {10: 0.017, 20: 0.031, 50: 0.068, 100: 0.13}
# As scripts/iwslt14_de_en.sh has them, and DeepNet's Table 4
MODEL = """--encoder-embed-dim 512 --encoder-ffn-embed-dim 2048 --encoder-attention-heads 8 --max-tokens 4000
    --dropout 0.4 --weight-decay 1e-4 --clip-norm 0.0 --optimizer deepnet_adam --adam-eps 1e-8
    --lr-scheduler inverse_sqrt --warmup-init-lr 1e-7 --lr 5e-4"""
# Post-LN deeper than 10 layers may learn nothing: it ends where 3,000 updates in a row are no better than guessing
STOP_STUCK = ["--stop-stuck=3000", "--validate-interval-updates=1000", "--max-tokens-valid=8000"]
# A model that has learnt nothing would go on to fairseq's 200 tokens
GENERATION = "--beam 5 --max-len-a 1.5 --max-len-b 10"
GENERATION_TOKENS = {10: 48000, 20: 48000, 50: 24000, 100: 12000}  # of a batch, for keys and values of 40 GiB at most
TESTS = {"test": "iwslt14", "test1": "newstest2014"}
TRAINED = "training"


def flags(work: Work, method: str, layers: int) -> list[str]:
    """Return the flags of a cell, a method with so many encoder and decoder layers, but for its length."""
    if work.miniature:
        small = [*model_flags(method, 2), *shlex.split(MODEL), *shlex.split(MINIATURE)]
        return [*small, "--cpu", "--max-tokens=500", "--num-workers=0", "--disable-validation"]
    return [*model_flags(method, layers), *shlex.split(MODEL), "--fp16", "--cuda-graphs=auto"]


def run(work: Work, method: str, layers: int) -> Iterator[dict]:
    """Train a cell and translate both test sets; yields what fairseq-train logged, then BLEU."""
    if work.miniature:
        updates = 12
        warmup = 10
        more = ["--log-interval=4"]
    else:
        updates, warmup = length(layers, work.records, work.longest)
        more = [*STOP_STUCK] if method == "post_ln" else ["--disable-validation"]
        more.append("--log-interval=100")
    more.append(f"--warmup-updates={warmup}")
    more.append("--no-save-optimizer-state")  # nothing resumes from it
    facts = {"what": TRAINED, "method": method, "layers": layers, "of_updates": updates, "warmup": warmup}
    facts["shortened"] = updates < UPDATES

    data = work.text / "mix"
    training = Training(work, data, [*flags(work, method, layers), *more], updates, facts=facts)
    result = training.run(share=0.85)
    yield result
    if not training.checkpoint.exists():
        return  # it diverged or was stuck before it saved anything
    search = [*shlex.split(GENERATION), f"--max-tokens={GENERATION_TOKENS[layers]}"]
    tests = list(TESTS.items())
    for subset, name in tests[:1] if work.miniature else tests:
        # the text is in tokens and in lower case, as IWSLT-14's is in the paper
        row = translate(work, data, training.checkpoint, search, subset, tokenize="none")
        yield {"what": "translations", "test": name, "method": method, "layers": layers} | row


def cell(method: str, layers: int) -> Callable[[Work], Iterator[dict]]:
    """Return the function of the part that trains a cell."""
    return lambda work: run(work, method, layers)


def beside(layers: int) -> float:
    """Return the predicted seconds beside the updates: programs, captures, a checkpoint, translations."""
    return 60.0 + 2.0 * layers


def seconds_an_update(layers: int, records: list[dict]) -> float:
    """Return the seconds of an update at a depth: measured by an earlier cell that ran alone, else predicted."""
    alone = [record for record in records if "beside" not in record]
    known = [row for row in trained(layers, alone) if row.get("seconds_an_update")]
    return known[-1]["seconds_an_update"] if known else SECONDS_AN_UPDATE[layers]


def trained(layers: int, records: list[dict]) -> list[dict]:
    """Return the rows of the cells of a depth that were trained, whole or cut off."""
    found = []
    for record in records:
        if str(record.get("part", "")).startswith("figure6-"):
            found += [row for row in rows([record], record["part"], TRAINED) if row["layers"] == layers]
    return found


def length(layers: int, records: list[dict], longest: float) -> tuple[int, int]:
    """Return updates and warm-up of the cells of a depth.

    They are the paper's where a cell fits into `longest` seconds. Else both are shortened in proportion, to the same
    length for all methods of the depth: that of the first cell that was not cut off.
    """
    over = [row for row in trained(layers, records) if row["ended"] != CUT]
    if over:
        updates = over[0]["of_updates"]
    else:
        seconds = longest - beside(layers)
        that_fit = int(seconds / seconds_an_update(layers, records))
        updates = min(UPDATES, that_fit // 100 * 100)
    return updates, round(WARMUP * updates / UPDATES)


def predicted(layers: int, records: list[dict], longest: float) -> float | None:
    """Return the seconds that a cell needs; None where too few updates would fit for a training to say anything."""
    updates, _ = length(layers, records, longest)
    if updates < FEWEST:
        return None
    return beside(layers) + updates * seconds_an_update(layers, records)
