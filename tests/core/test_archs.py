"""Tests of architecture names: the documented list, their sizes, one config by every route, DeepNorm's constants."""

import argparse
from itertools import chain
from pathlib import Path

import pytest
import torch
from fairseq.models import MODEL_REGISTRY

from deepnet_fairseq.cli import main
from deepnet_fairseq.core import archs
from deepnet_fairseq.core.archs import PRESETS
from deepnet_fairseq.core.methods import METHODS
from deepnet_fairseq.core.methods.deepnorm import DeepNorm
from deepnet_fairseq.core.models import parameter_count
from deepnet_fairseq.core.modifiers import MODIFIERS
from deepnet_fairseq.plugin.building import build
from deepnet_fairseq.plugin.flags import DeepTransformerConfig, namespace

from ..pages.test_configs import of_flags, of_yaml
from ..support.single_stacks import KINDS, stack_of

DEEPNORM = {  # N, M: alpha_e, beta_e, alpha_d, beta_d of DeepNet's Figure 2, to six decimals
    (1, 1): (0.810000, 0.870000, 1.316074, 0.537285),
    (6, 6): (1.417938, 0.496989, 2.059767, 0.343295),
    (12, 3): (1.614732, 0.436419, 1.732051, 0.408248),
    (60, 12): (2.633126, 0.267629, 2.449490, 0.288675),
    (500, 500): (5.648240, 0.124765, 6.223330, 0.113622),
}
GOLDEN = Path(__file__).parents[1] / "golden" / "archs.txt"


def test_names(capsys):
    assert sorted(PRESETS) == GOLDEN.read_text().split()
    main(["methods", "--archs"])
    printed = capsys.readouterr().out
    assert all(f"{name} " in printed for name in PRESETS)


WIDTHS = {"": (512, 2048, 8), "_tiny": (64, 128, 2), "_medium": (768, 3072, 12), "_large": (1024, 4096, 16)}
DEPTHS = ("", 6, 12, 18, 24, 36, 48, 50, 60, 72, 100, 200, 250, 500, 1000)


def numbers(cfg, stack: str) -> tuple[int, ...]:
    names = ("layers", "embed_dim", "ffn_embed_dim", "attention_heads")
    return tuple(getattr(cfg, f"{stack}_{name}") for name in names)


@pytest.mark.parametrize(
    ("arch", "encoder", "decoder", "width"),
    [
        ("deepnet_transformer", 6, 6, ""),
        ("deepnet_transformer_tiny_12_60", 12, 60, "_tiny"),
        ("deepnet_transformer_medium_60_12", 60, 12, "_medium"),
        ("deepnet_transformer_large_500_500", 500, 500, "_large"),
    ],
)
def test_numbers_of_a_translation_model(arch, encoder, decoder, width):
    cfg = namespace(arch)
    assert numbers(cfg, "encoder") == (encoder, *WIDTHS[width]) and numbers(cfg, "decoder") == (decoder, *WIDTHS[width])


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", KINDS)
def test_numbers_of_a_language_model(kind, width):
    """Architecture names KIND[_WIDTH][_DEPTH] set width and depth; the default depth is 12 layers."""
    for depth in DEPTHS:
        cfg = namespace(f"{kind}{width}_{depth}".rstrip("_"))
        assert (*numbers(cfg, stack_of(kind)), cfg.method) == (depth or 12, *WIDTHS[width], "deepnorm")


def test_flags_override_and_the_decoder_follows_the_encoder():
    cfg = namespace("deepnet_transformer_tiny_18_18", encoder_layers=5, encoder_embed_dim=32, decoder_ffn_embed_dim=48)
    assert numbers(cfg, "encoder") == (5, 32, 128, 2) and numbers(cfg, "decoder") == (18, 32, 48, 2)


def test_flags_are_those_of_fairseqs_transformer():
    own = {"method", "init_profile", "deepnet_probe", "probe_interval", "probe_dir", "checkpoint_every", "_name"}
    own |= {"stop_stuck", "epoch_weights", "cuda_graphs", "new_vocabulary"}
    own |= {f"{method.name}_{key}" for method in METHODS.values() for key in method.options}
    own |= {*MODIFIERS, *(f"{name}_{key}" for name, modifier in MODIFIERS.items() for key in modifier.options)}
    flags = {"--" + name.replace("_", "-") for name in DeepTransformerConfig.__dataclass_fields__ if name not in own}
    parser = argparse.ArgumentParser(add_help=False)
    MODEL_REGISTRY["transformer"].add_args(parser)
    assert flags <= {flag for action in parser._actions for flag in action.option_strings}


