"""The files of fairseq-generate in a folder: one of a bilingual run, one a direction of a multilingual one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ...errors import UserError

NAME = re.compile(r"[A-Za-z]{2,3}(_[A-Za-z]+)*-[A-Za-z]{2,3}(_[A-Za-z]+)*\.txt")


@dataclass(frozen=True)
class Output:
    """subset and direction ("test", "de-en") where the file's place tells; direction None: a bilingual run's."""

    file: Path
    subset: str | None = None
    direction: str | None = None


def find_outputs(path: Path) -> list[Output]:
    """path: a file, a run's folder, or a folder of SRC-TGT.txt (subset "test") or SUBSET/SRC-TGT.txt.

    UserError for a folder that holds neither; a file is not looked for yet.
    """
    if not path.is_dir():
        return [_named(path)]
    if (path / "generated.txt").is_file():
        return [Output(path / "generated.txt")]
    if (path / "generated").is_dir():
        return find_outputs(path / "generated")
    files = sorted(file for file in [*path.glob("*.txt"), *path.glob("*/*.txt")] if NAME.fullmatch(file.name))
    if not files:
        raise UserError(
            f"{path}: has neither generated.txt nor files SRC-TGT.txt; name a run, or what fairseq-generate printed"
        )
    return [Output(file, "test" if file.parent == path else file.parent.name, file.stem) for file in files]


def is_multilingual(outputs: list[Output]) -> bool:
    """Are they of directions, each with scores of its own? A bilingual run has one output."""
    return len(outputs) > 1 or outputs[0].subset is not None


def _named(file: Path) -> Output:
    return Output(file, None, file.stem if NAME.fullmatch(file.name) else None)
