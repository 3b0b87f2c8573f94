"""Tests of `deepnet verify`: correct models fit, and published mistakes are named.

An audit compares a model's initial weights and the factors of its shortcuts with a method's formulas. A finding is a
line about what does not fit, as "decoder ffn.fc1: 1.4 times what deepnorm gives; EXPLANATION". Weights are named as in
the code of other packages, and drawn as that code is described to draw them (support/state_dicts.py).
"""

from __future__ import annotations

import math
import re

import pytest
import torch
from torch import nn

from deepnet_fairseq.core import archs
from deepnet_fairseq.core.methods import METHODS
from deepnet_fairseq.core.models import build
from deepnet_fairseq.tools.verify import NOT_PRESCRIBED, audit, verify
from deepnet_fairseq.tools.verify.evidence import Kind, Measured
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
KINDS = list(archs.STACKS)  # translator, language model, masked language model
MODIFIERS = "+pro_res+qk_norm"  # options that go with any method: smaller branches at first, normalised queries
MODELS = [*sorted(METHODS), *(f"{method}{MODIFIERS}" for method in ("deepnorm", "pre_ln", "keel"))]


def audited(state: dict, method: str = "deepnorm", alpha: float | None = None):
    """Audit a state dict. alpha: stored factor of the decoder's shortcuts, None for a file that stores none."""
    if alpha is not None:
        state = state | {"decoder.alpha": torch.tensor(alpha)}
    return audit(recognise(state, {}), method)


def model_inputs(kind: str) -> tuple:
    """Return the arguments of a call of a model of this kind, with two rows of eight tokens.

    Any tokens will do to measure a factor.
    """
    ids = torch.arange(16).view(2, 8) % 7 + 3  # above the special symbols
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
    """Build a model of 3 layers, by name of MODELS.

    The encoder of a translator is wider than its decoder, so that cross-attention reads another width.
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
    """A model with modifiers fits, too: its small branches leave the factors of the shortcuts measurable."""
    method = name.removesuffix(MODIFIERS)

    result = verify(correct_model(name, kind), method, model_inputs(kind))

    assert result.fits, result.findings
    assert not result.trained
    assert {row.verdict for row in result.rows} == {"fits"}
    if name.endswith(MODIFIERS):
        assert result.factors


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", MODELS)
def test_the_state_dict_of_a_correct_model_of_every_method_fits(name, kind):
    result = audited(correct_model(name, kind).state_dict(), name.removesuffix(MODIFIERS))

    assert result.findings == []


def test_correct_weights_in_fairseqs_names_fit():
    result = audited(deepnorm_decoder(24), alpha=decoder_alpha(24))

    assert result.fits
    assert [row.kind.split(".")[1] for row in result.rows] == ["q", "k", "v", "out", "fc1", "fc2"]
    [[*_, verdict_on_alpha]] = result.factors
    assert verdict_on_alpha == "fits"


def test_an_audit_is_printed_and_listed_with_its_verdict():
    """LayerNorms are not judged, so that something is unexamined in any audit."""
    result = audited(deepnorm_decoder(24), alpha=decoder_alpha(24))

    printed = result.text()
    listed = result.as_dict()

    assert printed.splitlines()[-1].endswith("fits --method deepnorm")
    assert listed["fits"]
    assert listed["unexamined"]


def test_a_layer_whose_matrix_has_to_be_0_does_not_lower_the_ratio_of_the_others():
    measured = [Measured(elements=2048, std=0.0), Measured(elements=2048, std=0.5)]
    kind = Kind("decoder", "ffn", "fc2", measured=measured)
    expected = [0.0, 0.5]

    assert kind.ratio(expected) == 1
    assert kind.fits(expected)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("seed", range(5))
def test_small_models_give_no_false_alarm(seed, layers):
    """The fewer elements a matrix has, the farther its deviation is from the formula's by chance."""
    torch.manual_seed(seed)
    model = build(archs.LM, VOCAB, method="deepnorm", **sizes(archs.LM, layers))

    result = verify(model, "deepnorm", inputs=(torch.arange(4, 12).view(1, 8),))

    assert result.fits, result.findings


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("seed", range(5))
def test_weights_too_wide_by_sqrt_2_are_found_in_small_models(seed, layers):
    """The matrices have 16 x 32 elements. Their deviation may be off by chance, but not by so much."""
    torch.manual_seed(seed)
    model = build(archs.LM, VOCAB, method="deepnorm", **sizes(archs.LM, layers))
    for layer in model.decoder.layers:
        layer.fc2.weight.data *= math.sqrt(2)

    finding = only_finding(audited(model.state_dict()))

    place, rest = finding.split(": ", maxsplit=1)
    ratio = float(rest.split()[0])  # to what DeepNorm gives
    assert place == "decoder ffn.fc2"
    assert 1 < ratio < 2


