"""`deepnet verify` on what is easily mistaken: methods, place of LayerNorms, what is missing; odd files."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from deepnet_fairseq.core import archs
from deepnet_fairseq.core.methods import METHODS
from deepnet_fairseq.core.models import build
from deepnet_fairseq.errors import UserError
from deepnet_fairseq.tools.verify import audit, verify
from deepnet_fairseq.tools.verify.sources import recognised

from .support.helpers import assert_refused
from .support.single_stacks import disturb, sizes
from .test_verify import C, F, judged, llama, xavier


def lm(method: str, layers: int = 3, **fields) -> nn.Module:
    torch.manual_seed(0)
    return build(archs.LM, 40, method=method, **(sizes(archs.LM, layers) | {"decoder_embed_dim": 32} | fields))


@pytest.mark.smoke
@pytest.mark.parametrize("model", sorted(METHODS))
def test_every_method_against_every_other(model):
    """None raises, and none but its own fits: slots, constants, gains or merges tell them apart."""
    built = lm(model)
    assert [name for name in METHODS if verify(built, name).fits] == [model]


@pytest.mark.parametrize(
    "model, name",
    [
        ("deepnorm", "pre_ln"),
        ("branchnorm", "rezero"),
        ("pre_ln", "peri_ln"),
        ("mhc", "rezero"),
        ("peri_ln", "pre_ln"),
    ],
)
def test_a_method_that_it_is_not(model, name):
    assert not verify(lm(model), name).fits


def test_a_gain_that_the_method_of_another_depth_has_not():
    """1 / (N - l + 1) has no value above layer N."""
    narrowed = lm("post_ln", 4)
    for layer in narrowed.decoder.layers[1:]:
        layer.fc2.weight.data.mul_(0.5)
    assert any("ffn.fc2" in text for text in verify(narrowed, "post_ln_init").findings)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_our_state_dicts_fit(name):
    """By their names and shapes alone, without config."""
    assert judged(lm(name).state_dict(), name).findings == []


def test_modifiers_are_named():
    result = judged(lm("post_ln", qk_norm=True, pro_res=True).state_dict(), "post_ln")
    assert result.fits and {"with --pro-res", "with --qk-norm"} <= set(result.notes)


class Normed(nn.Module):
    """A layer whose LayerNorms have odd names, before or behind its branches; DeepNorm's factor and gain."""

    def __init__(self, layers: int, pre: bool):
        super().__init__()
        self.pre, self.alpha, gain = pre, (2 * layers) ** 0.25, (8 * layers) ** -0.25
        self.n1, self.n2 = nn.LayerNorm(C), nn.LayerNorm(C)
        self.self_attn = nn.ModuleDict({f"{r}_proj": nn.Linear(C, C) for r in ("q", "k", "v", "out")})
        self.fc1, self.fc2 = nn.Linear(C, F), nn.Linear(F, C)
        for name, part in self.named_modules():
            if isinstance(part, nn.Linear):
                nn.init.xavier_normal_(part.weight, 1.0 if name.endswith(("q_proj", "k_proj")) else gain)

    def attend(self, x):
        heads = self.self_attn
        weights = (heads["q_proj"](x) @ heads["k_proj"](x).transpose(1, 2) / math.sqrt(C)).softmax(-1)
        return heads["out_proj"](weights @ heads["v_proj"](x))

    def forward(self, x):
        for norm, branch in (self.n1, self.attend), (self.n2, lambda x: self.fc2(self.fc1(x).relu())):
            x = self.alpha * x + branch(norm(x)) if self.pre else norm(self.alpha * x + branch(x))
        return x


class Stacked(nn.Module):
    """Layers of Normed behind an embedding."""

    def __init__(self, layers: int, pre: bool):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.layers = nn.Embedding(50, C), nn.ModuleList(Normed(layers, pre) for _ in range(layers))

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return x


