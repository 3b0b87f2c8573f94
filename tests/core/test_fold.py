"""Tests that a folded model is fairseq's own `transformer`, `transformer_lm` or `roberta` with equal scores."""

from __future__ import annotations

import pytest
import torch

from deepnet_fairseq.core import archs
from deepnet_fairseq.core.archs import LM, ROBERTA
from deepnet_fairseq.core.archs import MASKED_LM as MASKED
from deepnet_fairseq.core.archs import MODEL_NAME as PAIR
from deepnet_fairseq.core.methods import METHODS, Method
from deepnet_fairseq.core.profile import residuals
from deepnet_fairseq.tools.export.fold import fold, why_not_foldable
from deepnet_fairseq.tools.export.transformer import STOCK, stock_model

from ..support import single_stacks
from ..support.errors import refused
from ..support.every_slot import EverySlot
from ..support.folds import FOLDABLE, as_if_trained, folded
from ..support.helpers import PAD
from ..support.single_stacks import EVERY, small

WITHOUT_NORMS = {"normformer_no_attention_norm": True, "normformer_no_ffn_norm": True, "normformer_head_scale": "none"}
CERTAINLY_FOLDABLE = {
    "admin", "admin_torch", "branchnorm", "deepnorm", "ds_init", "post_ln", "post_ln_init", "pre_ln",
}  # fmt: skip
OBSTACLES = {  # methods that do not fold -> what stands in the way
    "dlcl": "outputs",
    "normformer": "HeadScale",
    "r_fixup": "no LayerNorm",
    "rezero": "no LayerNorm",
    "sub_ln": "a LayerNorm",
    "t_fixup": "no LayerNorm",
}


def scores_at_real_tokens(model, kind):
    """Compute the scores of a fixed batch at its real tokens; fairseq's models differ at padding."""
    given = single_stacks.inputs(kind)
    return single_stacks.scores(model, *given)[given[-1].ne(PAD)]


def fairseqs_twin(model, layers, **fields):
    """Build fairseq's own model from the folded one."""
    plain = folded(model, layers, **fields)
    return stock_model(plain.config, plain.state)


def assert_same_scores_in_fairseq(kind, layers, **fields):
    model = as_if_trained(kind, layers, **fields)
    before = scores_at_real_tokens(model, kind)

    theirs = fairseqs_twin(model, layers, **fields)

    assert type(theirs).__module__.startswith("fairseq.models.")
    assert before.std() > 0.1
    assert (before - scores_at_real_tokens(theirs, kind)).abs().max() <= 1e-4


SCORED = [(EVERY[number % 3], 6, method) for number, method in enumerate(FOLDABLE)] + [(PAIR, 100, "deepnorm")]


@pytest.mark.parametrize("kind, layers, method", SCORED)
def test_a_folded_method_has_the_same_scores_in_fairseq(kind, layers, method):
    assert_same_scores_in_fairseq(kind, layers, method=method)


def admin_with_first_omega_trained(**fields):
    return {"method": "admin", "admin_train": "all"} | fields


OTHER_FLAGS = {
    "admin_torch, trained": (PAIR, {"method": "admin_torch", "admin_torch_as_parameter": True}),
    "first omega, shared embeddings": (PAIR, admin_with_first_omega_trained(share_all_embeddings=True)),
    "first omega, LayerNorm on embeddings": (PAIR, admin_with_first_omega_trained(layernorm_embedding=True)),
    "first omega, learned positions": (PAIR, admin_with_first_omega_trained(encoder_learned_pos=True)),
    "first omega, no positions": (PAIR, admin_with_first_omega_trained(no_token_positional_embeddings=True)),
    "few positions": (
        PAIR, {"method": "deepnorm", "encoder_learned_pos": True, "max_source_positions": 10},
    ),
    "branches that rise": (PAIR, {"method": "deepnorm", "pro_res": True}),
    "normformer less its norms": (PAIR, {"method": "normformer", **WITHOUT_NORMS}),
    "causal, first omega, tied output": (LM, admin_with_first_omega_trained(share_decoder_input_output_embed=True)),
    "causal, few positions": (
        LM, {"method": "deepnorm", "decoder_learned_pos": True, "max_target_positions": 9},
    ),
    "as RoBERTa, Pre-LN": (MASKED, {"method": "pre_ln", **ROBERTA}),
    "masked, first omega, untied": (MASKED, admin_with_first_omega_trained(untie_weights_roberta=True)),
    "masked, first omega, as RoBERTa": (MASKED, admin_with_first_omega_trained(**ROBERTA)),
    "masked, few positions": (MASKED, {"method": "post_ln", "max_positions": 9, **ROBERTA}),
}  # fmt: skip


@pytest.mark.parametrize("case", OTHER_FLAGS)
def test_a_model_with_other_flags_has_the_same_scores_in_fairseq(case):
    kind, fields = OTHER_FLAGS[case]

    assert_same_scores_in_fairseq(kind, 3, **fields)


