"""The three models, encoder-decoder, causal and masked language model, of stacks of any depth under any method.

`build` makes them from fields named as the flags of fairseq-train; state dicts have the names of fairseq's own models.
A stack is an encoder or a decoder (stack.py). B sentences, S source and T target tokens, C width, V symbols.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..errors import UserError
from . import archs, checkpoint_fit, config
from .initialisation import initialize
from .methods import Method
from .methods.base import Value
from .modules import ACTIVATIONS, empty_linear, submodules
from .stack import Decoder, Encoder, Stack

if TYPE_CHECKING:  # torch's private name, for an annotation alone
    from torch.nn.modules.module import _IncompatibleKeys

BOS, PAD, EOS, UNK = range(4)  # the first symbols of every vocabulary, as in fairseq's dictionaries
SPECIALS = 4  # number of these symbols
Extra = dict[str, list[Tensor] | list[None] | None]  # a model's outputs beside scores: fairseq's name -> tensors


class BuildArguments(NamedTuple):
    """Arguments that `build` was called with; fields: config field -> value."""

    arch: str
    vocab: int
    fields: dict[str, Value]


class DeepModel(nn.Module):
    """Base of the three models: one or two stacks of any depth under any registered method.

    A subclass defines NAME, assemble, forward, tokens, features and vocabulary_projection, and head_linears if it has
    further matrices outside the stacks. `create` makes a model.
    """

    NAME: ClassVar[str]  # the model's name in fairseq, a key of archs.STACKS
    method: Method  # the one with which the model was made
    built_from: BuildArguments | None = None  # what saving.save writes; None if it was not `build` that made the model
    # called after each update, see Method.after_update; None if the method does not override that
    after_update: Callable[[Mapping[str, Tensor]], None] | None = None
    encoder_class: ClassVar[type[Encoder]] = Encoder  # a subclass in the plugin, where fairseq wants its own base class
    decoder_class: ClassVar[type[Decoder]] = Decoder  # likewise
    # whether all modules are known to be in the model's own mode, training or evaluation; `train` then has nothing to
    # do for a mode that is set already. CUDA graphs promise this while they are in use (plugin/graphs/step.py)
    one_mode = False

    @classmethod
    def create(cls, cfg: Any, method: Method, *, source_symbols: int, target_symbols: int) -> Self:
        """Make a model in training mode and draw its values from torch's global generator.

        cfg, method: a filled and checked config and its method, from config.fill_and_make_method; source_symbols,
        target_symbols: sizes of the vocabularies that the model reads and predicts, SPECIALS included.
        """
        model = cls.assemble(cfg, method, source_symbols=source_symbols, target_symbols=target_symbols)
        model.method = method
        initialize(model, method, cfg.init_profile or method.init_profiles[0])

        # the function behind the bound method tells whether it is overridden, also where `method` is a modifier around
        # the method, whose attributes are then those of the method inside
        after_update_function = getattr(method.after_update, "__func__", None)
        if after_update_function is not Method.after_update:
            model.after_update = method.after_update
        return model

    @classmethod
    def assemble(cls, cfg: Any, method: Method, *, source_symbols: int, target_symbols: int) -> Self:
        """Make the modules, whose values `create` draws afterwards; arguments as for `create`."""
        raise NotImplementedError

    def stacks(self) -> dict[str, Stack]:
        """Return the model's stacks by name, "encoder" and "decoder", in forward order."""
        return {name: getattr(self, name) for name in archs.STACKS[self.NAME]}

    # The arguments of these three are the entries of net_input in a fairseq sample, and differ between models.
    forward: Callable[..., tuple[Tensor, Extra]]  # scores of the vocabulary (B, T, V), and further outputs
    tokens: Callable[..., dict[str, Tensor]]  # stack -> tokens that it reads, (B, T)
    features: Callable[..., dict[str, Tensor]]  # stack -> its output, (B, T, C)

    def vocabulary_projection(self) -> nn.Linear:
        """Return the module with the matrix (V, C) that projects features to scores of V symbols."""
        raise NotImplementedError

    def head_linears(self) -> Iterator[nn.Linear]:
        """Yield modules with matrices that belong neither to a stack nor to vocabulary_projection."""
        return iter(())

    def train(self, mode: bool = True) -> DeepModel:
        """Set training or evaluation mode as nn.Module.train does, but faster: fairseq calls this twice in an update.

        Where a module overrides `train`, its method is called. Under `one_mode` nothing is done if the model is in the
        mode already.
        """
        if self.one_mode and self.training == mode:
            return self
        for module in submodules(self):
            if module is self or type(module).train is nn.Module.train:
                module.__dict__["training"] = mode  # past nn.Module.__setattr__, which is slow
            else:
                module.train(mode)
        return self

    def __prepare_scriptable__(self) -> None:
        """Refuse torch.jit.script, which calls this first."""
        raise UserError("torch.jit.script", "not supported; use torch.compile, or export the model (deepnet export)")

    def set_num_updates(self, num_updates: int) -> None:
        """Tell modules that change from update to update how many are done; fairseq calls this before each batch."""
        for stack in self.stacks().values():
            stack.set_num_updates(num_updates)

    def load_state_dict(
        self, state_dict: Mapping[str, Tensor], strict: bool = True, model_cfg: object = None, args: object = None
    ) -> _IncompatibleKeys:
        """Load a state dict of this model or of its counterpart in fairseq.

        Raises a UserError, unless `strict` is False, if it is another model's. model_cfg, args: fairseq's further
        arguments, not read.
        """
        state_dict = checkpoint_fit.with_split_projections(self.renamed(state_dict))
        state_dict = checkpoint_fit.without_foreign_keys(state_dict, self.state_dict())
        if strict:
            self._check_fit(state_dict)
        return nn.Module.load_state_dict(self, state_dict, strict)

    def _check_fit(self, state_dict: dict[str, Tensor]) -> None:
        """Raise a UserError for the first thing in which a state dict is another model's.

        state_dict: with the names of this model, after all that load_state_dict does to it.
        """
        constants: list[str] = []  # names of all constants of the method, as in a state dict
        missing_constants: list[str] = []  # those that the state dict should have and has not
        for name, stack in self.stacks().items():
            constants += [f"{name}.{constant}" for constant in stack.constants]
            missing_constants += [f"{name}.{constant}" for constant in stack.missing_constants(state_dict, f"{name}.")]

        checkpoint_fit.check_fit(state_dict, self.state_dict(), constants, missing_constants)
        for name, stack in self.stacks().items():
            stack.check_constants(state_dict, f"{name}.")
        checkpoint_fit.check_ties(state_dict, self)

    def renamed(self, state_dict: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return a checkpoint's state dict with the names that its entries have here; a subclass may rename."""
        return state_dict


def embedding(symbols: int, dim: int) -> nn.Embedding:
    """Make the module of an embedding (symbols, dim); initialisation.initialize draws its values later."""
    return nn.Embedding(symbols, dim, padding_idx=PAD)


class EncoderDecoder(DeepModel):
    """Translation model: a Transformer of N encoder and M decoder layers."""

    NAME = archs.MODEL_NAME

    def __init__(self, encoder: Encoder, decoder: Decoder):
        nn.Module.__init__(self)  # not fairseq's, which the plugin's subclass also inherits
        self.encoder = encoder
        self.decoder = decoder

    @classmethod
    def assemble(cls, cfg: Any, method: Method, *, source_symbols: int, target_symbols: int) -> Self:
        """Make encoder and decoder, see DeepModel.assemble."""
        source_embedding = embedding(source_symbols, cfg.encoder_embed_dim)
        if cfg.share_all_embeddings:
            target_embedding = source_embedding
        else:
            target_embedding = embedding(target_symbols, cfg.decoder_embed_dim)

        encoder = cls.encoder_class(cfg=cfg, method=method, embed_tokens=source_embedding)
        decoder = cls.decoder_class(
            cfg=cfg,
            method=method,
            embed_tokens=target_embedding,
            symbols=target_symbols,
            tied=cfg.share_all_embeddings or cfg.share_decoder_input_output_embed,
        )
        return cls(encoder, decoder)

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None,
        prev_output_tokens: Tensor,
        return_all_hiddens: bool = False,
        features_only: bool = False,
        alignment_layer: int | None = None,
        alignment_heads: int | None = None,
    ) -> tuple[Tensor, Extra]:
        """Return scores (B, T, V) of the tokens that follow prev_output_tokens (B, T), and a dictionary.

        src_tokens (B, S): the source sentences; src_lengths is fairseq's and not read; the others are arguments of
        Decoder.forward, and the dictionary is its. return_all_hiddens is off by default; fairseq's `transformer`, which
        has it on, keeps the states of every layer alive in each training step.
        """
        encoder_out = self.encoder(src_tokens, src_lengths, return_all_hiddens)
        return self.decoder(
            prev_output_tokens,
            encoder_out,
            return_all_hiddens=return_all_hiddens,
            features_only=features_only,
            alignment_layer=alignment_layer,
            alignment_heads=alignment_heads,
        )

    def tokens(
        self, src_tokens: Tensor, src_lengths: Tensor | None, prev_output_tokens: Tensor, *_: object, **_more: object
    ) -> dict[str, Tensor]:
        return {"encoder": src_tokens, "decoder": prev_output_tokens}

    def features(
        self, src_tokens: Tensor, prev_output_tokens: Tensor, src_lengths: Tensor | None = None
    ) -> dict[str, Tensor]:
        encoder_out = self.encoder(src_tokens, src_lengths)
        decoded, _extra = self.decoder(prev_output_tokens, encoder_out, features_only=True)
        encoded = encoder_out["encoder_out"][0].transpose(0, 1)  # (S, B, C) -> (B, S, C)
        return {"encoder": encoded, "decoder": decoded}

    def vocabulary_projection(self) -> nn.Linear:
        return self.decoder.output_projection


