"""WMT-14 of Admin: Post-LN, Pre-LN and Admin on En-De and En-Fr, with the deeper models of the paper that followed."""

from ..table import BLEU, DEPTH, DIVERGED, Metric, Paper, Row, Table, model

# corpus, encoder layers, decoder layers -> Post-LN, Pre-LN, Admin; None: not given
PUBLISHED: dict[tuple[str, int, int], tuple[float | str | None, ...]] = {
    ("wmt14_en_de", 6, 6): (27.80, 27.27, 27.90),
    ("wmt14_en_de", 12, 12): (DIVERGED, 28.26, 28.58),
    ("wmt14_en_de", 18, 18): (DIVERGED, 28.38, 29.03),
    ("wmt14_en_de", 60, 12): (DIVERGED, None, 30.1),
    ("wmt14_en_fr", 6, 6): (41.29, 40.74, 41.47),
    ("wmt14_en_fr", 12, 12): (None, None, 42.6),
    ("wmt14_en_fr", 24, 12): (None, None, 43.3),
    ("wmt14_en_fr", 48, 12): (None, None, 43.6),
    ("wmt14_en_fr", 60, 12): (DIVERGED, 43.10, 43.80),
    ("wmt14_en_fr", 36, 36): (None, None, 43.7),
    ("wmt14_en_fr", 12, 60): (None, None, 43.1),
}
METHODS = ("post_ln", "pre_ln", "admin")

TABLE = Table(
    name="admin_wmt14",
    folders=("admin_wmt14",),
    script="scripts/admin_wmt14.sh",
    title="Post-LN, Pre-LN and Admin by depth, English-German and English-French",
    paper=Paper(
        "Liu et al. 2020, Understanding the Difficulty of Training Transformers", "https://arxiv.org/abs/2004.08249"
    ),
    place="Results on WMT-14",
    metric=Metric("BLEU, tokenised", kind="tokenised"),
    columns=BLEU,
    rows=tuple(
        Row(model(method, encoder, decoder, corpus=corpus), {} if value is None else {"bleu": value})
        for rank, method in enumerate(METHODS)
        for (corpus, encoder, decoder), values in PUBLISHED.items()
        for value in [values[rank]]
    ),
    keys=(*DEPTH, "corpus"),
    grid=True,
    baseline="pre_ln",
    notes=(
        "60L-12L of En-De, and of En-Fr 12L-12L, 24L-12L, 48L-12L, 36L-36L and 12L-60L, are of Liu et al. 2020, Very "
        "Deep Transformers for Neural Machine Translation (arXiv 2008.07772), which gives 27.6 (Post-LN) and 27.7 "
        "(Admin) at 6L-6L of En-De, 41.3 and 41.5 of En-Fr.",
        "scripts/admin_wmt14.sh trains En-De alone, 60L-12L by the recipe of the other depths: that paper's own had "
        "4,000 updates of warm-up, 50 epochs and 3,584 tokens a GPU. No script trains En-Fr.",
    ),
)
