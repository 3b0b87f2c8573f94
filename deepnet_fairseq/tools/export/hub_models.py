"""Port fairseq's plain Transformers to the transformers library: choose the model there that computes the same.

"There" is always that library, and a port what a model of it is built from: its config and its weights.

| fairseq's | Post-LN | Pre-LN |
|---|---|---|
| transformer | FSMT | M2M100 |
| transformer_lm | OPT | OPT |

What differs there, read in transformers 5.23: FSMT has a table of positions, whose rows are counted as in fairseq, and
computes sinusoids in its place for a longer text; M2M100 always computes sinusoids; OPT has a table, which limits the
length of a text. FSMT ties all three embeddings or none; M2M100 and OPT have one vocabulary; OPT does not scale the
embedding by sqrt(C); none of them has a LayerNorm on embeddings.

A stack is the encoder or the decoder. A table of positions has rows 0 to PAD without use, and from row PAD + 1 on one
for each token. V symbols, C width of the model, PAD = 1.
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
# what to do instead, at the end of an error
TO_FAIRSEQ = "give --to transformer"
TO_OTHERS = f"{TO_FAIRSEQ} or ctranslate2"
LIMITS = {  # name of fairseq's model -> its stacks -> config field that says how many tokens have a position
    "transformer": {"encoder": "max_source_positions", "decoder": "max_target_positions"},
    "transformer_lm": {"decoder": "max_target_positions"},
}
# name of fairseq's model -> what the name of the class there ends with
HEADS = {"transformer": "ForConditionalGeneration", "transformer_lm": "ForCausalLM"}
AUTO = {  # end of a class's name -> the Auto class that loads such a model
    "ForConditionalGeneration": "AutoModelForSeq2SeqLM",
    "ForCausalLM": "AutoModelForCausalLM",
}
SPECIAL_TOKENS = {"bos_token_id": BOS, "pad_token_id": PAD, "eos_token_id": EOS}  # config field there -> its number


@dataclass(frozen=True)
class Port:
    """What a model of transformers is built from.

    name: what the names of its classes begin with, such as "FSMT"; head: what the name of the whole model's class ends
    with, a value of HEADS; config: arguments of its config class, by name; state: all its weights by their names there;
    longest: how many tokens have a position; bounded: True if positions come from a table of fixed length, which limits
    the length of a text, False if a formula gives those of any text.
    """

    name: str
    head: str
    config: dict
    state: dict[str, Tensor]
    longest: int
    bounded: bool


def port(folded: Folded) -> Port:
    """Return the port of a folded model, a plain Transformer of fairseq's.

    Raises a UserError, with a way out, for a model that none there computes.
    """
    fairseq_name = folded.stock.name
    if fairseq_name not in PORTS:
        raise misfit(f"this model becomes fairseq's {fairseq_name}, which is not written for it", TO_FAIRSEQ)
    if folded.config["layernorm_embedding"]:
        raise misfit("no model there has a LayerNorm on embeddings (--layernorm-embedding)")
    return PORTS[fairseq_name](folded)


def misfit(reason: str, way_out: str = TO_OTHERS) -> UserError:
    """Return the error for a model or text that transformers has no place for; way_out: what to do instead."""
    return UserError("--to huggingface", f"{reason}; {way_out}")


def _port_translation(folded: Folded) -> Port:
    """Return the port of a translation model: to M2M100 from a Pre-LN, to FSMT from a Post-LN.

    Raises a UserError if encoder and decoder differ in the place of their LayerNorms or in width.
    """
    stacks = LIMITS["transformer"]
    pre_ln = {folded.config[f"{stack}_normalize_before"] for stack in stacks}
    if len(pre_ln) > 1:
        raise misfit("no model there places the LayerNorms of its encoder and of its decoder differently")
    widths = [folded.config[f"{stack}_embed_dim"] for stack in stacks]
    if len(set(widths)) > 1:
        raise misfit("encoder and decoder have one width there, and this model's have {} and {}".format(*widths))

    is_pre_ln = pre_ln.pop()
    return _port_m2m100(folded) if is_pre_ln else _port_fsmt(folded)


def _port_fsmt(folded: Folded) -> Port:
    """Return the port to FSMT, Facebook's models of WMT19: Post-LN, two vocabularies, positions in a table.

    FSMT has one limit for encoder and decoder, so both tables of positions get the same length.
    """
    tables = {stack: _position_table(folded, stack) for stack in LIMITS["transformer"]}
    lengths = [len(table) - PAD - 1 for table in tables.values()]  # in tokens that have a position
    bounded = not all(_are_sinusoidal(folded, stack) for stack in tables)
    if bounded:
        longest = min(lengths)  # the longer table is cut below
    else:
        longest = max(lengths)  # the shorter table is computed anew
        tables = {stack: _sinusoidal_table(longest, table.size(1)) for stack, table in tables.items()}

    state = _renamed_state(folded)
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


def _port_m2m100(folded: Folded) -> Port:
    """Return the port to M2M100: Pre-LN with a closing LayerNorm, one vocabulary, sinusoidal positions.

    Raises a UserError for positions that are not sinusoidal, and for two vocabularies of different sizes.
    """
    limits = LIMITS["transformer"]
    if not all(_are_sinusoidal(folded, stack) for stack in limits):
        raise misfit("a Pre-LN becomes an M2M100, whose positions are sinusoidal, and this model's are not")
    read, predicted = folded.vocabulary_sizes
    if read != predicted:
        sizes = f"this model reads {read:,} symbols and writes {predicted:,}"
        way_out = "train on data of one dictionary (fairseq-preprocess --joined-dictionary), or " + TO_OTHERS
        raise misfit(f"a Pre-LN becomes an M2M100, which has one vocabulary, and {sizes}", way_out)

    state = _renamed_state(folded)
    state["lm_head.weight"] = state.pop("model.decoder.output_projection.weight")
    state["model.shared.weight"] = state["model.encoder.embed_tokens.weight"]  # M2M100 has it under both names

    fields = folded.config
    longest = max(fields[limit] for limit in limits.values())  # the model there has one limit for both stacks
    config = _translation_config(fields) | {
        "vocab_size": predicted,
        "max_position_embeddings": longest,
        "tie_word_embeddings": fields["share_all_embeddings"],
    }
    return Port("M2M100", HEADS["transformer"], config=config, state=state, longest=longest, bounded=False)


def _port_opt(folded: Folded) -> Port:
    """Return the port of a language model to OPT, a causal model, Pre-LN or Post-LN.

    OPT has one vocabulary, a table of positions, and an embedding that is not scaled by sqrt(C). Raises a UserError if
    the model reads and predicts different numbers of symbols.
    """
    read, predicted = folded.vocabulary_sizes
    positions = _position_table(folded, "decoder")
    longest = len(positions) - PAD - 1  # tokens that have a position
    if read != predicted:
        raise misfit(f"an OPT has one vocabulary, and this model reads {read:,} symbols and predicts {predicted:,}")

    state = {}
    for name, value in _renamed_state(folded).items():
        state[name.replace("decoder.layer_norm.", "decoder.final_layer_norm.")] = value  # the closing LayerNorm
    state["lm_head.weight"] = state.pop("model.decoder.output_projection.weight")
    state["model.decoder.embed_tokens.weight"] = _scaled_embedding(folded)
    state["model.decoder.embed_positions.weight"] = positions

    fields = folded.config
    task_section = folded.sections.get("task", {})  # of the run's config; {} for what fold_model returns
    first_token = BOS if task_section.get("add_bos_token") else EOS  # with which fairseq's blocks of text begin
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
        # an embedding that was multiplied by sqrt(C) above no longer equals the projection to the vocabulary
        "tie_word_embeddings": fields["share_decoder_input_output_embed"] and fields["no_scale_embedding"],
        **SPECIAL_TOKENS,
        "bos_token_id": first_token,
    }
    return Port("OPT", HEADS["transformer_lm"], config=config, state=state, longest=longest, bounded=True)


PORTS = {"transformer": _port_translation, "transformer_lm": _port_opt}  # name of fairseq's model -> function


def _translation_config(fields: dict) -> dict:
    """Return the config fields that FSMT and M2M100 have in common, by name, with their values.

    fields: the config of fairseq's model.
    """
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
        **SPECIAL_TOKENS,
    }  # fmt: skip


def _renamed_state(folded: Folded) -> dict[str, Tensor]:
    """Return the weights by transformers' names, which are fairseq's behind "model.".

    Left out are fairseq's version numbers, which nothing there reads, and the tables of positions, which the caller
    adds where the model there has them.
    """
    left_out = (".version", ".embed_positions.weight")
    return {f"model.{name}": value for name, value in folded.state.items() if not name.endswith(left_out)}


def _are_sinusoidal(folded: Folded, stack: str) -> bool:
    """Return whether the positions of a stack are sinusoidal: neither learned nor missing."""
    return not folded.config[f"{stack}_learned_pos"] and not folded.config["no_token_positional_embeddings"]


def _position_table(folded: Folded, stack: str) -> Tensor:
    """Return a stack's table of positions (PAD + 1 + longest, C); zeros if it has no positions.

    As in fairseq, row PAD + 1 is that of the first token; `longest` is the number of tokens that have a position.
    """
    fields = folded.config
    longest = fields[LIMITS[folded.stock.name][stack]]
    width = fields[f"{stack}_embed_dim"]
    if fields["no_token_positional_embeddings"]:
        return torch.zeros(longest + PAD + 1, width)
    if not fields[f"{stack}_learned_pos"]:
        return _sinusoidal_table(longest, width)
    return folded.state[f"{stack}.embed_positions.weight"]


def _sinusoidal_table(longest: int, width: int) -> Tensor:
    """Return fairseq's table (PAD + 1 + longest, width) of sinusoidal positions, for `longest` tokens."""
    return SinusoidalPositions(longest, width, PAD).weights


def _scaled_embedding(folded: Folded) -> Tensor:
    """Return the embedding (V, C) of what the model reads, times sqrt(C) if fairseq's model multiplies by that."""
    name, _ = folded.stock.symbols  # of the embedding, and of the projection to the vocabulary
    weight = folded.state[name]
    if folded.config["no_scale_embedding"]:
        return weight
    return weight * math.sqrt(weight.size(1))