class LanguageModel(DeepModel):
    """Causal language model of M layers. B texts, T tokens."""

    NAME = archs.LM

    def __init__(self, decoder: Decoder):
        nn.Module.__init__(self)
        self.decoder = decoder

    @classmethod
    def assemble(cls, cfg: Any, method: Method, *, source_symbols: int, target_symbols: int) -> Self:
        """Make the decoder, see DeepModel.assemble."""
        if cfg.max_target_positions is None:  # as long as the samples that the task makes
            cfg.max_target_positions = cfg.tokens_per_sample
        embed_tokens = embedding(source_symbols, cfg.decoder_embed_dim)
        decoder = cls.decoder_class(
            cfg=cfg,
            method=method,
            embed_tokens=embed_tokens,
            symbols=target_symbols,
            tied=cfg.share_decoder_input_output_embed,
        )
        return cls(decoder)

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None = None,
        incremental_state: dict | None = None,
        return_all_hiddens: bool = False,
        features_only: bool = False,
        full_context_alignment: bool = False,
    ) -> tuple[Tensor, Extra]:
        """Return scores (B, T, V) of the tokens that follow src_tokens (B, T), and Decoder.forward's dictionary.

        src_lengths is fairseq's and not read; the others are arguments of Decoder.forward.
        """
        return self.decoder(
            src_tokens,
            incremental_state=incremental_state,
            return_all_hiddens=return_all_hiddens,
            features_only=features_only,
            full_context_alignment=full_context_alignment,
        )

    def tokens(self, src_tokens: Tensor, *_: object, **_more: object) -> dict[str, Tensor]:
        return {"decoder": src_tokens}

    def features(self, src_tokens: Tensor, src_lengths: Tensor | None = None) -> dict[str, Tensor]:
        decoded, _extra = self.decoder(src_tokens, features_only=True)
        return {"decoder": decoded}

    def vocabulary_projection(self) -> nn.Linear:
        return self.decoder.output_projection


