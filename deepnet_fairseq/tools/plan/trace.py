"""Trace memory and operations of a model's forward and backward passes, from a few layers run without storage.

The model runs on the meta device, which passes for a GPU or a CPU (`AsOn`): nothing is computed, but every tensor has
its shape, type and lifetime. A meter adds up the live bytes and the operations of every kernel, stage by stage:
embedding, each layer, the end of a stack, the loss. Layers between the first and the last are alike, so three of a
stack stand for all. The modules in a method's slots are thus counted automatically; torch itself decides which tensors
autograd keeps, and how long.
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
from .setting import FLOAT32, Setting

ALIKE = 3  # layers traced: the first and the last may differ from those between
LAYERS = "layers"
MIXED = 6  # where layers read all earlier ones, a layer's cost grows with its place; this number shows how
FORMULAS = {packet.__name__: formula for packet, formula in flop_registry.items()}
FORMULAS["_scaled_dot_product_flash_attention_for_cpu"] = sdpa_flop  # formulas that torch lacks
# operators without a kernel, beside views
NO_KERNEL = ("empty", "new_empty", "empty_like", "new_empty_strided", "_unsafe_view", "detach", "zeros")
SEVERAL = {  # operators of several kernels, as benchmarks/fake_gpu counts them
    "native_layer_norm_backward": 2, "_scaled_dot_product_flash_attention_backward": 3, "embedding_dense_backward": 10,
}  # fmt: skip


@dataclass
class Stage:
    """Stage of the update: an embedding, a layer, the end of a stack, or the loss.

    In bytes: output: its output. kept: what its forward pass leaves behind; peak_forward: the peak of the forward pass.
    change_backward: what its backward pass leaves behind, below 0 if it frees more than it makes, without gradients of
    parameters; peak_backward: the peak of the backward pass when .grad does not exist yet, with the gradients that
    arrive; peak_accumulating: the peak when .grad exists already and new gradients are added to it. Each is counted
    from the memory before that pass of the stage. gradients: the gradients of the stage's parameters.

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

    def further(self, before: Stage, steps: float) -> Stage:
        """Extrapolate this stage `steps` places further, linearly from `before`, the stage one place back."""
        numbers = {}
        for field, number in vars(self).items():
            if field != "name":
                difference = number - getattr(before, field)
                numbers[field] = number + round(steps * difference)
        return Stage(self.name, **numbers)


class Reading(NamedTuple):
    """What a meter shows: live bytes without gradients of parameters, the peak of these, the peak with gradients.

    gradients: bytes of the gradients of parameters. flops, launches: operations and kernels so far.
    """

    live: int
    peak: int
    peak_with_gradients: int
    gradients: int
    flops: int
    launches: int


