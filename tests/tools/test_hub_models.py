"""Tests of folded models in transformers: equal logits for every method that folds, refusals for the others."""

from __future__ import annotations

import pytest
import torch
import transformers

from deepnet_fairseq.core.archs import LM, MASKED_LM
from deepnet_fairseq.core.archs import MODEL_NAME as PAIR
from deepnet_fairseq.errors import UserError
from deepnet_fairseq.tools.export.hub_models import AUTO, port
from deepnet_fairseq.tools.export.huggingface import write_model
from deepnet_fairseq.tools.translation import Settings

from ..support import single_stacks
from ..support.folds import FOLDABLE, as_if_trained, folded
from ..support.helpers import PAD

ALL_OMEGAS = {"method": "admin", "admin_train": "all"}


def assert_same_logits(folder, kind=PAIR, **fields):
    """Check that the trained model, its fold in fairseq and the model of transformers give the same logits."""
    model = as_if_trained(kind, 2, **fields)
    given = single_stacks.inputs(kind)
    source, target = given[0], given[-1]
    before = single_stacks.scores(model, *given)
    search = Settings() if kind == PAIR else None
    ported, difference = write_model(folded(model, 2, **fields), folder, search)
    loaded = getattr(transformers, AUTO[ported.head]).from_pretrained(folder, local_files_only=True).eval()
    asked = {"input_ids": source, "attention_mask": source.ne(PAD).long()}
    if kind == PAIR:
        masks = {"decoder_attention_mask": target.ne(PAD).long(), "use_cache": False}
        asked |= {"decoder_input_ids": target} | masks
    with torch.no_grad():
        theirs = loaded(**asked).logits
    assert before.std() > 0.1 and difference <= 1e-4
    assert (before - theirs)[target.ne(PAD)].abs().max() <= 1e-4
    return ported


@pytest.mark.parametrize("kind", (PAIR, LM))
@pytest.mark.parametrize("method", FOLDABLE)
def test_same_logits(method, kind, tmp_path):
    ported = assert_same_logits(tmp_path, kind, method=method)
    closed = {PAIR: "model.encoder.layer_norm.weight", LM: "model.decoder.final_layer_norm.weight"}
    names = {PAIR: ("FSMT", "M2M100"), LM: ("OPT", "OPT")}
    assert ported.name == names[kind][closed[kind] in ported.state]
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".safetensors"}


TIED, LEARNED = {"share_decoder_input_output_embed": True}, {"encoder_learned_pos": True, "max_source_positions": 10}
CASES = {  # kind, flags, whether one matrix embeds and predicts, size of a learned table of positions
    "one embedding": (PAIR, {"share_all_embeddings": True}, True, None),
    "one embedding, Pre-LN": (PAIR, {"share_all_embeddings": True, "method": "pre_ln"}, True, None),
    "a shared decoder": (PAIR, TIED, False, None),
    "a shared decoder, Pre-LN": (PAIR, TIED | {"method": "pre_ln"}, False, None),
    "embeddings as they are": (PAIR, {"no_scale_embedding": True, "activation_fn": "gelu"}, False, None),
    "learned positions": (PAIR, LEARNED, False, 10),
    "no positions": (PAIR, {"no_token_positional_embeddings": True}, False, 1024),
    "a factor in positions": (PAIR, ALL_OMEGAS | {"share_all_embeddings": True}, False, 1024),
    "causal, scaled": (LM, TIED, False, 1024),
    "causal, as it is": (LM, TIED | {"no_scale_embedding": True}, True, 1024),
    "causal, few positions": (LM, {"decoder_learned_pos": True, "max_target_positions": 10}, False, 10),
    "causal, no positions": (LM, {"no_token_positional_embeddings": True, "method": "pre_ln"}, False, 1024),
    "causal, a factor in positions": (LM, ALL_OMEGAS | TIED, False, 1024),
}


@pytest.mark.parametrize("case", CASES)
def test_same_logits_with_other_flags(case, tmp_path):
    kind, fields, tied, longest = CASES[case]
    ported = assert_same_logits(tmp_path, kind, **({"method": "deepnorm"} | fields))
    assert ported.config["tie_word_embeddings"] == tied and ported.bounded == (longest is not None)
    assert ported.longest == (longest or 1024)


REFUSED = {
    "a causal LayerNorm on embeddings": (
        LM, {"method": "post_ln", "layernorm_embedding": True}, "--layernorm-embedding.*or ctranslate2",
    ),
    "a LayerNorm on embeddings": (PAIR, {"method": "post_ln", "layernorm_embedding": True}, "--layernorm-embedding"),
    "Pre-LN, learned positions": (PAIR, {"method": "pre_ln", "decoder_learned_pos": True}, "positions are sinusoidal"),
    "masked": (MASKED_LM, {"method": "deepnorm"}, "becomes fairseq's roberta"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_place_is_refused(case):
    kind, fields, message = REFUSED[case]
    with pytest.raises(UserError, match=f"^--to huggingface: [^\n]*{message}[^\n]*") as refused:
        port(folded(as_if_trained(kind, 2, **fields), 2, **fields))
    assert "; give --to transformer" in str(refused.value)


def test_two_sizes_of_vocabulary_are_no_m2m100():
    plain = folded(as_if_trained(PAIR, 2, method="pre_ln"), 2, method="pre_ln")
    plain.state["encoder.embed_tokens.weight"] = plain.state["encoder.embed_tokens.weight"][:40]
    with pytest.raises(UserError, match="reads 40 symbols and writes 60; train on data of one dictionary"):
        port(plain)
