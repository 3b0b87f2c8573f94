"""The JSON of a bench as markdown: a table for each measure, with ratios to stock fairseq."""

from __future__ import annotations


def render(report: dict) -> str:
    """One line a cell: medians with smallest and largest."""
    lines = []
    for cell in report["cells"]:
        setting = " ".join(f"{name} {value}" for name, value in cell["setting"].items())
        numbers = "; ".join(
            f"{name} {row['median']:.4g} ({row['min']:.4g}-{row['max']:.4g})" for name, row in cell["summary"].items()
        )
        place = " ".join(filter(None, (cell["measure"], cell["depth"], cell["width"], setting, cell["candidate"])))
        lines.append(f"{place}: {numbers or cell['state']} {cell['reason']}".rstrip())
    return "\n".join(lines)
