"""Tests of `deepnet prepare text --like`: a second corpus with the pieces and the dictionary of a model."""

import argparse
import json

import pytest
import sentencepiece
import torch

from deepnet_fairseq import register
from deepnet_fairseq.cli import main
from deepnet_fairseq.data import digests
from deepnet_fairseq.data.language import make_corpus, write_corpus
from deepnet_fairseq.data.like import find_vocabulary
from deepnet_fairseq.data.lines import read_lines
from deepnet_fairseq.errors import UserError
from deepnet_fairseq.tools.export.ctranslate2 import write_ctranslate2
from deepnet_fairseq.tools.export.huggingface import write_huggingface
from deepnet_fairseq.tools.export.served import serve
from deepnet_fairseq.tools.export.transformer import fold_checkpoint

from ..conftest import SPLITS
from ..support.errors import assert_refused
from ..support.prepared_again import copy_data, longer, renamed, reordered, save_start, trainer_of

LANGS = ("qaa", "qab")
FLAGS = (
    "--arch",
    "deepnet_transformer_tiny",
    "--share-all-embeddings",
    "--encoder-layers",
    "2",
    "--decoder-layers",
    "2",
)
register()


@pytest.fixture(scope="module", name="run")
def a_run(data, tmp_path_factory):
    """Provide a folder with data of a run, and its checkpoint in run/."""
    folder = tmp_path_factory.mktemp("first")
    copy_data(data, folder / "data")
    save_start(folder / "run" / "checkpoint_last.pt", folder / "data", *FLAGS)
    return folder


@pytest.fixture(scope="module", name="second")
def a_second(tmp_path_factory):
    """Provide a second corpus of other sentences, with a character that the first does not have."""
    folder = tmp_path_factory.mktemp("second")
    write_corpus(make_corpus({"train": 40, "valid": 8, "test": 8}, seed=7, nouns=20, verbs=10), folder)
    with open(folder / "valid.qaa", encoding="utf-8") as file:
        lines = file.readlines()
    (folder / "valid.qaa").write_text("".join(f"ж{line}" for line in lines[:3]) + "".join(lines[3:]), encoding="utf-8")
    return folder


def prepare(second, dest, like):
    main(["prepare", "text", *LANGS, *(str(second / split) for split in SPLITS), str(dest), "--like", str(like)])


def symbols(path):
    return [line.rsplit(" ", 1)[0] for line in read_lines(path)]


def test_a_second_corpus_trains_the_model(run, second, tmp_path, capsys):
    """Pieces and dictionary are the model's; what it has never seen is counted; the checkpoint takes the data."""
    prepare(second, tmp_path / "bin", run / "run" / "checkpoint_last.pt")
    said = [line for line in capsys.readouterr().out.split("\n") if "never seen" in line]
    assert any("valid.qaa: 3 of 8 lines" in line and "ж" in line for line in said), said
    assert (tmp_path / "bin" / "spm.model").read_bytes() == (run / "data" / "spm.model").read_bytes()
    for lang in LANGS:
        assert (tmp_path / "bin" / f"dict.{lang}.txt").read_bytes() == (run / "data" / f"dict.{lang}.txt").read_bytes()
    trainer = trainer_of(tmp_path / "bin", *FLAGS, save_dir=tmp_path / "save")
    trainer.load_checkpoint(str(run / "run" / "checkpoint_last.pt"), reset_optimizer=True)
    trainer.task.load_dataset("train")
    first = trainer.task.datasets["train"][0]["source"]
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(run / "data" / "spm.model"))
    cut = pieces.encode(next(read_lines(second / "train.qaa")), out_type=str)
    dictionary = trainer.task.source_dictionary
    assert first.tolist() == [*map(dictionary.index, cut), dictionary.eos()]


def test_every_place_of_a_vocabulary(run, second, tmp_path):
    """A run's folder, its data and both kinds of exported folders give the same pieces and symbols."""
    served = serve(fold_checkpoint(str(run / "run" / "checkpoint_last.pt")), None, None)
    places = [run / "run", run / "data"]
    pytest.importorskip("ctranslate2")
    write_ctranslate2(served, tmp_path / "ctranslate2", None)
    places.append(tmp_path / "ctranslate2")
    try:
        import transformers  # noqa: F401

        write_huggingface(served, tmp_path / "huggingface")
        places.append(tmp_path / "huggingface")
    except ImportError:
        pass
    expected = symbols(run / "data" / "dict.qaa.txt")
    for place in places:
        known = find_vocabulary(place, LANGS)
        assert known.pieces.read_bytes() == (run / "data" / "spm.model").read_bytes()
        for lang, path in known.write_dictionaries(tmp_path).items():
            assert symbols(path) == expected, (place, lang)