class Meter(TorchDispatchMode):
    """Count live bytes of storages made in the context, operations and launches. own: tensors from before.

    A storage counts from the first operator that returns it until nothing refers to it any more.
    """

    def __init__(self, own: list[Tensor]):
        super().__init__()
        self.live = self.peak = self.gradients = self.peak_with_gradients = 0
        self.flops = self.launches = 0
        self.sizes: dict[int, int] = {}  # address of a storage -> its bytes, as they count in `live`
        self.references: dict[int, weakref.ref] = {}  # address of a storage -> what reports its end
        for tensor in own:
            self._see(tensor, counts=False)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func.namespace != "aten":
            return out

        for tensor in [out] if isinstance(out, Tensor) else tree_leaves(out):
            if isinstance(tensor, Tensor):
                self._see(tensor)
        self.peak = max(self.peak, self.live)
        self.peak_with_gradients = max(self.peak_with_gradients, self.live + self.gradients)

        name = func._overloadpacket.__name__.rstrip("_")  # addmm_ is addmm in place
        if name in FORMULAS:
            self.flops += FORMULAS[name](*args, **(kwargs or {}), out_val=out)
        if not func.is_view and name not in NO_KERNEL:
            self.launches += SEVERAL.get(name, 1)
        return out

    def arrived(self, gradient: Tensor) -> None:
        """Count a parameter's gradient separately, because it outlives the pass."""
        key = gradient.untyped_storage()._cdata
        self.live -= self.sizes[key]
        self.gradients += self.sizes[key]
        self.sizes[key] = 0

    def lap(self) -> Reading:
        """Return the reading, with the peaks since the last one; restart the peaks."""
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

    def _see(self, tensor: Tensor, counts: bool = True) -> None:
        """Add a tensor's storage to the live ones, unless it is there already; counts: False for 0 bytes."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.sizes:
            return
        self.sizes[key] = storage.nbytes() if counts else 0
        self.live += self.sizes[key]
        self.references[key] = weakref.ref(storage, lambda _: self._gone(key))

    def _gone(self, key: int) -> None:
        """Take the storage at that address from the live ones."""
        self.live -= self.sizes.pop(key)
        del self.references[key]


class PretendDevice(TorchFunctionMode):
    """Mode in which tensors on the meta device pass for a CPU's or a GPU's.

    On a GPU dropout's mask is one byte a number; attention is one kernel.
    """

    def __init__(self, device: str):
        super().__init__()
        self.gpu = device == "cuda"
        self.attributes = {"is_cpu": not self.gpu, "is_cuda": self.gpu, "device": torch.device(device)}

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        for name, value in self.attributes.items():
            if func == vars(torch._C.TensorBase)[name].__get__:  # the storage is another object each time
                return value
        if kwargs.get("device"):
            kwargs = kwargs | {"device": "meta"}
        if func is F.dropout and self.gpu:
            return self._dropout(*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            return self._attention(*args, **kwargs)
        return func(*args, **kwargs)

    @staticmethod
    def _dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        """Drop numbers by the kernel that a GPU has for it; the arguments are those of F.dropout."""
        if not training or not p:
            return x
        return torch.native_dropout(x, p, True)[0]

    def _attention(self, q: Tensor, k: Tensor, v: Tensor, attn_mask=None, dropout_p=0.0, is_causal=False) -> Tensor:
        """Attend by the kernel that torch chooses on the device; arguments of F.scaled_dot_product_attention."""
        aten: Any = torch.ops.aten
        if not self.gpu and dropout_p:
            return aten._scaled_dot_product_attention_math(q, k, v, attn_mask, dropout_p, is_causal)[0]
        if not self.gpu:
            return aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, is_causal, attn_mask=attn_mask)[0]
        if q.dtype == torch.float32:
            return aten._scaled_dot_product_efficient_attention(q, k, v, None, True, dropout_p, is_causal)[0]
        return aten._scaled_dot_product_flash_attention(q, k, v, dropout_p, is_causal)[0]


_runs: dict[tuple, Run] = {}


def trace(setting: Setting) -> list[Stage]:
    """Return the stages of an update on one batch of max_tokens (source and target) tokens, in forward order."""
    run = _run(setting, ALIKE)
    if not run.shares and layers_are_alike(setting):
        return list(run.expanded(setting))
    longer = _run(setting, MIXED)
    shorter = _run(setting, MIXED - 1)
    return list(longer.expanded(setting, fewer=shorter))


def _run(setting: Setting, layers: int) -> Run:
    """Return the cached run with at most `layers` layers a stack, which serves all depths."""
    depths = {name: min(layers, getattr(setting.cfg, name)) for name in setting.layer_fields}
    model = str(vars(setting.cfg) | depths | {"arch": ""})  # the architecture's name changes nothing
    key = (
        model, layers, setting.vocab, setting.precision, setting.max_tokens, setting.length, setting.criterion,
        setting.mask_prob, setting.device,
    )  # fmt: skip
    if key not in _runs:
        _runs[key] = Run(setting, layers)
    return _runs[key]


_alike: dict[str, bool] = {}


def layers_are_alike(setting: Setting) -> bool:
    """Tell whether the parameters of all layers of a stack have the same shapes, at the setting's depth."""
    key = f"{vars(setting.cfg)} {setting.vocab}"
    if key not in _alike:
        _alike[key] = _are_alike(setting)
    return _alike[key]


