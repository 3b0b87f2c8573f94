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
from deepnet_fairseq.tools.verify import verify
from deepnet_fairseq.tools.verify.reading import read_weights
from deepnet_fairseq.tools.verify.sources import recognise

from ..support.errors import assert_refused, refused
from ..support.helpers import ROOT
from ..support.single_stacks import sizes
from ..support.state_dicts import (
    ATTENTION_ROLES,
    FFN_WIDTH,
    WIDTH,
    attention_shapes,
    decoder_alpha,
    decoder_beta,
    deepnorm_decoder,
    normal,
    xavier_normal,
)

MANUAL = ROOT / "docs" / "verify.md"
MATRICES_OF_A_LAYER = 6  # q, k, v, out, fc1, fc2
DOES_NOT_FIT = 3  # exit status


def write_safetensors(state: dict, path) -> None:
    """Write safetensors by their own library; skip the test where it is missing."""
    pytest.importorskip("safetensors.torch").save_file(state, path)


def verify_status(*words) -> int:
    """Run `deepnet verify WORDS` in this process; return its exit status."""
    try:
        main(["verify", *map(str, words)])
    except SystemExit as ended:
        return ended.code
    return 0


# folders and files of weights


@pytest.fixture
def hugging_face_folder(tmp_path):
    """Provide a folder of a correct decoder of 4 layers, whose config has an alpha of its own."""
    config = {"model_type": "marian", "deepnorm_alpha": decoder_alpha(4), "k": 3}
    (tmp_path / "config.json").write_text(json.dumps(config))
    write_safetensors(deepnorm_decoder(4), tmp_path / "model.safetensors")
    return tmp_path


def test_alpha_of_a_hugging_face_folder_comes_from_its_config(hugging_face_folder, capsys):
    assert verify_status(hugging_face_folder, "--method", "deepnorm") == 0

    printed = capsys.readouterr().out
    assert "decoder 4; fresh" in printed
    assert re.search(r"1\.6818 \(config\.json\.deepnorm.alpha\)", printed)
    assert printed.endswith("fits --method deepnorm\n")


def test_alpha_of_a_file_of_safetensors_comes_from_a_buffer(tmp_path, capsys):
    buffer = {"decoder.alpha": torch.tensor(decoder_alpha(4))}
    write_safetensors(deepnorm_decoder(4) | buffer, tmp_path / "model.safetensors")

    assert verify_status(tmp_path / "model.safetensors", "--method", "deepnorm") == 0

    printed = capsys.readouterr().out
    assert "decoder 4; fresh" in printed
    assert re.search(r"1\.6818 \(decoder\.alpha\)", printed)
    assert printed.endswith("fits --method deepnorm\n")


def test_weights_that_do_not_fit_are_reported_as_json(hugging_face_folder, capsys):
    assert verify_status(hugging_face_folder, "--method", "sub_ln", "--json") == DOES_NOT_FIT

    report = json.loads(capsys.readouterr().out)
    assert not report["fits"]
    assert len(report["rows"]) == MATRICES_OF_A_LAYER
    assert report["findings"]


def in_precision(dtype) -> dict:
    return {name: tensor.to(dtype) for name, tensor in deepnorm_decoder().items()}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_safetensors_in_half_precision_fit(tmp_path, dtype):
    write_safetensors(in_precision(dtype), tmp_path / "model.safetensors")

    assert verify(tmp_path / "model.safetensors", "deepnorm").fits


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_state_dict_in_half_precision_fits(tmp_path, dtype):
    torch.save(in_precision(dtype), tmp_path / "plain.pt")

    assert verify(tmp_path / "plain.pt", "deepnorm").fits


def test_weights_in_the_checkpoint_of_another_trainer_fit(tmp_path):
    torch.save({"state_dict": deepnorm_decoder(), "epoch": 3}, tmp_path / "last.ckpt")

    assert verify(tmp_path / "last.ckpt", "deepnorm").fits


def test_weights_stored_twice_count_once():
    """As those of a wrapped module, and a matrix that is tied to the embeddings."""
    state = deepnorm_decoder(4)
    of_first_layer = {name: tensor for name, tensor in state.items() if "layers.0" in name}
    for name, tensor in of_first_layer.items():
        state[f"wrapped.{name}"] = tensor
    state["lm_head.weight"] = state["decoder.embed_tokens.weight"]

    assert len(recognise(state, {}).matrices) == 4 * MATRICES_OF_A_LAYER


# checkpoints of this package


def write_checkpoint(path, method: str, updates: int, **options) -> None:
    """Write a checkpoint as fairseq-train does for one of our models."""
    torch.manual_seed(0)
    fields = sizes(archs.LM, 3) | {"method": method} | options
    content = {
        "args": None,
        "cfg": {"model": namespace(archs.LM, **fields)},
        "model": build(archs.LM, 50, **fields).state_dict(),
        "optimizer_history": [{"num_updates": updates}],
    }
    torch.save(content, path)


