"""Trace memory and operations of a model's forward and backward passes, from a few layers run without storage.

The model runs on torch's meta device: nothing is computed, but every tensor has its shape, type and lifetime.
`PretendDevice` lets it pass for a GPU or a CPU. `Meter` sees each operator and adds up the live bytes, the operations
and the kernels. `Run` reads the meter after each stage: the embedding of a stack, each of its layers, the end of the
stack, and the loss. Torch itself thus decides which tensors autograd keeps, and how long, and the modules that a
method adds to a layer are counted without a formula of their own.

The layers between the first and the last of a stack are alike, so three traced layers stand for any number. If layers
read the outputs of all earlier ones, their costs grow linearly with their place: these are extrapolated from two runs,
one of which has one layer more.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_flop

from ...core import config
from ...core.layer import StackShape
from ...core.models import MODELS, DeepModel
from ...core.modifiers import make_method
from ...core.pass_state import State, running
from ...core.stack import Stack
from ...plugin.chunked_loss import FEWEST_TOKENS, LOGITS_BYTES, label_smoothed_loss
from .setting import FLOAT32_BYTES, Setting

# layers of a stack that are traced
TRACED_IF_ALIKE = 3  # the first and the last may differ from those between
TRACED_IF_GROWING = 6  # where a layer's cost grows with its place; beside it one layer fewer is traced
LAYERS = "layers"  # last word in the name of a stage that is a layer, as "encoder layers"
# Of the labels; the costs are the same for any value above 0. chunked_cross_entropy has 0, and a few kernels fewer.
SMOOTHING = 0.1
PADDING = 1  # its index in fairseq's dictionaries

FLOP_FORMULAS = {packet.__name__: formula for packet, formula in flop_registry.items()}  # torch's, by operator
FLOP_FORMULAS["_scaled_dot_product_flash_attention_for_cpu"] = sdpa_flop  # which torch does not list
# Operators that launch no kernel, beside views. `zeros` makes the tokens and targets here, which a training gets with
# its batch; so the zeros with which a loss in chunks begins its three sums are not counted either.
NO_KERNEL = ("empty", "new_empty", "empty_like", "new_empty_strided", "_unsafe_view", "detach", "zeros")
SEVERAL_KERNELS = {  # operator -> number of its kernels, as benchmarks/fake_gpu counts them
    "native_layer_norm_backward": 2, "_scaled_dot_product_flash_attention_backward": 3,
    "_scaled_dot_product_efficient_attention_backward": 2, "embedding_dense_backward": 10,
}  # fmt: skip


@dataclass
class Stage:
    """Stage of one forward and backward pass: an embedding, a layer, the end of a stack, or the loss.

    name: stack and kind, as "encoder embedding", "decoder layers" or "decoder end"; "output" for the loss.

    Bytes, where all peaks and changes are relative to the memory at the start of that pass through the stage:
    output: the stage's output. kept: what the forward pass leaves behind. peak_forward: its peak.
    change_backward: what the backward pass leaves behind without the gradients of parameters, mostly below 0 because
    it frees activations. peak_backward: its peak if no .grad exists yet, including the gradients that arrive.
    peak_accumulating: its peak if every .grad exists already and new gradients are added to it, without .grad itself.
    gradients: gradients of the stage's parameters.

    flops: operations of the forward pass. launches, launches_back: kernels that the forward and backward pass launch.
    """

    name: str
    output: int = 0
    kept: int = 0
    peak_forward: int = 0
    change_backward: int = 0
    peak_backward: int = 0
    peak_accumulating: int = 0
    gradients: int = 0
    flops: int = 0
    launches: int = 0
    launches_back: int = 0

    def extrapolated(self, before: Stage, steps: float) -> Stage:
        """Return this stage plus `steps` times its difference from `before`, in each number, rounded.

        before: the stage at one step less, where a step is a layer more or some sentences more in the batch; steps: any
        number: 0 gives this stage, -1 `before`.
        """
        numbers = {}
        for field, number in vars(self).items():
            if field != "name":
                difference = number - getattr(before, field)
                numbers[field] = number + round(steps * difference)
        return Stage(self.name, **numbers)


class Reading(NamedTuple):
    """What a meter shows.

    live: bytes of live tensors without the gradients of parameters; gradients: bytes of these. peak: the most of `live`
    since the last reading; peak_with_gradients: the most of `live` and `gradients` together since then. flops:
    floating-point operations since the start; launches: kernels since the start.
    """

    live: int
    peak: int
    peak_with_gradients: int
    gradients: int
    flops: int
    launches: int


class Meter(TorchDispatchMode):
    """Count, while the context lasts, the bytes of live storages, floating-point operations and kernel launches.

    A storage counts from the first operator that returns it until nothing refers to it any more.

    existing: tensors from before the context, whose storages do not count: the model's parameters and buffers.
    """

    def __init__(self, existing: list[Tensor]):
        super().__init__()
        # as in Reading
        self.live = 0
        self.gradients = 0
        self.peak = 0
        self.peak_with_gradients = 0
        self.flops = 0
        self.launches = 0

        self.sizes: dict[int, int] = {}  # address of a storage -> its share of `live`
        self.references: dict[int, weakref.ref] = {}  # address of a storage -> weak reference that reports its end
        for tensor in existing:
            self._add(tensor, counts=False)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Run one operator of torch, as TorchDispatchMode asks for, and count its outputs, operations and kernels."""
        out = func(*args, **(kwargs or {}))
        outputs = [out] if isinstance(out, Tensor) else tree_leaves(out)  # tree_leaves alone would do, but is slower
        for tensor in outputs:
            if isinstance(tensor, Tensor):
                self._add(tensor)
        self.peak = max(self.peak, self.live)
        self.peak_with_gradients = max(self.peak_with_gradients, self.live + self.gradients)

        name = func._overloadpacket.__name__.rstrip("_")  # addmm_ is addmm in place
        if name in FLOP_FORMULAS:
            self.flops += FLOP_FORMULAS[name](*args, **(kwargs or {}), out_val=out)
        if not func.is_view and name not in NO_KERNEL:
            self.launches += SEVERAL_KERNELS.get(name, 1)
        return out

    def move_to_gradients(self, gradient: Tensor) -> None:
        """Count a parameter's new .grad in `gradients` instead of `live`, because it outlives the pass."""
        address = gradient.untyped_storage()._cdata
        self.live -= self.sizes[address]
        self.gradients += self.sizes[address]
        self.sizes[address] = 0  # _remove will take nothing more from `live`

    def read(self) -> Reading:
        """Return the reading, and let the peaks begin anew."""
        reading = Reading(
            live=self.live,
            peak=self.peak,
            peak_with_gradients=self.peak_with_gradients,
            gradients=self.gradients,
            flops=self.flops,
            launches=self.launches,
        )
        self.peak = self.live
        self.peak_with_gradients = self.live + self.gradients
        return reading

    def _add(self, tensor: Tensor, counts: bool = True) -> None:
        """Add a tensor's storage to the live ones, until it is freed; views of a storage that is there add nothing.

        counts: False to add it with 0 bytes.
        """
        storage = tensor.untyped_storage()
        address = storage._cdata  # of the C++ object, which tells storages apart; they have no data on the meta device
        if address in self.sizes:
            return
        self.sizes[address] = storage.nbytes() if counts else 0
        self.live += self.sizes[address]
        self.references[address] = weakref.ref(storage, lambda _: self._remove(address))

    def _remove(self, address: int) -> None:
        """Take a storage from the live ones; its weak reference calls this when nothing refers to it any more."""
        self.live -= self.sizes.pop(address)
        del self.references[address]


