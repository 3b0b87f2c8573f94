"""Architecture names: depth x width -> the numbers they stand for."""

from __future__ import annotations

from dataclasses import dataclass

MODEL_NAME = "deepnet_transformer"
EQUAL_DEPTHS = (6, 10, 12, 18, 20, 24, 30, 36, 40, 48, 50, 60, 70, 80, 90, 100, 200, 250, 500)
UNEQUAL_DEPTHS = ((12, 6), (18, 6), (24, 12), (36, 12), (48, 12), (60, 12), (12, 60))
DEFAULT_DEPTH = (6, 6)


@dataclass(frozen=True)
class Width:
    """Residual width, feed-forward width, attention heads."""

    embed_dim: int
    ffn_embed_dim: int
    attention_heads: int


WIDTHS = {
    "base": Width(512, 2048, 8),
    "tiny": Width(64, 128, 2),
    "medium": Width(768, 3072, 12),
    "large": Width(1024, 4096, 16),
}


def _presets() -> dict[str, dict[str, int]]:
    presets = {}
    for width_name, width in WIDTHS.items():
        stem = MODEL_NAME if width_name == "base" else f"{MODEL_NAME}_{width_name}"
        depths = {stem: DEFAULT_DEPTH}
        for N, M in [(N, N) for N in EQUAL_DEPTHS] + list(UNEQUAL_DEPTHS):
            depths[f"{stem}_{N}_{M}"] = (N, M)
        for name, (N, M) in depths.items():
            presets[name] = {"encoder_layers": N, "decoder_layers": M} | {
                f"encoder_{field}": value for field, value in vars(width).items()
            }
    return presets


PRESETS = _presets()  # architecture name -> config fields it sets
FOLLOWERS = {f"decoder_{field}": f"encoder_{field}" for field in ("embed_dim", "ffn_embed_dim", "attention_heads")}


def same_width(arch: str, other: str) -> bool:
    """Do two architectures differ in depth only?"""

    def widths(name):
        return {field: value for field, value in PRESETS[name].items() if not field.endswith("_layers")}

    return widths(arch) == widths(other)


def fill(cfg) -> None:
    """Gives every field the user left open the value of the architecture `cfg` names, in place.

    cfg: argparse.Namespace of the command line, or omegaconf/dataclass config of YAML and checkpoints. The decoder's
    widths follow the encoder's, as in fairseq's `transformer`.
    """
    arch = getattr(cfg, "arch", None) or getattr(cfg, "_name", None)
    preset = PRESETS.get(arch, PRESETS[MODEL_NAME])  # an architecture somebody else registered sets what it sets
    for field, value in preset.items():
        if getattr(cfg, field, None) is None:
            setattr(cfg, field, value)
    for field, source in FOLLOWERS.items():
        if getattr(cfg, field, None) is None:
            setattr(cfg, field, getattr(cfg, source))
    if getattr(cfg, "checkpoint_every", None) is not None or getattr(cfg, "offload_activations", False):
        cfg.checkpoint_activations = True  # how to recompute is said, so that it is to be recomputed
