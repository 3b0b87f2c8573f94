"""Tests of saving a model of the core in one file, beside test_methods.py: it comes back whole, or a line says why."""

import copy
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


def precisions(model):
    return {name: parameter.dtype for name, parameter in model.named_parameters()}


every_method_and_precision = pytest.mark.parametrize(
    ("method", "dtype"), list(product(("deepnorm", "admin"), (torch.bfloat16, torch.float64)))
)


@every_method_and_precision
def test_precision_and_shared_matrices_come_back(method, dtype, tmp_path):
    """So do admin's omegas, which stay float32 in half precision."""
    model = noisy_core_model(method=method, share_all_embeddings=True).to(dtype)

    save(model, tmp_path / "model.pt")
    loaded = load(tmp_path / "model.pt")

    assert precisions(loaded) == precisions(model)
    assert loaded.decoder.output_projection.weight is loaded.encoder.embed_tokens.weight
    assert torch.equal(scores(loaded, *inputs(MODEL_NAME)), scores(model, *inputs(MODEL_NAME)))


@every_method_and_precision
@pytest.mark.parametrize("again", [lambda model, path: load(path), lambda model, path: copy.deepcopy(model)],
                         ids=["loaded", "copied"])  # fmt: skip
def test_loaded_and_copied_models_can_be_saved(again, method, dtype, tmp_path):
    model = noisy_core_model(method=method, share_all_embeddings=True).to(dtype)
    first = str(tmp_path / "first.pt")
    second = str(tmp_path / "second.pt")
    save(model, first)

    save(again(model, first), second)

    assert load(second).built_from == model.built_from


def test_the_file_is_plain_data_and_its_weights_fit_fairseqs_model(tmp_path):
    options = {"method": "branchnorm", "branchnorm_updates": 9}

    save(noisy_core_model(**options), tmp_path / "model.pt")

    content = torch.load(tmp_path / "model.pt", weights_only=True)
    weights = content.pop("model")
    assert content == {
        "format": "deepnet_fairseq core model 1",
        "arch": MODEL_NAME,
        "vocab": VOCAB,
        "fields": sizes(MODEL_NAME, 2) | options,
    }
    small(MODEL_NAME, **options).load_state_dict(weights)


@pytest.fixture
def saved_bytes(tmp_path):
    """Provide the bytes of a saved model."""
    save(noisy_core_model(), tmp_path / "whole.pt")
    return (tmp_path / "whole.pt").read_bytes()


@pytest.fixture
def saved_content(tmp_path):
    """Provide the entries of a saved model."""
    save(noisy_core_model(), tmp_path / "whole.pt")
    return torch.load(tmp_path / "whole.pt", weights_only=True)


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
def test_a_damaged_file_is_refused(damage, saved_bytes, path):
    path.write_bytes(damage(saved_bytes))

    with refused(path) as caught:
        load(path)

    assert "damaged" in caught.value.way_out


def test_a_malicious_file_is_refused_and_not_run(path, tmp_path):
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
    ("entry", "value", "fact"),
    [
        ("fields", {"encoder_layer": 2}, "encoder_layers"),
        ("fields", {"method": "mine"}, "--method mine"),
        ("arch", "mine", "mine"),
        ("vocab", VOCAB + 1, f"{VOCAB} encoder embeddings"),
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


def test_a_model_built_from_a_tensor_is_not_saved(path, tmp_path):
    model = noisy_core_model(LM, max_target_positions=9)
    model.built_from.fields["max_target_positions"] = torch.tensor(9)

    with refused(path) as caught:
        save(model, path)

    assert "max_target_positions" in caught.value.way_out
    assert list(tmp_path.iterdir()) == []


def test_a_model_is_not_saved_as_a_folder(tmp_path):
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
def test_a_file_is_written_whole_or_stays_as_it_was(error, raised, tmp_path, path, monkeypatch):
    model = noisy_core_model()
    save(model, path)

    def write_half(content, part):
        part.write_bytes(b"half")
        raise error

    monkeypatch.setattr(torch, "save", write_half)
    with pytest.raises(raised):
        save(noisy_core_model(method="pre_ln"), path)

    assert list(tmp_path.iterdir()) == [path]
    assert load(path).built_from == model.built_from
