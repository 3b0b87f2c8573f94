"""Architecture names: the promised list, their numbers, and one config by every route."""

import json
from pathlib import Path

import pytest
import torch

from deepnet_fairseq.archs import PRESETS
from deepnet_fairseq.building import build, parameter_count
from deepnet_fairseq.compat.command_line import peer_flags
from deepnet_fairseq.config import DeepTransformerConfig, namespace
from deepnet_fairseq.methods import METHODS

from .support.helpers import run

GOLDEN = Path(__file__).parent / "golden" / "archs.txt"


def test_names():
    assert sorted(PRESETS) == GOLDEN.read_text().split()


@pytest.mark.parametrize(
    ("arch", "numbers"),
    [
        ("deepnet_transformer", (6, 6, 512, 2048, 8)),
        ("deepnet_transformer_100_100", (100, 100, 512, 2048, 8)),
        ("deepnet_transformer_tiny_12_60", (12, 60, 64, 128, 2)),
        ("deepnet_transformer_medium_60_12", (60, 12, 768, 3072, 12)),
        ("deepnet_transformer_large_500_500", (500, 500, 1024, 4096, 16)),
    ],
)
def test_numbers(arch, numbers):
    cfg = namespace(arch)
    width = (cfg.encoder_embed_dim, cfg.encoder_ffn_embed_dim, cfg.encoder_attention_heads)
    assert (cfg.encoder_layers, cfg.decoder_layers, *width) == numbers
    assert (cfg.decoder_embed_dim, cfg.decoder_ffn_embed_dim, cfg.decoder_attention_heads) == width


def test_flags_override_and_the_decoder_follows_the_encoder():
    cfg = namespace("deepnet_transformer_tiny_18_18", encoder_layers=5, encoder_embed_dim=32, decoder_ffn_embed_dim=48)
    assert (cfg.encoder_layers, cfg.decoder_layers) == (5, 18)
    assert (cfg.encoder_embed_dim, cfg.decoder_embed_dim) == (32, 32)
    assert (cfg.encoder_ffn_embed_dim, cfg.decoder_ffn_embed_dim) == (128, 48)


def test_flags_are_those_of_fairseqs_transformer():
    own = {"method", "init_profile", "deepnet_probe", "probe_interval", "probe_dir", "checkpoint_every", "_name"}
    own |= {"compile_layers", "rollbacks", "rollback_lr_factor"}
    own |= {f"{method.name}_{key}" for method in METHODS.values() for key in method.options}
    flags = {"--" + name.replace("_", "-") for name in DeepTransformerConfig.__dataclass_fields__ if name not in own}
    assert flags <= peer_flags("deepnet_transformer")


def test_pre_ln_accepts_the_flags_it_implies():
    cfg = namespace(
        "deepnet_transformer", method="pre_ln", encoder_normalize_before=True, decoder_normalize_before=True
    )
    assert cfg.method == "pre_ln"


@pytest.mark.parametrize("arch", ["deepnet_transformer_tiny_18_18", "deepnet_transformer_60_12"])
def test_parameter_count(arch):
    with torch.device("meta"):
        model = build(arch, vocab=500, share_all_embeddings=True)
    assert parameter_count(arch, 500) == sum(parameter.numel() for parameter in model.parameters())


def test_parameter_count_of_the_paper():
    """100L-100L base: 100 (4 d^2 + 2 d f) + 100 (8 d^2 + 2 d f) weights = 735 M without biases, norms, embeddings."""
    weights = 100 * (4 * 512**2 + 2 * 512 * 2048) + 100 * (8 * 512**2 + 2 * 512 * 2048)
    biases_and_norms = 100 * (4 * 512 + 2048 + 512 + 4 * 512) + 100 * (8 * 512 + 2048 + 512 + 6 * 512)
    assert parameter_count("deepnet_transformer_100_100", 4) == weights + biases_and_norms + 4 * 512


def test_command_lists_them_all():
    printed = run("deepnet", "archs").stdout
    assert all(f"{name} " in printed for name in PRESETS)


def test_report_of_init(tmp_path):
    printed = json.loads(run("deepnet", "init-report", "--arch", "deepnet_transformer_tiny_18_18", "--json").stdout)
    rows = {(row["stack"], row["sublayer"], row["role"]): row for row in printed["rows"]}
    assert len(rows) == 16
    assert rows["decoder", "encoder_attn", "v"]["expected_std"] == pytest.approx([0.260847 / 8] * 2, rel=1e-4)
    assert all(row["ratio"] == pytest.approx(1, abs=0.02) and row["largest_bias"] == 0 for row in rows.values())
