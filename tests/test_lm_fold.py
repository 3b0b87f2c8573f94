"""A folded language model is fairseq's own `transformer_lm` or `roberta` with the same scores."""

from __future__ import annotations

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator

from deepnet_fairseq import archs
from deepnet_fairseq.building import blank_task
from deepnet_fairseq.config import namespace
from deepnet_fairseq.errors import UserError
from deepnet_fairseq.export.fold import fold
from deepnet_fairseq.export.stock import STOCK, stock_model
from deepnet_fairseq.export.transformer import fold_model
from deepnet_fairseq.methods import METHODS
from deepnet_fairseq.profiling.omega import residuals

from .support.chains import chains, teach
from .support.helpers import PAD, VOCAB
from .support.single_stacks import KINDS, batch, disturb, scores, sizes, small, stack_of
from .test_fold import BARE, FOLDABLE, REASONS

WHOLE = sorted(FOLDABLE)


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


def trained(kind, layers, **fields):
    """A model away from its start: noise on all parameters, omegas 0.5 to 9, branches of BranchNorm half grown."""
    model = disturb(small(kind, layers, **fields), 0.05)
    model.set_num_updates(2000)
    generator = torch.Generator().manual_seed(2)
    for site, residual in residuals(model):
        if hasattr(residual, "omega"):
            learnt = residual.omega.requires_grad
            residual.omega.data.copy_(0.5 + 8.5 * torch.rand(site.dim, generator=generator) if learnt else 1.0)
    return model


def folded(model, layers, way="upstream", **fields):
    return fold_model(model, namespace(model.NAME, **(sizes(model.NAME, layers) | fields)), way)


def twin(found):
    return stock_model(found.model, found.state)


def largest_difference(before, model):
    """Of scores at tokens; at padding fairseq's decoder computes something else."""
    tokens = batch()
    return (before - scores(model, tokens))[tokens.ne(PAD)].abs().max()


@pytest.mark.parametrize("layers", [6, 18])
@pytest.mark.parametrize("method", WHOLE)
def test_same_scores_in_stock_fairseq(kind, method, layers):
    model = trained(kind, layers, method=method)
    before = scores(model, batch())
    assert before.std() > 0.1
    theirs = twin(folded(model, layers, method=method))
    assert type(theirs).__module__.startswith("fairseq.models.")
    assert largest_difference(before, theirs) <= 1e-4


def first_omega_trained(**fields):
    return {"method": "admin", "admin_train": "all"} | fields


