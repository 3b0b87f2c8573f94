"""Encoder and decoder, by fairseq's contracts for both: what goes in, what comes out, names of parameters.

What they share: embeddings, the run through the layers, the last LayerNorm.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .attention import to_add
from .decoding import DecoderCache, EncoderOutput, LayerStep
from .layer import CausalLayer, DecoderLayer, EncoderLayer, Layer, StackShape
from .methods import Method
from .modules import Dropout, LearnedPositions, Linear, SinusoidalPositions, submodules
from .recomputation import Recomputation


@dataclass(frozen=True)
class Padding:
    """What the host knows of a batch, so that no forward pass waits for a GPU's answer; None where it does not know.

    source: is there padding in what the encoder reads? left: is a sentence that the decoder reads padded on the left?
    """

    source: bool | None = None
    left: bool | None = None

    @classmethod
    def of(cls, model: Any, tokens: dict[str, Tensor]) -> Padding:
        """Of the `tokens` (B, T) of each stack of a model, as DeepModel.tokens gives them."""
        padding = {name: read.eq(model.stacks()[name].padding_idx) for name, read in tokens.items()}
        asked = {"source": padding.get("encoder"), "left": padding["decoder"][:, 0] if "decoder" in padding else None}
        return cls(**{name: bool(mask.any()) for name, mask in asked.items() if mask is not None})


UNKNOWN = Padding()


class Stack(nn.Module):
    """What encoder and decoder have in common. B sentences, T tokens, C width, W (stream_dim) of the stream."""

    def assemble(
        self, cfg: Any, shape: StackShape, method: Method, embed_tokens: nn.Embedding, layer_class: type[Layer]
    ) -> None:
        """Makes the modules under fairseq's names and the method's constants as buffers."""
        assert embed_tokens.padding_idx is not None  # fairseq's dictionaries have one
        self.name = shape.stack
        self.padding_idx: int = embed_tokens.padding_idx
        self.max_tokens = shape.max_positions
        self.recomputation = Recomputation.from_config(cfg)
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
        for name, value in method.constants(shape.stack).items():
            self.register_buffer(name, torch.tensor(value))

    def embed(self, tokens: Tensor, positions: Tensor | None) -> tuple[Tensor, Tensor]:
        """tokens (B, T), positions (B, T, C) -> input of the first layer and bare token embedding, each (B, T, C)."""
        embedding = self.embed_scale * self.embed_tokens(tokens)
        x = embedding if positions is None else embedding + positions
        if self.layernorm_embedding is not None:
            x = self.layernorm_embedding(x)
        return self.dropout(x), embedding

    def positions(self, tokens: Tensor, last: bool = False) -> Tensor | None:
        """Positional embeddings of tokens (B, T): (B, T, C), or (B, 1, C) of the last one alone."""
        return None if self.embed_positions is None else self.embed_positions(tokens, last)

    def transform(self, x: Tensor, *inputs: Any) -> Tensor:
        """x (B, T, C) through mixer and all layers -> (B, T, W): what training runs.

        inputs: those of every layer.
        """
        history: list[Tensor] = []
        x = self.begin(x, history)
        layers = list(self.layers)
        every = len(layers) if self.recomputation is None else self.recomputation.every
        for first in range(0, len(layers), every):
            x = self.run(layers[first : first + every], inputs, x, history)
        return x

    def states(self, x: Tensor, *inputs: Any, more: dict[int, tuple] | None = None) -> Iterator[Tensor]:
        """As `transform`, but layer by layer, and gives x (B, T, W) as the first layer reads it and behind each one.

        more: further inputs of one layer, by its index from 0.
        """
        history: list[Tensor] = []
        x = self.begin(x, history)
        yield x
        for index, layer in enumerate(self.layers):
            x = self.run([layer], (*inputs, *(more or {}).get(index, ())), x, history)
            yield x

    def run(self, layers: Iterable[Callable[..., Tensor]], inputs: tuple, x: Tensor, history: list[Tensor]) -> Tensor:
        """x through some layers in a row, each with mixer; under --checkpoint-activations nothing but x is kept."""

        def part(x: Tensor, history: list[Tensor]) -> Tensor:
            for layer in layers:
                x = self.mix(layer(x, *inputs), history)
            return x

        return part(x, history) if self.recomputation is None else self.recomputation(part, x, history)

    def begin(self, x: Tensor, history: list[Tensor]) -> Tensor:
        """What the first layer reads, of embeddings x (B, T, C) -> (B, T, W)."""
        return self.mix(x if self.beginning is None else self.beginning(x), history)

    def mix(self, y: Tensor, history: list[Tensor]) -> Tensor:
        """What the next layer reads when the embedding or a layer has given y; `history` lives for one forward pass."""
        return y if self.mixer is None else self.mixer(y, history)

    def finish(self, x: Tensor) -> Tensor:
        """The end of the stack, x (B, T, W) -> (B, T, C): its LayerNorm if it has one, then the method's `ending`."""
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        return x if self.ending is None else self.ending(x)

    def slots(self) -> Iterator[tuple[str, nn.Module]]:
        """The modules that came from the method, with their addresses: "decoder.3.ffn.inner", "decoder.mixer"."""
        for layer in self.layers:
            for sublayer, site in layer.sites.items():
                yield from ((f"{site}.{name}", module) for name, module in layer.slots(sublayer).items())
        ends = {"beginning": self.beginning, "mixer": self.mixer, "ending": self.ending}
        yield from ((f"{self.name}.{name}", module) for name, module in ends.items() if module is not None)

    def set_num_updates(self, num_updates: int) -> None:
        """Tells the modules below that change with time how many updates are done.

        One that can `follow` another of its class is told of the first, for a thousand may need one number.
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
        """Longest sentence in tokens."""
        if self.embed_positions is None:
            return self.max_tokens
        return min(self.max_tokens, self.embed_positions.max_positions)


class Encoder(Stack):
    """N EncoderLayers over source tokens, made by `build`. B sentences, S tokens, C width."""

    def build(self, cfg: Any, method: Method, embed_tokens: nn.Embedding) -> Encoder:
        """Itself with its modules, of a filled model config."""
        self.assemble(cfg, StackShape.from_config(cfg, "encoder"), method, embed_tokens, EncoderLayer)
        return self

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None = None,
        return_all_hiddens: bool = False,
        padding: Padding | None = None,
    ) -> dict:
        """src_tokens (B, S), padded on either side, maybe with what the host knows -> fairseq's dictionary of lists.

        encoder_out [(S, B, C)], encoder_padding_mask [(B, S)], encoder_embedding [(B, S, C)],
        encoder_states [(S, B, W) before and after every layer] if return_all_hiddens, src_lengths [(B, 1)]; and
        padded: is there padding?
        """
        places = src_tokens.eq(self.padding_idx)
        padded = (padding or UNKNOWN).source
        if padded is None:
            padded = bool(places.any())  # waits for the device
        x, embedding = self.embed(src_tokens, self.positions(src_tokens))
        mask = None
        if padded:
            mask = to_add(~places[:, None, None], x.dtype)  # (B, 1, 1, S)
            x = x.masked_fill(places.unsqueeze(-1), 0)
        states = list(self.states(x, mask)) if return_all_hiddens else []
        x = states[-1] if states else self.transform(x, mask)
        x = self.finish(x)
        return {
            "encoder_out": [x.transpose(0, 1)],
            "encoder_padding_mask": [places],
            "encoder_embedding": [embedding],
            "encoder_states": [state.transpose(0, 1) for state in states],
            "src_tokens": [],
            "src_lengths": [(~places).sum(1, keepdim=True, dtype=torch.int32)],
            "padded": padded,
        }

    def reorder_encoder_out(self, encoder_out: dict, new_order: Tensor) -> dict:
        """Row i of the decoder's batch reads what row new_order[i] read.

        The output stays one a sentence, whatever beam search asks for: `rows` says which sentence each row reads, and
        the decoder's cache holds what follows from it.
        """
        rows = encoder_out.get("rows")
        return encoder_out | {"rows": new_order if rows is None else rows.index_select(0, new_order)}


class Decoder(Stack):
    """M layers over target tokens and the projection to the vocabulary; without an encoder, no cross-attention.

    Made by `build`. B sentences (rows of hypotheses in beam search), T target and S source tokens, C width, V symbols.
    """

    CACHE = "deepnet.cache"  # its place in fairseq's incremental_state, which beam search carries along

    def build(self, cfg: Any, method: Method, embed_tokens: nn.Embedding, symbols: int, tied: bool) -> Decoder:
        """Itself with its modules, of a filled model config, to predict V = `symbols`.

        tied: is the projection the matrix of embed_tokens?
        """
        shape = StackShape.from_config(cfg, "decoder")
        self.attends = "encoder_attn" in method.sublayers("decoder")
        self.assemble(cfg, shape, method, embed_tokens, DecoderLayer if self.attends else CausalLayer)
        self.need_attn = self.attends
        self.output_projection = Linear(shape.dim, symbols, bias=False)
        if tied:
            self.output_projection.weight = embed_tokens.weight
        return self

    def forward(
        self, prev_output_tokens: Tensor, *inputs: Any, features_only: bool = False, **options: Any
    ) -> tuple[Tensor, dict]:
        """prev_output_tokens (B, T) -> scores (B, T, V) (or features (B, T, C)), and more, see extract_features.

        inputs, options: those of extract_features.
        """
        x, extra = self.extract_features(prev_output_tokens, *inputs, **options)
        return (x if features_only else self.output_layer(x)), extra

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: dict | None = None,
        incremental_state: dict | None = None,
        return_all_hiddens: bool = False,
        alignment_layer: int | None = None,
        padding: Padding | None = None,
    ) -> tuple[Tensor, dict]:
        """Features (B, T, C); with an incremental_state those of the newest token alone (B, 1, C).

        padding: what the host knows of it, if anything.
        The dictionary holds attn [(B, T, S)], the cross-attention of layer `alignment_layer` (default: the last)
        averaged over heads, or [None] where nobody asks (training, generation without alignments) or there is none;
        and inner_states, [(T, B, W) before and after every layer] if return_all_hiddens.
        """
        watched = alignment_layer if self.attends else None
        alignment: list[Tensor] = []
        if watched is None and self.need_attn and not self.training:
            watched = len(self.layers) - 1
        more = {} if watched is None else {watched: (alignment,)}
        positions = self.positions(prev_output_tokens, last=incremental_state is not None)
        if incremental_state is not None:
            x, _embedding = self.embed(prev_output_tokens[:, -1:], positions)
            states: Iterable[Tensor] = self.step(x, incremental_state, encoder_out, more, return_all_hiddens)
        else:
            x, _embedding = self.embed(prev_output_tokens, positions)
            mask = self._left_padding_mask(prev_output_tokens, padding or UNKNOWN)
            inputs: tuple[Tensor | None, ...] = (None if mask is None else to_add(mask, x.dtype),)
            if self.attends:
                memory = EncoderOutput.of(encoder_out)
                inputs += (memory.states, memory.mask)
            asked = more or return_all_hiddens
            states = self.states(x, *inputs, more=more) if asked else [self.transform(x, *inputs)]
        kept = list(states) if return_all_hiddens else deque(states, maxlen=1)
        inner_states = [state.transpose(0, 1) for state in kept] if return_all_hiddens else []
        return self.finish(kept[-1]), {"attn": alignment[:1] or [None], "inner_states": inner_states}

    @torch.no_grad()
    def step(
        self, x: Tensor, incremental_state: dict, encoder_out: dict | None, more: dict[int, tuple], every: bool
    ) -> list[Tensor]:
        """What `states` gives, or the last of it unless `every`, of each hypothesis's newest token, x (rows, 1, C).

        Without gradients, for the cache is written in place.
        """
        if self.CACHE not in incremental_state:
            memory = EncoderOutput.of(encoder_out, rows=False) if self.attends else None
            cache = DecoderCache(list(self.layers), memory, x)
            steps = [LayerStep(layer, index, cache) for index, layer in enumerate(self.layers)]
            incremental_state[self.CACHE] = cache, steps
        cache, steps = incremental_state[self.CACHE]
        mask = cache.advance()
        history: list[Tensor] = []
        x = self.begin(cache.arranged(x.squeeze(1)), history)
        states = [x]
        for index, step in enumerate(steps):
            x = self.mix(step(x, mask, *more.get(index, ())), history)
            states.append(x)
        return [cache.restored(state).unsqueeze(1) for state in (states if every else states[-1:])]

    def output_layer(self, features: Tensor) -> Tensor:
        """(B, T, C) -> scores over the vocabulary (B, T, V)."""
        return self.output_projection(features)

    def reorder_incremental_state_scripting(self, incremental_state: dict, new_order: Tensor) -> None:
        """Beam search's call after each step, by fairseq's name; row i goes on from row new_order[i], (rows,)."""
        if self.CACHE in incremental_state:
            cache, _steps = incremental_state[self.CACHE]
            cache.reorder(new_order)

    def make_generation_fast_(self, need_attn: bool = True, **_: Any) -> None:
        """fairseq-generate's call before decoding: attention weights only under --print-alignment."""
        self.need_attn = need_attn and self.attends

    def _left_padding_mask(self, tokens: Tensor, known: Padding) -> Tensor | None:
        """(B, 1, T, T), True where a query may look, if a sentence is padded on the left; None if none is.

        Padding on the right needs no mask: it lies in the future of every token. A padding query sees itself only, for
        a softmax over nothing is not a number.
        """
        if known.left is False:
            return None
        padding = tokens.eq(self.padding_idx)
        if known.left is None and not padding[:, 0].any():  # waits for the device
            return None
        length = tokens.size(1)
        causal = torch.ones(length, length, dtype=torch.bool, device=tokens.device).tril()
        itself = torch.eye(length, dtype=torch.bool, device=tokens.device)
        return (causal & ~padding[:, None, None]) | itself
