"""Tests of architecture names: their list, their sizes, one config by every route, DeepNorm's constants.

A name is KIND[_WIDTH][_DEPTH], or one of NormFormer's, such as normformer_lm_125m. `namespace(name)` is the
config of a model, with the fields of fairseq's flags. Kinds are deepnet_transformer (a translator), deepnet_lm (a
causal language model) and deepnet_masked_lm.
"""

import argparse
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

from ..support.configs import settings_of_flags, settings_of_yaml
from ..support.single_stacks import SINGLE_STACKS as LANGUAGE_MODELS
from ..support.single_stacks import stack_of

GOLDEN = Path(__file__).parents[1] / "golden" / "archs.txt"
WIDTHS = {  # part of the name -> width, feed-forward width and heads
    "": (512, 2048, 8),
    "_tiny": (64, 128, 2),
    "_medium": (768, 3072, 12),
    "_large": (1024, 4096, 16),
}
DEPTHS_OF_LANGUAGE_MODELS = (6, 12, 18, 24, 36, 48, 50, 60, 72, 100, 200, 250, 500, 1000)


def test_the_architecture_names_are_those_of_the_golden_file():
    assert sorted(PRESETS) == GOLDEN.read_text().split()


def test_the_methods_command_lists_every_architecture(capsys):
    main(["methods", "--archs"])

    first_words = {line.partition(" ")[0] for line in capsys.readouterr().out.splitlines()}
    assert PRESETS.keys() <= first_words


def sizes_of(cfg, stack: str) -> tuple[int, ...]:
    """Return layers, width, feed-forward width and heads of a stack."""
    names = ("layers", "embed_dim", "ffn_embed_dim", "attention_heads")
    return tuple(getattr(cfg, f"{stack}_{name}") for name in names)


@pytest.mark.parametrize(
    ("arch", "encoder_layers", "decoder_layers", "width"),
    [
        ("deepnet_transformer", 6, 6, ""),
        ("deepnet_transformer_tiny_12_60", 12, 60, "_tiny"),
        ("deepnet_transformer_medium_60_12", 60, 12, "_medium"),
        ("deepnet_transformer_large_500_500", 500, 500, "_large"),
    ],
)
def test_a_translators_name_sets_its_sizes(arch, encoder_layers, decoder_layers, width):
    cfg = namespace(arch)

    assert sizes_of(cfg, "encoder") == (encoder_layers, *WIDTHS[width])
    assert sizes_of(cfg, "decoder") == (decoder_layers, *WIDTHS[width])


@pytest.mark.parametrize("depth", DEPTHS_OF_LANGUAGE_MODELS)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", LANGUAGE_MODELS)
def test_a_language_models_name_sets_its_sizes(kind, width, depth):
    cfg = namespace(f"{kind}{width}_{depth}")

    assert sizes_of(cfg, stack_of(kind)) == (depth, *WIDTHS[width])
    assert cfg.method == "deepnorm"


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", LANGUAGE_MODELS)
def test_a_language_model_has_twelve_layers_by_default(kind, width):
    cfg = namespace(f"{kind}{width}")

    assert sizes_of(cfg, stack_of(kind)) == (12, *WIDTHS[width])
    assert cfg.method == "deepnorm"


def test_fields_that_are_given_override_those_of_the_name():
    cfg = namespace("deepnet_transformer_tiny_18_18", encoder_layers=5, decoder_ffn_embed_dim=48)

    assert sizes_of(cfg, "encoder") == (5, *WIDTHS["_tiny"])
    assert sizes_of(cfg, "decoder") == (18, 64, 48, 2)


def test_a_decoder_is_as_wide_as_the_encoder_unless_told_otherwise():
    cfg = namespace("deepnet_transformer_tiny_18_18", encoder_embed_dim=32)

    assert cfg.decoder_embed_dim == 32


OWN_FIELDS = {  # of our configs, beside the options of methods and modifiers
    "method", "init_profile", "deepnet_probe", "probe_interval", "probe_dir", "checkpoint_every", "_name",
    "stop_stuck", "epoch_weights", "cuda_graphs", "new_vocabulary", *MODIFIERS,
}  # fmt: skip


def option_fields():
    """Return the fields of all options of methods and modifiers."""
    fields = set()
    for method in METHODS.values():
        fields |= {f"{method.name}_{key}" for key in method.options}
    for name, modifier in MODIFIERS.items():
        fields |= {f"{name}_{key}" for key in modifier.options}
    return fields


def test_all_other_fields_are_flags_of_fairseqs_transformer():
    parser = argparse.ArgumentParser(add_help=False)
    MODEL_REGISTRY["transformer"].add_args(parser)
    flags_of_fairseq = set()
    for action in parser._actions:
        flags_of_fairseq |= set(action.option_strings)

    other_fields = DeepTransformerConfig.__dataclass_fields__.keys() - OWN_FIELDS - option_fields()

    assert other_fields
    for field in other_fields:
        assert f"--{field.replace('_', '-')}" in flags_of_fairseq


@pytest.mark.parametrize(
    ("arch", "fields"),  # fields that give all embeddings and the output projection one matrix
    [
        ("deepnet_transformer_tiny_18_18", {"share_all_embeddings": True}),
        ("deepnet_lm_tiny_18", {"share_decoder_input_output_embed": True}),
        ("deepnet_masked_lm_tiny_18", {}),
        ("normformer_lm_125m", {"share_decoder_input_output_embed": True}),
    ],
)
def test_the_parameter_count_is_that_of_a_built_model_with_one_shared_matrix(arch, fields):
    with torch.device("meta"):
        model = build(arch, vocab=500, **fields)

    assert parameter_count(arch, vocab=500) == sum(parameter.numel() for parameter in model.parameters())