def test_admins_fold_is_exact_in_float64():
    """Admin's fold moves omegas into LayerNorms and divides the next matrices."""
    model = as_if_trained(PAIR, 6, method="admin").double()
    before = scores_at_real_tokens(model, PAIR)

    left_over = fold(model)
    for _, residual in residuals(model):  # folded factors leave a plain residual
        residual.omega.data.fill_(1.0)

    assert left_over == {}
    assert (scores_at_real_tokens(model, PAIR) - before).abs().max().item() < 1e-12


@pytest.mark.parametrize(
    "kind, fields, output",
    [
        (PAIR, {"share_all_embeddings": True}, "decoder.output_projection.weight"),
        (LM, {"share_decoder_input_output_embed": True}, "decoder.output_projection.weight"),
        (MASKED, {}, "encoder.lm_head.weight"),
    ],
)
def test_tied_weights_stay_tied(kind, fields, output):
    model = as_if_trained(kind, 2, method="post_ln", **fields)

    plain = folded(model, 2, method="post_ln", **fields)

    embedding = plain.state[STOCK[kind].symbols[0]]
    assert plain.state[output].data_ptr() == embedding.data_ptr()
    for name, value in fields.items():
        assert plain.config[name] == value
    for stack in archs.STACKS[kind]:
        assert plain.config[f"{stack}_normalize_before"] is False


def test_a_classification_head_is_kept():
    model = as_if_trained(MASKED, 2, method="deepnorm")
    model.register_classification_head("colours", 3, 8)
    asked = {"classification_head_name": "colours", "features_only": True}
    tokens = single_stacks.batch()

    with torch.no_grad():
        ours = model(tokens, **asked)[0]
        theirs = fairseqs_twin(model, 2, method="deepnorm")(tokens, **asked)[0]

    assert ours.shape == (3, 3)
    assert ours.std() > 0
    assert (ours - theirs).abs().max() <= 1e-5


def test_methods_that_certainly_fold_are_foldable():
    assert set(FOLDABLE) >= CERTAINLY_FOLDABLE


def test_methods_with_an_obstacle_are_not_foldable():
    assert not OBSTACLES.keys() & set(FOLDABLE)


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize("method", sorted(METHODS.keys() - set(FOLDABLE)))
def test_a_method_that_does_not_fold_is_refused_by_name(kind, method):
    model = small(kind, 4, method=method)

    with refused() as caught:
        folded(model, 4, method=method)

    assert f"--method {method} " in f"{caught.value.subject} "
    assert OBSTACLES.get(method, "") in caught.value.way_out


OPTIONAL_SLOTS = ("mixer", "ending", "before", "hidden", "heads", "inner", "outer", "beginning", "bypass")


@pytest.fixture
def why_every_slot_does_not_fold(monkeypatch):
    """Register a method that fills every slot; the value is a function that says why a model of it does not fold."""
    monkeypatch.setitem(METHODS, "every_slot", EverySlot)
    monkeypatch.setattr(EverySlot, "name", "every_slot", raising=False)
    return lambda: why_not_foldable(small(PAIR, method="every_slot"))


def test_a_stream_of_another_width_does_not_fold(why_every_slot_does_not_fold):
    assert "branch reads" in why_every_slot_does_not_fold()


def test_layer_norms_at_different_places_do_not_fold(why_every_slot_does_not_fold, monkeypatch):
    monkeypatch.setattr(EverySlot, "stream_width", Method.stream_width)

    assert "LayerNorms" in why_every_slot_does_not_fold()


@pytest.mark.parametrize("emptied", range(len(OPTIONAL_SLOTS) + 1))
def test_a_filled_slot_does_not_fold(emptied, why_every_slot_does_not_fold, monkeypatch):
    """Slots are left empty one after the other, until only the merge of shortcut and branch is left, a Gate."""
    monkeypatch.setattr(EverySlot, "stream_width", Method.stream_width)
    monkeypatch.setattr(EverySlot, "norm_place", Method.norm_place)
    for slot in OPTIONAL_SLOTS[:emptied]:
        monkeypatch.setattr(EverySlot, slot, lambda *_: None)

    reason = why_every_slot_does_not_fold()

    assert reason is not None
    if emptied == 0:
        assert "combination" in reason
    if emptied == len(OPTIONAL_SLOTS):
        assert "a Gate" in reason


def test_a_shortcut_scaled_feature_by_feature_is_refused():
    fields = {"method": "normformer", "normformer_scale_residual": True} | WITHOUT_NORMS

    with refused("--method normformer") as caught:
        folded(small(PAIR, **fields), 2, **fields)

    assert "shortcut" in caught.value.way_out


def test_a_norm_on_queries_and_keys_is_refused():
    fields = {"method": "deepnorm", "qk_norm": True}

    with refused("--method deepnorm") as caught:
        folded(small(PAIR, **fields), 2, **fields)

    assert "queries" in caught.value.way_out


def test_a_shortcut_with_a_negative_factor_is_refused():
    model = as_if_trained(PAIR, 2, method="gpas")
    for _, residual in residuals(model):
        residual.g.data.fill_(1.5)  # 1 - SiLU(1.5) < 0

    with refused("--method gpas") as caught:
        folded(model, 2, method="gpas")

    assert "shortcut" in caught.value.way_out
    assert "above 0" in caught.value.way_out
