"""The papers' figures from recorded runs: draw(runs, path) -> summary, a function for each.

Figures of the DeepNet paper go by their number, the others by their name. draw writes a PNG to path; the summary is
text, with what was measured beside what was read off the paper. It raises UserError, naming the run, where one lacks
what the figure needs.
"""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from ...errors import UserError
from ...files import whole
from ..runs import folder_of, name_of, runs_of, unfinished
from .by_depth import figure5, figure6, figure8
from .early import figure3, figure4
from .languages import figure10
from .losses import depth, figure7
from .normformer import normformer3, normformer4
from .small import inverted_gain

FIGURES = {3: figure3, 4: figure4, 5: figure5, 6: figure6, 7: figure7, 8: figure8}
EVERY = FIGURES | {10: figure10, "depth": depth, "normformer3": normformer3, "normformer4": normformer4}
EVERY |= {"inverted_gain": inverted_gain}
Figure = int | str  # a number of the DeepNet paper, or a name


def chosen(runs: Path, only: str | None) -> list[Figure]:
    """The figures asked for by "4,5,normformer4", or all that have a folder below `runs`.

    UserError for a figure that is none, and where there is no folder.
    """
    if not runs.is_dir():
        raise UserError(f"{runs}: no such folder; name the one that holds figure3, figure4 and so on")
    if only is not None:
        known = {str(figure): figure for figure in EVERY}
        words = [word.strip() for word in only.split(",")]
        for word in words:
            if word not in known:
                raise UserError(f"--only {word}: no such figure; choose some of {','.join(known)}")
        return [known[word] for word in words]
    found = [figure for figure in EVERY if (runs / folder_of(figure)).is_dir()]
    if not found:
        names = ", ".join(dict.fromkeys(map(folder_of, EVERY)))
        raise UserError(f"{runs}: holds none of {names}; record runs first")
    return found


def redraw(runs: Path, figure: Figure, out: Path, colours: int | None = None) -> str:
    """Writes the figure's PNG in `out` and, with the summary it returns, the text of the same name.

    colours: that the picture is reduced to, at most 256; None leaves it as it was drawn. UserError if none of its runs
    is finished, or one lacks what the figure needs.
    """
    found, left_out, path = runs_of(runs, figure), unfinished(runs, figure), out / f"{name_of(figure)}.png"
    out.mkdir(parents=True, exist_ok=True)
    text = EVERY[figure](found, path)
    if colours:  # those that occur most: lines and letters on white lose little, the file half its size or more
        with Image.open(path) as picture, whole(path) as part:
            picture.convert("RGB").quantize(colours, dither=Image.Dither.NONE).save(part, format="png", optimize=True)
    if left_out:
        text += f"\nnot finished, left out: {', '.join(left_out)}\n"
    with whole(path.with_suffix(".txt")) as part:
        part.write_text(text, encoding="utf-8")
    return text