# initialisations of something else


def test_the_gain_of_another_depth_is_named():
    weights = decoder_in_fairseqs_names(layers=36, gain=decoder_beta(12))

    finding = only_finding(audited(weights))

    assert "12 layers" in finding


def test_the_initialisation_of_another_method_is_named():
    gain_of_sub_ln = math.log(2 * 24) ** 0.5  # sqrt(log 2M) of M decoder layers (Foundation Transformers)
    weights = decoder_in_fairseqs_names(layers=24, gain=gain_of_sub_ln)

    finding = only_finding(audited(weights))

    assert "--method sub_ln" in finding


def test_a_gain_of_no_method_and_no_depth_is_explained_by_none():
    weights = decoder_in_fairseqs_names(layers=24, gain=0.77)  # DeepNorm's beta is 0.27

    finding = only_finding(audited(weights))

    explanation = finding.split("; ")[1]
    assert "--method" not in explanation
    assert not re.search(r"\d", explanation)  # a depth or a factor


@pytest.fixture(scope="module")
def audit_of_torchs_encoder():
    """Provide the audit against DeepNorm of torch's own encoder of 3 layers, measured in a forward pass.

    The names of the encoder's weights do not say "encoder", so that it is taken for a decoder.
    """
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, 4, FFN_WIDTH, batch_first=True)
    module = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    return verify(module, "deepnorm", inputs=(torch.randn(2, 8, WIDTH),))


def test_the_plain_shortcuts_of_torchs_own_encoder_are_named(audit_of_torchs_encoder):
    """Each finding has the factor that DeepNorm has, and says that the model's is 1."""
    findings = [finding for finding in audit_of_torchs_encoder.findings if "plain" in finding]

    assert places(findings) == ["decoder self_attn", "decoder ffn"]
    for finding in findings:
        assert " 1, " in finding
        assert f"{decoder_alpha(3):.4g}" in finding


def test_the_initialisation_of_torchs_own_encoder_is_named(audit_of_torchs_encoder):
    assert any("torch's default" in finding for finding in audit_of_torchs_encoder.findings)


@pytest.mark.parametrize("kind", KINDS)
def test_fairseqs_own_models_are_post_ln(kind):
    """Each branch of a stack has a row of factors. A translator's decoder has three branches, any other stack two."""
    result = verify(stock(kind, layers=3), "post_ln", model_inputs(kind))

    assert result.fits, result.findings
    assert result.profile == "fairseq_head"  # how fairseq draws weights in every release after 0.9
    branches = 2 + 3 if kind == archs.MODEL_NAME else 2
    assert len(result.factors) == branches


@pytest.mark.parametrize("kind", KINDS)
def test_fairseqs_own_models_are_not_deepnorm(kind):
    assert not verify(stock(kind, 3), "deepnorm").fits


