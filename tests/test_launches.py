"""Few operations for a GPU to be given, few bytes for it to move: counted on the CPU, and on the device meta."""

import copy

import pytest
import torch
from torch import nn

from deepnet_fairseq import register
from deepnet_fairseq.core import attention, config, models, modules
from deepnet_fairseq.core.archs import LM, MODEL_NAME
from deepnet_fairseq.core.decoding import DecoderCache, EncoderOutput
from deepnet_fairseq.core.methods import get_method
from deepnet_fairseq.core.methods.branchnorm import RisingBranch
from deepnet_fairseq.core.modules import branch_off, line_up, project
from deepnet_fairseq.core.slots import Multiply, Shift
from deepnet_fairseq.plugin.optimisers.flat import in_line
from deepnet_fairseq.plugin.optimisers.flat_adam import FlatAdam

from .support.helpers import small
from .support.observing import loss_of, net_input
from .support.operations import Operations
from .support.single_stacks import disturb

WIDTH = {f"{stack}_embed_dim": 32 for stack in ("encoder", "decoder")}  # whose biases fill the optimiser's alignment


def flat(model) -> FlatAdam:
    return FlatAdam(list(model.parameters()), lr=1e-3, betas=(0.9, 0.98), eps=1e-8, weight_decay=0.0)


def operations(model) -> list[str]:
    with Operations() as seen:
        loss_of(model, net_input()).backward()
    return seen.names


def test_attention_is_not_cudnns():
    """Neither inside fairseq nor alone."""
    for begin in (register, lambda: models.build("deepnet_lm_tiny", 20)):
        torch.backends.cuda.enable_cudnn_sdp(True)
        begin()
        assert not torch.backends.cuda.cudnn_sdp_enabled()


def test_queries_keys_and_values_are_read_where_they_lie(monkeypatch):
    """In the optimiser's buffer: no copy of a weight, forward or back; the numbers are those of copies, bit by bit."""
    monkeypatch.setattr(modules, "SMALL", 0)
    torch.manual_seed(0)
    model = small(2, method="deepnorm", **WIDTH).train()
    other = copy.deepcopy(model)
    flat(model)
    assert operations(model).count("cat") == 0
    assert operations(other).count("cat") == 3 * 2 * (2 + 1)  # attentions, layers; weight and bias, weight again
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine.grad, theirs.grad)
    for twin in (copy.deepcopy(model), model.double()):  # a copy lies elsewhere, a cast moves all
        twin.zero_grad()
        loss_of(twin, net_input()).backward()
        weight = twin.decoder.layers[1].self_attn.k_proj.weight.grad
        assert torch.allclose(weight.float(), other.decoder.layers[1].self_attn.k_proj.weight.grad, atol=1e-6)


def test_a_gradient_reaches_each_of_those_that_lie_together():
    """Where autograd looks at the product itself: under autocast."""
    linears = [nn.Linear(32, 32) for _ in range(3)]
    for first, second in zip(linears, linears[1:]):
        second.weight.behind, second.bias.behind = first.weight, first.bias
    flat(nn.ModuleList(linears))
    x = torch.randn(2, 3, 32)
    project(x, *linears).square().sum().backward()
    expected = [linear.weight.grad.clone() for linear in linears]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = project(x, *linears).float().square().sum()
    for linear in linears:
        linear.weight.grad = None
    loss.backward()
    for linear, gradient in zip(linears, expected, strict=True):
        assert torch.allclose(linear.weight.grad, gradient, rtol=0.1, atol=0.1 * gradient.abs().max())


def test_a_matrix_of_two_attentions_leaves_none_out():
    """k and v of the second lie elsewhere; all have their place once."""
    q, *others = (nn.Linear(4, 4) for _ in range(5))
    for pair in (others[:2], others[2:]):
        line_up(q, *pair)
    parameters = [parameter for linear in (*others, q) for parameter in linear.parameters()]
    order = in_line(parameters)
    assert sorted(order) == list(range(10))
    weights = [id(parameters[number]) for number in order if parameters[number].dim() == 2]
    assert [weights.index(id(linear.weight)) - weights.index(id(q.weight)) for linear in others[:2]] == [1, 2]


def test_gradients_that_lie_together_are_copied_as_one(monkeypatch):
    """By deepnet_adam: of a decoder layer's 26, six in three and six in four."""
    model, copied, copy_all = small(1, **WIDTH).train(), [], torch._foreach_copy_
    monkeypatch.setattr("deepnet_fairseq.plugin.optimisers.flat.CHUNK", {"cpu": 2**24, "cuda": 2**24})
    adam = flat(model)
    adam.parts[0].flat.joins = True  # as on a GPU
    loss_of(model, net_input()).backward()
    monkeypatch.setattr(torch, "_foreach_copy_", lambda to, those: copied.append(len(those)) or copy_all(to, those))
    norm = adam.norm()
    gradients = [parameter.grad for parameter in model.parameters()]
    assert copied == [len(gradients) - 4 - 4 - 2]  # q, k, v of two attentions, weights and biases; k, v of one
    assert norm == pytest.approx(float(torch.linalg.vector_norm(torch.cat([g.flatten() for g in gradients]))), rel=1e-5)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("own", [False, True])
