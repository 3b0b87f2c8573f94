"""The numbers of Figure 8 of DeepNet: DeepNorm from 12 to 1,000 layers on OPUS-100."""

from ... import paper
from ..table import DEEPNET, Column, Metric, Row, Table, model

TABLE = Table(
    name="opus100",
    folders=("opus100",),
    script="scripts/opus100.sh",
    title="OPUS-100: BLEU by depth",
    paper=DEEPNET,
    place="Figure 8",
    metric=Metric("sacreBLEU, mean over directions", kind="sacrebleu"),
    columns=(
        Column("to_english", "X-En", ("to_english",)),
        Column("from_english", "En-X", ("from_english",)),
        Column("bleu", "mean", ("bleu",)),
    ),
    rows=tuple(
        Row(model(method, layers // 2, layers // 2), {"bleu": value})
        for method, points in paper.FIGURE8.items()
        for layers, value in points.items()
    ),
    baseline="pre_ln",
    figure=8,
    notes=(f"The paper's numbers are read off its figure, {paper.ERROR[8]}; that of 1,000 layers is Table 2's.",),
)
