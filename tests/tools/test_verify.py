"""Tests of `deepnet verify`: correct models fit, published mistakes are named; fixtures follow descriptions."""

from __future__ import annotations

import math
import re

import pytest
import torch
from torch import nn

from deepnet_fairseq.core import archs
from deepnet_fairseq.core.methods import METHODS
from deepnet_fairseq.core.models import build
from deepnet_fairseq.errors import UserError
from deepnet_fairseq.tools.verify import audit, verify
from deepnet_fairseq.tools.verify.sources import recognised

from ..support.helpers import ROOT
from ..support.single_stacks import disturb, sizes, stock

GAINED = ("v_proj", "out_proj", "fc1", "fc2")
C, F = 64, 128


def drawn(out: int, inside: int, std: float) -> torch.Tensor:
    return torch.randn(out, inside) * std


def xavier(out: int, inside: int, gain: float = 1.0) -> torch.Tensor:
    return drawn(out, inside, gain * math.sqrt(2 / (out + inside)))


def decoder_of(layers: int, gain: float, gained=GAINED) -> dict:
    """Build a decoder's state dict in fairseq's names, Xavier-normal times `gain` for names that end in `gained`."""
    torch.manual_seed(0)
    shapes = {f"self_attn.{name}_proj": (C, C) for name in ("q", "k", "v", "out")} | {"fc1": (F, C), "fc2": (C, F)}
    state = {"decoder.embed_tokens.weight": drawn(50, C, 0.02)}
    for layer in range(layers):
        for name, shape in shapes.items():
            state[f"decoder.layers.{layer}.{name}.weight"] = xavier(*shape, gain if name.endswith(gained) else 1.0)
        for name in ("self_attn_layer_norm", "final_layer_norm"):
            state[f"decoder.layers.{layer}.{name}.weight"] = torch.ones(C)
    return state


def judged(state: dict, method: str = "deepnorm", alpha: float | None = None):
    """Audit a state dict, with alpha as a number beside the layers if it is given."""
    return audit(recognised(state | ({} if alpha is None else {"decoder.alpha": torch.tensor(alpha)}), {}), method)


def tokens(kind: str) -> tuple:
    """Return the inputs of a model of a kind."""
    ids = torch.arange(16).view(2, 8) % 7 + 3
    return (ids, None, ids) if kind == archs.MODEL_NAME else (ids,)


def only(result) -> str:
    (finding,) = result.findings
    return finding


@pytest.mark.parametrize(
    "name", [*sorted(METHODS), *(f"{name}+pro_res+qk_norm" for name in ("deepnorm", "pre_ln", "keel"))]
)
def test_a_right_model_of_every_method_fits(name):
    """A correct model of every method fits, also with cross-attention to another width; so does its state dict alone.

    Modifiers do not disturb the audit: small branches and normalised queries give no wrong finding.
    """
    name, *modifiers = name.split("+")
    for kind in archs.STACKS:
        torch.manual_seed(0)
        widths = {"encoder": 48 if kind == archs.MODEL_NAME else 32, "decoder": 32}
        fields = sizes(kind, 3) | {f"{stack}_embed_dim": widths[stack] for stack in archs.STACKS[kind]}
        model = build(kind, 50, method=name, **fields, **dict.fromkeys(modifiers, True))
        result = verify(model, name, tokens(kind))
        assert result.fits and not result.trained and (result.factors or not modifiers), result.findings
        assert {row.verdict for row in result.rows} == {"fits"}
        assert judged(model.state_dict(), name).findings == []


def test_right_weights_in_others_names_fit():
    result = judged(decoder_of(24, (8 * 24) ** -0.25), alpha=48**0.25)
    assert result.fits and len(result.rows) == 6 and result.factors[0][-1] == "fits"
    assert result.text().endswith("\nwhat was examined fits --method deepnorm")
    assert result.as_dict()["fits"] and result.as_dict()["unexamined"]


def test_the_gain_of_other_depths_and_methods():
    assert "the gain of 12 layers" in only(judged(decoder_of(36, 96**-0.25)))
    gain_of_sub_ln = math.log(2 * 24) ** 0.5
    assert "the initialisation of --method sub_ln" in only(judged(decoder_of(24, gain_of_sub_ln)))
    assert only(judged(decoder_of(24, 0.77))).endswith("fits nothing that is known")


