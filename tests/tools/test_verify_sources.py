"""Tests of the sources of `deepnet verify`: checkpoints, folders, safetensors, other names; refusals in one line."""

from __future__ import annotations

import json
import math
import re
import struct

import pytest
import torch
from torch import nn

from deepnet_fairseq.cli import main
from deepnet_fairseq.core import archs
from deepnet_fairseq.core.config import namespace
from deepnet_fairseq.core.models import build
from deepnet_fairseq.errors import UserError
from deepnet_fairseq.tools.verify import verify
from deepnet_fairseq.tools.verify.reading import read_weights
from deepnet_fairseq.tools.verify.sources import recognised

from ..support.errors import assert_refused
from ..support.helpers import ROOT
from ..support.single_stacks import sizes
from .test_verify import C, F, decoder_of, drawn, xavier

PAGE = ROOT / "docs" / "verify.md"


def save_file(state: dict, path) -> None:
    """Write safetensors by their own library; skip the test where it is missing."""
    pytest.importorskip("safetensors.torch").save_file(state, path)


def right(layers: int = 4) -> dict:
    return decoder_of(layers, (8 * layers) ** -0.25)


def statuses(*words) -> tuple:
    try:
        main(["verify", *map(str, words)])
    except SystemExit as ended:
        return ended.code
    return 0


