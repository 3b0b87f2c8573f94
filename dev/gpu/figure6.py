"""Part 4: DeepNet's Figure 6 at its size, with the flags of scripts/iwslt14_de_en.sh, on text of IWSLT-14's size.

A cell is one training of the figure: a method with so many encoder layers and as many decoder layers. Each cell is a
part of the list, with the name figure6-METHOD-LAYERS. A part gets its folder, its time and its size from a Work. A row
is a dictionary of what a part measured; a record is one try of a part, with its rows.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator

from .records import CUT, rows
from .trainings import MINIATURE, Training, model_flags, translate
from .work import Work

UPDATES, WARMUP = 8000, 4000  # the paper's
FEWEST = 2000  # updates below which a training would say nothing about a method
# By layers: predicted seconds of an update on one H100 with --cuda-graphs, from 28 ms at 18L-18L and 121 at 100L-100L
# on an H200
SECONDS_AN_UPDATE = {10: 0.017, 20: 0.031, 50: 0.068, 100: 0.13}
# The flags are those of scripts/iwslt14_de_en.sh, most of them from DeepNet's Table 4
MODEL = """--encoder-embed-dim 512 --encoder-ffn-embed-dim 2048 --encoder-attention-heads 8 --max-tokens 4000
    --dropout 0.4 --weight-decay 1e-4 --clip-norm 0.0 --optimizer deepnet_adam --adam-eps 1e-8
    --lr-scheduler inverse_sqrt --warmup-init-lr 1e-7 --lr 5e-4"""
# Post-LN deeper than 10 layers may learn nothing: it ends where 3,000 updates in a row are no better than guessing
STOP_STUCK = ["--stop-stuck=3000", "--validate-interval-updates=1000", "--max-tokens-valid=8000"]
# Without these limits a model that has learnt nothing would go on to fairseq's 200 tokens
GENERATION = "--beam 5 --max-len-a 1.5 --max-len-b 10"
# By layers: tokens of a batch of fairseq-generate, for which keys and values take 40 GiB at most
GENERATION_TOKENS = {10: 48000, 20: 48000, 50: 24000, 100: 12000}
TESTS = {"test": "iwslt14", "test1": "newstest2014"}  # fairseq's name of a test set -> its collection
TRAINED = "training"  # "what" of the row of a cell's training


def flags(work: Work, method: str, layers: int) -> list[str]:
    """Return the flags of a cell for fairseq-train, but those of its length: --warmup-updates and --max-update.

    work: says whether it is a miniature, which has two layers whatever the cell.
    """
    if work.miniature:
        small = [*model_flags(method, 2), *shlex.split(MODEL), *shlex.split(MINIATURE)]
        return [*small, "--cpu", "--max-tokens=500", "--num-workers=0", "--disable-validation"]
    return [*model_flags(method, layers), *shlex.split(MODEL), "--fp16", "--cuda-graphs=auto"]


def run(work: Work, method: str, layers: int) -> Iterator[dict]:
    """Train a cell and translate both test sets; yield a row of the training, as Training.run returns it, then of BLEU.

    The row of the training also says what was planned: "of_updates", "warmup", and whether that is "shortened". A
    training that diverges or is stuck before it saves has no translations. In miniature there is one test set.
    """
    if work.miniature:
        updates = 12
        warmup = 10
        length_flags = ["--log-interval=4"]
    else:
        updates, warmup = length(layers, work.records, work.longest)
        length_flags = [*STOP_STUCK] if method == "post_ln" else ["--disable-validation"]
        length_flags.append("--log-interval=100")
    length_flags.append(f"--warmup-updates={warmup}")
    length_flags.append("--no-save-optimizer-state")  # nothing resumes from the checkpoint
    facts = {"what": TRAINED, "method": method, "layers": layers, "of_updates": updates, "warmup": warmup}
    facts["shortened"] = updates < UPDATES

    data = work.text / "mix"
    training = Training(work, data, [*flags(work, method, layers), *length_flags], updates, facts=facts)
    yield training.run(share=0.85)  # translations take the last 15% of the part
    if not training.checkpoint.exists():
        return

    search = [*shlex.split(GENERATION), f"--max-tokens={GENERATION_TOKENS[layers]}"]
    tests = list(TESTS.items())
    if work.miniature:
        tests = tests[:1]
    for subset, name in tests:
        # "none": the text is in tokens and in lower case, as IWSLT-14's is in the paper
        row = translate(work, data, training.checkpoint, search, subset, tokenize="none")
        yield {"what": "translations", "test": name, "method": method, "layers": layers} | row


def cell(method: str, layers: int) -> Callable[[Work], Iterator[dict]]:
    """Return `run` for one cell, as a function of Work alone, which is what a part has."""
    return lambda work: run(work, method, layers)


def seconds_beside_updates(layers: int) -> float:
    """Return the predicted seconds of a cell in which no update is made. They grow with the depth.

    In them programs start, CUDA graphs are captured, a checkpoint is written, and the test sets are translated.
    """
    return 60.0 + 2.0 * layers


def seconds_an_update(layers: int, records: list[dict]) -> float:
    """Return the seconds of an update at a depth: the last that a cell measured, else the predicted ones.

    Cells that ran side by side with another part, whose record has "beside", were slowed by it and do not count.
    """
    alone = [record for record in records if "beside" not in record]
    measured = [row for row in trainings_of_depth(layers, alone) if row.get("seconds_an_update")]
    return measured[-1]["seconds_an_update"] if measured else SECONDS_AN_UPDATE[layers]


def trainings_of_depth(layers: int, records: list[dict]) -> list[dict]:
    """Return the rows of trainings of all cells of a depth, the oldest first, also of those that were cut off."""
    found = []
    for record in records:
        if record.get("part", "").startswith("figure6-"):  # "": records from before the list name no part
            found += [row for row in rows([record], record["part"], TRAINED) if row["layers"] == layers]
    return found


def length(layers: int, records: list[dict], longest: float) -> tuple[int, int]:
    """Return the updates and the updates of warm-up of the cells of a depth.

    All methods of a depth are trained equally long. So the first cell decides: it takes the paper's 8,000 updates, or
    as many hundreds as fit into `longest` seconds, and the others take as many as it had. A cell that was cut off had
    too many and does not count. The warm-up is half of the updates, as in the paper. layers: the depth; records: all
    that there are, the oldest first.
    """
    finished = [row for row in trainings_of_depth(layers, records) if row["ended"] != CUT]
    if finished:
        updates = finished[0]["of_updates"]
    else:
        seconds = longest - seconds_beside_updates(layers)
        that_fit = int(seconds / seconds_an_update(layers, records))
        updates = min(UPDATES, that_fit // 100 * 100)
    return updates, round(WARMUP * updates / UPDATES)


def predicted(layers: int, records: list[dict], longest: float) -> float | None:
    """Return the seconds that a cell of a depth needs; None if so few updates would fit that it makes no sense.

    records: all that there are; longest: seconds that a part may take at most.
    """
    updates, _warmup = length(layers, records, longest)
    if updates < FEWEST:
        return None
    return seconds_beside_updates(layers) + updates * seconds_an_update(layers, records)