def test_a_branch_adds_its_gradient_to_the_shortcuts(own, relu):
    """As on a GPU: values, gradients, hooks; a gradient that another holds stays as it is."""
    torch.manual_seed(0)
    linears, told = [nn.Linear(4, 6).double() for _ in range(1 if relu else 3)], []
    x = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    parameters = [parameter for linear in linears for parameter in linear.parameters()]

    def begun(x, *_):
        y, beside = branch_off(x, *linears, own=own, relu=relu)
        return y, beside * 3.0

    assert torch.autograd.gradcheck(begun, (x, *parameters))
    hook = linears[0].register_forward_hook(lambda _module, _given, y: told.append(y))
    expected, held = torch.cat([linear(x) for linear in linears], -1), torch.ones_like(x)
    y, beside = branch_off(x, *linears, own=False, relu=relu)
    torch.testing.assert_close(y, expected.relu() if relu else expected)  # one product or three: other kernels
    torch.testing.assert_close(told[0], told[1])
    beside.backward(held, retain_graph=True)
    torch.autograd.backward([y, beside], [torch.ones_like(y), held])
    assert torch.equal(held, torch.ones_like(x))
    hook.remove()
    assert [name for name in gradient_operations(x, linears, relu) if name in ("add", "add_", "clone")] == []


class Adapted(nn.Linear):
    """As an adapter or a quantised matrix would stand in a layer."""

    def forward(self, x):
        return super().forward(x) + 100


def test_a_branch_calls_what_is_more_than_a_product():
    """Of a subclass its own forward pass; hooks of all kinds, of which one may change what it sees."""
    linear, x = Adapted(4, 6), torch.randn(2, 3, 4, requires_grad=True)
    assert torch.equal(branch_off(x, linear, own=True, relu=True)[0], linear(x).relu())
    linear, seen = nn.Linear(4, 6), []
    linear.register_forward_hook(lambda _module, _given, y: y + 1)
    linear.register_full_backward_pre_hook(lambda _module, gradients: seen.append(gradients[0]))
    y, _beside = branch_off(x, linear, own=True)
    assert torch.equal(y, nn.functional.linear(x, linear.weight, linear.bias) + 1)
    y.sum().backward()
    assert len(seen) == 1


class Sum(nn.Module):
    """A residual as a stranger's method may have it."""

    def forward(self, x, f):
        return x + f


@pytest.mark.parametrize("bypass", [False, True])
@pytest.mark.parametrize("method", ["deepnorm", "post_ln", "admin", "pre_ln", "r_fixup"])
def test_layers_on_a_gpu_train_as_on_a_cpu(method, bypass, monkeypatch):
    """Which their branches begin in two ways; every gradient, in float64. bypass: one tensor is a gradient of two."""
    model, found = disturb(small(2, method=method, dropout=0.0)).double().train(), []
    model.encoder.layers[0].residual["ffn"] = Sum()
    for layer in [*model.encoder.layers, *model.decoder.layers] if bypass else []:
        layer.bypass = Sum()
    for on_gpu in (False, True):
        monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda _, on_gpu=on_gpu: on_gpu), raising=False)
        model.zero_grad()
        assert ("_addmm_activation" in operations(model)) == (on_gpu and method not in ("pre_ln", "r_fixup"))
        found.append([parameter.grad for parameter in model.parameters() if parameter.requires_grad])
    for one, other in zip(*found, strict=True):
        assert torch.allclose(one, other, atol=1e-12, rtol=1e-9)


def gradient_operations(x, linears, relu):
    y, beside = branch_off(x, *linears, own=True, relu=relu)
    loss = y.sum() + (2 * beside).sum()
    x.grad = None
    for linear in linears:
        linear.weight.grad = linear.bias.grad = None
    with Operations() as seen:
        loss.backward()
    return seen.names


@pytest.mark.parametrize("length", [7, 8, 13])
def test_masks_need_no_copy(length):
    """Every row begins at a multiple of 8 numbers, as the memory-efficient kernel asks for."""
    look = torch.ones(3, 1, 1, length, dtype=torch.bool)
    look[1, ..., :2] = False
    mask = attention.to_add(look, torch.float16)
    assert mask.shape == look.shape and mask.stride(-1) == 1 and not any(step % 8 for step in mask.stride()[:-1])
    assert torch.equal(mask == 0, look) and mask[1, 0, 0, 0] == torch.finfo(torch.float16).min


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_masks_are_of_the_type_that_autocast_computes_in(dtype):
    """For it would copy them in each layer, and make -inf of float32's lowest number."""
    look = torch.zeros(2, 1, 1, 7, dtype=torch.bool)
    with torch.autocast("cpu", dtype):
        mask = attention.to_add(look, torch.float32)
        exact = attention.to_add(look, torch.float64)
    assert mask.dtype == dtype and mask.isfinite().all() and mask.stride(0) == 8
    assert exact.dtype == torch.float64  # which autocast leaves alone
    assert attention.to_add(look.to("meta"), torch.float32).dtype == torch.float32


