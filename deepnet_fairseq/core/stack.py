"""Encoder and decoder with fairseq's interfaces: inputs, outputs, names of parameters.

Their base class Stack has what both share: embeddings, the run through the layers, the last LayerNorm, and the places
for modules of a method (its slots, methods/base.py) that belong to a whole stack: `beginning` behind the embeddings,
`mixer` between layers and `ending` behind the last LayerNorm. A constant of a method is a number that its modules
compute with and that is neither parameter nor buffer, as DeepNorm's alpha (constants.py).

Shapes: B sentences, S source and T target tokens (T tokens of either in Stack), C width in features, W width of the
residual stream between layers, C for most methods.
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
from ..wording import counted
from . import checkpoint_fit
from .cache import SENTENCES, DecoderCache, EncoderOutput, Sentences
from .constants import Constants, find_constants
from .layer import CausalLayer, DecoderLayer, EncoderLayer, Layer, StackShape
from .methods import Method
from .modules import Dropout, LearnedPositions, SinusoidalPositions, additive_mask, empty_linear, submodules
from .pass_state import State, running
from .recomputation import group_size, recomputed

logger = logging.getLogger(__name__)
HISTORY = "history"  # key of the list that Method.mixer is given, in the state of a forward pass (pass_state.py)


class Stack(nn.Module):
    """Base of encoder and decoder: embeddings, layers, and what follows the last layer, under fairseq's names.

    cfg: model config after archs.fill; shape: of this stack; method: the one that fills the slots, and whose constants
    (numbers that the layers compute with, see constants.py) checkpoints hold; embed_tokens: the embedding (symbols, C),
    with a padding index; layer_class: class of all layers.
    """

    def __init__(
        self, cfg: Any, shape: StackShape, method: Method, embed_tokens: nn.Embedding, layer_class: type[Layer]
    ):
        nn.Module.__init__(self)  # not fairseq's, which the plugin's subclasses also inherit
        assert embed_tokens.padding_idx is not None  # fairseq's dictionaries have one
        self.name = shape.stack
        self.padding_idx: int = embed_tokens.padding_idx
        self.max_tokens = shape.max_positions
        self.num_layers = shape.num_layers
        self.recomputed_layers = group_size(cfg)  # how many are recomputed together, 0 without --checkpoint-activations
        # whether a recomputation draws the same random numbers as the first pass; CUDA graphs set this to False, which
        # must not read the random generators, and they give up if the layers draw any
        self.recomputes_random_numbers = True

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
        self.stream_dim = method.stream_width(shape.stack, shape.dim)  # W
        self.layer_norm = nn.LayerNorm(self.stream_dim) if method.closing_norm(shape.stack) else None
        self.beginning = method.beginning(shape.stack, shape.dim)
        self.mixer = method.mixer(shape.stack, shape.dim)
        self.ending = method.ending(shape.stack, shape.dim)

        named_by_method = method.constants(shape.stack)
        self.constants_were_found = named_by_method is None  # by find_constants, because the method does not name them
        self.constants: Constants = self._find_constants() if named_by_method is None else named_by_method

    def _find_constants(self) -> dict[str, float | list[float]]:
        """Return the constants of a method that does not name them."""
        norm_places = (place for layer in self.layers for place in layer.norm_place.values())
        return find_constants(self.slots(), norm_places)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        """Add the method's constants, as tensors () or (numbers,), to what nn.Module adds of the stack to a state dict.

        The constants are no buffers, so that loading cannot change them: the layers compute with the numbers of this
        model's method, and the state dict holds these, whatever was loaded before.
        """
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name, value in self.constants.items():
            # on the CPU, where comparing them waits for no GPU
            destination[f"{prefix}{name}"] = torch.tensor(value, device="cpu")

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load a state dict of the stack alone; raise a UserError if `strict` and its constants are another model's.

        With strict=False the stack keeps its own constants, and a warning says so. The arguments are nn.Module's.
        """
        if strict:
            self.check_constants(state_dict)
        return super().load_state_dict(state_dict, strict, assign)

    def check_constants(self, state_dict: Mapping[str, Any], prefix: str = "") -> None:
        """Raise a UserError for the first constant in a state dict that differs from this stack's.

        prefix: in front of the names of the stack's entries, "encoder." in the state dict of a whole model. A constant
        that the state dict does not have is no error here; missing_constants lists those.
        """
        for name in self.constants:
            saved = state_dict.get(f"{prefix}{name}")
            if saved is None:
                continue
            problem = self._other_constant(name, saved)
            if problem:
                raise UserError(f"{problem}; {checkpoint_fit.DEPTHS}")

    def missing_constants(self, state_dict: Mapping[str, Any], prefix: str = "") -> list[str]:
        """List the names of the constants that a state dict should have and has not; prefix: as in check_constants.

        Constants that the method names are always required. Those that find_constants found may all be absent: the
        state dict is then older than that function, or it is that of a plain Transformer.
        """
        missing = [name for name in self.constants if f"{prefix}{name}" not in state_dict]
        all_are_missing = len(missing) == len(self.constants)
        if self.constants_were_found and all_are_missing:
            return []
        return missing

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
        """Compare the constants in a state dict, which are never loaded, and load what nn.Module loads of the stack.

        torch calls this for each module of whatever is loaded, a whole model or the stack alone; the arguments are
        torch's. If the load is strict, torch raises an error afterwards with all texts in `missing_keys` and
        `unexpected_keys`.
        """
        missing_keys += [f"{prefix}{name}" for name in self.missing_constants(state_dict, prefix)]
        for key in list(state_dict):
            name = key.removeprefix(prefix)
            if "." in name:  # the entry of another module; the stack's own entries are constants
                continue
            if name in self.constants:
                saved = state_dict.pop(key)  # from torch's own copy; torch would call the key unexpected
                problem = self._other_constant(name, saved)
                if problem:
                    unexpected_keys.append(problem)  # a text in place of a key, for torch's error
                    logger.warning(f"{problem}; this model keeps its own")
            elif not checkpoint_fit.FOREIGN_KEY.fullmatch(f"{self.name}.{name}"):
                logger.warning(f"{self.name}.{name}: a constant of another method; this model has none")

        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )

    def _other_constant(self, name: str, saved: Tensor) -> str | None:
        """Say how a saved constant () or (numbers,) differs from this stack's; None if it does not, but for rounding.

        name: of the constant. Constants that find_constants found are saved in float32 and compared nearly exactly,
        unless somebody has cast the checkpoint to half precision. Those that a method names may have been saved in half
        precision and are compared more loosely.
        """
        is_half = saved.dtype in (torch.float16, torch.bfloat16)
        is_exact = self.constants_were_found and not is_half
        return checkpoint_fit.other_constant(
            f"{self.name}.{name}",
            saved,
            self.constants[name],
            checkpoint_fit.EXACT if is_exact else checkpoint_fit.ROUNDING,
        )

    def embed(
        self, tokens: Tensor, positions: Tensor | None, token_embeddings: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the embeddings that go into the stack, and those of tokens alone, (B, T, C) each.

        The first are the second plus positions, after LayerNorm (--layernorm-embedding) and dropout; the second are
        scaled (by sqrt(C), unless --no-scale-embedding). tokens (B, T); positions: result of `self.positions`,
        None for none; token_embeddings (B, T, C): used instead of the embeddings of `tokens`, not scaled yet.
        """
        if token_embeddings is None:
            token_embeddings = self.embed_tokens(tokens)
        embedding = self.embed_scale * token_embeddings
        x = embedding if positions is None else embedding + positions
        if self.layernorm_embedding is not None:
            x = self.layernorm_embedding(x)
        return self.dropout(x), embedding

    def positions(self, tokens: Tensor, last: bool = False) -> Tensor | None:
        """Return positional embeddings (B, T, C) of tokens (B, T); None in a model without them.

        last: return those of the last position alone, (B, 1, C) or (1, 1, C).
        """
        return None if self.embed_positions is None else self.embed_positions(tokens, last)

    def transform(self, x: Tensor, *inputs: Any, recompute: bool = True) -> Tensor:
        """Run x (B, T, C) through all layers and return the last of `states`, (B, T, W); arguments as for `states`."""
        together = self.recomputed_layers or len(self.layers)  # as one group if none are recomputed
        for hidden in self.states(x, *inputs, recompute=recompute, together=together):
            x = hidden
        return x

    def states(
        self,
        x: Tensor,
        *inputs: Any,
        recompute: bool = True,
        layer_kwargs: dict[int, dict[str, Any]] | None = None,
        together: int = 1,
    ) -> Iterator[Tensor]:
        """Yield the hidden states (B, T, W): the input of the first layer, then the output of each group of layers.

        Where there is a `mixer`, these are its results. x: embeddings (B, T, C); inputs: further arguments of every
        layer's forward; layer_kwargs: index of a layer, from 0 -> keyword arguments for this layer alone; together:
        number of layers in a group. recompute: whether to obey --checkpoint-activations, which keeps only the input of
        each group, and computes the group's activations again in the backward pass.
        """
        state: State = {}  # what modules in the slots of several layers share in this pass, see pass_state.py
        recompute = recompute and self.recomputed_layers > 0 and torch.is_grad_enabled()
        x = self.begin(x, state)
        yield x

        layers = list(enumerate(self.layers))
        for first in range(0, len(layers), together):
            group = partial(self._run_layers, layers[first : first + together], inputs, layer_kwargs or {})
            x = recomputed(group, x, state, self.recomputes_random_numbers) if recompute else group(x, state)
            yield x

    def _run_layers(
        self,
        layers: list[tuple[int, nn.Module]],
        inputs: tuple,
        layer_kwargs: dict[int, dict[str, Any]],
        x: Tensor,
        state: State,
    ) -> Tensor:
        """Run x (B, T, W) through some layers, each followed by the mixer, and return the result (B, T, W).

        layers: pairs (index from 0, layer); inputs, layer_kwargs: as for `states`; state: of this forward pass.
        """
        with running(state):
            for index, layer in layers:
                y = layer(x, *inputs, **layer_kwargs.get(index, {}))
                x = self.mix(y, state)
        return x

    def begin(self, x: Tensor, state: State) -> Tensor:
        """Turn embeddings x (B, T, C) into the input of the first layer, (B, T, W); state: of this forward pass."""
        with running(state):
            y = x if self.beginning is None else self.beginning(x)
            return self.mix(y, state)

    def mix(self, y: Tensor, state: State) -> Tensor:
        """Return the input (B, T, W) of the next layer, given the output y of `beginning` or of a layer.

        y is (B, T, W), or the embedding (B, T, C) if there is no `beginning`; state: of this forward pass.
        """
        if self.mixer is None:
            return y
        history = state.setdefault(HISTORY, [])
        return self.mixer(y, history)

    def finish(self, x: Tensor) -> Tensor:
        """Apply the LayerNorm at the end, if there is one, and the method's `ending`, x (B, T, W) -> (B, T, C)."""
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        return x if self.ending is None else self.ending(x)

    def slots(self) -> Iterator[tuple[str, nn.Module]]:
        """Yield address and module of each slot that the method has filled, in the layers and in the stack itself.

        Every slot `residual` is among them, see Layer.slots. The address of a layer's slot is "decoder.3.ffn.inner"
        (stack, layer from 1, branch, slot), that of a stack's slot "decoder.mixer".
        """
        for layer in self.layers:
            for sublayer, site in layer.sites.items():
                for name, module in layer.slots(sublayer).items():
                    yield f"{site}.{name}", module
        for name, module in (("beginning", self.beginning), ("mixer", self.mixer), ("ending", self.ending)):
            if module is not None:
                yield f"{self.name}.{name}", module

    def set_num_updates(self, num_updates: int) -> None:
        """Tell the modules that have a method set_num_updates how many updates of the training are done.

        Where their class has a method `follow`, only one module of the class is told, the first that is met, in
        whatever layer; each of the others is called as module.follow(first) and takes the numbers of the first. In a
        deep stack this saves thousands of small operations an update.
        """
        firsts: dict[type, Any] = {}  # class -> the first module of it that was met
        for module in submodules(self):
            # `self` has the method, too; asking the class is faster than asking the module
            if module is not self and hasattr(type(module), "set_num_updates"):
                first = firsts.setdefault(type(module), module)
                if module is not first and hasattr(module, "follow"):
                    module.follow(first)
                else:
                    module.set_num_updates(num_updates)

    def max_positions(self) -> int:
        """Return the length of the longest sentence that the stack can take, in tokens."""
        if self.embed_positions is None:
            return self.max_tokens
        return min(self.max_tokens, self.embed_positions.max_positions)


class Encoder(Stack):
    """Encoder of N EncoderLayers over source tokens; arguments as for Stack."""

    def __init__(self, cfg: Any, method: Method, embed_tokens: nn.Embedding):
        Stack.__init__(
            self,
            cfg=cfg,
            shape=StackShape.from_config(cfg, "encoder"),
            method=method,
            embed_tokens=embed_tokens,
            layer_class=EncoderLayer,
        )
        self.max_source_positions = self.max_tokens  # fairseq's name

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None = None,
        return_all_hiddens: bool = False,
        token_embeddings: Tensor | None = None,
    ) -> dict:
        """Encode src_tokens (B, S), padded on either side, and return fairseq's dictionary of lists.

        src_lengths: fairseq's, not read; return_all_hiddens: fill the list encoder_states; token_embeddings (B, S, C):
        replace those of the tokens, see `embed`. The lists are

        encoder_out           [(S, B, C)]
        encoder_padding_mask  [(B, S)], True at padding
        encoder_embedding     [(B, S, C)], scaled token embeddings
        encoder_states        [(S, B, W) before the first and after every layer] if return_all_hiddens, else []
        src_tokens            []
        src_lengths           [(B, 1)], number of tokens, without padding
        cache.SENTENCES       [Sentences], by which the beams of a sentence share keys and values in the decoder's cache
        """
        is_padding = src_tokens.eq(self.padding_idx)
        x, embedding = self.embed(src_tokens, self.positions(src_tokens), token_embeddings)
        # (B, 1, 1, S); it is made for batches without padding too, because asking a GPU whether a batch has padding
        # would be a host-device synchronisation
        mask = additive_mask(~is_padding[:, None, None], x.dtype)
        x = x.masked_fill(is_padding.unsqueeze(-1), 0)  # as in fairseq

        states = list(self.states(x, mask)) if return_all_hiddens else []
        x = states[-1] if states else self.transform(x, mask)
        x = self.finish(x).transpose(0, 1)  # (B, S, C) -> (S, B, C)
        return {
            "encoder_out": [x],
            "encoder_padding_mask": [is_padding],
            "encoder_embedding": [embedding],
            "encoder_states": [state.transpose(0, 1) for state in states],
            "src_tokens": [],
            "src_lengths": [(~is_padding).sum(1, keepdim=True, dtype=torch.int32)],
            SENTENCES: [Sentences(x, is_padding)],
        }

    def reorder_encoder_out(self, encoder_out: dict, new_order: Tensor) -> dict:
        """Return the dictionary of `forward` for a batch whose row i is row new_order[i] of the given one.

        fairseq's beam search calls this to repeat each sentence for its beams, and after each step. encoder_out: result
        of `forward` or of this method; new_order (rows,).
        """
        (sentences,) = encoder_out[SENTENCES]
        # the sentence of each row; the sentences themselves stay as they are, each once
        rows = new_order if sentences.rows is None else sentences.rows.index_select(0, new_order)

        # nothing changes if only beams of the same sentence have changed places; to compare the rows on a GPU would
        # take longer than the copies below
        if sentences.rows is not None and rows.is_cpu and torch.equal(rows, sentences.rows):
            return encoder_out

        reordered = {}
        for name, tensors in encoder_out.items():
            if name != SENTENCES:
                batch_dim = 1 if name in ("encoder_out", "encoder_states") else 0  # those two are (S, B, ..)
                reordered[name] = [tensor.index_select(batch_dim, new_order) for tensor in tensors]
        return reordered | {SENTENCES: [sentences._replace(rows=rows)]}