def test_a_checkpoint_says_its_methods_options(tmp_path):
    path = tmp_path / "checkpoint_last.pt"
    write_checkpoint(path, "ds_init", updates=0, ds_init_exponent=0.25)

    assert verify(path, "ds_init").fits


@pytest.fixture
def trained_checkpoint(tmp_path):
    """Provide a checkpoint of a DeepNorm model after 12 updates, initialised by xavier_uniform."""
    path = tmp_path / "checkpoint_last.pt"
    write_checkpoint(path, "deepnorm", updates=12, init_profile="xavier_uniform")
    return path


def test_a_checkpoint_says_its_updates_and_initialisation(trained_checkpoint):
    result = verify(trained_checkpoint, "deepnorm")

    assert result.fits
    assert "12" in result.trained
    assert result.profile == "xavier_uniform"


def test_a_checkpoint_says_that_it_is_of_another_method(trained_checkpoint):
    findings = verify(trained_checkpoint, "post_ln").findings

    assert any(finding.endswith("config says --method deepnorm") for finding in findings)


def test_alpha_of_another_depth_in_a_checkpoint_is_found(trained_checkpoint):
    content = torch.load(trained_checkpoint, weights_only=False)
    content["model"]["decoder.alpha"].fill_(decoder_alpha(32))
    torch.save(content, trained_checkpoint)

    (finding,) = verify(trained_checkpoint, "deepnorm").findings

    assert f"{decoder_alpha(32):.4g}" in finding
    assert "32 layers" in finding
    assert finding.endswith("has 3")


# names of other packages

SQUARE, WIDENING, NARROWING = (WIDTH, WIDTH), (FFN_WIDTH, WIDTH), (WIDTH, FFN_WIDTH)
SHAPES_BY_ROLE = dict.fromkeys(ATTENTION_ROLES, SQUARE) | {"fc1": WIDENING, "fc2": NARROWING}
LAYOUTS = {  # prefix of a layer -> its matrices, as in Marian, torchscale and torch
    "model.decoder.layers.{}.": attention_shapes("self_attn") | {"fc1": WIDENING, "fc2": NARROWING},
    "encoder.layers.{}.": attention_shapes("self_attn") | {"ffn.fc1": WIDENING, "ffn.fc2": NARROWING},
    "layers.{}.": {
        "self_attn.in_proj": (3 * WIDTH, WIDTH),
        "self_attn.out_proj": SQUARE,
        "linear1": WIDENING,
        "linear2": NARROWING,
    },
}


@pytest.mark.parametrize("prefix", LAYOUTS)
def test_names_of_other_packages_are_recognised(prefix):
    """Every role with its shape (out, in), in the right stack, and nothing unknown."""
    state = {}
    for layer in range(2):
        for name, shape in LAYOUTS[prefix].items():
            end = "_weight" if name.endswith("in_proj") else ".weight"
            state[f"{prefix.format(layer)}{name}{end}"] = torch.randn(*shape)

    model = recognise(state, {})

    weights = [matrix.weight for matrix in model.matrices]
    assert len(weights) == 2 * MATRICES_OF_A_LAYER
    assert {weight.role: tuple(weight.linear.weight.shape) for weight in weights} == SHAPES_BY_ROLE
    assert {weight.site.stack for weight in weights} == {"encoder" if "encoder" in prefix else "decoder"}
    assert max(model.depths.values()) == 2
    assert not model.unknown


@pytest.mark.parametrize("name", ["encoder_attn.q_proj", "multihead_attn.out_proj"])
def test_cross_attention_is_told_from_self_attention(name):
    model = recognise({f"decoder.layers.0.{name}.weight": torch.randn(WIDTH, WIDTH)}, {})

    assert model.matrices[0].weight.site.sublayer == "encoder_attn"


# names of one's own


@pytest.fixture
def model_in_own_names(tmp_path):
    """Provide a file of weights in the names of docs/verify.md's example, with beta inverted in fc2.

    A matrix of a name that the example does not rename is in each layer.
    """
    torch.manual_seed(0)
    state = {}
    for layer in range(4):
        prefix = f"net.{layer}"
        state[f"{prefix}.mix.to_query.W"] = xavier_normal(WIDTH, WIDTH)
        state[f"{prefix}.mix.final.W"] = xavier_normal(WIDTH, WIDTH, decoder_beta(4))
        state[f"{prefix}.contract.W"] = xavier_normal(WIDTH, FFN_WIDTH, 1 / decoder_beta(4))
        for number in (1, 2):
            state[f"{prefix}.standardise{number}.W"] = torch.ones(WIDTH)
        state[f"{prefix}.strange.W"] = normal(WIDTH, WIDTH, 1.0)
    torch.save(state, tmp_path / "model.pt")
    return tmp_path / "model.pt"


def test_names_of_ones_own_need_a_file_that_renames_them(model_in_own_names):
    assert_refused("--names FILE", "verify", model_in_own_names, "--method", "deepnorm")


