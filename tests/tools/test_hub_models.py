"""Tests of folded models in transformers: equal logits for every method that folds, refusals for the others.

Pre-LN translators become transformers' M2M100, Post-LN ones its FSMT, causal language models its OPT. A folded model is
a trained one whose method's factors were put into the weights of a plain Transformer (tools/export/fold.py).
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
import transformers

from deepnet_fairseq.core.archs import LM, MASKED_LM
from deepnet_fairseq.core.archs import MODEL_NAME as TRANSLATOR
from deepnet_fairseq.core.methods import METHODS
from deepnet_fairseq.tools.export.hub_models import AUTO, port
from deepnet_fairseq.tools.export.huggingface import write_model
from deepnet_fairseq.tools.export.transformer import Folded
from deepnet_fairseq.tools.translation import Settings

from ..support import single_stacks
from ..support.errors import refused
from ..support.folds import FOLDABLE, as_if_trained, folded
from ..support.helpers import PAD, VOCAB

LAYERS = 2  # of each stack
DIFFERENCE = 1e-4  # at most, of two logits; they differ by rounding


def folded_model(kind: str, **fields) -> Folded:
    """Return a model as after a training, folded; fields: of its config, flags of fairseq-train."""
    return folded(as_if_trained(kind, LAYERS, **fields), LAYERS, **fields)


# logits


def logits_by_transformers(folder, head: str, inputs: tuple) -> torch.Tensor:
    """Load an exported model; return its logits (B, T, V).

    head: end of its class's name, as "ForCausalLM"; inputs: as single_stacks.inputs returns them, (tokens,) or
    (src_tokens, None, prev_output_tokens).
    """
    auto_class = getattr(transformers, AUTO[head])
    model = auto_class.from_pretrained(folder, local_files_only=True).eval()

    read = inputs[0]
    words = {"input_ids": read, "attention_mask": read.ne(PAD).long()}
    if len(inputs) == 3:
        target = inputs[2]
        words["decoder_input_ids"] = target
        words["decoder_attention_mask"] = target.ne(PAD).long()
        words["use_cache"] = False  # an FSMT that fills a cache has no causal mask
    with torch.no_grad():
        return model(**words).logits


def assert_same_logits(folder, kind: str, **fields) -> None:
    """Check that transformers computes a trained model's logits from the files that are written into the folder."""
    trained = as_if_trained(kind, LAYERS, **fields)
    inputs = single_stacks.inputs(kind)
    expected = single_stacks.scores(trained, *inputs)
    search = Settings() if kind == TRANSLATOR else None

    # folded() changes the weights of `trained`, whose scores are known by now
    ported, difference_from_fold = write_model(folded(trained, LAYERS, **fields), folder, search)
    logits = logits_by_transformers(folder, ported.head, inputs)

    predicting = inputs[-1].ne(PAD)  # (B, T): tokens of the decoder, or of the only stack, that are not padding
    assert expected.std() > 0.1  # were all logits alike, they would be equal whatever transformers computes
    assert (logits - expected)[predicting].abs().max() <= DIFFERENCE
    assert difference_from_fold <= DIFFERENCE


@pytest.mark.parametrize("kind", [TRANSLATOR, LM])
@pytest.mark.parametrize("method", FOLDABLE)
def test_transformers_computes_the_logits_of_every_method_that_folds(method, kind, tmp_path):
    assert_same_logits(tmp_path, kind, method=method)


class Case(NamedTuple):
    """Config of a model, and what its port has."""

    kind: str
    fields: dict  # of the config, beside method deepnorm, a Post-LN, where they name none
    tied: bool  # whether one matrix embeds and predicts in transformers
    table: int | None  # tokens in a table of positions; None for positions by formula, which have no limit


