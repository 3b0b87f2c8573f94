"""Tests that a folded model is fairseq's own `transformer`, `transformer_lm` or `roberta` with equal scores.

Folding multiplies a method's factors, as DeepNorm's alpha, into the weights of a plain Post-LN or Pre-LN Transformer.
`as_if_trained` builds a model of width 16 with noise on all weights; `folded` returns the config and the state dict of
the plain model. FOLDABLE lists the methods that can be folded.
"""

from __future__ import annotations

import pytest
import torch

from deepnet_fairseq.core import archs
from deepnet_fairseq.core.archs import LM, MASKED_LM, ROBERTA
from deepnet_fairseq.core.archs import MODEL_NAME as TRANSLATOR
from deepnet_fairseq.core.methods import METHODS, Method
from deepnet_fairseq.core.profile import residuals
from deepnet_fairseq.tools.export.fold import PLACES, fold, why_not_foldable
from deepnet_fairseq.tools.export.transformer import STOCK, stock_model

from ..support import single_stacks
from ..support.errors import refused
from ..support.every_slot import EverySlot
from ..support.folds import FOLDABLE, as_if_trained, folded
from ..support.helpers import PAD
from ..support.single_stacks import EVERY_KIND as EVERY_KIND
from ..support.single_stacks import small

PLAIN_NORMFORMER = {  # NormFormer without what it adds to Pre-LN
    "normformer_no_attention_norm": True, "normformer_no_ffn_norm": True, "normformer_head_scale": "none",
}  # fmt: skip
CERTAINLY_FOLDABLE = {
    "admin", "admin_torch", "branchnorm", "deepnorm", "ds_init", "post_ln", "post_ln_init", "pre_ln",
}  # fmt: skip
OBSTACLES = {  # methods that do not fold -> what stands in the way, as a refusal names it
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


def fairseq_model_of(model, layers, **fields):
    """Fold a model of these layers and fields, and build fairseq's own model from the result."""
    plain = folded(model, layers, **fields)
    return stock_model(plain.config, plain.state)


def assert_same_scores_in_fairseq(kind, layers, **fields):
    model = as_if_trained(kind, layers, **fields)
    before = scores_at_real_tokens(model, kind)

    theirs = fairseq_model_of(model, layers, **fields)

    assert type(theirs).__module__.startswith("fairseq.models.")
    assert before.std() > 0.1  # scores that are all alike would prove nothing
    assert (before - scores_at_real_tokens(theirs, kind)).abs().max() <= 1e-4


@pytest.mark.parametrize(
    ("kind", "method"), [(EVERY_KIND[number % 3], method) for number, method in enumerate(FOLDABLE)]
)
def test_a_folded_method_has_the_same_scores_in_fairseq(kind, method):
    assert_same_scores_in_fairseq(kind, 6, method=method)


def test_a_folded_model_of_100_layers_has_the_same_scores_in_fairseq():
    assert_same_scores_in_fairseq(TRANSLATOR, 100, method="deepnorm")


def admin_with_first_omega_trained(**fields):
    """Return the fields of an Admin model whose first branch has a trained omega too: it goes into the embedding."""
    return {"method": "admin", "admin_train": "all"} | fields


MODELS_WITH_FLAGS = {  # what is tested -> kind of model, fields; few positions are hardly more than a batch needs
    "admin_torch, trained": (TRANSLATOR, {"method": "admin_torch", "admin_torch_as_parameter": True}),
    "first omega, shared embeddings": (TRANSLATOR, admin_with_first_omega_trained(share_all_embeddings=True)),
    "first omega, LayerNorm on embeddings": (TRANSLATOR, admin_with_first_omega_trained(layernorm_embedding=True)),
    "first omega, learned positions": (TRANSLATOR, admin_with_first_omega_trained(encoder_learned_pos=True)),
    "first omega, no positions": (TRANSLATOR, admin_with_first_omega_trained(no_token_positional_embeddings=True)),
    "few positions": (
        TRANSLATOR, {"method": "deepnorm", "encoder_learned_pos": True, "max_source_positions": 10},
    ),
    "branches that rise": (TRANSLATOR, {"method": "deepnorm", "pro_res": True}),
    "normformer less its norms": (TRANSLATOR, {"method": "normformer", **PLAIN_NORMFORMER}),
    "causal, first omega, tied output": (LM, admin_with_first_omega_trained(share_decoder_input_output_embed=True)),
    "causal, few positions": (
        LM, {"method": "deepnorm", "decoder_learned_pos": True, "max_target_positions": 9},
    ),
    "as RoBERTa, Pre-LN": (MASKED_LM, {"method": "pre_ln", **ROBERTA}),
    "masked, first omega, untied": (MASKED_LM, admin_with_first_omega_trained(untie_weights_roberta=True)),
    "masked, first omega, as RoBERTa": (MASKED_LM, admin_with_first_omega_trained(**ROBERTA)),
    "masked, few positions": (MASKED_LM, {"method": "post_ln", "max_positions": 9, **ROBERTA}),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "fields"), MODELS_WITH_FLAGS.values(), ids=MODELS_WITH_FLAGS)
