"""Masked language models of NormFormer: RoBERTa's base size, Pre-LN and NormFormer."""

from ..table import NORMFORMER, PERPLEXITIES, Metric, Row, Table

PUBLISHED = {"pre_ln": 3.42, "normformer": 3.31}

TABLE = Table(
    name="normformer_mlm",
    folders=("normformer_mlm",),
    script="scripts/normformer_lm.sh",
    title="RoBERTa's base size, Pre-LN and NormFormer",
    paper=NORMFORMER,
    place="Masked language models",
    metric=Metric("perplexity a masked token", higher_is_better=False),
    columns=PERPLEXITIES,
    rows=tuple(
        Row({"method": method, "size": "base", "variant": ""}, {"valid": value}) for method, value in PUBLISHED.items()
    ),
    keys=("method", "size", "variant"),
    tuned="lr",
    notes=(
        "A row's numbers are of the learning rate lr with the lowest perplexity on valid; its other runs are listed "
        "below.",
        "The published numbers are taken from a secondary source, and the paper's batch, updates and learning rates "
        "are not known here: the script's are those of RoBERTa base in fairseq's examples. Which tokens are masked is "
        "drawn by the seed of the training; all runs of one seed are evaluated on the same.",
    ),
)
