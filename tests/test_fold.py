"""A folded model is fairseq's own `transformer` with the same scores."""

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator

from deepnet_fairseq.building import blank_task
from deepnet_fairseq.config import namespace
from deepnet_fairseq.errors import UserError
from deepnet_fairseq.export.fold import fold
from deepnet_fairseq.export.obstacle import obstacle
from deepnet_fairseq.export.transformer import fold_model, stock_model
from deepnet_fairseq.methods import METHODS
from deepnet_fairseq.profiling.omega import residuals

from .support.every_slot import EverySlot
from .support.helpers import PAD, SMALL, VOCAB, batch, logits, sentences, small, teach_to_copy

FOLDABLE = {"admin", "admin_torch", "branchnorm", "deepnorm", "ds_init", "post_ln", "post_ln_init", "pre_ln"}
WHOLE = [name for name in sorted(METHODS) if name in FOLDABLE]
BARE = {"normformer_no_attention_norm": True, "normformer_no_ffn_norm": True, "normformer_head_scale": "none"}


def config(layers, **fields):
    depths = {"encoder_layers": layers, "decoder_layers": layers}
    return namespace("deepnet_transformer", **(depths | SMALL | fields))


def trained(layers, **fields):
    """A model away from its start: noise on all parameters, omegas 0.5 to 9, branches of BranchNorm half grown."""
    model = small(layers, **fields)
    model.set_num_updates(2000)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.05)
        for stack in (model.encoder, model.decoder):
            stack.embed_tokens.weight[PAD] = 0
        for site, residual in residuals(model):
            if hasattr(residual, "omega") and residual.omega.requires_grad:
                residual.omega.copy_(0.5 + 8.5 * torch.rand(site.dim, generator=generator))
            elif hasattr(residual, "omega"):
                residual.omega.fill_(1.0)
    return model


def folded_twin(model, layers, way="upstream", **fields):
    folded = fold_model(model, config(layers, **fields), way)
    return stock_model(folded.model, folded.state)


def largest_difference(before, twin):
    """Of scores at target tokens; behind the end of a sentence fairseq's own model computes something else."""
    src, prev = batch()
    with torch.no_grad():
        after = twin(src, src.ne(PAD).sum(1), prev)[0]
    return (before - after)[prev.ne(PAD)].abs().max()


@pytest.mark.parametrize("layers", [6, 18, 100])
@pytest.mark.parametrize("method", WHOLE)
def test_same_scores_in_stock_fairseq(method, layers):
    model = trained(layers, method=method)
    before = logits(model, *batch())
    assert largest_difference(before, folded_twin(model, layers, method=method)) <= 1e-4


def first_omega_trained(**fields):
    return {"method": "admin", "admin_train": "all"} | fields