def test_robertas_weights_are_berts_which_post_ln_does_not_prescribe():
    """fairseq's RoBERTa draws weights from N(0, 0.02); as Post-LN has no gain, that is a note and no finding."""
    result = verify(stock(archs.MASKED_LM, layers=3), "post_ln", model_inputs(archs.MASKED_LM))

    assert "N(0, 0.02)" in result.notes[0]
    assert {row.verdict for row in result.rows} == {NOT_PRESCRIBED}


# factors of shortcuts, measured in a forward pass


class LabmlLayer(nn.TransformerEncoderLayer):
    """DeepNorm layer as labml has it, LN(a x + b f), in torch's names.

    Its weights are correct: Xavier-normal, times beta where DeepNorm has it. layers: of the model, for beta.
    """

    def __init__(self, layers: int, a: float, b: float):
        super().__init__(WIDTH, 4, FFN_WIDTH, batch_first=True)
        self.a = a  # factor of the shortcut
        self.b = b  # factor of the branch
        query, key, value = self.self_attn.in_proj_weight.chunk(3)
        for weight in (query, key):
            nn.init.xavier_normal_(weight)
        for weight in (value, self.self_attn.out_proj.weight, self.linear1.weight, self.linear2.weight):
            nn.init.xavier_normal_(weight, decoder_beta(layers))

    def forward(self, x):
        x = self.norm1(self.a * x + self.b * self._sa_block(x, None, None))
        return self.norm2(self.a * x + self.b * self._ff_block(x))


LABML_LAYERS = 6
ALPHA = decoder_alpha(LABML_LAYERS)
LABML_INPUTS = model_inputs(archs.LM)


def labml_model(a: float, b: float) -> nn.Module:
    """Build a model of embeddings and LABML_LAYERS such layers, whose correct factors are a=ALPHA and b=1."""
    torch.manual_seed(0)
    layers = [LabmlLayer(LABML_LAYERS, a, b) for _ in range(LABML_LAYERS)]
    return nn.Sequential(nn.Embedding(VOCAB, WIDTH), *layers)


def test_alpha_on_the_shortcut_fits_in_a_forward_pass():
    result = verify(labml_model(a=ALPHA, b=1.0), "deepnorm", LABML_INPUTS)

    assert result.factors
    assert result.fits


def test_factors_are_measured_only_with_inputs():
    result = verify(labml_model(a=ALPHA, b=1.0), "deepnorm", inputs=None)

    assert not result.factors


def test_alpha_on_the_branch_shows_in_a_forward_pass():
    """labml computes x + alpha f."""
    module = labml_model(a=1.0, b=ALPHA)

    findings = verify(module, "deepnorm", LABML_INPUTS).findings

    assert places(findings) == ["decoder self_attn", "decoder ffn"]
    for finding in findings:
        assert f"x + {ALPHA:.4g} f" in finding


def test_alpha_on_the_branch_does_not_show_in_weights_alone():
    module = labml_model(a=1.0, b=ALPHA)

    assert audited(module.state_dict()).fits


def test_measuring_leaves_the_module_as_it_was():
    """The module stays in training mode, and keeps no hook."""
    module = labml_model(a=1.0, b=ALPHA).train()

    verify(module, "deepnorm", LABML_INPUTS)

    assert module.training
    for part in module.modules():
        assert not part._forward_hooks


def test_a_common_factor_of_shortcut_and_branch_fits():
    """LayerNorm removes a common factor: LN(2 x + 2 f) is Post-LN's LN(x + f)."""
    result = verify(labml_model(a=2.0, b=2.0), "post_ln", LABML_INPUTS)

    verdicts = [verdict for *_, verdict in result.factors]
    assert verdicts == ["fits", "fits"]  # of self-attention and feed-forward


# published mistakes


def audit_of_mixln():
    """MixLN's gain is the inverse of beta, and its alpha the same at any depth, that of 32 layers, 64^(1/4)."""
    return audited(decoder_in_fairseqs_names(24, gain=1 / decoder_beta(24)), alpha=2.8284271247461903)


