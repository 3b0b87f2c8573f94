"""Table 2 of DeepNet: OPUS-100, 200 and 1,000 layers beside the baselines of Zhang et al. (2020).

Its runs may be those of Figure 8, which are trained alike.
"""

from ..table import DEEPNET, Column, Metric, Row, Table, model

DIRECTIONS = ("to_english", "from_english", "bleu")


def _row(values: tuple[float, ...], parameters: str, layers: int, label: str = "") -> Row:
    facts = {} if label else model("deepnorm", layers // 2, layers // 2)
    return Row(facts, dict(zip(DIRECTIONS, values, strict=True)), label, layers, parameters)


BASELINE = "Zhang et al. 2020"

TABLE = Table(
    name="2",
    folders=("table2", "opus100"),
    script="scripts/table2_opus100.sh",
    title="OPUS-100: massively multilingual translation",
    paper=DEEPNET,
    place="Table 2",
    metric=Metric("sacreBLEU, mean over directions", kind="sacrebleu"),
    columns=(
        Column("to_english", "X→En", ("to_english",)),
        Column("from_english", "En→X", ("from_english",)),
        Column("bleu", "Avg", ("bleu",)),
    ),
    rows=(
        _row((27.5, 21.4, 24.5), "133M", 12, BASELINE),
        _row((29.5, 22.9, 26.2), "173M", 24, BASELINE),
        _row((31.4, 24.0, 27.7), "254M", 48, BASELINE),
        _row((33.2, 29.0, 31.1), "863M", 200),
        _row((33.9, 30.2, 32.1), "3.8B", 1000),
    ),
    baseline="pre_ln",
    notes=(
        "The rows of Zhang et al. are copied from their paper by DeepNet's authors: a model with merged attention and "
        "language-aware layers, with a vocabulary of 64 thousand pieces. They are not trained here.",
    ),
)
