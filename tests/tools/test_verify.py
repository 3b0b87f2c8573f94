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
from deepnet_fairseq.tools.verify import audit, verify
from deepnet_fairseq.tools.verify.sources import recognise

from ..support.errors import refused
from ..support.helpers import ROOT
from ..support.single_stacks import disturb, sizes, stock
from ..support.state_dicts import (
    FFN_WIDTH,
    GAINED,
    WIDTH,
    decoder_alpha,
    decoder_beta,
    decoder_in_fairseqs_names,
    deepnorm_decoder,
    encoder_in_torchs_names,
    torchscale_model,
)

VOCAB = 50
KINDS = list(archs.STACKS)
MODIFIERS = "+pro_res+qk_norm"
MODELS = [*sorted(METHODS), *(f"{method}{MODIFIERS}" for method in ("deepnorm", "pre_ln", "keel"))]


def audited(state: dict, method: str = "deepnorm", alpha: float | None = None):
    """Audit a state dict, with alpha as a number beside the layers if it is given."""
    if alpha is not None:
        state = state | {"decoder.alpha": torch.tensor(alpha)}
    return audit(recognise(state, {}), method)


def model_inputs(kind: str) -> tuple:
    """Return the inputs of a model of a kind, two rows of eight tokens."""
    ids = torch.arange(16).view(2, 8) % 7 + 3
    if kind == archs.MODEL_NAME:
        return ids, None, ids
    return (ids,)


def only_finding(result) -> str:
    (finding,) = result.findings
    return finding


def places(findings: list[str]) -> list[str]:
    """Return where findings are, as "decoder ffn"."""
    return [finding.split(": ")[0] for finding in findings]


# correct models


def correct_model(name: str, kind: str):
    """Build a model of 3 layers. name: a method, and modifiers behind a + each.

    The encoder of a translator is wider than its decoder, so cross-attention is to another width.
    """
    method, *modifiers = name.split("+")
    fields = sizes(kind, layers=3) | {"method": method} | dict.fromkeys(modifiers, True)
    for stack in archs.STACKS[kind]:
        fields[f"{stack}_embed_dim"] = 32
    if kind == archs.MODEL_NAME:
        fields["encoder_embed_dim"] = 48
    torch.manual_seed(0)
    return build(kind, VOCAB, **fields)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", MODELS)
def test_a_correct_model_of_every_method_fits(name, kind):
    """Modifiers do not disturb the audit: small branches and normalised queries give no wrong finding."""
    method = name.removesuffix(MODIFIERS)

    result = verify(correct_model(name, kind), method, model_inputs(kind))

    assert result.fits, result.findings
    assert not result.trained
    assert {row.verdict for row in result.rows} == {"fits"}
    if name != method:
        assert result.factors  # of the shortcuts, which the modifiers leave measurable


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", MODELS)
def test_the_state_dict_of_a_correct_model_of_every_method_fits(name, kind):
    result = audited(correct_model(name, kind).state_dict(), name.removesuffix(MODIFIERS))

    assert result.findings == []


def test_correct_weights_in_fairseqs_names_fit():
    result = audited(deepnorm_decoder(24), alpha=decoder_alpha(24))

    assert result.fits
    assert len(result.rows) == len(["q", "k", "v", "out", "fc1", "fc2"])
    assert result.factors[0][-1] == "fits"


def test_an_audit_is_printed_and_listed_with_its_verdict():
    result = audited(deepnorm_decoder(24), alpha=decoder_alpha(24))

    assert result.text().splitlines()[-1].endswith("fits --method deepnorm")
    assert result.as_dict()["fits"]
    assert result.as_dict()["unexamined"]


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("seed", range(5))
def test_small_models_give_no_false_alarm(seed, layers):
    torch.manual_seed(seed)
    model = build(archs.LM, VOCAB, method="deepnorm", **sizes(archs.LM, layers))

    result = verify(model, "deepnorm", inputs=(torch.arange(4, 12).view(1, 8),))

    assert result.fits, result.findings


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("seed", range(5))
def test_weights_too_wide_are_found_in_small_models(seed, layers):
    """By sqrt(2), in matrices of 16 x 32."""
    torch.manual_seed(seed)
    model = build(archs.LM, VOCAB, method="deepnorm", **sizes(archs.LM, layers))
    for layer in model.decoder.layers:
        layer.fc2.weight.data *= math.sqrt(2)

    finding = only_finding(audited(model.state_dict()))

    assert finding.startswith("decoder ffn.fc2: 1.")  # times what DeepNorm gives


