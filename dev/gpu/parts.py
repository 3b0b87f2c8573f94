"""The list: its parts in their order, with what each needs.

A part measures something on a GPU and yields rows, dictionaries of what it measured. A record is one try of a part,
with its rows. docs/gpu_minutes.md describes the parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from . import figure6, graphs, largest, on_gpu, resumed, several, thousand_layers
from .records import CUT, of_part
from .work import Work

Run = Callable[[Work], Iterator[dict]]
# Function of all records, and of the seconds that a part may take at most; returns the seconds that the part needs,
# None if it makes no sense in so few.
Predict = Callable[[list[dict], float], float | None]


@dataclass(frozen=True)
class Part:
    """A part of the list."""

    name: str  # in the records
    number: int  # of its row in the table of docs/gpu_minutes.md; several parts may share a row
    what: str  # a description in a few words, for --list
    run: Run  # yields rows for the record, each as soon as it is known
    seconds: float | Predict  # needed on one H100; a function for a part that fits itself to the time there is
    gpus: int = 1  # fewest that it needs
    text: str = "language"  # name of the prepared text that it needs, see text.py
    # Two parts with the same word here may run side by side, if two_at_a_time found that this gives more updates a
    # second; "" for a part that runs alone.
    beside: str = ""


def cells() -> list[Part]:
    """Return the parts that train for Figure 6, a method at a depth each: those that say most in few minutes first.

    Trainings of 10 layers take the least time, those of 100 the most.
    """
    order = [(method, 10) for method in ("deepnorm", "post_ln", "pre_ln")]
    order += [(method, 50) for method in ("deepnorm", "pre_ln", "post_ln")]
    order += [(method, layers) for layers in (20, 100) for method in ("deepnorm", "post_ln", "pre_ln")]
    parts = []
    for method, layers in order:
        parts.append(
            Part(
                name=f"figure6-{method}-{layers}",
                number=4,
                what=f"Figure 6 at its size: {method} {layers}L-{layers}L",
                run=figure6.cell(method, layers),
                seconds=partial(figure6.predicted, layers),
                text="mix",
                beside="figure6" if layers <= 20 else "",  # deeper ones keep the GPU busy alone
            )
        )
    return parts


PARTS = [
    Part("equal", 1, "every method at 6L-6L: --cuda-graphs against plain against itself", graphs.equal, 180),
    Part("times", 1, "an update at 18L-18L, 100L-100L and 500L-500L beside stock fairseq", graphs.times, 120),
    Part("thousand_layers", 2, "1,000 layers translate", thousand_layers.run, thousand_layers.predicted),
    Part("tests", 3, "pytest -m gpu", on_gpu.tests, 180),
    Part("two_at_a_time", 4, "two trainings of 10L-10L side by side", graphs.two_at_a_time, 90, text="mix"),
    *cells(),
    Part("largest", 5, "500L-500L of width 512: memory beside the plan's, speed, ten losses", largest.run, 400),
    Part("killed", 6, "100L-100L in fp16, killed and resumed", resumed.killed, 200),
    Part("beam_search", 6, "beam search beside stock fairseq", resumed.beam_search, 120),
    Part(
        name="several",
        number=7,
        what="18L-18L and 100L-100L on several GPUs, with ZeRO, by CUDA graphs, killed and resumed",
        run=several.run,
        seconds=540,
        gpus=2,
    ),
]


def predicted(part: Part, records: list[dict], longest: float) -> float | None:
    """Return the seconds that a part needs; None if it makes no sense in the time that it may take.

    records: all that there are, the oldest first; longest: seconds that a part may take at most. Where Part.seconds is
    a number and the last try was cut off, more are predicted if its pace asks for more: the seconds it took over the
    share of the work that it did by then. Below a twentieth of the work, the start of the programs would hide the pace.
    """
    if callable(part.seconds):
        return part.seconds(records, longest)
    tries = of_part(records, part.name)
    if tries and tries[-1]["ended"] == CUT and tries[-1].get("share", 0) >= 0.05:
        return max(part.seconds, tries[-1]["seconds"] / tries[-1]["share"])
    return part.seconds