def test_a_folded_model_with_other_flags_has_the_same_scores_in_fairseq(kind, fields):
    assert_same_scores_in_fairseq(kind, 3, **fields)


def test_admins_fold_is_exact_in_float64():
    """Admin's fold moves omegas into LayerNorms and divides the matrices that read these."""
    model = as_if_trained(TRANSLATOR, 6, method="admin").double()
    before = scores_at_real_tokens(model, TRANSLATOR)

    changed_fields = fold(model)
    for _, residual in residuals(model):  # weights have the omegas, so the model has to compute without them
        residual.omega.data.fill_(1.0)

    assert changed_fields == {}
    assert (scores_at_real_tokens(model, TRANSLATOR) - before).abs().max().item() < 1e-12


@pytest.mark.parametrize(
    ("kind", "fields", "output"),
    [
        (TRANSLATOR, {"share_all_embeddings": True}, "decoder.output_projection.weight"),
        (LM, {"share_decoder_input_output_embed": True}, "decoder.output_projection.weight"),
        (MASKED_LM, {}, "encoder.lm_head.weight"),
    ],
)
def test_an_embedding_tied_to_the_output_stays_tied(kind, fields, output):
    model = as_if_trained(kind, 2, method="post_ln", **fields)

    plain = folded(model, 2, method="post_ln", **fields)

    embedding = STOCK[kind].symbols[0]  # the first name of a matrix with a row for each symbol
    assert plain.state[output].data_ptr() == plain.state[embedding].data_ptr()
    for name, value in fields.items():
        assert plain.config[name] == value


@pytest.mark.parametrize("kind", EVERY_KIND)
@pytest.mark.parametrize(("method", "is_pre_norm"), [("post_ln", False), ("pre_ln", True)])
def test_a_folded_models_config_says_where_its_layer_norms_are(kind, method, is_pre_norm):
    model = as_if_trained(kind, 2, method=method)

    plain = folded(model, 2, method=method)

    for stack in archs.STACKS[kind]:
        assert plain.config[f"{stack}_normalize_before"] is is_pre_norm


def test_a_classification_head_is_kept():
    """The head's scores of three classes are the same in fairseq."""
    model = as_if_trained(MASKED_LM, 2, method="deepnorm")
    model.register_classification_head("colours", num_classes=3, inner_dim=8)
    by_head = {"classification_head_name": "colours", "features_only": True}
    tokens = single_stacks.batch()

    with torch.no_grad():
        before = model(tokens, **by_head)[0]
        theirs = fairseq_model_of(model, 2, method="deepnorm")
        after = theirs(tokens, **by_head)[0]

    assert before.shape == (len(tokens), 3)
    assert before.std() > 0
    assert (before - after).abs().max() <= 1e-5


def test_methods_with_plain_layers_are_foldable():
    assert set(FOLDABLE) >= CERTAINLY_FOLDABLE


def test_methods_with_an_obstacle_are_not_foldable():
    assert not OBSTACLES.keys() & set(FOLDABLE)


@pytest.mark.parametrize("kind", EVERY_KIND)
@pytest.mark.parametrize("method", sorted(METHODS.keys() - set(FOLDABLE)))
def test_a_method_that_does_not_fold_is_refused_by_name(kind, method):
    model = small(kind, 4, method=method)

    with refused() as caught:
        folded(model, 4, method=method)

    words = caught.value.subject.split()
    assert words[words.index("--method") + 1] == method
    assert OBSTACLES.get(method, "") in caught.value.way_out  # further methods have obstacles of any kind


