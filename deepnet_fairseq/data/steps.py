"""Run the steps of a recipe: each once, and again if its outputs, its settings or an earlier step have changed."""

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
    """Steps that one object runs one after another in the folder of a recipe; each depends on all before it.

    FOLDER/steps/NAME.json records each step that is done, under three keys: "asked" is the digest of its inputs,
    "outputs" is what Steps._state returns of them, and "result" is what its function returned.

    previous: digest of the inputs and outputs of the last step that was run here, and so of all steps before it
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.previous = ""

    def run(
        self, name: str, outputs: Sequence[Path], settings: dict, make: Callable[[], dict | None], keep=False
    ) -> dict:
        """Run a step unless its recorded inputs and outputs are unchanged; return its result.

        A step whose inputs (name, `settings` and the steps before it) and outputs (sizes and times) are those in its
        record is skipped, and its result is read from the record. When a step runs, all later ones run again too.

        name: of the step, in its record and on the terminal
        outputs: files, or folders with their content, that make() writes, each whole (`files.whole`)
        settings: what the step depends on beside the steps before it; JSON must be able to hold it
        make: does the work and returns the step's result, which JSON must be able to hold; None stands for {}
        keep: leave the outputs of an earlier run where they are, for make() to reuse; by default they are removed first

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

            with writing(outputs[0] if outputs else self.folder):
                result = make() or {}

            done = {"asked": inputs, "outputs": self._state(outputs), "result": result}
            missing = [path for path, state in done["outputs"].items() if state is None]
            if missing:
                raise RuntimeError(f"step {name} did not make {', '.join(missing)}")
            write_json(record, done)

        self.previous = _digest([inputs, done["outputs"]])
        return done["result"]

    def _state(self, outputs: Sequence[Path]) -> dict[str, list[int] | None]:
        """Return path, relative to the folder of the recipe -> file_state, for the files in `outputs`.

        A folder among the outputs stands for all files in it.
        """
        files = []
        for path in outputs:
            if path.is_dir():
                files += [file for file in sorted(path.rglob("*")) if not file.is_dir()]
            else:
                files.append(path)
        return {os.path.relpath(file, self.folder): file_state(file) for file in files}


def file_state(file: Path) -> list[int] | None:
    """Return [bytes, time of change in ns], by which an unchanged file is known; None if it is missing."""
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
    """Remove the file or folder `path`, if there is one, and anything that an interrupted `whole(path)` left beside it.

    Such leftovers are called NAME.PROCESS.part (see files.whole).
    """
    unfinished = path.parent.glob(f"{escape(path.name)}.*.part") if path.parent.is_dir() else ()
    for leftover in (path, *unfinished):
        if leftover.is_dir() and not leftover.is_symlink():
            # renamed first, because a program that has outlived its parent may still write into the folder by its name
            moved = leftover.with_name(f"{leftover.name}.{os.getpid()}.part")
            leftover.rename(moved)
            shutil.rmtree(moved)
        else:
            leftover.unlink(missing_ok=True)