def _are_alike(setting: Setting) -> bool:
    """Compare the first, second, middle and last layer of each stack."""
    method = make_method(setting.cfg)
    for name, stack in skeleton(setting, 1).stacks().items():
        shape = StackShape.from_config(setting.cfg, name)
        layer_class = type(stack.layers[0])
        places = sorted({1, min(2, shape.num_layers), max(1, shape.num_layers // 2), shape.num_layers})

        shapes = set()
        for place in places:
            with torch.device("meta"):
                layer = layer_class(shape, method, place)
            shapes.add(tuple(parameter.shape for parameter in layer.parameters()))
        if len(shapes) > 1:
            return False
    return True


def skeleton(setting: Setting, layers: int = ALIKE, mixers: bool = True) -> DeepModel:
    """Make the setting's model on the meta device, with at most `layers` layers a stack.

    mixers: whether the stacks mix the outputs of as many layers as the setting has; False for as many as are made.
    """
    fields = vars(setting.cfg)
    depths = {name: min(layers, fields[name]) for name in setting.layer_fields}
    cfg = config.namespace(**(fields | depths))
    method = make_method(setting.cfg if mixers else cfg)
    read, predicted = setting.vocab
    with torch.device("meta"):
        model = MODELS[setting.model].assemble(cfg, method, source_symbols=read, target_symbols=predicted)
    return model.to(setting.dtype)


class Run:
    """Run one forward and backward pass of the setting's model with so many layers a stack, and keep its `stages`."""

    def __init__(self, setting: Setting, layers: int):
        self.setting = setting
        self.model = skeleton(setting, layers, mixers=False).train()
        self.stages: list[Stage] = []
        self.before: Reading  # where the last stage ended
        self.shares = False  # True if layers share state, so that a layer's cost may grow with its place
        self.sentences = setting.max_tokens // setting.length

        with ExitStack() as stack:
            stack.enter_context(PretendDevice(setting.device))
            stack.enter_context(torch.device("meta"))
            self.meter = stack.enter_context(Meter([*self.model.parameters(), *self.model.buffers()]))
            for parameter in self.model.parameters():
                if parameter.requires_grad:
                    parameter.register_post_accumulate_grad_hook(lambda p: self.meter.arrived(p.grad))

            features = [self._forward()]
            with self._stage("output") as stage:
                loss = self._loss(features.pop())  # popped: a name here would keep them longer than a training does
            if setting.chunked:  # its forward pass has computed the products of the backward pass
                stage.flops //= 3
            loss.backward()
            self._passed(self.stages[0])

    def expanded(self, setting: Setting, fewer: Run | None = None) -> Iterator[Stage]:
        """Yield the stages at the setting's depth; fewer: a run with one layer less, which shows growth with depth."""
        for name, group in itertools.groupby(self.stages, key=lambda stage: stage.name):
            *front, last = group
            stack = name.split()[0]  # "output", the loss, is no stack and has no layers
            layers = f"{stack} {LAYERS}"
            depth = getattr(setting.cfg, f"{stack}_layers", 0)
            missing = depth - sum(stage.name == layers for stage in self.stages)
            yield from front

            if name == layers and missing > 0:
                middle = front[-1]  # the missing layers are like the last but one, or grow on from it
                before = front[-2] if fewer else middle
                for step in range(1, missing + 1):
                    yield middle.further(before, step)

            # a last stage may grow with depth too: in `fewer` it stands one layer earlier; without `fewer` it is
            # extrapolated from itself, and stays as it is
            in_fewer = [stage for stage in fewer.stages if stage.name == name][-1] if fewer else last
            yield last.further(in_fewer, max(0, missing))

    def _forward(self) -> Tensor:
        """Run all stacks; return the features (B, T, C) of the last one."""
        memory: tuple[Tensor | None, ...] = ()
        for name, stack in self.model.stacks().items():
            x = self._stack(name, stack, memory)
            memory = (x, x.new_zeros(self.sentences, 1, 1, self.setting.length))
        return x

    def _stack(self, name: str, stack: Stack, memory: tuple) -> Tensor:
        """Run embedding, layers and end of a stack; return features (B, T, C).

        memory: further inputs of each layer: of a decoder the encoder's output and its mask, else none.
        """
        state: State = {}
        with self._stage(f"{name} embedding") as stage:
            tokens = torch.zeros(self.sentences, self.setting.length, dtype=torch.long)
            learned = isinstance(stack.embed_positions, nn.Embedding)
            positions = stack.positions(tokens) if learned else None
            if stack.embed_positions is not None and not learned:  # adds constants, which have no gradient
                weight = stack.embed_tokens.weight
                positions = weight.new_empty(*tokens.shape, weight.size(1))
            x = stack.begin(stack.embed(tokens, positions)[0], state)
            del positions
            queries = self.setting.length if name == "decoder" else 1
            mask = x.new_zeros(self.sentences, 1, queries, self.setting.length)  # the mask stays for all layers
            stage.output = x.nbytes

        for layer in stack.layers:
            x = self._boundary(x)
            with self._stage(f"{name} {LAYERS}") as stage, running(state):
                x = stack.mix(layer(x, mask, *memory), state)
                stage.output = x.nbytes
        if state:
            self.shares = True

        x = self._boundary(x)
        with self._stage(f"{name} end") as stage:
            x = stack.finish(x)
            stage.output = x.nbytes
        return self._boundary(x)

    def _boundary(self, x: Tensor) -> Tensor:
        """Return x; the arrival of its gradient ends, in the backward pass, the stage that begins here."""
        index = len(self.stages)
        x = x.view_as(x)
        x.register_hook(lambda _: self._passed(self.stages[index]))
        return x

    @contextmanager
    def _stage(self, name: str) -> Iterator[Stage]:
        """Record what runs in the context as the forward pass of a new stage."""
        stage = Stage(name)
        self.stages.append(stage)

        before = self.meter.lap()
        yield stage
        now = self.meter.lap()

        stage.kept = now.live - before.live
        stage.peak_forward = now.peak - before.live
        stage.flops = now.flops - before.flops
        stage.launches = now.launches - before.launches
        self.before = now

    def _passed(self, stage: Stage) -> None:
        """Record that the backward pass has left the stage."""
        before = self.before
        now = self.meter.lap()

        stage.change_backward = now.live - before.live
        stage.peak_accumulating = now.peak - before.live
        stage.peak_backward = now.peak_with_gradients - before.live - before.gradients
        stage.gradients = now.gradients - before.gradients
        stage.launches_back = now.launches - before.launches
        self.before = now

    def _loss(self, features: Tensor) -> Tensor:
        """Return the criterion's sum of features (B, T, C)."""
        setting = self.setting
        project = self.model.vocabulary_projection()
        target = torch.zeros(setting.scored, dtype=torch.long)
        positions = torch.zeros(setting.scored, dtype=torch.long)  # of the tokens that are predicted

        if setting.chunked:
            chunk = max(FEWEST_TOKENS, LOGITS_BYTES[setting.device] // (FLOAT32 * setting.vocab[1]))
            features = features.flatten(0, 1).index_select(0, positions)
            return label_smoothed_loss(features, project.weight, target, 0.1, chunk).loss

        logits = project(features[positions, positions] if setting.objective.masks else features).flatten(0, -2)
        lprobs = F.log_softmax(logits, dim=-1, dtype=torch.float32)
        if setting.objective.translates:
            return _label_smoothed(lprobs, target[:, None])
        return F.nll_loss(lprobs, target, reduction="sum", ignore_index=1)


def _label_smoothed(lprobs: Tensor, target: Tensor) -> Tensor:
    """Return the loss by the operations of fairseq's label_smoothed_nll_loss, which sets padding to 0 in place."""
    nll_loss = -lprobs.gather(dim=-1, index=target)
    smooth_loss = -lprobs.sum(dim=-1, keepdim=True)
    for loss in (nll_loss, smooth_loss):
        loss.masked_fill_(target.eq(1), 0.0)
    each = 0.1 / (lprobs.size(-1) - 1)
    return (1.0 - 0.1 - each) * nll_loss.sum() + each * smooth_loss.sum()