def test_the_place_of_layer_norms_in_a_live_module():
    right, wrong = (verify(Stacked(3, pre), "deepnorm") for pre in (False, True))
    assert right.fits and right.text().endswith("\nfits --method deepnorm")
    assert wrong.findings == ["decoder: LayerNorm pre in 6 branches, deepnorm has it post"]
    assert verify(Stacked(3, False).bfloat16(), "deepnorm").fits  # in half precision less is told, and that is said
    assert "place of the LayerNorms in the decoder" in verify(Stacked(3, True).bfloat16(), "deepnorm").unexamined


def test_a_closing_norm_of_a_live_module():
    layer = nn.TransformerEncoderLayer(C, 4, F, batch_first=True)
    right, wrong = (nn.TransformerEncoder(layer, 2, norm, False) for norm in (None, nn.LayerNorm(C)))
    assert not any("at its end" in text for text in verify(right, "post_ln").findings)
    assert "decoder: a LayerNorm at its end (norm), post_ln has none" in verify(wrong, "post_ln").findings


def test_layer_norms_without_gains_are_counted():
    model = Stacked(3, False)
    for layer in model.layers:
        layer.n1 = layer.n2 = nn.LayerNorm(C, elementwise_affine=False)
    assert verify(model, "deepnorm").findings == ["decoder: 1 LayerNorms in 3 layers, deepnorm has 2"]
    for layer in model.layers:
        layer.n2 = nn.LayerNorm(C, elementwise_affine=False)
    result = verify(model, "deepnorm")
    assert result.fits and not result.trained and "is it fresh or trained?" in result.text()


def test_layer_norms_by_other_names_in_a_file():
    result = judged(Stacked(3, False).state_dict())
    assert result.fits and any("LayerNorms of the decoder: none is known, but " in text for text in result.unexamined)


def test_matrices_that_are_missing():
    state = llama(4, 32**-0.25)
    some = {name: tensor for name, tensor in state.items() if "layers.2.self_attn.q_proj" not in name}
    assert judged(some).findings == ["decoder self_attn.q: not there in layers 3"]
    for role, said in (("v_proj", "self_attn.v"), ("down_proj", "ffn.fc2")):
        result = judged({name: tensor for name, tensor in state.items() if role not in name})
        assert f"decoder {said}: in no layer was a matrix known for it" in result.unexamined
        assert result.text().endswith("what was examined fits --method deepnorm")
    adapted = {name.replace("q_proj", "q_proj.base_layer"): tensor for name, tensor in state.items()}
    assert "decoder self_attn.q: in no layer was a matrix known for it" in judged(adapted).unexamined
    ours = {name: tensor for name, tensor in lm("deepnorm").state_dict().items() if "v_proj" not in name}
    assert any(text.startswith("not there, deepnorm has decoder.layers.N.self_attn.v_proj") for text in
               judged(ours).findings)  # fmt: skip


@pytest.mark.parametrize("name", ["deepnorm", "keel"])
def test_stacks_of_different_width(name):
    """Each is measured; queries of keys with another width are drawn as these."""
    torch.manual_seed(0)
    fields = sizes(archs.MODEL_NAME, 3) | {"encoder_embed_dim": 32, "decoder_embed_dim": 16}
    result = verify(build(archs.MODEL_NAME, 40, method=name, **fields), name)
    assert result.fits and result.unexamined == []
    branches = {(stack, sublayer) for stack in ("encoder", "decoder") for sublayer in ("self_attn", "ffn")}
    assert {tuple(row[:2]) for row in result.factors} >= branches | {("decoder", "encoder_attn")}


def test_a_stored_constant_where_a_merge_was_not_found(monkeypatch):
    model = lm("deepnorm")
    model.decoder.alpha.fill_(2.0)
    monkeypatch.setattr("deepnet_fairseq.tools.verify.merges.merges", lambda *_: [])
    result = verify(model, "deepnorm")
    assert any("factor of the shortcut 2" in text for text in result.findings)
    assert "no residual merge was found in its forward pass" in result.unexamined


