"""Table 1 of DeepNet: ten methods at four depths on WMT-17 En-De."""

from ..table import BLEU, DEEPNET, DIVERGED, Metric, Table, by_depth

PUBLISHED = {
    "post_ln": (28.1, DIVERGED, DIVERGED, DIVERGED),
    "ds_init": (27.9, DIVERGED, DIVERGED, DIVERGED),
    "admin": (27.9, 28.8, DIVERGED, DIVERGED),
    "rezero": (26.9, DIVERGED, DIVERGED, DIVERGED),
    "r_fixup": (27.5, 28.4, 27.7, DIVERGED),
    "t_fixup": (27.5, 28.4, 27.9, DIVERGED),
    "pre_ln": (27.0, 28.1, 28.0, 27.4),
    "dlcl": (27.4, 28.2, DIVERGED, 27.5),  # as printed
    "normformer": (27.0, 28.3, 27.8, DIVERGED),
    "deepnorm": (27.8, 28.8, 29.0, 28.9),
}

TABLE = Table(
    name="1",
    folders=("table1",),
    script="scripts/table1_wmt17.sh",
    title="WMT-17 English-German: methods by depth",
    paper=DEEPNET,
    place="Table 1",
    metric=Metric("BLEU, tokenised", kind="tokenised"),
    columns=BLEU,
    rows=by_depth(PUBLISHED, (6, 18, 50, 100)),
    grid=True,
    baseline="pre_ln",
)
