"""Part 2: do 1,000 layers translate? Experiment C2 of results/thousand_layers, for some minutes of a GPU.

A part yields rows: dictionaries of what it measured. This one makes as many updates as fit into the time that is left.
The part's Work has its folder and time, and says whether it is a miniature, with a tiny model on a CPU.
"""

from __future__ import annotations

import gc
import shlex
import time
from collections.abc import Iterator

import torch

from benchmarks.graphs import full_batches, unique_shapes
from benchmarks.models import update
from deepnet_fairseq import register
from deepnet_fairseq.plugin.graphs.capture import CudaDevice
from deepnet_fairseq.plugin.graphs.step import GraphedStep
from deepnet_fairseq.plugin.trainer import build_trainer, parse_training_flags

from .trainings import COMMON, MINIATURE, Training, model_flags, translate
from .work import PYTHON, Work

LAYERS = 500  # of the encoder, and as many of the decoder
# learning rate at its peak, at twice which the encoder's outputs collapse (results/thousand_layers); updates of warm-up
RATE, WARMUP = 1.25e-4, 200
SECONDS = 390.0  # of the training at most, with its start and its captures
FEWEST_SECONDS = 420.0  # of the part, below which it does not begin
SHAPES = 8  # of --cuda-graphs; batches of this language become 30% larger, which costs little at this width
TOKENS = (2048, 4096, 8192)  # of a batch: the sizes to choose from
DEARER = 1.15  # an update may take so many times as long as one with 2,048 tokens
TIMED = 20  # updates whose mean time is taken
START = 20.0  # seconds of fairseq-train before its first update, without captures
AFTER = 110.0  # seconds for translations and held-out bits
# The language, its pieces, the beam and the test set are the quickstart's; width and loss are those of experiment C2
MODEL = """--encoder-embed-dim 64 --encoder-ffn-embed-dim 128 --encoder-attention-heads 2 --dropout 0.0 --clip-norm 0.0
    --optimizer deepnet_adam --disable-validation --no-save-optimizer-state --log-interval 25 --num-workers 1"""
GENERATION = "--beam 4 --lenpen 0.6 --max-len-a 1.5 --max-len-b 10 --max-tokens 24000"


def predicted(records: list[dict], longest: float) -> float:
    """Return the fewest seconds that the part needs, whatever the records and `longest` are: see parts.Predict.

    The part takes more seconds, if more are left.
    """
    return FEWEST_SECONDS


def run(work: Work) -> Iterator[dict]:
    """Time updates, train with the best size of batch for the time that is left, translate the test set; yield rows.

    There is a row for each size of batch, one of the training as Training.run returns it, one of BLEU, and one of the
    held-out bits a token: with each sentence's own source, and with another sentence's. A model that reads its source
    has fewer bits with its own.
    """
    register()
    timed = time_updates(work)
    yield from timed.values()
    tokens = 500
    updates = 12
    if not work.miniature:
        tokens, updates = choose(timed, min(SECONDS, work.seconds_left() - AFTER))

    data = work.text / "language"
    facts = {"what": "training", "tokens": tokens}
    training = Training(work, data, flags(work, tokens, updates), updates, facts=facts)
    yield training.run(share=0.8)  # 80% of the part
    if not training.checkpoint.exists():
        return  # it diverged before it saved anything

    row = translate(work, data, training.checkpoint, shlex.split(GENERATION), "test", tokenize="13a")
    yield {"what": "translations"} | row
    work.share(0.9)

    script = "results/thousand_layers/source_blind.py"
    bits = work.folder / "bits.txt"
    work.run([PYTHON, script, data, training.checkpoint], "bits", out=bits)
    own, other = bits.read_text().split()[-2:]  # it prints "CHECKPOINT OWN OTHER"
    yield {"what": "held-out bits", "own": float(own), "other_sources": float(other)}


def time_updates(work: Work) -> dict[int, dict]:
    """Return what _time_updates returns, and free the GPU's memory: the training is another process and needs it."""
    rows = _time_updates(work)
    gc.collect()  # model and captured graphs, to which nothing else refers now, may be in cycles of references
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return rows