def test_embeddings_of_zeros():
    model = lm("pre_ln")
    nn.init.zeros_(model.decoder.output_projection.weight)
    assert any(
        text.startswith("decoder.output_projection.weight: 0 times") for text in verify(model, "pre_ln").findings
    )


def test_layer_numbers_that_are_none(tmp_path):
    state = {name.replace("layers.3.", "layers.3000000."): tensor for name, tensor in llama(4, 1.0).items()}
    with pytest.raises(UserError, match="layer 3000000 of 4 layers"):
        judged(state)
    state = {name.replace("layers.3.", "layers.30."): tensor for name, tensor in llama(4, 1.0).items()}
    assert "decoder 3 to 29: not there" in judged(state, "pre_ln").findings
    torch.save(llama(2, 1.0), tmp_path / "model.pt")
    for pattern in (r"model(?P<layer>.*?)self_attn\.q_proj\.weight", r"model(?P<layer>\d+)?.*q_proj\.weight"):
        (tmp_path / "names.toml").write_text(f"'self_attn.q' = '{pattern}'")
        words = ("--method", "pre_ln", "--names", str(tmp_path / "names.toml"))
        assert_refused("--names: self_attn.q: the layer of model", "verify", str(tmp_path / "model.pt"), *words)


def test_odd_entries_are_passed_over(tmp_path):
    """Names that are no text or have no end, tensors without plain values, numbers beyond all numbers."""
    odd = {3: torch.ones(3), "model.layers.0." + "rel" * 20000: torch.ones(3, 3), "none": torch.ones(0, 3)}
    odd |= {
        "model.layers.0.fc1.weight": torch.eye(3).to_sparse(),
        "model.layers.0.fc2.weight": torch.ones(2, device="meta"),
    }
    torch.save(odd | llama(2, 0.5), tmp_path / "model.pt")
    assert verify(tmp_path / "model.pt", "deepnorm").fits
    assert judged(llama(2, 0.5), residual_scale=10**400, alpha=math.nan).factors == []
    with pytest.raises(UserError, match="no branch's weights among its 0 tensors"):
        judged({"x" * 2000: torch.ones(3)})


def test_a_safetensors_header_beyond_the_formats_limit(tmp_path, monkeypatch):
    """It is not read: a file of zeros that takes no room, its header longer than the limit by a byte."""
    with open(tmp_path / "long.safetensors", "wb") as file:
        file.write((10**8 + 1).to_bytes(8, "little"))
        file.truncate(2 * 10**8)
    monkeypatch.setattr("deepnet_fairseq.tools.verify.reading.parse", pytest.fail)
    assert_refused("no safetensors", "verify", str(tmp_path / "long.safetensors"), "--method", "deepnorm")


def test_fresh_or_trained_without_layer_norms():
    model = lm("t_fixup")
    assert judged(model.state_dict(), "t_fixup").fits
    result = judged(disturb(model, 0.05).state_dict(), "t_fixup")
    assert result.fits and result.trained.startswith("trained: biases of its out_proj, 0 at first")
    result = verify(disturb(lm("rezero"), 0.1), "rezero")
    assert result.fits and result.trained
    assert any(text.startswith("is it fresh or trained?") for text in verify(lm("r_fixup"), "r_fixup").unexamined)
    bare = {f"layers.{n}.{name}": xavier(C, C) for n in range(2) for name in ("attn.q.weight", "attn.k.weight")}
    assert any(text.startswith("is it fresh or trained?") for text in judged(bare, "rezero").unexamined)


def test_what_was_not_examined_is_in_the_json():
    found = audit(recognised(llama(2, 0.5), {}, None, []), "deepnorm").as_dict()
    assert found["fits"] and "place of the LayerNorms in the decoder" in found["unexamined"]
