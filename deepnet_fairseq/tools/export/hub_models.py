"""Make fairseq's plain Transformers models of the transformers library ("there", in what follows).

| fairseq's | Post-LN | Pre-LN |
|---|---|---|
| transformer | FSMT | M2M100 |
| transformer_lm | OPT | OPT |

What differs there, read in transformers 5.23: FSMT has a table of positions, whose rows are counted as in fairseq, and
computes sinusoids in its place for a longer text; M2M100 always computes sinusoids; OPT has a table, which limits the
length of a text. FSMT ties all three embeddings or none; M2M100 and OPT have one vocabulary; OPT does not scale the
embedding by sqrt(C); none of them has a LayerNorm on embeddings.

V symbols, C width of the model, PAD = 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ...core.models import BOS, EOS, PAD
from ...core.modules import SinusoidalPositions
from ...errors import UserError
from .transformer import Folded

ACTIVATIONS = {  # fairseq's name -> transformers'
    "relu": "relu",
    "gelu": "gelu",
    "gelu_fast": "gelu_new",
    "gelu_accurate": "gelu_new",
    "tanh": "tanh",
    "linear": "linear",
    "relu_squared": "relu2",
}
# ways out of an error
TO_FAIRSEQ = "give --to transformer"
TO_OTHERS = f"{TO_FAIRSEQ} or ctranslate2"
LIMITS = {  # fairseq's model -> its stacks -> config field that says how many tokens have a position
    "transformer": {"encoder": "max_source_positions", "decoder": "max_target_positions"},
    "transformer_lm": {"decoder": "max_target_positions"},
}
# fairseq's model -> what the class there ends with
HEADS = {"transformer": "ForConditionalGeneration", "transformer_lm": "ForCausalLM"}
AUTO = {  # end of a class's name -> the Auto class that loads such a model
    "ForConditionalGeneration": "AutoModelForSeq2SeqLM",
    "ForCausalLM": "AutoModelForCausalLM",
}
MARKS = {"bos_token_id": BOS, "pad_token_id": PAD, "eos_token_id": EOS}  # config fields: numbers of special tokens


@dataclass(frozen=True)
class Port:
    """What a model of transformers is built from.

    name: what the names of its classes begin with; head: what the name of the whole model's class ends with; config:
    arguments of its config class; state: all its weights by their names there; longest: how many tokens have a
    position; bounded: True if positions come from a table of fixed length, which limits the length of a text, False if
    a formula gives those of any text.
    """

    name: str
    head: str
    config: dict
    state: dict[str, Tensor]
    longest: int
    bounded: bool


def port(folded: Folded) -> Port:
    """Return a folded model as one of transformers; UserError, with a way out, for what no model there computes."""
    kind = folded.stock.name
    if kind not in PORTS:
        raise misfit(f"this model becomes fairseq's {kind}, which is not written for it", TO_FAIRSEQ)
    if folded.config["layernorm_embedding"]:
        raise misfit("no model there has a LayerNorm on embeddings (--layernorm-embedding)")
    return PORTS[kind](folded)


def misfit(reason: str, way_out: str = TO_OTHERS) -> UserError:
    """Return the error for a model or text that transformers has no place for; way_out: what to do instead."""
    return UserError("--to huggingface", f"{reason}; {way_out}")


def _of_translation(folded: Folded) -> Port:
    """Return an M2M100 for a Pre-LN, an FSMT for a Post-LN.

    UserError if encoder and decoder differ in the place of their LayerNorms or in width.
    """
    pre_ln = {folded.config[f"{stack}_normalize_before"] for stack in LIMITS["transformer"]}
    if len(pre_ln) > 1:
        raise misfit("no model there places the LayerNorms of its encoder and of its decoder differently")
    widths = [folded.config[f"{stack}_embed_dim"] for stack in LIMITS["transformer"]]
    if len(set(widths)) > 1:
        raise misfit("encoder and decoder have one width there, and this model's have {} and {}".format(*widths))
    return _m2m100(folded) if pre_ln.pop() else _fsmt(folded)


def _fsmt(folded: Folded) -> Port:
    """Return an FSMT, Facebook's models of WMT19: Post-LN, two vocabularies, positions in a table.

    Its encoder and decoder have tables of one length.
    """
    tables = {stack: _positions(folded, stack) for stack in LIMITS["transformer"]}
    lengths = [len(table) - PAD - 1 for table in tables.values()]
    bounded = not all(_are_sinusoidal(folded, stack) for stack in tables)
    if bounded:
        longest = min(lengths)  # the longer table is cut below
    else:
        longest = max(lengths)  # the shorter table is computed anew
        tables = {stack: _sinusoids(longest, table.size(1)) for stack, table in tables.items()}

    state = _state(folded)
    for stack, table in tables.items():
        state[f"model.{stack}.embed_positions.weight"] = table[: longest + PAD + 1]

    fields = folded.config
    config = _translation_config(fields) | {
        "langs": ["source", "target"],  # read only by FSMT's own tokenizer, which is not written
        "src_vocab_size": state["model.encoder.embed_tokens.weight"].size(0),
        "tgt_vocab_size": state["model.decoder.embed_tokens.weight"].size(0),
        "max_position_embeddings": longest,
        "tie_word_embeddings": fields["share_all_embeddings"],
        "forced_eos_token_id": EOS,
    }
    return Port("FSMT", HEADS["transformer"], config=config, state=state, longest=longest, bounded=bounded)


def _m2m100(folded: Folded) -> Port:
    """Return an M2M100: Pre-LN with a closing LayerNorm, one vocabulary, sinusoidal positions."""
    limits = LIMITS["transformer"]
    if not all(_are_sinusoidal(folded, stack) for stack in limits):
        raise misfit("a Pre-LN becomes an M2M100, whose positions are sinusoidal, and this model's are not")
    read, predicted = folded.vocabulary_sizes
    if read != predicted:
        sizes = f"this model reads {read:,} symbols and writes {predicted:,}"
        way_out = "train on data of one dictionary (fairseq-preprocess --joined-dictionary), or " + TO_OTHERS
        raise misfit(f"a Pre-LN becomes an M2M100, which has one vocabulary, and {sizes}", way_out)

    state = _state(folded)
    state["lm_head.weight"] = state.pop("model.decoder.output_projection.weight")
    state["model.shared.weight"] = state["model.encoder.embed_tokens.weight"]

    fields = folded.config
    longest = max(fields[limit] for limit in limits.values())
    config = _translation_config(fields) | {
        "vocab_size": predicted,
        "max_position_embeddings": longest,
        "tie_word_embeddings": fields["share_all_embeddings"],
    }
    return Port("M2M100", HEADS["transformer"], config=config, state=state, longest=longest, bounded=False)


def _opt(folded: Folded) -> Port:
    """Return an OPT, a causal model, Pre-LN or Post-LN: one vocabulary, a table of positions, an unscaled embedding."""
    read, predicted = folded.vocabulary_sizes
    positions = _positions(folded, "decoder")
    longest = len(positions) - PAD - 1
    if read != predicted:
        raise misfit(f"an OPT has one vocabulary, and this model reads {read:,} symbols and predicts {predicted:,}")

    state = {}
    for name, value in _state(folded).items():
        state[name.replace("decoder.layer_norm.", "decoder.final_layer_norm.")] = value
    state["lm_head.weight"] = state.pop("model.decoder.output_projection.weight")
    state["model.decoder.embed_tokens.weight"] = _scaled_embedding(folded)
    state["model.decoder.embed_positions.weight"] = positions

    fields = folded.config
    add_bos_token = folded.sections.get("task", {}).get("add_bos_token")
    config = {
        "vocab_size": read,
        "hidden_size": fields["decoder_embed_dim"],
        "num_hidden_layers": fields["decoder_layers"],
        "ffn_dim": fields["decoder_ffn_embed_dim"],
        "num_attention_heads": fields["decoder_attention_heads"],
        "activation_function": ACTIVATIONS[fields["activation_fn"]],
        "do_layer_norm_before": fields["decoder_normalize_before"],
        "dropout": fields["dropout"],
        "attention_dropout": fields["attention_dropout"],
        "max_position_embeddings": longest,
        # the scaled embedding that is written here is no longer the output's matrix
        "tie_word_embeddings": fields["share_decoder_input_output_embed"] and fields["no_scale_embedding"],
        **MARKS,
        "bos_token_id": BOS if add_bos_token else EOS,  # what fairseq's blocks of text begin with
    }
    return Port("OPT", HEADS["transformer_lm"], config=config, state=state, longest=longest, bounded=True)


PORTS = {"transformer": _of_translation, "transformer_lm": _opt}  # fairseq's model -> the function that ports it


def _translation_config(fields: dict) -> dict:
    """Return the config that FSMT and M2M100 have in common; fields: the config of fairseq's model."""
    of_stacks: dict = {}
    for stack in LIMITS["transformer"]:
        of_stacks |= {
            f"{stack}_layers": fields[f"{stack}_layers"],
            f"{stack}_ffn_dim": fields[f"{stack}_ffn_embed_dim"],
            f"{stack}_attention_heads": fields[f"{stack}_attention_heads"],
            f"{stack}_layerdrop": 0.0,
        }
    return of_stacks | {
        "d_model": fields["encoder_embed_dim"],
        "activation_function": ACTIVATIONS[fields["activation_fn"]],
        "dropout": fields["dropout"],
        "attention_dropout": fields["attention_dropout"],
        "activation_dropout": fields["activation_dropout"],
        "scale_embedding": not fields["no_scale_embedding"],
        "decoder_start_token_id": EOS,
        **MARKS,
    }  # fmt: skip


