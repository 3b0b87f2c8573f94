"""Tests of the sources of `deepnet verify`: checkpoints, folders, safetensors, other names; refusals in one line.

The command compares a model's initial weights and its shortcuts' factor alpha with a method. Most weights here are
those of a correct DeepNorm decoder, of support/state_dicts.py, so that they fit if they are read rightly.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

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

from ..support.errors import assert_refused, refusal, refused
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
    """Provide a folder of a correct DeepNorm decoder of 4 layers, whose config has alpha, and a number k besides."""
    config = {"model_type": "marian", "deepnorm_alpha": decoder_alpha(4), "k": 3}
    (tmp_path / "config.json").write_text(json.dumps(config))
    write_safetensors(deepnorm_decoder(4), tmp_path / "model.safetensors")
    return tmp_path


def test_alpha_of_a_hugging_face_folder_comes_from_its_config(hugging_face_folder, capsys):
    """The report has the factor, where it was found, and the depth."""
    assert verify_status(hugging_face_folder, "--method", "deepnorm") == 0

    printed = capsys.readouterr().out
    assert "decoder 4" in printed
    assert f"{decoder_alpha(4):.4f} (config.json.deepnorm_alpha)" in printed
    assert printed.endswith("fits --method deepnorm\n")


def test_alpha_of_a_file_of_safetensors_comes_from_a_buffer(tmp_path, capsys):
    """The report has the factor, the buffer's name, and the depth."""
    buffer = {"decoder.alpha": torch.tensor(decoder_alpha(4))}
    write_safetensors(deepnorm_decoder(4) | buffer, tmp_path / "model.safetensors")

    assert verify_status(tmp_path / "model.safetensors", "--method", "deepnorm") == 0

    printed = capsys.readouterr().out
    assert "decoder 4" in printed
    assert f"{decoder_alpha(4):.4f} (decoder.alpha)" in printed
    assert printed.endswith("fits --method deepnorm\n")


def test_weights_that_do_not_fit_are_reported_as_json(hugging_face_folder, capsys):
    assert verify_status(hugging_face_folder, "--method", "sub_ln", "--json") == DOES_NOT_FIT

    report = json.loads(capsys.readouterr().out)
    assert not report["fits"]
    assert len(report["rows"]) == MATRICES_OF_A_LAYER
    assert report["findings"]


def deepnorm_decoder_in(dtype: torch.dtype) -> dict:
    """Return a correct decoder's weights in this precision."""
    return {name: tensor.to(dtype) for name, tensor in deepnorm_decoder().items()}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_safetensors_in_half_precision_fit(tmp_path, dtype):
    write_safetensors(deepnorm_decoder_in(dtype), tmp_path / "model.safetensors")

    assert verify(tmp_path / "model.safetensors", "deepnorm").fits


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_state_dict_in_half_precision_fits(tmp_path, dtype):
    torch.save(deepnorm_decoder_in(dtype), tmp_path / "plain.pt")

    assert verify(tmp_path / "plain.pt", "deepnorm").fits


def test_weights_in_the_checkpoint_of_another_trainer_fit(tmp_path):
    """Lightning saves weights under "state_dict"."""
    torch.save({"state_dict": deepnorm_decoder(), "epoch": 3}, tmp_path / "last.ckpt")

    assert verify(tmp_path / "last.ckpt", "deepnorm").fits


def test_weights_stored_twice_count_once():
    """A state dict has a tensor twice if its module is wrapped by another, or if an output matrix is an embedding."""
    state = deepnorm_decoder(4)
    of_first_layer = {name: tensor for name, tensor in state.items() if "layers.0" in name}
    for name, tensor in of_first_layer.items():
        state[f"wrapped.{name}"] = tensor
    state["lm_head.weight"] = state["decoder.embed_tokens.weight"]

    model = recognise(state, config={})

    assert len(model.matrices) == 4 * MATRICES_OF_A_LAYER


# checkpoints of this package


def write_checkpoint(path, method: str, updates: int, **options) -> None:
    """Write a checkpoint as fairseq-train does for a language model of this package, of 3 layers.

    updates: how many the checkpoint says; options: fields of the model's config.
    """
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
    """By the default exponent, 0.5, the weights would not fit."""
    path = tmp_path / "checkpoint_last.pt"
    write_checkpoint(path, "ds_init", updates=0, ds_init_exponent=0.25)

    assert verify(path, "ds_init").fits


@pytest.fixture
def trained_checkpoint(tmp_path):
    """Provide a checkpoint of a DeepNorm model after 12 updates, with xavier_uniform in place of xavier_normal."""
    path = tmp_path / "checkpoint_last.pt"
    write_checkpoint(path, "deepnorm", updates=12, init_profile="xavier_uniform")
    return path


def test_a_checkpoint_says_its_updates_and_initialisation(trained_checkpoint):
    result = verify(trained_checkpoint, "deepnorm")

    assert result.fits
    assert "12 updates" in result.trained
    assert result.profile == "xavier_uniform"


