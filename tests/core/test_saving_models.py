"""Tests of saving a model of the core in one file: the model comes back whole, or the file is refused in a line.

test_methods.py saves and loads models of every method. `sizes(kind, layers)` are the fields of a model of width 16.
"""

import copy
import errno
from itertools import product

import pytest
import torch

from deepnet_fairseq.core import build, load, save
from deepnet_fairseq.core.archs import LM, MODEL_NAME
from deepnet_fairseq.core.models import blueprint
from deepnet_fairseq.errors import UserError

from ..support.broken import Call
from ..support.errors import refused
from ..support.helpers import VOCAB
from ..support.single_stacks import disturb, inputs, scores, sizes, small


def noisy_core_model(kind=MODEL_NAME, **fields):
    """Build a model by the core with noise on its parameters, after 7 updates."""
    torch.manual_seed(0)
    model = disturb(build(kind, VOCAB, **(sizes(kind, 2) | fields)))
    model.set_num_updates(7)
    return model.eval()


def dtypes(model):
    return {name: parameter.dtype for name, parameter in model.named_parameters()}


METHODS_AND_DTYPES = list(product(("deepnorm", "admin"), (torch.bfloat16, torch.float64)))


@pytest.fixture(params=METHODS_AND_DTYPES, ids=lambda case: f"{case[0]}-{case[1]}")
def model_in_another_precision(request):
    """Provide a translator with one matrix for all embeddings; in bfloat16 admin's omegas are float32 all the same."""
    method, dtype = request.param
    return noisy_core_model(method=method, share_all_embeddings=True).to(dtype)


def test_a_model_is_loaded_with_its_precision_and_shared_matrices(model_in_another_precision, tmp_path):
    save(model_in_another_precision, tmp_path / "model.pt")

    loaded = load(tmp_path / "model.pt")

    assert dtypes(loaded) == dtypes(model_in_another_precision)
    assert loaded.decoder.output_projection.weight is loaded.encoder.embed_tokens.weight
    expected = scores(model_in_another_precision, *inputs(MODEL_NAME))
    assert torch.equal(scores(loaded, *inputs(MODEL_NAME)), expected)


def test_a_loaded_model_can_be_saved(model_in_another_precision, tmp_path):
    """Paths are given as texts here."""
    first = str(tmp_path / "first.pt")
    second = str(tmp_path / "second.pt")
    save(model_in_another_precision, first)

    save(load(first), second)

    assert load(second).built_from == model_in_another_precision.built_from


def test_a_file_that_cannot_be_read_is_not_called_damaged(model_in_another_precision, path, monkeypatch):
    save(model_in_another_precision, path)

    def without_permission(*_args, **_more):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(torch, "load", without_permission)

    with refused(path) as caught:
        load(path)
    assert "Permission denied" in caught.value.way_out


def test_a_deep_copy_of_a_model_can_be_saved(model_in_another_precision, tmp_path):
    copied = copy.deepcopy(model_in_another_precision)

    save(copied, tmp_path / "model.pt")

    assert load(tmp_path / "model.pt").built_from == model_in_another_precision.built_from


@pytest.fixture
def saved_path(tmp_path):
    """Provide the file of a saved translator."""
    save(noisy_core_model(), tmp_path / "whole.pt")
    return tmp_path / "whole.pt"


@pytest.fixture
def saved_content(saved_path):
    """Provide the dictionary in the file of a saved translator."""
    return torch.load(saved_path, weights_only=True)


def test_the_file_is_a_dictionary_of_plain_data_and_weights(tmp_path):
    options = {"method": "branchnorm", "branchnorm_updates": 9}

    save(noisy_core_model(**options), tmp_path / "model.pt")

    content = torch.load(tmp_path / "model.pt", weights_only=True)
    del content["model"]
    assert content == {
        "format": "deepnet_fairseq core model 1",
        "arch": MODEL_NAME,
        "vocab": VOCAB,
        "fields": sizes(MODEL_NAME, 2) | options,
    }


def test_the_weights_in_the_file_fit_the_plug_ins_model(saved_content):
    model = small(MODEL_NAME)

    model.load_state_dict(saved_content["model"])

    saved = saved_content["model"]["encoder.layers.1.fc2.weight"]
    assert torch.equal(model.encoder.layers[1].fc2.weight, saved)


@pytest.fixture
def path(tmp_path):
    """Provide the path of the file that a test reads."""
    return tmp_path / "model.pt"


def test_a_file_that_does_not_exist_is_refused(path):
    with refused(path):
        load(path)