@pytest.mark.parametrize(
    "arch", ["deepnet_transformer_tiny_18_18", "deepnet_lm_tiny_18", "deepnet_masked_lm_tiny_18", "normformer_lm_125m"]
)
def test_parameter_count(arch):
    ties = {archs.MODEL_NAME: "share_all_embeddings", archs.LM: "share_decoder_input_output_embed"}
    with torch.device("meta"):
        model = build(arch, vocab=500, **{name: True for kind, name in ties.items() if kind == archs.MODELS[arch]})
    assert parameter_count(arch, 500) == sum(parameter.numel() for parameter in model.parameters())


def test_report_of_init(capsys):
    main(["methods", "--weights", "deepnet_transformer_tiny_18_18"])
    printed = capsys.readouterr().out.split("\n\n")[0].splitlines()[2:]
    rows = {tuple(cells[:3]): cells for cells in map(str.split, printed)}
    assert len(rows) == 16 and rows["decoder", "encoder_attn", "v"][4] == f"{0.260847 / 8:.6f}"
    assert all(float(row[-2]) == pytest.approx(1, abs=0.02) and row[-1] == "0" for row in rows.values())


def test_deepnorms_published_constants(capsys):
    for depths, published in DEEPNORM.items():
        stacks = (DeepNorm(*depths).coefficients(stack).values() for stack in ("encoder", "decoder"))
        assert tuple(chain(*stacks)) == pytest.approx(published, abs=6e-7), depths
    main(["methods", "deepnorm", "--layers", "60,12"])
    table = capsys.readouterr().out.split("\n\n")[-1].splitlines()[2:]
    assert [line.split()[-1] for line in table] == ["2.633126", "0.267629", "2.449490", "0.288675"]


TASKS = {archs.MODEL_NAME: "translation", archs.LM: "language_modeling", archs.MASKED_LM: "masked_lm"}


def test_what_stands_beside_depth_and_width():
    """Other settings are fairseq's:

    ReLU and untied matrices in the causal model, GELU and a tied head in the masked one.
    """
    causal, masked, roberta = map(namespace, (archs.LM, archs.MASKED_LM, "normformer_masked_lm_base"))
    assert (causal.activation_fn, causal.share_decoder_input_output_embed) == ("relu", False)
    assert (masked.activation_fn, masked.untie_weights_roberta) == ("gelu", False)
    names = ("encoder_learned_pos", "layernorm_embedding", "no_scale_embedding")
    assert [[getattr(cfg, name) for name in names] for cfg in (masked, roberta)] == [[False] * 3, [True] * 3]
    assert numbers(roberta, "encoder") == (12, 768, 3072, 12) and roberta.method == "normformer"


@pytest.mark.parametrize(
    ("arch", "flags", "fields"),
    [
        ("deepnet_transformer_tiny_12_6", ("--method", "pre_ln", "--encoder-normalize-before"),  # implied by pre_ln
         {"method": "pre_ln", "encoder_normalize_before": "true"}),
        ("deepnet_lm_tiny_24", (), {}),
        ("normformer_lm_125m", ("--decoder-layers", "3", "--normformer-scale-residual"),
         {"decoder_layers": 3, "normformer_scale_residual": "true"}),
    ],
)  # fmt: skip
def test_flags_and_yaml_are_one_config(arch, flags, fields, tmp_path):
    task = TASKS[archs.MODELS[arch]]
    lines = "".join(f"  {key}: {value}\n" for key, value in ({"_name": arch} | fields).items())
    (tmp_path / "own.yaml").write_text(f"# @package _group_\ntask:\n  _name: {task}\n  data: x\nmodel:\n{lines}")
    from_yaml, given = of_yaml("own", tmp_path), of_flags(["", "--task", task, "--arch", arch, *flags], "x")
    of_task = {"model.max_source_positions", "model.max_target_positions"}
    own = {key for key in given if key.startswith("model.")} - of_task
    assert {key: from_yaml[key] for key in own} == {key: given[key] for key in own}
    assert given["model.method"] == (archs.PRESETS[arch] | fields)["method"]