DEFAULT_LENGTH = 1024  # tokens that have a position, by default of max_source_positions and max_target_positions
SHARED = {"share_all_embeddings": True}
SHARED_BY_DECODER = {"share_decoder_input_output_embed": True}
UNSCALED = {"no_scale_embedding": True}
NO_POSITIONS = {"no_token_positional_embeddings": True}
PRE_LN = {"method": "pre_ln"}
# Admin with trained omegas: the first omega multiplies embeddings and positions, so that the fold changes both
OMEGAS = {"method": "admin", "admin_train": "all"}
CASES = {
    "one embedding": Case(TRANSLATOR, SHARED, tied=True, table=None),
    "one embedding, Pre-LN": Case(TRANSLATOR, SHARED | PRE_LN, tied=True, table=None),
    # transformers ties all three embeddings of a translator, or none
    "a shared decoder": Case(TRANSLATOR, SHARED_BY_DECODER, tied=False, table=None),
    "a shared decoder, Pre-LN": Case(TRANSLATOR, SHARED_BY_DECODER | PRE_LN, tied=False, table=None),
    "unscaled embeddings": Case(TRANSLATOR, UNSCALED | {"activation_fn": "gelu"}, tied=False, table=None),
    # an FSMT has one limit, that of the stack with the shorter table
    "learned positions": Case(
        TRANSLATOR, {"encoder_learned_pos": True, "max_source_positions": 10}, tied=False, table=10
    ),
    # a table of zeros
    "no positions": Case(TRANSLATOR, NO_POSITIONS, tied=False, table=DEFAULT_LENGTH),
    # no formula gives positions with a factor, and the embedding with its factor no longer predicts
    "a factor in positions": Case(TRANSLATOR, OMEGAS | SHARED, tied=False, table=DEFAULT_LENGTH),
    # an OPT always has a table; its embedding takes up fairseq's factor of sqrt(C) and no longer predicts
    "causal, scaled": Case(LM, SHARED_BY_DECODER, tied=False, table=DEFAULT_LENGTH),
    "causal, unscaled": Case(LM, SHARED_BY_DECODER | UNSCALED, tied=True, table=DEFAULT_LENGTH),
    "causal, few positions": Case(
        LM, {"decoder_learned_pos": True, "max_target_positions": 10}, tied=False, table=10
    ),
    "causal, no positions": Case(LM, NO_POSITIONS | PRE_LN, tied=False, table=DEFAULT_LENGTH),
    "causal, a factor in positions": Case(LM, OMEGAS | SHARED_BY_DECODER, tied=False, table=DEFAULT_LENGTH),
}  # fmt: skip


def fields_of(case: Case) -> dict:
    return {"method": "deepnorm"} | case.fields


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_transformers_computes_the_logits_of_other_embeddings_and_positions(case, tmp_path):
    assert_same_logits(tmp_path, case.kind, **fields_of(case))


# what is written


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_port_ties_its_embeddings_and_has_a_table_of_positions_or_not(case):
    ported = port(folded_model(case.kind, **fields_of(case)))

    assert ported.config["tie_word_embeddings"] == case.tied
    assert ported.bounded == (case.table is not None)
    assert ported.longest == (DEFAULT_LENGTH if case.table is None else case.table)


@pytest.mark.parametrize("method", FOLDABLE)
def test_a_post_ln_becomes_an_fsmt_and_a_pre_ln_an_m2m100(method):
    ported = port(folded_model(TRANSLATOR, method=method))

    assert ported.name == {"post": "FSMT", "pre": "M2M100"}[METHODS[method].norm]


@pytest.mark.parametrize("method", FOLDABLE)
def test_a_causal_model_becomes_an_opt_wherever_its_layernorms_are(method):
    ported = port(folded_model(LM, method=method))

    assert ported.name == "OPT"
    assert ported.config["do_layer_norm_before"] == (METHODS[method].norm == "pre")


@pytest.mark.parametrize("kind", [TRANSLATOR, LM])
def test_weights_are_written_in_safetensors_alone(kind, tmp_path):
    search = Settings() if kind == TRANSLATOR else None

    write_model(folded_model(kind, method="deepnorm"), tmp_path, search)

    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".safetensors"}


# refusals


def assert_port_refused(folded: Folded, *named: str) -> None:
    """Check that a folded model is refused, with another --to and with all of `named` in the way out."""
    with refused("--to huggingface") as caught:
        port(folded)
    for word in ("--to transformer", *named):
        assert word in caught.value.way_out


EMBEDDINGS_NORMALISED = {"method": "post_ln", "layernorm_embedding": True}
REFUSED = [  # kind of model, fields of its config, what the refusal names
    (TRANSLATOR, EMBEDDINGS_NORMALISED, ("--layernorm-embedding", "ctranslate2")),  # no model has such a LayerNorm
    (LM, EMBEDDINGS_NORMALISED, ("--layernorm-embedding", "ctranslate2")),
    (TRANSLATOR, PRE_LN | {"decoder_learned_pos": True}, ("M2M100", "ctranslate2")),  # M2M100's positions are sinusoids
    (MASKED_LM, {"method": "deepnorm"}, ("roberta",)),  # fairseq's; only translators and causal models are ported
]


@pytest.mark.parametrize(("kind", "fields", "named"), REFUSED)
def test_a_model_that_transformers_cannot_compute_is_refused(kind, fields, named):
    assert_port_refused(folded_model(kind, **fields), *named)


def test_a_pre_ln_with_vocabularies_of_two_sizes_is_refused():
    """M2M100 has one vocabulary."""
    pre_ln = folded_model(TRANSLATOR, method="pre_ln")
    embedding = pre_ln.state["encoder.embed_tokens.weight"]
    pre_ln.state["encoder.embed_tokens.weight"] = embedding[:40]  # rows: source symbols

    assert_port_refused(pre_ln, "40", str(VOCAB), "--joined-dictionary")