def test_a_checkpoint_says_that_it_is_of_another_method(trained_checkpoint):
    findings = verify(trained_checkpoint, "post_ln").findings

    assert any(finding.endswith("--method deepnorm") for finding in findings)


def test_alpha_of_another_depth_in_a_checkpoint_is_found(trained_checkpoint):
    content = torch.load(trained_checkpoint, weights_only=False)
    content["model"]["decoder.alpha"].fill_(decoder_alpha(32))
    torch.save(content, trained_checkpoint)

    (finding,) = verify(trained_checkpoint, "deepnorm").findings

    assert f"{decoder_alpha(32):.4g}" in finding
    assert "32 layers" in finding
    assert re.search(r"\b3\b", finding)  # layers of the model


# names of other packages

# shapes of matrices, (out, in)
SQUARE = (WIDTH, WIDTH)
WIDENING = (FFN_WIDTH, WIDTH)
NARROWING = (WIDTH, FFN_WIDTH)
SHAPES_BY_ROLE = dict.fromkeys(ATTENTION_ROLES, SQUARE) | {"fc1": WIDENING, "fc2": NARROWING}


class Layout(NamedTuple):
    """How a package names the matrices of a layer: PREFIX, with {} for the layer's number, and each name -> shape.

    stack: in which they are to be recognised.
    """

    prefix: str
    stack: str
    shapes: dict[str, tuple[int, int]]


def of_attention() -> dict[str, tuple[int, int]]:
    """Return name -> shape of q, k, v and out, each a matrix of its own."""
    return {f"{name}.weight": shape for name, shape in attention_shapes("self_attn").items()}


LAYOUTS = {  # package -> its names
    "Marian": Layout(
        "model.decoder.layers.{}.", "decoder", of_attention() | {"fc1.weight": WIDENING, "fc2.weight": NARROWING}
    ),
    "torchscale": Layout(
        "encoder.layers.{}.", "encoder", of_attention() | {"ffn.fc1.weight": WIDENING, "ffn.fc2.weight": NARROWING}
    ),
    "torch": Layout(
        "layers.{}.",
        "decoder",  # nothing says that it is an encoder
        {
            "self_attn.in_proj_weight": (3 * WIDTH, WIDTH),  # q, k and v
            "self_attn.out_proj.weight": SQUARE,
            "linear1.weight": WIDENING,
            "linear2.weight": NARROWING,
        },
    ),
}


@pytest.mark.parametrize("package", LAYOUTS)
def test_names_of_other_packages_are_recognised(package):
    """All matrices of two layers have their role and shape, in the right stack, and no name is unknown."""
    layout = LAYOUTS[package]
    state = {}
    for layer in range(2):
        for name, shape in layout.shapes.items():
            state[layout.prefix.format(layer) + name] = torch.randn(*shape)

    model = recognise(state, config={})

    weights = [matrix.weight for matrix in model.matrices]
    assert len(weights) == 2 * MATRICES_OF_A_LAYER
    assert {weight.role: tuple(weight.linear.weight.shape) for weight in weights} == SHAPES_BY_ROLE
    assert {weight.site.stack for weight in weights} == {layout.stack}
    assert model.depths[layout.stack] == 2
    assert not model.unknown


@pytest.mark.parametrize("name", ["encoder_attn.q_proj", "multihead_attn.out_proj"])  # fairseq's, torch's
def test_cross_attention_is_told_from_self_attention(name):
    model = recognise({f"decoder.layers.0.{name}.weight": torch.randn(WIDTH, WIDTH)}, config={})

    assert model.matrices[0].weight.site.sublayer == "encoder_attn"


# names of one's own