def test_the_manuals_file_renames_ones_own_names(model_in_own_names, tmp_path, capsys):
    """A user's own names are renamed by the file of docs/verify.md; weights it omits are listed."""
    example = re.search(r"```toml\n(.*?)```", MANUAL.read_text(), re.DOTALL)[1]
    (tmp_path / "names.toml").write_text(example)

    words = (model_in_own_names, "--method", "deepnorm", "--names", tmp_path / "names.toml")
    assert verify_status(*words) == DOES_NOT_FIT

    printed = capsys.readouterr().out
    assert printed.count("does not fit:") == 1
    assert "decoder ffn.fc2: 5.6" in printed  # 1 / beta ** 2 = 32 ** 0.5
    assert "inverted" in printed
    assert "net.N.strange.W;" in printed


@pytest.mark.parametrize(
    "text", ["a = ", "a.b = 'c'", "a = 3", "'(' = 'a'", r"'a' = '\1'", r"'a' = '\g<b>'", "'a{99999999999}' = 'b'"]
)
def test_a_file_that_renames_nothing_is_refused(tmp_path, text):
    file = tmp_path / "names.toml"
    file.write_text(text)

    words = ("verify", "model.pt", "--method", "deepnorm", "--names", file)
    assert_refused(f"--names {file}", *words)
    assert_refused("docs/verify.md", *words)


# what cannot be read


class PrintsWhenUnpickled(nn.Module):
    """Module that reports its unpickling."""

    def __reduce__(self):
        return print, ("code was run",)


def write_cut_off(path) -> None:
    torch.save(deepnorm_decoder(), path)
    path.write_bytes(path.read_bytes()[:5000])


UNREADABLE = {  # name -> how to write it
    "code.pt": lambda path: torch.save(PrintsWhenUnpickled(), path),
    "script.pt": lambda path: torch.jit.trace(nn.Linear(2, 2), torch.ones(2)).save(path),
    "tensor.pt": lambda path: torch.save(torch.ones(3), path),
    "numbers.pt": lambda path: torch.save({"steps": 3}, path),
    "cut.pt": write_cut_off,
    "absent.pt": lambda path: None,
    "folder": lambda path: path.mkdir(),
}
FACTS = {  # name -> what the line says beside the path
    "code.pt": "refused", "script.pt": "TorchScript", "tensor.pt": "Tensor", "numbers.pt": "no weights",
    "cut.pt": "truncated", "absent.pt": "no such", "folder": "model.safetensors",
}  # fmt: skip


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_file_that_cannot_be_read_is_refused(tmp_path, name, capsys):
    path = tmp_path / name
    UNREADABLE[name](path)
    capsys.readouterr()

    words = ("verify", path, "--method", "deepnorm")
    assert_refused(path, *words)
    assert_refused(FACTS[name], *words)

    assert "code was run" not in capsys.readouterr().out


DAMAGES = {
    "an end is missing": lambda whole: whole[:-10],
    "a header of 2^60 bytes": lambda whole: struct.pack("<Q", 2**60) + whole[8:],
    "empty": lambda whole: b"",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_safetensors_are_refused(tmp_path, damage):
    path = tmp_path / "model.safetensors"
    write_safetensors(deepnorm_decoder(1), path)
    path.write_bytes(DAMAGES[damage](path.read_bytes()))

    words = ("verify", path, "--method", "deepnorm")
    assert_refused(path, *words)
    assert_refused("truncated", *words)


def test_an_unknown_method_is_refused(tmp_path):
    torch.save(deepnorm_decoder(), tmp_path / "model.pt")

    assert_refused("--method deepnet: ", "verify", tmp_path / "model.pt", "--method", "deepnet")


def test_weights_that_are_not_finite_are_refused(tmp_path):
    state = deepnorm_decoder()
    state["decoder.layers.1.fc1.weight"][3, 3] = math.nan
    torch.save(state, tmp_path / "model.pt")

    with refused(tmp_path / "model.pt") as caught:
        verify(tmp_path / "model.pt", "deepnorm")

    assert "layers.1.fc1.weight" in caught.value.way_out
    assert "not finite" in caught.value.way_out


def test_weights_alone_have_no_config_and_no_updates(tmp_path):
    torch.save(deepnorm_decoder(), tmp_path / "model.pt")

    _, config, updates = read_weights(tmp_path / "model.pt")

    assert config == {}
    assert updates is None


# options of a method


@pytest.fixture
def complete_p_weights(tmp_path):
    """Provide a file of the weights of CompleteP with base_depth 3."""
    torch.manual_seed(0)
    fields = sizes(archs.LM, 6) | {"method": "complete_p", "complete_p_base_depth": 3}
    torch.save(build(archs.LM, 50, **fields).state_dict(), tmp_path / "model.pt")
    return tmp_path / "model.pt"


def test_options_of_a_method_are_given(complete_p_weights):
    assert verify_status(complete_p_weights, "--method", "complete_p", "--option", "base_depth=3") == 0


@pytest.mark.parametrize("option", ["depth=3", "base_depth=three"])
def test_a_wrong_option_of_a_method_is_refused(complete_p_weights, option):
    words = ("verify", complete_p_weights, "--method", "complete_p", "--option", option)

    assert_refused(f"--option {option}", *words)
    assert_refused("base_depth", *words)  # the option that there is
