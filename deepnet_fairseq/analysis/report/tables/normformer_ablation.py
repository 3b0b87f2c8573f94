"""The ablation of NormFormer at 125M parameters: what each of its parts is worth."""

from ..table import NORMFORMER, PERPLEXITIES, Metric, Row, Table

PUBLISHED = {  # method, variant -> perplexity
    ("normformer", "scale_residual"): 15.88,
    ("normformer", "scale_residual+no_attention_norm"): 15.92,
    ("normformer", "scale_residual+no_ffn_norm"): 16.14,
    ("normformer", ""): 16.20,
    ("normformer", "scale_residual+head_scale=none"): 16.22,
    ("pre_ln", ""): 16.37,
}

TABLE = Table(
    name="normformer_ablation",
    folders=("normformer_ablation",),
    script="scripts/normformer_lm.sh",
    title="NormFormer of 125M parameters without one of its parts",
    paper=NORMFORMER,
    place="Ablation",
    metric=Metric("perplexity a token", higher_is_better=False),
    columns=PERPLEXITIES,
    rows=tuple(
        Row({"method": method, "variant": variant}, {"valid": value}) for (method, variant), value in PUBLISHED.items()
    ),
    keys=("method", "variant"),
    tuned="lr",
    notes=(
        "The variant with residual scaling, scale_residual, is the whole of NormFormer; the others lack one part: the "
        "LayerNorm behind attention, that behind the activation, residual scaling, the factors on heads.",
        "The published numbers are taken from secondary sources. The paper's runs had 470 GPU-hours (V100) each, in "
        "how many updates is not known here; the script's have as many as its models of 125M in the main table.",
    ),
)