# initialisations of something else


def test_the_gain_of_another_depth_is_named():
    finding = only_finding(audited(decoder_in_fairseqs_names(36, decoder_beta(12))))

    assert "12 layers" in finding


def test_the_initialisation_of_another_method_is_named():
    gain_of_sub_ln = math.log(2 * 24) ** 0.5

    finding = only_finding(audited(decoder_in_fairseqs_names(24, gain_of_sub_ln)))

    assert "--method sub_ln" in finding


def test_a_gain_of_no_method_and_no_depth_is_explained_by_none():
    finding = only_finding(audited(decoder_in_fairseqs_names(24, 0.77)))

    explanation = finding.split("; ")[1]
    assert "nothing" in explanation
    assert "--method" not in explanation
    assert not re.search(r"\d", explanation)


def test_torchs_own_encoder_has_a_plain_shortcut_and_torchs_weights():
    """torch's own encoder does not fit DeepNorm: a forward pass shows the plain shortcut, weights the init."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, 4, FFN_WIDTH, batch_first=True)
    module = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)

    result = verify(module, "deepnorm", (torch.randn(2, 8, WIDTH),))

    of_shortcuts = [finding for finding in result.findings if "shortcut 1, " in finding]
    assert places(of_shortcuts) == ["decoder self_attn", "decoder ffn"]
    for finding in of_shortcuts:
        assert f"{decoder_alpha(3):.4g}" in finding  # which DeepNorm has
        assert "plain" in finding
    assert any("torch's default" in finding for finding in result.findings)


@pytest.mark.parametrize("kind", KINDS)
def test_fairseqs_own_models_are_post_ln(kind):
    result = verify(stock(kind, 3), "post_ln", model_inputs(kind))

    assert result.fits, result.findings
    assert result.profile == "fairseq_head"
    branches = 5 if kind == archs.MODEL_NAME else 2
    assert len(result.factors) == branches


@pytest.mark.parametrize("kind", KINDS)
def test_fairseqs_own_models_are_not_deepnorm(kind):
    assert not verify(stock(kind, 3), "deepnorm").fits


def test_robertas_weights_are_berts_which_no_method_prescribes():
    result = verify(stock(archs.MASKED_LM, 3), "post_ln", model_inputs(archs.MASKED_LM))

    assert "N(0, 0.02)" in result.notes[0]
    assert {row.verdict for row in result.rows} == {"not the method's"}


# shortcuts of live modules


class LabmlLayer(nn.TransformerEncoderLayer):
    """DeepNorm layer of labml in torch's names, with Xavier's deviations and beta; a on the shortcut, b on f."""

    def __init__(self, layers: int, a: float, b: float):
        super().__init__(WIDTH, 4, FFN_WIDTH, batch_first=True)
        self.a = a
        self.b = b
        query, key, value = self.self_attn.in_proj_weight.chunk(3)
        for weight in (query, key):
            nn.init.xavier_normal_(weight)
        for weight in (value, self.self_attn.out_proj.weight, self.linear1.weight, self.linear2.weight):
            nn.init.xavier_normal_(weight, decoder_beta(layers))

    def forward(self, x):
        x = self.norm1(self.a * x + self.b * self._sa_block(x, None, None))
        return self.norm2(self.a * x + self.b * self._ff_block(x))


def labml_model(a: float, b: float, layers: int = 6) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(VOCAB, WIDTH), *(LabmlLayer(layers, a, b) for _ in range(layers)))


ALPHA = decoder_alpha(6)
LABML_INPUTS = model_inputs(archs.LM)


def test_alpha_on_the_shortcut_fits_in_a_live_module():
    assert verify(labml_model(a=ALPHA, b=1.0), "deepnorm", LABML_INPUTS).fits


def test_factors_are_measured_only_with_inputs():
    assert not verify(labml_model(a=ALPHA, b=1.0), "deepnorm").factors


def test_alpha_on_the_branch_shows_in_a_live_module():
    """labml's x + alpha f is found in a forward pass; weights alone cannot show it."""
    module = labml_model(a=1.0, b=ALPHA)

    findings = verify(module, "deepnorm", LABML_INPUTS).findings

    assert places(findings) == ["decoder self_attn", "decoder ffn"]
    for finding in findings:
        assert f"x + {ALPHA:.4g} f" in finding
    assert audited(module.state_dict()).fits