def cells_of_table(printed, place):
    """Return the rows of a printed table as lists of words, without header and rule; a blank line ends each table."""
    table = printed.strip().split("\n\n")[place]
    return [line.split() for line in table.splitlines()[2:]]


def test_the_methods_command_reports_initial_weights(capsys):
    """A row has stack, branch, role of the matrix, layers, expected std, measured std, their ratio, largest bias."""
    main(["methods", "--weights", "deepnet_transformer_tiny_18_18"])

    rows = cells_of_table(capsys.readouterr().out, place=0)
    in_encoder = 4 + 2  # matrices of self-attention and feed-forward
    in_decoder = 4 + 4 + 2
    assert len(rows) == in_encoder + in_decoder
    expected_std = {(stack, branch, role): cells[1] for stack, branch, role, *cells in rows}
    beta = (12 * 18) ** -0.25
    xavier = (2 / (64 + 64)) ** 0.5
    assert expected_std["decoder", "encoder_attn", "v"] == f"{beta * xavier:.6f}"
    for *_, ratio, largest_bias in rows:
        assert float(ratio) == pytest.approx(1, abs=0.02)
        assert float(largest_bias) == 0


@pytest.mark.parametrize(
    ("depths", "encoder", "decoder"),  # (N, M); (alpha, beta) of a stack, DeepNet's Figure 2, to six decimals
    [
        ((1, 1), (0.810000, 0.870000), (1.316074, 0.537285)),
        ((6, 6), (1.417938, 0.496989), (2.059767, 0.343295)),
        ((12, 3), (1.614732, 0.436419), (1.732051, 0.408248)),
        ((60, 12), (2.633126, 0.267629), (2.449490, 0.288675)),
        ((500, 500), (5.648240, 0.124765), (6.223330, 0.113622)),
    ],
)
def test_deepnorm_has_its_published_constants(depths, encoder, decoder):
    """Alpha and beta are 0.81 (N^4 M)^(1/16) and 0.87 (N^4 M)^(-1/16) in the encoder.

    The decoder's are (3M)^(1/4) and (12M)^(-1/4).
    """
    method = DeepNorm(*depths)

    assert tuple(method.coefficients("encoder").values()) == pytest.approx(encoder, abs=6e-7)
    assert tuple(method.coefficients("decoder").values()) == pytest.approx(decoder, abs=6e-7)


def test_the_methods_command_prints_deepnorms_constants(capsys):
    main(["methods", "deepnorm", "--layers", "60,12"])

    rows = cells_of_table(capsys.readouterr().out, place=-1)
    assert rows == [
        ["encoder", "alpha", "2.633126"],
        ["encoder", "beta", "0.267629"],
        ["decoder", "alpha", "2.449490"],
        ["decoder", "beta", "0.288675"],
    ]


def test_a_causal_model_has_relu_and_untied_matrices_by_default():
    cfg = namespace(archs.LM)

    assert cfg.activation_fn == "relu"
    assert cfg.share_decoder_input_output_embed is False


def test_a_masked_model_has_gelu_and_a_tied_head_by_default():
    cfg = namespace(archs.MASKED_LM)

    assert cfg.activation_fn == "gelu"
    assert cfg.untie_weights_roberta is False


@pytest.mark.parametrize("field", ["encoder_learned_pos", "layernorm_embedding", "no_scale_embedding"])
def test_normformers_masked_model_embeds_as_roberta_and_others_do_not(field):
    assert getattr(namespace("normformer_masked_lm_base"), field) is True
    assert getattr(namespace(archs.MASKED_LM), field) is False


def test_normformers_masked_model_is_of_base_size():
    cfg = namespace("normformer_masked_lm_base")

    assert sizes_of(cfg, "encoder") == (12, *WIDTHS["_medium"])
    assert cfg.method == "normformer"


TASKS = {archs.MODEL_NAME: "translation", archs.LM: "language_modeling", archs.MASKED_LM: "masked_lm"}
SET_BY_FAIRSEQS_TASKS = {"model.max_source_positions", "model.max_target_positions"}  # on the command line alone


def write_yaml(path, task, fields):
    """Write a config for fairseq-hydra-train with this task and these fields of the model."""
    lines = "".join(f"  {key}: {value}\n" for key, value in fields.items())
    path.write_text(f"# @package _group_\ntask:\n  _name: {task}\n  data: x\nmodel:\n{lines}")


@pytest.mark.parametrize(
    ("arch", "flags", "fields", "method"),  # the same settings as flags and in YAML
    [
        ("deepnet_transformer_tiny_12_6", ("--method", "pre_ln", "--encoder-normalize-before"),
         {"method": "pre_ln", "encoder_normalize_before": "true"}, "pre_ln"),
        ("deepnet_lm_tiny_24", (), {}, "deepnorm"),
        ("normformer_lm_125m", ("--decoder-layers", "3", "--normformer-scale-residual"),
         {"decoder_layers": 3, "normformer_scale_residual": "true"}, "normformer"),
    ],
)  # fmt: skip
def test_flags_and_yaml_give_one_config(arch, flags, fields, method, tmp_path):
    task = TASKS[archs.MODELS[arch]]
    write_yaml(tmp_path / "own.yaml", task, {"_name": arch} | fields)

    from_yaml = settings_of_yaml("own", tmp_path)
    from_flags = settings_of_flags(["fairseq-train", "--task", task, "--arch", arch, *flags], data="x")

    assert from_flags["model.method"] == method
    for key, value in from_flags.items():
        if key.startswith("model.") and key not in SET_BY_FAIRSEQS_TASKS:
            assert from_yaml[key] == value, key
