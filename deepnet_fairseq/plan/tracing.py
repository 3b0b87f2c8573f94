"""The forward pass of a model on a tape: what Encoder, Decoder and Layer do, on Values instead of tensors.

One layer of each kind is built, without storage; layers differ in their parameters at most in the first.
"""

from __future__ import annotations

from ..criterions.chunked import BUDGET, FEWEST
from ..transformer.layer import Layer
from ..transformer.slots import NORM_NAMES
from .blueprint import Blueprint, blueprint
from .setting import Setting
from .slot_rules import apply, merge, mix
from .tape import FLOAT32, Segment, Tape, Value, joined

INDEX = 8  # bytes of an index


def trace(setting: Setting) -> list[Segment]:
    """The segments of one forward pass over a batch of max_tokens (source and target) tokens, in order."""
    tape = Tape(setting.device, setting.precision.itemsize)
    features: Value | None = None
    for name in setting.stacks:
        last = blueprint(setting, name)
        features = _stack(tape, setting, last, features)
    assert features is not None  # a model has a stack
    _loss(tape, setting, last, features)
    return grouped(tape.segments, setting.checkpoint_every)


def grouped(segments: list[Segment], every: int) -> list[Segment]:
    """Neighbours that are recomputed, `every` of them as one; of their inputs only the first is held."""
    groups: list[list[Segment]] = []
    for segment in segments:
        last = groups[-1] if groups else []
        joins = last and segment.recomputed and segment.name == last[0].name and len(last) < every
        if joins:
            last.append(segment)
        else:
            groups.append([segment])
    return [group[0] if len(group) == 1 else joined(group) for group in groups]


def _stack(tape: Tape, setting: Setting, stack: Blueprint, memory: Value | None) -> Value:
    """Embedding, groups of layers, the end of a stack -> its output; memory: what the decoder reads."""
    with tape.segment(f"{stack.name} embedding") as segment:
        x = tape.value(setting.max_tokens, stack.shape.dim)
        if stack.layernorm_embedding:
            x = tape.norm(x)
        x = tape.dropout(x, stack.shape.dropout)
        late = stack.embedding if stack.tied else [*stack.tokens, *stack.embedding]  # a tied one's came with the logits
        segment.gradients += stack.gradients(late) + stack.gradients(stack.mixer_and_ending)
        tape.work(x, tape.value(setting.source_vocab if memory is None else setting.target_vocab, stack.shape.dim))
        history: list[Value] = []
        x = mix(stack.mixer, tape, x, history)
    recomputed = setting.checkpoint_every > 0
    for layer in stack.every_layer():
        inputs = [] if setting.offloads else [x]
        inputs += [] if memory is None else [memory]
        with tape.segment(f"{stack.name} layers", *inputs, recomputed=recomputed) as segment:
            segment.gradients += stack.gradients([layer])
            x = mix(stack.mixer, tape, _layer(tape, layer, stack, x, memory, setting.length), history)
            if recomputed and history:
                tape.outlast(history[-1])
    with tape.segment(f"{stack.name} end"):
        for module in stack.end:
            x = apply(module, tape, x)
    return x


def _layer(tape: Tape, layer: Layer, stack: Blueprint, x: Value, memory: Value | None, length: int) -> Value:
    """One layer of transformer/layer.py."""
    shape = stack.shape
    for sublayer in layer.sites:
        shortcut = x
        if layer.norm_place == "pre":
            x = apply(getattr(layer, NORM_NAMES[sublayer]), tape, x)
        if sublayer in layer.before:
            x = apply(layer.before[sublayer], tape, x)
        if sublayer == "ffn":
            f = _feed_forward(tape, layer, stack, x)
        else:
            source = memory if sublayer == "encoder_attn" else None
            f = _attend(tape, getattr(layer, sublayer), shape, x, source, length)
        if sublayer in layer.outer:
            f = apply(layer.outer[sublayer], tape, f)
        f = tape.dropout(f, shape.dropout)
        x = merge(layer.residual[sublayer], tape, shortcut, f)
        if layer.norm_place == "post":
            x = apply(getattr(layer, NORM_NAMES[sublayer]), tape, x)
    return x


