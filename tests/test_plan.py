"""Parameters and operations that `deepnet plan` counts without building a model."""

from __future__ import annotations

import math

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from deepnet_fairseq.config import namespace
from deepnet_fairseq.methods import METHODS
from deepnet_fairseq.plan.flops import flops
from deepnet_fairseq.plan.parameters import count
from deepnet_fairseq.plan.setting import Setting
from deepnet_fairseq.plan.speed import speed, updates_of
from deepnet_fairseq.plan.tracing import trace

from .support.helpers import FIRST
from .support.planned import built, planned

OPTIONS = [
    {"method": "admin", "admin_train": "none"},
    {"method": "admin_torch", "admin_torch_as_parameter": True},
    {"method": "dlcl", "dlcl_normalize_embedding": True, "dlcl_window": 2},
    {"method": "normformer", "normformer_scale_residual": True, "normformer_head_scale_scope": "all"},
    {"method": "rezero", "rezero_per_sublayer": True},
]
FORMS = [
    {"share_all_embeddings": True},
    {"share_all_embeddings": False, "share_decoder_input_output_embed": True, "encoder_learned_pos": True},
    {"share_all_embeddings": False, "decoder_embed_dim": 48, "decoder_attention_heads": 3, "layernorm_embedding": True},
    {"share_all_embeddings": True, "encoder_layers": 1, "decoder_layers": 7, "decoder_learned_pos": True},
]


def assert_counts(setting):
    """What is counted is what the model has, stack by stack."""
    model, found = built(setting), count(setting)
    assert found.total == sum(p.numel() for p in model.parameters())
    assert found.trainable == sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert found.tensors == len(list(model.parameters()))
    around = ("embed_tokens", "embed_positions", "layernorm_embedding", "output_projection")
    for stack in ("encoder", "decoder"):
        own = dict(getattr(model, stack).named_parameters())
        assert getattr(found, stack) == sum(p.numel() for name, p in own.items() if not name.startswith(around))


@pytest.mark.parametrize("form", range(len(FORMS)))
@pytest.mark.parametrize("method", sorted(METHODS))
def test_count_is_the_built_models(method, form):
    vocab = (60, 60) if FORMS[form]["share_all_embeddings"] else (60, 75)
    assert_counts(planned(vocab, cfg=FORMS[form] | {"method": method}))


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: options["method"])
def test_options_of_methods_count(options):
    assert_counts(planned(cfg=options))


@pytest.mark.parametrize(
    "arch", ["deepnet_transformer_tiny_12_60", "deepnet_transformer_18_6", "deepnet_transformer_large"]
)
def test_count_of_architectures(arch):
    assert_counts(Setting(namespace(arch, share_all_embeddings=True), 100, 100))


PUBLISHED = {  # DeepNet, tables 2 and 3; the vocabulary, one of 250,002, is not stated
    "deepnet_transformer_100_100": 863e6,
    "deepnet_transformer_500_500": 3.8e9,
    "deepnet_transformer_large_100_100": 3.2e9,
}


@pytest.mark.parametrize("arch", PUBLISHED)
def test_published_sizes(arch):
    found = count(Setting(namespace(arch, share_all_embeddings=True), 250_002, 250_002))
    assert found.total == pytest.approx(PUBLISHED[arch], rel=0.005)


def test_published_growth():
    """Admin's 60L-12L has 195 M more than its 6L-6L: 262 and 67 on one corpus, 256 and 61 on the other."""
    sizes = [
        count(Setting(namespace(f"deepnet_transformer_{depth}", share_all_embeddings=True, method="admin"), 1000, 1000))
        for depth in ("60_12", "6_6")
    ]
    assert sizes[0].total - sizes[1].total == pytest.approx(195e6, abs=1e6)


def test_flops_of_a_stack_are_narayanans():
    """24 s h^2 + 4 s^2 h a layer and sentence of s tokens, feed-forward 4h wide (Narayanan et al. 2021, appendix)."""
    fields = {"encoder_embed_dim": 64, "encoder_ffn_embed_dim": 256, "encoder_layers": 5}
    setting = planned(cfg=fields, max_tokens=300, length=30)
    found = sum(segment.flops for segment in trace(setting) if segment.name == "encoder layers")
    assert found == 5 * 10 * (24 * 30 * 64**2 + 4 * 30**2 * 64)


def test_flops_are_those_of_the_matrices():
    """2 for each weight of a matrix product (Kaplan et al. 2020), and 4 S C for each attention."""
    setting = planned((60, 75), cfg={"share_all_embeddings": False})
    model, found = built(setting), flops(setting)
    matrices = [m for m in model.modules() if isinstance(m, torch.nn.Linear)]
    assert found.forward - found.attention == 2 * sum(m.weight.numel() for m in matrices)
    assert found.attention == 4 * 20 * 32 * (2 + 2 * 3)
    assert found.train == 3 * found.forward


@pytest.mark.parametrize("every", [0, 1, 2])
def test_flops_are_torchs(every):
    """torch.utils.flop_counter sees what is planned, forward, backward and recomputed."""
    setting = planned(checkpoint_every=every)
    setting.cfg.checkpoint_activations, setting.cfg.checkpoint_every = every > 0, every or None
    model = built(setting, "cpu").train()
    src, prev = torch.randint(FIRST, 60, (2, 8, 20))
    with FlopCounterMode(display=False) as counter:
        logits = model(src, None, prev)[0]
        forward = counter.get_total_flops()
        logits.sum().backward()
    found = flops(setting)
    assert forward == found.forward * 160
    assert counter.get_total_flops() == pytest.approx(found.step, rel=0.01)


def test_time():
    setting = planned(gpus=4, update_freq=2)
    work = flops(setting)
    found = speed(setting, work, 1e9, updates=3600)
    assert setting.batch == 160 * 2 * 4
    assert found.step == pytest.approx(work.train * 160 * 2 / 1e9)
    assert found.tokens_per_second * found.step == pytest.approx(setting.batch)
    assert found.hours == pytest.approx(found.step)
    assert updates_of(setting, 2.5, 128_000) == 250
    assert math.isclose(speed(setting, work, 2e9).step, found.step / 2)