def merged(layers: int, beta: float) -> dict:
    """Build an encoder's state dict in torch's names, in_proj_weight (3C, C) drawn as one matrix, v without beta."""
    torch.manual_seed(0)
    state = {}
    for layer in range(layers):
        named = {"self_attn.in_proj_weight": xavier(3 * C, C), "self_attn.out_proj.weight": xavier(C, C, beta)}
        named |= {"linear1.weight": xavier(F, C, beta), "linear2.weight": xavier(C, F, beta)}
        named |= {f"norm{number}.weight": torch.ones(C) for number in (1, 2)}
        state |= {f"encoder.layers.{layer}.{name}": value for name, value in named.items()}
    return state


def torchscale(encoder: int, decoder: int) -> dict:
    """Build a state dict with torchscale's names and initialisation, v, out, fc1 and fc2 divided by their scale."""
    torch.manual_seed(0)
    scales = {"encoder": (encoder**4 * decoder) ** (1 / 16) / 1.15, "decoder": (12 * decoder) ** 0.25}
    state = {}
    for stack, layers in (("encoder", encoder), ("decoder", decoder)):
        attentions = ["self_attn"] + ["encoder_attn"] * (stack == "decoder")
        shapes = {f"{attention}.{role}_proj": (C, C) for attention in attentions for role in ("q", "k", "v", "out")}
        shapes |= {"ffn.fc1": (F, C), "ffn.fc2": (C, F)}
        for at in (f"{stack}.layers.{layer}" for layer in range(layers)):
            for name, (out, inside) in shapes.items():
                divided = name.endswith(("v_proj", "out_proj", "fc1", "fc2"))
                std = (3 * inside) ** -0.5 / (scales[stack] if divided else 1)
                state[f"{at}.{name}.weight"] = drawn(out, inside, std)
            for name in (*(f"{attention}_layer_norm" for attention in attentions), "final_layer_norm"):
                state[f"{at}.{name}.weight"] = torch.ones(C)
    return state


class LabmlLayer(nn.TransformerEncoderLayer):
    """DeepNorm layer of labml in torch's names, with Xavier's deviations and beta; a on the shortcut, b on f."""

    def __init__(self, layers: int, a: float, b: float):
        super().__init__(C, 4, F, batch_first=True)
        self.a, self.b, beta = a, b, (8 * layers) ** -0.25
        q, k, *gained = self.self_attn.in_proj_weight.chunk(3)
        gained += [self.self_attn.out_proj.weight, self.linear1.weight, self.linear2.weight]
        for weight in (q, k, *gained):
            nn.init.xavier_normal_(weight, 1.0 if weight is q or weight is k else beta)

    def forward(self, x):
        x = self.norm1(self.a * x + self.b * self._sa_block(x, None, None))
        return self.norm2(self.a * x + self.b * self._ff_block(x))


def labml(layers: int, a: float, b: float) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(50, C), *(LabmlLayer(layers, a, b) for _ in range(layers)))


def test_alpha_on_the_wrong_operand_shows_in_a_live_module():
    """labml's x + alpha f is found in a forward pass; weights alone cannot show it."""
    alpha = 12**0.25
    wrong, right = labml(6, 1.0, alpha).train(), labml(6, alpha, 1.0)
    assert verify(right, "deepnorm", tokens("labml")).fits and not verify(right, "deepnorm").factors
    result = verify(wrong, "deepnorm", tokens("labml"))
    assert [text.split(": ")[0] for text in result.findings] == ["decoder self_attn", "decoder ffn"]
    assert all("it stands on the branch, x + 1.861 f" in text for text in result.findings)
    assert wrong.training and not any(module._forward_hooks for module in wrong.modules())
    assert judged(wrong.state_dict()).fits
    assert (
        verify(labml(6, 2.0, 2.0), "post_ln", tokens("labml")).factors[0][-1] == "fits"
    )  # LayerNorm removes a common factor


