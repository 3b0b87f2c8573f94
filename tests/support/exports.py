"""Calls of `deepnet export` in this process, what they print, the examples in READMEs, and the lack of CTranslate2."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

from deepnet_fairseq.cli import main

PLACE_OF_LINES = '["..."]'  # what a README's example has in place of the lines to translate


def hide_ctranslate2(monkeypatch) -> None:
    """Let CTranslate2 be not installed, as far as the package asks whether it is."""
    find = importlib.util.find_spec

    def find_all_but_ctranslate2(name: str):
        return None if name == "ctranslate2" else find(name)

    monkeypatch.setattr("importlib.util.find_spec", find_all_but_ctranslate2)


def export(*words) -> str:
    """Run `deepnet export WORDS` in this process; return its output."""
    with redirect_stdout(StringIO()) as output:
        main(["export", *map(str, words)])
    return output.getvalue()


def reported_difference(output: str) -> float:
    """Return the last difference that an export reports: the largest one of scores, in what it has written."""
    return float(re.findall(r"(?:at most|log-probabilities) (\d\S*)", output)[-1])


def python_example(folder: Path) -> str:
    """Return the Python code in the README of an export."""
    readme = (folder / "README.md").read_text(encoding="utf-8")
    return re.search(r"```python\n(.*?)```", readme, re.DOTALL).group(1)


def printed_by_example(folder: Path, lines: list[str], forbidden: tuple[str, ...] = ()) -> str:
    """Run the Python example of an export's README on `lines`, in the export's folder; return what it prints.

    forbidden: packages that the example must do without; their import fails.
    """
    code = "import sys\n"
    for name in forbidden:
        code += f"sys.modules[{name!r}] = None\n"  # Python then raises ImportError
    code += python_example(folder).replace(PLACE_OF_LINES, repr(lines))

    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
