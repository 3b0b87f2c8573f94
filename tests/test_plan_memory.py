"""Memory that `deepnet plan` says a training takes, against what torch keeps and hands out."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from deepnet_fairseq.criterions.chunked import NAME as CHUNKED
from deepnet_fairseq.methods import METHODS
from deepnet_fairseq.plan.memory import best_group, memory
from deepnet_fairseq.plan.parameters import count
from deepnet_fairseq.plan.precision import OPTIMIZERS, PRECISIONS
from deepnet_fairseq.plan.tracing import trace
from deepnet_fairseq.plan.trial import Trial

from .support.planned import SIZES, allocated, planned, saved_bytes


def assert_saved(setting):
    held = sum(segment.held_bytes for segment in trace(setting))
    assert held == pytest.approx(saved_bytes(setting), rel=0.03)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("method", sorted(METHODS))
def test_activations_are_what_autograd_keeps(method, size):
    widths, (N, M), (sentences, length) = SIZES[size]
    fields = widths | {"method": method, "encoder_layers": N, "decoder_layers": M}
    assert_saved(planned(cfg=fields, max_tokens=sentences * length, length=length))


FORMS = {
    "gelu": {"activation_fn": "gelu"},
    "tanh": {"activation_fn": "tanh"},
    "no dropout": {"dropout": 0.0},
    "dropout everywhere": {"activation_dropout": 0.1, "attention_dropout": 0.1},
    "norm of embeddings": {"layernorm_embedding": True},
    "dlcl post": {"method": "dlcl", "dlcl_norm": "post", "dlcl_normalize_embedding": True},
    "dlcl window": {"method": "dlcl", "dlcl_window": 2},
    "normformer of fairseq": {"method": "normformer", "normformer_head_scale": "fairseq"},
    "normformer residual": {"method": "normformer", "normformer_scale_residual": True},
    "admin, nothing trained": {"method": "admin", "admin_train": "none"},
    "decoder of another width": {"share_all_embeddings": False, "decoder_embed_dim": 48, "decoder_attention_heads": 3},
}


@pytest.mark.parametrize("form", FORMS)
def test_activations_under_other_flags(form):
    assert_saved(planned(cfg=FORMS[form]))


@pytest.mark.parametrize("method", ["deepnorm", "rezero", "r_fixup", "admin"])
def test_activations_in_bf16(method):
    """Numbers that stay in float32 make copies of what they meet."""
    assert_saved(planned(cfg={"method": method}, precision=PRECISIONS["bf16"]))


def test_activations_of_long_sentences():
    """Attention is one kernel there, and keeps no weights."""
    assert_saved(planned(max_tokens=600, length=300))


TRAININGS = {
    "as is": {},
    "recomputed": {"checkpoint_every": 1},
    "recomputed by threes": {"checkpoint_every": 3},
    "dlcl, recomputed by threes": {"checkpoint_every": 3, "cfg": {"method": "dlcl"}},
    "two batches": {"update_freq": 2},
    "two batches, recomputed": {"update_freq": 2, "checkpoint_every": 2},
    "loss in chunks": {"criterion": CHUNKED, "chunk": 256, "vocab": (3000, 3000)},
    "large vocabulary": {"vocab": (3000, 3000)},
    "flat Adam": {"optimizer": OPTIMIZERS["deepnet_adam"]},
    "bf16": {"precision": PRECISIONS["bf16"], "vocab": (3000, 3000)},
}


@pytest.mark.parametrize("training", TRAININGS)
def test_peak_is_what_torch_hands_out(training):
    """Through fairseq's Trainer, update by update, beside weights and optimiser, which were there before."""
    changes = dict(TRAININGS[training])
    depth = {"encoder_layers": 9, "decoder_layers": 9}
    setting = planned(cfg=depth | changes.pop("cfg", {}), **({"max_tokens": 1600} | changes))
    trial = Trial(setting)
    for _ in range(2):
        trial.step()
    found = memory(setting)
    before = found.weights + found.optimiser + found.objects
    trial.trainer.zero_grad()
    assert found.peak - before == pytest.approx(allocated(trial.step), rel=0.03)
    trial.close()


def test_a_group_holds_its_input_and_recomputes_the_rest():
    """Of L layers of which k are one: ceil(L / k) inputs stay, and k layers come back at a time."""
    deep = {"encoder_layers": 12, "decoder_layers": 12}
    one, three = (memory(planned(cfg=deep, checkpoint_every=every)) for every in (1, 3))
    x = 160 * 32 * 4
    assert one.activations - three.activations == 2 * (12 - 4) * x
    assert three.recomputed == 3 * one.recomputed + 2 * x
    assert memory(planned(cfg=deep)).recomputed == 0


@pytest.mark.parametrize("update_freq", [1, 2])
def test_best_group_is_the_best_of_all(update_freq):
    """Within 1%; with gradients waiting from the batch before it lies near sqrt(L C / A)."""
    setting = planned(cfg={"encoder_layers": 40, "decoder_layers": 40}, max_tokens=4000, update_freq=update_freq)
    peaks = {every: memory(replace(setting, checkpoint_every=every)).peak for every in range(1, 41)}
    found = best_group(setting)
    assert peaks[found] <= 1.01 * min(peaks.values()) < peaks[1]
    if update_freq == 2:
        single = memory(replace(setting, checkpoint_every=1))
        assert found == pytest.approx(math.sqrt(single.activations / single.recomputed), abs=1)


def test_half_precision_and_optimisers():
    """Bytes a parameter: 16 in fp32; 20 in half precision with float32 weights, gradients and moments, 16 with flat
    Adam, whose float32 gradients are a piece of the model (here all of it); 12 without a master copy; over 4 GPUs a
    quarter of moments and float32 weights."""

    def bytes_each(**settings):
        setting = planned(cpu=False, **settings)
        found = memory(setting)
        return (found.weights + found.gradients + found.optimiser) / count(setting).total

    flat = OPTIMIZERS["deepnet_adam"]
    assert bytes_each() == 16
    assert bytes_each(optimizer=flat) == 16 + 4
    for half in ("fp16", "bf16"):
        assert bytes_each(precision=PRECISIONS[half]) == 20
        assert bytes_each(precision=PRECISIONS[half], optimizer=flat) == 16 + 4
        small = PRECISIONS[f"memory-efficient-{half}"]
        assert bytes_each(precision=small) == 12
        full = {"precision": PRECISIONS[half], "gpus": 4}
        assert bytes_each(**full, sharding="os", optimizer=flat) == pytest.approx(4 + 12 / 4 + 4, abs=0.01)


def test_batches_are_the_same_when_split():
    """Half the tokens twice: the same tokens and operations an update, about half the activations."""
    whole, halves = planned(max_tokens=1600), planned(max_tokens=800, update_freq=2)
    assert whole.batch == halves.batch
    large, small = memory(whole), memory(halves)
    assert small.activations == pytest.approx(large.activations / 2, rel=0.05)
