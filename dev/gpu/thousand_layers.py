"""Part 2: do 1,000 layers translate? Experiment C2 of results/thousand_layers, for some minutes of a GPU."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from .graphs import measured
from .trainings import MINIATURE, Training, model_flags, translate
from .work import PYTHON, Work

LAYERS = 500
RATE, WARMUP = 2.5e-4, 200
SECONDS = 390.0  # of the training, with its start and its captures
SHAPES = 8  # of --cuda-graphs; batches of this language become 30% larger, which costs little at this width
TOKENS = (2048, 4096, 8192)
DEARER = 1.15  # a batch may take so much longer than one of 2,048 tokens
TIMED = 20  # updates
AFTER = 100.0  # seconds for held-out bits and translations
# The quickstart's language, pieces, beam and test set; width and loss of experiment C2
MODEL = """--encoder-embed-dim 64 --encoder-ffn-embed-dim 128 --encoder-attention-heads 2 --dropout 0.0 --clip-norm 0.0
    --optimizer deepnet_adam --disable-validation --no-save-optimizer-state --log-interval 25 --num-workers 1"""
GENERATION = "--beam 4 --lenpen 0.6 --max-len-a 1.5 --max-len-b 10 --max-tokens 12000"


def run(work: Work) -> Iterator[dict]:
    """Choose the batch, train for the time that there is, then yield held-out bits and BLEU.

    The bits are measured twice, with each sentence's own source and with another sentence's: a model that reads its
    source has fewer with its own.
    """
    tokens, updates = 500, 12
    if not work.miniature:
        timed = {}
        for number in TOKENS:
            row = measured("500-500", "tiny", number, updates=TIMED, vocabulary=1000)
            yield {"what": "time of an update", "tokens": number} | row
            timed[number] = row
        tokens, updates = choose(timed, min(SECONDS, work.seconds_left() - AFTER))

    data = work.text / "language"
    facts = {"what": "training", "tokens": tokens}
    training = Training(work, data, flags(work, tokens, updates), updates, facts=facts)
    yield training.run(share=0.8)

    script = "results/thousand_layers/source_blind.py"
    bits = work.folder / "bits.txt"
    work.run([PYTHON, script, data, training.checkpoint], "bits", out=bits)
    own, other = bits.read_text().split()[-2:]
    yield {"what": "held-out bits", "own": float(own), "other_sources": float(other)}
    work.share(0.9)

    row = translate(work, data, training.checkpoint, shlex.split(GENERATION), "test", tokenize="13a")
    yield {"what": "translations"} | row


def choose(timed: dict[int, dict], seconds: float) -> tuple[int, int]:
    """Return the tokens of a batch and the number of updates that fit into the seconds.

    timed: by tokens, what an update took, and the first one with its capture. The largest batch is taken whose update
    takes at most DEARER times that of the smallest.
    """
    smallest = timed[min(timed)]
    fits = [tokens for tokens, row in timed.items() if row["ms"] <= DEARER * smallest["ms"]]
    tokens = max(fits)
    row = timed[tokens]

    # of fairseq-train: programs, data and model; and captures, which are somewhat more than half of a first update
    start = 40.0 + 0.6 * SHAPES * row["first_updates_s"]
    updates = int((seconds - start) / (row["ms"] / 1000))
    return tokens, max(updates, 2 * WARMUP)


def flags(work: Work, tokens: int, updates: int) -> list[str]:
    """Return the flags of the training: a rate that is held for two thirds of what follows the warm-up, then falls."""
    warmup = min(WARMUP, updates // 4)
    fall = (updates - warmup) // 3
    schedule = ["--lr-scheduler=tri_stage", f"--lr={RATE:g}", f"--warmup-steps={warmup}"]
    schedule += [f"--hold-steps={updates - warmup - fall}", f"--decay-steps={fall}"]
    every = [*model_flags("deepnorm", 2 if work.miniature else LAYERS), *shlex.split(MODEL), *schedule]
    every.append(f"--max-tokens={tokens}")
    if work.miniature:
        return [*every, *shlex.split(MINIATURE), "--cpu", "--log-interval=4", "--num-workers=0"]
    # if an update takes longer than it was timed, the training saves and ends, and its rate has not fallen to its end
    hours = (work.seconds_left() - AFTER) / 3600
    return [*every, "--fp16", f"--cuda-graphs={SHAPES}", f"--stop-time-hours={hours:.4f}"]