def test_measuring_leaves_the_module_as_it_was():
    module = labml_model(a=1.0, b=ALPHA).train()

    verify(module, "deepnorm", LABML_INPUTS)

    assert module.training
    for part in module.modules():
        assert not part._forward_hooks


def test_a_factor_of_shortcut_and_branch_alike_fits():
    """LayerNorm removes a common factor."""
    result = verify(labml_model(a=2.0, b=2.0), "post_ln", LABML_INPUTS)

    assert result.factors[0][-1] == "fits"


# published mistakes

WITHOUT_V = tuple(name for name in GAINED if name != "v_proj")
MISTAKES = {  # name in the manual's table -> the audit of what it describes
    "MixLN": lambda: audited(decoder_in_fairseqs_names(24, 1 / decoder_beta(24)), alpha=2.8284271247461903),
    "Keel": lambda: audited(decoder_in_fairseqs_names(24, 1 / decoder_alpha(24)), alpha=decoder_alpha(24)),
    "torchscale": lambda: audited(torchscale_model(12, 12)),
    "xformers": lambda: audited(decoder_in_fairseqs_names(12, decoder_beta(12), WITHOUT_V)),
    "labml": lambda: verify(labml_model(a=1.0, b=ALPHA), "deepnorm", LABML_INPUTS),
    "several": lambda: audited(encoder_in_torchs_names(12, decoder_beta(12))),
    "microsoft": lambda: audited(decoder_in_fairseqs_names(12, decoder_alpha(12)), alpha=decoder_beta(12)),
}


def quotations_of_the_manual() -> dict[str, list[str]]:
    """Return what each row of docs/verify.md's table of known mistakes quotes of the audit, by the row's name."""
    table = (ROOT / "docs" / "verify.md").read_text().split("## Known mistakes")[1]
    rows = re.findall(r"^\| (\w+).*\|(.*) \|$", table, re.MULTILINE)[1:]
    return {name: re.findall("`(.*?)`", cell) for name, cell in rows}


def test_the_manuals_table_has_the_mistakes_tested_here():
    assert list(quotations_of_the_manual()) == list(MISTAKES)


@pytest.mark.parametrize("name", MISTAKES)
def test_the_manuals_table_quotes_the_findings(name):
    findings = "\n".join(MISTAKES[name]().findings)
    quotations = quotations_of_the_manual()[name]

    assert quotations
    for quotation in quotations:
        assert quotation in findings, findings


# trained models, and names that do not make a model


@pytest.fixture
def trained_deepnorm_model():
    """Provide a DeepNorm model with noise on all parameters, as after a training."""
    torch.manual_seed(0)
    return disturb(build(archs.LM, VOCAB, method="deepnorm", **sizes(archs.LM, 3)))


def test_weights_of_a_trained_model_are_not_judged(trained_deepnorm_model):
    result = verify(trained_deepnorm_model, "deepnorm")

    assert result.fits
    assert "LayerNorms" in result.trained  # their gains are no ones any more
    assert {row.verdict for row in result.rows} <= {"fits", "trained, not judged"}


def test_shortcuts_of_a_trained_model_are_judged(trained_deepnorm_model):
    result = verify(trained_deepnorm_model, "post_ln", model_inputs(archs.LM))

    assert sorted(places(result.findings)) == ["decoder ffn", "decoder self_attn"]


def test_a_checkpoint_after_updates_is_of_a_trained_model():
    state = decoder_in_fairseqs_names(24, gain=1.0)

    assert audit(recognise(state, {}, 7), "deepnorm").trained


def test_a_stack_without_one_of_its_layers_is_refused():
    state = decoder_in_fairseqs_names(4, gain=1.0)
    without_third = {name: value for name, value in state.items() if ".layers.2." not in name}

    with refused("decoder") as caught:
        audited(without_third)
    assert "3" in caught.value.way_out
    assert "--names" in caught.value.way_out


def test_weights_without_a_residual_branch_are_refused():
    with refused("fc.weight") as caught:
        audited({"fc.weight": torch.ones(2, 2)})
    assert "--names" in str(caught.value)
