"""Tests that a folded model is fairseq's own `transformer`, `transformer_lm` or `roberta` with equal scores."""

from __future__ import annotations

import pytest
import torch

from deepnet_fairseq.core import archs
from deepnet_fairseq.core.archs import LM, ROBERTA
from deepnet_fairseq.core.archs import MASKED_LM as MASKED
from deepnet_fairseq.core.archs import MODEL_NAME as PAIR
from deepnet_fairseq.core.methods import METHODS, Method
from deepnet_fairseq.core.models import blueprint
from deepnet_fairseq.core.profile import residuals
from deepnet_fairseq.errors import UserError
from deepnet_fairseq.plugin.flags import namespace
from deepnet_fairseq.tools.export.fold import fold, why_not_foldable
from deepnet_fairseq.tools.export.transformer import STOCK, fold_model, stock_model

from ..support import single_stacks
from ..support.every_slot import EverySlot
from ..support.helpers import PAD
from ..support.single_stacks import EVERY, disturb, small

BARE = {"normformer_no_attention_norm": True, "normformer_no_ffn_norm": True, "normformer_head_scale": "none"}
FOLDABLE = [name for name in sorted(METHODS) if why_not_foldable(blueprint(method=name, vocab=10)) is None]
AMONG_THEM = {"admin", "admin_torch", "branchnorm", "deepnorm", "ds_init", "post_ln", "post_ln_init", "pre_ln"}
REASONS = {
    "dlcl": "combination of all outputs",
    "normformer": "a HeadScale stands in front of the last matrix",
    "r_fixup": "no LayerNorm in its layers",
    "rezero": "no LayerNorm in its layers",
    "sub_ln": "a LayerNorm stands in front of the last matrix",
    "t_fixup": "no LayerNorm in its layers",
}


def trained(kind, layers, **fields):
    """Build a model as after a training: noise on all parameters, omegas of 0.5 to 9, BranchNorm half way."""
    model = disturb(small(kind, layers, **fields), 0.05)
    model.set_num_updates(2000)
    generator = torch.Generator().manual_seed(2)
    for site, residual in residuals(model):
        if hasattr(residual, "omega"):
            learnt = residual.omega.requires_grad
            residual.omega.data.copy_(0.5 + 8.5 * torch.rand(site.dim, generator=generator) if learnt else 1.0)
    return model


def scores(model, kind):
    """Compute the scores of a fixed batch at its real tokens; fairseq's models differ at padding."""
    given = single_stacks.inputs(kind)
    return single_stacks.scores(model, *given)[given[-1].ne(PAD)]


def folded(model, layers, **fields):
    """Fold a model of these layers and fields; fold_model takes over its tensors."""
    return fold_model(model, namespace(model.NAME, **(single_stacks.sizes(model.NAME, layers) | fields)))


def twin(model, layers, **fields):
    """Build fairseq's own model from the folded one."""
    plain = folded(model, layers, **fields)
    return stock_model(plain.config, plain.state)


def assert_same_scores(kind, layers, **fields):
    model = trained(kind, layers, **fields)
    before = scores(model, kind)
    theirs = twin(model, layers, **fields)
    assert before.std() > 0.1 and type(theirs).__module__.startswith("fairseq.models.")
    assert (before - scores(theirs, kind)).abs().max() <= 1e-4


SCORED = [(EVERY[number % 3], 6, method) for number, method in enumerate(FOLDABLE)] + [(PAIR, 100, "deepnorm")]


@pytest.mark.parametrize("kind, layers, method", SCORED)
def test_same_scores_in_stock_fairseq(kind, layers, method):
    assert_same_scores(kind, layers, method=method)


def first_omega_trained(**fields):
    return {"method": "admin", "admin_train": "all"} | fields