class Decoder(Stack):
    """Decoder of M layers and the projection to the vocabulary; it has cross-attention if there is an encoder.

    symbols: V, the number of symbols that it predicts; tied: whether the projection shares the matrix of embed_tokens;
    other arguments are those of Stack. B is the number of rows of a batch: sentences in training, the hypotheses of all
    sentences in beam search.
    """

    CACHE = "deepnet.cache"  # key of {"cache": DecoderCache} in fairseq's incremental_state, a dict kept between steps

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
        self.attends = attends  # whether it has cross-attention
        self.need_attn = attends  # whether to return its weights in evaluation mode; fairseq's name
        self.max_target_positions = self.max_tokens  # fairseq's name
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
        """Return scores (B, T, V) of the tokens that follow prev_output_tokens (B, T), and a dictionary.

        features_only: return features (B, T, C) in place of scores. With an incremental_state T is 1 in the result,
        which is for the newest token alone. The dictionary and the other arguments are those of extract_features.
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
        """Return features (B, T, C), the output of the stack, for prev_output_tokens (B, T), and a dictionary.

        encoder_out: result of the encoder, None without one. incremental_state: None in training; in generation
        fairseq's dict, in which keys and values are kept between calls: features are then those of the newest token
        alone, (B, 1, C), and each call must pass one token more than the call before, else ValueError.
        full_context_alignment: let each token see later ones too. src_lengths is fairseq's and not read.

        The dictionary holds
        attn          [(B, T, S)], cross-attention weights of layer `alignment_layer` (from 0; default: the last),
                      averaged over the first `alignment_heads` heads (default: all). [None] without
                      cross-attention; unless an alignment_layer is given, also in training, and after
                      make_generation_fast_(need_attn=False)
        inner_states  [(T, B, W) before the first and after every layer] if return_all_hiddens, else []
        """
        # index of the layer that is to append its cross-attention weights to `alignment`, None for no layer
        watched_layer = alignment_layer if self.attends else None
        if watched_layer is None and self.need_attn and not self.training:
            watched_layer = len(self.layers) - 1
        alignment: list[Tensor] = []
        layer_kwargs = {} if watched_layer is None else {watched_layer: {"alignment": alignment}}

        # input of the first layer, mask of self-attention, and what cross-attention reads
        cache = self.cache(prev_output_tokens, encoder_out, incremental_state)
        newest = prev_output_tokens if cache is None else prev_output_tokens[:, -1:]
        x, _embedding = self.embed(newest, self.positions(prev_output_tokens, last=cache is not None))
        if cache is not None:
            x, mask = cache.advance(x)
            memory = cache.memory
        else:
            mask = additive_mask(self._mask(prev_output_tokens, full_context_alignment), x.dtype)
            memory = None
            if encoder_out is not None and self.attends:
                memory = EncoderOutput.by_row(encoder_out)

        # the layers; `states` ends with the output of the last one
        inputs = (mask, cache) if memory is None else (mask, memory.states, memory.mask, cache)
        recompute = cache is None  # a second pass would extend the cache twice
        if layer_kwargs or return_all_hiddens:
            every_state = self.states(x, *inputs, recompute=recompute, layer_kwargs=layer_kwargs)
            # a deque of length 1 keeps the last state alone, and frees the others as it goes; None keeps all
            maxlen = None if return_all_hiddens else 1
            states = list(deque(every_state, maxlen))
        else:
            states = [self.transform(x, *inputs, recompute=recompute)]

        attn = [weights[:, :alignment_heads].mean(1) for weights in alignment]  # (B, h, T, S) -> (B, T, S)
        if cache is not None:  # the layers had the beams of a sentence in place of its tokens
            states = [cache.rows_of_batch(state) for state in states]
            attn = [cache.rows_of_batch(weights) for weights in attn]
        inner_states = [state.transpose(0, 1) for state in states] if return_all_hiddens else []
        return self.finish(states[-1]), {"attn": attn or [None], "inner_states": inner_states}

    def cache(self, tokens: Tensor, encoder_out: dict | None, incremental_state: dict | None) -> DecoderCache | None:
        """Return the cache in fairseq's incremental_state, made at the first step; None without incremental_state.

        tokens (B, T): the whole prefix of each row; the others are as in extract_features. Raises a ValueError if the
        prefixes are not one token longer than those in the cache.
        """
        if incremental_state is None:
            return None
        if self.CACHE not in incremental_state:
            memory = None
            if self.attends and encoder_out:
                memory = EncoderOutput.by_sentence(encoder_out)
            incremental_state[self.CACHE] = {"cache": DecoderCache(memory, len(tokens))}
        cache = incremental_state[self.CACHE]["cache"]
        if tokens.size(1) != cache.length + 1:
            raise ValueError(
                f"incremental_state holds {counted(cache.length, 'token')} of each row and prev_output_tokens "
                f"{tokens.size(1)}: give the whole prefix, one token longer in each call"
            )
        return cache

    def output_layer(self, features: Tensor) -> Tensor:
        """Project features (B, T, C) to scores over the vocabulary (B, T, V)."""
        return self.output_projection(features)

    def reorder_incremental_state_scripting(self, incremental_state: dict, new_order: Tensor) -> None:
        """Reorder the cache after a step of beam search, in which row i continues row new_order[i]; new_order (rows,).

        incremental_state: as in extract_features.
        """
        if self.CACHE in incremental_state:
            incremental_state[self.CACHE]["cache"].reorder(new_order)

    def make_generation_fast_(self, need_attn: bool = True, **_: object) -> None:
        """Let `forward` return attention weights in evaluation mode if `need_attn`, else only for an alignment_layer.

        fairseq-generate calls this before decoding, with need_attn=True under --print-alignment.
        """
        self.need_attn = need_attn and self.attends

    def _mask(self, tokens: Tensor, everywhere: bool) -> Tensor:
        """Return the mask of self-attention, broadcastable to (B, 1, T, T), True where a query may look.

        tokens (B, T); everywhere: let each token see all tokens, later ones too, but no padding. Otherwise each token
        sees itself and the tokens before it. Padding sees itself too: queries at padding on the left would else look
        nowhere. The mask is built for every batch, because asking a GPU whether one is padded on the left would be a
        host-device synchronisation.
        """
        is_padding = tokens.eq(self.padding_idx)
        if everywhere:
            return ~is_padding[:, None, None]
        length = tokens.size(1)
        causal = torch.ones(length, length, dtype=torch.bool, device=tokens.device).tril()
        itself = torch.eye(length, dtype=torch.bool, device=tokens.device)
        return (causal & ~is_padding[:, None, None]) | itself