OPTIONAL_SLOTS = ("mixer", "ending", "before", "hidden", "heads", "inner", "outer", "beginning", "bypass")


@pytest.fixture
def why_the_method_does_not_fold(monkeypatch):
    """Register EverySlot, a method that fills every slot, with streams of double width and norms in two places.

    The value is a function that says why a model of it does not fold.
    """
    monkeypatch.setitem(METHODS, "every_slot", EverySlot)
    monkeypatch.setattr(EverySlot, "name", "every_slot", raising=False)
    return lambda: why_not_foldable(small(TRANSLATOR, method="every_slot"))


def test_a_stream_wider_than_a_branch_does_not_fold(why_the_method_does_not_fold):
    assert "more than one branch reads" in why_the_method_does_not_fold()


def test_layer_norms_at_different_places_do_not_fold(why_the_method_does_not_fold, monkeypatch):
    monkeypatch.setattr(EverySlot, "stream_width", Method.stream_width)

    assert "LayerNorms do not all stand where" in why_the_method_does_not_fold()


@pytest.fixture
def plain_streams_and_norms(monkeypatch):
    """Give EverySlot the streams and norms of a plain Transformer, so that only its slots stand in the way."""
    monkeypatch.setattr(EverySlot, "stream_width", Method.stream_width)
    monkeypatch.setattr(EverySlot, "norm_place", Method.norm_place)


@pytest.fixture
def plain_merges(monkeypatch):
    """Give EverySlot the merge of a plain Transformer, x + f."""
    monkeypatch.setattr(EverySlot, "residual", Method.residual)


@pytest.mark.usefixtures("plain_streams_and_norms", "plain_merges")
@pytest.mark.parametrize("filled", OPTIONAL_SLOTS)
def test_a_filled_slot_does_not_fold(filled, why_the_method_does_not_fold, monkeypatch):
    """The other slots are empty, so that the reason is the place of this one."""
    for slot in OPTIONAL_SLOTS:
        if slot != filled:
            monkeypatch.setattr(EverySlot, slot, lambda *_: None)
    place = "a combination of all outputs" if filled == "mixer" else PLACES[filled]

    assert place in why_the_method_does_not_fold()


@pytest.mark.usefixtures("plain_streams_and_norms", "plain_merges")
def test_a_method_with_empty_slots_folds(why_the_method_does_not_fold, monkeypatch):
    for slot in OPTIONAL_SLOTS:
        monkeypatch.setattr(EverySlot, slot, lambda *_: None)

    assert why_the_method_does_not_fold() is None


@pytest.mark.usefixtures("plain_streams_and_norms")
def test_an_unknown_merge_of_shortcut_and_branch_does_not_fold(why_the_method_does_not_fold, monkeypatch):
    """The merge is named by its class, Gate."""
    for slot in OPTIONAL_SLOTS:
        monkeypatch.setattr(EverySlot, slot, lambda *_: None)

    assert "a Gate merges shortcut and branch" in why_the_method_does_not_fold()


def test_a_shortcut_scaled_feature_by_feature_is_refused():
    fields = {"method": "normformer", "normformer_scale_residual": True} | PLAIN_NORMFORMER

    with refused("--method normformer") as caught:
        folded(small(TRANSLATOR, **fields), 2, **fields)

    assert "shortcut" in caught.value.way_out


def test_a_norm_on_queries_and_keys_is_refused():
    fields = {"method": "deepnorm", "qk_norm": True}

    with refused("--method deepnorm") as caught:
        folded(small(TRANSLATOR, **fields), 2, **fields)

    assert "queries" in caught.value.way_out


def test_a_shortcut_with_a_negative_factor_is_refused():
    """GPAS's factor on the shortcut is 1 - SiLU(g), which is negative at g = 1.5."""
    model = as_if_trained(TRANSLATOR, 2, method="gpas")
    for _, residual in residuals(model):
        residual.g.data.fill_(1.5)

    with refused("--method gpas") as caught:
        folded(model, 2, method="gpas")

    assert "shortcut" in caught.value.way_out
    assert "not above 0" in caught.value.way_out