MISTAKES = {
    "MixLN": lambda: judged(decoder_of(24, 192**0.25), alpha=2.8284271247461903),
    "Keel": lambda: judged(decoder_of(24, 48**-0.25), alpha=48**0.25),
    "torchscale": lambda: judged(torchscale(12, 12)),
    "xformers": lambda: judged(decoder_of(12, 96**-0.25, tuple(name for name in GAINED if name != "v_proj"))),
    "labml": lambda: verify(labml(6, 1.0, 12**0.25), "deepnorm", tokens("labml")),
    "several": lambda: judged(merged(12, 96**-0.25)),
    "microsoft": lambda: judged(decoder_of(12, 24**0.25), alpha=96**-0.25),
}


def test_the_table_of_the_manual():
    """The manual's table quotes the audit's findings."""
    table = (ROOT / "docs" / "verify.md").read_text().split("## Known mistakes")[1]
    rows = re.findall(r"^\| (\w+).*\|(.*) \|$", table, re.MULTILINE)[1:]
    assert [name for name, _ in rows] == list(MISTAKES)
    for name, cell in rows:
        findings = "\n".join(MISTAKES[name]().findings)
        for quoted in re.findall("`(.*?)`", cell):
            assert quoted in findings, (name, findings)


def test_torchs_own_encoder():
    """torch's own encoder does not fit DeepNorm: a forward pass shows the plain shortcut, weights the init."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(C, 4, F, batch_first=True)
    module = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    result = verify(module, "deepnorm", (torch.randn(2, 8, C),))
    assert any("factor of the shortcut 1, deepnorm has 1.565; a plain shortcut" in text for text in result.findings)
    assert any("torch's default for a Linear" in text for text in result.findings)


@pytest.mark.parametrize("kind", list(archs.STACKS))
def test_fairseqs_own_models_are_post_ln(kind):
    """fairseq's own models fit post_ln; RoBERTa's initial weights are BERT's, which no method prescribes."""
    result = verify(stock(kind, 3), "post_ln", tokens(kind))
    assert result.fits and result.profile == "fairseq_head", result.findings
    if kind == archs.MASKED_LM:
        assert "N(0, 0.02), as BERT's and GPT-2's" in result.notes[0]
        assert {row.verdict for row in result.rows} == {"not the method's"}
    assert len(result.factors) == (5 if kind == archs.MODEL_NAME else 2)
    assert not verify(stock(kind, 3), "deepnorm").fits


def test_a_trained_model_is_judged_on_what_training_leaves():
    torch.manual_seed(0)
    model = disturb(build(archs.LM, 50, method="deepnorm", **sizes(archs.LM, 3)))
    result = verify(model, "deepnorm")
    assert result.fits and result.trained.startswith("trained: gains of its LayerNorms")
    assert {row.verdict for row in result.rows} <= {"fits", "trained, not judged"}
    places = [text.split(": ")[0] for text in verify(model, "post_ln", tokens(archs.LM)).findings]
    assert sorted(places) == ["decoder ffn", "decoder self_attn"]
    assert audit(recognised(decoder_of(24, 1.0), {}, 7), "deepnorm").trained


def test_names_that_are_no_whole_model():
    state = {name: value for name, value in decoder_of(4, 1.0).items() if ".layers.2." not in name}
    with pytest.raises(UserError, match="decoder: 3 of its layers up to 3 are there"):
        judged(state)
    with pytest.raises(UserError, match="no branch's weights"):
        judged({"fc.weight": torch.ones(2, 2)})


@pytest.mark.parametrize("layers", [1, 2])
def test_small_models_give_no_false_alarm(layers):
    """Small models give no false alarm, and weights sqrt(2) too wide are still found."""
    for seed in range(5):
        torch.manual_seed(seed)
        fields = sizes(archs.LM, layers)
        model = build(archs.LM, 50, method="deepnorm", **fields)
        assert verify(model, "deepnorm", inputs=(torch.arange(4, 12).view(1, 8),)).fits
        for layer in model.decoder.layers:
            layer.fc2.weight.data *= math.sqrt(2)
        assert "ffn.fc2: 1." in only(judged(model.state_dict()))