class PretendDevice(TorchFunctionMode):
    """Mode in which tensors on the meta device pass for a CPU's or a GPU's; device: "cpu" or "cuda".

    The attributes of tensors name that device, while new tensors are still made on the meta device. Dropout and
    attention, for which torch would take another kernel on the meta device, take the kernel of that device.
    """

    def __init__(self, device: str):
        super().__init__()
        self.gpu = device == "cuda"
        self.attributes = {"is_cpu": not self.gpu, "is_cuda": self.gpu, "device": torch.device(device)}

    def __torch_function__(self, func, types, args=(), kwargs=None):
        """Run one function of torch or get one attribute of a tensor, as TorchFunctionMode asks for."""
        kwargs = kwargs or {}
        for name, value in self.attributes.items():
            getter = vars(torch._C.TensorBase)[name].__get__  # a new object at each access, so it is compared by ==
            if func == getter:
                return value
        if kwargs.get("device"):  # a function that makes or moves a tensor
            kwargs = kwargs | {"device": "meta"}
        if func is F.dropout and self.gpu:
            return self._dropout(*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            return self._attention(*args, **kwargs)
        return func(*args, **kwargs)

    @staticmethod
    def _dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        """Drop numbers by the kernel of a GPU, whose mask takes a byte a number.

        The arguments are those of F.dropout; `inplace` has no effect, since no module of the package sets it. On the
        meta device F.dropout does what it does on a CPU: it multiplies by a mask of the numbers' own type.
        """
        if not training or not p:
            return x
        return torch.native_dropout(x, p, True)[0]

    def _attention(self, q: Tensor, k: Tensor, v: Tensor, attn_mask=None, dropout_p=0.0, is_causal=False) -> Tensor:
        """Attend by the kernel that torch chooses on the device.

        The arguments are those of F.scaled_dot_product_attention. The kernels of a GPU are called without the mask,
        whose bytes count anyway, because Run holds it for all layers.
        """
        aten: Any = torch.ops.aten
        if not self.gpu and dropout_p:  # the CPU's flash attention has no dropout
            return aten._scaled_dot_product_attention_math(q, k, v, attn_mask, dropout_p, is_causal)[0]
        if not self.gpu:
            return aten._scaled_dot_product_flash_attention_for_cpu(
                q, k, v, dropout_p=0.0, is_causal=is_causal, attn_mask=attn_mask
            )[0]
        if attn_mask is not None or q.dtype == torch.float32:  # which a GPU's flash attention does not take
            return aten._scaled_dot_product_efficient_attention(
                q, k, v, attn_bias=None, compute_log_sumexp=True, dropout_p=dropout_p, is_causal=is_causal
            )[0]
        return aten._scaled_dot_product_flash_attention(q, k, v, dropout_p=dropout_p, is_causal=is_causal)[0]


_runs: dict[tuple, Run] = {}  # cache: what a run depends on, as `_run` lists it -> the run


def trace(setting: Setting) -> list[Stage]:
    """Return the stages of the forward and backward pass of one full batch, in forward order."""
    # a run with few layers, of which the one between the first and the last stands for all others if layers are alike
    run = _run(setting, TRACED_IF_ALIKE)
    if not run.layers_share_state and layers_are_alike(setting):
        return list(run.stages_at_depth(setting))
    # the costs of a layer may grow with its place
    deeper = _run(setting, TRACED_IF_GROWING)
    shallower = _run(setting, TRACED_IF_GROWING - 1)
    return list(deeper.stages_at_depth(setting, shallower))


def trace_loss(setting: Setting) -> Stage:
    """Return the last of the stages that `trace` returns, which is the loss, faster than that does."""
    return _run(setting, layers=1).stages[-1]


def _run(setting: Setting, layers: int) -> Run:
    """Return the run of the setting with at most `layers` layers a stack, from the cache if it has been made.

    Deep settings that differ only in depth share a run: cut to `layers` layers a stack they have the same model.
    """
    depths = {name: min(layers, getattr(setting.cfg, name)) for name in setting.layer_fields}
    model = str(vars(setting.cfg) | depths | {"arch": ""})  # the architecture's name changes nothing
    key = (
        model, layers, setting.vocab, setting.precision, setting.max_tokens, setting.length, setting.criterion,
        setting.mask_prob, setting.device,
    )  # fmt: skip
    if key not in _runs:
        _runs[key] = Run(setting, layers)
    return _runs[key]


_alike: dict[str, bool] = {}  # cache: config and sizes of the vocabularies -> result of layers_are_alike


def layers_are_alike(setting: Setting) -> bool:
    """Tell whether in each stack all layers have parameters of the same shapes, at the setting's depth."""
    key = f"{vars(setting.cfg)} {setting.vocab}"
    if key not in _alike:
        _alike[key] = _are_alike(setting)
    return _alike[key]


def _are_alike(setting: Setting) -> bool:
    """Tell whether in each stack the first, second, middle and last layer have parameters of the same shapes.

    These four stand for all layers.
    """
    method = make_method(setting.cfg)
    for name, stack in skeleton(setting, layers=1).stacks().items():
        stack_shape = StackShape.from_config(setting.cfg, name)
        layer_class = type(stack.layers[0])
        depth = stack_shape.num_layers
        places = sorted({1, min(2, depth), max(1, depth // 2), depth})  # the first layer has place 1

        kinds = set()  # for each different kind of layer, the shapes of all its parameters
        for place in places:
            with torch.device("meta"):
                layer = layer_class(stack_shape, method, place)
            kinds.add(tuple(parameter.shape for parameter in layer.parameters()))
        if len(kinds) > 1:
            return False
    return True


def skeleton(setting: Setting, layers: int = TRACED_IF_ALIKE, full_depth_method: bool = True) -> DeepModel:
    """Make the setting's model on the meta device, with at most `layers` layers a stack.

    full_depth_method: whether the method is made for the setting's depth, so that parameters whose shapes depend on the
    depth (as DLCL's weights of all earlier layers) have those of the whole model; False to make it for the layers that
    exist, so that the model can run.
    """
    fields = vars(setting.cfg)
    depths = {name: min(layers, fields[name]) for name in setting.layer_fields}
    cfg = config.namespace(**(fields | depths))
    method = make_method(setting.cfg if full_depth_method else cfg)
    symbols_read, symbols_predicted = setting.vocab
    with torch.device("meta"):
        model = MODELS[setting.model].assemble(
            cfg, method, source_symbols=symbols_read, target_symbols=symbols_predicted
        )
    return model.to(setting.dtype)


class Run:
    """Forward and backward pass of one batch through the setting's model, which is cut to `layers` layers a stack.

    The passes run when the object is made; `stages` then has what each stage costs. B sentences of T tokens each; C:
    width.
    """

    def __init__(self, setting: Setting, layers: int):
        self.setting = setting
        self.model = skeleton(setting, layers, full_depth_method=False).train()
        self.stages: list[Stage] = []  # in forward order
        self.last_reading: Reading  # of the meter, at the end of the latest pass through a stage
        self.layers_share_state = False  # by pass_state() or a mixer's history; a layer's cost may grow with its place
        self.sentences = setting.max_tokens // setting.length  # B

        with ExitStack() as contexts:
            contexts.enter_context(PretendDevice(setting.device))
            contexts.enter_context(torch.device("meta"))
            self.meter = contexts.enter_context(Meter([*self.model.parameters(), *self.model.buffers()]))
            for parameter in self.model.parameters():
                if parameter.requires_grad:
                    parameter.register_post_accumulate_grad_hook(lambda p: self.meter.move_to_gradients(p.grad))

            # The features go through a list, from which they are popped: a variable of this function would keep them
            # alive until the end of the backward pass, which a training does not.
            features = [self._forward()]
            with self._stage("output") as stage:
                loss = self._loss(features.pop())
            if setting.chunked:
                # A chunked loss computes its gradients in the forward pass. Of the operations that were counted a third
                # is the forward pass; needs.flops takes twice as many for the backward pass, as of every stage.
                stage.flops //= 3
            loss.backward()
            self._end_backward(self.stages[0])  # the other stages are ended by the hooks of _boundary

    def stages_at_depth(self, setting: Setting, shallower: Run | None = None) -> Iterator[Stage]:
        """Yield the stages of this run's model if it had the setting's number of layers, in forward order.

        Where a stack of this run lacks layers, they come before its last layer, extrapolated from those before that.

        shallower: a run with one layer fewer, from which follows how costs grow with depth; None if they do not grow.
        """
        for name, group in itertools.groupby(self.stages, key=lambda stage: stage.name):
            *front, last = group  # all layers of a stack, which have one name; or a single other stage, as `last`
            stack_name = name.split()[0]  # "encoder" or "decoder", or "output", which is the loss and has no layers
            layers_name = f"{stack_name} {LAYERS}"
            traced = sum(stage.name == layers_name for stage in self.stages)
            missing = max(0, getattr(setting.cfg, f"{stack_name}_layers", 0) - traced)
            yield from front

            if name == layers_name and missing > 0:
                # the missing layers differ from the last but one as that differs from the one before, if costs grow
                last_but_one = front[-1]
                before = front[-2] if shallower else last_but_one
                for step in range(1, missing + 1):
                    yield last_but_one.extrapolated(before, step)

            # the last layer, the end and the embedding of a stack may cost more in a deeper one too
            one_layer_less = last  # the same stage, so that the extrapolation changes nothing
            if shallower:
                one_layer_less = [stage for stage in shallower.stages if stage.name == name][-1]
            yield last.extrapolated(one_layer_less, missing)

    def _forward(self) -> Tensor:
        """Run all stacks; return the features (B, T, C) of the last one."""
        encoded: tuple[Tensor, ...] = ()
        for name, stack in self.model.stacks().items():
            x = self._forward_stack(name, stack, encoded)
            padding_mask = x.new_zeros(self.sentences, 1, 1, self.setting.length)
            encoded = (x, padding_mask)
        return x

    def _forward_stack(self, name: str, stack: Stack, encoded: tuple[Tensor, ...]) -> Tensor:
        """Run embedding, layers and end of a stack as Stack does in a training; return its features (B, T, C).

        name: "encoder" or "decoder"; encoded: for the cross-attention of a decoder, the encoder's output (B, T, C) and
        the mask of its padding (B, 1, 1, T); empty for the first stack.
        """
        state: State = {}  # what modules of several layers share in a pass (core/pass_state.py)
        with self._stage(f"{name} embedding") as stage:
            tokens = torch.zeros(self.sentences, self.setting.length, dtype=torch.long)
            if isinstance(stack.embed_positions, nn.Embedding):  # learned positions
                positions = stack.positions(tokens)
            elif stack.embed_positions is not None:  # sinusoids, which have no gradient
                weight = stack.embed_tokens.weight
                positions = weight.new_empty(*tokens.shape, weight.size(1))
            else:
                positions = None
            x = stack.begin(stack.embed(tokens, positions)[0], state)
            del positions  # a training does not keep them
            queries = self.setting.length if name == "decoder" else 1  # only a causal mask differs by query
            mask = x.new_zeros(self.sentences, 1, queries, self.setting.length)  # it stays alive for all layers
            stage.output = x.nbytes

        for layer in stack.layers:
            x = self._boundary(x)
            with self._stage(f"{name} {LAYERS}") as stage, running(state):
                x = stack.mix(layer(x, mask, *encoded), state)  # a method may mix in outputs of earlier layers
                stage.output = x.nbytes
        if state:  # some module has stored something, or the method's mixer has a history
            self.layers_share_state = True

        x = self._boundary(x)
        with self._stage(f"{name} end") as stage:
            x = stack.finish(x)
            stage.output = x.nbytes
        return self._boundary(x)

    def _boundary(self, x: Tensor) -> Tensor:
        """Return a view of x (B, T, C), to be the input of the next stage.

        Its gradient arrives when the backward pass of that stage is done; a hook records the pass then.
        """
        index = len(self.stages)  # of the next stage, which has not begun yet
        x = x.view_as(x)
        x.register_hook(lambda _: self._end_backward(self.stages[index]))
        return x

    @contextmanager
    def _stage(self, name: str) -> Iterator[Stage]:
        """Record what runs in the context as the forward pass of a new stage."""
        stage = Stage(name)
        self.stages.append(stage)

        before = self.meter.read()
        yield stage
        now = self.meter.read()

        stage.kept = now.live - before.live
        stage.peak_forward = now.peak - before.live
        stage.flops = now.flops - before.flops
        stage.launches = now.launches - before.launches
        self.last_reading = now

    def _end_backward(self, stage: Stage) -> None:
        """Record what has run since the last reading as the backward pass of the stage; see Stage for its fields."""
        before = self.last_reading
        now = self.meter.read()

        stage.change_backward = now.live - before.live
        stage.peak_accumulating = now.peak - before.live
        stage.peak_backward = now.peak_with_gradients - before.live - before.gradients
        stage.gradients = now.gradients - before.gradients
        stage.launches_back = now.launches - before.launches
        self.last_reading = now

    def _loss(self, features: Tensor) -> Tensor:
        """Return the loss of features (B, T, C), summed over tokens, by the operations of the setting's criterion.

        Targets and indices are zeros, because their values change no cost.
        """
        setting = self.setting
        project = self.model.vocabulary_projection()
        target = torch.zeros(setting.predicted_tokens, dtype=torch.long)
        indices = torch.zeros(setting.predicted_tokens, dtype=torch.long)  # of the predicted tokens in the batch

        if setting.chunked:
            logits_bytes_a_token = FLOAT32_BYTES * setting.vocab[1]
            chunk = max(FEWEST_TOKENS, LOGITS_BYTES[setting.device] // logits_bytes_a_token)  # tokens
            features = features.flatten(0, 1).index_select(0, indices)
            return label_smoothed_loss(features, project.weight, target, SMOOTHING, chunk).loss

        projected = features
        if setting.objective.masks:  # fairseq projects the masked tokens alone, indexed by sentence and position
            projected = features[indices, indices]
        logits = project(projected).flatten(0, -2)
        lprobs = F.log_softmax(logits, dim=-1, dtype=torch.float32)
        if setting.objective.translates:
            return _label_smoothed(lprobs, target[:, None])
        return F.nll_loss(lprobs, target, reduction="sum", ignore_index=PADDING)


def _label_smoothed(lprobs: Tensor, target: Tensor) -> Tensor:
    """Return the summed loss by the operations of fairseq's label_smoothed_nll_loss, which sets padding to 0 in place.

    lprobs (N, V): log-probabilities; target (N, 1).
    """
    nll_loss = -lprobs.gather(dim=-1, index=target)
    smooth_loss = -lprobs.sum(dim=-1, keepdim=True)
    for loss in (nll_loss, smooth_loss):
        loss.masked_fill_(target.eq(PADDING), 0.0)
    eps_i = SMOOTHING / (lprobs.size(-1) - 1)
    return (1.0 - SMOOTHING - eps_i) * nll_loss.sum() + eps_i * smooth_loss.sum()