def test_a_hugging_face_folder(tmp_path, capsys):
    """A Hugging Face folder is read: alpha comes from a buffer of its safetensors, or from its config."""
    file = tmp_path / "model.safetensors"
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "marian", "deepnorm_alpha": 8**0.25, "k": 3}))
    alpha = torch.tensor(8**0.25)
    for model, buffers, source in (file, {"decoder.alpha": alpha}, "decoder"), (tmp_path, {}, "config.json.deepnorm"):
        save_file(right() | buffers, file)
        assert statuses(model, "--method", "deepnorm") == 0
        printed = capsys.readouterr().out
        assert "layers: decoder 4; fresh" in printed and re.search(rf"1\.6818 \({source}.alpha\)", printed)
        assert printed.endswith("\nwhat was examined fits --method deepnorm\n")
    assert statuses(tmp_path, "--method", "sub_ln", "--json") == 3
    report = json.loads(capsys.readouterr().out)
    assert not report["fits"] and len(report["rows"]) == 6 and report["findings"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_in_one_file(tmp_path, dtype):
    save_file({n: t.to(dtype) for n, t in right().items()}, tmp_path / "model.safetensors")
    assert verify(tmp_path / "model.safetensors", "deepnorm").fits
    torch.save({name: tensor.to(dtype) for name, tensor in right().items()}, tmp_path / "plain.pt")
    assert verify(tmp_path / "plain.pt", "deepnorm").fits


def checkpoint(path, method: str, updates: int, **options) -> None:
    """Write a checkpoint as fairseq-train does for one of our models."""
    torch.manual_seed(0)
    fields = sizes(archs.LM, 3) | {"method": method} | options
    cfg = namespace(archs.LM, **fields)
    model = build(archs.LM, 50, **fields)
    history = [{"num_updates": updates}]
    torch.save({"args": None, "cfg": {"model": cfg}, "model": model.state_dict(), "optimizer_history": history}, path)


def test_our_checkpoint_says_its_method_and_options(tmp_path):
    path = tmp_path / "checkpoint_last.pt"
    checkpoint(path, "ds_init", 0, ds_init_exponent=0.25)
    assert verify(path, "ds_init").fits
    checkpoint(path, "deepnorm", 12, init_profile="xavier_uniform")
    result = verify(path, "deepnorm")
    assert result.fits and result.trained == "trained, 12 updates" and result.profile == "xavier_uniform"
    assert "its config says --method deepnorm" in verify(path, "post_ln").findings
    content = torch.load(path, weights_only=False)
    content["model"]["decoder.alpha"].fill_(64**0.25)
    torch.save(content, path)
    (finding,) = verify(path, "deepnorm").findings
    assert "factor of the shortcut 2.828" in finding and "that is 32 layers', this model has 3" in finding


LAYOUTS = {  # names of a layer and their roles, as in Marian, torchscale and torch
    "model.decoder.layers.{}.": {**{f"self_attn.{name}_proj.weight": (C, C) for name in ("q", "k", "v", "out")},
                                 "fc1.weight": (F, C), "fc2.weight": (C, F)},
    "encoder.layers.{}.": {**{f"self_attn.{name}_proj.weight": (C, C) for name in ("q", "k", "v", "out")},
                           "ffn.fc1.weight": (F, C), "ffn.fc2.weight": (C, F)},
    "layers.{}.": {"self_attn.in_proj_weight": (3 * C, C), "self_attn.out_proj.weight": (C, C),
                   "linear1.weight": (F, C), "linear2.weight": (C, F)},
}  # fmt: skip


@pytest.mark.parametrize("prefix", LAYOUTS)
def test_names_of_others(prefix):
    """Names of other packages are recognised: every role, (out, in) in either storage order, nothing unknown."""
    state = {prefix.format(l) + name: torch.randn(*shape) for l in range(2) for name, shape in LAYOUTS[prefix].items()}
    layout = recognised(state, {})
    shapes = {m.weight.role: tuple(m.weight.linear.weight.shape) for m in layout.matrices}
    assert shapes == {"q": (C, C), "k": (C, C), "v": (C, C), "out": (C, C), "fc1": (F, C), "fc2": (C, F)}
    assert not layout.unknown and max(layout.depths.values()) == 2 and len(layout.matrices) == 12
    stack = "encoder" if "encoder" in prefix else "decoder"
    assert {m.weight.site.stack for m in layout.matrices} == {stack}


def test_cross_attention_is_told_from_self_attention():
    names = ("encoder_attn.q_proj", "multihead_attn.out_proj")
    for name in names:
        layout = recognised({f"decoder.layers.0.{name}.weight": torch.randn(C, C)}, {})
        assert layout.matrices[0].weight.site.sublayer == "encoder_attn"


def test_names_of_ones_own(tmp_path, capsys):
    """A user's own names are renamed by the file of docs/verify.md; weights it omits are listed."""
    torch.manual_seed(0)
    state = {}
    for layer in range(4):
        state[f"net.{layer}.mix.to_query.W"] = xavier(C, C)
        state[f"net.{layer}.mix.final.W"] = xavier(C, C, 32**-0.25)
        state[f"net.{layer}.contract.W"] = xavier(C, F, 32**0.25)
        state |= {f"net.{layer}.standardise{n}.W": torch.ones(C) for n in (1, 2)}
        state[f"net.{layer}.strange.W"] = drawn(C, C, 1.0)
    torch.save(state, tmp_path / "model.pt")
    words = ("verify", str(tmp_path / "model.pt"), "--method", "deepnorm")
    assert_refused("rename them by --names FILE", *words)
    (tmp_path / "names.toml").write_text(re.search(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)[1])
    assert statuses(*words[1:], "--names", tmp_path / "names.toml") == 3
    printed = capsys.readouterr().out
    assert "decoder ffn.fc2: 5.6" in printed and "the published constant inverted" in printed
    assert printed.count("does not fit:") == 1 and "not recognised: net.N.strange.W;" in printed


@pytest.mark.parametrize("text", ["a = ", "a.b = 'c'", "a = 3", "'(' = 'a'", r"'a' = '\1'", r"'a' = '\g<b>'"])
def test_files_of_names_that_are_none(tmp_path, text):
    (tmp_path / "names.toml").write_text(text)
    words = ("verify", "model.pt", "--method", "deepnorm", "--names", str(tmp_path / "names.toml"))
    assert_refused("docs/verify.md has an example", *words)


class Loud(nn.Module):
    """Module that reports its unpickling."""

    def __reduce__(self):
        return print, ("code was run",)


@pytest.fixture
def damaged(tmp_path) -> dict[str, str]:
    """Provide damaged files, and the message about each."""
    torch.save(Loud(), tmp_path / "code.pt")
    torch.jit.trace(nn.Linear(2, 2), torch.ones(2)).save(tmp_path / "script.pt")
    torch.save(torch.ones(3), tmp_path / "tensor.pt")
    torch.save({"steps": 3}, tmp_path / "numbers.pt")
    torch.save(right(), tmp_path / "cut.pt")
    (tmp_path / "cut.pt").write_bytes((tmp_path / "cut.pt").read_bytes()[:5000])
    (tmp_path / "folder").mkdir()
    return {
        "code.pt": "refused", "script.pt": "TorchScript", "tensor.pt": "not weights by name",
        "numbers.pt": "holds no weights", "cut.pt": "truncated, damaged", "absent.pt": "no such file",
        "folder": "holds no model.safetensors",
    }  # fmt: skip


def test_damaged_safetensors(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file(right(1), path)
    whole = path.read_bytes()
    for content in (whole[:-10], struct.pack("<Q", 2**60) + whole[8:], b""):
        path.write_bytes(content)
        assert_refused("truncated, damaged", "verify", str(path), "--method", "deepnorm")


def test_files_that_cannot_be_read(tmp_path, damaged, capsys):
    for name, message in damaged.items():
        assert_refused(message, "verify", str(tmp_path / name), "--method", "deepnorm")
    assert "code was run" not in capsys.readouterr().out
    torch.save(right(), tmp_path / "model.pt")
    words = ("verify", str(tmp_path / "model.pt"), "--method", "deepnet")
    assert_refused("--method deepnet: unknown", *words)


def test_wrapped_and_tied(tmp_path):
    """A training's own checkpoint around the weights is unwrapped, and a tied matrix counts once."""
    state = right()
    state |= {f"wrapped.{name}": tensor for name, tensor in state.items() if "layers.0" in name}
    state["lm_head.weight"] = state["decoder.embed_tokens.weight"]
    torch.save({"state_dict": right(), "epoch": 3}, tmp_path / "last.ckpt")
    assert verify(tmp_path / "last.ckpt", "deepnorm").fits
    assert len(recognised(state, {}).matrices) == 4 * 6


def test_options_of_the_method(tmp_path):
    torch.manual_seed(0)
    build_flags = sizes(archs.LM, 6) | {"method": "complete_p", "complete_p_base_depth": 3}
    torch.save(build(archs.LM, 50, **build_flags).state_dict(), tmp_path / "model.pt")
    words = (tmp_path / "model.pt", "--method", "complete_p")
    assert statuses(*words, "--option", "base_depth=3") == 0
    for message, option in (("complete_p has base_depth", "depth=3"), ("is a whole number", "base_depth=three")):
        assert_refused(message, "verify", *map(str, words), "--option", option)


def test_what_is_not_finite_is_said(tmp_path):
    state = right()
    state["decoder.layers.1.fc1.weight"][3, 3] = math.nan
    torch.save(state, tmp_path / "model.pt")
    with pytest.raises(UserError, match="fc1.weight holds values that are not finite"):
        verify(tmp_path / "model.pt", "deepnorm")
    assert read_weights(tmp_path / "model.pt")[1:] == ({}, None)