def _attend(tape: Tape, attention, shape, x: Value, memory: Value | None, length: int) -> Value:
    """Self-attention of x, or its attention to memory: the projections are packed as in attention.py."""
    if memory is None:
        q = keys_values = tape.linear(x, 3 * shape.dim)
    else:
        keys_values = tape.linear(memory, 2 * shape.dim)
        q = tape.linear(x, shape.dim)
    y = tape.attention(q, keys_values, shape.dim, shape.num_heads, length, shape.attention_dropout)
    if attention.inner is not None:
        y = apply(attention.inner, tape, y)
    return tape.linear(y, shape.dim)


def _feed_forward(tape: Tape, layer: Layer, stack: Blueprint, x: Value) -> Value:
    h = tape.linear(x, stack.shape.ffn_dim)
    if layer.hidden is not None:
        h = apply(layer.hidden, tape, h)
    h = tape.dropout(tape.activation(stack.shape.activation_fn, h), stack.shape.activation_dropout)
    if layer.inner is not None:
        h = apply(layer.inner, tape, h)
    return tape.linear(h, stack.shape.dim)


def _scored(tape: Tape, setting: Setting, features: Value) -> Value:
    """What is projected to the vocabulary: features, or of the masked tokens what MaskedTokenHead makes of theirs."""
    if not setting.objective.masks:
        return features
    x = tape.value(setting.scored, features.width)
    tape.keep(tape.value(x.rows, 2, INDEX))  # sentence and place of each
    x = tape.linear(x, x.width)
    return tape.norm(tape.activation(str(setting.cfg.activation_fn), x))


def _loss(tape: Tape, setting: Setting, last: Blueprint, features: Value) -> None:
    """Output projection and cross-entropy, label-smoothed or not.

    fairseq's criterion keeps the log-probabilities in float32. While they are made the logits exist, twice where they
    are widened from half precision; the backward pass holds two gradients as large (seen by torch's profiler).
    """
    vocab = setting.target_vocab
    with tape.segment("output") as segment:
        matrix = tape.value(vocab, features.width).bytes
        segment.gradients += last.gradients(last.output) or matrix  # a projection's is there if it is an embedding too
        if setting.chunked:
            _chunked_loss(tape, setting, features)
            return
        logits = tape.linear(_scored(tape, setting, features), vocab)
        lprobs = tape.value(logits.rows, vocab, FLOAT32)
        tape.keep(lprobs)
        tape.work(lprobs, lprobs)
        segment.forward_working = logits.bytes + (lprobs.bytes if tape.itemsize < FLOAT32 else 0)


def _chunked_loss(tape: Tape, setting: Setting, features: Value) -> None:
    """The loss of criterions/chunked.py.

    The gradients of features and matrix are there at the end of the forward pass, in float32; the logits of a chunk
    exist as they are, widened and as log-probabilities.
    """
    vocab = setting.target_vocab
    rows = min(features.rows, setting.chunk or max(FEWEST, BUDGET[setting.device.name] // (FLOAT32 * vocab)))
    of_features, of_matrix = tape.like(features, FLOAT32), tape.value(vocab, features.width, FLOAT32)
    tape.keep(of_features, of_matrix)
    tape.work(of_features, of_matrix)
    logits, lprobs = tape.value(rows, vocab), tape.value(rows, vocab, FLOAT32)
    half = tape.itemsize < FLOAT32
    segment = tape.segments[-1]
    segment.forward_working = features.bytes + logits.bytes + lprobs.bytes + (lprobs.bytes if half else 0)
    segment.flops += 2 * features.rows * features.width * vocab
