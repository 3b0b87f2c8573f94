"""Run the steps of a recipe: each once, and again if its output is not whole or anything before it has changed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Sequence
from glob import escape
from pathlib import Path

from ..files import parse_row, whole
from .lines import writing


class Steps:
    """Steps of one recipe in one folder, in a fixed order; steps done are recorded in FOLDER/steps/NAME.json."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.previous = ""  # the key of the step before

    def run(
        self, name: str, outputs: Sequence[Path], settings: dict, make: Callable[[], dict | None], keep=False
    ) -> dict:
        """Run a step, unless it is done, and return the result of make(), from now or from then.

        outputs: files, or folders with their content; make writes each whole (`files.whole`).
        settings: dependencies of the step beside the steps before it, for JSON. The step is skipped if it was done with
        these settings, after the same steps, and its outputs still have their sizes and times; otherwise the outputs
        are removed first (with `keep` make deals with them), and the later steps run again too. Raises a RuntimeError
        if make() does not make an output.
        """
        record = self.folder / "steps" / f"{name}.json"
        asked = _digest([name, settings, self.previous])
        done = read_json(record)
        if done.get("asked") == asked and done.get("outputs") == self._state(outputs):
            print(f"== {name}: done before", flush=True)
        else:
            print(f"== {name}", flush=True)
            record.unlink(missing_ok=True)
            for path in outputs:
                path.parent.mkdir(parents=True, exist_ok=True)
                if not keep:
                    remove(path)
            with writing(outputs[0] if outputs else self.folder):
                result = make() or {}
            done = {"asked": asked, "outputs": self._state(outputs), "result": result}
            if missing := [path for path, state in done["outputs"].items() if state is None]:
                raise RuntimeError(f"step {name} did not make {', '.join(missing)}")
            write_json(record, done)
        self.previous = _digest([asked, done["outputs"]])
        return done["result"]

    def _state(self, outputs: Sequence[Path]) -> dict[str, list[int] | None]:
        """Return path from the folder -> size in bytes and time of change in ns; None for a missing file."""
        files = [file for path in outputs for file in (sorted(path.rglob("*")) if path.is_dir() else [path])]
        return {os.path.relpath(file, self.folder): file_state(file) for file in files if not file.is_dir()}


def file_state(file: Path) -> list[int] | None:
    """Return size in bytes and time of change in ns, by which an unchanged file is known; None if it is missing."""
    return [file.stat().st_size, file.stat().st_mtime_ns] if file.exists() else None


def _digest(content) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def read_json(path: Path) -> dict:
    """Read a JSON object; return {} for a file that is missing or cut off."""
    return parse_row(path.read_text(encoding="utf-8", errors="replace")) if path.is_file() else {}


def write_json(path: Path, content: dict) -> None:
    """Write an object as indented JSON in UTF-8, whole or not at all; make the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole(path) as part:
        part.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def remove(path: Path) -> None:
    """Remove the file or folder `path`, and anything that an interrupted `whole(path)` left beside it."""
    unfinished = path.parent.glob(f"{escape(path.name)}.*.part") if path.parent.is_dir() else ()
    for gone in (path, *unfinished):
        if gone.is_dir() and not gone.is_symlink():
            moved = gone.with_name(f"{gone.name}.{os.getpid()}.part")
            gone.rename(moved)  # a program that has outlived its parent may still write into it
            shutil.rmtree(moved)
        else:
            gone.unlink(missing_ok=True)