class MaskedTokenHead(nn.Linear):
    """Head of a masked language model, with scores W LN(act(dense(x))) + b (Devlin et al. 2019, section 3.1).

    dim: width C of x; symbols: V, number of symbols that are scored; activation_fn: a key of ACTIVATIONS, for act;
    embed_tokens: the embedding whose matrix is W, None for a W of the head's own. W and b are this nn.Linear's weight
    and bias.
    """

    def __init__(self, dim: int, symbols: int, activation_fn: str, embed_tokens: nn.Embedding | None):
        super().__init__(dim, symbols)
        self.dense = empty_linear(dim, dim)
        self.activation_fn = ACTIVATIONS[activation_fn]
        self.layer_norm = nn.LayerNorm(dim)
        if embed_tokens is not None:
            self.weight = embed_tokens.weight

    def reset_parameters(self) -> None:
        """Draw nothing: initialisation.initialize does."""

    def forward(self, features: Tensor, masked_tokens: Tensor | None = None) -> Tensor:
        """Return scores (B, T, V) of features (B, T, C).

        masked_tokens (B, T): return scores of the positions where it is True alone, (masked, V), sentence by sentence.
        """
        if masked_tokens is not None:
            # one host-device synchronisation; indexing by a mask would cause another in the backward pass
            indices = masked_tokens.flatten().nonzero().squeeze(1)
            features = features.flatten(0, 1).index_select(0, indices)
        hidden = self.activation_fn(self.dense(features))
        return super().forward(self.layer_norm(hidden))


