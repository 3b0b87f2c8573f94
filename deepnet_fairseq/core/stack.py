"""Encoder and decoder with fairseq's interfaces: inputs, outputs, names of parameters.

Both share embeddings, the run through the layers and the last LayerNorm.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import UserError
from . import checkpoint_fit
from .cache import SENTENCES, DecoderCache, EncoderOutput, Sentences
from .constants import Constants, found
from .layer import CausalLayer, DecoderLayer, EncoderLayer, Layer, StackShape
from .methods import Method
from .modules import Dropout, LearnedPositions, SinusoidalPositions, empty_linear, submodules, to_add
from .pass_state import State, running
from .recomputation import group_size, recomputed

logger = logging.getLogger(__name__)
HISTORY = "history"  # key of the mixer's list in the state of a pass


class Stack(nn.Module):
    """Base of encoder and decoder: embeddings, N layers and what ends them, under fairseq's names.

    cfg: filled model config; shape: of this stack; method: that fills the slots, and whose constants checkpoints hold;
    embed_tokens: (symbols, C), with a padding index; layer_class: of all layers.
    B sentences, T tokens, C width, W (stream_dim) of the stream.
    """

    def __init__(
        self, cfg: Any, shape: StackShape, method: Method, embed_tokens: nn.Embedding, layer_class: type[Layer]
    ):
        nn.Module.__init__(self)  # not fairseq's, which the plugin's subclasses also inherit
        assert embed_tokens.padding_idx is not None  # fairseq's dictionaries have one
        self.name = shape.stack
        self.padding_idx: int = embed_tokens.padding_idx
        self.max_tokens, self.num_layers = shape.max_positions, shape.num_layers
        self.recomputed_layers = group_size(cfg)
        self.embed_tokens = embed_tokens
        self.embed_scale = 1.0 if cfg.no_scale_embedding else math.sqrt(shape.dim)
        self.embed_positions = None
        if not cfg.no_token_positional_embeddings:
            learned = getattr(cfg, f"{shape.stack}_learned_pos")
            kind = LearnedPositions if learned else SinusoidalPositions
            self.embed_positions = kind(self.max_tokens, shape.dim, self.padding_idx)
        self.layernorm_embedding = nn.LayerNorm(shape.dim) if cfg.layernorm_embedding else None
        self.dropout = Dropout(shape.dropout, module_name=f"Transformer{shape.stack.capitalize()}")
        self.layers = nn.ModuleList([layer_class(shape, method, l) for l in range(1, shape.num_layers + 1)])
        self.stream_dim = method.stream_width(shape.stack, shape.dim)
        self.layer_norm = nn.LayerNorm(self.stream_dim) if method.closing_norm(shape.stack) else None
        self.beginning = method.beginning(shape.stack, shape.dim)
        self.mixer = method.mixer(shape.stack, shape.dim)
        self.ending = method.ending(shape.stack, shape.dim)
        told = method.constants(shape.stack)
        self.finds_constants = told is None
        self.constants: Constants = self.found_constants() if told is None else told

    def found_constants(self) -> dict[str, float | list[float]]:
        """Return the constants of a method that does not name them, by constants.found."""
        places = (place for layer in self.layers for place in layer.norm_place.values())
        return found(self.slots(), places)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        """Add the stack's own parameters, and the method's constants as tensors () or (numbers,), to a state dict.

        The constants are no buffers: the layers compute with the method's numbers, and what a checkpoint says of them
        is made from the same numbers, whatever has been loaded.
        """
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name, value in self.constants.items():
            destination[f"{prefix}{name}"] = torch.tensor(value, device="cpu")  # where a comparison waits for no GPU

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load a state dict of the stack alone; raise a UserError if `strict` and its constants are another model's.

        With strict=False the stack keeps its own constants, and a warning says so.
        """
        if strict:
            self.check_constants(state_dict)
        return super().load_state_dict(state_dict, strict, assign)

    def check_constants(self, state_dict: Mapping[str, Any], prefix: str = "") -> None:
        """Raise a UserError for the first constant in a state dict that is not this stack's.

        prefix: of the stack's entries, "encoder." in a model's state dict.
        """
        for name in self.constants:
            saved = state_dict.get(f"{prefix}{name}")
            if saved is None:
                continue
            problem = self._other_constant(name, saved)
            if problem:
                raise UserError(f"{problem}; {checkpoint_fit.DEPTHS}")

    def lacked_constants(self, state_dict: Mapping[str, Any], prefix: str = "") -> list[str]:
        """List the constants that a state dict should have and has not.

        One without any is older than the first that were found, or a plain Transformer's, and lacks none; those that a
        method names are always asked for.
        """
        lacked = [name for name in self.constants if f"{prefix}{name}" not in state_dict]
        has_none = len(lacked) == len(self.constants)
        if self.finds_constants and has_none:
            return []
        return lacked

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Load the stack's own parameters; compare the constants, which are never loaded.

        torch calls this for each module of whatever is loaded, a whole model or the stack alone, and says of what is
        missing or unexpected afterwards, if it was asked to be strict.
        """
        missing_keys += [f"{prefix}{name}" for name in self.lacked_constants(state_dict, prefix)]
        for key in list(state_dict):
            name = key.removeprefix(prefix)
            if "." in name:  # of a module inside
                continue
            if name in self.constants:
                saved = state_dict.pop(key)  # from torch's copy, for to torch it is no part of the module
                problem = self._other_constant(name, saved)
                if problem:
                    unexpected_keys.append(problem)
                    logger.warning(f"{problem}; this model keeps its own")
            elif not checkpoint_fit.FOREIGN_KEY.fullmatch(f"{self.name}.{name}"):
                logger.warning(f"{self.name}.{name}: a constant of another method; this model has none")

        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )

    def _other_constant(self, name: str, saved: Tensor) -> str | None:
        """Say how a saved constant differs from this stack's; None if it does not, but for rounding."""
        is_half = saved.dtype in (torch.float16, torch.bfloat16)
        exact = self.finds_constants and not is_half
        return checkpoint_fit.other_constant(
            f"{self.name}.{name}",
            saved,
            self.constants[name],
            checkpoint_fit.EXACT if exact else checkpoint_fit.ROUNDING,
        )

    def embed(
        self, tokens: Tensor, positions: Tensor | None, token_embeddings: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the input of the first layer and the scaled token embeddings, (B, T, C) each.

        tokens (B, T); positions (B, T, C); token_embeddings (B, T, C): in place of the tokens' own.
        """
        if token_embeddings is None:
            token_embeddings = self.embed_tokens(tokens)
        embedding = self.embed_scale * token_embeddings
        x = embedding if positions is None else embedding + positions
        if self.layernorm_embedding is not None:
            x = self.layernorm_embedding(x)
        return self.dropout(x), embedding

    def positions(self, tokens: Tensor, last: bool = False) -> Tensor | None:
        """Return positional embeddings of tokens (B, T): (B, T, C), or (B, 1, C) of the last one alone."""
        return None if self.embed_positions is None else self.embed_positions(tokens, last)

    def transform(self, x: Tensor, *inputs: Any, recompute: bool = True) -> Tensor:
        """Run x (B, T, C) through all layers, and return (B, T, W). The arguments are those of `states`."""
        together = self.recomputed_layers or len(self.layers)
        for after in self.states(x, *inputs, recompute=recompute, together=together):
            x = after
        return x

    def states(
        self,
        x: Tensor,
        *inputs: Any,
        recompute: bool = True,
        layer_kwargs: dict[int, dict[str, Any]] | None = None,
        together: int = 1,
    ) -> Iterator[Tensor]:
        """Yield x (B, T, W) as the first layer reads it, and after each `together` layers in a row.

        x: embeddings (B, T, C). inputs: of every layer. layer_kwargs: further inputs of single layers by name, by the
        layer's index from 0. recompute: obey --checkpoint-activations, which keeps only x in front of each of these
        groups of layers, and computes the group's activations again in the backward pass.
        """
        state: State = {}
        recompute = recompute and self.recomputed_layers > 0 and torch.is_grad_enabled()
        x = self.begin(x, state)
        yield x

        layers = list(enumerate(self.layers))
        for first in range(0, len(layers), together):
            group = partial(self._through, layers[first : first + together], inputs, layer_kwargs or {})
            x = recomputed(group, x, state) if recompute else group(x, state)
            yield x

    def _through(
        self, layers: list[tuple[int, nn.Module]], inputs: tuple, layer_kwargs: dict, x: Tensor, state: State
    ) -> Tensor:
        """Run x (B, T, W) through some layers, given with their indices, each followed by the mixer."""
        with running(state):
            for index, layer in layers:
                x = self.mix(layer(x, *inputs, **layer_kwargs.get(index, {})), state)
        return x

    def begin(self, x: Tensor, state: State) -> Tensor:
        """Turn embeddings x (B, T, C) into the input of the first layer, (B, T, W)."""
        with running(state):
            return self.mix(x if self.beginning is None else self.beginning(x), state)

    def mix(self, y: Tensor, state: State) -> Tensor:
        """Return the input of the next layer, given the output y (B, T, W) of the embedding or of a layer."""
        return y if self.mixer is None else self.mixer(y, state.setdefault(HISTORY, []))

    def finish(self, x: Tensor) -> Tensor:
        """Apply the LayerNorm at the end, if there is one, and the method's `ending`, x (B, T, W) -> (B, T, C)."""
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        return x if self.ending is None else self.ending(x)

    def slots(self) -> Iterator[tuple[str, nn.Module]]:
        """Yield the method's modules with their addresses, "decoder.3.ffn.inner" or "decoder.mixer"."""
        for layer in self.layers:
            for sublayer, site in layer.sites.items():
                for name, module in layer.slots(sublayer).items():
                    yield f"{site}.{name}", module
        for name, module in (("beginning", self.beginning), ("mixer", self.mixer), ("ending", self.ending)):
            if module is not None:
                yield f"{self.name}.{name}", module

    def set_num_updates(self, num_updates: int) -> None:
        """Tell the modules that change with time how many updates are done.

        A module with a `follow` method copies from the first of its class: a thousand may need the same number.
        """
        firsts: dict[type, Any] = {}
        for module in submodules(self):
            if module is not self and hasattr(type(module), "set_num_updates"):
                first = firsts.setdefault(type(module), module)
                if module is not first and hasattr(module, "follow"):
                    module.follow(first)
                else:
                    module.set_num_updates(num_updates)

    def max_positions(self) -> int:
        """Return the longest sentence in tokens."""
        if self.embed_positions is None:
            return self.max_tokens
        return min(self.max_tokens, self.embed_positions.max_positions)


class Encoder(Stack):
    """Encoder of N EncoderLayers over source tokens; arguments as for Stack. B sentences, S tokens, C width."""

    def __init__(self, cfg: Any, method: Method, embed_tokens: nn.Embedding):
        Stack.__init__(
            self,
            cfg=cfg,
            shape=StackShape.from_config(cfg, "encoder"),
            method=method,
            embed_tokens=embed_tokens,
            layer_class=EncoderLayer,
        )
        self.max_source_positions = self.max_tokens

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None = None,
        return_all_hiddens: bool = False,
        token_embeddings: Tensor | None = None,
    ) -> dict:
        """Encode src_tokens (B, S), padded on either side, and return fairseq's dictionary of lists.

        token_embeddings (B, S, C) replace the tokens' own. The dictionary:

        encoder_out [(S, B, C)], encoder_padding_mask [(B, S)], encoder_embedding [(B, S, C)],
        encoder_states [(S, B, W) before and after every layer] if return_all_hiddens, src_lengths [(B, 1)]; and
        [Sentences], by which the beams of a sentence share keys and values in the decoder's cache.
        """
        places = src_tokens.eq(self.padding_idx)
        x, embedding = self.embed(src_tokens, self.positions(src_tokens), token_embeddings)
        # (B, 1, 1, S), also without padding: asking a GPU for it would be a host-device synchronisation
        mask = to_add(~places[:, None, None], x.dtype)
        x = x.masked_fill(places.unsqueeze(-1), 0)
        states = list(self.states(x, mask)) if return_all_hiddens else []
        x = states[-1] if states else self.transform(x, mask)
        x = self.finish(x).transpose(0, 1)
        return {
            "encoder_out": [x],
            "encoder_padding_mask": [places],
            "encoder_embedding": [embedding],
            "encoder_states": [state.transpose(0, 1) for state in states],
            "src_tokens": [],
            "src_lengths": [(~places).sum(1, keepdim=True, dtype=torch.int32)],
            SENTENCES: [Sentences(x, places)],
        }

    def reorder_encoder_out(self, encoder_out: dict, new_order: Tensor) -> dict:
        """Return the dictionary of a batch whose row i is row new_order[i] of this one."""
        (sentences,) = encoder_out[SENTENCES]
        rows = new_order if sentences.rows is None else sentences.rows.index_select(0, new_order)
        unmoved = sentences.rows is not None and rows.is_cpu and torch.equal(rows, sentences.rows)
        if unmoved:  # beams of a sentence have changed places; asking a GPU for this takes longer than the copies below
            return encoder_out

        reordered = {}
        for name, tensors in encoder_out.items():
            if name != SENTENCES:
                batch_dim = 1 if name in ("encoder_out", "encoder_states") else 0
                reordered[name] = [tensor.index_select(batch_dim, new_order) for tensor in tensors]
        return reordered | {SENTENCES: [sentences._replace(rows=rows)]}