@pytest.fixture
def model_in_own_names(tmp_path):
    """Provide a file of a decoder of 4 layers, in the names that the example in docs/verify.md renames.

    The decoder is a correct DeepNorm but for fc2, named "contract", whose gain is 1 / beta. Each layer has a matrix
    "strange" besides, whose name the example does not rename.
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


def test_a_users_own_names_need_a_file_that_renames_them(model_in_own_names):
    assert_refused("--names FILE", "verify", model_in_own_names, "--method", "deepnorm")


def test_the_manuals_file_renames_a_users_own_names(model_in_own_names, tmp_path, capsys):
    """In the new names the mistake in fc2 alone is found. The weights that the file does not rename are listed."""
    example = re.search(r"```toml\n(.*?)```", MANUAL.read_text(), re.DOTALL)[1]
    (tmp_path / "names.toml").write_text(example)

    words = (model_in_own_names, "--method", "deepnorm", "--names", tmp_path / "names.toml")
    assert verify_status(*words) == DOES_NOT_FIT

    printed = capsys.readouterr().out
    assert printed.count("does not fit:") == 1
    assert "decoder ffn.fc2: 5.6" in printed  # 1 / beta over beta, (8 * 4) ** 0.5 = 5.66
    assert "inverted" in printed
    assert "net.N.strange.W" in printed


def test_tensors_outside_of_layers_are_renamed_too():
    """A LayerNorm and a factor of a whole stack are known by their new names, and are no unknown weights."""
    new_names = {"closing.W": "decoder.layer_norm.weight", "strength": "decoder.alpha"}
    weights = {
        "decoder.layers.0.fc1.weight": torch.ones(FFN_WIDTH, WIDTH),
        "closing.W": torch.ones(WIDTH),
        "strength": torch.tensor(2.0),
    }

    model = recognise(weights, config={}, rename=lambda name: new_names.get(name, name))

    assert [factor.a for factor in model.factors] == [2.0]
    assert model.unknown == []


@pytest.mark.parametrize(
    "text",
    [
        "a = ",  # no TOML
        "a.b = 'c'",  # a table
        "a = 3",  # no replacement
        "'(' = 'a'",  # no regular expression
        r"'a' = '\1'",  # a group that the expression lacks
        r"'a' = '\g<b>'",  # the same by a name
        "'a{99999999999}' = 'b'",  # more repetitions than Python's expressions have
    ],
)
def test_a_malformed_file_of_names_is_refused(tmp_path, text):
    """The refusal names the file, and the page that explains it."""
    file = tmp_path / "names.toml"
    file.write_text(text)

    line = refusal("verify", "model.pt", "--method", "deepnorm", "--names", file)

    assert f"--names {file}" in line
    assert "docs/verify.md" in line


# what cannot be read


def write_cut_off(path) -> None:
    """Write the beginning of a checkpoint."""
    torch.save(deepnorm_decoder(), path)
    path.write_bytes(path.read_bytes()[:5000])


class Unreadable(NamedTuple):
    """How to write a file or folder that holds no weights, and the word by which the line tells why it is refused."""

    write: Callable[[Path], object]
    reason: str


UNREADABLE = {
    "script.pt": Unreadable(
        lambda path: torch.jit.trace(nn.Linear(2, 2), torch.ones(2)).save(path), reason="TorchScript"
    ),
    "tensor.pt": Unreadable(lambda path: torch.save(torch.ones(3), path), reason="Tensor"),
    "numbers.pt": Unreadable(lambda path: torch.save({"steps": 3}, path), reason="weights"),
    "cut.pt": Unreadable(write_cut_off, reason="truncated"),
    "absent.pt": Unreadable(lambda path: None, reason="no such"),
    "folder": Unreadable(lambda path: path.mkdir(), reason="model.safetensors"),  # the folder lacks this file
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_file_without_weights_is_refused(tmp_path, name):
    path = tmp_path / name
    UNREADABLE[name].write(path)

    line = refusal("verify", path, "--method", "deepnorm")

    assert str(path) in line
    assert UNREADABLE[name].reason in line


class PrintsWhenUnpickled(nn.Module):
    """Module whose unpickling runs code, which prints a line."""

    def __reduce__(self):
        return print, ("code was run",)


def test_code_in_a_file_is_not_run(tmp_path, capsys):
    path = tmp_path / "code.pt"
    torch.save(PrintsWhenUnpickled(), path)

    assert_refused(path, "verify", path, "--method", "deepnorm")

    assert "code was run" not in capsys.readouterr().out


DAMAGES = {  # -> function that damages the bytes of a file of safetensors
    "an end is missing": lambda whole: whole[:-10],
    "a header of 2^60 bytes": lambda whole: struct.pack("<Q", 2**60) + whole[8:],  # its size is the first 8 bytes
    "empty": lambda whole: b"",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_safetensors_are_refused(tmp_path, damage):
    path = tmp_path / "model.safetensors"
    write_safetensors(deepnorm_decoder(1), path)
    path.write_bytes(DAMAGES[damage](path.read_bytes()))

    line = refusal("verify", path, "--method", "deepnorm")

    assert str(path) in line
    assert "truncated" in line


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
    assert "finite" in caught.value.way_out


def test_weights_alone_have_no_config_and_no_updates(tmp_path):
    torch.save(deepnorm_decoder(), tmp_path / "model.pt")

    _, config, updates = read_weights(tmp_path / "model.pt")

    assert config == {}
    assert updates is None


# options of a method


@pytest.fixture
def complete_p_weights(tmp_path):
    """Provide a file of the weights of CompleteP with the option base_depth 3, which the file does not say."""
    torch.manual_seed(0)
    fields = sizes(archs.LM, 6) | {"method": "complete_p", "complete_p_base_depth": 3}
    torch.save(build(archs.LM, 50, **fields).state_dict(), tmp_path / "model.pt")
    return tmp_path / "model.pt"


def test_weights_are_compared_with_the_method_with_the_users_options(complete_p_weights):
    assert verify_status(complete_p_weights, "--method", "complete_p", "--option", "base_depth=3") == 0


@pytest.mark.parametrize("option", ["depth=3", "base_depth=three"])
def test_a_wrong_option_of_a_method_is_refused(complete_p_weights, option):
    line = refusal("verify", complete_p_weights, "--method", "complete_p", "--option", option)

    assert f"--option {option}" in line
    assert "base_depth" in line  # the option that there is