LM, MASKED = archs.LM, archs.MASKED_LM
CASES = {
    "downstream": (LM, "downstream", {"method": "deepnorm"}),
    "admin_torch, trained": (LM, "upstream", {"method": "admin_torch", "admin_torch_as_parameter": True}),
    "first omega": (LM, "upstream", first_omega_trained()),
    "first omega, tied output": (LM, "upstream", first_omega_trained(share_decoder_input_output_embed=True)),
    "first omega, learned positions": (LM, "upstream", first_omega_trained(decoder_learned_pos=True)),
    "first omega, no positions": (LM, "upstream", first_omega_trained(no_token_positional_embeddings=True)),
    "first omega, LayerNorm on embeddings": (LM, "upstream", first_omega_trained(layernorm_embedding=True)),
    "tied output": (LM, "upstream", {"method": "deepnorm", "share_decoder_input_output_embed": True}),
    "LayerNorm on embeddings": (LM, "upstream", {"method": "pre_ln", "layernorm_embedding": True}),
    "few positions": (LM, "upstream", {"method": "deepnorm", "decoder_learned_pos": True, "max_target_positions": 9}),
    "unscaled, gelu": (LM, "upstream", {"method": "deepnorm", "no_scale_embedding": True, "activation_fn": "gelu"}),
    "normformer less its norms": (LM, "upstream", {"method": "normformer", **BARE}),
    "as RoBERTa": (MASKED, "upstream", {"method": "deepnorm", **archs.ROBERTA}),
    "as RoBERTa, Pre-LN": (MASKED, "upstream", {"method": "pre_ln", **archs.ROBERTA}),
    "masked downstream": (MASKED, "downstream", {"method": "deepnorm"}),
    "masked, first omega": (MASKED, "upstream", first_omega_trained()),
    "masked, first omega, untied": (MASKED, "upstream", first_omega_trained(untie_weights_roberta=True)),
    "masked, first omega, as RoBERTa": (MASKED, "upstream", first_omega_trained(**archs.ROBERTA)),
    "masked, few positions": (MASKED, "upstream", {"method": "post_ln", "max_positions": 9, **archs.ROBERTA}),
    "masked, relu, no positions": (
        MASKED, "upstream", {"method": "post_ln", "activation_fn": "relu", "no_token_positional_embeddings": True}
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_other_ways_and_flags(case):
    kind, way, fields = CASES[case]
    model = trained(kind, 3, **fields)
    before = scores(model, batch())
    assert largest_difference(before, twin(folded(model, 3, way, **fields))) <= 1e-4


@pytest.mark.parametrize("way", ["upstream", "downstream"])
def test_what_is_exact_in_float64(kind, way):
    """Admin upstream is exact; DeepNorm downstream differs by the LayerNorms' epsilon, far above rounding."""
    model = trained(kind, 6, method="admin" if way == "upstream" else "deepnorm").double()
    before = scores(model, batch())
    assert fold(model, way) == {}
    for _, residual in residuals(model):  # what was folded leaves the residual plain
        if way == "upstream":
            residual.omega.data.fill_(1.0)
        else:
            residual.alpha = 1.0
    difference = (scores(model, batch()) - before).abs().max().item()
    assert difference < 1e-12 if way == "upstream" else 1e-9 < difference < 1e-3


@pytest.mark.parametrize("method", ["admin", "deepnorm", "pre_ln"])
def test_same_continuations(method):
    """Beam 5 behind 60 prompts, token by token, of a model that has learnt to look back at the mark."""
    model, _ = teach(small(LM, method=method))
    prompts = chains(300, seed=99)
    prompts = prompts[prompts[:, 4].ne(PAD)][:60, :4]  # eos, mark and two symbols
    target = blank_task(VOCAB).target_dictionary

    def continued(m):
        search = SequenceGenerator([m], target, beam_size=5, max_len_a=0, max_len_b=20)
        sample = {"net_input": {"src_tokens": prompts, "src_lengths": torch.full((len(prompts),), 4)}}
        found = search.generate([m], sample, prefix_tokens=prompts[:, 1:], bos_token=target.eos())
        return [hypotheses[0]["tokens"].tolist() for hypotheses in found]

    ours = continued(model)
    assert len(ours) == 60 and len({tuple(tokens) for tokens in ours}) > 40
    assert continued(twin(folded(model, 2, method=method))) == ours


def test_tied_weights_stay_tied(kind):
    name = {LM: "decoder.output_projection.weight", MASKED: "encoder.lm_head.weight"}[kind]
    fields = {"share_decoder_input_output_embed": True} if kind == LM else {}
    found = folded(trained(kind, 2, method="deepnorm", **fields), 2, method="deepnorm", **fields)
    assert found.state[name].data_ptr() == found.state[STOCK[kind].symbols[0]].data_ptr()


def test_a_head_is_kept():
    model = trained(MASKED, 2, method="deepnorm")
    model.register_classification_head("colours", 3, 8)
    asked = {"classification_head_name": "colours", "features_only": True}
    with torch.no_grad():
        ours = model(batch(), **asked)[0]
        theirs = twin(folded(model, 2, method="deepnorm"))(batch(), **asked)[0]
    assert ours.shape == (3, 3) and ours.std() > 0
    assert (ours - theirs).abs().max() <= 1e-5


@pytest.mark.parametrize("method", sorted(METHODS.keys() - FOLDABLE))
def test_what_does_not_fold_is_refused_by_name(kind, method):
    with pytest.raises(UserError, match=f"--method {method} has no plain Transformer: .*{REASONS[method]}"):
        folded(small(kind, method=method), 2, method=method)


def test_the_stack_is_the_kinds_own(kind):
    """A Post-LN's config says so, in the one stack that the model has."""
    found = folded(trained(kind, 2, method="post_ln"), 2, method="post_ln").model
    assert found[f"{stack_of(kind)}_normalize_before"] is False
    other = {"decoder": "encoder", "encoder": "decoder"}[stack_of(kind)]
    assert not [name for name in found if name.startswith(f"{other}_")]