CASES = {
    "admin_torch, trained": (PAIR, {"method": "admin_torch", "admin_torch_as_parameter": True}),
    "first omega, shared embeddings": (PAIR, first_omega_trained(share_all_embeddings=True)),
    "first omega, LayerNorm on embeddings": (PAIR, first_omega_trained(layernorm_embedding=True)),
    "first omega, learned positions": (PAIR, first_omega_trained(encoder_learned_pos=True)),
    "first omega, no positions": (PAIR, first_omega_trained(no_token_positional_embeddings=True)),
    "few positions": (
        PAIR, {"method": "deepnorm", "encoder_learned_pos": True, "max_source_positions": 10},
    ),
    "branches that rise": (PAIR, {"method": "deepnorm", "pro_res": True}),
    "normformer less its norms": (PAIR, {"method": "normformer", **BARE}),
    "causal, first omega, tied output": (LM, first_omega_trained(share_decoder_input_output_embed=True)),
    "causal, few positions": (
        LM, {"method": "deepnorm", "decoder_learned_pos": True, "max_target_positions": 9},
    ),
    "as RoBERTa, Pre-LN": (MASKED, {"method": "pre_ln", **ROBERTA}),
    "masked, first omega, untied": (MASKED, first_omega_trained(untie_weights_roberta=True)),
    "masked, first omega, as RoBERTa": (MASKED, first_omega_trained(**ROBERTA)),
    "masked, few positions": (MASKED, {"method": "post_ln", "max_positions": 9, **ROBERTA}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_other_ways_and_flags(case):
    kind, fields = CASES[case]
    assert_same_scores(kind, 3, **fields)


def test_admins_folds_are_exact_in_float64():
    """Admin's fold, which moves omegas into LayerNorms and divides the next matrices, is exact in float64."""
    model = trained(PAIR, 6, method="admin").double()
    before = scores(model, PAIR)
    assert fold(model) == {}
    for _, residual in residuals(model):  # folded factors leave a plain residual
        residual.omega.data.fill_(1.0)
    assert (scores(model, PAIR) - before).abs().max().item() < 1e-12


@pytest.mark.parametrize(
    "kind, fields, output",
    [
        (PAIR, {"share_all_embeddings": True}, "decoder.output_projection.weight"),
        (LM, {"share_decoder_input_output_embed": True}, "decoder.output_projection.weight"),
        (MASKED, {}, "encoder.lm_head.weight"),
    ],
)
def test_tied_weights_stay_tied(kind, fields, output):
    plain = folded(trained(kind, 2, method="post_ln", **fields), 2, method="post_ln", **fields)
    assert plain.state[output].data_ptr() == plain.state[STOCK[kind].symbols[0]].data_ptr()
    placed = {f"{stack}_normalize_before": False for stack in archs.STACKS[kind]}  # in the existing stacks
    assert (fields | placed).items() <= plain.config.items()


def test_a_head_is_kept():
    model = trained(MASKED, 2, method="deepnorm")
    model.register_classification_head("colours", 3, 8)
    asked = {"classification_head_name": "colours", "features_only": True}
    with torch.no_grad():
        ours = model(single_stacks.batch(), **asked)[0]
        theirs = twin(model, 2, method="deepnorm")(single_stacks.batch(), **asked)[0]
    assert ours.shape == (3, 3) and ours.std() > 0
    assert (ours - theirs).abs().max() <= 1e-5


@pytest.mark.parametrize("kind", EVERY)
def test_what_does_not_fold_is_refused_by_name(kind):
    assert set(FOLDABLE) >= AMONG_THEM and not REASONS.keys() & set(FOLDABLE)
    for method in METHODS.keys() - set(FOLDABLE):
        with pytest.raises(UserError, match=f"--method {method} has no plain Transformer: .*{REASONS.get(method, '')}"):
            folded(small(kind, 4, method=method), 4, method=method)


def test_unknown_slots_are_noticed(monkeypatch):
    monkeypatch.setitem(METHODS, "every_slot", EverySlot)
    EverySlot.name = "every_slot"
    assert "more than one branch reads" in why_not_foldable(small(PAIR, method="every_slot"))
    monkeypatch.setattr(EverySlot, "stream_width", Method.stream_width)
    assert "LayerNorms do not all stand" in why_not_foldable(small(PAIR, method="every_slot"))
    monkeypatch.setattr(EverySlot, "norm_place", Method.norm_place)
    assert "combination" in why_not_foldable(small(PAIR, method="every_slot"))
    for empty in ("mixer", "ending", "before", "hidden", "heads", "inner", "outer", "beginning", "bypass"):
        monkeypatch.setattr(EverySlot, empty, lambda *_: None)
        reason = why_not_foldable(small(PAIR, method="every_slot"))
        assert reason is not None
    assert reason == "a Gate merges shortcut and branch"


def test_factors_without_a_place_are_refused():
    fields = {"method": "normformer", "normformer_scale_residual": True} | BARE
    with pytest.raises(UserError, match="its shortcut is scaled feature by feature"):
        folded(small(PAIR, **fields), 2, **fields)
    with pytest.raises(UserError, match="a ByRole stands on queries and keys by head"):
        folded(small(PAIR, method="deepnorm", qk_norm=True), 2, method="deepnorm", qk_norm=True)
    fields = {"method": "gpas"}
    shrinking = trained(PAIR, 2, **fields)
    for _, residual in residuals(shrinking):
        residual.g.data.fill_(1.5)  # 1 - SiLU(1.5) < 0
    with pytest.raises(UserError, match="a factor on its shortcut is not above 0"):
        folded(shrinking, 2, **fields)
