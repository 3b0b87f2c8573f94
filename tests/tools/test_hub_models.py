"""Tests of folded models in transformers: equal logits for every method that folds, refusals for the others."""

from __future__ import annotations

import pytest
import torch
import transformers

from deepnet_fairseq.core.archs import LM, MASKED_LM
from deepnet_fairseq.core.archs import MODEL_NAME as PAIR
from deepnet_fairseq.tools.export.hub_models import AUTO, port
from deepnet_fairseq.tools.export.huggingface import write_model
from deepnet_fairseq.tools.translation import Settings

from ..core.test_fold import FOLDABLE, folded, trained
from ..support import single_stacks
from ..support.errors import refused
from ..support.helpers import PAD

LAYERS = 2
TOLERANCE = 1e-4  # of a logit


def logits_by_transformers(model, kind: str, given: tuple):
    """Return the logits (B, T, V) of a model of transformers; given: the inputs of fairseq's model of that kind."""
    source = given[0]
    inputs = {"input_ids": source, "attention_mask": source.ne(PAD).long()}
    if kind == PAIR:
        target = given[-1]
        inputs["decoder_input_ids"] = target
        inputs["decoder_attention_mask"] = target.ne(PAD).long()
        inputs["use_cache"] = False
    with torch.no_grad():
        return model(**inputs).logits


def assert_same_logits(folder, kind: str = PAIR, **fields):
    """Check that the trained model, its fold in fairseq and the model of transformers give the same logits.

    fields: of the model's config. Returns what was written into the folder for transformers.
    """
    model = trained(kind, LAYERS, **fields)
    given = single_stacks.inputs(kind)
    before = single_stacks.scores(model, *given)
    assert before.std() > 0.1

    search = Settings() if kind == PAIR else None
    ported, difference = write_model(folded(model, LAYERS, **fields), folder, search)
    assert difference <= TOLERANCE

    loaded = getattr(transformers, AUTO[ported.head]).from_pretrained(folder, local_files_only=True).eval()
    after = logits_by_transformers(loaded, kind, given)
    real = given[-1].ne(PAD)
    assert (before - after)[real].abs().max() <= TOLERANCE
    return ported


@pytest.mark.parametrize("method", FOLDABLE)
def test_a_translator_has_the_same_logits_in_transformers(method, tmp_path):
    """A Pre-LN, whose stacks a LayerNorm closes, becomes an M2M100, and a Post-LN an FSMT."""
    ported = assert_same_logits(tmp_path, PAIR, method=method)

    is_pre_ln = "model.encoder.layer_norm.weight" in ported.state
    assert ported.name == ("M2M100" if is_pre_ln else "FSMT")
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".safetensors"}


@pytest.mark.parametrize("method", FOLDABLE)
def test_a_language_model_has_the_same_logits_in_transformers(method, tmp_path):
    ported = assert_same_logits(tmp_path, LM, method=method)

    assert ported.name == "OPT"
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".safetensors"}


TIED = {"share_decoder_input_output_embed": True}
LEARNED = {"encoder_learned_pos": True, "max_source_positions": 10}
FACTOR_IN_POSITIONS = {"method": "admin", "admin_train": "all"}  # omegas of the first layer scale its input
CASES = {  # kind, flags, whether one matrix embeds and predicts, size of a learned table of positions
    "one embedding": (PAIR, {"share_all_embeddings": True}, True, None),
    "one embedding, Pre-LN": (PAIR, {"share_all_embeddings": True, "method": "pre_ln"}, True, None),
    "a shared decoder": (PAIR, TIED, False, None),
    "a shared decoder, Pre-LN": (PAIR, TIED | {"method": "pre_ln"}, False, None),
    "embeddings as they are": (PAIR, {"no_scale_embedding": True, "activation_fn": "gelu"}, False, None),
    "learned positions": (PAIR, LEARNED, False, 10),
    "no positions": (PAIR, {"no_token_positional_embeddings": True}, False, 1024),
    "a factor in positions": (PAIR, FACTOR_IN_POSITIONS | {"share_all_embeddings": True}, False, 1024),
    "causal, scaled": (LM, TIED, False, 1024),
    "causal, as it is": (LM, TIED | {"no_scale_embedding": True}, True, 1024),
    "causal, few positions": (LM, {"decoder_learned_pos": True, "max_target_positions": 10}, False, 10),
    "causal, no positions": (LM, {"no_token_positional_embeddings": True, "method": "pre_ln"}, False, 1024),
    "causal, a factor in positions": (LM, FACTOR_IN_POSITIONS | TIED, False, 1024),
}


@pytest.mark.parametrize("case", CASES)
def test_other_flags_have_the_same_logits_in_transformers(case, tmp_path):
    kind, fields, tied, longest = CASES[case]

    ported = assert_same_logits(tmp_path, kind, **({"method": "deepnorm"} | fields))

    assert ported.config["tie_word_embeddings"] == tied
    assert ported.bounded == (longest is not None)
    assert ported.longest == (longest or 1024)


POST_LN_WITH_ONE_MORE = {"method": "post_ln", "layernorm_embedding": True}
REFUSED = {  # kind, flags, what the refusal names beside another --to
    "a causal LayerNorm on embeddings": (LM, POST_LN_WITH_ONE_MORE, "--layernorm-embedding"),
    "a LayerNorm on embeddings": (PAIR, POST_LN_WITH_ONE_MORE, "--layernorm-embedding"),
    "Pre-LN, learned positions": (PAIR, {"method": "pre_ln", "decoder_learned_pos": True}, "positions"),
    "masked": (MASKED_LM, {"method": "deepnorm"}, "roberta"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_model_that_transformers_has_no_place_for_is_refused(case):
    kind, fields, named = REFUSED[case]
    fold = folded(trained(kind, LAYERS, **fields), LAYERS, **fields)

    with refused("--to huggingface") as caught:
        port(fold)

    assert named in caught.value.way_out
    assert "--to transformer" in caught.value.way_out
    if kind == LM:
        assert "ctranslate2" in caught.value.way_out


def test_a_pre_ln_translator_of_two_vocabulary_sizes_is_refused():
    """An M2M100 has one vocabulary."""
    fold = folded(trained(PAIR, LAYERS, method="pre_ln"), LAYERS, method="pre_ln")
    fold.state["encoder.embed_tokens.weight"] = fold.state["encoder.embed_tokens.weight"][:40]

    with refused("--to huggingface") as caught:
        port(fold)

    assert "40 symbols" in caught.value.way_out
    assert "60" in caught.value.way_out
    assert "dictionary" in caught.value.way_out
