"""The numbers of Figure 6 of DeepNet: ten methods at ten depths on IWSLT-14 De-En, 8,000 updates."""

from ... import paper
from ..table import BLEU, DEEPNET, Metric, Table, by_depth

TABLE = Table(
    name="iwslt14",
    folders=("iwslt14",),
    script="scripts/iwslt14_de_en.sh",
    title="IWSLT-14 German-English after 8,000 updates: methods by depth",
    paper=DEEPNET,
    place="Figure 6",
    metric=Metric("BLEU, tokenised", kind="tokenised"),
    columns=BLEU,
    rows=by_depth(paper.FIGURE6, paper.FIGURE6_LAYERS),
    grid=True,
    baseline="pre_ln",
    figure=6,
    notes=(f"The paper's numbers are read off its figure, {paper.ERROR[6]}; its ReZero is trained in fp32.",),
)
