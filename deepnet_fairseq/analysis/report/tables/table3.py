"""Table 3 of DeepNet: 102 languages, 200 layers beside M2M-100, on four collections of test sets."""

from typing import Any

from ..table import DEEPNET, Column, Metric, Row, Table, model

SETS = {"wmt": "WMT", "opus": "OPUS", "ted": "TED", "flores": "Flores"}


def _row(values: tuple[float, ...], **others: Any) -> Row:
    return Row(published=dict(zip(SETS, values, strict=True)), **others)


TABLE = Table(
    name="3",
    folders=("table3",),
    script="scripts/table3_m2m.sh",
    title="102 languages: four collections of test sets",
    paper=DEEPNET,
    place="Table 3",
    metric=Metric("BLEU, mean over directions; spBLEU for Flores"),
    columns=tuple(Column(key, name, ("sets", key, "bleu")) for key, name in SETS.items()),
    rows=(
        _row((31.9, 18.4, 18.7, 13.6), facts={}, label="M2M-100", layers=48, parameters="12B"),
        _row((33.9, 23.0, 20.1, 18.6), facts=model("deepnorm", 100, 100), parameters="3.2B"),
    ),
    notes=(
        "M2M-100's numbers on WMT, OPUS and TED are copied from its paper by DeepNet's authors, those on Flores are "
        "their scoring of its public checkpoint. It is not trained here.",
    ),
)
