"""A page of the figures drawn of miniatures: each picture with its numbers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..report.layout import BANNER

HEAD = """# Figures in miniature

> **{banner}**

What `SMOKE=1 scripts/figureN.sh` and `SMOKE=1 scripts/normformer_lm.sh` draw: narrow models, a few hundred updates,
generated text. They show that the scripts run to the end and what their output looks like. Logs, settings and
environment of each run are in [runs](runs); `scripts/render_results.sh` writes this page.
"""


@dataclass(frozen=True)
class Drawn:
    """name: of the figure's files; text: what `deepnet figures` says beside the picture."""

    name: str
    picture: Path
    text: str


def miniatures(drawn: list[Drawn], results: Path) -> str:
    """Markdown of the page, which lies in `results`."""
    parts = [HEAD.format(banner=BANNER)]
    for figure in drawn:
        heading, _, numbers = figure.text.partition("\n")
        place = figure.picture.relative_to(results).as_posix()
        parts.append(
            f"## {heading}\n\n![{heading}]({place})\n\n<details><summary>numbers</summary>\n\n"
            f"```text\n{numbers.strip()}\n```\n\n</details>\n"
        )
    return "\n".join(parts)
