"""The tables, each with its paper's published numbers; `deepnet report --table` finds them by name in TABLES."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import paper
from .table import DEPTH, DIVERGED, Column, Metric, Paper, Row, Table

DEEPNET = Paper("Wang et al. 2022, DeepNet: Scaling Transformers to 1,000 Layers", "https://arxiv.org/abs/2203.00555")
ADMIN = Paper(
    "Liu et al. 2020, Understanding the Difficulty of Training Transformers", "https://arxiv.org/abs/2004.08249"
)
NORMFORMER = Paper(
    "Shleifer et al. 2021, NormFormer: Improved Transformer Pretraining with Extra Normalization",
    "https://arxiv.org/abs/2110.09456",
)

TOKENISED = Metric("BLEU, tokenised", kind="tokenised")
SACREBLEU = Metric("sacreBLEU, mean over directions", kind="sacrebleu")
PERPLEXITY = Metric("perplexity a token", higher_is_better=False)
BLEU = (Column("bleu", "BLEU", ("bleu",)),)
PERPLEXITIES = tuple(Column(subset, subset, ("sets", subset, "perplexity")) for subset in ("valid", "test"))


def model(method: str, encoder_layers: int, decoder_layers: int, **facts: Any) -> dict:
    """Facts of a row: DEPTH, and further keys of run.json."""
    return {"method": method, "encoder_layers": encoder_layers, "decoder_layers": decoder_layers} | facts


def by_depth(published: Mapping[str, tuple], layers: tuple[int, ...]) -> tuple[Row, ...]:
    """Rows of a grid of N-N models. published: method -> BLEU (or DIVERGED) for each N in layers."""
    return tuple(
        Row(model(method, n, n), {"bleu": value})
        for method, values in published.items()
        for n, value in zip(layers, values, strict=True)
    )


def directions(to_english: str, from_english: str, mean: str) -> tuple[Column, ...]:
    """The columns of OPUS-100, by their heads."""
    heads = {"to_english": to_english, "from_english": from_english, "bleu": mean}
    return tuple(Column(key, head, (key,)) for key, head in heads.items())


def row(keys: tuple[str, ...], values: tuple, facts: dict, parameters: str = "", **others: Any) -> Row:
    """A row with these values under these columns. others: label and layers of a system that is not trained here."""
    return Row(facts, dict(zip(keys, values, strict=True)), parameters=parameters, **others)


def _normformer(name: str, **fields: Any) -> Table:
    """A table of scripts/normformer_lm.sh, whose runs were searched for their learning rate."""
    script = "scripts/normformer_lm.sh"
    return Table(name, (name,), script, paper=NORMFORMER, columns=PERPLEXITIES, tuned="lr", **fields)


TABLE1 = {
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
DIRECTIONS = ("to_english", "from_english", "bleu")
SETS = {"wmt": "WMT", "opus": "OPUS", "ted": "TED", "flores": "Flores"}
ZHANG = "Zhang et al. 2020"
# corpus, encoder layers, decoder layers -> Post-LN, Pre-LN, Admin; None: not given
ADMIN_WMT14: dict[tuple[str, int, int], tuple[float | str | None, ...]] = {
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
# size, parameters -> method, variant -> perplexity; of Pre-LN that of the stronger baseline
NORMFORMER_CLM: dict[tuple[str, str], dict[tuple[str, str], float | None]] = {
    ("125M", "124.5M"): {("pre_ln", ""): 21.09, ("normformer", "scale_residual"): 20.11, ("normformer", ""): None},
    ("355M", "355.0M"): {("pre_ln", ""): 14.85, ("normformer", "scale_residual"): 14.52, ("normformer", ""): 14.54},
    ("1.3B", "1313.5M"): {("pre_ln", ""): 12.21, ("normformer", ""): 11.94},
    ("2.7B", "2649.5M"): {("pre_ln", ""): 10.92, ("normformer", ""): 10.55},
}
NORMFORMER_ABLATION = {  # method, variant -> perplexity
    ("normformer", "scale_residual"): 15.88,
    ("normformer", "scale_residual+no_attention_norm"): 15.92,
    ("normformer", "scale_residual+no_ffn_norm"): 16.14,
    ("normformer", ""): 16.20,
    ("normformer", "scale_residual+head_scale=none"): 16.22,
    ("pre_ln", ""): 16.37,
}
NORMFORMER_MLM = {"pre_ln": 3.42, "normformer": 3.31}

_TABLES = (
    Table(
        name="1",
        folders=("table1",),
        script="scripts/table1_wmt17.sh",
        title="WMT-17 English-German: methods by depth",
        paper=DEEPNET,
        place="Table 1",
        metric=TOKENISED,
        columns=BLEU,
        rows=by_depth(TABLE1, (6, 18, 50, 100)),
        grid=True,
        baseline="pre_ln",
    ),
    Table(
        name="2",
        folders=("table2", "opus100"),  # the runs of Figure 8 are trained alike
        script="scripts/table2_opus100.sh",
        title="OPUS-100: massively multilingual translation",
        paper=DEEPNET,
        place="Table 2",
        metric=SACREBLEU,
        columns=directions("X→En", "En→X", "Avg"),
        rows=(
            row(DIRECTIONS, (27.5, 21.4, 24.5), {}, "133M", label=ZHANG, layers=12),
            row(DIRECTIONS, (29.5, 22.9, 26.2), {}, "173M", label=ZHANG, layers=24),
            row(DIRECTIONS, (31.4, 24.0, 27.7), {}, "254M", label=ZHANG, layers=48),
            row(DIRECTIONS, (33.2, 29.0, 31.1), model("deepnorm", 100, 100), "863M"),
            row(DIRECTIONS, (33.9, 30.2, 32.1), model("deepnorm", 500, 500), "3.8B"),
        ),
        baseline="pre_ln",
        notes=(
            "The rows of Zhang et al. are copied from their paper by DeepNet's authors: a model with merged attention "
            "and language-aware layers, with a vocabulary of 64 thousand pieces. They are not trained here.",
        ),
    ),
    Table(
        name="3",
        folders=("table3",),
        script="scripts/table3_m2m.sh",
        title="102 languages: four collections of test sets",
        paper=DEEPNET,
        place="Table 3",
        metric=Metric("BLEU, mean over directions; spBLEU for Flores"),
        columns=tuple(Column(key, name, ("sets", key, "bleu")) for key, name in SETS.items()),
        rows=(
            row(tuple(SETS), (31.9, 18.4, 18.7, 13.6), {}, "12B", label="M2M-100", layers=48),
            row(tuple(SETS), (33.9, 23.0, 20.1, 18.6), model("deepnorm", 100, 100), "3.2B"),
        ),
        notes=(
            "M2M-100's numbers on WMT, OPUS and TED are copied from its paper by DeepNet's authors, those on Flores "
            "are their scoring of its public checkpoint. It is not trained here.",
        ),
    ),
    Table(
        name="admin_wmt14",
        folders=("admin_wmt14",),
        script="scripts/admin_wmt14.sh",
        title="Post-LN, Pre-LN and Admin by depth, English-German and English-French",
        paper=ADMIN,
        place="Results on WMT-14",
        metric=TOKENISED,
        columns=BLEU,
        rows=tuple(
            Row(model(method, *depth, corpus=corpus), {} if values[rank] is None else {"bleu": values[rank]})
            for rank, method in enumerate(("post_ln", "pre_ln", "admin"))
            for (corpus, *depth), values in ADMIN_WMT14.items()
        ),
        keys=(*DEPTH, "corpus"),
        grid=True,
        baseline="pre_ln",
        notes=(
            "60L-12L of En-De, and of En-Fr 12L-12L, 24L-12L, 48L-12L, 36L-36L and 12L-60L, are of Liu et al. 2020, "
            "Very Deep Transformers for Neural Machine Translation (arXiv 2008.07772), which gives 27.6 (Post-LN) and "
            "27.7 (Admin) at 6L-6L of En-De, 41.3 and 41.5 of En-Fr.",
            "scripts/admin_wmt14.sh trains En-De alone, 60L-12L by the recipe of the other depths: that paper's own "
            "had 4,000 updates of warm-up, 50 epochs and 3,584 tokens a GPU. No script trains En-Fr.",
        ),
    ),
    Table(
        name="iwslt14",
        folders=("iwslt14",),
        script="scripts/iwslt14_de_en.sh",
        title="IWSLT-14 German-English after 8,000 updates: methods by depth",
        paper=DEEPNET,
        place="Figure 6",
        metric=TOKENISED,
        columns=BLEU,
        rows=by_depth(paper.FIGURE6, paper.FIGURE6_LAYERS),
        grid=True,
        baseline="pre_ln",
        figure=6,
        notes=(f"The paper's numbers are read off its figure, {paper.ERROR[6]}; its ReZero is trained in fp32.",),
    ),
    _normformer(
        "normformer_ablation",
        title="NormFormer of 125M parameters without one of its parts",
        place="Ablation",
        metric=PERPLEXITY,
        rows=tuple(
            Row({"method": method, "variant": variant}, {"valid": value})
            for (method, variant), value in NORMFORMER_ABLATION.items()
        ),
        keys=("method", "variant"),
        notes=(
            "The variant with residual scaling, scale_residual, is the whole of NormFormer; the others lack one part: "
            "the LayerNorm behind attention, that behind the activation, residual scaling, the factors on heads.",
            "The published numbers are taken from secondary sources. The paper's runs had 470 GPU-hours (V100) each, "
            "in how many updates is not known here; the script's have as many as its models of 125M in the main table.",
        ),
    ),
    _normformer(
        "normformer_clm",
        title="Causal language models: Pre-LN and NormFormer by size",
        place="Table 2",
        metric=PERPLEXITY,
        rows=tuple(
            Row(
                {"method": method, "size": size, "variant": variant},
                {} if value is None else {"valid": value},
                parameters=parameters,
            )
            for (size, parameters), values in NORMFORMER_CLM.items()
            for (method, variant), value in values.items()
        ),
        keys=("method", "size", "variant"),
        notes=(
            "A row's numbers are of the learning rate lr with the lowest perplexity on valid; its other runs are "
            "listed below. scale_residual: with residual scaling.",
            "The published numbers are taken from secondary sources, and those of 355M are quoted from memory; on "
            "which text they were measured is not known here, so they stand beside valid. Its training text is "
            "private.",
            "The paper gave NormFormer 2% to 6% fewer updates than the baseline, for equal GPU-hours; here both have "
            "the same number. Its baseline of 2.7B at 6e-4 diverged. 2.7B is trained with ReLU squared, both rows.",
        ),
    ),
    _normformer(
        "normformer_mlm",
        title="RoBERTa's base size, Pre-LN and NormFormer",
        place="Masked language models",
        metric=Metric("perplexity a masked token", higher_is_better=False),
        rows=tuple(
            Row({"method": method, "size": "base", "variant": ""}, {"valid": value})
            for method, value in NORMFORMER_MLM.items()
        ),
        keys=("method", "size", "variant"),
        notes=(
            "A row's numbers are of the learning rate lr with the lowest perplexity on valid; its other runs are "
            "listed below.",
            "The published numbers are taken from a secondary source, and the paper's batch, updates and learning "
            "rates are not known here: the script's are those of RoBERTa base in fairseq's examples. Which tokens are "
            "masked is drawn by the seed of the training; all runs of one seed are evaluated on the same.",
        ),
    ),
    Table(
        name="opus100",
        folders=("opus100",),
        script="scripts/opus100.sh",
        title="OPUS-100: BLEU by depth",
        paper=DEEPNET,
        place="Figure 8",
        metric=SACREBLEU,
        columns=directions("X-En", "En-X", "mean"),
        rows=tuple(
            Row(model(method, layers // 2, layers // 2), {"bleu": value})
            for method, points in paper.FIGURE8.items()
            for layers, value in points.items()
        ),
        baseline="pre_ln",
        figure=8,
        notes=(f"The paper's numbers are read off its figure, {paper.ERROR[8]}; that of 1,000 layers is Table 2's.",),
    ),
)
TABLES = {table.name: table for table in _TABLES}