class MaskedLanguageModel(DeepModel):
    """Masked language model of N layers (Devlin et al. 2019, as Liu et al. 2019 train it). B texts, T tokens.

    lm_head: the head that scores the vocabulary; its parameters have the names of fairseq's RoBERTa.
    """

    NAME = archs.MASKED_LM

    def __init__(self, encoder: Encoder, lm_head: MaskedTokenHead):
        nn.Module.__init__(self)
        self.encoder = encoder
        self.lm_head = lm_head

    @classmethod
    def assemble(cls, cfg: Any, method: Method, *, source_symbols: int, target_symbols: int) -> Self:
        """Make the encoder and the head, see DeepModel.assemble."""
        embed_tokens = embedding(source_symbols, cfg.encoder_embed_dim)
        encoder = cls.encoder_class(cfg=cfg, method=method, embed_tokens=embed_tokens)
        lm_head = MaskedTokenHead(
            dim=cfg.encoder_embed_dim,
            symbols=target_symbols,
            activation_fn=str(cfg.activation_fn),
            embed_tokens=None if cfg.untie_weights_roberta else embed_tokens,
        )
        return cls(encoder, lm_head)

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None = None,
        features_only: bool = False,
        return_all_hiddens: bool = False,
        masked_tokens: Tensor | None = None,
        **_rest: object,
    ) -> tuple[Tensor, Extra]:
        """Return scores (B, T, V) of what stands at each position of src_tokens (B, T), and {"inner_states": None}.

        masked_tokens (B, T): return scores of the positions where it is True alone, (masked, V). features_only: return
        features (B, T, C) in place of scores. return_all_hiddens: return {"inner_states": [(T, B, W) before the first
        and after every layer]}, W the width of the residual stream. src_lengths is not read, nor is src_id, which
        fairseq's task masked_lm passes too.
        """
        encoded = self.encoder(src_tokens, src_lengths, return_all_hiddens)
        features = encoded["encoder_out"][0].transpose(0, 1)  # (T, B, C) -> (B, T, C)
        extra = {"inner_states": encoded["encoder_states"] if return_all_hiddens else None}
        if features_only:
            return features, extra
        return self.lm_head(features, masked_tokens), extra

    def tokens(self, src_tokens: Tensor, *_: object, **_more: object) -> dict[str, Tensor]:
        return {"encoder": src_tokens}

    def features(self, src_tokens: Tensor, src_lengths: Tensor | None = None, **_rest: object) -> dict[str, Tensor]:
        encoded, _extra = self(src_tokens, src_lengths, features_only=True)
        return {"encoder": encoded}

    def vocabulary_projection(self) -> nn.Linear:
        return self.lm_head

    def head_linears(self) -> Iterator[nn.Linear]:
        yield self.lm_head.dense


