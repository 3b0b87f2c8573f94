"""From a folder of recorded runs to pictures and their numbers."""

from __future__ import annotations

from pathlib import Path

from ..errors import UserError
from ..whole_file import whole
from .figures import FIGURES
from .recorded_run import folder_of, runs_of, unfinished


def chosen(runs: Path, only: str | None) -> list[int]:
    """The figures asked for by "4,5", or all that have a folder below `runs`."""
    if not runs.is_dir():
        raise UserError(f"{runs}: no such folder; name the one that holds figure3, figure4 and so on")
    if only is not None:
        return [_number(word.strip()) for word in only.split(",")]
    found = [number for number in sorted(FIGURES) if (runs / folder_of(number)).is_dir()]
    if not found:
        names = ", ".join(map(folder_of, sorted(FIGURES)))
        raise UserError(f"{runs}: holds none of {names}; record runs first")
    return found


def _number(word: str) -> int:
    if not word.isdecimal() or int(word) not in FIGURES:
        raise UserError(f"--only {word}: no such figure; choose some of {','.join(map(str, sorted(FIGURES)))}")
    return int(word)


def redraw(runs: Path, number: int, out: Path) -> str:
    """Writes out/figureN.png and, with the summary it returns, out/figureN.txt."""
    recorded, left_out = runs_of(runs, number), unfinished(runs, number)
    out.mkdir(parents=True, exist_ok=True)
    text = FIGURES[number](recorded, out / f"figure{number}.png")
    if left_out:
        text += f"\nnot finished, left out: {', '.join(left_out)}\n"
    with whole(out / f"figure{number}.txt") as part:
        part.write_text(text, encoding="utf-8")
    return text