def test_a_step_of_decoding_copies_nothing_to_the_device():
    """And makes its mask there, with rows that need no copy."""
    decoder = models.blueprint("deepnet_transformer_tiny", 20).decoder
    states = torch.empty(3, 5, 64, device="meta")
    with torch.no_grad(), Operations() as seen:
        cache = DecoderCache(
            list(decoder.layers), EncoderOutput(states, None, 4), torch.empty(12, 1, 64, device="meta")
        )
        mask = cache.advance()
    assert "_to_copy" not in seen.names
    assert mask.shape == (3, 1, 4, 4) and not any(step % 8 for step in mask.stride()[:-1])


def test_packed_projections_have_shapes_without_numbers():
    with torch.device("meta"):
        linears, x = [nn.Linear(8, 6) for _ in range(3)], torch.empty(2, 3, 8, requires_grad=True)
    y = project(x, *linears)
    y.sum().backward()
    assert y.shape == (2, 3, 18) and x.grad.is_meta and linears[2].weight.grad.shape == (6, 8)


@pytest.mark.parametrize("module", [Multiply(1.3), Shift()])
def test_learned_numbers_cost_no_copies_in_half_precision(module):
    """One operation forward; and their gradient is a float32 sum, as large as float16 does not go."""
    x = torch.linspace(0.5, 2, 10_000).half().requires_grad_()
    with torch.no_grad():
        for number in module.parameters():
            number.add_(1e-4)  # lost in float16
    with Operations() as seen:
        y = module(x)
    assert len(seen) == 1 and y.dtype == torch.float16
    (number,) = module.parameters()
    exact = x.double() * float(number) if isinstance(module, Multiply) else x.double() - float(number)
    assert torch.equal(y, exact.half())
    y.backward(torch.full_like(y, 100.0))
    expected = 100 * x.double().sum() if isinstance(module, Multiply) else torch.tensor(-1e6)
    assert number.grad.item() == pytest.approx(expected.item(), rel=1e-5)
    assert torch.allclose(
        x.grad.float(), torch.full((10_000,), 100.0 * (float(number) if expected > 0 else 1)), rtol=1e-3
    )


@pytest.mark.parametrize(("value", "gradient"), [(300.0, 300.0), (1e-3, 1e-5)])
def test_a_learned_factors_gradient_is_no_sum_of_float16(value, gradient):
    """Products above its largest number, or below its least."""
    module, x = Multiply(), torch.full((1000,), value).half().requires_grad_()
    gradients = torch.full_like(x, gradient)
    module(x).backward(gradients)
    expected = (x.double() * gradients.double()).sum().item()
    assert module.scale.grad.dtype == torch.float32 and module.scale.grad.item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("kind", [MODEL_NAME, LM])
def test_branchnorms_number_is_written_once_a_stack(kind):
    """At 500L-500L there are 2,500; also after a cast, which parts them."""
    model = models.build(
        "deepnet_transformer_tiny" if kind == MODEL_NAME else "deepnet_lm_tiny", 20, method="branchnorm"
    )
    for _ in range(2):
        with Operations() as seen:
            model.set_num_updates(99)
        assert seen.names == ["fill_"] * len(model.stacks())
        found = [value.item() for name, value in model.state_dict().items() if name.endswith(".a")]
        assert found == pytest.approx([100 / 4000] * len(found)) and found
        model.half().float()
    copied = copy.deepcopy(model)
    copied.set_num_updates(1999)
    numbers = [{round(r.a.item(), 6) for r in of.modules() if isinstance(r, RisingBranch)} for of in (model, copied)]
    assert numbers == [{0.025}, {0.5}]


def test_branchnorms_branches_know_only_their_own_stack():
    """Two models of one Method rise each by itself; a layer's copy is of its two branches."""
    cfg = config.namespace("deepnet_transformer_tiny", method="branchnorm")
    method = get_method("branchnorm").from_config(cfg)
    pair = [models.MODELS[MODEL_NAME].assemble(cfg, method, 20, 20) for _ in range(2)]
    for model, updates in zip(pair, (1000, 2000), strict=True):
        model.set_num_updates(updates - 1)
    found = [{branch.a.item() for branch in model.modules() if isinstance(branch, RisingBranch)} for model in pair]
    assert found == [{0.25}, {0.5}]
    copied = {}
    copy.deepcopy(pair[0].encoder.layers[0], copied)
    assert sum(isinstance(one, RisingBranch) for one in copied.values()) == 2