class Decoder(Stack):
    """Decoder of M layers and the projection to the vocabulary; it has cross-attention if there is an encoder.

    symbols: V, that it predicts; tied: whether the projection shares the matrix of embed_tokens; other arguments are
    those of Stack. B sentences (rows of hypotheses in beam search), T target and S source tokens, C width, V symbols.
    """

    CACHE = "deepnet.cache"  # its key in fairseq's incremental_state, which beam search carries along

    def __init__(self, cfg: Any, method: Method, embed_tokens: nn.Embedding, symbols: int, tied: bool):
        shape = StackShape.from_config(cfg, "decoder")
        attends = "encoder_attn" in method.sublayers("decoder")
        Stack.__init__(
            self,
            cfg=cfg,
            shape=shape,
            method=method,
            embed_tokens=embed_tokens,
            layer_class=DecoderLayer if attends else CausalLayer,
        )
        self.attends = attends
        self.need_attn = attends
        self.max_target_positions = self.max_tokens
        self.output_projection = empty_linear(shape.dim, symbols, bias=False)
        if tied:
            self.output_projection.weight = embed_tokens.weight

    def forward(
        self,
        prev_output_tokens: Tensor,
        encoder_out: dict | None = None,
        incremental_state: dict | None = None,
        features_only: bool = False,
        full_context_alignment: bool = False,
        alignment_layer: int | None = None,
        alignment_heads: int | None = None,
        src_lengths: Tensor | None = None,
        return_all_hiddens: bool = False,
    ) -> tuple[Tensor, dict]:
        """Return scores (B, T, V) of prev_output_tokens (B, T), or features (B, T, C), and a dictionary.

        features_only: return the features; the dictionary and the other arguments are those of extract_features.
        """
        x, extra = self.extract_features(
            prev_output_tokens,
            encoder_out,
            incremental_state,
            return_all_hiddens=return_all_hiddens,
            alignment_layer=alignment_layer,
            full_context_alignment=full_context_alignment,
            alignment_heads=alignment_heads,
        )
        if not features_only:
            x = self.output_layer(x)
        return x, extra

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: dict | None = None,
        incremental_state: dict | None = None,
        return_all_hiddens: bool = False,
        alignment_layer: int | None = None,
        full_context_alignment: bool = False,
        alignment_heads: int | None = None,
        src_lengths: Tensor | None = None,
    ) -> tuple[Tensor, dict]:
        """Return features (B, T, C) and a dictionary; with an incremental_state, of the newest token alone (B, 1, C).

        A call with an incremental_state must pass one token more than the call before, else ValueError.
        full_context_alignment: let each token see later ones too;
        alignment_heads: how many heads to average; src_lengths is fairseq's and not read.
        The dictionary holds attn [(B, T, S)], the cross-attention of layer `alignment_layer` (default: the last)
        averaged over heads, or [None] if it was not requested (training, generation without alignments) or is absent;
        and inner_states, [(T, B, W) before and after every layer] if return_all_hiddens.
        """
        watched = alignment_layer if self.attends else None
        if watched is None and self.need_attn and not self.training:
            watched = len(self.layers) - 1
        alignment: list[Tensor] = []
        layer_kwargs = {} if watched is None else {watched: {"alignment": alignment}}

        cache = self.cache(prev_output_tokens, encoder_out, incremental_state)
        newest = prev_output_tokens if cache is None else prev_output_tokens[:, -1:]
        x, _embedding = self.embed(newest, self.positions(prev_output_tokens, last=cache is not None))
        if cache is not None:
            x, mask = cache.advance(x)
            memory = cache.memory
        else:
            mask = to_add(self._mask(prev_output_tokens, full_context_alignment), x.dtype)
            memory = None
            if encoder_out is not None and self.attends:
                memory = EncoderOutput.by_row(encoder_out)

        inputs = (mask, cache) if memory is None else (mask, memory.states, memory.mask, cache)
        recompute = cache is None  # a second pass would extend the cache twice
        if layer_kwargs or return_all_hiddens:
            every = self.states(x, *inputs, recompute=recompute, layer_kwargs=layer_kwargs)
            states = list(every if return_all_hiddens else deque(every, maxlen=1))  # the others are not kept alive
        else:
            states = [self.transform(x, *inputs, recompute=recompute)]

        weights = [by_head[:, :alignment_heads].mean(1) for by_head in alignment]
        if cache is not None:
            states = [cache.of_batch(state) for state in states]
            weights = [cache.of_batch(weight) for weight in weights]
        inner_states = [state.transpose(0, 1) for state in states] if return_all_hiddens else []
        return self.finish(states[-1]), {"attn": weights or [None], "inner_states": inner_states}

    def cache(self, tokens: Tensor, encoder_out: dict | None, incremental_state: dict | None) -> DecoderCache | None:
        """Return the cache in fairseq's incremental_state, made at the first step; None without incremental_state.

        Raises a ValueError if tokens (B, T) are not one more than those that the cache holds.
        """
        if incremental_state is None:
            return None
        if self.CACHE not in incremental_state:
            memory = EncoderOutput.by_sentence(encoder_out) if self.attends and encoder_out else None
            incremental_state[self.CACHE] = {"cache": DecoderCache(memory, len(tokens))}
        cache = incremental_state[self.CACHE]["cache"]
        if tokens.size(1) != cache.length + 1:
            raise ValueError(
                f"incremental_state holds {cache.length} tokens of each row and prev_output_tokens {tokens.size(1)}: "
                "give the whole prefix, one token longer in each call"
            )
        return cache

    def output_layer(self, features: Tensor) -> Tensor:
        """Project features (B, T, C) to scores over the vocabulary (B, T, V)."""
        return self.output_projection(features)

    def reorder_incremental_state_scripting(self, incremental_state: dict, new_order: Tensor) -> None:
        """Reorder the cache after a step of beam search: row i continues row new_order[i], (rows,)."""
        if self.CACHE in incremental_state:
            incremental_state[self.CACHE]["cache"].reorder(new_order)

    def make_generation_fast_(self, need_attn: bool = True, **_: object) -> None:
        """Compute attention weights only under --print-alignment; fairseq-generate calls this before decoding."""
        self.need_attn = need_attn and self.attends

    def _mask(self, tokens: Tensor, everywhere: bool) -> Tensor:
        """Return the mask of self-attention, broadcastable to (B, 1, T, T), True where a query may look.

        A query at padding sees itself, because a softmax over nothing is NaN. everywhere: tokens see later ones too.
        The mask is built for every batch: asking whether one is padded on the left would be a host-device
        synchronisation.
        """
        padding = tokens.eq(self.padding_idx)
        if everywhere:
            return ~padding[:, None, None]
        length = tokens.size(1)
        causal = torch.ones(length, length, dtype=torch.bool, device=tokens.device).tril()
        itself = torch.eye(length, dtype=torch.bool, device=tokens.device)
        return (causal & ~padding[:, None, None]) | itself
