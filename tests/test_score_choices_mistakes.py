"""deepnet score-choices: what it cannot use is named in one line, and no result is written."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from fairseq.data import Dictionary

from deepnet_fairseq import cli
from deepnet_fairseq.choices.items import read_items
from deepnet_fairseq.errors import UserError

from .support.language_models import configured, data_folder, save
from .test_bad_input import hostile_checkpoints

FINE = {"context": "the cat", "choices": ["un", "do"]}


def changed(**fields) -> str:
    return json.dumps(FINE | fields)


ITEMS = {
    "{": "is no JSON",
    "[" * 100_000: "is no JSON (nested too deeply)",
    "[]": "is no object",
    '{"context": "the"}': 'lacks "choices"',
    '{"choices": ["un", "do"]}': 'lacks "context"',
    changed(choices=["un"]): '"choices" must be a list of two or more',
    changed(choices="un do"): '"choices" must be a list of two or more',
    changed(choices=["un", 2]): "choice 1 must be text",
    changed(choices=["un", " "]): "choice 1 is empty",
    changed(choices=["", "do"]): "choice 0 is empty",
    changed(context=None): '"context" must be text',
    changed(unconditional_context=1): '"unconditional_context" must be text',
    changed(answer=2): '"answer" must be a number from 0 to 1',
    changed(answer=-1): '"answer" must be a number from 0 to 1',
    changed(answer=True): '"answer" must be a number from 0 to 1',
    changed(answer="un"): '"answer" must be a number from 0 to 1',
    changed(choices=["\ud800", "do"]): "choice 0 holds half a surrogate pair",
}


@pytest.mark.parametrize("line", ITEMS, ids=lambda line: line[:60])
def test_items(line, tmp_path):
    path = tmp_path / "items.jsonl"
    path.write_text(f"{json.dumps(FINE)}\n\n{line}\n")
    with pytest.raises(UserError) as caught:
        read_items(path)
    assert str(caught.value).startswith(f"{path}:3: {ITEMS[line]}")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_no_items(tmp_path):
    (tmp_path / "empty").write_text("\n\n")
    with pytest.raises(UserError, match="empty: holds no item"):
        read_items(tmp_path / "empty")
    with pytest.raises(UserError, match="nowhere: no such file"):
        read_items(tmp_path / "nowhere")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return data_folder(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module", params=["transformer_lm", "deepnet_lm"])
def built(request, data):
    cfg, task = configured(data, request.param)
    return cfg, task.build_model(cfg.model)


@pytest.fixture
def refused(built, tmp_path):
    """refused(words, *flags): the command ends so, in a line, and writes no result; change: of the config."""
    (tmp_path / "items.jsonl").write_text(json.dumps(FINE))

    def refused(words, *flags, change=lambda cfg: None, path=None, items="items.jsonl"):
        cfg = built[0].copy()
        change(cfg)
        path = path or save(tmp_path / "checkpoint.pt", cfg, built[1])
        out = tmp_path / "out.jsonl"
        given = (tmp_path / items, "--path", path, "--results", out, "--cpu", *flags)
        with pytest.raises(SystemExit) as caught:
            cli.main(["score-choices", *map(str, given)])
        line = str(caught.value)
        assert line.startswith("deepnet: error: ") and words in line, line
        assert "\n" not in line and len(line) < 500 and not out.exists()

    return refused


def test_models_of_other_tasks(refused):
    """The line says what to give."""

    def task(**fields):
        return lambda cfg: cfg.task.update(fields)

    refused("of --task masked_lm, which gives no likelihood", change=task(_name="masked_lm"))
    refused("give a checkpoint of --task language_modeling", change=task(_name="translation"))
    refused("trained with --self-target or --past-target", change=task(past_target=True))
    refused("trained with --output-dictionary-size", change=task(output_dictionary_size=100))


def test_data_of_another_model(refused, data, tmp_path):
    refused(f"--data {tmp_path}: holds no dict.txt", "--data", tmp_path)
    other = tmp_path / "other"
    shutil.copytree(data, other)
    dictionary = Dictionary.load(str(data / "dict.txt"))
    dictionary.add_symbol("another")
    dictionary.save(str(other / "dict.txt"))
    refused("data of its ", "--data", other)
    shutil.copy(data / "dict.txt", other / "dict.txt")
    (other / "text.json").unlink()
    refused(f"{other}/text.json: no such file; make the data with", "--data", other)


def test_checkpoints(refused, tmp_path):
    refused("nowhere.pt: no such file", path=tmp_path / "nowhere.pt")
    torch.save({"weight": torch.zeros(3)}, tmp_path / "weights.pt")
    refused("weights.pt: not a checkpoint of fairseq", path=tmp_path / "weights.pt")
    refused("its config has no task section", change=lambda cfg: cfg.update({"task": "none"}))
    for path in hostile_checkpoints(tmp_path, str(tmp_path / "proof")):
        refused("refused, it asks to load io.open", path=path)
    assert not (tmp_path / "proof").exists()


def test_a_choice_longer_than_the_model(refused, tmp_path):
    (tmp_path / "long.jsonl").write_text(f"{json.dumps(FINE)}\n{changed(choices=['un', '? ' * 99])}\n")
    refused("long.jsonl:2: choice 1 has 198 pieces, the model takes 128", items="long.jsonl")


def test_flags(refused, tmp_path):
    refused("--batch-tokens 0: must be at least 1", "--batch-tokens", 0)
    refused("items.jsonl: is one of the files to read", "--results", tmp_path / "items.jsonl")
    refused(f"--results {tmp_path}: is a folder", "--results", tmp_path)