def _time_updates(work: Work) -> dict[int, dict]:
    """Time updates with batches of several sizes in this process, each by a CUDA graph of its own.

    Returns {tokens of a batch: row}, the row with "ms", the milliseconds of an update, and "first_update_s", the
    seconds of a first update with the capture of its graph, the mean over the sizes. The smaller batches are the first
    sentences of the largest. On a CPU, which has no graphs, the updates are plain.
    """
    sizes = (100, 200, 400) if work.miniature else TOKENS
    words = [*shlex.split(COMMON), *flags(work, max(sizes), updates=1000), "--cuda-graphs=0"]
    trainer = build_trainer(parse_training_flags([str(work.text / "language"), *words]))
    padding = trainer.task.target_dictionary.pad()
    (largest,) = full_batches(trainer, max(sizes), number=1)
    batches = {}  # by tokens
    for tokens in sizes:
        sentences = len(largest["id"]) * tokens // max(sizes)
        batches[tokens] = first_sentences(largest, sentences, padding)
    if not work.miniature:
        # graphs of these shapes alone, set here as GraphedStep.plan sets those of an epoch; hence --cuda-graphs=0 above
        step = GraphedStep(len(batches), padding, CudaDevice())
        step.pending_shapes = step.epoch_shapes = unique_shapes(list(batches.values()))
        trainer.use_graphs(step)

    start = time.perf_counter()
    for batch in batches.values():
        update(trainer, batch)
    wait_for_gpu()
    first = (time.perf_counter() - start) / len(batches)

    rows = {}
    for tokens, batch in batches.items():
        start = time.perf_counter()
        for _ in range(TIMED):
            update(trainer, batch)
        wait_for_gpu()
        ms = 1000 * (time.perf_counter() - start) / TIMED
        rows[tokens] = {
            "what": "time of an update",
            "tokens": tokens,
            "sentences": len(batch["id"]),
            "ms": round(ms, 1),
            "first_update_s": round(first, 1),
        }
    return rows


def first_sentences(batch: dict, number: int, padding: int) -> dict:
    """Return the first `number` sentences of fairseq's batch as a batch of their own, with as much padding.

    padding: fairseq's number of the padding token, which "ntokens" does not count.
    """
    target = batch["target"][:number]
    return {
        "id": batch["id"][:number],
        "nsentences": number,
        "ntokens": int(target.ne(padding).sum()),
        "net_input": {name: tensor[:number] for name, tensor in batch["net_input"].items()},
        "target": target,
    }


def wait_for_gpu() -> None:
    """Wait until the GPU has done what it was given, so that a clock can be read; a CPU has nothing to wait for."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def choose(timed: dict[int, dict], seconds: float) -> tuple[int, int]:
    """Return the tokens of a batch, and the number of updates of a training that takes so many `seconds`.

    timed: as time_updates returns it. The largest batch is taken whose update takes at most DEARER times as long as
    that of the smallest. There are at least twice as many updates as those of the warm-up, even if the time is short.
    """
    smallest = timed[min(timed)]
    cheap_enough = [tokens for tokens, row in timed.items() if row["ms"] <= DEARER * smallest["ms"]]
    tokens = max(cheap_enough)
    row = timed[tokens]

    captures = SHAPES * row["first_update_s"]
    updates = int((seconds - START - captures) / (row["ms"] / 1000))
    return tokens, max(updates, 2 * WARMUP)


def flags(work: Work, tokens: int, updates: int) -> list[str]:
    """Return the flags of the training for fairseq-train, beside COMMON. tokens: of a batch; updates: of the training.

    The warm-up has WARMUP updates, but at most a quarter of all. The learning rate stays at its peak for two thirds of
    the updates after it, and then falls.
    """
    warmup = min(WARMUP, updates // 4)
    fall = (updates - warmup) // 3
    schedule = ["--lr-scheduler=tri_stage", f"--lr={RATE:g}", f"--warmup-steps={warmup}"]
    schedule += [f"--hold-steps={updates - warmup - fall}", f"--decay-steps={fall}"]
    layers = 2 if work.miniature else LAYERS
    common = [*model_flags("deepnorm", layers), *shlex.split(MODEL), *schedule, f"--max-tokens={tokens}"]
    if work.miniature:
        return [*common, *shlex.split(MINIATURE), "--cpu", "--log-interval=4", "--num-workers=0"]
    # if an update takes longer than it was timed, the training saves and ends, and its rate has not fallen to its end
    hours = (work.seconds_left() - AFTER - START) / 3600
    return [*common, "--fp16", f"--cuda-graphs={SHAPES}", f"--stop-time-hours={hours:.4f}"]