def test_a_folder_is_refused(tmp_path):
    with refused(tmp_path):
        load(tmp_path)


@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: b"",
        lambda whole: b"text",
        lambda whole: whole[:100],
        lambda whole: whole[: len(whole) // 2],
        lambda whole: whole[:-10],
        lambda whole: whole[100:],
    ],
    ids=["empty", "text", "first bytes", "first half", "without the last bytes", "without the first bytes"],
)
def test_a_damaged_file_is_refused(damage, saved_path, path):
    path.write_bytes(damage(saved_path.read_bytes()))

    with refused(path) as caught:
        load(path)

    assert "damaged" in caught.value.way_out


def test_a_malicious_file_is_refused_and_its_code_not_run(path, tmp_path):
    """Unpickling the file would open another file for writing."""
    written_by_the_file = tmp_path / "written"
    torch.save({"model": Call(open, str(written_by_the_file), "w")}, path)

    with refused(path):
        load(path)

    assert not written_by_the_file.exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda content: [],
        lambda content: content["model"],
        lambda content: content | {"format": "deepnet_fairseq core model 2"},
    ],
    ids=["a list", "a state dict", "a later format"],
)
def test_a_file_of_another_format_is_refused(change, saved_content, path):
    torch.save(change(saved_content), path)

    with refused(path) as caught:
        load(path)

    assert "version" in caught.value.way_out


@pytest.mark.parametrize(
    ("entry", "value", "fact"),  # fact: what the refusal says of the entry
    [
        ("fields", {"encoder_layer": 2}, "encoder_layers"),  # the field that "encoder_layer" resembles
        ("fields", {"method": "mine"}, "--method mine"),
        ("arch", "mine", "mine"),
        ("vocab", VOCAB + 1, str(VOCAB)),  # the number of symbols in the weights
        ("model", {}, "damaged"),
    ],
)
def test_a_file_with_a_wrong_entry_is_refused(entry, value, fact, saved_content, path):
    torch.save(saved_content | {entry: value}, path)

    with refused(path) as caught:
        load(path)

    assert fact in str(caught.value).removeprefix(str(path))


@pytest.mark.parametrize("entry", ["format", "arch", "vocab", "fields", "model"])
def test_a_file_that_lacks_an_entry_is_refused(entry, saved_content, path):
    del saved_content[entry]
    torch.save(saved_content, path)

    with refused(path):
        load(path)


def pruned_model():
    """Return a model that has lost one of its two layers since it was built."""
    model = noisy_core_model(LM)
    del model.decoder.layers[1]
    return model


@pytest.mark.parametrize(
    "other_model",
    [pruned_model, lambda: small(LM), lambda: blueprint(LM, VOCAB, **sizes(LM, 1))],
    ids=["pruned", "built by the plug-in", "a blueprint"],
)
def test_a_model_that_load_could_not_make_again_is_not_saved(other_model, path, tmp_path):
    with refused(path) as caught:
        save(other_model(), path)

    assert "state_dict()" in caught.value.way_out
    assert list(tmp_path.iterdir()) == []


def test_a_model_with_a_tensor_among_its_fields_is_not_saved(path, tmp_path):
    """Only numbers, texts and None may be values of fields."""
    model = noisy_core_model(LM, max_target_positions=9)
    model.built_from.fields["max_target_positions"] = torch.tensor(9)

    with refused(path) as caught:
        save(model, path)

    assert "max_target_positions" in caught.value.way_out
    assert list(tmp_path.iterdir()) == []


def test_a_model_is_not_saved_in_place_of_a_folder(tmp_path):
    with refused(tmp_path):
        save(noisy_core_model(LM), tmp_path)

    assert list(tmp_path.iterdir()) == []


def test_a_model_is_not_saved_into_a_folder_that_does_not_exist(tmp_path):
    with refused(tmp_path / "none"):
        save(noisy_core_model(LM), tmp_path / "none" / "model.pt")

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "raised"),
    [(RuntimeError("disk full"), UserError), (KeyboardInterrupt(), KeyboardInterrupt)],
    ids=["disk full", "interrupted"],
)
def test_a_file_stays_as_it_was_if_writing_ends_half_way(error, raised, saved_path, tmp_path, monkeypatch):
    before = saved_path.read_bytes()

    def write_half(content, file):
        file.write_bytes(b"half")
        raise error

    monkeypatch.setattr(torch, "save", write_half)
    with pytest.raises(raised):
        save(noisy_core_model(method="pre_ln"), saved_path)

    assert list(tmp_path.iterdir()) == [saved_path]
    assert saved_path.read_bytes() == before