CASES = {
    "fold downstream": ("downstream", {"method": "deepnorm"}),
    "admin_torch downstream": ("downstream", {"method": "admin_torch"}),
    "admin_torch, trained": ("upstream", {"method": "admin_torch", "admin_torch_as_parameter": True}),
    "first omega, shared embeddings": ("upstream", first_omega_trained(share_all_embeddings=True)),
    "first omega, tied output": ("upstream", first_omega_trained(share_decoder_input_output_embed=True)),
    "first omega, LayerNorm on embeddings": ("upstream", first_omega_trained(layernorm_embedding=True)),
    "first omega, learned positions": ("upstream", first_omega_trained(encoder_learned_pos=True)),
    "first omega, no positions": ("upstream", first_omega_trained(no_token_positional_embeddings=True)),
    "LayerNorm on embeddings": ("upstream", {"method": "deepnorm", "layernorm_embedding": True}),
    "few positions": ("upstream", {"method": "deepnorm", "encoder_learned_pos": True, "max_source_positions": 10}),
    "unequal widths": ("upstream", {"method": "deepnorm", "decoder_embed_dim": 24, "activation_fn": "gelu"}),
    "normformer less its norms": ("upstream", {"method": "normformer", **BARE}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_other_ways_and_flags(case):
    way, fields = CASES[case]
    model = trained(3, **fields)
    before = logits(model, *batch())
    assert largest_difference(before, folded_twin(model, 3, way, **fields)) <= 1e-4


@pytest.mark.parametrize("way", ["upstream", "downstream"])
def test_what_is_exact_in_float64(way):
    """Admin upstream is exact; DeepNorm downstream differs by the LayerNorms' epsilon, far above rounding."""
    fields = {"method": "admin"} if way == "upstream" else {"method": "deepnorm"}
    model = trained(6, **fields).double()
    before = logits(model, *batch())
    changes = fold(model, way)
    assert changes == {}
    for _, residual in residuals(model):  # what was folded leaves the residual plain
        if way == "upstream":
            residual.omega.data.fill_(1.0)
        else:
            residual.alpha = 1.0
    difference = (logits(model, *batch()) - before).abs().max().item()
    assert difference < 1e-12 if way == "upstream" else 1e-9 < difference < 1e-3


@pytest.mark.parametrize("method", WHOLE)
def test_same_beam_search(method):
    """Beam 5 on 100 sentences, token by token."""
    model, task, source = small(2, method=method, share_all_embeddings=True), blank_task(VOCAB), sentences(100, VOCAB)
    teach_to_copy(model, VOCAB)
    sample = {"net_input": {"src_tokens": source, "src_lengths": source.ne(PAD).sum(1)}}

    def translations(m):
        search = SequenceGenerator([m], task.target_dictionary, beam_size=5, max_len_a=0, max_len_b=15)
        return [hypothesis[0]["tokens"].tolist() for hypothesis in search.generate([m], sample)]

    ours = translations(model)
    assert translations(folded_twin(model, 2, method=method, share_all_embeddings=True)) == ours
    assert len({tuple(tokens) for tokens in ours}) > 50


def test_shared_embeddings_stay_shared():
    folded = fold_model(trained(2, share_all_embeddings=True), config(2, share_all_embeddings=True))
    tied = [folded.state[name] for name in ("encoder.embed_tokens.weight", "decoder.output_projection.weight")]
    assert tied[0].data_ptr() == tied[1].data_ptr()
    assert folded.model["share_all_embeddings"]


REASONS = {
    "dlcl": "combination of all outputs",
    "normformer": "a HeadScale stands in front of the last matrix",
    "r_fixup": "no LayerNorm in its layers",
    "rezero": "no LayerNorm in its layers",
    "sub_ln": "a LayerNorm stands in front of the last matrix",
    "t_fixup": "no LayerNorm in its layers",
}


def test_every_method_folds_or_says_why_not():
    assert FOLDABLE | REASONS.keys() == METHODS.keys()


@pytest.mark.parametrize("method", REASONS)
def test_what_does_not_fold_is_refused_by_name(method):
    with pytest.raises(UserError, match=f"--method {method} has no plain Transformer: .*{REASONS[method]}"):
        fold_model(small(2, method=method), config(2, method=method))


def test_unknown_slots_are_noticed(monkeypatch):
    monkeypatch.setitem(METHODS, "every_slot", EverySlot)
    EverySlot.name = "every_slot"
    assert "combination" in obstacle(small(2, method="every_slot"))
    for empty in ("mixer", "ending", "before", "hidden", "inner", "outer"):
        monkeypatch.setattr(EverySlot, empty, lambda *_: None)
        found = obstacle(small(2, method="every_slot"))
        assert found is not None
    assert found == "a Gate merges shortcut and branch"


def test_a_vector_does_not_fold_downstream():
    with pytest.raises(UserError, match="--fold downstream"):
        fold_model(trained(2, method="admin"), config(2, method="admin"), "downstream")


def test_a_scaled_shortcut_under_pre_ln_is_noticed():
    fields = {"method": "normformer", "normformer_scale_residual": True} | BARE
    with pytest.raises(UserError, match="its shortcut is scaled"):
        fold_model(small(2, **fields), config(2, **fields))
