"""Architectures of the language models: the promised names, their numbers, one config by every route."""

import pytest
import torch
from fairseq import options
from fairseq.dataclass.initialize import add_defaults, hydra_init
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from deepnet_fairseq import archs
from deepnet_fairseq.building import build, parameter_count
from deepnet_fairseq.config import namespace
from deepnet_fairseq.errors import UserError

from .support.single_stacks import KINDS, small, stack_of

DEPTHS = (6, 12, 18, 24, 36, 48, 50, 60, 72, 100, 200, 250, 500, 1000)
WIDTHS = {"": (512, 2048, 8), "_tiny": (64, 128, 2), "_medium": (768, 3072, 12), "_large": (1024, 4096, 16)}
TASKS = {archs.LM: "language_modeling", archs.MASKED_LM: "masked_lm"}
FOLLOW = {"probe_dir", "tokens_per_sample", "max_target_positions", "_name", "arch"}


def numbers(cfg, kind):
    stack = stack_of(kind)
    return tuple(
        getattr(cfg, f"{stack}_{name}") for name in ("layers", "embed_dim", "ffn_embed_dim", "attention_heads")
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", WIDTHS)
def test_names_and_numbers(kind, width):
    """KIND[_WIDTH][_DEPTH]; without a depth, 12 layers."""
    for suffix, depth in [("", 12), *((f"_{depth}", depth) for depth in DEPTHS)]:
        cfg = namespace(f"{kind}{width}{suffix}")
        assert numbers(cfg, kind) == (depth, *WIDTHS[width])
        assert cfg.method == "deepnorm"


def test_no_others():
    named = {f"{kind}{width}{suffix}" for kind in KINDS for width in WIDTHS for suffix in
             ["", *(f"_{depth}" for depth in DEPTHS)]}  # fmt: skip
    named |= {f"normformer_lm_{size}" for size in ("125m", "355m", "1.3b", "2.7b")} | {"normformer_masked_lm_base"}
    assert {name for name, kind in archs.MODELS.items() if kind in KINDS} == named


@pytest.mark.parametrize("kind", KINDS)
def test_flags_override_the_architecture(kind):
    stack = stack_of(kind)
    cfg = namespace(f"{kind}_tiny_18", **{f"{stack}_embed_dim": 32, "method": "pre_ln", "activation_fn": "tanh"})
    assert numbers(cfg, kind) == (18, 32, 128, 2)
    assert (cfg.method, cfg.activation_fn) == ("pre_ln", "tanh")


def test_what_stands_beside_depth_and_width():
    """fairseq's own: ReLU and two matrices in the causal model, GELU and RoBERTa's tied head in the masked one."""
    causal, masked, roberta = map(namespace, (archs.LM, archs.MASKED_LM, "normformer_masked_lm_base"))
    assert (causal.activation_fn, causal.share_decoder_input_output_embed) == ("relu", False)
    assert (masked.activation_fn, masked.untie_weights_roberta) == ("gelu", False)
    names = ("encoder_learned_pos", "layernorm_embedding", "no_scale_embedding")
    assert [getattr(masked, name) for name in names] == [False] * 3
    assert [getattr(roberta, name) for name in names] == [True] * 3
    assert numbers(roberta, archs.MASKED_LM) == (12, 768, 3072, 12) and roberta.method == "normformer"


@pytest.mark.parametrize(
    "arch", ["deepnet_lm_tiny_18", "deepnet_masked_lm_tiny_18", "deepnet_lm_60", "normformer_lm_125m"]
)
def test_parameter_count(arch):
    tied = {"share_decoder_input_output_embed": True} if archs.MODELS[arch] == archs.LM else {}
    with torch.device("meta"):
        model = build(arch, vocab=500, **tied)
    assert parameter_count(arch, 500) == sum(parameter.numel() for parameter in model.parameters())


def test_parameter_count_by_hand():
    """1,000 layers of 64-128: 4 d^2 + 2 d f weights, 4 d + f + d biases, two LayerNorms; one embedding of 4 rows."""
    layer = 4 * 64 * 64 + 2 * 64 * 128 + 5 * 64 + 128 + 4 * 64
    head = 64 * 64 + 64 + 2 * 64 + 4  # dense, LayerNorm, bias
    assert parameter_count("deepnet_lm_tiny_1000", 4) == 1000 * layer + 4 * 64
    assert parameter_count("deepnet_masked_lm_tiny_1000", 4) == 1000 * layer + 4 * 64 + head


def model_section(cfg):
    """What a model is built from, whichever way its config came; not what follows the settings of others."""
    archs.fill(cfg.model)
    plain = OmegaConf.to_container(cfg.model, resolve=False, enum_to_str=True)
    return {key: value for key, value in plain.items() if key not in FOLLOW}


def of_flags(kind, *flags):
    """The config of fairseq-train, without a look at the data."""
    words = ["x", "--task", TASKS[kind], *flags]
    return convert_namespace_to_omegaconf(options.parse_args_and_arch.__wrapped__(options.get_training_parser(), words))


def of_yaml(folder, kind, text):
    """The config of fairseq-hydra-train for a YAML that a user wrote."""
    (folder / "own.yaml").write_text(f"# @package _group_\ntask:\n  _name: {TASKS[kind]}\n  data: x\n{text}")
    hydra_init()
    with initialize_config_dir(str(folder), version_base="1.1"):
        cfg = compose("own", overrides=["+common.user_dir=x"])
    add_defaults(cfg)
    return cfg


@pytest.mark.parametrize(
    ("arch", "flags", "fields"),
    [
        ("deepnet_lm_tiny_24", (), {}),
        ("deepnet_masked_lm_tiny_24", (), {}),
        ("normformer_lm_125m", ("--decoder-layers", "3", "--normformer-scale-residual"),
         {"decoder_layers": 3, "normformer_scale_residual": "true"}),
        ("normformer_masked_lm_base", ("--method", "pre_ln", "--dropout", "0.2"), {"method": "pre_ln", "dropout": 0.2}),
    ],
)  # fmt: skip
def test_flags_and_yaml_are_one_config(arch, flags, fields, tmp_path):
    kind = archs.MODELS[arch]
    lines = "".join(f"  {key}: {value}\n" for key, value in ({"_name": arch} | fields).items())
    found = of_yaml(tmp_path, kind, f"model:\n{lines}")
    given = of_flags(kind, "--arch", arch, *flags)
    assert model_section(found) == model_section(given)
    assert model_section(given)["method"] == fields.get("method", archs.PRESETS[arch]["method"])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("name", "value", "flag"),
    [("layers", 0, "layers 0"), ("attention_heads", 3, "attention-heads 3"), ("embed_dim", 2, "embed-dim 2"),
     ("normalize_before", True, "normalize-before")],
)  # fmt: skip
def test_refusals_name_the_flag(kind, name, value, flag):
    stack = stack_of(kind)
    with pytest.raises(UserError, match=f"--{stack}-{flag}"):
        small(kind, **({f"{stack}_attention_heads": 2} | {f"{stack}_{name}": value}))
