"""Methods whose layers read more than the stream of the layer before, each against its paper's formulas."""

from __future__ import annotations

import pytest
import torch

from deepnet_fairseq.core.archs import LM, MASKED_LM
from deepnet_fairseq.core.methods import METHODS
from deepnet_fairseq.errors import UserError

from .support.single_stacks import awake, batch, loss_of, small


def gradients(model, loss) -> dict[str, torch.Tensor]:
    wanted = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    found = torch.autograd.grad(loss, list(wanted.values()), allow_unused=True)
    return {name: gradient for name, gradient in zip(wanted, found, strict=True) if gradient is not None}


DENSE = [(1, 1), (2, 1), (1, 3), (2, 2), (4, 5)]  # dilation and period; 4x5 is the paper's choice for depth 48


@pytest.mark.parametrize("dilation, period", DENSE)
def test_denseformer(dilation, period):
    """Layer l + 1 reads sum_j A_lj y_j over j = l, l - k, .. where p divides l > 0, else y_l: states and gradients."""
    fields = {"dlcl_plain": True, "dlcl_init": "last", "dlcl_dilation": dilation, "dlcl_period": period}
    model, tokens = awake(LM, 7, method="dlcl", **fields), batch()
    decoder = model.decoder

    def by_hand(tokens):
        x = decoder.embed(tokens, decoder.positions(tokens))[0]
        outputs = [x]
        for l, layer in enumerate(decoder.layers, 1):
            outputs.append(layer(x, None))
            read = range(l, -1, -dilation) if l % period == 0 else ()
            x = sum(decoder.mixer.weights.weight[l, j] * outputs[j] for j in read) if read else outputs[-1]
        return decoder.output_layer(decoder.layer_norm(x))

    found, expected = model(tokens[:, :-1])[0], by_hand(tokens[:, :-1])
    assert torch.allclose(found, expected, atol=1e-5)
    ours, theirs = gradients(model, found.square().mean()), gradients(model, expected.square().mean())
    assert ours.keys() == theirs.keys()
    assert all(torch.allclose(ours[name], theirs[name], atol=1e-5) for name in theirs)
    assert not any(isinstance(norm, torch.nn.LayerNorm) for norm in decoder.mixer.norms)


def test_denseformer_begins_as_pre_ln():
    """A_ll = 1 and A_lj = 0: the same loss at first."""
    for kind in (LM, MASKED_LM):
        model = small(kind, 3, method="dlcl", dlcl_plain=True, dlcl_init="last", init_profile="fairseq_head")
        plain = small(kind, 3, method="pre_ln")
        plain.load_state_dict(model.state_dict(), strict=False)
        assert torch.allclose(loss_of(model), loss_of(plain), atol=1e-6)


@pytest.mark.parametrize(
    "method, option, value, said",
    [("dlcl", "dilation", 0, "at least 1"), ("dlcl", "period", -1, "at least 1")],
)
def test_options_without_sense_are_refused_in_one_line(method, option, value, said):
    with pytest.raises(UserError, match=f"^--{method.replace('_', '-')}-{option} {value}: .*{said}"):
        METHODS[method](2, 2, **{option: value})