def _state(folded: Folded) -> dict[str, Tensor]:
    """Return the weights by transformers' names, but for those of positions and fairseq's version numbers."""
    left_out = (".version", ".embed_positions.weight")
    return {f"model.{name}": value for name, value in folded.state.items() if not name.endswith(left_out)}


def _are_sinusoidal(folded: Folded, stack: str) -> bool:
    """Return whether the positions of a stack are sinusoids, and not learned or missing."""
    return not folded.config[f"{stack}_learned_pos"] and not folded.config["no_token_positional_embeddings"]


def _positions(folded: Folded, stack: str) -> Tensor:
    """Return a stack's table of positions (PAD + 1 + longest, C); zeros if it has no positions.

    Row PAD + 1 is that of the first token, as in fairseq, and `longest` tokens have a position.
    """
    fields = folded.config
    longest = fields[LIMITS[folded.stock.name][stack]]
    width = fields[f"{stack}_embed_dim"]
    if fields["no_token_positional_embeddings"]:
        return torch.zeros(longest + PAD + 1, width)
    if not fields[f"{stack}_learned_pos"]:
        return _sinusoids(longest, width)
    return folded.state[f"{stack}.embed_positions.weight"]


def _sinusoids(longest: int, width: int) -> Tensor:
    """Return fairseq's table (PAD + 1 + longest, width) of sinusoidal positions."""
    return SinusoidalPositions(longest, width, PAD).weights


def _scaled_embedding(folded: Folded) -> Tensor:
    """Return the embedding (V, C) of what the model reads, times the sqrt(C) by which fairseq multiplies it."""
    weight = folded.state[folded.stock.symbols[0]]
    if folded.config["no_scale_embedding"]:
        return weight
    return weight * math.sqrt(weight.size(1))
