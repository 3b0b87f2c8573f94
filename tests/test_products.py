"""Attention by products and dropout from 16 bits, the roads of a CPU, beside torch's own."""

import pytest
import torch
import torch.nn.functional as F

from deepnet_fairseq.core import attention
from deepnet_fairseq.core.attention import attend, split
from deepnet_fairseq.core.modules import Dropout, noise, project

from .support.helpers import batch, small

HEADS = 2


def packed(kind, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(shape, generator=generator, dtype=dtype, requires_grad=True)

    return (draw(3, 5, 24),) if kind == "own" else (draw(3, 4, 8), draw(3, 6, 16))


def masks(kind, form):
    length = 5 if kind == "own" else 6
    mask = torch.ones(3, 1, 1, length, dtype=torch.bool)
    mask[1, ..., :2] = False
    return {"none": None, "bool": mask, "numbers": attention.to_add(mask, torch.float64)}[form]


def by_torch(parts, mask, causal):
    q, keys, values = split(parts, HEADS)
    y = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, is_causal=causal)
    return y.transpose(1, 2).flatten(2)


@pytest.mark.parametrize(
    ("kind", "form", "causal"),
    [
        ("own", "none", True),
        *((kind, form, False) for kind in ("own", "other") for form in ("none", "bool", "numbers")),
    ],
)
def test_products_equal_torchs_attention(kind, form, causal):
    parts, mask = packed(kind), masks(kind, form)
    ours, theirs = attend(parts, HEADS, mask, causal, 0.0), by_torch(parts, mask, causal)
    assert torch.allclose(ours, theirs, atol=1e-12)
    weights = torch.randn_like(ours)
    for one, other in zip(*(torch.autograd.grad((y * weights).sum(), parts) for y in (ours, theirs)), strict=True):
        assert torch.allclose(one, other, atol=1e-12)
    assert torch.autograd.gradcheck(lambda *p: attend(p, HEADS, mask, causal, 0.0), parts)


@pytest.mark.parametrize("p", [0.001, 0.4, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_drops_with_its_probability_and_keeps_the_mean(p, dtype):
    torch.manual_seed(0)
    drawn = noise(torch.empty(1000, 1001, dtype=dtype), p)
    assert drawn.dtype == dtype
    assert len(drawn.unique()) == 2
    share, n = (drawn == 0).double().mean(), drawn.numel()
    assert abs(share - p) < 5 * (p * (1 - p) / n) ** 0.5 + 0.5 / 2**16
    assert float(drawn.max()) == pytest.approx(1 / (1 - p), rel=1e-4 if dtype == torch.float32 else 1e-2)
    neighbours = torch.corrcoef(torch.stack([drawn.flatten()[:-1].float(), drawn.flatten()[1:].float()]))[0, 1]
    assert abs(neighbours) < 5 / n**0.5  # four numbers come from one draw


def test_dropout_is_the_generators_and_its_gradient_the_same_mask():
    dropout, x = Dropout(0.3).train(), torch.ones(7, 5, requires_grad=True)
    torch.manual_seed(1)
    first = dropout(x)
    torch.manual_seed(1)
    assert torch.equal(first, dropout(x))
    assert not torch.equal(first, dropout(x))
    first.sum().backward()
    assert torch.equal(x.grad, first.detach())
    assert dropout.eval()(x) is x


def rounding(x, linears):
    """How far two products of other shapes may be apart: each rounds a sum of n terms by n eps / 2 of their sizes."""
    sizes = [F.linear(x.abs(), one.weight.abs(), None if one.bias is None else one.bias.abs()) for one in linears]
    return (x.size(-1) + 1) * torch.finfo(x.dtype).eps * torch.cat(sizes, -1)


@pytest.mark.parametrize("bias", [True, False])
def test_packed_projections_are_the_separate_ones(bias):
    """Values, gradients of input and parameters; and the packed weight is not kept for the backward pass."""
    torch.manual_seed(0)
    linears = [torch.nn.Linear(4, 6, bias=bias).double() for _ in range(3)]
    x = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    parameters = [parameter for linear in linears for parameter in linear.parameters()]
    separate = torch.cat([linear(x) for linear in linears], -1)
    assert ((project(x, *linears) - separate).abs() <= rounding(x, linears)).all()
    assert torch.autograd.gradcheck(lambda x, *_: project(x, *linears), (x, *parameters))

    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        project(x, *linears)
    known = {tensor.data_ptr() for tensor in (x, *parameters)}
    assert {tensor.data_ptr() for tensor in kept} <= known


def test_hooks_on_packed_projections_are_called():
    """Probes and fairseq's search for NaN watch them."""
    model, seen = small(1), []
    for name, module in model.named_modules():
        if name.endswith("_proj"):
            module.register_forward_hook(lambda *_, name=name: seen.append(name))
    src, prev = batch()
    model(src, None, prev)
    assert len(set(seen)) == 12  # q, k, v and out of three attentions
    seen.clear()
    with torch.no_grad():
        model.decoder(prev[:, :1], model.encoder(src), incremental_state={})
    assert {name for name in seen if name.startswith("decoder")} == {
        *(f"decoder.layers.0.self_attn.{role}_proj" for role in ("q", "k", "v", "out")),
        *(f"decoder.layers.0.encoder_attn.{role}_proj" for role in ("q", "k", "v", "out")),
    }


def test_a_query_that_may_look_nowhere_gives_numbers():
    parts, mask = packed("own", torch.float32), torch.zeros(3, 1, 1, 5, dtype=torch.bool)
    y = attend(parts, HEADS, mask, False, 0.0)
    y.sum().backward()
    assert torch.isfinite(y).all() and torch.isfinite(parts[0].grad).all()
