"""Tests of saving a model of the core in one file, beside test_methods.py: it comes back whole, or a line says why."""

import copy

import pytest
import torch

from deepnet_fairseq.core import build, load, save
from deepnet_fairseq.core.archs import LM, MODEL_NAME
from deepnet_fairseq.core.models import blueprint
from deepnet_fairseq.errors import UserError

from ..support.broken import Call
from ..support.helpers import VOCAB
from ..support.single_stacks import disturb, inputs, scores, sizes, small


def made(kind=MODEL_NAME, **fields):
    """Build a model with noise on its parameters, after 7 updates."""
    torch.manual_seed(0)
    model = disturb(build(kind, VOCAB, **(sizes(kind, 2) | fields)))
    model.set_num_updates(7)
    return model.eval()


def one_line(path, doing, *words):
    with pytest.raises(UserError) as caught:
        doing()
    line = str(caught.value)
    assert "\n" not in line and all(word in line for word in (str(path), *words)), line


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("method", ["deepnorm", "admin"])
def test_precision_and_shared_matrices_come_back(method, dtype, tmp_path):
    """Precision and shared matrices are restored, float32 parameters of admin included; loaded models can be saved."""
    model, path = made(method=method, share_all_embeddings=True).to(dtype), str(tmp_path / "model.pt")
    save(model, path)
    loaded = load(path)
    assert {name: p.dtype for name, p in loaded.named_parameters()} == {n: p.dtype for n, p in model.named_parameters()}
    assert loaded.decoder.output_projection.weight is loaded.encoder.embed_tokens.weight
    assert torch.equal(scores(loaded, *inputs(MODEL_NAME)), scores(model, *inputs(MODEL_NAME)))
    for again in (loaded, copy.deepcopy(model)):
        save(again, path)
        assert load(path).built_from == model.built_from


def test_the_file_is_plain_data(tmp_path):
    model = made(method="branchnorm", branchnorm_updates=9)
    save(model, tmp_path / "model.pt")
    content = torch.load(tmp_path / "model.pt", weights_only=True)
    weights = content.pop("model")
    fields = sizes(MODEL_NAME, 2) | {"method": "branchnorm", "branchnorm_updates": 9}
    format = "deepnet_fairseq core model 1"
    assert content == {"format": format, "arch": MODEL_NAME, "vocab": VOCAB, "fields": fields}
    small(MODEL_NAME, method="branchnorm", branchnorm_updates=9).load_state_dict(weights)  # fairseq's takes them too


def test_a_file_that_load_cannot_use(tmp_path):
    path, good = tmp_path / "model.pt", tmp_path / "good.pt"
    save(made(), good)
    whole, content = good.read_bytes(), torch.load(good, weights_only=True)
    one_line(path, lambda: load(path), "no such file")
    one_line(tmp_path, lambda: load(tmp_path), "is no ordinary file")
    for damaged in (b"", b"text", whole[:100], whole[: len(whole) // 2], whole[:-10], whole[100:]):
        path.write_bytes(damaged)
        one_line(path, lambda: load(path), "damaged or another program's")
    torch.save({"model": Call(open, str(tmp_path / "PROOF"), "w")}, path)
    one_line(path, lambda: load(path), "another program's")
    assert not (tmp_path / "PROOF").exists()
    for foreign in ([], content["model"], content | {"format": "deepnet_fairseq core model 2"}):
        torch.save(foreign, path)
        one_line(path, lambda: load(path), "another version's")
    for wrong, words in {
        "fields": ({"encoder_layer": 2}, "did you mean encoder_layers?"),
        "arch": ("mine", "no such architecture"),
        "vocab": (VOCAB + 1, f"holds {VOCAB} encoder embeddings"),
        "model": ({}, "damaged"),
    }.items():
        torch.save(content | {wrong: words[0]}, path)
        one_line(path, lambda: load(path), words[1])
    torch.save(content | {"fields": content["fields"] | {"method": "mine"}}, path)
    one_line(path, lambda: load(path), "--method mine: unknown")
    for entry in content:
        torch.save({name: value for name, value in content.items() if name != entry}, path)
        one_line(path, lambda: load(path))


def test_what_cannot_come_back_is_not_saved(tmp_path):
    path, pruned = tmp_path / "model.pt", made(LM)
    del pruned.decoder.layers[1]
    for model in (pruned, small(LM), blueprint(LM, VOCAB, **sizes(LM, 1))):
        one_line(path, lambda model=model: save(model, path), "save its state_dict() yourself")
    model = made(LM, max_target_positions=9)
    model.built_from.fields["max_target_positions"] = torch.tensor(9)
    one_line(path, lambda: save(model, path), "max_target_positions is a Tensor")
    one_line(tmp_path, lambda: save(made(LM), tmp_path), "is a folder")
    one_line(tmp_path, lambda: save(made(LM), tmp_path / "none" / "model.pt"), "make it first")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [RuntimeError("disk full"), KeyboardInterrupt()])
def test_a_file_is_written_whole_or_stays_as_it_was(error, tmp_path, monkeypatch):
    path, model = tmp_path / "model.pt", made()
    save(model, path)

    def half(content, part):
        part.write_bytes(b"half")
        raise error

    monkeypatch.setattr(torch, "save", half)
    with pytest.raises(UserError if isinstance(error, RuntimeError) else KeyboardInterrupt):
        save(made(method="pre_ln"), path)
    assert [one.name for one in tmp_path.iterdir()] == ["model.pt"] and load(path).built_from == model.built_from