def test_tags_of_an_export_are_left_out(tmp_path):
    """Tags of languages that the export holds are added by the task, not by the dictionary."""
    (tmp_path / "spm.model").write_bytes(b"pieces")
    described = {"pieces": "sentencepiece", "symbols": {"de": "__de__", "en": "__en__"}}
    (tmp_path / "translation.json").write_text(json.dumps(described))
    words = ["<s>", "<blank>", "</s>", "<unk>", "a", "b", "__de__", "__en__"]
    (tmp_path / "shared_vocabulary.json").write_text(json.dumps(words))
    assert find_vocabulary(tmp_path, ("de", "en")).dictionaries == {"de": ["a 1", "b 1"], "en": ["a 1", "b 1"]}


def test_two_dictionaries_and_other_languages(run, tmp_path):
    """Each side keeps its own dictionary; a language that the model lacks takes one that all others share."""
    data = copy_data(run / "data", tmp_path / "two")
    (data / "dict.qab.txt").write_text("".join(f"{line}\n" for line in longer(list(read_lines(data / "dict.qab.txt")))))
    known = find_vocabulary(data, LANGS)
    assert len(known.dictionaries["qab"]) == len(known.dictionaries["qaa"]) + 8
    with pytest.raises(UserError, match="dict.de.txt"):
        find_vocabulary(data, ("qaa", "de"))
    assert find_vocabulary(run / "data", ("de", "qab")).dictionaries["de"] == list(
        read_lines(run / "data" / "dict.qaa.txt")
    )


def without(folder, name):
    (folder / name).unlink()
    return folder


def test_what_has_no_vocabulary_is_refused(run, second, tmp_path):
    """Each is one line that names the path, and nothing is written."""
    copy = run / "run" / "checkpoint_last.pt"
    moved = tmp_path / "moved.pt"
    state = torch.load(copy)
    state["cfg"]["task"]["data"] = str(tmp_path / "gone")
    torch.save(state, moved)
    (tmp_path / "noise.pt").write_bytes(b"noise")
    (tmp_path / "empty").mkdir()
    torch.save({"args": argparse.Namespace(task="translation"), "model": {}}, tmp_path / "no_data.pt")
    codes = without(copy_data(run / "data", tmp_path / "codes"), "spm.model")
    (codes / "codes").write_text("#version: 0.2\n")
    places = {
        "missing": "missing", "empty": "empty", "noise.pt": "noise.pt", "no_data.pt": "no_data.pt", "moved.pt": "gone",
        "codes": "--srcdict",
    }  # fmt: skip
    for name, word in places.items():
        text = (str(second / split) for split in SPLITS)
        dest = tmp_path / "never"
        assert_refused(word, "prepare", "text", *LANGS, *text, str(dest), "--like", str(tmp_path / name))
        assert not dest.exists()
    text = (str(second / split) for split in SPLITS)
    assert_refused("--vocab", "prepare", "text", *LANGS, *text, "never", "--like", str(copy), "--vocab", "100")


@pytest.mark.parametrize("change", [renamed, reordered])
def test_data_that_were_prepared_again_are_refused(run, tmp_path, change):
    """The folder that a checkpoint names holds another vocabulary than the checkpoint's by now."""
    data = copy_data(run / "data", tmp_path / "data")
    save_start(tmp_path / "run.pt", data, *FLAGS)
    find_vocabulary(tmp_path / "run.pt", LANGS)
    for path in data.glob("dict.*.txt"):
        path.write_text("".join(f"{line}\n" for line in change(list(read_lines(path)))), encoding="utf-8")
    with pytest.raises(UserError, match="run.pt: .* prepared again"):
        find_vocabulary(tmp_path / "run.pt", LANGS)


def test_a_second_text_of_a_language_model(second, tmp_path):
    """`prepare lm` with the first text's --spm and --dict gives the same vocabulary, by digest."""
    texts = [str(second / f"{split}.qaa") for split in SPLITS]
    others = [str(second / f"{split}.qab") for split in SPLITS]
    first, other = tmp_path / "first", tmp_path / "other"
    main(["prepare", "lm", *texts, str(first), "--vocab", "80", "--workers", "1"])
    own = ("--spm", str(first / "spm.model"), "--dict", str(first / "dict.txt"))
    main(["prepare", "lm", *others, str(other), *own, "--workers", "1"])
    cut = [digests.of_cutting(digests.cutting_files(str(folder))) for folder in (first, other)]
    assert cut[0] == cut[1] is not None
    assert symbols(first / "dict.txt") == symbols(other / "dict.txt")
