"""Run the steps of a recipe: each once, and again if its outputs, its settings or an earlier step have changed.

A step writes some files or folders, its outputs, and has a result, a dict. Both are recorded in a file when it is done.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Sequence
from glob import escape
from pathlib import Path

from ..files import parse_json_object, whole
from .lines import writing


class Steps:
    """Runs steps in the folder of a recipe, one after another. A step depends on all that were run before it here.

    FOLDER/steps/NAME.json records a step that is done, under three keys: "asked" is the digest of its inputs (its name,
    its settings, and the steps before it), "outputs" is path -> [bytes, time of change in ns] of the files that it
    wrote, and "result" is what its function returned.

    folder: FOLDER
    previous: digest of the inputs and outputs of the last step that was run here, and so of all steps before it; "" at
        the beginning
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.previous = ""

    def run(
        self, name: str, outputs: Sequence[Path], settings: dict, make: Callable[[], dict | None], keep=False
    ) -> dict:
        """Run a step, unless its record shows that it is done; return its result.

        It is done if its inputs (name, settings and steps before it) and its outputs (sizes and times of files) are
        those in the record. Then it is skipped, and its result is read from the record. When a step runs with other
        inputs, or writes its outputs anew, all later ones run again too, because their inputs include both.

        name: of the step, in the name of its record and on the terminal
        outputs: files, or folders with their content, that make() writes; each must appear whole, or not at all
        settings: what the step depends on besides the steps before it; JSON must be able to hold it
        make: does the work and returns the step's result, which JSON must be able to hold; None stands for {}
        keep: whether make() finds the outputs of an earlier run, to reuse them; by default they are removed first

        Raises a RuntimeError if make() does not make an output.
        """
        record = self.folder / "steps" / f"{name}.json"
        inputs = _digest([name, settings, self.previous])

        done = read_json(record)
        if done.get("asked") == inputs and done.get("outputs") == self._state(outputs):
            print(f"== {name}: done before", flush=True)
        else:
            print(f"== {name}", flush=True)
            record.unlink(missing_ok=True)  # first, so that a step that is killed from here on does not count as done
            for path in outputs:
                path.parent.mkdir(parents=True, exist_ok=True)
                if not keep:
                    remove(path)

            with writing(outputs[0] if outputs else self.folder):  # a UserError with this name if the disk is full
                result = make() or {}

            done = {"asked": inputs, "outputs": self._state(outputs), "result": result}
            missing = [path for path, state in done["outputs"].items() if state is None]
            if missing:
                raise RuntimeError(f"step {name} did not make {', '.join(missing)}")
            write_json(record, done)

        self.previous = _digest([inputs, done["outputs"]])
        return done["result"]

    def _state(self, outputs: Sequence[Path]) -> dict[str, list[int] | None]:
        """Return path, relative to the folder of the recipe -> what file_state returns, for the files in `outputs`.

        A folder among the outputs stands for all files in it, however deep.
        """
        files = []
        for path in outputs:
            if path.is_dir():
                files += [file for file in sorted(path.rglob("*")) if not file.is_dir()]
            else:
                files.append(path)
        return {os.path.relpath(file, self.folder): file_state(file) for file in files}


def file_state(file: Path) -> list[int] | None:
    """Return [bytes, time of change in ns], which stay the same if the file is not changed; None if it is missing."""
    return [file.stat().st_size, file.stat().st_mtime_ns] if file.exists() else None


def _digest(content) -> str:
    """Return the SHA-256, in hexadecimal, of a value that JSON can hold; the order of keys does not matter."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def read_json(path: Path) -> dict:
    """Return the JSON object in a file; {} if the file is missing or holds none, as one that is cut off."""
    if not path.is_file():
        return {}
    return parse_json_object(path.read_text(encoding="utf-8", errors="replace"))


def write_json(path: Path, content: dict) -> None:
    """Write `content` as indented JSON in UTF-8, whole or not at all, and make its folder if there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole(path) as part:
        part.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def remove(path: Path) -> None:
    """Remove the file or folder `path`, if there is one, and what interrupted processes left beside it.

    files.whole writes under the name NAME.PROCESS.part at first, with the number of the process, so a process that is
    killed leaves files or folders of such names.
    """
    unfinished = path.parent.glob(f"{escape(path.name)}.*.part") if path.parent.is_dir() else ()
    for leftover in (path, *unfinished):
        if leftover.is_dir() and not leftover.is_symlink():
            # It is renamed first: a program that has outlived its parent may still write into the folder by its name.
            moved = leftover.with_name(f"{leftover.name}.{os.getpid()}.part")
            leftover.rename(moved)
            shutil.rmtree(moved)
        else:
            leftover.unlink(missing_ok=True)
