"""Part 6: 100L-100L killed and resumed in fp16, and beam search beside stock fairseq.

The functions that take only a Work are parts of the list: they yield rows, dictionaries of what they measured. The Work
has the part's folder and time, and says whether it is a miniature, with a tiny model on a CPU.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator

from . import figure6
from .trainings import Training
from .work import POLL, PYTHON, PartFailed, Work, kill, last_line

UPDATES, SAVE, LOG = 60, 20, 2  # updates of the training, from save to save, and from line to line of the log
SHAPES = 4  # of batches by --cuda-graphs: few, as each of the three starts captures their graphs anew
# flags of `python -m benchmarks speed`, for a GPU and for the miniature
SEARCH = "--device cuda --precision fp16 --widths base --sentences 1,32 --repeats 3"
SMALL_SEARCH = "--device cpu --widths tiny --sentences 2 --repeats 1 --warmup 0 --vocabulary 100"
SEARCHES = {"18L-18L": "18-18", "100L-100L": "100-100"}  # "name" of a row -> value of --depths


def killed(work: Work) -> Iterator[dict]:
    """Train DeepNorm 100L-100L to the end, and again with a SIGKILL after its first save; yield a row of each.

    A row is what Training.run returns. That of the killed training also has "killed_after_update", the last update that
    was logged before; "attempts", which is 2; and the "largest_difference" of its losses from the undisturbed ones,
    which is 0 if the resumed training has the same numbers.
    """
    updates, save, log = (200, 20, 5) if work.miniature else (UPDATES, SAVE, LOG)
    flags = [*figure6.flags(work, "deepnorm", 100), "--warmup-updates=100", f"--log-interval={log}"]
    flags.append("--disable-validation")
    if not work.miniature:
        flags.append(f"--cuda-graphs={SHAPES}")

    whole = Training(work, work.corpus, [*flags, "--no-save"], updates, name="whole", facts={"what": "undisturbed"})
    undisturbed = whole.run(share=0.4)  # 40% of the part
    yield undisturbed

    saves = [f"--save-interval-updates={save}", "--keep-interval-updates=1"]
    facts = {"what": "killed and resumed"}
    training = Training(work, work.corpus, [*flags, *saves], updates, name="killed", facts=facts)
    kill_after_save(training, first=save)
    before = training.last_update()
    work.share(0.75)
    training.command.append("--no-save")  # it resumes, but writes no more checkpoints of 12 GB, which nobody would read
    resumed = training.run(share=1.0, begins_at=0.75)
    yield resumed | {
        "killed_after_update": before,
        # the log has the command of each start, behind "$ "
        "attempts": training.log.read_text(encoding="utf-8", errors="replace").count("$ "),
        "largest_difference": largest_difference(undisturbed["losses"], resumed["losses"]),
    }


def kill_after_save(training: Training, first: int) -> None:
    """Start a training, and kill it with SIGKILL once it has saved and made another update or more.

    first: the update after which it first saves. PartFailed if it ends before.
    """
    process = training.start()
    while not (training.checkpoint.exists() and training.last_update() > first):
        if process.poll() is not None:
            raise PartFailed(f"{training.name} ended before it was killed: {last_line(training.log)}")
        time.sleep(POLL)
    kill(process)


def largest_difference(one: list, other: list) -> float:
    """Return the largest difference between two trainings' losses, over the updates that both have.

    one, other: lists of [update, loss]. A resumed training may have an update twice: the last one counts.
    """
    losses_of_one = dict(one)
    losses_of_other = dict(other)
    common = losses_of_one.keys() & losses_of_other.keys()
    return max(abs(losses_of_one[update] - losses_of_other[update]) for update in common)


def beam_search(work: Work) -> Iterator[dict]:
    """Time fairseq's beam search on this package's model and on stock fairseq's; yield a row for each depth.

    A row's "table" is what `python -m benchmarks speed` prints: a list of rows, each a list of texts, the heads first.
    The miniature has models of 1L-1L under both names.
    """
    size = shlex.split(SMALL_SEARCH if work.miniature else SEARCH)
    for number, (name, depth) in enumerate(SEARCHES.items()):
        words = ["--depths", "1-1" if work.miniature else depth, "--only", "generate", "--beams", "5"]
        out = work.folder / f"search_{number}.txt"
        command = [PYTHON, "-m", "benchmarks", "speed", *words, "--candidates", "ours,stock", *size]
        work.run(command, f"search_{number}", out=out)
        yield {"what": "beam search", "name": name, "table": table_of(out.read_text(encoding="utf-8"))}
        work.share((number + 1) / len(SEARCHES))


def table_of(printed: str) -> list[list[str]]:
    """Return the cells of the table in Markdown within a text, a list for each row, the heads first."""
    rows = [line.strip("| ").split(" | ") for line in printed.splitlines() if line.startswith("|")]
    return [row for row in rows if set(row[0]) != {"-"}]  # without the line of dashes below the heads