MODELS: dict[str, type[DeepModel]] = {
    model.NAME: model for model in (EncoderDecoder, LanguageModel, MaskedLanguageModel)
}


def build(arch: str = archs.MODEL_NAME, vocab: int = 1000, **fields: Value) -> DeepModel:
    """Build a model of architecture `arch`, in training mode, with weights drawn from torch's global generator.

    vocab: number of symbols, SPECIALS included, the same for source and target; fields: config fields that differ from
    the architecture's, named as fairseq-train's flags: `method="deepnorm", encoder_layers=100`. Raises a UserError,
    with the nearest name, for an architecture or a field that does not exist, and, naming the flag, for fields that no
    model can be built from.
    """
    config.check_fields(arch, fields)
    cfg, method = config.config_and_method(arch, **fields)
    model_class = MODELS[archs.MODELS[arch]]
    model = model_class.create(cfg, method, source_symbols=vocab, target_symbols=vocab)
    model.built_from = BuildArguments(arch, vocab, fields)
    return model


class _SkipInitMode(TorchFunctionMode):
    """Context in which nothing is drawn or filled in, for the device meta, where torch would load its compiler for it.

    torch passes every call of its functions in the context to __torch_function__, as function(*args, **kwargs).
    """

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function.__name__ in ("normal_", "uniform_", "fill_", "zero_"):
            return args[0] if args else kwargs["tensor"]  # the tensor that it would fill
        if function.__name__ == "eye":  # torch would fill the matrix that it makes
            return torch.empty(args[0], args[0])
        return function(*args, **(kwargs or {}))


def blueprint(arch: str = archs.MODEL_NAME, vocab: int = 1000, **fields: Value) -> DeepModel:
    """Make the model that `build` makes, but without values (on torch's device meta), to look at modules and shapes.

    Arguments and errors are those of `build`.
    """
    with torch.device("meta"), _SkipInitMode():
        model = build(arch, vocab, **fields)
    model.built_from = None  # there is nothing to save
    return model


@lru_cache
def _count_parameters(arch: str, vocab: int, fields: frozenset[tuple[str, Value]]) -> int:
    """Count the parameters of the model that `build` makes; fields: pairs (name, value), which lru_cache can hash."""
    model = blueprint(arch, vocab, **dict(fields))
    return sum(parameter.numel() for parameter in model.parameters())


def parameter_count(arch: str, vocab: int = SPECIALS) -> int:
    """Count the parameters of an architecture as if embeddings and output projection shared one matrix of `vocab` rows.

    A model of one layer a stack is made, and for each stack one with a second layer in it: what that adds is the size
    of each further layer of the stack. Raises a UserError for an architecture that does not exist.
    """
    config.check_fields(arch, {})
    preset = archs.PRESETS[arch]
    model = archs.MODELS[arch]
    depth_fields = [f"{stack}_layers" for stack in archs.STACKS[model]]

    # the architecture with one layer in each stack and one matrix for all embeddings
    one_layer = preset | dict.fromkeys(depth_fields, 1)
    if model == archs.LM:
        one_layer["share_decoder_input_output_embed"] = True
    elif model != archs.MASKED_LM:
        one_layer["share_all_embeddings"] = True
    one_layer_size = _count_parameters(model, vocab, frozenset(one_layer.items()))

    # the further layers of each stack, all as large as its second
    total = one_layer_size
    for depth_field in depth_fields:
        two_layers = one_layer | {depth_field: 2}
        layer_size = _count_parameters(model, vocab, frozenset(two_layers.items())) - one_layer_size
        total += (preset[depth_field] - 1) * layer_size
    return total