def audit_of_keel():
    """Keel's gain is L^(-1/4) of L = 2M sub-layers, the inverse of alpha."""
    return audited(decoder_in_fairseqs_names(24, gain=1 / decoder_alpha(24)), alpha=decoder_alpha(24))


def audit_of_torchscale():
    return audited(torchscale_model(encoder_layers=12, decoder_layers=12))


def audit_of_xformers():
    """Before #284 of xformers, v had no gain."""
    gained = tuple(name for name in GAINED if name != "v_proj")
    return audited(decoder_in_fairseqs_names(12, gain=decoder_beta(12), gained=gained))


def audit_of_labml():
    """labml computes LN(x + alpha f)."""
    return verify(labml_model(a=1.0, b=ALPHA), "deepnorm", LABML_INPUTS)


def audit_of_several():
    """Several packages draw q, k and v as one matrix (3C, C)."""
    return audited(encoder_in_torchs_names(12, beta=decoder_beta(12)))


def audit_of_microsoft():
    """In microsoft/unilm#663 alpha and beta are swapped."""
    return audited(decoder_in_fairseqs_names(12, gain=decoder_alpha(12)), alpha=decoder_beta(12))


MISTAKES = {  # first word of a row of the manual's table -> function that returns the audit of what it describes
    "MixLN": audit_of_mixln,
    "Keel": audit_of_keel,
    "torchscale": audit_of_torchscale,
    "xformers": audit_of_xformers,
    "labml": audit_of_labml,
    "several": audit_of_several,
    "microsoft": audit_of_microsoft,
}


def quotations_of_the_manual() -> dict[str, list[str]]:
    """Return what each row of docs/verify.md's table of known mistakes quotes of the audit, by the row's first word."""
    table = (ROOT / "docs" / "verify.md").read_text().split("## Known mistakes")[1]
    _header, *rows = re.findall(r"^\| (\w+).*\|(.*) \|$", table, re.MULTILINE)  # (first word, last cell)
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
    """Provide a DeepNorm language model with noise on all parameters, which stands for a training."""
    torch.manual_seed(0)
    return disturb(build(archs.LM, VOCAB, method="deepnorm", **sizes(archs.LM, 3)))


def test_weights_of_a_trained_model_are_not_judged(trained_deepnorm_model):
    result = verify(trained_deepnorm_model, "deepnorm")

    assert result.fits
    assert "LayerNorms" in result.trained  # trained gains of LayerNorms are no ones any more
    assert "trained, not judged" in {row.verdict for row in result.rows}
    assert "does not fit" not in {row.verdict for row in result.rows}


def test_shortcuts_of_a_trained_model_are_judged(trained_deepnorm_model):
    """DeepNorm's constant alpha stays what it is in a training; Post-LN has 1."""
    result = verify(trained_deepnorm_model, "post_ln", model_inputs(archs.LM))

    assert sorted(places(result.findings)) == ["decoder ffn", "decoder self_attn"]


def test_a_checkpoint_after_updates_is_of_a_trained_model():
    """The LayerNorms alone would be those of a fresh model."""
    weights = decoder_in_fairseqs_names(24, gain=1.0)

    result = audit(recognise(weights, config={}, updates=7), "deepnorm")

    assert "7 updates" in result.trained


def test_a_stack_without_one_of_its_layers_is_refused():
    """Names count layers from 0. Without `layers.2` the decoder has 3 of its 4 layers."""
    weights = decoder_in_fairseqs_names(4, gain=1.0)
    without_third = {name: value for name, value in weights.items() if ".layers.2." not in name}

    with refused("decoder") as caught:
        audited(without_third)

    assert "3" in caught.value.way_out
    assert "--names" in caught.value.way_out


def test_weights_without_a_residual_branch_are_refused():
    """fc.weight is no name of a layer's matrix. The refusal tells of --names, by which a user renames weights."""
    with refused("fc.weight") as caught:
        audited({"fc.weight": torch.ones(2, 2)})

    assert "--names" in str(caught.value)
